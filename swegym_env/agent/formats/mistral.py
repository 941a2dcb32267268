"""The format of Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}]`, later also `[TOOL_CALLS]NAME[ARGS]{…}`."""

from __future__ import annotations

import re

from swegym_env.agent.actions import Action
from swegym_env.agent.formats.calls import call_format, call_from_json, dump_call, invalid_json, one_call
from swegym_env.agent.formats.scanning import Openings, decode_json, find_opening, skip_blank

__all__ = ["MISTRAL"]

_EXPECTED = '[TOOL_CALLS] [{"name": NAME, "arguments": {…}}]'
_NAMED = re.compile(r"([\w.-]{1,200})(?:\[CALL_ID\][\w-]{0,200})?\[ARGS\]")


def _parse(text: str) -> Action:
    calls: list[Action] = []
    openings = Openings(text, "[TOOL_CALLS]")
    while (start := openings.next()) >= 0:
        start = skip_blank(text, start)
        named = _NAMED.match(text, start)
        try:
            value, openings.at = decode_json(text, named.end() if named else start)
        except ValueError as error:
            return invalid_json(error, _EXPECTED)
        if named:
            value = {"name": named[1], "arguments": value}
        calls += [call_from_json(each, _EXPECTED) for each in (value if isinstance(value, list) else [value])]
    return one_call(calls, _EXPECTED)


MISTRAL = call_format(
    "mistral",
    _parse,
    lambda name, arguments: f"[TOOL_CALLS] [{dump_call(name, arguments)}]",
    f"Call exactly one function in each answer, written as {_EXPECTED}.",
    find=lambda text: find_opening(text, "[TOOL_CALLS]"),
    in_template=lambda template: "[TOOL_CALLS]" in template,
)
