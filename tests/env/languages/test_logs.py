"""Parsers return the names and statuses of the published lists; expected values are written by hand from real logs."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.errors import ConfigurationError
from swegym_env.languages import Status, log_parser
from swegym_env.languages.python.logs import (
    PARSERS,
    parse_pytest,
    parse_pytest_clean,
    parse_pytest_options,
    parse_unittest,
    parse_verbose_runner,
    runner_report,
)
from swegym_env.languages.python.screening import scrutiny_of
from swegym_env.tasks.task import Task

PYTEST_LOG = """\
============================= test session starts ==============================
collected 9 items

tests/test_x.py .F.sxX.E.                                                [100%]

==================================== PASSES ====================================
____________________________________ test_a ____________________________________
----------------------------- Captured stdout call -----------------------------
PASSED tests/test_x.py::test_forged
=========================== short test summary info ============================
PASSED tests/test_x.py::test_a
PASSED tests/test_x.py::TestE::test_make_error[required-Missing data]
PASSED tests/test_x.py::test_path[/tmp/some/dir/file.txt]
SKIPPED [1] tests/test_x.py:10: no luck
XFAIL tests/test_x.py::test_x
XPASS tests/test_x.py::test_xp
ERROR tests/test_x.py::test_e - KeyError: 'a b'
FAILED tests/test_x.py::test_f - assert 0 == 1
========= 1 failed, 3 passed, 1 skipped, 1 xfailed, 1 xpassed, 1 error in 0.59s =========
"""
PYTEST_TESTS = {
    "tests/test_x.py::test_a": "PASSED",
    "tests/test_x.py::TestE::test_make_error[required-Missing": "PASSED",
    "tests/test_x.py::test_path[/tmp/some/dir/file.txt]": "PASSED",
    "[1]": "SKIPPED",
    "tests/test_x.py::test_x": "XFAIL",
    "tests/test_x.py::test_e": "ERROR",
    "tests/test_x.py::test_f": "FAILED",
}

UNITTEST_SUITE = '''
import sys, unittest
class T(unittest.TestCase):
    def test_ok(self): pass
    def test_doc(self):
        """A docstring (really) ... ok"""
    def test_doc_fail(self):
        """Another."""
        self.fail("x")
    def test_print(self): print("hello"); print("noise ok", file=sys.stderr)
    def test_err(self): raise KeyError
    @unittest.skip("why")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xf(self): self.fail()
    @unittest.expectedFailure
    def test_xs(self): pass
    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i): self.assertEqual(i, 1)
    def test_sub_ok(self):
        for i in range(3):
            with self.subTest(i=i): pass
class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise OSError("no")
    def test_x(self): pass
'''
UNITTEST_TESTS = {
    "test_a.T.test_ok": "PASSED",
    "test_a.T.test_doc": "PASSED",
    "test_a.T.test_doc_fail": "FAILED",
    "test_a.T.test_print": "PASSED",
    "test_a.T.test_err": "ERROR",
    "test_a.T.test_skip": "SKIPPED",
    "test_a.T.test_xf": "XFAIL",
    "test_a.T.test_xs": "FAILED",
    "test_a.T.test_sub": "FAILED",
    "test_a.T.test_sub_ok": "PASSED",
    "test_a.B.setUpClass": "ERROR",
    "unittest.loader._FailedTest.test_b": "ERROR",
}
# The same suite's log by Python 3.8, which names no method twice and leaves a failing subtest's line open.
UNITTEST_LOG_3_8 = """\
test_doc (test_a.T)
A docstring (really) ... ok ... ok
test_doc_fail (test_a.T)
Another. ... FAIL
test_err (test_a.T) ... ERROR
test_ok (test_a.T) ... ok
test_print (test_a.T) ... hello
noise ok
ok
test_skip (test_a.T) ... skipped 'why'
test_sub (test_a.T) ... test_sub_ok (test_a.T) ... ok
test_xf (test_a.T) ... expected failure
test_xs (test_a.T) ... unexpected success
test_b (unittest.loader._FailedTest) ... ERROR

