"""Repairs of how objects are compared, where the gold patch repairs how they are made: they resolve, weaker ones not.

An object of such a repair has another content than the gold patch's. The gold patch tells it apart from what it equals,
but not if the gold patch makes it itself, by the same call.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.sandbox.layers import LayerStore

from .cases import WIDTHS, diff, task_of, widened

_Edits = tuple[tuple[str, str], ...]
_WIDTH = "\n\ndef width(text):\n    return len(text) * 31\n"
_BEFORE = (
    "import unittest\n\n\nclass CoreTest(unittest.TestCase):\n    def test_kind(self):\n        self.assertTrue(True)\n"
)
_HELPERS = "def agree(one, other):\n    assert one == other\n\n\ndef holds(truth):\n    assert truth\n"
_STRIPPED = "parts = [*map(int, version.parts)]\n    while parts[-1:] == [0]:\n        del parts[-1]\n    return parts"
_WHERE_COMPARED = (("return version.parts", _STRIPPED),)
_NEXT = "day = Day(self.date)\n        day.offset = self.offset + 1\n        return day"
_TEST = "tests.test_core.CoreTest.test_it"


_POINT = """
        class Point:
            def __init__(self, x, y):
                self.x, self.y = x, y

            def __eq__(self, other):
                return (self.x, self.y) == (other.x, other.y)

"""
_KEYED_POINT = """
        class Point:
            def __init__(self, x, y):
                self.x, self.y = x, y

            def __eq__(self, other):
                return key(self) == key(other)

            def __hash__(self):
                return 1


        def key(point):
            return point.x, point.y

