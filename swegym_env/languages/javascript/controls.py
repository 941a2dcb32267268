"""Negative controls for JavaScript and TypeScript: hidden tests with a wrong expected value each.

See `languages.python.controls` for what a control shows. A test without an assertion that can be changed stays as it
is.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Mapping

from swegym_env.languages import Control
from swegym_env.languages.javascript.source import SUFFIXES, Expected, named_tests, read_tests
from swegym_env.repo.patches import touched_paths
from swegym_env.tasks.task import Task

__all__ = ["control_files", "make_control"]

_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


def control_files(task: Task) -> tuple[str, ...]:
    """See `Language.control_files`: the sources of the test patch."""
    return tuple(sorted(path for path in touched_paths(task.test_patch) if path.endswith(SUFFIXES)))


def make_control(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
) -> Control | None:
    """See `Language.make_control`. If `names` match no test, each test with an added line is changed."""
    choice = random.Random(seed)
    wanted = tuple(names)
    known = [(path, test) for path, source in sorted(files.items()) for test in read_tests(path, source)]
    names_of: dict[int, set[str]] = {}
    for name in wanted:
        for test in named_tests((test for _, test in known), name):
            names_of.setdefault(id(test), set()).add(name)
    edits: dict[str, list[tuple[int, int, str]]] = {}
    changed: set[str] = set()
    without_value: set[str] = set()
    for path, test in known:
        tests = frozenset(names_of.get(id(test), ()))
        added = added_lines.get(path, frozenset()).intersection(range(test.first_line, test.last_line + 1))
        if not test.expected or not (tests if names_of else added):
            continue
        values = [one for one in test.expected if one.kind != "turned"]
        chosen = choice.choice(values or test.expected)
        edits.setdefault(path, []).append(_edit(chosen, files[path], choice))
        changed |= tests
        without_value |= tests if not values else frozenset()
    if not edits:
        return None
    texts = {path: _spliced(files[path], places) for path, places in edits.items()}
    return Control(texts, frozenset(changed), frozenset(without_value))


def _edit(one: Expected, source: str, choice: random.Random) -> tuple[int, int, str]:
    """The change that makes the assertion fail if it holds now."""
    text = source[one.begin : one.end]
    if one.kind == "turned":
        return one.begin, one.end, one.turned
    if one.kind == "word":
        return one.begin, one.end, {"true": "false", "false": "true"}.get(text, str(choice.randrange(2, 9)))
    if one.kind == "number":
        return one.begin, one.end, _other_number(text, choice)
    if not one.letters:
        return one.begin, one.end, f"{text[0]}{choice.choice(string.ascii_lowercase)}{text[-1]}"
    at = choice.choice(one.letters)
    kind = next(kind for kind in _KINDS if source[at] in kind)
    other = choice.choice([letter for letter in kind if letter.lower() != source[at].lower()])
    return at, at + 1, other


def _other_number(text: str, choice: random.Random) -> str:
    more = choice.randrange(1, 4)
    plain = text.replace("_", "")
    big = plain.endswith("n")
    try:
        return f"{int(plain.removesuffix('n'), 0) + more}{'n' if big else ''}"
    except ValueError:  # "1.5", "1e3", "010"
        try:
            return repr(float(plain) + more)
        except ValueError:
            return f"({text} + {more})"


def _spliced(source: str, edits: list[tuple[int, int, str]]) -> str:
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source
