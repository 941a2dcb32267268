"""The formats of DeepSeek.

V3 and R1 write the arguments as a fenced block of JSON after the name, V3.1 as JSON alone, V3.2 as `<｜DSML｜…>` tags.
"""

from __future__ import annotations

import re
from typing import Any

from swegym_env.agent.actions import Action, Malformed, as_call
from swegym_env.agent.formats.calls import call_format, call_from_json, dump_json, invalid_json, one_call
from swegym_env.agent.formats.scanning import Openings, decode_json, find_opening, skip_blank

__all__ = ["DEEPSEEK"]

_CALL_BEGIN, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_INVOKE, _PARAMETER = "<｜DSML｜invoke", "<｜DSML｜parameter"
_INVOKED = re.compile(r'\s{0,20}name="([^"]{1,200})"\s{0,20}>')
_PARAMETER_NAME = re.compile(r'\s{0,20}name="([^"]{1,200})"(?:\s{1,20}string="(true|false)")?\s{0,20}>')
_EXPECTED = f"{_CALL_BEGIN}NAME{_SEPARATOR}{{…}}{_CALL_END}"


def _parse(text: str) -> Action:
    if _INVOKE in text:
        return _parse_invocations(text)
    calls: list[Action] = []
    openings = Openings(text, _CALL_BEGIN, _CALL_END)
    while (start := openings.next()) >= 0:
        separator = text.find(_SEPARATOR, start, start + 1000)
        if separator < 0:
            return Malformed(f"The function call has no {_SEPARATOR}. Write it as {_EXPECTED}. Nothing was run.")
        name, body = text[start:separator].strip(), separator + len(_SEPARATOR)
        brace = text.find("{", body)
        if name == "function":
            name = text[body : text.find("\n", body) if "\n" in text[body : body + 300] else brace].strip()
        try:
            value, openings.at = decode_json(text, brace if brace >= 0 else body)
        except ValueError as error:
            return invalid_json(error, _EXPECTED)
        calls.append(call_from_json({"name": name, "arguments": value}, _EXPECTED))
    return one_call(calls, _EXPECTED)


def _parse_invocations(text: str) -> Action:
    calls: list[Action] = []
    openings = Openings(text, _INVOKE, "</｜DSML｜invoke>")
    while (start := openings.next()) >= 0:
        named = _INVOKED.match(text, start)
        if named is None:
            return Malformed('The invocation has no name="…". Nothing was run.')
        arguments: dict[str, Any] = {}
        at = named.end()
        while text.startswith(_PARAMETER, at := skip_blank(text, at)):
            given = _PARAMETER_NAME.match(text, at + len(_PARAMETER))
            end = text.find("</｜DSML｜parameter>", at)
            if given is None or end < 0:
                return Malformed('A parameter of the invocation has no name="…", or does not end. Nothing was run.')
            value = text[given.end() : end]
            try:
                arguments[given[1]] = decode_json(value, skip_blank(value, 0))[0] if given[2] == "false" else value
            except ValueError as error:
                return invalid_json(f"parameter {given[1]}: {error}", _EXPECTED)
            at = end + len("</｜DSML｜parameter>")
        openings.at = at
        calls.append(as_call(named[1], arguments))
    return one_call(calls, _EXPECTED)


DEEPSEEK = call_format(
    "deepseek",
    _parse,
    lambda name, arguments: f"{_CALL_BEGIN}{name}{_SEPARATOR}{dump_json(dict(arguments))}{_CALL_END}",
    f"Call exactly one function in each answer, written as {_EXPECTED}.",
    find=lambda text: find_opening(text, _CALL_BEGIN, _INVOKE),
    in_template=lambda template: "<｜tool▁call" in template or "<｜DSML｜" in template,
)
