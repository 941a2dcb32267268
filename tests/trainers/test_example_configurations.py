"""Configurations in `examples/configs/` that no other test trains."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from swe_trainers.cli.main import main
from swe_trainers.logging import read_metrics
from swe_trainers.rollout.trajectory import read_trajectories

ROOT = Path(__file__).parents[2]


def test_smallest_configuration_trains_in_sandboxes(tmp_path, monkeypatch):
    """`tiny.yaml`, from its own tokenizer to its report."""
    monkeypatch.chdir(ROOT)
    output = tmp_path / "tiny"
    assert (
        main(["examples/configs/tiny.yaml", "--output_dir", str(output), "--trainer.max_updates", "2", "--quiet"]) == 0
    )
    rows = [row for row in read_metrics(output / "metrics.jsonl") if "loss" in row]
    assert [row["update"] for row in rows] == [1, 2]
    for row in rows:
        assert row["episodes"] == 8
        # 0.05 for each of at most three turns, and nothing for a repair that a random model does not find.
        assert row["reward_mean"] == pytest.approx(row["reward/step"] + row["reward/environment"], abs=1e-6)
        assert -0.1501 < row["reward/step"] < 0
    measured = [row for row in read_metrics(output / "metrics.jsonl") if "eval/return" in row]
    assert all(row["eval/return"] == row["eval/success"] for row in measured)  # the penalty is for training only
    model = output / "model"
    assert (model / "sentencepiece.model").is_file() and (model / "model.safetensors").is_file()
    page = (output / "report.html").read_text()
    assert "Reward components" in page and "class=episode" in page
    examples = [json.loads(line) for line in (output / "examples.jsonl").read_text().splitlines()]
    assert {row["update"] for row in examples} == {0, 1}


def test_episodes_of_taxi_have_no_illegal_action_and_contexts_of_one_observation(tmp_path, monkeypatch):
    """`taxi.yaml` samples legal actions alone."""
    monkeypatch.chdir(ROOT)
    options = ["--trainer.max_updates", "1", "--trainer.episodes_per_update", "16", "--environment.max_turns", "6"]
    options += ["--evaluation.episodes", "2", "--save_batch_every", "1", "--output_dir", str(tmp_path / "run")]
    assert main(["examples/configs/taxi.yaml", "--quiet", *options]) == 0
    (path,) = (tmp_path / "run" / "batches").glob("*.jsonl")
    for played in read_trajectories(path):
        assert len(played.turns) == 6 and "action_error" not in played.info
        contexts = np.diff([*played.sample_starts, len(played.token_ids)])
        assert set(contexts[:6]) == {5}  # header, number, end, header, action
        assert min(played.allowed[turn.start] for turn in played.turns) >= 0
