"""The format of GLM 4.5 and later: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`.

Values are text. Only the tool knows their types; `agent.tools` converts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swegym_env.agent.actions import Action, Malformed, as_call
from swegym_env.agent.formats.calls import arguments_as_text, call_format, one_call
from swegym_env.agent.formats.scanning import Openings, find_opening, skip_blank

__all__ = ["GLM"]

_EXPECTED = "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>"


def _parse(text: str) -> Action:
    calls: list[Action] = []
    openings = Openings(text, "<tool_call>", "</tool_call>")
    while (start := openings.next()) >= 0:
        ends = [at for tag in ("\n", "<arg_key>", "</tool_call>") if (at := text.find(tag, start, start + 300)) >= 0]
        # The name may be on the line after the tag.
        head = skip_blank(text, start)
        ends = [at for at in ends if at > head] or [min(len(text), start + 300)]
        name = text[head : min(ends)].strip()
        arguments: dict[str, str] = {}
        at = skip_blank(text, min(ends))
        while text.startswith("<arg_key>", at):
            key_end = text.find("</arg_key>", at)
            opened = skip_blank(text, key_end + len("</arg_key>"))
            value_end = text.find("</arg_value>", opened)
            if key_end < 0 or value_end < 0 or not text.startswith("<arg_value>", opened):
                return Malformed(f"A key of {name[:100]} has no value. Write it as {_EXPECTED}. Nothing was run.")
            key = text[at + len("<arg_key>") : key_end].strip()
            arguments[key] = text[opened + len("<arg_value>") : value_end]
            at = skip_blank(text, value_end + len("</arg_value>"))
        openings.at = at
        if not re.fullmatch(r"[\w.-]+", name):
            return Malformed(
                f"The function call has no name that could be one. Write it as {_EXPECTED}. Nothing was run."
            )
        calls.append(as_call(name, arguments))
    return one_call(calls, _EXPECTED)


def _write_call(name: str, arguments: Mapping[str, Any]) -> str:
    texts = arguments_as_text(arguments, "</arg_value>").items()
    given = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in texts)
    return f"<tool_call>{name}\n{given}</tool_call>"


def _find(text: str) -> int:
    at = find_opening(text, "<tool_call>")
    inside = skip_blank(text, at + len("<tool_call>"))
    return at if at >= 0 and not text.startswith(("{", "[", "<function="), inside) else -1


GLM = call_format(
    "glm",
    _parse,
    _write_call,
    f"Call exactly one function in each answer, written as {_EXPECTED}",
    find=_find,
    in_template=lambda template: "<arg_key>" in template,
)
