"""Whether the machine kept processes from running: a time limit that was met so says nothing of what they do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["were_starved"]

_WAITED = 0.25  # of the time; the kernel adds a wait when it is over, so the one under way is missing
_USED = (
    0.1  # limits leave room: a program that had a tenth of the time for itself had its chance, and an endless loop has
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def were_starved(pids: Iterable[int], seconds: float) -> bool:
    """Whether one of these was kept waiting for a processor, and not because they kept it busy themselves.

    Where the kernel does not count how long processes wait (`/proc/PID/schedstat`), the answer is no.

    Args:
        pids: processes that still run, or stand still; those that are gone by now count for nothing.
        seconds: for how long they could have run.
    """
    waited_s, used_s = 0.0, 0.0
    for pid in pids:
        place = Path("/proc", str(pid))
        try:
            waited_s = max(waited_s, int((place / "schedstat").read_text().split()[1]) / 1e9)
            fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        except (OSError, IndexError):  # it has ended meanwhile
            continue
        used_s += sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S  # with those of children that have ended
    return waited_s > _WAITED * seconds and used_s < _USED * seconds
