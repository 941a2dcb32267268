"""Checkpoints: whole or not there at all, readable by their owner only, the newest few kept.

DIRECTORY/00000012/state.pt        tensors and plain values, read back without running code
DIRECTORY/00000012/manifest.json   the sizes a complete checkpoint has
DIRECTORY/.partial-…               one being written, or what a death left of it
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swe_trainers.errors import CheckpointError
from swe_trainers.writing import sync, write_whole

__all__ = ["Checkpoints", "random_states", "restore_random_states"]

_STATE, _MANIFEST, _PARTIAL = "state.pt", "manifest.json", ".partial-"


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: made with mode 0700 at the first save.
        keep: how many of the newest stay.
    """

    def __init__(self, directory: str | Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise CheckpointError(f"keep: got {keep}, expected at least 1")
        self.directory = Path(directory)
        self.keep = keep

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, with the random states of Python, NumPy and PyTorch, and drop the oldest.

        It is on the disk before its name appears: a death at any moment leaves the former checkpoints as they were.

        Args:
            step: its number; of two checkpoints the one with the higher number is the newer.
            state: tensors, numbers, strings, None, and lists, tuples and dictionaries of these.
        Raises:
            CheckpointError: it could not be written; nothing of it is left.
        """
        partial = None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._drop_partial()
            partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self.directory))  # mode 0700
            _write_state(partial / _STATE, {"state": dict(state), "random": random_states()})
            return self._publish(step, partial)
        except (OSError, RuntimeError) as error:  # torch turns a failing write into a RuntimeError
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            reason = error if isinstance(error, OSError) else error.__context__ or error
            raise CheckpointError(
                f"{self.directory}: checkpoint {step} was not written: {_one_line(reason)}"
            ) from error

    def complete(self) -> list[Path]:
        """The checkpoints that are whole, oldest first."""
        if not self.directory.is_dir():
            return []
        return [path for path in sorted(self.directory.iterdir()) if path.name.isdigit() and _is_complete(path)]

    def latest(self) -> Path | None:
        """The newest whole checkpoint, or None."""
        return next(reversed(self.complete()), None)

    def load(self, path: Path | None = None, *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
        """Read a checkpoint and put the random states back as they were.

        Args:
            path: which one; None for the newest.
            map_location: where its tensors go.
        Returns:
            What was given to `save`.
        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        path = path or self.latest()
        if path is None:
            raise CheckpointError(f"{self.directory}: no complete checkpoint here")
        try:
            content = torch.load(path / _STATE, map_location=map_location, weights_only=True)
            restore_random_states(content["random"])
            state: dict[str, Any] = content["state"]
        except (OSError, RuntimeError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{path}: cannot be read: {_one_line(error)}") from error
        return state

    def _publish(self, step: int, partial: Path) -> Path:
        """Give a folder, whose files are on the disk, its manifest and its name; drop the oldest checkpoints."""
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        write_whole(partial / _MANIFEST, json.dumps({"step": step, "size_bytes": sizes}), mode=0o600)
        sync(partial)
        target = self.directory / f"{step:08d}"
        if target.exists():
            target.rename(self.directory / f"{_PARTIAL}{partial.name}-replaced")
        partial.rename(target)
        sync(self.directory)
        self._drop_partial()
        for old in self.complete()[: -self.keep]:
            shutil.rmtree(old)
        return target

    def _drop_partial(self) -> None:
        for path in self.directory.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path, ignore_errors=True)


def random_states() -> dict[str, Any]:
    """The global random states of Python, NumPy and PyTorch, in plain values and tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Put back what `random_states` gave."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def _write_state(path: Path, content: Mapping[str, Any]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _is_complete(path: Path) -> bool:
    try:
        sizes = json.loads((path / _MANIFEST).read_bytes())["size_bytes"]
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _one_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
