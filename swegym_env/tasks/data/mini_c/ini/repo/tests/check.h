/* A small test harness: every test is a function, results are TAP on standard output. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <string.h>

static int check_count;
static int check_failures;
static int check_failed; /* the running test has failed */

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            printf("# %s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            check_failed = 1;                                                     \
            return;                                                               \
        }                                                                         \
    } while (0)

#define CHECK_INT(actual, expected)                                                        \
    do {                                                                                   \
        long check_a = (long)(actual), check_e = (long)(expected);                         \
        if (check_a != check_e) {                                                          \
            printf("# %s:%d: %s is %ld, expected %ld\n", __FILE__, __LINE__, #actual,      \
                   check_a, check_e);                                                      \
            check_failed = 1;                                                              \
            return;                                                                        \
        }                                                                                  \
    } while (0)

#define CHECK_STR(actual, expected)                                                         \
    do {                                                                                    \
        const char *check_a = (actual), *check_e = (expected);                              \
        if (check_a == NULL || strcmp(check_a, check_e) != 0) {                             \
            printf("# %s:%d: %s is \"%s\", expected \"%s\"\n", __FILE__, __LINE__, #actual, \
                   check_a ? check_a : "(null)", check_e);                                  \
            check_failed = 1;                                                               \
            return;                                                                         \
        }                                                                                   \
    } while (0)

#define RUN(test)                                                                    \
    do {                                                                             \
        check_failed = 0;                                                            \
        test();                                                                      \
        check_failures += check_failed;                                              \
        printf("%sok %d - %s\n", check_failed ? "not " : "", ++check_count, #test);  \
        fflush(stdout);                                                              \
    } while (0)

static int check_done(void)
{
    printf("1..%d\n", check_count);
    return check_failures != 0;
}

#endif
