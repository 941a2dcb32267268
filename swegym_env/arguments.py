"""Checks of what users give: a wrong value is an error that names the argument, what was expected and what was got."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Any, TypeVar

from swegym_env.errors import ConfigurationError

__all__ = [
    "CheckedArguments",
    "check_between",
    "check_choice",
    "check_dataset",
    "check_positive",
    "check_whole",
    "elements",
    "nearest",
    "nearest_and_all",
    "nearest_or_all",
]

T = TypeVar("T")
C = TypeVar("C", bound="CheckedArguments")


class CheckedArguments:
    """Base of classes with many arguments: an unknown name is an error that suggests the right one.

    Raises:
        ConfigurationError: the constructor has no argument of this name.
    """

    def __new__(cls: type[C], *_positional: Any, **named: Any) -> C:
        """Check the names of the arguments first: Python's own error does not suggest similar names."""
        known = _arguments_of(cls.__init__)
        unknown = next((name for name in named if known and name not in known), None)
        if unknown is not None:
            raise ConfigurationError(f"{cls.__name__}: no argument {unknown!r}{nearest_or_all(unknown, known)}")
        return super().__new__(cls)


@cache
def _arguments_of(init: Callable[..., None]) -> tuple[str, ...]:
    """The names of a constructor's arguments; empty if it takes any."""
    known = inspect.signature(init).parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return ()
    return tuple(name for name in known if name != "self")


def check_positive(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise ConfigurationError if `value` is not a positive number, or None where that is allowed."""
    if not (value is None and optional) and not (_is_number(value) and value > 0):
        raise _wrong(name, "a positive number", value, optional)


def check_whole(name: str, value: Any, least: int, *, optional: bool = False) -> None:
    """Raise ConfigurationError if `value` is not a whole number of `least` or more, or None where that is allowed."""
    whole = _is_number(value) and isinstance(value, Integral)
    if not (value is None and optional) and not (whole and value >= least):
        raise _wrong(name, f"a whole number of {least} or more", value, optional)


def check_between(name: str, value: Any, low: float, high: float, *, open_ended: bool = False) -> None:
    """Raise ConfigurationError if `value` is no number from `low` to `high`; `open_ended`: between the two."""
    if not (_is_number(value) and low <= value <= high) or (open_ended and value in (low, high)):
        expected = f"more than {low:g} and less than {high:g}" if open_ended else f"a number from {low:g} to {high:g}"
        raise _wrong(name, expected, value, optional=False)


def check_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Raise ConfigurationError if `value` is not one of `choices`."""
    if value not in choices:
        raise ConfigurationError(f"{name}: expected one of {choices}, got {value!r}")


def check_dataset(dataset: object, instead: str) -> None:
    """Raise ConfigurationError if `dataset` is not a name or a file; task objects belong in the argument `instead`."""
    if not isinstance(dataset, str | os.PathLike):
        raise ConfigurationError(f"dataset: expected a name or a file, got a {type(dataset).__name__}. Try: {instead}=")


def elements(name: str, values: Iterable[T], kind: type[T]) -> tuple[T, ...]:
    """The elements of an argument. Raises ConfigurationError if it is no sequence, or one is of another kind."""
    expected = f"{name}: expected a sequence of {kind.__name__}"
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{expected}, got {type(values).__name__}. Try: dataset=, for a name or a file")
    found = tuple(values)
    for each in found:
        if not isinstance(each, kind):
            raise ConfigurationError(f"{expected}, got one with {type(each).__name__}")
    return found


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint with the most similar name, and others that are nearly as similar; empty if none is similar."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    alike = [difflib.SequenceMatcher(None, each, name).ratio() for each in near]
    chosen = [each for each, ratio in zip(near, alike, strict=True) if ratio > alike[0] - 0.2]
    return f"; did you mean {' or '.join(chosen)}?" if chosen else ""


def nearest_or_all(name: str, known: Sequence[str]) -> str:
    """A hint with the most similar names, or with all of them if none is similar."""
    return nearest(name, known) or f"; there are {', '.join(known)}"


def nearest_and_all(name: str, known: Sequence[str]) -> str:
    """A hint with the most similar names, and then all of them."""
    hint = nearest(name, known)
    return f"{hint} There are {', '.join(known)}" if hint else f"; there are {', '.join(known)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _wrong(name: str, expected: str, value: object, optional: bool) -> ConfigurationError:
    return ConfigurationError(f"{name}: expected {'None or ' if optional else ''}{expected}, got {value!r}")
