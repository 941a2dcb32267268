"""Assigns episodes to workers, and replaces workers that die."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from swe_trainers.engines.protocol import Throughput
from swe_trainers.errors import TrainerError
from swe_trainers.rollout.background import Key
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory
from swe_trainers.scale.ray_cluster import RayConfig
from swe_trainers.scale.ray_worker import Packed, RolloutWorker, WorkerSetup

__all__ = ["Dispatcher", "EpisodeQueue"]

_POLL_S = 0.2  # how long to wait for answers of workers before the queues are looked at again
_WAIT_S = 20.0  # how long a worker waits for the end of an episode before it answers without one
_TRIES = 3  # an episode whose workers died so often is invalid: it is taken to be the cause


@dataclass(eq=False)
class EpisodeQueue:
    """Episodes with the same settings: those that wait for a worker, and those that have ended."""

    settings: EpisodeSettings
    waiting: deque[tuple[Key, EpisodeStart]] = field(default_factory=deque)
    ended: list[tuple[Key, list[Trajectory]]] = field(default_factory=list)
    held: bool = False


@dataclass(eq=False)
class _Worker:
    """The dispatcher's state of one actor.

    Attributes:
        actor: Ray's handle.
        calls: unanswered calls, and their methods.
        n_slots: episodes that it plays at once; 0 until it is set up.
        playing: the episodes assigned to it.
        version: of the weights that it is known to have.
        sent: the version that a call to begin brings, until it is answered.
        drops: whether it must drop the episodes of a queue that was closed before it begins others.
        stale: calls whose answers may name episodes of such a queue.
    """

    actor: Any
    calls: dict[Any, str] = field(default_factory=dict)
    n_slots: int = 0
    playing: dict[Key, EpisodeStart] = field(default_factory=dict)
    version: int | None = None
    sent: dict[Any, int | None] = field(default_factory=dict)
    drops: bool = False
    stale: set[Any] = field(default_factory=set)

    @property
    def n_free(self) -> int:
        return 0 if self.drops else self.n_slots - len(self.playing)


class Dispatcher:
    """The workers of a run, and the thread that assigns episodes to them.

    Args:
        ray: the module, connected.
        config: of the workers.
        setup: what each of them is started with.
    """

    def __init__(self, ray: Any, config: RayConfig, setup: WorkerSetup) -> None:
        self._ray, self._config = ray, config
        self._setup = ray.put(setup)
        self._changed = threading.Condition(threading.RLock())
        self._queues: list[EpisodeQueue] = []
        self._workers: list[_Worker] = []
        self._paused: list[_Worker] = []
        self._tries: Counter[Key] = Counter()
        self._deaths = self._replayed = 0
        self._throughput = Throughput()
        self._weights: Any = None
        self._closed = False
        self._without_workers_since = time.monotonic()
        self.version: int | None = None
        self.idle_s = 0.0
        for _ in range(config.workers):
            self._start_workers()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dispatch")
        self._work: Future[None] = self._pool.submit(self._dispatch)
        self._work.add_done_callback(lambda _: self._notify())

    def open(self, queue: EpisodeQueue) -> None:
        """Assign from this queue until it is closed; the one before is empty, or held without assigned episodes."""
        with self._changed:
            self._queues.append(queue)

    def close_queue(self, queue: EpisodeQueue) -> None:
        """Return to the queue before; episodes of this one are dropped, also those that are being played."""
        with self._changed:
            if queue not in self._queues:
                return
            if queue is self._queues[-1]:  # no episode of those below is assigned
                for worker in self._busy():
                    for key in worker.playing:
                        self._tries.pop(key, None)
                    worker.playing.clear()
                    worker.drops = True
                    worker.stale |= {ref for ref, what in worker.calls.items() if what == "ended"}
            self._queues.remove(queue)
            self._assign()
            self._notify()

    def begin(self, queue: EpisodeQueue, episodes: Sequence[tuple[Key, EpisodeStart]], *, first: bool = False) -> None:
        """Queue episodes; `first` before the others. Raises what has ended the dispatcher."""
        self._check()
        with self._changed:
            queue.waiting = deque([*episodes, *queue.waiting] if first else [*queue.waiting, *episodes])
            self._assign()
            self._notify()

    def ended(self, queue: EpisodeQueue, timeout_s: float | None = None) -> list[tuple[Key, list[Trajectory]]]:
        """Episodes that have ended since the last call; waits for one. Raises what has ended the dispatcher."""
        with self._changed:
            self._changed.wait_for(lambda: queue.ended or self._work.done(), timeout_s)
            found, queue.ended = queue.ended, []
        if not found:
            self._check()
        return found

    @contextmanager
    def paused(self, queue: EpisodeQueue, *, between_episodes: bool) -> Iterator[None]:
        """No worker generates inside; see `BackgroundPlayer.paused`. Raises what has ended the dispatcher."""
        with self._changed:
            queue.held = True
            self._changed.wait_for(lambda: self._may_pause(between_episodes) or self._work.done())
            self._paused = self._busy()
        try:
            self._check()
            self._call_paused("pause", between_episodes=False)
            yield
        finally:
            self._call_paused("resume")
            with self._changed:
                self._paused = []
                queue.held = False
                self._assign()
                self._notify()

    def set_weights(self, version: int, weights: Packed | None) -> None:
        """Use these weights for episodes that begin from now on, and for those that are paused."""
        with self._changed:
            self.version, self._weights = version, None if weights is None else self._ray.put(weights)
            for worker in self._paused:
                worker.version = version
        self._call_paused("load_weights", version, self._weights)

    def metrics(self) -> dict[str, float]:
        """What the engines did since the last call; workers that are ready, deaths and replays so far."""
        with self._changed:
            done, self._throughput = self._throughput, Throughput()
            ready = sum(worker.n_slots > 0 for worker in self._workers)
        counts = {"ray/workers": ready, "ray/deaths": self._deaths, "ray/episodes_replayed": self._replayed}
        return done.metrics() | {name: float(count) for name, count in counts.items()}

    def close(self) -> None:
        """End all workers; they have 10 s to close their environments."""
        with self._changed:
            self._closed = True
            self._notify()
        self._pool.shutdown()
        refs = [worker.actor.close.remote() for worker in self._workers if worker.n_slots]
        self._ray.wait(refs, num_returns=len(refs), timeout=10) if refs else None
        for worker in self._workers:
            self._ray.kill(worker.actor)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _check(self) -> None:
        if self._work.done():
            self._work.result()
            raise TrainerError("nothing can be played any more: the workers were closed")

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers if worker.playing]

    def _may_pause(self, between_episodes: bool) -> bool:
        """Whether a pause may begin: all assigned episodes have ended, or at least begun."""
        if between_episodes:
            return not self._busy()
        return not any("begin" in worker.calls.values() for worker in self._workers)

    def _call_paused(self, method: str, *arguments: Any, **named: Any) -> None:
        """Call all paused workers and wait; the death of one is noticed by its other calls."""
        refs = [getattr(worker.actor, method).remote(*arguments, **named) for worker in self._paused]
        for ref in refs:
            try:
                self._ray.get(ref)
            except self._ray.exceptions.RayActorError:
                continue

    def _start_workers(self) -> None:
        config = self._config
        actor = (
            self._ray.remote(RolloutWorker)
            .options(
                num_cpus=config.cpus_per_worker,
                num_gpus=config.gpus_per_worker,
                memory=int(config.memory_per_worker_gb * 1e9) or None,
                max_concurrency=4,
                scheduling_strategy="SPREAD",
            )
            .remote()
        )
        worker = _Worker(actor)
        worker.calls[actor.set_up.remote(self._setup)] = "set_up"
        self._workers.append(worker)

    def _dispatch(self) -> None:
        """The thread: assign episodes, wait for answers, handle them."""
        before = time.monotonic()
        while not self._closed:
            with self._changed:
                self._assign()
                calls = {ref: worker for worker in self._workers for ref in worker.calls}
                if not calls:
                    self._changed.wait(_POLL_S)
                idle = not self._busy() or self._queues[-1].held if self._queues else True
            done = self._ray.wait(list(calls), timeout=_POLL_S)[0] if calls else []
            with self._changed:
                for ref in done:
                    self._handle(calls[ref], ref)
                self.idle_s += time.monotonic() - before if idle else 0.0
                before = time.monotonic()
                self._changed.notify_all()
            self._check_workers()

    def _assign(self) -> None:
        """Assign queued episodes to the workers with the most free slots, and ask busy ones for ended episodes."""
        for each in self._workers:  # one answers its calls in any order: it must have begun what it is to drop
            if each.drops and not {"begin", "drop"} & {*each.calls.values()} and not self._closed:
                each.calls[each.actor.drop.remote()] = "drop"
        queue = self._queues[-1] if self._queues else None
        given: dict[_Worker, list[tuple[Key, EpisodeStart]]] = {}
        while queue is not None and queue.waiting and not queue.held and not self._closed:
            worker = max(self._workers, key=lambda worker: worker.n_free, default=None)
            if worker is None or worker.n_free < 1:
                break
            key, start = queue.waiting.popleft()
            worker.playing[key] = start
            given.setdefault(worker, []).append((key, start))
        for worker, episodes in given.items():
            assert queue is not None
            # A worker answers several calls at once, in any order: each brings the weights until one has been answered.
            weights = None if worker.version == self.version else self._weights
            ref = worker.actor.begin.remote(queue.settings, episodes, self.version, weights)
            worker.calls[ref], worker.sent[ref] = "begin", self.version
        for worker in self._busy():
            if "ended" not in worker.calls.values() and "begin" not in worker.calls.values():
                worker.calls[worker.actor.ended.remote(_WAIT_S)] = "ended"

    def _handle(self, worker: _Worker, ref: Any) -> None:
        """Handle one answer; a worker that has died is replaced."""
        what, stale = worker.calls.pop(ref, None), ref in worker.stale
        worker.stale.discard(ref)
        if what is None:  # the worker was replaced meanwhile
            return
        exceptions = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
        except exceptions.RayActorError as error:
            self._replace(worker, str(error))
            return
        except exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        if what == "begin":
            worker.version = worker.sent.pop(ref)
        if what == "drop":
            worker.drops = False
        if what == "set_up":
            worker.n_slots = answer
        if what == "ended":
            found, throughput = answer
            for key, trajectories in () if stale else found:
                del worker.playing[key]
                self._tries.pop(key, None)
                self._queues[-1].ended.append((key, trajectories))
            for f in fields(Throughput):
                setattr(self._throughput, f.name, getattr(self._throughput, f.name) + getattr(throughput, f.name))

    def _replace(self, worker: _Worker, why: str) -> None:
        """Replace a worker that died; its episodes are replayed before all others."""
        self._deaths += 1
        if self._deaths > self._config.restarts:
            raise TrainerError(
                f"scale.ray: {self._deaths} workers died, scale.ray.restarts allows {self._config.restarts}: "
                f"{' '.join(why.split())[:300]}"
            )
        self._workers.remove(worker)
        worker.calls.clear()
        self._ray.kill(worker.actor)
        self._start_workers()
        queue = self._queues[-1] if self._queues else None
        for key, start in reversed(worker.playing.items()):
            self._tries[key] += 1
            if queue is not None and self._tries[key] < _TRIES:
                self._replayed += 1
                queue.waiting.appendleft((key, start))
            elif queue is not None:
                queue.ended.append((key, [_failed(start)]))

    def _check_workers(self) -> None:
        """Raise TrainerError if no worker has been ready for too long."""
        if any(worker.n_slots for worker in self._workers):
            self._without_workers_since = time.monotonic()
        elif time.monotonic() - self._without_workers_since > self._config.start_timeout_s:
            asked = {"CPU": self._config.cpus_per_worker, "GPU": self._config.gpus_per_worker}
            asked["memory"] = self._config.memory_per_worker_gb * 1e9
            there = self._ray.cluster_resources()
            raise TrainerError(
                f"scale.ray: no worker was there after {self._config.start_timeout_s:g} s; each asks for "
                + ", ".join(f"{name} {amount:g} of {there.get(name, 0):g}" for name, amount in asked.items() if amount)
                + ". Try: scale.ray.cpus_per_worker, or a longer scale.ray.start_timeout_s"
            )


def _failed(start: EpisodeStart) -> Trajectory:
    """The invalid trajectory of an episode during which several workers died."""
    return Trajectory(
        token_ids=np.zeros(0, dtype=np.int64),
        action_mask=np.zeros(0, dtype=np.bool_),
        rollout_logprobs=np.zeros(0, dtype=np.float32),
        rewards=np.zeros(0, dtype=np.float32),
        terminated=False,
        truncated=False,
        valid=False,
        failure_reason=f"{_TRIES} rollout workers died while they played it",
        group=start.group,
        seed=start.seed,
    )
