"""An algorithm: REINFORCE on nothing but the tokens of episodes that did better than the others (Oh et al. 2018)."""

from dataclasses import dataclass

from torch import Tensor

from swe_trainers.algorithms.policy_gradient import Experience
from swe_trainers.algorithms.reinforce import REINFORCE


@dataclass(frozen=True)
class SelfImitation(REINFORCE):
    """The policy gradient of positive advantages.

    Attributes:
        floor: advantages below it count as zero.
    """

    floor: float = 0.0

    def advantages(self, experience: Experience) -> Tensor:
        """Those of REINFORCE where they exceed the floor, else 0, (N,) float32."""
        found = super().advantages(experience)
        return found.where(found > self.floor, 0.0)
