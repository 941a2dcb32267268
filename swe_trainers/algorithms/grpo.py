"""Group-relative advantages: GRPO and the algorithms derived from it, which differ in their defaults.

All of them play groups of episodes from the same start, compare the return of an episode with its group, and take
clipped steps:

              advantage               ratio                       equal weight for  and
    GRPO      (R − mean) / deviation  per token                   every episode     KL to the reference in the loss
    Dr. GRPO  R − mean                per token                   every token       independent of length
    DAPO      (R − mean) / deviation  per token                   every token       higher upper clip; groups without
                                                                                    signal are replaced
    GSPO      (R − mean) / deviation  geometric mean per episode  every episode
    RLOO      R − mean of the others  per episode                 every episode     KL to the reference in the reward
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, ranged
from swe_trainers.algorithms.policy_gradient import Clipped, Experience
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import GroupBaseline, GroupScale, group_advantages, groups_with_signal
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.losses import Aggregation, RatioLevel
from swe_trainers.learning.rewards import overlong_penalty
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["DAPO", "GRPO", "GSPO", "RLOO", "DrGRPO", "GroupRelative"]


@dataclass(frozen=True)
class GroupRelative(Clipped):
    """The base of the group-relative algorithms.

    Attributes:
        group_size: episodes from the same start.
        baseline: compare an episode with the `mean` of its group, or with that of the others (`leave_one_out`).
        scale: divide by the standard deviation of returns within the `group`, over the `batch`, or `none`.
        resampling: how many more rounds of episodes may be played to replace groups whose episodes all have the same
            return; 0 keeps such groups, which have no advantage.
        overlong_limit: action tokens at which an episode gets the full length penalty; null: no penalty.
        overlong_buffer: tokens before the limit over which the penalty grows.
        overlong_penalty: subtracted from the return of an episode at its limit.
        learn_from_truncated: false excludes truncated episodes from the loss, but not from the mean of their group.
    """

    group_size: int = ranged(8, AT_LEAST_ONE)
    baseline: GroupBaseline = "mean"
    scale: GroupScale = "group"
    resampling: int = ranged(0, NOT_NEGATIVE)
    overlong_limit: int | None = ranged(None, AT_LEAST_ONE)
    overlong_buffer: int | None = ranged(None, AT_LEAST_ONE)
    overlong_penalty: float = ranged(1.0, POSITIVE)
    learn_from_truncated: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_size < 2:
            raise ConfigurationError(f"group_size: got {self.group_size}, expected at least 2: advantages are relative")
        if self.episodes_per_update % self.group_size:
            raise ConfigurationError(
                f"episodes_per_update: got {self.episodes_per_update}, expected a multiple of group_size "
                f"({self.group_size})"
            )
        if (self.overlong_limit is None) != (self.overlong_buffer is None):
            raise ConfigurationError("overlong_limit, overlong_buffer: either needs the other")
        if self.overlong_limit is None and self.overlong_penalty != 1.0:
            raise ConfigurationError("overlong_penalty: has no effect without overlong_limit")
        if (self.overlong_buffer or 0) > (self.overlong_limit or 0):
            raise ConfigurationError(f"overlong_buffer: got {self.overlong_buffer}, expected at most the limit")

    def advantages(self, experience: Experience) -> Tensor:
        """The advantage of an episode over its group, for each of its tokens, (N,) float32."""
        batch = experience.batch
        returns, earned = batch.total(experience.rewards), batch.total(batch.rewards)
        if self.overlong_limit is not None and self.overlong_buffer is not None:
            lengths = batch.actions_of_sequence
            penalty = overlong_penalty(lengths, limit=self.overlong_limit, buffer=self.overlong_buffer)
            returns, earned = (each + self.overlong_penalty * penalty for each in (returns, earned))
        return batch.spread(
            group_advantages(returns, batch.group, baseline=self.baseline, scale=self.scale, earned=earned)
        )

    def trained_sequences(self, batch: Batch) -> Tensor | None:
        """All, or those that no limit truncated."""
        return None if self.learn_from_truncated else (~batch.truncated).nonzero().squeeze(1)

    def wants_more(self, episodes: Sequence[Trajectory], rounds: int) -> bool:
        """Until enough groups have episodes of different returns, or `resampling` is used up."""
        if rounds > self.resampling:
            return False
        return sum(map(_has_signal, _groups(episodes))) < self.episodes_per_update // self.group_size

    def update(self, learner: Learner, episodes: Sequence[Trajectory] | Batch) -> dict[str, float]:
        """One update, of groups with signal where there is resampling; see `PolicyGradient.update`."""
        played = episodes.episodes if isinstance(episodes, Batch) else episodes
        if self.resampling:
            groups = _groups(played)
            # Groups without signal are used only where there is no other: an update needs an episode.
            chosen = [group for group in groups if _has_signal(group)] or groups
            episodes = [each for group in chosen[: self.episodes_per_update // self.group_size] for each in group]
        metrics = super().update(learner, episodes)
        invalid = sum(not trajectory.valid for trajectory in played)
        return metrics | {"episodes_played": float(len(played)), "episodes_invalid": float(invalid)}

    def measure(self, experience: Experience) -> dict[str, float]:
        """`groups`, and `groups_with_signal`, whose episodes have different returns."""
        batch = experience.batch
        signal = groups_with_signal(batch.total(batch.rewards), batch.group)
        return {"groups": float(len(torch.unique(batch.group))), "groups_with_signal": float(len(signal))}

    @property
    def episodes_per_start(self) -> int:
        """The size of a group."""
        return self.group_size

    @property
    def needs_old_logprobs(self) -> bool:
        """Also if the first step is not on every episode."""
        return super().needs_old_logprobs or not self.learn_from_truncated


@dataclass(frozen=True)
class GRPO(GroupRelative):
    """Group relative policy optimisation (Shao et al. 2024); the paper's `kl_coefficient` is 0.04."""

    aggregation: Aggregation = "sequence"


