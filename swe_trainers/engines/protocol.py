"""The interface between rollouts and engines: slots, requests and samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from swe_trainers.engines.action_trie import Legal
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import EngineError

__all__ = ["Engine", "MessageEngine", "Sample", "SlotEngine", "Throughput"]


class Sample(NamedTuple):
    """One finished action.

    Attributes:
        slot: where it was generated.
        token_ids: as sampled, the stop token included; empty for an engine that takes messages.
        logprobs: of each token, under the distribution that was sampled from.
        end: `stop` a stop token was sampled; `string` a stop string was completed, the completing token is included;
            `complete` no legal action goes on; `length` the limit of the request; `context` the slot is full.
        versions: version of the weights that sampled each token; empty if the engine uses the policy's own weights.
        allowed: the token ids among which each token was sampled, ascending: legal actions, and what `top_k`, `top_p`
            and `min_p` keep of them; an empty tuple for the whole vocabulary. Empty if that was so for every token.
        text: the action, from an engine that takes messages.
        notes: what such an engine reports about the action: token counts, cost, reasoning.
        failure: the engine failed to answer this request; the other requests continue.
    """

    slot: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    end: Literal["stop", "string", "complete", "length", "context"]
    versions: tuple[int, ...] = ()
    allowed: tuple[tuple[int, ...], ...] = ()
    text: str = ""
    notes: Mapping[str, Any] = {}
    failure: EngineError | None = None


@dataclass
class Throughput:
    """What an engine has done since it was created.

    Attributes:
        read_tokens: prompt and observation tokens that went through the model.
        sampled_tokens: all sampled tokens, also the first of each action, which needs no decoding step.
        decoded_tokens: the others.
        read_s, decoded_s: seconds of wall clock spent on reading and on decoding.
    """

    read_tokens: int = 0
    sampled_tokens: int = 0
    decoded_tokens: int = 0
    read_s: float = 0.0
    decoded_s: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Counts, and tokens per second where anything was done."""
        found = {"engine/read_tokens": float(self.read_tokens), "engine/sampled_tokens": float(self.sampled_tokens)}
        if self.read_s > 0:
            found["engine/read_tokens_per_second"] = self.read_tokens / self.read_s
        if self.decoded_s > 0:
            found["engine/decoded_tokens_per_second"] = self.decoded_tokens / self.decoded_s
        return found


class SlotEngine(Protocol):
    """Generation for many episodes at once, each in a slot that keeps its context between turns."""

    @property
    def n_slots(self) -> int:
        """How many episodes can be open at once."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished: `step` has work."""
        ...

    def open(self) -> int:
        """Take an empty slot. Raises `EngineError` if none is free."""
        ...

    def step(self) -> list[Sample]:
        """Advance every running request a little; return those that finished."""
        ...

    def close(self, slot: int) -> None:
        """Release a slot and drop its request."""
        ...


class Engine(SlotEngine, Protocol):
    """An engine with token ids in and out, which training needs."""

    @property
    def max_tokens(self) -> int:
        """The longest sequence of a slot, sampled tokens included."""
        ...

    @property
    def throughput(self) -> Throughput:
        """Tokens read and sampled so far."""
        ...

    def submit(
        self,
        slot: int,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        sampling: Sampling,
        random: np.random.Generator,
        stop_strings: Sequence[str] = (),
        legal: Legal | None = None,
    ) -> None:
        """Append tokens to a slot and request an action after them.

        Args:
            slot: from `open`, without an unfinished request.
            token_ids: appended after the slot's last token, whether that was sampled or given.
            max_new_tokens: at most so many tokens are sampled.
            stop_ids: tokens that end the action; they are part of it.
            sampling: how tokens are sampled.
            random: the episode's own generator; one number is taken per token, so a sample depends neither on the other
                slots nor on timing (up to rounding of the logits, which may differ in the last digits with the
                composition of a batch).
            stop_strings: texts that end the action, however they are split into tokens.
            legal: the actions to sample from, as a tree or a grammar; None for free text.
        """
        ...

    def rewind(self, slot: int, length: int) -> None:
        """Remove all tokens of a slot after the first `length`; what was computed for these is kept."""
        ...


class MessageEngine(SlotEngine, Protocol):
    """An engine with messages in and text out, for evaluation: a chat endpoint."""

    def ask(
        self,
        slot: int,
        observation: str,
        *,
        system: str,
        tools: Sequence[Mapping[str, Any]],
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Append an observation to the conversation of a slot and request an action after it.

        Args:
            slot: from `open`, without an unfinished request.
            observation: the user's message, or the result of the tool calls in the last action.
            system, tools: system prompt and function schemas; used with the first observation of a slot.
            messages: of an agent program: the whole conversation, which takes the place of the slot's; `observation`
                and `system` are in it, and the tools are those of this request.
        """
        ...
