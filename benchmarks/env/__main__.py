"""Run the benchmark of the sandbox engine; see `python -m benchmarks.env --help`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.env.measuring import Run
from benchmarks.env.parts import PARTS
from benchmarks.options import chosen_of
from benchmarks.records import RESULTS, write_results
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend


def main() -> int:
    arguments, chosen = _arguments()
    place = Path(tempfile.mkdtemp(prefix="swegym-bench-"))
    place.chmod(0o755)
    memory = tempfile.mkdtemp(prefix="swegym-bench-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    os.chmod(memory, 0o711)
    os.environ |= {"SWEGYM_WORKDIR": str(place), "SWEGYM_RUNDIR": memory}
    try:
        return _run(arguments, chosen, place / "repos")
    finally:
        from swegym_env.sandbox.client import end_all

        end_all()
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the names of the parts to run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.env", description=__doc__, epilog='example: make bench-env ARGS="--only steps,reset"'
    )
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the repetitions (default 1)")
    parser.add_argument("--sandbox", choices=LOCAL_BACKENDS, help="this back end alone")
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/env.json for a whole run, else none")
    parser.add_argument("--note", action="append", default=[], help="what else to keep with the results")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    options = parser.parse_args()
    return options, chosen_of(parser, "--only", options.only, PARTS)


def _run(arguments: argparse.Namespace, chosen: list[str], repos: Path) -> int:
    run = Run(repos, scale=arguments.scale, notes=list(arguments.note))
    backends = []
    for name in [arguments.sandbox] if arguments.sandbox else LOCAL_BACKENDS:
        reason = make_backend(name).problem(fresh=True)
        if reason:
            run.notes.append(f"{name} does not work here: {reason}")
        else:
            backends.append(name)
    seconds = {}
    for name in chosen:
        began = time.monotonic()
        print(f"bench-env: {name} …", file=sys.stderr, flush=True)
        PARTS[name](run, backends)
        seconds[name] = round(time.monotonic() - began, 1)
    _show(run)
    print(f"seconds: {json.dumps(seconds)}")
    whole = chosen == list(PARTS) and arguments.scale == 1 and not arguments.sandbox
    output = arguments.output or (RESULTS / "env.json" if whole else None)
    if output is not None:
        _write(run, seconds, output)
        print(f"written to {output}")
    missed = any((value > target) if less else (value < target) for value, target, less in run.targets.values())
    return 1 if missed and arguments.check else 0


def _show(run: Run) -> None:
    for row in run.rows():
        spread = f"{row.p10:9.2f} {row.p90:9.2f}" if row.n > 1 else " " * 19
        print(f"{row.case:28} {row.metric:52} {row.median:9.2f} {spread} {row.unit:3} n={row.n}")
    for name, ratio in run.ratios.items():
        print(f"ratio  {name:60} {ratio:9.2f}")
    for name, (value, target, less) in run.targets.items():
        met = value <= target if less else value >= target
        print(f"{'ok    ' if met else 'MISSED'} {name:70} {value:9.2f} {'at most' if less else 'at least'} {target:g}")
    for note in run.notes:
        print(f"note: {note}")


def _write(run: Run, seconds: dict[str, float], output: Path) -> None:
    targets = {
        name: {"value": value, "target": target, "met": value <= target if less else value >= target}
        for name, (value, target, less) in run.targets.items()
    }
    write_results(
        "env",
        run.rows(),
        ratios=run.ratios,
        packages=["gymnasium", "spython"],
        path=output,
        targets=targets,
        seconds=seconds,
        notes=run.notes,
    )


if __name__ == "__main__":
    sys.exit(main())
