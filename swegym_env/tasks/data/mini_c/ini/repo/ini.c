#include "ini.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"

struct entry {
    char *section;
    char *key;
    char *value;
};

struct ini {
    struct entry *entries; /* the keys of a section are not always together */
    size_t count, capacity;
    int error_line;
};

static char *copy(const char *text, size_t length)
{
    char *result = malloc(length + 1);
    if (result) {
        memcpy(result, text, length);
        result[length] = '\0';
    }
    return result;
}

static int same(const char *a, const char *b)
{
    while (*a && *b) {
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return 0;
        a++;
        b++;
    }
    return *a == *b;
}

static struct entry *find(const struct ini *ini, const char *section, const char *key)
{
    for (size_t i = 0; i < ini->count; i++)
        if (same(ini->entries[i].section, section) && same(ini->entries[i].key, key))
            return &ini->entries[i];
    return NULL;
}

int ini_set(struct ini *ini, const char *section, const char *key, const char *value)
{
    struct entry *found = find(ini, section, key);
    char *text = copy(value, strlen(value));
    if (!text)
        return -1;
    if (found) {
        free(found->value);
        found->value = text;
        return 0;
    }
    if (ini->count == ini->capacity) {
        size_t capacity = ini->capacity ? 2 * ini->capacity : 8;
        struct entry *entries = realloc(ini->entries, capacity * sizeof *entries);
        if (!entries) {
            free(text);
            return -1;
        }
        ini->entries = entries;
        ini->capacity = capacity;
    }
    struct entry entry = {copy(section, strlen(section)), copy(key, strlen(key)), text};
    if (!entry.section || !entry.key) {
        free(entry.section);
        free(entry.key);
        free(text);
        return -1;
    }
    ini->entries[ini->count++] = entry;
    return 0;
}

int ini_remove(struct ini *ini, const char *section, const char *key)
{
    struct entry *found = find(ini, section, key);
    if (!found)
        return 0;
    free(found->section);
    free(found->key);
    free(found->value);
    size_t after = ini->count - (size_t)(found - ini->entries) - 1;
    memmove(found, found + 1, after * sizeof *found);
    ini->count--;
    return 1;
}

/* The end of a text without the white space before it. */
static const char *trim_end(const char *start, const char *end)
{
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    return end;
}

static const char *skip_space(const char *start, const char *end)
{
    while (start < end && isspace((unsigned char)*start))
        start++;
    return start;
}

/* Reads a value in quotes up to the closing one; what follows must be a comment or nothing. */
static int read_quoted(const char *start, const char *end, struct buffer *out)
{
    for (start++; start < end && *start != '"'; start++) {
        char letter = *start;
        if (letter == '\\' && start + 1 < end) {
            letter = *++start;
            if (letter == 'n')
                letter = '\n';
            else if (letter == 't')
                letter = '\t';
        }
        buffer_add(out, &letter, 1);
    }
    if (start == end)
        return 0;
    start = skip_space(start + 1, end);
    return start == end || *start == ';' || *start == '#';
}

static void read_plain(const char *start, const char *end, struct buffer *out)
{
    for (const char *at = start; at < end; at++) {
        int begins_comment = *at == ';' || *at == '#';
        if (begins_comment && (at == start || isspace((unsigned char)at[-1]))) {
            end = at;
            break;
        }
    }
    buffer_add(out, start, (size_t)(trim_end(start, end) - start));
}

/* Reads one line; `section` is replaced by a new one. Returns whether the line was understood. */
static int read_line(struct ini *ini, const char *start, const char *end, char **section)
{
    start = skip_space(start, end);
    end = trim_end(start, end);
    if (start == end || *start == ';' || *start == '#')
        return 1;
    if (*start == '[') {
        const char *close = memchr(start, ']', (size_t)(end - start));
        if (!close)
            return 0;
        const char *name = skip_space(start + 1, close);
        char *next = copy(name, (size_t)(trim_end(name, close) - name));
        if (!next)
            return 0;
        free(*section);
        *section = next;
        return 1;
    }
    const char *equals = memchr(start, '=', (size_t)(end - start));
    if (!equals || equals == start)
        return 0;
    struct buffer value = {0};
    const char *first = skip_space(equals + 1, end);
    int good = 1;
    if (first < end && *first == '"')
        good = read_quoted(first, end, &value);
    else
        read_plain(first, end, &value);
    if (good) {
        char *key = copy(start, (size_t)(trim_end(start, equals) - start));
        good = key && ini_set(ini, *section, key, buffer_text(&value)) == 0;
        free(key);
    }
    free(value.data);
    return good;
}

