"""Negative controls for JavaScript and TypeScript: hidden tests with a wrong expected value each.

See `languages.python.controls` for what a control shows. A test without an assertion that can be changed is not
changed.
"""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Iterable, Mapping, Sequence

from swegym_env.languages import Control
from swegym_env.languages.changed import spliced
from swegym_env.languages.javascript.snapshots import SNAPSHOTS
from swegym_env.languages.javascript.source import SUFFIXES, Expected, named_tests, read_tests
from swegym_env.languages.python.decoys import replaceable, words_of
from swegym_env.repo.patches import touched_paths
from swegym_env.tasks.task import Task

__all__ = ["control_files", "make_control"]

_ALTERNATIVES, _MOST_PLACES = 12, 6
_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def control_files(task: Task) -> tuple[str, ...]:
    """See `Language.control_files`: the sources and snapshots of the test patch."""
    return tuple(sorted(path for path in touched_paths(task.test_patch) if path.endswith((*SUFFIXES, SNAPSHOTS))))


def make_control(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
) -> Control | None:
    """See `Language.make_control`. If `names` match no test, each test with an added line is changed."""
    choice = random.Random(seed)
    wanted = tuple(names)
    sources = sorted((path, source) for path, source in files.items() if path.endswith(SUFFIXES))
    known = [(path, test) for path, source in sources for test in read_tests(path, source)]
    words = words_of("\n".join(files.values()))
    names_of: dict[int, set[str]] = {}
    for name in wanted:
        for test in named_tests((test for _, test in known), name):
            names_of.setdefault(id(test), set()).add(name)
    edits: dict[str, list[tuple[int, int, str]]] = {}
    changed: set[str] = set()
    without_value: set[str] = set()
    guesses: dict[str, float] = {}
    for path, test in known:
        tests = frozenset(names_of.get(id(test), ()))
        added = added_lines.get(path, frozenset()).intersection(range(test.first_line, test.last_line + 1))
        if not test.expected or not (tests if names_of else added):
            continue
        values = [one for one in test.expected if one.kind != "turned"]
        # Other values are preferred to expected truth values.
        chosen = choice.choice([one for one in values if one.kind != "word"] or values or test.expected)
        edits.setdefault(path, []).append(_edit(chosen, files[path], words, choice))
        changed |= tests
        without_value |= tests if not values else frozenset()
        texts = {files[path][one.begin : one.end]: _guess(one, files[path]) for one in test.expected}
        guesses |= dict.fromkeys(tests, math.prod(texts.values()))
    if not edits:
        return None
    texts_of = {path: spliced(files[path], places) for path, places in edits.items()}
    return Control(texts_of, frozenset(changed), frozenset(without_value), guesses)


def _guess(one: Expected, source: str) -> float:
    """The chance to guess an expected value without any information."""
    if one.kind in ("turned", "word", "error"):
        return 0.5
    text = source[one.begin : one.end]
    found = replaceable(_number(text) if one.kind == "number" else text[1:-1], ())
    return found.guess if found is not None else 1.0


def _edit(one: Expected, source: str, words: Sequence[str], choice: random.Random) -> tuple[int, int, str]:
    """An edit of the assertion that makes it fail if it holds now."""
    text = source[one.begin : one.end]
    if one.kind in ("turned", "error"):
        return one.begin, one.end, one.turned
    if one.kind == "word":
        return one.begin, one.end, {"true": "false", "false": "true"}.get(text, str(choice.randrange(2, 9)))
    if one.kind == "pattern":
        return one.begin, one.end, _other_pattern(one, source, words, choice)
    begin, end = one.condition or one.assertion or (one.begin, one.end)
    is_async = re.search(r"\b(await|yield)\b", source[begin:end]) is not None
    is_one = (one.condition or one.assertion) is None or (one.condition is None and is_async)
    count = 1 if is_one else _ALTERNATIVES
    others = (
        sorted({*_neighbours(text, count), *(_other_number(text, choice) for _ in range(min(count, 4)))})
        if one.kind == "number"
        else _other_texts(one, source, words, count, choice)
    )
    if is_one:
        return one.begin, one.end, others[0]
    before, after = source[begin : one.begin], source[one.end : end]
    if is_async:
        return begin, end, before + others[0] + after
    # A value that satisfies many lookups contains one of several decoys; an object whose methods always return true
    # satisfies each.
    name = "k" + "".join(choice.choices(string.ascii_lowercase, k=6))
    each = f"{before}{name}{after}"
    if one.condition is None:
        each = f"{{ try {{ {each}; return true; }} catch (error) {{ return false; }} }}"
        return begin, end, f"void ([{', '.join(others)}].some(({name}) => {each}) || {before}{others[0]}{after})"
    return begin, end, f"[{', '.join(others)}].some(({name}) => {each})"


def _places(one: Expected, source: str) -> list[tuple[int, int]]:
    """The words and numbers of a text that have no special meaning, as offsets in the source."""
    letters = frozenset(one.letters)
    found = [
        (one.begin + match.start(), one.begin + match.end())
        for match in re.finditer(r"[A-Za-z]{2,}|\d+|[A-Za-z]", source[one.begin : one.end])
    ]
    found = [(begin, end) for begin, end in found if letters.issuperset(range(begin, end))]
    long = [(begin, end) for begin, end in found if end - begin > 1 or source[begin].isdigit()]
    return long if one.kind == "pattern" or one.condition is not None else found


