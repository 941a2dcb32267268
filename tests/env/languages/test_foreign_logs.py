"""Logs of JavaScript, Go, Rust and Java: as the harness reads generated ones, and as people read recorded ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from swegym_env.languages import Language, all_languages, language_of, log_parser
from swegym_env.languages.c import C
from swegym_env.languages.go import Go, parse_go_json
from swegym_env.languages.java import Java, parse_gradle, parse_surefire
from swegym_env.languages.javascript import JavaScript
from swegym_env.languages.javascript.logs import parse_mocha
from swegym_env.languages.official import official_module, official_parsers
from swegym_env.languages.rust import Rust, parse_cargo_test
from swegym_env.tasks.task import Task

LANGUAGES: dict[str, Language] = {"javascript": JavaScript(), "go": Go(), "rust": Rust(), "java": Java()}
OFFICIAL = [
    (language, name) for language, one in LANGUAGES.items() for name in one.parsers if name.startswith("parse_log_")
]

# One a line, as they would stand in a log: {n} is a name, {i} a number.
NAMES = """\
a
renders the list
Object3D > toJSON
a (b)
tests::unit::a_b
should wait (10 ms)
com.example.ATest.b
-Dtest=ATest#b
50% > of all 20ms
TestA/sub_test
[skipped]
  two  blanks"""
TEMPLATES = """\
ok {i} {n}
not ok {i} {n}
  ok {i} {n} # SKIP -
ok {n}
1..{i}
  ✓ {n}
    ✓ {n} ({i} ms)
  ✕ {n} ({i}s)
  ○ skipped {n}
[PASSED] {n}
[FAILED] {n}
[PENDING] {n}
 ✓ {n} {i}ms
 × {n} {i} ms
 ↓ {n} [skipped]
19 09 2020 INFO [launcher]: Starting browser Chrome
  {n}
    {n}
      {n}
    ✔ {n}
      ✔ {n}
      ✖ {n}
 ✖ {n}
SUMMARY:
✔ {i} tests completed
--- PASS: {n} (0.0{i}s)
    --- FAIL: {n} (0.00s)
--- SKIP: {n} ()
--- PASS: {n} (1s
test {n} ... ok
test  {n}  ...  FAILED
test {n} ... ignored
+ mvn test -Dtest={n} -q
[INFO] BUILD SUCCESS
[ERROR] BUILD FAILURE
{n} PASSED
{n}  FAILED
> {n} PASSED
 PASSED
[junit] [PASS] {n}
    [junit] [ERR] {n}
{n}"""
lines = st.builds(
    lambda template, name, number: template.format(n=name, i=number),
    st.sampled_from(TEMPLATES.split("\n")),
    st.sampled_from(NAMES.split("\n")),
    st.integers(0, 9),
)


@pytest.mark.parametrize(("language", "name"), OFFICIAL)
@given(log=st.lists(lines, max_size=14).map("\n".join))
@example(log="")
@settings(max_examples=300, deadline=None)
def test_logs_are_read_as_the_harness_reads_them(language: str, name: str, log: str) -> None:
    module = official_module(f"log_parsers.{language}")
    assert module is not None, "install the extra swebench"
    found = LANGUAGES[language].parsers[name](log)
    if name == "parse_log_immutable_js":
        # The harness takes one of two forms by the row; no log has both.
        forms = [getattr(module, f"parse_log_{form}")(log, None) for form in ("jest_json", "jest")]
        assert found == (forms[0] or forms[1])
        return
    try:
        expected = getattr(module, name)(log, None)
    except IndexError:  # a suite that ends before it began
        assume(False)
    assert found == expected


def test_every_parser_of_the_harness_is_there_for_the_repositories_of_multilingual() -> None:
    official = official_parsers()
    for language in LANGUAGES.values():
        assert language.repository_parsers
        for repo, name in language.repository_parsers.items():
            assert official[repo] == name
            assert log_parser(Task("x", repo, "", "p", "p")) is language.parsers[name]
            assert language_of(Task("x", repo, "", "p", "p")).name == language.name


@pytest.mark.parametrize(
    ("suffix", "name"), [("test.ts", "javascript"), ("x_test.go", "go"), ("a.rs", "rust"), ("ATest.java", "java")]
)
def test_the_suffix_names_the_language(suffix: str, name: str) -> None:
    patch = f"diff --git a/{suffix} b/{suffix}\n--- a/{suffix}\n+++ b/{suffix}\n@@ -1 +1 @@\n-a\n+b\n"
    assert language_of(Task("x", "some/repo", "", "p", "p", test_patch=patch)).name == name


def test_tests_in_python_of_an_interpreter_written_in_c_are_of_c() -> None:
    test = "tests/basics/slice_indices.py"
    patch = f"diff --git a/{test} b/{test}\n--- a/{test}\n+++ b/{test}\n@@ -1 +1 @@\n-a\n+b\n"
    assert language_of(Task("x", "micropython/micropython", "", "p", "p", test_patch=patch)).name == "c"
    assert language_of(Task("x", "some/python", "", "p", "p", test_patch=patch)).name == "python"


# Printed by mocha 10.8 (`mocha -R spec`), with a test that prints.
MOCHA = """\


  Stack
    ✔ is empty at first
heads
    pop
      ✔ returns the last one (31ms)
      - throws on none
      1) keeps the order

  top level
    2) "before each" hook for "peeks"


  2 passing (41ms)
  1 pending
  2 failing

  1) Stack
       pop
         keeps the order:
