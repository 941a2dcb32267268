"""Limits of an episode as wrappers. Each announces the last turn in the observation, then ends with its own reason.

The environment itself ends the episode (`last_turn`), so it grades the work as it stands and every wrapper, inside or
outside of the limit, sees the end. A limit on wall time truncates without a verdict: how fast the machine is is no part
of the task (Pardo et al. 2018).
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sized
from typing import Any, Literal

import gymnasium

from swegym_env.errors import ConfigurationError

__all__ = ["TokenLimit", "TurnLimit", "WallTimeLimit"]


class _Limit(gymnasium.Wrapper[str, str, str, str], abc.ABC):
    """Watches what is used up; where only one turn is left it says so."""

    reason: Literal["max_turns", "tokens", "time"]
    announcement: str

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        if not env.has_wrapper_attr("last_turn"):
            raise ConfigurationError(f"{type(self).__name__}: {env} has no last_turn() that a limit could end it by")
        super().__init__(env)
        self._told = False

    @abc.abstractmethod
    def begin(self, observation: str, info: dict[str, Any]) -> None:
        """An episode began."""

    @abc.abstractmethod
    def count(self, action: str, observation: str) -> None:
        """A turn was made."""

    @abc.abstractmethod
    def used_up(self) -> bool:
        """Whether the next turn is the last."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """As the environment's own."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._told = False
        self.begin(observation, info)
        return self._announced(observation, info)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """As the environment's own; the observation before the last turn says that it is the last."""
        if self.used_up():
            self.env.get_wrapper_attr("last_turn")(self.reason)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.count(action, observation)
        if not (terminated or truncated):
            observation, info = self._announced(observation, info)
        return observation, reward, terminated, truncated, info

    def _announced(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Both, with the announcement where the next turn is the last; `info["notice"]` tells it from the rest."""
        if self._told or not self.used_up():
            return observation, info
        self._told = True
        return f"{observation}\n{self.announcement}".lstrip("\n"), {**info, "notice": self.announcement}


class TurnLimit(_Limit):
    """At most `max_turns` turns; ends with `end_reason` "max_turns".

    Raises:
        ConfigurationError: fewer than one turn, or an environment without `last_turn()`.
    """

    reason = "max_turns"
    announcement = "This is your last turn: submit now; otherwise your work is handed in as it then stands."

    def __init__(self, env: gymnasium.Env[str, str], max_turns: int) -> None:
        super().__init__(env)
        self._limit = int(_positive(max_turns=max_turns))
        self._turns = 0

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        self._turns = 0

    def count(self, action: str, observation: str) -> None:
        self._turns += 1

    def used_up(self) -> bool:
        return self._turns >= self._limit - 1


class TokenLimit(_Limit):
    """At most about `max_tokens` tokens of prompt, actions and observations; ends with `end_reason` "tokens".

    The turn after the one that used the last token is the last. What a chat template adds is not counted.

    Args:
        tokenizer: text → its tokens (anything with a length, as `tokenizer.encode` of Hugging Face gives it, or a
            mapping with `input_ids`), or → their number.

    Raises:
        ConfigurationError: fewer than one token, an environment without `last_turn()`, or a tokenizer that gives
            neither tokens nor a number.
    """

    reason = "tokens"
    announcement = (
        "Your tokens are used up, this is your last turn: submit now; otherwise your work is handed in as it is."
    )

    def __init__(self, env: gymnasium.Env[str, str], max_tokens: int, tokenizer: Callable[[str], Sized | int]) -> None:
        super().__init__(env)
        self._limit = _positive(max_tokens=max_tokens)
        self._tokenizer = tokenizer
        self._tokens = 0

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        self._tokens = self._length(info.get("system_prompt", "")) + self._length(observation)

    def count(self, action: str, observation: str) -> None:
        self._tokens += self._length(action) + self._length(observation)

    def used_up(self) -> bool:
        return self._tokens >= self._limit

    def _length(self, text: str) -> int:
        tokens: Any = self._tokenizer(text)
        # What calling a Hugging Face tokenizer gives is a mapping, whose own length is that of its keys.
        if isinstance(tokens, Mapping):
            tokens = tokens.get("input_ids")
        if isinstance(tokens, int):
            return tokens
        if not isinstance(tokens, Sized):
            raise ConfigurationError(f"tokenizer: expected tokens or their number, got {type(tokens).__name__}")
        return len(tokens)


class WallTimeLimit(_Limit):
    """At most about `seconds` of wall time: the turn after them is the last; ends with `end_reason` "time", truncated.

    Raises:
        ConfigurationError: no time at all, or an environment without `last_turn()`.
    """

    reason = "time"
    announcement = "Your time is used up, this is your last turn: submit now, or your work is not judged."

    def __init__(self, env: gymnasium.Env[str, str], seconds: float) -> None:
        super().__init__(env)
        self._limit = _positive(seconds=seconds)
        self._began = 0.0

    def begin(self, observation: str, info: dict[str, Any]) -> None:
        self._began = time.monotonic()

    def count(self, action: str, observation: str) -> None:
        pass

    def used_up(self) -> bool:
        return time.monotonic() - self._began >= self._limit


def _positive(**values: float) -> float:
    ((name, value),) = values.items()
    if not value > 0:
        raise ConfigurationError(f"{name}: expected a positive number, got {value!r}")
    return value
