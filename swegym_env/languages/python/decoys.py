"""Decoys: values that are as plausible as the expected value that they replace.

All values of a set differ in one place only: a sequence of digits, or one word. If they differed in several places, the
right value would be the one that is most similar to all others.
"""

from __future__ import annotations

import builtins
import keyword
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

__all__ = ["Literal", "Replaceable", "places_of", "replaceable", "tokens_of", "with_token", "words_of"]

Literal = int | float | str | bytes
_TOKEN = re.compile(r"[^\W\d_]{2,}|\d+|[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]{2,}")
_MOST_NUMBERS, _MOST_PLACES = 1_000_000, 6
# How often a program that looks for the most natural value is right, rounded up: see `tests/redteam/reader.py`. A word
# fits its context better than its decoys do, so a program that reads all candidates is assumed to find it.
_READ_NUMBER = 0.8
_GUESSED_TEXTS = (0.4, 0.1, 0.05, 0.01)  # by length


@dataclass(frozen=True)
class Replaceable:
    """A literal value, and the decoys that can replace it.

    Attributes:
        count: number of possible decoys.
        draw: number of decoys and random choice → the decoys, all different, none equal to the value.
        guess, read: see `ExpectedValue`.
        is_number: whether the decoys are the numbers next to the value, or next to one in a text.
    """

    count: int
    draw: Callable[[int, random.Random], list[Literal]]
    guess: float = 0.0
    read: float = 1.0
    is_number: bool = False


def words_of(text: str) -> tuple[str, ...]:
    """The distinct words of a file, in lower case and sorted."""
    return tuple(sorted({word.lower() for word in _WORD.findall(text)}))


def replaceable(value: Literal, words: Sequence[str]) -> Replaceable | None:
    """The possible decoys of `value`; None if there are none.

    Args:
        words: of the same file, in lower case.
    """
    if isinstance(value, bool):
        return Replaceable(1, lambda count, choice: [not value], 0.5, 0.5)
    if isinstance(value, int):
        guess = 0.5 if abs(value) < 10 else 0.1
        return Replaceable(
            _MOST_NUMBERS, lambda count, choice: list(_integers(value, count, choice)), guess, _READ_NUMBER, True
        )
    if isinstance(value, float):
        return _replaceable_float(value)
    if isinstance(value, bytes):
        inner = _replaceable_text(value.decode("latin-1"), words)
        if inner is None:
            return None
        return Replaceable(
            inner.count,
            lambda count, choice: [str(text).encode("latin-1") for text in inner.draw(count, choice)],
            inner.guess,
        )
    return _replaceable_text(value, words)


def _integers(value: int, count: int, choice: random.Random) -> Sequence[int]:
    """Numbers near `value`, with the same sign; the value may have any rank among them.

    A program whose computed value is slightly wrong can know that the right one is near it. If decoys were far away,
    only the right value would be near; and an answer that lists all numbers of that neighbourhood would contain no
    decoy.
    """
    size, sign = abs(value), -1 if value < 0 else 1
    return [sign * other for other in _neighbours(size, count, choice)]


def _neighbours(size: int, count: int, choice: random.Random) -> list[int]:
    """Numbers around `size` without `size` itself, from 0 on; how many of them are smaller is random.

    With three or more, both neighbours of `size` are included, so an answer of two adjacent numbers contains a decoy
    too. With fewer, this would always place the value in the middle.
    """
    below = choice.randrange(1, count) if count > 2 else choice.randrange(count + 1)
    low = max(0, size - below)
    return choice.sample([number for number in range(low, low + count + 1) if number != size], count)


