"""Trees of episodes: the value of a step is estimated by several rollouts from it, without a critic.

fork before chosen turns → play every branch to its end → branch − mean of the others → a few epochs of clipped steps

This is the value estimate of VinePPO (Kazemnejad et al. 2024); here the rollouts that estimate a value are trained on
too.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from swe_trainers.algorithms.algorithm import AT_LEAST_ONE, AT_LEAST_TWO, ranged
from swe_trainers.algorithms.policy_gradient import Clipped, Experience
from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.advantages import tree_advantages
from swe_trainers.rollout.settings import Branching

__all__ = ["MonteCarloTree"]


@dataclass(frozen=True)
class MonteCarloTree(Clipped):
    """Trees of episodes, in which the value of a step is the mean return of the branches after it (Monte Carlo).

    The environment must implement `snapshot` and `restore`, or be a function of its seed and the actions. An episode
    that is not part of a tree has no advantage.

    Attributes:
        branching: number of branches of a fork.
        max_depth: number of forks between the start and the end of an episode.
        fork_every: turns between forks; the first is before the first action.
    """

    branching: int = ranged(2, AT_LEAST_TWO)
    max_depth: int = ranged(2, AT_LEAST_ONE)
    fork_every: int = ranged(1, AT_LEAST_ONE)

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

    def advantages(self, experience: Experience) -> Tensor:
        """The mean return of a branch less that of the fork's other branches, (N,) float32."""
        batch = experience.batch
        return tree_advantages(experience.rewards, batch.action_mask, batch.offsets, batch.group, batch.forks)

    def measure(self, experience: Experience) -> dict[str, float]:
        """`forks`, and `advantage_fraction`, the action tokens with an advantage other than 0."""
        batch = experience.batch
        forks = set(zip(batch.group[batch.forks[:, 0]].tolist(), batch.forks[:, 2].tolist(), strict=True))
        advantages = experience.advantages[batch.action_mask]
        return {"forks": float(len(forks)), "advantage_fraction": float((advantages != 0).float().mean())}
