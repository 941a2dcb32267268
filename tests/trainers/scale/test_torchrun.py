"""`swe-train` under torchrun: each rank plays its share, one writes, and another number of ranks goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.services import free_port
from swe_trainers.logging import read_metrics
from tests.trainers.tiny import lake_run

ROOT = Path(__file__).parents[3]


def configured(folder: Path, trainer: dict[str, Any], **sections: Any) -> Path:
    config = lake_run(folder, trainer=trainer, **{**sections, "scale": {"fsdp": True, **sections.get("scale", {})}})
    config["checkpoint_every"] = 1
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def torchrun(ranks: int, path: Path, *options: str, restarts: int = 0) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        "--max-restarts", str(restarts), "-m", "swe_trainers.cli", str(path), *options,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def said_by(launched: subprocess.Popen[str]) -> str:
    said, _ = launched.communicate(timeout=200)
    assert launched.returncode == 0, said[-3000:]
    return said


def slurm_job(ranks: int, path: Path, model: Path) -> subprocess.Popen[str]:
    """What a batch script does on one node with as many GPUs."""
    variables = {
        "CONFIG": str(path), "MODEL_CONFIG": str(model), "PYTHON": sys.executable, "MASTER_PORT": free_port(),
        "SLURM_SUBMIT_DIR": str(path.parent), "SLURM_GPUS_ON_NODE": str(ranks), "SLURM_JOB_ID": "7",
    }  # fmt: skip
    return subprocess.Popen(
        [ROOT / "scripts" / "slurm" / "launch.sh"], cwd=ROOT, env={**os.environ, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_adapters_learnt_by_two_ranks_that_share_rows_are_measured_saved_and_continued_by_one(tmp_path: Path) -> None:
    path = configured(
        tmp_path,
        {"kl_coefficient": 0.1, "critic": "separate", "pack": True},
        scale={"sequence_parallel": 2, "activation_checkpointing": True},
        evaluation={"episodes": 5, "success_above": 0.5},
    )
    model = tmp_path / "model.yaml"
    model.write_text("model: {lora: {rank: 2}}\n")
    said_by(slurm_job(2, path, model))
    options = ("--trainer.max_updates", "3", "--scale.sequence_parallel", "1", "--model.lora.rank", "2")
    said = said_by(torchrun(1, path, *options))
    assert "goes on from 00000002" in said
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["episodes"] == 7
        assert row["engine_logprob_gap"] < 1e-4  # what plays is what learns, on every rank
        assert row["ratio_error_first"] < 1e-3
    assert rows[0]["eval/episodes"] == 5
    for file in ("model.safetensors", "adapter/adapter_model.safetensors", "value_head.safetensors"):
        assert (tmp_path / "run" / "model" / file).is_file()


def kill_rank(rank: int, launched: subprocess.Popen[str], *, after: Path) -> None:
    """Kill a rank by SIGKILL as soon as a checkpoint is there."""
    ends = time.monotonic() + 200
    while not after.is_dir():
        assert launched.poll() is None and time.monotonic() < ends, "it ended before it could be killed"
        time.sleep(0.01)
    for process in Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split():
        if f"\0RANK={rank}\0".encode() in Path(f"/proc/{process}/environ").read_bytes():
            os.kill(int(process), signal.SIGKILL)
            return
    pytest.fail(f"rank {rank} is not there")


def test_a_run_whose_ranks_are_killed_ends_with_the_reason_or_restarts_from_its_last_checkpoint(tmp_path: Path) -> None:
    path = configured(tmp_path, {"max_updates": 16, "episodes_per_update": 4})
    checkpoints = tmp_path / "run" / "checkpoints" / "ppo"
    killed_alone = torchrun(2, path)
    kill_rank(1, killed_alone, after=checkpoints / "00000002")
    said, _ = killed_alone.communicate(timeout=60)
    assert killed_alone.returncode != 0
    assert "rank 0: another rank is gone" in said or "Signal 9 (SIGKILL) received" in said
    reached = max(int(row["update"]) for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert reached < 16

    restarted = torchrun(2, path, restarts=1)
    kill_rank(0, restarted, after=checkpoints / f"{reached + 3:08d}")
    said = said_by(restarted)
    assert said.count("INFO    ppo: goes on from") == 2
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == list(range(1, 17))


MEETS = """
import os, sys, time, torch, torch.distributed as dist
from swe_trainers.scale.sharding import ScaleConfig, joined_ranks

with joined_ranks(ScaleConfig(fsdp=True, meeting_timeout_s=float(os.environ["MEETING"]))):
    time.sleep(1.2 * float(os.environ["MEETING"]) * int(os.environ["RANK"]))
    met = torch.ones(1)
    dist.all_reduce(met)
    print(int(met))
"""


@pytest.mark.parametrize(("come", "meeting_s"), [(1, "2"), (2, "6")])
def test_ranks_wait_for_each_other_briefly_at_first_and_long_afterwards(come: int, meeting_s: str) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "MEETING": meeting_s}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", MEETS], env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(come)
    ]  # fmt: skip
    for rank in ranks:
        said, wrong = rank.communicate(timeout=60)
        if come == 2:
            assert (rank.returncode, said) == (0, "2\n"), wrong
        else:
            assert rank.returncode != 0 and "timed out" in wrong.lower()
