"""Sends the values that hidden tests compare out of the sandbox (see `languages.python.blind`).

The rewritten tests execute this file in a dictionary with `OUT`, the path of the file to which records are appended. It
runs in the process of the code under test, and need not be trusted: it does not know the expected values. A record is
one line of JSON: the comparison, the placeholder of the expected value (empty if the comparison was made here), the
value, the test. A value is a list of a tag and its content. Runs on Python 3.5 and newer.
"""

import collections
import contextlib
import datetime
import decimal
import fractions
import json
import os
import sys
import types

OUT = globals().get("OUT", os.devnull)
_DEPTH, _ITEMS, _BESIDE_ITEMS, _RECORD_BYTES = 40, 100000, 5000, 2 << 20
_MISSING = object()
_dumps, _open, _write, _close, _environ = json.dumps, os.open, os.write, os.close, os.environ
_frame = sys._getframe  # noqa: SLF001
_seen = {}
_REPEATS = 20


class Token:
    """Placeholder of an expected value, which is not in the sandbox."""

    def __init__(self, key):
        self.key = key

    def __repr__(self):
        return "<expected value>"


class Text(str):
    """A placeholder that is a text, for values by which pytest names a test."""

    __slots__ = ()

    @property
    def key(self):
        return str(self)


class _BoundedError(Exception):
    pass


def _class(value):
    return _name(type(value))


def _pack(value, depth, budget, how=""):
    """A value in the form that the comparison `how` needs; objects of "gold" and "asked" include their attributes.

    `budget` is a list with the number of items that are left; the classes whose own methods compare something are
    appended.
    """
    budget[0] -= 1
    if depth > _DEPTH or budget[0] < 0:
        raise _BoundedError
    kind = type(value)
    if value is None or kind is bool:
        return ["n"] if value is None else ["b", int(value)]
    for base, tag, content in _SCALARS:
        if isinstance(value, base):
            packed = [tag, content(value)]
            budget += _comparing_classes(kind)
            return packed if kind is base else [_subclass_tag(kind, base, how), _class(value), packed]
    for base, tag, items in _CONTAINERS:
        if isinstance(value, base):
            packed = [tag, [_pack(item, depth + 1, budget, how) for item in items(value)]]
            if how == "gold" and tag == "e":
                packed[1].sort(key=_dumps)
            budget += _comparing_classes(kind)
            return packed if kind is base else [_subclass_tag(kind, base, how), _class(value), packed]
    if type(value).__name__ in ("Integer", "Zero", "One", "NegativeOne") and kind.__module__ == "sympy.core.numbers":
        return ["i", hex(int(value))]
    equal = _equal_content(value, depth, budget, how) if how not in _BY_TYPE else None
    if equal is not None:
        return equal
    known = _known(value, depth, budget)
    budget += _comparing_classes(kind)
    if known is None and how in ("gold", "asked"):
        bases = [_name(base) for base in _bases(kind)[1:] if _flags(base) & _WRITTEN]
        return ["o", _class(value), _attributes(value, depth, budget), bases]
    return ["o", _class(value), known]


_EQUALITIES = ("", "eq", "asked", "in", "of", "count", "rows")
# Attributes that a subclass may define and still compare, contain and iterate like its builtin base.
_NO_EQUALITY = {"__new__", "__init__", "__repr__", "__str__", "__format__", "__add__", "__doc__", "__getnewargs__"}
_NO_EQUALITY |= {"__init_subclass__", "__class_getitem__", "__reduce__", "__reduce_ex__", "__sizeof__", "__dir__"}
_SAME_EQUALITY = (collections.defaultdict, collections.OrderedDict)


def _subclass_tag(kind, base, how):
    """The tag "v" for a subclass that compares as its builtin base does, like Django's SafeString, else "k"."""
    if how not in _EQUALITIES or base not in (str, bytes, tuple, list, dict) or base not in kind.__mro__:
        return "k"
    own = set().union(*(vars(each) for each in kind.__mro__[: kind.__mro__.index(base)]))
    return "v" if kind in _SAME_EQUALITY or not own & (set(dir(base)) - _NO_EQUALITY) else "k"


