#ifndef INI_H
#define INI_H

#include <stddef.h>

struct ini;

/* Parses a text. Returns NULL only if there is no memory. */
struct ini *ini_parse(const char *text);
void ini_free(struct ini *ini);

/* The number of the first line that could not be read, counted from 1; 0 if all could. */
int ini_error_line(const struct ini *ini);

/* The value of a key; NULL if it is not set. */
const char *ini_get(const struct ini *ini, const char *section, const char *key);
/* The same as a number (decimal, 0x or 0); the fallback if it is not set or no number. */
long ini_get_int(const struct ini *ini, const char *section, const char *key, long fallback);
int ini_get_bool(const struct ini *ini, const char *section, const char *key, int fallback);

/* Sets a key, in a new section if there is none of that name. Returns 0, or -1 if there is no memory. */
int ini_set(struct ini *ini, const char *section, const char *key, const char *value);
/* Removes a key. Returns whether it was set. */
int ini_remove(struct ini *ini, const char *section, const char *key);

/* How many keys a section has; of all sections if it is NULL. */
size_t ini_count(const struct ini *ini, const char *section);

/* Writes the whole configuration, as ini_parse reads it. The caller frees the text. */
char *ini_format(const struct ini *ini);

#endif
