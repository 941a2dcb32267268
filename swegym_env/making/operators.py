"""Mutation operators: ways to inject a bug into Python code, found on the syntax tree and spliced into the text.

An operator gets one node and yields the edits that break it: `operator(node, code) -> edits`. The names are those of
mistakes that people make. Whether an edit changes the behaviour is decided by the tests, not here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from swegym_env.languages import Splice
from swegym_env.making.code import Code

__all__ = ["OPERATORS"]

Operator = Callable[[ast.AST, Code], Iterator[tuple[Splice, ...]]]

OPERATORS: dict[str, Operator] = {}
"""Name of the mistake → operator."""

_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.Div: ("/", "//"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}
_BOUNDARY: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
_DIRECTION: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", ">"),
    ast.LtE: ("<=", ">="),
    ast.Gt: (">", "<"),
    ast.GtE: (">=", "<="),
}
_NEGATION: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_CONFUSED = (
    *(("min", "max"), ("any", "all"), ("startswith", "endswith"), ("lstrip", "rstrip"), ("lower", "upper")),
    *(("find", "rfind"), ("index", "rindex"), ("split", "rsplit"), ("partition", "rpartition"), ("keys", "values")),
    *(("append", "extend"), ("floor", "ceil"), ("ljust", "rjust"), ("isdigit", "isalpha"), ("union", "intersection")),
    *(("popleft", "pop"), ("appendleft", "append"), ("bisect_left", "bisect_right"), ("isinstance", "issubclass")),
    *(("islice", "takewhile"), ("takewhile", "dropwhile"), ("minutes", "seconds"), ("days", "hours")),
)
_CONFUSIONS = {one: other for pair in _CONFUSED for one, other in (pair[::-1], pair)}
_EXCEPTIONS = {
    "ValueError": "TypeError",
    "TypeError": "ValueError",
    "KeyError": "IndexError",
    "IndexError": "KeyError",
    "AttributeError": "KeyError",
    "StopIteration": "RuntimeError",
    "NotImplementedError": "ValueError",
    "OverflowError": "ValueError",
}
_CONVERSIONS = frozenset({"int", "str", "float", "list", "tuple", "set", "sorted", "abs", "reversed", "dict", "iter"})
_EMPTY = {"list": "[]", "dict": "{}", "set": "set()"}


def _operator(name: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS[name] = function
        return function

    return register


@_operator("wrong-operator")
def _wrong_operator(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a + b` → `a - b`; `a += b` → `a -= b`."""
    if isinstance(node, ast.BinOp) and not _is_text(node.left) and not _is_text(node.right):
        old, new = _ARITHMETIC.get(type(node.op), ("", ""))
        yield from _between(code, node.left, node.right, re.escape(old), new)
    elif isinstance(node, ast.AugAssign) and not _is_text(node.value):
        old, new = _ARITHMETIC.get(type(node.op), ("", ""))
        yield from _between(code, node.target, node.value, re.escape(old) + "=", new + "=")


