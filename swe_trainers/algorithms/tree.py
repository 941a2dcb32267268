"""Trees of episodes: what a step is worth is measured by playing on from it, several times, and needs no critic.

fork before chosen turns → play every branch to its end → branch less the other branches → a few epochs of clipped steps

Kazemnejad et al. (2024, VinePPO) estimate values so; here the episodes that measure a step are learnt from as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from swe_trainers.algorithms.reinforcement import Clipped, Collect, experience_of, improve, timed_step
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import tree_advantages
from swe_trainers.learning.learner import Learner
from swe_trainers.rollout.plan import Branching
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["MonteCarloTree", "tree_step", "tree_update"]


@dataclass(frozen=True)
class MonteCarloTree(Clipped):
    """Trees of episodes, in which each step is worth what followed from it (Monte Carlo).

    An environment must be able to go back, or follow from its seed.

    Attributes:
        algorithm: its name.
        branching: how many ways lead on from a fork.
        max_depth: forks on the way from the start to an end.
        fork_every: turns between forks; the first is before the first action.
    """

    algorithm: Literal["monte_carlo_tree"] = "monte_carlo_tree"
    branching: int = 2
    max_depth: int = 2
    fork_every: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes_per_update % self.forks.leaves:
            raise ConfigurationError(
                f"episodes_per_update: got {self.episodes_per_update}, expected a multiple of the ends of a tree, "
                f"branching ** max_depth ({self.forks.leaves})"
            )

    @property
    def forks(self) -> Branching:
        """Where episodes fork."""
        return Branching(self.branching, self.max_depth, self.fork_every)


def tree_step(learner: Learner, collect: Collect, settings: MonteCarloTree) -> dict[str, float]:
    """Play trees and learn from them; what `train` repeats."""
    return timed_step(
        lambda: collect(learner.updates), lambda trajectories: tree_update(learner, trajectories, settings)
    )


def tree_update(learner: Learner, trajectories: Sequence[Trajectory], settings: MonteCarloTree) -> dict[str, float]:
    """One update of the policy; see `ppo_update`. An episode that is not part of a tree teaches nothing."""
    seen = experience_of(learner, trajectories, settings)
    batch = seen.batch
    advantages = tree_advantages(seen.rewards, batch.action_mask, batch.offsets, batch.group, batch.forks)
    return improve(learner, seen, advantages, settings) | {
        "forks": float(len(set(zip(batch.group[batch.forks[:, 0]].tolist(), batch.forks[:, 2].tolist(), strict=True)))),
        "advantage_share": float((advantages[batch.action_mask] != 0).float().mean()),
    }
