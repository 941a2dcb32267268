"""`PatchSizePenalty` and `StepPenalty`: of two solutions, the smaller or the shorter one is worth more."""

from __future__ import annotations

import gymnasium

from swegym_env.repo.patches import count_changed_lines
from swegym_env.rewards.part import RewardPart, Turn, check_not_negative

__all__ = ["PatchSizePenalty", "StepPenalty"]


class PatchSizePenalty(RewardPart):
    """At the end, minus `per_line` for each line that the patch adds or removes beyond `free_lines`, at most `limit`.

    Raises:
        ConfigurationError: a number is negative or not finite.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], *, per_line: float = 0.001, free_lines: int = 0, limit: float = 0.5
    ) -> None:
        self._per_line, self._free, self._limit = check_not_negative(
            per_line=per_line, free_lines=free_lines, limit=limit
        )
        super().__init__(env, name="patch_size")

    def part(self, turn: Turn) -> float:
        """The penalty if the episode terminated, else 0."""
        if not turn.terminated:
            return 0.0
        changed = sum(count_changed_lines(turn.info["patch"]))
        return -min(self._limit, self._per_line * max(0.0, changed - self._free))


class StepPenalty(RewardPart):
    """Minus `penalty` for each step.

    Raises:
        ConfigurationError: the number is negative or not finite.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, penalty: float = 0.01) -> None:
        (self._penalty,) = check_not_negative(penalty=penalty)
        super().__init__(env, name="step")

    def part(self, turn: Turn) -> float:
        """Minus the penalty."""
        return -self._penalty
