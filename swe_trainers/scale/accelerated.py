"""Models that Accelerate spreads over ranks: whole on each of them (DDP), or with DeepSpeed's ZeRO.

What is learnt is what one process learns, as with FSDP2. Parameters stay whole on every rank, and play there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.eight_bit import AdamW8bit
from swe_trainers.learning.learner import Learner, kept_settings
from swe_trainers.learning.master_weights import MasterAdamW, MasterAdamW8bit, Masters, stepped
from swe_trainers.model.attention import SegmentLayout
from swe_trainers.model.language_model import LanguageModel, Unembedding
from swe_trainers.process_group import n_ranks, rank
from swe_trainers.scale.checkpoints import ShardedCheckpoints, prime

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["AcceleratedCheckpoints", "AcceleratedModel", "AcceleratedSteps", "accelerate"]


def _accelerator(kind: str, *, dtype: torch.dtype, max_grad_norm: float) -> Accelerator:
    """The accelerator of the ranks, whose process group is initialised already."""
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin

    if kind == "ddp":
        return Accelerator(cpu=not torch.cuda.is_available())
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # the update says itself which micro-batch is the last
        "zero_optimization": {"stage": int(kind[-1])},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": max_grad_norm,
        "bf16": {"enabled": dtype == torch.bfloat16},
    }
    return Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings))


def accelerate(learner: Learner, kind: Literal["ddp", "zero1", "zero2"], *, max_grad_norm: float) -> None:
    """Spread a learner's model and optimizer over the ranks, in place.

    Args:
        learner: at its start; its model is the same on every rank, and the only one that learns.
        kind: of spreading.
        max_grad_norm: gradients are scaled down to this norm.
    Raises:
        ConfigurationError: ZeRO does not take the optimizer, whose moments have eight bits.
    """
    assert isinstance(learner.model, LanguageModel) and learner.critic is None
    whole = learner.model
    accelerator = _accelerator(kind, dtype=next(whole.causal_lm.parameters()).dtype, max_grad_norm=max_grad_norm)
    own = learner.optimizer
    if isinstance(own, AdamW8bit) and kind != "ddp":
        raise ConfigurationError(f"trainer.moments 8bit: not with scale.accelerate {kind}. Try: scale.fsdp, or float32")
    if isinstance(own, MasterAdamW) and kind != "ddp":  # DeepSpeed makes the float32 copies, and shards them
        own = own.without_copies()
    engine, optimizer = accelerator.prepare(whole, own)
    learner.model = AcceleratedModel(engine, whole)
    learner.optimizer = AcceleratedSteps(accelerator, engine, optimizer, whole)


class AcceleratedModel:
    """A policy whose trunk is run by what Accelerate made of it.

    Args:
        engine: that.
        whole: the model inside, the same on every rank.
    """

    def __init__(self, engine: nn.Module, whole: LanguageModel) -> None:
        self._engine, self.whole = engine, whole

    def trunk_hidden(
        self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor, layout: SegmentLayout | None = None
    ) -> Tensor:
        """As `LanguageModel.trunk_hidden`."""
        hidden: Tensor = self._engine(input_ids, position_ids, segment_ids, layout)
        return hidden

    @property
    def unembedding(self) -> Unembedding:
        """The model's."""
        return self.whole.unembedding

    @property
    def float32_logits(self) -> bool:
        """The model's."""
        return self.whole.float32_logits

    @property
    def soft_cap(self) -> float | None:
        """The model's."""
        return self.whole.soft_cap

    @property
    def logit_scale(self) -> float:
        """The model's."""
        return self.whole.logit_scale

    @property
    def shares_prefixes(self) -> bool:
        """The model's."""
        return self.whole.shares_prefixes

    def values(self, hidden: Tensor) -> Tensor:
        """As `LanguageModel.values`."""
        return self.whole.values(hidden)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The model's."""
        return self.whole.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The model's."""
        return self.whole.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of the model."""
        self.whole.load_state_dict(state_dict)


class AcceleratedSteps(torch.optim.Optimizer):
    """Backward passes and steps as Accelerate wants them; see `swe_trainers.learning.update.Steps`."""

    def __init__(self, accelerator: Accelerator, engine: Any, optimizer: Any, whole: LanguageModel) -> None:
        # Not initialised as an optimizer: parameter groups and state are those of the one inside.
        self._accelerator, self._engine, self._inner = accelerator, engine, optimizer
        self._learnt = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        self._deepspeed = hasattr(engine, "set_gradient_accumulation_boundary")
        # DDP would add gradients over the ranks in the parameters' dtype: those in float32 are added here.
        self._adds_up = not self._deepspeed and isinstance(self.innermost, (Masters, MasterAdamW8bit))

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Of the optimizer inside, whose learning rates are set here."""
        groups: list[dict[str, Any]] = self._inner.param_groups
        return groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        if self._deepspeed:
            self._engine.optimizer.zero_grad(set_to_none=set_to_none)
        else:
            self._inner.zero_grad(set_to_none=set_to_none)

    @contextmanager
    def microbatch(self, *, last: bool) -> Iterator[Callable[[Tensor], None]]:
        """See `Steps.microbatch`. Gradients are combined over the ranks in the last micro-batch."""
        if self._deepspeed:
            self._engine.set_gradient_accumulation_boundary(last)
            yield self._engine.backward
        elif last and not self._adds_up:
            yield self._backward
        else:
            # Not Accelerate's own `no_sync`: with one process it does nothing, and DDP would add up all the same.
            with getattr(self._engine, "no_sync", nullcontext)():
                yield self._backward

    def clipped_step(self, max_norm: float) -> float:
        """Scale the gradients down to a norm, step, and return the norm before; NaN where no step was taken."""
        if self._deepspeed:
            self._engine.step()
            return float(self._engine.get_global_grad_norm())
        learnt = [stepped(parameter) for parameter in self._learnt]
        for parameter in learnt if self._adds_up else ():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= n_ranks()
        norm = float(torch.nn.utils.clip_grad_norm_(learnt, max_norm))
        if norm < float("inf"):
            self._inner.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Of DDP the whole, which is the same on every rank; of ZeRO nothing, see `share`."""
        return {} if self._deepspeed else dict(self.innermost.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        if not self._deepspeed:
            self.innermost.load_state_dict(state_dict)

    @property
    def innermost(self) -> torch.optim.Optimizer:
        """PyTorch's own."""
        found: torch.optim.Optimizer = self._inner.optimizer
        return found

    def share(self) -> dict[str, Any] | None:
        """What this rank alone holds of the state; None where each holds the whole."""
        return self._engine.optimizer.state_dict() if self._deepspeed else None

    def take_shares(self, shares: list[Any]) -> None:
        """Load the shares of all ranks, in the order of the ranks; settings stay, as in `Learner.load_state_dict`."""
        with kept_settings(self):
            self._engine.optimizer.load_state_dict(shares, load_from_fp32_weights=True)

    def _backward(self, loss: Tensor) -> None:
        # DDP waits for every parameter, and a loss without values does not touch the value head.
        untouched = sum((parameter.sum() * 0.0 for parameter in self._learnt), torch.zeros((), device=loss.device))
        self._accelerator.backward(loss + untouched)


