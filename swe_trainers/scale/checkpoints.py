"""Checkpoints that every rank writes its part of, and that any number of ranks reads.

DIRECTORY/00000012/*.distcp, .metadata   tensors, in PyTorch's distributed form
DIRECTORY/00000012/state.pt              everything else, with the random states of rank 0
DIRECTORY/00000012/manifest.json         the size and the SHA-256 of every file
"""

from __future__ import annotations

import pickle
import shutil
from collections import ChainMap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from swe_trainers.checkpoint import (
    UNREADABLE,
    Checkpoints,
    Manifest,
    one_line,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from swe_trainers.errors import CheckpointError
from swe_trainers.files import checksum, sync
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.master_weights import stepped
from swe_trainers.process_group import broadcast, gathered, n_ranks, rank

__all__ = ["ShardedCheckpoints", "prime"]


class ShardedCheckpoints(Checkpoints):
    """The checkpoints of a run on several ranks. All ranks call `save`, `newest` and `load` together.

    Each rank hashes the files that it wrote, and verifies its share of the files that are read. If one rank finds an
    error, all ranks raise it.

    Args:
        directory: on a file system that all ranks share.
        learner: whose state is saved; it says which part of each tensor a rank holds.
        keep: how many of the newest stay.
    """

    def __init__(self, directory: str | Path, learner: Learner, *, keep: int = 2) -> None:
        super().__init__(directory, keep=keep)
        self._learner = learner

    def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """See `Checkpoints.save`; the tensors of all ranks are on the disk before the checkpoint's name appears."""
        partial: Path | None = None
        failure = ""
        try:
            partial = self._begin() if rank() == 0 else None
        except OSError as error:
            failure = str(error)
        partial, failure = broadcast((partial, failure))
        if partial is not None:
            tensors, plain = _split(state)
            checksums: dict[str, str] = {}
            try:
                self._write(tensors, partial)
                checksums = _settled(_written_by(rank(), partial))
            except (OSError, RuntimeError, CheckpointException) as error:
                failure = " ".join(str(error).split())[:300]
            parts = gathered([(failure, checksums)])
            failure = next((failure for failure, _ in parts if failure), "")
            if rank() == 0 and not failure:
                failure = self._finish(step, partial, plain, dict(ChainMap(*(each for _, each in parts))))
            failure = broadcast(failure)
        if failure:
            if rank() == 0 and partial is not None:
                shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"{self.directory}: checkpoint {step} was not written: {failure}")
        return self.directory / f"{step:08d}"

    def _candidates(self) -> list[Path]:
        return broadcast(super()._candidates())  # a rank on another machine may see a new folder later

    def _verify(self, path: Path) -> Manifest:
        manifest, found = None, None
        try:
            manifest = Manifest.read(path)
            manifest.check(path, names=sorted(manifest.sizes)[rank() :: n_ranks()])
        except CheckpointError as error:
            found = error
        _agree(found)
        assert manifest is not None
        return manifest

    def _read(self, path: Path, map_location: str | torch.device) -> dict[str, Any]:
        """Load a checkpoint, written by any number of ranks; each rank reads the parts of the tensors that it holds."""
        content, found = None, None
        try:
            content = read_state(path / "state.pt", map_location)
        except CheckpointError as error:
            found = error
        _agree(found)
        assert content is not None
        try:
            self._prime()
            own, _ = _split({"learner": self._learner.state_dict()})
            wanted = _names(content["state"])  # a parameter that no loss touched has no state of the optimizer
            tensors = {name: tensor for name, tensor in own.items() if name in wanted}
            self._read_tensors(tensors, path)
            merged: dict[str, Any] = _merge(content["state"], tensors)
        except (*UNREADABLE, CheckpointException) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise CheckpointError(f"{path}: cannot be read: {reason}") from error
        restore_random_states(content["random"])
        return merged

    def _set_aside(self, path: Path) -> str:
        name, found = "", None
        try:
            name = super()._set_aside(path) if rank() == 0 else ""
        except CheckpointError as error:
            found = error
        _agree(found)
        return broadcast(name)

    def _prime(self) -> None:
        """Have the optimizer make the state that is to be read."""
        prime(self._learner.optimizer)

    def _write(self, tensors: dict[str, Tensor], partial: Path) -> None:
        """Write this rank's part."""
        save_shards(tensors, checkpoint_id=partial)

    def _read_tensors(self, tensors: dict[str, Tensor], path: Path) -> None:
        """Read this rank's part into its tensors."""
        load_shards(tensors, storage_reader=_Reader(path))

    def _finish(self, step: int, partial: Path, plain: Any, checksums: Mapping[str, str]) -> str:
        """Finish a checkpoint on rank 0; why it could not be, or nothing."""
        try:
            own = {"state.pt": write_state(partial / "state.pt", {"state": plain, "random": random_states()})}
            for file in partial.iterdir():
                file.chmod(0o600)
            others = _settled([file for file in partial.iterdir() if file.name not in {**checksums, **own}])
            self._publish(step, partial, {**checksums, **own, **others})
        except (OSError, RuntimeError) as error:
            return one_line(error)
        return ""


