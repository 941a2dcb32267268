"""Settings of episodes: initial state, limits, forks, and how actions are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swe_trainers.config import Configuration
from swe_trainers.engines.grammar import Grammar
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.history import History

__all__ = ["RESET_TIMEOUT_S", "STEP_TIMEOUT_S", "Branching", "EpisodeSettings", "EpisodeStart", "Limits"]

STEP_TIMEOUT_S = 3600.0
"""More than any step should take: the last one of an episode may run a test suite several times."""
RESET_TIMEOUT_S = 7200.0
"""The first reset of a task may pull an image and build it."""


@dataclass(frozen=True)
class EpisodeStart:
    """The initial state of an episode.

    Attributes:
        seed: passed to `reset`.
        options: passed to `reset`.
        group: episodes with the same group start from the same state; advantages may be computed relative to the group.
        stream: entropy of the episode's random generator; None takes the player's seed and the number of the episode.
    """

    seed: int | None = None
    options: Mapping[str, Any] | None = None
    group: int = 0
    stream: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Limits(Configuration):
    """Limits on actions and episodes. An episode that reaches a limit is truncated, never terminated.

    Attributes:
        max_new_tokens: sampled tokens of one action.
        max_tokens: tokens of one episode, observations included; of one context if the history is shortened. None takes
            the limit of the engine.
        max_turns: turns of one episode; None leaves this to the environment.
        stop_strings: an action ends as soon as it contains one of these.
        step_timeout_s, reset_timeout_s: seconds of wall clock of one step, and of one reset (with the making of a new
            environment where it replaces one). An environment that has not returned by then is never used again: its
            episode is invalid, and the others continue. None waits forever.
        episode_timeout_s: seconds of wall clock of one episode, generation included; checked after each turn.
    """

    max_new_tokens: int
    max_tokens: int | None = None
    max_turns: int | None = None
    stop_strings: tuple[str, ...] = ()
    step_timeout_s: float | None = STEP_TIMEOUT_S
    reset_timeout_s: float | None = RESET_TIMEOUT_S
    episode_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_tokens", "max_turns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be positive, got {value}")
        for name in ("step_timeout_s", "reset_timeout_s", "episode_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigurationError(f"{name} must be positive, got {value}")
        if not all(self.stop_strings):
            raise ConfigurationError("stop_strings: an empty one would end every action at once")


@dataclass(frozen=True)
class Branching(Configuration):
    """Trees instead of single episodes: an episode forks before some turns, and each branch is played to its end.

    Attributes:
        branching: branches of a fork; each samples its own action.
        max_depth: forks between the start and an end; a start gives `branching ** max_depth` episodes.
        every: turns between two forks; the first fork is before the first action.
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
        """Episodes of one start, if none ends before its last fork."""
        return int(self.branching**self.max_depth)

    def forks_before(self, turn: int) -> bool:
        """Whether an episode forks before this turn, counted from 0."""
        return turn % self.every == 0 and turn < self.max_depth * self.every


@dataclass(frozen=True)
class EpisodeSettings(Configuration):
    """How episodes are played.

    Attributes:
        limits: of actions and episodes.
        sampling: how tokens are sampled; temperature 1 without truncation by default.
        history: how a history is shortened that no longer fits into the context; None ends the episode there.
        branching: where episodes fork; None for one episode per start.
        evaluation: play in the evaluation environments.
        constrained: sample actions from `info["legal_actions"]`, a list of texts, wherever an environment gives it. By
            default only where `TextAdapter` does; a text environment's own list may be of something else. Likewise
            `info["grammar"]`, in the form of `Grammar`.
        grammar: the form of all other actions; None for free text.
        grade_when_full: if the context is full and the environment has a method `last_turn`, call it with "tokens" and
            step once more with an empty action, so that the environment ends the episode itself and grades the work so
            far. By default the episode is truncated without another step.
    """

    limits: Limits
    sampling: Sampling = Sampling()
    history: History | None = None
    branching: Branching | None = None
    evaluation: bool = False
    constrained: bool = False
    grammar: Grammar | None = None
    grade_when_full: bool = False
