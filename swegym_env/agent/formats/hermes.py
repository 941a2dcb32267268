"""The format of Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from swegym_env.agent.actions import Action
from swegym_env.agent.formats.calls import call_format, dump_call, json_calls_after
from swegym_env.agent.formats.scanning import find_opening, skip_blank

__all__ = ["HERMES"]

_EXPECTED = '<tool_call>{"name": NAME, "arguments": {…}}</tool_call>'


def _parse(text: str) -> Action:
    return json_calls_after(text, "<tool_call>", "</tool_call>", _EXPECTED)


def _find(text: str) -> int:
    # The same tag opens calls of GLM and of Qwen3-Coder: there it is not followed by JSON.
    at = find_opening(text, "<tool_call>")
    return at if at >= 0 and text.startswith(("{", "["), skip_blank(text, at + len("<tool_call>"))) else -1


HERMES = call_format(
    "hermes",
    _parse,
    lambda name, arguments: f"<tool_call>\n{dump_call(name, arguments)}\n</tool_call>",
    f"Call exactly one function in each answer, written as {_EXPECTED}.",
    find=_find,
    in_template=lambda template: "<tool_call>" in template,
)
