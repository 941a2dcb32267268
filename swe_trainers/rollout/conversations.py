"""Which conversation a request of an agent program continues, and the tokens that the policy reads for it.

An agent keeps its conversation and sends all of it each time. It may send earlier answers in another form: the
arguments of a call as JSON with other spaces, without thoughts, without blanks at the ends. Messages are compared by
meaning, so none of this changes a token: sampled tokens are kept, and only new messages are encoded. Some agents append
text to an answer, in the same message (for example the command that they called). This text is encoded as a message of
its own, because the answer has ended. If earlier messages differ, the agent has shortened, rewritten or begun a
conversation: a new sample of the trajectory begins with the request, and the cause is counted.

The policy always reads the tokens that are recorded. A wrong match could only mean that the policy reads another text
than the agent sent; training always uses the sampled tokens after the tokens that were read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swe_trainers.errors import ConfigurationError, TemplateError
from swe_trainers.model.chat import ChatFormat

__all__ = ["CAUSES", "Conversations", "Placed", "checked_messages"]

CAUSES = {
    "first": "the first request of an episode",
    "conversation": "another conversation: a title, a summary, another agent",
    "return": "back to an earlier conversation, all tokens of which are kept",
    "repeated": "the same request again: its answer was not used",
    "answer": "the last answer was rewritten or left out",
    "shortened": "messages were removed",
    "history": "an earlier message was rewritten",
    "tools": "other tools are offered",
}
"""Why a sample begins."""

_Messages = Sequence[Mapping[str, Any]]
_THOUGHT_ENDS = "</think>"


@dataclass(frozen=True)
class Placed:
    """The tokens of a request.

    Attributes:
        ids: that follow the policy's last answer; a whole context if a sample begins.
        conversation: its number, from 0 in the order in which they began.
        cause: why a sample begins, see `CAUSES`; "" if it continues.
    """

    ids: list[int]
    conversation: int
    cause: str


@dataclass(frozen=True)
class _Known:
    """A conversation up to its last request.

    Attributes:
        tools: of the request.
        request: the normalised messages of its last request.
        answer: the message that answered it; None before that.
        closed: the answer ends with a stop token.
        start, end: the span of its tokens in the episode.
    """

    tools: str
    request: tuple[str, ...]
    answer: Mapping[str, Any] | None = None
    closed: bool = False
    start: int = 0
    end: int = 0


class Conversations:
    """The conversations of one episode.

    Args:
        chat: turns messages into tokens.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._known: list[_Known] = []
        self._sampled: dict[str, list[int]] = {}  # by the meaning of an answer; without its stop token
        self._current = -1
        self.tools: _Messages = ()

    def copy(self) -> Conversations:
        """An independent copy."""
        other = Conversations(self._chat)
        other._known, other._sampled = list(self._known), dict(self._sampled)
        other._current, other.tools = self._current, self.tools
        return other

    def place(self, info: Mapping[str, Any], token_ids: Sequence[int]) -> Placed:
        """Assign a request to one of the conversations, before its answer is sampled.

        Args:
            info: of the environment: `messages` and `tools` in the form of chat completions. If `continues` is true,
                the environment, which knows how it parsed an answer, guarantees that the last answer is among the
                messages.
            token_ids: of the episode so far.
        Raises:
            ConfigurationError: the messages do not have this form.
            TemplateError: the chat template cannot render them.
        """
        messages, tools = checked_messages(info)
        meanings, offered = tuple(map(_meaning, messages)), json.dumps(tools, sort_keys=True, default=str)
        vouched = info.get("continues") is True
        found = -1
        for number, known in enumerate(self._known):
            n = len(known.request)
            answered = known.answer is not None and len(meanings) > n + 1 and messages[n]["role"] == "assistant"
            if known.tools != offered or not answered or meanings[:n] != known.request:
                continue
            same = vouched or meanings[n] == _meaning(known.answer or {}) or _added(known.answer or {}, messages[n])
            if same and (found < 0 or n >= len(self._known[found].request)):
                found = number
        self.tools = tools
        request = _Known(offered, meanings)
        ids: list[int] = []
        last_answer: Mapping[str, Any] = {}
        added = ""
        if found >= 0:
            known = self._known[found]
            assert known.answer is not None
            last_answer, written = known.answer, messages[len(known.request)]
            new, added = messages[len(known.request) + 1 :], _added(last_answer, written)
            more = [{"role": "assistant", "content": added}] if added else []
            try:
                ids = self._chat.follow([*more, *new], tools, answer=last_answer, closed=known.closed)
            except TemplateError:
                if not more:
                    raise
                found = -1  # the template refuses two messages of the assistant in a row
        if found < 0:
            cause = self._cause(meanings, offered)
            known_answers = {
                i: held for i, each in enumerate(meanings) if (held := self._sampled.get(each)) is not None
            }
            self._current = len(self._known)
            self._known.append(request)
            return Placed(self._chat.conversation(messages, tools, known_answers), self._current, cause)
        if (answer := self._sampled.get(_meaning(last_answer))) is not None:  # as the agent sends it
            self._sampled[meanings[len(known.request)]] = [
                *answer,
                *(self._chat.tokenizer.encode(added) if added else ()),
            ]
        back = found != self._current
        self._current, self._known[found] = found, request
        if back:
            return Placed([*token_ids[known.start : known.end], *ids], found, "return")
        return Placed(ids, found, "")

    def answered(self, answer: Mapping[str, Any], ids: Sequence[int], *, closed: bool, start: int, end: int) -> None:
        """Record the answer to the request that was placed last.

        Args:
            answer: as a message.
            ids: as sampled. closed: whether they end with a stop token.
            start, end: the context and the answer are the episode's tokens [start, end).
        """
        current = self._known[self._current]
        self._known[self._current] = _Known(current.tools, current.request, answer, closed, start, end)
        self._sampled[_meaning(answer)] = list(ids[:-1] if closed else ids)

    def _cause(self, meanings: Sequence[str], offered: str) -> str:
        """Why a request continues no conversation, by comparison with the one that has the longest common beginning."""
        if not self._known:
            return "first"
        common = [_common(known.request, meanings) for known in self._known]
        nearest = max(range(len(common)), key=lambda number: (common[number], number))
        known, shared = self._known[nearest], common[nearest]
        if shared == 0 or all(each.startswith("system:") for each in meanings[:shared]):
            return "conversation"
        if known.tools != offered:
            return "tools"
        if shared == len(known.request):
            return "repeated" if len(meanings) == shared else "answer"
        return "shortened" if len(meanings) < len(known.request) + 2 else "history"


