"""Proximal policy optimisation (Schulman et al. 2017), with a critic on the policy's trunk or a separate one.

play episodes → values and old log-probabilities → generalised advantages → a few epochs of clipped steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import FRACTION, NOT_NEGATIVE, POSITIVE, ranged
from swe_trainers.algorithms.policy_gradient import Clipped, Experience
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import explained_variance, generalized_advantages, returns_to_go, whiten
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import ActionTokens, Policy
from swe_trainers.learning.learner import Learner, adamw
from swe_trainers.learning.losses import clipped_value_loss
from swe_trainers.model.attention import to_device
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["PPO"]


@dataclass(frozen=True)
class PPO(Clipped):
    """PPO (Schulman et al. 2017), with a critic. The defaults are for pretrained language models.

    Attributes:
        gamma: discount per action token.
        lam: lambda of generalised advantage estimation.
        whiten_advantages: normalise advantages to mean 0 and variance 1; if all episodes (of the batch, or of the
            minibatch) have the same return, to a variance of at most 1.
        whiten_over: normalise over the `batch`, or over each `minibatch` as Stable-Baselines3 does.
        critic: a value head on the policy's trunk (`shared`), or a separate model (`separate`).
        critic_learning_rate: learning rate of a separate critic, or of the value head of a shared one. The head starts
            at 0, and AdamW's steps have this size whatever `value_coefficient` is. null: `learning_rate`.
        value_coefficient: coefficient of the critic's loss.
        value_clip: how far a value may move in one update; null: no limit.
        value_start: first predictions of the critic: those of its weights (`model`; 0 for a new head), or shifted so
            that their mean is the mean return of the first batch (`mean_return`).
    """

    gamma: float = ranged(1.0, FRACTION)
    lam: float = ranged(0.95, FRACTION)
    whiten_advantages: bool = True
    whiten_over: Literal["batch", "minibatch"] = "batch"
    critic: Literal["shared", "separate"] = "shared"
    critic_learning_rate: float | None = ranged(None, POSITIVE)
    value_coefficient: float = ranged(0.5, NOT_NEGATIVE)
    value_clip: float | None = ranged(0.2, POSITIVE)
    value_start: Literal["model", "mean_return"] = "model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic_learning_rate is not None and not self.value_coefficient:
            raise ConfigurationError("critic_learning_rate: has no effect with value_coefficient 0")
        if self.whiten_over == "minibatch" and not self.whiten_advantages:
            raise ConfigurationError("whiten_over: has no effect with whiten_advantages false")

    def observe(self, learner: Learner, episodes: Sequence[Trajectory] | Batch) -> Experience:
        """See `PolicyGradient.observe`; `value_start` applies before the first update."""
        experience = super().observe(learner, episodes)
        if self.value_start == "mean_return" and learner.updates == 0:
            batch, old = experience.batch, experience.old
            acted = batch.action_mask
            returns = returns_to_go(batch.pad(experience.rewards), batch.pad(acted), gamma=self.gamma)
            shift = float(batch.unpad(returns)[acted].mean() - old.values[acted].mean())
            _shift_values(learner.critic or learner.model, shift)
            old.values[acted] += shift
            old.final_values += shift
        return experience

    def advantages(self, experience: Experience) -> Tensor:
        """Generalised advantages of the tokens, (N,) float32; the critic's targets go to `experience.returns`."""
        batch, values = experience.batch, experience.old.values
        advantages = batch.unpad(
            generalized_advantages(
                batch.pad(experience.rewards),
                batch.pad(values),
                batch.pad(batch.action_mask),
                gamma=self.gamma,
                lam=self.lam,
                bootstrap=torch.where(batch.terminated, 0.0, experience.old.final_values),
            )
        )
        experience.returns = advantages + values
        if not self.whiten_advantages or self.whiten_over == "minibatch":
            return advantages
        return whiten(advantages, batch.action_mask, returns=batch.total(batch.rewards))

    def minibatch_advantages(self, advantages: Tensor, batch: Batch, sequences: Tensor) -> Tensor:
        """Whitened over the action tokens of the minibatch, if `whiten_over` is "minibatch"."""
        if self.whiten_over == "batch":
            return advantages
        here = torch.isin(batch.sequence_of_token, sequences)
        return whiten(advantages, batch.action_mask & here, returns=batch.total(batch.rewards)[sequences])

    def critic_loss(self, tokens: ActionTokens, experience: Experience) -> tuple[Tensor, float]:
        """The clipped squared error of the values."""
        assert experience.returns is not None
        at, device = tokens.index, tokens.values.device
        old_values, returns = (to_device(each[at], device) for each in (experience.old.values, experience.returns))
        return clipped_value_loss(tokens.values, old_values, returns, clip=self.value_clip), self.value_coefficient

    def measure(self, experience: Experience) -> dict[str, float]:
        """`value_mean` and `explained_variance`, of the critic before the update."""
        assert experience.returns is not None
        acted, values = experience.batch.action_mask, experience.old.values
        return {
            "value_mean": float(values[acted].mean()),
            "explained_variance": explained_variance(values[acted], experience.returns[acted]),
        }

    @property
    def needs_values(self) -> bool:
        """Generalised advantages are computed from them."""
        return True

    @property
    def needs_critic(self) -> bool:
        """Where the critic is separate."""
        return self.critic == "separate"

    def optimizer(self, model: Policy, critic: Policy | None) -> torch.optim.Optimizer:
        """AdamW, the critic at its own learning rate."""
        return adamw(
            model,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            epsilon=self.adam_epsilon,
            moments=self.moments,
            critic=critic,
            critic_learning_rate=self.critic_learning_rate,
        )


@torch.no_grad()
def _shift_values(model: Policy, by: float) -> None:
    """Add a constant to all values of a model.

    Raises:
        ConfigurationError: its value head has no bias.
    """
    bias = getattr(getattr(model, "value_head", None), "bias", None)
    if not isinstance(bias, Tensor):
        raise ConfigurationError(f"value_start: the value head of {type(model).__name__} has no bias. Try: model")
    bias.add_(by)
