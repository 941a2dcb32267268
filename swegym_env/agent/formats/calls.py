"""What the formats of function calls share: reading and writing calls, as JSON or as tags."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from swegym_env.agent.actions import Action, ActionFormat, Malformed, as_call
from swegym_env.agent.formats.scanning import Openings, decode_json, skip_blank

__all__ = [
    "arguments_as_text",
    "call_format",
    "call_from_json",
    "dump_call",
    "dump_json",
    "invalid_json",
    "json_calls_after",
    "one_call",
    "readable",
]

_SURROGATE = re.compile("[\ud800-\udfff]")  # a pair is one character here


def call_format(
    name: str,
    parse: Callable[[str], Action],
    write_call: Callable[[str, Mapping[str, Any]], str],
    instructions: str,
    *,
    find: Callable[[str], int] | None = None,
    in_template: Callable[[str], bool] | None = None,
) -> ActionFormat:
    """A format in which a command is a call of `bash`, and the submission a call of `submit`."""

    def write(command: str) -> str:
        return write_call("submit", {}) if command == "submit" else write_call("bash", {"command": command})

    return ActionFormat(name, parse, write, instructions, write_call, find, in_template)


def one_call(calls: list[Action], expected: str) -> Action:
    """The only one of `calls`, or a message that there is none or more than one."""
    if len(calls) == 1:
        return calls[0]
    found = "none" if not calls else str(len(calls))
    return Malformed(
        f"Expected exactly one function call in the answer, as {expected}, and found {found}. Nothing ran."
    )


def invalid_json(fault: object, expected: str) -> Malformed:
    """The message for a call that is not JSON."""
    return Malformed(f"The function call is not valid JSON: {fault}. Write it as {expected}. Nothing was run.")


def call_from_json(value: object, expected: str) -> Action:
    """The call that a decoded JSON value describes.

    Arguments written as text within JSON are read too, and `parameters` is accepted for `arguments`: models confuse
    them, and the meaning is clear.
    """
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Malformed(f'The function call is no object with a "name". Write it as {expected}. Nothing was run.')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments, _ = decode_json(arguments, skip_blank(arguments, 0)) if arguments.strip() else ({}, 0)
        except ValueError as error:
            return invalid_json(f"its arguments: {error}", expected)
    if not isinstance(arguments or {}, dict):
        return Malformed(f'The "arguments" of {value["name"][:100]} are no object. Nothing was run.')
    return as_call(value["name"].strip(), arguments or {})


def json_calls_after(text: str, opening: str, closing: str, expected: str) -> Action:
    """The one call in JSON after `opening`; the content of the JSON is not searched for tags."""
    calls: list[Action] = []
    openings = Openings(text, opening, closing)
    while (start := openings.next()) >= 0:
        try:
            value, openings.at = decode_json(text, skip_blank(text, start))
        except ValueError as error:
            return invalid_json(error, expected)
        calls += [call_from_json(each, expected) for each in (value if isinstance(value, list) else [value])]
    return one_call(calls, expected)


def readable(text: str) -> str:
    """The text with replacement characters for bytes that are not UTF-8 and for halves of surrogate pairs."""
    return _SURROGATE.sub("\ufffd", text)


def dump_json(value: object) -> str:
    """`value` as JSON, as models write it: characters beyond ASCII are not escaped."""
    return json.dumps(value, ensure_ascii=False)


def dump_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as `{"name": …, "arguments": {…}}`."""
    return dump_json({"name": name, "arguments": dict(arguments)})


def arguments_as_text(arguments: Mapping[str, Any], closing: str) -> dict[str, str]:
    """The arguments for a format in which values are text up to the tag `closing`; other values are written as JSON.

    Raises:
        ValueError: a value contains the tag, or a name cannot be written.
    """
    texts = {}
    for key, value in arguments.items():
        texts[key] = value if isinstance(value, str) else dump_json(value)
        if closing in texts[key] or not re.fullmatch(r"[\w.-]+", key):
            raise ValueError(f"the argument {key!r} cannot be written: its name or its value holds a tag")
    return texts
