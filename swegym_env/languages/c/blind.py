"""Blind expectations for C and C++: hidden tests whose expected values are not inside the sandbox.

`CHECK_INT(area(2, 3), 6)` becomes a call that sends the value of `area(2, 3)` out; the six stays outside and is
compared there. Code that is linked into the test can forge its log, end it, or read its memory, but the six is nowhere
in it. See `languages.python.blind` for the same in Python, and `grading.blind` for what a run proves.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from swegym_env.languages import Blinded, Expectation
from swegym_env.languages.c.assertions import Compared, asserted, judges
from swegym_env.languages.c.controls import SUFFIXES
from swegym_env.languages.c.source import Token, calls, functions, target_functions, tokens

__all__ = ["make_blind"]

_SENDER = Path(__file__).parent / "inside" / "blind.h"


def make_blind(
    files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
) -> Blinded | None:
    """See `Language.make_blind`. Nothing is sent of computed values: with `computed` nothing can be rewritten."""
    if computed:
        return None
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
                if compared is None:
                    unread |= tests if judges(call) else set()
                    continue
                sent = []
                for one in compared:
                    key = _word(choice)
                    expectations[key] = Expectation(place, "eq", tests, function.name, True, one.value, {})
                    sent.append(_sent(one, source, prefix, key, function.name))
                edits.append((call.start, call.end, "(void)(" + ", ".join(sent) + ")"))
        if edits:
            changed[path] = _spliced(source, [*edits, _include(source, sender)])
    if not expectations:
        return None
    header = _SENDER.read_text(encoding="utf-8").replace("@OUTPUT@", output).replace("SWEGYM", prefix)
    header = re.sub(r"^/\*.*?\*/\n", "", header, flags=re.DOTALL)
    return Blinded(changed, {sender: header}, output, expectations, {}, frozenset(unread))


def _word(choice: random.Random) -> str:
    return "k" + "".join(choice.choices("bcdfghjkmnpqrstvwxz23456789", k=11))


def _sent(one: Compared, source: str, prefix: str, key: str, function: str) -> str:
    text = source[one.actual[0].start : one.actual[-1].end]
    where = f'"{key}", "{function if re.fullmatch(r"[A-Za-z0-9_.]+", function) else ""}"'
    if one.kind == "int":
        return f"{prefix}_int({where}, (long long)({text}))"
    if one.kind == "text":
        return f"{prefix}_text({where}, ({text}))"
    return f"{prefix}_truth({where}, ({text}) ? 1 : 0)"


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
