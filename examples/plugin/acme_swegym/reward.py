"""A reward: short actions are worth something."""

import gymnasium

from swegym_env.wrappers import RewardPart, Turn


class BrevityReward(RewardPart):
    """`bonus` for each action of at most `characters`."""

    def __init__(self, env: gymnasium.Env[str, str], *, bonus: float = 0.01, characters: int = 40) -> None:
        super().__init__(env, name="brevity")
        self._bonus, self._characters = bonus, characters

    def part(self, turn: Turn) -> float:
        """What one turn is worth."""
        return self._bonus if len(turn.action) <= self._characters else 0.0
