"""Negative controls for C and C++: hidden tests with a wrong expected value each, which no honest patch passes.

See `languages.python.controls` for what a control shows. A test without an assertion that can be changed is not
changed. Tests may also be written in Tcl.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Mapping

from swegym_env.languages import Control
from swegym_env.languages.c import tcl
from swegym_env.languages.c.assertions import Compared, asserted, comparisons
from swegym_env.languages.c.source import (
    Call,
    Function,
    Token,
    added,
    calls,
    closing,
    functions,
    literal,
    split,
    target_functions,
)
from swegym_env.repo.patches import touched_paths
from swegym_env.tasks.task import Task

__all__ = ["SUFFIXES", "control_files", "make_control"]

SUFFIXES = (".c", ".cc", ".cpp", ".cxx", ".c++")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def control_files(task: Task) -> tuple[str, ...]:
    """See `Language.control_files`: the sources of the test patch."""
    return tuple(sorted(path for path in touched_paths(task.test_patch) if path.endswith((*SUFFIXES, ".tcl"))))


def make_control(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
) -> Control | None:
    """See `Language.make_control`. If `names` match no test, each function with an added line is changed."""
    wanted = tuple(names)
    scripts = {path: source for path, source in files.items() if path.endswith(".tcl")}
    if scripts:  # no repository has tests of both kinds
        return tcl.make_control(scripts, wanted, added_lines, seed)
    choice = random.Random(seed)
    targets = {path: target_functions(source, wanted) for path, source in files.items()}
    by_name = any(targets.values())
    changed: dict[str, str] = {}
    named: set[str] = set()
    without_value: set[str] = set()
    guesses: dict[str, float] = {}
    done: set[str] = set()
    for path, source in sorted(files.items()):
        chosen: Mapping[str, frozenset[str]] = targets[path]
        if not by_name:
            chosen = dict.fromkeys(added(source, added_lines.get(path, frozenset())), frozenset({""}))
        edits: list[tuple[int, int, str]] = []
        all_functions = functions(source)
        judging = frozenset(
            one.name for one in all_functions if any(map(asserted, calls(one.body))) or any(comparisons(one.body))
        )
        comparing = frozenset(
            one.name
            for one in all_functions
            if any(each.kind == "equal" for call in calls(one.body) for each in asserted(call) or ())
        )
        known = {function.name: _sites(function, judging) for function in all_functions}
        # A function without expected values is changed only if no function of the same tests has one.
        for name, sites in sorted(known.items(), key=lambda one: not any(map(_is_value, one[1]))):
            # A function that several tests use is changed only if all of them are to be changed.
            tests = chosen.get(name, frozenset())
            if not sites or not tests or (by_name and (tests <= done or not tests <= {*wanted})):
                continue
            values = list(filter(_is_value, sites))
            # An order or inequality is preferred: code that returns another value for each call passes it, and is to be
            # detected.
            one = choice.choice(values or list(filter(_is_unlike, sites)) or sites)
            edits.append(_edit(one, source, choice))
            done |= tests
            named |= tests - {""}
            without_value |= (tests - {""}) if not values else set()
            of_two = name in comparing or _two_given(one)
            if not values and of_two:  # both sides may have any value, or the test may contain one of them
                guesses |= dict.fromkeys(tests - {""}, 1.0)
        if edits:
            for begin, end, text in sorted(edits, reverse=True):
                source = source[:begin] + text + source[end:]
            changed[path] = source
    return Control(changed, frozenset(named), frozenset(without_value), guesses) if changed else None


def _sites(function: Function, judging: frozenset[str]) -> list[Compared]:
    """The comparisons of a function that can be changed."""
    compared = [one for call in calls(function.body) for one in asserted(call) or _given(call, judging)]
    return [one for one in compared if one.expected or one.condition]


def _is_value(one: Compared) -> bool:
    return bool(one.expected) and not one.is_loose


def _given(call: Call, judging: frozenset[str]) -> list[Compared]:
    """The last literal among the arguments of an asserting function of the test file."""
    if call.name not in judging or len(call.arguments) < 2:
        return []
    for argument in reversed(call.arguments):
        value = literal(argument)
        if isinstance(value, str | int):
            return [Compared("text" if isinstance(value, str) else "int", (), argument, value)]
    return []


def _is_unlike(one: Compared) -> bool:
    """Whether it is an order or inequality of two computed values."""
    return one.kind == "order" and literal(one.actual) is None and literal(one.other) is None


def _two_given(one: Compared) -> list[tuple[Token, ...]]:
    """The two computed arguments of `!same(a, b)`; empty for anything else."""
    call = one.condition[1:]
    if len(call) < 4 or call[1].text != "(" or closing(call, 1) != len(call) - 1:
        return []
    given = split(call[2:-1], ",")
    return given if len(given) == 2 and not any(literal(part) is not None for part in given) else []


def _edit(one: Compared, source: str, choice: random.Random) -> tuple[int, int, str]:
    """An edit of one comparison that makes it fail if it holds now."""
    if not one.expected:
        begin, end = one.condition[0].start, one.condition[-1].end
        if one.kind == "truth" and one.condition[0].text == "!" and (pair := _two_given(one)):
            # Two arguments that are required to differ are replaced by the same one twice.
            chosen, other = choice.choice([pair, pair[::-1]])
            return chosen[0].start, chosen[-1].end, source[other[0].start : other[-1].end]
        sides = [source[side[0].start : side[-1].end] for side in (one.actual, one.other) if side]
        if one.kind not in ("equal", "order") or len(sides) < 2:
            return begin, end, f"!({source[begin:end]})"
        if _is_unlike(one) and not {token.text for token in one.condition} & {"<=", ">="}:
            # A value is neither less than nor different from itself, unless each call returns another one.
            side, twin = choice.choice([(one.actual, sides[1]), (one.other, sides[0])])
            return side[0].start, side[-1].end, twin
        # Code that counts its calls cannot know the number of calls before this one.
        again = "".join(f"(void)({choice.choice(sides)}), " for _ in range(choice.randrange(1, 4)))
        return begin, end, f"!({again}({source[begin:end]}))"
    begin, end = one.expected[0].start, one.expected[-1].end
    if isinstance(one.value, str):
        return begin, end, _quoted(_other_text(one.value, choice))
    if abs(one.value) >= 2**31:
        return begin, end, f"({source[begin:end]} - {choice.randrange(1, 4)})"
    return begin, end, str(one.value + choice.randrange(1, 4))


def _other_text(text: str, choice: random.Random) -> str:
    letters = [place for place, letter in enumerate(text) if letter in string.ascii_letters + string.digits]
    if not letters:
        return text + choice.choice(string.ascii_lowercase)
    digits = [place for place in letters if text[place] in string.digits]
    place = choice.choice(digits or letters)  # an answer that lists many values would probably list numbers
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    kind = next(kind for kind in kinds if text[place] in kind)
    other = choice.choice([letter for letter in kind if letter.lower() != text[place].lower()])
    return text[:place] + other + text[place + 1 :]


def _quoted(text: str) -> str:
    parts = (
        _ESCAPES.get(
            letter, letter if letter >= " " and letter != "?" else "".join(f"\\{byte:03o}" for byte in letter.encode())
        )
        for letter in text
    )
    return '"' + "".join(parts) + '"'
