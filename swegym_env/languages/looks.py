"""What a language reads of one patch is read once, though several parts of grading ask for it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

__all__ = ["of_one_patch", "once_a_patch"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST = 64  # things kept for a patch: a hostile one may change many files
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def of_one_patch() -> Iterator[None]:
    """While this is entered, functions that are `once_a_patch` keep what they return. A decorator too."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def once_a_patch(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function of arguments that can be hashed, whose results nobody changes."""

    @functools.wraps(function)
    def found(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        kept = _kept.get()
        if kept is None:
            return function(*args, **kwargs)
        key = (function, args, tuple(sorted(kwargs.items())))
        made: _T = kept[key] if key in kept else function(*args, **kwargs)
        if len(kept) < _MOST:
            kept[key] = made
        return made

    return found
