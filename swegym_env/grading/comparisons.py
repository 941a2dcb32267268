"""Comparisons outside of the sandbox: records of hidden tests, read without trust and compared by builtin semantics.

A record comes from the process of the code under test, so it may be anything. Reading is bounded in bytes, records and
depth, and never raises. The values that are read have exact builtin types or are `Foreign` objects, so `==` runs no
foreign code: a subclass of `str` is the text that it contains, a type of the standard library that equals a builtin one
becomes that one (`dict.keys()`, `Fraction`, `ChainMap`), and an object of another class equals only an object of the
same class with the same content.
"""

from __future__ import annotations

import builtins
import cmath
import contextlib
import datetime
import fnmatch
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from swegym_env.languages import Expectation

__all__ = [
    "Foreign",
    "Record",
    "as_base",
    "as_lists",
    "canonical",
    "error_class",
    "holds",
    "is_quick",
    "opened",
    "plain_value",
    "read_records",
]

_RECORDS = 200_000
_RECORD_BYTES = 4 << 20
_DEPTH = 90
_ITEMS = 2000
_DIGITS = 1000
_OUTCOMES = ("passed", "skipped", "failed", "errors", "xpassed", "xfailed")


@dataclass(frozen=True)
class Foreign:
    """An object of a class that is not builtin.

    Attributes:
        name: name of its class, with the module.
        content: its content as JSON; empty if the class is unknown. Equal objects have equal contents.
        bases: names of the base classes of its class.
    """

    name: str
    content: str
    bases: tuple[str, ...] = field(default=(), compare=False)


class _Unreadable:
    """A record that cannot be read; it equals nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


@dataclass(frozen=True)
class Record:
    """One value that a test sent.

    Attributes:
        key: key of the comparison.
        placeholder: placeholder of the expected value; None if the comparison has only one.
        value: the value, of builtin types and `Foreign`.
        test: the test that ran, as pytest names it; empty for other runners.
        function: the outermost function of the test file.
        owner: the class of that function, if it is a method, else the module; with its module.
        foreign: whether the value contains an object that may define its own equality.
        comparing: names of the classes of its objects, and of their bases, that define how they compare.
    """

    key: str
    placeholder: str | None
    value: Any
    test: str
    function: str
    owner: str = ""
    foreign: bool = False
    comparing: frozenset[str] = frozenset()


def read_records(content: bytes) -> Iterator[Record]:
    """The records in what was sent; anything else is skipped."""
    for line in content.split(b"\n", _RECORDS)[:_RECORDS]:
        if len(line) > _RECORD_BYTES:
            continue
        try:
            key, placeholder, packed, (test, function, owner), *more = json.loads(line)
            comparing = frozenset(map(str, more[0] if more else ()))
            value = _unpacked(packed, 0)
        except (ValueError, TypeError, RecursionError, ArithmeticError, LookupError):
            continue
        if isinstance(key, str) and isinstance(placeholder, str | None) and isinstance(test, str):
            foreign = _has_equality(packed)
            yield Record(key, placeholder, value, test, str(function)[:200], str(owner)[:400], foreign, comparing)


def _has_equality(packed: Any) -> bool:
    """Whether a packed value contains an object of a class that may define how it compares."""
    if packed[0] in ("l", "t", "d", "e"):
        return any(map(_has_equality, packed[1]))
    if packed[0] == "v":
        return _has_equality(packed[2])
    return packed[0] in ("k", "o", "x")


_MOMENTS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
}
_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "b": bool,
    "i": lambda text: int(text, 16),
    "f": float.fromhex,
    "c": lambda parts: complex(float.fromhex(parts[0]), float.fromhex(parts[1])),
    "s": lambda text: _require(text, str),
    "y": bytes.fromhex,
    "m": lambda text: Decimal(_short(text)),
    "w": lambda parts: _MOMENTS[parts[0]](*(_require(part, int) for part in parts[1:])),
    "q": lambda parts: Fraction(int(_short(parts[0]), 16), int(_short(parts[1]), 16)),
}


def _require(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _short(text: Any) -> str:
    if len(_require(text, str)) > _DIGITS:
        raise ValueError("a number of too many digits")
    return str(text)


def _unpacked(packed: Any, depth: int) -> Any:
    if depth > _DEPTH:
        raise ValueError("too deep")
    tag = _require(packed, list)[0]
    if tag in _SCALARS:
        return _SCALARS[tag](packed[1])
    if tag == "n":
        return None
    if tag in ("k", "v"):  # an instance of a subclass is the value that it holds
        return _unpacked(packed[2], depth + 1)
    if tag == "o":
        content = "" if packed[2] is None else json.dumps(packed[2])
        return Foreign(_require(packed[1], str), content, tuple(map(str, packed[3] if len(packed) > 3 else ())))
    if tag == "x":
        return _Unreadable()
    items = [_unpacked(item, depth + 1) for item in _require(packed[1], list)]
    if tag == "d":
        return dict(zip(items[::2], items[1::2], strict=True))
    return {"l": list, "t": tuple, "e": frozenset}[tag](items)


def canonical(value: Any) -> str:
    """A text that is equal for equal values; empty if the value contains an object of an unknown class."""
    if isinstance(value, dict):
        parts = sorted((canonical(key), canonical(item)) for key, item in value.items())
        return "" if any("" in part for part in parts) else f"dict{parts}"
    if isinstance(value, list | tuple | frozenset | set):
        items = [canonical(item) for item in value]
        if isinstance(value, frozenset | set):
            items.sort()
        return "" if "" in items else f"{type(value).__name__}{items}"
    if isinstance(value, Foreign):
        return f"{value.name}:{value.content}" if value.content else ""
    if isinstance(value, _Unreadable):
        return ""
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _DIGITS:
        value = Fraction(value)
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return f"number:{value.numerator:x}"
        with contextlib.suppress(OverflowError):
            value = float(value) if float(value) == value else value
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return f"number:{int(value):x}"
    return f"{type(value).__name__}:{value!r}"


def as_lists(value: Any) -> Any:
    """A value with its tuples as lists."""
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


def as_base(value: Any, forms: Collection[str]) -> Any:
    """A value in which objects of a subclass are objects of the base class, if one of `forms` has the base class."""
    if isinstance(value, Foreign) and value.content:
        wanted = (base for base in value.bases if any(f"{base}:{value.content}" in form for form in forms))
        return Foreign(next(wanted, value.name), value.content)
    if isinstance(value, dict):
        return {as_base(key, forms): as_base(item, forms) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return type(value)([as_base(item, forms) for item in value])
    return value


def holds(expectation: Expectation, expected: Any, actual: Any, forms: frozenset[str] = frozenset()) -> bool:
    """Whether a comparison of a test holds.

    Args:
        expectation: how it compares.
        expected: the expected value, of builtin types.
        actual: the sent value.
        forms: `canonical` of values that the gold patch sends and that do not equal the expected value by builtin
            semantics: objects of another class, or text that the test compares in a normal form.
    """
    try:
        if forms and canonical(actual) in forms:
            return True
        return _COMPARISONS[expectation.kind](expected, plain_value(actual), expectation.options)
    except (TypeError, ValueError, RecursionError, ArithmeticError, AttributeError, LookupError, re.error):
        return False


def plain_value(value: Any) -> Any:
    """NumPy's scalars and arrays as numbers and lists; everything else as it is."""
    if isinstance(value, Foreign) and value.name.startswith("numpy.") and value.content[:1] == "[":
        return _unpacked(json.loads(value.content), 0)[2]
    if isinstance(value, list | tuple):
        return type(value)(map(plain_value, value))
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    return value


