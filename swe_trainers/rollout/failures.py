"""Invalid episodes by their cause: each cause is logged once with its traceback, and too many of them end a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from swe_trainers.errors import RolloutError
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Failures"]

_CAUSE_CHARACTERS = 200


class Failures:
    """Counts the invalid episodes of a run.

    Args:
        max_fraction: the largest fraction of a batch's episodes that may be invalid.
        setting: the user's name for this fraction, for errors.

    Attributes:
        counts: cause, in the words of its first episode → number of invalid episodes.
    """

    def __init__(self, max_fraction: float, *, setting: str) -> None:
        self._max_fraction, self._setting = max_fraction, setting
        self._words: dict[str, str] = {}  # cause → its first reason
        self._tracebacks: dict[str, str] = {}  # first reason → the traceback with it
        self.counts: Counter[str] = Counter()

    def add(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """Count the invalid ones; returns the first of each cause that was not seen before."""
        new = []
        for episode in episodes:
            if not episode.valid:
                cause = _cause(episode)
                if cause not in self._words:
                    self._words[cause] = episode.failure_reason
                    self._tracebacks[episode.failure_reason] = episode.failure_traceback
                    new.append(episode)
                self.counts[self._words[cause]] += 1
        return new

    def too_many(self, invalid: int, episodes: int) -> bool:
        """Whether more of these episodes are invalid than allowed."""
        return invalid > self._max_fraction * episodes

    def check(self, what: str, episodes: Sequence[Trajectory], *, log: str | None) -> None:
        """Raise if too many episodes are invalid.

        Args:
            what: name of these episodes, for the error.
            episodes: of one update or one evaluation, all of them counted by `add`.
            log: as of `error`.
        Raises:
            RolloutError: more are invalid than allowed.
        """
        reasons = Counter(self._words[_cause(each)] for each in episodes if not each.valid)
        if self.too_many(reasons.total(), len(episodes)):
            raise self.error(what, reasons, len(episodes), log=log)

    def error(
        self, what: str, reasons: Counter[str], episodes: int, *, log: str | None, hint: str = ""
    ) -> RolloutError:
        """The error for too many invalid episodes.

        Args:
            what: name of these episodes.
            reasons: reason → number of episodes.
            episodes: number of all episodes.
            log: where tracebacks are written; None: the error has the one of the most frequent reason.
            hint: what to do.
        """
        (reason, count), *others = reasons.most_common()
        more = f"; {len(others)} other causes" if others else ""
        traceback = self._tracebacks[reason]
        where = f"Tracebacks are in {log}" if log else f"Its traceback:\n{traceback}" if traceback else ""
        parts = (f"{count} times: {reason}{more}", where, hint)
        return RolloutError(
            f"{what}: {reasons.total()} of {episodes} episodes are invalid, {self._setting} allows "
            f"{self._max_fraction:g} of them. {'. '.join(filter(None, parts))}"
        )


def _cause(episode: Trajectory) -> str:
    """A key that is equal for failures with one cause: the same place in the code, or the same text without numbers."""
    if episode.failure_traceback:
        places = re.findall(r'^ *File "[^"\n]*", line \d+', episode.failure_traceback, re.MULTILINE)
        return "\n".join([episode.failure_reason.partition(":")[0], *places])
    return re.sub(r"\d+", "0", episode.failure_reason)[:_CAUSE_CHARACTERS]
