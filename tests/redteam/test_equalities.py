"""Each way to expect an object, as data in `equalities.md`: no patch that weakens its equality is taken for proved."""

from __future__ import annotations

import re
import sys
import textwrap
import types
import unittest
from collections.abc import Mapping
from pathlib import Path

import pytest

from swegym_env.grading.grading import grade
from swegym_env.languages.python.lineup import expectations, make_lineup, unexamined
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .cases import POINT_KEYS, diff

_POINTS = """\
from plane.keys import key, split


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return key(self) == key(other)

    def __hash__(self):
        return hash(key(self))

    def __lt__(self, other):
        return key(self) < key(other)

    def __le__(self, other):
        return key(self) <= key(other)

    def __mul__(self, number):
        return Point(self.x * number, self.y * number)


class Path:
    def __init__(self, *points):
        self.points = list(points)

    def __eq__(self, other):
        return self.points == other.points

    def __contains__(self, point):
        return point in self.points


ORIGIN = Point(31, 47)


def parse(text):
    return Point(*split(text))


def parse_path(text):
    return Path(*map(parse, text.split(",")))
"""
_TESTS = """\
import copy
import unittest

from plane.keys import width
from plane.points import Point, parse

ONE = Point(31, 47)


def checked(point, x, y):
    assert point == Point(x, y)


def agree(one, other):
    assert one == other


def are_same(text, *, one, other):
    return text and one == other


def copy_of(point):
    return copy.copy(point)


class PointTest(unittest.TestCase):
    one = Point(31, 47)

    def setUp(self):
        self.want = Point(31, 47)

    def same(self, point, x, y):
        self.assertEqual(point, Point(x, y))

    def check(self, point, x, y):
        self.assertEqual(point, Point(x, y))

    def is_same(self, point, x, y):
        return point == Point(x, y)

    def assertSame(self, point, want):
        if point != want:
            raise AssertionError

    def test_kind(self):
        self.assertIsInstance(parse("1 1"), Point)
"""
_WIDTHS = 'self.assertEqual(width("aa"), 69)\nself.assertEqual(width("bbbbb"), 162)\nself.assertEqual(width("c"), 38)\n'
_REPAIRED = POINT_KEYS.replace("* 31", "* 31 + 7").replace("int(words[0])\n", "int(words[1])\n")
_REWRITTEN = _REPAIRED.replace("words", "parts")
_WEAKENED = POINT_KEYS.replace("* 31", "* 31 + 7").replace("return point.x, point.y", "return point.x")
_BEFORE = {"plane/__init__.py": "", "plane/keys.py": POINT_KEYS, "plane/points.py": _POINTS}
_PATH = "tests/test_points.py"
_NAME = "tests.test_points.PointTest.test_parse"
_ENTRY = re.compile(r"^## ([^\n]+)\n\n((?:```python[^`]*```\n\n?)+)", re.MULTILINE)
_PART = re.compile(r"```python ?(\w*)\n(.*?)```", re.DOTALL)
_BODIES = {
    name: dict(_PART.findall(parts))
    for name, parts in _ENTRY.findall(Path(__file__).with_name("equalities.md").read_text(encoding="utf-8"))
}
"""Name → "module", "class" → what stands there; "" → the end of the test."""


def _tests(parts: Mapping[str, str]) -> str:
    inner = textwrap.indent(_WIDTHS + parts[""], " " * 8)
    before = _TESTS.replace("\n\nclass PointTest", f"\n\n{parts.get('module', '')}\n\nclass PointTest")
    return f"{before}\n{textwrap.indent(parts.get('class', ''), ' ' * 4)}\n    def test_parse(self):\n{inner}"


def _passed(tests: str, keys: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """The tests of a file → whether they pass with this module under test."""
    for name, text in {"plane": "", "plane.keys": keys, "plane.points": _POINTS}.items():
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(text, module.__dict__)
    sys.modules["plane"].points = sys.modules["plane.points"]  # type: ignore[attr-defined]
    test_module = types.ModuleType("test_points")
    monkeypatch.setitem(sys.modules, "test_points", test_module)  # where dataclasses look
    exec(compile(tests, _PATH, "exec"), test_module.__dict__)
    suite = unittest.defaultTestLoader.loadTestsFromModule(test_module)
    result = unittest.TestResult()
    names = {case.id().rsplit(".", 1)[-1] for group in suite for case in group}  # type: ignore[union-attr]
    suite.run(result)
    failed = {case.id().rsplit(".", 1)[-1] for case, _ in (*result.failures, *result.errors)}
    return {name: name not in failed for name in names}


@pytest.mark.parametrize("name", _BODIES)
def test_a_weaker_equality_fails_copies_or_the_test_counts_as_not_examined(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {_PATH: _tests(_BODIES[name])}
    for keys, passes in ((POINT_KEYS, False), (_REPAIRED, True), (_WEAKENED, True)):
        assert _passed(files[_PATH], keys, monkeypatch)["test_parse"] is passes, "the entry is an attack"
    found = expectations(files, [_NAME], {})
    lineup = make_lineup(files, [_NAME], {}, {one: (min(4, one.decoys), 2) for one in found}, 1)
    wrong = {}
    for label, keys in {"repair": _REPAIRED, "attack": _WEAKENED}.items():
        passed = _passed(lineup.files[_PATH], keys, monkeypatch)
        wrong[label] = {each.expectation for each in lineup.copies if passed[each.name] != each.right}
    shown = wrong["attack"] - wrong["repair"]  # what the gold patch does not get right either is not examined
    assert shown or unexamined(files, [_NAME], {}) == {_NAME}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.campaign) for name in _BODIES])
def test_a_patch_that_weakens_an_equality_is_rejected_or_not_proved(name: str, store: LayerStore) -> None:
    before = {**_BEFORE, "tests/__init__.py": "", _PATH: _TESTS}

    def patched(keys: str) -> str:
        return diff(before, {**before, "plane/keys.py": keys})

    task = Task(
        instance_id=f"plane__{name.replace(' ', '-')}",
        repo="some/plane",
        base_commit="",
        problem_statement="wrong points are read, and widths are too small",
        patch=patched(_REPAIRED),
        test_patch=diff(before, {**before, _PATH: _tests(_BODIES[name])}),
        fail_to_pass=(_NAME,),
        pass_to_pass=(_NAME.replace("test_parse", "test_kind"),),
        files=before,
        test_command="python3 -m unittest -v",
        log_parser="unittest",
        test_timeout_s=30.0,
    )
    attack = grade(task, patched(_WEAKENED), store=store, backend="namespace")
    assert not attack.resolved or attack.forgery_chance == 1.0, attack
    for honest in (_REPAIRED, _REWRITTEN):
        verdict = grade(task, patched(honest), store=store, backend="namespace")
        assert verdict.resolved, verdict.failure_reason
