"""Control groups: kernel limits on what the processes of a sandbox use together, where this user may set them.

Version 2 where a group with the controllers enabled is writable (delegated by systemd, or root's), version 1 where the
machine has that. A group is named after its sandbox, so garbage collection finds the groups of killed supervisors.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping

from .kernel import write_setting

__all__ = ["Counters", "Group", "enter", "existing_groups", "make_group"]

_PREFIX = "swegym-"
_CONTROLLERS = ("memory", "pids", "cpu")
# Counts processor time and limits nothing. Any group of version 2 does that, and in version 1 those of `cpu` where the
# two are mounted together; only where no group of the controllers above counts is there one for this purpose.
_COUNTING = "cpuacct"
_FILES = {  # one of which a group with the controller has, in version 2 and 1
    "memory": ("memory.stat",),
    "pids": ("pids.max",),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    _COUNTING: ("cpuacct.usage", "cpu.stat"),
}
_PERIOD_US = 100_000  # in which a quota of processor time holds
_WEIGHTS = {"cpu.weight": (100, 10), "cpu.shares": (1024, 102)}  # usual, and of a group that stands back
_SOCKETS_BYTES = 64 << 20  # of TCP, of one sandbox
_EVENTS = (  # limit, controller, the file with the count (version 2, version 1), the word before the count
    ("memory", "memory", ("memory.events", "memory.oom_control"), b"oom_kill"),
    ("processes", "pids", ("pids.events",), b"max"),
)
_CPU_TIMES = (("cpuacct.usage", "", 10**9), ("cpu.stat", "usage_usec", 10**6))  # file, first word, units per second


class Group:
    """One sandbox's group: its directory for each controller that can be used here."""

    def __init__(self, directories: Mapping[str, str]) -> None:
        self.directories = dict(directories)

    def entrances(self) -> tuple[list[int], int | None]:
        """Open what a new process enters the group through, at once: by `add` it takes some milliseconds.

        Returns:
            Descriptors for `enter`; the directory of the group of version 2 as a descriptor for `kernel.clone`, or
            None. They are the caller's to close.
        """
        threads: list[int] = []
        place = None
        for directory in set(self.directories.values()):
            try:
                threads.append(os.open(f"{directory}/tasks", os.O_WRONLY | os.O_CLOEXEC))
            except OSError:  # version 2 has no such file
                with contextlib.suppress(OSError):
                    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return threads, place

    def add(self, pid: int) -> None:
        """Add a process, and with it all that it will start. A group that accepts none is removed.

        The kernel waits until no processor starts or ends a thread, which takes some milliseconds.
        """
        for directory in set(self.directories.values()):
            try:
                write_setting(f"{directory}/cgroup.procs", str(pid))
            except OSError:
                _remove(directory)
                self.directories = {name: place for name, place in self.directories.items() if place != directory}

    def resident_bytes(self) -> int | None:
        """Resident memory of its processes, without cached files; None without a memory controller."""
        if "memory" not in self.directories:
            return None
        counted = _numbers(f"{self.directories['memory']}/memory.stat")
        return counted.get("total_rss", counted.get("anon"))

    def cpu_s(self) -> float | None:
        """Processor seconds of its processes, those that have ended included; None where no group counts them."""
        counted = map(_cpu_s, set(self.directories.values()))
        return next((seconds for seconds in counted if seconds is not None), None)

    def stand_back(self, yes: bool) -> None:
        """Let the processes of other groups go first, or no more."""
        for name, weights in _WEIGHTS.items():
            with contextlib.suppress(OSError, KeyError):  # the other version, or no controller
                write_setting(f"{self.directories['cpu']}/{name}", str(weights[yes]))

    def members(self) -> list[int]:
        """The ids of its processes."""
        found: set[int] = set()
        for directory in set(self.directories.values()):
            with contextlib.suppress(OSError), open(f"{directory}/cgroup.procs") as file:
                found.update(int(line) for line in file)
        return sorted(found)

    def remove(self) -> None:
        """Remove the group, whose processes have ended; does nothing if it is gone."""
        for directory in set(self.directories.values()):
            _remove(directory)


class Counters:
    """How often a group's limits were reached; the files stay open, so that reading again is cheap."""

    def __init__(self, directories: Mapping[str, str]) -> None:
        self._files: dict[str, tuple[int, bytes]] = {}
        for limit, controller, names, word in _EVENTS:
            for name in names:
                with contextlib.suppress(OSError, KeyError):
                    place = f"{directories[controller]}/{name}"
                    self._files[limit] = (os.open(place, os.O_RDONLY | os.O_CLOEXEC), word)
                    break

    def read(self) -> dict[str, int]:
        """Limit → how often the group reached it; empty if the group is gone."""
        found = {}
        for limit, (descriptor, word) in self._files.items():
            with contextlib.suppress(OSError):
                words = os.pread(descriptor, 512, 0).split()
                found[limit] = int(words[words.index(word) + 1]) if word in words else 0
        return found

    def close(self) -> None:
        """Close the files."""
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files.clear()


def make_group(name: str, memory_bytes: int, processes: int, cpus: float) -> Group:
    """Make a group for one sandbox, with those controllers that can be used here; there may be none.

    Args:
        name: of the sandbox.
        memory_bytes: limit on its processes and its files in memory together.
        processes: limit on processes and threads.
        cpus: limit on processors kept busy. Below it, groups share the processors equally, whatever runs in each.
    """
    made: dict[str, str] = {}
    for controller, parent in _parents().items():
        directory = f"{parent}/{_PREFIX}{name}"
        try:
            if directory not in made.values():
                os.mkdir(directory)
            if controller == "pids":
                write_setting(f"{directory}/pids.max", str(processes))
            elif controller == "cpu":
                _limit_cpus(directory, cpus)
            elif controller == "memory":
                _limit_memory(directory, memory_bytes)
        except OSError:
            if directory not in made.values():
                _remove(directory)
            continue
        made[controller] = directory
    return Group(made)