def checked_messages(info: Mapping[str, Any]) -> tuple[_Messages, _Messages]:
    """The messages and tools of an `info`. Raises ConfigurationError if their form is not that of chat completions."""
    messages, tools = info["messages"], info.get("tools") or ()
    for name, values in (("messages", messages), ("tools", tools)):
        if not isinstance(values, (list, tuple)) or not all(isinstance(each, Mapping) for each in values):
            raise ConfigurationError(f"info[{name!r}] is {values!r:.80}, expected a list of objects")
    if not messages:
        raise ConfigurationError("info['messages'] is empty, expected the messages of a request")
    for number, message in enumerate(messages):
        content, calls = message.get("content"), message.get("tool_calls") or ()
        if not isinstance(message.get("role"), str) or not (content is None or isinstance(content, str)):
            raise ConfigurationError(
                f"info['messages'][{number}] is {message!r:.80}, expected a role, and a content that is a text or None"
            )
        for call in calls:
            function = call.get("function") if isinstance(call, Mapping) else None
            if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
                raise ConfigurationError(f"info['messages'][{number}] calls {call!r:.80}, expected a function's name")
    for tool in tools:
        if not isinstance(function := tool.get("function"), Mapping) or not isinstance(function.get("name"), str):
            raise ConfigurationError(f"info['tools'] has {tool!r:.80}, expected a function with a name")
    return messages, tools


def _meaning(message: Mapping[str, Any]) -> str:
    """The meaning of a message: its role, and a digest of its content."""
    role, content = str(message.get("role")), str(message.get("content") or "")
    role = {"developer": "system", "function": "tool"}.get(role, role)
    if role == "assistant":
        content = content.rpartition(_THOUGHT_ENDS)[2]
    calls = [
        (call["function"]["name"], _canonical(call["function"].get("arguments") or {}))
        for call in message.get("tool_calls") or ()
    ]
    meaning = repr((content.strip(), calls)).encode("utf-8", "surrogatepass")
    return f"{role}:{hashlib.sha256(meaning).hexdigest()}"


def _added(answer: Mapping[str, Any], written: Mapping[str, Any]) -> str:
    """The text that an agent appended to an answer, in the same message; empty if it appended none."""
    if answer.get("tool_calls") or written.get("tool_calls"):
        return ""
    was, now = (str(each.get("content") or "").rpartition(_THOUGHT_ENDS)[2].strip() for each in (answer, written))
    return now[len(was) :] if was and now.startswith(was) else ""


def _canonical(arguments: Any) -> str:
    try:
        value = json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return str(arguments).strip()
    return json.dumps(value, sort_keys=True)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
