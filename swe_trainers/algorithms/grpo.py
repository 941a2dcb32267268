"""Advantages relative to a group: GRPO and what grew out of it, each a choice of parts.

All of them collect groups of episodes from the same start, ask how much better than its group each episode was, and
take clipped steps:

              advantage               ratio              what counts alike  and
    GRPO      (R − mean) / deviation  of a token         every episode      divergence from a reference in the loss
    Dr. GRPO  R − mean                of a token         every token        whatever the lengths are
    DAPO      (R − mean) / deviation  of a token         every token        clipped higher, idle groups replaced
    GSPO      (R − mean) / deviation  an episode's mean  every episode
    RLOO      R − mean of the others  of the episode     every episode      divergence in the reward
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from swe_trainers.algorithms.reinforcement import Clipped, Experience, experience_of, improve, timed_step
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import GroupBaseline, GroupScale, group_advantages, groups_with_signal
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.learner import Learner
from swe_trainers.learning.losses import Aggregation
from swe_trainers.learning.ratio import RatioLevel
from swe_trainers.learning.rewards import overlong_penalty
from swe_trainers.rollout.trajectory import Trajectory

__all__ = [
    "DAPO",
    "GRPO",
    "GSPO",
    "RLOO",
    "CollectGroups",
    "DrGRPO",
    "GroupRelative",
    "grpo_step",
    "grpo_targets",
    "grpo_update",
]

CollectGroups = Callable[[int, int], Sequence[Trajectory]]
"""Groups of episodes for the update of this number, and for this attempt at it (0 is the first)."""


@dataclass(frozen=True)
class GroupRelative(Clipped):
    """What all of them can be told, beside `Clipped`.

    Attributes:
        group_size: episodes from the same start.
        baseline: compare an episode with the `mean` of its group, or with that of the others (`leave_one_out`).
        scale: divide by the deviation of returns within the `group`, over the `batch`, or `none`.
        resampling: how many more times episodes may be sampled, to replace groups whose episodes all earned the same;
            0 keeps such groups (they teach nothing).
        overlong_limit: tokens written by the policy at which an episode is punished in full; null for no punishment.
        overlong_buffer: over how many tokens before the limit the punishment grows.
        overlong_penalty: taken from the return of an episode at its limit.
        learn_from_truncated: false leaves episodes that a limit cut off out of the loss, not out of their group's mean.
    """

    group_size: int = 8
    baseline: GroupBaseline = "mean"
    scale: GroupScale = "group"
    resampling: int = 0
    overlong_limit: int | None = None
    overlong_buffer: int | None = None
    overlong_penalty: float = 1.0
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

    @property
    def looks_before(self) -> bool:
        """Also where the pass is not over every episode; see `Reinforcement.looks_before`."""
        return super().looks_before or not self.learn_from_truncated


@dataclass(frozen=True)
class GRPO(GroupRelative):
    """Group relative policy optimisation (Shao et al. 2024); the paper's coefficient of the divergence is 0.04.

    Attributes:
        algorithm: its name.
    """

    algorithm: Literal["grpo"] = "grpo"
    aggregation: Aggregation = "sequence"


@dataclass(frozen=True)
class DrGRPO(GroupRelative):
    """GRPO done right (Liu et al. 2025): without its biases for length and for difficulty.

    Its `aggregation_length` is a constant that only scales the loss; by default 1: an episode's tokens are added up.

    Attributes:
        algorithm: its name.
    """

    algorithm: Literal["dr_grpo"] = "dr_grpo"
    scale: GroupScale = "none"
    aggregation: Aggregation = "constant"
    aggregation_length: int | None = 1


@dataclass(frozen=True)
class DAPO(GroupRelative):
    """Decoupled clip and dynamic sampling (Yu et al. 2025); set `overlong_limit` where episodes can grow too long.

    Attributes:
        algorithm: its name.
    """

    algorithm: Literal["dapo"] = "dapo"
    clip_high: float = 0.28
    resampling: int = 3


@dataclass(frozen=True)
class GSPO(GroupRelative):
    """Group sequence policy optimisation (Zheng et al. 2025), whose ratios are the geometric mean of an episode's.

    Attributes:
        algorithm: its name.
    """

    algorithm: Literal["gspo"] = "gspo"
    ratio: RatioLevel = "sequence"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    aggregation: Aggregation = "sequence"


@dataclass(frozen=True)
class RLOO(GroupRelative):
    """REINFORCE with the other episodes of a group as the baseline (Kool et al. 2019; Ahmadian et al. 2024).

    Attributes:
        algorithm: its name.
    """

    algorithm: Literal["rloo"] = "rloo"
    baseline: GroupBaseline = "leave_one_out"
    scale: GroupScale = "none"
    ratio: RatioLevel = "trajectory"
    kl_placement: Literal["reward", "loss"] = "reward"
    aggregation: Aggregation = "sequence"


def grpo_step(learner: Learner, collect: CollectGroups, settings: GroupRelative) -> dict[str, float]:
    """Sample groups of episodes and learn from them; what `train` repeats.

    Returns:
        As `grpo_update`, and over all attempts `episodes_sampled` and `episodes_lost`, which the machine failed.
    """
    sampled, lost = 0, 0

    def attempt(number: int) -> Sequence[Trajectory]:
        nonlocal sampled, lost
        trajectories = collect(learner.updates, number)
        sampled += len(trajectories)
        lost += sum(not trajectory.valid for trajectory in trajectories)
        return trajectories

    metrics = timed_step(
        lambda: _groups(attempt, settings), lambda trajectories: grpo_update(learner, trajectories, settings)
    )
    return metrics | {"episodes_sampled": float(sampled), "episodes_lost": float(lost)}


def grpo_update(learner: Learner, trajectories: Sequence[Trajectory], settings: GroupRelative) -> dict[str, float]:
    """One update of the policy.

    Args:
        learner: changed in place.
        trajectories: of the current policy, in groups; the ones that are not valid are counted and left out.
        settings: of the algorithm.
    Returns:
        Losses, divergences, clipping, gradients and episodes, by name.
    Raises:
        TrainerError: no trajectory can be learnt from, or the gradient is not finite.
    """
    seen = experience_of(learner, trajectories, settings)
    batch = seen.batch
    advantages = batch.spread(grpo_targets(seen, settings))
    sequences = None if settings.learn_from_truncated else (~batch.truncated).nonzero().squeeze(1)
    signal = groups_with_signal(batch.total(batch.rewards), batch.group)
    return improve(learner, seen, advantages, settings, sequences=sequences) | {
        "groups": float(len(torch.unique(batch.group))),
        "groups_with_signal": float(len(signal)),
    }


def grpo_targets(seen: Experience, settings: GroupRelative) -> Tensor:
    """The advantage of each episode, (S,) float32."""
    batch = seen.batch
    returns = batch.total(seen.rewards)
    if settings.overlong_limit is not None and settings.overlong_buffer is not None:
        price = overlong_penalty(
            batch.actions_of_sequence, limit=settings.overlong_limit, buffer=settings.overlong_buffer
        )
        returns = returns + settings.overlong_penalty * price
    return group_advantages(returns, batch.group, baseline=settings.baseline, scale=settings.scale)


def _groups(collect: Callable[[int], Sequence[Trajectory]], settings: GroupRelative) -> list[Trajectory]:
    """As many groups as asked for; where there is resampling, those that teach something first."""
    wanted = settings.episodes_per_update // settings.group_size
    found: dict[tuple[int, int], list[Trajectory]] = {}
    teaching: list[tuple[int, int]] = []
    for attempt in range(1 + settings.resampling):
        for trajectory in collect(attempt):
            found.setdefault((attempt, trajectory.group), []).append(trajectory)
        teaching = [key for key, group in found.items() if _teaches(group)]
        if len(teaching) >= wanted or not settings.resampling:
            break
    # What teaches nothing fills up only where there is nothing else: an update must have something to see.
    kept = (teaching or list(found))[:wanted] if settings.resampling else list(found)
    return [replace(trajectory, group=number) for number, key in enumerate(kept) for trajectory in found[key]]


def _teaches(group: Sequence[Trajectory]) -> bool:
    batch = Batch.of(group)
    returns = batch.total(batch.rewards)
    return bool(len(returns)) and bool(returns.max() > returns.min())
