"""One training run on `mini-edit` with a fleet of sandbox servers and a generation server, with or without deaths."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos.fleet import Fleet
from benchmarks.chaos.ledger import Ledger, read_ledger
from benchmarks.chaos.victims import Killer, of_fleet, processes_of
from benchmarks.remains import left
from benchmarks.services import free_port
from benchmarks.waiting import wait_until
from swe_trainers.logging import read_metrics

__all__ = ["Deaths", "Outcome", "Setting", "train"]

_GONE_IN_S = 60.0
_LATELY_S = 2.0


@dataclass(frozen=True)
class Setting:
    """The model, the size of the run and the fleet.

    Attributes:
        model: a model's folder, made by cloning.
        updates, episodes: of the run, and of each update.
        held_out: evaluation episodes, before and after; 0: none.
        ranks: training processes.
        workers: Ray workers that play instead of the ranks; 0: none.
        parallel: environments of each rank or worker.
        servers: sandbox servers.
        lease_s: length of a container's lease.
        limit_s: the run fails after this time.
    """

    model: str
    updates: int = 6
    episodes: int = 64
    held_out: int = 96
    ranks: int = 2
    workers: int = 0
    parallel: int = 6
    servers: int = 3
    lease_s: float = 20.0
    limit_s: float = 900.0


@dataclass(frozen=True)
class Deaths:
    """Seconds between deaths of each type of process; 0: never.

    Attributes:
        server, pool, engine, rank, worker: the types; a worker is a Ray worker.
        most: deaths of each type at most.
        seed: of the random moments.
    """

    server: float = 12.0
    pool: float = 15.0
    engine: float = 25.0
    rank: float = 60.0
    worker: float = 30.0
    most: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        steps: the number of its last update.
        updates: the updates in its metrics.
        rewards: mean reward of the training episodes of each update.
        resolved: fraction of held-out episodes resolved, before and after; empty without evaluation.
        episodes, invalid: training episodes; those excluded because the infrastructure failed.
        ledger: of its commands.
        deaths: by type.
        left: remains of sandboxes, by type.
        seconds: duration.
    """

    steps: int
    updates: int
    rewards: list[float]
    resolved: list[float]
    episodes: int
    invalid: int
    ledger: Ledger
    deaths: Counter[str]
    left: dict[str, int]
    seconds: float


