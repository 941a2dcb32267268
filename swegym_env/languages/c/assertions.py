"""What a call in a test of C or C++ asserts, whatever its framework: by the name of the macro and its literals.

Known are `assert(area(2, 3) == 6)`, `CHECK_STR(name, "x")`, `ck_assert_int_eq`, `TEST_ASSERT_EQUAL_STRING`,
`munit_assert_int(a, ==, 3)`, `EXPECT_EQ(f(x), "y")` and their kin: the words of a name tell what it compares.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swegym_env.languages.c.source import Call, Token, literal, split

__all__ = ["Compared", "asserted", "judges", "words_of"]

_JUDGING = re.compile(
    r"(?i)_*(assert|check|expect|require|verify|should|(ck|cu|cr|g|test|munit|zassert|tt|mu)_\w*(assert|check|expect)"
    r"|(ok|is|cmp_ok|same|equals?|eq|expect|streq|test_(int|str|eq|cond)\w*)\Z)"
)
# What ends a test without a comparison, or judges in a way of its own.
_ENDING = re.compile(r"(?i)_*(fail|abort|exit|die|panic|test_?error|add_failure)")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_EQUAL = frozenset(
    (
        "eq",
        "equal",
        "equals",
        "streq",
        "same",
        "is",
        "int",
        "uint",
        "long",
        "ulong",
        "size",
        "char",
        "str",
        "string",
        "bool",
        "cstring",
        "int8",
        "int16",
        "int32",
        "int64",
        "hex",
        "strings",
        "text",
    )
)
_NOT_EQUAL = frozenset(
    (
        "ne",
        "neq",
        "not",
        "nequal",
        "unequal",
        "differ",
        "lt",
        "le",
        "gt",
        "ge",
        "less",
        "greater",
        "near",
        "within",
        "delta",
        "contains",
        "match",
        "throw",
        "throws",
        "float",
        "double",
        "ptr",
        "mem",
        "array",
        "strn",
        "nstr",
        "case",
        "death",
        "exit",
        "nstreq",
    )
)
_STRCMP = frozenset({"strcmp"})


@dataclass(frozen=True)
class Compared:
    """A comparison of an assertion.

    Attributes:
        kind: "int", "text", or "truth" of a condition.
        actual: tokens of what the test computes.
        expected: tokens of the literal that it must equal; empty for a truth.
        value: of that literal.
    """

    kind: str
    actual: tuple[Token, ...]
    expected: tuple[Token, ...]
    value: int | str | bool


def words_of(name: str) -> frozenset[str]:
    """The words of a name, in lower case: "TEST_ASSERT_EQUAL_INT" and "assertEqualInt" have the same."""
    return frozenset(word.lower() for word in _WORD.findall(name))


def judges(call: Call) -> bool:
    """Whether a call may make its test fail by itself."""
    return bool(_JUDGING.match(call.name) or _ENDING.match(call.name))


def asserted(call: Call) -> list[Compared] | None:
    """The comparisons of an assertion, all of which must hold; None if it is none that is known."""
    if not _JUDGING.match(call.name):
        return None
    arguments = list(call.arguments)
    words = words_of(call.name)
    if words & {"false", "null"} or "__VA_ARGS__" in [token.text for part in arguments for token in part]:
        return None
    if len(arguments) == 3 and len(arguments[1]) == 1 and arguments[1][0].text == "==":
        arguments = [arguments[0], arguments[2]]
    elif len(arguments) == 1 and not words & (_EQUAL | _NOT_EQUAL):
        return [_condition(part) for part in split(arguments[0], "&&")]
    elif len(arguments) < 2 or not words & _EQUAL or words & _NOT_EQUAL:
        return None
    if len(arguments) > 2 and not all(isinstance(literal(part), str) for part in arguments[2:3]):
        return None
    compared = _equality(arguments[0], arguments[1], texts=not words & {"int", "size", "char", "bool", "long", "uint"})
    return [compared] if compared is not None else None


def _equality(left: tuple[Token, ...], right: tuple[Token, ...], *, texts: bool) -> Compared | None:
    values = literal(left), literal(right)
    if (values[0] is None) == (values[1] is None):
        return None
    actual, expected, value = (right, left, values[0]) if values[1] is None else (left, right, values[1])
    if isinstance(value, str) and texts:
        return Compared("text", actual, expected, value)
    return Compared("int", actual, expected, value) if isinstance(value, int) and -(2**63) <= value < 2**63 else None


def _condition(part: tuple[Token, ...]) -> Compared:
    """One part of a condition, by what it compares with a literal if it does."""
    truth = Compared("truth", part, (), True)
    if any(token.text in ("||", "?", "=") for token in part):
        return truth
    if len(part) > 2 and part[0].text == "!":
        return _texts(part[1:]) or truth
    sides = split(part, "==")
    if len(sides) != 2:
        return truth
    for one, other in (sides, sides[::-1]):
        if literal(other) == 0 and (texts := _texts(one)):
            return texts
    return _equality(sides[0], sides[1], texts=False) or truth


def _texts(part: Sequence[Token]) -> Compared | None:
    """`strcmp(a, "b")`, whose result must be 0."""
    if len(part) < 4 or part[0].text not in _STRCMP or part[1].text != "(" or part[-1].text != ")":
        return None
    arguments = split(part[2:-1], ",")
    if len(arguments) != 2:
        return None
    compared = _equality(arguments[0], arguments[1], texts=True)
    return compared if compared is not None and compared.kind == "text" else None
