"""Counts the answers in a value that is searched.

The text "line 8; line 9; line 10" contains "line 9", and a list of all numbers contains the right one, but neither
shows that the patch knows which one is right. If what a patch sends has no more answers than what the gold patch sends,
it is not a list of guesses.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator, Sequence
from typing import Any

from swegym_env.grading.comparisons import is_quick, plain_value

__all__ = ["SEARCHES", "answers", "more_answers"]

SEARCHES = ("in", "search", "lines")
"""The kinds of comparison that search."""

_MOST_CHARS, _MOST_TOKENS = 50_000, 24  # characters of the searched text; tokens of the text that is looked for
_NEAR = 3  # a number at most this far from the right one counts as a guess
# With fewer letters beside the number or word that is left open, too much of any text would match.
_LETTERS_AT_NUMBER, _LETTERS_AT_WORD = 3, 6
_NUMBER, _WORD = r"(?<!\d)\d{1,15}(?!\d)", r"(?<![^\W\d_])[^\W\d_]+"
_TOKEN = re.compile(r"(?P<token>\d+|[^\W\d_]+)")
# Matches special parts of a regular expression and, as `token`, each literal number or word without a quantifier.
_PATTERN_PARTS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[a-zA-Z-]+|[:=!>#]|<[=!])|\{[\d,]*\}"
    r"|(?P<token>\d+|[^\W\d_]+)(?![*+?{\w])",
    re.DOTALL,
)
_FLAGS = re.compile(r"\(\?[aiLmsux]+\)")
_HOLE = "\ue000"


def answers(kind: str, expected: Any, actual: Any) -> tuple[int, ...]:
    """Count the answers in what is searched for `expected`.

    Returns:
        The number of items of a container; the number of numbers near an expected number without text around it; and
        the number of different fillings for each number and each word of what is expected, and for all its numbers at
        once. Empty if they cannot be counted.
    """
    actual = plain_value(actual)
    is_text = isinstance(actual, str | bytes)
    if not isinstance(actual, str | bytes | list | tuple | set | frozenset | dict):
        return ()
    items: list[Any] = [actual] if is_text else list(actual)
    count = 0 if is_text or kind == "lines" else len(items)
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        return (count, len({item for item in items if _is_near(expected, item)}))
    texts: list[str] = [
        item.decode("latin-1") if isinstance(item, bytes) else item for item in items if isinstance(item, str | bytes)
    ]
    if sum(map(len, texts)) > _MOST_CHARS:
        return ()
    found: list[int] = []
    numbers = {int(number) for text in texts for number in re.findall(_NUMBER, text)}
    near: set[int] = set()
    for source in _sources(kind, expected):
        for template, *ends in _templates(kind, source):
            if isinstance(template, int):
                near |= {number for number in numbers if _is_near(template, number)}
            elif kind == "search" and not all(is_quick(template, len(text)) for text in texts):
                return ()
            else:
                found.append(len(_fillings(template, ends, texts, whole=not is_text or kind == "lines")))
    return (count, len(near), *found)


def more_answers(found: Sequence[int], most: Sequence[int]) -> int:
    """How many more answers there are than in what the gold patch sends.

    A few additional items count as one, and so do answers that cannot be counted, as in a longer text.
    """
    if not most:
        return 0
    if len(found) != len(most):
        return 1
    few = found[0] <= 2 * most[0] + 2
    items = found[0] - most[0]
    return max(
        0, min(items, 1) if few else items, *(one - other for one, other in zip(found[1:], most[1:], strict=True))
    )


def _is_near(expected: float, other: Any) -> bool:
    if not isinstance(other, int | float) or isinstance(other, bool):
        return False
    return bool(0 < abs(expected - other) <= _NEAR)


def _sources(kind: str, expected: Any) -> list[str]:
    """The texts that are searched for."""
    if isinstance(expected, bytes):
        expected = expected.decode("latin-1")
    if isinstance(expected, str):
        return expected.split("\n") if kind == "lines" else [expected]
    return [line for line in expected if isinstance(line, str)] if isinstance(expected, list | tuple) else []


def _templates(kind: str, source: str) -> Iterator[tuple[str | int, str, str]]:
    """Patterns of what is searched for, each with one number or word, or all numbers, left open.

    For a number without words around it, the number itself. Each with the number or word at its beginning and end that
    is left open, if any.
    """
    if kind == "search" and re.search(r"\\[1-9]|\(\?P[<=]", source):
        return  # groups are counted there
    find = _PATTERN_PARTS if kind == "search" else _TOKEN
    tokens = [match for match in find.finditer(source) if match["token"]][:_MOST_TOKENS]
    numbers = [token for token in tokens if token["token"].isdecimal()]
    for open_ in [[token] for token in tokens] + ([numbers] if len(numbers) > 1 else []):
        is_number = open_[0] in numbers
        letters = sum(len(token["token"]) for token in tokens if token not in [*open_, *numbers])
        if letters < (_LETTERS_AT_NUMBER if is_number else _LETTERS_AT_WORD):
            if is_number and len(open_) == 1:
                yield int(open_[0]["token"][:15]), "", ""
            continue
        parts, end = [], 0
        for token in open_:
            parts += [source[end : token.start()], _HOLE]
            end = token.end()
        holed = "".join([*parts, source[end:]])
        if kind == "in":
            holed = re.escape(holed)
        elif kind == "lines":
            holed = fnmatch.translate(holed)
        pieces = holed.split(_HOLE)
        filling = _NUMBER if is_number else _WORD
        template = pieces[0] + "".join(f"(?P<open{number}>{filling}){piece}" for number, piece in enumerate(pieces[1:]))
        first = open_[0]["token"] if open_[0].start() == 0 else ""
        yield template, first, open_[-1]["token"] if open_[-1].end() == len(source) else ""


def _fillings(template: str, ends: Sequence[str], texts: list[str], *, whole: bool) -> set[tuple[str, ...]]:
    """The fillings of the open places of a pattern, for each match in a text, or for a match of a `whole` text.

    What is expected may begin or end within a word of the text: a filling that contains one of its `ends` there counts
    as it.
    """
    flags = _FLAGS.match(template)
    prefix = flags[0] if flags else ""
    with contextlib.suppress(re.error, OverflowError, RecursionError):
        pattern = re.compile(template if whole else f"{prefix}(?={template[len(prefix) :]})")
        matches = (
            [pattern.fullmatch(text) for text in texts] if whole else [m for t in texts for m in pattern.finditer(t)]
        )
        found = [list(match.groupdict().values()) for match in matches if match is not None]
        for filling in found:
            if ends[0] and filling[0].endswith(ends[0]):
                filling[0] = ends[0]
            if ends[1] and filling[-1].startswith(ends[1]):
                filling[-1] = ends[1]
        return {tuple(filling) for filling in found}
    return set()
