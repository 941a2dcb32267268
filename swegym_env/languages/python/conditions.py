"""The conditions of a test: what has to be true or false for it to pass, however the test is written.

These tests pass by the same condition:

    assert f() == 6                     same = f() == 6             if f() != 6:
    self.assertFalse(not f() == 6)      assert same                     raise AssertionError

Each `Condition` has neither `not` nor `and` around it, and sets another expression in its place, wherever that is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from swegym_env.languages.python.parsing import walk
from swegym_env.languages.python.source import called

__all__ = [
    "OPPOSITES",
    "Condition",
    "bindings",
    "conditions_of",
    "decides_elsewhere",
    "makes_an_object",
    "slot",
    "slot_in",
    "truth_of",
]

OPPOSITES = {
    "assertTrue": "assertFalse",
    "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone",
    "assertIn": "assertNotIn",
    "assertIsInstance": "assertNotIsInstance",
    "assertLess": "assertGreaterEqual",
    "assertGreater": "assertLessEqual",
    "assertRegex": "assertNotRegex",
}
OPPOSITES |= {opposite: name for name, opposite in OPPOSITES.items()}
"""unittest's assertions → their negations; those of equality are not among them."""
_TRUTHS = {"assertTrue": True, "assertFalse": False}
_OF_TRUTHS = frozenset({"assertIs", "assertEqual", "assertEquals"})
_RETURNING_TRUTHS = frozenset({"all", "any", "bool", "isinstance", "issubclass", "__eq__", "__ne__", "__contains__"})
_OPERATORS = frozenset({"eq", "ne", "contains", "countOf", "indexOf"})  # functions of the module `operator`
_FAILURES = frozenset({"AssertionError", "failureException", "Failed", "Exception"})
_Put = Callable[[ast.expr], None]
Slot = tuple[Callable[[], ast.expr], _Put]
"""Reads and sets an expression in its place."""


@dataclass(frozen=True)
class Condition:
    """A condition of a test.

    Attributes:
        node: the expression.
        holds: whether it has to be true.
        whole: the largest expression that consists of this condition alone, or the call that asserts it. Its place
            counts as the place of the condition.
        put: sets an expression that has to be true in the place of `whole`.
        is_negated: whether `whole` itself has to be false.
    """

    node: ast.expr
    holds: bool
    whole: ast.expr
    put: _Put
    is_negated: bool = False


def conditions_of(statement: ast.stmt, function: ast.AST) -> Iterator[Condition]:
    """The conditions that a statement checks.

    Args:
        function: the test, which may bind a condition to a name before.
    """
    for condition in _checked_by(statement, function):
        yield from _parts(condition, function)


def _checked_by(statement: ast.stmt, function: ast.AST) -> Iterator[Condition]:
    if isinstance(statement, ast.Assert):
        yield _at(statement.test, slot(statement, "test"), holds=True)
    elif (isinstance(statement, ast.If) or (isinstance(statement, ast.While) and len(statement.body) == 1)) and _fails(
        statement.body
    ):
        yield _at(statement.test, slot(statement, "test"), holds=False)
    elif isinstance(statement, ast.If) and _fails(statement.orelse):
        yield _at(statement.test, slot(statement, "test"), holds=True)
    elif isinstance(statement, ast.Expr):
        value = statement.value
        if isinstance(value, ast.BoolOp) and len(value.values) == 2 and _is_failure(value.values[1]):
            yield _at(value.values[0], slot_in(value.values, 0), holds=isinstance(value.op, ast.Or))
        elif isinstance(value, ast.Call):
            yield from _asserted_by(value, function)


def _asserted_by(call: ast.Call, function: ast.AST) -> Iterator[Condition]:
    """The condition of a call like `assertTrue`."""
    name = called(call)
    if name in _TRUTHS and call.args and not isinstance(call.args[0], ast.Starred):

        def put(test: ast.expr) -> None:
            is_negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            setattr(call.func, _name_of(call.func), "assertFalse" if is_negated else "assertTrue")
            call.args[0] = _negated(test) if is_negated else test

        yield Condition(call.args[0], _TRUTHS[name], call, put)
    elif name in _OF_TRUTHS and len(call.args) > 1:
        for known, tested in ((call.args[1], 0), (call.args[0], 1)):
            node: ast.expr = call.args[tested]
            if isinstance(known, ast.Constant) and isinstance(known.value, bool) and isinstance(node, ast.Name):
                condition = _at(node, slot_in(call.args, tested), holds=known.value)
                yield from (one for one in _parts(condition, function) if one.node is not node)