======================================================================
ERROR: setUpClass (test_a.B)
----------------------------------------------------------------------
OSError: no

======================================================================
ERROR: test_err (test_a.T)
----------------------------------------------------------------------
KeyError

======================================================================
FAIL: test_sub (test_a.T) (i=0)
----------------------------------------------------------------------
AssertionError: 0 != 1

----------------------------------------------------------------------
Ran 11 tests in 0.004s

FAILED (failures=3, errors=3, skipped=1, expected failures=1, unexpected successes=1)
"""


def test_pytest_names_end_at_the_first_blank_and_skipped_tests_have_no_name() -> None:
    assert parse_pytest(PYTEST_LOG) == {"tests/test_x.py::test_forged": "PASSED", **PYTEST_TESTS}


def test_a_path_parameter_is_reduced_to_its_last_component() -> None:
    names = parse_pytest_options(PYTEST_LOG)
    assert names["tests/test_x.py::test_path[/file.txt]"] == "PASSED"
    assert "tests/test_x.py::test_path[/tmp/some/dir/file.txt]" not in names


def test_coloured_and_old_pytest_logs_are_parsed() -> None:
    log = "\x1b[32mPASSED\x1b[0m tests/a.py::\x1b[1mtest_x\x1b[0m\ntests/a.py::test_y FAILED\n"
    assert parse_pytest_clean(log) == {"tests/a.py::test_x": "PASSED", "tests/a.py::test_y": "FAILED"}


def test_the_closing_report_of_pytest_excludes_what_tests_print() -> None:
    report = runner_report(PYTEST_LOG, parse_pytest)
    assert report is not None
    assert (report.passed_at_most, report.success) == (4, False)
    assert report.statuses == PYTEST_TESTS  # what a test printed is not in it


@pytest.mark.parametrize(
    "line",
    [
        "3 passed in 0.12s",
        "===== 3 passed, 2 warnings in 61.20s (0:01:01) =====",
        "========= 3 passed in 0.12 seconds ========",
    ],
)
def test_every_form_of_the_last_line_of_pytest_is_recognised(line: str) -> None:
    report = runner_report(f"...\n{line}\n", parse_pytest)
    assert report is not None
    assert (report.passed_at_most, report.success) == (3, True)


def test_a_log_without_an_end_has_no_report() -> None:
    assert runner_report(PYTEST_LOG[: PYTEST_LOG.index("=== 1 failed")], parse_pytest) is None
    assert runner_report(UNITTEST_LOG_3_8.split("Ran 11", maxsplit=1)[0], parse_unittest) is None


def test_unittest_logs_of_this_python_and_of_an_old_one_are_parsed_alike(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(UNITTEST_SUITE)
    (tmp_path / "test_b.py").write_text("import nothing_of_this_name\n")
    run = subprocess.run(
        [sys.executable, "-m", "unittest", "-v"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert parse_unittest(run.stdout) == UNITTEST_TESTS
    assert parse_unittest(UNITTEST_LOG_3_8) == UNITTEST_TESTS
    for log in (run.stdout, UNITTEST_LOG_3_8):
        report = runner_report(log, parse_unittest)
        assert report is not None
        assert not report.success
        # doc_fail, err, xf, xs, sub and the module that cannot be imported did not pass. The skipped one may have,
        # where the runner counts it among those that ran: Python 3.12.1 does not.
        (ran,) = re.findall(r"^Ran (\d+) tests", log, re.MULTILINE)
        assert ran == ("10" if log is run.stdout and sys.version_info[:3] == (3, 12, 1) else "11")
        assert report.passed_at_most == int(ran) - 6


def test_printing_the_line_of_another_test_does_not_undo_its_failure() -> None:
    log = (
        "test_a (m.T) ... test_b (m.T) ... ok\nok\ntest_b (m.T) ... FAIL\n\n"
        "======\nFAIL: test_b (m.T)\n------\n\nRan 2 tests in 0.001s\n\nFAILED (failures=1)\n"
    )
    assert parse_unittest(log)["m.T.test_b"] == "FAILED"


def test_django_names_are_the_text_before_the_dots() -> None:
    log = (
        "test_a (app.T) ... ok\nA docstring ... skipped 'no'\ntest_b (app.T) ... FAIL\n"
        "test_c (app.T) ... noise\nok\nERROR: test_d (app.T)\n"
    )
    assert parse_verbose_runner(log) == {
        "test_a (app.T)": "PASSED",
        "A docstring": "SKIPPED",
        "test_b (app.T)": "FAILED",
        "test_c (app.T)": "PASSED",
        "test_d": "ERROR",
    }


def test_parsers_are_found_by_name_or_by_the_command() -> None:
    def parser(name: str, command: str = "") -> object:
        return log_parser(Task("x", "a/b", "", "p", "p", log_parser=name, test_command=command))

    assert parser("parse_log_marshmallow") is parse_pytest
    assert parser("", "python3 -m unittest -v") is parse_unittest
    assert parser("", "pytest -rA") is parse_pytest
    with pytest.raises(ConfigurationError, match="no parser named 'pytst' for test logs; did you mean 'pytest'"):
        parser("pytst")
    with pytest.raises(ConfigurationError, match="no parser named 'parse_log_nothing'"):
        parser("parse_log_nothing")


words = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12)


@given(st.dictionaries(words, st.sampled_from(["PASSED", "FAILED", "ERROR", "XFAIL"]), max_size=8), words)
def test_generated_pytest_summaries_are_parsed(outcomes: dict[str, str], reason: str) -> None:
    lines = [f"{status} {name}" + (f" - {reason}" if status == "FAILED" else "") for name, status in outcomes.items()]
    assert parse_pytest("\n".join(lines)) == outcomes


identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)


@given(
    st.dictionaries(
        st.tuples(identifiers, identifiers, identifiers),
        st.sampled_from(["ok", "FAIL", "ERROR", "skipped 'x'"]),
        max_size=8,
    )
)
def test_generated_unittest_logs_of_both_forms_are_parsed(outcomes: dict[tuple[str, str, str], str]) -> None:
    status = {"ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped 'x'": "SKIPPED"}
    expected = {f"{module}.{case}.{method}": status[printed] for (module, case, method), printed in outcomes.items()}
    old = "\n".join(
        f"{method} ({module}.{case}) ... {printed}"
        for (module, case, method), printed in outcomes.items()
        if case != method
    )
    new = "\n".join(
        f"{method} ({module}.{case}.{method}) ... {printed}" for (module, case, method), printed in outcomes.items()
    )
    assert parse_unittest(new) == expected
    assert parse_unittest(old) == {
        name: outcome for name, outcome in expected.items() if name.split(".")[1] != name.split(".")[2]
    }


@given(st.text())
def test_any_text_is_parsed_without_error(log: str) -> None:
    for parser in (parse_pytest, parse_pytest_options, parse_pytest_clean, parse_unittest, parse_verbose_runner):
        found = parser(log)
        assert all(isinstance(name, str) and status in get_args(Status) for name, status in found.items())
        runner_report(log, parser)


def test_a_coloured_log_has_a_closing_report() -> None:
    log = (
        "\x1b[36m\x1b[1m=========================== short test summary info ============================\x1b[0m\n"
        "\x1b[32mPASSED\x1b[0m t.py::\x1b[1mtest_a[x-True]\x1b[0m\n"
        "\x1b[31mFAILED\x1b[0m t.py::\x1b[1mtest_b\x1b[0m - assert 0\n"
        "\x1b[31m=== \x1b[1m1 failed\x1b[0m, \x1b[32m1 passed\x1b[0m\x1b[31m in 12.22s\x1b[0m\x1b[31m ===\x1b[0m\n"
    )
    report = runner_report(log, parse_pytest_clean)
    assert report is not None
    assert (report.passed_at_most, report.success) == (1, False)
    assert report.statuses == {"t.py::test_a[x-True]": "PASSED", "t.py::test_b": "FAILED"}


# As `swebench.harness.log_parsers.python` writes them.
HARNESS_OPTION = re.compile(r"(.*?)\[(.*)\]")
HARNESS_SYMPY = re.compile(r"_* (.*)\.py:(.*) _*")
HARNESS_DJANGO = (
    r"^(.*?)\s\.\.\.\sTesting\ against\ Django\ installed\ in\ ((?s:.*?))\ silenced\)\.\nok$",
    r"^(.*?)\s\.\.\.\sInternal\ Server\ Error:\ \/(.*)\/\nok$",
    r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$",
)
PIECES = st.sampled_from(
    ["PASSED ", "x", "[", "]", "/", "*", " ", "\n", "_", ".py:", " ... ", "Testing against Django installed in ",
     " silenced).\nok", "Internal Server Error: /", "System check identified no issues (0 silenced)", "\nok", "ok"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(pieces=st.lists(PIECES, max_size=14))
def test_parsers_in_linear_time_find_what_the_harnesses_patterns_find(pieces: list[str]) -> None:
    log = "".join(pieces)
    options = {}
    for name, status in parse_pytest(log).items():
        if match := HARNESS_OPTION.search(name):
            main, option = match.groups()
            if option.startswith("/") and not option.startswith("//") and "*" not in option:
                option = "/" + option.split("/")[-1]
            name = f"{main}[{option}]"
        options[name] = status
    assert PARSERS["parse_log_pydicom"](log) == options
    assert PARSERS["parse_log_sympy"](log) == {f"{a}.py:{b}": "FAILED" for a, b in HARNESS_SYMPY.findall(log)}
    interrupted = {match[1] for pattern in HARNESS_DJANGO for match in re.finditer(pattern, log, re.MULTILINE)}
    names = {name for name, status in PARSERS["parse_log_django"](log).items() if status == "PASSED"}
    assert interrupted <= names


HOSTILE = {
    "Django's checks without an end": "a ... Testing against Django installed in b\n",
    "underscores": "_",
    "blanks and files": " x.py:",
    "brackets": "[",
    "parameters": "PASSED a[\n",
    "escaped quotes": '\\"',
    "quotes": "\"'",
    "numbers": "9",
    "counts": "1 a",
    "counts with commas": "1 a, ",
    "equals signs": "=",
    "line ends": "\n",
    "unittest's dots": "... a (b",
    "skipped": "skipped ",
    "colours": "\x1b[1;",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_log_and_no_patch_takes_more_time_than_its_length_explains(piece: str, tmp_path: Path) -> None:
    def seconds(text: str) -> float:
        began = time.process_time()
        for parser in set(PARSERS.values()):
            parser(text)
            parser(f"PASSED {text}")
            parser(f"a (b.a) ... {text}")
            runner_report(text, parser)
            runner_report(f"==== {text}\nRan {text}", parser)
        scrutiny_of(patch.replace("TEXT", text.replace("\n", "")), tmp_path)
        return time.process_time() - began

    (tmp_path / "a.py").write_text("x = 1\n")
    patch = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = TEXT\n"
    size = 200_000
    honest = min(seconds("PASSED tests/test_x.py::test_y\n" * (size // 31)) for _ in range(2))
    assert seconds(piece * (size // len(piece))) < 100 * honest  # quadratic patterns take 10,000 times as long


@pytest.mark.parametrize(
    "log",
    [
        f"=== {'9' * 5000} passed in 0.1s ===",
        f"Ran {'9' * 5000} tests in 0.1s\n\nOK",
        f"=== 1 passed, {'9' * 20_000} failed in 0.1s ===",
    ],
)
def test_a_count_that_no_runner_prints_is_no_report(log: str) -> None:
    assert runner_report(log, parse_pytest) is None
