#include "strmap.h"

#include <stdlib.h>
#include <string.h>

#include "arena.h"

enum { FIRST_CAPACITY = 8 };

struct slot {
    const char *key; /* NULL: never used */
    void *value;
    uint32_t hash;
    size_t order;
    int removed;
};

struct strmap {
    struct slot *slots;
    size_t capacity;
    size_t count;
    size_t used; /* slots with a key, removed ones too */
    size_t next_order;
    struct arena keys;
};

uint32_t strmap_hash(const char *key)
{
    uint32_t hash = 2166136261u;
    for (; *key; key++) {
        hash ^= (unsigned char)*key;
        hash *= 16777619u;
    }
    return hash;
}

struct strmap *strmap_new(void)
{
    struct strmap *map = calloc(1, sizeof *map);
    if (!map)
        return NULL;
    map->slots = calloc(FIRST_CAPACITY, sizeof *map->slots);
    if (!map->slots) {
        free(map);
        return NULL;
    }
    map->capacity = FIRST_CAPACITY;
    return map;
}

void strmap_free(struct strmap *map)
{
    if (!map)
        return;
    arena_free(&map->keys);
    free(map->slots);
    free(map);
}

/* The slot of a key, or the first free one where it would be. */
static struct slot *find(const struct strmap *map, const char *key, uint32_t hash)
{
    size_t at = hash & (map->capacity - 1);
    while (map->slots[at].key) {
        struct slot *slot = &map->slots[at];
        if (!slot->removed && slot->hash == hash && strcmp(slot->key, key) == 0)
            return slot;
        at = (at + 1) & (map->capacity - 1);
    }
    return &map->slots[at];
}

static int is_set(const struct slot *slot)
{
    return slot->key && !slot->removed;
}

static int resize(struct strmap *map, size_t capacity)
{
    struct slot *old = map->slots;
    size_t old_capacity = map->capacity;
    struct slot *slots = calloc(capacity, sizeof *slots);
    if (!slots)
        return -1;
    map->slots = slots;
    map->capacity = capacity;
    map->used = map->count;
    for (size_t i = 0; i < old_capacity; i++)
        if (is_set(&old[i]))
            *find(map, old[i].key, old[i].hash) = old[i];
    free(old);
    return 0;
}

void *strmap_put(struct strmap *map, const char *key, void *value)
{
    uint32_t hash = strmap_hash(key);
    struct slot *slot = find(map, key, hash);
    if (is_set(slot)) {
        void *before = slot->value;
        slot->value = value;
        return before;
    }
    if ((map->used + 1) * 4 > map->capacity * 3) {
        /* Many removed keys: the same capacity is enough. */
        size_t capacity = (map->count + 1) * 2 > map->capacity ? map->capacity * 2 : map->capacity;
        if (resize(map, capacity) != 0)
            return NULL;
        slot = find(map, key, hash);
    }
    char *copy = arena_copy(&map->keys, key, strlen(key));
    if (!copy)
        return NULL;
    *slot = (struct slot){.key = copy, .value = value, .hash = hash, .order = map->next_order++};
    map->count++;
    map->used++;
    return NULL;
}

void *strmap_get(const struct strmap *map, const char *key)
{
    struct slot *slot = find(map, key, strmap_hash(key));
    return is_set(slot) ? slot->value : NULL;
}

int strmap_has(const struct strmap *map, const char *key)
{
    return is_set(find(map, key, strmap_hash(key)));
}

void *strmap_remove(struct strmap *map, const char *key)
{
    struct slot *slot = find(map, key, strmap_hash(key));
    if (!is_set(slot))
        return NULL;
    slot->removed = 1; /* the search for other keys goes on behind it */
    map->count--;
    return slot->value;
}

size_t strmap_count(const struct strmap *map)
{
    return map->count;
}

size_t strmap_capacity(const struct strmap *map)
{
    return map->capacity;
}

static int by_order(const void *left, const void *right)
{
    const struct slot *a = *(const struct slot *const *)left, *b = *(const struct slot *const *)right;
    return (a->order > b->order) - (a->order < b->order);
}

int strmap_each(const struct strmap *map, strmap_visitor visit, void *context)
{
    const struct slot **sorted = malloc((map->count + 1) * sizeof *sorted);
    if (!sorted)
        return -1;
    size_t count = 0;
    for (size_t i = 0; i < map->capacity; i++)
        if (is_set(&map->slots[i]))
            sorted[count++] = &map->slots[i];
    qsort(sorted, count, sizeof *sorted, by_order);
    int result = 0;
    for (size_t i = 0; i < count && result == 0; i++)
        result = visit(sorted[i]->key, sorted[i]->value, context);
    free(sorted);
    return result;
}
