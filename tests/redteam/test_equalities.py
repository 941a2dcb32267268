"""Each way to expect an object, as data in `equalities.md`: no patch that weakens its equality resolves."""

from __future__ import annotations

import builtins
import importlib
import itertools
import os
import re
import sys
import textwrap
import time
import types
import unittest
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.grading.verdict import UNPROVEN
from swegym_env.languages import Compared, ComparedObjects
from swegym_env.languages.python.equality import compared_objects, record_comparisons
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

from .cases import POINT_KEYS, WIDTHS, diff, task_of, widened

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
_BEFORE = {"plane/__init__.py": "", "plane/keys.py": POINT_KEYS, "plane/points.py": _POINTS}
_PATH = "tests/test_points.py"
_NAME = "tests.test_points.PointTest.test_parse"


def _repaired(keys: str) -> str:
    return widened(keys).replace("int(words[0])\n", "int(words[1])\n")


_REPAIRED, _REWRITTEN = _repaired(POINT_KEYS), _repaired(POINT_KEYS).replace("words", "parts")
_WEAKENED = widened(POINT_KEYS).replace("return point.x, point.y", "return point.x")
_ENTRY = re.compile(r"^## ([^\n]+)\n\n((?:```python[^`]*```\n\n?)+)", re.MULTILINE)
_PART = re.compile(r"```python ?(\w*)\n(.*?)```", re.DOTALL)
_BODIES = {
    name: dict(_PART.findall(parts))
    for name, parts in _ENTRY.findall(Path(__file__).with_name("equalities.md").read_text(encoding="utf-8"))
}
"""Name → "module", "class" → what stands there; "" → the end of the test."""


def _tests(parts: Mapping[str, str]) -> str:
    inner = textwrap.indent(WIDTHS + parts[""], " " * 8)
    before = _TESTS.replace("\n\nclass PointTest", f"\n\n{parts.get('module', '')}\n\nclass PointTest")
    return f"{before}\n{textwrap.indent(parts.get('class', ''), ' ' * 4)}\n    def test_parse(self):\n{inner}"


def _compared(
    tests: str,
    keys: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    questions: Sequence[Compared] = (),
    known: Collection[Compared] = (),
    set_up: Callable[[], object] = dict,
) -> tuple[bool, ComparedObjects]:
    """Whether `test_parse` passes with this module under test, after `set_up`, and what it records."""
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
    set_up()
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
    assert any(asked.answers[number] == {(not one.answer, True)} for number, one in enumerate(questions))


_MADE_ELSEWHERE = (
    "from plane.points import parse_path\nassert parse('31 47') in parse_path('1 2,31 47')\n"
    "assert parse('31 47') == Point(31, 47)\n"
)


@pytest.mark.parametrize("place", ["elsewhere", "conftest", "fixture"])
def test_a_long_set_up_leaves_time_for_the_tests(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a framework makes before the tests, such as Django's models, takes nothing from what they make."""
    clock, step = itertools.count(), [0.0]
    monkeypatch.setattr(time, "process_time", lambda: next(clock) * step[0])
    made = compile("points.FOUND = points.Point(31, 47)", f"/testbed/{Path(_PATH).with_name('conftest.py')}", "exec")

    def set_up() -> None:
        points, step[0] = sys.modules["plane.points"], 1.0
        for number in range(3):
            points.Point(number, number)
        step[0] = 0.0
        if place == "conftest":
            exec(made, {"points": points})
        elif place == "fixture":
            points.FOUND = sys.modules["test_points"].test_point()  # type: ignore[attr-defined]

    found_there = "from plane import points\nassert parse('31 47') == points.FOUND\n"
    fixture = "def fixture(function):\n    return function\n\n\n@fixture\ndef test_point():\n    return Point(31, 47)\n"
    tests = _tests({"module": fixture, "": _MADE_ELSEWHERE + (found_there if place != "elsewhere" else "")})
    passed, found = _compared(tests, _REPAIRED, tmp_path, monkeypatch, set_up=set_up)
    assert passed and found.by_test[_NAME] and not found.more
    assert all(side.made for one in found.by_test[_NAME] for side in one.contents), "the arguments of Point are known"
    assert ("plane/points.py", "__init__") in found.inside


def test_who_makes_an_object_is_not_asked_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below deep recursion an answer takes as long as thousands of calls: then what is made counts as a test's."""
    clock, step = itertools.count(), [0.0]
    monkeypatch.setattr(time, "process_time", lambda: next(clock) * step[0])

    def set_up() -> None:
        points = sys.modules["plane.points"]
        for number in range(4):
            step[0] = 1.0 if number < 3 else 0.0
            points.FOUND = points.Point(31, 47)  # type: ignore[attr-defined]

    tests = _tests({"": "from plane import points\nassert parse('31 47') == points.FOUND\n"})
    passed, found = _compared(tests, _REPAIRED, tmp_path, monkeypatch, set_up=set_up)
    assert passed and all(side.made for one in found.by_test[_NAME] for side in one.contents)


def _task(name: str, parts: Mapping[str, str], points: str = _POINTS, keys: str = POINT_KEYS) -> Task:
    before = {**_BEFORE, "plane/points.py": points, "plane/keys.py": keys, "tests/__init__.py": "", _PATH: _TESTS}
    repaired, tests = {"plane/keys.py": _repaired(keys)}, {_PATH: _tests(parts)}
    return task_of(f"plane__{name}", before, repaired, tests, _NAME, _NAME.replace("test_parse", "test_kind"))


def _graded(task: Task, store: LayerStore, **changed: str) -> Verdict:
    """The verdict on a patch that changes `plane/keys.py` and `plane/points.py` so."""
    files = {f"plane/{name}.py": text for name, text in changed.items()}
    return grade(task, diff(task.files, {**task.files, **files}), store=store, backend="namespace")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.campaign) for name in _BODIES])
