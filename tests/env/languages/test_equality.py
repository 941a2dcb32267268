"""What is recorded of the objects that tests compare, and made again of it."""

from __future__ import annotations

import builtins
import collections
import datetime
import importlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swegym_env.languages.python import equality


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
    known = {kind: [*held] for kind, held in equality._objects(packed)}
    made, is_whole = recorder["_unpacked"](packed, known)
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
        *(Path("a/b"), int),
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


def test_only_known_attributes_are_made(recorder: dict[str, Any]) -> None:
    packed = recorder["_packed"](Slotted(5))
    (made,), _ = recorder["_unpacked"](packed, {f"{__name__}:Slotted": ["x"]})
    assert made.x == 5 and not hasattr(made, "_Slotted__hidden")


@pytest.mark.parametrize(
    "value",
    [lambda: 0, iter([1]), "a" * 30_000, np.array([Slotted(1)], dtype=object)],
    ids=["function", "iterator", "long text", "array of objects"],
)
def test_what_cannot_be_read_is_opaque(value: Any, recorder: dict[str, Any]) -> None:
    packed = recorder["_packed"]([value, 1])
    assert not equality._is_whole(packed)
    (made,), is_whole = recorder["_unpacked"](packed, {})
    assert (type(made[0]), made[1], is_whole) == (object, 1, False)


def test_no_code_is_run_that_an_object_names_for_its_pickle(recorder: dict[str, Any]) -> None:
    assert "pickled" not in str(recorder["_packed"](Pretended()))
    for value in (Pretended(), np.array([Pretended()], dtype=object)):
        pickled = [["pickled", pickle.dumps(value, 2).hex()]]
        with pytest.raises(pickle.UnpicklingError):
            recorder["_unpacked"](pickled, {})
