"""`FormatReward`: whether the action could be parsed."""

from __future__ import annotations

import gymnasium

from swegym_env.rewards.part import RewardPart, Turn, check_finite

__all__ = ["FormatReward"]


class FormatReward(RewardPart):
    """`readable` for a step whose action could be parsed, `malformed` for any other.

    Raises:
        ConfigurationError: a reward is not a finite number.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, readable: float = 0.0, malformed: float = -0.1) -> None:
        self._readable, self._malformed = check_finite(readable=readable, malformed=malformed)
        super().__init__(env, name="format")

    def part(self, turn: Turn) -> float:
        """Depends on `info["action_error"]`."""
        return self._readable if turn.info["action_error"] is None else self._malformed
