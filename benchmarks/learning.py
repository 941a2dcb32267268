"""Every algorithm learns, from random weights: `make bench-learning` writes benchmarks/results/learning.json.

    task × algorithm × seed → the return of random actions, of the model before, and of the model after training

Each run is one of `swe-train`: interrupted runs resume, finished ones are kept. Mutants are the same runs with one
defect on purpose; they must not learn. Games of other packages need the extra `games`; where Stable-Baselines3 can play
the same game, it does so for as many steps.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning_tasks import (
    ALGORITHMS,
    ANCHORED,
    OFFLINE,
    SMALL_TASKS,
    TASKS,
    Config,
    configuration,
    random_return,
    record_expert,
    record_played,
    task_of,
)
from benchmarks.mlp_cartpole import CleanRL, cartpole_return
from benchmarks.mutants import broken
from benchmarks.records import RESULTS, Row, commit, row, write_results
from benchmarks.stable_baselines import PEERS, peer_return
from swe_trainers.experiment import run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.run_config import EvaluationConfig, ModelConfig, RewardConfig, RunConfig

GAMES = (
    "taxi_legal", "blackjack", "coin_collector", "higher_lower",
    "minigrid_empty", "minigrid_doorkey", "textworld_coins", "textarena_guess",
)  # fmt: skip
"""Games that PPO, GRPO and RLOO play: legal actions alone are sampled."""
SEEDS = 5
ENOUGH = 0.8  # one of five seeds may end in a local optimum
MLP = "cartpole_mlp"
PEER = "stable-baselines3"
NOISE = 0.02  # of the mean return of 200 episodes
METRICS = (
    ("random", "return"), ("before", "return"), ("after", "return"), ("steps", "steps"), ("seconds", "s"),
    ("processor_seconds", "s"),
)  # fmt: skip
CLEANRL = 488.75  # mean return of the last episodes after 500,000 steps, as CleanRL's documentation has it

Measured = dict[str, Any]
"""Of a run: what `METRICS` names, as numbers, and `commit`."""


@dataclass(frozen=True)
class Case:
    """One run; `mutant` names the defect, "" for none."""

    task: str
    algorithm: str
    seed: int
    mutant: str = ""

    @property
    def group(self) -> str:
        return "/".join(filter(None, (self.task, self.algorithm, self.mutant)))

    @property
    def name(self) -> str:
        return f"{self.group}/seed{self.seed}"


def cases() -> list[Case]:
    """All cases, the quick ones first."""
    online = [algorithm for algorithm in ALGORITHMS if algorithm not in OFFLINE]
    pairs = [(task, name) for task in SMALL_TASKS for name in ALGORITHMS]
    pairs += [("frozen_lake", algorithm) for algorithm in ("ppo", "grpo", "reinforce++")]
    pairs += [(task, "ppo") for task in ("cartpole", "taxi", "cliff_walking")]
    pairs += [(task, "ppo") for task in GAMES]
    pairs += [(task, algorithm) for task in GAMES for algorithm in ("grpo", "rloo")]
    pairs += [(task, PEER) for task in PEERS]
    found = [Case("parity", algorithm, 0, "flipped") for algorithm in online]
    found += [Case("guess", "ppo", 0, mutant) for mutant in ("flipped", "shifted", "displaced")]
    pairs += [(MLP, "ppo")]
    return found + [Case(task, algorithm, seed) for seed in range(SEEDS) for task, algorithm in pairs]


def lacking(case: Case, done: Mapping[Case, Measured]) -> str:
    """What a run needs and is missing, with what to do about it; "" for nothing."""
    ours = replace(case, algorithm="ppo")
    if case.algorithm == PEER and ours not in done:  # it plays for as many steps
        return f"{ours.name} is missing. Try: --only '{case.task}/*'"
    package = "" if case.task == MLP else TASKS[case.task].package
    if package and importlib.util.find_spec(package) is None:
        return f"{package} is missing. Try: pip install '.[games]'"
    return ""


def run_case(case: Case, directory: Path, done: Mapping[Case, Measured]) -> Measured:
    """Train or resume; the returns of random actions, of the model before and after, and the seconds."""
    started = time.monotonic()
    if case.task == MLP:
        after, before = cartpole_return(CleanRL(seed=case.seed))
        return {"random": 22.0, "before": before, "after": after, "seconds": time.monotonic() - started}
    if case.algorithm == PEER:
        ours = done[replace(case, algorithm="ppo")]
        after = peer_return(case.task, int(ours["steps"]), case.seed)
        own = {key: ours[key] for key in ("random", "before", "steps")}
        return {**own, "after": after, "seconds": time.monotonic() - started}
    if case.task == "textworld_coins":
        from swe_trainers.games.textworld import coin_collectors

        coin_collectors(Path(TASKS[case.task].environment["kwargs"]["games"]), level=105, seeds=range(40))
    anchor, anchored = ANCHORED.get(case.task, (None, None)) if case.algorithm == "reward_model" else (None, None)
    config = configuration(case.task, case.algorithm, case.seed, directory, changes=anchor)
    recorded = directory / "recorded.jsonl"
    if case.algorithm in OFFLINE and not recorded.exists():
        (record_expert if case.algorithm == "cloning" else record_played)(case.task, case.seed, recorded)
    if case.algorithm == "reward_model":  # PPO sees the reward model's scores only
        run_experiment(config, console=False)
        config = against_the_model(case, directory, anchored)
    with broken(case.mutant):
        learner = run_experiment(config, console=False)
    metrics = list(read_metrics(config.output_dir / "metrics.jsonl"))
    rows = [found for found in metrics if "eval/return" in found]
    return {
        "random": random_return(case.task),
        "before": rows[0]["eval/return"],
        "after": rows[-1]["eval/return"],
        "episodes": float(learner.episodes),
        "steps": sum(found["episodes"] * found["turns_mean"] for found in metrics if "turns_mean" in found),
        "seconds": time.monotonic() - started,
    }


def against_the_model(case: Case, directory: Path, changes: Config | None) -> RunConfig:
    """PPO with the rewards of the trained reward model; with changes it starts from a clone, which is trained first."""
    config = configuration(case.task, "ppo", case.seed, directory / "ppo", changes=changes)
    if changes is not None:
        clone = configuration(case.task, "cloning", case.seed, directory / "clone", changes={"epochs": 4})
        run_experiment(replace(clone, demonstrations=directory / "recorded.jsonl"), console=False)
        config = replace(config, model=ModelConfig(path=str(directory / "clone" / "model")))
    blind = EvaluationConfig(episodes=config.evaluation.episodes)  # no early stop either
    return replace(config, reward=RewardConfig(model=directory / "model"), evaluation=blind)


def summarise(done: Mapping[Case, Measured]) -> tuple[list[Row], dict[str, float]]:
    """Rows, and for each group the fraction of seeds that reached the bar (for a mutant: that did not).

    For a game that Stable-Baselines3 has played too, also the fraction of seeds that are not below it.
    """
    groups: dict[str, list[tuple[Case, Measured]]] = defaultdict(list)
    for case, measured in done.items():
        groups[case.group].append((case, measured))
    rows, shares = [], {}
    for name, members in groups.items():
        for metric, unit in METRICS:
            values = [measured[metric] for _, measured in members if metric in measured]
            rows += [row(name, metric, unit, values)] if values else []
        if members[0][0].algorithm != PEER:
            shares[f"{name}: seeds as wanted"] = sum(as_wanted(case, found) for case, found in members) / len(members)
            continue
        ours = [done.get(replace(case, algorithm="ppo")) for case, _ in members]
        level = [mine["after"] >= peer["after"] - NOISE for mine, (_, peer) in zip(ours, members, strict=True) if mine]
        if level:
            shares[f"{members[0][0].task}/ppo: seeds not below {PEER}"] = sum(level) / len(level)
    return rows, shares


def recorded(path: Path) -> dict[Case, Measured]:
    """The runs of earlier results, each with the commit that it ran."""
    if not path.exists():
        return {}
    runs = json.loads(path.read_text(encoding="utf-8")).get("runs", {})
    return {case: runs[case.name] for case in cases() if case.name in runs}


def with_earlier(
    rows: list[Row], shares: dict[str, float], path: Path
) -> tuple[list[Row], dict[str, float], dict[str, str]]:
    """Rows and shares, also those of earlier results in groups without a recorded run, with the commits of these."""
    if not path.exists():
        return rows, shares, {}
    measured, commits = {each.case for each in rows}, {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    for each in earlier["rows"]:
        if each["case"] not in measured:
            commits[each["case"]] = earlier.get("commits", {}).get(each["case"], earlier["commit"])
            rows.append(Row(**each))
    return rows, {**earlier["ratios"], **shares}, commits


def as_wanted(case: Case, measured: Measured) -> bool:
    """Whether a run learnt; for a mutant, whether it did not."""
    return (measured["after"] >= bar(case)) != bool(case.mutant)


def bar(case: Case) -> float:
    """The return that a run must reach."""
    return CLEANRL if case.task == MLP else task_of(case.task, case.algorithm).bar


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of cases, such as 'copy/grpo/*'")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-learning"), help="where the runs are")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after these")
    parser.add_argument("--output", type=Path, help="where the results go; by default benchmarks/results/learning.json")
    options = parser.parse_args(arguments)
    os.nice(10)
    torch.set_num_threads(1)
    output = options.output or RESULTS / "learning.json"
    started, done, missing = time.monotonic(), recorded(output), 0
    for case in cases():
        result = options.runs / case.name / "result.json"
        if not result.exists() and any(fnmatch.fnmatch(case.name, only) for only in options.only):
            lacks = lacking(case, done)
            if lacks:
                print(f"{case.name:44s} not run: {lacks}", flush=True)
            if lacks or time.monotonic() - started > options.seconds:
                missing += 1
                continue
            began = time.process_time()
            measured = run_case(case, result.parent, done)
            measured |= {"processor_seconds": time.process_time() - began, "commit": str(commit()["commit"])}
            result.parent.mkdir(parents=True, exist_ok=True)
            result.write_text(json.dumps(measured))
            verdict = "" if case.algorithm == PEER or as_wanted(case, measured) else "   NOT AS WANTED"
            after = f"random {measured['random']:.2f}, before {measured['before']:.2f}, after {measured['after']:.2f}"
            print(f"{case.name:44s} {after}, {measured['seconds']:.0f} s{verdict}", flush=True)
        if result.exists():
            done[case] = json.loads(result.read_text())
    rows, shares, commits = with_earlier(*summarise(done), output)
    path = write_results(
        "learning",
        rows,
        ratios=shares,
        packages=["torch", "transformers", "gymnasium", "numpy"],
        path=output,
        commits=commits,
        runs={case.name: measured for case, measured in done.items()},
    )
    learnt = sum(share >= ENOUGH for share in shares.values())
    print(f"{path}: {len(done)} of {len(cases())} runs, {learnt} of {len(shares)} groups as wanted")
    return 0 if not missing and learnt == len(shares) else 1


if __name__ == "__main__":
    sys.exit(main())
