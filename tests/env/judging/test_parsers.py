"""Parsers give the names and outcomes of the published lists; expected values are written by hand from real logs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.errors import ConfigurationError
from swegym_env.judging.parsers import (
    Status,
    log_parser,
    parse_pytest,
    parse_pytest_clean,
    parse_pytest_options,
    parse_unittest,
    parse_verbose_runner,
)
from swegym_env.judging.runner_reports import runner_report

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


def test_pytest_names_end_at_the_first_blank_and_skipped_tests_have_none() -> None:
    assert parse_pytest(PYTEST_LOG) == {"tests/test_x.py::test_forged": "PASSED", **PYTEST_TESTS}


def test_a_parameter_that_is_a_path_is_reduced_to_its_end() -> None:
    names = parse_pytest_options(PYTEST_LOG)
    assert names["tests/test_x.py::test_path[/file.txt]"] == "PASSED"
    assert "tests/test_x.py::test_path[/tmp/some/dir/file.txt]" not in names


def test_colours_and_old_forms_of_pytest_are_read() -> None:
    log = "\x1b[32mPASSED\x1b[0m tests/a.py::\x1b[1mtest_x\x1b[0m\ntests/a.py::test_y FAILED\n"
    assert parse_pytest_clean(log) == {"tests/a.py::test_x": "PASSED", "tests/a.py::test_y": "FAILED"}


def test_the_closing_report_of_pytest_is_what_pytest_itself_says() -> None:
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
def test_every_form_of_pytests_last_line_is_known(line: str) -> None:
    report = runner_report(f"...\n{line}\n", parse_pytest)
    assert report is not None
    assert (report.passed_at_most, report.success) == (3, True)


def test_a_log_without_an_end_has_no_report() -> None:
    assert runner_report(PYTEST_LOG[: PYTEST_LOG.index("=== 1 failed")], parse_pytest) is None
    assert runner_report(UNITTEST_LOG_3_8.split("Ran 11", maxsplit=1)[0], parse_unittest) is None


def test_unittest_is_read_the_same_from_this_python_and_from_an_old_one(tmp_path: Path) -> None:
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


def test_a_test_that_prints_another_ones_line_cannot_undo_its_failure() -> None:
    log = (
        "test_a (m.T) ... test_b (m.T) ... ok\nok\ntest_b (m.T) ... FAIL\n\n"
        "======\nFAIL: test_b (m.T)\n------\n\nRan 2 tests in 0.001s\n\nFAILED (failures=1)\n"
    )
    assert parse_unittest(log)["m.T.test_b"] == "FAILED"


def test_djangos_names_are_the_text_before_the_dots() -> None:
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
    assert log_parser("parse_log_marshmallow") is parse_pytest
    assert log_parser("", "python3 -m unittest -v") is parse_unittest
    assert log_parser("", "pytest -rA") is parse_pytest
    with pytest.raises(ConfigurationError, match="no parser named 'parse_log_nothing'"):
        log_parser("parse_log_nothing")


words = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12)


@given(st.dictionaries(words, st.sampled_from(["PASSED", "FAILED", "ERROR", "XFAIL"]), max_size=8), words)
def test_pytest_summaries_come_back(outcomes: dict[str, str], reason: str) -> None:
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
def test_unittest_logs_of_both_forms_come_back(outcomes: dict[tuple[str, str, str], str]) -> None:
    word = {"ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped 'x'": "SKIPPED"}
    expected = {f"{module}.{case}.{method}": word[told] for (module, case, method), told in outcomes.items()}
    old = "\n".join(
        f"{method} ({module}.{case}) ... {told}" for (module, case, method), told in outcomes.items() if case != method
    )
    new = "\n".join(
        f"{method} ({module}.{case}.{method}) ... {told}" for (module, case, method), told in outcomes.items()
    )
    assert parse_unittest(new) == expected
    assert parse_unittest(old) == {
        name: status for name, status in expected.items() if name.split(".")[1] != name.split(".")[2]
    }


@given(st.text())
def test_any_text_is_parsed_without_error(log: str) -> None:
    for parser in (parse_pytest, parse_pytest_options, parse_pytest_clean, parse_unittest, parse_verbose_runner):
        found = parser(log)
        assert all(isinstance(name, str) and status in get_args(Status) for name, status in found.items())
        runner_report(log, parser)


def test_a_coloured_log_has_an_end_too() -> None:
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
