"""What a sandbox uses, measured while it runs: for the limits that the kernel does not enforce by itself.

While a command runs for long, its sandbox is measured often. Otherwise background processes are measured once a second,
and only where neither a control group nor a tmpfs limits them.

    memory   resident, of all processes together. The largest processes are killed as soon as the limit has been
             reported: a tree can grow by gigabytes a second.
    cpu      seconds of all processes since the command began, over all cores: as its control group counts them, else
             as they are seen.
    disk     of a writable layer that is a plain directory: its files, and those without a name that are still in use.
             An agent decides how long that takes, so a child measures it.

For the last two the owner decides: it ends the command.

A sandbox that keeps a processor busy stands back for its neighbours and its owner, whose steps take a millisecond: with
equal weights each would wait some milliseconds for it, several times a step. See `_Share`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import time
from collections.abc import Callable

from .cgroups import Group
from .files import Descent
from .processes import descendants, kill_one, start_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Usage", "measure"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STALE_S = 2.0  # a directory is measured again after this time, whatever its file system reports
_NOTABLE = (1 << 20, 256)  # growth of the file system, in bytes and files, that is worth measuring the directory again
_PAUSES = 4  # a measurement that took a second is repeated after so many seconds, if nothing has grown
_WINDOW_S = 0.1  # over which it is looked at how many processors are kept busy
_MUCH, _LITTLE = 0.8, 0.4  # processors
_LITTLE_BYTES = 1 << 16  # a file system with less left is full
_ENOUGH = 2  # times the limit, at which counting stops


class Usage:
    """One running container.

    Args:
        pid: its first process.
        limits: memory_bytes, disk_bytes, inodes; a missing or zero one is not measured.
        group: its control group.
        upper: its writable layer, where that is a plain directory; else None.

    Attributes:
        often: a command has been running for long.
        needed: nothing else limits what runs in the background.
    """

    def __init__(self, pid: int, limits: dict[str, Any], group: Group, upper: str | None) -> None:
        self._pid = pid
        self._memory_bytes = limits.get("memory_bytes") or 0
        self._group = group
        disk = None if upper is None else _Disk(upper, pid, limits.get("disk_bytes") or 0, limits.get("inodes") or 0)
        self._disk = disk
        self._cpu_s: float | None = None
        self._processors = _Processors(group)
        self._share = _Share(group)
        self._reported: set[str] = set()
        self._too_large: list[int] = []
        self._adopted: list[tuple[int, bytes]] = []  # processes that started others inside, and when they began
        self.often = False
        self.needed = self._disk is not None or "memory" not in group.directories

    def command_began(self, cpu_s: float | None) -> None:
        """A command has been running for a moment; it may use `cpu_s` more processor seconds."""
        self.often = True
        self._reported.clear()
        self._cpu_s = cpu_s
        self._processors.begin(self._tree)
        self._share.look()

    def command_ended(self) -> float:
        """The command has ended; the processor seconds that the container has used since `command_began`."""
        self.often, self._cpu_s = False, None
        return self._processors.used_s(self._tree)

    def newly_exceeded(self) -> list[str]:
        """Measure; the limits exceeded that this command did not exceed before. To be reported before `kill_largest`.

        A killed process may end its command at once, and then the owner asks which limit it was.
        """
        tree = functools.cache(self._tree)  # an agent may have many processes; a control group counts without them
        found = []
        if self._memory_bytes and self._over_memory(tree):
            found.append("memory")
        used_s = self._processors.used_s(tree) if self.often else 0.0
        if self._cpu_s is not None and used_s > self._cpu_s:
            found.append("cpu")
        if self._disk is not None and self._disk.exceeded():
            found.append("disk")
        found = [limit for limit in found if limit not in self._reported]
        self._reported.update(found)
        return found

    def shares(self, *, alone: bool) -> bool:
        """Whether its share has to be adapted now and then: beside others, and where it stands back."""
        return self._share.possible and (self._share.stands_back or not alone)

    def adapt_share(self) -> None:
        """Stand back for others, or no more, as the last moments suggest."""
        self._share.adapt()

    def fills_disk(self) -> bool:
        """Whether no space is left on the file system of a layer that is a plain directory."""
        return self._disk is not None and self._disk.is_full()

    def close(self) -> None:
        """The container has ended."""
        if self._disk is not None:
            self._disk.close()

    def kill_largest(self) -> None:
        """Kill the processes that the last measurement found too large."""
        for pid in self._too_large:
            kill_one(pid)
        self._too_large = []

    def adopt(self, pid: int) -> None:
        """Count what this process starts inside: it stays outside, and is no descendant of the container's first."""
        self._adopted.append((pid, _start_of(pid)))

    def _tree(self) -> list[int]:
        adopted = [pid for pid, began in self._adopted if began and _start_of(pid) == began]
        return [self._pid, *descendants(self._pid), *(inside for pid in adopted for inside in descendants(pid))]

    def _over_memory(self, tree: Callable[[], list[int]]) -> bool:
        counted = self._group.resident_bytes()
        if counted is not None and counted <= self._memory_bytes:
            return False
        sizes = {pid: _resident_bytes(pid) for pid in tree()}
        total = sum(sizes.values()) if counted is None else counted
        if counted is None and total > self._memory_bytes:
            sizes = {pid: _proportional_bytes(pid) or size for pid, size in sizes.items()}  # shared pages once
            total = sum(sizes.values())
        over = total > self._memory_bytes
        for pid in sorted(sizes, key=lambda pid: -sizes[pid]):
            if total <= self._memory_bytes:
                break
            self._too_large.append(pid)
            total -= sizes[pid]
        return over


