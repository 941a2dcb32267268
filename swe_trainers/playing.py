"""Which episodes a run plays, and what is counted of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import gymnasium
import numpy as np

from swe_trainers.engines.connect import EngineConfig, Generation, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.ranks import agreed, gathered, n_ranks, rank
from swe_trainers.policy.chat import ChatFormat
from swe_trainers.policy.language_model import LanguageModel
from swe_trainers.rollout.crew import Crew, LocalCrew, Manner, Player
from swe_trainers.rollout.plan import Branching, EpisodeStart, Limits
from swe_trainers.rollout.statistics import staleness
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.run_config import EnvironmentConfig, RolloutConfig, RunConfig
from swe_trainers.scale.ray_cluster import RayConfig
from swe_trainers.scale.ray_crew import RayCrew
from swe_trainers.scale.ray_worker import Environments, Workplace

__all__ = ["Rollouts", "ray_crew"]


class Rollouts:
    """Plays episodes of one policy; which ones is a function of the run's seed alone.

    Args:
        model: the policy.
        chat: how conversations become tokens.
        training: text environments to learn in.
        evaluation: text environments to be measured in, as many; they may be the same.
        limits: the environment's section.
        seed: of the run.
        rollout: how tokens are drawn and histories kept, beyond that.
        crew: plays instead of these environments and an embedded engine.
    """

    def __init__(
        self,
        model: LanguageModel,
        chat: ChatFormat,
        training: Sequence[gymnasium.Env[str, str]],
        evaluation: Sequence[gymnasium.Env[str, str]],
        limits: EnvironmentConfig,
        seed: int,
        *,
        rollout: RolloutConfig | None = None,
        crew: Crew | None = None,
    ) -> None:
        self.before_playing: Callable[[], None] = lambda: None
        self._rollout = rollout or RolloutConfig()
        self._crew = crew or LocalCrew(
            connect(
                EngineConfig(),
                model,
                ExitStack(),
                n_slots=len(training),
                max_tokens=limits.max_tokens,
                folder=Path(),
                training=True,
            ),
            chat,
            training,
            evaluation,
            lockstep=limits.lockstep,
        )
        self._seed = seed
        self._limits = Limits(
            limits.max_new_tokens,
            limits.max_tokens,
            limits.max_turns,
            stop_strings=self._rollout.stop_strings,
            step_timeout_s=self._rollout.step_timeout_s,
        )
        self._player: Player | None = None
        self._pace = _Pace()

    def play(
        self,
        episodes: int,
        sampling: Sampling,
        *,
        number: int,
        attempt: int = 0,
        episodes_per_start: int = 1,
        branching: Branching | None = None,
        evaluation: bool = False,
        ahead: int | None = None,
    ) -> list[Trajectory]:
        """Episodes of the policy as it is now.

        Args:
            episodes: how many; of trees, as many ends.
            sampling: how tokens are drawn.
            number: of the update; it chooses the seeds, with the run's.
            attempt: at this update, from 0; it chooses other seeds.
            episodes_per_start: how many begin at the same state, and make a group.
            branching: where episodes fork, which makes a group of each tree.
            evaluation: play where the policy is measured, from other seeds than in training.
            ahead: episodes for so many further updates may begin, and go on being played after the return: some of what
                is returned may then be of earlier weights. None plays nothing but what is returned.
        """
        if branching is not None:
            episodes //= branching.leaves

        def starts(number: int) -> list[EpisodeStart]:
            entropy = [self._seed, int(evaluation), number, *([attempt] if attempt else [])]
            return self._share(_starts(episodes, episodes_per_start, entropy))

        manner = Manner(self._limits, sampling, self._rollout.history, branching, evaluation)
        with _refusals():
            if ahead is None:
                with self._player.paused(between_episodes=True) if self._player else nullcontext():
                    self._prepare(number, sampling)
                    own = self._crew.play(starts(number), manner)
            else:
                own = self._play_ahead(number, attempt, ahead, starts, manner)
        return gathered(own) if self._crew.shared else agreed(own)

    def metrics(self) -> dict[str, float]:
        """What the engine did since the last call, and how far a server's log-probabilities were from the policy's.

        Where episodes are played ahead, `idle/learner_seconds` in which the learner waited for them, and
        `idle/rollout_seconds` in which nothing could be played.
        """
        if self._player is None:
            return self._crew.metrics()
        return self._crew.metrics() | self._pace.metrics(self._player.idle_s)

    def close(self) -> None:
        """End what is being played ahead."""
        if self._player is not None:
            self._player.close()
            self._player = None

    def _share(self, starts: list[tuple[int, int, int]]) -> list[EpisodeStart]:
        """Which of them this process has played."""
        n, of = (rank(), n_ranks()) if self._crew.shared else (0, 1 if rank() == 0 else 0)
        own = starts[n::of] if of else []
        return [
            EpisodeStart(seed, group=group, stream=(entropy + n, i)) for i, (seed, group, entropy) in enumerate(own)
        ]

    def _prepare(self, number: int, sampling: Sampling) -> None:
        """Give the crew the policy's weights; all processes together."""
        self.before_playing()
        if rank() == 0:
            self._crew.prepare(number, sampling)
        agreed(None)  # a server has the new weights before another rank asks it
        if rank() and self._crew.shared:
            self._crew.prepare(number, sampling)

    def _play_ahead(
        self,
        number: int,
        attempt: int,
        ahead: int,
        starts: Callable[[int], list[EpisodeStart]],
        manner: Manner,
    ) -> list[Trajectory]:
        """This process's share of an update's episodes, all of them begun with weights that are not too old.

        An episode for update u begins once the weights of update u - max_staleness are there, and weights only grow
        newer: so nothing that is learnt from is ever older. Which episodes an update learns from depends on its number
        alone, so that short ones are not preferred.
        """
        player = self._player = self._player or self._crew.ahead(manner)
        asked = time.monotonic()
        if self._pace.version != number:
            with player.paused(between_episodes=not self._rollout.partial):
                self._prepare(number, manner.sampling)
            self._pace.version = number
        rounds = [(number, attempt)] if attempt else [(n, 0) for n in range(number, number + 1 + ahead)]
        for update in rounds:
            if update not in self._pace.rounds:
                own = starts(update[0])
                self._pace.rounds[update] = [None] * len(own)
                player.begin([((*update, i), start) for i, start in enumerate(own)], first=bool(attempt))
        while None in self._pace.rounds[number, attempt]:
            for key, trajectories in player.ended():
                self._pace.rounds[key[0], key[1]][key[2]] = trajectories
        self._pace.waited_s += time.monotonic() - asked
        found = [t for ends in self._pace.rounds.pop((number, attempt)) if ends is not None for t in ends]
        for trajectory in found:
            oldest = int(staleness(trajectory, number).max(initial=0))
            if oldest > self._rollout.max_staleness:
                raise TrainerError(
                    f"update {number}: a token is {oldest} updates old, rollout.max_staleness allows "
                    f"{self._rollout.max_staleness}"
                )
        return found


