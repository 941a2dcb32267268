"""C: the tests of `mini-c` are found, changed and sent blind; what a patch may do is screened."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from swegym_env.errors import LayerError
from swegym_env.grading.comparisons import read_records
from swegym_env.grading.evaluation import Evaluation, evaluation_of
from swegym_env.grading.grading import grade
from swegym_env.grading.task_tests import TaskTests
from swegym_env.languages import RunnerReport, debian, language_of
from swegym_env.languages.c import C
from swegym_env.languages.c.assertions import asserted
from swegym_env.languages.c.setup import RECIPES
from swegym_env.languages.c.source import Call, calls, functions, literal, tokens
from swegym_env.languages.machine import MachineRecipe
from swegym_env.languages.official import official_parser
from swegym_env.languages.tap import parse_tap, tap_report
from swegym_env.prepare import prepare_locally
from swegym_env.repo.git import Git
from swegym_env.repo.patches import added_lines
from swegym_env.sandbox import open_sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task
from tests.places import public_directory

TASKS = load_tasks("mini-c")
C_LANGUAGE = C()


def compared(source: str) -> list[tuple[str, str, object]]:
    """Kind, computed side and value of all that the statements of a function assert."""
    (function,) = functions(f"void f(void)\n{{\n{source}\n}}\n")
    found = [one for call in calls(function.body) for one in asserted(call) or ()]
    return [(one.kind, "".join(token.text for token in one.actual), one.value) for one in found]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("assert(area(2, 3) == 6);", [("int", "area(2,3)", 6)]),
        ("assert(0x1F == mask(x));", [("int", "mask(x)", 31)]),
        ('assert(a == -1 && strcmp(name(b), "x\\ty") == 0);', [("int", "a", -1), ("text", "name(b)", "x\ty")]),
        ('assert(!strcmp("one" "two", s));', [("text", "s", "onetwo")]),
        ("assert(p != NULL);", [("truth", "p!=NULL", True)]),
        ("CHECK_INT(count(m), 'a');", [("int", "count(m)", 97)]),
        ('CHECK_STR(get(m, "k"), "v");', [("text", 'get(m,"k")', "v")]),
        ("ck_assert_int_eq(f(1), 010);", [("int", "f(1)", 8)]),
        ('ck_assert_str_eq(f(1), "é");', [("text", "f(1)", "é")]),
        ('TEST_ASSERT_EQUAL_STRING("a,b", f(1, 2));', [("text", "f(1,2)", "a,b")]),
        ('CHECK(strstr(f(1), "a b") != NULL);', [("in", "f(1)", "a b")]),
        ('assert(memcmp(f(1), "abc", 2) == 0);', [("text", "f(1)", "ab")]),
        ('assert(!strncmp(f(1), "abc", 3));', [("start", "f(1)", "abc")]),
        ("assert(strcmp(f(1), g(1)) == 0 && f(2) < g(3));", [("equal", "f(1)", True), ("order", "f(2)", True)]),
        ("munit_assert_int(f(2), ==, 4);", [("int", "f(2)", 4)]),
        ('EXPECT_EQ("{}", fmt::format("{{}}"));', [("text", 'fmt::format("{{}}")', "{}")]),
        ('EXPECT_EQ(R"(a"b)", f());', [("text", "f()", 'a"b')]),
        ("ck_assert_int_ne(f(1), 2);", []),
        ("ASSERT_NE(f(1), 2);", []),
        ("CHECK_INT(f(1), g(1));", [("equal", "f(1)", True)]),
        ("CHECK_DOUBLE(f(1), 1.5);", []),
        ("EXPECT_FALSE(f(1));", []),
        ('printf("%d", 3);', []),
        ("x = check_int(f(1), 2);", []),
    ],
)
def test_what_an_assertion_compares_is_read_from_its_name_and_literals(
    source: str, expected: list[tuple[str, str, object]]
) -> None:
    assert compared(source) == expected


def test_truths_of_comparisons_are_loose_and_what_they_compare_is_sent_where_it_is_asked_for() -> None:
    lines = [
        "CHECK(f(1));",
        "CHECK(f(1) > g(2));",
        "CHECK_STR(f(3), g(4));",
        "CHECK(strcasecmp(f(5), g(5)) == 0);",
        "CHECK_INT(strcmp(f(6), g(6)), 0);",
        'CHECK(!strcmp("x", f(7)));',
    ]
    source = "static void test_a(void)\n{\n    " + "\n    ".join(lines) + "\n}\n"
    found: dict[bool, dict[int, list[tuple[str, object, bool]]]] = {}
    for computed in (False, True):
        blinded = C_LANGUAGE.make_blind({"a.c": source}, ["test_a"], frozenset(), 1, computed=computed)
        assert blinded is not None and blinded.open == {"test_a"}
        found[computed] = {}
        for one in blinded.expectations.values():
            line = int(one.place.split(":")[1]) - 2
            found[computed].setdefault(line, []).append((one.kind, one.value, "loose" in one.options))
    gold = beside = ("gold", None, False)
    assert found[False] == {
        1: [("eq", True, False)],
        2: [beside, beside, ("eq", True, True)],
        3: [beside, beside],
        4: [("eq", 0, True)],
        5: [("eq", 0, True)],
        6: [("eq", "x", False)],
    }
    assert found[True] == {1: [("eq", True, False)], 2: [gold, gold], 3: [gold], 6: [("eq", "x", False)]}


@pytest.mark.parametrize(
    ("path", "compiler", "code", "actual"),
    [
        ("a.c", "gcc -std=gnu11", "static double of(const int *a) { return a[0] + 0.4; }", "of((int[]){ [0] = 6 })"),
        ("a.cpp", "g++ -std=gnu++98", "static double of(int a) { return a + 0.4; }", "of(6)"),
        ("a.cpp", "g++ -std=gnu++98", "enum { A = 6 }; struct S { operator int() { return A; } };", "S()"),
        ("a.cpp", "g++ -std=gnu++98", "enum { A = 6 };", "A"),
        ("a.cpp", "g++ -std=gnu++98", "static unsigned long long of(bool a) { return a + 5; }", "of(true)"),
        (
            "a.cpp",
            "g++ -std=gnu++17",
            "template <class F> static double of(F f) { return f(6) + 0.4; }",
            "of([](int a) { return a; })",
        ),
    ],
)
def test_a_fraction_is_sent_as_a_fraction_where_a_whole_number_is_expected(
    path: str, compiler: str, code: str, actual: str, tmp_path: Path
) -> None:
    source = f"{code}\nstatic void test_a(void)\n{{\n    CHECK_INT({actual}, 6);\n}}\n"
    blinded = C_LANGUAGE.make_blind({path: source}, ["test_a"], frozenset(), 1)
    assert blinded is not None
    ((header, text),) = blinded.support.items()
    place = {header: str(tmp_path / "blind.h"), blinded.output: str(tmp_path / "sent")}
    (tmp_path / "blind.h").write_text(text.replace(blinded.output, place[blinded.output]))
    rewritten = blinded.files[path].replace(header, place[header])
    (tmp_path / path).write_text(f"{rewritten}\nint main(void)\n{{\n    test_a();\n    return 0;\n}}\n")
    command = [*compiler.split(), "-Wall", "-Werror", "-o", str(tmp_path / "test"), str(tmp_path / path)]
    subprocess.run(command, check=True)
    subprocess.run([str(tmp_path / "test")], check=True)
    (record,) = read_records((tmp_path / "sent").read_bytes())
    assert record.value == (6.4 if "0.4" in code else 6)


def named_calls(source: str, names: tuple[str, ...]) -> list[Call]:
    return [call for function in functions(source) if function.name in names for call in calls(function.body)]


def test_functions_are_found_between_macros_strings_and_comments() -> None:
    source = (
        "#define TWICE(x) \\\n    do { x; x; } while (0)\n/* static void no(void) { */\n"
        'static const char *text = "void no(void) {";\nstruct point { int x; };\nextern "C" {\n'
        "static int first(int (*callback)(int)) { if (1) { return 2; } return '}'; }\n}\nnamespace a { namespace {\n"
        "TEST(Parser, Empty) { EXPECT_EQ(1, f()); }\n} }\nSTART_TEST(test_old)\n{ ck_assert(1); }\nEND_TEST\n"
        'TEST_CASE("one two", "[tag]") { REQUIRE(f() == 2); }\nint table[] = { 1, 2 };\nint last(void) { return 0; }\n'
    )
    assert [function.name for function in functions(source)] == ["first", "Parser.Empty", "test_old", "one two", "last"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            ("42", 42),
            ("-7L", -7),
            ("0b101u", 5),
            ("1'000", 1000),
            ("'\\n'", 10),
            ("(3)", 3),
            ("1.5f", 1.5),
            ("true", 1),
        ),
        *(('"a" "\\x41\\101"', "aAA"), ("x", None), ("1 + 2", None), ('L"a"', None), ('"\\xff"', None), ("", None)),
    ],
)
def test_literals_have_the_value_that_the_compiler_gives_them(text: str, value: object) -> None:
    assert literal(tokens(text)) == value


def test_tap_is_read_with_its_plan_and_directives() -> None:
    log = "TAP version 13\nok 1 - a\nnot ok 2 - b # TODO later\nok 3 c # SKIP no disk\nnot ok 4 - d\nok 5\n1..5\n"
    assert parse_tap(log) == {"a": "PASSED", "b": "XFAIL", "c": "SKIPPED", "d": "FAILED", "5": "PASSED"}
    assert parse_tap("ok 1 - a\nnot ok 1 - a\nok 1 - a\n") == {"a": "FAILED"}
    report = tap_report("1..1\nok 1 - a\n" + log)
    assert report is not None and (report.passed_at_most, report.success) == (4, False)
    assert tap_report("ok 1 - a\nok 2 - b\n") is None
    assert tap_report("ok 1 - a\nok 2 - b\n1..3\n") is None


def test_tap_counts_the_tests_of_a_suite_where_its_plan_holds() -> None:
    suite = "    ok 1 - b\n      ---\n      ...\n    ok 2 - c\n"
    for log in (f"ok 1 - a\n{suite}    1..2\nok 2 - own\n1..2\n", f"1..2\nok 1 - a\n    1..2\n{suite}ok 2 - own\n"):
        assert tap_report(log) == RunnerReport(4, True)
        assert len(parse_tap(log)) == 4
    assert tap_report(f"ok 1 - a\n{suite}ok 2 - own\n1..2\n") == RunnerReport(2, True)  # lines that a test printed


LOGS = {
    "parse_log_redis": "[ok]: SET and GET (12 ms)\n[err]: XADD in tests/unit/a.tcl\n[skip]: big: large memory\nx\n",
    "parse_log_jq": "PASS: tests/jqtest\n  FAIL: tests/shtest\nPASS\n",
    "parse_log_micropython_test": "pass  basics/a.py\nFAIL  basics/b.py\nskip  basics/c.py\n3 tests performed\n",
    "parse_log_googletest": "1: [ RUN   ] A.B\n1: [    OK ] A.B (0 ms)\n[  FAILED  ] A.C (2 ms)\n[  FAILED  ] A.C\n",
    "parse_log_doctest": '<?xml?>\n<doctest binary="t"><TestSuite><TestCase name="a"><SubCase name="b">'
    '<Expression success="true"/></SubCase><SubCase name="c"><Expression success="false"/></SubCase></TestCase>'
    "</TestSuite></doctest>\nend",
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_are_read_as_the_harness_reads_them(name: str) -> None:
    official = official_parser(name)
    assert official is not None, "install the extra swebench"
    found = C_LANGUAGE.parsers[name](LOGS[name])
    assert found == official(LOGS[name])
    assert len(found) > 1


def test_entities_of_a_log_in_xml_are_not_expanded() -> None:
    bomb = '<doctest><!DOCTYPE a [<!ENTITY b "bb">]><TestCase name="&b;"/></doctest>'
    assert C_LANGUAGE.parsers["parse_log_doctest"](bomb) == {}


def test_controls_of_every_task_change_each_test() -> None:
    for task in TASKS:
        files = {path: _patched(task.files[path], task.test_patch, path) for path in C_LANGUAGE.control_files(task)}
        control = C_LANGUAGE.make_control(files, task.fail_to_pass, added_lines(task.test_patch), 3)
        assert control is not None and control.names == set(task.fail_to_pass), task.instance_id
        blinded = C_LANGUAGE.make_blind(files, task.fail_to_pass, frozenset(), 3)
        assert blinded is not None and blinded.expectations, task.instance_id
        left = [call.name for text in blinded.files.values() for call in named_calls(text, task.fail_to_pass)]
        assert not [name for name in left if name.startswith("CHECK")], task.instance_id


def _patched(text: str, patch: str, path: str) -> str:
    """The text of a test file with the tests of a test patch, which adds lines only."""
    section = patch.partition(f"+++ b/{path}\n")[2].partition("diff --git")[0]
    lines, found, at = text.splitlines(keepends=True), [], 0
    for hunk in re.split(r"^@@ -(\d+).*\n", section, flags=re.MULTILINE)[1:]:
        if hunk.isdigit():
            found += lines[at : int(hunk) - 1]
            at = int(hunk) - 1
            continue
        for line in hunk.splitlines(keepends=True):
            found.append(line[1:])
            at += line[0] == " "
    return "".join(found + lines[at:])


def test_an_honest_patch_fails_the_control_and_a_blind_run_proves_it() -> None:
    task = TASKS["mini-c__strmap-001"]
    with public_directory("languages-c") as place:
        store = LayerStore(place / "layers")
        verdict = grade(task, task.patch, store=store, backend="namespace")
        assert (verdict.resolved, verdict.proof, verdict.proof_tests) == (True, "blind", task.fail_to_pass)
        assert not grade(task, "", store=store, backend="namespace").resolved
        workspace = prepare_locally(task, store=store, backend="namespace")
        tests = TaskTests(task, workspace, "strict", "namespace", 60.0)
        watched = C_LANGUAGE.control_files(task)
        files = tests.run(task.patch, watched=watched).files
        name = task.fail_to_pass[0]
        control = C_LANGUAGE.make_control(files, [name], added_lines(task.test_patch), 1)
        assert control is not None
        wrong = tests.verdict(tests.run(task.patch, rewritten=control.files, watched=watched)).tests
        assert {test for test, status in wrong.items() if status == "FAILED"} == {name}


def test_a_patch_that_does_not_compile_has_failed_and_is_valid() -> None:
    task = TASKS["mini-c__ini-002"]
    patch = task.patch.replace("return *a == *b;", "return *a == *b")
    assert patch != task.patch
    with public_directory("languages-c") as place:
        verdict = grade(task, patch, store=LayerStore(place / "layers"), backend="namespace")
    assert (verdict.resolved, verdict.valid, verdict.failure_reason) == (False, True, "the log names no test")


def test_a_machine_without_a_compiler_gets_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian.shutil, "which", lambda program, path="": None if program == "cc" else shutil.os.devnull)
    with public_directory("languages-c") as place, pytest.raises(LayerError, match=r"lacks gcc .*apt-get install gcc"):
        prepare_locally(TASKS[0], store=LayerStore(place / "layers"), backend="namespace")


@pytest.mark.parametrize(
    ("line", "required"),
    [
        ("    if (count > 3)\n+        return -1;", False),
        ("    memcpy(out, in, strlen(in) + 1);", False),
        ("#include <ctype.h>", False),
        ("#define MOST_KEYS 20", False),
        ("#ifdef MOST_KEYS /* a comment of a directive\n+that goes on */", False),
        ("#ifdef MOST_KEYS /* a comment of a directive\n+that goes on */\n+    exit(0);", True),
        ("    exit(0);", True),
        ("__attribute__((constructor)) static void f(void)", True),
        ("int strcmp(const char *a, const char *b)", True),
        ("#define strcmp(a, b) 0", True),
        ('#include "../tests/test_ini.c"', True),
        ("    long *up = (long *)&count;", True),
        ('    FILE *file = fopen("/proc/self/exe", "r");', True),
        ('    __asm__("nop");', True),
        ("ex\\", True),
    ],
)
def test_means_of_forgery_require_a_proof(line: str, required: bool) -> None:
    patch = f"diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n@@ -1,0 +1,1 @@\n+{line}\n"
    assert C_LANGUAGE.scrutiny_of(patch, Path()).required is required


@pytest.mark.parametrize(
    "path",
    [
        "Makefile",
        "src/makefile",
        "GNUmakefile",
        "CMakeLists.txt",
        "tests/a.c",
        "src/test_a.c",
        "string.h",
        "sys/types.h",
        "include/assert.h",
        "a.o",
        "libx.so",
        "rules.mk",
        "configure",
        "src/a_test.cc",
        # What the builds of Multilingual's repositories run or include, and their set-ups leave beside the sources.
        "src/.make-settings",
        "src/mkreleasehdr.sh",
        "scripts/version",
        "test-driver",
        "build-aux/install",
        "modules/oniguruma/depcomp",
        "build/test/CMakeFiles/x/flags.make",
        "a.ld",
    ],
)
def test_what_decides_how_tests_are_built_is_protected(path: str, tmp_path: Path) -> None:
    assert C_LANGUAGE.is_protected(path, tmp_path)


@pytest.mark.parametrize("path", ["src/a.c", "include/a.h", "strings_util.h", "contest.c", "docs/a.md"])
def test_sources_are_not_protected(path: str, tmp_path: Path) -> None:
    assert not C_LANGUAGE.is_protected(path, tmp_path)


def test_tasks_are_of_the_language_of_their_tests() -> None:
    assert {language_of(task).name for task in TASKS} == {"c"}
    assert {language_of(task).name for task in load_tasks("mini", select=":3")} == {"python"}


def test_what_the_set_up_has_done_is_not_done_again_in_grading() -> None:
    scripts = {
        "jqlang/jq": (
            (
                "git submodule update --init\nautoreconf -fi\n./configure --with-oniguruma=builtin\nmake clean\n"
                "touch src/parser.y src/lexer.l\nmake -j$(nproc)\n"
            ),
            "touch src/parser.y src/lexer.l\nmake -j$(nproc)",
        ),
        "redis/redis": ("make distclean\nmake\n", "make"),
        "micropython/micropython": (
            "source ./tools/ci.sh\nci_unix_build_helper VARIANT=standard\n",
            "source ./tools/ci.sh\nci_unix_build_helper VARIANT=standard",
        ),
        "fmtlib/fmt": ("mkdir -p build\ncmake -B build -S .\n", "mkdir -p build\ncmake -B build -S ."),
    }
    for repo, (build, kept) in scripts.items():
        script = f"#!/bin/bash\ncd /testbed\n{build}: '>>>>> Start Test Output'\nrun tests\n: '>>>>> End Test Output'\n"
        task = Task("i", repo=repo, base_commit="", problem_statement="p", patch="", eval_script=script)
        assert evaluation_of(task) == Evaluation(kept, "run tests"), repo
        assert C_LANGUAGE.find_recipe(task) is RECIPES[repo]
    assert RECIPES.keys() == C_LANGUAGE.repository_parsers.keys()


def test_a_set_up_is_built_from_submodules_too(
    store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clones = {}
    for name in ("a+thing", "an+owner"):
        clones[name] = Git("test", tmp_path / name)
        (tmp_path / name).mkdir()
        clones[name].run("init", "-q")
    (tmp_path / "a+thing/thing.h").write_text("#define SEVEN 7\n")
    (tmp_path / "an+owner/main.c").write_text('#include "lib/thing/thing.h"\nint main(void) { return SEVEN; }\n')
    (tmp_path / "an+owner/.gitmodules").write_text(
        '[submodule "t"]\n\tpath = lib/thing\n\turl = https://example.org/a/thing\n'
    )
    commits = {}
    for name, clone in clones.items():
        clone.run("add", "-A")
        if commits:
            clone.run("update-index", "--add", "--cacheinfo", f"160000,{commits['a+thing']},lib/thing")
        clone.run("-c", "user.name=x", "-c", "user.email=x@x.org", "commit", "-qm", "x")
        commits[name] = clone.text("rev-parse", "HEAD").strip()
    recipe = MachineRecipe("gcc", {"cc": "gcc"}, submodules=("lib/thing",), commands=("cc -o seven main.c",))
    monkeypatch.setitem(RECIPES, "an/owner", recipe)  # type: ignore[arg-type]
    patch = "diff --git a/main.c b/main.c\n--- a/main.c\n+++ b/main.c\n@@ -1 +1 @@\n-x\n+y\n"
    task = Task("i", repo="an/owner", base_commit=commits["an+owner"], problem_statement="p", patch=patch)
    workspace = prepare_locally(task, repos=tmp_path, store=store)
    sandbox = open_sandbox(workspace.spec)
    try:
        sandbox.start()
        assert sandbox.run("./seven").exit_code == 7
        assert sandbox.run("cat lib/thing/thing.h; git status --short").output == "#define SEVEN 7\n?? seven\n"
    finally:
        sandbox.close()


TCL_TESTS = """\
start_server {tags {"a"}} {
    test {by value} {
        # assert_equal 8 [r get not-this]
        foreach key {a b} { assert_equal 8 [r get $key] }
        assert_equal "a b c" [r get [r get k]]; r del k
        assert_equal [r get k] $value
    }
    test "by error in RESP$resp" {
        if {$resp == 2} {
            assert_error "*ERR*" {r get}
        }
        assert_error {*range*} {r lpop k -1}
    }
    test {by condition} {
        assert {[r dbsize] == 24}
    }
    test {by truth} {
        assert {[r dbsize] < 2 && [r ttl k] == 3}
    }
    test {by result} {
        r get \\{
    } {}
    test {without} {
        check_all 3
    }
}
"""


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("by value", 'assert_equal "a b c" [r get [', r'assert_equal "\w \w \w" \[r get \['),
        ("by error in RESP3", "assert_error {*range*} {", r"assert_error \{\*\w{5}\*\} \{"),
        ("by condition", "{[r dbsize] == 24}", r"\{\[r dbsize\] == \d\d\}"),
        (
            "by truth",
            "assert {[r dbsize] < 2 && [r ttl k] == 3}",
            r"assert \{!\(\[r dbsize\] < 2 && \[r ttl k\] == 3\)\}",
        ),
        ("by result", "\n    } {}", r"\n    \} \{[a-z]\}"),
    ],
)
def test_controls_change_what_a_test_in_tcl_is_sure_to_compare(name: str, right: str, wrong: str) -> None:
    for seed in range(8):
        control = C_LANGUAGE.make_control({"tests/a.tcl": TCL_TESTS}, [name], {}, seed)
        assert control is not None and control.names == {name}
        assert control.without_value == ({name} if name == "by truth" else set())
        before, after = TCL_TESTS.split(right)
        changed = control.files["tests/a.tcl"]
        assert changed.startswith(before) and changed.endswith(after)
        middle = changed.removeprefix(before).removesuffix(after)
        assert middle != right and re.fullmatch(wrong, middle)


def test_a_test_in_tcl_without_a_comparison_is_not_changed() -> None:
    lines = {"tests/a.tcl": frozenset({TCL_TESTS.count("\n") - 2})}
    assert C_LANGUAGE.make_control({"tests/a.tcl": TCL_TESTS}, ["without"], lines, 0) is None
    assert C_LANGUAGE.make_control({"tests/a.tcl": TCL_TESTS}, ["unknown"], lines, 0) is None
    added = {"tests/a.tcl": frozenset({15})}
    control = C_LANGUAGE.make_control({"tests/a.tcl": TCL_TESTS}, ["unknown"], added, 0)
    assert control is not None and control.names == set() and "== 24" not in control.files["tests/a.tcl"]


def test_a_test_in_tcl_that_gives_what_it_expects() -> None:
    tests = """\
    test {store} {
        r set key zqxw
        assert_equal {zqxw} [r get key]
    }
    test {result} {
        r set key 4711
        r get key
    } {4711}
    test {computed} {
        r set key zqxw
        assert_equal 4 [r strlen key]
        assert {[r append key vbnm] == 8}
        assert_error {*range*} {r getrange key}
    }
"""
    names = ["store", "result", "computed", "not there"]
    assert C_LANGUAGE.given_tests({"tests/a.tcl": tests}, names) == {"store", "result", "not there"}
    assert C_LANGUAGE.make_twins({"tests/a.tcl": tests}, ["store"], 1, 3).lineup.copies == ()
