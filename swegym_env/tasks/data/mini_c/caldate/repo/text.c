#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "caldate.h"

static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};
static const char *const weekdays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};

/* Reads so many digits; -1 if there are fewer. */
static int read_digits(const char **text, int count)
{
    int value = 0;
    while (count-- > 0) {
        if (!isdigit((unsigned char)**text))
            return -1;
        value = value * 10 + (*(*text)++ - '0');
    }
    return value;
}

int caldate_parse(const char *text, struct caldate *date)
{
    struct caldate found;
    found.year = read_digits(&text, 4);
    if (found.year < 0)
        return -1;
    int has_dashes = *text == '-';
    text += has_dashes;
    found.month = read_digits(&text, 2);
    if (found.month < 0)
        return -1;
    if (has_dashes && *text++ != '-')
        return -1;
    found.day = read_digits(&text, 2);
    if (found.day < 0 || *text || !caldate_is_valid(found))
        return -1;
    *date = found;
    return 0;
}

struct output {
    char *start;
    size_t size, length;
};

static void add(struct output *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++, out->length++)
        if (out->length + 1 < out->size)
            out->start[out->length] = text[i];
}

static void add_number(struct output *out, int value, const char *pattern)
{
    char digits[16];
    int length = snprintf(digits, sizeof digits, pattern, value);
    add(out, digits, (size_t)length);
}

size_t caldate_format(struct caldate date, const char *pattern, char *buffer, size_t size)
{
    struct output out = {buffer, size, 0};
    for (; *pattern; pattern++) {
        if (*pattern != '%' || !pattern[1]) {
            add(&out, pattern, 1);
            continue;
        }
        const char *month = months[date.month - 1];
        const char *weekday = weekdays[caldate_weekday(date) - 1];
        int week_year, week = caldate_iso_week(date, &week_year);
        switch (*++pattern) {
        case 'Y': add_number(&out, date.year, "%04d"); break;
        case 'm': add_number(&out, date.month, "%02d"); break;
        case 'd': add_number(&out, date.day, "%02d"); break;
        case 'e': add_number(&out, date.day, "%d"); break;
        case 'j': add_number(&out, caldate_day_of_year(date), "%03d"); break;
        case 'u': add_number(&out, caldate_weekday(date), "%d"); break;
        case 'V': add_number(&out, week, "%02d"); break;
        case 'G': add_number(&out, week_year, "%04d"); break;
        case 'B': add(&out, month, strlen(month)); break;
        case 'b': add(&out, month, 3); break;
        case 'A': add(&out, weekday, strlen(weekday)); break;
        case 'a': add(&out, weekday, 3); break;
        case '%': add(&out, "%", 1); break;
        default: add(&out, pattern - 1, 2);
        }
    }
    if (size > 0)
        buffer[out.length < size ? out.length : size - 1] = '\0';
    return out.length;
}
