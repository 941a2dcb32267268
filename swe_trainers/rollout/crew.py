"""Who plays: an engine and environments, in this process; taking turns with the learner, or ahead of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Protocol

import gymnasium

from swe_trainers.engines.connect import Generation
from swe_trainers.engines.protocol import Throughput
from swe_trainers.engines.sampling import Sampling
from swe_trainers.policy.chat import ChatFormat
from swe_trainers.rollout.background import BackgroundPlay, Key
from swe_trainers.rollout.collection import Collection
from swe_trainers.rollout.feed import Feed, Listed
from swe_trainers.rollout.history import HeadTail
from swe_trainers.rollout.plan import Branching, EpisodeStart, Limits
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Crew", "LocalCrew", "Manner", "Player"]


@dataclass(frozen=True)
class Manner:
    """How episodes are played.

    Attributes:
        limits: of actions and episodes.
        sampling: how tokens are drawn.
        history: how a history that has outgrown its context is shortened; None ends the episode there.
        branching: where episodes fork; None for one episode a start.
        evaluation: play where the policy is measured.
    """

    limits: Limits
    sampling: Sampling
    history: HeadTail | None = None
    branching: Branching | None = None
    evaluation: bool = False


class Player(Protocol):
    """Plays what it is given while its caller does something else; see `BackgroundPlay`."""

    @property
    def idle_s(self) -> float: ...
    def begin(self, episodes: Iterable[tuple[Key, EpisodeStart]], *, first: bool = False) -> None: ...
    def ended(self, timeout_s: float | None = None) -> list[tuple[Key, list[Trajectory]]]: ...
    def paused(self, *, between_episodes: bool) -> AbstractContextManager[None]: ...
    def close(self) -> None: ...


class Crew(Protocol):
    """Environments with an engine, wherever they are.

    Attributes:
        shared: whether each of several learning processes has one; else the first one's plays for all.
    """

    shared: bool

    def prepare(self, number: int, sampling: Sampling) -> None:
        """Take the policy's weights as they are now, after so many updates; nobody plays meanwhile."""
        ...

    def play(self, starts: Sequence[EpisodeStart], manner: Manner) -> list[Trajectory]:
        """Play episodes to their end; what began at a start stands together, in the order of the starts."""
        ...

    def ahead(self, manner: Manner) -> Player:
        """Who plays while the caller learns. While it plays, `prepare` and `play` may be called in its pauses only."""
        ...

    def metrics(self) -> dict[str, float]:
        """What was done since the last call."""
        ...


class LocalCrew:
    """The environments of this process.

    Args:
        generation: of the policy's actions.
        chat: how conversations become tokens.
        training: text environments to learn in.
        evaluation: text environments to be measured in, as many; they may be the same.
        lockstep: environments and engine take turns.
    """

    shared = True

    def __init__(
        self,
        generation: Generation,
        chat: ChatFormat,
        training: Sequence[gymnasium.Env[str, str]],
        evaluation: Sequence[gymnasium.Env[str, str]],
        *,
        lockstep: bool = False,
    ) -> None:
        self._generation, self._chat, self._envs = generation, chat, (training, evaluation)
        self._lockstep = lockstep
        self._counted = Throughput()

    def prepare(self, number: int, sampling: Sampling) -> None:
        self._generation.prepare(number, sampling)

    def play(self, starts: Sequence[EpisodeStart], manner: Manner) -> list[Trajectory]:
        feed = Listed(starts)
        self._collection(feed, manner, lockstep=self._lockstep).play()
        return feed.trajectories

    def ahead(self, manner: Manner) -> BackgroundPlay:
        return BackgroundPlay(
            lambda feed: self._collection(feed, manner, lockstep=False),
            renews_actions=self._generation.renews_actions,
        )

    def metrics(self) -> dict[str, float]:
        """What the engine did, and how far a server's log-probabilities were from the policy's."""
        gap = self._generation.probe_gap()
        return self.done().metrics() | ({"engine/probe_gap": gap} if gap is not None else {})

    def done(self) -> Throughput:
        """What the engine did since the last call."""
        done = self._generation.engine.throughput
        before, self._counted = self._counted, replace(done)
        return Throughput(**{f.name: getattr(done, f.name) - getattr(before, f.name) for f in fields(Throughput)})

    def _collection(self, feed: Feed, manner: Manner, *, lockstep: bool) -> Collection:
        return Collection(
            self._generation.engine,
            self._chat,
            self._envs[manner.evaluation],
            feed,
            limits=manner.limits,
            sampling=manner.sampling,
            history=manner.history,
            branching=manner.branching,
            lockstep=lockstep,
        )
