"""Directories that sandboxes can reach: pytest's own are closed to other users."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["empty_store", "own_run_directory", "public_directory", "small_run_directory"]


@contextmanager
def public_directory(purpose: str) -> Iterator[Path]:
    """A directory that any user may enter, removed afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"swegym-{purpose}-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        remove_tree(directory)  # a supervisor may still be removing sandboxes in it


def empty_directory(directory: Path) -> Path:
    """A new directory below one that any user may enter; any user may enter it too."""
    place = Path(tempfile.mkdtemp(dir=directory))
    place.chmod(0o755)
    return place


def empty_store(directory: Path) -> LayerStore:
    """A layer store of its own below a directory that any user may enter."""
    return LayerStore(empty_directory(directory) / "layers")


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


@contextmanager
def small_run_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run directory on a file system of 256 MB, on which layers are only measured."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user cannot mount a file system")
    with public_directory("small-disk") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=711", "none", folder], check=True)
        monkeypatch.setenv("SWEGYM_RUNDIR", str(folder))
        monkeypatch.setenv("SWEGYM_WITHOUT", "tmpfs")
        yield folder
        subprocess.run(["umount", "--lazy", folder], check=True)
