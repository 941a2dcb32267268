"""Records which objects tests compare, and asks the code under test about others (see `languages.python.equality`).

Test files execute this file at their end in a dictionary with `OUT`, the path of the file to which records are
appended, `FILES`, the paths of the test files, `TESTS`, the names of the tests that count, or none for all, `SENDERS`,
the paths of the modules with which they send values, `ROOT`, the directory of the repository, `QUESTIONS`, the path of
a file with pairs of objects, or "", and `AT_LINE`, the number of places that a line has. From then on, each time a test
compares an object by a method of a class of the repository (`__eq__`, …, `same_as`), the content of both objects is
recorded, with the answer, and how each was made. It is read without any code of their classes. Where a test compares,
the pairs of the questions that belong to it are made, again without any code of their classes but for calls that make
objects, and compared. It is also recorded of which classes the repository compares objects itself for a test, and which
functions of the repository comparisons and constructors run. A record is one line of JSON. Runs on Python 3.5 and
newer.
"""

import builtins
import collections
import contextlib
import datetime
import decimal
import enum
import fractions
import functools
import importlib
import io
import json
import operator
import os
import pickle
import re
import sys
import threading
import time
import types

OUT, ROOT = globals().get("OUT", os.devnull), globals().get("ROOT", os.getcwd())
FILES, SENDERS, QUESTIONS = globals().get("FILES", ()), globals().get("SENDERS", ()), globals().get("QUESTIONS", "")
TESTS, AT_LINE = globals().get("TESTS", ()), globals().get("AT_LINE", 1)
_METHODS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
_OPERATORS = {name: getattr(operator, name) for name in _METHODS}
# Methods of the product that tell whether two objects are equal.
_NAMED = re.compile(
    r"_?((is|are)_?)?(same|equals?|identical|equivalent|eq|match(es)?)(_?(as|to|with))?$", re.IGNORECASE
)
_OF_TESTS, _FILES_OF_TESTS = ("/tests/", "/test/", "/testing/"), ("tests.py", "test.py", "conftest.py", "testing.py")
_MOST_EVENTS, _MOST_BYTES, _MOST_PARTS, _MOST_DEPTH, _MOST_TEXT, _SECONDS = 2000, 8 << 20, 500, 40, 20000, 15.0
_MOST_AT_LINE, _MOST_MADE, _MOST_BITS = 1000000, 100000, 10000  # Python writes no number of more than 4300 digits
_MOST_ITEMS, _MOST_TRIED = 20000, 500  # _MOST_TRIED: comparisons by the repository, of each method
# For the arguments of constructors, and for what these and comparisons run: each for what neither of the others calls,
# such as the set-up of a framework, for what a conftest.py calls, and for what a test calls.
_ELSEWHERE, _FIXTURE, _FOR_TEST = 0, 1, 2
_MADE_SECONDS, _FOLLOWING_SECONDS = (0.5, 5.0, 5.0), (2.0, 2.0, 2.0)
# Elsewhere the first objects of each class are known, and more of them while they take no longer than this. After the
# last of these limits nobody looks any more who calls, and all is a test's.
_MOST_FOLLOWED, _CLASS_SECONDS, _ASKING_SECONDS = 3, 0.1, 2.0
_TEXTS = ("str", "bytes", "bytearray")
_HOLDING = ("list", "tuple", "set", "frozenset", "OrderedDict", "dict", "deque")
_BASES = {
    kind.__name__: kind
    for kind in (
        *(int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset),
        *(collections.OrderedDict, dict, collections.deque),
    )
}
_PATTERN = type(re.compile(""))
# What is made again by a call of its class; how to read the arguments of the call.
_MADE_BY_CALL = {
    range: lambda one: (one.start, one.stop, one.step),
    slice: lambda one: (one.start, one.stop, one.step),
    _PATTERN: lambda one: (one.pattern, one.flags),
    datetime.date: lambda one: (one.year, one.month, one.day),
    datetime.timedelta: lambda one: (one.days, one.seconds, one.microseconds),
    decimal.Decimal: lambda one: (str(one),),
    fractions.Fraction: lambda one: (one.numerator, one.denominator),
}
_CALLS = {kind.__name__: re.compile if kind is _PATTERN else kind for kind in _MADE_BY_CALL}
# Modules whose objects are pickled, and what else their pickles may name.
_PICKLED = frozenset(("datetime", "decimal", "fractions", "uuid", "pathlib", "ipaddress"))
_IN_PICKLES = {
    "builtins": ("int", "float", "complex", "bytearray", "object", "set", "frozenset"),
    "copyreg": ("_reconstructor",),
    "_codecs": ("encode",),
    "numpy": ("ndarray", "dtype", "_reconstruct", "scalar", "_frombuffer"),
}
_OPAQUE = (types.BuiltinFunctionType, types.MethodType, types.GeneratorType, types.FrameType, types.CodeType)
_OF_INTERPRETER = (type(object.__eq__), type(dict.__contains__))  # methods that compare what is there
_MADE_BY_PYTHON = 1 << 9  # of the flags of a class
_open, _write, _close, _dumps, _clock, _getpid = os.open, os.write, os.close, json.dumps, time.process_time, os.getpid
_frame = sys._getframe  # noqa: SLF001
_HERE = _frame(0).f_code.co_filename
# What a class is, without code of its metaclass.
_held_of, _flags_of = type.__dict__["__dict__"].__get__, type.__dict__["__flags__"].__get__
_module, _qualname = type.__dict__["__module__"].__get__, type.__dict__["__qualname__"].__get__
_state, _seen, _watched, _counts, _recorded = threading.local(), set(), set(), {}, {}
_spent, _written, _spent_on_asking = [0.0], [0], [0.0]
_spent_on_made, _spent_on_following = [0.0] * 3, [0.0] * 3
_elsewhere = {}  # id of a class → how many of its objects were made elsewhere, and the time for what is known of them
_made = {}  # id of an object → the arguments that its class was called with, and its content after that
_globals, _are_globals_known = {}, [False]
_tried, _reached, _callers = {}, set(), {}


