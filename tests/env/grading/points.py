"""A task whose tests compare points, and a watch over the runs of its tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.tasks.task import Task
from tests.redteam.cases import diff

BUGGY = """\
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)

    __hash__ = None


def parse(text):
    words = text.split()
    return Point(int(words[0]), int(words[0]))


def norm(point):
    return point.x + point.y
"""
GOLD = BUGGY.replace("int(words[0]))", "int(words[1]))").replace("point.x + point.y", "abs(point.x) + abs(point.y)")
REWRITE = BUGGY.replace("int(words[0]), int(words[0])", "*map(int, words)").replace(
    "return point.x + point.y", "first, second = abs(point.x), abs(point.y)\n    return first + second"
)
OLD = """\
import unittest

from plane.points import Point, norm, parse


class PointTest(unittest.TestCase):
    def test_norm(self):
        self.assertEqual(norm(Point(3, 4)), 7)
"""
COMPUTED = f"""{OLD}
    def test_parse(self):
        found = parse("31 47")
        self.assertTrue(all(one == other for one, other in zip([found.x, found.y], [31, 47])))
        self.assertTrue(norm(parse("-52 -1")) in range(51, 54))

    def test_parts(self):
        found = parse("52 68")
        self.assertTrue(all(one == other for one, other in zip([found.x, found.y], [52, 68])))
"""
FILES = {"plane/__init__.py": "", "plane/points.py": BUGGY, "tests/__init__.py": "", "tests/test_points.py": OLD}
PLACE = "tests.test_points.PointTest"
TASK = Task(
    instance_id="merged-points",
    repo="some/plane",
    base_commit="",
    problem_statement="parse forgets the second number, and norm is wrong where numbers are negative",
    patch=diff(FILES, {**FILES, "plane/points.py": GOLD}),
    test_patch=diff(FILES, {**FILES, "tests/test_points.py": COMPUTED}),
    fail_to_pass=(f"{PLACE}.test_parse", f"{PLACE}.test_parts"),
    pass_to_pass=(f"{PLACE}.test_norm",),
    files=FILES,
    test_command="python3 -m unittest -v",
    log_parser="unittest",
    test_timeout_s=30.0,
)


def patch_of(text: str) -> str:
    return diff(FILES, {**FILES, "plane/points.py": text})


def watch(monkeypatch: pytest.MonkeyPatch, note: Callable[[str, bool, Run, str], None]) -> None:
    """From now on, note each run of tests: the patch, whether it is blind, the result, and the module that made it."""
    run = TaskTests.run

    def noted(tests: TaskTests, patch: str, **options: Any) -> Run:
        made = run(tests, patch, **options)
        note(patch, bool(options.get("blinded")), made, Path(sys._getframe(1).f_code.co_filename).stem)
        return made

    monkeypatch.setattr(TaskTests, "run", noted)


def noted_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with each run of tests from now on: whether it has a patch, and whether it is blind."""
    kinds: list[str] = []

    def note(patch: str, is_blind: bool, _run: Run, _module: str) -> None:
        kinds.append(f"{'patch' if patch else 'empty'} {'blind' if is_blind else 'plain'}")

    watch(monkeypatch, note)
    return kinds
