"""OpenAI's responses: `POST /v1/responses`. Nothing is stored: each request holds its whole conversation."""

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
    text_of,
    tool_schema,
)

__all__ = ["read", "write"]

_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "reasoning": {"summary": []},
}
_REPEATED_CHARACTERS = 1 << 18
_TEXTS = ("input_text", "output_text", "text")


def read(body: Mapping[str, Any]) -> ModelRequest:
    """See `Protocol.read`."""
    for key in ("previous_response_id", "conversation", "background", "prompt"):
        if body.get(key):
            raise UnsupportedError(f"{key}: not supported: nothing is stored, send the whole conversation as input")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": text_of(body["instructions"], "instructions")})
    given = body.get("input")
    items = (
        [{"role": "user", "content": given}]
        if isinstance(given, str)
        else list_of_objects(body, "input", required=True)
    )
    for item in items:
        _add(messages, item)
    tools: list[Mapping[str, Any]] = []
    for tool in list_of_objects(body, "tools"):
        if tool.get("type") != "function":
            raise UnsupportedError(f"tools: only functions are supported, got type {str(tool.get('type'))[:60]!r}")
        tools.append(tool_schema(tool.get("name"), tool.get("description"), tool.get("parameters")))
    return ModelRequest("responses", messages, tools, body, bool(body.get("stream")))


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add an item of the input; what one answer consisted of becomes one message again."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ("system", "developer", "user", "assistant"):
            raise UnsupportedError(
                f"input: role: expected system, developer, user or assistant, got {str(role)[:60]!r}"
            )
        messages.append({"role": role, "content": text_of(item.get("content"), f"input: {role}", _TEXTS)})
    elif kind == "function_call":
        if not isinstance(item.get("name"), str):
            raise UnsupportedError("input: function_call: expected a name")
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        function = {"name": item["name"], "arguments": str(item.get("arguments", "{}"))}
        call = {"id": str(item.get("call_id", "")), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        text = text_of(item.get("output"), "input: function_call_output", _TEXTS)
        messages.append({"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": text})
    elif kind != "reasoning":  # thoughts are the model's own, and are not asked about again
        raise UnsupportedError(f"input: an item of type {str(kind)[:60]!r} is not supported")


def write(request: ModelRequest, answer: Answer, number: int) -> tuple[bytes, str]:
    """See `Protocol.write`."""
    output = _output(answer, number)
    asked, written = answer.tokens(request)
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "model": request.model,
        "output": output,
        "parallel_tool_calls": bool(request.body.get("parallel_tool_calls", True)),
        "tool_choice": _repeated(request, "tool_choice") or "auto",
        "tools": _repeated(request, "tools") or [],
        "instructions": _repeated(request, "instructions"),
        "metadata": _repeated(request, "metadata") or {},
        "temperature": _repeated(request, "temperature"),
        "top_p": _repeated(request, "top_p"),
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": asked + written,
        },
    }
    if not request.stream:
        return json.dumps(response).encode(), "application/json"
    numbered = [(value["type"], {**value, "sequence_number": at}) for at, value in enumerate(_events(response, output))]
    return events(numbered, named=True), "text/event-stream"


def _repeated(request: ModelRequest, key: str) -> Any:
    """What the request has at `key`, for the answer, which repeats it up to three times; None where it is long."""
    value = request.body.get(key)
    return value if len(json.dumps(value)) <= _REPEATED_CHARACTERS else None


def _output(answer: Answer, number: int) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        output.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
    if answer.content or not answer.tool_calls:
        part = {"type": "output_text", "text": answer.content, "annotations": []}
        message = {"type": "message", "id": f"msg_{number}", "status": "completed", "role": "assistant"}
        output.append({**message, "content": [part]})
    for index, call in enumerate(answer.tool_calls):
        called = {"type": "function_call", "id": f"fc_{number}_{index}", "call_id": call["id"], "status": "completed"}
        output.append({**called, **call["function"]})
    return output


def _events(response: dict[str, Any], output: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(output):
        place = {"item_id": item["id"], "output_index": index}
        unfinished = {"status": "in_progress"} if "status" in item else {}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, **unfinished, **_EMPTY[item["type"]]},
        }
        if item["type"] == "message":
            part = item["content"][0]
            at = {**place, "content_index": 0}
            yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
            for piece in chunks(part["text"]):
                yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
            yield {"type": "response.content_part.done", **at, "part": part}
        elif item["type"] == "function_call":
            for piece in chunks(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}
