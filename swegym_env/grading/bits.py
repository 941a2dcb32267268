"""How much a blind comparison proves: the bits of an expected value that a guess would need.

The bits of a value are what it takes to write it for somebody who knows the issue, the repository at the base commit
and the tests as they are inside the sandbox. The formula is deliberately low:

True, False, None             1
an integer n                  1 + log2(1 + |n|), at most 20; at most 4 if it stands in the issue or the tests
a date, a time                its numbers, each as an integer
integers in equal steps       the first one, the step, and how many
a float                       1 + 3.3 per significant digit, at most 40; with a tolerance, log2 of how many values it
                              tells apart up to its own size
text                          4 per character of a word that is found nowhere (of a run like "aaaa" or "abcd": of two
                              and of its length); a word that the issue or the tests hold:
                              at most 8; one that the repository holds: at most 12; one that follows the same word as
                              there: at most 4; a run of words that stands in the issue or the tests: 4; other
                              characters: 1 each, at most 4 in a row. Letter case does not count.
text that stands there whole  at most 4 if in the issue or the tests, at most 8 if in the repository
a pattern                     of what it requires: not what is optional, an alternative or looked ahead for
a value that the base commit  at most log2(1 + how many different values it sends)
sends too
a change of what the base     at most what differs, each different change once: what is left out 1, in the middle of a
commit sends there            text 2; what is new as above, at least 1; another spelling (escaped, quoted, trimmed,
                              with other letter case) 1 in all; of numbers, the sign 1, the difference d 1 + log2(1 + d)
what the test gives the code  4 for all of it together: that it is returned, alone or within a text; the rest of that
under test                    text as above
a value that a test inside    0
still holds
a container                   the sum over its different leaves; for a set, or where the order does not count, less
                              log2(n!); if the base commit sends all of its leaves, at most their order
counts of outcomes            at most 2 each

The same leaf counts once, however often it is expected. What is searched loses log2 of the length of the text for each
piece that can be found anywhere in it (`pieces`); one of n loses log2 n. In what is searched, the words of the texts
that the base commit sends count as words that the tests hold, and a number as its distance from one of those in them.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import difflib
import html
import importlib
import itertools
import math
import re
import sys
import urllib.parse
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

__all__ = ["GIVEN_BITS", "Given", "Knowledge", "Ledger", "leaves", "pieces"]

GIVEN_BITS = 4.0
"""Of all values of a test together that it gives the code under test: that this returns them."""

_TOKEN = re.compile(r"[^\W_]+|\s+|_+|[^\w\s]+")
_WORDS = re.compile(rb"[0-9a-z\x80-\xff]+")
_NEAR_WORD, _FAR_WORD, _NEAR_TEXT, _FAR_TEXT, _NEXT_WORD, _NUMBER = 8.0, 12.0, 4.0, 8.0, 4.0, 20.0
_MAX_LEAVES, _MAX_TOKENS = 10_000, 2_000
_MOST_DIGITS = 15
_LONG_TEXT, _MOST_LONG_TEXTS = 4, 200  # different words; texts that are looked for in parts
# What differs from what the base commit sends: letters and digits, or one other character.
_PART = re.compile(r"[^\W_]+|\W|_")
_LEFT_OUT, _LEFT_OUT_INSIDE, _SPELLED, _SIGN = 1.0, 2.0, 1.0, 1.0
_MOST_ALIKE, _MOST_PARTS = 4, 600  # texts of the base commit that a text is compared with, and their length
_MOST_ANSWERS = 200
_SPELLINGS: tuple[Callable[[str], str], ...] = (
    *(html.escape, html.unescape, urllib.parse.quote, urllib.parse.unquote),
    *(repr, lambda text: text.strip("\"'"), str.strip),
)
_parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def leaves(value: Any) -> Iterator[Any]:
    """The values in nested containers that are not containers themselves, keys of dictionaries included."""
    waiting, count = [value], 0
    for item in waiting:  # grows during the iteration
        if isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += item
        else:
            parts = _numbers_of(item)
            yield from parts
            count += len(parts)
        if count > _MAX_LEAVES:
            return


def _numbers_of(item: Any) -> Sequence[Any]:
    """The builtin values that represent a value of the standard library in the count of bits; else the value itself."""
    if isinstance(item, Decimal | Fraction):
        return (_as_number(item),)
    if isinstance(item, datetime.timedelta):
        return [part for part in (item.days, item.seconds, item.microseconds) if part] or [0]
    if not isinstance(item, datetime.date | datetime.time):
        return (item,)
    day = [item.year, item.month, item.day] if isinstance(item, datetime.date) else []
    names = ("hour", "minute", "second", "microsecond")
    return day + [part for name in names if (part := getattr(item, name, 0))] or [0]


def _as_number(value: Decimal | Fraction) -> float:
    """The builtin number that represents a number of the standard library in the count of bits."""
    try:
        near = float(value)
    except (OverflowError, ValueError):  # too large; a signalling NaN
        return math.nan
    return int(near) if near.is_integer() and abs(near) < 1 << 53 else near


def _folded(text: str) -> bytes:
    return text.encode("utf-8", "replace").lower()


def _words(text: str) -> list[bytes]:
    return _WORDS.findall(_folded(text))


class Knowledge:
    """What somebody without the expected values knows.

    Args:
        values: the expected values, of builtin types; texts that have nothing in common with them are not kept.
        near: the issue, and the tests as they are inside the sandbox.
        far: contents of the files of the repository.
    """

    def __init__(self, values: Iterable[Any], near: Iterable[str], far: Iterable[bytes]) -> None:
        self._numbers: set[int] = set()
        texts = sorted({text for value in values for leaf in leaves(value) for text in _texts(leaf)})
        words = {text: _words(text) for text in texts}
        wanted = {word for found in words.values() for word in found}
        self._near = _folded("\n".join(near))
        listed = _WORDS.findall(self._near)
        self._near_words = wanted & set(listed)
        pairs = {pair for found in words.values() for pair in itertools.pairwise(found)}
        self._pairs = pairs & set(itertools.pairwise(listed))
        missing = wanted - self._near_words
        long = [set(found) for found in words.values() if len(set(found)) >= _LONG_TEXT][:_MOST_LONG_TEXTS]
        searched = {_folded(text.strip()) for text in texts if len(text.strip()) > 2}
        searched -= {data for data in searched if data in self._near}
        self._far_words: set[bytes] = set()
        self._far_texts: set[bytes] = set()
        for content in far if missing or searched or long else ():
            lowered = content.lower()
            # Words are where their letters are: most files have none of them, and are not divided into words.
            likely = any(word in lowered for word in missing)
            alike = [text for text in long if sum(word in lowered for word in text) * 5 >= len(text) * 3]
            if likely or alike:
                ordered = _WORDS.findall(lowered)
                here = set(ordered)
                self._far_words |= missing & here
                missing -= here
                if any(len(text & here) * 5 >= len(text) * 3 for text in alike):
                    self._pairs |= pairs & set(itertools.pairwise(ordered))
            found = {data for data in searched if data in lowered}
            self._far_texts |= found
            searched -= found
            if not (missing or searched or long):
                break

    def with_sent(self, sent: Collection[Any]) -> Knowledge:
        """The same knowledge, with these leaves, which the base commit sends."""
        texts = [text for leaf in sent for text in _texts(leaf)]
        near = b"\n".join([self._near, *map(_folded, texts)])
        listed = _WORDS.findall(near)
        numbers = {int(word) for text in texts for word in re.findall(r"\d{1,15}", text)}
        numbers |= {leaf for leaf in sent if type(leaf) is int}
        known = copy.copy(self)
        pairs = self._pairs | set(itertools.pairwise(listed))
        vars(known).update(_near=near, _near_words=set(listed), _pairs=pairs, _numbers=numbers)
        return known

    def changed_bits(
        self, leaf: Any, answers: Collection[Any], given: re.Pattern[str] | None = None
    ) -> Iterator[float]:
        """The bits of one value as a change of each of those that the base commit sends in its place.

        Args:
            answers: the values that the base commit sends, without containers.
            given: matches what the test gives the code under test, which costs nothing here.
        """
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            numbers = dict.fromkeys(
                one for one in answers if isinstance(one, int | float) and not isinstance(one, bool)
            )
            near = itertools.islice(numbers, _MOST_ANSWERS)
            yield from (_change_of_number(leaf, one, len(numbers)) for one in near)
        for text in _texts(leaf):
            known = [other for one in answers for other in _texts(one)]
            yield from (self._change(other, text, given) for other in _most_alike(text, known))

    def _change(self, before: str, after: str, given: re.Pattern[str] | None) -> float:
        """The bits of a text as a change of another text: parts left out and new parts."""
        if any(_spelled(spelling, before) == after for spelling in _SPELLINGS):
            return _SPELLED
        old, new = _parts_of_text(before), _parts_of_text(after)
        costs: dict[tuple[str, str], float] = {}
        matcher = difflib.SequenceMatcher(None, [part.lower() for part in old], [part.lower() for part in new], False)
        for operation, begin, end, first, last in matcher.get_opcodes():
            removed, added = change = "".join(old[begin:end]), "".join(new[first:last])
            beside = self.bits_beside(added, given) if given is not None else None
            if operation == "equal":
                continue
            if not added:
                costs[change] = _LEFT_OUT if begin == 0 or end == len(old) else _LEFT_OUT_INSIDE
            elif any(_spelled(spelling, removed) == added for spelling in _SPELLINGS):
                costs[change] = _SPELLED
            elif beside is not None:
                costs[change] = beside
            elif all(part.isdecimal() and len(part) <= _MOST_DIGITS for part in change):
                costs[change] = min(self._text_bits(added), _change_of_number(int(added), int(removed), 1))
            else:
                costs[change] = max(1.0, self._text_bits(added))
        return sum(costs.values()) if given is not None else max(1.0, sum(costs.values()))

    def bits_beside(self, text: str, given: re.Pattern[str]) -> float | None:
        """The bits of a text without the given texts in it; None if it contains none."""
        rest = given.split(text)
        return sum(self._text_bits(part) for part in rest if part) if len(rest) > 1 else None

    def bits(self, leaf: Any, tolerance: float = 0.0) -> float:
        """The bits of a value that is not a container; numbers within `tolerance` are equal."""
        if leaf is None or isinstance(leaf, bool):
            return 1.0
        if isinstance(leaf, int | float | complex):
            own = self._number_bits(leaf)
            size = abs(leaf) if math.isfinite(abs(leaf)) else 0.0
            return min(own, math.log2(1 + size / (2 * tolerance))) if tolerance else own
        return sum(self._text_bits(text) for text in _texts(leaf))

    def _number_bits(self, number: complex) -> float:
        if isinstance(number, int):
            own = min(1.0 + math.log2(1 + min(abs(number), 1 << 64)), self._distance_bits(number))
            return min(own, _NEAR_TEXT if abs(number) > 9 and self._holds_number(str(abs(number))) else _NUMBER)
        digits = sum(len(part.strip("0")) for part in re.findall(r"\d+", repr(number).partition("e")[0]))
        own = 1.0 + math.log2(10) * digits
        return min(own, _NEAR_TEXT if digits > 1 and self._holds_number(repr(number).lstrip("-")) else 40.0)

    def _distance_bits(self, number: int) -> float:
        """The bits to say which known number it is near to, and how far from it."""
        if not self._numbers:
            return math.inf
        distance = min(abs(number - known) for known in self._numbers)
        return math.log2(len(self._numbers)) + 1.0 + math.log2(1 + min(distance, 1 << 64))

    def _holds_number(self, text: str) -> bool:
        return re.search(rb"(?<![\w.])" + re.escape(text.encode()) + rb"(?!\w)", self._near) is not None

    def _text_bits(self, text: str) -> float:
        own = self._cost(text)
        whole = _folded(text.strip())
        if whole and whole in self._near:
            return min(own, _NEAR_TEXT)
        return min(own, _FAR_TEXT) if whole in self._far_texts else own

    def _cost(self, text: str) -> float:
        """The smallest number of bits of a text, written word by word or as sequences of the issue or the tests."""
        tokens = [_folded(token) for token in _TOKEN.findall(text)[:_MAX_TOKENS]]
        single: list[float] = []
        before = b""
        for token in tokens:
            single.append(self._token_bits(token, before))
            if _WORDS.fullmatch(token):
                before = token
        ends, end = [], 0  # where the longest run that stands there ends, for each beginning
        for begin in range(len(tokens)):
            end = max(end, begin)
            while end < len(tokens) and b"".join(tokens[begin : end + 1]) in self._near:
                end += 1
            ends.append(end)
        costs = [0.0] * (len(tokens) + 1)
        for begin in reversed(range(len(tokens))):
            costs[begin] = single[begin] + costs[begin + 1]
            if ends[begin] > begin + 1:
                costs[begin] = min(costs[begin], _NEAR_TEXT + costs[ends[begin]])
        return costs[0]

    def _token_bits(self, token: bytes, before: bytes) -> float:
        if not _WORDS.fullmatch(token):
            return float(min(len(token), 4))
        known = _NEAR_WORD if token in self._near_words else _FAR_WORD if token in self._far_words else math.inf
        if (before, token) in self._pairs:
            known = _NEXT_WORD
        letters = token.decode("utf-8", "replace")
        own = 4.0 * len(letters)
        if letters.isdecimal() and len(letters) <= _MOST_DIGITS:
            own = min(own, self._distance_bits(int(letters)))
        turns = sum(one != other for one, other in itertools.pairwise(_steps(letters)))
        if 2 * turns < len(letters) - 2:  # "aaaa" and "abcd" are a letter, a step and a length
            own = min(own, 4.0 * (2 + turns) + math.log2(len(letters)))
        return min(own, known)


def _as_whole(text: str) -> str:
    """A pattern that matches a text that is not part of a longer word."""
    begin, end = (r"(?<![^\W_])" if text[:1].isalnum() else "", r"(?![^\W_])" if text[-1:].isalnum() else "")
    return f"{begin}{re.escape(text)}{end}"


def _parts_of_text(text: str) -> list[str]:
    return _PART.findall(text)[:_MOST_PARTS]


def _most_alike(text: str, others: Iterable[str]) -> list[str]:
    """The texts that have most parts in common with a text; of long ones, only such lines."""
    wanted = Counter(part.lower() for part in _parts_of_text(text))
    lines = dict.fromkeys(
        line for other in others for line in [other, *(other.splitlines() if len(other) > len(text) else ())]
    )

    def missing(other: str) -> tuple[int, int]:
        held = Counter(part.lower() for part in _parts_of_text(other))
        return (wanted - held).total(), (held - wanted).total()

    return sorted(itertools.islice(lines, _MOST_ANSWERS), key=missing)[:_MOST_ALIKE]


def _spelled(spelling: Callable[[str], str], text: str) -> str:
    try:
        return spelling(text)
    except (ValueError, TypeError):  # half of a pair of surrogates
        return text


def _change_of_number(number: float, before: float, choices: int) -> float:
    """The bits of a number as a change of one of these numbers: another sign, or a whole number more or less."""
    if not (math.isfinite(number) and math.isfinite(before)):
        return math.inf
    least = math.inf
    for sign in (1, -1):
        difference = abs(number - sign * before)
        if difference == round(difference):
            cost = 1.0 + math.log2(1 + min(difference, 1 << 64)) if difference else 0.0
            least = min(least, cost + (_SIGN if sign < 0 else 0.0))
    return math.log2(max(1, choices)) + max(1.0, least)


def _steps(letters: str) -> list[int]:
    return [ord(after) - ord(before) for before, after in itertools.pairwise(letters)]


def _texts(leaf: Any) -> list[str]:
    if isinstance(leaf, bytes):
        return [leaf.decode("latin-1")]
    return [leaf] if isinstance(leaf, str) else []


class Given:
    """What a test gives the code under test, and the remaining bits of the rule that the code returns it.

    Args:
        values: the leaves that the test gives.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        every = list(values)
        self.values = frozenset(map(_key, every))
        texts = {text for value in every for text in _texts(value) if text.strip()}
        pattern = "|".join(map(_as_whole, sorted(texts, key=lambda text: (-len(text), text))))
        self.texts = re.compile(pattern, re.IGNORECASE) if pattern else None
        self.bits = GIVEN_BITS


