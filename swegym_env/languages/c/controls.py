"""Negative controls for C and C++: hidden tests with a wrong expected value each, which no honest patch passes.

See `languages.python.controls` for what a control shows. A test without an assertion that can be changed stays as it
is. Tests may be written in Tcl, too.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Mapping

from swegym_env.languages import Control
from swegym_env.languages.c import tcl
from swegym_env.languages.c.assertions import Compared, asserted
from swegym_env.languages.c.source import Call, added, calls, functions, target_functions
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
    done: set[str] = set()
    for path, source in sorted(files.items()):
        chosen: Mapping[str, frozenset[str]] = targets[path]
        if not by_name:
            chosen = dict.fromkeys(added(source, added_lines.get(path, frozenset())), frozenset({""}))
        edits: list[tuple[int, int, str]] = []
        for function in functions(source):
            # A function that several tests share is changed only for all of them.
            tests = chosen.get(function.name, frozenset())
            if not tests or (by_name and (tests <= done or not tests <= {*wanted})):
                continue
            compared = [(call, one) for call in calls(function.body) for one in asserted(call) or ()]
            sites = [(call, one) for call, one in compared if one.expected or one.condition]
            values = [site for site in sites if site[1].expected and not site[1].is_loose]
            if not sites:
                continue
            call, one = choice.choice(values or sites)
            edits.append(_edit(call, one, source, choice))
            done |= tests
            named |= tests - {""}
            without_value |= (tests - {""}) if not values else set()
        if edits:
            for begin, end, text in sorted(edits, reverse=True):
                source = source[:begin] + text + source[end:]
            changed[path] = source
    return Control(changed, frozenset(named), frozenset(without_value)) if changed else None


def _edit(call: Call, one: Compared, source: str, choice: random.Random) -> tuple[int, int, str]:
    """The change of one comparison that makes it fail if it holds now."""
    if not one.expected:
        begin, end = one.condition[0].start, one.condition[-1].end
        return begin, end, f"!({source[begin:end]})"
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
    place = choice.choice(letters)
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
