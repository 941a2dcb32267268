"""Rollout workers on a Ray cluster of two nodes, simulated on this machine, beside one worker.

    waiting     environments whose steps sleep, as if tests ran elsewhere
    sandboxes   real sandboxes of the shipped tasks: list the files, run the tests, submit; each command also sleeps for
                two seconds, like long tests that do not use this machine's cores
    busy        the same without sleeping: the gain of two workers on the same cores

`here` runs the same environments and engine in this process, without Ray. Ray's workers start before the clock; every
measurement sends them new weights first. Writes benchmarks/results/ray_rollouts.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.options import chosen_of
from benchmarks.records import Row, row, write_results
from swe_trainers.engines.connect import EngineConfig, connect
from swe_trainers.engines.sampling import Sampling
from swe_trainers.model.chat import CompactChat
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.model.tokenizers import Tokenizer, WordTokenizer
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.rollouts import LocalWorkers, Workers
from swe_trainers.rollout.settings import EpisodeSettings, EpisodeStart, Limits
from swe_trainers.scale.ray_cluster import RayConfig
from swe_trainers.scale.ray_rollouts import RayWorkers
from swe_trainers.scale.ray_worker import WorkerSetup

PARALLEL = 4
SETTINGS = EpisodeSettings(Limits(max_new_tokens=4, max_tokens=64), Sampling())
CASES = ("waiting", "sandboxes", "busy")
PROMISED = 1.8


class Played(gymnasium.Wrapper[str, str, str, str]):
    """Runs a script independent of the action and returns a one-word observation, to measure the environment alone."""

    def __init__(self, env: gymnasium.Env[str, str], script: Sequence[str]) -> None:
        super().__init__(env)
        self.script = script

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        super().reset(**options)
        self.turn = 0
        return "a", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = super().step(self.script[self.turn])
        self.turn += 1
        return "b", float(reward), terminated, truncated, {"valid": info.get("valid", True)}


class Waiting(gymnasium.Env[str, str]):
    """Three steps of half a second."""

    observation_space = AnyText()
    action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 3
        return "a", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(0.5)
        self.left -= 1
        return "b", 0.0, not self.left, False, {}


@dataclass(frozen=True)
class Environments:
    """Creates a worker's environments: `waiting`, or sandboxes with the given sleep per command."""

    case: str
    sandbox: str = "auto"

    def __call__(self, stack: ExitStack) -> tuple[list[gymnasium.Env[str, str]], list[gymnasium.Env[str, str]]]:
        made = [stack.enter_context(closing(self._one())) for _ in range(PARALLEL)]
        return made, made

    def _one(self) -> gymnasium.Env[str, str]:
        if self.case == "waiting":
            return Waiting()
        wait = "; sleep 2" if self.case == "sandboxes" else ""
        script = [f"<execute>{command}{wait}</execute>" for command in ("ls -R", "python3 -m pytest -q -x")]
        env = gymnasium.make("swegym_env:SWEBench-v0", dataset="mini", sandbox=self.sandbox, disable_env_checker=True)
        return Played(env, [*script, "<execute>submit</execute>"])


def policy() -> LanguageModel:
    """A model with random weights; its actions are ignored."""
    config = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    words: Tokenizer = WordTokenizer.from_texts(["a b"])
    return LanguageModel.from_config(config, words, seed=0).eval()


def rate_of(workers: Workers, episodes: int) -> float:
    """Episodes per second of the second time: the first builds layers and starts processes."""
    for number in range(2):
        workers.prepare(number, SETTINGS.sampling)
        began = time.monotonic()
        played = workers.play([EpisodeStart(seed=i, stream=(number, i)) for i in range(episodes)], SETTINGS)
        seconds = time.monotonic() - began
        lost = [t.failure_reason for t in played if not t.valid]
        if lost:
            raise SystemExit(f"{len(lost)} of {len(played)} episodes are not valid: {lost[0]}")
    return len(played) / seconds


def main() -> int:
    """Measure all cases; exit code 1 if two nodes gain less than required."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--episodes", type=int, default=24, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sandbox", default="auto", help="apptainer, or namespace")
    parser.add_argument("--output", type=Path, help="instead of benchmarks/results/ray_rollouts.json")
    options = parser.parse_args()
    chosen = chosen_of(parser, "--cases", options.cases, CASES)
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(**node)
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    try:
        for case in chosen:
            made = places(Environments(case, options.sandbox), cluster.address)
            found: dict[str, list[float]] = {place: [] for place in made}
            for _ in range(options.repeats):  # in turns: a machine that slows down meanwhile slows all places
                for place, make in made.items():
                    with ExitStack() as stack:
                        found[place].append(rate_of(make(stack), options.episodes))
            rate = {}
            for place, each in found.items():
                rows.append(row(f"{case}, {place}", "episodes", "episodes/s", each))
                rate[place] = rows[-1].median
                print(f"{case}, {place}: {rate[place]:.2f} episodes/s", flush=True)
            ratios[f"{case}: two nodes over one worker"] = rate["two nodes"] / rate["one worker"]
            ratios[f"{case}: two nodes over here"] = rate["two nodes"] / rate["here"]
    finally:
        cluster.shutdown()
    packages = ("ray", "torch", "gymnasium")
    print(write_results("ray_rollouts", rows, ratios=ratios, packages=packages, path=options.output))
    short = {name: ratio for name, ratio in ratios.items() if not name.startswith("busy") and ratio < PROMISED}
    print(*(f"{name}: {ratio:.2f}" for name, ratio in ratios.items()), sep="\n")
    return 1 if short else 0


def places(environments: Environments, address: str) -> dict[str, Callable[[ExitStack], Workers]]:
    """The configurations, from no Ray to a worker on each node."""
    model = policy()
    chat = CompactChat(model.tokenizer)

    def here(stack: ExitStack) -> Workers:
        generation = connect(
            EngineConfig(), model, stack, n_slots=PARALLEL, max_tokens=64, folder=Path(), training=True
        )
        return LocalWorkers(generation, chat, *environments(stack))

    def workers(n: int) -> Callable[[ExitStack], Workers]:
        def workers(stack: ExitStack) -> Workers:
            setup = WorkerSetup(environments, EngineConfig(), 64, chat, model=model, threads=1)
            return RayWorkers(RayConfig(address=address, workers=n), lambda: setup, stack, policy=model)

        return workers

    return {"here": here, "one worker": workers(1), "two nodes": workers(2)}


if __name__ == "__main__":
    raise SystemExit(main())
