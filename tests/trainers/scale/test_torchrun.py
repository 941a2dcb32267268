"""`swe-train` under torchrun: ranks share the episodes, one writes, and a run resumes on another number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml

from benchmarks.services import free_port
from swe_trainers.logging import read_metrics
from swe_trainers.scale.sharding import ScaleConfig, joined_ranks
from tests.trainers.ranks import Forked
from tests.trainers.tiny import lake_run

ROOT = Path(__file__).parents[3]


def configured(folder: Path, trainer: dict[str, Any], **sections: Any) -> Path:
    config = lake_run(folder, trainer=trainer, **{**sections, "scale": {"fsdp": True, **sections.get("scale", {})}})
    config["checkpoint_every"] = 1
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def torchrun(ranks: int, program: Path, path: Path, *options: str, restarts: int = 0) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        "--max-restarts", str(restarts), "--no-python", str(program), str(path), *options,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def output_of(launched: subprocess.Popen[str]) -> str:
    output, _ = launched.communicate(timeout=200)
    assert launched.returncode == 0, output[-3000:]
    return output


def slurm_job(ranks: int, path: Path, model: Path) -> subprocess.Popen[str]:
    """The command of a batch script on one node with as many GPUs as ranks."""
    variables = {
        "CONFIG": str(path), "MODEL_CONFIG": str(model), "PYTHON": sys.executable, "MASTER_PORT": free_port(),
        "SLURM_SUBMIT_DIR": str(path.parent), "SLURM_GPUS_ON_NODE": str(ranks), "SLURM_JOB_ID": "7",
    }  # fmt: skip
    return subprocess.Popen(
        [ROOT / "scripts" / "slurm" / "launch.sh"], cwd=ROOT, env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.campaign
def test_adapters_trained_by_two_ranks_in_sequence_parallel_are_resumed_by_one(
    tmp_path: Path, swe_train_program: Path
) -> None:
    path = configured(
        tmp_path,
        {"kl_coefficient": 0.1, "critic": "separate", "pack": True},
        scale={"sequence_parallel": 2, "activation_checkpointing": True},
        evaluation={"episodes": 5, "success_above": 0.5},
    )
    model = tmp_path / "model.yaml"
    model.write_text("model: {lora: {rank: 2}}\n")
    output_of(slurm_job(2, path, model))
    options = ("--trainer.max_updates", "3", "--scale.sequence_parallel", "1", "--model.lora.rank", "2")
    options += ("--resume-with-changes",)
    assert "resumed from 00000002" in output_of(torchrun(1, swe_train_program, path, *options))
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["episodes"] == 7
        assert row["logprob_gap"] < 1e-4  # every rank plays with the weights that it trains
        assert row["ratio_error_first"] < 1e-3
    assert rows[0]["eval/episodes"] == 5
    for file in ("model.safetensors", "adapter/adapter_model.safetensors", "value_head.safetensors"):
        assert (tmp_path / "run" / "model" / file).is_file()


def kill_rank(rank: int, launched: subprocess.Popen[str], *, after: Path) -> None:
    """Kill a rank by SIGKILL as soon as a checkpoint is there."""
    ends = time.monotonic() + 200
    while not after.is_dir():
        assert launched.poll() is None and time.monotonic() < ends, "the run ended before the rank was killed"
        time.sleep(0.01)
    for process in Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split():
        if f"\0RANK={rank}\0".encode() in Path(f"/proc/{process}/environ").read_bytes():
            os.kill(int(process), signal.SIGKILL)
            return
    pytest.fail(f"rank {rank} is not there")


def test_killed_rank_ends_the_run_with_the_reason_or_restarts_it_from_its_last_checkpoint(
    tmp_path: Path, swe_train_program: Path
) -> None:
    path = configured(tmp_path, {"max_updates": 12, "episodes_per_update": 4})
    checkpoints = tmp_path / "run" / "checkpoints" / "ppo"
    not_restarted = torchrun(2, swe_train_program, path)
    kill_rank(1, not_restarted, after=checkpoints / "00000002")
    output, _ = not_restarted.communicate(timeout=60)
    assert not_restarted.returncode != 0
    assert "rank 0: another rank is gone" in output or "Signal 9 (SIGKILL) received" in output
    reached = max(int(row["update"]) for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert reached < 12

    restarted = torchrun(2, swe_train_program, path, restarts=1)
    kill_rank(0, restarted, after=checkpoints / f"{reached + 3:08d}")
    assert output_of(restarted).count("INFO    ppo: resumed from") == 2
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == list(range(1, 13))


def meet_and_reduce(meeting_timeout_s: float) -> None:
    with joined_ranks(ScaleConfig(fsdp=True, meeting_timeout_s=meeting_timeout_s)):
        time.sleep(1.2 * meeting_timeout_s * int(os.environ["RANK"]))
        met = torch.ones(1)
        dist.all_reduce(met)
        sys.stdout.write(f"{int(met)} ranks\n")


@pytest.mark.parametrize(("ranks", "meeting_timeout_s"), [(1, 2.0), (2, 6.0)])
def test_timeout_of_the_meeting_does_not_limit_later_collectives(
    tmp_path: Path, ranks: int, meeting_timeout_s: float
) -> None:
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    started = [
        Forked(meet_and_reduce, meeting_timeout_s, folder=tmp_path, variables={**variables, "RANK": str(rank)})
        for rank in range(ranks)
    ]
    for process in started:
        code, output = process.wait(60)
        if ranks == 2:
            assert (code, "2 ranks" in output) == (0, True), output
        else:
            assert code == 1 and "timed out" in output.lower(), output
