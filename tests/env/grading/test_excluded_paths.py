"""Excluded paths: of a patch the code is graded, never tests, the test runner, or what Python loads before them."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from swegym_env.grading.grading import exclude_paths
from swegym_env.repo.patches import touched_paths
from swegym_env.tasks.task import Task
from tests.env.calc import GOLD


def new_file(path: str, text: str = "x\n") -> str:
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    header = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1,{len(lines)} @@\n{body}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for path in ("calc/add.py", "tests/test_add.py", "setup.cfg", "conftest.py", "src/queue/core.py", "types/x.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x\n")
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_add.py",
        "tests/data/expected.json",
        "calc/test_new.py",
        "calc/add_test.py",
        "calc/tests.py",
        "conftest.py",
        "calc/conftest.py",
        "pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
        "evil.pth",
        "calc/add.pyc",
        "calc/__pycache__/add.cpython-311.pyc",
        "calc/fast.so",
        "unittest.py",
        "unittest/__init__.py",
        "src/pytest.py",
        "_pytest/runner.py",
        "json/__init__.py",
        ".git/hooks/post-checkout",
        "calc/.GIT/config",
        "../outside.py",
    ],
)
def test_paths_that_could_change_the_verdict_are_excluded(task: Task, base: Path, path: str) -> None:
    patch = GOLD + new_file(path)
    assert exclude_paths(task, patch, base) == (GOLD, (path,))
    assert exclude_paths(task, patch, base, "official") == (patch, ())


@pytest.mark.parametrize(
    "path",
    [
        "calc/add.py",
        "calc/json.py",
        "calc/unittest/x.py",
        "README.md",
        "docs/testing.md",
        "setup.py",
        "src/queue/new.py",
        "types/y.py",
        "contest.py",
    ],
)
def test_similar_but_harmless_paths_are_graded(task: Task, base: Path, path: str) -> None:
    assert exclude_paths(task, new_file(path), base) == (new_file(path), ())


def test_a_file_that_the_gold_patch_changes_stays_allowed(task: Task, base: Path) -> None:
    lenient = dataclasses.replace(task, patch=new_file("setup.cfg"))
    assert exclude_paths(lenient, new_file("setup.cfg"), base) == (new_file("setup.cfg"), ())
    assert exclude_paths(lenient, new_file("tox.ini"), base) == ("", ("tox.ini",))


def test_files_of_the_test_patch_are_excluded(task: Task, base: Path) -> None:
    tested = dataclasses.replace(task, test_patch=new_file("calc/checks.py"))
    assert exclude_paths(tested, new_file("calc/checks.py"), base) == ("", ("calc/checks.py",))


RENAME = (
    "diff --git a/calc/add.py b/conftest.py\nsimilarity index 100%\nrename from calc/add.py\nrename to conftest.py\n"
)
PLAIN = "--- a/conftest.py\n+++ b/conftest.py\n@@ -1 +1 @@\n-x\n+y\n"
DISGUISED = (
    "diff --git a/calc/add.py b/calc/add.py\n--- a/tests/test_add.py\n+++ b/tests/test_add.py\n@@ -1 +1 @@\n-x\n+y\n"
)


@pytest.mark.parametrize("section", [RENAME, PLAIN, DISGUISED])
def test_renames_plain_diffs_and_contradicting_headers_are_excluded(task: Task, base: Path, section: str) -> None:
    kept, excluded = exclude_paths(task, section, base)
    assert kept == ""
    assert excluded


def test_a_plain_section_after_a_git_section_is_excluded_alone(task: Task, base: Path) -> None:
    assert exclude_paths(task, GOLD + PLAIN, base) == (GOLD, ("conftest.py",))


@pytest.mark.parametrize(
    "name", ["plain.py", "with blank.py", "b/c b/d.py", "tab\there.py", 'quo"te.py', "ünïcode.py", "back\\slash.py"]
)
def test_paths_are_read_as_git_writes_them(tmp_path: Path, name: str) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x\n")
    subprocess.run([*git, "add", "-A"], check=True)
    added = subprocess.run([*git, "diff", "--cached"], check=True, capture_output=True, text=True).stdout
    assert touched_paths(added) == {name}
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    (tmp_path / name).chmod(0o755)
    mode = subprocess.run([*git, "diff"], check=True, capture_output=True, text=True).stdout
    assert touched_paths(mode) == {name}
    (tmp_path / name).write_bytes(b"\0\1")
    binary = subprocess.run([*git, "diff", "--binary"], check=True, capture_output=True, text=True).stdout
    assert touched_paths(binary) == {name}
