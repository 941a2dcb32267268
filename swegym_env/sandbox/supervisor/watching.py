"""What a sandbox uses, looked at while it runs: for the limits that the kernel does not hold by itself.

While a command runs for long its sandbox is looked at often; otherwise, for what runs in the background, now and then
and only where no control group and no file system of its own bounds it.

    memory   resident, of all processes together. The largest are killed as soon as that is told: a tree can grow by
             gigabytes a second.
    cpu      seconds of all processes since the command began, over all cores.
    disk     of a writable layer that is a plain directory.

Over the last two the owner decides: it ends the command.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from .cgroups import Group
from .processes import descendants, kill_one

__all__ = ["Watch"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STALE_S = 2.0  # a directory is measured again after so long, whatever the file system says
_NOTABLE_BYTES, _NOTABLE_FILES = 1 << 20, 256


class Watch:
    """One running container.

    Args:
        pid: its first process.
        limits: memory_bytes, disk_bytes, inodes; a missing or empty one is not looked at.
        group: its control group.
        upper: its writable layer, where that is a plain directory; else None.
    """

    def __init__(self, pid: int, limits: dict[str, Any], group: Group, upper: str | None) -> None:
        self._pid = pid
        self._memory_bytes = limits.get("memory_bytes") or 0
        self._group = group
        self._disk = None if upper is None else _Disk(upper, limits.get("disk_bytes") or 0, limits.get("inodes") or 0)
        self._cpu_s: float | None = None
        self._cpu_began_s = 0.0
        self._told: set[str] = set()
        self._doomed: list[int] = []
        self.often = False
        self.needed = self._disk is not None or "memory" not in group.directories

    def begin(self, cpu_s: float | None) -> None:
        """A command has been running for a moment, and may use so much more of the processors."""
        self.often = True
        self._told.clear()
        self._cpu_s = cpu_s
        self._cpu_began_s = 0.0 if cpu_s is None else _cpu_seconds([self._pid, *descendants(self._pid)])

    def end(self) -> None:
        """The command is over."""
        self.often, self._cpu_s = False, None

    def look(self) -> list[str]:
        """The limits found exceeded that were not before, for this command; to be told before `enforce`.

        Whose process is killed may end his command at once, and ask why.
        """
        tree = [self._pid, *descendants(self._pid)]
        found = []
        if self._memory_bytes and self._over_memory(tree):
            found.append("memory")
        if self._cpu_s is not None and _cpu_seconds(tree) - self._cpu_began_s > self._cpu_s:
            found.append("cpu")
        if self._disk is not None and self._disk.exceeded():
            found.append("disk")
        found = [limit for limit in found if limit not in self._told]
        self._told.update(found)
        return found

    def enforce(self) -> None:
        """Kill the processes that the last look found too large."""
        for pid in self._doomed:
            kill_one(pid)
        self._doomed = []

    def _over_memory(self, tree: list[int]) -> bool:
        counted = self._group.resident_bytes()
        if counted is not None and counted <= self._memory_bytes:
            return False
        sizes = {pid: _resident_bytes(pid) for pid in tree}
        total = sum(sizes.values()) if counted is None else counted
        if counted is None and total > self._memory_bytes:
            sizes = {pid: _proportional_bytes(pid) or size for pid, size in sizes.items()}  # shared pages once
            total = sum(sizes.values())
        over = total > self._memory_bytes
        for pid in sorted(sizes, key=lambda pid: -sizes[pid]):
            if total <= self._memory_bytes:
                break
            self._doomed.append(pid)
            total -= sizes[pid]
        return over


class _Disk:
    """A plain directory's size, measured again only where its file system has grown enough to matter."""

    def __init__(self, directory: str, size_bytes: int, inodes: int) -> None:
        self._directory = directory
        self._most = (size_bytes, inodes)
        self._size = (0, 0)
        self._file_system = (0, 0)
        self._measured = float("-inf")

    def exceeded(self) -> bool:
        """Whether the directory is over its limit and still growing."""
        if not any(self._most):
            return False
        try:
            status = os.statvfs(self._directory)
        except OSError:
            return False
        now = ((status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree)
        room = [max(most - size, least) for most, size, least in zip(self._most, self._size, _NOTABLE, strict=True)]
        grown = any(after - before > left for after, before, left in zip(now, self._file_system, room, strict=True))
        if not grown and time.monotonic() - self._measured < _STALE_S:
            return False
        before, self._size = self._size, _size_of(self._directory)
        self._file_system, self._measured = now, time.monotonic()
        return any(
            size > most and size > last for size, most, last in zip(self._size, self._most, before, strict=True) if most
        )


_NOTABLE = (_NOTABLE_BYTES, _NOTABLE_FILES)


def _size_of(directory: str) -> tuple[int, int]:
    """Bytes on disk and files of a directory that may change meanwhile; links are not followed."""
    size_bytes = files = 0
    waiting = [directory]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    size_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return size_bytes, files


def _cpu_seconds(tree: list[int]) -> float:
    """What processes and the children that they have waited for used of the processors."""
    ticks = 0
    for pid in tree:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS_PER_S


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _proportional_bytes(pid: int) -> int:
    """Resident memory with each shared page counted by its share; 0 where that cannot be read."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
