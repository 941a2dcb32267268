"""Proximal policy optimisation (Schulman et al. 2017), with a critic on the policy's trunk or of its own.

collect episodes → see them as the policy does now → generalised advantages → a few epochs of clipped steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.reinforcement import (
    Clipped,
    Collect,
    Experience,
    experience_of,
    improve,
    reinforcement_learner,
    timed_step,
)
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import explained_variance, generalized_advantages, whiten
from swe_trainers.learning.forward import ActionTokens, Policy
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.losses import clipped_value_loss
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["PPO", "Collect", "ppo_learner", "ppo_step", "ppo_targets", "ppo_update"]


@dataclass(frozen=True)
class PPO(Clipped):
    """PPO (Schulman et al. 2017), with a critic; the defaults are for a language model of some size.

    Attributes:
        algorithm: its name.
        gamma: discount a token of the policy.
        lam: of the advantage estimation.
        whiten_advantages: mean 0 and variance 1 over the batch.
        critic: a value head on the trunk that the policy has (`shared`), or a model of its own (`separate`).
        critic_learning_rate: of a separate critic; null takes the policy's.
        value_coefficient: of the critic's loss.
        value_clip: how far a value may move in one update; null for as far as it will.
    """

    algorithm: Literal["ppo"] = "ppo"
    gamma: float = 1.0
    lam: float = 0.95
    whiten_advantages: bool = True
    critic: Literal["shared", "separate"] = "shared"
    critic_learning_rate: float | None = None
    value_coefficient: float = 0.5
    value_clip: float | None = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic == "shared" and self.critic_learning_rate is not None:
            raise ConfigurationError("critic_learning_rate: has no effect on a shared critic. Try: critic separate")

    @property
    def values_states(self) -> bool:
        """Always: generalised advantages are made of them."""
        return True


def ppo_learner(
    model: Policy, settings: PPO, *, seed: int, reference: Policy | None = None, critic: Policy | None = None
) -> Learner:
    """A learner at its start; see `reinforcement_learner`.

    Args:
        critic: a model that values states, needed exactly where `settings.critic` is separate.
    Raises:
        ConfigurationError: a reference or a critic is missing, or would have no effect.
    """
    if (critic is None) != (settings.critic == "shared"):
        raise ConfigurationError("a critic of its own is needed exactly where critic is separate")
    return reinforcement_learner(
        model,
        settings,
        seed=seed,
        reference=reference,
        critic=critic,
        critic_learning_rate=settings.critic_learning_rate,
    )


def ppo_step(learner: Learner, collect: Collect, settings: PPO) -> dict[str, float]:
    """Sample episodes and learn from them; what `train` repeats."""
    return timed_step(
        lambda: collect(learner.updates), lambda trajectories: ppo_update(learner, trajectories, settings)
    )


def ppo_update(learner: Learner, trajectories: Sequence[Trajectory], settings: PPO) -> dict[str, float]:
    """One update of the policy and its critic.

    Args:
        learner: changed in place.
        trajectories: of the current policy; the ones that are not valid are counted and left out.
        settings: of PPO.
    Returns:
        Losses, divergences, clipping, gradients and episodes, by name.
    Raises:
        TrainerError: no trajectory can be learnt from, or the gradient is not finite.
    """
    seen = experience_of(learner, trajectories, settings)
    acted, old_values = seen.batch.action_mask, seen.old.values
    advantages, returns = ppo_targets(seen, settings)

    def critic_loss(tokens: ActionTokens, at: Tensor) -> Tensor:
        device = tokens.values.device
        return clipped_value_loss(
            tokens.values, old_values[at].to(device), returns[at].to(device), clip=settings.value_clip
        )

    return improve(
        learner, seen, advantages, settings, critic_loss=critic_loss, value_coefficient=settings.value_coefficient
    ) | {
        "value_mean": float(old_values[acted].mean()),
        "explained_variance": explained_variance(old_values[acted], returns[acted]),
    }


def ppo_targets(seen: Experience, settings: PPO) -> tuple[Tensor, Tensor]:
    """What a batch teaches the policy and the critic.

    Returns:
        Advantages and returns, (N,) float32 each.
    """
    batch, values = seen.batch, seen.old.values
    advantages = batch.unpad(
        generalized_advantages(
            batch.pad(seen.rewards),
            batch.pad(values),
            batch.pad(batch.action_mask),
            gamma=settings.gamma,
            lam=settings.lam,
            bootstrap=torch.where(batch.terminated, 0.0, seen.old.final_values),
        )
    )
    returns = advantages + values
    return (whiten(advantages, batch.action_mask) if settings.whiten_advantages else advantages), returns
