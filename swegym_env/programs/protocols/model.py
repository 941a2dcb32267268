"""What the protocols share: a request to a model, its answer, and the checks of what a request holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swegym_env.agent.formats.calls import dump_json, readable

__all__ = [
    "MODEL",
    "Answer",
    "ModelRequest",
    "UnsupportedError",
    "chunks",
    "estimated_tokens",
    "events",
    "list_of_objects",
    "read_json",
    "stop_texts",
    "text_of",
    "tool_schema",
]

MODEL = "policy"
"""The name of the model in `/v1/models`; a request may name any other."""

_CHARACTERS_PER_TOKEN = 4
_PIECES = 64  # of a text in a stream, at most
_DEPTH = 64  # of JSON: whoever writes it again, or prints it, needs a stack for it
_MOST_IN_LIST = 10_000  # messages, tools or parts: each costs far more than its bytes
_MOST_CONTAINERS = 1 << 18  # of one level
_STOPS = 64
_NAME_CHARACTERS = 200


class UnsupportedError(ValueError):
    """A request that cannot be answered as it asks; the message says what is expected."""


@dataclass(frozen=True)
class ModelRequest:
    """A request to a language model.

    Attributes:
        protocol: its name in `PROTOCOLS`.
        messages: in the form of chat completions: `role`, `content` (text), of an assistant `tool_calls`, of a tool
            `tool_call_id`.
        tools: function schemas, in the form of chat completions.
        body: the JSON object as the program sent it.
        stream: the answer is wanted as server-sent events.
        stop: texts at which the answer ends.
    """

    protocol: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    body: Mapping[str, Any]
    stream: bool = False
    stop: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The name of the model for the answer, which repeats it in each event of a stream."""
        name = self.body.get("model")
        return name[:_NAME_CHARACTERS] if isinstance(name, str) and name else MODEL


@dataclass(frozen=True)
class Answer:
    """A model's answer.

    Attributes:
        content: its text.
        tool_calls: `id`, `type` "function" and `function` with `name` and `arguments` (JSON as text).
        reasoning: shown to the program as the model's thoughts.
        stopped_at: the text of `ModelRequest.stop` that ended it.
        logprobs: of its tokens, as chat completions have them; None where they are not known.
        usage: numbers of tokens: `prompt_tokens`, `completion_tokens`; None where they are not known.
    """

    content: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    reasoning: str = ""
    stopped_at: str | None = None
    logprobs: Any = None
    usage: Mapping[str, Any] | None = field(default=None)

    @property
    def message(self) -> dict[str, Any]:
        """As a message of chat completions."""
        calls = {"tool_calls": [dict(call) for call in self.tool_calls]} if self.tool_calls else {}
        thoughts = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {"role": "assistant", "content": self.content or (None if calls else ""), **thoughts, **calls}

    def tokens(self, request: ModelRequest) -> tuple[int, int]:
        """Tokens of the request and of the answer; estimated from the number of characters where nobody counted."""
        counted = self.usage or {}
        given = counted.get("prompt_tokens"), counted.get("completion_tokens")
        written = len(self.content) + len(self.reasoning) + sum(len(str(call["function"])) for call in self.tool_calls)
        return (
            given[0] if isinstance(given[0], int) else estimated_tokens(request),
            given[1] if isinstance(given[1], int) else -(-written // _CHARACTERS_PER_TOKEN),
        )


def estimated_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has: four characters each."""
    characters = sum(len(str(message.get("content") or "")) for message in request.messages)
    return -(-(characters + len(str(request.tools)) * bool(request.tools)) // _CHARACTERS_PER_TOKEN)


def read_json(text: str) -> Any:
    """A JSON value that can be written again anywhere: finite numbers, `_DEPTH` levels, no half of a surrogate pair.

    Such a half becomes U+FFFD, as undecodable bytes do. Line breaks may stand in strings, as models write them.

    Raises:
        ValueError: it is not JSON, or goes beyond these bounds.
    """
    try:
        value = _DECODER.decode(text)
        if _ESCAPED_HALF.search(text):
            value = _DECODER.decode(readable(dump_json(value)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(_DEPTH):
        level = [
            each
            for outer in level
            if isinstance(outer, (dict, list))
            for each in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(each, (dict, list))
        ]
        if not level:
            return value
        if len(level) > _MOST_CONTAINERS:
            raise ValueError(f"it has more than {_MOST_CONTAINERS} lists and objects")
    raise ValueError(f"it is nested more than {_DEPTH} levels deep")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # perhaps of a pair
_DECODER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_finite)


def list_of_objects(body: Mapping[str, Any], key: str, *, required: bool = False) -> list[Mapping[str, Any]]:
    """The list at `key`. Raises UnsupportedError: it is no list of objects, or a required one is empty."""
    value = body.get(key)
    if value is None and not required:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value) or (required and not value):
        raise UnsupportedError(f"{key}: expected a list of objects{' that is not empty' if required else ''}")
    if len(value) > _MOST_IN_LIST:
        raise UnsupportedError(f"{key}: expected at most {_MOST_IN_LIST}, got {len(value)}")
    return value


def text_of(content: Any, where: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a content, which is text or a list of parts. Raises UnsupportedError for a part that is no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UnsupportedError(f"{where}: content: expected text or a list of parts, got {type(content).__name__}")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in kinds or not isinstance(part.get("text"), str):
            raise UnsupportedError(f"{where}: content: a part of type {str(kind)[:60]!r} is not supported, only text")
        texts.append(part["text"])
    return "\n".join(texts)


def tool_schema(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A function schema in the form of chat completions. Raises UnsupportedError for a tool without a name."""
    if not isinstance(name, str) or not name:
        raise UnsupportedError("tools: expected a function with a name")
    described = {"description": description} if isinstance(description, str) else {}
    schema = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, **described, "parameters": schema}}


def stop_texts(value: Any, key: str) -> tuple[str, ...]:
    """The texts at which an answer ends. Raises UnsupportedError."""
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise UnsupportedError(f"{key}: expected a text or a list of texts")
    if len(given) > _STOPS:
        raise UnsupportedError(f"{key}: expected at most {_STOPS} texts, got {len(given)}")
    return tuple(each for each in given if each)


def events(values: Iterable[tuple[str, Mapping[str, Any]]], *, named: bool, last: bytes = b"") -> bytes:
    """Server-sent events. Args: values: name and data; named: write the names; last: the last event, written out."""
    lines = []
    for name, value in values:
        head = f"event: {name}\n" if named else ""
        lines.append(f"{head}data: {json.dumps(value)}\n\n".encode())
    return b"".join(lines) + last


def chunks(text: str) -> list[str]:
    """A text in pieces, as a stream has it; none of an empty one."""
    size = max(16, -(-len(text) // _PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]
