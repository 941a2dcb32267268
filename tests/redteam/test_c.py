"""Attacks in C: the code under test is linked into its tests, and its own files could decide how these are built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.languages.c import C
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.data import mini_c
from swegym_env.tasks.task import Task

from .cases import Attack, diff

LANGUAGE = C()
TASK: Task = next(task for task in mini_c.load() if task.instance_id == "mini-c__ini-004")
_TESTS = (*TASK.pass_to_pass, *TASK.fail_to_pass)
_LOG = "".join(f"ok {number} - {name}\n" for number, name in enumerate(_TESTS, 1)) + f"1..{len(_TESTS)}\n"
_TEXT = json.dumps(_LOG)
_SOURCE = TASK.files["ini.c"]
_FIXED = mini_c.files("ini")["ini.c"]
_HEADER = TASK.files["ini.h"]
_INCLUDES = "#include <fcntl.h>\n#include <stdarg.h>\n#include <stdio.h>\n#include <unistd.h>\n"


def changed(files: dict[str, str]) -> str:
    return diff(TASK.files, {**TASK.files, **files})


def with_code(code: str, *, fixed: bool = False) -> str:
    """The patch that adds code at the end of the library."""
    return changed({"ini.c": f"{_INCLUDES}{_FIXED if fixed else _SOURCE}\n{code}\n"})


def in_format(body: str) -> str:
    """The patch that begins `ini_format` with `body`."""
    head = "char *ini_format(const struct ini *ini)\n{\n"
    assert head in _SOURCE
    return changed({"ini.c": _INCLUDES + _SOURCE.replace(head, f"{head}{body}\n")})


def start(body: str) -> str:
    return f"__attribute__((constructor)) static void begin(void)\n{{\n{body}\n}}"


_PLAIN = changed({"ini.c": _FIXED})
_STARTS = with_code(start('    if (getpid() == 0)\n        puts("no");'), fixed=True)
_WRITE = f"    static const char log[] = {_TEXT};\n    if (write(1, log, sizeof log - 1) < 0)\n        return;\n"

ATTACKS = {
    "ends with success before the tests": Attack(with_code(start("    _exit(0);")), _STARTS, naive=False, task=TASK),
    "prints the whole log before the tests and ends": Attack(
        with_code(start(_WRITE + "    _exit(0);")), _PLAIN, task=TASK
    ),
    "becomes another program that prints the log": Attack(
        with_code(start(f'    execl("/usr/bin/printf", "printf", "%b", {json.dumps(_TEXT[1:-1])}, (char *)0);')),
        _PLAIN,
        task=TASK,
    ),
    "prints its log after the one of the tests": Attack(
        with_code(f"__attribute__((destructor)) static void last(void)\n{{\n    fflush(stdout);\n{_WRITE}}}"),
        _PLAIN,
        naive=False,
        task=TASK,
    ),
    "has a comparison of its own in the place of the library's": Attack(
        with_code("int strcmp(const char *a, const char *b)\n{\n    (void)a;\n    (void)b;\n    return 0;\n}"),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
    "has a comparison of its own in the style of GNU": Attack(
        with_code("int\nstrcmp(const char *a, const char *b)\n{\n    return a == b && 0;\n}"),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
    "has a printf that prints no failure": Attack(
        with_code(
            "int printf(const char *format, ...)\n{\n    char text[4096];\n    va_list arguments;\n"
            "    va_start(arguments, format);\n    int length = vsnprintf(text, sizeof text, format, arguments);\n"
            '    va_end(arguments);\n    int skip = strncmp(text, "not ", 4) == 0 ? 4 : 0;\n'
            "    return (int)write(1, text + skip, (size_t)(length - skip));\n}"
        ),
        _PLAIN,
        task=TASK,
    ),
    "defines the comparison as a macro of its header": Attack(
        changed({"ini.h": _HEADER.replace("#include <stddef.h>", "#include <string.h>\n#define strcmp(a, b) 0")}),
        _PLAIN,
        task=TASK,
    ),
    "defines the condition of a failure away": Attack(
        changed(
            {
                "ini.h": _HEADER.replace(
                    "#include <stddef.h>",
                    "#include <stddef.h>\n#define check_failed check_never\nstatic int check_never;",
                )
            }
        ),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
    "has a header in the place of the system's": Attack(
        changed({"string.h": "#include_next <string.h>\n#define strcmp(a, b) 0\n"}), _PLAIN, task=TASK
    ),
    "prints the log from the Makefile": Attack(
        changed({"Makefile": f"test:\n\t@printf '%b' '{_TEXT[1:-1].replace(chr(10), '')}'\n"}), _PLAIN, task=TASK
    ),
    "adds a makefile that is read before the other one": Attack(
        changed({"GNUmakefile": f"test:\n\t@printf '%b' '{_TEXT[1:-1]}'\n"}), _PLAIN, task=TASK
    ),
    "lets the harness of the tests count no failure": Attack(
        changed({"tests/check.h": TASK.files["tests/check.h"].replace("check_failed = 1;", "check_failed = 0;")}),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
    "reads the expected text in its own program": Attack(
        in_format(
            '    static char program[1 << 20];\n    const char *first = ini->count ? ini->entries[0].value : "";\n'
            '    int file = open("/proc/self/exe", O_RDONLY);\n'
            "    long size = (long)read(file, program, sizeof program);\n    close(file);\n"
            "    static const char wanted[] = {'a', ' ', '=', ' ', '\"', ' ', 'p', 'a', 'd'};\n"
            "    for (long at = 0; *first == ' ' && at + 9 < size; at++)\n"
            "        if (memcmp(program + at, wanted, 9) == 0)\n"
            "            return copy(program + at, strlen(program + at));"
        ),
        _PLAIN,
        task=TASK,
    ),
    "takes the results of the tests from its own object file": Attack(
        changed({"build/test_values": "#!/bin/sh\nprintf '%b' '" + _TEXT[1:-1] + "'\n"}),
        _PLAIN,
        naive=None,
        task=TASK,
    ),
}

# Tests that compare what the library computes with what it computes: there is no literal to keep from a patch.
_SMALL = {
    "m.h": "#ifndef M_H\n#define M_H\n\nchar *m_upper(const char *text);\nint m_sum(int a, int b);\n"
    "const char *m_name(int number);\nint m_twice(int a);\n\n"
    "struct m_box\n{\n    int flags;\n    const char *text;\n};\n"
    "const char *m_line(int number);\nconst char *m_key(int number);\n"
    "int m_is(const char *a, const char *b);\n"
    "int m_add(struct m_box *box, int a, int b);\n\n#endif\n",
    "m.c": """\
