"""Lineups: correct code passes the copies with right values and fails the others, and a reader sees no difference."""

from __future__ import annotations

import ast
import datetime
import enum
import itertools
import random
import re
import types
import unittest
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.languages import Copy, ExpectedValue, python
from swegym_env.languages.python.controls import make_control
from swegym_env.languages.python.decoys import replaceable, words_of
from swegym_env.languages.python.lineup import copies_passed, expectations, make_lineup, unexamined
from swegym_env.languages.python.logs import parse_sympy

from .test_controls import BODIES, HEAD, Anything

NAME = "t/test_x.py::test_x"
WORDS = words_of("area text Ada greeting Hello morning evening several other words of some length here there")


def of_body(body: str) -> dict[str, str]:
    return {"t/test_x.py": f"{HEAD}def test_x():\n    {body}\n"}


def run_copies(files: dict[str, str], seed: int, decoys: int, area: object) -> tuple[dict[Copy, bool], dict[str, str]]:
    """Copy → whether it passed with this function under test, and the texts; the log is that of a runner of our own."""
    found = expectations(files, [NAME], {})
    lineup = make_lineup(files, [NAME], {}, {one: (min(decoys, one.decoys), 1) for one in found}, seed)
    names: dict[str, object] = {"area": area, "case": unittest.TestCase(), "Box": Box}
    exec(compile(lineup.files["t/test_x.py"], "test_x.py", "exec"), names)
    log = {}
    for copy in lineup.copies:
        try:
            names[copy.name]()  # type: ignore[operator]
        except Exception:  # noqa: BLE001 - whatever a test fails with
            log[f"t/test_x.py::{copy.name}"] = "FAILED"
        else:
            log[f"t/test_x.py::{copy.name}"] = "PASSED"
    return dict(copies_passed(lineup, log)), dict(lineup.files)


# A value that only the probe can find wrong: what it expects stands on both sides, or the base commit decides it.
NOT_SOUND = {"an equality of displays", "empty text", "an early end", "an expected error called"}


@pytest.mark.parametrize("name", BODIES)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=5, deadline=None)
def test_correct_code_passes_exactly_the_copies_with_right_values(name: str, seed: int) -> None:
    passed, _ = run_copies(of_body(BODIES[name]), seed, 3, lambda a, b: a * b)
    assert passed
    wrong = {copy.expectation for copy, has in passed.items() if has != copy.right}
    sound = {copy.expectation for copy in passed} - wrong
    assert not wrong or name in NOT_SOUND, [one.text for one in wrong]
    assert sound, "the last resort, at least"


@pytest.mark.parametrize("name", [name for name in BODIES if "equality" in name and not name.endswith("displays")])
def test_an_object_that_equals_everything_passes_decoys(name: str) -> None:
    passed, _ = run_copies(of_body(BODIES[name]), 1, 3, lambda a, b: Anything())
    assert any(has and not copy.right for copy, has in passed.items())


class Kind(type):
    taken: tuple[type, ...] = ()

    def __instancecheck__(cls, other: object) -> bool:
        return type.__instancecheck__(cls, other) or type(other) in cls.taken


class Box(metaclass=Kind):
    compared: tuple[str, ...] = ("width", "height")

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and all(getattr(self, name) == getattr(other, name) for name in self.compared)

    __hash__ = None  # type: ignore[assignment]


class BoxOfWidth(Box):
    compared = ("width",)


class Color(enum.Enum):
    RED, GREEN = 1, 2


class Pair(NamedTuple):
    one: int
    two: int


class Text(str):
    pass


