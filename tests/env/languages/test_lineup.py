"""Lineups: correct code passes the copies with right values and fails the others, and a reader sees no difference."""

from __future__ import annotations

import ast
import unittest
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.languages import Copy, ExpectedValue
from swegym_env.languages.python.decoys import replaceable, words_of
from swegym_env.languages.python.lineup import copies_passed, expectations, make_lineup

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


class Box:
    compared: tuple[str, ...] = ("width", "height")

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and all(getattr(self, name) == getattr(other, name) for name in self.compared)

    __hash__ = None  # type: ignore[assignment]


class BoxOfWidth(Box):
    compared = ("width",)


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
    "each constant of an object": (
        "case.assertEqual(area(1, 1), Box(35, 47))", ["35", "47"],
        lambda a, b: Box(35, 47), lambda a, b: BoxOfWidth(35, 1),
    ),
    "two computed values": (
        "case.assertEqual(area(1, 2), area(2, 1))", ["case.assertEqual(area(1, 2), area(2, 1))"],
        lambda a, b: a * b, lambda a, b: Anything(),
    ),
    "an order": (
        "case.assertGreater(area(2, 3), 5)", ["case.assertGreater(area(2, 3), 5)"], lambda a, b: 1000, None,
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
    passed, _ = run_copies(files, seed, 3, repair)
    assert all(has == copy.right for copy, has in passed.items())
    if forgery is not None:
        passed, _ = run_copies(files, seed, 3, forgery)
        assert any(has and not copy.right for copy, has in passed.items())


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
        order = [node.name for node in ast.parse(lineup.files["t/test_x.py"]).body if isinstance(node, ast.FunctionDef)]
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
    import random

    found = replaceable(value, WORDS)  # type: ignore[arg-type]
    assert found is not None
    count = min(found.count, 7)
    drawn = found.draw(count, random.Random(seed))
    assert len(set(drawn)) == count and value not in drawn
    assert {type(one) for one in drawn} == {type(value)}


def test_numbers_have_as_many_digits_unless_more_decoys_are_needed() -> None:
    import random

    found = replaceable(42, WORDS)
    assert found is not None
    assert all(10 <= one <= 99 for one in found.draw(20, random.Random(0)))
    assert len(set(found.draw(999, random.Random(0)))) == 999


def test_other_tests_of_the_file_are_left_out_and_fixtures_stay() -> None:
    text = (
        "import pytest\n\n\n@pytest.fixture\ndef test_area():\n    return 1\n\n\nclass TestA:\n"
        "    def test_other(self):\n        assert 1 == 2\n\n    def test_x(self):\n        assert 1 == 1\n\n"
        "    def helper(self):\n        pass\n"
    )
    names = ["test_x.py::TestA::test_x"]
    (value, _) = expectations({"test_x.py": text}, names, {})
    assert value == ExpectedValue(frozenset(names), 0, "1", 1_000_000, guess=0.5, read=0.7)
    lineup = make_lineup({"test_x.py": text}, names, {}, {value: (1, 1)}, 0)
    tree = ast.parse(lineup.files["test_x.py"])
    defined = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert sorted(defined) == sorted(["test_area", "helper", *(copy.name for copy in lineup.copies)])


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
