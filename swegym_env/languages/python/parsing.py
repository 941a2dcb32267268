"""Python's own parser, for threads."""

from __future__ import annotations

import ast
import threading

__all__ = ["parse", "parse_expression"]

_turn = threading.Lock()


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
