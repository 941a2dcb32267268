#include <stdlib.h>

#include "check.h"
#include "ini.h"

static void test_keys_and_sections(void)
{
    struct ini *ini = ini_parse("name = demo\n[server]\nhost=example.org\nport = 8080\n");
    CHECK_STR(ini_get(ini, "", "name"), "demo");
    CHECK_STR(ini_get(ini, "server", "host"), "example.org");
    CHECK_STR(ini_get(ini, "server", "port"), "8080");
    CHECK(ini_get(ini, "server", "name") == NULL);
    CHECK_INT(ini_error_line(ini), 0);
    ini_free(ini);
}

static void test_names_ignore_case(void)
{
    struct ini *ini = ini_parse("[Server]\nHost = north\n");
    CHECK_STR(ini_get(ini, "SERVER", "host"), "north");
    CHECK(ini_get(ini, "Serve", "host") == NULL);
    CHECK(ini_get(ini, "server", "hostname") == NULL);
    ini_free(ini);
}

static void test_spaces_in_names(void)
{
    struct ini *ini = ini_parse("[ user data ]\n  home directory  =  /home/ann  \n");
    CHECK_STR(ini_get(ini, "user data", "home directory"), "/home/ann");
    ini_free(ini);
}

static void test_windows_lines(void)
{
    struct ini *ini = ini_parse("[a]\r\nx = 1\r\ny = two words\r\n");
    CHECK_STR(ini_get(ini, "a", "x"), "1");
    CHECK_STR(ini_get(ini, "a", "y"), "two words");
    ini_free(ini);
}

static void test_last_line_without_newline(void)
{
    struct ini *ini = ini_parse("a = first\nb = last");
    CHECK_STR(ini_get(ini, "", "b"), "last");
    CHECK_INT(ini_count(ini, NULL), 2);
    ini_free(ini);
}

static void test_comment_lines(void)
{
    struct ini *ini = ini_parse("; one = 1\n# two = 2\n   ; three = 3\nfour = 4\n");
    CHECK_INT(ini_count(ini, NULL), 1);
    CHECK_STR(ini_get(ini, "", "four"), "4");
    ini_free(ini);
}

static void test_comment_after_value(void)
{
    struct ini *ini = ini_parse("size = 12 ; in pixels\ncolour = red\t# or blue\nempty = ; nothing\n");
    CHECK_STR(ini_get(ini, "", "size"), "12");
    CHECK_STR(ini_get(ini, "", "colour"), "red");
    CHECK_STR(ini_get(ini, "", "empty"), "");
    ini_free(ini);
}

static void test_signs_inside_values(void)
{
    struct ini *ini = ini_parse("colour = red;green\nlink = page#part\nformula = a=b+c\n");
    CHECK_STR(ini_get(ini, "", "colour"), "red;green");
    CHECK_STR(ini_get(ini, "", "link"), "page#part");
    CHECK_STR(ini_get(ini, "", "formula"), "a=b+c");
    ini_free(ini);
}

static void test_quoted_value(void)
{
    struct ini *ini = ini_parse("title = \"  a ; b  \"\nempty = \"\"\nnoted = \"x\" ; a note\n");
    CHECK_STR(ini_get(ini, "", "title"), "  a ; b  ");
    CHECK_STR(ini_get(ini, "", "empty"), "");
    CHECK_STR(ini_get(ini, "", "noted"), "x");
    ini_free(ini);
}

static void test_escapes_in_quotes(void)
{
    struct ini *ini = ini_parse("text = \"one\\ntwo\\t\\\"three\\\" \\\\\"\n");
    CHECK_STR(ini_get(ini, "", "text"), "one\ntwo\t\"three\" \\");
    CHECK_INT(ini_error_line(ini), 0);
    ini_free(ini);
}

static void test_key_set_twice(void)
{
    struct ini *ini = ini_parse("[a]\nx = old\n[b]\nx = other\n[A]\nX = new\n");
    CHECK_STR(ini_get(ini, "a", "x"), "new");
    CHECK_STR(ini_get(ini, "b", "x"), "other");
    CHECK_INT(ini_count(ini, "a"), 1);
    ini_free(ini);
}

static void test_first_bad_line(void)
{
    struct ini *ini = ini_parse("\n# fine\na = 1\nno key here\n[open\nb = 2\n");
    CHECK_INT(ini_error_line(ini), 4);
    CHECK_STR(ini_get(ini, "", "a"), "1");
    CHECK_STR(ini_get(ini, "", "b"), "2");
    ini_free(ini);
}

static void test_bad_quotes(void)
{
    struct ini *ini = ini_parse("a = \"open\nb = \"x\" y\nc = 3\n");
    CHECK_INT(ini_error_line(ini), 1);
    CHECK(ini_get(ini, "", "a") == NULL);
    CHECK(ini_get(ini, "", "b") == NULL);
    CHECK_STR(ini_get(ini, "", "c"), "3");
    ini_free(ini);
}

static void test_key_without_name(void)
{
    struct ini *ini = ini_parse("a = 1\n = 2\n");
    CHECK_INT(ini_error_line(ini), 2);
    CHECK_INT(ini_count(ini, NULL), 1);
    ini_free(ini);
}

int main(void)
{
    RUN(test_keys_and_sections);
    RUN(test_names_ignore_case);
    RUN(test_spaces_in_names);
    RUN(test_windows_lines);
    RUN(test_last_line_without_newline);
    RUN(test_comment_lines);
    RUN(test_comment_after_value);
    RUN(test_signs_inside_values);
    RUN(test_quoted_value);
    RUN(test_escapes_in_quotes);
    RUN(test_key_set_twice);
    RUN(test_first_bad_line);
    RUN(test_bad_quotes);
    RUN(test_key_without_name);
    return check_done();
}
