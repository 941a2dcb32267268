"""By what the objects differ that a test compares: the tests record it while they run.

The equality of an object belongs to the code under test. If it leaves an attribute out, a test of that attribute passes
without the repair. Reading a test does not show all that it compares: objects are in names, containers, helpers and
libraries. So the methods that compare are watched, see `inside/swegym_equality.py`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from swegym_env.languages import Blinded, Compared
from swegym_env.languages.python.source import names_of, place_of, target_tests, tests_in

__all__ = ["compared_objects", "record_comparisons"]

_RECORDER = Path(__file__).with_name("inside") / "swegym_equality.py"
_ROOT = "/testbed"


def record_comparisons(files: Mapping[str, str], names: Iterable[str], senders: Iterable[str] = ()) -> Blinded | None:
    """See `Language.record_comparisons`."""
    paths = [path for path in sorted(files) if path.endswith(".py")]
    if not (paths and any(names)):
        return None
    directory = f"/tmp/.{secrets.token_hex(8)}"
    recorder, output = f"{directory}.py", f"{directory}.out"
    read = f'compile(__import__("pathlib").Path("{recorder}").read_text(), "{recorder}", "exec")'
    places = tuple(f"{_ROOT}/{path}" for path in paths)
    call = f'exec({read}, {{"OUT": "{output}", "FILES": {places}, "SENDERS": {(*senders,)}, "ROOT": "{_ROOT}"}})'
    changed = {path: f"{files[path].rstrip()}\n\n\n{call}\n" for path in paths}
    return Blinded(changed, {recorder: _RECORDER.read_text(encoding="utf-8")}, output, {}, {})


def compared_objects(
    files: Mapping[str, str], names: Iterable[str], sent: bytes, *, inside: bool = False
) -> Mapping[str, Compared]:
    """See `Language.compared_objects`.

    What is no test, such as a fixture, counts for all tests of its file. A test that is inherited is not found by its
    place: each function with its name counts.
    """
    names = tuple(names)
    chosen, named = target_tests(files, names, {})
    places = {name: place_of(name) for name in names}
    of_function: dict[tuple[str, str], set[str]] = defaultdict(set)
    of_file: dict[str, set[str]] = defaultdict(set)
    for path, functions in chosen.items():
        for classes, function in functions.values():
            own = names_of(function, {name: places[name] for name in named}, path, classes)
            of_function[path, function.name] |= own
            of_file[path] |= own
    elsewhere: dict[str, set[str]] = defaultdict(set)
    for name in {*names} - named:
        place = places[name]
        elsewhere[place.function if place is not None else ""].add(name)
    functions_of = ((path, function.name) for path in files for _, function in tests_in(files[path]))
    tests = {key for key in functions_of if key[1].startswith("test")}
    # Methods, places in which a change is noticed, and places in which it is not.
    every = defaultdict[str, tuple[set[str], set[str], set[str]]](lambda: (set(), set(), set()))
    for line in sent.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            path, function, is_sent, kind, *places_of_kind = json.loads(line)
            if is_sent and inside:
                continue
            path = path.removeprefix(f"{_ROOT}/")
            key = path, function
            unknown = elsewhere[function] | elsewhere[""] if key in tests else {*names} - named
            for name in unknown | of_function.get(key, set() if key in tests else of_file.get(path, {*named})):
                methods, *found = every[name]
                methods.add(kind)
                for known, those in zip(found, places_of_kind, strict=False):
                    known |= {f"{kind} {place}" for place in those}
    return {name: Compared(*map(frozenset, found)) for name, found in every.items()}