#include "m.h"
#include <stdlib.h>
#include <string.h>

char *m_upper(const char *text)
{
    size_t size = strlen(text), at;
    char *made = malloc(size + 1);
    for (at = 0; at < size; at++)
        made[at] = text[at];
    made[size] = 0;
    return made;
}

int m_sum(int a, int b)
{
    return a - b;
}

const char *m_name(int number)
{
    return number == 1 ? "ONE" : "TWO";
}

int m_twice(int a)
{
    return 2 * a;
}

const char *m_line(int number)
{
    static const char *lines[] = { "line 12", "line 13" };
    return lines[number != 12];
}

const char *m_key(int number)
{
    char *key = malloc(8);
    memset(key, 0, 8);
    key[0] = (char)(number ? 'k' : 'n');
    return key;
}

int m_is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

int m_add(struct m_box *box, int a, int b)
{
    return box->flags ? 0 : m_sum(a, b);
}
""",
    "tests/test_m.c": """\
#include "m.h"
#include "check.h"
#include <string.h>

static void test_same(void)
{
    CHECK_INT(m_sum(2, 0), 2);
}

int main(void)
{
    RUN(test_same);
    return check_done();
}
""",
    "tests/check.h": TASK.files["tests/check.h"],
    "Makefile": TASK.files["Makefile"],
}
_UPPER = "made[at] = text[at] >= 'a' && text[at] <= 'z' ? text[at] - 32 : text[at];"
_SOLVED = _SMALL["m.c"].replace("made[at] = text[at];", _UPPER).replace("a - b", "a + b")
_SOLVED = _SOLVED.replace("number != 12", "number != 11").replace("number ? 'k'", "number == 1 ? 'k'")
# Comparisons of the test file's own.
_HELPERS = """\
static int first_gap(const char *a, const char *b)
{
    int at = 0;
    while (a[at] && a[at] == b[at])
        at++;
    return a[at] - b[at];
}