# Methods that decide how an object compares, measures or iterates, in assertions of any kind.
_COMPARING = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__", "__len__", "__iter__", "__next__"}
_COMPARING |= {"__contains__", "__getitem__", "__sub__", "__rsub__", "__abs__", "__round__", "__float__", "__index__"}
_COMPARING |= {"__getattr__", "__getattribute__", "__class__", "__hash__"}
_bases, _space, _flags = (type.__dict__[name].__get__ for name in ("__mro__", "__dict__", "__flags__"))
_WRITTEN = 1 << 9  # the flag of classes that are not part of the interpreter


def _comparing_classes(kind):
    """The names of a class and its bases that define how their objects compare, without those of the interpreter."""
    written = [base for base in _bases(kind) if _flags(base) & _WRITTEN and _COMPARING.intersection(_space(base))]
    return [_name(base) for base in written]


def _name(kind):
    return str(kind.__module__) + "." + kind.__qualname__


def _attributes(value, depth, budget):
    """The attributes of an object by name, if it has no other content; None for functions, modules and classes."""
    kind = type(value)
    if kind.__module__ in ("builtins", "functools", "types", "_io", "abc") or isinstance(value, type):
        return None
    try:
        held = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        held = {}
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and name in base.__dict__:
                with contextlib.suppress(AttributeError):  # never set
                    held[name] = base.__dict__[name].__get__(value, kind)
    if not held:
        return None  # a class without attributes, or one of an extension
    packed = [[str(name), _pack(held[name], depth + 1, budget, "gold")] for name in sorted(held, key=str)]
    return None if any(_is_unknown(item) for _, item in packed) else packed


def _is_unknown(packed):
    """Whether a part of a packed value has an unknown content."""
    if packed[0] == "o":
        return packed[2] is None
    if packed[0] in ("k", "v"):
        return _is_unknown(packed[2])
    return packed[0] in ("l", "t", "d", "e") and any(map(_is_unknown, packed[1]))


def _pairs(value):
    return [item for pair in dict.items(value) for item in pair]


_SCALARS = (
    (int, "i", lambda value: hex(int.__index__(value))),
    (float, "f", float.hex),
    (complex, "c", lambda value: [value.real.hex(), value.imag.hex()]),
    (str, "s", lambda value: str.__str__(value) if type(value) is str else str.join("", list(str.__iter__(value)))),
    (bytes, "y", bytes.hex),
    (bytearray, "y", bytearray.hex),
)
_CONTAINERS = (
    (list, "l", list.__iter__),
    (tuple, "t", tuple.__iter__),
    (dict, "d", _pairs),
    (set, "e", set.__iter__),
    (frozenset, "e", frozenset.__iter__),
)


_MOMENTS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)
_DAY, _HOUR = ("year", "month", "day"), ("hour", "minute", "second", "microsecond")
_PARTS = (_DAY + _HOUR, _DAY, _HOUR, ("days", "seconds", "microseconds"))


def _moment(value):
    """A date, a time or a duration without a time zone, also of a subclass, by its content; else None."""
    for base, names in zip(_MOMENTS, _PARTS):  # noqa: B905 - Python 3.5 knows no `strict`
        if isinstance(value, base):
            if "hour" in names and base.tzinfo.__get__(value) is not None:
                return None
            packed = ["w", [base.__name__, *(getattr(base, name).__get__(value) for name in names)]]
            return packed if type(value) is base else ["k", _class(value), packed]
    return None


_BY_TYPE = ("is", "search", "lines", "json")  # comparisons that accept no other type
_EMPTY, _ORDERED = {}, collections.OrderedDict()
_SET_VIEWS = tuple({type(view) for held in (_EMPTY, _ORDERED) for view in (held.keys(), held.items())})
_VIEWS = tuple({type(_EMPTY.values()), type(_ORDERED.values()), collections.deque, range})
_ITERATORS = (map, filter, zip, enumerate, reversed, types.GeneratorType)
_ITERATORS += tuple(type(iter(held)) for held in ([], (), {}, set(), {}.values(), {}.items(), ""))
_ITERATORS += (type(reversed([])),)


