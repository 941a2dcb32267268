"""From an action to a model's answer: text with calls in the format of a model, or a message of the chat API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from swegym_env.agent.actions import ActionFormat, Call, Command, Malformed, Submit
from swegym_env.agent.formats import ACTION_FORMATS, action_format
from swegym_env.agent.formats.scanning import THOUGHT_ENDS, after_reasoning
from swegym_env.programs.protocols.model import Answer, ModelRequest, read_json

__all__ = ["read_answer"]


def read_answer(action: str, request: ModelRequest, form: ActionFormat, number: int) -> Answer:
    """The answer that an action stands for.

    A JSON object with the role "assistant" is taken as it is: `content`, `tool_calls`, `reasoning_content`, and of what
    only a model's server knows `logprobs` and `usage`. Any other text is an answer in words; where the request offers
    tools and the text calls one of them in the format `form`, it becomes a call, and the words before it are the
    content. A text that cannot be read as a call of these tools is passed on as it is: the agent says what is wrong.

    Args:
        number: of the turn, for the ids of calls.
    """
    message = _as_message(action)
    if message is not None:
        calls = _called(message.get("tool_calls"), number)
        content, reasoning = message.get("content"), message.get("reasoning_content")
        usage = message.get("usage")
        answer = Answer(
            content if isinstance(content, str) else "",
            calls,
            reasoning if isinstance(reasoning, str) else "",
            logprobs=message.get("logprobs"),
            usage=usage if isinstance(usage, dict) else None,
        )
    else:
        answer = _read_text(action, request, form, number)
    return _stopped(answer, request.stop)


def _as_message(action: str) -> Mapping[str, Any] | None:
    text = after_reasoning(action).strip()
    if not text.startswith("{"):
        return None
    try:
        value = read_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("role") == "assistant" else None


def _called(calls: Any, number: int) -> tuple[Mapping[str, Any], ...]:
    """The calls of a message, complete; what is no call is left out."""
    found = []
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", {})
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            found.append(_call(function["name"], text, str(call.get("id") or f"call_{number}_{index}")))
    return tuple(found)


def _call(name: str, arguments: str, identity: str) -> Mapping[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _read_text(action: str, request: ModelRequest, form: ActionFormat, number: int) -> Answer:
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.tools}
    at, form = _first(action, form) if tools else (-1, form)
    read = form.parse(action) if tools else Malformed("")
    named: tuple[str, Mapping[str, Any]] | None = None
    if isinstance(read, Call):
        named = read.name, read.arguments
    elif isinstance(read, Command):
        named = "bash", {"command": read.text}
    elif isinstance(read, Submit):
        named = "submit", {}
    if named is None or named[0] not in tools:
        return Answer(action)
    arguments = {name: _typed(value, tools[named[0]], name) for name, value in named[1].items()}
    words = action[: max(0, at)]
    thoughts = ""
    for end in THOUGHT_ENDS:
        if end in words:
            thoughts, _, words = words.rpartition(end)
            thoughts = thoughts.strip().removeprefix(f"{end[0]}{end[2:]}")
    try:
        written = json.dumps(arguments, ensure_ascii=False)
        read_json(written)  # what cannot be read again is no call
    except (ValueError, RecursionError):
        return Answer(action)
    call = _call(named[0], written, f"call_{number}_0")
    return Answer(words.strip(), (call,), thoughts.strip())


def _first(action: str, form: ActionFormat) -> tuple[int, ActionFormat]:
    """Where the call in `action` begins, and its format: of "auto" the one whose call comes first."""
    if form.name != "auto":
        return (form.find(action) if form.find is not None else -1), form
    forms = [action_format(name) for name in ACTION_FORMATS]
    found = [(at, one.name) for one in forms if one.find is not None and (at := one.find(action)) >= 0]
    return (min(found)[0], action_format(min(found)[1])) if found else (-1, form)


def _typed(value: Any, parameters: Mapping[str, Any], name: str) -> Any:
    """A value that a format could only write as text, as the tool's schema has it."""
    properties = parameters.get("properties")
    described = properties.get(name) if isinstance(properties, dict) else None
    kind = described.get("type") if isinstance(described, dict) else None
    if not isinstance(value, str) or kind not in ("integer", "number", "boolean", "array", "object"):
        return value
    try:
        return read_json(value if kind != "boolean" else value.strip().lower())
    except ValueError:
        return value


def _stopped(answer: Answer, stop: Sequence[str]) -> Answer:
    """The answer up to the first of the texts at which the program wants it to end."""
    found = [(at, text) for text in stop if (at := answer.content.find(text)) >= 0]
    if not found:
        return answer
    at, text = min(found)
    return Answer(answer.content[:at], (), answer.reasoning, text, answer.logprobs, answer.usage)
