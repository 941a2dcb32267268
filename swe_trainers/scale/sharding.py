"""Models sharded over the ranks of a torchrun job by PyTorch's FSDP2."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor

from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.master_weights import NARROW
from swe_trainers.model.language_model import AdapterFreeReference, LanguageModel
from swe_trainers.model.sequence_parallel import SequenceGroup
from swe_trainers.scale.ray_cluster import RayConfig

__all__ = ["ScaleConfig", "check_model", "joined_ranks", "reference", "refresh", "sequence_group", "shard"]


@dataclass(frozen=True)
class ScaleConfig(Configuration):
    """Training and rollouts over several processes and machines.

    Attributes:
        fsdp: shard parameters, gradients and optimizer states (FSDP2) over the ranks that torchrun starts. Every rank
            plays its share of the episodes with a whole copy of the policy, or through a server.
        accelerate: use Accelerate instead: a whole copy on each rank (`ddp`), or DeepSpeed, which shards the optimizer
            states (`zero1`), or those and the gradients (`zero2`).
        sequence_parallel: number of neighbouring ranks that compute every micro-batch together, each with its part of
            the sequence (Ulysses): for contexts whose activations do not fit on one GPU. It must divide the number of
            ranks and the number of attention heads.
        activation_checkpointing: compute activations again in the backward pass instead of storing them.
        cpu_offload: keep parameters and optimizer states in the host's memory while they are not used.
        ray: workers of a Ray cluster that play the episodes; null: they are played in this process.
        timeout_s: seconds after which a rank that waits for another fails; set it above the longest rollout.
        meeting_timeout_s: the same at the start, before episodes are played: ranks that are restarted after a failure
            may deadlock (with gloo each of two waited for the other's connection), and are restarted once more.
    """

    fsdp: bool = False
    accelerate: Literal["ddp", "zero1", "zero2"] | None = None
    sequence_parallel: int = 1
    activation_checkpointing: bool = False
    cpu_offload: bool = False
    ray: RayConfig | None = None
    timeout_s: float = 7200.0
    meeting_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.fsdp and (self.activation_checkpointing or self.cpu_offload or self.sequence_parallel != 1):
            raise ConfigurationError(
                "scale: sequence_parallel, activation_checkpointing and cpu_offload have no effect without fsdp"
            )
        if self.fsdp and self.accelerate is not None:
            raise ConfigurationError("scale.accelerate: cannot be combined with fsdp. Try: one of the two")
        if self.sequence_parallel < 1:
            raise ConfigurationError(f"scale.sequence_parallel: got {self.sequence_parallel}, expected at least 1")
        for name in ("timeout_s", "meeting_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"scale.{name}: got {getattr(self, name)}, expected a positive number")


@contextmanager
def joined_ranks(config: ScaleConfig) -> Iterator[None]:
    """Join the other ranks, and leave them at the end.

    Raises:
        ConfigurationError: torchrun started several ranks, and the configuration shards nothing.
        TrainerError: another rank is gone.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if not config.fsdp and config.accelerate is None:
        if world > 1:
            raise ConfigurationError(
                f"torchrun started {world} ranks, which would all do the same. Try: scale.fsdp true"
            )
        yield
        return
    if world % config.sequence_parallel:
        raise ConfigurationError(
            f"scale.sequence_parallel: {config.sequence_parallel} does not divide the {world} ranks of torchrun"
        )
    if dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=config.timeout_s)
    if world > 1:
        store, rank, _ = next(rendezvous("env://", timeout=timedelta(seconds=config.meeting_timeout_s)))
        if os.environ.get("LOCAL_WORLD_SIZE") == str(world):
            # Ranks that torchrun starts again may meet in the store of the former ones, and take their addresses for
            # one another's (PyTorch 2.13). Over several nodes launch.sh asks torchrun for a new store each time.
            store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
        meeting = min(timeout, timedelta(seconds=config.meeting_timeout_s))
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=meeting)
        _set_pg_timeout(timeout)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
    try:
        yield
    except RuntimeError as error:
        if world == 1 or not _is_loss_of_a_rank(error):
            raise
        raise TrainerError(
            f"rank {dist.get_rank()}: another rank is gone, in whose log the cause is ({str(error).splitlines()[0]}). "
            "Started again, the run goes on from its last checkpoint"
        ) from error
    finally:
        dist.destroy_process_group()


def sequence_group(config: ScaleConfig) -> SequenceGroup | None:
    """The ranks that compute micro-batches with this one; None for it alone. All ranks call it together.

    Raises:
        ConfigurationError: the ranks cannot be divided so.
    """
    size, world = config.sequence_parallel, dist.get_world_size() if config.fsdp else 1
    if size == 1:
        return None
    if world % size:
        raise ConfigurationError(f"scale.sequence_parallel: {size} does not divide the {world} ranks of torchrun")
    group, _ = dist.new_subgroups(size)  # type: ignore[no-untyped-call]
    return SequenceGroup(group, dist.get_rank() % size, size)