def _replaceable_float(value: float) -> Replaceable | None:
    """The first three significant digits are replaced, or all before the point in numbers like 2.0."""
    text = repr(value)
    mantissa = text.partition("e")[0]
    places = [place for place, letter in enumerate(mantissa) if letter.isdigit()]
    if not places or math.isnan(value):
        return None
    if mantissa.endswith(".0"):
        chosen = [place for place in places if place < len(mantissa) - 2]
    else:
        chosen = [place for place in places if mantissa[: place + 1].strip("-0.")][:3]
    old = int("".join(mantissa[place] for place in chosen))

    def draw(count: int, choice: random.Random) -> list[Literal]:
        found: dict[float, None] = {}
        while len(found) < count:  # some may have too many digits
            for number in _neighbours(old, count + len(found), choice):
                letters = list(text)
                digits = str(number).zfill(len(chosen))
                letters[chosen[-1]] = ""
                for place, digit in zip(chosen, digits, strict=False):
                    letters[place] = digit
                made = float("".join(letters)) if len(digits) == len(chosen) else value
                if made != value and len(found) < count:
                    found[made] = None
        return list(found)

    digits = len(text.replace(".", "").strip("-0"))
    return Replaceable((10 ** len(chosen)) // 2, draw, 0.5 if digits < 2 else 0.1 if digits < 4 else 0.0, _READ_NUMBER)


def places_of(value: str, words: Sequence[str]) -> list[Replaceable]:
    """The possible replacements for each number and word of a text that is searched, the longest first.

    A text that contains all numbers contains the decoys of a word no more often than a repair does.
    """
    tokens = [token for token in _TOKEN.finditer(value) if len(token[0]) > 1 or token[0].isdigit()]
    tokens = [token for token in tokens if value[: token.start()][-1:] != "\\"]  # a character class of a pattern
    tokens.sort(key=lambda token: (not token[0].isdigit(), -len(token[0])))
    found = [_in_place(value, token, words) for token in tokens[:_MOST_PLACES]]
    return [other for other in found if other.count]


def tokens_of(value: int | str | bytes) -> Iterator[str]:
    """The numbers and words in a value, except for single letters."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    yield from (token for token in _TOKEN.findall(text) if len(token) > 1 or token.isdigit())


def with_token(value: int | str | bytes, old: str, new: str) -> int | str | bytes:
    """A value in which one token of `tokens_of` is replaced by another, everywhere."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    text = _TOKEN.sub(lambda token: new if token[0] == old else token[0], text)
    if isinstance(value, int):
        return int(text)
    return text if isinstance(value, str) else text.encode("latin-1")


def _replaceable_text(value: str, words: Sequence[str]) -> Replaceable | None:
    """One run of digits or one word of `value` is replaced: the one with the most possible replacements."""
    best = max((_in_place(value, token, words) for token in _TOKEN.finditer(value)), key=_count, default=None)
    if best is not None and best.count:
        return best
    return Replaceable(
        len(_SIGNS) - 1,
        lambda count, choice: [
            value + sign for sign in choice.sample([sign for sign in _SIGNS if not value.endswith(sign)], count)
        ],
        _guess(value),
    )


def _count(other: Replaceable) -> int:
    return other.count


def _guess(value: str) -> float:
    return _GUESSED_TEXTS[len(value)] if len(value) < len(_GUESSED_TEXTS) else 0.0


def _in_place(value: str, token: re.Match[str], words: Sequence[str]) -> Replaceable:
    before, old, after = value[: token.start()], token[0], value[token.end() :]
    if old.isdigit():
        others: Sequence[str] = ()
        count = 10 ** min(len(old), 6) - 1 - 10 ** (min(len(old), 6) - 1) if len(old) > 1 else 9
    else:
        others = _words_like(old, tuple(words))
        count = len(others)
    return Replaceable(count, _drawer(before, old, after, others), _guess(value), is_number=old.isdigit())


_SIGNS = "-_.:+*/~=|!?,;#"


def _drawer(before: str, old: str, after: str, others: Sequence[str]) -> Callable[[int, random.Random], list[Literal]]:
    def draw(count: int, choice: random.Random) -> list[Literal]:
        if others:
            return [before + other + after for other in choice.sample(others, count)]
        width = len(old) if old[0] == "0" else 0
        return [before + str(number).zfill(width) + after for number in _neighbours(int(old), count, choice)]

    return draw


@cache
def _ordinary_words() -> tuple[str, ...]:
    """Words of the language itself, for files that contain few."""
    names = (*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names, *dir(str), *dir(list), *dir(dict))
    return tuple(sorted({word.lower() for name in names for word in _WORD.findall(name)}))


@lru_cache(maxsize=4096)
def _words_like(old: str, words: tuple[str, ...]) -> list[str]:
    """Words of similar length in the same case: from the file, else also from the language."""
    near = [word for word in words if abs(len(word) - len(old)) <= 2]
    if len(near) < 40:
        near = sorted({*near, *(word for word in _ordinary_words() if abs(len(word) - len(old)) <= 2)})
    case: Callable[[str], str] = str.upper if old.isupper() and len(old) > 1 else str.lower
    if not old.isupper() and old[0].isupper():
        case = str.capitalize
    return [word for word in map(case, near) if word.lower() != old.lower()]
