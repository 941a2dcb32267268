"""Constant expressions of Python source: displays, operators and a few methods of constants, by the syntax tree alone.

No source code is executed. Sizes are bounded, so every expression is evaluated quickly.
"""

from __future__ import annotations

import ast
import datetime
import decimal
import fractions
import inspect
import math
import operator
import string
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from swegym_env.languages.python.parsing import walk

__all__ = ["NotConstantError", "fold", "names_in"]


class NotConstantError(Exception):
    """The expression is not constant, or not of a supported kind."""


_LIMIT, _ITEMS = 1 << 20, 1_000
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
}
_METHODS = frozenset(
    (
        *("dedent", "cleandoc", "join", "format", "strip", "lstrip", "rstrip", "lower", "upper", "title", "replace"),
        *("encode", "decode", "split", "splitlines", "copy"),
    )
)


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > _ITEMS:
        raise NotConstantError
    return found


_BUILDERS: Mapping[str, Callable[..., Any]] = {
    "dedent": textwrap.dedent,
    "cleandoc": inspect.cleandoc,
    "set": set,
    "frozenset": frozenset,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "OrderedDict": dict,
    "float": float,
    "str": str,
    "bytes": bytes,
    "len": len,
    "array": list,
    "asarray": list,
    "u": str,
    "ensure_str": str,
    "range": _range,
    "sorted": sorted,
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
}
_OF_LIBRARY = frozenset({"date", "datetime", "time", "timedelta", "Decimal", "Fraction"})
_OF_MODULES = frozenset({"dedent", "cleandoc", "OrderedDict", "array", "asarray", "u", "ensure_str"}) | _OF_LIBRARY
_NUMBERS = {"nan": math.nan, "inf": math.inf, "pi": math.pi}
_NUMERIC_MODULES = frozenset({"np", "numpy", "math", "xp"})


def fold(node: ast.expr, names: Mapping[str, Any] | None = None) -> Any:
    """The value of a constant expression, of builtin types only.

    Args:
        node: the expression.
        names: name → its value.

    Raises:
        NotConstantError: the value cannot be computed from constants and `names` alone.
    """
    try:
        value = _fold(node, names or {})
    except NotConstantError:
        raise
    except Exception as error:
        raise NotConstantError from error
    return value


def names_in(node: ast.AST) -> Iterator[ast.Name]:
    """The names that an expression reads."""
    for inner in walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner


