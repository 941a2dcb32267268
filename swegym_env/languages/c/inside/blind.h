/* Sends the values that hidden tests compare out of the sandbox (see languages/c/blind.py).
 *
 * It runs in the process of the code under test, and need not be trusted: it does not know the expected values. A record
 * is one line of JSON, as grading/comparisons.py reads it. SWEGYM is replaced by a random prefix in each rewriting.
 * Compiles as C99 and later, and as C++98 and later. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__cplusplus) && __cplusplus >= 201103L
#include <type_traits>
#include <utility>
#endif

static int SWEGYM_open(const char *key, const char *test)
{
    char head[512];
    int out = open("@OUTPUT@", O_WRONLY | O_CREAT | O_APPEND, 0666);
    int length = snprintf(head, sizeof head, "[\"%s\", null, [", key);
    if (out >= 0 && write(out, head, (size_t)length) < 0) {
        close(out);
        out = -1;
    }
    (void)test;
    return out;
}

static int SWEGYM_close(int out, const char *test)
{
    char tail[512];
    int length = snprintf(tail, sizeof tail, "], [\"\", \"%.200s\", \"\"]]\n", test);
    int sent = out >= 0 && write(out, tail, (size_t)length) == length;
    if (out >= 0)
        close(out);
    return sent;
}

static inline int SWEGYM_integer(const char *key, const char *test, long long value)
{
    char text[64];
    unsigned long long size = value < 0 ? 0ULL - (unsigned long long)value : (unsigned long long)value;
    int out = SWEGYM_open(key, test);
    int length = snprintf(text, sizeof text, "\"i\", \"%s0x%llx\"", value < 0 ? "-" : "", size);
    if (out >= 0 && write(out, text, (size_t)length) < 0)
        return 0;
    return SWEGYM_close(out, test);
}

static inline int SWEGYM_real(const char *key, const char *test, long double value)
{
    char text[128];
    int out = SWEGYM_open(key, test);
    int length = snprintf(text, sizeof text, "\"f\", \"%a\"", (double)value);
    if (out >= 0 && write(out, text, (size_t)length) < 0)
        return 0;
    return SWEGYM_close(out, test);
}

static inline int SWEGYM_truth(const char *key, const char *test, int value)
{
    int out = SWEGYM_open(key, test);
    if (out >= 0 && write(out, value ? "\"b\", 1" : "\"b\", 0", 6) < 0)
        return 0;
    return SWEGYM_close(out, test);
}

static inline int SWEGYM_text_of(const char *key, const char *test, const char *value, size_t size)
{
    char part[1024];
    size_t used = 0, at;
    int out = SWEGYM_open(key, test);
    if (out < 0)
        return 0;
    if (value == NULL) {
        if (write(out, "\"n\"", 3) < 0)
            return 0;
        return SWEGYM_close(out, test);
    }
    if (write(out, "\"s\", \"", 6) < 0)
        return 0;
    for (at = 0; at < size; at++) {
        unsigned char letter = (unsigned char)value[at];
        if (letter < 32 || letter == '"' || letter == '\\')
            used += (size_t)snprintf(part + used, sizeof part - used, "\\u%04x", letter);
        else
            part[used++] = (char)letter;
        if (used > sizeof part - 16) {
            if (write(out, part, used) < 0)
                return 0;
            used = 0;
        }
    }
    part[used++] = '"';
    if (write(out, part, used) < 0)
        return 0;
    return SWEGYM_close(out, test);
}

static inline int SWEGYM_bytes(const char *key, const char *test, const void *value, size_t size)
{
    const char *end = value ? (const char *)memchr(value, 0, size) : NULL;
    return SWEGYM_text_of(key, test, (const char *)value, end ? (size_t)(end - (const char *)value) : size);
}

#ifdef __cplusplus
static inline int SWEGYM_text(const char *key, const char *test, const char *value)
{
    return SWEGYM_text_of(key, test, value, value ? strlen(value) : 0);
}
template <class T> static inline int SWEGYM_text(const char *key, const char *test, const T &value)
{
    return SWEGYM_text_of(key, test, value.data(), value.size());
}
/* What is compared with a whole number, where its type cannot be asked for: a fraction is no such. */
#define SWEGYM_PLAIN(type, send, sent)                                            \
    static inline int SWEGYM_plain(const char *key, const char *test, type value) \
    {                                                                             \
        return send(key, test, (sent)value);                                      \
    }