@dataclass(frozen=True)
class DrGRPO(GroupRelative):
    """GRPO done right (Liu et al. 2025): without GRPO's biases for length and for difficulty.

    `aggregation_length` only scales the loss; with the default 1 the losses of an episode's tokens are summed.
    """

    scale: GroupScale = "none"
    aggregation: Aggregation = "constant"
    aggregation_length: int | None = 1


@dataclass(frozen=True)
class DAPO(GroupRelative):
    """Decoupled clip and dynamic sampling (Yu et al. 2025); set `overlong_limit` to penalise long episodes."""

    clip_high: float = 0.28
    resampling: int = 3


@dataclass(frozen=True)
class GSPO(GroupRelative):
    """Group sequence policy optimisation (Zheng et al. 2025): one ratio per episode, a geometric mean."""

    ratio: RatioLevel = "sequence"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    aggregation: Aggregation = "sequence"


@dataclass(frozen=True)
class RLOO(GroupRelative):
    """REINFORCE with the other episodes of a group as the baseline (Kool et al. 2019; Ahmadian et al. 2024)."""

    baseline: GroupBaseline = "leave_one_out"
    scale: GroupScale = "none"
    ratio: RatioLevel = "trajectory"
    kl_placement: Literal["reward", "loss"] = "reward"
    aggregation: Aggregation = "sequence"


def _groups(episodes: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Episodes by their group, in the order of the groups' first episodes."""
    found: dict[int, list[Trajectory]] = {}
    for trajectory in episodes:
        found.setdefault(trajectory.group, []).append(trajectory)
    return list(found.values())


def _has_signal(group: Sequence[Trajectory]) -> bool:
    """Whether the valid episodes of a group have different returns."""
    batch = Batch.of(group)
    returns = batch.total(batch.rewards)
    return bool(len(returns)) and bool(returns.max() > returns.min())
