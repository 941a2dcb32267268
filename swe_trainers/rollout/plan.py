"""What is to be played: where episodes begin, what ends them, and where they fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_trainers.errors import ConfigurationError

__all__ = ["Branching", "EpisodeStart", "Limits"]


@dataclass(frozen=True)
class EpisodeStart:
    """Where an episode begins.

    Attributes:
        seed: given to `reset`.
        options: given to `reset`.
        group: episodes of one group start from the same state; advantages may be taken relative to it.
        stream: numbers that fix the episode's random stream; None takes the collection's seed and the episode's place.
    """

    seed: int | None = None
    options: Mapping[str, Any] | None = None
    group: int = 0
    stream: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Limits:
    """What ends an action or an episode from outside. An episode that a limit ends is truncated, never terminated.

    Attributes:
        max_new_tokens: of one action.
        max_tokens: of one episode, observations included, or of one context where a history is shortened; None is the
            engine's own limit.
        max_turns: None leaves it to the environment.
        stop_strings: an action ends where it has written one of them.
        step_timeout_s: an environment that has not answered after so many seconds of wall clock costs its episode,
            which is not valid then, and holds nobody up; it is used again once it has answered. None waits for ever.
    """

    max_new_tokens: int
    max_tokens: int | None = None
    max_turns: int | None = None
    stop_strings: tuple[str, ...] = ()
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_tokens", "max_turns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be positive, got {value}")
        if self.step_timeout_s is not None and not self.step_timeout_s > 0:
            raise ConfigurationError(f"step_timeout_s must be positive, got {self.step_timeout_s}")
        if not all(self.stop_strings):
            raise ConfigurationError("stop_strings: an empty one would end every action at once")


@dataclass(frozen=True)
class Branching:
    """Trees instead of single episodes: before some turns an episode forks, and each branch is played to its end.

    Attributes:
        branching: how many ways lead on from a fork; each of them samples its own action.
        max_depth: forks on the way from the start to an end, which makes `branching ** max_depth` episodes of a start.
        every: turns between forks; the first is before the first action.
    """

    branching: int = 2
    max_depth: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        for name, least in (("branching", 2), ("max_depth", 1), ("every", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name}: got {getattr(self, name)}, expected at least {least}")

    @property
    def leaves(self) -> int:
        """Episodes that a start makes, where none ends before its last fork."""
        return int(self.branching**self.max_depth)

    def forks_before(self, turn: int) -> bool:
        """Whether an episode forks before this turn, counted from 0."""
        return turn % self.every == 0 and turn < self.max_depth * self.every
