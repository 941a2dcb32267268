#include "caldate.h"
#include "check.h"

static struct caldate on(int year, int month, int day)
{
    struct caldate date = {year, month, day};
    return date;
}

static long number(struct caldate date)
{
    return date.year * 10000L + date.month * 100 + date.day;
}

static void test_leap_years(void)
{
    CHECK_INT(caldate_is_leap(2024), 1);
    CHECK_INT(caldate_is_leap(2023), 0);
    CHECK_INT(caldate_is_leap(1900), 0);
    CHECK_INT(caldate_is_leap(2000), 1);
    CHECK_INT(caldate_month_length(1900, 2), 28);
    CHECK_INT(caldate_month_length(2000, 2), 29);
}

static void test_month_lengths(void)
{
    int total = 0;
    for (int month = 1; month <= 12; month++)
        total += caldate_month_length(2023, month);
    CHECK_INT(total, 365);
    CHECK_INT(caldate_month_length(2023, 9), 30);
    CHECK_INT(caldate_month_length(2023, 13), 0);
    CHECK_INT(caldate_month_length(2023, 0), 0);
}

static void test_valid_dates(void)
{
    CHECK(caldate_is_valid(on(2024, 2, 29)));
    CHECK(!caldate_is_valid(on(2023, 2, 29)));
    CHECK(!caldate_is_valid(on(2023, 4, 31)));
    CHECK(!caldate_is_valid(on(2023, 4, 0)));
    CHECK(!caldate_is_valid(on(2023, 13, 1)));
}

static void test_days_of_known_dates(void)
{
    CHECK_INT(caldate_to_days(on(1970, 1, 1)), 0);
    CHECK_INT(caldate_to_days(on(1969, 12, 31)), -1);
    CHECK_INT(caldate_to_days(on(2000, 3, 1)), 11017);
    CHECK_INT(caldate_to_days(on(2024, 2, 29)), 19782);
    CHECK_INT(caldate_to_days(on(1600, 1, 1)), -135140);
}

static void test_days_and_back(void)
{
    CHECK_INT(number(caldate_from_days(0)), 19700101);
    CHECK_INT(number(caldate_from_days(11016)), 20000229);
    CHECK_INT(number(caldate_from_days(-719468)), 301);
    int wrong = 0;
    for (long days = -200000; days < 200000; days += 97)
        wrong += caldate_to_days(caldate_from_days(days)) != days;
    CHECK_INT(wrong, 0);
}

static void test_add_days(void)
{
    CHECK_INT(number(caldate_add_days(on(2024, 2, 28), 2)), 20240301);
    CHECK_INT(number(caldate_add_days(on(2023, 12, 31), 1)), 20240101);
    CHECK_INT(number(caldate_add_days(on(2024, 3, 1), -366)), 20230301);
}

static void test_add_months(void)
{
    CHECK_INT(number(caldate_add_months(on(2023, 1, 31), 1)), 20230228);
    CHECK_INT(number(caldate_add_months(on(2023, 11, 15), 3)), 20240215);
    CHECK_INT(number(caldate_add_months(on(2024, 3, 31), -1)), 20240229);
    CHECK_INT(number(caldate_add_months(on(2024, 1, 10), -13)), 20221210);
    CHECK_INT(number(caldate_add_months(on(2024, 12, 5), 12)), 20251205);
}

static void test_compare(void)
{
    CHECK_INT(caldate_compare(on(2024, 1, 2), on(2023, 12, 31)), 1);
    CHECK_INT(caldate_compare(on(2024, 1, 2), on(2024, 2, 1)), -1);
    CHECK_INT(caldate_compare(on(2024, 1, 2), on(2024, 1, 2)), 0);
}

static void test_weekdays(void)
{
    CHECK_INT(caldate_weekday(on(1970, 1, 1)), 4);
    CHECK_INT(caldate_weekday(on(2024, 2, 29)), 4);
    CHECK_INT(caldate_weekday(on(2024, 3, 3)), 7);
    CHECK_INT(caldate_weekday(on(1969, 12, 29)), 1);
    CHECK_INT(caldate_weekday(on(1600, 1, 1)), 6);
}

static void test_day_of_year(void)
{
    CHECK_INT(caldate_day_of_year(on(2023, 1, 1)), 1);
    CHECK_INT(caldate_day_of_year(on(2023, 12, 31)), 365);
    CHECK_INT(caldate_day_of_year(on(2024, 12, 31)), 366);
    CHECK_INT(caldate_day_of_year(on(2024, 3, 1)), 61);
}

static void test_iso_weeks(void)
{
    int year;
    CHECK_INT(caldate_iso_week(on(2024, 6, 12), &year), 24);
    CHECK_INT(year, 2024);
    CHECK_INT(caldate_iso_week(on(2021, 1, 3), &year), 53);
    CHECK_INT(year, 2020);
    CHECK_INT(caldate_iso_week(on(2024, 12, 30), &year), 1);
    CHECK_INT(year, 2025);
    CHECK_INT(caldate_iso_week(on(2018, 1, 1), NULL), 1);
}

int main(void)
{
    RUN(test_leap_years);
    RUN(test_month_lengths);
    RUN(test_valid_dates);
    RUN(test_days_of_known_dates);
    RUN(test_days_and_back);
    RUN(test_add_days);
    RUN(test_add_months);
    RUN(test_compare);
    RUN(test_weekdays);
    RUN(test_day_of_year);
    RUN(test_iso_weeks);
    return check_done();
}