def _absolute(path):
    return path if path[:1] in ("/", "<") else os.path.join(ROOT, path)


def _is_product(path):
    name = path.rpartition("/")[2]
    of_tests = name.startswith("test_") or name.endswith("_test.py") or name in _FILES_OF_TESTS
    inside = path[len(ROOT) :]
    return path.startswith(ROOT) and not (of_tests or "site-packages" in path or any(map(inside.count, _OF_TESTS)))


def _test(of_product=False):
    """File and function of the test that compares, and whether it sends what it compares; and the line.

    None if the code under test compares, or this file, or a test that does not count.

    Args:
        of_product: the code under test may compare, for the test.
    """
    frame, found, is_sent, line = _frame(2), None, False, 0
    while frame is not None:
        path = _absolute(frame.f_code.co_filename)
        is_sent = is_sent or (found is None and path in SENDERS)
        if path in FILES:
            found, line = (path, frame.f_code.co_name, is_sent), frame.f_lineno
        elif found is None and not of_product and (path == _HERE or _is_product(path)):
            return None
        frame = frame.f_back
    is_other = found and TESTS and found[1].startswith("test") and found[1] not in TESTS
    return None if is_other or found is None else (found, line)


def _caller():
    """For what is called: a test that counts or other code of a test file, a conftest.py, or neither."""
    if _spent_on_asking[0] > _ASKING_SECONDS:  # deep recursion
        return _FOR_TEST
    begun, frame, found, outermost = _clock(), _frame(2), _ELSEWHERE, ""
    while frame is not None:
        path = frame.f_code.co_filename
        kind = _callers.get(path)
        if kind is None:
            kind = _FIXTURE if os.path.basename(path) == "conftest.py" else _ELSEWHERE
            kind = _callers[path] = _FOR_TEST if _absolute(path) in FILES else kind
        if kind:
            found = max(found, kind)
            outermost = frame.f_code.co_name if kind == _FOR_TEST else outermost
        frame = frame.f_back
    _spent_on_asking[0] += _clock() - begun
    return _ELSEWHERE if TESTS and outermost.startswith("test") and outermost not in TESTS else found


# --- What an object is, read without code of its class ---


def _module_of(kind):
    try:
        found = _module(kind)
    except AttributeError:  # some classes of extension modules have none
        return ""
    return found if type(found) is str else ""


def _name_of(kind):
    return _module_of(kind) + ":" + _qualname(kind)


def _names_in(module):
    return vars(module) if isinstance(module, types.ModuleType) else {}


def _path_of(module):
    path = _names_in(module).get("__file__")
    return _absolute(path) if type(path) is str else "<>"


