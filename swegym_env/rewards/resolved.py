"""`ResolvedReward`: the verdict of the tests."""

from __future__ import annotations

import gymnasium

from swegym_env.rewards.part import RewardPart, Turn, check_finite, require_grading

__all__ = ["ResolvedReward"]


class ResolvedReward(RewardPart):
    """`success` if the tests resolve the task, else `failure`, when the episode terminates.

    An invalid episode keeps the reward 0 and `info["valid"]` False: the infrastructure failed, not the agent.

    Raises:
        ConfigurationError: a reward is not a finite number, or the environment does not grade.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, success: float = 1.0, failure: float = -1.0) -> None:
        self._success, self._failure = check_finite(success=success, failure=failure)
        require_grading(env, "ResolvedReward")
        super().__init__(env, name="resolved", replaces=True)

    def part(self, turn: Turn) -> float:
        """`success` or `failure` if the episode terminated, else 0."""
        if not turn.terminated:
            return 0.0
        return self._success if turn.info["resolved"] else self._failure
