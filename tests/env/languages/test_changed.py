"""A changed file is read as git leaves it, wherever the hunks of a patch say that they stand."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from swegym_env.languages.changed import ChangedFile
from swegym_env.repo.patches import parse_patch

_LINES = [f"line {number % 7}" for number in range(60)]


def _patched_by_git(patch: str, place: Path) -> str | None:
    done = subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=place, capture_output=True, check=False)
    return (place / "a.c").read_text() if done.returncode == 0 else None


def _hunk(at: int, named: int, before: int, after: int, lines: list[str]) -> str:
    """A hunk that replaces one line and says that it stands elsewhere."""
    old = lines[at - before : at + 1 + after]
    body = [f" {line}" for line in old[:before]] + [f"-{old[before]}", "+another line"]
    body += [f" {line}" for line in old[before + 1 :]]
    first = max(1, named - before + 1)
    return f"@@ -{first},{len(old)} +{first},{len(old)} @@\n" + "\n".join(body) + "\n"


@pytest.mark.parametrize("seed", range(40))
def test_hunks_stand_where_git_puts_them(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    at, before, after = draw.randrange(4, 60), draw.randrange(4), draw.randrange(4)
    lines = _LINES[: draw.choice([60, at + 1 + after, at + 1])]
    after = min(after, len(lines) - at - 1)
    patch = "diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n"
    patch += _hunk(at, max(0, at + draw.randrange(-9, 10)), before, after, lines)
    (tmp_path / "a.c").write_text("\n".join(lines) + "\n")
    read = ChangedFile.of(parse_patch(patch)[0], tmp_path)
    assert (read.after if read is not None else None) == _patched_by_git(patch, tmp_path)


def test_a_hunk_that_fits_nowhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("one\ntwo\n")
    patch = "diff --git a/a.c b/a.c\n--- a/a.c\n+++ b/a.c\n@@ -1,2 +1,2 @@\n one\n-three\n+four\n"
    assert ChangedFile.of(parse_patch(patch)[0], tmp_path) is None
