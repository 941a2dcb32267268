"""Records by what the objects differ that tests compare (see `languages.python.equality`).

Test files execute this file at their end in a dictionary with `OUT`, the path of the file to which records are
appended, `FILES`, the paths of the test files, `SENDERS`, those of the modules with which they send values, and `ROOT`,
the directory of the repository. From then on, each time a test compares an object of the code under test by a method of
its class, the method is also asked about objects that differ from this one in one place each. They are made without any
code of the class, so the class cannot notice it, and the method is asked in random order, so it cannot tell which of
the objects is the test's. A record is one line of JSON: the test file, the function, whether it sends what it compares,
the class with the method, and the places in which a change changes the answer, and in which it does not. Runs on Python
3.5 and newer.
"""

import builtins
import datetime
import enum
import functools
import json
import os
import random
import re
import sys
import threading
import time
import types

OUT, ROOT = globals().get("OUT", os.devnull), globals().get("ROOT", os.getcwd())
FILES, SENDERS = globals().get("FILES", ()), globals().get("SENDERS", ())
_METHODS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
_TRUE, _FALSE = ("__eq__", "__contains__"), ("__ne__",)  # who answers otherwise has noticed something
_DEPTH, _ITEMS, _PLACES, _REPEATS = 4, 6, 40, 8
_SECONDS = 10.0
_OF_TESTS = re.compile(r"/(tests?|testing)/|/(test_[^/]*|[^/]*_tests?|tests?|conftest)\.py$")
_SCALARS, _CONTAINERS = (int, float, complex, str, bytes), (list, tuple, set, frozenset, dict)
_PLAIN = frozenset(("builtins", "functools", "types", "_io", "abc"))
_open, _write, _close, _dumps, _clock = os.open, os.write, os.close, json.dumps, time.perf_counter
_frame = sys._getframe  # noqa: SLF001
_HERE = _frame(0).f_code.co_filename
_random = random.Random(os.urandom(16))
_seen, _counts, _state = set(), {}, threading.local()
_spent = [0.0]


def _is_product(path):
    return path.startswith(ROOT) and "site-packages" not in path and not _OF_TESTS.search(path[len(ROOT) :])


def _test():
    """File and function of the test that compares, and whether it sends what it compares.

    None if the code under test compares, or this file.
    """
    frame, found, is_sent = _frame(2), None, False
    while frame is not None:
        path = frame.f_code.co_filename
        path = path if path[:1] in "/<" else os.path.join(ROOT, path)
        is_sent = is_sent or (found is None and path in SENDERS)
        if path in FILES:
            found = path, frame.f_code.co_name, is_sent
        elif found is None and (path == _HERE or _is_product(path)):
            return None
        frame = frame.f_back
    return found


def _wrapped(name, function, label):
    @functools.wraps(function)
    def compare(self, *others):
        if len(others) != 1 or getattr(_state, "busy", False) or _spent[0] > _SECONDS:
            return function(self, *others)
        test = _test()
        if test is None:
            return function(self, *others)
        key = test, label, name
        _counts[key] = count = _counts.get(key, 0) + 1
        if count > _REPEATS and count & (count - 1):  # later ones: the 16th, the 32nd, …
            return function(self, *others)
        begun = _clock()
        _state.busy = True
        try:
            return _asked(function, name, self, others[0], [*test, label + "." + name])
        finally:
            _state.busy = False
            _spent[0] += _clock() - begun

    return compare


