"""Episodes on a thread of their own, which go on while the caller does something else: learning, for one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from swe_trainers.errors import RolloutError
from swe_trainers.rollout.collection import Collection
from swe_trainers.rollout.feed import Feed, Rest
from swe_trainers.rollout.plan import EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["BackgroundPlay", "Key"]

Key = tuple[int, ...]
"""What the caller knows an episode by."""


class _Stopped(Exception):  # noqa: N818 - ends the thread from wherever it is, and is no error
    """Nobody wants what is being played any more."""


class BackgroundPlay:
    """A collection that does not end by itself: episodes are handed in, and taken out when they have ended.

    Its engine and its environments are used by its thread alone, but inside `paused`.

    Args:
        collection: makes the collection that takes its episodes from a feed.
        renews_actions: whether the engine's weights may change while it generates.

    Raises:
        ConfigurationError: as `Collection`.
    """

    def __init__(self, collection: Callable[[Feed], Collection], *, renews_actions: bool) -> None:
        self._renews_actions = renews_actions
        self._desk = _Desk()
        self._collection = collection(_Feed(self._desk))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="play")
        self._played: Future[None] | None = None

    @property
    def idle_s(self) -> float:
        """Seconds in which there was nothing to play, or a pause kept everything from being played."""
        with self._desk.changed:
            since = self._desk.idle_since
            return self._desk.idle_s + (0.0 if since is None else time.monotonic() - since)

    def begin(self, episodes: Iterable[tuple[Key, EpisodeStart]], *, first: bool = False) -> None:
        """Have episodes played as environments become free.

        Args:
            episodes: where they begin, and what they are known by.
            first: before those that have not begun yet.
        Raises:
            Exception: whatever has ended the thread.
        """
        self._check()
        with self._desk.changed:
            waiting = self._desk.starts
            self._desk.starts = deque([*episodes, *waiting] if first else [*waiting, *episodes])
            if self._played is None and self._desk.starts:
                self._played = self._pool.submit(self._play)
                self._played.add_done_callback(lambda _: self._desk.tell())
            self._tell()

    def ended(self, timeout_s: float | None = None) -> list[tuple[Key, list[Trajectory]]]:
        """What has ended since the last call; waits for something.

        Returns:
            What began at a start: one trajectory, or the ends of a tree. Empty where the time is over.
        Raises:
            Exception: whatever has ended the thread.
        """
        with self._desk.changed:
            self._desk.changed.wait_for(lambda: self._desk.ended or self._over(), timeout_s)
            found, self._desk.ended = self._desk.ended, []
        if not found:
            self._check()
        return found

    @contextmanager
    def paused(self, *, between_episodes: bool) -> Iterator[None]:
        """Nothing is generated inside: weights may change, and the engine may be used.

        Args:
            between_episodes: episodes under way are played to their end first; else they wait, and go on afterwards.
                Actions under way are finished first where the engine does not renew them.
        Raises:
            Exception: whatever has ended the thread.
        """
        if self._played is None:
            yield
            return
        with self._desk.changed:
            self._desk.rest = "episodes" if between_episodes else "at once" if self._renews_actions else "actions"
            self._tell()
            self._desk.changed.wait_for(lambda: self._desk.resting or self._over())
        try:
            self._check()
            yield
        finally:
            with self._desk.changed:
                self._desk.rest, self._desk.resting = None, False
                self._tell()

    def close(self) -> None:
        """End it, episodes under way left as they are; waits for calls to environments that are under way."""
        with self._desk.changed:
            self._desk.closed = True
            self._tell()
        self._pool.shutdown()

    def _tell(self) -> None:
        """The thread hears of what has changed, wherever it waits."""
        self._desk.changed.notify_all()
        self._collection.wake()

    def _play(self) -> None:
        try:
            self._collection.play()
        except _Stopped:  # by `close`, which waits for this
            pass

    def _over(self) -> bool:
        return self._played is not None and self._played.done()

    def _check(self) -> None:
        if self._played is not None and self._played.done():
            self._played.result()
        if self._desk.closed:
            raise RolloutError("nothing can be played any more: the player was closed")


@dataclass
class _Desk:
    """What the two threads share, all of it under `changed`."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    starts: deque[tuple[Key, EpisodeStart]] = field(default_factory=deque)
    ended: list[tuple[Key, list[Trajectory]]] = field(default_factory=list)
    rest: Rest | None = None
    resting: bool = False
    closed: bool = False
    idle_s: float = 0.0
    idle_since: float | None = None

    def tell(self) -> None:
        with self.changed:
            self.changed.notify_all()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Count the time inside; `changed` is held."""
        self.idle_since = time.monotonic()
        try:
            yield
        finally:
            self.idle_s += time.monotonic() - self.idle_since
            self.idle_since = None


class _Feed:
    """The playing thread's side of the desk."""

    more = True

    def __init__(self, desk: _Desk) -> None:
        self._desk = desk
        self._keys: dict[int, Key] = {}  # by the number of the start
        self._n_begun = 0

    @property
    def rest(self) -> Rest | None:
        if self._desk.closed:
            raise _Stopped
        return self._desk.rest

    def next(self) -> EpisodeStart | None:
        with self._desk.changed:
            if not self._desk.starts:
                return None
            self._keys[self._n_begun], start = self._desk.starts.popleft()
        self._n_begun += 1
        return start

    def wait(self) -> None:
        desk = self._desk
        with desk.changed, desk.idle():
            desk.changed.wait_for(lambda: desk.starts or desk.rest or desk.closed)

    def pause(self) -> None:
        desk = self._desk
        with desk.changed, desk.idle():
            asked = desk.rest
            while desk.rest == asked and not desk.closed:  # it may end and be asked for again before this thread hears
                desk.resting = True
                desk.changed.notify_all()
                desk.changed.wait()
            desk.resting = False

    def done(self, number: int, trajectories: list[Trajectory]) -> None:
        with self._desk.changed:
            self._desk.ended.append((self._keys.pop(number), trajectories))
            self._desk.changed.notify_all()
