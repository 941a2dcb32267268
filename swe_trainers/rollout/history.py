"""Context management: a history that no longer fits into the context keeps its beginning and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError
from swe_trainers.model.chat import ChatFormat

__all__ = ["Exchange", "HeadTail", "History", "Prompt"]


@dataclass(frozen=True)
class Prompt:
    """The start of an episode.

    Attributes:
        observation, system, tools: arguments of `ChatFormat.start`.
        ids: its result.
    """

    observation: str
    system: str | None
    tools: Sequence[Mapping[str, Any]] | None
    ids: Sequence[int]


@dataclass(frozen=True)
class Exchange:
    """A past action and the observation after it.

    Attributes:
        action_ids: as sampled. closed: whether they end with a stop token.
        observation: of the environment. ids: the result of `ChatFormat.observe`.
    """

    action_ids: Sequence[int]
    closed: bool
    observation: str
    ids: Sequence[int]

    @property
    def size(self) -> int:
        """Tokens of both."""
        return len(self.action_ids) + len(self.ids)


@dataclass(frozen=True)
class HeadTail(Configuration):
    """Omit the middle of a history: keep the first turns, and as many of the last turns as fit.

    A shortened context is a separate sample in training, which holds exactly what the policy read. To avoid a new
    sample in every turn, a cut leaves room for later turns.

    Attributes:
        head: fraction of the shortened context for the prompt and the first turns; the prompt is always kept.
        keep: fraction of the context that is left after a cut; with 1 nearly every later turn needs another cut.
        note: text in the place of the omitted turns, between empty lines; `{n}` is their number. Empty: a space.
    """

    head: float = 0.3
    keep: float = 0.75
    note: str = "[… {n} turns omitted …]"

    def __post_init__(self) -> None:
        if not 0 <= self.head < 1:
            raise ConfigurationError(f"head: got {self.head}, expected a number from 0 to less than 1")
        if not 0 < self.keep <= 1:
            raise ConfigurationError(f"keep: got {self.keep}, expected a number above 0 and at most 1")

    def shorten(self, chat: ChatFormat, prompt: Prompt, past: Sequence[Exchange], budget: int) -> list[int] | None:
        """The shortened context, which ends with the last observation.

        Args:
            chat: how conversations become tokens.
            prompt: the start of the episode.
            past: all its turns; at least one.
            budget: most tokens of the context.

        Returns:
            Token ids, those of actions as sampled; None if not even prompt, note and last observation fit.
        """
        target = int(self.keep * budget)
        used, first = len(prompt.ids), 0  # turns that stay at the beginning
        while first < len(past) - 1 and used + past[first].size <= int(self.head * target):
            used += past[first].size
            first += 1
        used += len(past[-1].ids)
        last = len(past)  # the turn (from 1) whose observation is the first of the end
        while last - 1 > first:
            used += len(past[last - 1].action_ids) + len(past[last - 2].ids)
            if used > target:
                break
            last -= 1
        # This adds up pieces; joined, they may be encoded to a few tokens more.
        for kept_first in (first, 0):
            for kept_last in range(max(last, kept_first + 1), len(past) + 1):
                ids = self._join(chat, prompt, past, kept_first, kept_last)
                if len(ids) <= budget:
                    return ids
        return None

    def _join(self, chat: ChatFormat, prompt: Prompt, past: Sequence[Exchange], first: int, last: int) -> list[int]:
        """The first turns, one observation with the note in its middle, and the turns from there on."""
        note = self.note.replace("{n}", str(last - first))
        before = past[first - 1].observation if first else prompt.observation
        latest = past[last - 1].observation
        # Without a note nothing of ours is written, not even line ends, which a vocabulary of words need not have.
        text = f"{before}\n\n{note}\n\n{latest}" if note else f"{before} {latest}"
        if first:
            ids = list(prompt.ids)
            for turn in past[: first - 1]:
                ids += [*turn.action_ids, *turn.ids]
            ids += [*past[first - 1].action_ids, *chat.observe(text, closed=past[first - 1].closed)]
        else:
            ids = chat.start(text, system=prompt.system, tools=prompt.tools)
        for turn in past[last:]:
            ids += [*turn.action_ids, *turn.ids]
        return ids


History = HeadTail | Literal["last"]
"""What a policy reads of an episode: its beginning and its end, if all of it does not fit into the context; or only the
last observation in every turn, for environments whose observation is the whole state (Markov decision processes)."""
