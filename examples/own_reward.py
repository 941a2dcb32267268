"""Your own reward: looking at a file before changing it is worth something, once an episode.

    python examples/own_reward.py

A reward is a part with a name; parts add up, and `info["reward"]` says what each gave. What needs no memory can be
a plain function: `ScoringFunction(env, function)`. In `swe-train`, name the class: `training_wrappers: [{name:
"own_reward:LookFirst"}]`.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import gymnasium

import swegym_env  # noqa: F401 - registers SWEBench-v0
from swegym_env.wrappers import ResolvedReward, RewardPart, StepPenalty, Turn


class LookFirst(RewardPart):
    """`bonus` for the first change of a file that was read in an earlier turn."""

    def __init__(self, env: gymnasium.Env[str, str], *, bonus: float = 0.1) -> None:
        super().__init__(env, name="look_first")
        self._bonus = bonus
        self._seen = ""
        self._paid = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """A new episode knows nothing of the last one."""
        self._seen, self._paid = "", False
        return super().reset(seed=seed, options=options)

    def part(self, turn: Turn) -> float:
        """What this turn is worth; the environment has already made its step."""
        changed = re.findall(r"^\+\+\+ b/(\S+)", turn.info["patch"], flags=re.MULTILINE)
        looked = bool(changed) and all(path in self._seen for path in changed)
        self._seen += turn.action
        if self._paid or not looked:
            return 0.0
        self._paid = True
        return self._bonus


def main() -> None:
    argparse.ArgumentParser(description="a reward of your own in one episode").parse_args()
    env = gymnasium.make("SWEBench-v0", dataset="mini-edit", action_format="raw")
    env = LookFirst(StepPenalty(ResolvedReward(env, failure=0.0), penalty=0.01), bonus=0.1)
    env.reset(seed=0)
    (path,) = env.unwrapped.task.files
    total, parts = 0.0, []
    for action in (f"cat {path}", f"echo '# reviewed' >> {path}", "submit"):
        _, reward, _, _, info = env.step(action)
        total += float(reward)
        parts.append(info["reward"])
        print(f"{action:40} {reward:+.2f}  {info['reward']}")
    env.close()
    print(json.dumps({"total": round(total, 2), "parts": parts}))


if __name__ == "__main__":
    main()