def _fold(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        if node.value is ...:
            raise NotConstantError
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(node, names)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = list if isinstance(node, ast.List) else tuple if isinstance(node, ast.Tuple) else set
        return kind(_fold(item, names) for item in _plain(node.elts))
    if isinstance(node, ast.Dict):
        return {_fold(key, names): _fold(item, names) for key, item in zip(_plain(node.keys), node.values, strict=True)}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        value = _fold(node.operand, names)
        return -value if isinstance(node.op, ast.USub) else +value if isinstance(node.op, ast.UAdd) else not value
    if isinstance(node, ast.BinOp):
        return _operate(node.op, _fold(node.left, names), _fold(node.right, names))
    if isinstance(node, ast.JoinedStr):
        return "".join(_formatted(part, names) for part in node.values)
    if isinstance(node, ast.Call):
        return _called(node, names)
    return _made(node, names)


def _made(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """An element of a constant, or the elements of a comprehension without conditions."""
    if isinstance(node, ast.Subscript):
        return _item(_fold(node.value, names), node, names)
    if not isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) or len(node.generators) != 1:
        raise NotConstantError
    each = _each(node.generators[0], names)
    if isinstance(node, ast.DictComp):
        return {_fold(node.key, inner): _fold(node.value, inner) for inner in each}
    made = [_fold(node.elt, inner) for inner in each]
    return set(made) if isinstance(node, ast.SetComp) else made


def _item(value: Any, node: ast.Subscript, names: Mapping[str, Any]) -> Any:
    index = node.slice
    named = isinstance(node.value, ast.Name | ast.Subscript)  # the value of a name may have changed
    if not isinstance(value, str | bytes | tuple if named else str | bytes | tuple | list | dict):
        raise NotConstantError
    if isinstance(index, ast.Slice):
        bounds = (None if bound is None else _fold(bound, names) for bound in (index.lower, index.upper, index.step))
        return value[slice(*bounds)]
    return value[_fold(index, names)]


def _each(part: ast.comprehension, names: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The values of the names in a comprehension, for each of its items."""
    items = list(_fold(part.iter, names))
    targets = part.target.elts if isinstance(part.target, ast.Tuple) else [part.target]
    known = [target.id for target in targets if isinstance(target, ast.Name)]
    if part.ifs or part.is_async or len(items) > _ITEMS or len(known) < len(targets):
        raise NotConstantError
    for item in items:
        values = tuple(item) if isinstance(part.target, ast.Tuple) else (item,)
        yield {**names, **dict(zip(known, values, strict=True))}


def _named(node: ast.Name | ast.Attribute, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        raise NotConstantError
    if node.value.id not in _NUMERIC_MODULES or node.attr not in _NUMBERS:
        raise NotConstantError
    return _NUMBERS[node.attr]


def _plain(items: list[Any]) -> list[ast.expr]:
    if any(item is None or isinstance(item, ast.Starred) for item in items):
        raise NotConstantError
    return items


def _operate(kind: ast.operator, left: Any, right: Any) -> Any:
    if type(kind) not in _OPERATORS:
        raise NotConstantError
    if isinstance(kind, ast.Pow | ast.LShift) and not (
        isinstance(left, int | float) and isinstance(right, int) and abs(left) <= 1 << 20 and -64 <= right <= 128
    ):
        raise NotConstantError
    if isinstance(kind, ast.Mult):
        sizes = [len(side) if hasattr(side, "__len__") else abs(side) for side in (left, right)]
        numbers = all(isinstance(side, int | float | complex) for side in (left, right))
        if not numbers and sizes[0] * sizes[1] > _LIMIT:
            raise NotConstantError
    if isinstance(kind, ast.Mod) and isinstance(left, str | bytes) and _is_wide(str(left)):
        raise NotConstantError
    return _OPERATORS[type(kind)](left, right)


def _is_wide(template: str) -> bool:
    """Whether a format has a width or precision of many digits, or takes it from an argument."""
    return (
        any(len(word) > 4 for word in "".join(c if c.isdigit() else " " for c in template).split()) or "*" in template
    )


def _formatted(part: ast.expr, names: Mapping[str, Any]) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    if not isinstance(part, ast.FormattedValue) or part.format_spec is not None:
        raise NotConstantError
    value = _fold(part.value, names)
    if part.conversion == ord("r"):
        return repr(value)
    return ascii(value) if part.conversion == ord("a") else str(value)


def _called(node: ast.Call, names: Mapping[str, Any]) -> Any:
    arguments = [_fold(item, names) for item in _plain(list(node.args))]
    if any(keyword.arg is None for keyword in node.keywords):
        raise NotConstantError
    keywords = [keyword for keyword in node.keywords if keyword.arg != "dtype"]
    named = {str(keyword.arg): _fold(keyword.value, names) for keyword in keywords}
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    module = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    if name in _OF_LIBRARY and not node.args and not node.keywords:
        raise NotConstantError  # the function `time`
    if isinstance(node.func, ast.Name) or (module and name in _OF_MODULES):
        if name not in _BUILDERS or (name == "bytes" and not isinstance((arguments or [b""])[0], bytes | list)):
            raise NotConstantError
        return _BUILDERS[name](*arguments, **named)
    if not isinstance(node.func, ast.Attribute) or name not in _METHODS:
        raise NotConstantError
    receiver = _fold(node.func.value, names)
    if not isinstance(receiver, str | bytes | list | dict) or (name == "format" and _is_wide(str(receiver))):
        raise NotConstantError
    if name == "format" and any(set(".[") & set(found[1] or "") for found in string.Formatter().parse(str(receiver))):
        raise NotConstantError  # a field that reads an attribute
    if name == "replace" and len(receiver) * max(map(len, arguments[:2]), default=0) > _LIMIT:
        raise NotConstantError
    result = getattr(receiver, name)(*arguments, **named)
    if hasattr(result, "__len__") and len(result) > _LIMIT:
        raise NotConstantError
    return result
