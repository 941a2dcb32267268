"""`examples/configs/taxi.yaml` samples legal actions in contexts of one observation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swe_trainers.cli.main import main
from swe_trainers.rollout.trajectory import read_trajectories


def test_its_episodes_have_no_illegal_action_and_contexts_of_one_observation(tmp_path: Path) -> None:
    options = ["--trainer.max_updates", "1", "--trainer.episodes_per_update", "16", "--environment.max_turns", "6"]
    options += ["--evaluation.episodes", "2", "--save_batch_every", "1", "--output_dir", str(tmp_path / "run")]
    assert main(["examples/configs/taxi.yaml", "--quiet", *options]) == 0
    (path,) = (tmp_path / "run" / "batches").glob("*.jsonl")
    for played in read_trajectories(path):
        assert len(played.turns) == 6 and "action_error" not in played.info
        contexts = np.diff([*played.sample_starts, len(played.token_ids)])
        assert set(contexts[:6]) == {5}  # header, number, end, header, action
        assert min(played.allowed[turn.start] for turn in played.turns) >= 0
