"""`ShapedReward`: partial credit for the tests that pass."""

from __future__ import annotations

import gymnasium

from swegym_env.errors import ConfigurationError
from swegym_env.rewards.part import RewardPart, Turn, check_finite, require_grading

__all__ = ["ShapedReward"]


class ShapedReward(RewardPart):
    """`success` if resolved, else `failure` plus `factor` times the fraction of tests that the work makes right.

    The fraction is that of FAIL_TO_PASS that pass times that of PASS_TO_PASS that still pass: work that repairs
    nothing, or breaks everything, gets `failure`, and so does an episode that ended before anything could be graded.

    Raises:
        ConfigurationError: a number is not finite, or with this `factor` unresolved work could be worth more than
            resolved work; or the environment does not grade.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], *, factor: float = 0.5, success: float = 1.0, failure: float = 0.0
    ) -> None:
        self._factor, self._success, self._failure = check_finite(factor=factor, success=success, failure=failure)
        if not 0 <= factor <= success - failure:
            raise ConfigurationError(
                f"factor: expected 0 to success - failure = {success - failure:g}, got {factor:g}: "
                "unresolved work would be worth more than resolved"
            )
        require_grading(env, "ShapedReward")
        super().__init__(env, name="shaped", replaces=True)

    def part(self, turn: Turn) -> float:
        """The shaped outcome if the episode terminated, else 0."""
        if not turn.terminated:
            return 0.0
        if turn.info["resolved"]:
            return self._success
        if turn.info["fail_to_pass"] is None:
            return self._failure
        (repaired, to_repair), (kept, to_keep) = turn.info["fail_to_pass"], turn.info["pass_to_pass"]
        fraction = (repaired / to_repair if to_repair else 1.0) * (kept / to_keep if to_keep else 1.0)
        return self._failure + self._factor * fraction
