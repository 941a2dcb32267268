"""`swe-train doctor` and `swe-train replay-batch` on the directory of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from swe_trainers.algorithms import ALGORITHMS, find_algorithm
from swe_trainers.algorithms.algorithm import Algorithm
from swe_trainers.algorithms.policy_gradient import Clipped
from swe_trainers.config import build, nearest, read_config
from swe_trainers.diagnosis.mismatch import Mismatch, find_mismatch
from swe_trainers.diagnosis.replay import replay_batch
from swe_trainers.errors import ConfigurationError
from swe_trainers.experiment import make_model, make_players
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import read_trajectories
from swe_trainers.run_config import RunConfig, of_trained_weights, run_config

__all__ = ["examine_run", "replay_file", "side_by_side"]


def examine_run(run: Path, *, episodes: int, batch: Path | None = None) -> Mismatch:
    """Play some episodes with a run's model and engine, and compare the log-probabilities of engine and trainer.

    Args:
        run: the output directory of a finished run.
        episodes: number of episodes.
        batch: saved episodes of the same weights, used instead of playing.
    Raises:
        ConfigurationError: there is no model, or the run plays no episodes.
    """
    config = _finished(run)
    plan = config.trainer.rollout_plan
    temperature = 1.0 if plan is None else plan.temperature
    if batch is not None:
        model = make_model(config.model, None, seed=config.seed, training=False)
        return find_mismatch(model, read_trajectories(batch), temperature=temperature)
    if plan is None:
        raise ConfigurationError(f"{run}: {config.algorithm} plays no episodes. Try: --batch FILE")
    with ExitStack() as stack:
        played, rollouts = make_players(config, stack, training=False)
        assert isinstance(played, LanguageModel)  # of the folder that `_finished` names
        trajectories = rollouts.play(episodes, config.rollout.sampling(temperature), update=0)
    return find_mismatch(played, trajectories, temperature=temperature)


def replay_file(file: Path, run: Path, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Make one update on saved episodes by several algorithms, each from the run's model.

    Args:
        file: the episodes.
        run: a finished run; algorithms with the same hyperparameters use its values.
        names: of algorithms.
    Raises:
        ConfigurationError: there is no such algorithm or file.
    """
    config = _finished(run)
    own = {f.name: getattr(config.trainer, f.name) for f in fields(config.trainer)}
    trajectories = read_trajectories(file)
    algorithms: dict[str, Algorithm] = {}
    for name in names:
        if name not in ALGORITHMS:
            raise ConfigurationError(f"--loss {name!r}: no such algorithm{nearest(name, ALGORITHMS)}")
        algorithms[name] = _configured(name, own, same=name == config.algorithm, episodes=len(trajectories))
    assert config.model.path is not None
    model = LanguageModel.from_pretrained(config.model.path)  # float32, in which a small step is not rounded away
    return replay_batch(model, trajectories, algorithms, seed=config.seed)


def side_by_side(measured: Mapping[str, Mapping[str, float]]) -> str:
    """A table with one column for each algorithm."""
    rows = sorted({key for metrics in measured.values() for key in metrics})
    width = max(len(row) for row in rows)
    lines = [" " * width + "".join(f"  {name:>14}" for name in measured)]
    for row in rows:
        cells = [metrics.get(row, math.nan) for metrics in measured.values()]
        lines.append(f"{row:<{width}}" + "".join(f"  {'-' if math.isnan(c) else format(c, '.5g'):>14}" for c in cells))
    return "\n".join(lines)


def _configured(name: str, own: Mapping[str, Any], *, same: bool, episodes: int) -> Algorithm:
    """An algorithm with the run's values of the hyperparameters that mean the same in both, otherwise its defaults."""
    kind = find_algorithm(name)
    if same:
        return build(kind, own, "trainer")
    shared = [
        "learning_rate",
        "weight_decay",
        "adam_epsilon",
        "microbatch_tokens",
        "pack",
        "share_prefixes",
        "max_grad_norm",
    ]
    shared += ["reward_scale", "entropy_coefficient", "temperature", "gamma"]
    if issubclass(kind, Clipped):  # others make one optimizer step on each batch
        shared += ["epochs", "minibatches"]
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {key: own[key] for key in shared if key in own and key in known}
    if "group_size" in known and "episodes_per_update" in known:
        group = int(own.get("group_size", 0) or getattr(kind, "group_size", 1))
        values |= {"group_size": group, "episodes_per_update": group * max(1, episodes // group)}
    return build(kind, values, "trainer")


def _finished(run: Path) -> RunConfig:
    """The configuration of a finished run, with its trained model."""
    if not (run / "model").is_dir():
        raise ConfigurationError(f"{run}: not a finished run: no folder `model`. Try: the output_dir of a run")
    values = read_config(run / "config.yaml")
    return run_config({**values, "model": of_trained_weights(values["model"], run / "model")})