SWEGYM_PLAIN(bool, SWEGYM_integer, long long)
SWEGYM_PLAIN(char, SWEGYM_integer, long long)
SWEGYM_PLAIN(signed char, SWEGYM_integer, long long)
SWEGYM_PLAIN(unsigned char, SWEGYM_integer, long long)
SWEGYM_PLAIN(short, SWEGYM_integer, long long)
SWEGYM_PLAIN(unsigned short, SWEGYM_integer, long long)
SWEGYM_PLAIN(int, SWEGYM_integer, long long)
SWEGYM_PLAIN(unsigned, SWEGYM_integer, long long)
SWEGYM_PLAIN(long, SWEGYM_integer, long long)
SWEGYM_PLAIN(unsigned long, SWEGYM_integer, long long)
SWEGYM_PLAIN(long long, SWEGYM_integer, long long)
SWEGYM_PLAIN(unsigned long long, SWEGYM_integer, long long)
SWEGYM_PLAIN(float, SWEGYM_real, long double)
SWEGYM_PLAIN(double, SWEGYM_real, long double)
SWEGYM_PLAIN(long double, SWEGYM_real, long double)
#if __cplusplus >= 201103L
template <class T> struct SWEGYM_chars {
    typedef typename std::decay<T>::type held;
    typedef typename std::remove_cv<typename std::remove_pointer<held>::type>::type letter;
    static const bool value = std::is_pointer<held>::value && std::is_same<letter, char>::value;
};
template <class T>
inline typename std::enable_if<std::is_integral<T>::value || std::is_enum<T>::value>::type
SWEGYM_send(const char *key, const char *test, const T &value, int)
{
    (void)SWEGYM_integer(key, test, (long long)value);
}
template <class T>
inline typename std::enable_if<std::is_floating_point<T>::value>::type
SWEGYM_send(const char *key, const char *test, const T &value, int)
{
    (void)SWEGYM_real(key, test, value);
}
template <class T>
inline typename std::enable_if<SWEGYM_chars<T>::value>::type
SWEGYM_send(const char *key, const char *test, const T &value, int)
{
    const char *text = value;
    (void)SWEGYM_text_of(key, test, text, text ? strlen(text) : 0);
}
template <class T>
inline typename std::enable_if<SWEGYM_chars<decltype(std::declval<const T &>().data())>::value>::type
SWEGYM_send(const char *key, const char *test, const T &value, int)
{
    (void)SWEGYM_text_of(key, test, value.data(), (size_t)value.size());
}
template <class T> inline void SWEGYM_send(const char *key, const char *test, const T &, long)
{
    (void)key;
    (void)test;
}
/* A value, which is sent if it is a number or a text. The content of other classes is not known. */
template <class T> inline T SWEGYM_through(const char *key, const char *test, T &&value)
{
    SWEGYM_send(key, test, value, 0);
    return static_cast<T &&>(value);
}
/* A value that is compared with a whole number; a fraction is not equal to one. */
template <class T> struct SWEGYM_whole {
    static const bool is_real = std::is_floating_point<typename std::decay<T>::type>::value;
    typedef typename std::conditional<is_real, long double, long long>::type type;
};
static inline int SWEGYM_of(const char *key, const char *test, long long value)
{
    return SWEGYM_integer(key, test, value);
}
static inline int SWEGYM_of(const char *key, const char *test, long double value)
{
    return SWEGYM_real(key, test, value);
}
#define SWEGYM_int(key, test, ...) \
    SWEGYM_of(key, test, (typename SWEGYM_whole<decltype((__VA_ARGS__))>::type)(__VA_ARGS__))
