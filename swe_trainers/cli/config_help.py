"""`swe-train --help SECTION`: every setting with its type, its default and what its docstring says of it."""

from __future__ import annotations

import dataclasses
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from swe_trainers.algorithms import ALGORITHMS, algorithm_classes
from swe_trainers.config import nearest
from swe_trainers.errors import ConfigurationError
from swe_trainers.field_docs import field_docs, purpose, say_type
from swe_trainers.run_config import RunConfig

__all__ = ["help_text", "sections"]

_WIDTH, _INDENT = 110, " " * 6
_WHOLE: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}


def sections() -> dict[str, type[Any]]:
    """The dataclass behind each name that `--help` takes: `run`, the sections and theirs, `list[]`, the algorithms."""
    found: dict[str, type[Any]] = {"run": RunConfig}
    found |= {name: kind for name, kind in _nested(RunConfig) if name != "trainer"}
    return {**found, **algorithm_classes()}


def help_text(topic: str) -> str:
    """The help for a section, an algorithm, one setting, or `all`.

    Args:
        topic: a name from `sections`, `trainer`, `section.setting`, or `all`.
    Raises:
        ConfigurationError: there is none of that name; the nearest is named.
    """
    known = sections()
    if topic == "all":
        return "\n".join(_section(name, kind) for name, kind in known.items())
    if topic == "trainer":
        names = "\n".join(f"  {name:<20} {purpose(kind)}" for name, kind in algorithm_classes().items())
        return (
            f"trainer: its settings depend on trainer.algorithm. Ask for one of them: swe-train --help ppo\n{names}\n"
        )
    if topic == "trainer.algorithm":
        return _algorithm_text("required") + "\n"
    for name in (topic, f"{topic}[]"):
        if name in known:
            return _section(name, known[name])
    found = [text for name, kind in known.items() for key, text in _settings(name, kind) if key == topic]
    found += [
        f"{algorithm}:\n{text}"
        for algorithm, kind in algorithm_classes().items()
        for key, text in _settings("trainer", kind)
        if key == topic
    ]
    if not found:
        topics = {*known, "trainer"}
        there_are = f". There are: {', '.join(sorted(topics))}"
        for name, kind in known.items():
            topics |= {key for key, _ in _settings("trainer" if name in ALGORITHMS else name, kind)}
        raise ConfigurationError(f"--help {topic}: no such section or setting{nearest(topic, topics, there_are)}")
    return "\n".join(found) + "\n"


def _section(name: str, kind: type[Any]) -> str:
    where = "trainer" if name in ALGORITHMS else name
    texts = [text for _, text in _settings(where, kind)]
    if name in ALGORITHMS:
        texts.insert(0, _algorithm_text(name))
    head = f"{where} (algorithm: {name})" if name in ALGORITHMS else name
    return "\n".join([f"{head}: {purpose(kind)}", *texts]) + "\n"


def _algorithm_text(default: str) -> str:
    """The setting that chooses the algorithm; it is not a field of one."""
    names = " | ".join([*ALGORITHMS, "module:Class"])
    text = textwrap.fill(f"one of {names}", _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, **_WHOLE)
    return f"  --trainer.algorithm  (text; {default})\n{text}"


def _settings(where: str, kind: type[Any]) -> Iterator[tuple[str, str]]:
    """(dotted name, text) of each setting of a section."""
    docs, hints = field_docs(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = field.name if where == "run" else f"{where}.{field.name}"
        text = textwrap.fill(docs[field.name], _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, **_WHOLE)
        more = f"\n      its settings: swe-train --help {name}" if _dataclass_in(hints[field.name]) else ""
        option = name if "[]" in name else f"--{name}"
        yield name, f"  {option}  ({say_type(hints[field.name])}; {_default(field)})\n{text}{more}"


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return f"default {str(value).lower().replace('none', 'null')}"
    if dataclasses.is_dataclass(value):
        return "optional"
    if isinstance(value, (tuple, Mapping)):
        return f"default {'[]' if isinstance(value, tuple) else '{}'}" if not value else f"default {value}"
    return f"default {value!r}" if value == "" else f"default {value}"


def _nested(kind: type[Any], where: str = "") -> Iterator[tuple[str, type[Any]]]:
    """The sections in a section, each before its own."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = _dataclass_in(hints[field.name])
        if inner is not None:
            name = f"{where}{field.name}{'[]' if typing.get_origin(hints[field.name]) is tuple else ''}"
            yield name, inner
            yield from _nested(inner, f"{name}.")


def _dataclass_in(hint: Any) -> type[Any] | None:
    """The dataclass that a type is, may be, or is a list of."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    if typing.get_origin(hint) in (types.UnionType, typing.Union, tuple):
        return next((found for argument in typing.get_args(hint) if (found := _dataclass_in(argument))), None)
    return None