struct ini *ini_parse(const char *text)
{
    struct ini *ini = calloc(1, sizeof *ini);
    char *section = copy("", 0);
    if (!ini || !section) {
        free(ini);
        free(section);
        return NULL;
    }
    int number = 0;
    while (*text) {
        const char *end = text + strcspn(text, "\n");
        number++;
        if (!read_line(ini, text, end, &section) && !ini->error_line)
            ini->error_line = number;
        text = *end ? end + 1 : end;
    }
    free(section);
    return ini;
}

void ini_free(struct ini *ini)
{
    if (!ini)
        return;
    for (size_t i = 0; i < ini->count; i++) {
        free(ini->entries[i].section);
        free(ini->entries[i].key);
        free(ini->entries[i].value);
    }
    free(ini->entries);
    free(ini);
}

int ini_error_line(const struct ini *ini)
{
    return ini->error_line;
}

const char *ini_get(const struct ini *ini, const char *section, const char *key)
{
    const struct entry *found = find(ini, section, key);
    return found ? found->value : NULL;
}

long ini_get_int(const struct ini *ini, const char *section, const char *key, long fallback)
{
    const char *text = ini_get(ini, section, key);
    if (!text || !*text)
        return fallback;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 0);
    return *end || errno ? fallback : value;
}

int ini_get_bool(const struct ini *ini, const char *section, const char *key, int fallback)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    const char *text = ini_get(ini, section, key);
    if (!text)
        return fallback;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (same(text, words[i]))
            return i % 2;
    return fallback;
}

size_t ini_count(const struct ini *ini, const char *section)
{
    size_t count = 0;
    for (size_t i = 0; i < ini->count; i++)
        if (!section || same(ini->entries[i].section, section))
            count++;
    return count;
}

static int needs_quotes(const char *value)
{
    size_t length = strlen(value);
    if (length && (isspace((unsigned char)value[0]) || isspace((unsigned char)value[length - 1])))
        return 1;
    return strpbrk(value, ";#\"\\\n\t") != NULL;
}

static void format_value(struct buffer *out, const char *value)
{
    if (!needs_quotes(value)) {
        buffer_add(out, value, strlen(value));
        return;
    }
    buffer_add(out, "\"", 1);
    for (; *value; value++) {
        if (*value == '\n')
            buffer_add(out, "\\n", 2);
        else if (*value == '\t')
            buffer_add(out, "\\t", 2);
        else {
            if (*value == '"' || *value == '\\')
                buffer_add(out, "\\", 1);
            buffer_add(out, value, 1);
        }
    }
    buffer_add(out, "\"", 1);
}

/* Whether an entry is the first one of its section. */
static int begins_section(const struct ini *ini, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (same(ini->entries[i].section, ini->entries[index].section))
            return 0;
    return 1;
}

static void format_section(const struct ini *ini, const char *name, struct buffer *out)
{
    if (*name) {
        if (out->length)
            buffer_add(out, "\n", 1);
        buffer_add(out, "[", 1);
        buffer_add(out, name, strlen(name));
        buffer_add(out, "]\n", 2);
    }
    for (size_t i = 0; i < ini->count; i++) {
        if (!same(ini->entries[i].section, name))
            continue;
        buffer_add(out, ini->entries[i].key, strlen(ini->entries[i].key));
        buffer_add(out, " = ", 3);
        format_value(out, ini->entries[i].value);
        buffer_add(out, "\n", 1);
    }
}

char *ini_format(const struct ini *ini)
{
    struct buffer out = {0};
    format_section(ini, "", &out);
    for (size_t i = 0; i < ini->count; i++)
        if (*ini->entries[i].section && begins_section(ini, i))
            format_section(ini, ini->entries[i].section, &out);
    buffer_text(&out);
    return out.data;
}
