"""Training with DeepSpeed's ZeRO equals training in one process, and resumes its checkpoints: `make test-deepspeed`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState

from swe_trainers.errors import CheckpointError
from swe_trainers.learning.learner import Learner
from tests.trainers.ranks import on_ranks
from tests.trainers.scale.test_sharding import LORA, PACKED, Case, checkpoints_of, episodes, learner_of, whole


def fresh(case: Case) -> Learner:
    """A learner as in a new process; Accelerate otherwise allows one with DeepSpeed per process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return learner_of(case)


def updates(case: Case, first: int, last: int, learner: Learner):
    found = {}
    for update in range(first, last):
        metrics = case.settings.update(learner, episodes(update))
        learner.updates += 1
        found |= {f"{update}/{name}": value for name, value in metrics.items()}
    model = getattr(learner.model, "whole", learner.model)
    return learner, found | {f"weight/{name}": whole(p) for name, p in model.named_parameters()}


def train_save_and_resume(folder: Path, cases: list[Case]) -> None:
    results = []
    for number, case in enumerate(cases):
        learner, _ = updates(case, 0, 1, fresh(case))
        checkpoints = checkpoints_of(case)(folder / f"case-{number}", learner)
        checkpoints.save(1, {"learner": learner.state_dict(), "stopped": False})
        _, straight = updates(case, 1, 2, learner)
        again = fresh(case)
        for group in again.optimizer.param_groups:  # as of a run that goes on with another `adam_epsilon`
            group["eps"] = 1e-7
        again.load_state_dict(checkpoints_of(case)(folder / f"case-{number}", again).load()["learner"])
        assert {group["eps"] for group in again.optimizer.param_groups} == {1e-7}
        for group in again.optimizer.param_groups:
            group["eps"] = 1e-8
        results.append([straight, updates(case, 1, 2, again)[1]])
    if dist.get_rank() == 0:
        torch.save(results, folder / "results.pt")


def resume_alone(folder: Path, case: Case) -> None:
    with pytest.raises(CheckpointError, match="not sharded by ZeRO over 1 ranks"):
        checkpoints_of(case)(folder / "case-0", learner_of(case)).load()


@pytest.mark.parametrize("kind", ["zero1", "zero2"])
def test_zero_updates_equal_those_of_one_process_and_resume(kind: str, tmp_path: Path) -> None:
    cases = [PACKED.on(accelerate=kind), LORA.on(accelerate=kind)]
    on_ranks(2, tmp_path, train_save_and_resume, cases)
    for case, (straight, resumed) in zip(cases, torch.load(tmp_path / "results.pt", weights_only=True), strict=True):
        learner, _ = updates(replace(case, scale=None), 0, 1, learner_of(replace(case, scale=None)))
        _, alone = updates(replace(case, scale=None), 1, 2, learner)
        # The representation is looked at in one process only.
        expected = {name: value for name, value in alone.items() if "representation/" not in name}
        assert straight.keys() == resumed.keys() == expected.keys()
        for name, value in expected.items():
            for found in (straight, resumed):
                torch.testing.assert_close(
                    found[name], value, rtol=5e-4, atol=3e-4, msg=lambda text, at=(case, name): f"{at}: {text}"
                )
    on_ranks(1, tmp_path, resume_alone, cases[0])
