"""Control groups: what the processes of a sandbox use together, bounded by the kernel where this user may ask for it.

Version 2 where a group with the controllers enabled can be written (delegated by systemd, or root's), version 1 where
that is what the machine has. A sandbox's group is named after the sandbox, so what a killed supervisor leaves is found
by name.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping

__all__ = ["Counters", "Group", "existing_groups", "make_group"]

_PREFIX = "swegym-"
_CONTROLLERS = ("memory", "pids")
_EVENTS = (  # limit, controller, the file that counts (version 2, version 1), the word before the number
    ("memory", "memory", ("memory.events", "memory.oom_control"), b"oom_kill"),
    ("processes", "pids", ("pids.events",), b"max"),
)


class Group:
    """One sandbox's group: for each controller that may be used here its directory."""

    def __init__(self, directories: Mapping[str, str]) -> None:
        self.directories = dict(directories)

    def add(self, pid: int) -> None:
        """Put a process in, and with it all that it will start; a group that takes none is given up."""
        for directory in set(self.directories.values()):
            try:
                _write(f"{directory}/cgroup.procs", str(pid))
            except OSError:
                _remove(directory)
                self.directories = {name: place for name, place in self.directories.items() if place != directory}

    def resident_bytes(self) -> int | None:
        """Memory of its processes' own, files not counted; None where nobody counts."""
        if "memory" not in self.directories:
            return None
        counted = _numbers(f"{self.directories['memory']}/memory.stat")
        return counted.get("total_rss", counted.get("anon"))

    def members(self) -> list[int]:
        """The processes in it."""
        found: set[int] = set()
        for directory in set(self.directories.values()):
            with contextlib.suppress(OSError), open(f"{directory}/cgroup.procs") as file:
                found.update(int(line) for line in file)
        return sorted(found)

    def remove(self) -> None:
        """Remove it; its processes are gone. Quiet where it is gone too."""
        for directory in set(self.directories.values()):
            _remove(directory)


class Counters:
    """How often a group's limits were reached, cheap to ask again: the files stay open."""

    def __init__(self, directories: Mapping[str, str]) -> None:
        self._files: dict[str, tuple[int, bytes]] = {}
        for limit, controller, names, word in _EVENTS:
            for name in names:
                with contextlib.suppress(OSError, KeyError):
                    place = f"{directories[controller]}/{name}"
                    self._files[limit] = (os.open(place, os.O_RDONLY | os.O_CLOEXEC), word)
                    break

    def read(self) -> dict[str, int]:
        """Limit → how often it was reached in the life of the group; empty where the group is gone."""
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


def make_group(name: str, memory_bytes: int, processes: int) -> Group:
    """A group for one sandbox, without the controllers that may not be used here; maybe without any.

    Args:
        name: of the sandbox.
        memory_bytes: of its processes and of the files that it keeps in memory.
        processes: and threads.
    """
    made: dict[str, str] = {}
    for controller, parent in _parents().items():
        directory = f"{parent}/{_PREFIX}{name}"
        try:
            if directory not in made.values():
                os.mkdir(directory)
            if controller == "pids":
                _write(f"{directory}/pids.max", str(processes))
            else:
                _limit_memory(directory, memory_bytes)
        except OSError:
            if directory not in made.values():
                _remove(directory)
            continue
        made[controller] = directory
    return Group(made)


def existing_groups() -> dict[str, Group]:
    """Every group where this process might make its own: the sandbox's name → the group."""
    found: dict[str, dict[str, str]] = {}
    for controller, parent in [(each, place) for each in _CONTROLLERS for place in _candidates(each)]:
        with contextlib.suppress(OSError):
            for name in os.listdir(parent):
                if name.startswith(_PREFIX):
                    found.setdefault(name.removeprefix(_PREFIX), {})[controller] = f"{parent}/{name}"
    return {name: Group(directories) for name, directories in found.items()}


def _limit_memory(directory: str, size_bytes: int) -> None:
    second = os.path.exists(f"{directory}/memory.max")
    _write(f"{directory}/{'memory.max' if second else 'memory.limit_in_bytes'}", str(size_bytes))
    with contextlib.suppress(OSError):  # where the kernel does not account for swap
        if second:
            _write(f"{directory}/memory.swap.max", "0")
        else:
            _write(f"{directory}/memory.memsw.limit_in_bytes", str(size_bytes))


@functools.cache
def _parents() -> dict[str, str]:
    """For each controller the directory in which this process may make groups, tried by making one."""
    found: dict[str, str] = {}
    for controller in _CONTROLLERS:
        for candidate in _candidates(controller):
            trial = f"{candidate}/{_PREFIX}{os.getpid()}-{_own_start()}-trial"
            try:
                os.mkdir(trial)
            except OSError:  # no group can be made here
                continue
            usable = os.path.exists(f"{trial}/{controller}.{'max' if controller == 'pids' else 'stat'}")
            usable = usable and os.access(f"{candidate}/cgroup.procs", os.W_OK)
            os.rmdir(trial)
            if usable:
                found[controller] = candidate
                break
    return found


def _candidates(controller: str) -> Iterator[str]:
    """Where a group with `controller` might be made: this process's own group, and with version 2 those above it."""
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
            # Where controllers are handed down there are no processes in the group itself, so it is one above ours.
            directory = _within(point, mounted, own[""])
            while directory.startswith(point):
                with contextlib.suppress(OSError), open(f"{directory}/cgroup.subtree_control") as file:
                    if controller in file.read().split():
                        yield directory
                directory = os.path.dirname(directory)


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


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
