"""`mini-edit`: generated one-file repositories with one-line bugs, small enough for a model trained from scratch.

Every file has a few functions of two lines. The name of a function says what it computes (`add_price`,
`at_least_age`); one of them computes something else, and the issue reports a call with a wrong result. The repair is
one operator.

The splits differ by content: a fifth of all (verb, noun) names is held out. No file of "train" has any of them, and in
every task of "test" the broken function has one.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from swegym_env.errors import UnknownTaskError
from swegym_env.tasks.task import Task

__all__ = ["Split", "demonstration", "generate", "load", "task_by_id", "tasks"]

Split = Literal["train", "test"]

_ARITHMETIC: dict[str, Callable[[int, int], object]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}
_COMPARISON: dict[str, Callable[[int, int], object]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_GROUPS = (_ARITHMETIC, _COMPARISON)

_VERBS = {
    "add": "+",
    "join": "+",
    "take": "-",
    "lower": "-",
    "scale": "*",
    "repeat": "*",
    "share": "//",
    "split": "//",
    "rest": "%",
    "spare": "%",
    "below": "<",
    "at_most": "<=",
    "above": ">",
    "at_least": ">=",
    "same": "==",
    "other": "!=",
}
_NOUNS = (
    "age", "area", "bill", "bonus", "cargo", "charge", "cost", "count", "date", "debt", "depth", "fee", "fine",
    "flow", "fuel", "gain", "goal", "heat", "hours", "level", "limit", "load", "mark", "pace", "price", "profit",
    "rain", "range", "rank", "rate", "rent", "score", "size", "speed", "stock", "supply", "total", "volume", "wage",
    "weight",
)  # fmt: skip
_COUNT = 4096
_MODULES = ("bank", "farm", "game", "lab", "port", "shop", "team", "trip")
_PARAMETERS = (("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"))
_ISSUES = (
    "{call} returns {got}, but {expected} is right. Please fix {file}.",
    "I get {got} from {call} and expected {expected}. The code is in {file}.",
    "Wrong result in {file}: {call} should be {expected}, not {got}.",
)


@dataclass(frozen=True)
class _Function:
    name: str
    parameters: tuple[str, str]
    operator: str

    def source(self) -> str:
        first, second = self.parameters
        return f"def {self.name}({first}, {second}):\n    return {first} {self.operator} {second}\n"


@functools.lru_cache(maxsize=2 * _COUNT)
def generate(seed: int, *, split: Split = "train") -> Task:
    """The task with this number: the same for the same `(seed, split)` on every machine.

    Args:
        seed: any non-negative integer; `instance_id` is `mini-edit__SPLIT-SEED`.
        split: "train" or "test" (held out).
    """
    rng = random.Random(f"mini-edit/{split}/{seed}")
    module = rng.choice(_MODULES)
    names = _names(rng, split, count=rng.randint(2, 3))
    parameters = rng.choice(_PARAMETERS)
    functions = [_Function(f"{verb}_{noun}", parameters, _VERBS[verb]) for verb, noun in names]
    rng.shuffle(functions)
    target = next(function for function in functions if function.name == "_".join(names[0]))
    broken = _Function(target.name, parameters, rng.choice(_repairs(target.operator)))

    before = "\n\n".join((broken if function is target else function).source() for function in functions)
    after = "\n\n".join(function.source() for function in functions)
    path, test_path = f"{module}.py", f"test_{module}.py"
    calls = {
        function.name: _test_calls(rng, function, broken if function is target else None) for function in functions
    }
    a, b = calls[target.name][0]
    statement = rng.choice(_ISSUES).format(
        call=f"{target.name}({a}, {b})",
        got=_evaluate(broken.operator, a, b),
        expected=_evaluate(target.operator, a, b),
        file=path,
    )
    test_id = f"test_{module}.Test{module.title()}.test_"
    return Task(
        instance_id=f"mini-edit__{split}-{seed}",
        repo=f"mini-edit/{module}",
        base_commit="",
        problem_statement=statement,
        patch=_git_diff(path, before, after),
        test_patch=_git_diff(test_path, None, _tests(module, functions, calls)),
        fail_to_pass=(test_id + target.name,),
        pass_to_pass=tuple(test_id + function.name for function in functions if function is not target),
        version="1",
        test_command="python3 -m unittest -v",
        log_parser="unittest",
        files={path: before},
        test_timeout_s=20.0,
    )


def tasks(split: str | None = None) -> Iterator[Task]:
    """The 4096 tasks of a split, "train" (also None) or "test", generated one by one when they are needed."""
    chosen = _split(split or "train")
    return (generate(seed, split=chosen) for seed in range(_COUNT))


@functools.lru_cache(maxsize=4)
def load(split: str | None = None, *, count: int = _COUNT) -> tuple[Task, ...]:
    """The first `count` tasks of a split: "train" (also None) or "test". Generated once in a process."""
    return tuple(generate(seed, split=_split(split or "train")) for seed in range(count))


def task_by_id(instance_id: str) -> Task:
    """The task with this `instance_id`. Raises UnknownTaskError."""
    _, _, number = instance_id.partition("mini-edit__")
    split, _, seed = number.rpartition("-")
    if not seed.isdigit():
        raise UnknownTaskError(
            f"mini-edit has no instance {instance_id!r}; they are named mini-edit__train-0, mini-edit__test-0, …"
        )
    return generate(int(seed), split=_split(split))


def demonstration(task: Task, rng: random.Random, *, skill: float | None = None) -> list[str]:
    """The actions of a demonstrator that finds the line but only sometimes knows the repair.

    Args:
        task: a task of this family.
        skill: probability of the right operator; otherwise a wrong one, at random. None: any operator other than the
            current one, all with the same probability.

    Returns:
        Raw shell commands: look at the function, edit its line, submit.
    """
    path = next(iter(task.files))
    name = task.fail_to_pass[0].rpartition(".test_")[2]
    lines = task.files[path].splitlines()
    number = next(n for n, line in enumerate(lines, start=1) if line.startswith(f"def {name}(")) + 1
    shown = lines[number - 1].split()[2]
    right = _VERBS[name.rpartition("_")[0]]
    choices = _repairs(shown)
    if skill is not None:
        choices = [right] if rng.random() < skill else [operator for operator in choices if operator != right]
    return [f"grep -n -A1 {name} *.py", f"sed -i '{number}s|{shown}|{rng.choice(choices)}|' *.py", "submit"]


def _split(name: str) -> Split:
    if name in ("train", "test"):
        return name  # type: ignore[return-value]
    raise UnknownTaskError(f"mini-edit: no split {name!r}; there are train, test")


def _repairs(operator: str) -> list[str]:
    group = next(group for group in _GROUPS if operator in group)
    return [other for other in group if other != operator]


def _evaluate(operator: str, a: int, b: int) -> object:
    return next(group for group in _GROUPS if operator in group)[operator](a, b)


@functools.lru_cache(maxsize=2)
def _all_names(held_out: bool) -> tuple[tuple[str, str], ...]:
    pairs = ((verb, noun) for verb in _VERBS for noun in _NOUNS)
    return tuple(pair for pair in pairs if (hashlib.sha256("_".join(pair).encode()).digest()[0] % 5 == 0) == held_out)


def _names(rng: random.Random, split: Split, count: int) -> list[tuple[str, str]]:
    first = rng.choice(_all_names(split == "test"))
    others = [pair for pair in rng.sample(_all_names(False), count) if pair != first]
    return [first, *others[: count - 1]]


def _test_calls(rng: random.Random, function: _Function, broken: _Function | None) -> list[tuple[int, int]]:
    """Arguments whose results distinguish the right operator from all others of its group; the first shows the bug."""
    calls: list[tuple[int, int]] = []
    wrong = _repairs(function.operator)
    if broken is not None:
        wrong.sort(key=lambda operator: operator != broken.operator)
    for operator in wrong:
        while all(_evaluate(operator, a, b) == _evaluate(function.operator, a, b) for a, b in calls):
            calls.append(_different(rng, function.operator, operator))
    return calls


def _different(rng: random.Random, right: str, wrong: str) -> tuple[int, int]:
    while True:
        a = rng.randint(2, 9)
        b = a if rng.random() < 0.3 else rng.randint(2, 9)  # equal values distinguish < from <=
        if _evaluate(right, a, b) != _evaluate(wrong, a, b):
            return a, b


def _tests(module: str, functions: list[_Function], calls: dict[str, list[tuple[int, int]]]) -> str:
    lines = ["import unittest", "", f"import {module}", "", "", f"class Test{module.title()}(unittest.TestCase):"]
    for function in functions:
        lines.append(f"    def test_{function.name}(self):")
        lines += [
            f"        self.assertEqual({module}.{function.name}({a}, {b}), {_evaluate(function.operator, a, b)})"
            for a, b in calls[function.name]
        ]
        lines.append("")
    return "\n".join(lines)


def _git_diff(path: str, before: str | None, after: str) -> str:
    old = [] if before is None else before.splitlines(keepends=True)
    body = difflib.unified_diff(
        old, after.splitlines(keepends=True), "/dev/null" if before is None else f"a/{path}", f"b/{path}"
    )
    mode = "new file mode 100644\n" if before is None else ""
    return f"diff --git a/{path} b/{path}\n{mode}" + "".join(body)