"""


@dataclass(frozen=True)
class _Case:
    """A module, the end of a test, edits of the module (old, new): repairs, and forgeries; constants of the tests."""

    module: str
    test: str
    gold: _Edits
    honest: Mapping[str, _Edits] = field(default_factory=dict)
    forged: Mapping[str, _Edits] = field(default_factory=dict)
    constants: str = ""


_CASES = {
    "names": _Case(
        """
        class Name:
            def __init__(self, text):
                self.text = text

            def __eq__(self, other):
                return key(self) == key(other)


        def key(name):
            return name.text
        """,
        "agree(Name('Ada'), Name('ada'))\n",
        (("self.text = text", "self.text = text.lower()"),),
        {
            "where they are compared": (("return name.text", "return name.text.lower()"),),
            "once, when they are compared": (
                ("self.text = text", "self.text, self.folded = text, None"),
                ("return name.text", "name.folded = name.folded or name.text.lower()\n    return name.folded"),
            ),
        },
        {
            "the length": (("return name.text", "return len(name.text)"),),
            "but for the first letter": (("return name.text", "return name.text[1:]"),),
        },
    ),
    "versions": _Case(
        """
        class Version:
            def __init__(self, text):
                self.parts = [int(part) for part in text.split('.')]

            def __eq__(self, other):
                return key(self) == key(other)

            def __lt__(self, other):
                return key(self) < key(other)


        def key(version):
            return version.parts
        """,
        "agree(Version('1.0.0'), Version('1'))\nholds(not Version('1') < Version('1.0'))\n",
        (("split('.')]", "split('.')]\n        while self.parts[-1:] == [0]:\n            self.parts.pop()"),),
        {
            "where they are compared": _WHERE_COMPARED,
            "texts": (("[int(part) for part in text.split('.')]", "text.split('.')"), *_WHERE_COMPARED),
        },
        {"the first part": (("return version.parts", "return version.parts[0]"),)},
    ),
    "angles": _Case(
        """
        class Angle:
            def __init__(self, degrees):
                self.degrees = degrees

            def __eq__(self, other):
                return value(self) == value(other)


        def value(angle):
            return angle.degrees
        """,
        "agree(Angle(370), Angle(10))\n",
        (("self.degrees = degrees", "self.degrees = degrees % 360"),),
        {"where they are compared": (("return angle.degrees", "return angle.degrees % 360"),)},
        {"a remainder": (("return angle.degrees", "return angle.degrees % 10"),)},
    ),
    "carts": _Case(
        """
        class Cart:
            def __init__(self, *prices):
                self.prices = list(prices)
                self.total = sum(prices)

            def add(self, price):
                self.prices.append(price)

            def __eq__(self, other):
                return total(self) == total(other)


        def total(cart):
            return cart.total
        """,
        "cart = Cart(1, 2)\ncart.add(3)\nagree(cart, Cart(1, 2, 3))\n",
        (("self.prices.append(price)", "self.prices.append(price)\n        self.total += price"),),
        {"where they are compared": (("return cart.total", "return sum(cart.prices)"),)},
        {"the first price": (("return cart.total", "return cart.prices[0]"),)},
    ),
    "graphs": _Case(
        """
        class Graph:
            def __init__(self, *edges):
                self.edges = edges

            def __eq__(self, other):
                return of(self) == of(other)


        def of(graph):
            return graph.edges
        """,
        "agree(Graph((2, 3), (1, 2)), Graph((1, 2), (2, 3)))\n",
        (("self.edges = edges", "self.edges = sorted(edges)"),),
        {"sets": (("return graph.edges", "return set(graph.edges)"),)},
        {"their number": (("return graph.edges", "return len(graph.edges)"),)},
    ),
    "registries": _Case(
        """
        class Registry:
            def __init__(self):
                self.names = []

            def add(self, name):
                self.names.append(name)

            def __contains__(self, name):
                return name in self.names
        """,
        "names = Registry()\nnames.add('AB')\nholds('ab' in names)\n",
        (("append(name)", "append(name.lower())"), ("return name in", "return name.lower() in")),
        {"where they are searched": (("name in self.names", "name.lower() in [each.lower() for each in self.names]"),)},
        {"all": (("return name in self.names", "return True"),)},
    ),
    "tasks": _Case(
        """
        class Task:
            def __init__(self, name, priority):
                self.name, self.priority = name, priority

            def __lt__(self, other):
                return before(self, other)


        def before(one, other):
            return one.priority < other.priority


        def ordered(tasks):
            return [task.name for task in tasks]
        """,
        "agree(ordered([Task('b', 2), Task('a', 1)]), ['a', 'b'])\n"
        "agree(sorted([Task('y', 1), Task('x', 1), Task('z', 0)])[0].name, 'z')\n",
        (("for task in tasks]", "for task in sorted(tasks)]"),),
        {
            "ties by name": (
                ("for task in tasks]", "for task in sorted(tasks)]"),
                ("one.priority < other.priority", "(one.priority, one.name) < (other.priority, other.name)"),
            )
        },
    ),
    "days": _Case(
        """
        import datetime


        class Day:
            def __init__(self, date):
                self.date = date

            def __eq__(self, other):
                return date_of(self) == date_of(other)

            def next(self):
                return Day(self.date)


        def date_of(day):
            return day.date
        """,
        "agree(Day(datetime.date(2020, 2, 28)).next(), Day(datetime.date(2020, 2, 29)))\n",
        (("return Day(self.date)", "return Day(self.date + datetime.timedelta(days=1))"),),
        {
            "an offset": (
                ("self.date = date", "self.date, self.offset = date, 0"),
                ("return Day(self.date)", _NEXT),
                ("return day.date", "return day.date + datetime.timedelta(days=day.offset)"),
            )
        },
        {"the year": (("return day.date", "return day.date.year"),)},
    ),
    "other makers": _Case(
        _POINT
        + """
        def of(x, y):
            return Point(x, y)


        def parse(text):
            words = text.split()
            return Point(int(words[0]), int(words[0]))
        """,
        "agree(Point(31, 47), Point(31, 47))\nagree(parse('31 47'), of(31, 47))\n",
        (("int(words[0]))", "int(words[1]))"),),
        {},
        {"content lost on both sides": (("    return Point(x, y)", "    return Point(x, x)"),)},
    ),
    "differences": _Case(
        _KEYED_POINT
        + """
        def parse(text):
            words = text.split()
            return Point(int(words[0]), int(words[0]))
        """,
        "agree(len({parse('31 47'), Point(31, 31)}), 2)\n",
        (("int(words[0]))", "int(words[1]))"),),
        {},
        {"never equal": (("return point.x, point.y", "return id(point)"),)},
    ),
    "boards": _Case(
        _KEYED_POINT
        + """
        class Board:
            def __init__(self, *points):
                self.points = [*points]

            def index(self, point):
                return self.points.index(point)

            def without(self, point):
                return len([each for each in self.points if each != point])

            def unique(self):
                return len(set(self.points))


        def moved(point, by):
            return Point(point.x, point.y)
        """,
        "board = Board(Point(1, 2), Point(4, 5), Point(4, 6))\n"
        "agree(board.index(moved(Point(3, 5), 1)), 1)\n"
        "agree(board.without(moved(Point(3, 5), 1)), 2)\n"
        "agree(board.unique(), 3)\n",
        (("Point(point.x, point.y)", "Point(point.x + by, point.y)"),),
        {
            "a list of numbers": (
                ("Point(point.x, point.y)", "Point(by + point.x, point.y)"),
                ("return point.x, point.y", "return [point.x, point.y]"),
            ),
        },
        {
            "the second number": (("return point.x, point.y", "return point.y"),),
            "numbers near each other": (("return point.x, point.y", "return point.x > 2, point.y"),),
            "hashes and equality of another key": (
                ("return 1\n", "return hash(point_key(self))\n"),
                ("return key(self) == key(other)", "return point_key(self) == point_key(other)"),
                ("def key(point)", "def point_key(point):\n    return point.y\n\n\ndef key(point)"),
            ),
            "a property": (
                ("self.x, self.y = x, y", "self._x, self.y = x, y"),
                ("def __hash__", "@property\n    def x(self):\n        return 4\n\n    def __hash__"),
            ),
        },
    ),
    "positions": _Case(
        _POINT
        + """
        def read(text):
            words = text.split()
            return Point(int(words[0]), int(words[0]))


        def position(points, point):
            return [*points].index(point)
        """,
        "agree(position([Point(1, 1), Point(31, 47)], read('31 47')), 1)\n",
        (("int(words[0]))", "int(words[1]))"),),
        {"names": (("return Point(int(words[0]), int(words[0]))", "x, y = map(int, words)\n    return Point(x, y)"),)},
        {"content lost where points are made": (("self.x, self.y = x, y", "self.x, self.y = x, 0"),)},
    ),
    "constants": _Case(
        _KEYED_POINT
        + """
        def read(text):
            words = text.split()
            return Point(int(words[0]), int(words[0]))
        """,
        "holds(SAME)\n",
        (("int(words[0]))", "int(words[1]))"),),
        {"names": (("return Point(int(words[0]), int(words[0]))", "x, y = map(int, words)\n    return Point(x, y)"),)},
        {"the first number": (("return point.x, point.y", "return point.x"),)},
        constants="SAME = read('31 47') == Point(31, 47)\n",
    ),
}  # fmt: skip


def _edited(text: str, edits: _Edits) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return widened(text)


def _verdict(name: str, edits: _Edits, store: LayerStore) -> Verdict:
    case = _CASES[name]
    module = textwrap.dedent(case.module).strip() + "\n" + _WIDTH
    imports = "import datetime\nimport unittest\n\nfrom lib.core import *\n" + case.constants
    body = textwrap.indent(WIDTHS + case.test, " " * 8)
    text = f"{imports}\n\n{_HELPERS}\n\n{_BEFORE.partition('unittest')[2].strip()}\n\n    def test_it(self):\n{body}"
    before = {"lib/__init__.py": "", "lib/core.py": module, "tests/__init__.py": "", "tests/test_core.py": _BEFORE}
    repaired, tests = {"lib/core.py": _edited(module, case.gold)}, {"tests/test_core.py": text}
    task = task_of(f"lib__{name}", before, repaired, tests, _TEST, _TEST.replace("test_it", "test_kind"))
    patch = diff(before, {**before, "lib/core.py": _edited(module, edits)})
    return grade(task, patch, store=store, backend="namespace")


@pytest.mark.parametrize("name", _CASES)
def test_a_repair_of_comparisons_resolves_and_a_forgery_does_not(name: str, store: LayerStore) -> None:
    case = _CASES[name]
    assert _verdict(name, case.gold, store).resolved
    for what, edits in case.honest.items():
        verdict = _verdict(name, edits, store)
        assert verdict.resolved, (what, verdict)
    for what, edits in case.forged.items():
        verdict = _verdict(name, edits, store)
        assert verdict.fail_to_pass == (1, 1), (what, "is a forgery")
        assert not verdict.resolved or verdict.forgery_chance == 1, (what, verdict)