def _asked(function, name, one, other, key):
    """What the method answers; records what it answers about changed objects."""
    pairs = [("", None, one, other)]
    for side, value in (("self", one), ("other", other))[name == "__contains__" :]:
        for place, make in [("", None), *_places(value)]:
            for far in (False, True):
                try:
                    changed = _unchanged(value) if make is None else make(far)
                except Exception:  # noqa: BLE001 - whatever a class does that cannot be made so
                    continue
                pair = (changed, other) if side == "self" else (one, changed)
                pairs.append((side, place, *pair))
    _random.shuffle(pairs)
    answers, result, error = {}, None, None
    for side, place, *pair in pairs:
        answer = decided = None
        try:
            answer = function(*pair)
            decided = answer if answer is NotImplemented else bool(answer)
        except Exception as found:  # noqa: BLE001 - the test gets it
            if not side and answer is None:
                error = found
        if not side:
            result = answer, decided
        else:
            answers.setdefault((side, place), []).append(decided)
    if error is not None:
        raise error
    answer, decided = result
    expected = True if name in _TRUE else False if name in _FALSE else decided
    if decided is not NotImplemented and decided is not None and decided is expected:
        _record(key, answers, decided, name == "__ne__")
    return answer


def _record(key, answers, decided, otherwise):
    """Append what the answers to changed objects show; nothing of a side of which the unchanged copy is another."""
    plain = {
        place: [otherwise if answer is NotImplemented else answer for answer in found]
        for place, found in answers.items()
    }
    same = [side for side in ("self", "other") if all(found is decided for found in plain.get((side, ""), [None]))]
    differing = [
        side + place
        for (side, place), found in plain.items()
        if place and side in same and all(answer is not None and answer is not decided for answer in found)
    ]
    unknown = [side + place for (side, place), found in plain.items() if place and None in found]
    equal = [side + place for side, place in plain if place and side + place not in differing + unknown]
    record = (_dumps([*key, sorted(differing), sorted(equal), sorted(unknown)]) + "\n").encode()
    try:
        target = _open(OUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:
        return
    _write(target, record)
    _close(target)


def _attributes(one):
    held = {}
    try:
        held.update(object.__getattribute__(one, "__dict__"))
    except AttributeError:
        pass
    for base in type.mro(type(one)):
        slots = type.__getattribute__(base, "__dict__").get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            name = "_" + base.__name__.lstrip("_") + name if name[:2] == "__" != name[-2:] else name
            try:
                held[name] = object.__getattribute__(one, name)
            except AttributeError:
                pass
    held.pop("__dict__", None)
    held.pop("__weakref__", None)
    return held


def _base(kind, bases):
    return next((base for base in bases if issubclass(kind, base)), None)


def _made(kind, base, content):
    if kind is base:
        return content
    if base in _SCALARS or base in (tuple, frozenset):
        return base.__new__(kind, content)
    new = base.__new__(kind)
    base.extend(new, content) if base is list else base.update(new, content)
    return new


def _with_attributes(one, changed):
    new = object.__new__(type(one))
    for name, item in {**_attributes(one), **changed}.items():
        object.__setattr__(new, name, item)
    return new


def _unchanged(one):
    """A copy, without any code of its class."""
    kind = type(one)
    base = _base(kind, _SCALARS + _CONTAINERS)
    if base is not None:
        return _made(kind, base, base.__getitem__(one, slice(None)) if base in (str, bytes) else base(one))
    return _with_attributes(one, {})


def _scalar(base, one, far):
    if base in (str, bytes):
        plain = base.__getitem__(one, slice(None))
        letters = [letter for letter in "bcdfghjklmnpqrstvwxz" if letter not in plain.lower()] if base is str else "qz"
        letter = _random.choice(letters or ["0"])
        letter = letter if base is str else letter.encode()
        return plain[:-1] + letter if not far and plain[-1:] != letter else letter + plain
    amount = _random.choice((-1, 1)) * (_random.randrange(20, 2000) if far else _random.randrange(1, 3))
    if base is int:
        return int.__add__(one, amount)
    moved = base.__add__(one, amount / 4)
    is_other = moved == moved and moved != base.__add__(one, 0)  # noqa: PLR0124 - not NaN
    return moved if is_other else base(0.5)


def _places(value):  # noqa: C901 - a case for each kind of value
    """The places in which a value can be changed, with functions that make the changed value."""
    found, busy = [], {}

    def look(one, place, put, depth):
        if len(found) >= _PLACES or depth > _DEPTH or id(one) in busy:
            return
        kind = type(one)
        if one is None:
            found.append((place, lambda far: put(0 if far else "none")))
        elif kind is bool:
            found.append((place, lambda far: put(not one)))
        elif isinstance(one, enum.Enum):
            others = [each for each in type(one) if each is not one]
            if others:
                found.append((place, lambda far: put(others[-1 if far else 0])))
        elif _base(kind, _SCALARS) is not None:
            base = _base(kind, _SCALARS)
            found.append((place, lambda far: put(_made(kind, base, _scalar(base, one, far)))))
        elif kind.__module__ in ("datetime", "decimal", "fractions"):
            moment = (datetime.date, datetime.timedelta)
            step = datetime.timedelta if issubclass(kind, moment) else int
            found.append((place, lambda far: put(one + step(300 if far else 1))))
        else:
            busy[id(one)] = one
            parts(one, kind, place, put, depth)

    def parts(one, kind, place, put, depth):
        base = _base(kind, _CONTAINERS)
        if base is dict:
            for key in list(dict.keys(one))[:_ITEMS]:
                name = str(key) if type(key) in (str, int) else "?"
                look(
                    dict.__getitem__(one, key),
                    place + "[" + name + "]",
                    lambda item, key=key: put(_made(kind, dict, {**dict(one), key: item})),
                    depth + 1,
                )
            found.append((place + "{}", lambda far: put(_made(kind, dict, {**dict(one), "other": 1}))))
        elif base in (set, frozenset):
            found.append((place + "{}", lambda far: put(_made(kind, base, base([*base.__iter__(one), "other"])))))
        elif base is not None:
            items = list(base.__iter__(one))
            for at, item in enumerate(items[:_ITEMS]):
                look(
                    item,
                    place + "[" + str(at) + "]",
                    lambda new, at=at: put(_made(kind, base, base([*items[:at], new, *items[at + 1 :]]))),
                    depth + 1,
                )
            found.append((place + "[]", lambda far: put(_made(kind, base, base([*items, *(items[-1:] or [0])])))))
        elif not (issubclass(kind, type) or kind.__module__ in _PLAIN or isinstance(one, types.ModuleType)):
            for name, item in sorted(_attributes(one).items()):
                look(
                    item,
                    place + "." + name,
                    lambda new, name=name: put(_with_attributes(one, {name: new})),
                    depth + 1,
                )

    look(value, "", lambda new: new, 0)
    return found[:_PLACES]


def _classes():
    waiting, known = [object], set()
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if kind not in known:
                known.add(kind)
                if not issubclass(kind, type):
                    waiting.append(kind)
    return known


def install():
    """Watch the classes of the code under test that are known by now."""
    for kind in _classes() - _seen:
        _seen.add(kind)
        module = sys.modules.get(kind.__module__)
        path = getattr(module, "__file__", None) or ""
        path = path if path.startswith("/") else os.path.join(ROOT, path)
        if not _is_product(path):
            continue
        for name in _METHODS:
            function = type.__getattribute__(kind, "__dict__").get(name)
            if isinstance(function, types.FunctionType) and function.__code__.co_filename != _HERE:
                try:
                    type.__setattr__(kind, name, _wrapped(name, function, kind.__module__ + "." + kind.__qualname__))
                except (TypeError, AttributeError):
                    continue


def _importing(load):
    @functools.wraps(load)
    def loading(name, globals=None, *others, **named):  # noqa: A002 - as the interpreter calls it
        before = len(sys.modules)
        found = load(name, globals, *others, **named)
        if len(sys.modules) != before and str((globals or {}).get("__file__")) in FILES:
            install()
        return found

    return loading


install()
builtins.__import__ = _importing(builtins.__import__)