def check_model(model: LanguageModel, config: ScaleConfig) -> None:
    """Refuse what would have no effect on a model, or fail later.

    Raises:
        ConfigurationError: with the reason.
    """
    if config.accelerate in ("zero1", "zero2") and importlib.util.find_spec("deepspeed") is None:
        raise ConfigurationError(
            f"scale.accelerate {config.accelerate}: DeepSpeed is not installed. Try: DS_BUILD_OPS=0 pip install "
            "deepspeed, or scale.fsdp, which needs nothing more"
        )
    _check_heads(model, config.sequence_parallel)
    if config.cpu_offload and model.device.type == "cpu":
        raise ConfigurationError("scale.cpu_offload: has no effect on a model that is in the host's memory already")
    if config.activation_checkpointing and model.recomputes_activations:
        raise ConfigurationError("scale.activation_checkpointing: model.recompute_activations says so already")


def shard(model: LanguageModel, config: ScaleConfig, group: SequenceGroup | None = None) -> LanguageModel:
    """Shard a whole model in place; of one with adapters what is frozen as well as what learns.

    Trained bfloat16 weights become float32 in their shards, which the optimizer steps, and are gathered as bfloat16, in
    which everything is computed as before; gradients are added over ranks and micro-batches in float32.

    Every layer is gathered when it is used; embeddings and projection stay whole from a forward pass to the end of its
    backward pass, because the kernels read them in between. The value head may be of another dtype than the rest, and
    is gathered by itself.

    Args:
        model: the same on every rank.
        config: what is sharded how.
        group: from `sequence_group`.
    Returns:
        The model.
    Raises:
        ConfigurationError: the model cannot be sharded, or its heads cannot be divided.
    """
    if group is not None:
        _check_heads(model, group.size)
        model.sequence_group = group
    if config.activation_checkpointing:
        model.recompute_activations()
    cuda = model.device.type == "cuda"
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    offload = CPUOffloadPolicy(pin_memory=cuda) if config.cpu_offload else OffloadPolicy()
    precision = _widen(model)
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh, offload_policy=offload, mp_policy=precision)
    fully_shard(model.value_head, mesh=mesh, offload_policy=offload)
    fully_shard(model, mesh=mesh, offload_policy=offload, mp_policy=precision, reshard_after_forward=False)
    register_fsdp_forward_method(model, "trunk_hidden")
    return model


def reference(
    whole: LanguageModel, sharded: LanguageModel, config: ScaleConfig, group: SequenceGroup | None
) -> LanguageModel | AdapterFreeReference:
    """The policy as it is now, frozen and sharded; where its adapters are new, the sharded one without them.

    Args:
        whole: the policy.
        sharded: the same, as it learns.
        config, group: as in `shard`.
    """
    copy = whole.reference_copy()
    return AdapterFreeReference(sharded) if isinstance(copy, AdapterFreeReference) else shard(copy, config, group)


@torch.no_grad()
def refresh(whole: LanguageModel, sharded: LanguageModel) -> None:
    """Copy the current weights of a sharded model to a whole one; all ranks together, one tensor at a time."""
    targets = whole.state_dict()
    for name, value in sharded.state_dict().items():
        targets[name].copy_(value.full_tensor() if isinstance(value, DTensor) else value)


def _is_loss_of_a_rank(error: RuntimeError) -> bool:
    """Whether a collective failed: of NCCL and stores PyTorch says so by the type, of gloo by the text alone."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def _check_heads(model: LanguageModel, size: int) -> None:
    heads = int(model.causal_lm.config.num_attention_heads)
    if heads % size:
        raise ConfigurationError(
            f"scale.sequence_parallel: {size} does not divide the {heads} attention heads, which are shared among the "
            f"ranks. Try: one of {', '.join(str(n) for n in range(1, heads + 1) if heads % n == 0)}"
        )


def _widen(model: LanguageModel) -> MixedPrecisionPolicy:
    """Make trained bfloat16 weights float32, in place; the policy computes with them as they were."""
    narrow = [p.dtype for p in model.causal_lm.parameters() if p.requires_grad and p.dtype in NARROW]
    if not narrow:
        return MixedPrecisionPolicy()
    for parameter in model.causal_lm.parameters():
        parameter.data = parameter.data.float()
    return MixedPrecisionPolicy(param_dtype=narrow[0], reduce_dtype=torch.float32)


def _layers(model: LanguageModel) -> torch.nn.ModuleList:
    """The trunk's layers: its one list of alike modules."""
    found = [module for module in model.trunk.children() if isinstance(module, torch.nn.ModuleList)]
    if len(found) != 1:
        raise ConfigurationError(f"{model.causal_lm.config.model_type}: no single list of layers that could be sharded")
    return found[0]