def _is_of_product(module):
    """Whether a module is of the repository, and no test file."""
    path = _path_of(module)
    return path.startswith(ROOT) and "site-packages" not in path and path not in FILES


def _is_watched(kind):
    return _is_of_product(sys.modules.get(_module_of(kind)))


@functools.lru_cache(maxsize=4096)
def _slots(kind):
    """The descriptors of the slots of a class, by their names."""
    found = {}
    for base in type.mro(kind):
        for name, held in _held_of(base).items():
            if isinstance(held, types.MemberDescriptorType) and _flags_of(base) & _MADE_BY_PYTHON:
                found.setdefault(name, held)
    return found


def _dictionary(one):
    """The attributes that an object has itself; LookupError if its class has another `__dict__`; None without one."""
    holders = [_held_of(base)["__dict__"] for base in type.mro(type(one)) if "__dict__" in _held_of(base)]
    if holders and not isinstance(holders[0], types.GetSetDescriptorType):
        raise LookupError
    return holders[0].__get__(one) if holders else None


def _attributes(one):
    held = {}
    for name, slot in _slots(type(one)).items():
        with contextlib.suppress(AttributeError):  # it was never set
            held[name] = slot.__get__(one, type(one))
    held.update(_dictionary(one) or {})
    return sorted((name, item) for name, item in held.items() if isinstance(name, str))


def _base(kind):
    if issubclass(kind, BaseException):
        return "BaseException"
    return next((name for name, base in _BASES.items() if issubclass(kind, base)), "")


def _made_by_python(kind):
    """Whether objects of a class have only attributes: the class is derived from no other one of the interpreter."""
    of_interpreter = next(base for base in type.mro(kind) if not _flags_of(base) & _MADE_BY_PYTHON)
    return of_interpreter is object and kind is not object


def _is_pickled(one, kind):
    """Whether an object is of a module whose pickles contain no code, by what the module has, not by its name alone."""
    module = _module_of(kind)
    if module.partition(".")[0] == "numpy" and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        return (kind is numpy.ndarray and not one.dtype.hasobject) or (issubclass(kind, numpy.generic) and _is_at(kind))
    return module in _PICKLED and _is_at(kind)


def _is_at(kind):
    return _names_in(sys.modules.get(_module_of(kind))).get(_qualname(kind)) is kind and not _is_watched(kind)


def _global_of(one):
    """Where a module or class of the repository has an object of one of its classes: "module:name"; "" if it does not.

    Code may ask whether an object is this one.
    """
    if not _are_globals_known[0]:
        _are_globals_known[0] = True
        _globals.clear()
        waiting = [(name + ":", vars(module)) for name, module in list(sys.modules.items()) if _is_of_product(module)]
        waiting += [(_name_of(kind) + ".", _held_of(kind)) for kind in list(_watched)]
        for place, names in waiting:
            for name, held in list(names.items()):
                if type(held) in _watched and type(name) is str and "." not in name:
                    _globals.setdefault(id(held), place + name)
        # What is in a table of a module, or in such an object, such as a registry.
        for place, names in waiting:
            for name, held in list(names.items()):
                inner = _names_of(held) if type(name) is str and type(held) not in (type, enum.EnumMeta) else {}
                for key, item in list(inner.items()):
                    if type(item) in _watched and type(key) is str and "." not in key:
                        _globals.setdefault(id(item), place + name + "." + key)
    found = _globals.get(id(one), "")
    return found if found and _at(found) is one else ""


def _names_of(holder):
    """What a class, a table or an object of the repository has by name."""
    if isinstance(holder, type):
        return _held_of(holder)
    if type(holder) is dict:
        return holder
    with contextlib.suppress(LookupError):
        return dict(_attributes(holder)) if type(holder) in _watched else {}
    return {}


