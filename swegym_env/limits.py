"""Limits of an episode, as wrappers. Each announces the last turn in the observation; then the episode ends.

The environment itself ends the episode (`last_turn`): it grades the current work, and every wrapper, inside or outside
of the limit, sees the end. A limit on wall time truncates without a verdict: the speed of the machine is not part of
the task (Pardo et al. 2018).
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any, Literal

import gymnasium

from swegym_env.arguments import check_positive, check_whole
from swegym_env.errors import ConfigurationError

__all__ = ["TokenLimit", "TurnLimit", "WallTimeLimit"]


class _Limit(gymnasium.Wrapper[str, str, str, str], abc.ABC):
    """Measures usage with `begin` and `count`, and announces the last turn before it is played."""

    reason: Literal["max_turns", "tokens", "time"]
    announcement: str

    def __init__(self, env: gymnasium.Env[str, str], maximum: float) -> None:
        """Raises ConfigurationError if `env` has no `last_turn`."""
        if not env.has_wrapper_attr("last_turn"):
            raise ConfigurationError(f"{type(self).__name__}: {env} has no last_turn(), so it cannot be ended")
        super().__init__(env)
        self._maximum = maximum
        self._announced = False

    @abc.abstractmethod
    def begin(self, observation: str, info: dict[str, Any]) -> None:
        """Called after `reset`."""

    @abc.abstractmethod
    def count(self, action: str, observation: str) -> None:
        """Called after each turn."""

    @abc.abstractmethod
    def used_up(self) -> bool:
        """Whether the next turn is the last."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._announced = False
        self.begin(observation, info)
        return self._announce(observation, info)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Step the environment; the observation before the last turn announces it."""
        if self.used_up():
            self.env.get_wrapper_attr("last_turn")(self.reason)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.count(action, observation)
        if not (terminated or truncated):
            observation, info = self._announce(observation, info)
        return observation, reward, terminated, truncated, info

    def _announce(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Append the announcement if the next turn is the last; it is also in `info["notice"]`."""
        if self._announced or not self.used_up():
            return observation, info
        self._announced = True
        return f"{observation}\n{self.announcement}".lstrip("\n"), {**info, "notice": self.announcement}


class TurnLimit(_Limit):
    """At most `max_turns` turns; the episode ends with `end_reason` "max_turns".

    Raises:
        ConfigurationError: `max_turns` is not a whole number of 1 or more, or the environment has no `last_turn()`.
    """

    reason = "max_turns"
    announcement = "This is your last turn: submit now; otherwise your work is handed in as it then stands."

    def __init__(self, env: gymnasium.Env[str, str], max_turns: int) -> None:
        check_whole("max_turns", max_turns, 1)
        super().__init__(env, max_turns)
        self._turns = 0

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        self._turns = 0

    def count(self, action: str, observation: str) -> None:
        self._turns += 1

    def used_up(self) -> bool:
        return self._turns >= self._maximum - 1


class TokenLimit(_Limit):
    """At most about `max_tokens` tokens of prompt, actions and observations; ends with `end_reason` "tokens".

    The turn after the one that reaches the limit is the last. Tokens of a chat template are not counted.

    Args:
        tokenizer: function from text to its tokens (anything with a length, such as the result of Hugging Face's
            `tokenizer.encode`, or a mapping with `input_ids`) or to their number.

    Raises:
        ConfigurationError: `max_tokens` is not a whole number of 1 or more, the environment has no `last_turn()`, or
            the tokenizer returns neither tokens nor a number.
    """

    reason = "tokens"
    announcement = (
        "Your tokens are used up, this is your last turn: submit now; otherwise your work is handed in as it is."
    )

    def __init__(self, env: gymnasium.Env[str, str], max_tokens: int, tokenizer: Callable[[str], Sized | int]) -> None:
        check_whole("max_tokens", max_tokens, 1)
        super().__init__(env, max_tokens)
        self._tokenizer = tokenizer
        self._tokens = 0

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        self._tokens = self._length(info.get("system_prompt", "")) + self._length(observation)

    def count(self, action: str, observation: str) -> None:
        self._tokens += self._length(action) + self._length(observation)

    def used_up(self) -> bool:
        return self._tokens >= self._maximum

    def _length(self, text: str) -> int:
        tokens: Any = self._tokenizer(text)
        # Calling a Hugging Face tokenizer returns a mapping, whose own length is the number of its keys.
        if isinstance(tokens, Mapping):
            tokens = tokens.get("input_ids")
        if isinstance(tokens, int):
            return tokens
        if not isinstance(tokens, Sized):
            raise ConfigurationError(f"tokenizer: expected tokens or their number, got {type(tokens).__name__}")
        return len(tokens)


class WallTimeLimit(_Limit):
    """At most about `seconds` of wall time. The turn after the limit is the last, and truncates with reason "time".

    Raises:
        ConfigurationError: `seconds` is not positive, or the environment has no `last_turn()`.
    """

    reason = "time"
    announcement = "Your time is used up, this is your last turn: submit now, or your work is not judged."

    def __init__(self, env: gymnasium.Env[str, str], seconds: float) -> None:
        check_positive("seconds", seconds)
        super().__init__(env, seconds)
        self._began = 0.0

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        self._began = time.monotonic()

    def count(self, action: str, observation: str) -> None:
        pass

    def used_up(self) -> bool:
        return time.monotonic() - self._began >= self._maximum
