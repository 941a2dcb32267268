"""What a language reads of a file or a patch is read once, though several parts of grading ask for it.

The functions here decorate functions of arguments that can be hashed, whose results nobody changes. `chars` says of
these arguments how many characters are read: a syntax tree takes up to a hundred times as many bytes, so that results
are kept for small files alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

__all__ = ["of_one_patch", "once_a_patch", "once_a_task"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MOST_CHARS = 1 << 16
_MOST_OF_TASKS = 32
_MOST_OF_A_PATCH = 64  # a hostile one may change many files
_kept: ContextVar[dict[Any, Any] | None] = ContextVar("kept", default=None)


@contextlib.contextmanager
def of_one_patch() -> Iterator[None]:
    """While this is entered, functions that are `once_a_patch` keep what they return. A decorator too."""
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def once_a_task(chars: Callable[..., int]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keeps what a function returns for the files of a task, which are the same for all patches."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        return _of_small(chars, functools.lru_cache(_MOST_OF_TASKS)(function), function)

    return decorate


def once_a_patch(chars: Callable[..., int]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keeps what a function returns while one patch is graded (`of_one_patch`)."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        def remembered(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            kept = _kept.get()
            if kept is None:
                return function(*args, **kwargs)
            key = (function, args, tuple(sorted(kwargs.items())))
            if key in kept:
                return kept[key]  # type: ignore[no-any-return]
            made = function(*args, **kwargs)
            if len(kept) < _MOST_OF_A_PATCH:
                kept[key] = made
            return made

        return _of_small(chars, remembered, function)

    return decorate


def _of_small(chars: Callable[..., int], kept: Callable[_P, _T], plain: Callable[_P, _T]) -> Callable[_P, _T]:
    @functools.wraps(plain)
    def found(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return (kept if chars(*args, **kwargs) <= _MOST_CHARS else plain)(*args, **kwargs)

    return found
