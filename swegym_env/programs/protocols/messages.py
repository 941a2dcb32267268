"""Anthropic's messages: `POST /v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from swegym_env.programs.protocols.model import (
    Answer,
    ModelRequest,
    UnsupportedError,
    chunks,
    events,
    list_of_objects,
    read_json,
    stop_texts,
    text_of,
    tool_schema,
)

__all__ = ["error", "read", "write"]


def read(body: Mapping[str, Any]) -> ModelRequest:
    """See `Protocol.read`."""
    for key in ("mcp_servers", "container"):
        if body.get(key):
            raise UnsupportedError(f"{key}: not supported")
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": text_of(body["system"], "system")})
    for given in list_of_objects(body, "messages", required=True):
        role = given.get("role")
        if role not in ("user", "assistant"):
            raise UnsupportedError(f"messages: role: expected user or assistant, got {str(role)[:60]!r}")
        content = given.get("content")
        blocks: list[Mapping[str, Any]] = [{"type": "text", "text": content}]
        if isinstance(content, list):
            blocks = list_of_objects(given, "content")
        messages += _assistant(blocks) if role == "assistant" else _user(blocks)
    tools: list[Mapping[str, Any]] = []
    for tool in list_of_objects(body, "tools"):
        if tool.get("type", "custom") != "custom":
            raise UnsupportedError(
                f"tools: only the client's own are supported, got type {str(tool.get('type'))[:60]!r}"
            )
        tools.append(tool_schema(tool.get("name"), tool.get("description"), tool.get("input_schema")))
    stop = stop_texts(body.get("stop_sequences"), "stop_sequences")
    return ModelRequest("messages", messages, tools, body, bool(body.get("stream")), stop)


def _user(blocks: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            text = text_of(block.get("content"), "messages: tool_result")
            messages.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text})
        else:
            text = text_of([block], "messages: user")
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"] += "\n" + text
            else:
                messages.append({"role": "user", "content": text})
    return messages


def _assistant(blocks: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_use":
            if not isinstance(block.get("name"), str):
                raise UnsupportedError("messages: tool_use: expected a name")
            function = {"name": block["name"], "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": str(block.get("id", "")), "type": "function", "function": function})
        elif block.get("type") not in ("thinking", "redacted_thinking"):
            texts.append(text_of([block], "messages: assistant"))
    return [{"role": "assistant", "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}]


def write(request: ModelRequest, answer: Answer, number: int) -> tuple[bytes, str]:
    """See `Protocol.write`."""
    asked, written = answer.tokens(request)
    stopped = answer.stopped_at is not None and not answer.tool_calls
    reason = "tool_use" if answer.tool_calls else "stop_sequence" if stopped else "end_turn"
    blocks = _blocks(answer)
    end = {"stop_reason": reason, "stop_sequence": answer.stopped_at if stopped else None}
    head = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
    }
    if not request.stream:
        body = {**head, "content": blocks, **end, "usage": {"input_tokens": asked, "output_tokens": written}}
        return json.dumps(body).encode(), "application/json"
    begun: dict[str, Any] = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = {"input_tokens": asked, "output_tokens": 0}
    values = [
        {"type": "message_start", "message": begun},
        *_events(blocks),
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": written}},
        {"type": "message_stop"},
    ]
    return events([(str(value["type"]), value) for value in values], named=True), "text/event-stream"


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content or not answer.tool_calls:
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.tool_calls:
        given = _arguments(call["function"]["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": given})
    return blocks


def _arguments(text: str) -> Any:
    """The arguments of a call as an object, which this protocol needs: what is none becomes one."""
    try:
        value = read_json(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


def _events(blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for index, block in enumerate(blocks):
        at = {"index": index}
        match block["type"]:
            case "tool_use":
                begun = {**block, "input": {}}
                pieces = [
                    {"type": "input_json_delta", "partial_json": each} for each in chunks(json.dumps(block["input"]))
                ]
            case "thinking":
                begun = {**block, "thinking": ""}
                pieces = [{"type": "thinking_delta", "thinking": each} for each in chunks(block["thinking"])]
            case _:
                begun = {**block, "text": ""}
                pieces = [{"type": "text_delta", "text": each} for each in chunks(block["text"])]
        yield {"type": "content_block_start", **at, "content_block": begun}
        for piece in pieces:
            yield {"type": "content_block_delta", **at, "delta": piece}
        yield {"type": "content_block_stop", **at}


def error(message: str) -> Mapping[str, Any]:
    """See `Protocol.error`."""
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