template <class T> inline int SWEGYM_number(const char *key, const char *test, const T &value)
{
    SWEGYM_send(key, test, value, 0);
    return 1;
}
#else
#define SWEGYM_through(key, test, ...) (__VA_ARGS__)
#define SWEGYM_number(key, test, ...) ((void)(__VA_ARGS__), 1)
#define SWEGYM_int(key, test, ...) SWEGYM_plain(key, test, (__VA_ARGS__))
#endif
#else
static inline int SWEGYM_text(const char *key, const char *test, const void *value)
{
    return SWEGYM_text_of(key, test, (const char *)value, value ? strlen((const char *)value) : 0);
}
/* Sends a number; of other types, their bits. */
#define SWEGYM_number(key, test, ...)                                                                        \
    __extension__(_Generic((__VA_ARGS__), float: SWEGYM_real, double: SWEGYM_real, long double: SWEGYM_real, \
                           default: SWEGYM_integer)(                                                             \
        key, test,                                                                                           \
        _Generic((__VA_ARGS__), float: (__VA_ARGS__), double: (__VA_ARGS__), long double: (__VA_ARGS__),     \
                 default: (long long)(__VA_ARGS__))))
/* A value that is compared with a whole number; a fraction is not equal to one. */
#define SWEGYM_int(key, test, ...) SWEGYM_number(key, test, __VA_ARGS__)
#define SWEGYM_plain(key, test, ...) SWEGYM_number(key, test, __VA_ARGS__)
#if defined(__GNUC__)
static inline int SWEGYM_other(const char *key, const char *test, ...)
{
    (void)key;
    (void)test;
    return 1;
}
/* Memory as hexadecimal digits. */
static inline int SWEGYM_hex(const char *key, const char *test, size_t size, const void *value)
{
    char part[3];
    size_t at;
    int out = SWEGYM_open(key, test);
    if (out < 0)
        return 0;
    if (write(out, "\"s\", \"", 6) < 0)
        return 0;
    for (at = 0; value != NULL && at < size && at < 65536; at++) {
        snprintf(part, sizeof part, "%02x", ((const unsigned char *)value)[at]);
        if (write(out, part, 2) < 0)
            return 0;
    }
    if (write(out, "\"", 1) < 0)
        return 0;
    return SWEGYM_close(out, test);
}
#define SWEGYM_bytes_through(key, test, size, ...)                           \
    __extension__({                                                          \
        __auto_type SWEGYM_value = (__VA_ARGS__);                            \
        (void)SWEGYM_hex(key, test, (size_t)(size), (const void *)SWEGYM_value); \
        SWEGYM_value;                                                        \
    })
/* A value, which is sent if it is a number or a text. */
#define SWEGYM_through(key, test, ...)                                                                          \
    __extension__({                                                                                             \
        __auto_type SWEGYM_value = (__VA_ARGS__);                                                               \
        (void)_Generic(SWEGYM_value, char *: SWEGYM_text, const char *: SWEGYM_text,                            \
                       unsigned char *: SWEGYM_text, const unsigned char *: SWEGYM_text, float: SWEGYM_real,    \
                       double: SWEGYM_real, long double: SWEGYM_real, _Bool: SWEGYM_integer, char: SWEGYM_integer,      \
                       signed char: SWEGYM_integer, unsigned char: SWEGYM_integer, short: SWEGYM_integer,                   \
                       unsigned short: SWEGYM_integer, int: SWEGYM_integer, unsigned: SWEGYM_integer, long: SWEGYM_integer,     \
                       unsigned long: SWEGYM_integer, long long: SWEGYM_integer, unsigned long long: SWEGYM_integer,        \
                       default: SWEGYM_other)(key, test, SWEGYM_value);                                         \
        SWEGYM_value;                                                                                           \
    })
#else
#define SWEGYM_through(key, test, ...) (__VA_ARGS__)
#define SWEGYM_bytes_through(key, test, size, ...) (__VA_ARGS__)
#endif
#endif
