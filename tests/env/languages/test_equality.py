"""What is recorded of the objects that tests compare, and made again of it."""

from __future__ import annotations

import ast
import builtins
import collections
import datetime
import enum
import importlib
import json
import pickle
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swegym_env.languages import Compared
from swegym_env.languages.python import equality
from swegym_env.languages.python.screening import changed_functions
from swegym_env.languages.python.source import with_first
from tests.redteam.cases import diff


class Slotted:
    __slots__ = ("__hidden", "x")

    def __init__(self, x: Any) -> None:
        self.x = self.__hidden = x

    def hidden(self) -> Any:
        return self.__hidden


class Listed(list[Any]):
    def __init__(self, *items: Any) -> None:
        super().__init__(items)
        self.name = "listed"

    def __iter__(self) -> Any:
        raise AssertionError("code of the class")


class OrderedDict(collections.OrderedDict[str, int]):
    """Named like its base."""

    def __init__(self, unit: str) -> None:
        super().__init__(a=1)
        self.unit = unit


class Colour(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Named:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Pretended:
    def __reduce__(self) -> Any:
        return print, ("code of the patch",)


Pretended.__module__ = "datetime"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the recorder, which watches no class here."""
    for holder, name in ((builtins, "__import__"), (builtins, "__build_class__"), (importlib, "import_module")):
        monkeypatch.setattr(holder, name, getattr(holder, name))
    path = Path(equality.__file__).with_name("inside") / "swegym_equality.py"
    names: dict[str, Any] = {"ROOT": "/nowhere"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def _again(recorder: dict[str, Any], value: Any) -> tuple[Any, bool]:
    packed = recorder["_packed"](value)
    made, is_whole = recorder["_unpacked"](packed)
    return made[0], is_whole


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -3, 2.5, 1j, "text", b"\xff", bytearray(b"ab"), (1, [2, {3}]), frozenset({4}), {"a": (None,)}),
        *(
            collections.deque([1, 2]),
            collections.OrderedDict(a=1),
            collections.Counter("aab"),
            datetime.date(2020, 1, 2),
        ),
        *(Path("a/b"), int, range(1, 9, 2), slice(None, 3), re.compile("a+", re.IGNORECASE)),
        *(Colour.RED, Flags.A | Flags.B, Flags(0), [datetime.date(2020, 1, 2)] * 2, [Colour.RED] * 2),
    ],
)
def test_values_are_made_again(value: Any, recorder: dict[str, Any]) -> None:
    made, is_whole = _again(recorder, value)
    assert (type(made), made, is_whole) == (type(value), value, True)


def test_objects_are_made_again_without_code_of_their_classes(recorder: dict[str, Any]) -> None:
    shared = [1]
    slotted, _ = _again(recorder, Slotted(shared))
    assert (slotted.x, slotted.hidden()) == ([1], [1]) and slotted.x is slotted.hidden()
    listed, _ = _again(recorder, Listed(1, 2))
    assert (list.__len__(listed), listed[1], listed.name) == (2, 2, "listed")
    named, _ = _again(recorder, OrderedDict("metre"))
    assert ({**named}, named.unit) == ({"a": 1}, "metre")
    error, _ = _again(recorder, ValueError("wrong", 3))
    assert (type(error), error.args) == (ValueError, ("wrong", 3))
    array, _ = _again(recorder, np.arange(3))
    assert array.tolist() == [0, 1, 2]


def _compared(recorder: dict[str, Any], one: Any, other: Any) -> Compared:
    pair = recorder["_packed"](one, other)
    contents = (equality._content(pair, 0, None), equality._content(pair, 1, None))
    return Compared("tests.py", "test", "Slotted.__eq__", True, json.dumps(pair), contents, False, True)


def _as_known(recorder: dict[str, Any], known: Any, one: Any, other: Any) -> Any:
    attributes = equality._attributes_in([_compared(recorder, each, each) for each in known])
    made, _ = recorder["_unpacked"](equality._as_known(recorder["_packed"](one, other), attributes, were_compared=True))
    return made


def test_unknown_attributes_are_not_made(recorder: dict[str, Any]) -> None:
    one, _ = _as_known(recorder, [Named(x=1)], Named(x=5, raw="5"), Named(x=5, raw="five"))
    assert vars(one) == {"x": 5}


def test_what_all_objects_have_is_never_missing(recorder: dict[str, Any]) -> None:
    one, other = _as_known(recorder, [Named(x=1, y=2), Named(x=1, y=3)], Named(x=5), Named(x=5))
    assert one.x == other.x == 5 and one.y != other.y


@pytest.mark.parametrize(("hidden", "is_made"), [(47, False), (31, True)])
def test_what_some_objects_have_is_made_if_it_may_have_another_name(
    hidden: int, is_made: bool, recorder: dict[str, Any]
) -> None:
    known = [Named(x=1), Named(x=1, y=2)]
    one, other = _as_known(recorder, known, Named(x=5, again=Named(z=31)), Named(x=5, again=Named(z=hidden)))
    assert (not hasattr(one, "y") and not hasattr(other, "y")) if is_made else one.y != other.y


def test_contents_of_two_comparisons_make_a_pair(recorder: dict[str, Any]) -> None:
    """Each side is alone: what the first one has is copied where the second one refers to it."""
    shared = Named(z=1)
    first = _compared(recorder, Named(x=shared), Named(x=shared, y=shared))
    second = _compared(recorder, Named(x=2), Named(x=3))
    question = replace(first, pair="", contents=(first.contents[1], second.contents[0]))
    (one, other), is_whole = recorder["_unpacked"](equality._pair_of(question))
    assert is_whole and one.x is one.y and one.x.z == 1 and other.x == 2
    assert (
        first.contents[1].kind == f"{__name__}:Named"
        and equality._content([["int", 5], ["int", 5]], 0, None).kind == ""
    )


def test_the_object_of_a_module_is_made_of_itself(recorder: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code may ask whether an object is that of its module: `(self.unit or METRE) is METRE`."""
    module = types.ModuleType("units")
    module.__file__ = "/nowhere/units.py"
    exec(
        "class Unit:\n    def __init__(self, name): self.name = name\n    INCH = None\nMETRE = Unit('m')", vars(module)
    )
    module.Unit.INCH = module.Unit("in")
    monkeypatch.setitem(sys.modules, "units", module)
    recorder["install"]()
    unit, metre = module.Unit, module.METRE
    packed = recorder["_packed"]([metre, unit.INCH], unit("m"))
    copying = equality._Copying(equality._by_number(packed))
    packed = [copying.copy(one) for one in packed]
    (named, copied), _ = recorder["_unpacked"](packed)
    assert named[0] is metre and named[1] is unit.INCH and copied is not metre and copied.name == "m"
    metre.name = "metre"
    assert recorder["_unpacked"](packed)[0][0][0] is not metre, "it has another content there"


def test_watched_constructors_take_keywords_of_any_name(recorder: dict[str, Any]) -> None:
    class Fields(dict[str, int]):
        def __init__(self, /, **fields: int) -> None:
            super().__init__(fields)

    recorder["_watch_making"](Fields)
    assert Fields(self=1, building=2) == {"self": 1, "building": 2}
    with pytest.raises(TypeError, match="self"):
        Fields.__init__()  # type: ignore[call-arg]


def test_classes_without_a_module_are_read(recorder: dict[str, Any]) -> None:
    kind = eval("type('Nameless', (), {})", {"type": type})
    assert not hasattr(kind, "__module__")
    recorder["install"]()
    assert recorder["_packed"](kind()) == [["object", 0, ":Nameless", "", None, []]]


@pytest.mark.parametrize(
    "value",
    [lambda: 0, iter([1]), "a" * 30_000, np.array([Slotted(1)], dtype=object)],
    ids=["function", "iterator", "long text", "array of objects"],
)
def test_what_cannot_be_read_is_opaque(value: Any, recorder: dict[str, Any]) -> None:
    packed = recorder["_packed"]([value, 1])
    assert not equality._is_whole(packed)
    (made,), is_whole = recorder["_unpacked"](packed)
    assert (type(made[0]), made[1], is_whole) == (object, 1, False)


def test_no_code_is_run_that_an_object_names_for_its_pickle(recorder: dict[str, Any]) -> None:
    assert "pickled" not in str(recorder["_packed"](Pretended()))
    for value in (Pretended(), np.array([Pretended()], dtype=object)):
        pickled = [["pickled", pickle.dumps(value, 2).hex()]]
        with pytest.raises(pickle.UnpicklingError):
            recorder["_unpacked"](pickled)


def test_functions_that_a_patch_changes_are_found(tmp_path: Path) -> None:
    before = {
        "lib/core.py": "import os\n\nLIMIT = 3\n\n\ndef key(x):\n    return x\n\n\ndef other(x):\n    return LIMIT\n"
    }
    for path, text in before.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)

    def changed(old: str, new: str) -> set[tuple[str, str]]:
        return changed_functions(diff(before, {"lib/core.py": before["lib/core.py"].replace(old, new)}), tmp_path)

    assert changed("return x", "return -x") == {("lib/core.py", "key")}
    assert changed("LIMIT = 3", "LIMIT = 4") == {("lib/core.py", "")}
    assert changed("import os", "# a comment\nimport os\nimport sys\n\nMORE = 1") == set()
    assert changed("import os", "import os\nfrom sys import getsizeof as key") == {("lib/core.py", "")}
    assert changed("def other(x)", "def further(x):\n    return x\n\n\ndef other(x)") == set()
    assert changed("def other(x)", "def key(x):\n    return 1\n\n\ndef other(x)") == {("lib/core.py", "key")}
    package = diff(before, {**before, "lib/core/__init__.py": "def key(x):\n    return 1\n"})
    assert changed_functions(package, tmp_path) == {("lib/core.py", "")}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""Tests."""\nfrom __future__ import annotations\nimport os\n', 3),
        ("import os\n", 1),
        ("\n\n\n# begins here\nclass Test:\n    pass\n", 4),
        ("class Test:\n    pass\n", 5),
    ],
)
def test_a_statement_is_put_first_and_moves_no_line(text: str, line: int) -> None:
    changed = with_first(text, "mark = 1")
    compile(changed, "test", "exec")
    assert next(row for row, each in enumerate(changed.split("\n"), 1) if "mark = 1" in each) == line
    places = [node.lineno for node in ast.parse(text).body]
    assert [node.lineno for node in ast.parse(changed).body if "mark" not in ast.unparse(node)] == places
