"""Asynchronous rollouts beside alternating ones, for episodes of different lengths and a slow learner.

    turns      rollouts and updates alternate
    ahead      rollout.max_staleness 1 and 2: running episodes finish before the weights change
    partial    the same with rollout.partial: running episodes continue with the new weights

Steps of the environment sleep for a log-normal time, one in twenty ten times as long, as tests in sandboxes do. The
update sleeps too, as one on another device would, so that a small machine shows who waits for whom. Weights are really
sent at every update. Writes benchmarks/results/async_rollouts.json.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.records import Row, row, write_results
from swe_trainers.engines.connect import EngineConfig, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.experiment import make_env, make_model, make_rollouts
from swe_trainers.model.chat import chat_format
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.rollout.statistics import staleness
from swe_trainers.run_config import EnvironmentConfig, ModelConfig, RolloutConfig

ARCHITECTURE = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 256,
}  # fmt: skip
CASES = {
    "turns": (0, False), "ahead 1": (1, False), "partial 1": (1, True), "ahead 2": (2, False), "partial 2": (2, True),
}  # fmt: skip


class Waiting(gymnasium.Env[str, str]):
    """A few turns; the seed determines the duration of each.

    Args:
        scale_s: the median of a turn.
    """

    observation_space = AnyText()
    action_space = AnyText()

    def __init__(self, scale_s: float) -> None:
        self.scale_s = scale_s

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 7))
        return "a", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        straggles = self.np_random.random() < 0.05
        time.sleep(self.scale_s * float(self.np_random.lognormal(sigma=0.5)) * (10 if straggles else 1))
        self.left -= 1
        return "b", 0.0, not self.left, False, {}


gymnasium.register("Waiting-v0", Waiting)


def measure(case: str, *, updates: int, scale_s: float, learn_s: float, parallel: int) -> dict[str, float]:
    """Episodes per second over some updates without the first, and the waiting times."""
    bound, partial = CASES[case]
    limits = EnvironmentConfig(
        id="Waiting-v0", kwargs={"scale_s": scale_s}, parallel=parallel, max_tokens=128, max_new_tokens=8
    )
    envs = [make_env(limits) for _ in range(parallel)]
    config = ModelConfig(architecture=ARCHITECTURE, tokenizer="words", words=("a b",))
    model = make_model(config, envs[0], seed=0)
    chat = chat_format(model.tokenizer, config.chat)
    episodes = 4 * parallel
    with ExitStack() as stack:
        generation = connect(
            EngineConfig(), model, stack, n_slots=parallel, max_tokens=128, folder=Path(), training=True,
            ahead=bound > 0,
        )  # fmt: skip
        workers = LocalWorkers(generation, chat, envs, envs)
        rollouts = make_rollouts(workers, limits, RolloutConfig(max_staleness=bound, partial=partial), 0)
        stack.callback(rollouts.close)
        waited, ages = 0.0, []
        for update in range(updates + 1):
            if update == 1:
                began = time.monotonic()
            asked = time.monotonic()
            ahead = min(bound, updates - update) if bound else None
            played = rollouts.play(episodes, Sampling(), update=update, ahead=ahead)
            if update:
                waited += time.monotonic() - asked
                ages += [int(age) for t in played for age in staleness(t, update)]
            time.sleep(learn_s)
        seconds = time.monotonic() - began
    return {
        "episodes_per_second": updates * episodes / seconds,
        "learner_idle_share": waited / seconds,
        "staleness_mean": float(np.mean(ages)) if ages else 0.0,
    }


def main() -> None:
    """Measure all cases alternately and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=12, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=5, help="of every case")
    parser.add_argument("--output", type=Path, help="instead of benchmarks/results/async_rollouts.json")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(options.repeats):
        for case, measured in found.items():
            measured.append(measure(case, updates=options.updates, scale_s=0.05, learn_s=1.0, parallel=8))
            print(case, {name: round(value, 3) for name, value in measured[-1].items()}, flush=True)
    units = {"episodes_per_second": "episodes/s", "learner_idle_share": "share", "staleness_mean": "updates"}
    rows: list[Row] = [
        row(case, metric, unit, [each[metric] for each in measured])
        for case, measured in found.items()
        for metric, unit in units.items()
    ]
    rate = {each.case: each.median for each in rows if each.metric == "episodes_per_second"}
    ratios = {f"{case} over turns": rate[case] / rate["turns"] for case in CASES if case != "turns"}
    ratios |= {f"partial {n} over ahead {n}": rate[f"partial {n}"] / rate[f"ahead {n}"] for n in (1, 2)}
    packages = ("torch", "transformers")
    print(write_results("async_rollouts", rows, ratios=ratios, packages=packages, path=options.output))


if __name__ == "__main__":
    main()
