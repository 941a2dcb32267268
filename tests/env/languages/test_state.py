"""What a patch newly keeps between calls, which tests give what they expect, and copies of them beside twins."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from swegym_env.languages.python.state import keeps_state
from swegym_env.languages.python.twins import given_tests, make_twins
from tests.redteam.cases import diff

_BASE = (
    "import re\n\nKNOWN = []\nTABLE = {'a': 1}\n\n\nclass Box:\n"
    "    def put(self, value, old=[]):\n        KNOWN.append(0)\n"
)
# What stands in the body of `put`, and at the end of the module.
_KEEPS = {
    "a function that the object was given": (
        "self.it.last = value",
        "def same():\n    pass\n\n\ndef fill(box):\n    box.it = same",
    ),
    "the class that the object was given": ("self.it = type(self)\n        self.it.last = value", ""),
    **{
        f"a function that the object was given, by {given}": (
            use,
            f"def same():\n    pass\n\n\ndef fill(box):\n    {given}",
        )
        for given, use in (
            ("box.it, box.n = same, 1", "self.it.last = value"),
            ("for box.it in [same]:\n        pass", "self.it.last = value"),
            ("setattr(box, 'it', same)", "self.it.last = value"),
            ("box.it = same if box else None", "self.it.last = value"),
            ("box.it = same", "it = self.it\n        it.last = value"),
        )
    },
    **{
        f"a function that {method} returns": (
            use,
            f"def same():\n    pass\n\n\nclass Own:\n    def {method}(self, *_):\n        {gives} same",
        )
        for method, use, gives in (
            ("__getitem__", "Own()[0].last = value", "return"),
            ("__call__", "own = Own()\n        own().last = value", "return"),
            ("__getattr__", "Own().it.last = value", "return"),
            ("__enter__", "with Own() as it:\n            it.last = value", "return"),
            ("__iter__", "for it in Own():\n            it.last = value", "yield"),
            ("__next__", "next(Own()).last = value", "return"),
            ("__add__", "(Own() + 1).last = value", "return"),
            ("__await__", "async def keep():\n            (await Own()).last = value", "return"),
        )
    },
    **{
        f"a function in {held}, by {use}": (use, f"def same():\n    pass\n\n\ndef fill(box):\n    box.it = {held}")
        for held, use in (
            ("{'a': same}", "self.it['a'].last = value"),
            ("{'a': same}", "self.it.get('a').last = value"),
            ("dict(a=same)", "for it in self.it.values():\n            it.last = value"),
            ("[Box(), same]", "self.it[1].last = value"),
            ("lambda: same", "self.it().last = value"),
        )
    },
    **{
        f"a function that the object gets as its parameter, {call}": (
            "self.it.last = value",
            (
                f"def same():\n    pass\n\n\nclass Own(Box):\n    {body}\n\n\nclass Lower(Own):\n    pass\n\n\n"
                f"def made(own):\n    return {call}"
            ),
        )
        for call, body in (
            ("Own(1, same)", "def __init__(self, n, it):\n        self.it = it"),
            ("Lower(it=same, n=1)", "def __init__(self, n, it):\n        self.it = it"),
            ("own.fill(same)", "def fill(self, it):\n        self.it = it"),
            ("Own(same)", "it: object"),
        )
    },
    "a function that is looked up by its name": (
        "getattr(self, 'it').last = value", "def same():\n    pass\n\n\nclass Own(Box):\n    it = same",
    ),
    "a function that a method returns": (
        "Own().it().last = value",
        "def same():\n    pass\n\n\nclass Own:\n    def it(self):\n        return same",
    ),
    "a function that a property returns": (
        "Own().it.last = value",
        "def same():\n    pass\n\n\nclass Own:\n    @property\n    def it(self):\n        return same",
    ),
    "a function with another name in a class": (
        "self.it.last = value",
        "def same():\n    pass\n\n\nclass Own(Box):\n    it = staticmethod(same)",
    ),
    "the cause of an error of a class": ("raise Own.one from KeyError(value)", "class Own:\n    one = KeyError()"),
    "what an error of the module is raised beside": (
        "try:\n            raise KeyError(value)\n        except KeyError:\n            raise ONE",
        "ONE = KeyError()",
    ),
    "an item of a module's list": ("LAST[:] = [value]", "LAST = []"),
    "an attribute of what is in a tuple": ("PAIR[0].last = value", "PAIR = (Box(),)"),
    "another use of what the file keeps already": ("KNOWN.append(value)", ""),
    "a look at what the file keeps already": ("return KNOWN[-1]", ""),
    "a global name": ("global last\n        last = value", "last = None"),
    "an attribute of the class": ("type(self).last = value", ""),
    "an attribute of the class, by an alias": ("kind = type(self)\n        kind.last = value", ""),
    "an attribute of a function": ("self.put.__func__.last = value", ""),
    "an attribute of the module": ("import m\n        m.last = value", ""),
    "a default": ("hold(value)", "def hold(*new, kept=[]):\n    kept[:] = new"),
    "a cache": ("hold(value)", "import functools\n\n\n@functools.cache\ndef hold(new):\n    return []"),
    "a closure": (
        "hold(value)",
        ("def holder():\n    kept = []\n\n    def hold(new):\n        kept.append(new)\n\n    return hold\n\n\n"
        "hold = holder()"),
    ),
    "a generator": ("HELD.send(value)", "HELD = (yield_ for yield_ in [])"),
    "an object in the place of a function": (
        "hold(value)",
        "class Keep:\n    def __init__(self, f):\n        self.f = f\n\n\n@Keep\ndef hold(new):\n    pass",
    ),
    "a descriptor": ("self.slot = value\n        return self.slot", "class Slot:\n    pass\n\n\nBox.slot = Slot()"),
    "the environment": ("os.environ['LAST'] = value", "import os"),
    "an unbound method": ("list.append(LAST, value)", "LAST = []"),
    "a name of everything that is imported": ("LAST.append(value)", "from os import *"),
    "a cache of the library": ("return list(re._cache)", ""),
    "a look that changes": ("KEPT[value]", "import collections\n\nKEPT = collections.defaultdict(int)"),
    "a default that the file has": ("old[:] = [value]", ""),
    "a file's name": ("os.symlink(value, 'last')", "import os"),
    "a member of an enumeration": (
        "Kind(1).last = value",
        "import enum\n\n\nclass Kind(enum.Enum):\n    A = 1",
    ),
    "a function that changes its argument, as a value": (
        "for note in [setitem]:\n            note(TABLE, 'b', value)",
        "from operator import setitem",
    ),
    "a name in the body of a class": ("class New:\n            into = Box\n            into.last = value", ""),
    "a context that no block ends": (
        "localcontext(Context(prec=value)).__enter__()",
        "from decimal import Context, localcontext",
    ),
    "the names of a caller's module": ("sys._getframe(1).f_globals['last'] = value", "import sys"),
}  # fmt: skip
_KEEPS_NOTHING = {
    "an attribute of what the object holds": (
        "self.it.last = value",
        "def fill(box):\n    box.it = Box()",
    ),
    "an attribute of what a method makes": (
        "Own().it().last = value",
        "class Own:\n    def it(self):\n        return Box()",
    ),
    "an item of a container, if a method has the name of its method": (
        "groups = {}\n        groups.get(value).append(value)",
        "class Own:\n    def get(self):\n        return Box",
    ),
    "an item of what an object holds": (
        "self[0].last = value\n        self.add(value)",
        (
            "class Own:\n    def __getitem__(self, place):\n        return self.items[place]\n\n"
            "    def __enter__(self):\n        return self"
        ),
    ),
    "a table of functions beside another table": (
        "self.known = {}\n        self.known['a'] = self.table['a'](value)",
        "def same(value):\n    pass\n\n\nclass Own:\n    def __init__(self):\n        self.table = {'a': same}",
    ),
    "what an object gets as its parameter": (
        "self.node.last = value",
        "def made(it):\n    return Own(it)\n\n\nclass Own:\n    def __init__(self, node):\n        self.node = node",
    ),
    "an error raised from another": ("raise KeyError(value) from ValueError(value)", ""),
    "an error of a class that a class names": ("raise Own.error(value)", "class Own(Box):\n    error = KeyError"),
    "the line that calls": ("return sys._getframe(1).f_lineno", "import sys"),
    "a context for a block": (
        "with localcontext(Context(prec=value)):\n            return 1",
        "from decimal import Context, localcontext",
    ),
    "an object of a class that has a name": (
        "kind = type(self)\n        other = kind()\n        other.value = value\n        return other",
        "",
    ),
    "a text that grows": ("text = name_of(value)\n        text += 'a'", "def name_of(value):\n    return str(value)"),
    "its own attributes": ("self.value = [value]\n        self.value.append(1)", ""),
    "a table": ("return TABLE.get(value, NAMES[0]) in NAMES", "NAMES = ['a', 'b']\nNAMES.append('c')"),
    "patterns, loggers and constants": (
        "LOGGER.debug(value)\n        return WORD.match(value) or HALF",
        "import logging\n\nLOGGER = logging.getLogger(__name__)\nWORD = re.compile('a')\nHALF = 1 / 2",
    ),
    "a function in a function": (
        (
            "found = []\n\n        def visit(each):\n            found.append(each)\n\n        visit(value)\n"
            "        return found"
        ),
        "",
    ),
    "a context manager": (
        "with self.changing():\n            self.value = value",
        (
            "import contextlib\n\n\n@contextlib.contextmanager\ndef changing(self):\n    yield\n"
            "    self.value = 1\n\n\nBox.changing = changing"
        ),
    ),
    "a decorator": (
        "pass",
        (
            "import functools\n\n\ndef checked(f):\n    @functools.wraps(f)\n    def inner(*given):\n"
            "        return f(*given)\n\n    return inner"
        ),
    ),
}


@pytest.mark.parametrize(("name", "keeps"), [*((n, True) for n in _KEEPS), *((n, False) for n in _KEEPS_NOTHING)])
def test_screening_says_whether_a_patch_keeps_something_between_calls(name: str, keeps: bool, tmp_path: Path) -> None:
    body, more = (_KEEPS | _KEEPS_NOTHING)[name]
    changed = _BASE.replace("KNOWN.append(0)", f"KNOWN.append(0)\n        {body}") + f"\n\n{more}\n"
    (tmp_path / "m.py").write_text(_BASE)
    patch = diff({"m.py": _BASE}, {"m.py": changed})
    assert keeps_state(patch, tmp_path, "") is keeps
    assert not keeps_state(patch, tmp_path, patch), "the gold patch keeps it too"


def test_many_names_for_one_another_take_little_time(tmp_path: Path) -> None:
    names = [f"a{number}" for number in range(30)]
    lines = "".join(f"    {one} = {other}\n" for one in names for other in names if one != other)
    patch = diff({}, {"m.py": f"def f(x):\n{lines}    a0.x = x\n"})
    begin = time.process_time()
    assert not keeps_state(patch, tmp_path, "")
    assert time.process_time() - begin < 5.0


_TEST = "from m import Box, Point, f, fresh\n\n\ndef test_it():\n{}\n\n\ndef check(x):\n    assert x == 'helper'\n"
_GIVES = {
    "the text": ("box = Box()\nbox.put('zqxw 47')\nassert box.get() == 'zqxw 47'", True),
    "by a name": ("text = 'zqxw 47'\nassert f(fresh(text)) == text", True),
    "an object": ("assert f('3,4') == Point(3, 4)", True),
    "another value of the code under test": ("assert f('3,4') == f('3, 4')", True),
    "in a helper": ("check(f(2))", True),
    "conditions that may be counted": ("assert f('Ada')\nassert not f('ada')", True),
    "a constant that stands nowhere else": ("assert f('a') == 'zqxw 47'", False),
    "an error": ("with pytest.raises(ValueError):\n    f('')", False),
}


@pytest.mark.parametrize("name", _GIVES)
def test_a_test_gives_what_it_expects_or_not(name: str) -> None:
    body, gives = _GIVES[name]
    text = _TEST.format("".join(f"    {line}\n" for line in body.splitlines()))
    found = given_tests({"test_m.py": text}, ["test_m.py::test_it"])
    assert found == ({"test_m.py::test_it"} if gives else set())


_CODE = {
    "a repair": "class Box:\n    def put(self, x):\n        self.x = x\n\n    def get(self):\n        return self.x\n",
    "the last": "class Box:\n    def put(self, x):\n        Box.x = x\n\n    def get(self):\n        return Box.x\n",
    "the first": (
        "class Box:\n    def put(self, x):\n        Box.x = getattr(Box, 'x', x)\n\n"
        "    def get(self):\n        return Box.x\n"
    ),
    "the same": "class Box:\n    def put(self, x):\n        pass\n\n    def get(self):\n        return 'zqxw 47'\n",
}
_BODIES = {
    "statements": "box = Box()\nbox.put('zqxw 47')\nassert box.get() == 'zqxw 47'",
    "a loop in a block": (
        "with suppress(KeyError):\n    for text in ('zqxw 47', 'vbnm'):\n        box = Box()\n        box.put(text)\n"
        "        assert box.get() == text"
    ),
}


@pytest.mark.parametrize("body", _BODIES)
@pytest.mark.parametrize("code", _CODE)
def test_only_a_repair_passes_all_copies_beside_twins(code: str, body: str) -> None:
    lines = "".join(f"    {line}\n" for line in _BODIES[body].splitlines())
    test = f"def test_it():\n{lines}"
    twins = make_twins({"test_m.py": test}, ["test_m.py::test_it"], seed=3, twins=7)
    assert not twins.open
    n_keys = len({copy.expectation for copy in twins.lineup.copies}) - 1
    assert n_keys == (1 if body == "statements" else 2)
    names: dict[str, Any] = {"suppress": contextlib.suppress}
    exec(f"{_CODE[code]}\n{twins.lineup.files['test_m.py']}", names)
    failed = 0
    for copy in twins.lineup.copies:
        try:
            names[copy.name]()
        except AssertionError:
            failed += 1
    assert (failed == 0) is (code == "a repair")


@pytest.mark.parametrize("code", ["a repair", "the last"])
def test_twins_have_parameters_and_fixtures_of_their_own(code: str, tmp_path: Path) -> None:
    test = (
        "import pytest\n\n\n@pytest.fixture\ndef box():\n    yield Box()\n\n\n"
        "@pytest.mark.parametrize('text', ['zqxw', 'vbnm'])\ndef test_it(box, text):\n"
        "    box.put(text)\n    assert box.get() == text\n"
    )
    twins = make_twins({"test_m.py": test}, ["test_m.py::test_it[zqxw]"], seed=3, twins=7)
    assert not twins.open
    (tmp_path / "test_m.py").write_text(f"{_CODE[code]}\n{twins.lineup.files['test_m.py']}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "test_it", "test_m.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    n_copies = len(twins.lineup.copies)
    assert n_copies == 9, "as it is, and with another value for each of two parameters"
    assert (f"{2 * n_copies} passed" in run.stdout) is (code == "a repair"), run.stdout[-2000:]