def _at(place):
    """What is at a place that `_global_of` returns; None if there is nothing."""
    module, _, path = place.partition(":")
    names, found = _names_in(sys.modules.get(module)), None
    for part in path.split("."):
        found = names.get(part)
        names = _names_of(found)
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module in _PICKLED or name in _IN_PICKLES.get(module.partition(".")[0], ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(module + "." + name)


def _packed(*values, content_alone=False):  # noqa: C901 - a case for each kind of value
    """The content of values, as JSON, of which parts beyond the limits are opaque; and how the values were made."""
    numbers, kept, begun, found = {}, [], [0], []

    def plain(base, one):
        if base in _TEXTS:
            text = _BASES[base].__getitem__(one, slice(None))
            return text if base == "str" else bytes(text).hex()
        return int.__add__(one, 0) if base == "int" else repr(_BASES[base].__add__(one, 0))

    def named(one, kind):
        """What is known by its name, or made again by a call; None if it is not."""
        if issubclass(kind, enum.Enum):
            name = object.__getattribute__(one, "__dict__").get("_name_")
            if type(name) is str and _held_of(kind).get("_member_map_", {}).get(name) is one:
                return ["enum", _name_of(kind), name]
            value = object.__getattribute__(one, "__dict__").get("_value_")
            return ["flag", _name_of(kind), value] if type(value) is int else None
        if issubclass(kind, type):
            return ["class", _name_of(one)]
        if kind is types.ModuleType:
            return ["module", one.__name__]
        if kind in _MADE_BY_CALL:
            return ["call", kind.__name__, [pack(item, 0) for item in _MADE_BY_CALL[kind](one)]]
        with contextlib.suppress(Exception):  # what it contains may not be pickled
            return ["pickled", pickle.dumps(one, 2).hex()] if _is_pickled(one, kind) else None
        return None

    def pack(one, depth):
        kind = type(one)
        if one is None or kind is bool:
            return one
        if (kind is int and one.bit_length() <= _MOST_BITS) or (kind is str and len(one) <= _MOST_TEXT):
            return [kind.__name__, plain(kind.__name__, one)]
        if id(one) in numbers:
            return ["again", numbers[id(one)]]
        name = named(one, kind)
        if name is not None:
            return name
        number = numbers[id(one)] = len(numbers)
        kept.append(one)
        base = _base(kind)
        is_beyond = number - begun[0] > _MOST_PARTS or depth > _MOST_DEPTH
        is_beyond = is_beyond or (base in _TEXTS and _BASES[base].__len__(one) > _MOST_TEXT)
        is_beyond = is_beyond or (base == "int" and int.bit_length(one) > _MOST_BITS)
        is_beyond = is_beyond or (base in _HOLDING and _BASES[base].__len__(one) > _MOST_ITEMS)
        if is_beyond or issubclass(kind, _OPAQUE) or not (base or _made_by_python(kind)):
            return ["opaque", number, _name_of(kind)]
        content = None
        is_builtin = kind is _BASES.get(base)
        try:
            attributes = [] if is_builtin else _attributes(one)
        except LookupError:
            return ["opaque", number, _name_of(kind)]
        if base in ("int", "float", "complex") or base in _TEXTS:
            content = plain(base, one)
        elif base in ("dict", "OrderedDict"):
            keys = list(_BASES[base].__iter__(one))
            if base == "dict" and all(type(key) is str for key in keys):
                keys.sort()  # two equal ones may have been filled in another order
            content = [[pack(key, depth + 1), pack(dict.__getitem__(one, key), depth + 1)] for key in keys]
        elif base == "BaseException":
            content = [pack(item, depth + 1) for item in BaseException.__dict__["args"].__get__(one)]
        elif base:
            content = [pack(item, depth + 1) for item in _BASES[base].__iter__(one)]
            content = sorted(content, key=_without_numbers) if base in ("set", "frozenset") else content
        held = [[name, pack(item, depth + 1)] for name, item in attributes]
        return ["object", number, _name_of(kind), base, content, held, *origin(one, kind, depth)]

    def origin(one, kind, depth):
        if content_alone or kind not in _watched:
            return []
        place, made = _global_of(one), _made.get(id(one)) if depth == 0 else None
        is_as_made = made is not None and made[1] == _without_numbers(*_packed(one, content_alone=True))
        return [place, made[0] if is_as_made else None] if place or is_as_made else []

    for value in values:
        begun[0] = len(numbers)
        found.append(pack(value, 0))
    return found


def _class_of(name):
    module, _, path = name.partition(":")
    found = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type):
        return found
    return [kind for kind in _classes() if _name_of(kind) == name][-1]  # the one that was made last


