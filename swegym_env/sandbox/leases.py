"""Directories of live sandboxes and snapshots, each with a lease that names its owner.

A process is named by its id, its start time and the machine's boot: ids alone are reused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from swegym_env.errors import StorageError
from swegym_env.files import is_full, make_directory
from swegym_env.paths import run_dir
from swegym_env.sandbox.linux.files import remove_tree

__all__ = [
    "Lease",
    "boot_id",
    "lease_directory",
    "machine_id",
    "owner_of_name",
    "owner_prefix",
    "process_start",
    "read_lease",
    "storage_error",
]

_LEASE = "lease.json"
_NAME = re.compile(r"\.?(\d+)-(\d+)-", re.ASCII)


@dataclass(frozen=True)
class Lease:
    """The owner of a directory.

    Attributes:
        owner: process id of the owner.
        owner_start: its start, in clock ticks since boot.
        supervisor: process id of the owner's supervisor.
        supervisor_start: its start.
        boot: id of the boot in which these processes run.
    """

    owner: int
    owner_start: int
    supervisor: int
    supervisor_start: int
    boot: str


@functools.cache
def boot_id() -> str:
    """The id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@functools.cache
def machine_id() -> str:
    """The same for all processes that this one can look up by id: those of its machine, boot and process namespace."""
    return hashlib.sha256(f"{boot_id()} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain anything
    return None if fields[0] in ("Z", "X") else int(fields[19])


@functools.lru_cache(maxsize=1)
def _start_of_owner(pid: int) -> int:
    return process_start(pid) or 0


def owner_prefix() -> str:
    """The prefix of the names of all directories of this process, after a dot while their lease is being written."""
    return f"{os.getpid()}-{_start_of_owner(os.getpid())}-"


def owner_of_name(name: str) -> tuple[int, int] | None:
    """Process id and start of the owner whose directory or control group has this name; None if it has another form."""
    found = _NAME.match(name)
    return None if found is None else (int(found[1]), int(found[2]))


def lease_directory(kind: str, supervisor: int, parent: Path | None = None) -> Path:
    """Make a directory for a sandbox or snapshot of this process, with its lease in it from the first moment.

    A sandbox sees the names in its list of mounts: they do not say how many were made before.

    Args:
        kind: "sandbox", "imports" or "snapshot"; the end of its name.
        supervisor: process id of this process's supervisor.
        parent: default: `run_dir()`.
    Raises:
        StorageError: it cannot be made; nothing of it is left.
    """
    parent = parent or run_dir()
    name = f"{owner_prefix()}{secrets.token_hex(6)}-{kind}"
    lease = Lease(os.getpid(), _start_of_owner(os.getpid()), supervisor, process_start(supervisor) or 0, boot_id())
    unfinished = parent / f".{name}"
    try:
        make_directory(unfinished, 0o711)
        (unfinished / _LEASE).write_text(json.dumps(asdict(lease)))
        return unfinished.rename(parent / name)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_tree(unfinished)
        raise storage_error(error, parent) from error


def storage_error(error: OSError, parent: Path | None = None) -> StorageError:
    """The error for a run directory (default: `run_dir()`) that cannot be written."""
    hint = "Try: swegym gc, or another $SWEGYM_RUNDIR" if is_full(error) else "Try: another $SWEGYM_RUNDIR"
    return StorageError(f"no place for a sandbox in {parent or run_dir()}: {error.strerror or error}. {hint}")


def read_lease(directory: Path) -> Lease | None:
    """The lease of a directory; None if there is none that can be read."""
    try:
        return Lease(**json.loads((directory / _LEASE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
