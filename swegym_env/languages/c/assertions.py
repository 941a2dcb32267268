"""Assertions in tests of C and C++, in any framework: recognised by the name of the macro and its literals.

Examples of recognised assertions are `assert(area(2, 3) == 6)`, `CHECK_STR(name, "x")`, `ck_assert_int_eq`,
`TEST_ASSERT_EQUAL_STRING`, `munit_assert_int(a, ==, 3)` and `EXPECT_EQ(f(x), "y")`: the words in a name say what it
compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from swegym_env.languages.c.source import Call, Token, calls, closing, literal, split

__all__ = ["Compared", "asserted", "comparisons", "is_assertion", "words_of"]

_JUDGING = re.compile(
    r"(?i)_*(assert|check|expect|require|verify|should|(ck|cu|cr|g|test|munit|zassert|tt|mu)_\w*(assert|check|expect)"
    r"|(ok|is|cmp_ok|same|equals?|eq|expect|streq|test_(int|str|eq|cond)\w*)\Z)"
)
# Assertions that end a test without a comparison, or check something in another way.
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
_STRINGS = frozenset(("str", "string", "cstring", "streq", "strings", "text"))
# Parts of a condition that many values satisfy: an order, an alternative, a search, a comparison by a function.
_LOOSE = frozenset(("<", ">", "<=", ">=", "!=", "==", "<=>", "||", "?", "=", "&&", "&", "|", "^"))
_OF_LIBRARY = re.compile(r"(str|mem|wcs|wmem|b)\w*(cmp|coll|str|chr|mem|brk)\Z|fnmatch\Z|regexec\Z")
_COMPARING = re.compile(rf"{_OF_LIBRARY.pattern}|.*(?i:equal|same|compare|match|differ|contain|find)")


@dataclass(frozen=True)
class Compared:
    """A comparison of an assertion.

    Attributes:
        kind: "int", "text", "in" and "start" (a text that contains the literal, or begins with it), "truth" of a
            condition, or "equal", "order" and "bytes" (of equal memory) of two computed values.
        actual: tokens of what the test computes.
        expected: tokens of the literal that it is compared with; empty if there is none.
        value: of that literal.
        other: tokens of the other computed value of "equal", "order" and "bytes".
        condition: tokens of the condition that can be negated; empty if there is none.
        is_text: whether the two computed values are texts.
        is_loose: whether many values satisfy it, or a library function decides it.
        by_operator: whether an operator compares a text with an object: in C these would be two pointers.
        size: number of bytes of the text that are compared; None: all.
        length: tokens of the number of bytes that "bytes" compares.
    """

    kind: str
    actual: tuple[Token, ...]
    expected: tuple[Token, ...] = ()
    value: int | str | bool = True
    other: tuple[Token, ...] = ()
    condition: tuple[Token, ...] = ()
    is_text: bool = False
    is_loose: bool = False
    by_operator: bool = False
    size: int | None = None
    length: tuple[Token, ...] = ()


def words_of(name: str) -> frozenset[str]:
    """The words of a name, in lower case: the same for "TEST_ASSERT_EQUAL_INT" and "assertEqualInt"."""
    return frozenset(word.lower() for word in _WORD.findall(name))


def is_assertion(call: Call) -> bool:
    """Whether a call may make its test fail by itself."""
    return bool(_JUDGING.match(call.name) or _ENDING.match(call.name))


def asserted(call: Call) -> list[Compared] | None:
    """The comparisons of an assertion, all of which must hold; None if the assertion is not recognised."""
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
    if compared is None and literal(arguments[0]) is None and literal(arguments[1]) is None:
        is_text = bool(words & _STRINGS)
        compared = Compared("equal", arguments[0], other=arguments[1], is_text=is_text, is_loose=True)
    return [compared] if compared is not None else None


def comparisons(body: Sequence[Token]) -> Iterator[tuple[int, int, Compared]]:
    """Comparisons of texts or memory by library functions outside of assertions: `if (strcmp(got, wanted)) fail();`.

    Returns:
        Start and end of each, and what it compares; a literal side is its expected one.
    """
    known = [(call.start, call.end) for call in calls(body) if is_assertion(call)]
    for at, token in enumerate(body[:-1]):
        if token.text not in _COMPARERS or body[at + 1].text != "(" or (at and body[at - 1].text in (".", "->")):
            continue
        close = closing(body, at + 1)
        given = split(body[at + 2 : close], ",") if close > 0 else []
        if len(given) < 2 or not all(given) or any(begin <= token.start < end for begin, end in known):
            continue
        is_memory = token.text in ("memcmp", "bcmp") and len(given) == 3
        kind, length = ("bytes", given[2]) if is_memory else ("equal", ())
        yield token.start, body[close].end, Compared(kind, given[0], other=given[1], is_text=True, length=length)


_COMPARERS = frozenset(("strcmp", "strncmp", "strcasecmp", "strncasecmp", "memcmp", "bcmp"))


def _equality(left: tuple[Token, ...], right: tuple[Token, ...], *, texts: bool) -> Compared | None:
    values = literal(left), literal(right)
    if (values[0] is None) == (values[1] is None):
        return None
    actual, expected, value = (right, left, values[0]) if values[1] is None else (left, right, values[1])
    if isinstance(value, str) and texts:
        return Compared("text", actual, expected, value)
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        return None
    is_of_library = any(token.kind == "name" and _OF_LIBRARY.match(token.text) for token in actual)
    return Compared("int", actual, expected, value, is_loose=is_of_library)


def _condition(part: tuple[Token, ...]) -> Compared:
    """One part of a condition, as a comparison if it is recognised."""
    found = _compared(part)
    if found is not None:
        return replace(found, condition=part)
    loose = any(token.text in _LOOSE or (token.kind == "name" and _COMPARING.match(token.text)) for token in part)
    if loose and _is_null(part):
        loose = any(_COMPARING.match(token.text) for token in part if token.kind == "name")
    return Compared("truth", part, condition=part, is_loose=loose)


def _is_null(part: tuple[Token, ...]) -> bool:
    """Whether it is `f(x) == NULL`, which only one value satisfies."""
    sides = split(part, "==")
    return len(sides) == 2 and any([token.text for token in side] in (["NULL"], ["nullptr"]) for side in sides)


def _compared(part: tuple[Token, ...]) -> Compared | None:
    if any(token.text in ("||", "?", "=", "&&") for token in part):
        return None
    if len(part) > 2 and part[0].text == "!":
        return _by_function(part[1:], "==")
    for sign in ("==", "!=", "<=", ">=", "<", ">"):
        sides = split(part, sign)
        if len(sides) != 2 or not all(sides):
            continue
        for one, other in (sides, sides[::-1]):
            names = [token.text for token in other]
            if (literal(other) == 0 or names in (["NULL"], ["nullptr"])) and sign in ("==", "!="):
                found = _by_function(one, sign)
                if found is not None:
                    return found
        if _is_null(part):
            return None
        if sign == "==":
            found = _equality(sides[0], sides[1], texts=False)
            if found is not None:
                return found
            found = _equality(sides[0], sides[1], texts=True)
            if found is not None and found.kind == "text":
                return replace(found, by_operator=True)
        # One side or both are computed. Many values satisfy an order; of an equality, the test contains neither value.
        if any(_is_pointer_or_unknown(side) for side in sides):
            return None
        kind = "equal" if sign == "==" else "order"
        return Compared(kind, sides[0], other=sides[1], is_loose=True)
    return _by_function(part, "!=")


def _is_pointer_or_unknown(side: tuple[Token, ...]) -> bool:
    return isinstance(literal(side), str) or [token.text for token in side] in (["NULL"], ["nullptr"])


def _by_function(part: Sequence[Token], sign: str) -> Compared | None:
    """`strcmp(a, "b")`, `strstr(a, "b")` and similar calls, compared with 0; None for anything else."""
    part = tuple(part)
    while len(part) > 2 and part[0].text == "(" and part[-1].text == ")" and part[1].kind == "name":
        part = part[1:-1]
    if len(part) < 4 or part[1].text != "(" or part[-1].text != ")" or part[0].kind != "name":
        return None
    name, arguments = part[0].text, split(part[2:-1], ",")
    values = [literal(argument) for argument in arguments]
    if name == "strcmp" and len(arguments) == 2:
        if sign == "==" and (compared := _equality(arguments[0], arguments[1], texts=True)) is not None:
            return compared if compared.kind == "text" else None
        if values == [None, None] or sign != "==":
            kind = "equal" if sign == "==" else "order"
            return Compared(kind, arguments[0], other=arguments[1], is_text=True, is_loose=True)
    if name in ("memcmp", "bcmp") and len(arguments) == 3 and sign == "==" and not isinstance(values[0], str):
        size = values[2]
        text = values[1] if isinstance(values[1], str) else ""
        is_known = isinstance(size, int) and 0 < size <= len(text) and text.isascii() and "\0" not in text
        if not is_known:
            return Compared("bytes", arguments[0], other=arguments[1], is_loose=True, length=arguments[2])
    text = values[1] if len(values) > 1 and isinstance(values[1], str) else ""
    if not text or values[0] is not None:
        return None
    if name == "strstr" and len(arguments) == 2 and sign == "!=":
        return Compared("in", arguments[0], arguments[1], text)
    size = values[2] if len(values) == 3 else None
    if not isinstance(size, int) or not 0 < size <= len(text.encode()) or not text.isascii() or sign != "==":
        return None
    if name == "memcmp" and "\0" not in text:
        return Compared("text", arguments[0], arguments[1], text[:size], size=size)
    return Compared("start", arguments[0], arguments[1], text[:size]) if name == "strncmp" else None