def _name_of(function: ast.expr) -> str:
    return "attr" if isinstance(function, ast.Attribute) else "id"


def _parts(condition: Condition, function: ast.AST) -> Iterator[Condition]:
    """The conditions of which a condition consists, each of which has to be true, or false."""
    node, holds = condition.node, condition.holds
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _parts(replace(condition, node=node.operand, holds=not holds), function)
    elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And if holds else ast.Or):
        for number, value in enumerate(node.values):
            yield from _parts(_at(value, slot_in(node.values, number), holds=holds), function)
    elif isinstance(node, ast.Name) and (bound := truth_of(node, function)) is not None:
        assert bound.value is not None, "what binds a name has a value"
        yield from _parts(_at(bound.value, slot(bound, "value"), holds=holds, is_bound=True), function)
    else:
        yield condition


def truth_of(name: ast.Name, function: ast.AST) -> ast.Assign | ast.AnnAssign | None:
    """The only statement that binds a name, if it binds it to a truth value."""
    stores = [node for node in walk(function) if isinstance(node, ast.Name) and node.id == name.id and _is_set(node)]
    if len(stores) != 1:
        return None
    for node in walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if targets == stores:
                return node if _is_truth(node.value) else None
    return None


def _is_set(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _is_truth(node: ast.expr) -> bool:
    """Whether only the truth of an expression counts: it is a comparison, or consists of them."""
    if isinstance(node, ast.BoolOp):
        return any(map(_is_truth, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare) or called(node) in _RETURNING_TRUTHS


def _fails(body: list[ast.stmt]) -> bool:
    """Whether a block ends with the failure of the test."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Expr):
        return _is_failure(last.value)
    if not isinstance(last, ast.Raise) or last.exc is None:
        return False
    error = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
    return getattr(error, "attr", getattr(error, "id", "")) in _FAILURES


def _is_failure(node: ast.expr) -> bool:
    return called(node) == "fail"


def decides_elsewhere(function: ast.AST, read: Iterable[ast.expr]) -> bool:
    """Whether a test asserts something outside of the expressions in `read`, or gives an assertion away."""
    nodes = walk(function)
    blocks = [item.context_expr for node in nodes if isinstance(node, ast.With | ast.AsyncWith) for item in node.items]
    inside = {id(inner) for one in (*read, *blocks) for inner in walk(one)}
    others = [node for node in nodes if id(node) not in inside]
    asserts = any(isinstance(node, ast.Call) and called(node).startswith("assert") and node.args for node in others)
    return asserts or _handed_on(function)


def _handed_on(function: ast.AST) -> bool:
    """Whether a test gives an assertion or a comparison away, or another name, instead of calling it."""
    nodes = walk(function)
    callees = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and _is_set(node)}
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in callees:
            name = node.id if isinstance(node, ast.Name) else node.attr
            is_own = isinstance(node, ast.Name) and name in stored
            if not is_own and (name.startswith("assert") or name in ("__eq__", "__ne__") or _is_operator(node)):
                return True
        elif isinstance(node, ast.Call) and called(node) in ("getattr", "methodcaller"):
            names = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if any(isinstance(name, str) and name.startswith(("assert", "__eq__", "__ne__")) for name in names):
                return True
    return False


def _is_operator(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in _OPERATORS and isinstance(node.value, ast.Name) and node.value.id == "operator"
    return isinstance(node, ast.Name) and node.id in _OPERATORS


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets to which a statement or a part of a comprehension binds values, and of which value each is a part."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def makes_an_object(node: ast.AST) -> bool:
    """Whether an expression calls a class, by its name."""
    return isinstance(node, ast.expr) and called(node).lstrip("_")[:1].isupper()


def slot(holder: ast.AST, key: str) -> Slot:
    """The place of an attribute of a node."""
    return lambda: getattr(holder, key), lambda node: setattr(holder, key, node)


def slot_in(holder: list[ast.expr], place: int) -> Slot:
    """The place of an item of a list."""
    return lambda: holder[place], lambda node: holder.__setitem__(place, node)


def _at(node: ast.expr, place: Slot, *, holds: bool, is_bound: bool = False) -> Condition:
    """The condition that an expression in this place is true, or false.

    Args:
        is_bound: whether the value gets a name, which may have other uses: it has to be a truth value.
    """

    def put(test: ast.expr) -> None:
        made = test if holds else _negated(test)
        is_list = is_bound and isinstance(made, ast.List)
        place[1](ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), made)) if is_list else made)

    return Condition(node, holds, node, put, is_negated=not holds)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)
