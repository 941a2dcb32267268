"""Why a command ended: which limit it reached, and whether it ran out of time because the machine was too busy.

The clock, the supervisor, the kernel's counters and the writable layer report most limits. A process's own limits
(`ulimit`) leave no count: there the last line of a failed command's output shows what the C library or the shell
printed when the kernel refused. The agent can forge that line; only the observation depends on it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path

__all__ = ["EXIT_CODES", "reached_limit", "were_starved"]

# Exit codes of commands that were ended at a limit, as bash would report them.
EXIT_CODES = {"time": 124, "cpu": 128 + 24, "disk": 128 + 25}

_ORDER = ("time", "cpu", "memory", "processes", "disk", "file_size")
_FILE_SIZE_SIGNAL_CODE = 128 + 25
_LAST_BYTES = 2000
# Bash reports the end of an earlier command's background job at any moment.
_JOB_REPORT = re.compile(rb"bash: line \d+: +\d+ [A-Z]")
_MESSAGES = (
    ("memory", re.compile(rb"MemoryError|[Cc]annot allocate memory|out of memory$|std::bad_alloc")),
    ("processes", re.compile(rb"fork:.*Resource temporarily unavailable|can't start new thread|Cannot fork")),
    ("disk", re.compile(rb"No space left on device")),
    ("file_size", re.compile(rb"File too large|File size limit exceeded")),
)
# Of the time. The kernel counts a wait when it is over, so one in progress is missing.
_WAITED_FRACTION = 0.25
# Of the time. Timeouts are generous: a program that had a tenth of it on a processor had its chance, and an endless
# loop has used that much.
_USED_FRACTION = 0.1


def reached_limit(reached: Collection[str], *, output: bytes, exit_code: int, truncated: bool) -> str | None:
    """The limit to report; where several were reached, the one that ended the command.

    Args:
        reached: the limits that were reported.
        output: of the command.
        exit_code: of the command.
        truncated: whether output was dropped.
    """
    for limit in _ORDER:
        if limit in reached:
            return limit
    if exit_code == _FILE_SIZE_SIGNAL_CODE:
        return "file_size"
    if exit_code != 0:
        lines = [line for line in output[-_LAST_BYTES:].rstrip().split(b"\n") if not _JOB_REPORT.match(line)]
        for limit, message in _MESSAGES:
            if lines and message.search(lines[-1]):
                return limit
    return "output" if truncated else None


def were_starved(pids: Iterable[int], used_s: float, seconds: float) -> bool:
    """Whether one of these processes waited for a processor because processes outside of its sandbox kept it busy.

    If so, a timeout does not show that the sandbox's own processes are slow. Processes of the same sandbox that keep
    the processors busy do not count: `used_s` contains their time. A process that has lowered its own priority waits
    because of that, and is ignored. False if the kernel does not record how long processes wait
    (`/proc/PID/schedstat`).

    Args:
        pids: processes of a sandbox that still exist; others are ignored.
        used_s: processor seconds that all processes of the sandbox used in that time.
        seconds: how long they could have run.
    """
    if used_s >= _USED_FRACTION * seconds:
        return False
    waited_s = 0.0
    for pid in pids:
        if _stands_back(pid):
            continue
        with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
            waited_s = max(waited_s, int(Path("/proc", str(pid), "schedstat").read_text().split()[1]) / 1e9)
    return waited_s > _WAITED_FRACTION * seconds


def _stands_back(pid: int) -> bool:
    """Whether a process, or its session, has a lower priority than those that this process starts have at first."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        niceness, policy = _priority(str(pid))
        own_niceness, own_policy = _priority("self")
        # The policies 0, 3 and 5 (normal, batch, idle) are in the order of their priorities.
        return niceness > own_niceness or policy > own_policy or _session_stands_back(str(pid))
    return True


def _priority(process: str) -> tuple[int, int]:
    """A process's niceness and scheduling policy, which the processes that it starts inherit."""
    fields = Path("/proc", process, "stat").read_text().rpartition(")")[2].split()
    return int(fields[16]), int(fields[38])


def _session_stands_back(process: str) -> bool:
    """Whether Linux, where it shares processors among sessions, gives this one less than it gave it at first."""
    session, niceness = _session(process)
    return niceness > 0 and session != _session("self")[0]


def _session(process: str) -> tuple[str, int]:
    """The group of a process's session and its niceness; ("", 0) where sessions share as one, as at a machine's start.

    The session of the first process, and of what it starts without `setsid`, has no group: its file is empty.
    """
    with contextlib.suppress(OSError, ValueError):
        session, _, niceness = Path("/proc", process, "autogroup").read_text().split()
        return session, int(niceness)
    return "", 0