def _equal_content(value, depth, budget, how):
    """For exactly a type of the standard library that equals a builtin type: the equal builtin value; else None."""
    kind = type(value)
    if kind is fractions.Fraction:
        return ["q", [hex(value.numerator), hex(value.denominator)]]
    if kind is decimal.Decimal:
        return ["m", str(value)]
    if isinstance(value, _MOMENTS):
        return _moment(value)
    if kind in (collections.UserString, collections.UserList, collections.UserDict):
        return _pack(value.data, depth + 1, budget, how)
    if kind in (collections.ChainMap, types.MappingProxyType):
        return _pack(dict(value), depth + 1, budget, how)
    if kind is memoryview and value.format == "B" and value.ndim == 1:
        return ["y", value.tobytes().hex()]
    if kind in _SET_VIEWS:
        try:
            return _pack(set(value), depth + 1, budget, how)
        except TypeError:
            return None  # items with values that cannot be in a set
    if how == "in" and depth == 0 and kind in _VIEWS + _ITERATORS:
        return ["l", [_pack(item, depth + 1, budget, how) for item in value]]
    return None


def _known(value, depth, budget):
    """The content of an object of a known class that is not a builtin container, else None."""
    if isinstance(value, (decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta)):
        return ["s", repr(value)]
    if isinstance(value, (range, collections.deque)):
        return ["l", [_pack(item, depth + 1, budget) for item in value]]
    module = type(value).__module__.split(".")[0]
    library, numpy = sys.modules.get(module), sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        if value.size > budget[0]:
            raise _BoundedError
        unit = str(getattr(value, "unit", ""))
        return _pack([value.dtype.kind, list(value.shape), value.tolist(), unit], depth + 1, budget)
    if module == "sympy" and isinstance(value, (library.Basic, library.MatrixBase)):
        text = library.srepr(value)
        return None if "Dummy(" in text else ["s", text]  # the number of a dummy differs between runs
    if module == "pathlib":
        return ["s", str(value)]
    return None