@_operator("wrong-boundary")
def _wrong_boundary(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a < b` → `a <= b`."""
    yield from _comparisons(node, code, _BOUNDARY)


@_operator("wrong-direction")
def _wrong_direction(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a < b` → `a > b`."""
    yield from _comparisons(node, code, _DIRECTION)


@_operator("inverted-condition")
def _inverted_condition(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a == b` → `a != b`; `if a:` → `if not a:`; `not a` → `a`."""
    yield from _comparisons(node, code, _NEGATION)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield (code.replace(node, code.text(node.operand)),)
    if isinstance(node, ast.If | ast.While | ast.IfExp) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield (code.replace(node.test, f"not {code.text(node.test)}"),)


@_operator("wrong-connective")
def _wrong_connective(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a and b` → `a or b`, in parentheses, since the precedence differs."""
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for (edit,) in _between(code, node.values[0], node.values[1], rf"\b{old}\b", new):
            yield (code.before(node, "("), edit, code.after(node, ")"))


@_operator("dropped-condition")
def _dropped_condition(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a and b` → `a`, or `b`."""
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        for value in node.values:
            yield (code.replace(node, code.parenthesized(value)),)


@_operator("off-by-one")
def _off_by_one(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`x[1:]` → `x[2:]`; `n - 1` → `n`; `== 2` → `== 3`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_number(node.right, 1):
        yield (code.replace(node, code.parenthesized(node.left)),)
    numbers: list[ast.expr | None] = []
    if isinstance(node, ast.Subscript):
        index = node.slice
        numbers = [index.lower, index.upper] if isinstance(index, ast.Slice) else [index]
    elif isinstance(node, ast.Compare):
        numbers = [*node.comparators]
    elif isinstance(node, ast.Assign | ast.Return):
        numbers = [node.value]
    for number in numbers:
        if isinstance(number, ast.Constant) and type(number.value) is int and code.text(number).isdigit():
            yield (code.replace(number, str(number.value + 1)),)


@_operator("wrong-loop-bound")
def _wrong_loop_bound(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`range(n)` → `range(n - 1)` and `range(1, n)`; `for x in xs` → `for x in xs[1:]`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        return
    if node.func.id == "range" and 1 <= len(node.args) <= 3:
        bound = node.args[0] if len(node.args) == 1 else node.args[1]
        yield (code.after(bound, " - 1"),)
        yield (code.after(bound, " + 1"),)
        if len(node.args) == 1:
            yield (code.before(bound, "1, "),)
    if node.func.id == "enumerate" and len(node.args) == 1:
        yield (code.after(node.args[0], ", 1"),)


@_operator("swapped-arguments")
def _swapped_arguments(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`f(a, b)` → `f(b, a)`."""
    if isinstance(node, ast.Call) and not any(isinstance(argument, ast.Starred) for argument in node.args):
        for one, other in zip(node.args, node.args[1:], strict=False):
            if code.text(one) != code.text(other):
                yield code.replace(one, code.text(other)), code.replace(other, code.text(one))


@_operator("dropped-argument")
def _dropped_argument(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`f(a, key=b)` → `f(a)`."""
    if not isinstance(node, ast.Call) or not node.keywords:
        return
    last = node.keywords[-1]
    before = [code.end(one) for one in (*node.args, *node.keywords[:-1])]
    if last.arg is not None and max(before, default=0) < code.start(last):
        yield (Splice(max(before, default=code.start(last)), code.end(last), ""),)


@_operator("dropped-guard")
def _dropped_guard(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`if …: return …` (or raise, continue, break) is removed."""
    jumps = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], jumps) and len(node.body) <= 2:
        yield from code.without(node)


@_operator("lost-update")
def _lost_update(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`self.x = …`, `n += 1` or `xs.append(…)` is removed."""
    keeps = isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    if isinstance(node, ast.Assign):
        keeps = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if keeps and isinstance(node, ast.stmt):
        yield from code.without(node)


@_operator("wrong-default")
def _wrong_default(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`def f(x=True)` → `def f(x=False)`; numbers grow by one; strings become empty."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if isinstance(default, ast.Constant):
                if isinstance(default.value, bool):
                    yield (code.replace(default, str(not default.value)),)
                elif isinstance(default.value, int) and code.text(default).isdigit():
                    yield (code.replace(default, str(default.value + 1)),)
                elif isinstance(default.value, str) and default.value:
                    yield (code.replace(default, '""'),)


@_operator("mutable-default")
def _mutable_default(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`def f(x=None): if x is None: x = []` → `def f(x=[])`."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    named = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    defaults = dict(zip(named[::-1], node.args.defaults[::-1], strict=False))
    defaults |= {
        one.arg: value
        for one, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if value is not None
    }
    for guard in node.body:
        match guard:
            case ast.If(
                test=ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]),
                body=[ast.Assign(targets=[ast.Name(id=target)], value=made)],
                orelse=[],
            ) if name == target and name in defaults:
                empty = code.text(made)
                if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and not made.args:
                    empty = _EMPTY.get(made.func.id, empty)
                if empty in _EMPTY.values():
                    for removal in code.without(guard):
                        yield code.replace(defaults[name], empty), *removal


@_operator("wrong-constant")
def _wrong_constant(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`True` → `False` as a value."""
    if isinstance(node, ast.Assign | ast.Return | ast.keyword):
        value = node.value
        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
            yield (code.replace(value, str(not value.value)),)


@_operator("removed-return")
def _removed_return(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`return f(x)` → `f(x)`."""
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield (Splice(code.start(node), code.start(node.value), ""),) if code.follows_keyword(node, node.value) else ()


@_operator("removed-await")
def _removed_await(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`await f(x)` → `f(x)`."""
    if isinstance(node, ast.Await):
        yield (code.replace(node, code.parenthesized(node.value)),)


@_operator("wrong-variable")
def _wrong_variable(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """An argument or operand becomes another parameter of the same function."""
    read: list[ast.expr | None] = []
    if isinstance(node, ast.Call):
        read = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.BinOp):
        read = [node.left, node.right]
    elif isinstance(node, ast.Compare):
        read = [node.left, *node.comparators]
    elif isinstance(node, ast.Return | ast.Assign):
        read = [node.value]
    names = code.parameters(node)
    for value in read:
        if isinstance(value, ast.Name) and value.id in names and len(names) > 1:
            yield (code.replace(value, names[(names.index(value.id) + 1) % len(names)]),)


@_operator("confused-name")
def _confused_name(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`min` → `max`, `lstrip` → `rstrip`, `floor` → `ceil` and the like."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in _CONFUSIONS:
            yield (code.replace(node.func, _CONFUSIONS[node.func.id]),)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _CONFUSIONS:
            yield (Splice(code.end(node.func.value), code.end(node.func), "." + _CONFUSIONS[node.func.attr]),)


@_operator("swapped-branches")
def _swapped_branches(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a if c else b` → `b if c else a`."""
    if isinstance(node, ast.IfExp):
        one, other = code.parenthesized(node.body), code.parenthesized(node.orelse)
        yield code.replace(node.body, other), code.replace(node.orelse, one)


@_operator("dropped-term")
def _dropped_term(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`a + b` → `a`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        yield (code.replace(node, code.parenthesized(node.left)),)


@_operator("dropped-sign")
def _dropped_sign(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`-x` → `x`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield (code.replace(node, code.parenthesized(node.operand)),)


@_operator("dropped-conversion")
def _dropped_conversion(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`int(x)` → `x`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in _CONVERSIONS:
        return
    if len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.GeneratorExp | ast.Starred):
        yield (code.replace(node, code.parenthesized(node.args[0])),)


@_operator("wrong-slice")
def _wrong_slice(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`x[a:b]` → `x[a:]`, or `x[:b]`."""
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield (code.replace(bound, ""),)


@_operator("wrong-jump")
def _wrong_jump(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`continue` → `break` and vice versa."""
    if isinstance(node, ast.Continue | ast.Break):
        yield (code.replace(node, "break" if isinstance(node, ast.Continue) else "continue"),)


@_operator("wrong-exception")
def _wrong_exception(node: ast.AST, code: Code) -> Iterator[tuple[Splice, ...]]:
    """`raise ValueError` → `raise TypeError`; `except KeyError` → `except IndexError`."""
    named: ast.expr | None = None
    if isinstance(node, ast.Raise):
        named = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    elif isinstance(node, ast.ExceptHandler):
        named = node.type
    if isinstance(named, ast.Name) and named.id in _EXCEPTIONS:
        yield (code.replace(named, _EXCEPTIONS[named.id]),)


def _comparisons(
    node: ast.AST, code: Code, table: dict[type[ast.cmpop], tuple[str, str]]
) -> Iterator[tuple[Splice, ...]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in table:
        old, new = table[type(node.ops[0])]
        yield from _between(code, node.left, node.comparators[0], old, new)


def _between(code: Code, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[tuple[Splice, ...]]:
    """The splice of the only `old` (a pattern) between two nodes; only parentheses and blanks may surround it."""
    gap = code.slice(code.end(left), code.start(right))
    match = re.fullmatch(rf"([)\s\\]*)({old})([(\s\\]*)", gap) if old else None
    if match:
        start = code.end(left) + len(match[1].encode())
        yield (Splice(start, start + len(match[2].encode()), new),)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_number(node: ast.AST, number: int) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == number
