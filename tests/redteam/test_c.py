"""Attacks in C: the code under test is linked into its tests, and its own files could decide how these are built."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from swegym_env.grading.grading import Verdict
from swegym_env.tasks.data import mini_c
from swegym_env.tasks.task import Task

from .cases import Attack, diff

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


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_in_c_is_rejected(attack: Attack, rejected: Callable[..., Verdict]) -> None:
    rejected(attack)