def opened(value: Any) -> Any:
    """A value in which objects with known content are lists of their contents."""
    if isinstance(value, Foreign):
        content = json.loads(value.content) if value.content else []
        if content and isinstance(content[0], list):  # attributes: name and value
            return [opened(_unpacked(item, 0)) for _, item in content]
        return [opened(_unpacked(content, 0))] if content else []
    if isinstance(value, dict):
        return [opened(item) for pair in value.items() for item in pair]
    if isinstance(value, list | tuple | set | frozenset):
        return [opened(item) for item in value]
    return value


def error_class(names: Any, wanted: Any) -> Any:
    """The class of an expected error by what was sent: the one with the name `wanted`, if the error is derived from it.

    Without a base of that name it is the error's own class. Many bases would be many guesses at once: so the builtin
    bases must be those of one builtin class, and besides them and the error's own class there may be one more.
    """
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return names
    first = next((place for place, name in enumerate(names) if name.startswith("builtins.")), len(names))
    known = getattr(builtins, names[first].removeprefix("builtins."), None) if first < len(names) else None
    bases = [f"builtins.{base.__name__}" for base in known.__mro__] if isinstance(known, type) else []
    alias = getattr(builtins, str(wanted), None)  # IOError is OSError
    simple = alias.__name__ if isinstance(alias, type) else wanted
    if first > 2 or names[first:] != bases:
        return names[0]
    return next((name for name in names if name.rpartition(".")[2] == simple), names[0])


def _same_type(expected: Any, actual: Any) -> bool:
    """Equality in a language in which true does not equal 1."""
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(_same_type, expected, actual))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(_same_type(expected[key], actual[key]) for key in expected)
    return type(expected) is type(actual) and bool(expected == actual)


def _same_items(expected: Any, actual: Any) -> bool:
    remaining = list(actual)
    if len(remaining) != len(expected) or len(remaining) > _ITEMS:
        return False
    for item in expected:
        if item not in remaining:
            return False
        remaining.remove(item)
    return True


