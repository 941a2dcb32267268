"""Directories for images, layers and live sandboxes on this machine. The functions make no directory."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from swegym_env.errors import ConfigurationError

__all__ = ["expand", "large_run_dir", "run_dir", "work_dir"]


def expand(path: str | os.PathLike[str]) -> Path:
    """`path` with the home directory in the place of "~"; unchanged where that user has none."""
    return Path(os.path.expanduser(path))


def work_dir() -> Path:
    """The directory of images, layers and mirrors, which persists between runs.

    `$SWEGYM_WORKDIR` if set; else `/var/cache/swegym` for root, whose home no other user can enter (sandboxes of root
    run as an ordinary user); else `$XDG_CACHE_HOME/swegym` or `~/.cache/swegym`.

    Raises:
        ConfigurationError: the user has no home directory, as in containers with any user id.
    """
    chosen = os.environ.get("SWEGYM_WORKDIR")
    if chosen:
        return expand(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/swegym")
    cache = expand(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    if not cache.is_absolute():
        raise ConfigurationError(
            f"images and layers: user {os.geteuid()} has no home directory for them. Try: SWEGYM_WORKDIR=/large/disk"
        )
    return cache / "swegym"


def run_dir() -> Path:
    """The directory of the writable layers of live sandboxes.

    `$SWEGYM_RUNDIR`, else `/dev/shm/swegym-UID`, else `/tmp/swegym-UID`.
    """
    chosen = os.environ.get("SWEGYM_RUNDIR")
    return expand(chosen).absolute() if chosen else _default_run_dir(os.geteuid())


@lru_cache(maxsize=1)
def _default_run_dir(user: int) -> Path:
    """Each start of a sandbox asks for it several times."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else Path("/tmp")
    return parent / f"swegym-{user}"


def large_run_dir() -> Path:
    """The same for writable layers that are too large for memory: `$SWEGYM_RUNDIR`, else in `work_dir()`."""
    return run_dir() if os.environ.get("SWEGYM_RUNDIR") else work_dir() / "run"
