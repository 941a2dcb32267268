"""The keys and types of a configuration, from the source of the dataclasses, without importing them.

Importing the sections of a configuration imports PyTorch, which takes seconds. A key that does not exist, or that is
missing, and a value of another type are found before that. Ranges, and what an annotation does not tell by itself, are
checked afterwards, by `swe_trainers.config.build`.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from swe_trainers.algorithms import BUILT_IN
from swe_trainers.config import nearest
from swe_trainers.errors import ConfigurationError

__all__ = ["Key", "check_keys", "keys_of", "settings_by_name"]

_RUN = "swe_trainers.run_config:RunConfig"


@dataclass(frozen=True)
class Key:
    """A field of a section.

    Attributes:
        required: whether it has no default.
        section: `module:Class` of the section that it holds; empty for a value.
        kinds: of the values that it takes, by their names in annotations ("int", "None", …); empty where not known.
        choices: the values that a `Literal` takes.
    """

    required: bool
    section: str = ""
    kinds: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()


# What a value of each kind is, and in words; YAML's dates are texts. The words are those of `swe_trainers.config`.
_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, ""),
    "int": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "float": (lambda value: isinstance(value, (int, float)) and not isinstance(value, bool), "a number"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "str": (lambda value: not isinstance(value, (bool, int, float, list, dict, type(None))), "text"),
    "UserPath": (lambda value: not isinstance(value, (bool, int, float, list, dict, type(None))), "text"),
    "tuple": (lambda value: isinstance(value, list), "a list"),
    "Mapping": (lambda value: isinstance(value, dict), "a section with keys"),
}


def check_keys(values: Mapping[str, Any], *, likely: str = "trainer") -> None:
    """Raise ConfigurationError for the first unknown key of a run, missing key, or value of another type.

    Args:
        values: of the run.
        likely: the section that the error suggests where several have the setting.
    """
    trainer = values.get("trainer")
    name = trainer.get("algorithm") if isinstance(trainer, Mapping) else None
    unknown = list(_unknown(values, _RUN, ""))
    if isinstance(trainer, Mapping) and (name is None or name in BUILT_IN):  # else another package's algorithm
        known = {"algorithm"}.union(*(keys_of(place) for place in BUILT_IN.values()))
        unknown += [(f"trainer.{key}", str(key), sorted(known)) for key in trainer if key not in known]
    for dotted, key, names in unknown:
        raise ConfigurationError(f"{dotted}: no such setting{_elsewhere(key, names, likely) or nearest(key, names)}")
    for dotted in _missing(values, _RUN, ""):
        raise ConfigurationError(f"{dotted}: missing, and it has no default")
    wrong = list(_wrong(values, _RUN, ""))
    if isinstance(trainer, Mapping) and name in BUILT_IN:
        wrong += _wrong(trainer, BUILT_IN[name], "trainer.")
    for dotted, value, expected in wrong:
        raise ConfigurationError(f"{dotted}: got {value!r}, expected {expected}")


def settings_by_name(likely: str = "trainer") -> dict[str, str]:
    """The settings of all sections by their last name, each with its dotted name.

    Args:
        likely: the section that is taken where several have the setting.
    """
    places = {name: [each.section] for name, each in keys_of(_RUN).items() if each.section}
    places["trainer"] = list(BUILT_IN.values())
    order = sorted(places, key=lambda section: section == likely)
    return {name: f"{section}.{name}" for section in order for place in places[section] for name in keys_of(place)}


def _elsewhere(key: str, names: Sequence[str], likely: str) -> str:
    """`. Did you mean SECTION.KEY?`, where no key of its own section is near and one of another section is."""
    if get_close_matches(key, names, n=1):
        return ""
    dotted = settings_by_name(likely)
    close = get_close_matches(key, dotted, n=1)
    return f". Did you mean {dotted[close[0]]!r}?" if close else ""


@cache
def keys_of(place: str) -> Mapping[str, Key]:
    """The fields of a dataclass, those of the classes that it derives from included.

    Args:
        place: `module:Class`, of this package.
    """
    module, _, name = place.partition(":")
    source = _classes(module)
    if name not in source.classes:
        return {}
    node, found = source.classes[name], dict[str, Key]()
    for base in node.bases:
        if isinstance(base, ast.Name):
            found |= keys_of(source.place(module, base.id))
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            words = [each.id for each in ast.walk(line.annotation) if isinstance(each, ast.Name)]
            if "ClassVar" in words:
                continue
            nested = () if {"Mapping", "tuple", "Annotated"} & set(words) else words
            sections = [each for word in nested if keys_of(each := source.place(module, word))]
            kinds, choices = _kinds(line.annotation, module)
            found[line.target.id] = Key(line.value is None, sections[0] if sections else "", kinds, choices)
    return found


def _kinds(annotation: ast.expr, module: str) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The kinds of values that an annotation allows, and the choices of a `Literal`; nothing where one is not known."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            (first, some), (second, others) = _kinds(left, module), _kinds(right, module)
            return ((*first, *second), (*some, *others)) if first and second else ((), ())
        case ast.Constant(None):
            return ("None",), ()
        case ast.Subscript(ast.Name("Literal"), choices):
            return ("Literal",), tuple(ast.literal_eval(choices) if isinstance(choices, ast.Tuple) else [choices.value])  # type: ignore[attr-defined]
        case ast.Subscript(ast.Name("tuple" | "Mapping" as name)) | ast.Name(name):
            if keys_of(_classes(module).place(module, name)):
                return ("Mapping",), ()
            return ((name,), ()) if name in _KINDS else ((), ())
    return (), ()


def _wrong(values: Mapping[str, Any], place: str, prefix: str) -> Iterator[tuple[str, Any, str]]:
    """Values of another type: the dotted key, the value and what is expected."""
    known = keys_of(place)
    for name, value in values.items():
        key = known.get(name, Key(required=False))
        if key.section and isinstance(value, Mapping):
            yield from _wrong(value, key.section, f"{prefix}{name}.")
        elif key.kinds and not any(kind in _KINDS and _KINDS[kind][0](value) for kind in key.kinds):
            if "Literal" not in key.kinds:
                yield f"{prefix}{name}", value, next(_KINDS[kind][1] for kind in key.kinds if kind != "None")
            elif value not in key.choices:
                yield f"{prefix}{name}", value, f"one of {', '.join(map(str, key.choices))}"


@dataclass(frozen=True)
class _Source:
    """The dataclasses of a module, and where it imports names from."""

    classes: Mapping[str, ast.ClassDef]
    imported: Mapping[str, str]

    def place(self, module: str, name: str) -> str:
        return f"{module}:{name}" if name in self.classes else f"{self.imported.get(name, '')}:{name}"


@cache
def _classes(module: str) -> _Source:
    if not module.startswith("swe_trainers."):
        return _Source({}, {})
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    }
    imported = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return _Source(classes, imported)


def _unknown(values: Mapping[str, Any], place: str, prefix: str) -> Iterator[tuple[str, str, list[str]]]:
    known = keys_of(place)
    for key, value in values.items():
        if key not in known:
            yield f"{prefix}{key}", str(key), sorted(known)
        elif known[key].section and isinstance(value, Mapping):
            yield from _unknown(value, known[key].section, f"{prefix}{key}.")


def _missing(values: Mapping[str, Any], place: str, prefix: str) -> Iterator[str]:
    for name, key in keys_of(place).items():
        if name not in values:
            if key.required:
                yield f"{prefix}{name}"
        elif key.section and isinstance(values[name], Mapping):
            yield from _missing(values[name], key.section, f"{prefix}{name}.")
