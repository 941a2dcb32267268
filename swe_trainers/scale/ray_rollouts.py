"""Rollouts on a Ray cluster: workers that play, replaced where they die; weights go into the object store once.

The learner's process assigns episodes one by one, as workers have free environments, so that a slow worker delays no
other. The unfinished episodes of a worker that dies are replayed by another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from swe_trainers.engines.connect import Generation
from swe_trainers.engines.sampling import Sampling
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.background import Key
from swe_trainers.rollout.environments import Failure
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.scale.ray_cluster import RayConfig, joined_cluster
from swe_trainers.scale.ray_dispatch import Dispatcher, EpisodeQueue
from swe_trainers.scale.ray_worker import WorkerSetup, pack

__all__ = ["RayWorkers"]


class RayWorkers:
    """Rollout workers on the machines of a cluster.

    Args:
        config: of the cluster.
        setup: makes what every worker is started with; called when the first ones are started.
        stack: ends the workers.
        policy: whose weights an embedded engine of each worker takes.
        generation: instead of that, of a server that all workers ask, whose weights this process changes.
    """

    shared = False

    def __init__(
        self,
        config: RayConfig,
        setup: Callable[[], WorkerSetup],
        stack: ExitStack,
        *,
        policy: LanguageModel | None = None,
        generation: Generation | None = None,
    ) -> None:
        self._config, self._setup, self._stack = config, setup, stack
        self._policy, self._generation = policy, generation
        self._dispatcher: Dispatcher | None = None

    def join(self) -> Dispatcher:
        """The dispatcher of the workers, which are started by the first call, and get ready in the background.

        Raises:
            ConfigurationError: Ray is not installed, or there is no such cluster.
        """
        if self._dispatcher is None:
            ray: Any = self._stack.enter_context(joined_cluster(self._config))
            self._dispatcher = Dispatcher(ray, self._config, self._setup())
            self._stack.callback(self._dispatcher.close)
        return self._dispatcher

    def prepare(self, number: int, sampling: Sampling) -> None:
        if self._generation is not None:
            self._generation.prepare(number, sampling)
        dispatcher = self.join()
        if dispatcher.version != number:
            dispatcher.set_weights(number, None if self._policy is None else pack(self._policy))

    def play(self, starts: Sequence[EpisodeStart], settings: EpisodeSettings) -> list[Trajectory]:
        if not starts:
            return []
        player = self.ahead(settings)
        try:
            player.begin([((i,), start) for i, start in enumerate(starts)])
            found: dict[Key, list[Trajectory]] = {}
            while len(found) < len(starts):
                found.update(player.ended())
        finally:
            player.close()
        return [trajectory for key in sorted(found) for trajectory in found[key]]

    def ahead(self, settings: EpisodeSettings) -> _Player:
        return _Player(self.join, settings)

    def close(self) -> list[Failure]:
        return []  # each worker closes its own

    def metrics(self) -> dict[str, float]:
        """What the engines did; and `ray/…`: workers that are ready, deaths and replayed episodes so far."""
        found = {} if self._dispatcher is None else self._dispatcher.metrics()
        gap = None if self._generation is None else self._generation.probe_gap
        return found | ({"engine/probe_gap": gap} if gap is not None else {})


class _Player:
    """Plays with one `EpisodeSettings` on all workers; see `BackgroundPlayer`, which each of them has."""

    def __init__(self, join: Callable[[], Dispatcher], settings: EpisodeSettings) -> None:
        self._join = join
        self._queue = EpisodeQueue(settings)
        self._dispatcher: Dispatcher | None = None

    @property
    def idle_s(self) -> float:
        return 0.0 if self._dispatcher is None else self._dispatcher.idle_s

    def begin(self, episodes: Iterable[tuple[Key, EpisodeStart]], *, first: bool = False) -> None:
        episodes = list(episodes)
        if self._dispatcher is None and episodes:
            self._dispatcher = self._join()
            self._dispatcher.open(self._queue)
        if self._dispatcher is not None:
            self._dispatcher.begin(self._queue, episodes, first=first)

    def ended(self, timeout_s: float | None = None) -> list[tuple[Key, list[Trajectory]]]:
        return [] if self._dispatcher is None else self._dispatcher.ended(self._queue, timeout_s)

    @contextmanager
    def paused(self, *, between_episodes: bool) -> Iterator[None]:
        if self._dispatcher is None:
            yield
            return
        with self._dispatcher.paused(self._queue, between_episodes=between_episodes):
            yield

    def close(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.close_queue(self._queue)
