"""`Faulty-v0`: an environment that has a chosen fault in some of its episodes."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium

from swe_trainers.rollout.adapters import AnyText


class Faulty(gymnasium.Env[str, str]):
    """Three turns of `a`; episodes whose seed leaves one of `bad` when divided by `every` have the fault.

    Args:
        fault: `step`, `reset`, `close`, `hang`, `reward` or `tuple`.
        every, bad: which episodes.
    """

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(self, fault: str, every: int = 4, bad: tuple[int, ...] = (0,)) -> None:
        self.fault, self.every, self.bad = fault, every, tuple(bad)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn, self.has_fault = 0, (seed or 0) % self.every in self.bad
        if self.has_fault and self.fault == "reset":
            raise KeyError("no such row")
        return "a", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        if self.has_fault and self.fault == "step":
            raise TypeError(f"a bug in turn {self.turn}")
        if self.has_fault and self.fault == "hang":
            threading.Event().wait()
        if self.has_fault and self.fault == "tuple":
            return "a", 1.0, False, {}
        reward: Any = "1.0" if self.has_fault and self.fault == "reward" else float(action == "a")
        return "a", reward, self.turn == 3, False, {}

    def close(self) -> None:
        if self.fault == "close":
            raise ValueError("cannot be closed")


gymnasium.register("Faulty-v0", Faulty)
