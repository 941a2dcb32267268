"""What a collection asks while it plays: which episode is next, and whether it is to pause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from swe_trainers.rollout.plan import EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Feed", "Listed", "Rest"]

Rest = Literal["at once", "actions", "episodes"]
"""When a pause begins: at once, after the actions that are being generated, or after all episodes under way."""


class Feed(Protocol):
    """Where episodes come from and where they go; every call is made on the thread that collects."""

    @property
    def more(self) -> bool:
        """Whether another episode may come, now or later."""
        ...

    @property
    def rest(self) -> Rest | None:
        """The pause that is asked for; None to go on."""
        ...

    def next(self) -> EpisodeStart | None:
        """Where another episode is to begin; None where none is now."""
        ...

    def wait(self) -> None:
        """Called where nothing is being played: returns when something has changed."""
        ...

    def pause(self) -> None:
        """Called where the pause that was asked for may begin: returns when it is over."""
        ...

    def done(self, number: int, trajectories: list[Trajectory]) -> None:
        """Everything that began at the start of this number has ended."""
        ...


class Listed:
    """Starts that are known beforehand, one after the other; the `Feed` of a collection that ends."""

    def __init__(self, starts: Iterable[EpisodeStart]) -> None:
        self._starts = iter(starts)
        self.more = True
        self.rest: Rest | None = None
        self._finished: dict[int, list[Trajectory]] = {}

    def next(self) -> EpisodeStart | None:
        start = next(self._starts, None)
        self.more = start is not None
        return start

    def wait(self) -> None:
        """There is nothing to wait for."""

    def pause(self) -> None:
        """Nobody asks for one."""

    def done(self, number: int, trajectories: list[Trajectory]) -> None:
        self._finished[number] = trajectories

    @property
    def trajectories(self) -> list[Trajectory]:
        """What has ended, in the order of the starts."""
        return [trajectory for number in sorted(self._finished) for trajectory in self._finished[number]]