class EqualsBoxes:
    """Equals what is of the class that is expected, and of no other type."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Box

    __hash__ = None  # type: ignore[assignment]


class Near:
    def __sub__(self, other: object) -> float:
        return 0.0

    __rsub__ = __sub__


def declared_as_box(value: object) -> object:
    Box.taken = (type(value),)
    return value


CALLS = itertools.count(1)


# The body of a test → the values of its expectations, what repairs, and what does not but fits all values of one place.
PLACES: dict[str, tuple[str, list[str], object, object]] = {
    "each word and number of a searched text": (
        "assert 'row 47 of 62' in area(1, 1)", ["'row 47 of 62'"] * 4,
        lambda a, b: "row 47 of 62", lambda a, b: " ".join(f"row {number} of 62" for number in range(100)),
    ),
    "a text that is counted": (
        "assert area(1, 1).count('row 47') == 1", ["'row 47'", "'row 47'", "1"],
        lambda a, b: "row 47", lambda a, b: " ".join(f"row {number}" for number in range(100)),
    ),
    "what a method is asked for": (
        "assert area(1, 1).get(47)", ["area(1, 1).get(47)"] * 2,
        lambda a, b: {47: True}, lambda a, b: dict.fromkeys(range(100), True),
    ),
    "what a name says that a method is asked for": (
        "wanted = 47\n    assert area(1, 1).get(wanted)", ["area(1, 1).get(wanted)"] * 2,
        lambda a, b: {47: True}, lambda a, b: dict.fromkeys(range(100), True),
    ),
    "a part of a set": (
        "assert {47} <= set(area(1, 1))", ["{47} <= set(area(1, 1))"] * 2, lambda a, b: [47], lambda a, b: range(100),
    ),
    "where something is found": (
        "case.assertNotEqual(area(1, 1).find('row 47'), -1)",
        ["case.assertNotEqual(area(1, 1).find('row 47'), -1)"] * 2,
        lambda a, b: "row 47", lambda a, b: " ".join(f"row {number}" for number in range(100)),
    ),
    "what something is counted for that is no text": (
        "case.assertEqual(area(1, 1).count(47), 1)", ["case.assertEqual(area(1, 1).count(47), 1)", "1"],
        lambda a, b: [47], lambda a, b: list(range(100)),
    ),
    "an attribute": (
        "assert hasattr(area(1, 1), 'row_47')", ["hasattr(area(1, 1), 'row_47')"] * 2,
        lambda a, b: types.SimpleNamespace(row_47=1),
        lambda a, b: types.SimpleNamespace(**{f"row_{number}": 1 for number in range(100)}),
    ),
    "each constant of an object": (
        "case.assertEqual(area(1, 1), Box(35, 47))", ["35", "47"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    "each constant of an object that others are among": (
        "case.assertIn(area(1, 1), [Box(35, 47)])", ["35", "47", "case.assertIn(area(1, 1), [Box(35, 47)])"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    "each constant of an object in a named list": (
        "boxes = [Box(35, 47)]\n    assert area(1, 1) in boxes", ["35", "47", "area(1, 1) in boxes"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    "each constant of an object that any or all are compared with": (
        "case.assertTrue(any(area(1, 1) == one for one in [Box(35, 47)]))",
        ["35", "47", "any((area(1, 1) == one for one in [Box(35, 47)]))"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    "each constant of an object in comparisons whose results are compared": (
        "case.assertEqual([True], [one == Box(35, 47) for one in [area(1, 1)]])", ["35", "47", "True"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    **{
        f"each constant of an object, by {condition}": (
            f"case.{condition}", ["35", "47", text], lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1)
        )
        for condition, text in (
            ("assertEqual(len([one for one in [Box(35, 47)] if one == area(1, 1)]), 1)", "1"),
            ("assertEqual(len(list(filter(lambda one: one == area(1, 1), [Box(35, 47)]))), 1)", "1"),
            ("assertEqual([one == two for one, two in zip([area(1, 1)], [Box(35, 47)])], [True])", "True"),
            ("assertEqual([Box(35, 47)].index(area(1, 1)), 0)", "0"),
        )
    },
    **{
        f"each constant of an object, however the test asserts it: {body}": (
            body.replace("BOX", "area(1, 1) == Box(35, 47)").replace("OTHER", "area(1, 1) != Box(35, 47)"),
            [*texts, "35", "47"] if "area" in texts else ["35", "47", *texts],
            lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
        )
        for body, *texts in (
            ("same = BOX\n    case.assertTrue(same)",),
            ("same = BOX\n    assert same\n    case.assertIs(same, True)",),
            ("same = area and BOX\n    assert same, same", "area"),
            ("other = OTHER\n    if other:\n        raise AssertionError(other)",),
            ("if not BOX:\n        case.fail('other')",),
            ("if OTHER:\n        case.fail('other')",),
            ("if BOX:\n        pass\n    else:\n        raise AssertionError('other')",),
            ("BOX or case.fail('other')",),
            ("assert area(1, 1) == BOX",),
            ("assert not OTHER",),
            ("assert not not BOX",),
            ("case.assertFalse(OTHER)",),
            ("case.assertFalse(not BOX)",),
            ("assert not (not area or OTHER)", "area"),
            ("case.assertIn(area(1, 1), [Box(35, 47)] + [])", "case.assertIn(area(1, 1), [Box(35, 47)] + [])"),
            ("made = Box\n    case.assertEqual(area(1, 1), made(35, 47))",),
            ("case.assertEqual(area(1, 1), Box(*(35, 47)))",),
            ("case.assertEqual(area(1, 1), Box(**{'width': 35, 'height': 47}))",),
            ("case.assertEqual(area(1, 1), list((Box(35, 47),))[0])",),
            ("assert [area(1, 1)] == [Box(a, b) for a, b in [(35, 47)]]",),
            ("boxes = [Box(35, 47)]\n    for box in boxes:\n        case.assertEqual(area(1, 1), box)",),
            ("for n, box in [(1, Box(35, 47))]:\n        case.assertEqual(area(n, 1), box)",),
            ("for one, box in zip([area(1, 1)], [Box(35, 47)]):\n        assert one == box",),
        )
    },
    "each part of a condition that unittest asserts": (
        "case.assertTrue(area(1, 1).width == 35 and area(1, 1) == Box(35, 47))", ["35", "35", "47"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    "two computed values": (
        "case.assertEqual(area(1, 2), area(2, 1))", ["case.assertEqual(area(1, 2), area(2, 1))"] * 5,
        lambda a, b: a * b, lambda a, b: Anything(),
    ),
    "two computed objects, by what tells a decoy by its type": (
        "case.assertEqual(area(1, 1), Box(area.__code__.co_argcount, 2))",
        ["2"], lambda a, b: Box(2, 2), lambda a, b: EqualsBoxes(),
    ),
    "two objects of other functions": (
        "made = [Box][0]\n    case.assertEqual(area(1, 1), made(*[2, 2]))",
        ["case.assertEqual(area(1, 1), made(*[2, 2]))"] * 2, lambda a, b: Box(2, 2), lambda a, b: EqualsBoxes(),
    ),
    "a condition of two objects": (
        "made = [Box][0]\n    assert area(1, 1) == made(*[2, 2])",
        ["area(1, 1) == made(*[2, 2])"] * 2, lambda a, b: Box(2, 2), lambda a, b: EqualsBoxes(),
    ),
    "a difference that is always nothing": (
        "case.assertAlmostEqual(area(3, 1), area(6, 0.5))", ["case.assertAlmostEqual(area(3, 1), area(6, 0.5))"] * 4,
        lambda a, b: a * b, lambda a, b: Near(),
    ),
    "what is the same for all that is given": (
        "assert area('Ada', 31) == area('aDA', 31)", ["area('Ada', 31) == area('aDA', 31)"] * 5,
        lambda a, b: (a.lower(), b), lambda a, b: a[:0],
    ),
    "what is the same for all that names stand for": (
        "one = area('Ada', 31)\n    two = 'aDA'\n    case.assertEqual(one, area(two, 31))",
        ["case.assertEqual(one, area(two, 31))"] * 5, lambda a, b: (a.lower(), b), lambda a, b: None,
    ),
    "what is the same for all rows of a loop": (
        "for one, two in [('Ada', 'aDA'), ('Eve', 'eve')]:\n        assert area(one, 2) == area(two, 2)",
        ["area(one, 2) == area(two, 2)"] * 5, lambda a, b: (a.lower(), b), lambda a, b: 0,
    ),
    "an order of two computed values": (
        "case.assertGreater(area(2, 3), area(1, 3))", ["case.assertGreater(area(2, 3), area(1, 3))"] * 2,
        lambda a, b: a * b, lambda a, b: -next(CALLS),
    ),
    "an order of values that have names": (
        "one = area(1, 3)\n    two = area(2, 3)\n    assert one < two", ["one < two"] * 2,
        lambda a, b: a * b, lambda a, b: next(CALLS),
    ),
    "two values that differ": (
        "case.assertNotEqual(area(2, 3), area(1, 3))", ["case.assertNotEqual(area(2, 3), area(1, 3))"] * 2,
        lambda a, b: a * b, lambda a, b: next(CALLS),
    ),
    "a class that all are instances of": (
        "assert isinstance(area(1, 1), Box)", ["isinstance(area(1, 1), Box)"] * 2,
        lambda a, b: Box(2, 2), lambda a, b: declared_as_box("1 1"),
    ),
    "an order": (
        "case.assertGreater(area(2, 3), 5)", ["case.assertGreater(area(2, 3), 5)"], lambda a, b: 1000, None,
    ),
    "a condition in a function that the code under test is to call": (
        "def check(one):\n        case.assertGreater(one, 40)\n    area(check, 1)", ["case.assertGreater(one, 40)"],
        lambda a, b: a(50), lambda a, b: None,
    ),
    "a comparison in a function that the code under test is to call": (
        "def check(one):\n        assert one == 47\n    area(check, 1)", ["47"],
        lambda a, b: a(47), lambda a, b: None,
    ),
    "a statement in a condition": (
        "if area:\n        assert area(2, 3) == 6", ["6"], lambda a, b: 6, lambda a, b: Anything(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=5, deadline=None)
def test_what_fits_everything_in_one_place_passes_decoys_and_a_repair_passes_none(name: str, seed: int) -> None:
    body, texts, repair, forgery = PLACES[name]
    files = of_body(body)
    assert [one.text for one in expectations(files, [NAME], {}) if not one.last_resort] == texts
    passed, _ = run_copies(files, seed, 9, repair)
    assert all(has == copy.right for copy, has in passed.items())
    if forgery is not None:
        passed, _ = run_copies(files, seed, 9, forgery)
        Box.taken = ()
        assert any(has and not copy.right for copy, has in passed.items())


KNOWN = {("Ada", 31), ("aDA", 31)}


@pytest.mark.parametrize(
    ("code", "passes_all"),
    [
        (lambda a, b: (a.lower(), b), True),
        (lambda a, b: a.lower(), True),
        (lambda a, b: b, True),
        (lambda a, b: (a.strip().lower()[:2], b // 10), True),
        (lambda a, b: {"ada": 1, "eve": 2}[a.lower()], True),
        (lambda a, b: 0 if (a, b) in KNOWN else (a, b), False),
        (lambda a, b: 0 if b == 31 else (a, b), False),
    ],
)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=20, deadline=None)
def test_a_repair_may_do_something_else_with_other_inputs_and_must_not_know_those_of_the_test(
    code: object, passes_all: bool, seed: int
) -> None:
    files = of_body("assert area('Ada', 31) == area('aDA', 31)")
    passed, _ = run_copies(files, seed, 2, code)
    assert all(has == copy.right for copy, has in passed.items()) is passes_all


@pytest.mark.parametrize(
    "body",
    [
        "one = 'Ada'\n    assert area(f'{one} x', 1)",
        "one = 'it\\'s\\n\"Ada\"'\n    assert area(f'{one} {2:>{3}} x', 1) == area(f'{one!r}', 2)",
        "one = 'Ada'\n    case.assertTrue(area(f'{one:>8} {len(one)}', 1) < area('x', 2))",
    ],
)
def test_conditions_of_formatted_texts_are_read(body: str) -> None:
    files = of_body(body)
    assert len(expectations(files, [NAME], {})) > 1
    passed, _ = run_copies(files, 1, 2, lambda a, b: (b, a))
    assert passed


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        ("assert area('Ada', 613) == 613", {"613": 1 / 16}),
        ("one = 'Ada 5'\n    case.assertEqual(area(one, 1), 'Ada 5')", {"'Ada 5'": 1 / 16}),
        ("case.assertEqual(area('name: Ada 5', 1), 'Ada')", {"'Ada'": 1 / 16}),
        ("case.assertEqual(area('name: Adalbert', 1), 'Ada')", {"'Ada'": 0.0}),
        ("assert area('Ada', 1) == 613\n    assert area('Eve', 1) == 613", {"613": 0.0}),
        ("case.assertEqual(area('Ada', 1), ['Ada 5', 'Eve'])", {"'Ada 5'": 0.0}),
        ("check_area(5, 613)", {"5": 1 / 2}),
        ("check_others(5, 613)", {"5": 0.0}),
        ("assert_area('Ada', 613)", {"613": 1 / 2}),
    ],
)
def test_a_value_that_a_simple_rule_may_answer_says_so(body: str, rules: dict[str, float]) -> None:
    helpers = "def check_area(name, size):\n    pass\n\n\ndef assert_area(name, size):\n    pass\n\n\n"
    files = {"t/test_x.py": f"{HEAD}{helpers}def test_x():\n    {body}\n"}
    found = {one.text: one.rule for one in expectations(files, [NAME], {}) if not (one.last_resort or one.alike)}
    assert found == rules


def test_an_error_is_no_difference_where_the_gold_patch_is_probed() -> None:
    def strict(a: str, b: int) -> str:
        if a.lower() != "ada" or b != 31:
            raise ValueError(a, b)
        return a.lower()

    files = of_body("assert area('Ada', 31) == area('aDA', 31)")
    as_probe, _ = run_copies(files, 1, 1, strict)
    assert any(has and not copy.right for copy, has in as_probe.items())
    as_patch, _ = run_copies(files, 1, 2, strict)
    assert all(has == copy.right for copy, has in as_patch.items())


def test_every_value_is_in_as_many_copies_as_any_other_and_the_right_one_is_nowhere_else() -> None:
    body = "assert area(2, 3) == 613\n    assert str(area(1, 1)) == 'Hello Ada'\n    assert area(0, 1) == 613"
    files = of_body(f'"""Six hundred and 613."""\n    {body}')
    found = expectations(files, [NAME], {})
    assert [one.text for one in found] == ["613", "'Hello Ada'", "613", "test_x runs"]
    values = found[:3]
    lineup = make_lineup(files, [NAME], {}, dict.fromkeys(values, (9, 2)), 5)
    assert len(lineup.copies) == 60
    tree = ast.parse(lineup.files["t/test_x.py"])
    constants = Counter(
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value not in (0, 1, 2, 3)
    )
    numbers = {value: count for value, count in constants.items() if isinstance(value, int)}
    texts = {value: count for value, count in constants.items() if isinstance(value, str)}
    assert len(numbers) == 10, "the same decoys for the same value"
    assert set(numbers.values()) == {4} and 613 in numbers
    assert len(texts) == 10 and set(texts.values()) == {2}
    assert all(100 <= value <= 999 for value in numbers)
    words = [value.split() for value in texts]
    assert sum(len({pair[place] for pair in words}) == 1 for place in (0, 1)) == 1, "they differ in one word alone"


def test_right_copies_and_decoys_stand_in_any_order_under_names_that_do_not_differ() -> None:
    files = of_body("assert area(2, 3) == 6")
    (value, _) = expectations(files, [NAME], {})
    places = Counter()
    for seed in range(300):
        lineup = make_lineup(files, [NAME], {}, {value: (3, 1)}, seed)
        (right,) = [copy.name for copy in lineup.copies if copy.right]
        functions = [one for one in ast.parse(lineup.files["t/test_x.py"]).body if isinstance(one, ast.FunctionDef)]
        order = [function.name for function in functions if function.name != "test_last_of_this_file"]
        assert len(set(order)) == 4
        places[order.index(right)] += 1
        places["first by name"] += min(order) == right
    assert all(40 < count < 120 for count in places.values()), places  # of 300, a quarter expected


@pytest.mark.parametrize(
    "value", [6, -4, 42, 0, 3.25, 2.0, -0.5, "Hello Ada", "v1.24", "é", "--", "", b"ab 12", True, "x", 1e-9]
)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_decoys_are_different_values_of_the_same_type(value: object, seed: int) -> None:
    found = replaceable(value, WORDS)  # type: ignore[arg-type]
    assert found is not None
    count = min(found.count, 7)
    drawn = found.draw(count, random.Random(seed))
    assert len(set(drawn)) == count and value not in drawn
    assert {type(one) for one in drawn} == {type(value)}


@pytest.mark.parametrize("value", [42, -42, 3, 0, 1000, 3.14159, 2.0, 0.25, "47", "v042"])
def test_the_right_number_stands_anywhere_between_the_ends_of_numbers_near_it(value: Any) -> None:
    found = replaceable(value, WORDS)
    assert found is not None
    places: Counter[int] = Counter()
    for seed in range(400):
        drawn = found.draw(4, random.Random(seed))
        assert len({*drawn, value}) == 5
        numbers = [float(re.search(r"\d+(\.\d+)?", str(one))[0]) for one in (value, *drawn)]  # type: ignore[index]
        places[sorted(numbers).index(numbers[0])] += 1
        unit = {3.14159: 0.01, 0.25: 0.01}.get(value, 1)
        assert all(abs(number - numbers[0]) <= 4.1 * unit for number in numbers)
    if value in (42, -42, 1000, 3.14159, "47", "v042"):
        # Never at an end: both of its neighbours are decoys.
        assert set(places) == {1, 2, 3} and all(100 < count < 170 for count in places.values()), places
    assert value not in (0, 3) or all(number >= 0 for number in numbers)


def test_as_many_numbers_as_are_needed() -> None:
    found = replaceable(42, WORDS)
    assert found is not None
    assert len(set(found.draw(999, random.Random(0)))) == 999


def test_other_tests_of_the_file_are_left_out_and_fixtures_stay() -> None:
    text = (
        "import pytest\n\n\n@pytest.fixture\ndef test_area():\n    return 1\n\n\nclass TestA:\n"
        "    def test_other(self):\n        assert 1 == 2\n\n    def test_x(self):\n        assert 1 == 1\n\n"
        "    def helper(self):\n        pass\n"
    )
    names = ["test_x.py::TestA::test_x"]
    (value, _) = expectations({"test_x.py": text}, names, {})
    assert value == ExpectedValue(frozenset(names), 0, "1", 1_000_000, guess=0.5, read=0.8, place="test_x.py:14:15")
    lineup = make_lineup({"test_x.py": text}, names, {}, {value: (1, 1)}, 0)
    tree = ast.parse(lineup.files["test_x.py"])
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    others = ["test_area", "helper", "test_last_of_this_file"]
    assert sorted(defined) == sorted([*others, *(copy.name for copy in lineup.copies)])


def test_only_the_named_tests_stay_and_no_line_moves() -> None:
    text = (
        "import pytest\n\n\n@pytest.fixture\ndef test_area():\n    return 1\n\n\nclass TestA:\n"
        "    @pytest.mark.skipif(\n        False, reason=''\n    )\n"
        '    def test_other(self):\n        assert """\nnothing""" == 2\n\n'
        "    def test_x(self):\n        assert '\x0c'\n\n"
        "    def helper(self):\n        def test_inner():\n            pass\n\n\nasync def test_more(): pass\n"
    )
    files = {"t/test_x.py": text, "t/data.txt": "def test_text(): pass", "t/test_y.py": "def test_y():\n    pass\n"}
    only_tests = python.Python().only_tests
    made = only_tests(files, ["t/test_x.py::TestA::test_x[1]"])
    assert made is not None
    assert made["t/data.txt"] == files["t/data.txt"]
    lines, tree = made["t/test_x.py"].split("\n"), ast.parse(made["t/test_x.py"])
    assert lines.index("    def test_x(self):") == text.split("\n").index("    def test_x(self):")
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert sorted(defined) == ["helper", "test_area", "test_inner", "test_last_of_this_file", "test_x"]
    assert "test_y" not in made["t/test_y.py"]
    assert only_tests(files, ["t/test_x.py::test_absent"]) is None
    assert only_tests(files, ["A sentence that names a test"]) is None


def test_files_without_a_test_to_repair_lose_their_tests_but_for_what_others_may_need() -> None:
    other = (
        "SIZE = 4\n\n\ndef test_y():\n    pass\n\n\ndef test_cases():\n    return [1]\n\n\nCASES = test_cases()\n\n\n"
        "def test_shared():\n    pass\n"
    )
    files = {
        **of_body("assert test_shared"),
        "t/test_y.py": other,
        "t/support.py": "def test_words():\n    pass\n",
        "t/data.txt": "def test_text(): pass",
    }
    made = python.Python().without_tests_beside(files, ["t/test_x.py"])
    assert set(made) == {"t/test_y.py"}
    names = {node.name for node in ast.walk(ast.parse(made["t/test_y.py"])) if isinstance(node, ast.FunctionDef)}
    assert names == {"test_cases", "test_shared", "test_last_of_this_file"} and "SIZE = 4" in made["t/test_y.py"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_other_tests_are_left_out_whatever_ends_the_lines(end: str) -> None:
    text = "KEPT = 1\n\n\ndef test_x():\n    pass\n\n\nclass TestA:\n    def test_other(self):\n        pass\n"
    text += "\n    # one\n    @(\n        decorated\n    )\n    def test_more(self):\n        pass\n\n\nLAST = 2\n"
    made = python.Python().only_tests({"t/test_x.py": text.replace("\n", end)}, ["t/test_x.py::test_x"])
    assert made is not None
    kept = "KEPT = 1\n\n\ndef test_x():\n    pass\n\n\nclass TestA:\n    pass\n    pass\n\n\nLAST = 2\n"
    expected = ast.parse(kept + "\n\ndef test_last_of_this_file():\n    pass\n")
    assert ast.dump(ast.parse(made["t/test_x.py"])) == ast.dump(expected)


def test_a_copy_with_parameters_passes_if_it_passes_with_all() -> None:
    files = of_body("assert area(2, 3) == 6")
    (value, _) = expectations(files, [NAME], {})
    lineup = make_lineup(files, [NAME], {}, {value: (1, 1)}, 0)
    one, other = (copy.name for copy in lineup.copies)
    log = {f"t/test_x.py::{one}[a]": "PASSED", f"t/test_x.py::{one}[b]": "FAILED", f"t/test_x.py::{other}[a]": "PASSED"}
    passed = copies_passed(lineup, log)
    assert [passed[copy] for copy in lineup.copies] == [False, True]
    assert copies_passed(lineup, {"t/test_x.py::test_x": "PASSED"}) == {}


@pytest.mark.parametrize("name", ["an error and its message", "unittest's error and its message"])
def test_an_error_and_its_message_are_two_expectations(name: str) -> None:
    def other_message(*_: object) -> None:
        raise TypeError("something else")

    def other_error(*_: object) -> None:
        raise ValueError("missing 1 required positional argument")

    for area, met in ((other_message, "raises TypeError"), (other_error, "'missing 1 required'")):
        passed, _ = run_copies(of_body(BODIES[name]), 3, 3, area)
        right = {copy.expectation.text: has for copy, has in passed.items() if copy.right}
        assert {text for text, has in right.items() if has} == {met, "test_x runs"}


def test_a_constant_of_the_file_has_decoys_where_only_tests_use_it() -> None:
    """`WANTED` at the top of the file stands in no lineup: who finds the module finds nothing there."""
    text = (
        "OTHER = Box(5, 6)\nWANTED = Box(35, 47)\nUSED = Box(7, 8)\n\n\ndef helper():\n    return USED\n\n\n"
        "def test_w():\n    assert WANTED\n\n\ndef test_x():\n    assert area(1, 1) == WANTED\n    assert USED\n"
    )
    files = {"t/test_x.py": text}
    found = expectations(files, [NAME], {})
    assert [one.text for one in found if not one.last_resort] == ["35", "47", "USED"]
    lineup = make_lineup(files, [NAME], {}, {found[0]: (3, 1)}, 1)
    tree = ast.parse(lineup.files["t/test_x.py"])
    at_top = {ast.unparse(one.targets[0]) for one in tree.body if isinstance(one, ast.Assign)}
    assert at_top == {"OTHER", "USED"}
    names: dict[str, object] = {"area": lambda a, b: Box(35, 47), "Box": Box}
    exec(compile(tree, "test_x.py", "exec"), names)
    for copy in lineup.copies:
        if copy.right:
            names[copy.name]()  # type: ignore[operator]
        else:
            with pytest.raises(AssertionError):
                names[copy.name]()  # type: ignore[operator]


class Watched:
    """Knows of each of its methods that is called."""

    calls: tuple[str, ...] = ()

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, [size, "a", {"b": None}]

    def __getattribute__(self, name: str) -> object:
        Watched.calls = (*Watched.calls, name)
        return object.__getattribute__(self, name)

    def __copy__(self) -> Watched:
        raise AssertionError

    __reduce_ex__ = __deepcopy__ = __copy__  # type: ignore[assignment]


def _other_value(value: object, step: int, is_derived: bool) -> object:
    names: dict[str, Any] = {}
    exec((Path(python.__file__).parent / "inside/swegym_decoy.py").read_text(), names)
    return names["_other_value"](value, step, is_derived)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -4, 10**30, 2.5, -0.0, 1e300, 3j, "", "a", "row 47", b"", b"a\xff", True, (), [], {}, set(), (1, "a")),
        *([1, [2]], {"a": 1}, {1, 2}, frozenset({1}), Fraction(1, 3), Decimal("1.5"), datetime.date(2024, 2, 29)),
        *(datetime.timedelta(3), Color.RED, Box(3, 4), Pair(1, 2), Text("abc")),
    ],
)
@pytest.mark.parametrize("step", [1, -1, 2, -2])
@pytest.mark.parametrize("is_derived", [False, True])
def test_another_value_is_of_the_same_type_and_not_equal(value: object, step: int, is_derived: bool) -> None:
    other = _other_value(value, step, is_derived)
    assert other != value and value != other
    assert isinstance(other, type(value))
    assert type(other).__name__ == type(value).__name__


def test_another_object_is_made_without_its_class_knowing() -> None:
    value = Watched(3)
    Watched.calls = ()
    other = _other_value(value, 1, False)
    assert Watched.calls == ()
    assert type(other) is Watched and object.__getattribute__(other, "__dict__") == {
        "size": 4,
        "parts": [5, "d", {"b": other.parts[2]["b"]}],
    }
    assert value.size == 3
    for odd in (object(), len, Box, None, float("nan")):
        assert _other_value(odd, 1, False) != odd


def test_equalities_of_inputs_take_no_place_of_other_expectations() -> None:
    equal = "\n    ".join(f"assert area('a{n}', {n}) == area('b{n}', {n})" for n in range(24))
    values = "\n    ".join(f"assert area(1, {n}) == {1000 + n}" for n in range(40))
    before, after = (expectations(of_body(body), [NAME], {}) for body in (values, f"{equal}\n    {values}"))
    count = [sum(one.text.isdecimal() for one in found) for found in (before, after)]
    assert count == [40, 48 - 24]  # each equality has one place before any has a second one
    few = "\n    ".join(equal.split("\n    ")[:4])
    assert sum(one.text.isdecimal() for one in expectations(of_body(f"{few}\n    {values}"), [NAME], {})) == 40


def test_expectations_beyond_the_limit_are_no_part_of_copies_and_added_lines_come_first() -> None:
    shown = "\n    ".join(f"assert area(1, {n}) == area({n}, 1)" for n in range(3, 63))
    files = of_body(f"{shown}\n    assert area(2, 3) == area(3, 2) == 6\n    assert area(2, 3) == 6")
    line = len(files["t/test_x.py"].splitlines())
    found = expectations(files, [NAME], {"t/test_x.py": frozenset({line})})
    assert [one.text for one in found].count("6") == 1  # on the last line of many
    lineup = make_lineup(files, [NAME], {"t/test_x.py": frozenset({line})}, dict.fromkeys(found, (1, 1)), 1)
    texts = re.split(r"(?=^def )", lineup.files["t/test_x.py"], flags=re.MULTILINE)
    for copied in lineup.copies:
        text = next(text for text in texts if f"def {copied.name}(" in text)
        asserted = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
        checking = [node for node in asserted if not isinstance(node.test, ast.List)]
        assert len(checking) == 1, text


@pytest.mark.parametrize(
    "body", ["case.assertIn('title', Box(35, 47))", "assert [one == 'a' for one in Box(35, 47)] == [True, False]"]
)
def test_the_object_in_which_a_test_looks_for_something_is_not_expected(body: str) -> None:
    """A repair may accept other objects than the gold patch."""
    assert not {one.text for one in expectations(of_body(body), [NAME], {})} & {"35", "47"}


@pytest.mark.parametrize(
    "body",
    [
        "for box in [Box(35, 47)]:\n        case.assertEqual(area(str(box), 1), box)",
        "boxes = {'a': Box(35, 47)}\n    case.assertEqual(area(boxes['a'].text(), 1), boxes['a'])",
        "box = Box(35, 47)\n    same = area(box.text(), 1) == box\n    case.assertTrue(same)",
    ],
)
def test_an_object_that_is_an_input_too_is_not_expected(body: str) -> None:
    """The gold patch may know no other value of it, and a repair may."""
    assert not {one.text for one in expectations(of_body(body), [NAME], {})} & {"35", "47"}


@pytest.mark.parametrize(
    ("body", "is_open"),
    [
        ("case.assertEqual(area(1, 1), 12)", False),
        ("def check(one):\n        case.assertEqual(one, 12)\n    check(area(1, 1))", False),
        ("check = lambda one: case.assertEqual(one, 12)\n    check(area(1, 1))", True),
        ("check = case.assertEqual\n    check(area(1, 1), 12)", True),
        ("list(map(case.assertEqual, [area(1, 1)], [12]))", True),
    ],
)
def test_which_tests_assert_what_no_copy_examines(body: str, is_open: bool) -> None:
    assert unexamined(of_body(body), [NAME], {}) == (frozenset({NAME}) if is_open else frozenset())


def test_objects_beyond_the_limit_come_before_plain_values() -> None:
    shown = "\n    ".join(f"assert area(1, {n}) == {n}" for n in range(100, 160))
    found = expectations(of_body(f"{shown}\n    case.assertIn(area(1, 1), [Box(35, 47)])"), [NAME], {})
    assert {"35", "47"} < {one.text for one in found} and len(found) == 48 + 1


def test_copies_and_controls_have_no_subtests() -> None:
    text = (
        "class Test:\n    def test_f(self):\n        for n, square in ((2, 4), (3, 9)):\n"
        "            with self.subTest(n=n), held(n):\n                assert f(n) == square\n"
    )
    found = expectations({"test_f.py": text}, ["test_f.py::Test::test_f"], {})
    lineup = make_lineup({"test_f.py": text}, ["test_f.py::Test::test_f"], {}, dict.fromkeys(found[:1], (3, 1)), 0)
    control = make_control({"test_f.py": text}, ["test_f.py::Test::test_f"], {}, 0)
    assert control is not None and len(lineup.copies) == 4
    for changed in (lineup.files["test_f.py"], control.files["test_f.py"]):
        assert "subTest" not in changed and "held(n)" in changed


def test_a_test_that_the_log_names_by_its_docstring_is_found() -> None:
    text = (
        "class Test:\n    def test_f(self):\n"
        '        """\n        Squares are positive,\n        and so on.\n        """\n        assert f(-2) == 4\n\n'
        "    def test_g(self):\n        assert f(3) == 9\n"
    )
    name, added = "Squares are positive,", {"test_f.py": frozenset({7, 10})}
    assert {one.names for one in expectations({"test_f.py": text}, [name], added)} == {frozenset({name})}
    control = make_control({"test_f.py": text}, [name], added, 0)
    assert control is not None and control.names == {name}
    assert "assert f(3) == 9" in control.files["test_f.py"] and "assert f(-2) == 4" not in control.files["test_f.py"]


def test_no_copy_is_the_last_test_of_a_file() -> None:
    """SymPy's runner ends that line with the outcome of the file, and it is not read."""
    found = expectations(of_body("assert area(2, 3) == 6"), [NAME], {})
    lineup = make_lineup(of_body("assert area(2, 3) == 6"), [NAME], {}, dict.fromkeys(found, (1, 1)), 1)
    names = re.findall(r"def (test\w+)", lineup.files["t/test_x.py"])
    log = "".join(f"{name} ok\n" for name in names[:-1]) + f"{names[-1]} ok            [OK]\n"
    assert copies_passed(lineup, parse_sympy(log)).keys() == {*lineup.copies}
