"""Small text environments that a language model can learn from random weights, and their random actions.

Importing this registers `Copy-v0`, `Parity-v0`, `Guess-v0`, `TextTaxi-v0`, `CoinCollector-v0` and `HigherLower-v0`; a
configuration names them `benchmarks.text_games:Copy-v0`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.taxi import TaxiEnv

from swe_trainers.rollout.adapters import AnyText

__all__ = ["CoinCollector", "Copy", "Guess", "HigherLower", "Parity", "TextGame", "TextTaxi", "random_action"]


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
        words = action.split()
        right = sum(a == b for a, b in zip(words, self._shown, strict=False)) if len(words) <= 2 else 0
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


class CoinCollector(TextGame):
    """Find a coin in a house of rooms, after the coin collector of Yuan et al. (2018) at its medium difficulty.

    A chain of rooms leads to the coin, and from every room of it but the last a door leads to a dead end. The
    observation is the room's name, which means nothing, and its exits: a policy that does not remember where it came
    from, and which doors it has tried, walks to and fro. `info["legal_actions"]` lists what can be done in the room.
    Taking the coin ends the game with a reward of 1.

    Args:
        length: doors from the first room to the coin.
    """

    directions: ClassVar = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
    rooms = ("attic", "cellar", "kitchen", "library", "office", "pantry", "studio", "workshop")
    legal = (*(f"go {direction}" for direction in directions), "take coin")
    seen = (*rooms, "exits", "coin", "nothing", " ")

    def __init__(self, length: int = 4) -> None:
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        while not self._build():
            pass
        return self._look(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action not in self._info()["legal_actions"]:
            return f"nothing {self._look()}", 0.0, False, False, self._info()
        if action == "take coin":
            return self._look(), 1.0, True, False, self._info()
        self._here = self._doors[self._here][action.removeprefix("go ")]
        return self._look(), 0.0, False, False, self._info()

    def _build(self) -> bool:
        """Lay out rooms on a grid; False where the chain ran into itself and there is no room left."""
        self._here = (0, 0)
        self._doors: dict[tuple[int, int], dict[str, tuple[int, int]]] = {self._here: {}}
        self._names = {self._here: self._name()}
        end = self._here
        for _ in range(self._length):
            dead_end, onward = self._free(end, 2)
            if onward is None or dead_end is None:
                return False
            for direction in (dead_end, onward):
                self._open(end, direction)
            end = self._doors[end][onward]
        self._coin = end
        return True

    def _free(self, room: tuple[int, int], n: int) -> list[str | None]:
        """Directions, in random order, where no room is yet; None where there are fewer than n."""
        names = list(self.directions)
        order = [names[i] for i in self.np_random.permutation(len(names))]
        found: list[str | None] = [name for name in order if self._beside(room, name) not in self._doors]
        return (found + [None] * n)[:n]

    def _open(self, room: tuple[int, int], direction: str) -> None:
        """Make a room beside another one, with a door between them."""
        names, other = list(self.directions), self._beside(room, direction)
        self._doors[room][direction] = other
        self._doors[other] = {names[(names.index(direction) + 2) % 4]: room}
        self._names[other] = self._name()

    def _beside(self, room: tuple[int, int], direction: str) -> tuple[int, int]:
        x, y = self.directions[direction]
        return room[0] + x, room[1] + y

    def _name(self) -> str:
        return self.rooms[self.np_random.integers(len(self.rooms))]

    def _look(self) -> str:
        exits = [name for name in self.directions if name in self._doors[self._here]]
        coin = ["coin"] if self._here == self._coin else []
        return " ".join([self._names[self._here], *coin, "exits", *exits])

    def _info(self) -> dict[str, Any]:
        legal = [f"go {name}" for name in self.directions if name in self._doors[self._here]]
        return {"legal_actions": legal + (["take coin"] if self._here == self._coin else [])}


class HigherLower(TextGame):
    """Find as many numbers from 1 to 16 as possible in 20 guesses, each answered in a long sentence.

    Each number found earns 1/5 and is followed by another one. Halving finds a number in 3.4 guesses on average, more
    than five in all; blind guesses find 1.25.
    """

    legal = tuple(map(str, range(1, 17)))
    words = ("the", "number", "that", "you", "look", "for", "is", "higher", "lower", "than", "new", "found", "between")
    seen = (*words, "and", "what", " ")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turn, self._number = 0, self._draw()
        return "the new number that you look for is between 1 and 16", {"legal_actions": list(self.legal)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        over, info = self._turn == 20, {"legal_actions": list(self.legal)}
        if action not in self.legal:
            return "what", 0.0, over, False, info
        guess = int(action)
        if guess == self._number:
            self._number = self._draw()
            return f"you found {guess} and the new number that you look for is between 1 and 16", 0.2, over, False, info
        answer = "higher" if guess < self._number else "lower"
        return f"the number that you look for is {answer} than {guess}", 0.0, over, False, info

    def _draw(self) -> int:
        return int(self.np_random.integers(1, 17))


def random_action(env: gymnasium.Env[str, str], random: np.random.Generator, info: Mapping[str, Any]) -> str:
    """A uniformly random action of `info["legal_actions"]`, else of all that are legal at some time in the game."""
    actions = info.get("legal_actions") or env.get_wrapper_attr("legal")
    return str(actions[random.integers(len(actions))])


for _game in (Copy, Parity, Guess, TextTaxi, CoinCollector, HigherLower):
    _id = f"{_game.__name__}-v0"
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=f"{__name__}:{_game.__name__}")