def _unpacked(packed):  # noqa: C901 - a case for each kind of value
    """The values, and whether all are whole."""
    made, is_whole = {}, [True]

    def make(one):
        if not isinstance(one, list):
            return one
        tag = one[0]
        if tag in ("int", "str"):
            return one[1]
        if tag == "again":
            return made[one[1]]
        if tag == "enum":
            return _class_of(one[1])[one[2]]
        if tag == "flag":
            return _class_of(one[1])(one[2])
        if tag in ("class", "module"):
            return _class_of(one[1]) if tag == "class" else sys.modules[one[1]]
        if tag == "call":
            return _CALLS[one[1]](*[make(item) for item in one[2]])
        if tag == "pickled":
            return _Unpickler(io.BytesIO(bytes.fromhex(one[1]))).load()
        if tag in ("opaque", "made"):
            found = object() if tag == "opaque" else call(*one[2:])
            is_whole[0] = is_whole[0] and tag != "opaque"
            made[one[1]] = found
            return found
        return make_object(*one[1:])

    def call(name, arguments, named):
        return _class_of(name)(*[make(item) for item in arguments], **{key: make(item) for key, item in named})

    def make_object(number, name, base, content, held, place="", text=""):
        kind = _class_of(name)
        there = _at(place) if place else None
        # The object that the repository has itself, if it has the same content there.
        if type(there) is kind and _without_numbers(*_packed(there, content_alone=True)) == text:
            made[number] = there
            return there
        of = _BASES.get(base, BaseException if base else object)
        if base in ("tuple", "frozenset"):
            new = of.__new__(kind, [make(item) for item in content])
        elif base in ("bytes", "bytearray"):
            new = of.__new__(kind, bytes.fromhex(content))
            if base == "bytearray":
                bytearray.extend(new, bytes.fromhex(content))
        elif base in ("int", "float", "complex", "str"):
            new = of.__new__(kind, content if base in ("int", "str") else of(content))
        else:
            new = of.__new__(kind)
        made[number] = new
        if base in ("dict", "OrderedDict"):
            for key, item in content:
                of.__setitem__(new, make(key), make(item))
        elif base in ("list", "deque"):
            of.extend(new, [make(item) for item in content])
        elif base == "set":
            set.update(new, [make(item) for item in content])
        elif base == "BaseException":
            new.args = tuple(make(item) for item in content)
        slots = _slots(kind)
        for attribute, item in held:
            if attribute in slots:
                slots[attribute].__set__(new, make(item))
            else:
                _dictionary(new)[attribute] = make(item)
        return new

    return [make(one) for one in packed], is_whole[0]


def _without_numbers(one):
    """A packed value as text, without the numbers of its objects."""
    return re.sub(r'\["(again|opaque|object)", \d+', r'["\1"', _dumps(one))


# --- What a test compares ---


