"""The state of training: everything that changes, in one place, so that it can be saved and resumed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.eight_bit import AdamW8bit, with_float32_moments
from swe_trainers.learning.forward import Policy
from swe_trainers.learning.losses import AdaptiveKL
from swe_trainers.learning.master_weights import NARROW, MasterAdamW, MasterAdamW8bit
from swe_trainers.learning.rewards import RunningMoments

__all__ = ["Decay", "Learner", "Moments", "adamw", "kept_settings", "scheduled", "set_learning_rate"]

Decay = Literal["constant", "linear", "cosine"]
Moments = Literal["float32", "8bit"]

_SETTINGS = {"betas", "eps", "share", "weight_decay"}
"""Of a parameter group: what `adamw` was given. The learning rate is set before each update."""


@dataclass
class Learner:
    """A policy with everything that changes during training.

    Attributes:
        model: the policy.
        optimizer: optimizer of its parameters.
        generator: random generator of all shuffling.
        reference: the frozen reference policy; None if there is no KL penalty.
        critic: a separate critic; None if the critic is shared, or there is none.
        kl: coefficient of the KL penalty.
        returns: mean and variance of the discounted returns so far; updated only if rewards are normalised.
        updates: number of updates so far.
        episodes: number of episodes trained on so far, without excluded ones.
        seconds: seconds of training and evaluation so far, over all starts of the run.
    """

    model: Policy
    optimizer: torch.optim.Optimizer
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    reference: Policy | None = None
    critic: Policy | None = None
    kl: AdaptiveKL = field(default_factory=lambda: AdaptiveKL(0.0))
    returns: RunningMoments = field(default_factory=RunningMoments)
    updates: int = 0
    episodes: int = 0
    seconds: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """All of it, in tensors and plain values."""
        return {
            "model": self.model.state_dict(),
            "reference": None if self.reference is None else self.reference.state_dict(),
            "critic": None if self.critic is None else self.critic.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "kl_coefficient": self.kl.coefficient,
            "first_kl_coefficient": self.kl.first,
            "returns": self.returns.state_dict(),
            "updates": self.updates,
            "episodes": self.episodes,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`.

        Settings of the algorithm stay those of this learner: it may go on with other ones than it was saved with.

        Raises:
            RuntimeError: a parameter is missing, or of another shape (from torch).
            KeyError: it is no learner's state.
            ValueError: only one of the two has a critic of its own.
        """
        self.model.load_state_dict(state["model"])
        if self.reference is not None and state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])
        if (self.critic is None) != (state.get("critic") is None):
            raise ValueError("a critic of its own is in one of the two and not in the other")
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
        moments = state["optimizer"]
        if moments and not isinstance(self.optimizer, AdamW8bit):  # of ZeRO there are none here, see `take_shares`
            moments = with_float32_moments(moments)
        with kept_settings(self.optimizer):
            self.optimizer.load_state_dict(moments)
        self.generator.set_state(state["generator"])
        is_setting = state.get("first_kl_coefficient", self.kl.first) != self.kl.first  # it was changed for the resume
        if self.kl.target is not None and state["kl_coefficient"] and not is_setting:
            self.kl.coefficient = state["kl_coefficient"]  # adapted
        self.returns = RunningMoments(**state.get("returns", {}))  # none in checkpoints of older versions
        self.updates, self.episodes, self.seconds = state["updates"], state["episodes"], state["seconds"]


@contextmanager
def kept_settings(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Around the loading of an optimizer's state: its settings stay what it was made with."""
    settings = [{name: group[name] for name in _SETTINGS & group.keys()} for group in optimizer.param_groups]
    yield
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def adamw(
    model: Policy,
    *,
    learning_rate: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    critic: Policy | None = None,
    critic_learning_rate: float | None = None,
    moments: Moments = "float32",
) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; only matrices decay, never gains and biases.

    For bfloat16 parameters the optimizer updates float32 copies (`master_weights`).

    Args:
        model: the policy.
        learning_rate: learning rate of the policy.
        weight_decay: of matrices.
        betas: decay of the first and second moments per step.
        epsilon: added to the root of the second moment.
        critic: a separate critic, whose parameters are trained too.
        critic_learning_rate: learning rate of the critic, or of the value head without a separate critic; None: the
            policy's. A schedule scales both in the same way.
        moments: `float32`, or `8bit` (`eight_bit`).

    Raises:
        ConfigurationError: `critic_learning_rate` is given, and the policy has no value head.
    """
    valuing = [] if critic is None else list(critic.parameters())
    if critic is None and critic_learning_rate is not None:
        valuing = _value_head(model)
    apart = {id(parameter) for parameter in valuing}
    others = [parameter for parameter in model.parameters() if id(parameter) not in apart]
    groups: list[dict[str, Any]] = []
    for parameters, rate in ((others, learning_rate), (valuing, critic_learning_rate or learning_rate)):
        trainable = [p for p in parameters if p.requires_grad]
        for params, decay in (
            ([p for p in trainable if p.ndim >= 2], weight_decay),
            ([p for p in trainable if p.ndim < 2], 0.0),
        ):
            groups.append({"params": params, "weight_decay": decay, "share": rate / learning_rate})
    groups = [group for group in groups if group["params"]]
    narrow = any(parameter.dtype in NARROW for group in groups for parameter in group["params"])
    options: dict[str, Any] = {"lr": learning_rate, "betas": betas, "eps": epsilon}
    if moments == "8bit":
        return (MasterAdamW8bit if narrow else AdamW8bit)(groups, **options)
    if all(parameter.device.type == "cuda" for group in groups for parameter in group["params"]):
        options["fused"] = True  # one kernel for all parameters instead of a dozen
    return (MasterAdamW if narrow else torch.optim.AdamW)(groups, **options)


def _value_head(model: Policy) -> list[torch.nn.Parameter]:
    head = getattr(model, "value_head", None)
    if not isinstance(head, torch.nn.Module):
        raise ConfigurationError(
            f"critic_learning_rate: {type(model).__name__} has no module value_head. Try: critic_learning_rate null"
        )
    return list(head.parameters())


def scheduled(update: int, *, peak: float, warmup: int, decay: Decay, total: int) -> float:
    """A learning rate, or another coefficient, at an update: a function of its number alone.

    Args:
        update: from 0.
        peak: value after the warm-up.
        warmup: number of updates of the linear warm-up.
        decay: schedule after the warm-up: constant, or to 0 at update `total`.
        total: number of updates of the run.
    """
    if update < warmup:
        return peak * (update + 1) / warmup
    if decay == "constant":
        return peak
    progress = min(1.0, (update - warmup) / max(1, total - warmup))
    return peak * (1 - progress) if decay == "linear" else peak * (1 + math.cos(math.pi * progress)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The policy's learning rate from now on; other parameters keep their `share` of it."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("share", 1.0)
