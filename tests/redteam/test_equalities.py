"""Each way to expect an object, as data in `equalities.md`: no patch that weakens its equality resolves."""

from __future__ import annotations

import builtins
import importlib
import os
import re
import sys
import textwrap
import types
import unittest
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from swegym_env.grading.grading import grade
from swegym_env.languages import Compared, ComparedObjects
from swegym_env.languages.python.equality import compared_objects, record_comparisons
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .cases import POINT_KEYS, diff

_POINTS = """\
from plane.keys import key, split


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    @classmethod
    def of(cls, x, y):
        return cls(x, y)

    def __eq__(self, other):
        return key(self) == key(other)

    def __hash__(self):
        return hash(key(self))

    def same_as(self, other):
        return key(self) == key(other)

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


def point(x, y):
    return Point(x, y)


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


def _compared(
    tests: str,
    keys: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    questions: Sequence[Compared] = (),
    known: Collection[Compared] = (),
) -> tuple[bool, ComparedObjects]:
    """Whether `test_parse` passes with this module under test, and what it records."""
    recording = record_comparisons({_PATH: tests}, [_NAME], (), questions, known)
    assert recording is not None
    output, text = place / f"{len(os.listdir(place))}.out", recording.files[_PATH].replace(recording.output, "OUTPUT")
    for number, (path, support) in enumerate(recording.support.items()):
        (place / f"support{number}").write_text(support)
        text = text.replace(path, f"{place}/support{number}")
    text = text.replace("OUTPUT", str(output))
    for holder, name in ((builtins, "__import__"), (builtins, "__build_class__"), (importlib, "import_module")):
        monkeypatch.setattr(holder, name, getattr(holder, name))
    for name, code in {"plane": "", "plane.keys": keys, "plane.points": _POINTS}.items():
        module = types.ModuleType(name)
        module.__file__ = f"/testbed/{name.replace('.', '/')}.py"
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(code, module.__file__, "exec"), module.__dict__)
    sys.modules["plane"].points = sys.modules["plane.points"]  # type: ignore[attr-defined]
    test_module = types.ModuleType("test_points")
    test_module.__file__ = f"/testbed/{_PATH}"
    monkeypatch.setitem(sys.modules, "test_points", test_module)  # where dataclasses look
    exec(compile(text, test_module.__file__, "exec"), test_module.__dict__)
    result = unittest.TestResult()
    unittest.TestSuite([test_module.PointTest("test_parse")]).run(result)
    sent = output.read_bytes() if output.exists() else b""
    return result.wasSuccessful(), compared_objects({_PATH: tests}, [_NAME], sent)


@pytest.mark.parametrize("name", _BODIES)
def test_a_weaker_equality_is_seen_however_a_test_compares(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = _tests(_BODIES[name])
    assert not _compared(tests, POINT_KEYS, tmp_path, monkeypatch)[0]
    passed, gold = _compared(tests, _REPAIRED, tmp_path, monkeypatch)
    assert passed and gold.by_test[_NAME] and not gold.more
    passed, attack = _compared(tests, _WEAKENED, tmp_path, monkeypatch)
    assert passed, "the entry is an attack"
    questions = sorted(attack.by_test[_NAME] - gold.by_test[_NAME], key=lambda one: one.pair)
    passed, asked = _compared(tests, _REPAIRED, tmp_path, monkeypatch, questions, gold.by_test[_NAME])
    assert passed and asked.answers.keys() == {*range(len(questions))}
    assert any(asked.answers[number] == (not one.answer, True) for number, one in enumerate(questions))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.campaign) for name in _BODIES])
def test_a_patch_that_weakens_an_equality_is_rejected(name: str, store: LayerStore) -> None:
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
    assert not attack.resolved, attack
    for honest in (_REPAIRED, _REWRITTEN):
        verdict = grade(task, patched(honest), store=store, backend="namespace")
        assert verdict.resolved, verdict.failure_reason
