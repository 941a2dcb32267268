"""A text environment that is cheap to play: an instance is an addition, an action its result.

Guess-v0      names its instances, reports `resolved`, and can announce that the next turn is the last
NumpyGuess-v0 the same, with numbers, truth values and arrays of NumPy
Garbled-v0    the same, whose steps raise an error with a byte that is not UTF-8 in its text
Scarce-v0     the same, of which one alone can be made
Nameless-v0   rewards only: no instances, no verdict, no limit of its own
"""

from __future__ import annotations

import os
import threading
from typing import Any

import gymnasium
import numpy as np

from swe_trainers.rollout.adapters import AnyText

__all__ = ["GarbledEnv", "GuessEnv", "NamelessEnv", "NumpyGuessEnv", "ScarceEnv", "right_answer"]


def right_answer(prompt: str) -> str:
    """What solves the instance of this prompt: `3 + 4 = ?`."""
    left, right = prompt.split("=", maxsplit=1)[0].split("+")
    return str(int(left) + int(right))


class GuessEnv(gymnasium.Env[str, str]):
    """Instances `sum__add-00`, `sum__add-01`, …; a wrong answer may be followed by another.

    Args:
        dataset: how many instances, as text.
        max_turns: of an episode.
        broken: the instance whose steps fail as a machine does; `all` for every one.
        hangs: the instance whose first step does not return until the process ends.
    """

    def __init__(self, dataset: str = "8", max_turns: int = 3, broken: str = "", hangs: str = "") -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.instance_ids = tuple(f"sum__add-{number:02}" for number in range(int(dataset)))
        self.arguments = {"dataset": dataset, "max_turns": max_turns, "broken": broken}
        self._max_turns, self._broken, self._hangs = max_turns, broken, hangs
        self._turn, self._last, self._name, self._prompt = 0, "", "", ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._name = (options or {"instance_id": "sum__add-00"})["instance_id"]
        self._turn, self._last = 0, ""
        self._prompt = f"{int(self._name[-2:])} + 4 = ?"
        return self._prompt, {"instance_id": self._name, "system_prompt": "Add."}

    def last_turn(self, reason: str) -> None:
        self._last = reason

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._name == self._hangs:
            threading.Event().wait()
        if self._broken in (self._name, "all"):
            raise RuntimeError("the machine is on fire")
        self._turn += 1
        resolved = action.strip() == right_answer(self._prompt)
        over = resolved or bool(self._last) or self._turn >= self._max_turns
        info: dict[str, Any] = {"patch": f"+{action}\n"}
        if over:
            reason = "submitted" if resolved else self._last or "max_turns"
            info |= {"resolved": resolved, "valid": True, "end_reason": reason}
        return "Right." if resolved else "Wrong.", float(resolved), over, False, info


class NumpyGuessEnv(GuessEnv):
    """What a step returns is NumPy's, but for the observation."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if "resolved" in info:
            passed = np.array([info["resolved"], 1])
            info |= {"resolved": np.bool_(info["resolved"]), "fail_to_pass": passed, "pass_to_pass": passed}
        return observation, np.float32(reward), np.bool_(terminated), truncated, info


class GarbledEnv(GuessEnv):
    """Fails on a file whose name is not UTF-8."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise FileNotFoundError(os.fsdecode(b"caf\xe9.txt"))


class ScarceEnv(GuessEnv):
    """Raises when another one is made before the first is closed."""

    _one = threading.Lock()

    def __init__(self, dataset: str = "8", max_turns: int = 3) -> None:
        if not self._one.acquire(blocking=False):
            raise RuntimeError("no sandbox is left")
        super().__init__(dataset, max_turns)

    def close(self) -> None:
        self._one.release()


class NamelessEnv(gymnasium.Env[str, str]):
    """Every step earns 1 if the action is the parity of the seed; it never ends by itself."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._word = "odd" if (seed or 0) % 2 else "even"
        return f"{seed}: even or odd?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "And now?", float(action == self._word), False, False, {}


gymnasium.register(id="Guess-v0", entry_point=GuessEnv)
gymnasium.register(id="NumpyGuess-v0", entry_point=NumpyGuessEnv)
gymnasium.register(id="Garbled-v0", entry_point=GarbledEnv)
gymnasium.register(id="Scarce-v0", entry_point=ScarceEnv)
gymnasium.register(id="Nameless-v0", entry_point=NamelessEnv)
