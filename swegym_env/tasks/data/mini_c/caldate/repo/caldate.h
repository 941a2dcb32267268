#ifndef CALDATE_H
#define CALDATE_H

#include <stddef.h>

struct caldate {
    int year, month, day; /* month and day count from 1 */
};

int caldate_is_leap(int year);
int caldate_month_length(int year, int month);
int caldate_is_valid(struct caldate date);

/* Days since 1970-01-01. */
long caldate_to_days(struct caldate date);
struct caldate caldate_from_days(long days);

struct caldate caldate_add_days(struct caldate date, long days);
struct caldate caldate_add_months(struct caldate date, int months);
/* Negative, 0 or positive, as the first date is earlier than, the same as or later than the second. */
int caldate_compare(struct caldate a, struct caldate b);

int caldate_weekday(struct caldate date);
int caldate_day_of_year(struct caldate date);
/* The ISO week; `year` gets the year that it belongs to. */
int caldate_iso_week(struct caldate date, int *year);

/* Returns 0, or -1 if the text is no date. */
int caldate_parse(const char *text, struct caldate *date);
/* Returns the length of the whole text, which is cut if it has no room. */
size_t caldate_format(struct caldate date, const char *pattern, char *out, size_t size);

#endif
