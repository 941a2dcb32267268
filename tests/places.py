"""Directories that sandboxes can reach: pytest's own are closed to other users."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["empty_store", "own_run_directory", "public_directory"]


@contextmanager
def public_directory(purpose: str) -> Iterator[Path]:
    """A directory that any user may enter, removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"swegym-{purpose}-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        remove_tree(directory)  # a supervisor may still be removing sandboxes in it


def empty_store(directory: Path) -> LayerStore:
    """A layer store of its own below a directory that any user may enter."""
    place = Path(tempfile.mkdtemp(dir=directory))
    place.chmod(0o755)
    return LayerStore(place / "layers")


@contextmanager
def own_run_directory() -> Iterator[Path]:
    """A run directory used by these tests only, so that leftovers in it can be counted."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="swegym-test-", dir=parent))
    directory.chmod(0o711)
    before = os.environ.get("SWEGYM_RUNDIR")
    os.environ["SWEGYM_RUNDIR"] = str(directory)
    try:
        yield directory
    finally:
        if before is None:
            del os.environ["SWEGYM_RUNDIR"]
        else:
            os.environ["SWEGYM_RUNDIR"] = before
        shutil.rmtree(directory, ignore_errors=True)
