"""Records which objects tests compare, and asks the code under test about others (see `languages.python.equality`).

Test files execute this file at their end in a dictionary with `OUT`, the path of the file to which records are
appended, `FILES`, the paths of the test files, `TESTS`, the names of the tests that count, or none for all, `SENDERS`,
the paths of the modules with which they send values, `ROOT`, the directory of the repository, and `QUESTIONS`, the path
of a file with pairs of objects, or "". From then on, each time a test compares an object by a method of a class of the
repository (`__eq__`, …, `same_as`), the content of both objects is recorded, with the answer. It is read without any
code of their classes. Where a test compares, the pairs of the questions that belong to it are made, again without any
code of their classes, and compared. A record is one line of JSON. Runs on Python 3.5 and newer.
"""

import builtins
import collections
import enum
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
TESTS = globals().get("TESTS", ())
_METHODS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
_OPERATORS = {name: getattr(operator, name) for name in _METHODS}
# Methods of the product that tell whether two objects are equal.
_NAMED = re.compile(r"_?(is_?)?(same|equals?|identical|eq)(_?(as|to|with))?$")
_OF_TESTS, _FILES_OF_TESTS = ("/tests/", "/test/", "/testing/"), ("tests.py", "test.py", "conftest.py", "testing.py")
_MOST_EVENTS, _MOST_BYTES, _MOST_PARTS, _MOST_DEPTH, _MOST_TEXT, _SECONDS = 2000, 8 << 20, 500, 40, 20000, 15.0
_BASES = {
    kind.__name__: kind
    for kind in (
        *(int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset),
        *(collections.OrderedDict, dict, collections.deque),
    )
}
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
_open, _write, _close, _dumps, _clock = os.open, os.write, os.close, json.dumps, time.perf_counter
_frame = sys._getframe  # noqa: SLF001
_HERE = _frame(0).f_code.co_filename
_state, _seen, _recorded, _counts, _asked = threading.local(), set(), set(), {}, set()
_spent, _written = [0.0], [0]


def _absolute(path):
    return path if path[:1] in ("/", "<") else os.path.join(ROOT, path)


def _is_product(path):
    name = path.rpartition("/")[2]
    of_tests = name.startswith("test_") or name.endswith("_test.py") or name in _FILES_OF_TESTS
    inside = path[len(ROOT) :]
    return path.startswith(ROOT) and not (of_tests or "site-packages" in path or any(map(inside.count, _OF_TESTS)))


def _test():
    """File and function of the test that compares, and whether it sends what it compares.

    None if the code under test compares, or this file, or a test that does not count.
    """
    frame, found, is_sent = _frame(2), None, False
    while frame is not None:
        path = _absolute(frame.f_code.co_filename)
        is_sent = is_sent or (found is None and path in SENDERS)
        if path in FILES:
            found = path, frame.f_code.co_name, is_sent
        elif found is None and (path == _HERE or _is_product(path)):
            return None
        frame = frame.f_back
    is_other = found and TESTS and found[1].startswith("test") and found[1] not in TESTS
    return None if is_other else found


def _name_of(kind):
    return kind.__module__ + ":" + kind.__qualname__


def _slots(kind):
    """The descriptors of the slots of a class, by their names."""
    found = {}
    for base in type.mro(kind):
        for name, held in type.__getattribute__(base, "__dict__").items():
            if isinstance(held, types.MemberDescriptorType) and base.__flags__ & _MADE_BY_PYTHON:
                found.setdefault(name, held)
    return found


def _attributes(one):
    held = {}
    for name, slot in _slots(type(one)).items():
        try:
            held[name] = slot.__get__(one, type(one))
        except AttributeError:  # it was never set
            continue
    try:
        held.update(object.__getattribute__(one, "__dict__"))
    except AttributeError:  # the class has slots alone
        pass
    return sorted((name, item) for name, item in held.items() if isinstance(name, str))


def _base(kind):
    if issubclass(kind, BaseException):
        return "BaseException"
    return next((name for name, base in _BASES.items() if issubclass(kind, base)), "")


def _made_by_python(kind):
    """Whether objects of a class have only attributes: the class is derived from no other one of the interpreter."""
    of_interpreter = next(base for base in type.mro(kind) if not base.__flags__ & _MADE_BY_PYTHON)
    return of_interpreter is object and kind is not object