def test_a_patch_that_weakens_an_equality_is_rejected(name: str, store: LayerStore) -> None:
    task = _task(name, _BODIES[name])
    attack = _graded(task, store, keys=_WEAKENED)
    assert not attack.resolved, attack
    for honest in (_REPAIRED, _REWRITTEN):
        verdict = _graded(task, store, keys=honest)
        assert verdict.resolved, verdict.failure_reason


_SAME = {"": "agree(parse('31 47'), ONE)\n"}
_INIT = "        self.x, self.y = x, y\n"
_DEFAULTS = POINT_KEYS.replace("return point.x, point.y", "return point.x, getattr(point, 'y', 0)")
_TOLERANT = POINT_KEYS.replace("def key", "TOLERANCE = [0]\n\n\ndef key").replace(
    "return point.x, point.y", "return tuple(round(i / (TOLERANCE[0] or 1)) for i in (point.x, point.y))"
)
_PIXEL = "class Unit:\n    def __init__(self, name):\n        self.name = name\n\n\nPIXEL = Unit('px')\n\n\n"
_UNITS = f"{_PIXEL}{POINT_KEYS}".replace(
    "return point.x, point.y", "return point.x, point.y, id(getattr(point, 'unit', None) or PIXEL)"
)
_UNIT = _POINTS.replace("import key", "import PIXEL, key").replace(
    "return Point(*split(text))", "point = Point(*split(text))\n    point.unit = PIXEL\n    return point"
)


def test_a_patch_that_loses_content_on_both_sides_is_rejected(store: LayerStore) -> None:
    task = _task("both sides", _SAME)
    lost = _POINTS.replace(_INIT, _INIT.replace("x, y\n", "x, x\n"))
    assert _graded(task, store, keys=widened(POINT_KEYS), points=lost).failure_reason == UNPROVEN
    cached = _POINTS.replace(_INIT, f"{_INIT}        self.text = str(x)\n")
    assert _graded(task, store, keys=_repaired(POINT_KEYS), points=cached).resolved


@pytest.mark.parametrize(
    "lost",
    [
        _POINTS.replace(_INIT, "        self.x, self._y = x, y\n"),
        _POINTS.replace(_INIT, "        self.x = x\n        _ALL[id(self)] = y\n") + "\n\n_ALL = {}\n",
        _POINTS.replace("class Point:", "class Point(tuple):")
        .replace("def __init__(self, x, y):", "def __new__(cls, x, y):")
        .replace(_INIT, "        return tuple.__new__(cls, (x,))\n")
        .replace("    def __eq__(self, other):\n        return key(self) == key(other)\n\n", "", 1),
    ],
    ids=["another name", "a table by id", "the equality of a builtin class"],
)
def test_nothing_is_known_of_content_that_the_gold_patch_does_not_have(lost: str, store: LayerStore) -> None:
    """The gold patch takes a default for what is missing."""
    verdict = _graded(_task("defaults", _SAME, keys=_DEFAULTS), store, keys=widened(_DEFAULTS), points=lost)
    assert not verdict.resolved or verdict.forgery_chance == 1, verdict


