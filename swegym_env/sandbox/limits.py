"""Which limit a command reached, from everything that knows: the clock, the watch, the kernel's counters, the layer.

A process's own limits (`ulimit`) leave no count. There the last line of a failed command's output is the witness: what
the C library and the shells say when the kernel refuses. That is the agent's word, and nothing but the observation
rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

__all__ = ["ENDINGS", "reached_limit"]

# Exit codes of commands that the engine ended, as bash would report them.
ENDINGS = {"time": 124, "cpu": 128 + 24, "disk": 128 + 25}

_ORDER = ("time", "cpu", "memory", "processes", "disk", "file_size")
_FILE_SIZE_SIGNAL_CODE = 128 + 25
_LAST_BYTES = 2000
# What bash says of an earlier command's job, at whatever moment that ends.
_OF_A_JOB = re.compile(rb"bash: line \d+: +\d+ [A-Z]")
_SAID = (
    ("memory", re.compile(rb"MemoryError|[Cc]annot allocate memory|out of memory$|std::bad_alloc")),
    ("processes", re.compile(rb"fork:.*Resource temporarily unavailable|can't start new thread|Cannot fork")),
    ("disk", re.compile(rb"No space left on device")),
    ("file_size", re.compile(rb"File too large|File size limit exceeded")),
)


def reached_limit(known: Collection[str], *, output: bytes, exit_code: int, truncated: bool) -> str | None:
    """The limit to name; where several were reached, the one that ended the command.

    Args:
        known: those that are known to have been reached.
        output: of the command.
        exit_code: of the command.
        truncated: whether output was dropped.
    """
    for limit in _ORDER:
        if limit in known:
            return limit
    if exit_code == _FILE_SIZE_SIGNAL_CODE:
        return "file_size"
    if exit_code != 0:
        lines = [line for line in output[-_LAST_BYTES:].rstrip().split(b"\n") if not _OF_A_JOB.match(line)]
        for limit, words in _SAID:
            if lines and words.search(lines[-1]):
                return limit
    return "output" if truncated else None
