"""Environments for the tests with Ray: they live in its workers, which import this module."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium

from swe_trainers.rollout.adapters import AnyText

WORDS = ("a", "b", "c", "d")


class Echo(gymnasium.Env[str, str]):
    """Three turns; each has a reward of 1 for repeating the shown word.

    Args:
        wait_s: of each step, as a sandbox's tests would.
        deadly: a folder: the process is killed in episodes whose seed is divisible by 5, as often as there are files;
            one called `slow` makes every step last half a second instead.
    """

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(self, wait_s: float = 0.0, deadly: str | None = None) -> None:
        self.wait_s, self.deadly = wait_s, deadly

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn, self.marked = 0, seed is not None and seed % 5 == 0
        return self._show(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        files = [] if self.deadly is None else sorted(Path(self.deadly).iterdir())
        slow = any(file.name == "slow" for file in files)
        time.sleep(0.5 if slow else self.wait_s)
        if files and not slow and self.marked and self.turn == 1:
            with suppress(FileNotFoundError):  # another process was faster
                files[0].unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        reward = float(action == self.shown)
        self.turn += 1
        return self._show(), reward, self.turn == 3, False, {"pid": os.getpid()}

    def _show(self) -> str:
        self.shown = WORDS[self.np_random.integers(len(WORDS))]
        return self.shown


gymnasium.register("Echo-v0", Echo)
