"""Agents learn how tests are run, and not which files hold the hidden ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from swegym_env.env import SWEBenchEnv
from swegym_env.tasks.adapters import task_from_row
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.hidden_tests import command_without_hidden_tests
from swegym_env.tasks.task import Task
from tests.env.tasks.test_adapters import FLOW, LIVE, MULTI, POLY, REBENCH, SMITH

JAVA = "diff --git a/src/test/java/a/BTest.java b/src/test/java/a/BTest.java\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"
PATCH = JAVA.replace("src/test/java/a/BTest.java", "tests/test_x.py")
NAMES = ("tests/test_y.py::TestY::test_a[1 b]", "test_b (tests.test_z.TestZ)")


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (SMITH, "pytest -rA --color=no"),
        (REBENCH, "pytest --no-header -rA -p no:cacheprovider"),
        (FLOW, "python -m pytest -rA --color=no"),
        (LIVE, "pip install -e .; make\npytest -rA; pytest -rA extra"),
        (MULTI, "bash /home/run.sh"),
        ({**POLY, "test_patch": JAVA}, "mvn test"),
    ],
    ids=["SWE-smith", "SWE-rebench", "SWE-Flow", "SWE-bench Live", "Multi-SWE-bench", "SWE-PolyBench"],
)
def test_commands_of_rows_are_shown_without_the_files_of_hidden_tests(
    row: dict[str, Any], shown: str, tmp_path: Path
) -> None:
    assert command_without_hidden_tests(task_from_row(row), tmp_path) == shown


def test_swe_rebench_commands_of_several_steps_stay_what_they_are(tmp_path: Path) -> None:
    config = {**REBENCH["install_config"], "test_cmd": ["export A='x y'", "pytest -rA"]}
    task = task_from_row({**REBENCH, "install_config": config})
    assert task.test_command == "export A='x y' && pytest -rA tests/t.py"
    assert command_without_hidden_tests(task, tmp_path) == "export A='x y' && pytest -rA"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("pytest -rA tests", "pytest -rA tests"),
        ("pytest -rA tests/test_a.py", "pytest -rA tests/test_a.py"),
        ("pytest -rA ./tests/test_x.py::TestX tests/test_a.py", "pytest -rA tests/test_a.py"),
        ("pytest 'tests/test_y.py::TestY::test_a[1 b]' -q", "pytest -q"),
        ("pytest -k test_x -q", "pytest -q"),
        ("pytest -q --deselect tests/test_y.py::test_c", "pytest -q"),
        ("pytest -q --deselect=tests/test_y.py::test_c", "pytest -q"),
        ("pytest -rA \\\n  tests/test_x.py \\\n  tests/test_y.py", "pytest -rA"),
        ("cd tests && pytest test_x.py && echo done", "cd tests && pytest && echo done"),
        ("python -m unittest -v tests.test_x tests.test_z.TestZ", "python -m unittest -v"),
        ("./tests/runtests.py --parallel 1 test_z", "./tests/runtests.py --parallel 1"),
        ("npx jest tests/test_x.py", "npx jest"),
        ("pytest -rA new_folder", "pytest -rA"),
        ("python tests/test_x.py", ""),
        ("node tests/test_x.py && pytest tests/test_x.py", ""),
        ("bash -c 'pytest tests/test_x.py'", ""),
        ("pytest $(echo tests/test_z.py)", ""),
        ("bash -c 'python -m unittest tests.test_z'", ""),
        ("FILES=tests/test_y.py make check", ""),
        ("pytest tests/test_x.py 'unclosed", "pytest 'unclosed"),
        ("make test", "make test"),
        ("", ""),
    ],
)
def test_words_that_name_hidden_tests_are_left_out(command: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    patch = PATCH + PATCH.replace("tests/test_x.py", "new_folder/data.json")
    task = Task("x", "a/b", "", "p", "p", patch, fail_to_pass=NAMES, pass_to_pass=("test",), test_command=command)
    assert command_without_hidden_tests(task, tmp_path) == shown


@pytest.mark.parametrize("dataset", ["mini", "mini-c", "mini-edit"])
def test_shipped_tasks_show_their_command_as_it_is(dataset: str, tmp_path: Path) -> None:
    for task in load_tasks(dataset):
        assert command_without_hidden_tests(task, tmp_path) == task.test_command


def test_variable_in_the_sandbox_and_run_tests_name_no_hidden_file() -> None:
    task = dataclasses.replace(task_from_row(FLOW), files={"x.py": "x = 1\n"}, official_image="")
    assert "tests/test_x.py" in task.test_command
    env = SWEBenchEnv(tasks=[task], tools="default", reward="none", pool=0)
    try:
        env.reset(seed=0)
        shown, *_ = env.step('<execute>echo "[$SWEGYM_TEST_COMMAND]"; env | grep -c test_x</execute>')
        assert "[python -m pytest -rA --color=no]\n0\n" in shown
        shown, *_ = env.step("<execute>run_tests x.py</execute>")
        assert "$ python -m pytest --color=no -rfE x.py\n" in shown
    finally:
        env.close()
