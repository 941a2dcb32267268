"""Rollouts: environments and an engine that play the episodes of one policy, in this process or on a cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from operator import itemgetter
from typing import Protocol

import gymnasium
import numpy as np

from swe_trainers.engines.connect import Generation
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.engines.grammar import Grammar
from swe_trainers.engines.protocol import Throughput
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import TrainerError
from swe_trainers.model.chat import ChatFormat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.process_group import broadcast, gathered, n_ranks, rank
from swe_trainers.rollout.background import BackgroundPlayer, Key
from swe_trainers.rollout.environments import EnvPool, Failure
from swe_trainers.rollout.history import History
from swe_trainers.rollout.play import Player, iter_episodes
from swe_trainers.rollout.rate import Rate
from swe_trainers.rollout.settings import Branching, EpisodeSettings, EpisodeStart, Limits
from swe_trainers.rollout.statistics import staleness
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["AsyncPlayer", "LocalWorkers", "Rollouts", "Workers", "episode_starts"]


class AsyncPlayer(Protocol):
    """Plays episodes while its caller does something else; see `BackgroundPlayer`."""

    @property
    def idle_s(self) -> float: ...
    def begin(self, episodes: Iterable[tuple[Key, EpisodeStart]], *, first: bool = False) -> None: ...
    def ended(self, timeout_s: float | None = None) -> list[tuple[Key, list[Trajectory]]]: ...
    def paused(self, *, between_episodes: bool) -> AbstractContextManager[None]: ...
    def close(self) -> None: ...


class Workers(Protocol):
    """Environments with engines, on this machine or others.

    Attributes:
        shared: whether each of several training processes has its own; else those of rank 0 play for all.
    """

    shared: bool

    def prepare(self, number: int, sampling: Sampling) -> None:
        """Load the policy's weights after this number of updates; no episode may be running."""
        ...

    def play(self, starts: Sequence[EpisodeStart], settings: EpisodeSettings) -> list[Trajectory]:
        """Play episodes to their end; the trajectories of a start are adjacent, in the order of the starts."""
        ...

    def ahead(self, settings: EpisodeSettings) -> AsyncPlayer:
        """An asynchronous player. While it plays, `prepare` and `play` may be called only inside its pauses."""
        ...

    def metrics(self) -> dict[str, float]:
        """Metrics since the last call."""
        ...

    def close(self) -> list[Failure]:
        """Close the environments that were made here; returns what failed."""
        ...


class LocalWorkers:
    """The environments of this process.

    Args:
        generation: the engine and its weights.
        chat: turns conversations into tokens.
        training: text environments for training.
        evaluation: as many for evaluation; they may be the same.
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
        played = EnvPool.of(training)
        self._generation, self._chat = generation, chat
        self._envs = (played, played if evaluation is training else EnvPool.of(evaluation))
        self._lockstep = lockstep
        self._counted = Throughput()
        self._rate, self._rated = Rate(), Rate()

    @classmethod
    def embedded(
        cls,
        model: LanguageModel,
        chat: ChatFormat,
        training: Sequence[gymnasium.Env[str, str]],
        evaluation: Sequence[gymnasium.Env[str, str]] | None = None,
        *,
        max_tokens: int,
        lockstep: bool = False,
    ) -> LocalWorkers:
        """Workers whose engine reads the policy's own weights, for rollouts and training in turns.

        Args:
            model: the policy.
            chat, training, evaluation, lockstep: as in the constructor; the training environments also evaluate where
                there are no others.
            max_tokens: the longest episode, or context.
        """
        engine = EmbeddedEngine(model, n_slots=len(training), max_tokens=max_tokens)
        return cls(
            Generation(engine), chat, training, training if evaluation is None else evaluation, lockstep=lockstep
        )

    def prepare(self, number: int, sampling: Sampling) -> None:
        self._generation.prepare(number, sampling)

    def play(self, starts: Sequence[EpisodeStart], settings: EpisodeSettings) -> list[Trajectory]:
        envs = self._envs[settings.evaluation]
        engine, chat, lockstep = self._generation.engine, self._chat, self._lockstep
        played = iter_episodes(engine, chat, envs, starts, settings, lockstep=lockstep, rate=self._rate)
        ended = sorted(played, key=itemgetter(0))
        return [trajectory for each in ended for trajectory in each.trajectories]

    def ahead(self, settings: EpisodeSettings) -> BackgroundPlayer:
        player = Player(self._generation.engine, self._chat, self._envs[settings.evaluation], settings, rate=self._rate)
        return BackgroundPlayer(player, renews_actions=self._generation.renews_actions)

    def metrics(self) -> dict[str, float]:
        """Metrics of the engine and of `Rate`; of a server, also the gap of its log-probabilities to the policy's."""
        gap = self._generation.probe_gap
        rate, self._rated = self._rate.since(self._rated), self._rate.until_now()
        metrics = {**self.throughput().metrics(), **rate.metrics()}
        return metrics if gap is None else {**metrics, "engine/probe_gap": gap}

    def close(self) -> list[Failure]:
        owned = [pool for pool in dict.fromkeys(self._envs) if pool.replaces]
        for pool in owned:
            pool.close()
        return [failure for pool in owned for failure in pool.failures]

    def throughput(self) -> Throughput:
        """The engine's throughput since the last call."""
        done = self._generation.engine.throughput
        before, self._counted = self._counted, replace(done)
        return Throughput(**{f.name: getattr(done, f.name) - getattr(before, f.name) for f in fields(Throughput)})


