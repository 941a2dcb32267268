#include "caldate.h"

int caldate_is_leap(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

int caldate_month_length(int year, int month)
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (month < 1 || month > 12)
        return 0;
    return lengths[month - 1] + (month == 2 && caldate_is_leap(year));
}

int caldate_is_valid(struct caldate date)
{
    return date.day >= 1 && date.day <= caldate_month_length(date.year, date.month);
}

/* Division that rounds towards negative infinity. */
static long floor_div(long a, long b)
{
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* With March as the first month a leap day is the last day of its year. */
long caldate_to_days(struct caldate date)
{
    long year = date.year - (date.month <= 2);
    long month = (date.month + 9) % 12;
    long era = floor_div(year, 400);
    long year_of_era = year - era * 400;
    long day_of_year = (153 * month + 2) / 5 + date.day - 1;
    long day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * 146097 + day_of_era - 719468;
}

struct caldate caldate_from_days(long days)
{
    days += 719468;
    long era = floor_div(days, 146097);
    long day_of_era = days - era * 146097;
    long year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    long day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    long month = (5 * day_of_year + 2) / 153;
    struct caldate date;
    date.day = (int)(day_of_year - (153 * month + 2) / 5 + 1);
    date.month = (int)(month < 10 ? month + 3 : month - 9);
    date.year = (int)(year_of_era + era * 400 + (date.month <= 2));
    return date;
}

struct caldate caldate_add_days(struct caldate date, long days)
{
    return caldate_from_days(caldate_to_days(date) + days);
}

struct caldate caldate_add_months(struct caldate date, int months)
{
    long total = date.year * 12L + date.month - 1 + months;
    date.year = (int)floor_div(total, 12);
    date.month = (int)(total - date.year * 12L) + 1;
    int last = caldate_month_length(date.year, date.month);
    if (date.day > last)
        date.day = last;
    return date;
}

int caldate_compare(struct caldate a, struct caldate b)
{
    long difference = caldate_to_days(a) - caldate_to_days(b);
    return (difference > 0) - (difference < 0);
}

int caldate_weekday(struct caldate date)
{
    long days = caldate_to_days(date) + 3; /* 1970-01-01 is a Thursday */
    return (int)(days - floor_div(days, 7) * 7) + 1;
}

int caldate_day_of_year(struct caldate date)
{
    struct caldate first = {date.year, 1, 1};
    return (int)(caldate_to_days(date) - caldate_to_days(first)) + 1;
}

int caldate_iso_week(struct caldate date, int *year)
{
    struct caldate thursday = caldate_add_days(date, 4 - caldate_weekday(date));
    if (year)
        *year = thursday.year;
    return (caldate_day_of_year(thursday) - 1) / 7 + 1;
}
