"""Raises Python's recursion limit while deep syntax trees are read.

A sum of some 300 terms, or a chain of 160 calls, is a tree of that depth, and functions that read trees call themselves
once or more for each level.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

__all__ = ["deep_trees"]

_LIMIT = 10_000
_lock = threading.Lock()
_before: list[int] = []
"""The limit that each reader that is inside has found."""


@contextlib.contextmanager
def deep_trees() -> Iterator[None]:
    """Raise the limit of this process while at least one thread is inside."""
    with _lock:
        _before.append(sys.getrecursionlimit())
        sys.setrecursionlimit(max(_before[0], _LIMIT))
    try:
        yield
    finally:
        with _lock:
            first = _before[0]
            _before.pop()
            if not _before:
                sys.setrecursionlimit(first)
