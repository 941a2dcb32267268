"""Configurations: YAML and `--a.b value` onto frozen dataclasses, with errors that name the nearest match.

OmegaConf reads and merges, so that `${oc.env:NAME,default}` and `${section.key}` work in any value; pydantic checks
every key and type against the dataclasses, and their own `__post_init__` checks the ranges.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import json
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from yaml import YAMLError

from swe_trainers.errors import ConfigurationError
from swe_trainers.field_docs import field_docs
from swe_trainers.files import write_whole
from swe_trainers.registry import search_path_hint

__all__ = [
    "Configuration",
    "UserPath",
    "as_yaml",
    "build",
    "named",
    "parse_overrides",
    "plain",
    "read_config",
    "to_yaml",
    "write_config",
]

T = TypeVar("T")
C = TypeVar("C", bound="Configuration")

UserPath = Annotated[Path, AfterValidator(lambda path: Path(os.path.expandvars(path)).expanduser())]
"""A path in which `~` and environment variables are expanded."""


class Configuration:
    """Base of the configuration dataclasses: an unknown name in Python is an error that suggests the right one.

    Raises:
        ConfigurationError: the constructor has no argument of this name.
    """

    def __new__(cls: type[C], *_positional: Any, **settings: Any) -> C:
        """Check the names of the settings first: Python's own error does not suggest the right one."""
        known = _settings_of(cls.__init__)
        unknown = next((name for name in settings if known and name not in known), None)
        if unknown is not None:
            raise ConfigurationError(cls._unknown(unknown, known))
        return super().__new__(cls)

    @classmethod
    def _unknown(cls, name: str, known: Sequence[str]) -> str:
        """The message of the error."""
        return f"{name}: {cls.__name__} has no such setting{nearest(name, known)}"


