"""The format of Qwen3-Coder and OpenHands: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

Values are text. Only the tool knows their types; `agent.tools` converts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from swegym_env.agent.actions import Action, Malformed, as_call
from swegym_env.agent.formats.calls import arguments_as_text, call_format, one_call
from swegym_env.agent.formats.scanning import Openings, find_opening, skip_blank

__all__ = ["XML"]

_EXPECTED = "<function=NAME><parameter=KEY>VALUE</parameter></function>"
_NAME = re.compile(r"\s{0,20}([\w.-]{1,200})\s{0,20}>")


def _parse(text: str) -> Action:
    calls: list[Action] = []
    openings = Openings(text, "<function=", "</function>")
    while (start := openings.next()) >= 0:
        named = _NAME.match(text, start)
        if named is None:
            return Malformed(f"The function call has no name. Write it as {_EXPECTED}. Nothing was run.")
        arguments: dict[str, str] = {}
        at = skip_blank(text, named.end())
        while text.startswith("<parameter=", at):
            key = _NAME.match(text, at + len("<parameter="))
            end = text.find("</parameter>", at)
            if key is None or end < 0:
                return Malformed(
                    f"A parameter of {named[1]} has no name, or no </parameter>. Write it as {_EXPECTED}. "
                    "Nothing was run."
                )
            # The format puts one line break before the value and one after it.
            arguments[key[1]] = text[key.end() : end].removeprefix("\n").removesuffix("\n")
            at = skip_blank(text, end + len("</parameter>"))
        if at < len(text) and not text.startswith("</", at):
            return Malformed(f"{named[1]}: expected <parameter=KEY> or </function>, found {text[at : at + 40]!r}.")
        openings.at = at
        calls.append(as_call(named[1], arguments))
    return one_call(calls, _EXPECTED)


def _write_call(name: str, arguments: Mapping[str, Any]) -> str:
    texts = arguments_as_text(arguments, "</parameter>").items()
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in texts)
    return f"<function={name}>\n{given}</function>"


def _find(text: str) -> int:
    found = [at for at in (find_opening(text, "<function="), find_opening(text, "<tool_call>")) if at >= 0]
    at = min(found, default=-1)
    if at >= 0 and text.startswith("<tool_call>", at):
        return at if text.startswith("<function=", skip_blank(text, at + len("<tool_call>"))) else -1
    return at


XML = call_format(
    "xml",
    _parse,
    _write_call,
    f"Call exactly one function in each answer, written as {_EXPECTED}, with one parameter for each argument.",
    find=_find,
    in_template=lambda template: "<function=" in template,
)