def episode_starts(
    n: int, entropy: Sequence[int], *, per_start: int = 1, share: tuple[int, int] = (0, 1)
) -> list[EpisodeStart]:
    """Seeds, groups and random streams of an update's episodes.

    Args:
        n: episodes of all processes.
        entropy: seed of the run, 1 for evaluation or 0, number of the update, and number of a repeated attempt.
        per_start: how many episodes start from the same state and form a group.
        share: (rank, number of ranks): the episodes rank, rank + number of ranks, … are returned.
    """
    first, every = share
    stream, *seeds = np.random.SeedSequence(list(entropy)).generate_state(math.ceil(n / per_start) + 1).tolist()
    groups = [number // per_start for number in range(first, n, every)]
    return [EpisodeStart(seeds[g], group=g, stream=(stream + first, i)) for i, g in enumerate(groups)]


class Rollouts:
    """Plays the episodes of one policy; seeds and random streams are a function of the run's seed alone.

    Args:
        workers: environments and engines.
        limits: of actions and episodes.
        seed: of the run.
        history: how a history is shortened that no longer fits into the context; None ends the episode there.
        constrained, grammar: restrict actions; see `EpisodeSettings`.
        max_staleness: updates by which the weights that sample a token may be older than those trained on it.
        partial: suspend episodes under way when weights change, and resume them with the new ones; else they are played
            to their end first.

    Attributes:
        before_playing: called before the workers load the policy's weights, by all training processes.
    """

    def __init__(
        self,
        workers: Workers,
        limits: Limits,
        *,
        seed: int,
        history: History | None = None,
        constrained: bool = False,
        grammar: Grammar | None = None,
        max_staleness: int = 0,
        partial: bool = False,
    ) -> None:
        self.before_playing: Callable[[], None] = lambda: None
        self._workers, self._limits, self._seed, self._history = workers, limits, seed, history
        self._max_staleness, self._partial = max_staleness, partial
        self._constrained, self._grammar = constrained, grammar
        self._player: AsyncPlayer | None = None
        self._version: int | None = None  # of the weights of the asynchronous player
        # For each update and attempt that has begun: the trajectories of each start, or None while it is played.
        self._rounds: dict[tuple[int, int], list[list[Trajectory] | None]] = {}
        self._waited_s = 0.0
        self._reported = (0.0, 0.0)

    def play(
        self,
        episodes: int,
        sampling: Sampling,
        *,
        update: int,
        attempt: int = 0,
        episodes_per_start: int = 1,
        branching: Branching | None = None,
        evaluation: bool = False,
        ahead: int | None = None,
    ) -> list[Trajectory]:
        """Play episodes with the current policy.

        Args:
            episodes: how many; for trees, the number of ends.
            sampling: how tokens are sampled.
            update: number of updates done; together with the run's seed it determines the seeds.
            attempt: at this update, from 0; each attempt has other seeds.
            episodes_per_start: how many episodes start from the same state and form a group.
            branching: where episodes fork; each tree is a group.
            evaluation: play in the evaluation environments, with other seeds than in training.
            ahead: asynchronous rollouts: episodes for this number of further updates may begin, and continue after the
                return; some returned tokens may then be sampled by older weights. None plays only what is returned.
        Raises:
            ConfigurationError: an environment was asked for something that it does not have.
            TrainerError: an engine failed, or a token is older than `max_staleness`.
        """
        settings = EpisodeSettings(
            self._limits, sampling, self._history, branching, evaluation, self._constrained, self._grammar
        )
        n_starts = episodes if branching is None else episodes // branching.leaves

        def starts(update: int, attempt: int) -> list[EpisodeStart]:
            """The episodes that this process plays."""
            if not self._workers.shared:
                share = (0, 1) if rank() == 0 else None
            else:
                share = rank(), n_ranks()
            entropy = [self._seed, int(evaluation), update, *([attempt] if attempt else [])]
            return [] if share is None else episode_starts(n_starts, entropy, per_start=episodes_per_start, share=share)

        if ahead is None:
            with self._player.paused(between_episodes=True) if self._player else nullcontext():
                self._prepare(update, sampling)
                own = self._workers.play(starts(update, attempt), settings)
        else:
            own = self._play_ahead(update, attempt, ahead, starts, settings)
        return gathered(own) if self._workers.shared else broadcast(own)

    def metrics(self) -> dict[str, float]:
        """Metrics of the engines since the last call.

        With asynchronous rollouts also `idle/learner_seconds`, in which training waited for episodes, and
        `idle/rollout_seconds`, in which nothing was played.
        """
        if self._player is None:
            return self._workers.metrics()
        before, self._reported = self._reported, (self._waited_s, self._player.idle_s)
        learner_s, rollout_s = (now - then for now, then in zip(self._reported, before, strict=True))
        return self._workers.metrics() | {"idle/learner_seconds": learner_s, "idle/rollout_seconds": rollout_s}

    def close(self) -> list[Failure]:
        """End asynchronous rollouts, and close the environments that the workers made; returns what failed."""
        if self._player is not None:
            self._player.close()
            self._player = None
        return self._workers.close()

    def _prepare(self, update: int, sampling: Sampling) -> None:
        """Load the policy's weights into the workers; called by all processes together."""
        self.before_playing()
        if rank() == 0:
            self._workers.prepare(update, sampling)
        broadcast(None)  # a server has the new weights before another rank uses it
        if rank() and self._workers.shared:
            self._workers.prepare(update, sampling)

    def _play_ahead(
        self,
        update: int,
        attempt: int,
        ahead: int,
        starts: Callable[[int, int], list[EpisodeStart]],
        settings: EpisodeSettings,
    ) -> list[Trajectory]:
        """This process's part of an update's episodes.

        An episode for update u begins only after the weights of update u - max_staleness are loaded, and later weights
        are only newer, so no token is older. Which episodes an update is trained on depends only on the update's
        number, so short episodes are not preferred.
        """
        player = self._player = self._player or self._workers.ahead(settings)
        called_at = time.monotonic()
        if self._version != update:
            with player.paused(between_episodes=not self._partial):
                self._prepare(update, settings.sampling)
            self._version = update
        rounds = [(update, attempt)] if attempt else [(n, 0) for n in range(update, update + 1 + ahead)]
        for key in rounds:
            if key not in self._rounds:
                own = starts(*key)
                self._rounds[key] = [None] * len(own)
                player.begin([((*key, i), start) for i, start in enumerate(own)], first=bool(attempt))
        while None in self._rounds[update, attempt]:
            for (of_update, of_attempt, i), trajectories in player.ended():
                self._rounds[of_update, of_attempt][i] = trajectories
        self._waited_s += time.monotonic() - called_at
        found = [t for ends in self._rounds.pop((update, attempt)) if ends is not None for t in ends]
        for trajectory in found:
            oldest = int(staleness(trajectory, update).max(initial=0))
            if oldest > self._max_staleness:
                raise TrainerError(
                    f"update {update}: a token is {oldest} updates old, rollout.max_staleness allows "
                    f"{self._max_staleness}"
                )
        return found
