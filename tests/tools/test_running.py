"""The tools `run_tests`, `pdb` and `submit`, in a real sandbox."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from swegym_env.agent.actions import Call
from swegym_env.agent.tools import tool_set
from swegym_env.env import SWEBenchEnv
from swegym_env.sandbox.api import Sandbox
from swegym_env.tasks.datasets import load_tasks
from tests.tools.conftest import Run

FAILING = """import unittest
from calends import days_in_month

class TestNew(unittest.TestCase):
    def setUp(self):
        self.years = [2023, 2025]

    def test_lengths(self):
        \"\"\"Two Februaries.\"\"\"
        total = 0
        for year in self.years:
            total += days_in_month(year, 2)
        self.assertEqual(total, 57)

    def test_fine(self):
        pass
"""
CHATTY = """import time

def test_good():
    print("what a passing test prints")

def test_bad():
    print("what a failing test prints")
    assert [1, 2] == [1, 3]
"""
SCRIPT = """import sys
def spin(n):
    count = 0
    while True:
        count += n
mode = sys.argv[1]
if mode == "ask":
    name = input("who? ")
    print("hello", name)
    sys.exit(3)
if mode == "raise":
    table = {"a": 1}
    table["b"]
spin(2)
"""


@pytest.fixture
def files(run: Run, box: Sandbox) -> Run:
    box.write("/testbed/tests/test_new.py", FAILING.encode())
    box.write("/testbed/script.py", SCRIPT.encode())
    return run


def test_run_tests_runs_all_tests_and_counts_passing_ones(run: Run) -> None:
    done = run("run_tests")
    assert done.exit_code == 0
    assert "$ python3 -m unittest -v\n" in done.output and "[38 lines of passing tests left out]" in done.output
    assert done.output.endswith("[the tests passed]\n")
    assert "... ok" in run("run_tests --verbose").output


@pytest.mark.parametrize(
    "target",
    [
        "tests/test_new.py",
        "tests/test_new.py::TestNew",
        "tests/test_new.py::TestNew::test_lengths",
        "tests.test_new",
        "/testbed/tests/test_new.py::TestNew",
        "/testbed/tests",
    ],
)
def test_run_tests_accepts_every_form_of_target(files: Run, target: str) -> None:
    done = files(f"run_tests {target}")
    assert done.exit_code != 0
    assert "AssertionError: 56 != 57" in done.output and done.output.endswith("[the tests failed]\n")


def test_run_tests_stops_at_the_timeout_and_keeps_the_output(files: Run, box: Sandbox) -> None:
    slow = "import time, unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    slow += "        print('begun', flush=True)\n"
    box.write("/testbed/tests/test_slow.py", f"{slow}        time.sleep(99)\n".encode())
    done = files("run_tests tests/test_slow.py --timeout=1")
    assert done.exit_code == 124 and "begun" in done.output and "stopped after 1 s" in done.output
    assert files("pgrep -f test_slow").output == ""


def test_run_tests_runs_the_tests_of_a_directory(files: Run) -> None:
    done = files("run_tests tests")
    assert "AssertionError: 56 != 57" in done.output and done.output.endswith("[the tests failed]\n")
    assert done.output.endswith("\n") and "Ran 40 tests" in done.output
    done = files("mkdir empty; run_tests empty")
    assert (done.exit_code, done.output) == (2, "run_tests: there is no test*.py below empty\n")


def test_run_tests_ends_with_the_tests_though_they_leave_a_process(run: Run, box: Sandbox) -> None:
    leaving = "import subprocess, unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    for words in ('["sleep", "77"]', '["setsid", "sleep", "77"]'):
        test = f"{leaving}        subprocess.Popen({words})\n"
        box.write("/testbed/tests/test_leaving.py", test.encode())
        done = run("run_tests tests/test_leaving.py --timeout=10")
        assert done.exit_code == 0 and done.output.endswith("[the tests passed]\n")
    assert run("pkill -c -x sleep").output == "1\n"  # the one of a session of its own; the other was ended


def test_tests_end_with_run_tests(run: Run, box: Sandbox) -> None:
    slow = "import time, unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        time.sleep(99)\n"
    box.write("/testbed/tests/test_slow.py", slow.encode())
    assert run("timeout 2 run_tests tests/test_slow.py; pgrep -f unittest").exit_code == 1
    done = run("run_tests --verbose | head -1; pgrep -f unittest")
    assert done.exit_code == 1 and "Traceback" not in done.output


def in_folder(folder: Path, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The tool in a folder of this machine."""
    tool = Path(__file__).parents[2] / "tools" / "run_tests" / "bin" / "run_tests"
    environment = {**os.environ, "SWEGYM_TEST_COMMAND": command}
    words = [sys.executable, tool, *arguments]
    return subprocess.run(words, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def by_pytest(folder: Path, command: str, *arguments: str, code: int = 1) -> str:
    """The output of the tool in a folder, by the pytest of these tests: the sandbox's Python has none."""
    (folder / "test_chatty.py").write_text(CHATTY)
    done = in_folder(folder, f"{shlex.quote(sys.executable)} -m {command}", *arguments)
    assert done.returncode == code
    return done.stdout


@pytest.mark.parametrize(
    "options", ["-rA", "-rA -v --durations 25", "-vv -rA --tb=no --durations=3", "-p no:cacheprovider -rA --tb no"]
)
def test_run_tests_shows_what_failing_tests_print_and_not_what_passing_ones_do(tmp_path: Path, options: str) -> None:
    """The commands of real repositories: what passing tests print can be too long for the failures to be seen."""
    shown = by_pytest(tmp_path, f"pytest {options}")
    assert "what a failing test prints" in shown and "assert [1, 2] == [1, 3]" in shown
    assert "FAILED test_chatty.py::test_bad" in shown and "1 failed, 1 passed" in shown
    assert "what a passing test prints" not in shown and "PASSES" not in shown and "slowest" not in shown


def test_run_tests_verbose_leaves_the_command_as_it_is(tmp_path: Path) -> None:
    shown = by_pytest(tmp_path, "pytest -rA --durations=3", "--verbose")
    assert "what a passing test prints" in shown and "slowest" in shown and "-rA --durations=3\n" in shown


def test_run_tests_counts_the_passing_tests_of_sympys_runner(run: Run, box: Sandbox) -> None:
    lines = "sympy/core/tests/test_a.py[4] \ntest_one ok\ntest_two F\ntest_three ok  [FAIL]\ntest_four ok   [OK]\n"
    box.write("/testbed/output.txt", lines.encode())
    done = run("SWEGYM_TEST_COMMAND='cat output.txt' run_tests")
    assert "a.py[4] \ntest_two F\ntest_three ok  [FAIL]\n[2 lines of passing tests left out]\n" in done.output


SYMPYS_RUNNER = """import sys
words = sys.argv[1:]
name = words[words.index("-k") + 1] if "-k" in words else ""
tests = [each for each in ("test_one", "test_two") if name in each] if "::" not in words[0] else []
print(f"======= tests finished: {len(tests)} passed, in 0.01 seconds =======")
"""


@pytest.mark.parametrize(
    ("target", "passed"),
    [
        ("core/tests/test_a.py::test_one", 1),
        ("core.tests.test_a.test_two", 1),
        ("core.tests.test_a", 2),
        ("core/tests/test_a.py::test_three", 0),
    ],
)
def test_run_tests_gives_sympys_runner_names_in_its_form(tmp_path: Path, target: str, passed: int) -> None:
    """Its exit code is 0 where no test ran."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "test").write_text(SYMPYS_RUNNER)
    (tmp_path / "core" / "tests").mkdir(parents=True)
    (tmp_path / "core" / "tests" / "test_a.py").touch()
    done = in_folder(tmp_path, f"{shlex.quote(sys.executable)} bin/test", target)
    assert f"finished: {passed} passed" in done.stdout
    assert done.stdout.endswith("[the tests passed]\n" if passed else "[no test ran]\n")
    assert (done.returncode == 0) == bool(passed)


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("pytest -q", "test_chatty.py::test_absent"),
        ("pytest -rA", "test_chatty.py::test_absent"),
        ("pytest -q -k absent", "test_chatty.py"),
        ("unittest -v", "test_empty.py"),
    ],
)
def test_run_tests_says_where_no_test_ran(tmp_path: Path, command: str, target: str) -> None:
    (tmp_path / "test_chatty.py").write_text(CHATTY)
    (tmp_path / "test_empty.py").touch()
    done = in_folder(tmp_path, f"{shlex.quote(sys.executable)} -m {command}", target)
    assert done.returncode != 0 and done.stdout.endswith("[no test ran]\n")


def test_run_tests_takes_dotted_names_for_pytest(tmp_path: Path) -> None:
    assert "1 passed" in by_pytest(tmp_path, "pytest -q", "test_chatty.test_good", code=0)
    assert "1 failed, 1 passed" in by_pytest(tmp_path, "pytest -q", "test_chatty")


def test_run_tests_leaves_out_passing_tests_with_docstrings_whole(run: Run, box: Sandbox) -> None:
    text = FAILING.replace("def test_fine(self):", 'def test_fine(self):\n        """Fine."""')
    box.write("/testbed/tests/test_new.py", text.encode())
    done = run("run_tests tests/test_new.py")
    before, _, after = done.output.partition("======")
    assert "test_fine" not in done.output and "Fine." not in done.output
    name, result = before.strip().split("\n")[-2:]
    assert name.startswith("test_lengths (tests.test_new.TestNew") and result == "Two Februaries. ... FAIL"
    assert "[1 line of passing tests left out]" in after


def test_run_tests_reports_missing_targets(run: Run) -> None:
    done = run("run_tests tests/test_nowhere.py")
    assert (done.exit_code, done.output) == (2, "run_tests: there is no tests/test_nowhere.py\n")
    done = run("run_tests tests/test_nowhere.py tests/test_months.py")  # the others run nevertheless
    assert done.exit_code == 2 and "there is no tests/test_nowhere.py" in done.output
    assert "[the tests passed]" in done.output
    assert "expected more than 0" in run("run_tests --timeout=0").output
    assert run("SWEGYM_TEST_COMMAND=no-such-program run_tests").exit_code == 127


def test_pdb_shows_locals_of_a_failing_assertion() -> None:
    """On a task of `mini` as an agent meets it, the hidden test that shows the bug put into the repository."""
    task = load_tasks("mini")["mini__calends-001"]
    name = next(name for name in task.fail_to_pass if "leap" in name or "month" in name)
    env = SWEBenchEnv(tasks=[task], tools="debug", action_format="hermes", sandbox="apptainer", max_turns=6)
    try:
        env.reset(seed=0)
        write = env._format.write_call
        env.step(write("bash", {"command": f"git apply - <<'EOF'\n{task.test_patch}EOF"}))
        first, *_ = env.step(write("pdb", {"command": f"start {name}"}))
        assert f"{name.rpartition('.')[2]}()" in first
        failed, *_ = env.step(write("pdb", {"command": "c"}))
        assert "AssertionError" in failed and "-> self.assert" in failed
        where, _, _, _, info = env.step(
            write("pdb", {"command": "p [name for name in dir() if name != 'self'], self.id()"})
        )
        assert name in where and info["exit_code"] == 0
    finally:
        env.close()


def test_pdb_session_stays_open_between_commands(files: Run) -> None:
    assert "-> total = 0" in files("pdb start /testbed/tests/test_new.py::TestNew::test_lengths").output
    assert "-> total = 0" in files("pdb start tests/test_new.py::TestNew::test_lengths").output
    assert "Breakpoint" in files("pdb b calends/months.py:16").output
    assert "-> if month == 2" in files("pdb c").output
    assert files("pdb p year, month").output == "(2023, 2)\n"
    assert "test_lengths()" in files("pdb w").output
    assert "-> return _DAYS" in files("pdb n").output
    files("pdb 'clear calends/months.py:16'")
    failed = files("pdb c").output
    assert failed.startswith("AssertionError: 56 != 57\n") and "-> self.assertEqual(total, 57)" in failed
    assert files("pdb p total, year").output == "(56, 2025)\n"
    assert files("pdb stop").output == "The session is closed.\n"
    assert files("pdb p total").exit_code == 1


def test_pdb_follows_a_program_that_reads_input_computes_or_ends(files: Run) -> None:
    assert "-> import sys" in files("pdb start script.py ask").output
    assert files("pdb c").output.endswith("who? \n[the program waits for input: the next text goes to it]\n")
    done = files("pdb Ada")
    assert done.exit_code == 3 and "hello Ada" in done.output and "exit code 3; the session is over" in done.output
    files("pdb start script.py raise")
    assert "KeyError: 'b'" in files("pdb c").output
    assert files("pdb p table").output == "{'a': 1}\n"
    assert "the session that was open is closed" in files("pdb start script.py spin").output
    assert "no prompt within 0.5 s: the program was interrupted" in files("pdb --timeout=0.5 c").output
    assert files("pdb 'p n, count > 0'").output == "(2, True)\n"
    assert files("pdb q").exit_code == 0


def test_pdb_session_killed_by_a_timeout_leaves_a_message(files: Run) -> None:
    files("pdb start script.py spin")
    assert files("sleep 9", 0.3).timed_out
    done = files("pdb p 1")
    assert done.exit_code == 1 and "no session is open" in done.output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pdb p 1", "no session is open"),
        ("pdb start", "start what?"),
        ("pdb start nowhere.py", "there is no file nowhere.py"),
        ("pdb start tests", "tests is a directory. Give a script"),
        ("pdb start .", ". is a directory. Give a script"),
        ("echo 'def f(:' > bad.py; pdb start bad.py", "bad.py cannot be compiled:"),
        ("pdb --timeout=-1 c", "--timeout: expected more than 0 seconds"),
        ("pdb start tests.test_nowhere.X", "cannot be loaded"),
        ("pdb start tests/test_months.py::TestMonths::test_nowhere", "cannot be loaded"),
        ("pdb", "pdb start TARGET"),
        ("pdb --timeout=x c", "pdb start TARGET"),
        ("pdb $'p 1\\np 2'", "one command at a time"),
    ],
)
def test_pdb_errors_are_reported(run: Run, command: str, message: str) -> None:
    done = run(command)
    assert message in done.output and done.exit_code != 0
    assert "driver.py" not in done.output and "Traceback" not in run(f"({command}) | true").output


def test_hostile_arguments_are_passed_literally(files: Run) -> None:
    files("pdb start script.py raise")
    text = 'p \'$(touch /tmp/pwned)\', "`id`", "it\'s"'
    action = tool_set("debug").resolve(Call("pdb", {"command": text}))
    assert files(action.text).output == "('$(touch /tmp/pwned)', '`id`', \"it's\")\n"
    assert files("pdb stop; ls /tmp/pwned").exit_code != 0
    assert shlex.split(action.text)[1] == text


def test_submit_within_a_command_ends_the_episode() -> None:
    env = SWEBenchEnv(
        tasks=[load_tasks("mini")["mini__calends-001"]], tools="default", sandbox="apptainer", reward="none"
    )
    try:
        env.reset(seed=0)
        observation, _, terminated, _, _ = env.step("<execute>submit now</execute>")
        assert "takes no argument" in observation and not terminated
        observation, _, terminated, _, info = env.step("<execute>echo done > notes.txt && submit</execute>")
        assert terminated and info["end_reason"] == "submitted" and "notes.txt" in info["patch"]
        assert observation.endswith("Submitted.")
    finally:
        env.close()
