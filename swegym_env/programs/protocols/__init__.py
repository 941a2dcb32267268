"""The protocols in which programs ask a language model, each one file: a request read, an answer written.

    chat        POST /v1/chat/completions     OpenAI's chat completions
    responses   POST /v1/responses            OpenAI's responses
    messages    POST /v1/messages             Anthropic's messages

Every request becomes a `ModelRequest`, whose messages and tools have the form of chat completions: that of chat
templates. What a protocol offers and cannot be given here is refused with status 400, in its own form of an error:
nothing that was asked for is left out in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from swegym_env.programs.protocols import chat, messages, responses
from swegym_env.programs.protocols.model import (
    MODEL,
    Answer,
    ModelRequest,
    UnsupportedError,
    estimated_tokens,
    read_json,
)
from swegym_env.sandbox.api import ProgramRequest

__all__ = ["PROTOCOLS", "Answered", "Protocol", "read_request"]


@dataclass(frozen=True)
class Protocol:
    """One protocol.

    Attributes:
        path: of its requests, without a leading "/v1".
        read: the JSON object of a request → the request. Raises UnsupportedError.
        write: a request, its answer and a number for ids → the body of the response, and its type.
        error: a message → the JSON object of an error.
    """

    path: str
    read: Callable[[Mapping[str, Any]], ModelRequest]
    write: Callable[[ModelRequest, Answer, int], tuple[bytes, str]]
    error: Callable[[str], Mapping[str, Any]]


PROTOCOLS: Mapping[str, Protocol] = {
    "chat": Protocol("/chat/completions", chat.read, chat.write, chat.error),
    "responses": Protocol("/responses", responses.read, responses.write, chat.error),
    "messages": Protocol("/messages", messages.read, messages.write, messages.error),
}


@dataclass(frozen=True)
class Answered:
    """A request that needs no model. Attributes: status: of the response; body: JSON."""

    status: int
    body: bytes


def read_request(asked: ProgramRequest) -> ModelRequest | Answered:
    """Read a program's request to its model; if it needs no model or is malformed, return the response to it."""
    path = asked.path.partition("?")[0].rstrip("/").removeprefix("/v1") or "/"
    counts = path == "/messages/count_tokens"
    protocol = next((each for each in PROTOCOLS.values() if each.path == path), None)
    if protocol is None and not counts:
        if path == "/models" or path.startswith("/models/"):
            return _answered(200, _models(path))
        error = messages.error if "anthropic-version" in asked.headers else chat.error
        known = ", ".join(f"/v1{each.path}" for each in PROTOCOLS.values())
        return _answered(404, error(f"there is no {asked.path[:200]} here; there are {known}, /v1/models"))
    protocol = protocol or PROTOCOLS["messages"]
    if asked.method != "POST":
        return _answered(405, protocol.error(f"expected POST, got {asked.method}"))
    try:
        body = read_json(asked.body.decode())
        if not isinstance(body, dict):
            raise UnsupportedError(f"expected a JSON object, got {type(body).__name__}")
        request = protocol.read(body)
    except UnsupportedError as error:
        return _answered(400, protocol.error(str(error)))
    except ValueError as error:
        return _answered(400, protocol.error(f"the body is not JSON: {error}"))
    if counts:
        return _answered(200, {"input_tokens": estimated_tokens(request)})
    return request


def _answered(status: int, value: Mapping[str, Any]) -> Answered:
    return Answered(status, json.dumps(value).encode())


def _models(path: str) -> Mapping[str, Any]:
    model = {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL, "created": 0, "owned_by": "swegym"}
    model["created_at"] = "1970-01-01T00:00:00Z"
    if path != "/models":
        return {**model, "id": path.removeprefix("/models/")}
    return {"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
