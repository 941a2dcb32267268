"""`PatchSimilarityReward`: how similar the submitted patch is to the gold patch."""

from __future__ import annotations

import gymnasium

from swegym_env.repo.patches import parse_patch, similarity
from swegym_env.rewards.part import RewardPart, Turn, check_finite

__all__ = ["PatchSimilarityReward"]


class PatchSimilarityReward(RewardPart):
    """Similarity of the submitted patch to the gold patch, in [0, 1]; `malformed` if there is no patch.

    Source: SWE-RL (Wei et al. 2025). It needs no tests: with `reward="none"` the environment grades nothing.

    Raises:
        ConfigurationError: a reward is not a finite number.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, malformed: float = -1.0) -> None:
        (self._malformed,) = check_finite(malformed=malformed)
        super().__init__(env, name="similarity", replaces=True)

    def part(self, turn: Turn) -> float:
        """The similarity if the episode terminated, else 0."""
        if not turn.terminated:
            return 0.0
        patch = turn.info["patch"]  # one without sections says in a line why there is none, or what is left out
        return similarity(patch, turn.task.patch) if parse_patch(patch) else self._malformed
