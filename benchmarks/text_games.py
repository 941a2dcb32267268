"""Small text environments that a language model can learn from random weights, and their random actions.

Importing this registers `Copy-v0`, `Parity-v0`, `Guess-v0` and `TextTaxi-v0`; a configuration names them
`benchmarks.text_games:Copy-v0`.
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.taxi import TaxiEnv

from swe_trainers.rollout.adapters import AnyText

__all__ = ["Copy", "Guess", "Parity", "TextGame", "TextTaxi", "random_action"]


class TextGame(gymnasium.Env[str, str]):
    """A game in words.

    Attributes:
        legal: all legal actions.
        seen: all observations, or their words.
    """

    observation_space = AnyText()
    action_space = AnyText()
    legal: tuple[str, ...]
    seen: tuple[str, ...]

    def vocabulary(self) -> list[str]:
        return [*self.seen, *self.legal]


class Copy(TextGame):
    """Two words are shown; each one repeated in its position earns half of the reward."""

    letters = ("a", "b", "c")
    legal = tuple(" ".join(words) for words in itertools.product(letters, repeat=2))
    seen = (*letters, " ")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown = [self.letters[i] for i in self.np_random.integers(len(self.letters), size=2)]
        return " ".join(self._shown), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        said = action.split()
        right = sum(a == b for a, b in zip(said, self._shown, strict=False)) if len(said) <= 2 else 0
        return "", right / 2, True, False, {}

    def vocabulary(self) -> list[str]:
        return [*self.letters, " "]


class Parity(TextGame):
    """A number below 16 is shown; answering even or odd correctly earns 1."""

    legal = ("even", "odd")
    seen = tuple(map(str, range(16)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(16))
        self._answer = self.legal[number % 2]
        return str(number), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action.strip() == self._answer), True, False, {}


class Guess(TextGame):
    """Find a number from 1 to 3 in two guesses, each answered by `higher` or `lower`, for a reward of 1.

    Starting in the middle and using the answer always finds it; blind guessing finds two of three at most.
    """

    legal = tuple(map(str, range(1, 4)))
    seen = ("guess", "higher", "lower", "what")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._number, self._turn = int(self.np_random.integers(1, 4)), 0
        return "guess", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        word = action.strip()
        if word not in self.legal:
            return "what", 0.0, self._turn == 2, False, {}
        found = int(word) == self._number
        answer = "higher" if int(word) < self._number else "lower"
        return answer, float(found), found or self._turn == 2, False, {}


class TextTaxi(TextGame):
    """Gymnasium's Taxi-v4 as four numbers: row, column, passenger's location and destination."""

    legal = ("south", "north", "east", "west", "pickup", "dropoff")
    seen = (*(f"{what}{i}" for what in "rcpd" for i in range(5)), " ", "what")

    def __init__(self) -> None:
        self._taxi = TaxiEnv()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        state, _ = self._taxi.reset(seed=seed)
        return self._words(int(state)), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        word = action.strip()
        if word not in self.legal:
            return "what", -10.0, False, False, {}
        state, reward, terminated, truncated, _ = self._taxi.step(self.legal.index(word))
        return self._words(int(state)), float(reward), terminated, truncated, {}

    def _words(self, state: int) -> str:
        numbers = self._taxi.decode(state)
        return " ".join(f"{what}{number}" for what, number in zip("rcpd", numbers, strict=True))


def random_action(env: gymnasium.Env[str, str], random: np.random.Generator) -> str:
    """A uniformly random legal action of a game, or of an environment in a `TextAdapter`."""
    name = "legal" if env.has_wrapper_attr("legal") else "actions"
    actions = env.get_wrapper_attr(name)
    return str(actions[random.integers(len(actions))])


for _game in (Copy, Parity, Guess, TextTaxi):
    _id = f"{_game.__name__}-v0"
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=f"{__name__}:{_game.__name__}")
