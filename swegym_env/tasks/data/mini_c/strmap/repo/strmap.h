#ifndef STRMAP_H
#define STRMAP_H

#include <stddef.h>
#include <stdint.h>

struct strmap;

typedef int (*strmap_visitor)(const char *key, void *value, void *context);

struct strmap *strmap_new(void);
void strmap_free(struct strmap *map);

/* Sets the value of a key. Returns the value before, NULL if there was none. */
void *strmap_put(struct strmap *map, const char *key, void *value);
void *strmap_get(const struct strmap *map, const char *key);
int strmap_has(const struct strmap *map, const char *key);
/* Removes a key. Returns its value, NULL if there was none. */
void *strmap_remove(struct strmap *map, const char *key);

size_t strmap_count(const struct strmap *map);
size_t strmap_capacity(const struct strmap *map);

/* Calls `visit` for each key, in the order in which they were put, until it returns a number other than 0. */
int strmap_each(const struct strmap *map, strmap_visitor visit, void *context);

/* The hash of a string: FNV-1a with 32 bits. */
uint32_t strmap_hash(const char *key);

#endif