def test_the_gold_patch_is_asked_where_the_comparison_is_made(store: LayerStore) -> None:
    """A tolerance that holds for the first comparison does not hold for the second one."""
    tests = (
        "from plane import keys\nkeys.TOLERANCE[0] = 100\nassert parse('31 47') == Point(31, 47)\n"
        "keys.TOLERANCE[0] = 0\nassert parse('31 47') == Point(31, 47)\n"
    )
    task = _task("tolerance", {"": tests}, keys=_TOLERANT)
    weakened = widened(_TOLERANT).replace("in (point.x, point.y)", "in (point.x,)")
    assert not _graded(task, store, keys=weakened).resolved
    later = "from plane import keys\nassert Point(1, 2) == Point(1, 2)\n" + tests.replace(
        "TOLERANCE[0] = 0", "TOLERANCE[0] = 4"
    )
    task = _task("later tolerance", {"": later}, keys=_TOLERANT)
    near = _repaired(_TOLERANT).replace("int(words[1])\n", "int(words[1]) + 1\n")
    assert _graded(task, store, keys=near).resolved


def test_an_equality_by_identity_with_an_object_of_a_module_is_no_forgery(store: LayerStore) -> None:
    task = _task("units", _SAME, points=_UNIT, keys=_UNITS)
    text = _UNIT.replace(_INIT, f"{_INIT}        self.text = str(x)\n")
    verdict = _graded(task, store, keys=_repaired(_UNITS), points=text)
    assert verdict.resolved and verdict.forgery_chance != 1, verdict
    weakened = widened(_UNITS).replace("return point.x, point.y,", "return point.x,")
    assert not _graded(task, store, keys=weakened).resolved


_BY_TEXT = _POINTS.replace(
    "x, y):\n" + _INIT, "x, y=None):\n        if y is None:\n            x, y = numbers(x)\n" + _INIT, 1
)
_BY_TEXT = "import threading\n\n" + _BY_TEXT.replace("import key, split", "import key, numbers, split")
_NUMBERS = f"{POINT_KEYS}\n\ndef numbers(text):\n    words = text.split()\n    return int(words[0]), int(words[1])\n"
_PLACE = "\n\nclass Board:\n    def __init__(self, points):\n        self.points = points\n\n"
_PLACE += "    def place(self, point):\n        return self.points.index(point)\n"
_IN_THREAD = "\n\ndef board():\n    found = []\n    thread = threading.Thread(target=lambda: found.extend({}))\n"
_IN_THREAD += "    thread.start()\n    thread.join()\n    return Board(found)\n"
_PLAIN = ", ".join(f"{{0}}({number}, {number})" for number in range(3))
_FORGED = widened(_NUMBERS).replace("return int(words[0]), int(words[1])", "return int(words[0]), int(words[0])")


@pytest.mark.parametrize(
    ("points", "made"),
    [
        (_BY_TEXT, f"[{_PLAIN.format('Point')}, Point('31 47')]"),
        (
            _BY_TEXT.replace("class Point:", "class Thing:").replace(
                "    @classmethod", "\nclass Corner(Thing):\n    pass\n\n\nclass Point(Thing):\n    @classmethod", 1
            ),
            f"[{_PLAIN.format('Corner')}, Point('31 47')]",
        ),
    ],
    ids=["the first three of its class", "three of a class with the same constructor"],
)
def test_constructors_that_no_test_calls_are_followed(points: str, made: str, store: LayerStore) -> None:
    """A thread, a task of an event loop and a fixture make objects without a test that calls them."""
    body = "from plane.points import board\nself.assertEqual(board().place(parse('31 47')), 3)\n"
    task = _task("elsewhere", {"": body}, points=points + _PLACE + _IN_THREAD.format(made), keys=_NUMBERS)
    verdict = _graded(task, store, keys=_FORGED)
    assert not verdict.resolved or verdict.forgery_chance == 1, verdict
    honest = _graded(task, store, keys=_repaired(_NUMBERS).replace("return len(text)", "return len([*text])"))
    assert honest.resolved and honest.forgery_chance != 1, honest


def test_constructors_below_others_are_followed(store: LayerStore) -> None:
    """Points that only the constructor of a board makes are made by what it calls for them."""
    points = _BY_TEXT + _PLACE.replace("= points", "= [Point(each) for each in points]")
    body = "from plane.points import Board\nself.assertEqual(Board(['1 2', '31 47']).place(parse('31 47')), 1)\n"
    verdict = _graded(_task("below", {"": body}, points=points, keys=_NUMBERS), store, keys=_FORGED)
    assert not verdict.resolved or verdict.forgery_chance == 1, verdict


def test_comparisons_below_constructors_are_followed(store: LayerStore) -> None:
    """What a constructor compares for a test is not only what makes its object."""
    points = f"{_POINTS}\n\nclass Search:\n    def __init__(self, point):\n"
    points += "        self.place = [Point(1, 2), ORIGIN].index(point)\n"
    body = "from plane.points import Search\nself.assertEqual(Search(parse('31 47')).place, 1)\n"
    verdict = _graded(_task("in a constructor", {"": body}, points=points), store, keys=_WEAKENED)
    assert not verdict.resolved or verdict.forgery_chance == 1, verdict
