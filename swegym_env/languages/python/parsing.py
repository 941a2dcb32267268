"""Python's own parser, for threads, and its trees."""

from __future__ import annotations

import ast
import threading

__all__ = ["children", "parse", "parse_expression", "walk"]

_turn = threading.Lock()
# All but contexts and operators, which have nothing below them.
_MARKS = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
_NODES = frozenset(
    kind
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and not issubclass(kind, _MARKS)
)


def parse(text: str | bytes) -> ast.Module:
    """The tree of a text, from one thread at a time.

    Where a thread collects garbage while it parses, Python 3.11 before 3.11.8 raises `SystemError` in it and in others
    that parse meanwhile (https://github.com/python/cpython/issues/106905).

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    with _turn:
        return ast.parse(text)


def parse_expression(text: str) -> ast.expr:
    """The tree of an expression; see `parse`."""
    with _turn:
        return ast.parse(text, mode="eval").body


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, but for contexts and operators."""
    found: list[ast.AST] = []
    for value in vars(node).values():
        kind = type(value)
        if kind in _NODES:
            found.append(value)
        elif kind is list:
            found += [part for part in value if type(part) in _NODES]
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, outer ones first: as `ast.walk`, but for contexts and operators, and faster."""
    found = [node]
    for one in found:  # grows during the iteration
        found += children(one)
    return found
