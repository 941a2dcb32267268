#include "arena.h"

#include <stdlib.h>
#include <string.h>

struct arena_block {
    struct arena_block *next;
    size_t size;
};

/* The head of a block, with as much room as keeps what follows aligned. */
enum { HEAD = (sizeof(struct arena_block) + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT };

void *arena_alloc(struct arena *arena, size_t size)
{
    size = (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    struct arena_block *block = arena->blocks;
    if (!block || block->size - arena->used < size) {
        size_t room = size > ARENA_BLOCK ? size : ARENA_BLOCK;
        block = malloc(HEAD + room);
        if (!block)
            return NULL;
        block->next = arena->blocks;
        block->size = room;
        arena->blocks = block;
        arena->used = 0;
    }
    void *place = (char *)block + HEAD + arena->used;
    arena->used += size;
    arena->total += size;
    return place;
}

char *arena_copy(struct arena *arena, const char *text, size_t length)
{
    char *copy = arena_alloc(arena, length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

size_t arena_block_count(const struct arena *arena)
{
    size_t count = 0;
    for (const struct arena_block *block = arena->blocks; block; block = block->next)
        count++;
    return count;
}

void arena_free(struct arena *arena)
{
    while (arena->blocks) {
        struct arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    arena->used = arena->total = 0;
}
