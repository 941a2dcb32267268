"""Inputs: the constants from which both sides of an equality are computed, and other values for them.

`assert parse("1+2") == parse("2+1")` contains no expected value that a decoy could replace. But it has inputs:
`parse("1+7") == parse("2+1")` must not hold, and `parse("1+7") == parse("7+1")` must hold. Code that returns the same
result for every call passes the first, and code that only recognises the texts of the test fails the second.

The results for inputs other than those of a test are not specified: two correct repairs may differ in them. So all
inputs of a side are changed, one after the other, and only code for which no input matters is rejected.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swegym_env.languages.python.decoys import Literal, replaceable, tokens_of, with_token
from swegym_env.languages.python.parsing import copied, walk
from swegym_env.languages.python.source import Function, called, stored_in

__all__ = ["Inputs", "Instead", "inputs_of"]

_CHANGES = 6  # of the inputs of one copy
_MOST_PLACES = 16
_SMALL = 4  # hardly any number is far below a smaller one
_DEPTH = 4  # of names that are assigned from other names
_MANY_TO_ONE = frozenset({"hash", "id", "type", "len", "bool"})  # many values give the same result
_CANNOT_MOVE = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Starred)
_Key = tuple[str, Literal]  # a token of texts and numbers, or a number with a point

Sides = tuple[ast.expr, ast.expr]


@dataclass(frozen=True)
class Inputs:
    """The sides of an equality, with names replaced by their values, and the inputs of each side.

    Attributes:
        sides: left and right.
        places: for each side, the nodes that can be replaced, by their index in `walk`.
        words: of the file.
    """

    sides: Sides
    places: tuple[tuple[int, ...], tuple[int, ...]]
    words: tuple[str, ...]

    def changed(self, number: int, choice: random.Random) -> list[Sides]:
        """The equality with one input of one side replaced: each input once by a near value and once by a distant one.

        Distant values are needed because two correct repairs may round or limit an input in different ways.
        """
        every = [(place, is_far) for place in self.places[number] for is_far in (False, True)]
        order = choice.sample(every, len(every))
        made: list[Sides] = []
        for place, is_far in itertools.islice(itertools.cycle(order), max(_CHANGES, len(order))):
            side = _with_another(self.sides[number], place, choice, self.words, is_far=is_far)
            other = copied(self.sides[1 - number])
            made.append((side, other) if number == 0 else (other, side))
        return made

    def changed_together(self, choice: random.Random) -> list[Sides]:
        """The equality with one value that both sides contain replaced in both; empty if there is none."""
        shared = list(self._shared())
        choice.shuffle(shared)
        made: list[Sides] = []
        for key in itertools.islice(itertools.cycle(shared), _CHANGES):
            change = _replacing(key, choice, self.words)
            left, right = (
                _everywhere(side, places, change) for side, places in zip(self.sides, self.places, strict=True)
            )
            made.append((left, right))
        return made

    def _shared(self) -> Iterator[_Key]:
        held = [
            {key for place in places for key in _keys(walk(side)[place])}
            for side, places in zip(self.sides, self.places, strict=True)
        ]
        for key in sorted(held[0] & held[1], key=repr):
            if key[0] == "name" or _others(key, self.words):
                yield key


def inputs_of(sides: Sequence[ast.expr], function: Function, words: tuple[str, ...]) -> Inputs | None:
    """The inputs of the sides of an equality in a test; None if they cannot be changed.

    Args:
        words: of the same file, in lower case.
    """
    assigned, others = _names(function)
    left, right = (_spelled_out(side, assigned, _DEPTH) for side in sides)
    if any(isinstance(node, _CANNOT_MOVE) for side in (left, right) for node in walk(side)):
        return None
    if not all(any(isinstance(node, ast.Call) for node in walk(side)) for side in (left, right)):
        return None  # a literal side is not computed by the code under test
    if called(left) in _MANY_TO_ONE or called(right) in _MANY_TO_ONE:
        return None
    found = [tuple(_places(side, others, words)) for side in (left, right)]
    if not any(found) or any(len(places) > _MOST_PLACES for places in found):
        return None
    return Inputs((left, right), (found[0], found[1]), words)


def _names(function: Function) -> tuple[dict[str, ast.expr], set[str]]:
    """The values of names that a test assigns once, and the names with several values: of loops and `parametrize`."""
    stored = stored_in(function)
    assigned: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
        elif isinstance(node, ast.For):
            several |= {inner.id for inner in walk(node.target) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.Call) and called(node) == "parametrize" and node.args:
            texts = [inner.value for inner in walk(node.args[0]) if isinstance(inner, ast.Constant)]
            several |= {name.strip() for text in texts for name in str(text).split(",")}
    once = {name: value for name, value in assigned.items() if stored[name] == 1}
    return once, (several | {name for name in assigned if stored[name] > 1}) - once.keys()


def _spelled_out(node: ast.expr, assigned: Mapping[str, ast.expr], depth: int) -> ast.expr:
    """A copy of an expression in which names are replaced by their values."""

    class Spelling(ast.NodeTransformer):
        def visit_JoinedStr(self, text: ast.JoinedStr) -> ast.expr:
            return text  # not every expression can be written inside one

        def visit_Name(self, name: ast.Name) -> ast.expr:
            is_known = isinstance(name.ctx, ast.Load) and name.id in assigned and depth
            return _spelled_out(assigned[name.id], assigned, depth - 1) if is_known else name

    made: ast.expr = Spelling().visit(copied(node))
    return made


def _places(side: ast.expr, names: set[str], words: tuple[str, ...]) -> Iterator[int]:
    """The inputs among the arguments of calls: constants, and names with several values."""
    given: set[int] = set()
    texts: set[int] = set()  # constant parts of formatted strings
    for node in walk(side):
        if isinstance(node, ast.Call):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                given |= {id(inner) for inner in walk(argument)}
        elif isinstance(node, ast.JoinedStr):
            texts |= {id(inner) for inner in walk(node) if isinstance(inner, ast.Constant)}
    for number, node in enumerate(walk(side)):
        if id(node) not in given - texts:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            yield number
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | bytes):
            other = replaceable(node.value, words)
            if other is not None and other.count:
                yield number


def _with_another(
    side: ast.expr, place: int, choice: random.Random, words: tuple[str, ...], *, is_far: bool
) -> ast.expr:
    made = copied(side)
    old = walk(made)[place]
    if isinstance(old, ast.Name):
        new = _other_input(old, choice.randrange(1, 20))
    else:
        assert isinstance(old, ast.Constant)
        assert isinstance(old.value, int | float | str | bytes)
        new = ast.Constant((_far_from if is_far else _near)(old.value, choice, words))
    changed: ast.expr = Instead({old: new}).visit(made)
    return changed


def _near(value: Literal, choice: random.Random, words: tuple[str, ...]) -> Literal:
    other = replaceable(value, words)
    assert other is not None, "a place has other values"
    return other.draw(1, choice)[0]


def _far_from(value: Literal, choice: random.Random, words: tuple[str, ...]) -> Literal:
    """A distant value of an input.

    For a number, another magnitude, but not a much larger one, because it may be a number of iterations; for a text,
    other words and numbers.
    """
    if isinstance(value, bool) or not value:
        return _near(value, choice, words)
    if isinstance(value, int):
        is_small = abs(value) < _SMALL
        size = abs(value) + choice.randrange(3, 10) if is_small else choice.randrange(abs(value) // 2)
        return size if value > 0 else -size
    if isinstance(value, float):
        return value * choice.uniform(0.1, 0.6)
    made: int | str | bytes = value
    for token in dict.fromkeys(tokens_of(value)):
        if _others(("token", token), words):
            made = with_token(made, token, str(_near(token, choice, words)))
    return made if made != value else _near(value, choice, words)


def _everywhere(side: ast.expr, places: Sequence[int], change: Callable[[ast.AST], ast.expr | None]) -> ast.expr:
    made = copied(side)
    nodes = walk(made)
    new = {nodes[place]: other for place in places if (other := change(nodes[place])) is not None}
    changed: ast.expr = Instead(new).visit(made)
    return changed


def _keys(node: ast.AST) -> Iterator[_Key]:
    """The values in one input that another input may contain too."""
    if isinstance(node, ast.Name):
        yield "name", node.id
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, float):
            yield "float", node.value
        elif isinstance(node.value, int | str | bytes) and not isinstance(node.value, bool):
            yield from (("token", token) for token in tokens_of(node.value))


def _others(key: _Key, words: tuple[str, ...]) -> int:
    other = replaceable(key[1], words)
    return other.count if other is not None else 0


def _replacing(key: _Key, choice: random.Random, words: tuple[str, ...]) -> Callable[[ast.AST], ast.expr | None]:
    """A function that returns the replacement of an input that contains `key`, and None for any other input."""
    kind, value = key
    if kind == "name":
        step = choice.randrange(1, 20)
        return lambda node: _other_input(node, step) if isinstance(node, ast.Name) and node.id == value else None
    new = _near(value, choice, words)

    def change(node: ast.AST) -> ast.expr | None:
        if not isinstance(node, ast.Constant) or key not in _keys(node):
            return None
        if kind == "float":
            return ast.Constant(new)
        assert isinstance(node.value, int | str | bytes)
        return ast.Constant(with_token(node.value, str(value), str(new)))

    return change


def _other_input(node: ast.expr, step: int) -> ast.expr:
    """An expression whose value differs from that of a name; see `inside/swegym_inputs.py`."""
    return ast.Call(ast.Name("_other_input", ast.Load()), [node, ast.Constant(step)], [])


class Instead(ast.NodeTransformer):
    """Replaces some nodes of a tree by others."""

    def __init__(self, new: Mapping[ast.AST, ast.expr]) -> None:
        self._new = new

    def visit(self, node: ast.AST) -> Any:
        return self._new[node] if node in self._new else super().visit(node)
