"""Statistics of episodes, beside git's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from swe_trainers.rollout.statistics import PatchSize, patch_size

BEFORE = {"sql": "select 1\n-- a comment\n-- another\nend\n", "plus": "++ x\n", "gone": "-- x\n", "text": "a\nb\nc"}
AFTER = {"sql": "select 1\nend\n++ added\n", "plus": "++ y\n-- z\n", "text": "a\nB\nc", "new": "@@ -1,9 +1,9 @@\n+\n"}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("context", [0, 3])
def test_size_of_a_patch_is_what_git_counts(context: int, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    for name, text in BEFORE.items():
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "before")
    for name in BEFORE.keys() - AFTER.keys():
        (tmp_path / name).unlink()
    for name, text in AFTER.items():
        (tmp_path / name).write_text(text)
    git(tmp_path, "add", ".")
    counted = [line.split("\t") for line in git(tmp_path, "diff", "--cached", "--numstat").splitlines()]
    added, removed = (sum(int(row[column]) for row in counted) for column in (0, 1))
    assert (added, removed) == (6, 5)
    patch = git(tmp_path, "diff", "--cached", f"-U{context}")
    assert patch_size(patch) == PatchSize(len(counted), added, removed) == PatchSize(5, 6, 5)


def test_what_is_no_patch_changes_nothing() -> None:
    assert patch_size("") == patch_size("+1\n-1\n--- x\n+++ y\n") == PatchSize(0, 0, 0)
    assert patch_size("@@ -1,999999999 +1 @@\n-a\n+b\n") == PatchSize(0, 1, 1)
