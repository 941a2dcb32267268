"""Documentation of a dataclass's fields, from its docstring, for `--help`, `--print-config` and `config.yaml`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

__all__ = ["field_docs", "purpose", "say_type"]

_ENTRY = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.+)")
"""`name: text` or `name, name: text`, at the first level of an `Attributes:` section."""


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Each field's text from the `Attributes:` sections of a dataclass and of those it derives from.

    Args:
        kind: a dataclass with Google's docstrings; a field that several of its classes describe has the nearest's text.
    Returns:
        One line a field, without line breaks, in the order of the fields; a field that nothing describes is left out.
        A field whose metadata has a `registry` is followed by its names.
    """
    found: dict[str, str] = {}
    for ancestor in reversed(kind.__mro__):
        if dataclasses.is_dataclass(ancestor):
            found |= _attributes(inspect.cleandoc(ancestor.__dict__.get("__doc__") or ""))
    return {
        field.name: f"{found[field.name]}{_names(field.metadata.get('registry', ()))}"
        for field in dataclasses.fields(kind)
        if field.name in found
    }


def _names(registry: Collection[str]) -> str:
    return f" Names: {', '.join(registry)}, or module:Class." if registry else ""


def purpose(kind: type[Any]) -> str:
    """A dataclass's own first line."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def say_type(hint: Any) -> str:
    """What may be given for a type, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    words = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path", Any: "anything"}
    if hint in words:
        return words[hint]
    if hint is type(None):
        return "null"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(say_type(argument) for argument in arguments)
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return f"list of {say_type(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "keys and values"
    return "section" if dataclasses.is_dataclass(hint) else str(hint)


def _attributes(docstring: str) -> dict[str, str]:
    _, _, rest = docstring.partition("Attributes:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in rest.splitlines():
        indent = len(line) - len(line.lstrip())
        entry = _ENTRY.match(line.strip()) if indent == 4 else None
        if entry is not None:
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif indent > 4 and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            break
    return found
