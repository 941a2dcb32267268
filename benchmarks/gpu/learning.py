"""Whole runs of `swe-train` on the GPU, from random weights: whether all between a game and its score works there.

FrozenLake in words, by PPO and GRPO, with a tiny model in float32 and bfloat16, one of them killed and resumed, and
with the model of about 1 B parameters of `update`. All runs at once, so their seconds are not comparable with others'.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu import models
from benchmarks.gpu.timing import Bench, OutOfTimeError
from swe_trainers.logging import read_metrics

__all__ = ["measure"]

ROOT = Path(__file__).parents[2]
_METRICS = {
    "eval/return": "1",
    "logprob_gap": "nats",
    "seconds/rollout": "s",
    "seconds/update": "s",
    "engine/read_tokens_per_second": "1/s",
    "engine/sampled_tokens_per_second": "1/s",
}
"""Of the last row that has them, with their units; missing ones are left out."""


@dataclass(frozen=True, eq=False)
class _Run:
    """One run.

    Attributes:
        name: of the rows.
        example: file of examples/configs, without its ending.
        changes: to its sections.
        killed_after: updates after which it is killed and started again; 0 never.
    """

    name: str
    example: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    killed_after: int = 0


_LARGE = {
    "model": {"dtype": "bfloat16", "architecture": models.shape(tiny=False)},
    "trainer": {"learning_rate": 2e-5, "warmup_updates": 5, "max_updates": 40},
}
RUNS = (
    _Run("PPO", "frozen_lake"),
    _Run("PPO in bfloat16", "frozen_lake", {"model": {"dtype": "bfloat16"}}),
    _Run("PPO, killed and resumed", "frozen_lake", {"run": {"checkpoint_every": 20}}, killed_after=50),
    _Run("GRPO", "frozen_lake_grpo"),
    _Run("GRPO in bfloat16", "frozen_lake_grpo", {"model": {"dtype": "bfloat16"}}),
    _Run("GRPO, 1 B parameters in bfloat16", "frozen_lake_grpo", _LARGE),
)


def measure(bench: Bench) -> None:
    """All runs of the part that are not done."""
    with tempfile.TemporaryDirectory(prefix="swe-train-") as folder:
        _measure(bench, Path(folder))


def _measure(bench: Bench, folder: Path) -> None:
    wanted = [run for run in (RUNS[:1] if bench.tiny else RUNS) if not bench.journal.is_done(_case(run))]
    outputs = {run: folder / str(number) for number, run in enumerate(wanted)}
    started = time.monotonic()
    running = {run: _start(bench, run, output) for run, output in outputs.items()}
    killed: set[_Run] = set()
    try:
        while running:
            bench.deadline.check()
            for run, process in list(running.items()):
                output = outputs[run]
                if run.killed_after and run not in killed and _updates(output) >= run.killed_after:
                    _kill(process)
                    killed.add(run)
                    running[run] = _launch(output)
                elif process.poll() is not None:
                    del running[run]
                    _write(bench, run, process.returncode, output, time.monotonic() - started)
            time.sleep(0.2)
    except OutOfTimeError:
        for run in running:
            print(f"{_case(run)}: out of time after {_rows(outputs[run])[-1:]}", flush=True)
        raise
    finally:
        for process in running.values():
            _kill(process)


def _case(run: _Run) -> str:
    return f"FrozenLake in words by {run.name}"


def _start(bench: Bench, run: _Run, output: Path) -> subprocess.Popen[str]:
    values = yaml.safe_load((ROOT / "examples" / "configs" / f"{run.example}.yaml").read_text(encoding="utf-8"))
    for section, changes in run.changes.items():
        values |= changes if section == "run" else {section: {**values[section], **changes}}
    values |= {"output_dir": str(output / "run"), "threads": 1}
    values["model"]["device"] = bench.device
    if bench.tiny:
        values["trainer"]["max_updates"] = 1
        values["evaluation"]["episodes"] = 4
    output.mkdir(parents=True)
    (output / "config.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return _launch(output)


def _launch(output: Path) -> subprocess.Popen[str]:
    """A process of `swe-train`."""
    program = "import sys; from swe_trainers.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, str(output / "config.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (output / "log").open("a", encoding="utf-8") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, text=True, start_new_session=True
        )


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _updates(output: Path) -> int:
    rows = _rows(output)
    return int(rows[-1]["update"]) if rows else 0


def _rows(output: Path) -> list[dict[str, Any]]:
    path = output / "run" / "metrics.jsonl"
    return list(read_metrics(path)) if path.exists() else []


def _write(bench: Bench, run: _Run, code: int, output: Path, seconds: float) -> None:
    case, rows = _case(run), _rows(output)
    if code != 0:
        lines = (output / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        print("\n".join(lines[-30:]), flush=True)
        bench.journal.failed(case, "swe-train", f"ended with {code}: {lines[-1] if lines else ''}"[:400])
        return
    before = next(row for row in rows if "eval/return" in row)
    bench.journal.add(case, "mean return before", "1", [before["eval/return"]], update=before["update"])
    for metric, unit in _METRICS.items():
        found = [row for row in rows if metric in row]
        if found:
            bench.journal.add(case, metric, unit, [found[-1][metric]], update=found[-1]["update"])
    bench.journal.add(case, "whole run", "s", [seconds])
    history = [(row["update"], round(row["eval/return"], 3)) for row in rows if "eval/return" in row]
    print(f"{case}: returns by update {json.dumps(history)}", flush=True)
    bench.journal.done(case)