class _Share:
    """The weight of a container's control group among others on a busy machine.

    Whoever keeps most of a processor busy gets a tenth of the usual weight, so that those who wake seldom do not wait
    for it. A weight takes nothing from anybody while processors are free. Whoever then gets little has the usual weight
    again, so that nobody falls behind an equal share for long, however busy the machine is.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.stands_back = False
        self._looked: tuple[float, float] | None = None  # when, and the seconds used until then
        self.possible = "cpu" in group.directories

    def look(self) -> None:
        """Begin anew: what happened before does not count."""
        used_s = self._group.cpu_s() if self.possible else None
        self._looked = None if used_s is None else (time.monotonic(), used_s)

    def adapt(self) -> None:
        """Change the weight where what was used since the last look demands it."""
        former = self._looked
        if former is not None and time.monotonic() - former[0] < _WINDOW_S:
            return
        self.look()
        if former is None or self._looked is None:
            return
        busy = (self._looked[1] - former[1]) / (self._looked[0] - former[0])
        if busy < _LITTLE if self.stands_back else busy > _MUCH:
            self.stands_back = not self.stands_back
            self._group.stand_back(self.stands_back)


class _Processors:
    """Processor seconds that a container has used since a moment.

    Its control group may count them. Where it does not, processes are looked at again and again, and two figures that
    can only be too small are known, of which the larger is taken: what those alive have used, together with the
    children that they waited for; and what each process had used when it was last seen, which is all that is left of
    children that nobody waits for.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._began_s = self._ended_s = 0.0
        self._alive: dict[tuple[int, bytes], float] = {}  # process and its start → seconds of its own

    def begin(self, tree: Callable[[], list[int]]) -> None:
        """Count from now on."""
        self._began_s, self._ended_s, self._alive = 0.0, 0.0, {}
        counted = self._group.cpu_s()
        self._began_s = self._look(tree()) if counted is None else counted
        self._ended_s = -sum(self._alive.values())

    def used_s(self, tree: Callable[[], list[int]]) -> float:
        """The seconds until now; to be called often."""
        counted = self._group.cpu_s()
        if counted is not None:
            return counted - self._began_s
        together = self._look(tree())
        return max(together - self._began_s, self._ended_s + sum(self._alive.values()))

    def _look(self, tree: list[int]) -> float:
        """What those alive have used, with the children that they waited for."""
        together, alive = 0.0, {}
        for pid in tree:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                own, waited_for = (sum(map(int, fields[first : first + 2])) / _TICKS_PER_S for first in (11, 13))
                alive[pid, fields[19]] = own
                together += own + waited_for
        self._ended_s += sum(seconds for process, seconds in self._alive.items() if process not in alive)
        self._alive = alive
        return together


