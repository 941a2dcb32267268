"""`RewardPart`: a wrapper that adds one named part to the reward. The reward of a step is the sum of its parts.

The parts are in `info["reward"]`. The sum is rounded once (`math.fsum`), so it does not depend on the order of the
wrappers. The environment's own reward is the part "environment"; a part that states the outcome of the episode replaces
it.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import gymnasium

from swegym_env.env import Outcome
from swegym_env.errors import ConfigurationError, InfrastructureError

__all__ = ["RewardPart", "Turn", "check_finite", "check_not_negative", "require_grading"]

_ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Turn:
    """One turn of an episode, as a reward sees it.

    Attributes:
        number: position in the episode, from 1.
        action: the agent's text.
        observation: the answer of the environment.
        terminated: as returned by the environment's `step`.
        truncated: as returned by the environment's `step`.
        info: of the step; must not be changed.
        task: the environment's `task` (a `Task`), None if it has none.
    """

    number: int
    action: str
    observation: str
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    task: Any

    @property
    def ended(self) -> bool:
        """Whether this was the last turn of the episode."""
        return self.terminated or self.truncated


class RewardPart(gymnasium.Wrapper[str, str, str, str], abc.ABC):
    """Adds the value of `part` to the reward of each step. Subclasses implement `part`.

    An invalid step (an infrastructure failure, not the agent's) has no parts and the reward 0. An infrastructure
    failure inside `part` makes the step invalid.

    Args:
        name: key of the part in `info["reward"]`.
        replaces: whether it replaces the environment's own reward.

    Raises:
        ConfigurationError: another wrapper adds a part with this name; from `step`: the part is not finite.
    """

    def __init__(self, env: gymnasium.Env[str, str], *, name: str, replaces: bool = False) -> None:
        super().__init__(env)
        self.name = name
        self._replaces = replaces
        self._turn = 0
        below: gymnasium.Env[Any, Any] = env
        while isinstance(below, gymnasium.Wrapper):
            if isinstance(below, RewardPart) and below.name == name:
                raise ConfigurationError(f"two reward wrappers are named {name!r}: give one of them another `name`")
            below = below.env

    @abc.abstractmethod
    def part(self, turn: Turn) -> float:
        """The reward of this part for one turn. May raise InfrastructureError."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment."""
        self._turn = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Step the environment and add this part to the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._turn += 1
        info = dict(info)
        parts: dict[str, float] = dict(info.get("reward", {_ENVIRONMENT: float(reward)}))
        if info.get("valid", True):
            task = self.env.get_wrapper_attr("task") if self.env.has_wrapper_attr("task") else None
            turn = Turn(self._turn, action, observation, terminated, truncated, info, task)
            try:
                added = self.part(turn)
            except InfrastructureError as error:
                self.env.close()
                terminated, truncated = False, True
                reason = f"{self.name}: {type(error).__name__}: {error}"
                info |= {"end_reason": "error", **vars(Outcome(valid=False, failure_reason=reason))}
            else:
                if self._replaces:
                    parts.pop(_ENVIRONMENT, None)
                try:
                    parts[self.name] = float(added)
                except (TypeError, ValueError):
                    parts[self.name] = math.nan
                if not math.isfinite(parts[self.name]):
                    raise ConfigurationError(
                        f"reward {self.name!r}: expected a finite number for turn {self._turn}, got {added!r}"
                    )
        if not info.get("valid", True):
            parts = {}
        info["reward"] = parts
        return observation, math.fsum(parts.values()), terminated, truncated, info


def check_finite(**values: float) -> tuple[float, ...]:
    """The values. Raises ConfigurationError with the name of the first that is not a finite number."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise ConfigurationError(f"{name}: a reward must be a finite number, got {value}")
    return tuple(values.values())


def check_not_negative(**values: float) -> tuple[float, ...]:
    """The values. Raises ConfigurationError with the name of the first that is negative or not a finite number."""
    for name, value in zip(values, check_finite(**values), strict=True):
        if value < 0:
            raise ConfigurationError(f"{name}: expected 0 or more, got {value}")
    return tuple(values.values())


def require_grading(env: gymnasium.Env[str, str], wrapper: str) -> None:
    """Raise ConfigurationError if the environment was made with `reward="none"` and therefore grades nothing."""
    if env.has_wrapper_attr("arguments") and env.get_wrapper_attr("arguments").get("reward") == "none":
        raise ConfigurationError(f"{wrapper} needs a verdict of the tests: make the environment without reward='none'")
