#include <stdlib.h>

#include "buffer.h"
#include "check.h"
#include "ini.h"

static void test_numbers(void)
{
    struct ini *ini = ini_parse("a = 42\nb = -7\nc = 0x1f\nd = 010\n");
    CHECK_INT(ini_get_int(ini, "", "a", 0), 42);
    CHECK_INT(ini_get_int(ini, "", "b", 0), -7);
    CHECK_INT(ini_get_int(ini, "", "c", 0), 31);
    CHECK_INT(ini_get_int(ini, "", "d", 0), 8);
    ini_free(ini);
}

static void test_no_number(void)
{
    struct ini *ini = ini_parse("a = 12px\nb =\nc = 99999999999999999999\n");
    CHECK_INT(ini_get_int(ini, "", "a", 5), 5);
    CHECK_INT(ini_get_int(ini, "", "b", 6), 6);
    CHECK_INT(ini_get_int(ini, "", "c", 7), 7);
    CHECK_INT(ini_get_int(ini, "", "missing", 8), 8);
    ini_free(ini);
}

static void test_booleans(void)
{
    struct ini *ini = ini_parse("a = yes\nb = Off\nc = TRUE\nd = 0\ne = maybe\nf = on\n");
    CHECK_INT(ini_get_bool(ini, "", "a", 0), 1);
    CHECK_INT(ini_get_bool(ini, "", "b", 1), 0);
    CHECK_INT(ini_get_bool(ini, "", "c", 0), 1);
    CHECK_INT(ini_get_bool(ini, "", "d", 1), 0);
    CHECK_INT(ini_get_bool(ini, "", "e", 1), 1);
    CHECK_INT(ini_get_bool(ini, "", "f", 0), 1);
    CHECK_INT(ini_get_bool(ini, "", "g", 0), 0);
    ini_free(ini);
}

static void test_set_and_remove(void)
{
    struct ini *ini = ini_parse("[a]\nx = 1\ny = 2\nz = 3\n");
    CHECK_INT(ini_set(ini, "A", "Y", "two"), 0);
    CHECK_STR(ini_get(ini, "a", "y"), "two");
    CHECK_INT(ini_remove(ini, "a", "x"), 1);
    CHECK_INT(ini_remove(ini, "a", "x"), 0);
    CHECK_STR(ini_get(ini, "a", "y"), "two");
    CHECK_STR(ini_get(ini, "a", "z"), "3");
    CHECK_INT(ini_count(ini, "a"), 2);
    ini_free(ini);
}

static void test_many_keys(void)
{
    struct ini *ini = ini_parse("");
    char key[16];
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "key%d", i);
        CHECK_INT(ini_set(ini, i % 2 ? "odd" : "even", key, key + 3), 0);
    }
    CHECK_INT(ini_count(ini, NULL), 100);
    CHECK_INT(ini_count(ini, "odd"), 50);
    CHECK_INT(ini_get_int(ini, "odd", "key37", 0), 37);
    ini_free(ini);
}

static void test_format(void)
{
    struct ini *ini = ini_parse("[b]\nx=1\n[]\nname = top\n[c]\ny=2\n[B]\nz=3\n");
    char *text = ini_format(ini);
    CHECK_STR(text, "name = top\n\n[b]\nx = 1\nz = 3\n\n[c]\ny = 2\n");
    free(text);
    ini_free(ini);
}

static void test_format_quotes(void)
{
    struct ini *ini = ini_parse("");
    ini_set(ini, "", "a", " padded");
    ini_set(ini, "", "b", "one;two");
    ini_set(ini, "", "c", "say \"hi\"\n");
    ini_set(ini, "", "d", "plain text");
    char *text = ini_format(ini);
    CHECK_STR(text, "a = \" padded\"\nb = \"one;two\"\nc = \"say \\\"hi\\\"\\n\"\nd = plain text\n");
    free(text);
    ini_free(ini);
}

static void test_format_of_nothing(void)
{
    struct ini *ini = ini_parse("# nothing\n");
    char *text = ini_format(ini);
    CHECK_STR(text, "");
    free(text);
    ini_free(ini);
}

static void test_buffer_grows(void)
{
    struct buffer buffer = {0};
    for (int i = 0; i < 40; i++)
        CHECK_INT(buffer_add(&buffer, "abc", 3), 0);
    CHECK_INT(buffer.length, 120);
    CHECK_INT(strlen(buffer_text(&buffer)), 120);
    CHECK_STR(buffer_text(&buffer) + 114, "abcabc");
    free(buffer.data);
}

int main(void)
{
    RUN(test_numbers);
    RUN(test_no_number);
    RUN(test_booleans);
    RUN(test_set_and_remove);
    RUN(test_many_keys);
    RUN(test_format);
    RUN(test_format_quotes);
    RUN(test_format_of_nothing);
    RUN(test_buffer_grows);
    return check_done();
}
