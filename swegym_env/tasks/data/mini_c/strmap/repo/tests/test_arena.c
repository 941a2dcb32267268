#include <stdint.h>

#include "arena.h"
#include "check.h"

static void test_sizes_are_rounded(void)
{
    struct arena arena = {0};
    arena_alloc(&arena, 1);
    CHECK_INT(arena.total, 16);
    arena_alloc(&arena, 16);
    CHECK_INT(arena.total, 32);
    arena_alloc(&arena, 17);
    CHECK_INT(arena.total, 64);
    arena_free(&arena);
}

static void test_memory_is_aligned(void)
{
    struct arena arena = {0};
    int wrong = 0;
    for (size_t size = 1; size < 100; size += 7)
        wrong += (uintptr_t)arena_alloc(&arena, size) % ARENA_ALIGNMENT != 0;
    CHECK_INT(wrong, 0);
    arena_free(&arena);
}

static void test_new_blocks(void)
{
    struct arena arena = {0};
    CHECK_INT(arena_block_count(&arena), 0);
    arena_alloc(&arena, 512);
    arena_alloc(&arena, 512);
    CHECK_INT(arena_block_count(&arena), 1);
    arena_alloc(&arena, 1);
    CHECK_INT(arena_block_count(&arena), 2);
    arena_alloc(&arena, 5000);
    CHECK_INT(arena_block_count(&arena), 3);
    arena_free(&arena);
    CHECK_INT(arena_block_count(&arena), 0);
}

static void test_memory_does_not_overlap(void)
{
    struct arena arena = {0};
    char *places[40];
    int wrong = 0;
    for (int i = 0; i < 40; i++) {
        places[i] = arena_alloc(&arena, 100);
        memset(places[i], i, 100);
    }
    for (int i = 0; i < 40; i++)
        wrong += places[i][0] != i || places[i][99] != i;
    CHECK_INT(wrong, 0);
    CHECK_INT(arena.total, 4480);
    arena_free(&arena);
}

static void test_copy_of_a_part(void)
{
    struct arena arena = {0};
    CHECK_STR(arena_copy(&arena, "hello world", 5), "hello");
    CHECK_STR(arena_copy(&arena, "", 0), "");
    CHECK_INT(arena.total, 32);
    arena_free(&arena);
}

int main(void)
{
    RUN(test_sizes_are_rounded);
    RUN(test_memory_is_aligned);
    RUN(test_new_blocks);
    RUN(test_memory_does_not_overlap);
    RUN(test_copy_of_a_part);
    return check_done();
}
