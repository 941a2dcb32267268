"""Grades real rows repeatedly: the gold patch and a rewrite of it must resolve each one and the empty patch none.

    python -m benchmarks.real_rows --dataset rows.jsonl --repos clones/ [--times 3] [--only ID …]

Every verdict is stored in `--state` at once, so that a campaign of hours can be interrupted and resumed; the summary
goes to `benchmarks/results/real_rows.json`: the rows that reproduce, with times, proofs and costs, and the others, with
the failing tests or the reason. The rewrite (`benchmarks.rewriting`) is a repair with another text. It is graded after
the gold patch, when what is found out once for a task is known: its verdict is the one whose cost is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rewriting import rewrite
from swegym_env.errors import SwegymError
from swegym_env.files import write_atomically
from swegym_env.grading.grading import Verdict, grade
from swegym_env.prepare import prepare_locally
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

RESULTS = Path(__file__).parent / "results" / "real_rows.json"
_PATCHES = ("gold", "empty", "rewrite")
_CURVE = (1, 2, 4, 8, 12, 16, 20, 24, 32, 40, 64, 100, 200, 400)
CAUSES = Path(__file__).with_name("real_rows_causes.yaml")


def main() -> int:
    """Grade the remaining runs, then write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", action="append", required=True, help="a file of rows; may be given again")
    parser.add_argument("--repos", help="directory of clones")
    parser.add_argument("--times", type=int, default=3, help="how often each row is graded, gold and empty (default 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="these instances alone")
    parser.add_argument("--again", action="store_true", help="forget what is known of the chosen instances")
    parser.add_argument("--sandbox", default="auto", help="auto, apptainer or namespace")
    parser.add_argument("--state", type=Path, default=Path("runs/real_rows.jsonl"), help="verdicts, one a line")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further row after so long")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    tasks = [task for dataset in options.dataset for task in load_tasks(dataset)]
    known = _read(options.state)
    if options.again:
        known = [entry for entry in known if options.only and entry["instance_id"] not in options.only]
        options.state.write_text("".join(f"{json.dumps(entry)}\n" for entry in known))
    began = time.monotonic()
    options.state.parent.mkdir(parents=True, exist_ok=True)
    with options.state.open("a") as state:
        for task in tasks:
            if options.only and task.instance_id not in options.only:
                continue
            for entry in _missing(task, known, options):
                if time.monotonic() - began > options.seconds:
                    break
                found = _graded(task, *entry, options)
                state.write(json.dumps(found) + "\n")
                state.flush()
                print(json.dumps({key: value for key, value in found.items() if key != "at_fault"}), flush=True)
                if found["reason"].startswith("set-up"):
                    break
    _write(options.output, tasks, _read(options.state), options.times)
    return 0


def _missing(task: Task, known: list[dict[str, Any]], options: argparse.Namespace) -> list[tuple[str, int]]:
    """The (patch, number) of the remaining runs."""
    done = {(entry["patch"], entry["run"]) for entry in known if entry["instance_id"] == task.instance_id}
    if any(patch == "set-up" for patch, _ in done):
        return []
    return [(patch, run) for run in range(options.times) for patch in _PATCHES if (patch, run) not in done]


def _graded(task: Task, patch: str, run: int, options: argparse.Namespace) -> dict[str, Any]:
    """One verdict as stored."""
    begin = time.monotonic()
    entry: dict[str, Any] = {"instance_id": task.instance_id, "patch": patch, "run": run, "reason": "", "at_fault": []}
    try:
        workspace = prepare_locally(task, repos=options.repos, backend=options.sandbox)
    except SwegymError as error:
        return {**entry, "patch": "set-up", "resolved": False, "reason": f"set-up: {error}"}
    entry["setup_s"] = round(time.monotonic() - begin, 2)
    text = {"gold": task.patch, "empty": ""}.get(patch)
    if text is None:
        with tempfile.TemporaryDirectory() as scratch:
            text = rewrite(workspace.base, task.patch, Path(scratch))
    try:
        verdict = grade(task, text, repos=options.repos, backend=options.sandbox)
    except SwegymError as error:
        return {**entry, "resolved": False, "reason": f"machine: {error}"}
    entry |= {
        "commit": _git("rev-parse", "HEAD"),
        "resolved": verdict.resolved,
        "valid": verdict.valid,
        "reason": verdict.failure_reason,
        "proof": verdict.proof,
        "proof_bits": verdict.proof_bits,
        "proof_tests": len(verdict.proof_tests),
        "forgery_chance": verdict.forgery_chance,
        "controls": verdict.controls,
        "tests_s": round(verdict.test_duration_s, 2),
        "controls_s": round(verdict.control_duration_s, 2),
        "grading_s": round(verdict.duration_s - verdict.test_duration_s, 2),
    }
    if patch != "empty" and not verdict.resolved:
        entry["at_fault"] = _at_fault(task, verdict)
    return entry


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout.strip()


def _at_fault(task: Task, verdict: Verdict) -> list[str]:
    names = (*task.fail_to_pass, *task.pass_to_pass)
    return [
        f"{name}: {verdict.tests.get(name, 'absent')}"
        for name in names
        if verdict.tests.get(name) not in ("PASSED", "XFAIL")
    ]


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _write(path: Path, tasks: list[Task], entries: list[dict[str, Any]], times: int) -> None:
    """Write the summary atomically."""
    by_id = defaultdict(list)
    for entry in entries:
        by_id[entry["instance_id"]].append(entry)
    rows: list[dict[str, Any]] = []
    reproduced, failing = [], {}
    causes = yaml.safe_load(CAUSES.read_text())
    for task in tasks:
        found = by_id.get(task.instance_id, [])
        if not found:
            continue
        wrong = [entry for entry in found if entry["resolved"] != (entry["patch"] in ("gold", "rewrite"))]
        if wrong:
            first = wrong[0]
            failing[task.instance_id] = {
                "patch": first["patch"],
                "reason": first["reason"],
                "at_fault": first["at_fault"][:20],
                "cause": causes.get(task.instance_id, ""),
            }
        elif len(found) >= times * len(_PATCHES):
            reproduced.append(task.instance_id)
        for metric in ("setup_s", "tests_s", "grading_s"):
            values = [entry[metric] for entry in found if metric in entry]
            if metric == "setup_s":
                values = values[:1]  # of the first run: later ones use the cached layers
            if values:
                rows.append(_row(task.instance_id, metric, values))
    verdicts, more_rows, more_ratios = _proofs(tasks, by_id)
    result = {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "-uno")),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "processor": platform.machine()},
        "versions": {"python": platform.python_version()},
        "reproduced": reproduced,
        "not_reproduced": failing,
        "verdicts": verdicts,
        "rows": more_rows + rows,
        "ratios": {"reproduced": len(reproduced) / max(1, len(reproduced) + len(failing)), **more_ratios},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    print(f"{len(reproduced)} reproduced {times} times, {len(failing)} not; {path}", file=sys.stderr)