"""


def test_mochas_tree_is_read_with_its_suites() -> None:
    assert parse_mocha(MOCHA) == {
        "Stack > is empty at first": "PASSED",
        "Stack > pop > returns the last one": "PASSED",
        "Stack > pop > throws on none": "SKIPPED",
        "Stack > pop > keeps the order": "FAILED",
        'top level > "before each" hook for "peeks"': "FAILED",
    }


JEST = """\
PASS test/a.test.js
  area
    ✓ is a product (2 ms)
    ○ skipped rounds

Test Suites: 1 passed, 1 total
Tests:       1 skipped, 1 passed, 2 total
Snapshots:   0 total
"""
VITEST = """\
 ✓ src/a.test.ts > area > is a product 2ms
 × src/a.test.ts > area > rounds 3ms

 Test Files  1 failed (1)
      Tests  1 failed | 1 passed | 2 skipped (4)
   Start at  10:00:00
"""
VITEST_PASSED = VITEST.replace("1 failed | ", "").replace("1 failed", "1 passed")
KARMA = """\
19 09 2020 10:00:00.000:INFO [launcher]: Starting browser ChromeHeadless

  render()
    ✔ renders
    ✖ updates

Finished in 0.1 secs / 0.05 secs

SUMMARY:
✔ 1 test completed
ℹ 2 tests skipped
✖ 1 test failed