class _Disk:
    """A plain directory's size, measured again only after its file system has grown enough to matter."""

    def __init__(self, directory: str, pid: int, size_bytes: int, inodes: int) -> None:
        self._directory = directory
        self._pid = pid
        self._limits = (size_bytes, inodes)
        self._size = (0, 0)
        self._began_with = self._file_system = _used(directory)
        self._answer: int | None = None  # the pipe from the child that measures
        self._started = self._ended = float("-inf")

    def exceeded(self) -> bool:
        """Whether the directory is over its limit and still growing, as far as has been measured."""
        if not any(self._limits):
            return False
        if self._answer is not None:
            return self._read(self._answer)
        now, used, took_s = time.monotonic(), _used(self._directory), self._ended - self._started
        left = [max(limit - size, least) for limit, size, least in zip(self._limits, self._size, _NOTABLE, strict=True)]
        grown = any(after - before > most for after, before, most in zip(used, self._file_system, left, strict=True))
        if self._ended < 0 or now - self._ended > (took_s if grown else max(_STALE_S, _PAUSES * took_s)):
            self._file_system, self._started = used, now
            self._answer, write = os.pipe()
            os.set_blocking(self._answer, False)
            try:
                work = functools.partial(measure, self._directory, self._pid, self._limits, self._began_with[0])
                start_child(work, write)
            finally:
                os.close(write)
        return False

    def is_full(self) -> bool:
        """Whether its file system has no space left."""
        try:
            status = os.statvfs(self._directory)
        except OSError:
            return False
        return status.f_bavail * status.f_frsize < _LITTLE_BYTES or (status.f_files > 0 and status.f_favail < 1)

    def _read(self, answer: int) -> bool:
        try:
            numbers = [int(word) for word in os.read(answer, 256).split()]
        except BlockingIOError:
            return False
        self.close()
        self._ended = time.monotonic()
        if not numbers:
            return False  # the child was killed
        before, self._size = self._size, (numbers[0], numbers[1])
        return any(
            size > limit and size > last
            for size, limit, last in zip(self._size, self._limits, before, strict=True)
            if limit
        )

    def close(self) -> None:
        """Stop waiting for a measurement."""
        if self._answer is not None:
            os.close(self._answer)
            self._answer = None