def train(setting: Setting, output: Path, *, seed: int, deaths: Deaths | None = None) -> Outcome:
    """Train once.

    Args:
        setting: of the run.
        output: a new folder.
        seed: of the run.
        deaths: which processes are killed; None: none.
    Raises:
        RuntimeError: the run failed; the text contains its last output.
    """
    place = Path(tempfile.mkdtemp(prefix="swegym-chaos-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    place.chmod(0o711)
    environment = {"SWEGYM_RUNDIR": str(place), "SWEGYM_TOKEN": os.urandom(16).hex(), "OMP_NUM_THREADS": "1"}
    os.environ.update(environment)
    began = time.monotonic()
    output.mkdir(parents=True)
    capacity = max(setting.ranks, setting.workers) * setting.parallel + 4
    fleet = Fleet(
        output, environment["SWEGYM_TOKEN"], servers=setting.servers, capacity=capacity, lease_s=setting.lease_s
    )
    try:
        died = _run(setting, output, fleet, seed=seed, deaths=deaths)
        seconds = time.monotonic() - began
        given_back = wait_until(lambda: fleet.ask()["containers"] == 0, _GONE_IN_S + 60.0)  # leases of killed ranks
        unreturned = 0 if given_back else int(fleet.ask()["containers"])
    finally:
        fleet.close()
    owners = set().union(*(server.pids for server in fleet.servers))
    wait_until(lambda: not any(left(place, owners).values()), _GONE_IN_S)
    after = {"containers": unreturned, **left(place, owners)}
    if not any(after.values()):
        shutil.rmtree(place)
    return _outcome(output, died, after, seconds)


def _run(setting: Setting, output: Path, fleet: Fleet, *, seed: int, deaths: Deaths | None) -> Counter[str]:
    (output / "ledger").mkdir()
    configuration = output / "chaos.yaml"
    configuration.write_text(yaml.safe_dump(_configuration(setting, output, fleet.pool.url, seed)))
    run = [sys.executable, "-m", "swe_trainers.cli.main", str(configuration)]
    if setting.ranks > 1:
        run[1:3] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(setting.ranks),
                    "--max-restarts", "100", "--monitor-interval", "0.2", "-m", "swe_trainers.cli.main"]  # fmt: skip
    with (output / "printed").open("wb") as printed:
        process = subprocess.Popen(run, stdout=printed, stderr=printed, start_new_session=True)
        try:
            kinds = of_fleet(fleet, server_s=deaths.server, pool_s=deaths.pool) if deaths else {}
            if deaths:
                below = {"engine": "swe_trainers.cli.serve"}
                below |= {"rank": "swe_trainers.cli.main"} if setting.ranks > 1 else {}
                below |= {"worker": "ray::RolloutWorker"} if setting.workers else {}
                kinds |= {
                    name: processes_of(lambda: process.pid, word, every_s=getattr(deaths, name))
                    for name, word in below.items()
                }
            killer = Killer(
                kinds, deaths.seed if deaths else 0, deaths.most if deaths else 0, lambda: _at_work(output / "ledger")
            )
            wait_until(lambda: _at_work(output / "ledger") or process.poll() is not None, setting.limit_s)
            killer.begin()
            try:
                code = process.wait(setting.limit_s)
            finally:
                killer.end()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        last = (output / "printed").read_text(errors="replace").strip().splitlines()[-30:]
        raise RuntimeError("the run ended with " + "\n".join([str(code), *last]))
    return killer.deaths


def _at_work(ledger: Path) -> bool:
    """Whether a command has been run in the last seconds."""
    return any(time.time() - path.stat().st_mtime < _LATELY_S for path in ledger.glob("*.jsonl"))


def _configuration(setting: Setting, output: Path, pool: str, seed: int) -> dict[str, Any]:
    """The demo's configuration with the fleet and a generation server."""
    command = [sys.executable, "-m", "swe_trainers.cli.serve", "{weights}", "--port", "{port}",
               "--threads", "1", "--slots", str(max(setting.ranks, setting.workers) * setting.parallel)]  # fmt: skip
    return {
        "environment": {
            "id": "swegym_env:SWEBench-v0",
            "kwargs": {
                "dataset": "mini-edit", "split": "train", "sandbox": pool, "action_format": "raw", "prompt": "terse",
                "max_turns": 4, "turn_timeout_s": 20.0, "pool": 0,
            },
            "wrappers": [{"name": "benchmarks.chaos.ledger:RunsOnce", "kwargs": {"folder": str(output / "ledger")}}],
            "parallel": setting.parallel, "max_tokens": 200, "max_new_tokens": 24,
        },
        "model": {"path": setting.model},
        "trainer": {
            "algorithm": "ppo", "learning_rate": 2e-4, "decay": "linear", "max_updates": setting.updates,
            "episodes_per_update": setting.episodes, "epochs": 2, "minibatches": 2, "gamma": 1.0, "lam": 0.95,
            "value_coefficient": 0.1, "value_clip": None, "kl_coefficient": 0.01, "kl_placement": "reward",
            "kl_estimator": "k1",
        },
        "evaluation": {"episodes": setting.held_out, "success_above": 0.5},
        "engine": {"kind": "vllm", "url": f"http://127.0.0.1:{free_port()}", "command": command},
        "scale": _scale(setting),
        "output_dir": str(output / "run"), "seed": seed, "threads": 1, "checkpoint_every": 1,
    }  # fmt: skip


def _scale(setting: Setting) -> dict[str, Any]:
    ranks = {"fsdp": True, "meeting_timeout_s": 20.0} if setting.ranks > 1 else {}
    crew = {"address": "local", "workers": setting.workers, "cpus_per_worker": 0.5, "restarts": 100}
    return {**ranks, "ray": crew} if setting.workers else ranks


def _outcome(output: Path, died: Counter[str], after: dict[str, int], seconds: float) -> Outcome:
    rows = read_metrics(output / "run" / "metrics.jsonl")
    updates = {row["update"]: row for row in rows if row.get("update") and "episodes" in row}
    last = updates[max(updates)]
    return Outcome(
        steps=int(last["update"]),
        updates=len(updates),
        rewards=[float(updates[number]["reward_mean"]) for number in sorted(updates)],
        resolved=[float(row["eval/success"]) for row in rows if "eval/success" in row],
        episodes=int(sum(row["episodes"] for row in updates.values())),
        invalid=int(sum(row.get("episodes_invalid", 0) for row in updates.values())),
        ledger=read_ledger(output / "ledger"),
        deaths=died,
        left=after,
        seconds=seconds,
    )