def _near(expected: Any, actual: Any, options: Mapping[str, float]) -> bool:
    """`pytest.approx`: within 1e-6 of the expected number, or 1e-12, or as given."""
    if isinstance(expected, dict):
        return expected.keys() == actual.keys() and all(_near(expected[k], actual[k], options) for k in expected)
    if isinstance(expected, list | tuple):
        pairs = zip(expected, actual, strict=True)
        return isinstance(actual, list | tuple) and all(_near(one, other, options) for one, other in pairs)
    if expected == actual:
        return True
    if not math.isfinite(abs(expected)):
        return False
    relative = options.get("rel", 1e-6 if "abs" not in options else 0.0) * abs(expected)
    return bool(abs(expected - actual) <= max(relative, options.get("abs", 1e-12)))


def _close(expected: Any, actual: Any, options: Mapping[str, float]) -> bool:
    """Assertions of numpy.testing: element by element, NaN equals NaN, and a number stands for all elements."""
    if isinstance(actual, list | tuple):
        if not isinstance(expected, list | tuple):
            return bool(actual) and all(_close(expected, item, options) for item in actual)
        pairs = zip(expected, actual, strict=True)
        return all(_close(one, other, options) for one, other in pairs)
    if expected == actual:
        return True
    if not isinstance(expected, int | float | complex) or not isinstance(actual, int | float | complex):
        return False
    if cmath.isnan(expected) or cmath.isnan(actual):
        return cmath.isnan(expected) and cmath.isnan(actual)
    gap = abs(expected - actual)
    if "decimal" in options:
        return bool(gap < 1.5 * 10.0 ** -options["decimal"])
    if "significant" in options:
        return bool(gap <= abs(expected) * 10.0 ** -(options["significant"] - 1) / 2)
    return bool(math.isfinite(abs(expected)) and gap <= options.get("atol", 0) + options.get("rtol", 0) * abs(expected))


def _almost(expected: Any, actual: Any, options: Mapping[str, float]) -> bool:
    """`assertAlmostEqual`."""
    if expected == actual:
        return True
    if "delta" in options:
        return bool(abs(expected - actual) <= options["delta"])
    return bool(round(abs(expected - actual), int(options.get("places", 7))) == 0)


def _found(pattern: str, text: str) -> bool:
    """`re.search` in a text that may be hostile: searches that could take long are not tried."""
    return is_quick(pattern, len(text)) and bool(re.search(pattern, text))


def is_quick(pattern: str, length: int) -> bool:
    """Whether a search in a text of this length is certainly fast."""
    plain = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    repeats = len(re.findall(r"[*+]|\{\d*,\d*\}", plain))
    if re.search(r"\)[*+{]", plain) or repeats > 3:
        return False
    return length <= (1 << 20, 8000, 600, 200)[repeats]


def _lines_match(patterns: Any, lines: Any) -> bool:
    """`LineMatcher.fnmatch_lines`: each pattern matches a line after the one before it."""
    position = 0
    wanted = patterns.split("\n") if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        match = re.compile(fnmatch.translate(pattern)).match
        while position < len(lines) and not (lines[position] == pattern or match(lines[position])):
            position += 1
        if position == len(lines):
            return False
        position += 1
    return True


def _outcomes_match(expected: Mapping[str, int], actual: Mapping[str, int]) -> bool:
    counted = {"errors" if name == "error" else name: count for name, count in actual.items()}
    if not set(expected) <= set(_OUTCOMES):
        return False
    return all(counted.get(name, 0) == expected.get(name, 0) for name in _OUTCOMES)


def _json_equal(expected: Any, actual: Any) -> bool:
    return bool(json.loads(actual) == (json.loads(expected) if isinstance(expected, str) else expected))


_COMPARISONS: Mapping[str, Callable[[Any, Any, Mapping[str, float]], bool]] = {
    "eq": lambda expected, actual, options: bool(
        _same_type(expected, actual) if "typed" in options else expected == actual
    ),
    "is": lambda expected, actual, _: type(expected) is type(actual) and bool(expected == actual),
    "in": lambda expected, actual, _: expected in actual,
    "of": lambda expected, actual, _: actual in expected,
    "count": lambda expected, actual, _: _same_items(expected, actual),
    "rows": lambda expected, actual, _: list(expected) == list(actual),
    "approx": _near,
    "close": _close,
    "almost": _almost,
    "search": lambda expected, actual, _: _found(expected, actual),
    "start": lambda expected, actual, _: bool(actual.startswith(expected)),
    "end": lambda expected, actual, _: bool(actual.endswith(expected)),
    "json": lambda expected, actual, _: _json_equal(expected, actual),
    "same": lambda expected, actual, _: False,
    "lines": lambda expected, actual, _: _lines_match(expected, actual),
    "outcomes": lambda expected, actual, _: _outcomes_match(expected, actual),
    "asked": lambda expected, actual, _: True,  # the test itself asks it
    "gold": lambda expected, actual, _: False,  # only what the gold patch sends too: `forms`
    "raised": lambda expected, actual, _: False,
}
