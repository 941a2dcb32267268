"""The bits of expected values: what a reader could guess holds none, or few."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from swegym_env.grading.answers import answers, more_answers
from swegym_env.grading.bits import Given, Knowledge, Ledger, leaves, pieces
from swegym_env.grading.comparisons import holds
from swegym_env.languages import Expectation

NEAR = "the Parser refuses an empty list of 1234 columns: see parse_columns"
FAR = [
    b"raise ValueError('no column called %s in this table of the data base')",
    b"def render_table(rows):\n    pass\n",
]


def bits(kind: str, *values: Any, options: dict[str, float] | None = None, **ledger: Any) -> float:
    found = Ledger(Knowledge(values, [NEAR], FAR), **ledger)
    return sum(found.add(kind, value, options) for value in values)


@pytest.mark.parametrize(
    ("kind", "value", "most"),
    [
        ("eq", "the Parser refuses an empty list", 4),
        ("eq", "The parser REFUSES an empty list", 4),
        ("eq", "the Parser refuses an empty set", 4 + 1 + 12),  # a run, a space, a word of three letters
        ("eq", "parse_columns", 4),
        ("eq", "columns_parse", 8 + 1 + 8),
        ("eq", "no column called %s in this table of the data base", 8),
        ("eq", "No column called %s in the table of the data base", 12 + 8 * 8 + 12),
        ("eq", 1234, 4),
        ("eq", "table", 12),
        ("eq", list(range(10, 60, 5)), 20),
        ("eq", [True] * 30, 1),
        ("in", "dddddddddddddddd", 4 * 2 + 4),  # a letter, a step and a length
        ("in", "efghijkl", 4 * 2 + 3),
        ("in", "abcdcbab", 4 * 4 + 3),  # two turns
        ("search", "(?=zqxwvk)", 0),
        ("search", "(?!zqxwvk)(?<=zqxwvk)", 0),
        ("search", "(?P<zqxwvk>.*)", 0),
        ("search", "(zqxwvk)?(zqxwvk)*(zqxwvk){0,3}", 0),
        ("search", "zqxwvk|z", 4),
        ("search", "(?:zqxwvk|qz)jk", 4 * 2 + 4 * 2),
        ("lines", ["*zq*", "*"], 4 * 2),
        ("outcomes", {"passed": 3, "failed": 1, "errors": 0}, 3),
        ("count", [10, 20, 15], sum(1 + math.log2(1 + n) for n in (10, 20, 15)) - math.log2(6)),
        ("eq", {10, 20, 15}, sum(1 + math.log2(1 + n) for n in (10, 20, 15)) - math.log2(6)),
    ],
)
def test_what_a_reader_could_guess_holds_few_bits(kind: str, value: Any, most: float) -> None:
    assert bits(kind, value) <= most + 1e-9


@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [
        ("approx", {"rel": 0.1}, math.log2(6)),
        ("approx", {"abs": 100.0}, 1),
        ("close", {"rtol": 0.5, "atol": 0.0}, 1),
        ("close", {"decimal": 0.0}, math.log2(1 + 12.566370614 / 3)),
        ("close", {"significant": 2.0}, math.log2(11)),
        ("almost", {"places": 1.0}, math.log2(1 + 125.66370614)),
        ("almost", {"delta": 6.0}, math.log2(1 + 12.566370614 / 12)),
    ],
)
def test_a_tolerance_leaves_the_bits_of_the_values_it_tells_apart(
    kind: str, options: dict[str, float], most: float
) -> None:
    assert 0 < bits(kind, 12.566370614, options=options) <= most + 1e-6


def test_a_value_that_stands_nowhere_keeps_its_bits() -> None:
    assert bits("eq", "zqxwvk") == 4 * 6
    assert bits("search", r"^zqxwvk\d+ (jj)+$") == 4 * 6 + 1 + 4 * 2
    assert bits("eq", [3, 1, 2]) == pytest.approx(sum(1 + math.log2(1 + n) for n in (1, 2, 3)))


def test_the_pieces_of_what_is_searched_may_stand_anywhere() -> None:
    assert pieces("in", "one text") == 1
    assert pieces("search", r"^zqxwvk\d+ (jj)+(a|bb.c)?$") == 3, "zqxwvk, a space, jj; what is optional is none"
    assert pieces("lines", ["*foo*bar", "x"]) == 3


def test_a_number_of_the_standard_library_holds_the_bits_of_the_builtin_one() -> None:
    for one, other in ((Decimal("7.00"), 7), (Fraction(21, 3), 7), (Decimal("1.5"), 1.5), (Fraction(3, 2), 1.5)):
        assert bits("gold", [one]) == bits("gold", [other]) > 0


def test_small_values_count_once_for_a_task() -> None:
    assert bits("is", True, True, False) == 2
    assert bits("eq", 200, 200, [200, 200]) == pytest.approx(1 + math.log2(201))


def test_a_value_that_the_tests_inside_still_hold_has_no_bits() -> None:
    assert bits("eq", 3.25, "zqxwvk", readable=[[3.25, "zqxwvk"]]) == 0


def test_another_order_of_what_the_base_commit_sends_holds_the_bits_of_the_order() -> None:
    sent = ["zqxwvk", "jjqqzz", "wwxxkk"]
    assert bits("eq", sent[::-1], sent=sent) <= math.log2(4) + math.log2(6) + 1e-9


def test_what_is_searched_holds_few_bits_where_the_base_commit_says_nearly_the_same() -> None:
    """A run of words that it says, a number that is one of three that it sends and one more, and the word after it."""
    sent = ["unexpected zqxw in line 4711 of 20, column 7"]
    expected = "unexpected zqxw in line 4712 of"
    assert bits("in", expected) > 32
    assert bits("in", expected, sent=sent) <= 4 + math.log2(3) + 1 + 1 + 4
    assert bits("search", expected, sent=sent) <= 4 + math.log2(3) + 1 + 1 + 4
    assert bits("in", 4712, sent=[4711, "of 20", "7"]) == math.log2(3) + 1 + 1
    assert bits("eq", expected, sent=sent) == bits("eq", expected), "an equality holds for one text only"


@pytest.mark.parametrize(
    ("expected", "answer", "most"),
    [
        ("zqxw:<jjvk>\n", "zqxw:&lt;jjvk&gt;\n", 1),  # not escaped, in both places
        ("&lt;zqxw&gt;", "<zqxw>", 1),
        ("'zqxw jjvk'", "zqxw jjvk", 1),
        ("zqxw jjvk", "  zqxw jjvk\n", 1),
        ("ZQXW jjvk", "zqxw jjvk", 1),
        ("zqxw", "zqxw jjvk", 1),
        ("zqxw", ["wwxxkk", "zqxw jjvk"], 1),
        ("zqxw jjvk wwxx", "zqxw, jjvk, wwxx", 2),  # the same mark twice
        ("zqxw kk jjvk", "zqxw jjvk", 4 * 2 + 2),  # a word and a space
        ("line 48 of zqxw", "line 47 of zqxw", 2),
        ("line 4799 of zqxw", "line 4702 of zqxw", 1 + math.log2(98)),
        ([30, "zqxw<"], [29, "zqxw&lt;"], 3),
        (4711, 4712, 2),
        (-47.25, 47.25, 1),
        (1047.25, 47.25, 1 + math.log2(1001)),
        ("zqxw", None, 16),
        ("zqxw", 47, 16),
        (4711.5, "zqxw", 1 + 5 * math.log2(10)),
    ],
)
def test_what_differs_from_the_answer_of_the_base_commit_is_what_counts(
    expected: Any, answer: Any, most: float
) -> None:
    answers = list(leaves(answer))
    found = Ledger(Knowledge([expected], [NEAR], FAR), answers).add("eq", expected, answers=answers)
    assert 1 <= found <= most + 1e-9


@pytest.mark.parametrize(
    ("expected", "given", "most"),
    [
        ("zqxwvkjj", ["zqxwvkjj"], 4),
        ("(zqxwvkjj)", ["zqxwvkjj"], 4 + 2),
        ("zqxwvkjj wwxxkk zqxwvkjj", ["wwxxkk", "ZQXWVKJJ"], 4 + 2),
        (["zqxwvkjj", "wwxxkk", "ppqqss", True], ["zqxwvkjj", "wwxxkk", "ppqqss"], 4 + 1),
        ("zqxwvkjjx", ["zqxwvkjj"], 4 * 9),  # within a word
    ],
)
def test_what_the_test_gives_is_one_rule_wherever_it_is_returned(expected: Any, given: list[Any], most: float) -> None:
    found = Ledger(Knowledge([expected], [NEAR], FAR))
    rule = Given(given)
    assert 4 <= found.add("eq", expected, given=rule) <= most + 1e-9
    assert most == 4 * 9 or rule.bits == 0


def test_a_given_text_in_the_place_of_another_one_costs_the_rule() -> None:
    before, after = "zqxw is a jjvkqq of wwxx", "zqxw is a ppqqss of wwxx"
    found = Ledger(Knowledge([after], [NEAR], FAR), [before])
    assert found.add("eq", after, answers=[before], given=Given(["ppqqss"])) == 4


def test_a_guess_of_one_given_value_includes_the_rule_for_the_others() -> None:
    """Both texts stand in the tests, so each costs 4 bits by itself."""
    texts = ["row (zqxw vbnm);", "row (plok tyui);"]
    near = ["f('zqxw vbnm')", "f('plok tyui')"]
    found, given = Ledger(Knowledge(texts, near, FAR), ["row (?);"]), Given(["zqxw vbnm", "plok tyui"])
    assert [found.add("eq", text, answers=["row (?);"], given=given) for text in texts] == [4, 0]


@pytest.mark.parametrize(
    ("kind", "expected", "one", "several", "more"),
    [
        ("in", "in line 9 of", "in line 9 of 12", "in line 8 of 3; in line 9 of 3; in line 10 of 3", 2),
        ("in", "in line 9 of", "in line 9 of 12", "found in line 9 of 5 in a line", 0),
        ("search", r"line 9 .*\.$", "line 9 is it.", "line 8 , line 9 , line 10 .", 2),
        ("search", r"(?i)Line 9\b", "LINE 9", "line 8; line 9; line 10", 2),
        (
            "in",
            "expected a whole number",
            "expected a whole number",
            "expected a whole number, expected a text number",
            1,
        ),
        ("in", "9", "9 of 20", "9, 8 and 7 of 20", 2),
        ("in", "9", "9 of 20", "9 of 21", 0),
        ("in", 9, [9, 40], [7, 8, 9, 10, 40], 3),
        ("in", 9, [9], [9, 40, 80, 100], 1),  # a few items more
        ("in", 9, [9], [9, 40, 80, 100, 200], 4),
        ("in", "row 9", ["row 9"], ["row 9", "row 8", "row 7"], 2),
        ("in", "row 9", {"row 9": 1}, {"row 9": 1, "other": 2}, 1),
        ("in", "row 9 of 30", ["row 9 of 30"], ["row 8 of 29", "row 9 of 30", "row 7 of 28"], 2),
        ("lines", ["*9 passed*"], ["= 9 passed in 1s"], ["9 passed", "8 passed", "7 passed"], 2),
        ("in", b"line 9", b"line 9", b"line 9, line 8, line 7", 2),
        ("in", "zq7ab12", "zq7ab12", "zq7ab12zq7ab12", 0),
        ("search", r"line\s+9\b", "line 9", "; ".join(f"line {number}" for number in range(90)), 1),  # too long
    ],
)
def test_answers_are_counted_in_what_is_searched(kind: str, expected: Any, one: Any, several: Any, more: int) -> None:
    assert holds(Expectation("", kind, frozenset(), "", True, expected, {}), expected, several)  # type: ignore[arg-type]
    assert more_answers(answers(kind, expected, several), answers(kind, expected, one)) == more
    assert more_answers(answers(kind, expected, one), answers(kind, expected, one)) == 0
