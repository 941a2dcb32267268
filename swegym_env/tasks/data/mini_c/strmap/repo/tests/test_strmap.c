#include "check.h"
#include "strmap.h"

static int numbers[200];

/* Appends each key and a space to the text that is the context. */
static int join(const char *key, void *value, void *context)
{
    (void)value;
    strcat(context, key);
    strcat(context, " ");
    return 0;
}

static int stop_at_number(const char *key, void *value, void *context)
{
    (void)key;
    ++*(int *)context;
    return *(int *)value == 2 ? 77 : 0;
}

static void fill(struct strmap *map, int from, int to)
{
    char key[16];
    for (int i = from; i < to; i++) {
        numbers[i] = i;
        snprintf(key, sizeof key, "key%d", i);
        strmap_put(map, key, &numbers[i]);
    }
}

static void test_put_and_get(void)
{
    struct strmap *map = strmap_new();
    numbers[1] = 11;
    CHECK(strmap_put(map, "one", &numbers[1]) == NULL);
    CHECK_INT(*(int *)strmap_get(map, "one"), 11);
    CHECK(strmap_get(map, "two") == NULL);
    CHECK_INT(strmap_count(map), 1);
    strmap_free(map);
}

static void test_put_again(void)
{
    struct strmap *map = strmap_new();
    numbers[1] = 11;
    numbers[2] = 22;
    strmap_put(map, "x", &numbers[1]);
    CHECK_INT(*(int *)strmap_put(map, "x", &numbers[2]), 11);
    CHECK_INT(*(int *)strmap_get(map, "x"), 22);
    CHECK_INT(strmap_count(map), 1);
    strmap_free(map);
}

static void test_null_value_is_set(void)
{
    struct strmap *map = strmap_new();
    strmap_put(map, "nothing", NULL);
    CHECK(strmap_has(map, "nothing"));
    CHECK(!strmap_has(map, "something"));
    CHECK_INT(strmap_count(map), 1);
    strmap_free(map);
}

static void test_key_is_copied(void)
{
    struct strmap *map = strmap_new();
    char key[] = "first";
    strmap_put(map, key, &numbers[0]);
    strcpy(key, "other");
    CHECK(strmap_has(map, "first"));
    CHECK(!strmap_has(map, "other"));
    strmap_free(map);
}

static void test_empty_key(void)
{
    struct strmap *map = strmap_new();
    numbers[5] = 55;
    strmap_put(map, "", &numbers[5]);
    CHECK_INT(*(int *)strmap_get(map, ""), 55);
    strmap_free(map);
}

static void test_remove(void)
{
    struct strmap *map = strmap_new();
    fill(map, 0, 4);
    CHECK_INT(*(int *)strmap_remove(map, "key2"), 2);
    CHECK(strmap_remove(map, "key2") == NULL);
    CHECK(!strmap_has(map, "key2"));
    CHECK_INT(strmap_count(map), 3);
    strmap_free(map);
}

static void test_remove_keeps_others(void)
{
    struct strmap *map = strmap_new();
    char key[16];
    fill(map, 0, 150);
    for (int i = 0; i < 150; i += 3) {
        snprintf(key, sizeof key, "key%d", i);
        strmap_remove(map, key);
    }
    int found = 0, wrong = 0;
    for (int i = 0; i < 150; i++) {
        snprintf(key, sizeof key, "key%d", i);
        int *value = strmap_get(map, key);
        found += value != NULL;
        wrong += value != NULL && *value != i;
    }
    CHECK_INT(found, 100);
    CHECK_INT(wrong, 0);
    strmap_free(map);
}

static void test_grows_at_three_quarters(void)
{
    struct strmap *map = strmap_new();
    fill(map, 0, 6);
    CHECK_INT(strmap_capacity(map), 8);
    fill(map, 6, 7);
    CHECK_INT(strmap_capacity(map), 16);
    fill(map, 7, 100);
    CHECK_INT(strmap_capacity(map), 256);
    CHECK_INT(strmap_count(map), 100);
    strmap_free(map);
}

static void test_removed_keys_take_no_room(void)
{
    struct strmap *map = strmap_new();
    char key[16];
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "key%d", i);
        strmap_put(map, key, &numbers[0]);
        strmap_remove(map, key);
    }
    CHECK_INT(strmap_count(map), 0);
    CHECK_INT(strmap_capacity(map), 8);
    strmap_free(map);
}

static void test_each_in_order(void)
{
    struct strmap *map = strmap_new();
    char text[256] = "";
    fill(map, 0, 9);
    CHECK_INT(strmap_each(map, join, text), 0);
    CHECK_STR(text, "key0 key1 key2 key3 key4 key5 key6 key7 key8 ");
    strmap_free(map);
}

static void test_each_after_changes(void)
{
    struct strmap *map = strmap_new();
    char text[256] = "";
    fill(map, 0, 5);
    strmap_remove(map, "key1");
    strmap_put(map, "key3", &numbers[9]);
    strmap_put(map, "key1", &numbers[9]);
    strmap_each(map, join, text);
    CHECK_STR(text, "key0 key2 key3 key4 key1 ");
    strmap_free(map);
}

static void test_each_stops(void)
{
    struct strmap *map = strmap_new();
    int visited = 0;
    fill(map, 0, 6);
    CHECK_INT(strmap_each(map, stop_at_number, &visited), 77);
    CHECK_INT(visited, 3);
    strmap_free(map);
}

static void test_hash(void)
{
    CHECK_INT(strmap_hash(""), 2166136261);
    CHECK_INT(strmap_hash("a"), 3826002220);
    CHECK_INT(strmap_hash("foobar"), 3214735720);
    CHECK_INT(strmap_hash("\xc3\xa9"), 513665217);
}

int main(void)
{
    RUN(test_put_and_get);
    RUN(test_put_again);
    RUN(test_null_value_is_set);
    RUN(test_key_is_copied);
    RUN(test_empty_key);
    RUN(test_remove);
    RUN(test_remove_keeps_others);
    RUN(test_grows_at_three_quarters);
    RUN(test_removed_keys_take_no_room);
    RUN(test_each_in_order);
    RUN(test_each_after_changes);
    RUN(test_each_stops);
    RUN(test_hash);
    return check_done();
}
