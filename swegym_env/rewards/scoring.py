"""`ScoringFunction`: your own reward, as a function of a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium

from swegym_env.errors import ConfigurationError
from swegym_env.registry import resolve
from swegym_env.rewards.part import RewardPart, Turn

__all__ = ["ScoringFunction"]


class ScoringFunction(RewardPart):
    """The value of your own function: `function(turn) → number`.

    Args:
        function: takes a `Turn`; or its place as "module:function".
        when: "end": call it once, for the last step of a terminated episode; "step": call it for every step.
        name: key of the part in `info["reward"]`.

    Raises:
        ConfigurationError: there is no such function; from `step`: its value is not a finite number.
    """

    def __init__(
        self,
        env: gymnasium.Env[str, str],
        function: Callable[[Turn], float] | str,
        *,
        when: Literal["end", "step"] = "end",
        name: str = "score",
    ) -> None:
        if when not in ("end", "step"):
            raise ConfigurationError(f"when: expected 'end' or 'step', got {when!r}")
        self._function: Any = resolve(function, "scoring function") if isinstance(function, str) else function
        if not callable(self._function):
            raise ConfigurationError(
                f"scoring function {function!r}: expected a function, got {type(self._function).__name__}"
            )
        self._every_step = when == "step"
        super().__init__(env, name=name)

    def part(self, turn: Turn) -> float:
        """The value of the function, 0 for steps on which it is not called."""
        return self._function(turn) if self._every_step or turn.terminated else 0.0
