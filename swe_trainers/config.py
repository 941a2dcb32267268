"""Configurations: YAML and `--a.b value` onto frozen dataclasses, with errors that name the nearest match.

OmegaConf reads and merges, so that `${oc.env:NAME,default}` and `${section.key}` work in any value; `build` checks
every key and type against the dataclasses, and their own `__post_init__` the ranges.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from swe_trainers.errors import ConfigurationError
from swe_trainers.field_docs import field_docs
from swe_trainers.writing import write_whole

__all__ = ["as_yaml", "build", "named", "parse_overrides", "read_config", "write_config"]

T = TypeVar("T")


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a YAML file and put the command line's overrides on top.

    Args:
        path: the file.
        overrides: `--a.b value` or `--a.b=value`, as in `sys.argv`.
    Returns:
        Plain dictionaries, lists and values, interpolations resolved.
    Raises:
        ConfigurationError: the file cannot be read, or an override is malformed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {_reason(error)}") from error
    try:
        content = OmegaConf.create(text)
        if not isinstance(content, DictConfig):
            raise ConfigurationError(f"{path}: expected sections with keys, got a {type(content).__name__}")
        content.merge_with_dotlist([f"{key}={value}" for key, value in parse_overrides(overrides).items()])
        resolved = OmegaConf.to_container(content, resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigurationError(f"{path}: {_reason(error)}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def parse_overrides(arguments: Sequence[str]) -> dict[str, str]:
    """`--a.b value`, `--a.b=value` and a bare `--a.b` (true) to a mapping.

    Raises:
        ConfigurationError: a value stands without a name.
    """
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        if not name.startswith("--") or len(name) == len("--"):
            raise ConfigurationError(f"override {name!r}: expected --section.key value")
        key, equals, value = name[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found[key.replace("-", "_")] = value
    return found


def build(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Make a dataclass of plain values, checking every key and every type.

    Args:
        kind: a dataclass of plain values, paths, optional values, literals, `tuple[X, ...]`, mappings, dataclasses.
        values: its fields; those left out take their defaults.
        where: the section's name, for messages.
    Raises:
        ConfigurationError: a key is unknown (the nearest is named) or missing, a value of another type or out of range.
    """
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for key in values:
        if key not in fields:
            raise ConfigurationError(f"{_dotted(where, key)}: no such setting{nearest(key, fields)}")
    built: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            built[name] = _convert(hints[name], values[name], _dotted(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigurationError(f"{_dotted(where, name)}: missing, and it has no default")
    try:
        return kind(**built)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}.{error}" if where else str(error)) from None


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """`. Did you mean X?`, or what there is where nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f". Did you mean {close[0]!r}?" if close else f". There are: {', '.join(names)}"


def named(name: str, what: str) -> Any:
    """Import `module:attribute`.

    Args:
        name: as a configuration writes it.
        what: it names, for messages.
    Raises:
        ConfigurationError: there is no such module or attribute.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigurationError(f"{what} {name!r}: expected module:{'Class' if what == 'wrapper' else 'function'}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{what} {name!r}: {error}") from error


def as_yaml(config: Any) -> str:
    """A dataclass as the YAML that `read_config` would make it of; each field's docstring stands above it."""
    return "".join(_yaml_lines(config))


def write_config(config: Any, path: str | Path) -> None:
    """Write a resolved configuration beside its run, whole or not at all.

    Raises:
        ConfigurationError: the place cannot be written.
    """
    try:
        write_whole(path, as_yaml(config))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {_reason(error)}. Try: another output_dir") from error


def _yaml_lines(config: Any) -> Iterator[str]:
    docs = field_docs(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        yield textwrap.indent(
            "\n".join(textwrap.wrap(docs.get(field.name, ""), 110, break_on_hyphens=False)), "# ", lambda _: True
        )
        yield "\n" if field.name in docs else ""
        if dataclasses.is_dataclass(value):
            yield f"{field.name}:\n"
            yield from textwrap.indent("".join(_yaml_lines(value)), "  ").splitlines(keepends=True)
        else:
            yield OmegaConf.to_yaml(OmegaConf.create({field.name: _plain(value)}))


def _convert(hint: Any, value: Any, name: str) -> Any:
    """One value to its type; nothing is guessed but a whole number where a real one is meant, and text for a path."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _convert_any(arguments, value, name)
    if origin is typing.Literal and value not in arguments:
        raise ConfigurationError(f"{name}: got {value!r}, expected one of {', '.join(map(str, arguments))}")
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build(typing.cast(type[Any], hint), value, name)
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_convert(arguments[0], item, f"{name}[{i}]") for i, item in enumerate(value))
    if origin is not None and isinstance(value, Mapping) and issubclass(origin, Mapping):
        return {str(key): _convert(arguments[1], item, _dotted(name, str(key))) for key, item in value.items()}
    if hint is Path and isinstance(value, str):
        return Path(os.path.expandvars(value)).expanduser()
    if hint is float and type(value) is int:
        return float(value)
    if hint is Any or origin is typing.Literal:
        return value
    # A bool is an int to Python, and not to us.
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise ConfigurationError(f"{name}: got {value!r}, expected {_say(hint)}")


def _convert_any(kinds: Sequence[Any], value: Any, name: str) -> Any:
    """One value to the first of several types that it fits."""
    *others, last = [kind for kind in kinds if kind is not type(None)]
    if value is None and type(None) in kinds:
        return None
    for kind in others:
        try:
            return _convert(kind, value, name)
        except ConfigurationError:
            continue  # another may fit; what the last one says is shown
    return _convert(last, value, name)


def _say(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    if hint in words:
        return words[hint]
    origin = typing.get_origin(hint)
    if origin is tuple:
        return "a list"
    return "a section with keys" if dataclasses.is_dataclass(hint) or origin is not None else str(hint)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]
