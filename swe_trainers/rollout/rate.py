"""How many episodes are played per second, and what limits them: the model, the environment, or the tests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

__all__ = ["Rate", "pace"]


@dataclass
class Rate:
    """Where the time of episodes goes, measured at every call of an environment.

    An episode is always at one of three stations: it waits for an action, it is in its environment, or it is being
    graded there. The number of running episodes is fixed, so they queue at the slowest station: the station where an
    episode spends most of its time limits the rate.

    Attributes:
        episodes: that have ended.
        seconds: of wall clock in which an episode was running.
        model_s: summed over the episodes: from the return of an environment to the next call of it.
        environment_s: likewise, in `reset` and `step`, without grading.
        tests_s: likewise, of grading, which is `grading_s` in `info["timing"]` of a step; 0 if it is not there.
    """

    episodes: int = 0
    seconds: float = 0.0
    model_s: float = 0.0
    environment_s: float = 0.0
    tests_s: float = 0.0

    def __post_init__(self) -> None:
        self._since: float | None = None

    def begin(self) -> None:
        """An episode is running, and none was before."""
        self._since = time.monotonic()

    def end(self) -> None:
        """No episode is running any more."""
        self.seconds, self._since = self._elapsed(), None

    def called(self, seconds: float, info: Mapping[str, Any] | None) -> None:
        """Count a call of an environment.

        Args:
            seconds: from the call to its return.
            info: returned by a step; None for any other call.
        """
        timing = None if info is None else info.get("timing")
        if timing is None:
            self.environment_s += seconds
            return
        grading_s = timing.get("grading_s") if isinstance(timing, Mapping) else getattr(timing, "grading_s", None)
        graded = min(max(float(grading_s), 0.0), seconds) if isinstance(grading_s, (int, float)) else 0.0
        self.tests_s += graded
        self.environment_s += seconds - graded

    def until_now(self) -> Rate:
        """A copy that includes the seconds of running episodes."""
        return replace(self, seconds=self._elapsed())

    def since(self, before: Rate) -> Rate:
        """The increase since a copy was made by `until_now`."""
        now = self.until_now()
        return Rate(**{f.name: getattr(now, f.name) - getattr(before, f.name) for f in fields(Rate)})

    def metrics(self) -> dict[str, float]:
        """`episodes_per_second`, and the share of each station as `episode_time/STATION`; empty before any call."""
        spent = {"model": self.model_s, "environment": self.environment_s, "tests": self.tests_s}
        total, seconds = sum(spent.values()), self._elapsed()
        if total <= 0 or seconds <= 0:
            return {}
        shares = {f"episode_time/{station}": share / total for station, share in spent.items()}
        return {"episodes_per_second": self.episodes / seconds, **shares}

    def _elapsed(self) -> float:
        return self.seconds + (0.0 if self._since is None else time.monotonic() - self._since)


def pace(metrics: Mapping[str, Any]) -> str:
    """A line: `14.2 episodes/s while playing, limited by the environment (61 % of an episode; model 24 %, tests 15 %)`.

    The seconds of updates are not counted.

    Args:
        metrics: those of `Rate.metrics`, perhaps with others; the line is "" without them. Stations without time are
            left out: most environments have no tests.
    """
    prefix = "episode_time/"
    shares = [(value, name.removeprefix(prefix)) for name, value in metrics.items() if name.startswith(prefix)]
    if not shares or "episodes_per_second" not in metrics:
        return ""
    (most, first), *others = sorted(shares, key=lambda pair: -pair[0])
    rest = ", ".join(f"{station} {share * 100:.0f} %" for share, station in others if share)
    of_episode = f"{most * 100:.0f} % of an episode" + (f"; {rest}" if rest else "")
    return f"{metrics['episodes_per_second']:.1f} episodes/s while playing, limited by the {first} ({of_episode})"