FAILED TESTS:
"""
TAP = "1..2\nok 1 area is a product\nnot ok 2 area rounds\n  AssertionError\n# tests 2\n# pass 1\n# fail 1\n"


@pytest.mark.parametrize(
    ("parser", "log", "report"),
    [
        ("parse_log_jest", JEST, (1, True)),
        ("parse_log_jest", JEST.replace("1 skipped, 1 passed", "1 failed, 1 passed"), (1, False)),
        ("parse_log_jest", JEST.replace("Suites: 1 passed", "Suites: 1 failed, 1 passed"), (1, False)),
        ("parse_log_vitest", VITEST, (1, False)),
        ("parse_log_vitest", VITEST_PASSED, (1, True)),
        ("parse_log_vitest", VITEST_PASSED + "     Errors  1 error\n", (1, False)),
        ("parse_log_karma", KARMA, (1, False)),
        ("parse_log_karma", KARMA.replace("✖ 1 test failed\n", ""), (1, True)),
        ("parse_log_tap", TAP, (1, False)),
        ("mocha", MOCHA, (2, False)),
        ("mocha", MOCHA.replace("  2 failing\n", ""), (2, True)),
    ],
)  # fmt: skip
def test_a_runner_reports_at_its_end(parser: str, log: str, report: tuple[int, bool]) -> None:
    javascript = LANGUAGES["javascript"]
    read = javascript.parsers[parser]
    found = javascript.runner_report(log, read)
    assert found is not None and (found.passed_at_most, found.success) == report
    assert read(log)
    cut = "\n".join(
        line for line in log.splitlines() if not line.strip().startswith(("Test", "SUMMARY", "1..", "2 pass"))
    )
    assert javascript.runner_report(cut, read) is None


def test_only_commands_whose_log_must_end_with_a_report_are_held_to_it() -> None:
    search = LANGUAGES["javascript"].reporting_runners.search
    for command in ("npx jest a.ts --verbose", "npx mocha -R tap a.js", "A=1 npx karma start karma.conf.js"):
        assert search(command)
    for command in ("timeout 10s npx mocha -R tap a.js", "npx jest a.ts --json | jq -r x", "yarn test", "node a.js"):
        assert not search(command)


GO_JSON = """\
{"Action":"run","Package":"example.com/a","Test":"TestA"}
{"Action":"output","Package":"example.com/a","Test":"TestA","Output":"--- PASS: TestForged (0.00s)\\n"}
{"Action":"pass","Package":"example.com/a","Test":"TestA","Elapsed":0}
{"Action":"fail","Package":"example.com/a","Test":"TestB/sub","Elapsed":0.1}
{"Action":"pass","Package":"example.com/b","Test":"TestA","Elapsed":0}
{"Action":"skip","Package":"example.com/b","Test":"TestC","Elapsed":0}
{"Action":"pass","Package":"example.com/b","Elapsed":0.3}
{"not": "an event"}
{broken
"""


def test_gos_events_are_read_by_package() -> None:
    assert parse_go_json(GO_JSON) == {
        "example.com/a/TestA": "PASSED",
        "example.com/a/TestB/sub": "FAILED",
        "example.com/b/TestA": "PASSED",
        "example.com/b/TestC": "SKIPPED",
    }


def test_doctests_of_rust_have_blanks_in_their_names() -> None:
    log = (
        "running 4 tests\ntest src/lib.rs - add (line 3) ... ok\ntest tests::panics - should panic ... ok\n"
        "test tests::slow ... ignored, takes long\ntest tests::bad ... FAILED\ntest tests::bad ... ok\n"
        "test result: FAILED. 3 passed; 1 failed\n"
    )
    assert parse_cargo_test(log) == {
        "src/lib.rs - add (line 3)": "PASSED",
        "tests::panics": "PASSED",
        "tests::slow": "SKIPPED",
        "tests::bad": "FAILED",
    }


# Surefire 2.22 and 3.2 print these.
SUREFIRE = """\
[INFO] Running com.example.AreaTest
[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 0.03 s - in com.example.AreaTest
[INFO] Running com.example.LineTest
[ERROR] Tests run: 2, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.1 s <<< FAILURE! - in com.example.LineTest
[ERROR] cuts(com.example.LineTest)  Time elapsed: 0.01 s  <<< FAILURE!
[ERROR] Tests run: 1, Failures: 0, Errors: 1, Skipped: 0, Time elapsed: 0.1 s <<< ERROR! -- in com.example.NewTest
[ERROR] com.example.NewTest.opens -- Time elapsed: 0.001 s <<< ERROR!
[WARNING] Tests run: 1, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 0 s -- in com.example.OffTest
[INFO] Tests run: 7, Failures: 1, Errors: 1, Skipped: 2
"""


def test_surefires_lines_name_classes_and_failed_methods() -> None:
    assert parse_surefire(SUREFIRE) == {
        "com.example.AreaTest": "PASSED",
        "com.example.LineTest": "FAILED",
        "com.example.LineTest.cuts": "FAILED",
        "com.example.NewTest": "FAILED",
        "com.example.NewTest.opens": "FAILED",
        "com.example.OffTest": "SKIPPED",
    }


def test_gradles_lines_are_read_with_their_class() -> None:
    log = (
        "> Task :test FAILED\n\nAreaTest > is a product() PASSED\nAreaTest > rounds() FAILED\n"
        "    Error at AreaTest.java:3\n"
        "LineTest > off() SKIPPED\n  indented > x PASSED\n\n3 tests completed, 1 failed, 1 skipped\n"
    )
    assert parse_gradle(log) == {
        "AreaTest > is a product()": "PASSED",
        "AreaTest > rounds()": "FAILED",
        "LineTest > off()": "SKIPPED",
    }


HOSTILE = [
    "--- PASS: " + " (x" * 60_000,
    "a" + " " * 200_000 + "b PASSED",
    "a > " * 60_000 + "FAILED x",
    "✓ " + " (1" * 60_000,
    " ✓ " + " 1 " * 60_000 + "x",
    "[ERROR] Tests run: 1, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: " + " in x" * 40_000 + " y",
    " " * 200_000 + "✔ x" + " (" * 60_000,
    "SUMMARY:\n" + "✔ 1 test completed\n" * 20_000,
    "Tests: " + "1 passed, " * 40_000,
    "test " + " ... " * 60_000,
    "[  OK  ] " * 25_000 + "x)",
    "[err]: a" + " " * 200_000 + "x",
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_line_takes_the_square_of_its_length(number: int) -> None:
    begin = time.process_time()
    for language in (*LANGUAGES.values(), C()):
        for parser in language.parsers.values():
            parser(HOSTILE[number])
            language.runner_report(HOSTILE[number], parser)
    assert time.process_time() - begin < 20  # the square would take minutes


PROTECTED = {
    "javascript": (
        *("src/a.test.ts", "src/a-spec.js", "test.mjs", "package.json", "packages/a/package.json", "pnpm-lock.yaml"),
        *("jest.config.js", ".mocharc.yml", "vitest.config.ts", "vitest.workspace.ts", "karma.conf.js", "a.snap"),
        *("babel.config.cjs", ".babelrc", "tsconfig.json", "tsconfig.build.json", ".npmrc", ".yarnrc.yml", ".taprc"),
        *("src/__mocks__/fs.js", "src/__snapshots__/a.js", "node_modules/.bin/mocha", "vite.base.config.js"),
        *("jest-setup.js", "lib/addon.node", "Gruntfile.js", "scripts/jest-preset.js", "setupTests.ts"),
    ),
    "go": ("a_test.go", "go.mod", "vendor/a/b.go", "pkg/testdata/x", "a.s"),
    "rust": ("tests/a.rs", "Cargo.toml", "build.rs", ".cargo/config.toml", "src/tests.rs"),
    "java": ("src/ATest.java", "pom.xml", "build.gradle.kts", "gradlew", ".mvn/jvm.config"),
}
FREE = {
    "javascript": (
        *("src/a.ts", "src/babel.ts", "lib/jest.js", "src/config.js", "src/contest.js", "lib/packages.json", "a.vue"),
        *("docs/testing.md", "src/rollup/index.ts"),
    ),
    "go": ("a.go", "test_a.go", "modgo.go"),
    "rust": ("src/a.rs", "src/contests.rs"),
    "java": ("src/A.java", "src/Attest.java"),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_files_that_decide_how_tests_run_are_protected(language: str, tmp_path: Path) -> None:
    one = next(each for each in all_languages() if each.name == language)
    assert [path for path in PROTECTED[language] if not one.is_protected(path, tmp_path)] == []
    assert [path for path in FREE[language] if one.is_protected(path, tmp_path)] == []
