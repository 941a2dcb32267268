"""What every algorithm can be told, and the one place where ranges are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.optimizer import Decay

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What every algorithm can be told; one word means one thing in all of them.

    Attributes:
        learning_rate: of AdamW, after the warm-up.
        warmup_updates: updates over which the learning rate rises to it.
        decay: `constant`, or `linear` or `cosine` to 0 at the last update.
        weight_decay: of matrices.
        adam_epsilon: of AdamW; gradients below it make small steps, so that no leap follows a quiet time.
        epochs: passes over the same data.
        microbatch_tokens: entries of one forward pass, padding counted; memory, never the result.
        pack: episodes end to end in one row, instead of padding each.
        max_grad_norm: gradients are scaled down to it.
    """

    learning_rate: float = 1e-5
    warmup_updates: int = 0
    decay: Decay = "constant"
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    epochs: int = 1
    microbatch_tokens: int = 8192
    pack: bool = False
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None or field.name not in _RANGES:
                continue
            holds, expected = _RANGES[field.name]
            if not holds(value):
                raise ConfigurationError(f"{field.name}: got {value!r}, expected {expected}")


_Range = tuple[Callable[[Any], bool], str]

_AT_LEAST_ONE: _Range = (lambda value: value >= 1, "at least 1")
_AT_LEAST_TWO: _Range = (lambda value: value >= 2, "at least 2")
_POSITIVE: _Range = (lambda value: value > 0, "a positive number")
_NOT_NEGATIVE: _Range = (lambda value: value >= 0, "0 or more")
_SHARE: _Range = (lambda value: 0 <= value <= 1, "a number from 0 to 1")
_INSIDE: _Range = (lambda value: 0 < value < 1, "a number between 0 and 1")
_ABOVE_ONE: _Range = (lambda value: value > 1, "a number above 1")

_RANGES: dict[str, _Range] = {
    "adam_epsilon": _POSITIVE,
    "aggregation_length": _AT_LEAST_ONE,
    "branching": _AT_LEAST_TWO,
    "center": _NOT_NEGATIVE,
    "clip_high": _POSITIVE,
    "clip_low": _INSIDE,
    "correction_cap": _ABOVE_ONE,
    "critic_learning_rate": _POSITIVE,
    "dual_clip": _ABOVE_ONE,
    "entropy_coefficient": _NOT_NEGATIVE,
    "episodes_per_update": _AT_LEAST_ONE,
    "epochs": _AT_LEAST_ONE,
    "fork_every": _AT_LEAST_ONE,
    "gamma": _SHARE,
    "group_size": _AT_LEAST_ONE,
    "kl_coefficient": _NOT_NEGATIVE,
    "kl_horizon": _AT_LEAST_ONE,
    "kl_target": _POSITIVE,
    "lam": _SHARE,
    "learning_rate": _POSITIVE,
    "max_depth": _AT_LEAST_ONE,
    "max_grad_norm": _POSITIVE,
    "max_updates": _AT_LEAST_ONE,
    "microbatch_tokens": _AT_LEAST_ONE,
    "minibatch_episodes": _AT_LEAST_ONE,
    "minibatches": _AT_LEAST_ONE,
    "overlong_buffer": _AT_LEAST_ONE,
    "overlong_limit": _AT_LEAST_ONE,
    "overlong_penalty": _POSITIVE,
    "resampling": _NOT_NEGATIVE,
    "reward_scale": _POSITIVE,
    "stop_kl": _POSITIVE,
    "temperature": _POSITIVE,
    "value_clip": _POSITIVE,
    "value_coefficient": _NOT_NEGATIVE,
    "warmup_updates": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
}
