"""Blind expectations for C and C++: hidden tests whose expected values are not inside the sandbox.

`CHECK_INT(area(2, 3), 6)` becomes a call that sends the value of `area(2, 3)` out of the sandbox. The 6 stays outside
and is compared there. Code that is linked into the test can forge its log, end it, or read its memory, but the memory
does not contain the 6. See `languages.python.blind` for the same in Python, and `grading.blind` for what a run proves.

For a condition of two computed values (in C++ only of numbers and texts), and for a function of the test file that
compares with a literal, the compared values are sent in addition. With `computed`, the test does not contain their
expected values, so code that reads the memory behind its argument, or counts its calls, sends something else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from swegym_env.languages import Blinded, Comparison, Expectation, drawn_word
from swegym_env.languages.c.assertions import Compared, asserted, comparisons, is_assertion
from swegym_env.languages.c.controls import SUFFIXES
from swegym_env.languages.c.expected import without_expected
from swegym_env.languages.c.source import (
    Call,
    Token,
    calls,
    closing,
    functions,
    literal,
    split,
    target_functions,
    tokens,
)
from swegym_env.languages.c.unused import without_unused
from swegym_env.languages.changed import spliced

__all__ = ["make_blind"]

_MACRO = re.compile(r"[A-Z][A-Z0-9_]*")
_NOTHING = (["NULL"], ["nullptr"])
_SENDER = Path(__file__).parent / "inside" / "blind.h"


def make_blind(
    files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
) -> Blinded | None:
    """See `Language.make_blind`. With `computed`, conditions of computed values are sent too, and searches as texts."""
    choice = random.Random(seed)
    prefix, sender, output = (drawn_word(choice) for _ in range(3))
    sender, output = f"/tmp/{sender}.h", f"/tmp/{output}"
    changed: dict[str, str] = {}
    expectations: dict[str, Expectation] = {}
    unread: set[str] = set()
    helpers = frozenset(function.name for source in files.values() for function in functions(source))
    for path, source in files.items():
        if not path.endswith(SUFFIXES):
            continue
        edits: list[tuple[int, int, str]] = []
        targets = target_functions(source, tuple(names))
        removed: dict[str, list[tuple[Token, ...]]] = {}
        for function in functions(source):
            tests = targets.get(function.name)
            if not tests:
                continue
            place = _Place(path, source, function.name, tests, prefix, left, helpers, computed, choice, expectations)
            removed[function.name] = place.removed
            for call in calls(function.body):
                found = place.in_call(call)
                edits += found
                unread |= tests if is_assertion(call) and not any(edit[0] < edit[1] for edit in found) else set()
            for begin, end, one in comparisons(function.body) if path.endswith(".c") else ():
                found = place.in_comparison(begin, end, one)
                edits += found
                unread |= tests if not (computed and found) else set()
        if edits:
            rewritten = spliced(source, [*edits, _include(source, sender)])
            changed[path] = rewritten
            if computed:
                changed[path], reading = without_expected(without_unused(rewritten), removed)
                expectations |= {
                    key: replace(one, options={**one.options, "held": 1.0})
                    for key, one in expectations.items()
                    if one.function in reading and one.place.startswith(f"{path}:")
                }
    if not expectations:
        return None
    header = _SENDER.read_text(encoding="utf-8").replace("@OUTPUT@", output).replace("SWEGYM", prefix)
    header = re.sub(r"^/\*.*?\*/\n", "", header, flags=re.DOTALL)
    return Blinded(changed, {sender: header}, output, expectations, {}, frozenset(unread))


_Edit = tuple[int, int, str]


@dataclass(frozen=True)
class _Place:
    """A function of a test file, in which values are sent.

    Attributes:
        path, source: of the file.
        function, tests: its name, and the tests that consist of it or call it.
        prefix: of the names of the sending functions.
        left, computed: see `make_blind`.
        helpers: the names of all functions of test files.
        choice, expectations: random choice of the keys, and key → expectation; filled.
        removed: the sides of comparisons that are no longer in the test; filled.
    """

    path: str
    source: str
    function: str
    tests: frozenset[str]
    prefix: str
    left: frozenset[str]
    helpers: frozenset[str]
    computed: bool
    choice: random.Random
    expectations: dict[str, Expectation]
    removed: list[tuple[Token, ...]] = field(default_factory=list)

    def in_call(self, call: Call) -> list[_Edit]:
        """The edits of an assertion: it is replaced, or only its parts are sent in place; none if it is unknown."""
        place = self._at(call.start)
        compared = (asserted(call) if place not in self.left else None) or []
        plans = [self._planned(part, place) for part in compared]
        wraps = [
            (
                one.tokens[0].start,
                one.tokens[-1].end,
                f"{_head(one, self.source, self.prefix, self._key(one), self.function)}(",
                "))",
            )
            for _, beside in plans
            for one in beside
        ]
        if not plans or not all(sent for sent, _ in plans):
            inserted = [(begin, begin, before) for begin, _, before, _ in wraps]
            return inserted + [(end, end, after) for _, end, _, after in wraps]
        written = [
            _written(one, self.source, wraps, self.prefix, self._key(one), self.function)
            for sent, _ in plans
            for one in sent
        ]
        return [(call.start, call.end, "(void)(" + ", ".join(written) + ")")]

    def in_comparison(self, begin: int, end: int, one: Compared) -> list[_Edit]:
        """The edits of a comparison by the library outside of assertions; with `computed` its result is "equal"."""
        sent, beside = self._planned(one, self._at(begin))
        written = [
            (each, _written(each, self.source, [], self.prefix, self._key(each), self.function))
            for each in (*sent, *beside)
        ]
        if self.computed:
            return [(begin, end, f"({', '.join(text for _, text in written)}, 0)")] if written else []
        return [(each.tokens[0].start, each.tokens[-1].end, text) for each, text in written]

    def _at(self, offset: int) -> str:
        line = self.source.count("\n", 0, offset) + 1
        return f"{self.path}:{line}:{offset - self.source.rfind(chr(10), 0, offset)}"

    def _planned(self, one: Compared, place: str) -> tuple[list[_Sent], list[_Sent]]:
        sent, beside = _planned(one, place, self.path, self.left, self.helpers, computed=self.computed)
        if self.computed and sent:  # only a part of a side may be sent
            sides = [side for side in (one.actual, one.other, one.expected) if side]
            self.removed.extend(side for side in sides if not any(_is_inside(each.tokens, side) for each in sent))
        return sent, beside

    def _key(self, one: _Sent) -> str:
        key = drawn_word(self.choice)
        self.expectations[key] = Expectation(
            one.place, one.kind, self.tests, self.function, True, one.value, one.options
        )
        return key


@dataclass(frozen=True)
class _Sent:
    """One value that is sent instead of an assertion.

    Attributes:
        place, kind, value, options: of the expectation.
        sender: the function of the header that sends it, without its prefix.
        tokens: the expression that is sent.
        size: number of its bytes that are sent; None: all.
        length: tokens of the number of bytes of memory that are sent.
    """

    place: str
    kind: Comparison
    value: int | str | bool | None
    sender: str
    tokens: tuple[Token, ...]
    options: Mapping[str, float] = field(default_factory=dict)
    size: int | None = None
    length: tuple[Token, ...] = ()


def _planned(
    one: Compared, place: str, path: str, left: frozenset[str], helpers: frozenset[str], *, computed: bool
) -> tuple[list[_Sent], list[_Sent]]:
    """The values that are sent instead of a comparison, and those that are sent in place in addition to it."""
    # In C++, code under test may define the result of a comparison, and the content of its own classes is not known:
    # for these nothing is sent.
    if one.by_operator and path.endswith(".c"):
        one = Compared("truth", one.condition, condition=one.condition, is_loose=True)
    of_two = one.kind in (("equal", "order", "bytes") if path.endswith(".c") else ("equal", "order"))
    sides = [side for side in (one.actual, one.other) if literal(side) is None] if of_two else []
    if not path.endswith(".c") and any([token.text for token in side] in _NOTHING for side in sides):
        sides = []
    is_known = one.kind in ("text", "in", "start", "equal", "order", "bytes")
    given = _given(one, helpers) if path.endswith(".c") and not is_known else []
    parts = [part for part in given or sides if part]
    if not computed:
        options = {"beside": 1.0, "one": 1.0, "held": 1.0}
        sided = {"side": 1.0} if len(parts) == 2 and not given else {}
        beside = [
            _Sent(
                f"{place}/{number}", "gold", None, "through", part, {**options, **(sided if _is_called(part) else {})}
            )
            for number, part in enumerate(parts)
            if f"{place}/{number}" not in left
        ]
        return _sent(one, place, computed=False, is_loose=one.is_loose or bool(given)), beside
    if parts:
        sender = "through" if given else "text" if one.is_text else "number"
        sender = "bytes_through" if one.kind == "bytes" else sender
        gold = [
            _Sent(f"{place}/{number}", "gold", None, sender, part, {"one": 1.0}, length=one.length)
            for number, part in enumerate(parts)
        ]
        if given:  # values without a known content are left out
            gold = [each for each in gold if each.place not in left]
        elif any(each.place in left for each in gold):
            return [], []
        if one.kind in ("equal", "bytes") and not given and len(gold) == 2:  # the other side is no longer in the test
            side = gold[1 if f"{place}/0~" in left else 0]
            gold = [replace(side, options={"one": 1.0, "sides": 2.0})]
        if gold:
            return gold, []
    return _sent(one, place, computed=True, is_loose=one.is_loose), []


def _given(one: Compared, helpers: frozenset[str]) -> list[tuple[Token, ...]]:
    """The computed arguments of a comparing function: one with a text among its arguments, or one of the test file."""
    stream = one.condition or one.actual
    found: list[tuple[Token, ...]] = []
    for at, token in enumerate(stream[:-1]):
        if token.kind != "name" or stream[at + 1].text != "(" or _MACRO.fullmatch(token.text):
            continue
        close = closing(stream, at + 1)
        arguments = split(stream[at + 2 : close], ",") if close > 0 else []
        values = [literal(argument) for argument in arguments]
        computed = [part for part, value in zip(arguments, values, strict=True) if value is None and _is_computed(part)]
        has_text = any(isinstance(value, str) for value in values) and any(map(_is_called, computed))
        answers = one.kind == "truth" or (one.kind == "int" and one.value in (0, 1))
        if len(arguments) > 1 and (has_text or (token.text in helpers and answers)):
            found += computed
    return [part for part in found if not any(part is not other and _is_inside(part, other) for other in found)]


def _is_inside(part: tuple[Token, ...], other: tuple[Token, ...]) -> bool:
    return other[0].start <= part[0].start and part[-1].end <= other[-1].end


def _is_computed(part: tuple[Token, ...]) -> bool:
    """Whether it is neither a constant nor an address."""
    return part[0].text not in ("&", "sizeof") and any(
        token.kind == "name" and not _MACRO.fullmatch(token.text) for token in part
    )


def _is_called(part: tuple[Token, ...]) -> bool:
    """Whether it is a call or a variable."""
    names = any(token.kind == "name" and after.text == "(" for token, after in pairwise(part))
    return names or (len(part) == 1 and part[0].kind == "name" and part[0].text.islower())


def _sent(one: Compared, place: str, *, computed: bool, is_loose: bool) -> list[_Sent]:
    """The value sent for a comparison with a literal, or its truth value; empty if nothing can be sent."""
    # The code under test may define the result of such a comparison, and many values satisfy it.
    loose = {"loose": 1.0} if is_loose else {}
    if one.kind == "int":
        return [] if computed and loose else [_Sent(place, "eq", one.value, "int", one.actual, loose)]
    if one.kind in ("text", "in", "start"):
        kind: Comparison = "in" if one.kind == "in" else "start" if one.kind == "start" else "eq"
        sender = "number" if one.by_operator else "text"
        return [_Sent(place, kind, one.value, sender, one.actual, size=one.size)]
    if computed and (one.kind != "truth" or loose):
        return []
    return [_Sent(place, "eq", True, "truth", one.condition, loose)] if one.condition else []


def _written(
    one: _Sent, source: str, wraps: list[tuple[int, int, str, str]], prefix: str, key: str, function: str
) -> str:
    begin, last = one.tokens[0].start, one.tokens[-1].end
    inner = [wrap for wrap in wraps if begin <= wrap[0] and wrap[1] <= last]
    edits = [(at - begin, at - begin, before) for at, _, before, _ in inner]
    edits += [(end - begin, end - begin, after) for _, end, _, after in inner]
    text = spliced(source[begin:last], edits)
    head = _head(one, source, prefix, key, function)
    if one.sender == "int" and any(_is_lambda(pair) for pair in pairwise(one.tokens)):  # lambdas have no usable type
        return f"{prefix}_plain({head.partition('(')[2]}({text}))"
    if one.sender == "truth":
        return f"{head}({text}) ? 1 : 0)"
    if one.size is not None:
        return f"{prefix}_bytes({head.partition('(')[2]}({text}), {one.size})"
    return f"{head}({text}))"


def _is_lambda(pair: tuple[Token, Token]) -> bool:
    return pair[1].text == "[" and pair[0].text in ("(", ",", "=", "{")


def _head(one: _Sent, source: str, prefix: str, key: str, function: str) -> str:
    """The beginning of a call that sends a value."""
    name = function if re.fullmatch(r"[A-Za-z0-9_.]+", function) else ""
    length = f"({source[one.length[0].start : one.length[-1].end]}), " if one.length else ""
    return f'{prefix}_{one.sender}("{key}", "{name}", {length}'


def _include(source: str, sender: str) -> tuple[int, int, str]:
    """The place after the file's first block of includes: macros before it select what system headers declare."""
    last: Token | None = None
    depth = 0
    for token in tokens(source):
        if token.kind == "directive":
            word = token.text.replace("#", " ").split()[:1]
            depth += (word[0][:2] == "if") - (word[0] == "endif") if word else 0
            if word == ["include"] and not depth:
                last = token
    at = last.end if last is not None else 0
    line = source.count("\n", 0, at) + 1
    return (
        at,
        at,
        f'\n#include "{sender}"\n#line {line}\n' if last is None else f'\n#include "{sender}"\n#line {line + 1}',
    )
