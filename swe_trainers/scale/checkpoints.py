"""Checkpoints that every rank writes its part of, and that any number of ranks reads.

DIRECTORY/00000012/*.distcp, .metadata   tensors, in PyTorch's distributed form
DIRECTORY/00000012/state.pt              everything else, with the random states of rank 0
DIRECTORY/00000012/manifest.json         the sizes a complete checkpoint has
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from swe_trainers.checkpoint import Checkpoints, random_states, restore_random_states
from swe_trainers.errors import CheckpointError
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.ranks import agreed, rank
from swe_trainers.writing import sync

__all__ = ["ShardedCheckpoints", "prime"]


class ShardedCheckpoints(Checkpoints):
    """The checkpoints of a run on several ranks; every method is called by all of them.

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
        partial = Path(agreed(self._begin() if rank() == 0 else ""))
        tensors, plain = _split(state)
        try:
            self._write(tensors, partial)
            failure = self._finish(step, partial, plain) if rank() == 0 else ""
        except (OSError, CheckpointException) as error:
            failure = " ".join(str(error).split())[:300]
        failure = agreed(failure)
        if failure:
            if rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"{self.directory}: checkpoint {step} was not written: {failure}")
        return self.directory / f"{step:08d}"

    def load(self, path: Path | None = None, *, map_location: str | torch.device = "cpu") -> dict[str, Any]:
        """See `Checkpoints.load`; written by however many ranks, every one of these reads what it holds."""
        path = path or self.latest()
        if path is None:
            raise CheckpointError(f"{self.directory}: no complete checkpoint here")
        try:
            content = torch.load(path / "state.pt", map_location=map_location, weights_only=True)
            self._prime()
            own, _ = _split({"learner": self._learner.state_dict()})
            wanted = _names(content["state"])  # a parameter that no loss touched has no state of the optimiser
            tensors = {name: tensor for name, tensor in own.items() if name in wanted}
            self._read(tensors, path)
            restore_random_states(content["random"])
        except (OSError, RuntimeError, KeyError, ValueError, CheckpointException) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise CheckpointError(f"{path}: cannot be read: {reason}") from error
        merged: dict[str, Any] = _merge(content["state"], tensors)
        return merged

    def _prime(self) -> None:
        """Have the optimiser make the state that is to be read."""
        prime(self._learner.optimizer)

    def _write(self, tensors: dict[str, Tensor], partial: Path) -> None:
        save_shards(tensors, checkpoint_id=partial)

    def _read(self, tensors: dict[str, Tensor], path: Path) -> None:
        load_shards(tensors, checkpoint_id=path)

    def _begin(self) -> str:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drop_partial()
        return tempfile.mkdtemp(prefix=".partial-", dir=self.directory)

    def _finish(self, step: int, partial: Path, plain: Any) -> str:
        """Finish a checkpoint on rank 0; why it could not be, or nothing."""
        try:
            torch.save({"state": plain, "random": random_states()}, partial / "state.pt")
            for file in partial.iterdir():
                file.chmod(0o600)
                sync(file)
            self._publish(step, partial)
        except (OSError, RuntimeError) as error:
            return str(error).splitlines()[0]
        return ""


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
    """Have an optimiser make its state, by a step at learning rate 0, which changes nothing else."""
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