class _Reader(FileSystemReader):
    """PyTorch's reader of shards, whose index of them is unpickled without running code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            found = _IndexUnpickler(file).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError(f".metadata is {type(found).__name__}")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _IndexUnpickler(pickle.Unpickler):
    """Knows the classes and dtypes that an index of shards consists of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _INDEX.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an index of shards")


_INDEX = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "collections": ("OrderedDict",),
    "pathlib": ("Path", "PosixPath"),
    "pathlib._local": ("Path", "PosixPath"),  # Python 3.13
}  # fmt: skip


def _written_by(number: int, partial: Path) -> list[Path]:
    """The files of a new checkpoint that this rank wrote: PyTorch's shards and ZeRO's, by their names."""
    return [file for file in partial.iterdir() if file.name.startswith((f"__{number}_", f"zero-{number}-of-"))]


def _settled(files: Sequence[Path]) -> dict[str, str]:
    """Have files on the disk, and hash them meanwhile; their checksums by name. Raises OSError."""
    with ThreadPoolExecutor(4, thread_name_prefix="checksum") as pool:
        checksums = [pool.submit(checksum, file) for file in files]
        for file in files:
            sync(file)
        return {file.name: found.result() for file, found in zip(files, checksums, strict=True)}


def _agree(own: CheckpointError | None) -> None:
    """Raise on every rank what the first of them has found."""
    first = next((error for error in gathered([own]) if error is not None), None)
    if first is not None:
        raise first


def _split(tree: Any, name: str = "") -> tuple[dict[str, Tensor], Any]:
    """The tensors of nested dictionaries by their dotted names, and everything else, each tensor by its name there."""
    if isinstance(tree, Tensor):
        return {name: tree}, {"tensor": name}
    if not isinstance(tree, Mapping):
        return {}, {"value": tree}
    tensors: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    for key, value in tree.items():
        found, plain[key] = _split(value, f"{name}.{key}" if name else str(key))
        tensors |= found
    return tensors, {"entries": plain}


def _merge(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    """Turn `_split` round."""
    if "tensor" in plain:
        return tensors[plain["tensor"]]
    if "value" in plain:
        return plain["value"]
    return {key: _merge(value, tensors) for key, value in plain["entries"].items()}


def _names(plain: Mapping[str, Any]) -> set[str]:
    """The tensors that a `_split` tree names."""
    if "tensor" in plain:
        return {plain["tensor"]}
    return set().union(*(_names(value) for value in plain.get("entries", {}).values()))


def prime(optimizer: torch.optim.Optimizer) -> None:
    """Have an optimizer make its state, by a step at learning rate 0, which changes nothing else."""
    if any("step" in state for state in optimizer.state.values()):
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in map(stepped, group["params"]):
            parameter.grad = torch.zeros_like(parameter, dtype=getattr(parameter, "grad_dtype", None))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