def _is_pickled(one, kind):
    """Whether an object is of a module whose pickles contain no code, by what the module has, not by its name alone."""
    module = kind.__module__
    if module.partition(".")[0] == "numpy" and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        return (kind is numpy.ndarray and not one.dtype.hasobject) or (issubclass(kind, numpy.generic) and _is_at(kind))
    return module in _PICKLED and _is_at(kind)


def _is_at(kind):
    return vars(sys.modules.get(kind.__module__, types)).get(kind.__qualname__) is kind and not _is_watched(kind)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module in _PICKLED or name in _IN_PICKLES.get(module.partition(".")[0], ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(module + "." + name)


def _packed(*values):  # noqa: C901 - a case for each kind of value
    """The content of values, as JSON, of which parts beyond the limits are opaque."""
    numbers, kept, begun, found = {}, [], [0], []

    def plain(base, one):
        if base in ("str", "bytes", "bytearray"):
            text = _BASES[base].__getitem__(one, slice(None))
            return text if base == "str" else bytes(text).hex()
        return int.__add__(one, 0) if base == "int" else repr(_BASES[base].__add__(one, 0))

    def pack(one, depth):
        kind = type(one)
        if one is None or kind is bool:
            return one
        if kind is int or (kind is str and len(one) <= _MOST_TEXT):
            return [kind.__name__, plain(kind.__name__, one)]
        if id(one) in numbers:
            return ["again", numbers[id(one)]]
        number = numbers[id(one)] = len(numbers)
        kept.append(one)
        if isinstance(one, enum.Enum):
            return ["enum", _name_of(kind), one.name]
        if issubclass(kind, type):
            return ["class", _name_of(one)]
        if kind is types.ModuleType:
            return ["module", one.__name__]
        if _is_pickled(one, kind):
            try:
                return ["pickled", pickle.dumps(one, 2).hex()]
            except Exception:  # noqa: BLE001 - what it contains
                return ["opaque", number, _name_of(kind)]
        base = _base(kind)
        is_beyond = number - begun[0] > _MOST_PARTS or depth > _MOST_DEPTH
        is_beyond = is_beyond or (base in ("str", "bytes", "bytearray") and _BASES[base].__len__(one) > _MOST_TEXT)
        if is_beyond or isinstance(one, _OPAQUE) or not (base or _made_by_python(kind)):
            return ["opaque", number, _name_of(kind)]
        content = None
        if base in ("int", "float", "complex", "str", "bytes", "bytearray"):
            content = plain(base, one)
        elif base in ("dict", "OrderedDict"):
            keys = _BASES[base].__iter__(one)
            content = [[pack(key, depth + 1), pack(dict.__getitem__(one, key), depth + 1)] for key in keys]
        elif base == "BaseException":
            content = [pack(item, depth + 1) for item in BaseException.__dict__["args"].__get__(one)]
        elif base:
            content = [pack(item, depth + 1) for item in _BASES[base].__iter__(one)]
            content = sorted(content, key=_dumps) if base in ("set", "frozenset") else content
        is_builtin = kind is _BASES.get(base)
        held = [] if is_builtin else [[name, pack(item, depth + 1)] for name, item in _attributes(one)]
        return ["object", number, _name_of(kind), base, content, held]

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
    return next(kind for kind in _classes() if _name_of(kind) == name)


def _unpacked(packed, known):  # noqa: C901 - a case for each kind of value
    """The values, of which objects have only attributes that are known of their classes, and whether all are whole."""
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
        if tag == "class":
            return _class_of(one[1])
        if tag == "module":
            return sys.modules[one[1]]
        if tag == "pickled":
            return _Unpickler(io.BytesIO(bytes.fromhex(one[1]))).load()
        if tag == "opaque":
            is_whole[0] = False
            made[one[1]] = found = object()
            return found
        return made_object(*one[1:])

    def made_object(number, name, base, content, held):
        kind = _class_of(name)
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
            if attribute in slots and attribute in known.get(name, ()):
                slots[attribute].__set__(new, make(item))
            elif attribute in known.get(name, ()):
                object.__getattribute__(new, "__dict__")[attribute] = make(item)
        return new

    return [make(one) for one in packed], is_whole[0]


def _append(record):
    line = (_dumps(record) + "\n").encode()
    if line in _recorded:
        return
    _recorded.add(line)
    _written[0] += len(line)
    try:
        target = _open(OUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    except OSError:
        return
    _write(target, line)
    _close(target)


def _wrapped(method, held, label):
    def call(self, *others, **named):
        bound = held.__get__(self, type(self)) if hasattr(type(held), "__get__") else held
        return bound(*others, **named)

    function = held if isinstance(held, types.FunctionType) else call

    def compare(self, *others, **named):
        test = None if len(others) != 1 or named or getattr(_state, "busy", False) else _test()
        if test is None:
            return function(self, *others, **named)
        _state.busy = True
        try:
            pair = _content(test, self, others[0])
            _ask(test)
        finally:
            _state.busy = False
        answer = function(self, *others)
        if pair is not None and answer is not NotImplemented:
            try:
                decided = bool(answer)
            except Exception:  # noqa: BLE001 - an array of truth values
                return answer
            _append(["compared", test[0], test[1], test[2], label + "." + method, decided, pair])
        return answer

    return functools.wraps(held)(compare) if callable(held) else compare


def _content(test, one, other):
    """The content of a pair; None, with a record that there is more, if it is too large, or there are too many."""
    begun = _clock()
    _counts[test] = _counts.get(test, 0) + 1
    try:
        if _counts[test] <= _MOST_EVENTS and _spent[0] <= _SECONDS and _written[0] <= _MOST_BYTES:
            return _packed(one, other)
    except Exception:  # noqa: BLE001 - whatever an object is that cannot be read
        pass
    finally:
        _spent[0] += _clock() - begun
    _append(["more", test[0], test[1]])
    return None


def _ask(test):
    """Compare the pairs of the questions for this test, once."""
    if not QUESTIONS or test[:2] in _asked:
        return
    _asked.add(test[:2])
    with open(QUESTIONS, encoding="utf-8") as file:
        questions = json.load(file)
    for number, path, function, method, pair in questions["pairs"]:
        if (path, function) == test[:2]:
            try:
                (one, other), is_whole = _unpacked(pair, questions["attributes"])
                answer = bool(_OPERATORS[method](one, other) if method in _OPERATORS else getattr(one, method)(other))
            except BaseException:  # noqa: BLE001 - the code under test may not know such objects
                answer, is_whole = None, False
            _append(["answer", number, answer, is_whole])


def _classes():
    waiting, known = [object], set()
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if kind not in known:
                known.add(kind)
                if not issubclass(kind, type):
                    waiting.append(kind)
    return known


def _path_of(kind):
    return _absolute(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<>")


def _is_watched(kind):
    path = _path_of(kind)
    return path.startswith(ROOT) and "site-packages" not in path and path not in FILES


def install():
    """Watch the classes of the repository that are known by now, but for those of the test files."""
    for kind in _classes() - _seen:
        _seen.add(kind)
        if _is_watched(kind):
            _watch_all(kind)


def _watch_all(kind):
    for method in (*_METHODS, *filter(_NAMED.match, list(type.__getattribute__(kind, "__dict__")))):
        _watch(kind, method)


def _watch(kind, method):
    """Watch a method of a class: its own, or one that it inherits from Python's library."""
    for base in type.mro(kind):
        held = type.__getattribute__(base, "__dict__").get(method)
        if held is None and method not in type.__getattribute__(base, "__dict__"):
            continue
        is_own = base is kind or (isinstance(held, types.FunctionType) and not _is_watched(base))
        if held is None or isinstance(held, _OF_INTERPRETER):
            return
        code = getattr(held, "__code__", None)
        is_bound = isinstance(held, (property, classmethod, staticmethod))
        if is_own and not is_bound and (code is None or code.co_filename != _HERE):
            try:
                type.__setattr__(kind, method, _wrapped(method, held, _name_of(kind)))
            except (TypeError, AttributeError):
                pass
        return


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
        if isinstance(kind, type) and "<locals>" in kind.__qualname__ and _is_watched(kind):
            _watch_all(kind)
        return kind

    return building


install()
builtins.__import__ = _importing(builtins.__import__)
builtins.__build_class__ = _building(builtins.__build_class__)
importlib.import_module = _importing(importlib.import_module)
