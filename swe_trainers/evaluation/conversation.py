"""What an episode asks of a model: a conversation that grows turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from swe_trainers.errors import EngineError

__all__ = ["Answer", "Conversation", "Model", "NoRoomError", "Usage"]


class NoRoomError(EngineError):
    """The conversation has outgrown what the model can read: the episode ends, and what was done counts."""


@dataclass(frozen=True)
class Usage:
    """What answers took.

    Attributes:
        requests: that were answered.
        prompt_tokens: read, those from a cache included.
        completion_tokens: written.
        cached_tokens: of `prompt_tokens`, as far as the server says.
        unknown: answers whose server did not count its tokens.
        cost: in dollars, where a server says so itself; None where one of the answers has no price.
        seconds: of waiting.
    """

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    unknown: int = 0
    cost: float | None = 0.0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.unknown + other.unknown,
            None if self.cost is None or other.cost is None else self.cost + other.cost,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class Answer:
    """What a model wrote.

    Attributes:
        action: for the environment.
        usage: of this answer.
        notes: for the record: reasoning, why it ended.
    """

    action: str
    usage: Usage
    notes: Mapping[str, Any] = field(default_factory=dict)


class Conversation(Protocol):
    """One episode's messages; used by one thread."""

    def act(self, observation: str) -> Answer:
        """Give the model what the environment says, and take its next action.

        Raises:
            NoRoomError: the conversation is too long for the model.
            EngineError: the model's server failed; nothing that the agent did.
            ConfigurationError: the server will never answer: a wrong key, no such model.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


class Model(Protocol):
    """Opens conversations; used by many threads."""

    def open(self, system: str, tools: Sequence[Mapping[str, Any]], seed: int) -> Conversation:
        """Begin an episode.

        Args:
            system: the system prompt; may be empty.
            tools: schemas of functions; may be empty.
            seed: of the sampling, where it happens in this process.
        """
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...
