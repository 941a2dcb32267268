"""Which conversation a request continues: messages are compared by meaning, since programs write them again.

An agent keeps its conversation and sends all of it each time. What comes back differs in its bytes: the arguments of a
call are written as JSON with other spaces, thoughts are left out, blanks at the ends are cut, the text at which an
answer stopped is put back, ids are new. None of this changes what a message means. Some agents write more after an
answer, into the same message (what it called): only that is new. Where a message differs otherwise, or one is missing,
the agent has shortened or rewritten the conversation, or begun another one (for a title, a summary, another agent), and
it is counted as a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swegym_env.agent.formats.scanning import after_reasoning
from swegym_env.programs.protocols.model import ModelRequest, read_json

__all__ = ["Conversations", "Placed", "messages_text"]


@dataclass(frozen=True)
class Placed:
    """A request among the conversations of an episode.

    Attributes:
        conversation: its number, from 0 in the order in which they began.
        continues: it begins with all messages of this conversation, the last answer included.
        new: the messages that were not in it before: all of them where it does not continue.
        added: what the agent wrote after the last answer, into the same message.
    """

    conversation: int
    continues: bool
    new: Sequence[Mapping[str, Any]]
    added: str = ""


class Conversations:
    """The conversations of one episode."""

    def __init__(self) -> None:
        self._tools: list[bytes] = []  # of each conversation
        self._messages: list[list[bytes]] = []  # one digest for each message of a conversation
        self._same: dict[bytes, bytes] = {}  # digest of an answer as it may come back → its own
        self._current = 0
        self._asked: list[bytes] = []
        self._stop: tuple[str, ...] = ()
        # Conversation → the text of its last answer, in each form in which the agent may send it back.
        self._answers: dict[int, tuple[str, ...]] = {}

    def place(self, request: ModelRequest) -> Placed:
        """Place a request; of several conversations that it continues it is the longest one."""
        digests = [self._same.get(digest, digest) for digest in map(_digest, request.messages)]
        tools = hashlib.sha256(_json(request.tools).encode()).digest()
        found, added = -1, ""
        for number, known in enumerate(self._messages):
            if self._tools[number] != tools or len(known) >= len(digests):
                continue
            last, more = len(known) - 1, ""
            if digests[: last + 1] != known:
                more = self._added(number, request.messages[last]) if digests[:last] == known[:last] else ""
                if not more:
                    continue
            if found < 0 or len(known) >= len(self._messages[found]):
                found, added = number, more
        self._asked, self._stop = digests, request.stop
        if found < 0:
            self._current = len(self._messages)
            self._messages.append(digests)
            self._tools.append(tools)
            return Placed(self._current, False, request.messages)
        self._current = found
        return Placed(found, True, request.messages[len(self._messages[found]) :], added)

    def _added(self, number: int, message: Mapping[str, Any]) -> str:
        """What a message says after the last answer of a conversation, where it begins with that."""
        if message.get("role") != "assistant" or message.get("tool_calls"):
            return ""
        content = after_reasoning(str(message.get("content") or "")).strip()
        return next((content[len(text) :] for text in self._answers.get(number, ()) if content.startswith(text)), "")

    def answered(self, message: Mapping[str, Any]) -> None:
        """Note the answer to the request that was placed last; agents put back the text at which it stopped."""
        digest = _digest(message)
        self._messages[self._current] = [*self._asked, digest]
        words = "" if message.get("tool_calls") else after_reasoning(str(message.get("content") or ""))
        texts = sorted({f"{words}{text}".strip() for text in ("", *self._stop)}, key=len, reverse=True)
        self._answers[self._current] = tuple(texts) if words.strip() else ()
        for text in self._stop:
            self._same[_digest({**message, "content": f"{message.get('content') or ''}{text}"})] = digest


def _digest(message: Mapping[str, Any]) -> bytes:
    """Of what a message means."""
    role, content = str(message.get("role")), str(message.get("content") or "")
    role = {"developer": "system", "function": "tool"}.get(role, role)
    if role == "assistant":
        content = after_reasoning(content)
    calls = [
        (call["function"]["name"], _json(_decoded(call["function"]["arguments"])))
        for call in message.get("tool_calls") or ()
    ]
    meaning = repr((role, content.strip(), calls))
    return hashlib.sha256(meaning.encode("utf-8", "surrogatepass")).digest()


def _decoded(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return text.strip()


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def messages_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages as one text: for those who render no chat template. One message that is no answer is its own text."""
    if len(messages) == 1 and messages[0]["role"] != "assistant":
        return str(messages[0]["content"])
    return "\n\n".join(f"[{message['role']}]\n{_with_calls(message)}" for message in messages)


def _with_calls(message: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines = [str(message["content"])] if message["content"] else []
    return "\n".join([*lines, *(f"{call['name']}({call['arguments']})" for call in calls)])