_CLASSES_OF_SHARES = {
    "deepspeed.runtime.fp16.loss_scaler": ("DynamicLossScaler", "LossScaler"),
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
}
"""What DeepSpeed's state of an optimizer consists of beside tensors and plain values; nothing else is unpickled."""


class AcceleratedCheckpoints(ShardedCheckpoints):
    """Checkpoints of a learner that Accelerate spreads; where ZeRO shards the optimizer, each rank writes its share."""

    def _prime(self) -> None:
        steps = self._steps()
        if steps.share() is None:
            prime(steps.innermost)

    def _write(self, tensors: dict[str, Tensor], partial: Path) -> None:
        super()._write(tensors, partial)
        share = self._steps().share()
        if share is not None:
            torch.save(share, partial / f"zero-{rank()}-of-{n_ranks()}.pt")

    def _read_tensors(self, tensors: dict[str, Tensor], path: Path) -> None:
        super()._read_tensors(tensors, path)
        if self._steps().share() is None:
            return
        files = [path / f"zero-{number}-of-{n_ranks()}.pt" for number in range(n_ranks())]
        if not all(file.is_file() for file in files):
            raise ValueError(f"its optimizer was not sharded by ZeRO over {n_ranks()} ranks, as many as there are here")
        known = [getattr(import_module(at), name) for at, names in _CLASSES_OF_SHARES.items() for name in names]
        with torch.serialization.safe_globals(known):
            self._steps().take_shares([torch.load(file, map_location="cpu", weights_only=True) for file in files])

    def _steps(self) -> AcceleratedSteps:
        assert isinstance(self._learner.optimizer, AcceleratedSteps)
        return self._learner.optimizer