@dataclass(frozen=True)
class _Reader:
    """What is known about one comparison.

    Attributes:
        knowledge: knowledge about the task.
        sent: the same, with everything that the base commit sends.
        answers: the leaves that the base commit sends there.
        given: what the test gives.
    """

    knowledge: Knowledge
    sent: Knowledge
    answers: Collection[Any]
    given: Given

    def bits(self, leaf: Any, tolerance: float, limit: float) -> float:
        """The bits of a leaf, at most `limit`; given values cost their bits where they are used first."""
        own = [min(limit, self.knowledge.bits(leaf, tolerance)), *self.sent.changed_bits(leaf, self.answers)]
        given = [0.0] if _key(leaf) in self.given.values else []
        if self.given.texts is not None:
            given += self.sent.changed_bits(leaf, self.answers, self.given.texts)
            given += [
                cost for text in _texts(leaf) if (cost := self.sent.bits_beside(text, self.given.texts)) is not None
            ]
        least, rest = min(own), min(given, default=math.inf)
        bits = min(least, rest + self.given.bits)
        self.given.bits -= max(0.0, bits - rest)  # whoever has guessed so much may have guessed the rule
        return bits


class Ledger:
    """The bits of the comparisons of one task, each different leaf counted once.

    Args:
        knowledge: what somebody without the expected values knows.
        sent: the leaves that the base commit sends.
        readable: values that the tests inside still contain.
        searching: knowledge for searches; by default `knowledge` with `sent`.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        sent: Collection[Any] = (),
        readable: Iterable[Any] = (),
        searching: Knowledge | None = None,
    ) -> None:
        self._knowledge = knowledge
        self._searching = knowledge.with_sent(sent) if searching is None else searching
        self._sent = {_key(leaf) for leaf in sent}
        self._counted: set[object] = {_key(leaf) for value in readable for leaf in leaves(value)}

    def add(
        self,
        kind: str,
        value: Any,
        options: Mapping[str, float] | None = None,
        answers: Collection[Any] = (),
        given: Given | None = None,
    ) -> float:
        """The bits that a comparison adds; see the module's docstring.

        Args:
            kind: of the comparison.
            value: the expected value.
            options: tolerances, by name.
            answers: the leaves that the base commit sends there.
            given: what the test gives the code under test.
        """
        reader = _Reader(self._knowledge, self._searching, answers, given or Given(()))
        seeker = dataclasses.replace(reader, knowledge=self._searching)
        if kind == "of" or (kind in ("start", "end") and isinstance(value, tuple)):  # one of these is enough
            choices = list(value.keys() if isinstance(value, dict) else value)
            if isinstance(value, str) or not choices:
                return 0.0
            return max(0.0, min(self._sum(choice, reader) for choice in choices) - math.log2(len(choices)))
        if kind == "search":
            return self._sum_required(_parsed(value), seeker)
        if kind in ("in", "lines"):
            return self._sum(_parts(value) if kind == "lines" else value, seeker)
        if kind == "outcomes":
            found = [("outcome", name, count) for name, count in value.items() if count]
            fresh = [one for one in found if one not in self._counted]
            self._counted.update(fresh)
            return sum(min(2.0, math.log2(1 + abs(count))) for _, _, count in fresh)
        if kind in ("approx", "almost", "close"):
            return self._sum(value, reader, kind, options or {})
        total = self._sum(value, reader)
        if kind == "count" and hasattr(value, "__len__"):
            total = max(0.0, total - _order_bits(len(value)))
        return total

    def _sum(
        self,
        value: Any,
        reader: _Reader,
        kind: str = "",
        options: Mapping[str, float] | None = None,
    ) -> float:
        if isinstance(value, set | frozenset):
            return max(0.0, self._sum(sorted(value, key=repr), reader, kind, options) - _order_bits(len(value)))
        found = list(leaves(value))
        if _in_steps(found):
            found = [found[0], found[1] - found[0], len(found)]
        total = 0.0
        for leaf in found:
            key = _key(leaf)
            if key not in self._counted:
                self._counted.add(key)
                limit = math.log2(1 + len(self._sent)) if key in self._sent else math.inf
                tolerance = _tolerance(kind, leaf, options) if kind and options is not None else 0.0
                total += reader.bits(leaf, tolerance, limit)
        if len(found) > 1 and all(_key(leaf) in self._sent for leaf in found):
            total = min(total, math.log2(1 + len(self._sent)) + _order_bits(len(found)))
        return total

    def _sum_required(self, parsed: Sequence[Any], reader: _Reader) -> float:
        """The bits of what every match of a parsed pattern contains."""
        total, literal = 0.0, ""
        for operator, argument in [*parsed, (None, None)]:
            name = str(operator)
            if name == "LITERAL":
                literal += chr(argument)
                continue
            total, literal = total + (self._sum(literal, reader) if literal else 0.0), ""
            if name == "SUBPATTERN":
                total += self._sum_required(argument[-1], reader)
            elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
                total += self._sum_required(argument[2], reader)
            elif name == "ATOMIC_GROUP":
                total += self._sum_required(argument, reader)
            elif name == "BRANCH":
                total += min(self._sum_required(branch, reader) for branch in argument[1])
        return total


def pieces(kind: str, value: Any) -> int:
    """How many pieces of an expected text may be anywhere in the searched text, independently."""
    if kind == "lines":
        return max(1, len(_parts(value)))
    return max(1, _runs(_parsed(value))) if kind == "search" else 1


def _parts(patterns: Any) -> list[str]:
    """The texts in patterns of lines, without wildcards."""
    lines = patterns.split("\n") if isinstance(patterns, str) else patterns
    return [part for line in lines for part in re.split(r"[*?]+|\[[^\]]*\]", str(line)) if part]


def _runs(parsed: Sequence[Any]) -> int:
    """The runs of characters that every match of a parsed pattern contains."""
    names = [str(operator) for operator, _ in parsed]
    begins = [name == "LITERAL" and before != "LITERAL" for before, name in zip(["", *names], names, strict=False)]
    inner = 0
    for name, (_, argument) in zip(names, parsed, strict=True):
        if name == "SUBPATTERN":
            inner += _runs(argument[-1])
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0] > 0:
            inner += _runs(argument[2])
        elif name == "BRANCH":
            inner += max(map(_runs, argument[1]))
    return sum(begins) + inner


def _parsed(pattern: Any) -> Sequence[Any]:
    if not isinstance(pattern, str):
        return ()
    try:
        return list(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError):
        return ()


def _order_bits(count: int) -> float:
    return math.lgamma(count + 1) / math.log(2)


def _in_steps(found: Sequence[Any]) -> bool:
    """Whether these are at least three integers in equal steps."""
    if len(found) < 3 or any(type(one) is not int for one in found):
        return False
    return len({later - one for one, later in itertools.pairwise(found)}) == 1


def _tolerance(kind: str, expected: Any, options: Mapping[str, float]) -> float:
    """How far a number may be from the expected number."""
    if isinstance(expected, bool) or not isinstance(expected, int | float | complex):
        return 0.0
    size = abs(expected)
    if not math.isfinite(size):
        return 0.0
    if kind == "approx":
        return max(options.get("rel", 1e-6 if "abs" not in options else 0.0) * size, options.get("abs", 1e-12))
    if kind == "almost":
        return options.get("delta", 0.5 * math.pow(10.0, -options.get("places", 7.0)))
    if "decimal" in options:
        return 1.5 * math.pow(10.0, -options["decimal"])
    if "significant" in options:
        return size * math.pow(10.0, 1 - options["significant"]) / 2
    return options.get("atol", 0.0) + options.get("rtol", 0.0) * size


def _key(leaf: Any) -> tuple[str, str]:
    return type(leaf).__name__, repr(leaf)
