"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from swegym_env.programs.protocols.model import (
    Answer,
    ModelRequest,
    UnsupportedError,
    chunks,
    events,
    list_of_objects,
    stop_texts,
    text_of,
    tool_schema,
)

__all__ = ["error", "message_of", "read", "tools_of", "write"]

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read(body: Mapping[str, Any]) -> ModelRequest:
    """See `Protocol.read`."""
    if body.get("n") not in (None, 1):
        raise UnsupportedError(f"n: one answer is given, got n={body['n']!r:.40}")
    for key in ("functions", "audio", "web_search_options"):
        if body.get(key):
            raise UnsupportedError(f"{key}: not supported; there are tools of type function")
    if body.get("modalities") not in (None, [], ["text"]):
        raise UnsupportedError("modalities: only text is supported")
    return ModelRequest(
        "chat",
        [message_of(each) for each in list_of_objects(body, "messages", required=True)],
        tools_of(body),
        body,
        bool(body.get("stream")),
        stop_texts(body.get("stop"), "stop"),
    )


def message_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its text as one string. Raises UnsupportedError."""
    role = given.get("role")
    if role not in _ROLES:
        raise UnsupportedError(f"messages: role: expected one of {', '.join(_ROLES)}, got {str(role)[:60]!r}")
    message: dict[str, Any] = {"role": role, "content": text_of(given.get("content"), f"messages: {role}")}
    thoughts = given.get("reasoning_content")
    if isinstance(thoughts, str) and thoughts:
        message["reasoning_content"] = thoughts
    for call in list_of_objects(given, "tool_calls"):
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UnsupportedError("messages: tool_calls: expected calls of functions with a name")
        arguments = function.get("arguments", "{}")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        called = {"id": str(call.get("id", "")), "type": "function"}
        message.setdefault("tool_calls", []).append(
            {**called, "function": {"name": function["name"], "arguments": text}}
        )
    for key in ("tool_call_id", "name"):
        if isinstance(given.get(key), str):
            message[key] = given[key]
    return message


def tools_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tools of a request. Raises UnsupportedError for one that is no function."""
    tools: list[Mapping[str, Any]] = []
    for tool in list_of_objects(body, "tools"):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise UnsupportedError(f"tools: only functions are supported, got type {str(tool.get('type'))[:60]!r}")
        tools.append(tool_schema(function.get("name"), function.get("description"), function.get("parameters")))
    return tools


def write(request: ModelRequest, answer: Answer, number: int) -> tuple[bytes, str]:
    """See `Protocol.write`."""
    head: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "created": int(time.time()),
        "model": request.model,
    }
    asked, written = answer.tokens(request)
    usage = {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
    logprobs = answer.logprobs if request.body.get("logprobs") else None
    end = {"index": 0, "finish_reason": "tool_calls" if answer.tool_calls else "stop"}
    if request.stream:
        options = request.body.get("stream_options")
        counts = isinstance(options, dict) and options.get("include_usage")
        last: list[Mapping[str, Any]] = [{"choices": [], "usage": usage}] if counts else []
        deltas = [{"index": 0, "delta": delta, "finish_reason": None} for delta in _deltas(answer)]
        choices: list[Mapping[str, Any]] = [
            {"choices": [each]} for each in (*deltas, {**end, "delta": {}, "logprobs": logprobs})
        ]
        parts: list[tuple[str, Mapping[str, Any]]] = [
            ("", {**head, "object": "chat.completion.chunk", **part}) for part in (*choices, *last)
        ]
        return events(parts, named=False, last=b"data: [DONE]\n\n"), "text/event-stream"
    choice = {**end, "message": answer.message, "logprobs": logprobs}
    body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    return json.dumps(body).encode(), "application/json"


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in chunks(answer.reasoning):
        yield {"reasoning_content": piece}
    for piece in chunks(answer.content):
        yield {"content": piece}
    for index, call in enumerate(answer.tool_calls):
        function = call["function"]
        begun = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": begun}]}
        for piece in chunks(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def error(message: str) -> Mapping[str, Any]:
    """See `Protocol.error`."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
