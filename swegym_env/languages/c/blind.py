"""Blind expectations for C and C++: hidden tests whose expected values are not inside the sandbox.

`CHECK_INT(area(2, 3), 6)` becomes a call that sends the value of `area(2, 3)` out; the six stays outside and is
compared there. Code that is linked into the test can forge its log, end it, or read its memory, but the six is nowhere
in it. See `languages.python.blind` for the same in Python, and `grading.blind` for what a run proves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swegym_env.languages import Blinded, Comparison, Expectation
from swegym_env.languages.c.assertions import Compared, asserted, judges
from swegym_env.languages.c.controls import SUFFIXES
from swegym_env.languages.c.source import Token, calls, functions, literal, target_functions, tokens

__all__ = ["make_blind"]

_SENDER = Path(__file__).parent / "inside" / "blind.h"


def make_blind(
    files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
) -> Blinded | None:
    """See `Language.make_blind`. With `computed`, conditions of computed values are sent too, and searches as texts."""
    choice = random.Random(seed)
    prefix, sender, output = (_word(choice) for _ in range(3))
    sender, output = f"/tmp/{sender}.h", f"/tmp/{output}"
    changed: dict[str, str] = {}
    expectations: dict[str, Expectation] = {}
    unread: set[str] = set()
    for path, source in files.items():
        if not path.endswith(SUFFIXES):
            continue
        edits: list[tuple[int, int, str]] = []
        targets = target_functions(source, tuple(names))
        for function in functions(source):
            tests = targets.get(function.name)
            if not tests:
                continue
            for call in calls(function.body):
                line = source.count("\n", 0, call.start) + 1
                place = f"{path}:{line}:{call.start - source.rfind(chr(10), 0, call.start)}"
                compared = asserted(call) if place not in left else None
                sent = [one for part in compared or () for one in _sent(part, place, path, left, computed=computed)]
                if len(sent) < len(compared or ()) or not sent:
                    unread |= tests if judges(call) else set()
                    continue
                written = []
                for one in sent:
                    key = _word(choice)
                    value, options = one.value, one.options
                    expectations[key] = Expectation(one.place, one.kind, tests, function.name, True, value, options)
                    written.append(_written(one, source, prefix, key, function.name))
                edits.append((call.start, call.end, "(void)(" + ", ".join(written) + ")"))
        if edits:
            changed[path] = _spliced(source, [*edits, _include(source, sender)])
    if not expectations:
        return None
    header = _SENDER.read_text(encoding="utf-8").replace("@OUTPUT@", output).replace("SWEGYM", prefix)
    header = re.sub(r"^/\*.*?\*/\n", "", header, flags=re.DOTALL)
    return Blinded(changed, {sender: header}, output, expectations, {}, frozenset(unread))


@dataclass(frozen=True)
class _Sent:
    """One value that is sent in the place of an assertion.

    Attributes:
        place, kind, value, options: of the expectation.
        sender: the function of the header that sends it, without its prefix.
        tokens: what is sent.
        size: how many bytes of it; None: all.
    """

    place: str
    kind: Comparison
    value: int | str | bool | None
    sender: str
    tokens: tuple[Token, ...]
    options: Mapping[str, float] = field(default_factory=dict)
    size: int | None = None


def _sent(one: Compared, place: str, path: str, left: frozenset[str], *, computed: bool) -> list[_Sent]:
    """What is sent of one comparison; nothing of what cannot be sent."""
    # The code under test may define what tells the truth of a comparison, and many values satisfy it.
    loose = {"loose": 1.0} if one.is_loose else {}
    if one.kind == "int":
        return [] if computed and loose else [_Sent(place, "eq", one.value, "int", one.actual, loose)]
    if one.kind in ("text", "in", "start"):
        kind: Comparison = "in" if one.kind == "in" else "start" if one.kind == "start" else "eq"
        return [_Sent(place, kind, one.value, "text", one.actual, size=one.size)]
    if not computed:
        return [_Sent(place, "eq", True, "truth", one.condition, loose)] if one.condition else []
    if one.kind == "truth":
        return [] if one.is_loose else [_Sent(place, "eq", True, "truth", one.condition)]
    if not path.endswith(".c"):  # what a type of C++ holds is not known
        return []
    sender = "text" if one.is_text else "number"
    if one.kind == "equal":  # the other side is no longer in the test
        side = one.other if f"{place}~" in left else one.actual
        return [_Sent(place, "gold", None, sender, side, {"sides": 2.0})]
    sides = [side for side in (one.actual, one.other) if literal(side) is None]
    return [_Sent(f"{place}/{number}", "gold", None, sender, side) for number, side in enumerate(sides)]


def _word(choice: random.Random) -> str:
    return "k" + "".join(choice.choices("bcdfghjkmnpqrstvwxz23456789", k=11))


def _written(one: _Sent, source: str, prefix: str, key: str, function: str) -> str:
    text = source[one.tokens[0].start : one.tokens[-1].end]
    where = f'"{key}", "{function if re.fullmatch(r"[A-Za-z0-9_.]+", function) else ""}"'
    if one.sender == "int":
        return f"{prefix}_int({where}, (long long)({text}))"
    if one.sender == "truth":
        return f"{prefix}_truth({where}, ({text}) ? 1 : 0)"
    if one.size is not None:
        return f"{prefix}_bytes({where}, ({text}), {one.size})"
    return f"{prefix}_{one.sender}({where}, ({text}))"


def _include(source: str, sender: str) -> tuple[int, int, str]:
    """After the file's own first run of includes, before which macros choose what the system's headers declare."""
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


def _spliced(source: str, edits: Iterable[tuple[int, int, str]]) -> str:
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source