def _append(*record):
    line = (_dumps(record) + "\n").encode()
    _written[0] += len(line)
    try:
        target = _open(OUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:
        return
    _write(target, line)
    _close(target)


def _record(test, number, *found):
    """Record what the comparison with this number in a test is; if it is as another one, by its number alone."""
    key = test, _dumps(found)
    if key in _recorded:
        _append("at", _recorded[key], number)
        return
    _recorded[key] = _getpid() * _MOST_BYTES + len(_recorded)  # not that of another process
    _append("compared", _recorded[key], number, test[0], test[1], test[2], *found)


def _wrapped(method, held, kind):
    label = _name_of(kind)

    def call(self, *others, **named):
        bound = held.__get__(self, type(self)) if hasattr(type(held), "__get__") else held
        return bound(*others, **named)

    function = held if isinstance(held, types.FunctionType) else call
    follow = _following(function, kind, "compares")

    def compare(self, *others, **named):
        if len(others) + len(named) != 1 or getattr(_state, "busy", False):
            return function(self, *others, **named)
        other = (*others, *named.values())[0]
        test = _test()
        if test is None:
            _note_inside(label + "." + method, self, other)
            caller = _caller() if _has_time(_FOR_TEST) else _FOR_TEST
            return _chosen(follow, function, caller)(self, *others, **named)
        test, line = test
        _state.busy = True
        try:
            _counts[test] = _counts.get(test, 0) + 1
            _counts[test, line] = _counts.get((test, line), 0) + 1
            number = line * AT_LINE + _counts[test, line]
            pair = _content(test, self, other)
            _ask(test, number)
        finally:
            _state.busy = False
        answer = _chosen(follow, function, _FOR_TEST)(self, *others, **named)
        if pair is not None and answer is not NotImplemented:
            try:
                decided = bool(answer)
            except Exception:  # noqa: BLE001 - an array of truth values
                return answer
            _record(test, number, label + "." + method, decided, pair)
        return answer

    return functools.wraps(held)(compare) if callable(held) else compare


def _note_inside(name, one, other):
    """Record that the code under test compares objects of these classes for a test."""
    kinds = [_name_of(type(side)) for side in (one, other) if type(side) in _watched]
    key = ("inside", name, *kinds)
    if one is other or key in _reached or _tried.get(name, 0) > _MOST_TRIED:
        return
    _tried[name] = _tried.get(name, 0) + 1
    _state.busy = True
    try:
        if _test(of_product=True) is not None:
            _reached.add(key)
            _append("inside", kinds)
    finally:
        _state.busy = False


def _following(function, kind, what):
    """A method that records which functions of the repository it runs."""
    of_class = _path_of(sys.modules.get(_module_of(kind))), ""

    def follow(*arguments, **named):
        caller, arguments = arguments[0], arguments[1:]
        outer = getattr(_state, "following", None)  # what is followed around this, and for whom
        is_inner = outer is not None and sys.getprofile() is outer[0]
        if sys.getprofile() is not None and not (is_inner and "makes" in (what, outer[3])):
            return function(*arguments, **named)
        codes = set()

        def note(frame, event, _):
            if event == "call":
                codes.add(frame.f_code)

        _charge(outer[2] if is_inner else None)
        _state.following = note, codes, caller, what
        sys.setprofile(note)
        try:
            return function(*arguments, **named)
        finally:
            if sys.getprofile() is note:  # not one of the code under test
                sys.setprofile(outer[0] if is_inner else None)
            _state.following = outer if is_inner else None
            if is_inner:
                outer[1].update(codes)
            of = _name_of(type(arguments[0]))
            for path, name in [of_class, *[(_absolute(code.co_filename), code.co_name) for code in list(codes)]]:
                if _is_product(path) and (what, of, path, name) not in _reached:
                    _reached.add((what, of, path, name))
                    _append(what, of, path, name)
            _charge(caller)

    return follow


def _charge(caller):
    """Count the time since this was called last in this thread; not at all if nothing was followed since."""
    now = _clock()
    if caller is not None:
        _spent_on_following[caller] += now - _state.since
    _state.since = now


def _has_time(caller):
    """Whether there is time to follow what is called; none if a test has none."""
    return all(_spent_on_following[each] < _FOLLOWING_SECONDS[each] for each in (caller, _FOR_TEST))


def _chosen(follow, function, caller):
    """A method that is followed while there is time for it; then itself, without a frame between that deepens calls."""
    return functools.partial(follow, caller) if _has_time(caller) else function


def _content(test, one, other):
    """The content of a pair; None, with a record that there is more, if it is too large, or there are too many."""
    begun, found = _clock(), None
    if _counts[test] <= _MOST_EVENTS and _spent[0] <= _SECONDS and _written[0] <= _MOST_BYTES:
        with contextlib.suppress(Exception):  # whatever an object is that cannot be read
            found = _packed(one, other)
    _spent[0] += _clock() - begun
    if found is None and (test, "more") not in _recorded:
        _recorded[test, "more"] = ""
        _append("more", *test)
    return found


def _read_questions():
    """The questions, by the test and the number of its comparison where they are asked."""
    found = collections.defaultdict(list)
    if QUESTIONS:
        with open(QUESTIONS, encoding="utf-8") as file:
            for number, (path, function, is_sent, places, method, pair) in enumerate(json.load(file)):
                found[path, function].append((number, method, pair))
                for place in places:
                    found[path, function, is_sent, place].append((number, method, pair))
    return found


def _ask(test, number):
    """Compare the pairs of the questions for this comparison of a test; at its first one, all pairs of the test."""
    at_first = _questions.pop(test[:2], ())
    for is_exact, questions in ((False, at_first), (True, _questions.pop((*test, number), ()))):
        for question, method, pair in questions:
            try:
                (one, other), is_whole = _unpacked(pair)
                answer = bool(_OPERATORS[method](one, other) if method in _OPERATORS else getattr(one, method)(other))
            except BaseException:  # noqa: BLE001 - the code under test may not know such objects
                answer, is_whole = None, False
            _append("answer", question, answer, is_whole, is_exact)


# --- Watching classes ---


def _classes():
    """All classes, after their bases; of two whose bases were made one after the other, in this order."""
    found, known = [object], {object}
    for base in found:  # grows during the iteration
        for kind in () if issubclass(base, type) else type.__subclasses__(base):
            if kind not in known:
                known.add(kind)
                found.append(kind)
    return found


def install():
    """Watch the classes of the repository that are known by now, but for those of the test files."""
    _are_globals_known[0] = False
    for kind in _classes():
        if kind in _seen:
            continue
        _seen.add(kind)
        if _is_watched(kind):
            _watch_all(kind)


def _watch_all(kind):
    _watched.add(kind)
    _watch_making(kind)
    for method in (*_METHODS, *filter(_NAMED.match, list(_held_of(kind)))):
        _watch(kind, method)


def _watch(kind, method):
    """Watch a method of a class: its own, or one that it inherits from Python's library."""
    base = next((base for base in type.mro(kind) if method in _held_of(base)), object)
    held = _held_of(base).get(method)
    if held is None or isinstance(held, (property, classmethod, staticmethod, *_OF_INTERPRETER)):
        return
    is_own = base is kind or (isinstance(held, types.FunctionType) and not _is_watched(base))
    code = getattr(held, "__code__", None)
    if is_own and (code is None or code.co_filename != _HERE):
        with contextlib.suppress(TypeError, AttributeError):  # the class allows no change
            type.__setattr__(kind, method, _wrapped(method, held, kind))


def _watch_making(kind):
    """Remember the arguments with which objects of a class are made."""
    held = _held_of(kind).get("__init__")
    if not isinstance(held, types.FunctionType) or held.__code__.co_filename == _HERE:
        return

    follow = _following(held, kind, "makes")

    def make(*arguments, **named):  # without a name for the object: a keyword may have any
        if not arguments:
            return held(**named)
        self, arguments = arguments[0], arguments[1:]
        building = _state.__dict__.setdefault("building", set())
        is_read = _spent_on_made[_FOR_TEST] <= _MADE_SECONDS[_FOR_TEST] and len(_made) <= _MOST_MADE
        if id(self) in building or getattr(_state, "busy", False) or not (is_read or _has_time(_FOR_TEST)):
            return held(self, *arguments, **named)
        caller, begun = _caller(), _clock()
        number, spent = _elsewhere.get(id(type(self)), (0, 0.0))
        is_known = caller or number < _MOST_FOLLOWED or spent < _CLASS_SECONDS
        function = _chosen(follow, held, caller) if is_known else held
        is_read = is_read and is_known and _spent_on_made[caller] <= _MADE_SECONDS[caller]
        packed = _timed(lambda: _packed_call(arguments, named), caller) if is_read else None
        building.add(id(self))
        try:
            return function(self, *arguments, **named)
        finally:
            building.discard(id(self))
            if packed is not None:
                text = _timed(lambda: _without_numbers(*_packed(self, content_alone=True)), caller)
                if text is not None:
                    _made[id(self)] = packed, text
            if is_known and not caller:
                _elsewhere[id(type(self))] = number + 1, spent + _clock() - begun

    with contextlib.suppress(TypeError, AttributeError):  # the class allows no change
        type.__setattr__(kind, "__init__", functools.wraps(held)(make))


def _packed_call(arguments, named):
    names = sorted(named)
    values = _packed(*arguments, *[named[name] for name in names])
    return [values[: len(arguments)], [[name, values[len(arguments) + place]] for place, name in enumerate(names)]]


def _timed(read, caller):
    begun, is_busy = _clock(), getattr(_state, "busy", False)
    _state.busy = True
    try:
        return read()
    except Exception:  # noqa: BLE001 - whatever an object is that cannot be read
        return None
    finally:
        _state.busy = is_busy
        _spent_on_made[caller] += _clock() - begun


def _importing(load):
    @functools.wraps(load)
    def loading(*arguments, **named):
        is_outer = not getattr(_state, "loading", False)
        before = len(sys.modules)
        _state.loading = True
        try:
            return load(*arguments, **named)
        finally:
            if is_outer:
                _state.loading = False
                if len(sys.modules) != before:
                    install()

    return loading


def _building(build):
    @functools.wraps(build)
    def building(*arguments, **named):
        kind = build(*arguments, **named)
        if isinstance(kind, type) and "<locals>" in _qualname(kind) and _is_watched(kind):
            _watch_all(kind)
        return kind

    return building


_questions = _read_questions()
install()
builtins.__import__ = _importing(builtins.__import__)
builtins.__build_class__ = _building(builtins.__build_class__)
importlib.import_module = _importing(importlib.import_module)
