"""Examples smaller than a repository: the shipped ones are sound, and every form of test module can be run."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swegym_env.answers.file_repair import FileRepair
from swegym_env.answers.kodcode import FunctionTask
from swegym_env.answers.python_tests import runnable_tests
from swegym_env.answers.vulnerability import VulnerabilityExample
from swegym_env.errors import UnknownTaskError
from swegym_env.grading.grading import grade, grade_many
from swegym_env.languages.python.logs import parse_pytest
from swegym_env.tasks.datasets import load_examples, load_tasks


@pytest.mark.parametrize(
    "every", [pytest.param(4, marks=pytest.mark.sample), pytest.param(1, marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("name", ["kodcode-mini", "file-repair-mini"])
def test_every_shipped_solution_passes_and_every_broken_file_fails(name: str, every: int) -> None:
    shipped = load_tasks(name)
    assert len(shipped) >= 20
    tasks = list(shipped)[::every]
    gold = list(grade_many([(task, task.patch) for task in tasks], jobs=2))
    assert [verdict.instance_id for verdict in gold if not verdict.resolved] == []
    empty = list(grade_many([(task, "") for task in tasks], jobs=2))
    assert [verdict.instance_id for verdict in empty if verdict.resolved or not verdict.valid] == []
    assert all(0 <= passed < total for passed, total in (verdict.fail_to_pass for verdict in empty))


def test_shipped_bugs_change_the_file_and_are_described() -> None:
    for repair in load_examples(FileRepair, "file-repair-mini"):
        assert repair.source != repair.solution
        assert repair.problem_statement.count("\n") >= 2


def test_shipped_pairs_have_one_vulnerable_and_one_safe_example() -> None:
    examples = load_examples(VulnerabilityExample, "vulnerabilities-mini")
    pairs: dict[str, list[VulnerabilityExample]] = {}
    for example in examples:
        pairs.setdefault(example.pair, []).append(example)
    assert len(pairs) >= 20
    for pair in pairs.values():
        assert sorted(example.vulnerable for example in pair) == [False, True]
        assert pair[0].code != pair[1].code
        assert sorted(bool(example.cwe) for example in pair) == [False, True]
    first = [pair[0].vulnerable for pair in pairs.values()]
    assert len(first) // 4 < sum(first) < len(first) * 3 // 4  # the place in the pair gives nothing away
    parts = [
        load_examples(VulnerabilityExample, "vulnerabilities-mini", split=f"hash:{name}") for name in ("train", "test")
    ]
    assert not {example.pair for example in parts[0]} & {example.pair for example in parts[1]}


def test_shipped_datasets_have_a_train_and_a_test_split() -> None:
    train, test = (load_examples(FunctionTask, "kodcode-mini", split=split) for split in ("train", "test"))
    assert len(train) + len(test) == len(load_examples(FunctionTask, "kodcode-mini"))
    assert not set(train.ids) & set(test.ids)
    with pytest.raises(UnknownTaskError, match="no split 'dev'; there are train, test"):
        load_examples(FunctionTask, "kodcode-mini", split="dev")


def test_a_dataset_of_another_task_type_is_rejected() -> None:
    with pytest.raises(UnknownTaskError, match=r"no usable row; .* makes a FileRepair, got a FunctionTask"):
        load_examples(FileRepair, "kodcode-mini")


def test_an_answer_is_graded_as_the_whole_file() -> None:
    task = load_examples(FunctionTask, "kodcode-mini")["caesar"]
    right = task.solution.replace("shifted", "out")
    assert grade(task.as_task(), task.patch(right.rstrip("\n"))).resolved
    assert not grade(task.as_task(), task.patch("def caesar(text, shift):\n    return text\n")).resolved
    assert not grade(task.as_task(), task.patch("not python (")).resolved
    assert task.patch(task.source) == ""


def test_a_function_may_be_written_from_scratch() -> None:
    debugging = load_examples(FunctionTask, "kodcode-mini")["median"]
    task = dataclasses.replace(debugging, broken="", declaration="def median(numbers):")
    assert task.source == "def median(numbers):\n    raise NotImplementedError\n"
    assert "belongs in `solution.py`" in task.problem_statement
    assert not grade(task.as_task(), "").resolved
    assert grade(task.as_task(), task.patch(task.solution)).resolved
    assert dataclasses.replace(task, declaration="", entry_point="").source.startswith("#")


FORMS = """
import pytest
from solution import double

@pytest.fixture
def four():
    return 4

def test_fixture(four):
    assert double(2) == four

@pytest.mark.parametrize("n", [1, 2, 3], ids=["one", "with blank", "slash/[3]"])
def test_parameters(n):
    assert double(n) == 2 * n

class TestPlain:
    def test_method(self):
        assert double(0) == 0
"""


def test_pytest_modules_run_with_pytest_and_test_names_omit_parameters(tmp_path: Path) -> None:
    module = runnable_tests(FORMS, where="row 1")
    assert module.setup
    expected = {
        "test_solution.py::test_fixture",
        "test_solution.py::test_parameters",
        "test_solution.py::TestPlain::test_method",
    }
    assert set(module.names) == expected
    for path, text in module.files.items():
        (tmp_path / path).write_text(text)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    for body, wrong in (("return n + n", set()), ("return 2 * n if n != 2 else 5", {"fixture", "parameters"})):
        (tmp_path / "solution.py").write_text(f"def double(n):\n    {body}\n")
        command = [sys.executable, "-m", *module.command.split(), "-p", "no:cacheprovider"]
        log = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout
        found = parse_pytest(log)
        assert found.keys() == expected
        assert {name.rpartition("test_")[2] for name, status in found.items() if status != "PASSED"} == wrong


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("def test_a():\n    pass\n", "python3 -m unittest -v test_solution"),
        ("def test_a(x=1):\n    pass\n", "python3 -m unittest -v test_solution"),
        (
            "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): ...\n",
            "python3 -m unittest -v test_solution",
        ),
        ("def test_a(x):\n    pass\n", "pytest -rA test_solution.py"),
        ("class TestA:\n    def test_a(self): ...\n", "pytest -rA test_solution.py"),
        ("from pytest import approx\ndef test_a():\n    pass\n", "pytest -rA test_solution.py"),
    ],
)
def test_modules_for_plain_python_run_without_pytest(text: str, command: str) -> None:
    assert runnable_tests(text, where="row 1").command == command
