"""Episodes on a background thread, played while the caller trains."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

from swe_trainers.errors import RolloutError
from swe_trainers.rollout.play import Player
from swe_trainers.rollout.settings import EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["BackgroundPlayer", "Key"]

Key = tuple[int, ...]
"""The caller's name of an episode."""


class BackgroundPlayer:
    """Plays episodes on a thread: `begin` queues them, `ended` returns them.

    Other threads may use the engine and the environments only inside `paused`.

    Args:
        player: used only by the background thread; closed with this object.
        renews_actions: whether the engine's weights may change while it generates an action.
    """

    def __init__(self, player: Player, *, renews_actions: bool) -> None:
        self._player, self._renews_actions = player, renews_actions
        self._changed = threading.Condition(threading.RLock())  # guards everything below
        self._waiting: deque[tuple[Key, EpisodeStart]] = deque()
        self._ended: list[tuple[Key, list[Trajectory]]] = []
        self._pause: Literal["at once", "after actions", "after episodes"] | None = None
        self._resting = False
        self._closed = False
        self._idle_s = 0.0
        self._idle_since: float | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="play")
        self._thread: Future[None] | None = None

    @property
    def idle_s(self) -> float:
        """Seconds without an episode to play, or paused."""
        with self._changed:
            return self._idle_s + (0.0 if self._idle_since is None else time.monotonic() - self._idle_since)

    def begin(self, episodes: Iterable[tuple[Key, EpisodeStart]], *, first: bool = False) -> None:
        """Queue episodes; each starts when an environment is free.

        Args:
            episodes: names and initial states.
            first: before those that are queued already.
        Raises:
            Exception: the exception that ended the background thread.
        """
        self._check()
        with self._changed:
            self._waiting = deque([*episodes, *self._waiting] if first else [*self._waiting, *episodes])
            if self._thread is None and self._waiting:
                self._thread = self._pool.submit(self._play)
                self._thread.add_done_callback(lambda _: self._notify())
            self._notify()

    def ended(self, timeout_s: float | None = None) -> list[tuple[Key, list[Trajectory]]]:
        """Wait for an episode to end; returns all that have ended since the last call.

        Returns:
            For each name one trajectory, or the ends of a tree. Empty after the timeout.
        Raises:
            Exception: the exception that ended the background thread.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._is_over(), timeout_s)
            found, self._ended = self._ended, []
        if not found:
            self._check()
        return found

    @contextmanager
    def paused(self, *, between_episodes: bool) -> Iterator[None]:
        """In the block nothing is generated: weights may change, and the engine may be used.

        Args:
            between_episodes: wait for the end of running episodes; otherwise they are suspended and resumed afterwards,
                with running actions finished first unless the engine renews them.
        Raises:
            Exception: the exception that ended the background thread.
        """
        if self._thread is None:
            yield
            return
        with self._changed:
            without = "at once" if self._renews_actions else "after actions"
            self._pause = "after episodes" if between_episodes else without  # type: ignore[assignment]
            self._notify()
            self._changed.wait_for(lambda: self._resting or self._is_over())
        try:
            self._check()
            yield
        finally:
            with self._changed:
                self._pause, self._resting = None, False
                self._notify()

    def close(self) -> None:
        """Drop the running episodes; waits for running calls to environments."""
        with self._changed:
            self._closed = True
            self._notify()
        self._pool.shutdown()

    def _play(self) -> None:
        """The background thread."""
        player = self._player
        keys: dict[int, Key] = {}  # by number of the episode
        try:
            while True:
                with self._changed:
                    if self._closed:
                        return
                    if self._pause is not None and self._may_rest():
                        self._rest()
                        continue
                    while self._waiting and player.n_free and self._pause is None:
                        key, start = self._waiting.popleft()
                        keys[player.start(start)] = key
                    new_actions = self._pause != "after actions"
                    if not player.n_playing and (player.n_free or not self._waiting):
                        with self._idle():
                            self._changed.wait_for(lambda: self._waiting or self._pause or self._closed)
                        continue
                if not player.n_playing:
                    raise player.none_left()
                ended = player.advance(new_actions=new_actions)
                if ended:
                    with self._changed:
                        self._ended += [(keys.pop(each.number), each.trajectories) for each in ended]
                        self._changed.notify_all()
        finally:
            player.close()

    def _may_rest(self) -> bool:
        if self._pause == "at once":
            return True
        return not self._player.engine.busy if self._pause == "after actions" else not self._player.n_playing

    def _rest(self) -> None:
        """Wait for the end of a pause."""
        with self._idle():
            pause = self._pause
            while self._pause == pause and not self._closed:  # the next pause may begin before this thread wakes up
                self._resting = True
                self._changed.notify_all()
                self._changed.wait()
            self._resting = False

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Count the time of the block."""
        self._idle_since = time.monotonic()
        try:
            yield
        finally:
            self._idle_s += time.monotonic() - self._idle_since
            self._idle_since = None

    def _notify(self) -> None:
        """Wake both threads."""
        with self._changed:
            self._changed.notify_all()
        self._player.wake()

    def _is_over(self) -> bool:
        return self._thread is not None and self._thread.done()

    def _check(self) -> None:
        if self._thread is not None and self._thread.done():
            self._thread.result()
        if self._closed:
            raise RolloutError("the player is closed")
