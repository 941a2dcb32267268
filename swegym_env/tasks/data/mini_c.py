"""The shipped set `mini-c`: small C libraries with validated bugs, built and tested with gcc and make alone.

    mini_c/LIBRARY/repo/         the correct library: sources, tests, README, Makefile
    mini_c/LIBRARY/bugs.md       its bugs, in the form of those of `mini`
    mini_c/LIBRARY/results.json  test results, written by `scripts/validate_mini_c.py --write`

As in `mini`, the repository of a task contains the bug and lacks the tests that reveal it. Its tests are functions of
programs that print TAP.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from swegym_env.errors import TaskFormatError, UnknownTaskError
from swegym_env.repo.patches import LineEdit
from swegym_env.tasks.data.mini import SPLITS, Bug, edit_and_revert, read_bugs, read_repository, repair_task
from swegym_env.tasks.task import Task

__all__ = ["DATA", "HELD_OUT", "bugs", "drop_tests", "files", "libraries", "load", "make_task"]

DATA = Path(__file__).parent / "mini_c"
HELD_OUT = frozenset({"caldate"})
"""The libraries of the split "test"; all others are "train"."""

TEST_COMMAND = "make test"

_TEST = re.compile(r"^static void (test_\w+)\(void\)\n\{\n.*?^\}\n\n?", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"^    RUN\((test_\w+)\);\n", re.MULTILINE)


def libraries(split: str | None = None) -> tuple[str, ...]:
    """The names of the libraries, sorted: of one split, or all.

    Raises:
        UnknownTaskError: there is no such split.
    """
    if split is not None and split not in SPLITS:
        raise UnknownTaskError(f"mini-c: no split {split!r}; there are {' and '.join(SPLITS)}")
    names = sorted(entry.name for entry in os.scandir(DATA) if entry.is_dir() and entry.name[0] not in "._")
    return tuple(name for name in names if split is None or (name in HELD_OUT) == (split == "test"))


def files(library: str) -> dict[str, str]:
    """The files of a library without bugs: path → text."""
    return {path: text for path, text in read_repository(library, DATA).items() if not path.startswith("build/")}


def bugs(library: str) -> list[Bug]:
    """The bugs of a library. Raises TaskFormatError: its `bugs.md` is damaged."""
    return read_bugs(library, DATA, "mini-c")


def drop_tests(text: str, names: Collection[str]) -> list[LineEdit]:
    """The edits that remove test functions from a test file, and the lines that run them."""
    spans = [match.span() for pattern in (_TEST, _RUN) for match in pattern.finditer(text) if match[1] in names]
    return [LineEdit(text.count("\n", 0, begin), text.count("\n", 0, end), ()) for begin, end in sorted(spans)]


def load(split: str | None = None) -> list[Task]:
    """The tasks of a split ("train" or "test"), or of both.

    Raises:
        UnknownTaskError: there is no such split.
        TaskFormatError: the shipped files are damaged.
    """
    return [task for library in libraries(split) for task in _tasks_of(library)]


@cache
def _tasks_of(library: str) -> tuple[Task, ...]:
    sound = files(library)
    results = json.loads((DATA / library / "results.json").read_text(encoding="utf-8"))
    tasks = []
    for bug in bugs(library):
        failing: list[str] | None = results["fail_to_pass"].get(bug.number)
        if failing is None:
            raise TaskFormatError(f"{bug.instance_id}: not validated; run scripts/validate_mini_c.py --write")
        tasks.append(make_task(bug, sound, results["tests"], failing))
    return tuple(tasks)


def make_task(bug: Bug, sound: Mapping[str, str], tests: Collection[str], failing: Collection[str]) -> Task:
    """The task of one bug.

    Args:
        bug: the bug.
        sound: the repository without the bug.
        tests: the names of all its tests, which pass without the bug.
        failing: the tests that fail with the bug.
    """
    base = dict(sound)
    patch = edit_and_revert(base, bug.path, [bug.edit(sound)])
    test_patch = ""
    for path in sorted(path for path in sound if path.startswith("tests/test_")):
        edits = drop_tests(sound[path], failing)
        test_patch += edit_and_revert(base, path, edits) if edits else ""
    return repair_task(
        bug, base, patch, test_patch, tests, failing, repo="mini-c", test_command=TEST_COMMAND, log_parser="tap"
    )