@cache
def _settings_of(init: Callable[..., None]) -> tuple[str, ...]:
    """The names of a constructor's arguments; empty if it takes any."""
    known = inspect.signature(init).parameters
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        return ()
    return tuple(name for name in known if name != "self")


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
    except (OmegaConfBaseException, YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ConfigurationError(f"{path}: {where}{getattr(error, 'problem', None) or _reason(error)}") from error
    if not isinstance(content, DictConfig):
        raise ConfigurationError(f"{path}: expected sections with keys, got a list")
    if not content:
        raise ConfigurationError(f"{path}: the file is empty, expected sections with keys")
    try:
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
    """Make a dataclass of plain values, checking every key and every type with pydantic.

    Types are strict: the only conversions are a whole number for a real one, a list for a tuple and text for a path.

    Args:
        kind: a dataclass of plain values, paths, optional values, literals, `tuple[X, ...]`, mappings, dataclasses.
        values: its fields; those left out take their defaults.
        where: the section's name, for messages.
    Raises:
        ConfigurationError: a key is unknown (the nearest is named) or missing, a value of another type or out of range.
    """
    _check_keys(values, where)
    try:
        # JSON has YAML's types, and pydantic's strict mode takes its lists for tuples and its text for paths.
        (built,) = _adapter(typing.cast(Any, kind)).validate_json(json.dumps([values], default=str))
        made: T = built
        return made
    except ValidationError as invalid:
        # A union reports one error for each of its types; unknown keys are worth more than what is missing for them.
        error = min(invalid.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
    message = _message(kind, error, [str(part) if isinstance(part, int) else part for part in error["loc"][1:]])
    raise ConfigurationError(f"{where}.{message}" if where else message)


def _check_keys(values: Any, where: str) -> None:
    """Raise ConfigurationError for a key that is no text: JSON would make one of it, and 0 is another key than "0"."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            if not isinstance(key, str):
                place = f"{where}: the" if where else "the"
                raise ConfigurationError(f"{place} key {key!r} is {type(key).__name__}, expected text. Try: '{key}'")
            _check_keys(value, f"{where}.{key}" if where else key)
    elif isinstance(values, (list, tuple)):
        for number, value in enumerate(values):
            _check_keys(value, f"{where}[{number}]")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # In a tuple, because a dataclass at the top takes no configuration; those inside inherit it.
    return TypeAdapter(tuple[kind], config=ConfigDict(extra="forbid", strict=True))


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": "a list",
    "mapping_type": "a section with keys",
    "dict_type": "a section with keys",
    "dataclass_type": "a section with keys",
}


def _message(kind: type[Any], error: Mapping[str, Any], location: Sequence[str]) -> str:
    """One of pydantic's errors in one line that begins with the dotted key."""
    name = re.sub(r"\.(\d+)", r"[\1]", ".".join(location))
    got, context = error["input"], error.get("ctx", {})
    if error["type"] == "value_error":  # raised by a section's own check, which may name its section already
        reason, (parent, dot, last) = str(context["error"]), name.rpartition(".")
        if last and re.match(rf"{re.escape(last)}[.:]", reason):
            return f"{parent}{dot}{reason}"
        return f"{name}.{reason}" if name else reason
    if error["type"] == "unexpected_keyword_argument":
        section: Any = kind
        for part in location[:-1]:
            section = _section_in(section if part.isdigit() else typing.get_type_hints(section)[part])
        return f"{name}: no such setting{nearest(location[-1], [f.name for f in dataclasses.fields(section)])}"
    if error["type"] == "missing":
        return f"{name}: missing, and it has no default"
    if error["type"] == "literal_error":
        choices = re.sub(r"'([^']*)'", r"\1", str(context["expected"])).replace(" or ", ", ")
        return f"{name}: got {got!r}, expected one of {choices}"
    return f"{name}: got {got!r}, expected {_EXPECTED.get(error['type'], error['msg'])}"


def _section_in(hint: Any) -> Any:
    """The dataclass that a type is, may be, or is a list of."""
    if dataclasses.is_dataclass(hint):
        return hint
    return next((found for each in typing.get_args(hint) if (found := _section_in(each)) is not None), None)


def nearest(name: str, known: typing.Iterable[str], otherwise: str | None = None) -> str:
    """`. Did you mean X?`; where nothing is near, `otherwise`, by default a list of what there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f". Did you mean {close[0]!r}?"
    return f". There are: {', '.join(names)}" if otherwise is None else otherwise


def similar(name: str, known: typing.Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where nothing is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


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
        raise ConfigurationError(f"{what} {name!r}: {error}{search_path_hint(module)}") from error


def as_yaml(config: Any, names: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """A dataclass as the YAML that `read_config` would make it of; each field's docstring is a comment above it.

    Args:
        config: a dataclass.
        names: keys of sections that choose the section's class, and are no fields of it.
    """
    return "".join(_yaml_lines(config, names or {}))


def write_config(text: str, path: str | Path) -> None:
    """Write a resolved configuration, as YAML, beside its run, atomically.

    Raises:
        ConfigurationError: the place cannot be written.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {_reason(error)}. Try: another output_dir") from error


def _yaml_lines(config: Any, names: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    docs = field_docs(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        yield textwrap.indent(
            "\n".join(textwrap.wrap(docs.get(field.name, ""), 110, break_on_hyphens=False)), "# ", lambda _: True
        )
        yield "\n" if field.name in docs else ""
        if dataclasses.is_dataclass(value):
            yield f"{field.name}:\n"
            for key, name in names.get(field.name, {}).items():
                yield f"  # Chooses the settings of this section.\n  {key}: {name}\n"
            yield from textwrap.indent("".join(_yaml_lines(value, {})), "  ").splitlines(keepends=True)
        else:
            yield to_yaml({field.name: plain(value)})


def to_yaml(values: Any) -> str:
    """Plain values as the YAML that `read_config` would make of them: a `${` in a text is no interpolation."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(values)))


def _escaped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    # OmegaConf reads backslashes before `${` in pairs, and one more makes the `${` plain text.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """A configuration as dictionaries, lists and plain values, as YAML and JSON have them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]