def _others(word: str, words: Sequence[str], count: int, choice: random.Random) -> list[str]:
    """Similar words of the same file or of the language; for numbers, others with as many digits."""
    if word.isdigit():
        near = [str(int(word) + step).zfill(len(word)) for step in (-2, -1, 1, 2, 3) if int(word) + step >= 0]
        near = [one for one in near if len(one) == len(word)]
        far = replaceable(word, ())
        drawn = [str(one) for one in far.draw(min(count, far.count), choice)] if far is not None else []
        # If there are several, both neighbours are included, so a text with two adjacent numbers contains one of them.
        close = near if count >= len(near) else choice.sample(near, count)
        far_ones = sorted({*drawn} - {*close, word})
        found = [*close, *choice.sample(far_ones, min(count - len(close), len(far_ones)))]
        return choice.sample(found, len(found))
    alike = replaceable(word, words)
    if alike is not None and alike.count >= count and len(word) > 1:
        drawn = [str(one) for one in alike.draw(count, choice)]
        if all(one.isalpha() for one in drawn):
            return drawn
    kind = next(kind for kind in _KINDS if word[0] in kind)
    place = choice.randrange(len(word))
    letters = [letter for letter in kind if letter.lower() != word[place].lower()]
    return [word[:place] + letter + word[place + 1 :] for letter in choice.sample(letters, min(count, len(letters)))]


def _other_texts(one: Expected, source: str, words: Sequence[str], count: int, choice: random.Random) -> list[str]:
    """Variants of a text that differ in one word or number."""
    text = source[one.begin : one.end]
    places = _places(one, source)
    if not places:
        letters = choice.sample(string.ascii_lowercase, count)
        return [f"{text[0]}{letter}{text[-1]}" for letter in letters]
    chosen = [choice.choice(places)] if count == 1 else choice.sample(places, min(len(places), _MOST_PLACES))
    return [
        source[one.begin : begin] + other + source[end : one.end]
        for begin, end in chosen
        for other in _others(source[begin:end], words, count, choice)
    ]


def _other_pattern(one: Expected, source: str, words: Sequence[str], choice: random.Random) -> str:
    """A pattern with several decoys for one word or number, so that a text with many values contains one of them."""
    text = source[one.begin : one.end]
    start = one.begin
    places = [
        (begin, end) for begin, end in _places(one, source) if _stands_for_itself(text, begin - start, end - start)
    ]
    if not places:
        body, _, flags = text[1:].rpartition("/")
        return f"/(?!)(?:{body})/{flags}"
    found = {place: "|".join(_others(source[slice(*place)], words, _ALTERNATIVES, choice)) for place in places}
    if re.search(r"\||\)[?*{]|\(\?<", text):
        # Alternatives and optional parts can match without each other, so all of them are replaced.
        for begin, end in reversed(places):
            text = f"{text[: begin - start]}(?:{found[begin, end]}){text[end - start :]}"
        return text
    body, _, flags = text[1:].rpartition("/")
    chosen = choice.sample(places, min(len(places), _MOST_PLACES))
    variants = [f"{body[: b - start - 1]}(?:{found[b, e]}){body[e - start - 1 :]}" for b, e in chosen]
    return f"/{'|'.join(variants)}/{flags}"


def _stands_for_itself(pattern: str, begin: int, end: int) -> bool:
    """Whether a word in a regular expression matches itself: not in a class, count, group name or flags."""
    if end > pattern.rindex("/") or pattern[end : end + 1] in ("?", "*", "{"):
        return False
    before = re.sub(r"\\.", "xx", pattern[:begin])
    in_class = before.rfind("[") > before.rfind("]")
    return not in_class and not re.search(r"\{[\d,]*\Z|\(\?<?\w*\Z|\\\Z|\\[pPk]\{?<?\w*\Z", before)


def _number(text: str) -> int | float:
    plain = text.replace("_", "").removesuffix("n")
    try:
        return int(plain, 0)
    except ValueError:  # "1.5", "1e3", "010"
        try:
            return float(plain)
        except ValueError:
            return 0


def _neighbours(text: str, count: int) -> list[str]:
    """The two adjacent numbers, if several decoys are needed."""
    value = _number(text)
    is_plain = re.fullmatch(r"[1-9]\d*", text) is not None and value < 2**53
    return [f"{value - 1}", f"{value + 1}"] if count > 1 and is_plain else []


def _other_number(text: str, choice: random.Random) -> str:
    """A number with as many digits; in half of the cases a near one."""
    plain = text.replace("_", "")
    big = "n" if plain.endswith("n") else ""
    value = _number(text)
    if not re.fullmatch(r"[1-9]\d*n?|0n?|\d+\.\d+", plain) or abs(value) >= 2**53:
        return f"({text} + {choice.randrange(1, 4)}{big})"
    if isinstance(value, int) and choice.random() < 0.5:
        near = [other for other in range(value - 2, value + 3) if other != value and 0 <= other < 10 ** len(str(value))]
        return f"{choice.choice(near)}{big}"
    found = replaceable(value, ())
    return f"{found.draw(1, choice)[0]!r}{big}" if found is not None else f"({text} + 1)"
