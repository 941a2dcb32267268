"""Checkpoints: written atomically, verified when read, readable by their owner only; only the newest are kept.

DIRECTORY/00000012/state.pt        tensors and plain values, read back without running code
DIRECTORY/00000012/manifest.json   the size and the SHA-256 of every file
DIRECTORY/00000012.damaged/        a checkpoint that failed verification; it is kept, but never read again
DIRECTORY/.partial-…               a checkpoint being written, or the rest of one whose process died
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import re
import shutil
import stat
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from loguru import logger

from swe_trainers.errors import CheckpointError, DamagedError
from swe_trainers.files import ChecksummedFile, checksum, sync, write_whole

__all__ = [
    "UNREADABLE",
    "Checkpoints",
    "Loaded",
    "Manifest",
    "damage_of",
    "one_line",
    "random_states",
    "read_state",
    "restore_random_states",
    "write_state",
]

_STATE, _MANIFEST, _PARTIAL, _DAMAGED = "state.pt", "manifest.json", ".partial-", ".damaged"
_FORMAT = 2
"""Of the manifest. 1 had no key `format` and no checksums."""
_DAMAGES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.EIO)
"""Errors of the system that speak of the checkpoint; any other may be over when the run is started again."""

UNREADABLE = (
    OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
    ArithmeticError, MemoryError, pickle.UnpicklingError, struct.error,
)  # fmt: skip
"""What reading a file of tensors raises that holds something else."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step: its number.
        sizes: bytes of each file.
        checksums: the SHA-256 of each file; None for a checkpoint of format 1, which had none.
    """

    step: int
    sizes: Mapping[str, int]
    checksums: Mapping[str, str] | None

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            DamagedError: it is missing, or not a manifest of this version or an older one.
            CheckpointError: it cannot be read now.
        """
        path = folder / _MANIFEST
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise damage_of(path, error) from error
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{path}: not JSON: {one_line(error)}") from error
        if not isinstance(content, dict):
            raise DamagedError(f"{path}: a {type(content).__name__}, expected an object")
        if content.get("format", _FORMAT) != _FORMAT:
            raise DamagedError(f"{path}: of format {str(content['format'])[:20]}, this version reads up to {_FORMAT}")
        keys = {"step", "size_bytes"} | ({"format", "sha256"} if "format" in content else set())
        if content.keys() != keys:
            wrong = ", ".join(sorted(content.keys() ^ keys))
            raise DamagedError(f"{path}: missing or unknown keys: {wrong[:100]}")
        found = cls(content["step"], content["size_bytes"], content.get("sha256"))
        if not found._is_well_formed():
            raise DamagedError(f"{path}: values of the wrong type")
        if folder.name.isdecimal() and found.step != int(folder.name):
            raise DamagedError(f"{path}: of checkpoint {found.step}")
        return found

    def write(self, folder: Path) -> None:
        """Write the manifest of a new checkpoint. Raises OSError."""
        content = {"format": _FORMAT, "step": self.step, "size_bytes": self.sizes, "sha256": self.checksums}
        write_whole(folder / _MANIFEST, json.dumps(content), mode=0o600)

    def check(self, folder: Path, *, names: Sequence[str] | None = None, sizes_only: bool = False) -> None:
        """Compare files with what was written.

        Args:
            folder: of the checkpoint.
            names: of some of the files; None for all.
            sizes_only: compare nothing but sizes, which takes no time.
        Raises:
            DamagedError: one of them differs; the message names it.
            CheckpointError: one cannot be read now.
        """
        for name in self.sizes if names is None else names:
            path, size = folder / name, self.sizes[name]
            try:
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode):
                    raise DamagedError(f"{path}: not a regular file")
                if found.st_size != size:
                    raise DamagedError(f"{path}: {found.st_size} bytes, {size} were written")
                if self.checksums is not None and not sizes_only and checksum(path) != self.checksums[name]:
                    raise DamagedError(f"{path}: its content is not what was written (SHA-256)")
            except OSError as error:
                raise damage_of(path, error) from error

    def _is_well_formed(self) -> bool:
        """Whether all values have their types; names are of files in the folder, so nothing else is ever opened."""
        sizes, sums = self.sizes, self.checksums
        if type(self.step) is not int or not isinstance(sizes, dict) or _STATE not in sizes:
            return False
        if any(name in ("", ".", "..") or re.search(r"[/\0]", name) for name in sizes):
            return False
        if any(type(size) is not int or size < 0 for size in sizes.values()):
            return False
        return sums is None or (
            isinstance(sums, dict)
            and sums.keys() == sizes.keys()
            and all(isinstance(each, str) and re.fullmatch("[0-9a-f]{64}", each) for each in sums.values())
        )


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read.

    Attributes:
        path: its folder.
        state: what was given to `save`.
        notes: a line for each newer checkpoint that was damaged, and for a checkpoint that could not be verified.
    """

    path: Path
    state: dict[str, Any]
    notes: tuple[str, ...] = ()


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
            partial = self._begin()
            checksums = {_STATE: write_state(partial / _STATE, {"state": dict(state), "random": random_states()})}
            return self._publish(step, partial, checksums)
        except (OSError, RuntimeError) as error:  # torch turns a failing write into a RuntimeError
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            reason = error if isinstance(error, OSError) else error.__context__ or error
            raise CheckpointError(f"{self.directory}: checkpoint {step} was not written: {one_line(reason)}") from error

    def complete(self) -> list[Path]:
        """The checkpoints whose files are all there in their full size, oldest first; contents are not compared."""
        found = []
        for path in self._numbered():
            try:
                Manifest.read(path).check(path, sizes_only=True)
            except CheckpointError:
                continue
            found.append(path)
        return found

    def latest(self) -> Path | None:
        """The newest of `complete`, or None."""
        return next(reversed(self.complete()), None)

    def newest(self, *, map_location: str | torch.device = "cpu") -> Loaded | None:
        """Read the newest good checkpoint, and put the random states back as they were.

        Every file is compared with its checksum. Damaged checkpoints that are newer are renamed to NUMBER.damaged.

        Args:
            map_location: where its tensors go.
        Returns:
            None where there is no checkpoint at all.
        Raises:
            CheckpointError: there are checkpoints, and none is good (all stay where they are: a run does not begin anew
                by itself); or one cannot be read now.
        """
        damaged: list[tuple[Path, str]] = []
        for path in self._candidates():
            try:
                manifest = self._verify(path)
                state = self._read(path, map_location)
            except DamagedError as error:
                damaged.append((path, str(error)))
                continue
            notes = [f"{why}: resumed from {path.name}; kept as {self._set_aside(bad)}" for bad, why in damaged]
            if manifest.checksums is None:
                notes.append(f"{path}: written without checksums by an older version, loaded without verification")
            return Loaded(path, state, tuple(notes))
        if damaged:
            raise CheckpointError(
                f"{damaged[0][1]} ({self.directory} has {len(damaged)} checkpoints, all damaged). Try: another "
                "output_dir; or move them away, and the run begins anew"
            )
        return None

    def load(self, path: Path | None = None, *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
        """Read a checkpoint, each file compared with its checksum, and put the random states back as they were.

        Args:
            path: which one; None for the newest good one, see `newest`.
            map_location: where its tensors go.
        Returns:
            What was given to `save`.
        Raises:
            DamagedError: it is not what was written.
            CheckpointError: there is none, or it cannot be read.
        """
        if path is not None:
            self._verify(path)
            return self._read(path, map_location)
        found = self.newest(map_location=map_location)
        if found is None:
            raise CheckpointError(f"{self.directory}: no checkpoint here")
        return found.state

    def _numbered(self) -> list[Path]:
        """What has a checkpoint's name, oldest first."""
        if not self.directory.is_dir():
            return []
        named = [path for path in self.directory.iterdir() if path.name.isascii() and path.name.isdigit()]
        return sorted(named, key=lambda path: (int(path.name), path.name))

    def _candidates(self) -> list[Path]:
        """What `newest` tries, in this order."""
        return self._numbered()[::-1]

    def _verify(self, path: Path) -> Manifest:
        """Compare a checkpoint with what was written. Raises CheckpointError."""
        manifest = Manifest.read(path)
        manifest.check(path)
        return manifest

    def _read(self, path: Path, map_location: str | torch.device) -> dict[str, Any]:
        """Read a checkpoint. Raises CheckpointError."""
        content = read_state(path / _STATE, map_location)
        restore_random_states(content["random"])
        state: dict[str, Any] = content["state"]
        return state

    def _begin(self) -> Path:
        """A new folder to write into, of mode 0700. Raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_partial()
        return Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self.directory))

    def _publish(self, step: int, partial: Path, checksums: Mapping[str, str]) -> Path:
        """Give a folder, whose files are on the disk, its manifest and its name; drop the oldest checkpoints."""
        sizes = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        Manifest(step, sizes, {name: checksums[name] for name in sizes}).write(partial)
        sync(partial)
        target = self.directory / f"{step:08d}"
        if target.exists():
            target.rename(self.directory / f"{_PARTIAL}{partial.name}-replaced")
        partial.rename(target)
        sync(self.directory)
        self._drop_partial()
        for old in self.complete()[: -self.keep]:
            try:
                shutil.rmtree(old)
            except OSError as error:  # the new one is written, and the run goes on
                logger.warning("{}: this old checkpoint cannot be deleted and stays: {}", old, one_line(error))
        return target

    def _drop_partial(self) -> None:
        for path in self.directory.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _set_aside(self, path: Path) -> str:
        """Rename a damaged checkpoint, so that it is not looked at again; its new name. Raises CheckpointError."""
        target, number = path.with_name(path.name + _DAMAGED), 1
        while target.exists():
            number += 1
            target = path.with_name(f"{path.name}{_DAMAGED}-{number}")
        try:
            path.rename(target)
        except OSError as error:
            raise CheckpointError(f"{path}: damaged, and cannot be renamed: {one_line(error)}") from error
        return target.name


def write_state(path: Path, content: Mapping[str, Any]) -> str:
    """Write tensors and plain values to a new file, of mode 0600 and on the disk at the end; its checksum.

    Raises:
        OSError: it cannot be written.
        RuntimeError: the same, from torch.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        with ChecksummedFile(file) as checksummed:
            torch.save(content, cast(IO[bytes], checksummed))
            checksummed.flush()
        os.fsync(file.fileno())
        return checksummed.hexdigest()


def read_state(path: Path, map_location: str | torch.device) -> dict[str, Any]:
    """A file of `write_state`, read without running code, which has `state` and `random`.

    Raises:
        DamagedError: it is no such file.
        CheckpointError: it cannot be read now.
    """
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
        found = {"state": content["state"], "random": content["random"]}
    except OSError as error:
        raise damage_of(path, error) from error
    except UNREADABLE as error:
        raise DamagedError(f"{path}: cannot be read: {one_line(error)}") from error
    return found


def damage_of(path: Path, error: OSError) -> CheckpointError:
    """What an error of the system says of a checkpoint."""
    kind = DamagedError if error.errno in _DAMAGES else CheckpointError
    return kind(f"{path}: cannot be read: {error.strerror or one_line(error)}")


def one_line(error: BaseException) -> str:
    """An error's first line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
    """Put back what `random_states` gave.

    Raises:
        DamagedError: it is something else.
    """
    try:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        torch.set_rng_state(states["torch"].cpu())
        if states["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    except UNREADABLE as error:
        raise DamagedError(f"the random states of a checkpoint: {one_line(error)}") from error