def enter(threads: Iterable[int]) -> bool:
    """Move the calling thread, the only one of its process, to the groups of `Group.entrances`; whether that worked.

    A thread that moves itself waits for no other.
    """
    try:
        for descriptor in threads:
            os.write(descriptor, b"0")
    except OSError:
        return False
    return True


def existing_groups() -> dict[str, Group]:
    """Every sandbox's group in the places where this process could make one: name of the sandbox → group."""
    found: dict[str, dict[str, str]] = {}
    controllers = (*_CONTROLLERS, _COUNTING)
    for controller, parent in [(each, place) for each in controllers for place in _candidates(each)]:
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                # A sandbox's name begins with the id of its owner: groups of others are not ours to count.
                if name.startswith(_PREFIX) and name.removeprefix(_PREFIX).split("-")[0].isdecimal():
                    found.setdefault(name.removeprefix(_PREFIX), {})[controller] = f"{parent}/{name}"
    return {name: Group(directories) for name, directories in found.items()}


def _limit_memory(directory: str, size_bytes: int) -> None:
    second = os.path.exists(f"{directory}/memory.max")
    write_setting(f"{directory}/{'memory.max' if second else 'memory.limit_in_bytes'}", str(size_bytes))
    with contextlib.suppress(OSError):  # the kernel does not account for swap
        if second:
            write_setting(f"{directory}/memory.swap.max", "0")
        else:
            write_setting(f"{directory}/memory.memsw.limit_in_bytes", str(size_bytes))
    if not second:  # version 2 counts what sockets hold as memory; version 1 counts it apart, if it has a limit
        with contextlib.suppress(OSError):
            write_setting(f"{directory}/memory.kmem.tcp.limit_in_bytes", str(min(size_bytes, _SOCKETS_BYTES)))


def _limit_cpus(directory: str, cpus: float) -> None:
    if cpus >= (os.cpu_count() or 1):
        return  # a quota costs time at every switch between processes
    quota_us = int(cpus * _PERIOD_US)
    if os.path.exists(f"{directory}/cpu.max"):
        write_setting(f"{directory}/cpu.max", f"{quota_us} {_PERIOD_US}")
    else:
        write_setting(f"{directory}/cpu.cfs_period_us", str(_PERIOD_US))
        write_setting(f"{directory}/cpu.cfs_quota_us", str(quota_us))


@functools.cache
def _parents() -> dict[str, str]:
    """For each controller the directory in which this process can make groups, tested by making one."""
    found: dict[str, str] = {}
    counted = False
    for controller in (*_CONTROLLERS, _COUNTING):
        if controller == _COUNTING and counted:
            break
        for candidate in _candidates(controller):
            trial = f"{candidate}/{_PREFIX}{os.getpid()}-{_own_start()}-trial"
            try:
                os.mkdir(trial)
            except OSError:  # no group can be made here
                continue
            usable = any(os.path.exists(f"{trial}/{name}") for name in _FILES[controller])
            usable = usable and os.access(f"{candidate}/cgroup.procs", os.W_OK)
            counts = _cpu_s(trial) is not None
            os.rmdir(trial)
            if usable and (counts or controller != _COUNTING):
                found[controller] = candidate
                counted = counted or counts
                break
    return found


def _candidates(controller: str) -> Iterator[str]:
    """Where a group with `controller` could be made: this process's own group, and with version 2 its ancestors."""
    try:
        with open("/proc/self/cgroup") as file:
            own = {names: path for _, names, path in (line.rstrip("\n").split(":", 2) for line in file)}
    except OSError:
        return
    for mounted, point, kind, options in _mounts():
        if kind == "cgroup" and controller in options.split(","):
            path = next((path for names, path in own.items() if controller in names.split(",")), None)
            if path is not None:
                yield _within(point, mounted, path)
        elif kind == "cgroup2" and "" in own:
            # A group that enables controllers for its children has no processes, so it is an ancestor of ours.
            directory = _within(point, mounted, own[""])
            while directory.startswith(point):
                with contextlib.suppress(OSError), open(f"{directory}/cgroup.subtree_control") as file:
                    if controller == _COUNTING or controller in file.read().split():
                        yield directory
                directory = os.path.dirname(directory)


def _cpu_s(directory: str) -> float | None:
    """Processor seconds that a group counts; None if it counts none."""
    for name, word, per_s in _CPU_TIMES:
        with contextlib.suppress(OSError), open(f"{directory}/{name}") as file:
            first = file.readline()
            if first.startswith(word):
                return int(first.split()[-1]) / per_s
    return None


def _own_start() -> str:
    with open("/proc/self/stat") as file:
        return file.read().rpartition(")")[2].split()[19]


def _within(point: str, mounted: str, path: str) -> str:
    inside = os.path.relpath(path, mounted)
    return point if inside == "." or inside.startswith("..") else f"{point}/{inside}"


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """Root within its file system, mount point, kind and options of every control group hierarchy."""
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                yield left.split()[3], left.split()[4], kind, options


def _numbers(path: str) -> dict[str, int]:
    try:
        with open(path) as file:
            return {name: int(number) for name, _, number in (line.partition(" ") for line in file)}
    except (OSError, ValueError):
        return {}


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