def _proofs(
    tasks: list[Task], by_id: Mapping[str, list[dict[str, Any]]]
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, float]]:
    """What proves the repairs of the rows, by row; what a verdict costs, in runs of its tests; and shares of the rows.

    The gold patch is graded first, so its verdict includes what is found out once for a task.
    """
    verdicts: dict[str, Any] = {}
    costs: dict[str, list[float]] = {"gold": [], "rewrite": []}
    for task in tasks:
        graded = [entry for entry in by_id.get(task.instance_id, []) if "proof" in entry]
        firsts = {entry["patch"]: entry for entry in reversed(graded)}
        for patch, entry in firsts.items():
            if patch in costs and entry["resolved"]:
                costs[patch].append((entry["tests_s"] + entry["controls_s"]) / entry["tests_s"])
        if "gold" in firsts:
            kept = ("commit", "resolved", "reason", "proof", "proof_bits", "forgery_chance")
            verdicts[task.instance_id] = {
                patch: {key: entry[key] for key in kept if patch != "empty" or key in ("resolved", "reason")}
                for patch, entry in firsts.items()
            }
    if not verdicts:
        return {}, [], {}
    ratios: dict[str, float] = {}
    for patch in _PATCHES:
        resolved = [found[patch]["resolved"] for found in verdicts.values() if patch in found]
        ratios[f"resolved/{patch}"] = round(sum(resolved) / max(1, len(resolved)), 4)
    # Screening may pass the gold patch without a proof; the rewrite adds a file and is always examined.
    examined = [found.get("rewrite", found["gold"]) for found in verdicts.values()]
    for proof in ("blind", "controls", "none"):
        ratios[f"proof/{proof}"] = round(sum(one["proof"] == proof for one in examined) / len(examined), 4)
    for bits in _CURVE:
        ratios[f"bits/at least {bits}"] = round(sum(one["proof_bits"] >= bits for one in examined) / len(examined), 4)
    rows = [_row(patch, "runs_per_verdict", values, "runs") for patch, values in costs.items() if values]
    return verdicts, rows, ratios


def _row(case: str, metric: str, values: list[float], unit: str = "s") -> dict[str, Any]:
    tenths = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else [values[0]] * 9
    return {
        "case": case, "metric": metric, "unit": unit,
        "median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1], "n": len(values),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
