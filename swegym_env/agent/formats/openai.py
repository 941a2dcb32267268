"""A message of OpenAI's chat API with `tool_calls`, as JSON."""

from __future__ import annotations

from swegym_env.agent.actions import Action
from swegym_env.agent.formats.calls import call_format, call_from_json, dump_json, invalid_json, one_call
from swegym_env.agent.formats.scanning import after_reasoning, decode_json, skip_blank

__all__ = ["OPENAI"]

_EXPECTED = (
    '{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": NAME, "arguments": "{…}"}}]}'
)


def _parse(text: str) -> Action:
    answer = after_reasoning(text)
    start = skip_blank(answer, 0)
    if not answer.startswith(("{", "["), start):
        return one_call([], _EXPECTED)
    try:
        message, _ = decode_json(answer, start)
    except ValueError as error:
        return invalid_json(error, _EXPECTED)
    called = message
    if isinstance(message, dict) and "name" not in message and "function" not in message:
        called = message.get("tool_calls") or message.get("function_call") or []
    calls = [call_from_json(each, _EXPECTED) for each in (called if isinstance(called, list) else [called])]
    return one_call(calls, _EXPECTED)


OPENAI = call_format(
    "openai",
    _parse,
    lambda name, arguments: dump_json(
        {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": name, "arguments": dump_json(dict(arguments))}}],
        }
    ),
    f"Call exactly one function in each answer, written as {_EXPECTED}.",
)
