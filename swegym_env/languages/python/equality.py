"""Which objects tests compare: they record it while they run.

The equality of an object belongs to the code under test. If it leaves an attribute out, a test of that attribute passes
without the repair. Reading a test does not show all that it compares: objects are in names, containers, helpers and
libraries. So the methods that compare are watched, see `inside/swegym_equality.py`.

What it records of an object is *packed*, a tree of JSON: None, a truth value, or a list that begins with a tag:

    ["int" | "str", value]                      ["again", number]: the object with this number
    ["enum" | "flag", class, name | value]      ["class" | "module", name]
    ["pickled", hexadecimal]                    ["call", name, [packed arguments]]
    ["opaque", number, class]                   nothing is known of this object but its class
    ["object", number, class, base, content, [[attribute, packed], …]]
                                                base: the builtin class that it is derived from, or ""; content: of
                                                that base. Two items may follow: where the repository has this object,
                                                or "", and how it was made, or None: [[argument, …], [[name, argument],
                                                …]], packed, with numbers of their own; in questions, in the place of
                                                the latter, its content as text
    ["made", number, class, [argument, …], [[name, argument], …]]
                                                in questions alone: what a call of the class returns
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import secrets
import string
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from swegym_env.languages import COMPARISONS_AT_LINE, Blinded, Compared, ComparedObjects, Content
from swegym_env.languages.python.source import (
    code_of,
    is_fixture,
    names_of,
    place_of,
    target_tests,
    tests_in,
    with_first,
)

__all__ = ["compared_objects", "record_comparisons", "vary_compared"]

_RECORDER = Path(__file__).with_name("inside") / "swegym_equality.py"
_ROOT = "/testbed"
_SCALARS = frozenset({"int", "float", "complex", "str", "bytes", "bytearray"})
_MAPPINGS = frozenset({"dict", "OrderedDict"})
_UNFOLLOWED = ("__hash__", "__new__", "__getattr__", "__getattribute__", "__setattr__", "__bool__")
_ITEMS = 0.15  # of the variations that have more or fewer items or letters
_MOST_TRIES = 20  # for a variation that is not there yet

Packed = Any
Attributes = Mapping[str, tuple[frozenset[str], frozenset[str]]]
"""Class → the attributes that some of its recorded objects have, and those that all have."""


def record_comparisons(
    files: Mapping[str, str],
    names: Iterable[str],
    senders: Iterable[str] = (),
    questions: Sequence[Compared] = (),
    known: Collection[Compared] = (),
) -> Blinded | None:
    """See `Language.record_comparisons`."""
    paths = [path for path in sorted(files) if path.endswith(".py")]
    if not paths:
        return None
    directory = f"/tmp/.{secrets.token_hex(8)}"
    recorder, output, asked = f"{directory}.py", f"{directory}.out", f"{directory}.json"
    settings = {
        "OUT": output,
        "FILES": tuple(f"{_ROOT}/{path}" for path in paths),
        "TESTS": tuple(sorted(_tests_of(files, names).functions)),
        "SENDERS": (*senders,),
        "ROOT": _ROOT,
        "QUESTIONS": asked if questions else "",
        "AT_LINE": COMPARISONS_AT_LINE,
    }
    statement = f"exec({code_of(recorder)}, {settings})"
    changed = {path: with_first(files[path], statement) for path in paths}
    support = {recorder: _RECORDER.read_text(encoding="utf-8")}
    if questions:
        attributes = _attributes_in(known)
        pairs = [
            (
                f"{_ROOT}/{one.path}",
                one.function,
                one.is_sent,
                one.places,
                one.method.rpartition(".")[2],
                _as_known(_pair_of(one), attributes, were_compared=bool(one.pair), answer=one.answer),
            )
            for one in questions
        ]
        support[asked] = json.dumps(pairs)
    return Blinded(changed, support, output, {}, {})


def compared_objects(files: Mapping[str, str], names: Iterable[str], sent: bytes) -> ComparedObjects:
    """See `Language.compared_objects`.

    What is no test, such as a fixture, counts for all tests of its file. A test that is inherited is not found by its
    place: each function with its name counts.
    """
    names = tuple(names)
    tests = _tests_of(files, names)
    found: dict[str, Compared] = {}
    places: dict[str, set[int]] = defaultdict(set)
    answers: dict[int, set[tuple[bool | None, bool]]] = defaultdict(set)
    first: dict[int, set[tuple[bool | None, bool]]] = defaultdict(set)
    more: set[str] = set()
    inside: set[str] = set()
    comparing: set[tuple[str, str]] = set()
    making: dict[str, set[tuple[str, str]]] = defaultdict(set)
    lines = sent.decode("utf-8", "replace").splitlines()
    unread = len(lines)
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, AttributeError, LookupError, RecursionError):
            kind, *record = json.loads(line)
            if kind == "answer":
                number, answer, is_whole, is_exact = record
                (answers if is_exact else first)[number].add((answer, bool(is_whole)))
            elif kind == "more":
                path, function, is_sent = record
                if not is_sent:
                    more |= tests.names(path.removeprefix(f"{_ROOT}/"), function)
            elif kind in ("compares", "makes"):
                of, path, function = record
                path = path.removeprefix(f"{_ROOT}/")
                if kind == "makes":
                    making[of].add((path, function))
                else:
                    comparing |= {(path, function), (path, "")}
            elif kind == "inside":
                inside |= {*record[0]}
            elif kind == "at":
                key, number = record
                places[key].add(int(number))
            elif kind == "compared":
                key, number, path, function, is_sent, method, answer, pair = record
                places[key].add(int(number))
                calls, pair = [_as_made(side, itertools.count()) for side in pair], [*map(_content_alone, pair)]
                contents = (_content(pair, 0, calls[0]), _content(pair, 1, calls[1]))
                path, text = path.removeprefix(f"{_ROOT}/"), json.dumps(pair)
                found[key] = Compared(
                    path, function, method, bool(answer), text, contents, bool(is_sent), _is_whole(pair)
                )
            unread -= 1
    more |= {*names} if unread else set()
    by_test: dict[str, set[Compared]] = defaultdict(set)
    for key, one in found.items():
        for name in tests.names(one.path, one.function):
            by_test[name].add(replace(one, places=tuple(sorted(places[key]))))
    return ComparedObjects(
        {name: frozenset(compared) for name, compared in by_test.items()},
        {number: frozenset(answers.get(number) or first[number]) for number in {*answers, *first}},
        frozenset(more),
        _with_unfollowed(comparing.union(*(making[kind] for kind in inside if kind in making)))
        if inside
        else frozenset(),
    )


def _with_unfollowed(run: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    """Functions that are run, with methods of their files that run unseen, and what is run when these are imported."""
    paths = {path for path, _ in run}
    packages = {str(parent / "__init__.py") for path in paths for parent in PurePosixPath(path).parents}
    return frozenset({*run, *itertools.product(paths, _UNFOLLOWED), *itertools.product(packages, ("",))})


# --- Packed values ---


def _parts(packed: Packed) -> Iterator[Packed]:
    """The values directly inside a packed one."""
    if isinstance(packed, list) and packed[0] == "call":
        yield from packed[2]
    elif isinstance(packed, list) and packed[0] == "made":
        yield from (*packed[3], *(item for _, item in packed[4]))
    elif isinstance(packed, list) and packed[0] == "object":
        _, _, _, base, content, held, *_ = packed
        if base in _MAPPINGS:
            yield from (part for item in content for part in item)
        elif base and base not in _SCALARS:
            yield from content
        yield from (item for _, item in held)


def _inside(packed: Packed) -> Iterator[Packed]:
    """A packed value and all inside it."""
    waiting = [packed]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [*_parts(one)][::-1]


def _is_whole(pair: list[Packed]) -> bool:
    """Whether each object of a pair has a content or attributes, and none is of the interpreter."""
    return not any(
        isinstance(one, list) and (one[0] == "opaque" or (one[0] == "object" and one[3:6] == ["", None, []]))
        for side in pair
        for one in _inside(side)
    )


def _content(pair: list[Packed], side: int, call: Packed) -> Content:
    """One side of a pair, alone."""
    packed = _Copying(_by_number(pair)).copy(pair[side])
    is_object = isinstance(packed, list) and packed[0] == "object" and packed[2] != f"builtins:{packed[3]}"
    call = call if is_object else packed
    return Content(packed[2] if is_object else "", json.dumps(packed), json.dumps(call) if call is not None else "")


def _content_alone(packed: Packed) -> Packed:
    """A packed value of which nothing says how it was made."""
    is_object = isinstance(packed, list) and packed[0] == "object"
    return [*packed[:6], *filter(None, packed[6:7])] if is_object else packed


def _without_places(packed: Packed) -> Packed:
    """The same, inside it too."""
    if not isinstance(packed, list):
        return packed
    is_object = len(packed) > 6 and packed[0] == "object"
    return [_without_places(part) for part in (packed[:6] if is_object else packed)]


def _as_made(packed: Packed, numbers: Iterator[int]) -> Packed:
    """The call that made an object, and those that made its arguments; None if this is not known."""
    if not (isinstance(packed, list) and packed[0] == "object" and len(packed) > 7 and packed[7] is not None):
        return None
    (arguments, named), number = packed[7], next(numbers)
    copying = _Copying(_by_number([*arguments, *(one for _, one in named)]), numbers=numbers)

    def argument(one: Packed) -> Packed:
        call = _as_made(one, numbers)
        if call is None:
            return copying.copy(_content_alone(one))
        copying.new[one[1]] = call[1]
        return call

    calls = [argument(one) for one in arguments]
    return ["made", number, packed[2], calls, [[name, argument(one)] for name, one in named]]


def _pair_of(question: Compared) -> list[Packed]:
    if question.pair:
        pair: list[Packed] = json.loads(question.pair)
        return pair
    numbers = itertools.count()
    sides = [json.loads(one.text) for one in question.contents]
    return [_Copying(_by_number([side]), numbers=numbers).copy(side) for side in sides]


def _by_number(packed: Iterable[Packed]) -> dict[int, Packed]:
    inside = (one for each in packed for one in _inside(each))
    return {one[1]: one for one in inside if isinstance(one, list) and one[0] in ("object", "opaque", "made")}


@dataclass
class _Copying:
    """Copies packed values with numbers of their own.

    Attributes:
        by_number: number → the object that has it.
        attributes: what is not in it is left out; None: all are copied.
        is_filled: whether the attributes that only some objects of a class have are filled too.
        numbers: of the copies.
        new: number → that of the copy.
    """

    by_number: Mapping[int, Packed]
    attributes: Attributes | None = None
    is_filled: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)
    new: dict[int, int] = field(default_factory=dict)

    def copy(self, packed: Packed) -> Packed:
        """The copy; an object that stands elsewhere, where it is not copied, is copied where it stands again."""
        if not isinstance(packed, list):
            return packed
        tag = packed[0]
        if tag == "again":
            number = self.new.get(packed[1])
            return ["again", number] if number is not None else self.copy(self.by_number[packed[1]])
        if tag == "call":
            return [tag, packed[1], [self.copy(item) for item in packed[2]]]
        if tag not in ("object", "opaque", "made"):
            return packed
        number = self.new[packed[1]] = next(self.numbers)
        if tag == "opaque":
            return [tag, number, packed[2]]
        if tag == "made":
            arguments = [self.copy(item) for item in packed[3]]
            return [tag, number, packed[2], arguments, [[name, self.copy(item)] for name, item in packed[4]]]
        _, _, kind, base, content, held = packed[:6]
        place = [packed[6], self.bare(packed)] if packed[6:] and packed[6] else []
        if base in _MAPPINGS:
            content = [[self.copy(part) for part in item] for item in content]
        elif base and base not in _SCALARS:
            content = [self.copy(item) for item in content]
        if self.attributes is None:
            return [tag, number, kind, base, content, [[name, self.copy(item)] for name, item in held], *place]
        some, always = self.attributes.get(kind, (frozenset(), frozenset()))
        kept = [[name, self.copy(item)] for name, item in held if name in some]
        lacking = sorted((some if self.is_filled else always) - {name for name, _ in held})
        kept += [[name, ["opaque", next(self.numbers), "builtins:object"]] for name in lacking]
        return [tag, number, kind, base, content, kept, *place]

    def bare(self, packed: Packed) -> str:
        """A packed value as text, without numbers and places."""
        return _unnumbered(_Copying(self.without_places).copy(_without_places(packed)))

    @cached_property
    def without_places(self) -> dict[int, Packed]:
        """The objects by their numbers."""
        return {number: _without_places(one) for number, one in self.by_number.items()}


def _attributes_in(known: Iterable[Compared]) -> Attributes:
    found: dict[str, list[frozenset[str]]] = defaultdict(list)
    for one in known:
        for side in json.loads(one.pair):
            for packed in _inside(side):
                if isinstance(packed, list) and packed[0] == "object":
                    found[packed[2]].append(frozenset(name for name, _ in packed[5]))
    return {kind: (frozenset().union(*each), each[0].intersection(*each)) for kind, each in found.items()}


def _as_known(pair: list[Packed], attributes: Attributes, *, were_compared: bool, answer: bool = True) -> list[Packed]:
    """A pair as objects with known attributes alone.

    Each has an object that equals no other one in the place of an attribute that it lacks: code that reads it cannot
    take a default for it. An attribute that only some known objects have may well be absent, unless two sides that were
    compared differ in what is left out: that may be its value, under another name. It may also be why two objects are
    not equal.
    """
    lost = [sorted(_lost(side, attributes)) for side in pair]
    if were_compared and not answer and lost[0] != lost[1]:
        return [["opaque", number, "builtins:object"] for number in (0, 1)]
    copying = _Copying(_by_number(pair), attributes, is_filled=were_compared and lost[0] != lost[1])
    return [copying.copy(side) for side in pair]


def _lost(packed: Packed, attributes: Attributes) -> Iterator[str]:
    """The attributes of a packed value that are not known, as text."""
    for one in _inside(packed):
        if isinstance(one, list) and one[0] == "object":
            some, _ = attributes.get(one[2], (frozenset(), frozenset()))
            yield from (_unnumbered([one[2], name, item]) for name, item in one[5] if name not in some)


def _unnumbered(packed: Packed) -> str:
    """A packed value as text, without the numbers of its objects."""
    return re.sub(r'\["(again|opaque|object)", \d+', r'["\1"', json.dumps(packed))


# --- Variations ---


def vary_compared(one: Compared, like: Compared | None, seed: int, number: int) -> list[tuple[Compared, Compared]]:
    """See `Language.vary_compared`."""
    chance, varied = random.Random(seed), list[tuple[Compared, Compared]]()
    contents, sides = [*one.contents], [0, 1]
    theirs = [*(like or one).contents]
    if like is not None:
        sides = [side for side in sides if contents[side].made and contents[side].made == theirs[side].made]
    for side in sides:
        contents[side] = theirs[side] = replace(contents[side], text=contents[side].made)
    sides = sides or [side for side in (0, 1) if contents[side] == theirs[side]]
    seen = {content.text for content in contents}
    for _ in range(number * _MOST_TRIES if sides else 0):
        side = chance.choice(sides)
        if not contents[side].text or len(varied) == number:
            break
        text = _varied(contents[side].text, chance)
        if text in seen:
            continue
        seen.add(text)
        other = replace(contents[side], text=text)
        pair, their_pair = [*contents], [*theirs]
        pair[side] = their_pair[side] = other
        varied.append(
            (
                replace(one, pair="", contents=(pair[0], pair[1])),
                replace(like or one, pair="", contents=(their_pair[0], their_pair[1])),
            )
        )
    return varied


def _varied(text: str, chance: random.Random) -> str:
    """Packed content with another number, text or item in one place; the same if it has none."""
    packed = json.loads(text)
    leaves, groups = list[list[Any]](), list[list[Any]]()
    waiting = [packed]
    for one in waiting:  # grows during the iteration
        if not isinstance(one, list) or (one[0] == "object" and len(one) > 6 and one[6]):
            continue
        if one[0] in ("int", "str") or (one[0] == "object" and one[2] == "builtins:float"):
            leaves.append(one)
        elif one[0] == "object" and one[3] in ("list", "tuple"):
            groups.append(one)
        waiting += _parts(one)
    if groups and (not leaves or chance.random() < _ITEMS):
        group = chance.choice(groups)
        if group[4] and chance.random() < 0.5:
            del group[4][chance.randrange(len(group[4]))]
        else:
            group[4].append(chance.choice([["int", chance.randrange(100)], *leaves]))
    elif leaves:
        leaf = chance.choice(leaves)
        if leaf[0] == "int":
            leaf[1] = _other_number(leaf[1], chance)
        elif leaf[0] == "str":
            leaf[1] = _other_text(leaf[1], chance)
        else:
            leaf[4] = repr(float(leaf[4]) + chance.choice([-1, 1]) * chance.choice([0.5, 1, 3, 10, 47]))
    return json.dumps(packed)


def _other_number(number: int, chance: random.Random) -> int:
    size = max(10, abs(number))
    return chance.choice([number + 1, number - 1, -number, *(chance.randrange(2 * size) for _ in range(5))])


def _other_text(text: str, chance: random.Random) -> str:
    def like(letter: str) -> str:
        kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
        return chance.choice(next((kind for kind in kinds if letter in kind), letter))

    places = [place for place, letter in enumerate(text) if letter.isascii() and letter.isalnum()]
    if not places or chance.random() < _ITEMS:
        return text + like(text[-1:] or "a")
    place = chance.choice(places)
    return f"{text[:place]}{like(text[place])}{text[place + 1 :]}"


# --- Tests ---


def _tests_of(files: Mapping[str, str], names: Iterable[str]) -> _Tests:
    return _read_tests(tuple(sorted(files.items())), tuple(names))


@lru_cache(maxsize=16)
def _read_tests(files: tuple[tuple[str, str], ...], names: tuple[str, ...]) -> _Tests:
    return _Tests(dict(files), names)


class _Tests:
    """Which tests the functions of test files are."""

    def __init__(self, files: Mapping[str, str], names: tuple[str, ...]) -> None:
        chosen, named = target_tests(files, names, {})
        places = {name: place_of(name) for name in names}
        self._named, self._elsewhere = frozenset(named), frozenset(names) - named
        of_function: dict[tuple[str, str], set[str]] = defaultdict(set)
        of_file: dict[str, set[str]] = defaultdict(set)
        by_function: dict[str, set[str]] = defaultdict(set)
        for path, functions in chosen.items():
            for classes, function in functions.values():
                own = names_of(function, {name: places[name] for name in named}, path, classes)
                of_function[path, function.name] |= own
                of_file[path] |= own
        for name in self._elsewhere:
            place = places[name]
            by_function[place.function if place is not None else ""].add(name)
        self._of_function, self._of_file, self._by_function = dict(of_function), dict(of_file), dict(by_function)
        functions_of = [(path, function) for path in files for _, function in tests_in(files[path])]
        tests = [(path, function) for path, function in functions_of if function.name.startswith("test")]
        self._tests = {(path, function.name) for path, function in tests if not is_fixture(function)}
        self._fixtures = {function.name for _, function in tests if is_fixture(function)}

    @property
    def functions(self) -> frozenset[str]:
        """The names of their functions, and of fixtures that are named as tests; empty if one is not known."""
        names = frozenset({*self._by_function, *(function for _, function in self._of_function)})
        return frozenset() if "" in names else names | self._fixtures

    def names(self, path: str, function: str) -> set[str]:
        """The names of the tests to which a function of a file belongs."""
        inherited = self._by_function.get(function, set())
        if (path, function) in self._of_function:
            return self._of_function[path, function] | inherited
        if (path, function) in self._tests:
            return inherited | self._by_function.get("", set())
        return {*self._of_file.get(path, self._named), *self._elsewhere}
