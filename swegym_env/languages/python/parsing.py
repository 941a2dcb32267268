"""A thread-safe interface to Python's own parser, and functions for its trees."""

from __future__ import annotations

import ast
import threading
from typing import Any, TypeVar

__all__ = ["children", "copied", "parse", "parse_expression", "walk"]

_turn = threading.Lock()
_Node = TypeVar("_Node", bound=ast.AST)
_KINDS = [kind for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)]
# All node types except contexts and operators, which have no children.
_MARKS = (ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
_NODES = frozenset(kind for kind in _KINDS if not issubclass(kind, _MARKS))
# Fields that contain texts, numbers, contexts or operators in every node type.
_LEAVES = frozenset({"arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "level", "module", "op"})
_LEAVES |= {"ops", "simple", "type_comment"}
_FIELDS = {kind: tuple(name for name in kind._fields if name not in _LEAVES) for kind in _KINDS}


def parse(text: str | bytes) -> ast.Module:
    """The tree of a text; one thread parses at a time.

    If a thread collects garbage while it parses, Python 3.11 before 3.11.8 raises `SystemError` in it and in others
    that parse at the same time (https://github.com/python/cpython/issues/106905).

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
    """The direct children of a node, except contexts and operators."""
    found: list[ast.AST] = []
    values: dict[str, Any] = node.__dict__
    for name in _FIELDS[type(node)]:
        value: Any = values.get(name)
        kind = type(value)
        if kind in _NODES:
            found.append(value)
        elif kind is list:
            found += [part for part in value if type(part) in _NODES]
    return found


def walk(node: ast.AST) -> list[ast.AST]:
    """A node and all its descendants, outer ones first: like `ast.walk` without contexts and operators, but faster."""
    found = [node]
    for one in found:  # grows during the iteration
        found += children(one)
    return found


def copied(node: _Node) -> _Node:
    """A deep copy of a tree, as deep as it may be; contexts and operators are shared."""
    made: dict[int, ast.AST] = {}
    waiting: list[ast.AST] = [node]

    def copy_of(one: ast.AST) -> ast.AST:
        if type(one) not in _NODES:
            return one
        if id(one) not in made:
            made[id(one)] = type(one).__new__(type(one))
            waiting.append(one)
        return made[id(one)]

    result = copy_of(waiting.pop())
    for one in waiting:  # grows during the iteration
        fields = made[id(one)].__dict__
        for name, value in one.__dict__.items():
            if isinstance(value, ast.AST):
                fields[name] = copy_of(value)
            elif type(value) is list:
                fields[name] = [copy_of(each) if isinstance(each, ast.AST) else each for each in value]
            else:
                fields[name] = value
    return result  # type: ignore[return-value]