def send(key, token, value, how="", items=_ITEMS):
    """Append one record; equal records are written at most a few times."""
    label = [_environ.get("PYTEST_CURRENT_TEST", ""), *_outermost()]
    budget = [items]
    try:
        packed = _pack(value, 0, budget, how)
        line = _dumps([key, token, packed, label, sorted(set(budget[1:]))])
        if len(line) > _RECORD_BYTES:
            raise _BoundedError
    except (_BoundedError, RecursionError, MemoryError):
        line = _dumps([key, token, ["x"], label])
    _seen[line] = _seen.get(line, 0) + 1
    if _seen[line] > _REPEATS:
        return
    descriptor = _open(OUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        _write(descriptor, (line + "\n").encode("ascii"))
    finally:
        _close(descriptor)


def _outermost():
    """The name of the outermost function of the comparing file on the stack, and its class or module."""
    frame = _frame(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    name, owner, path = "", "", frame.f_code.co_filename if frame is not None else ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == path and code.co_name != "<module>":
            name, owner = code.co_name, str(frame.f_globals.get("__name__", ""))
            if code.co_argcount and code.co_varnames[0] == "self":
                owner = _class(frame.f_locals.get("self"))
        frame = frame.f_back
    return name, owner


__file__ = _frame(0).f_code.co_filename
_INSIDE = {
    "eq": lambda actual, expected: actual == expected,
    "is": lambda actual, expected: actual is expected,
    "in": lambda actual, expected: expected in actual,
    "of": lambda actual, expected: actual in expected,
}


def _is_token(value):
    return type(value) is Token or type(value) is Text


def compare(key, kind, actual, expected=_MISSING):
    """Send a value that is compared with a constant or a placeholder; without a placeholder, compare here."""
    if expected is _MISSING:
        send(key, None, actual, kind)
    elif _is_token(expected):
        send(key, expected.key, actual, kind)
    else:
        send(key, "", None)
        return _INSIDE[kind](actual, expected)
    return True


def call(key, kind, method, swapped, actual, expected):
    """Like `compare`, for a comparing method of a test case."""
    if _is_token(expected):
        send(key, expected.key, actual, kind)
        return
    send(key, "", None)
    if swapped:
        method(expected, actual)
    else:
        method(actual, expected)


def asked(key, value):
    """Send a value in which a condition is about to look something up."""
    with contextlib.suppress(Exception):  # an object that cannot be inspected: the test continues
        send(key, None, value, "asked", _BESIDE_ITEMS)
    return value


_held = {}


def beside(key, number, last, value):
    """Send the parts of a condition that the test itself checks, after the last of them is computed.

    If a part has changed by then, it was affected by the value that it is compared with; its earlier state is sent too.
    """
    held = _held.setdefault(key, [])
    del held[number:]
    held.append((value, _content(value) if number < last else None))
    if number == last:
        values = [part for part, _ in held]
        values += [before for part, before in held[:-1] if before != _content(part)]
        with contextlib.suppress(Exception):  # an object that cannot be inspected: the test continues
            send(key, None, values, "gold", _BESIDE_ITEMS)
        del held[:]
    return value


def _content(value):
    """A text of the content of a value; empty if the value cannot be inspected."""
    try:
        return _dumps(_pack(value, 0, [_BESIDE_ITEMS], "gold"))
    except Exception:  # noqa: BLE001 - anything that an object of the code under test raises
        return ""


def parts(key, actual, template, strict):
    """Compare with a container that has placeholders for constants: send these items, compare the rest here."""
    if _is_token(template):
        send(key, template.key, actual)
    elif type(template) is dict:
        assert isinstance(actual, dict) and set(actual) == set(template), (actual, template)
        for name, item in template.items():
            parts(key, actual[name], item, True)
    elif type(template) in (list, tuple):
        assert not strict or isinstance(actual, type(template)), (actual, template)
        assert len(actual) == len(template), (actual, template)
        for one, item in zip(actual, template):  # noqa: B905 - as long as each other, and Python 3.5 knows no `strict`
            parts(key, one, item, True)
    else:
        for name, item in list(getattr(template, "__dict__", {}).items()):
            if _is_token(item):
                send(key, item.key, getattr(actual, name))
                setattr(template, name, getattr(actual, name))
        assert actual == template, (actual, template)
    return True


class raises:  # noqa: N801 - stands where a function stood
    """Send the message of an expected error; `plain` expects the error with any message."""

    def __init__(self, key, plain, expected=_MISSING, original=None):
        self.key, self.token = key, None
        blind = expected is _MISSING or _is_token(expected)
        if blind and expected is not _MISSING:
            self.token = expected.key
        self.blind = blind
        if not blind:
            send(key, "", None)
        self.manager = (plain if blind else original)()

    def __enter__(self):
        return self.manager.__enter__()

    def __exit__(self, kind, error, trace):
        result = self.manager.__exit__(kind, error, trace)
        if self.blind and error is not None and result:
            send(self.key, self.token, str(error) if _is_of_one_kind(error) else error)
        return result

    def run(self, function, *arguments, **named):
        with self:
            function(*arguments, **named)


def _is_of_one_kind(error):
    """Whether the builtin bases of an error are those of one of them; errors of several kinds would pass any test."""
    bases = type(error).__mro__
    first = next(place for place, base in enumerate(bases) if base.__module__ == "builtins")
    return bases[first:] == bases[first].__mro__


class raised:  # noqa: N801 - stands where a function stood
    """Send the class and the bases of an expected error; `plain` expects any error."""

    def __init__(self, key, plain):
        self.key, self.manager = key, plain()

    def __enter__(self):
        return self.manager.__enter__()

    def __exit__(self, kind, error, trace):
        names = [base.__module__ + "." + base.__qualname__ for base in type(error).__mro__]
        send(self.key, None, names if error is not None else None)
        return self.manager.__exit__(kind, error, trace)


def html(text):
    """A document as `assertHTMLEqual` compares it."""
    from django.test.html import parse_html

    return str(parse_html(text))


def content(case, response):
    """The text in which `assertContains` searches, after its other checks."""
    case.assertContains(response, "")
    return response.content.decode(getattr(response, "charset", None) or "utf-8")


def rows(values, transform=None, as_repr=False):
    """The rows that `assertQuerysetEqual` compares."""
    if transform is None:
        transform = repr if as_repr else lambda value: value
    return [transform(value) for value in values]