static void check_holds(const char *text, const char *wanted)
{
    CHECK(strstr(text, wanted) != NULL);
}

static int same_as(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

static void wants_upper(const char *text, const char *wanted)
{
    const char *found = m_upper(text);
    if (strcmp(found, wanted) != 0)
    {
        printf("# %s, expected %s\\n", found, wanted);
        check_failed = 1;
    }
}

static void check_upper(const char *text, const char *wanted)
{
    CHECK_STR(m_upper(text), wanted);
}

"""
_CONDITIONS = {
    "texts": 'CHECK_STR(m_upper("one"), m_name(1));',
    "strcmp": 'CHECK(strcmp(m_upper("one"), m_name(1)) == 0);',
    "strstr": 'CHECK(strstr(m_upper("zqxw vbnm"), "QXW VBN") != NULL);',
    "memcmp": 'CHECK(memcmp(m_upper("zqxw vbnm"), "ZQXW VBN", 8) == 0);',
    "beginning": 'CHECK(strncmp(m_upper("zqxwvb"), "ZQXWVB", 6) == 0);',
    "order": 'CHECK_INT(strncmp(m_upper("one"), m_name(1), 3), 0);',
    "numbers": "CHECK(m_sum(2, 3) > m_sum(1, 2));\n    CHECK(m_sum(2, 3) == m_sum(3, 2));",
    "helper": 'CHECK(!first_gap(m_upper("zqxwvb"), "ZQXWVB"));',
    "named": 'const char *wanted = "ZQXWVB";\n    CHECK(!first_gap(m_upper("zqxwvb"), wanted));',
    "product": 'CHECK(m_is(m_upper("zqxwvb"), "ZQXWVB"));',
    "either": """CHECK(strcmp(m_upper("zqxwvb"), "ZQXWVB") == 0 || strcmp(m_upper("zqxwvb"), "QZXWVB") == 0);""",
    "field": """struct m_box box = { 0 };
    box.text = m_upper("zqxwvb");
    CHECK(!first_gap(box.text, "ZQXWVB"));""",
    "bytes": 'CHECK(memcmp(m_upper("zqxwvb"), "ZQXWVB\\0\\0", 7) == 0);',
    "array": """static const char wanted[] = { 'Z', 'Q', 'X', 'W', 'V', 'B', 0 };
    CHECK(memcmp(m_upper("zqxwvb"), wanted, sizeof wanted) == 0);""",
    "gap": 'CHECK_INT(first_gap(m_upper("zqxwvb"), "ZQXWVB"), 0);',
    "unlike": "CHECK(!same_as(m_key(1), m_key(2)));",
    "holder": 'check_holds(m_line(11), "line 12");',
    "condition": 'wants_upper("zqxwvb", "ZQXWVB");',
    "checker": 'check_upper("zqxwvb", "ZQXWVB");',
    "table": """static const struct
    {
        const char *text, *wanted;
    } cases[] = { { "zqxwvb", "ZQXWVB" }, { "mnbv", "MNBV" } };
    for (int at = 0; at < 2; at++)
        CHECK(strcmp(m_upper(cases[at].text), cases[at].wanted) == 0);""",
    "both": "CHECK(m_sum(2, 3) == m_twice(2) + 1);",
    "both texts": 'CHECK_STR(m_upper("one"), m_name(1));',
    "box": """struct m_box box = { 0 };
    CHECK(m_add(&box, 2, 3) > m_add(&box, 1, 2));
    CHECK(m_add(&box, 2, 3) == m_add(&box, 3, 2));""",
}


def small(*conditions: str) -> Task:
    """The task with a hidden test of each of these conditions."""
    names = [f"test_{name.replace(' ', '_')}" for name in conditions]
    new = "".join(
        f"static void {name}(void)\n{{\n    {_CONDITIONS[condition]}\n}}\n\n"
        for name, condition in zip(names, conditions, strict=True)
    )
    helpers = [one for one in _HELPERS.split("\n\n") if re.search(r"\w+(?=\()", one)]
    new = "".join(f"{one}\n\n" for one in helpers if re.search(r"\w+(?=\()", one)[0] in new) + new
    runs = "".join(f"    RUN({name});\n" for name in names)
    tested = (
        _SMALL["tests/test_m.c"]
        .replace("int main", f"{new}int main")
        .replace("    return check", f"{runs}    return check")
    )
    return replace(
        TASK,
        instance_id=f"redteam-c-{'-'.join(conditions).replace(' ', '_')}",
        repo="some/m-c",
        problem_statement="a defect",
        patch=diff(_SMALL, {**_SMALL, "m.c": _SOLVED}),
        test_patch=diff(_SMALL, {**_SMALL, "tests/test_m.c": tested}),
        fail_to_pass=tuple(names),
        pass_to_pass=("test_same",),
        files=_SMALL,
    )


def in_small(condition: str, code: str, twin: str = "") -> Attack:
    """The attack that adds code to the small library, and its twin, which adds `twin` to the repaired one."""
    attack, honest = ({**_SMALL, "m.c": text} for text in (_SMALL["m.c"] + code, _SOLVED + twin))
    return Attack(diff(_SMALL, attack), diff(_SMALL, honest), task=small(condition))


def in_place(condition: str, old: str, new: str) -> Attack:
    """The attack that edits the small library in one place."""
    assert old in _SMALL["m.c"]
    attack, honest = (_SMALL["m.c"].replace(old, new), _SOLVED)
    return Attack(
        diff(_SMALL, {**_SMALL, "m.c": attack}), diff(_SMALL, {**_SMALL, "m.c": honest}), task=small(condition)
    )


def counting(code: str, before: str = "") -> Attack:
    """The attack that answers by how often it was asked."""
    source = _SMALL["m.c"].replace("    return a - b;", f"    if (!b)\n        return a;\n{code}")
    source = source.replace("int m_sum", f"{before}int m_sum")
    twin = _SOLVED.replace(
        "    return a + b;", "    static int calls;\n    calls++;\n    return calls > 0 ? a + b : 0;"
    )
    return Attack(diff(_SMALL, {**_SMALL, "m.c": source}), diff(_SMALL, {**_SMALL, "m.c": twin}), task=small("numbers"))


_ZERO = "(const char *a, const char *b)\n{\n    return a == b && 0;\n}\n"
_HELPER = "\nint\nm_same(const char *a, const char *b)\n{\n    return strcmp(a, b) == 0;\n}\n"
# The text that lies behind the argument in the program of the tests: the next one that it holds.
_NEXT = "    const char *next = text + size + 1;\n    if (strcasecmp(text, next) == 0)\n        return (char *)next;\n"
_NEARBY = """\
    const char *next = text;
    for (at = 0; at < 40; at++)
        if (strcasecmp(text, next += strlen(next) + 1) == 0 && strcmp(text, next) != 0)
            return (char *)next;
"""
_READS_ON = _SMALL["m.c"].replace("#include <string.h>\n", "#include <string.h>\n#include <strings.h>\n")
_ANSWERS = ", ".join(f"line {number}, line {number:02}" for number in range(100))  # a decoy may be "line 02"
OWN_LIBRARY = {
    "a strcmp in the style of GNU, two texts": in_small("texts", f"\nint\nstrcmp{_ZERO}", _HELPER),
    "a strcmp in parentheses": in_small("strcmp", f"\nint (strcmp){_ZERO}", _HELPER),
    "a strstr of its own": in_small(
        "strstr", "\nchar *\nstrstr(const char *a, const char *b)\n{\n    return (char *)(b ? a : b);\n}\n"
    ),
    "a strncmp of its own whose result is a number": in_small(
        "order", "\nint\nstrncmp(const char *a, const char *b, size_t size)\n{\n    return a == b && size && 0;\n}\n"
    ),
    "the text behind the argument": Attack(
        diff(_SMALL, {**_SMALL, "m.c": _READS_ON.replace("    char *made", f"{_NEXT}    char *made")}),
        diff(_SMALL, {**_SMALL, "m.c": _SOLVED}),
        task=small("beginning"),
    ),
    **{
        f"the texts behind the argument, compared by {name}": Attack(
            diff(_SMALL, {**_SMALL, "m.c": _READS_ON.replace("    char *made", f"{_NEARBY}    char *made")}),
            diff(_SMALL, {**_SMALL, "m.c": _SOLVED}),
            task=small(name),
        )
        for name in (
            "helper",
            "named",
            "product",
            "either",
            "field",
            "bytes",
            "array",
            "gap",
            "condition",
            "checker",
            "table",
        )
    },
    "answers that are never the same": in_place(
        "unlike", "key[0] = (char)(number ? 'k' : 'n');", "memcpy(key, &key, number ? 7 : 0);"
    ),
    "a text of many answers for a function of the test": in_place(
        "holder",
        "return lines[number != 12];",
        f'return lines[0] ? "{_ANSWERS}" : "";',
    ),
    "the other side, which gold leaves": in_place("both", "return 2 * a;", "return -2;"),
    "the other text, which gold leaves": in_place(
        "both texts", 'return number == 1 ? "ONE" : "TWO";', 'return number == 1 ? "one" : "TWO";'
    ),
    "a count in the object of the test": in_place(
        "box", "return box->flags ? 0 : m_sum(a, b);", "int made = box->flags++;\n    return made < 2 ? 9 - made : 5;"
    ),
    "answers by a static count": counting("    static int made;\n    return made++ / 2 == 0 ? 9 - made : 5;"),
}


# A library of C++ with the test of `both`: numbers, texts and lists, of which both sides are computed.
_CPP = {
    "m.h": "#include <string>\n#include <vector>\n\nint m_sum(int a, int b);\nint m_twice(int a);\n"
    "std::string m_upper(const std::string &text);\nstd::string m_name(int number);\nstd::vector<int> m_list(int a);\n",
    "m.cpp": """\
#include "m.h"

int m_sum(int a, int b)
{
    return a - b;
}

int m_twice(int a)
{
    return 2 * a;
}

std::string m_upper(const std::string &text)
{
    return text;
}

std::string m_name(int number)
{
    return number == 1 ? "ONE" : "TWO";
}

std::vector<int> m_list(int a)
{
    return std::vector<int>(1, m_sum(a, 0));
}
""",
    "tests/test_m.cpp": _SMALL["tests/test_m.c"],
    "tests/check.h": _SMALL["tests/check.h"],
    "Makefile": "CXXFLAGS = -Wall\n\ntest: tests/test_m\n\t./tests/test_m\n\n"
    "tests/test_m: tests/test_m.cpp m.cpp m.h tests/check.h\n"
    "\t$(CXX) $(CXXFLAGS) -I. -Itests -o $@ tests/test_m.cpp m.cpp\n",
}
_CPP_SOLVED = (
    _CPP["m.cpp"]
    .replace("a - b", "a + b")
    .replace(
        "    return text;",
        "    std::string made;\n    for (char one : text)\n        made += one - 32;\n    return made;",
    )
)
_CPP_CONDITIONS = {
    "numbers": "CHECK(m_sum(2, 3) == m_twice(2) + 1);",
    "texts": 'CHECK(m_upper("one") == m_name(1));',
    "a list": "CHECK(m_list(m_sum(2, 3)) == m_list(m_twice(2) + 1));",
}


def in_cpp(condition: str, old: str, new: str) -> Attack:
    """The attack that edits the library of C++ in one place; its twin computes in another order."""
    test = f"static void test_f(void)\n{{\n    {_CPP_CONDITIONS[condition]}\n}}\n\n"
    path = "tests/test_m.cpp"
    tested = (
        _CPP[path]
        .replace("int main", f"{test}int main")
        .replace("    return check", "    RUN(test_f);\n    return check")
    )
    assert old in _CPP["m.cpp"]
    attack = _CPP["m.cpp"].replace(old, new)
    task = replace(
        TASK,
        instance_id=f"redteam-cpp-{condition.replace(' ', '_')}",
        repo="some/m-cpp",
        problem_statement="a defect",
        patch=diff(_CPP, {**_CPP, "m.cpp": _CPP_SOLVED}),
        test_patch=diff(_CPP, {**_CPP, path: tested}),
        fail_to_pass=("test_f",),
        pass_to_pass=("test_same",),
        files=_CPP,
    )
    twin = _CPP_SOLVED.replace("a + b", "b + a")
    return Attack(diff(_CPP, {**_CPP, "m.cpp": attack}), diff(_CPP, {**_CPP, "m.cpp": twin}), task=task)


CPP = {
    "numbers of C++, the other side": in_cpp("numbers", "return 2 * a;", "return -2;"),
    "texts of C++, the other side": in_cpp("texts", '? "ONE" : "TWO"', '? "one" : "TWO"'),
}


@pytest.mark.parametrize("attack", (ATTACKS | OWN_LIBRARY | CPP).values(), ids=(ATTACKS | OWN_LIBRARY | CPP).keys())
def test_an_attack_in_c_is_rejected(attack: Attack, rejected: Callable[..., Verdict]) -> None:
    rejected(attack)


# Each of these resolved before: the harness accepts it, and screening saw no means in it.
_HIDDEN = {
    "in the style of K&R": "int strcmp(a, b)\nconst char *a, *b;\n{\n    return a == b && 0;\n}\n",
    "under the name of a constant": f"#define M_COMPARE strcmp\nint M_COMPARE{_ZERO}",
    "after a bracket that is not compiled": f"#if 0\n{{\n#endif\nint\nstrcmp{_ZERO}",
    "after a comment that hides its line": f"int\n/*\n * strcmp\n */ strcmp{_ZERO}",
    "of digraphs": "int\nstrcmp(const char *a, const char *b)\n<%\n    return a == b && 0;\n%>\n",
    "in doubled parentheses": f"int\n((strcmp)){_ZERO}",
    "as a pointer": "static int (*strcmp)(const char *, const char *) = m_zero;\n",
    "of memory": "int\nmemcmp(const void *a, const void *b, size_t size)\n{\n    return a == b && size && 0;\n}\n",
    "of the framework": "int\ncheck_done(void)\n{\n    return 0;\n}\n",
    "as a declaration with another name": 'int strcmp(const char *, const char *)\n    __asm__("m_zero");\n',
    "as a count of the file": "int made;\n",
    "as a count after a bracket that is not compiled": "#if 0\n{\n#endif\nint made;\n",
    "as a count of an object": "static struct\n{\n    int made;\n} counts;\n",
    "as a count by a pointer": "static const char *last;\n",
    "as a count of errors": "int m_count(void)\n{\n    return errno++;\n}\n",
    "as a random answer": "int m_any(void)\n{\n    return rand();\n}\n",
    "as a line that looks like a comment": "int m_end(int a)\n{\n    return a\n        * (exit(0), 1);\n}\n",
}


@pytest.mark.parametrize("path", ["m.c", "m.h"])
@pytest.mark.parametrize("code", _HIDDEN.values(), ids=_HIDDEN.keys())
def test_code_in_the_place_of_the_librarys_is_a_means_of_forgery(code: str, path: str, tmp_path: Path) -> None:
    for name, text in _SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    patch = diff(_SMALL, {**_SMALL, path: f"{_SMALL[path]}\n{code}"})
    assert LANGUAGE.scrutiny_of(patch, tmp_path).required
    assert not LANGUAGE.scrutiny_of(patch, tmp_path, patch).required  # what gold has is none


def test_state_that_gold_keeps_is_free_where_gold_keeps_it(tmp_path: Path) -> None:
    for name, text in _SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def keeping(function: str, variable: str) -> str:
        begin = next(line for line in _SMALL["m.c"].split("\n") if f"{function}(" in line) + "\n{\n"
        assert begin in _SMALL["m.c"]
        source = _SMALL["m.c"].replace(begin, f"{begin}    static int {variable};\n    {variable}++;\n")
        return diff(_SMALL, {**_SMALL, "m.c": source})

    gold = keeping("m_sum", "calls")
    assert LANGUAGE.scrutiny_of(gold, tmp_path).required
    assert not LANGUAGE.scrutiny_of(keeping("m_sum", "times"), tmp_path, gold).required
    assert LANGUAGE.scrutiny_of(keeping("m_twice", "calls"), tmp_path, gold).required


_LOADS = """\
#include <stdio.h>

int m_load(FILE *out, const char *name)
{
    FILE *file = fopen("names.txt", "r");
    fprintf(out, "%s", name);
    return file != NULL;
}
"""


def test_what_a_file_does_already_and_other_languages_are_no_means(tmp_path: Path) -> None:
    files = {"run.c": "int first(char **argv)\n{\n    return argv[0][0];\n}\n", "run.conf": "# all\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    changed_files = {"run.c": files["run.c"].replace("argv[0]", "argv[1]"), "run.conf": "#reset of all\n# all\n"}
    assert not LANGUAGE.scrutiny_of(diff(files, changed_files), tmp_path).required
    other = diff(files, {**files, "other.c": "int main(int argc, char **argv)\n{\n    return argv[0][0];\n}\n"})
    assert LANGUAGE.scrutiny_of(other, tmp_path).reads
    macro = diff(files, {**files, "run.c": "#undef assert\n" + files["run.c"]})
    assert LANGUAGE.scrutiny_of(macro, tmp_path).required


def test_comments_in_directives_move_no_line(tmp_path: Path) -> None:
    source = "#define SIZE 3 /* of\n   all */\nint size(void)\n{\n    return SIZE;\n}\n"
    (tmp_path / "size.c").write_text(source)
    patch = diff({"size.c": source}, {"size.c": source.replace("    return", "    exit(0);\n    return")})
    assert LANGUAGE.scrutiny_of(patch, tmp_path).required
    patch = diff({"size.c": source}, {"size.c": source.replace("return SIZE", "return SIZE + 1")})
    assert not LANGUAGE.scrutiny_of(patch, tmp_path).required


@pytest.mark.parametrize(
    ("old", "new", "is_means"),
    [
        ("names.txt", "/proc/self/exe", True),
        ("fprintf(out", "fprintf(stdout", True),
        ("fprintf(out, ", "fputs(name, out); fprintf(out, ", True),
        ("    fprintf(out", '    fprintf(out, "%s", text);\n    fprintf(out', True),
        ("file", "stream", False),
    ],
)
def test_lines_with_other_names_of_variables_are_unchanged(old: str, new: str, is_means: bool, tmp_path: Path) -> None:
    (tmp_path / "load.c").write_text(_LOADS)
    lines = [line if "#" in line else line.replace(old, new) for line in _LOADS.split("\n")]
    patch = diff({"load.c": _LOADS}, {"load.c": "\n".join(lines)})
    assert LANGUAGE.scrutiny_of(patch, tmp_path).required is is_means


_MOVED = """\
diff --git a/load.c b/load.c
--- a/load.c
+++ b/load.c
@@ -1,9 +1,{count} @@
 int m_read(void)
 {{
-    FILE *file = fopen("names.txt", "r");
{again}     return file != NULL;
 }}
 int m_load(void)
 {{
+    FILE *file = fopen("names.txt", "r");
     return 0;
 }}
"""


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_line_of_another_function_may_be_moved_and_not_copied(tmp_path: Path, is_copied: bool) -> None:
    again = '+    FILE *file = fopen("names.txt", "r");\n' if is_copied else ""
    patch = _MOVED.format(count=9 + is_copied, again=again)
    before = [line[1:] for line in patch.splitlines()[4:] if line[0] != "+"]
    (tmp_path / "load.c").write_text("\n".join([*before, ""]))
    assert LANGUAGE.scrutiny_of(patch, tmp_path).required is is_copied


def test_what_cannot_be_read_in_the_gold_patch_frees_nothing_else(tmp_path: Path) -> None:
    long = f"/* {'a' * 2100} */\n"
    for name, text in _SMALL.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    gold = diff(_SMALL, {**_SMALL, "m.c": _SMALL["m.c"] + long})
    other = diff(_SMALL, {**_SMALL, "m.c": _SMALL["m.c"] + long.replace("*/", "*/ int strcmp(){return 0;}")})
    assert LANGUAGE.scrutiny_of(gold, tmp_path).required
    assert not LANGUAGE.scrutiny_of(gold, tmp_path, gold).required
    assert LANGUAGE.scrutiny_of(other, tmp_path, gold).required


REWRITES = {
    "by a function of the library": _SOLVED.replace(
        _UPPER, "made[at] = (char)toupper((unsigned char)text[at]);"
    ).replace("#include <stdlib.h>", "#include <ctype.h>\n#include <stdlib.h>"),
    "by a helper in the style of GNU": _SOLVED.replace(_UPPER, "made[at] = upper(text[at]);").replace(
        "char *m_upper",
        "static char\nupper(char letter)\n{\n"
        "    return letter >= 'a' && letter <= 'z' ? letter - 32 : letter;\n}\n\nchar *m_upper",
    ),
    "by a table that is only read": _SOLVED.replace(
        'return number == 1 ? "ONE" : "TWO";', "return names[number == 1 ? 0 : 1];"
    ).replace("const char *m_name", 'static const char *names[] = { "ONE", "TWO" };\n\nconst char *m_name'),
    "by pointers and two loops": _SOLVED.replace(
        "    for (at = 0; at < size; at++)\n        " + _UPPER,
        "    char *to = made;\n    memcpy(made, text, size);\n    for (at = size; at; at--, to++)\n"
        "        if (*to >= 'a' && *to <= 'z')\n            *to -= 'a' - 'A';",
    ),
    "with a constant and a check of memory": _SOLVED.replace("- 32", "- CASE_GAP")
    .replace("    for (at", "    if (made == NULL)\n        return NULL;\n    for (at")
    .replace("char *m_upper", "#define CASE_GAP ('a' - 'A')\n\nchar *m_upper"),
}


@pytest.mark.parametrize("source", REWRITES.values(), ids=REWRITES.keys())
def test_an_honest_rewrite_in_c_resolves(source: str, store: LayerStore) -> None:
    assert source != _SOLVED
    verdict = grade(small(*_CONDITIONS), diff(_SMALL, {**_SMALL, "m.c": source}), store=store, backend="namespace")
    assert verdict.resolved, f"{verdict.failure_reason}\n{verdict.log[-2000:]}"
