"""Gymnasium environments with discrete actions, as text environments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.environments import ContractError, reset_parts, step_parts

__all__ = ["AnyText", "TextAdapter"]

_MOST_INTEGERS = 1_000_000
"""A range of more integers is not written as a word for each."""


class AnyText(spaces.Text):
    """A text space that contains every `str`; Gymnasium's own is bounded in length and alphabet."""

    def __init__(self) -> None:
        super().__init__(max_length=256)

    def contains(self, x: Any) -> bool:
        """Whether it is a `str`."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)


@create_shared_memory.register(AnyText)
def _refuse(space: AnyText, n: int = 1, ctx: Any = None) -> NoReturn:
    """Raise: Gymnasium's `AsyncVectorEnv` reads shared texts once, when it is made, and would always show these."""
    raise CustomSpaceError("texts cannot be in Gymnasium's shared memory. Try: AsyncVectorEnv(…, shared_memory=False)")


class TextAdapter(gymnasium.Wrapper[str, str, Any, int], gymnasium.utils.RecordConstructorArgs):
    """Writes an environment's observations as words, and reads one word as the action.

    A `Discrete` observation becomes its number; a tuple or a box of integers its numbers separated by spaces; a box of
    real numbers the number of each entry's bin. A text is unchanged.

    `info["legal_actions"]` lists the words of the legal actions: those that the environment's own `info["action_mask"]`
    or `info["legal_actions"]` (numbers of actions) allows, else all. Rollouts sample no others.

    Args:
        env: with a `Discrete` action space, and an observation space of `Discrete`, `MultiDiscrete`, `MultiBinary`,
            a `Tuple` of `Discrete`, a one-dimensional `Box`, or `Text`. Its `vocabulary()`, if it has one, lists its
            words.
        actions: the word of each action, in order; `0`, `1`, … by default.
        bins: bins of a real number.
        box_range: (lowest, highest) of each entry, for boxes without bounds or with bounds that are never reached.
        illegal_penalty: subtracted from the reward if the action is not one of the words.
        fallback: the action that is taken instead; None takes none and repeats the observation after `illegal`.
        unconstrained: let a policy write any text, so that it has to learn which words are actions.

    Raises:
        ConfigurationError: a space is not supported, or the words do not fit the actions.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        actions: Sequence[str] | None = None,
        bins: int = 8,
        box_range: Sequence[tuple[float, float]] | None = None,
        illegal_penalty: float = 0.0,
        fallback: str | None = None,
        unconstrained: bool = False,
    ) -> None:
        gymnasium.utils.RecordConstructorArgs.__init__(  # so that the environment's spec can recreate it
            self,
            actions=actions,
            bins=bins,
            box_range=box_range,
            illegal_penalty=illegal_penalty,
            fallback=fallback,
            unconstrained=unconstrained,
        )
        gymnasium.Wrapper.__init__(self, env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ConfigurationError(f"TextAdapter: the action space is {env.action_space}, expected Discrete")
        self._n_actions, self._first_action = int(env.action_space.n), int(env.action_space.start)
        self.actions = tuple(actions) if actions is not None else tuple(str(i) for i in range(self._n_actions))
        if len(self.actions) != self._n_actions or len(set(self.actions)) != self._n_actions:
            raise ConfigurationError(f"TextAdapter: {self._n_actions} actions, but the words are {list(self.actions)}")
        if fallback is not None and fallback not in self.actions:
            raise ConfigurationError(f"TextAdapter: fallback {fallback!r} is not one of {', '.join(self.actions)}")
        self._numbers = _numbers_of(env, bins, box_range)
        self._illegal_penalty, self._fallback, self._last = illegal_penalty, fallback, ""
        self.unconstrained = unconstrained
        self._legal = list(self.actions)
        self.observation_space = AnyText()
        self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; returns the observation in words."""
        observation, info = reset_parts(self.env.reset(seed=seed, options=options))
        self._last = self._text(observation)
        return self._last, self._with_legal_actions(info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the action with this word; surrounding white space is ignored."""
        word = action.strip()
        legal = word in self.actions
        if not legal and self._fallback is None:
            return (
                f"illegal {self._last}",
                -self._illegal_penalty,
                False,
                False,
                {"legal_actions": self._legal, "action_error": word},
            )
        number = self.actions.index(word if legal or self._fallback is None else self._fallback)
        inner: gymnasium.Env[Any, Any] = self.env
        observation, reward, terminated, truncated, given = step_parts(inner.step(self._first_action + number))
        self._last, info = self._text(observation), self._with_legal_actions(given)
        if legal:
            return self._last, reward, terminated, truncated, info
        return (
            f"illegal {self._last}",
            reward - self._illegal_penalty,
            terminated,
            truncated,
            {**info, "action_error": word},
        )

    def _text(self, observation: Any) -> str:
        try:
            return self._numbers.text(observation)
        except (OverflowError, TypeError, ValueError) as error:
            space = self.env.observation_space
            raise ContractError(f"the observation is {observation!r:.80}, which is not of {space}") from error

    def _with_legal_actions(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Add the legal actions as words; if the environment allows none, as after the end, all are listed."""
        mask, numbers = info.get("action_mask"), info.get("legal_actions")
        if mask is not None:
            if np.shape(mask) != (self._n_actions,):
                raise ConfigurationError(
                    f"TextAdapter: info['action_mask'] has the shape {np.shape(mask)}, expected ({self._n_actions},)"
                )
            self._legal = [word for word, legal in zip(self.actions, mask, strict=True) if legal]
        elif numbers is not None:
            self._legal = self._words(numbers)
        else:
            self._legal = list(self.actions)
        self._legal = self._legal or list(self.actions)
        return {**info, "legal_actions": self._legal}

    def _words(self, numbers: Any) -> list[str]:
        """The words of the actions with these numbers."""
        first = self._first_action
        try:
            places = [int(number) - first for number in numbers]
        except (TypeError, ValueError):
            places = [-1]
        if not all(0 <= place < self._n_actions for place in places):
            raise ConfigurationError(
                f"TextAdapter: info['legal_actions'] is {numbers!r:.80}, expected numbers of actions from {first} to "
                f"{first + self._n_actions - 1}"
            )
        return [self.actions[place] for place in places]

    def vocabulary(self) -> list[str]:
        """Every word of observations and actions, for `WordTokenizer.from_texts`."""
        return [*self._numbers.words(), *self.actions, "illegal", " "]


class _Numbers(Protocol):
    """Writes an observation as text."""

    def text(self, observation: Any) -> str: ...

    def words(self) -> list[str]: ...


@dataclass(frozen=True)
class _Whole:
    """Integers, each with its own range."""

    ranges: tuple[tuple[int, int], ...]  # first and last of each

    def text(self, observation: Any) -> str:
        if isinstance(observation, (int, np.integer)):
            return str(int(observation))
        return " ".join(str(int(number)) for number in np.ravel(observation))

    def words(self) -> list[str]:
        first, last = min(low for low, _ in self.ranges), max(high for _, high in self.ranges)
        return [str(number) for number in range(first, last + 1)]


@dataclass(frozen=True)
class _Binned:
    """Real numbers, each as the number of its bin; values outside belong to the first or last bin."""

    edges: tuple[list[float], ...]

    def text(self, observation: Any) -> str:
        pairs = zip(np.ravel(observation).tolist(), self.edges, strict=True)
        return " ".join(str(bisect_right(edges, number)) for number, edges in pairs)

    def words(self) -> list[str]:
        return [str(number) for number in range(len(self.edges[0]) + 1)]


@dataclass(frozen=True)
class _Texts:
    """Texts, which are not changed."""

    vocabulary: tuple[str, ...]

    def text(self, observation: Any) -> str:
        return str(observation)

    def words(self) -> list[str]:
        return list(self.vocabulary)


def _numbers_of(env: gymnasium.Env[Any, Any], bins: int, box_range: Sequence[tuple[float, float]] | None) -> _Numbers:
    """Choose the format for an environment's observations."""
    space = env.observation_space
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        low, high = (np.array(side, dtype=np.float64) for side in (space.low, space.high))
        if box_range is not None:
            if len(box_range) != space.shape[0]:
                raise ConfigurationError(
                    f"TextAdapter: box_range has {len(box_range)} entries, the observation {space.shape[0]}"
                )
            low, high = np.array(box_range, dtype=np.float64).T
        elif np.issubdtype(space.dtype, np.integer):
            if (high - low > _MOST_INTEGERS).any():
                raise ConfigurationError(
                    f"TextAdapter: {space} has too many integers for a word each. Try: box_range=[(LOW, HIGH), …], "
                    f"{space.shape[0]} pairs, for bins of them; in YAML adapter_kwargs: {{box_range: [[LOW, HIGH], …]}}"
                )
            return _Whole(tuple(zip(low.astype(int).tolist(), high.astype(int).tolist(), strict=True)))
        if bins < 2 or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ConfigurationError(
                f"TextAdapter: {space} needs finite bounds for each entry and at least 2 bins (got {bins}). "
                f"Try: box_range=[(LOW, HIGH), …], {space.shape[0]} pairs; in YAML adapter_kwargs: "
                "{box_range: [[LOW, HIGH], …]}"
            )
        return _Binned(tuple(np.linspace(a, b, bins + 1)[1:-1].tolist() for a, b in zip(low, high, strict=True)))
    if box_range is not None:
        raise ConfigurationError(f"TextAdapter: box_range has no effect on {space}")
    if isinstance(space, spaces.Text):
        return _Texts(tuple(env.get_wrapper_attr("vocabulary")()) if env.has_wrapper_attr("vocabulary") else ())
    if isinstance(space, spaces.Discrete):
        return _Whole(((int(space.start), int(space.start + space.n - 1)),))
    if isinstance(space, spaces.MultiDiscrete):
        return _Whole(
            tuple((int(a), int(a + n - 1)) for a, n in zip(space.start.ravel(), space.nvec.ravel(), strict=True))
        )
    if isinstance(space, spaces.MultiBinary):
        return _Whole(((0, 1),))
    if isinstance(space, spaces.Tuple) and all(isinstance(part, spaces.Discrete) for part in space.spaces):
        parts = [part for part in space.spaces if isinstance(part, spaces.Discrete)]
        return _Whole(tuple((int(part.start), int(part.start + part.n - 1)) for part in parts))
    raise ConfigurationError(f"TextAdapter: {space} is not supported; wrap the environment so that it observes numbers")
