"""A model behind any server of OpenAI's chat API: messages in, text or function calls out."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_trainers.engines.http import JsonClient, Pace, RefusedError
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.evaluation.conversation import Answer, Conversation, NoRoomError, Usage
from swe_trainers.evaluation.prices import Prices

__all__ = ["ChatServer"]

_NO_ROOM = re.compile(
    r"context_length_exceeded|context[ _](length|window|size)|maximum (context|sequence|prompt) length"
    r"|prompt is too long|input is too long|too many (input )?tokens|leaves? no room|exceeds? .{0,40}\btokens\b",
    re.IGNORECASE,
)
"""What servers say when a conversation is too long: each in its own words, under a status that means anything."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_SAID_NOTHING = "(no text)"
"""Stands in the history for an answer without any: some servers refuse an empty message."""


class ChatServer:
    """Asks `URL/chat/completions`.

    Args:
        url: with the path before `/chat/completions`, most often `…/v1`.
        name: the model's, as the server knows it.
        api_key: sent as a bearer token; written nowhere.
        request: further fields of every request: temperature, max_tokens, whatever the server knows.
        native_calls: offer functions as such, and hand calls on as the JSON of the message (action format `openai`).
        prices: of tokens; a cost that a server states itself goes first.
        pace: of requests.
        timeout_s: of one try.
        tries: of one answer.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        api_key: str | None = None,
        request: Mapping[str, Any] | None = None,
        native_calls: bool = False,
        prices: Prices | None = None,
        pace: Pace | None = None,
        timeout_s: float = 600.0,
        tries: int = 8,
        pause_s: float = 1.0,
    ) -> None:
        self._client = JsonClient(
            url, api_key=api_key, timeout_s=timeout_s, tries=tries, pause_s=pause_s, pace=pace, option="--base-url"
        )
        self._fields = {"model": name, **(request or {})}
        self._name, self._native, self._prices, self._tries = name, native_calls, prices, tries

    def open(self, system: str, tools: Sequence[Mapping[str, Any]], seed: int) -> Conversation:
        """Begin an episode; a server draws as it will, whatever the seed."""
        messages = [{"role": "system", "content": _sendable(system)}] if system else []
        offered = {"tools": list(tools)} if tools and self._native else {}
        return _Messages(self, {**self._fields, **offered}, messages)

    def close(self) -> None:
        """Nothing is held."""

    def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """One answer of the server, whole; see `Conversation.act` for what is raised."""
        for number in range(1, self._tries + 1):
            try:
                answer = self._client.post("/chat/completions", body)
            except RefusedError as error:
                raise self._refusal(error) from error
            if _message(answer) is not None:
                assert isinstance(answer, Mapping)
                return answer
            if number < self._tries:  # some proxies report a failure of what is behind them under status 200
                time.sleep(min(8.0, 0.25 * 2**number))
        said = json.dumps(answer)[:200]
        raise EngineError(f"{self._client.url}/chat/completions: the answer holds no message: {said}")

    def _refusal(self, error: RefusedError) -> Exception:
        if error.status in (400, 413, 422) and _NO_ROOM.search(str(error)):
            return NoRoomError(str(error))
        hints = {
            401: "Is the key right, and in the variable that --api-key-env names?",
            403: "May this key use this model?",
            404: f"Does the server have a model {self._name!r}, and --base-url the path it needs, such as /v1?",
        }
        if error.status in hints:
            return ConfigurationError(f"{error}. {hints[error.status]}")
        return error

    def usage(self, answer: Mapping[str, Any], seconds: float) -> Usage:
        """What an answer took, as far as the server says."""
        said = answer.get("usage")
        if not isinstance(said, Mapping) or not isinstance(said.get("prompt_tokens"), int):
            return Usage(requests=1, unknown=1, cost=None, seconds=seconds)
        read, wrote = said["prompt_tokens"], _whole(said.get("completion_tokens"))
        details = said.get("prompt_tokens_details")
        cached = min(read, _whole(details.get("cached_tokens") if isinstance(details, Mapping) else None))
        cost = said.get("cost")
        if not isinstance(cost, int | float) or isinstance(cost, bool):
            cost = None if self._prices is None else self._prices.cost(read, wrote, cached)
        return Usage(1, read, wrote, cached, 0, cost, seconds)


@dataclass
class _Messages:
    """One episode's messages, kept here and sent whole each time: a chat server remembers nothing."""

    server: ChatServer
    fields: Mapping[str, Any]
    messages: list[dict[str, Any]]
    called: list[str] = field(default_factory=list)

    def act(self, observation: str) -> Answer:
        self._observe(_sendable(observation))
        began = time.monotonic()
        answer = self.server.ask({**self.fields, "messages": self.messages})
        usage = self.server.usage(answer, time.monotonic() - began)
        message = _message(answer)
        assert message is not None
        text, calls = _text(message), _calls(message) if "tools" in self.fields else []
        self.called = [call["id"] for call in calls]
        said: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else _SAID_NOTHING)}
        if calls:
            said["tool_calls"] = calls
        self.messages.append(said)
        notes = {"finish_reason": answer["choices"][0].get("finish_reason")}
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            notes["reasoning"] = reasoning
        return Answer(json.dumps(said) if calls else text, usage, notes)

    def close(self) -> None:
        """Nothing is held."""

    def _observe(self, text: str) -> None:
        """An observation answers the call that asked for it, else it is the user's; more calls than one ran nothing."""
        if not self.called:
            self.messages.append({"role": "user", "content": text})
        for name in self.called:
            self.messages.append({"role": "tool", "tool_call_id": name, "content": text})


def _message(answer: Any) -> Mapping[str, Any] | None:
    """The first choice's message, where an answer has one."""
    try:
        message = answer["choices"][0]["message"]
    except (KeyError, IndexError, TypeError):
        return None
    return message if isinstance(message, Mapping) else None


def _text(message: Mapping[str, Any]) -> str:
    """Its content: text, or parts of which some are text."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its calls in the form in which they may be sent back, each with an id."""
    found = []
    given = message.get("tool_calls")
    for number, call in enumerate(given if isinstance(given, list) else []):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            continue
        arguments = function.get("arguments")
        found.append(
            {
                "id": str(call.get("id") or f"call_{number}"),
                "type": "function",
                "function": {
                    "name": str(function.get("name") or ""),
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
                },
            }
        )
    return found


def _sendable(text: str) -> str:
    """Bytes that are no UTF-8 come as lone surrogates, which no JSON parser need take."""
    return _SURROGATE.sub("\ufffd", text)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
