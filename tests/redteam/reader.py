"""A reader of lineups: programs that look at all values in the place of one, and choose the most natural.

`achieved` measures how often each of them is right, beside the chance that `ExpectedValue.guess` and the number of
decoys claim. A program that is right more often than claimed is an attack.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from swegym_env.languages import ExpectedValue
from swegym_env.languages.python.lineup import expectations, make_lineup

__all__ = ["CHOICES", "achieved"]

_COMMON = ("ValueError", "TypeError", "KeyError", "AttributeError", "IndexError", "RuntimeError", "ImportError")


@dataclass(frozen=True)
class _Seen:
    """What a reader knows beside the candidates: the file without the copies, and the copy's other words.

    Attributes:
        wrong: what its own code computes, which has the defect of the base commit: the right number but for one.
    """

    numbers: tuple[float, ...]
    words: Counter[str]
    beside: Counter[str]
    wrong: float


def _number(value: str) -> float:
    found = re.findall(r"-?\d+(?:\.\d+)?", value)
    return float(found[-1]) if found else 0.0


def _differing(values: Sequence[str]) -> dict[str, str]:
    """Candidate → the part of it in which the candidates differ."""
    first = min(values)
    begin = next((i for i in range(len(first)) if any(v[: i + 1] != first[: i + 1] for v in values)), len(first))
    end = next(
        (i for i in range(len(first)) if any(v[len(v) - i - 1 :] != first[len(first) - i - 1 :] for v in values)), 0
    )
    return {value: value[begin : max(begin, len(value) - end)] for value in values}


def _zeros(value: str) -> int:
    digits = re.sub(r"\D", "", value)
    return len(digits) - len(digits.rstrip("0"))


# Name → what the chosen candidate has least of. `part` is where the candidates differ.
CHOICES: Mapping[str, Callable[[str, str, _Seen], object]] = {
    "smallest": lambda value, part, seen: abs(_number(value)),
    "largest": lambda value, part, seen: -abs(_number(value)),
    "roundest": lambda value, part, seen: (-_zeros(value), abs(_number(value))),
    "nearest to a number of the file": lambda value, part, seen: (
        min((abs(_number(value) - other) for other in seen.numbers), default=0.0),
        abs(_number(value)),
    ),
    "a number of the file, the smallest": lambda value, part, seen: (
        _number(value) not in seen.numbers,
        abs(_number(value)),
    ),
    "nearest to its own wrong answer": lambda value, part, seen: (
        _number(value) == seen.wrong,
        abs(_number(value) - seen.wrong),
    ),
    "shortest": lambda value, part, seen: (len(value), value),
    "longest": lambda value, part, seen: (-len(value), value),
    "in the file, most often": lambda value, part, seen: -seen.words[part.lower()],
    "in the file, most seldom": lambda value, part, seen: (not seen.words[part.lower()], seen.words[part.lower()]),
    "not in the file": lambda value, part, seen: seen.words[part.lower()],
    "beside it in the test": lambda value, part, seen: (-seen.beside[part.lower()], -seen.words[part.lower()]),
    "most like what is beside it": lambda value, part, seen: -_likeness(part, seen),
    "no builtin exception": lambda value, part, seen: hasattr(builtins, value),
    "the most common exception": lambda value, part, seen: _COMMON.index(value) if value in _COMMON else len(_COMMON),
    "an exception of the file": lambda value, part, seen: (-seen.words[value.lower()], hasattr(builtins, value)),
}


def _likeness(part: str, seen: _Seen) -> float:
    pairs = {part.lower()[i : i + 3] for i in range(len(part) - 2)}
    return max((len(pairs & {word[i : i + 3] for i in range(len(word) - 2)}) for word in seen.beside), default=0)


def _kind(one: ExpectedValue) -> str:
    text = one.text
    if text.startswith("raises "):
        return "error"
    if re.fullmatch(r"-?\d+", text):
        return f"number of {min(3, len(text.lstrip('-')))} digits"
    return "text" if text[:1] in "'\"b" else "float" if re.match(r"-?\d", text) else "other"


def achieved(
    files: Mapping[str, str], names: Sequence[str], decoys: int, seed: int
) -> Iterator[tuple[str, float, set[str]]]:
    """For each value of the tests: its kind, the claimed chance, and the programs that choose the right one."""
    values = [one for one in expectations(files, names, {}) if not one.last_resort and one.guess != 0.5]
    for one in values:
        count = min(decoys, one.decoys)
        lineup = make_lineup(files, names, {}, {one: (count, 1)}, seed)
        copies = {made.name: made for made in lineup.copies}
        bodies: dict[str, str] = {}
        outside: list[ast.AST] = []
        for text in lineup.files.values():
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in copies:
                    bodies[node.name] = ast.unparse(ast.Module(node.body, []))
            outside.append(tree)
        right = {name for name, made in copies.items() if made.right}
        candidates = _candidates(bodies)
        if len(candidates) < 2:
            continue
        beside = Counter(_words(min(bodies.values())))
        for body in bodies.values():
            beside &= Counter(_words(body))  # what all copies have
        around = " ".join([*_around(outside, set(bodies)), *beside.elements()])
        draw = random.Random(f"reader {seed} {one.number}")
        (answer,) = [value for value, name in candidates.items() if name in right][:1] or [""]
        seen = _Seen(
            tuple(float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", around)),
            Counter(_words(around)),
            beside,
            _number(answer) + draw.choice((-1, 1)),
        )
        parts = _differing(list(candidates))
        order = draw.sample(sorted(candidates), len(candidates))
        won = set()
        for name, key in CHOICES.items():
            chosen = min(order, key=lambda value: key(value, parts[value], seen))  # type: ignore[arg-type, return-value]
            if candidates[chosen] in right:
                won.add(name)
        yield _kind(one), max(one.guess, one.read, 1 / (count + 1)), won


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]{2,}|\d+", text.lower())


def _around(trees: list[ast.AST], names: set[str]) -> list[str]:
    """Constants and names of the files outside of the copies, and what is the same in all copies."""
    found: list[str] = []
    waiting = list(trees)
    for node in waiting:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names:
            continue
        if isinstance(node, ast.Constant):
            found.append(str(node.value))
        elif isinstance(node, ast.Name | ast.Attribute | ast.alias):
            found.append(getattr(node, "id", getattr(node, "attr", getattr(node, "name", ""))))
        waiting += ast.iter_child_nodes(node)
    return found


def _candidates(bodies: Mapping[str, str]) -> dict[str, str]:
    """The values that differ between the copies → the copy that has it."""
    names, texts = list(bodies), list(bodies.values())
    first = texts[0]
    begin = next((i for i in range(len(first)) if any(text[: i + 1] != first[: i + 1] for text in texts)), len(first))
    found = {}
    for name, text in zip(names, texts, strict=True):
        # The whole token in which the copies differ, quotes included.
        start = begin
        while start and text[start - 1] not in "\n(,[ =":
            start -= 1
        match = re.match(r"[bru]*'(?:[^'\\]|\\.)*'|[bru]*\"(?:[^\"\\]|\\.)*\"|[-\w.]+", text[start:])
        found[match[0].strip("'\"") if match else text[start:]] = name
    return found
