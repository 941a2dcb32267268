"""Garbage collection: directories, control groups and processes of owners that have ended.

Usually there is nothing to find, since the supervisor removes everything when its owner ends in any way. Garbage is
left where both were killed at once, or the machine crashed.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from swegym_env.paths import large_run_dir, run_dir
from swegym_env.sandbox.leases import Lease, boot_id, owner_of_name, process_start, read_lease
from swegym_env.sandbox.linux.cgroups import existing_groups
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.linux.processes import kill_one

__all__ = ["GarbageReport", "collect_garbage"]

_CLEANUP_TIMEOUT_S = 3.0  # how long the supervisor of a dead owner may go on cleaning up by itself
_UNFINISHED_S = 60.0  # age at which a directory without a lease is garbage


@dataclass(frozen=True)
class GarbageReport:
    """What was removed.

    Attributes:
        directories: names of the sandboxes and snapshots removed.
        processes: ids of the processes killed.
        kept: how many directories belong to living owners.
        failed: for each directory that could not be removed, its path and why.
    """

    directories: tuple[str, ...]
    processes: tuple[int, ...]
    kept: int
    failed: tuple[str, ...] = ()


def collect_garbage() -> GarbageReport:
    """Remove everything of dead owners, and nothing else. May run at any time, in several processes at once.

    What cannot be removed keeps nobody from starting a sandbox: it is named in the report.
    """
    dead: list[Path] = []
    leases: set[Lease] = set()
    kept = 0
    parents = {parent for parent in (run_dir(), large_run_dir()) if parent.is_dir()}
    for directory in sorted(path for parent in parents for path in parent.iterdir()):
        if not directory.is_dir() or directory.is_symlink():
            continue
        lease = read_lease(directory)
        if lease is None:  # it is being made or removed, or was when its owner was killed
            owner = owner_of_name(directory.name)
            with contextlib.suppress(FileNotFoundError):  # its owner removed it meanwhile
                old = time.time() - directory.stat().st_mtime > _UNFINISHED_S
                if old or (owner is not None and process_start(owner[0]) != owner[1]):
                    dead.append(directory)
        elif lease.boot == boot_id() and process_start(lease.owner) == lease.owner_start:
            kept += 1
        else:
            dead.append(directory)
            leases.add(lease)
    killed = _end_supervisors(leases)
    dead = [directory for directory in dead if directory.exists()]
    if dead:
        killed += _kill_users(dead)
    removed, failed = [], []
    for directory in dead:
        try:
            remove_tree(directory)
            removed.append(directory.name)
        except OSError as error:
            failed.append(f"{directory}: {error}")
    killed += _remove_groups()
    return GarbageReport(tuple(removed), tuple(killed), kept, tuple(failed))


def _end_supervisors(leases: set[Lease]) -> list[int]:
    """Wait for the supervisors of dead owners, which are cleaning up, and kill those that hang; their ids."""
    alive = {lease.supervisor: lease.supervisor_start for lease in leases if lease.boot == boot_id()}
    deadline = time.monotonic() + _CLEANUP_TIMEOUT_S
    while alive and time.monotonic() < deadline:
        alive = {pid: start for pid, start in alive.items() if process_start(pid) == start}
        time.sleep(0.01 if alive else 0)
    for pid in alive:
        kill_one(pid)
    return list(alive)


def _kill_users(dead: list[Path]) -> list[int]:
    """Kill every process that has the writable layer of a dead sandbox mounted; their ids."""
    marks = [f"upperdir={directory}/".encode() for directory in dead]
    killed = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            mounts = Path("/proc", name, "mountinfo").read_bytes()
        except OSError:
            continue  # it has ended, or belongs to another user
        if any(mark in mounts for mark in marks):
            kill_one(int(name))
            killed.append(int(name))
    return killed


def _remove_groups() -> list[int]:
    """Remove the control groups of dead owners, and kill the processes in them; their ids.

    The names of groups and directories have the same prefix (`leases.owner_prefix`).
    """
    killed = []
    for name, group in existing_groups().items():
        owner = owner_of_name(name)
        if owner is None or process_start(owner[0]) == owner[1]:
            continue
        deadline = time.monotonic() + _CLEANUP_TIMEOUT_S
        while (members := group.members()) and time.monotonic() < deadline:
            for pid in members:
                kill_one(pid)
            killed += [pid for pid in members if pid not in killed]
            time.sleep(0.01)
        group.remove()
    return killed