@dataclass
class _Pace:
    """How far playing is ahead of learning.

    Attributes:
        version: of the weights that play.
        rounds: for each update and attempt at it that is begun, what began at each start and has ended.
        waited_s: seconds in which the learner waited.
        told: of those and of the idle ones, what has been reported.
    """

    version: int | None = None
    rounds: dict[tuple[int, int], list[list[Trajectory] | None]] = field(default_factory=dict)
    waited_s: float = 0.0
    told: tuple[float, float] = (0.0, 0.0)

    def metrics(self, idle_s: float) -> dict[str, float]:
        """Both since the last call."""
        now, before = (self.waited_s, idle_s), self.told
        self.told = now
        return {"idle/learner_seconds": now[0] - before[0], "idle/rollout_seconds": now[1] - before[1]}


def _starts(episodes: int, per_start: int, entropy: list[int]) -> list[tuple[int, int, int]]:
    """Seeds and groups of episodes, and what fixes the random numbers of all of them."""
    seeds = np.random.SeedSequence(entropy).generate_state(math.ceil(episodes / per_start) + 1).tolist()
    return [(seeds[1 + i // per_start], i // per_start, seeds[0]) for i in range(episodes)]


def ray_crew(
    config: RunConfig,
    ray: RayConfig,
    model: LanguageModel,
    chat: ChatFormat,
    environments: Environments,
    generation: Callable[..., Generation],
    stack: ExitStack,
) -> RayCrew:
    """Workers of a cluster with environments of their own, and an engine each or one server for all of them.

    Args:
        config: of the run. ray: its section of the cluster.
        model: the policy.
        chat: how conversations become tokens.
        environments: makes those of a worker.
        generation: connects to the server.
        stack: ends the workers.
    Raises:
        ConfigurationError: there is no such cluster, or no such server.
    """
    embedded = config.engine.kind == "embedded"

    def workplace() -> Workplace:
        return Workplace(
            environments,
            config.engine,
            config.environment.max_tokens,
            chat,
            model=model.copy().requires_grad_(False).eval().to("cpu") if embedded else None,
            device="cuda" if ray.gpus_per_worker else None,
            threads=config.threads,
        )

    leads = rank() == 0
    served = generation(leads=True) if leads and not embedded else None
    crew = RayCrew(ray, workplace, stack, policy=model if embedded else None, generation=served)
    if leads:  # the others play nothing
        crew.join()
    return crew


@contextmanager
def _refusals() -> Iterator[None]:
    """An environment that was asked for what it does not have has been configured wrongly."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, TrainerError) or not _is_refusal(error):
            raise
        raise ConfigurationError(f"environment: {error}") from error


def _is_refusal(error: Exception) -> bool:
    """Whether an environment was asked for what it does not have: its error is called so, as `collect` knows it."""
    return any(kind.__name__ == "ConfigurationError" for kind in type(error).__mro__)
