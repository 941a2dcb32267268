"""Caches of what is parsed from sources: several parts of grading read the same file or the same patch.

The decorators are for functions of hashable arguments whose results are never changed. Their argument `n_chars`
computes from the same arguments how many characters are read: a syntax tree takes up to a hundred times as many bytes,
so only results for small files are cached.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

__all__ = ["cached_for_patch", "cached_for_patches", "cached_for_task", "patch_cache"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_MAX_CHARS = 1 << 16
_MAX_ENTRIES_OF_TASKS = 32
_MAX_ENTRIES_OF_PATCHES = 256
_MAX_ENTRIES_OF_A_PATCH = 64  # a hostile one may change many files
_cache: ContextVar[dict[Any, Any] | None] = ContextVar("cache", default=None)


@contextlib.contextmanager
def patch_cache() -> Iterator[None]:
    """Open a cache for `cached_for_patch`: a context manager around the grading of one patch, or a decorator of it."""
    token = _cache.set({})
    try:
        yield
    finally:
        _cache.reset(token)


def cached_for_task(n_chars: Callable[..., int]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Cache results for the files of a task, which all its patches share."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        return _for_small_files(n_chars, functools.lru_cache(_MAX_ENTRIES_OF_TASKS)(function), function)

    return decorate


def cached_for_patches(n_chars: Callable[..., int]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Cache small results for patches that come again: a policy that has learnt writes one repair in many episodes."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        return _for_small_files(n_chars, functools.lru_cache(_MAX_ENTRIES_OF_PATCHES)(function), function)

    return decorate


def cached_for_patch(n_chars: Callable[..., int]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Cache results in the innermost `patch_cache`; outside of one nothing is cached."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        def cached(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            cache = _cache.get()
            if cache is None:
                return function(*args, **kwargs)
            key = (function, args, tuple(sorted(kwargs.items())))
            if key in cache:
                return cache[key]  # type: ignore[no-any-return]
            result = function(*args, **kwargs)
            if len(cache) < _MAX_ENTRIES_OF_A_PATCH:
                cache[key] = result
            return result

        return _for_small_files(n_chars, cached, function)

    return decorate


def _for_small_files(
    n_chars: Callable[..., int], cached: Callable[_P, _T], uncached: Callable[_P, _T]
) -> Callable[_P, _T]:
    @functools.wraps(uncached)
    def chosen(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return (cached if n_chars(*args, **kwargs) <= _MAX_CHARS else uncached)(*args, **kwargs)

    return chosen
