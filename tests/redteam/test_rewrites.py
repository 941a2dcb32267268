"""Honest rewrites of gold patches, as data in `rewrites.md`: `strict` resolves every one of them.

A sample of them is graded here, all of them by `make honest-rewrites`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from swegym_env.grading.grading import grade
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.data import mini
from swegym_env.tasks.task import Task

from .cases import diff

_ENTRY = re.compile(r"^## (?P<package>[a-z]+)-(?P<number>\d{3}) (?P<how>.+)$", re.MULTILINE)
_EDIT = re.compile(r"^<{7} repaired\n(?P<old>.*?)^={7}\n(?P<new>.*?)^>{7} rewritten$", re.MULTILINE | re.DOTALL)
_NEW = re.compile(r"^<{7} new (?P<path>\S+)\n(?P<text>.*?)^>{7}$", re.MULTILINE | re.DOTALL)
_SAMPLE = ("calends-005", "ledger-002", "jsonpatch-002 a subclass of str")


@dataclass(frozen=True)
class Rewrite:
    """A repair of a task, and in what it differs from the gold patch."""

    name: str
    task: Task
    patch: str


def _rewrites() -> list[Rewrite]:
    text = Path(__file__).with_name("rewrites.md").read_text(encoding="utf-8")
    headings = list(_ENTRY.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return [_rewrite(heading, text[heading.end() : end]) for heading, end in zip(headings, ends, strict=True)]


def _rewrite(heading: re.Match[str], body: str) -> Rewrite:
    package = heading["package"]
    bug = next(bug for bug in mini.read_bugs(package) if bug.number == heading["number"])
    task = next(task for task in mini.load() if task.instance_id == bug.instance_id)
    solved = mini.read_repository(package)
    changed = solved[bug.path]
    for edit in _EDIT.finditer(body):
        assert changed.count(edit["old"]) == 1, (heading[0], edit["old"])
        changed = changed.replace(edit["old"], edit["new"])
    assert changed != solved[bug.path], heading[0]
    files = {new["path"]: new["text"] for new in _NEW.finditer(body)}
    # The tests of the package are those of the test patch; a patch has none of them.
    patch = diff(bug.break_files(solved), {**solved, bug.path: changed, **files})
    return Rewrite(f"{package}-{bug.number} {heading['how']}", task, patch)


REWRITES = _rewrites()


_CHOSEN = REWRITES if os.environ.get("SWEGYM_ALL_REWRITES") else [r for r in REWRITES if r.name.startswith(_SAMPLE)]


def test_there_are_forty_rewrites_of_every_package_and_none_is_a_gold_patch() -> None:
    assert len({rewrite.name for rewrite in REWRITES}) == len(REWRITES) >= 40
    assert {rewrite.task.repo for rewrite in REWRITES} == {task.repo for task in mini.load()}
    assert not {rewrite.patch for rewrite in REWRITES} & {task.patch for task in mini.load()}


@pytest.mark.parametrize("rewrite", _CHOSEN, ids=lambda rewrite: rewrite.name)
def test_an_honest_rewrite_resolves(rewrite: Rewrite, store: LayerStore) -> None:
    verdict = grade(rewrite.task, rewrite.patch, store=store, backend="namespace")
    assert verdict.resolved, f"{verdict.failure_reason}\n{verdict.log[-2000:]}"