def _used(directory: str) -> tuple[int, int]:
    """Bytes and files in use on a directory's file system."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0, 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree


def measure(directory: str, pid: int, limits: tuple[int, int], began_with_bytes: int = 1 << 62) -> bytes:
    """Bytes on disk and files of a writable layer in use, as text.

    Args:
        directory: the layer.
        pid: first process of the container; 0: it has ended.
        limits: on bytes and files; far over them counting stops.
        began_with_bytes: in use on the whole file system when the container started.
    """
    size_bytes, files, complete = _size_of(directory, *(_ENOUGH * limit or 1 << 62 for limit in limits))
    hidden_bytes, hidden_files, in_flight = 0, 0, False
    if pid:
        hidden_bytes, hidden_files, in_flight = _size_of_unlinked(pid, os.stat(directory).st_dev)
    size_bytes, files = size_bytes + hidden_bytes, files + hidden_files
    if in_flight or not complete:
        # What is in a socket only, or was moved about, is seen nowhere else.
        size_bytes = max(size_bytes, _used(directory)[0] - began_with_bytes)
    return f"{size_bytes} {files}".encode()


def _size_of(directory: str, most_bytes: int, most_files: int) -> tuple[int, int, bool]:
    """Bytes on disk and files of a directory that may change meanwhile; links are not followed.

    Returns:
        Bytes; files; whether all was seen, which a process prevents that moves directories. Counting stops at the most.
    """
    size_bytes = files = 0
    waiting: dict[int, list[str]] = {}  # depth → directories there
    entered = True
    with Descent(directory) as tree:
        while size_bytes <= most_bytes and files <= most_files:
            if entered:
                names = []
                with os.scandir(tree.here) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            size_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                            files += 1
                            if entry.is_dir(follow_symlinks=False):
                                names.append(entry.name)
                if names:
                    waiting[tree.depth] = names
            entered = False
            if tree.depth in waiting:
                with contextlib.suppress(PermissionError):  # closed by the agent to itself, and to an ordinary owner
                    entered = tree.enter(waiting[tree.depth].pop())
                depth = tree.depth - entered
                if not waiting[depth]:
                    del waiting[depth]
            elif tree.depth:
                try:
                    tree.leave()
                except OSError:
                    return size_bytes, files, False
            else:
                break
    return size_bytes, files, True


def _size_of_unlinked(pid: int, device: int) -> tuple[int, int, bool]:
    """Bytes on disk and number of files of a layer that have no name any more and are open or mapped.

    Args:
        pid: first process of the container.
        device: of the layer; a server of fuse-overlayfs has such files open there.
    Returns:
        Bytes; files; whether descriptors are in flight, in messages that nobody has received.
    """
    found: dict[tuple[int, int], int] = {}
    in_flight = False
    for process in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError):  # a process ends at any time
            root = os.open(f"/proc/{process}/root", os.O_PATH | os.O_CLOEXEC)
            try:
                root_device, mount = os.fstat(root).st_dev, _fact(f"/proc/self/fdinfo/{root}", b"mnt_id:")
            finally:
                os.close(root)
            for path in _mapped_without_name(process, root_device):
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    found[status.st_dev, status.st_ino] = status.st_blocks * 512
            for thread in os.listdir(f"/proc/{process}/task"):  # a thread may have a table of its own
                table = f"/proc/{process}/task/{thread}"
                for number in os.listdir(f"{table}/fd"):
                    with contextlib.suppress(OSError):
                        status = os.stat(f"{table}/fd/{number}")
                        if stat.S_ISSOCK(status.st_mode):
                            in_flight = in_flight or _fact(f"{table}/fdinfo/{number}", b"scm_fds:") > 0
                        elif stat.S_ISREG(status.st_mode) and not status.st_nlink:
                            of_layer = status.st_dev == device
                            if of_layer or _fact(f"{table}/fdinfo/{number}", b"mnt_id:") == mount:
                                found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values()), len(found), in_flight


def _mapped_without_name(pid: int, device: int) -> list[str]:
    """Paths in `/proc` of files on `device` that a process has mapped and that have no name any more."""
    found = []
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            addresses, _, _, place, inode, *_ = line.split(None, 5)
            if inode != b"0" and line.rstrip(b"\n").endswith(b" (deleted)"):
                major, _, minor = place.partition(b":")
                if os.makedev(int(major, 16), int(minor, 16)) == device:
                    found.append(f"/proc/{pid}/map_files/{addresses.decode()}")
    return found


def _fact(path: str, word: bytes) -> int:
    """The number after a word in a file of `/proc/PID/fdinfo`; 0 where there is none."""
    with open(path, "rb") as file:
        words = file.read(4096).split()
    return int(words[words.index(word) + 1]) if word in words else 0


def _start_of(pid: int) -> bytes:
    """When a process began, by the kernel's clock; empty where it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19]
    return b""


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return 0


def _proportional_bytes(pid: int) -> int:
    """Resident memory, each shared page divided among the processes that share it; 0 where that cannot be read."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
