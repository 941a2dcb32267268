"""Generation by a chat endpoint: any server of OpenAI's chat completions; messages in, text or tool calls out.

Such a server gives no token ids, so it can be evaluated and not trained.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_trainers.engines.http import JsonClient, RefusedError
from swe_trainers.engines.protocol import Sample
from swe_trainers.engines.slots import RequestSlots, Slot
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["ChatEngine"]

_CONTEXT_FULL = re.compile(
    r"context_length_exceeded|context[ _](length|window|size)|maximum (context|sequence|prompt) length"
    r"|prompt is too long|input is too long|too many (input )?tokens|leaves? no room|exceeds? .{0,40}\btokens\b",
    re.IGNORECASE,
)
"""What servers answer to a conversation that is too long. There is no common error code."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_EMPTY = "(no text)"
"""Replaces an empty answer in the history: some servers reject an empty message."""


@dataclass
class _Slot(Slot):
    """One conversation; the whole of it is sent with each request."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    tool_call_ids: list[str] = field(default_factory=list)  # of the last answer


class ChatEngine(RequestSlots[_Slot, tuple[Mapping[str, Any], float]]):
    """Asks `URL/chat/completions`; each request runs on its own thread.

    Args:
        client: its URL includes the path before `/chat/completions`, usually `/v1`.
        model: name of the model on the server.
        n_slots: conversations at once.
        request: further fields of every request: temperature, max_tokens, and whatever the server accepts.
        native_calls: send the function schemas, and return tool calls as the JSON of the message (action format
            `openai`).
        tries: of a request that is answered with status 200, but without a message.
    """

    def __init__(
        self,
        client: JsonClient,
        model: str,
        *,
        n_slots: int,
        request: Mapping[str, Any] | None = None,
        native_calls: bool = False,
        tries: int = 8,
    ) -> None:
        super().__init__(n_slots, _Slot)
        self._client, self._model, self._native, self._tries = client, model, native_calls, tries
        self._fields = {"model": model, **(request or {})}

    def ask(
        self,
        slot: int,
        observation: str,
        *,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Append an observation to a conversation and request an answer; see `MessageEngine.ask`."""
        state = self.find(slot, idle=True)
        if messages is not None:
            state.messages, state.tools, state.tool_call_ids = [dict(each) for each in messages], list(tools), []
            self._request(slot, state)
            return
        text = _sendable(observation)
        if not state.messages:
            state.tools = list(tools) if self._native else []
            if system:
                state.messages.append({"role": "system", "content": _sendable(system)})
        if not state.tool_call_ids:
            state.messages.append({"role": "user", "content": text})
        for identifier in state.tool_call_ids:  # of several calls none was executed, and the text is for all of them
            state.messages.append({"role": "tool", "tool_call_id": identifier, "content": text})
        self._request(slot, state)

    def _request(self, slot: int, state: _Slot) -> None:
        body = self._fields | ({"tools": state.tools} if state.tools else {}) | {"messages": list(state.messages)}
        began = time.monotonic()
        self.request(slot, lambda: (self._answer(body), time.monotonic() - began))

    def step(self) -> list[Sample]:
        """Wait a moment for the server; return the answers that have arrived.

        Raises:
            ConfigurationError: the server will not answer any request: a wrong key, no such model.
        """
        finished: list[Sample] = []
        for index, slot, answer in self.arrived():
            if not isinstance(answer, Exception):
                finished.append(self._sample(index, slot, *answer))
            elif not isinstance(answer, EngineError):
                raise answer
            elif isinstance(answer, RefusedError) and _is_full(answer):
                finished.append(Sample(index, (), (), "context", notes={"no_room": str(answer)}))
            else:
                finished.append(Sample(index, (), (), "stop", failure=answer))
        return finished

    def _answer(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        for number in range(1, self._tries + 1):
            try:
                answer = self._client.post("/chat/completions", body)
            except RefusedError as error:
                hints = {
                    401: "Is the key correct, and in the variable that --api-key-env names?",
                    403: "May this key use this model?",
                    404: f"Does the server have a model {self._model!r}, and --base-url the right path, such as /v1?",
                }
                if error.status in hints:
                    raise ConfigurationError(f"{error}. {hints[error.status]}") from error
                raise
            if _message(answer) is not None:
                assert isinstance(answer, Mapping)
                return answer
            if number < self._tries:  # some proxies report a failed upstream with status 200
                time.sleep(min(8.0, 0.25 * 2**number))
        content = json.dumps(answer)[:200]
        raise EngineError(f"{self._client.url}/chat/completions: the answer holds no message: {content}")

    def _sample(self, index: int, slot: _Slot, answer: Mapping[str, Any], seconds: float) -> Sample:
        """The action in an answer, which is appended to the conversation."""
        message = _message(answer)
        assert message is not None
        content = message.get("content")
        if isinstance(content, list):  # parts, of which some may be text
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        text = content if isinstance(content, str) else ""
        calls = _tool_calls(message) if slot.tools else []
        slot.tool_call_ids = [call["id"] for call in calls]
        sent: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else _EMPTY)}
        if calls:
            sent["tool_calls"] = calls
        slot.messages.append(sent)
        notes: dict[str, Any] = {"seconds": seconds, "finish_reason": answer["choices"][0].get("finish_reason")}
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str):
            notes["reasoning"] = reasoning
        usage = answer.get("usage")
        if isinstance(usage, Mapping) and isinstance(usage.get("prompt_tokens"), int):
            details = usage.get("prompt_tokens_details")
            cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
            notes["prompt_tokens"] = usage["prompt_tokens"]
            notes["completion_tokens"] = _count(usage.get("completion_tokens"))
            notes["cached_tokens"] = min(usage["prompt_tokens"], cached)
            cost = usage.get("cost")
            if isinstance(cost, int | float) and not isinstance(cost, bool):
                notes["cost"] = cost
        return Sample(index, (), (), "stop", text=json.dumps(sent) if calls else text, notes=notes)


def _is_full(error: RefusedError) -> bool:
    return error.status in (400, 413, 422) and bool(_CONTEXT_FULL.search(str(error)))


def _message(answer: Any) -> Mapping[str, Any] | None:
    """The message of the first choice, if an answer has one."""
    try:
        message = answer["choices"][0]["message"]
    except (KeyError, IndexError, TypeError):
        return None
    return message if isinstance(message, Mapping) else None


def _tool_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a message in the form in which they can be sent back, each with an id."""
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
    """Replace lone surrogates (bytes that are not UTF-8), which not every JSON parser accepts."""
    return _SURROGATE.sub("\ufffd", text)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
