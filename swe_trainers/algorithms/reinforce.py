"""REINFORCE (Williams 1992) and REINFORCE++ (Hu et al. 2025): no critic, a baseline for each batch.

play episodes → the return from each token on, less a baseline → steps
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import AT_LEAST_ONE, FRACTION, ranged
from swe_trainers.algorithms.policy_gradient import Clipped, Experience, PolicyGradient
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import group_advantages, returns_to_go, whiten
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.losses import Aggregation

__all__ = ["REINFORCE", "REINFORCEPlusPlus"]


@dataclass(frozen=True)
class REINFORCE(PolicyGradient):
    """REINFORCE (Williams 1992): one step per batch, on the sum over the tokens of each episode.

    Attributes:
        gamma: discount per action token.
        baseline: subtract the mean discounted return of the batch's other episodes (`batch`), or nothing (`none`).
    """

    epochs: int = 1
    minibatches: int = 1
    gamma: float = ranged(1.0, FRACTION)
    baseline: Literal["batch", "none"] = "batch"
    aggregation: Aggregation = "constant"
    aggregation_length: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs * self.minibatches > 1:
            raise ConfigurationError(
                f"epochs, minibatches: got {self.epochs} and {self.minibatches}, expected 1: after the first step the "
                "episodes are another policy's, and nothing here corrects for it. Try: algorithm reinforce_plus_plus"
            )
        if self.stop_kl is not None:
            raise ConfigurationError("stop_kl: has no effect on the only step of an update")
        if self.baseline == "batch" and self.episodes_per_update == 1:
            raise ConfigurationError(
                "baseline: one episode has no others to be compared with. Try: episodes_per_update 2, or baseline none"
            )

    def advantages(self, experience: Experience) -> Tensor:
        """Discounted returns less the baseline, (N,) float32."""
        batch = experience.batch
        returns = _discounted(batch, experience.rewards, self.gamma)
        if self.baseline == "none":
            return returns
        counts = batch.actions_of_sequence
        totals = returns[batch.action_mask][counts.cumsum(0) - counts]  # (S,), from the first action on
        one_group = torch.zeros(batch.n_sequences, dtype=torch.int64)
        better = group_advantages(totals, one_group, baseline="leave_one_out", scale="none")
        return returns - batch.spread(totals - better)  # the mean of the other episodes


@dataclass(frozen=True)
class REINFORCEPlusPlus(Clipped):
    """REINFORCE++ (Hu et al. 2025): clipped steps on advantages whitened over the batch, KL penalty in the reward.

    Attributes:
        gamma: discount per action token.
        group_size: episodes from the same start; above 1 an episode is first compared with the mean of its group
            (REINFORCE++-baseline), and all its tokens have the same advantage.
    """

    gamma: float = ranged(1.0, FRACTION)
    group_size: int = ranged(1, AT_LEAST_ONE)
    kl_placement: Literal["reward", "loss"] = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes_per_update % self.group_size:
            raise ConfigurationError(
                f"episodes_per_update: got {self.episodes_per_update}, expected a multiple of group_size "
                f"({self.group_size})"
            )
        if self.group_size > 1 and self.gamma != 1:
            raise ConfigurationError("gamma: has no effect where group_size is above 1")

    def advantages(self, experience: Experience) -> Tensor:
        """Whitened returns, compared with the group's where there are groups, (N,) float32."""
        batch = experience.batch
        if self.group_size == 1:
            discounted = _discounted(batch, experience.rewards, self.gamma)
            return whiten(discounted, batch.action_mask, returns=batch.total(batch.rewards))
        compared, earned = (
            group_advantages(batch.total(rewards), batch.group, scale="none")
            for rewards in (experience.rewards, batch.rewards)
        )
        # Groups of different tasks have different returns; what counts is whether episodes of one group do.
        return whiten(batch.spread(compared), batch.action_mask, returns=earned)

    @property
    def episodes_per_start(self) -> int:
        """The size of a group."""
        return self.group_size


def _discounted(batch: Batch, rewards: Tensor, gamma: float) -> Tensor:
    """`returns_to_go` of a flat batch, (N,) float32."""
    return batch.unpad(returns_to_go(batch.pad(rewards), batch.pad(batch.action_mask), gamma=gamma))
