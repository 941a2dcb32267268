"""Measures the kernels, updates and generation on one GPU beside their peers, and runs the tests that need one.

    scripts/bench_gpu.sh rows linear                 the same with the checks and wheels of a bare machine
    python -m benchmarks.gpu rows linear --output runs/bench_gpu

Parts: rows (one pass over logits: forward, backward, divergence), linear (from hidden states, beside the bare
products), layers (norms, SwiGLU, rotations), update (PPO and GRPO on 32,768 tokens), generation (8 and 64 sequences),
learning (whole runs of swe-train), tests. Each writes OUTPUT/PART.jsonl, a line as soon as it is measured, and
OUTPUT/kernels.json at the end; the same command again measures what is missing. `--device cpu` runs everything at tiny
sizes under Triton's interpreter, which shows that it runs.

Exit code: 0 all measured, 1 something failed (the rows say what), 3 the time was over: run it again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.gpu.journal import Journal, die_with_parent, read_lines
from swe_trainers.files import write_whole

ROOT = Path(__file__).parents[2]
MODULES = {
    "rows": "rows",
    "linear": "linear",
    "layers": "layers",
    "update": "update",
    "generation": "generation",
    "learning": "learning",
    "tests": "suite",
}
FAILED, OUT_OF_TIME, LOST = 1, 3, 70
MOST_RESTARTS = 20


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(MODULES)}; all if none is given")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench_gpu", help="folder of the results")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop then; what was measured is kept")
    parser.add_argument("--peers", choices=["all", "none"], default="all", help="none: ours alone, to tune it")
    parser.add_argument("--seconds", type=float, default=6.0, help="the rounds of a case end after this long")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in MODULES]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(MODULES)}")
    parts = options.parts or list(MODULES)
    if options.child:
        return measure(parts, options)
    more = ["--device", options.device, "--peers", options.peers, "--seconds", str(options.seconds)]
    return supervise(parts, options.output, 60 * options.minutes, more)


def supervise(parts: list[str], output: Path, seconds: float, more: list[str]) -> int:
    """Run the parts in a process that may die: what it tried last is then its own row, and another process goes on."""
    output.mkdir(parents=True, exist_ok=True)
    output = output.resolve()
    ends, code = time.monotonic() + seconds, LOST
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_python_path()])}
    environment |= {"TRITON_INTERPRET": "1"} if "cpu" in more else {}
    for _ in range(MOST_RESTARTS):
        command = [sys.executable, "-m", "benchmarks.gpu", *parts, "--child", "--output", str(output), *more]
        command += ["--minutes", str(max(0.0, ends - time.monotonic()) / 60)]
        code = _run(command, environment)
        if code >= 0 and code != LOST:
            break
        if code == LOST:
            continue  # it wrote by what
        if not any(_blame(output / f"{part}.jsonl", f"the process ended with {code}") for part in parts):
            break
    summary = output / "kernels.json"
    write_whole(summary, json.dumps(summarise(output), indent=1) + "\n")
    print({0: "all measured", OUT_OF_TIME: "the time is over: run it again"}.get(code, "something failed"), summary)
    return code if code in (0, OUT_OF_TIME) else FAILED


def _python_path() -> Iterable[str]:
    return filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The exit code of a process that gets this one's SIGTERM and SIGINT too."""
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    terminated = False

    def forward(_: int, __: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        process.terminate()

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return OUT_OF_TIME if terminated else code


def _blame(path: Path, reason: str) -> bool:
    keys = [line["run"]["key"] for line in read_lines(path) if "run" in line]
    if not keys:
        return False
    journal = Journal(path, keys[-1])
    try:
        return journal.blame(reason)
    finally:
        journal.close()


def measure(parts: list[str], options: argparse.Namespace) -> int:
    """The process that measures; see `supervise`."""
    import torch

    from benchmarks.gpu.machine import describe
    from benchmarks.gpu.timing import Bench, ContextLostError, Deadline, OutOfTimeError

    die_with_parent()
    device = options.device
    if device == "cuda" and not torch.cuda.is_available():
        print("bench-gpu: PyTorch finds no GPU. Try: --device cpu, which shows that everything runs", file=sys.stderr)
        return 2
    run = describe(device)
    print(json.dumps(run), flush=True)
    deadline, failed = Deadline(60 * options.minutes), False
    for number in (signal.SIGTERM, signal.SIGINT):  # a terminal sends Ctrl-C to this process too
        signal.signal(number, deadline.end)
    for part in parts:
        journal = Journal(options.output / f"{part}.jsonl", run["key"])
        journal.begin(run)
        bench = Bench(device, journal, deadline, with_peers=options.peers == "all", seconds_per_case=options.seconds)
        try:
            importlib.import_module(f"benchmarks.gpu.{MODULES[part]}").measure(bench)
        except OutOfTimeError:
            return OUT_OF_TIME
        except ContextLostError:
            sys.stdout.flush()
            os._exit(LOST)  # an orderly end would wait for the GPU
        except Exception as error:  # noqa: BLE001 - the other parts are measured
            journal.failed(part, "the whole part", f"{type(error).__name__}: {error}"[:400])
        failed = failed or journal.has_failures()
        journal.close()
    return FAILED if failed else 0


def summarise(output: Path) -> dict[str, Any]:
    """The newest row of each quantity; what is absent or failed, with the reason.

    `run` of a row is the position in `runs` of its run: one of older source stands where newer ones had no time for it.
    """
    runs: list[dict[str, Any]] = []
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for part in MODULES:
        for line in read_lines(output / f"{part}.jsonl"):
            if "run" in line:
                runs.append({"part": part, **line["run"]})
            elif "metric" in line:
                rows[part, line["case"], line["metric"]] = {"part": part, "run": len(runs) - 1, **line}
    return {
        "runs": runs,
        "rows": [line for line in rows.values() if "median" in line],
        "absent": {_name(key): line["absent"] for key, line in rows.items() if "absent" in line},
        "failed": {_name(key): line["failed"] for key, line in rows.items() if "failed" in line},
    }


def _name(key: tuple[str, str, str]) -> str:
    return ": ".join(key)


if __name__ == "__main__":
    sys.exit(main())
