"""The shipped set `mini`: its content, its patches, and that each bug fails exactly the tests it lists."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from swegym_env.errors import TaskFormatError, UnknownTaskError
from swegym_env.languages.python.logs import parse_unittest
from swegym_env.repo.patches import apply_edits
from swegym_env.tasks.data import mini

TASKS = mini.load()


def write_files(files: Mapping[str, str], folder: Path) -> None:
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="")


def read_files(paths: Iterable[str], folder: Path) -> dict[str, str]:
    return {path: (folder / path).read_bytes().decode() for path in paths}


def git_apply(patch: str, folder: Path) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", "-"], cwd=folder, input=patch.encode(), env=environment, check=True, timeout=60)


def run_suite(command: str, folder: Path) -> dict[str, str]:
    """What the official command prints, parsed as the graders parse it."""
    interpreter, *arguments = command.split()
    assert interpreter == "python3"
    done = subprocess.run(
        [sys.executable, "-B", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return parse_unittest(done.stderr)


def test_there_are_many_packages_and_many_bugs_of_many_kinds() -> None:
    per_package = Counter(task.repo for task in TASKS)
    assert len(per_package) >= 12
    assert len(TASKS) >= 200
    assert max(per_package.values()) <= 25
    assert len({task.instance_id for task in TASKS}) == len(TASKS)
    assert len({bug.kind for name in mini.packages() for bug in mini.read_bugs(name)}) >= 20


def test_splits_partition_the_packages() -> None:
    train, test = ({task.repo for task in mini.load(split)} for split in mini.SPLITS)
    assert not train & test
    assert train | test == {task.repo for task in TASKS}
    assert len(test) >= 3


def test_unknown_split_is_reported() -> None:
    with pytest.raises(UnknownTaskError, match="'validation'; there are train, test"):
        mini.load("validation")


@pytest.mark.parametrize(
    "every", [pytest.param(7, marks=pytest.mark.sample), pytest.param(1, marks=pytest.mark.campaign)]
)
def test_gold_and_test_patch_applied_by_git_give_the_correct_repository(tmp_path: Path, every: int) -> None:
    for number, task in enumerate(TASKS[::every]):
        folder = tmp_path / str(number)
        write_files(task.files, folder)
        git_apply(task.patch + task.test_patch, folder)
        sound = mini.read_repository(task.repo.partition("/")[2])
        assert read_files(sound, folder) == sound, task.instance_id
        assert sound.keys() == task.files.keys()


@pytest.mark.parametrize("package", mini.packages())
def test_one_bug_of_each_package_fails_the_listed_tests(package: str, tmp_path: Path) -> None:
    task = random.Random(f"sample of {package}").choice([task for task in TASKS if task.repo == f"mini/{package}"])
    write_files(task.files, tmp_path)
    as_given = run_suite(task.test_command, tmp_path)
    assert as_given == dict.fromkeys(task.pass_to_pass, "PASSED")

    git_apply(task.test_patch, tmp_path)
    with_tests = run_suite(task.test_command, tmp_path)
    assert {name for name, status in with_tests.items() if status == "PASSED"} == set(task.pass_to_pass)
    assert {with_tests.get(name, "absent") for name in task.fail_to_pass} <= {"FAILED", "ERROR"}

    git_apply(task.patch, tmp_path)
    assert run_suite(task.test_command, tmp_path) == dict.fromkeys(task.pass_to_pass + task.fail_to_pass, "PASSED")


def test_issues_do_not_reveal_the_repair() -> None:
    for package in mini.packages():
        for bug in mini.read_bugs(package):
            title, blank, *body = bug.issue.splitlines()
            assert 10 <= len(title) <= 100, bug.instance_id
            assert not blank, bug.instance_id
            assert len(" ".join(body)) >= 80, bug.instance_id
            assert bug.path not in bug.issue, bug.instance_id
            assert "{fixed}" not in bug.issue, bug.instance_id


def test_no_two_issues_share_a_title() -> None:
    titles = Counter(task.problem_statement.partition("\n")[0] for task in TASKS)
    assert titles.most_common(1)[0][1] == 1


def methods_of(text: str) -> set[tuple[str, str]]:
    return {
        (node.name, item.name)
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.FunctionDef)
    }


@pytest.mark.parametrize("package", mini.packages())
def test_dropping_a_test_keeps_all_other_methods(package: str) -> None:
    for path, text in mini.read_repository(package).items():
        if not path.startswith("tests/test_"):
            continue
        module = path[:-3].replace("/", ".")
        methods = methods_of(text)
        lines = text.splitlines(keepends=True)
        tests = sorted(place for place in methods if place[1].startswith("test"))
        for class_name, name in tests:
            left = "".join(apply_edits(lines, mini.drop_tests(text, module, {f"{module}.{class_name}.{name}"})))
            gone = methods - methods_of(left)
            alone = [place for place in tests if place[0] == class_name] == [(class_name, name)]
            assert gone == ({place for place in methods if place[0] == class_name} if alone else {(class_name, name)})


def test_class_without_remaining_tests_is_removed_with_its_decorators() -> None:
    text = (
        "import unittest\n\n\nclass TestA(unittest.TestCase):\n    def setUp(self):\n        pass\n\n"
        "    @unittest.skipIf(False, 'no')\n    def test_one(self):\n"
        "        self.fail(\n            'x'\n        )\n\n\n"
        "class TestB(unittest.TestCase):\n    def test_two(self):\n        pass\n"
    )
    lines = text.splitlines(keepends=True)
    edits = mini.drop_tests(text, "tests.test_x", {"tests.test_x.TestA.test_one", "tests.test_y.TestB.test_two"})
    assert "".join(apply_edits(lines, edits)) == (
        "import unittest\n\n\nclass TestB(unittest.TestCase):\n    def test_two(self):\n        pass\n"
    )


ENTRY = "## {number} typo {path}\n\n<<<<<<< fixed\n{old}=======\nx = 2\n>>>>>>> bugged\n\nTitle\n\nBody.\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (ENTRY.format(number="001", path="a.py", old="x = 1\n").replace("=======\n", ""), "entry 001: expected"),
        (ENTRY.format(number="001", path="a.py", old="x = 1\n").partition("Title")[0], "entry 001: expected"),
        (ENTRY.format(number="001", path="a.py", old="x = 1\n") * 2, "entry 001: the number is used twice"),
        (ENTRY.format(number="002", path="a.py", old="x = 1\n"), "mini__broken-002: not validated"),
        (ENTRY.format(number="001", path="a.py", old="y = 1\n"), "mini__broken-001: the lines .* occur nowhere"),
        (ENTRY.format(number="001", path="b.py", old="x = 1\n"), "mini__broken-001: the lines .* occur nowhere"),
        (ENTRY.format(number="001", path="a.py", old="z = 3\n"), "mini__broken-001: the lines .* occur more than once"),
    ],
)
def test_damaged_data_is_reported_by_entry(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini, "DATA", tmp_path)
    package = tmp_path / "broken"
    write_files({"a.py": "x = 1\nz = 3\nz = 3\n", "tests/test_a.py": ""}, package / "repo")
    (package / "bugs.md").write_text("# Bugs\n\n" + text)
    (package / "results.json").write_text('{"tests": [], "fail_to_pass": {"001": []}}')
    with pytest.raises(TaskFormatError, match=complaint):
        mini.load()
