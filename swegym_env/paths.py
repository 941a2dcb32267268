"""Directories for images, layers and live sandboxes on this machine. The functions make no directory."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

__all__ = ["large_run_dir", "run_dir", "work_dir"]


def work_dir() -> Path:
    """The directory of images, layers and mirrors, which persists between runs.

    `$SWEGYM_WORKDIR` if set; else `/var/cache/swegym` for root, whose home no other user can enter (sandboxes of root
    run as an ordinary user); else `$XDG_CACHE_HOME/swegym` or `~/.cache/swegym`.
    """
    chosen = os.environ.get("SWEGYM_WORKDIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/swegym")
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "swegym"


def run_dir() -> Path:
    """The directory of the writable layers of live sandboxes: `$SWEGYM_RUNDIR`, else `/dev/shm`, else `/tmp`."""
    chosen = os.environ.get("SWEGYM_RUNDIR")
    return Path(chosen).expanduser().absolute() if chosen else _default_run_dir(os.geteuid())


@lru_cache(maxsize=1)
def _default_run_dir(user: int) -> Path:
    """Each start of a sandbox asks for it several times."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path("/tmp")
    return parent / f"swegym-{user}"


def large_run_dir() -> Path:
    """The same for writable layers that are too large for memory: `$SWEGYM_RUNDIR`, else in `work_dir()`."""
    return run_dir() if os.environ.get("SWEGYM_RUNDIR") else work_dir() / "run"
