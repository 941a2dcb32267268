#include "caldate.h"
#include "check.h"

static char text[128];

static const char *formatted(int year, int month, int day, const char *pattern)
{
    struct caldate date = {year, month, day};
    caldate_format(date, pattern, text, sizeof text);
    return text;
}

/* The date as a number, or -1 if it is none. */
static long parsed(const char *source)
{
    struct caldate date;
    if (caldate_parse(source, &date) != 0)
        return -1;
    return date.year * 10000L + date.month * 100 + date.day;
}

static void test_parse(void)
{
    CHECK_INT(parsed("2024-02-29"), 20240229);
    CHECK_INT(parsed("20231105"), 20231105);
    CHECK_INT(parsed("0999-12-31"), 9991231);
}

static void test_parse_refuses(void)
{
    CHECK_INT(parsed("2023-02-29"), -1);
    CHECK_INT(parsed("2023-2-9"), -1);
    CHECK_INT(parsed("2023-0209"), -1);
    CHECK_INT(parsed("202302-09"), -1);
    CHECK_INT(parsed("2023-02-09 "), -1);
    CHECK_INT(parsed(""), -1);
}

static void test_parse_leaves_date_alone(void)
{
    struct caldate date = {1, 2, 3};
    CHECK_INT(caldate_parse("2023-13-01", &date), -1);
    CHECK_INT(date.year, 1);
    CHECK_INT(date.month, 2);
    CHECK_INT(date.day, 3);
}

static void test_format_numbers(void)
{
    CHECK_STR(formatted(2024, 3, 7, "%Y-%m-%d"), "2024-03-07");
    CHECK_STR(formatted(987, 12, 1, "%e.%m.%Y"), "1.12.0987");
    CHECK_STR(formatted(2024, 3, 1, "day %j"), "day 061");
}

static void test_format_names(void)
{
    CHECK_STR(formatted(2024, 2, 29, "%A, %d %B %Y"), "Thursday, 29 February 2024");
    CHECK_STR(formatted(2023, 9, 3, "%a %e %b"), "Sun 3 Sep");
}

static void test_format_weeks(void)
{
    CHECK_STR(formatted(2024, 12, 30, "%G-W%V-%u"), "2025-W01-1");
    CHECK_STR(formatted(2021, 1, 3, "%G-W%V-%u (%Y)"), "2020-W53-7 (2021)");
}

static void test_format_other_signs(void)
{
    CHECK_STR(formatted(2024, 3, 7, "100%% of %Y"), "100% of 2024");
    CHECK_STR(formatted(2024, 3, 7, "%q %Y %"), "%q 2024 %");
    CHECK_STR(formatted(2024, 3, 7, ""), "");
}

static void test_format_is_cut(void)
{
    char small[8] = "xxxxxxx";
    struct caldate date = {2024, 9, 15};
    CHECK_INT(caldate_format(date, "%B %Y", small, sizeof small), 14);
    CHECK_STR(small, "Septemb");
    CHECK_INT(caldate_format(date, "%d", small, sizeof small), 2);
    CHECK_STR(small, "15");
    CHECK_INT(caldate_format(date, "%A", NULL, 0), 6);
}

int main(void)
{
    RUN(test_parse);
    RUN(test_parse_refuses);
    RUN(test_parse_leaves_date_alone);
    RUN(test_format_numbers);
    RUN(test_format_names);
    RUN(test_format_weeks);
    RUN(test_format_other_signs);
    RUN(test_format_is_cut);
    return check_done();
}
