"""Rewards that are not the environment's own: clipped, normalised, for length, and from a judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from swe_trainers.errors import RolloutError
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Judge", "RunningMoments", "judged", "overlong_penalty"]

Judge = Callable[[Sequence[Trajectory]], Sequence[Sequence[float]]]
"""Scores of played episodes: for each, one number a turn (0 where a turn is not judged)."""


@dataclass
class RunningMoments:
    """Mean and variance of all numbers seen so far, batch by batch (Chan, Golub and LeVeque 1979).

    Attributes:
        count: of the numbers.
        mean: of them.
        squares: sum of their squared differences from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def observe(self, numbers: Tensor) -> None:
        """Take in some numbers (N,)."""
        if not len(numbers):
            return
        added = numbers.double()
        mean, n = float(added.mean()), len(added)
        difference, total = mean - self.mean, self.count + n
        self.squares += float((added - mean).square().sum()) + difference**2 * self.count * n / total
        self.mean += difference * n / total
        self.count = total

    @property
    def deviation(self) -> float:
        """The standard deviation; 1 before there are two different numbers."""
        deviation: float = (self.squares / self.count) ** 0.5 if self.count else 0.0
        return deviation if deviation > 0 else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Plain values, from which the constructor makes the same."""
        return asdict(self)


def overlong_penalty(lengths: Tensor, *, limit: int, buffer: int) -> Tensor:
    """0 up to limit − buffer, from there down to −1 at the limit, and no further (DAPO: Yu et al. 2025, eq. 13).

    Args:
        lengths: (S,) int64, tokens that the policy wrote.
        limit: where the punishment is full. buffer: over how many tokens it grows.
    Returns:
        (S,) float32.
    """
    return ((limit - buffer - lengths.float()) / buffer).clamp(-1.0, 0.0)


def judged(
    trajectories: Sequence[Trajectory], judge: Judge, *, weight: float = 1.0, keep_environment: bool = False
) -> list[Trajectory]:
    """The same episodes with a judge's scores as step rewards, each on its turn's last action token.

    Args:
        trajectories: as played; the ones that are not valid are neither judged nor changed.
        judge: a learned reward model, a verifier, or a function of one's own.
        weight: of the scores.
        keep_environment: add them to the environment's own rewards, instead of replacing these.
    Raises:
        RolloutError: the judge gave another number of scores than there are turns, or one that is not finite.
    """
    asked = [i for i, trajectory in enumerate(trajectories) if trajectory.valid and trajectory.turns]
    answers = judge([trajectories[i] for i in asked])
    if len(answers) != len(asked):
        raise RolloutError(f"the judge answered {len(answers)} of {len(asked)} episodes")
    result = list(trajectories)
    for i, scores in zip(asked, answers, strict=True):
        trajectory = trajectories[i]
        if len(scores) != len(trajectory.turns) or not np.isfinite(scores).all():
            got = f"the judge gave {list(scores)} for an episode of {len(trajectory.turns)} turns"
            raise RolloutError(f"{got}, expected a finite number for each")
        rewards = trajectory.rewards.copy() if keep_environment else np.zeros_like(trajectory.rewards)
        for turn, score in zip(trajectory.turns, scores, strict=True):
            rewards[turn.end - 1] += weight * score
        result[i] = replace(trajectory, rewards=rewards)
    return result
