#ifndef ARENA_H
#define ARENA_H

#include <stddef.h>

struct arena_block;

/* Memory that is freed together. All zero is an empty one. */
struct arena {
    struct arena_block *blocks; /* the newest first */
    size_t used;                /* bytes of the newest block */
    size_t total;               /* bytes that were asked for, each rounded up to the alignment */
};

enum { ARENA_ALIGNMENT = 16, ARENA_BLOCK = 1024 };

/* Memory for `size` bytes; NULL if there is none. */
void *arena_alloc(struct arena *arena, size_t size);
/* A copy of the first `length` bytes of a text, with a zero byte after them. */
char *arena_copy(struct arena *arena, const char *text, size_t length);
size_t arena_block_count(const struct arena *arena);
void arena_free(struct arena *arena);

#endif
