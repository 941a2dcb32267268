"""Cloning whole models with FSDP2, as the first of the two shipped stages does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from swe_trainers.experiment import run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.rollout.trajectory import write_trajectories
from swe_trainers.run_config import run_config
from tests.trainers.learning.tiny import trajectory
from tests.trainers.ranks import on_ranks
from tests.trainers.tiny import lake_run


def configured(folder: Path, dtype: str, *, fsdp: bool) -> dict[str, Any]:
    """What the shipped configuration says of the model and the trainer, with a small model and few demonstrations."""
    config = lake_run(folder, model={"dtype": dtype, "recompute_activations": True}, scale={"fsdp": fsdp})
    config["trainer"] = {
        "algorithm": "cloning", "learning_rate": 1e-2, "decay": "cosine", "warmup_updates": 2, "epochs": 2,
        "minibatch_episodes": 4, "microbatch_tokens": 96, "pack": True,
    }  # fmt: skip
    where = "ranks" if fsdp else "process"
    return {**config, "demonstrations": str(folder / "demonstrations.jsonl"), "output_dir": f"{folder}/{where}-{dtype}"}


def clone(folder: Path, dtypes: list[str], fsdp: bool) -> None:
    for dtype in dtypes:
        run_experiment(run_config(configured(folder, dtype, fsdp=fsdp)), console=False)


def results(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return load_file(folder / "model" / "model.safetensors"), read_metrics(folder / "metrics.jsonl")


def test_two_ranks_clone_demonstrations_as_one_process_does(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    prompt = random.integers(4, size=12).tolist()  # which all demonstrations begin with
    episodes = []
    for length in random.integers(4, 20, size=9).tolist():
        ids = prompt + random.integers(4, size=length).tolist()
        episodes.append(trajectory(ids, [False] * 12 + [True] * length))
    write_trajectories(tmp_path / "demonstrations.jsonl", episodes)
    dtypes = ["float32", "bfloat16"]
    clone(tmp_path, dtypes, False)
    on_ranks(2, tmp_path, clone, dtypes, True)
    for dtype, tolerance in zip(dtypes, (1e-4, 0.05), strict=True):
        (expected, alone), (found, together) = (
            results(tmp_path / f"{where}-{dtype}") for where in ("process", "ranks")
        )
        assert [row["update"] for row in together] == [row["update"] for row in alone] == [1, 2, 3, 4, 5, 6]
        for one, two in zip(alone, together, strict=True):
            assert two["loss"] == pytest.approx(one["loss"], rel=tolerance)
            assert two["episodes"] == one["episodes"] and two["tokens"] == one["tokens"]
            assert one["computed_fraction"] < two["computed_fraction"] < 1  # one of the ranks has one demonstration
        assert together[-1]["loss"] < 0.9 * together[0]["loss"]
        assert found.keys() == expected.keys()
        for name, weight in expected.items():
            distance = float((found[name].float() - weight.float()).norm())
            assert distance <= tolerance * float(weight.float().norm()), (dtype, name)
