"""Your own environment, trained with `swe_trainers`: a number is shown, and the answer is `even` or `odd`.

    python examples/own_environment.py --updates 30

The trainer asks four things of an environment: `reset` gives a `str`, `step` takes one and gives one, the observation
space is a `Text` space, and an equal seed gives an equal episode. `swe-train check-env own_environment:EvenOrOdd-v0`
tries that out, and a configuration names it so: `id: own_environment:EvenOrOdd-v0`, the module before the colon.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium

from swe_trainers.experiment import run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.run_config import run_config


class EvenOrOdd(gymnasium.Env[str, str]):
    """Four numbers, one after the other; a right answer is worth a quarter."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Text(max_length=2, charset="0123456789")
        self.action_space = gymnasium.spaces.Text(max_length=4)
        self._left, self._number = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin with a number that follows from the seed."""
        super().reset(seed=seed)
        self._left = 4
        return self._shown(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer for the number that was shown."""
        right = action.strip() == ("odd" if self._number % 2 else "even")
        self._left -= 1
        return self._shown(), right / 4, self._left == 0, False, {}

    def _shown(self) -> str:
        self._number = int(self.np_random.integers(10))
        return str(self._number)


if "EvenOrOdd-v0" not in gymnasium.registry:
    gymnasium.register(id="EvenOrOdd-v0", entry_point=EvenOrOdd)


def main() -> None:
    parser = argparse.ArgumentParser(description="your own environment")
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("runs/even_or_odd"))
    options = parser.parse_args()

    env = gymnasium.make("EvenOrOdd-v0")
    observation, _ = env.reset(seed=0)
    for action in ("even", "odd", "even", "odd"):  # an episode by hand
        shown, (observation, reward, *_) = observation, env.step(action)
        print(f"{shown} >>> {action}  reward {reward}")

    config = run_config({  # what a YAML file would hold
        "environment": {"id": "EvenOrOdd-v0", "parallel": 16, "max_tokens": 64, "max_new_tokens": 1},
        "model": {
            "tokenizer": "words",
            "words": ["even odd 0 1 2 3 4 5 6 7 8 9"],
            "architecture": {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                             "num_attention_heads": 2, "max_position_embeddings": 64},
        },
        "trainer": {"algorithm": "ppo", "learning_rate": 3e-3, "max_updates": options.updates,
                    "episodes_per_update": 64, "gamma": 0.0, "value_clip": None, "entropy_coefficient": 0.01},
        "evaluation": {"episodes": 64, "temperature": 0},
        "output_dir": options.output,
        "threads": 1,
    })  # fmt: skip
    run_experiment(config)
    returns = [row["eval/return"] for row in read_metrics(options.output / "metrics.jsonl") if "eval/return" in row]
    print(json.dumps({"share_right_before": returns[0], "share_right_after": returns[-1]}))


if __name__ == "__main__":
    main()
