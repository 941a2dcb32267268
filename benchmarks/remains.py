"""Counts what is left of sandboxes whose owners have ended: directories, processes, control groups, mounts and more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from swegym_env.sandbox.linux.cgroups import existing_groups

__all__ = ["USERS", "comm_of", "left"]

LOOP_FILES = "loop*/loop/backing_file"
USERS = (0x70000000 + (1 << 20), 1 << 12)  # ids of these sandboxes alone, by which processes and keys are found


def left(place: Path, owners: set[int]) -> dict[str, int]:
    """How much there is of everything that a sandbox consists of.

    Args:
        place: the run directory.
        owners: ids of the processes that had sandboxes in it.
    """
    users = range(USERS[0], sum(USERS))
    processes = daemons = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            process = Path("/proc", pid)
            mounted = f"{place}/" in (process / "mountinfo").read_text()
            processes += mounted or process.stat().st_uid in users
            daemons += mounted and comm_of(int(pid)) == "fuse-overlayfs"
    return {
        "directories": len([path for path in place.iterdir() if path.is_dir()]),
        "processes": processes,
        "control groups": sum(int(name.split("-")[0]) in owners for name in existing_groups()),
        "mounts": Path("/proc/self/mountinfo").read_text().count(f"{place}/"),
        "loop devices": sum(str(place) in path.read_text() for path in Path("/sys/block").glob(LOOP_FILES)),
        "FUSE daemons": daemons,
        "users with keys": sum(1 for user, keys in keys_of_users() if user in users and keys),
    }


def keys_of_users() -> Iterator[tuple[int, int]]:
    """User and number of keys, for those of whom the kernel knows any."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without keys
        for line in Path("/proc/key-users").read_text().splitlines():
            user, _, rest = line.partition(":")
            yield int(user), int(rest.split()[1].partition("/")[0])


def comm_of(pid: int) -> str:
    """The name of a process; empty where it has ended."""
    with contextlib.suppress(OSError):
        return Path("/proc", str(pid), "comm").read_text().strip()
    return ""
