"""Which objects tests compare: they record it while they run.

The equality of an object belongs to the code under test. If it leaves an attribute out, a test of that attribute passes
without the repair. Reading a test does not show all that it compares: objects are in names, containers, helpers and
libraries. So the methods that compare are watched, see `inside/swegym_equality.py`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swegym_env.languages import Blinded, Compared, ComparedObjects
from swegym_env.languages.python.source import names_of, place_of, target_tests, tests_in

__all__ = ["compared_objects", "record_comparisons"]

_RECORDER = Path(__file__).with_name("inside") / "swegym_equality.py"
_ROOT = "/testbed"


def record_comparisons(
    files: Mapping[str, str],
    names: Iterable[str],
    senders: Iterable[str] = (),
    questions: Sequence[Compared] = (),
    known: Collection[Compared] = (),
) -> Blinded | None:
    """See `Language.record_comparisons`."""
    paths = [path for path in sorted(files) if path.endswith(".py")]
    functions = _Tests(files, tuple(names)).functions
    if not paths:
        return None
    directory = f"/tmp/.{secrets.token_hex(8)}"
    recorder, output, asked = f"{directory}.py", f"{directory}.out", f"{directory}.json"
    read = f'compile(__import__("pathlib").Path("{recorder}").read_text(), "{recorder}", "exec")'
    settings = {
        "OUT": output,
        "FILES": tuple(f"{_ROOT}/{path}" for path in paths),
        "TESTS": tuple(sorted(functions)),
        "SENDERS": (*senders,),
        "ROOT": _ROOT,
        "QUESTIONS": asked if questions else "",
    }
    changed = {path: f"{files[path].rstrip()}\n\n\nexec({read}, {settings})\n" for path in paths}
    support = {recorder: _RECORDER.read_text(encoding="utf-8")}
    if questions:
        pairs = [
            (number, f"{_ROOT}/{one.path}", one.function, one.method.rpartition(".")[2], json.loads(one.pair))
            for number, one in enumerate(questions)
        ]
        attributes: dict[str, list[str]] = defaultdict(list)
        for one in known:
            for kind, held in _objects(json.loads(one.pair)):
                attributes[kind] += held
        data = {"pairs": pairs, "attributes": {kind: sorted({*held}) for kind, held in attributes.items()}}
        support[asked] = json.dumps(data)
    return Blinded(changed, support, output, {}, {})


def _objects(packed: Any) -> Iterator[tuple[str, list[str]]]:
    """The class of each object in a recorded value, and its attributes."""
    waiting = [packed]
    for one in waiting:  # grows during the iteration
        if isinstance(one, list):
            if len(one) == 6 and one[0] == "object":
                yield one[2], [name for name, _ in one[5]]
            waiting += one


def _is_whole(packed: Any) -> bool:
    """Whether each object of a recorded value has a content or attributes, and none is of the interpreter."""
    waiting = [packed]
    for one in waiting:  # grows during the iteration
        if isinstance(one, list):
            if one[:1] == ["opaque"] or (len(one) == 6 and one[0] == "object" and one[3:] == ["", None, []]):
                return False
            waiting += one
    return True


def compared_objects(files: Mapping[str, str], names: Iterable[str], sent: bytes) -> ComparedObjects:
    """See `Language.compared_objects`.

    What is no test, such as a fixture, counts for all tests of its file. A test that is inherited is not found by its
    place: each function with its name counts.
    """
    tests_of = _Tests(files, tuple(names))
    compared: dict[str, set[Compared]] = defaultdict(set)
    answers: dict[int, tuple[bool | None, bool]] = {}
    more: set[str] = set()
    for line in sent.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            kind, *record = json.loads(line)
            if kind == "answer":
                number, answer, is_whole = record
                answers[number] = answer, bool(is_whole)
                continue
            path, function, *rest = record
            path = path.removeprefix(f"{_ROOT}/")
            found = tests_of.names(path, function)
            if kind == "more":
                more |= found
                continue
            is_sent, method, answer, pair = rest
            one = Compared(path, function, method, bool(answer), json.dumps(pair), bool(is_sent), _is_whole(pair))
            for name in found:
                compared[name].add(one)
    return ComparedObjects({name: frozenset(found) for name, found in compared.items()}, answers, frozenset(more))


class _Tests:
    """Which tests the functions of test files are."""

    def __init__(self, files: Mapping[str, str], names: tuple[str, ...]) -> None:
        chosen, named = target_tests(files, names, {})
        places = {name: place_of(name) for name in names}
        self._named, self._elsewhere = named, {*names} - named
        self._of_function: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._of_file: dict[str, set[str]] = defaultdict(set)
        for path, functions in chosen.items():
            for classes, function in functions.values():
                own = names_of(function, {name: places[name] for name in named}, path, classes)
                self._of_function[path, function.name] |= own
                self._of_file[path] |= own
        self._by_function: dict[str, set[str]] = defaultdict(set)
        for name in self._elsewhere:
            place = places[name]
            self._by_function[place.function if place is not None else ""].add(name)
        functions_of = ((path, function.name) for path in files for _, function in tests_in(files[path]))
        self._tests = {key for key in functions_of if key[1].startswith("test")}

    @property
    def functions(self) -> frozenset[str]:
        """The names of their functions; empty if one is not known."""
        names = {*self._by_function, *(function for _, function in self._of_function)}
        return frozenset() if "" in names else frozenset(names)

    def names(self, path: str, function: str) -> set[str]:
        """The names of the tests to which a function of a file belongs."""
        if (path, function) in self._of_function:
            return self._of_function[path, function] | self._by_function[function]
        if (path, function) in self._tests:
            return self._by_function[function] | self._by_function[""]
        return self._of_file.get(path, {*self._named}) | self._elsewhere
