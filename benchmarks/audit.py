"""Audits the tests of real rows: what share of tasks accepts a variant of its gold patch, or refuses a rewrite of it?

    python -m benchmarks.audit --dataset rows.parquet --repos clones/ --sample 100 [--mutants 12] [--jobs 2]

A sample is drawn from the rows that `benchmarks.real_rows` has reproduced. Each row is written to
benchmarks/results/audit.json as soon as it is known; rows that are there already are not audited again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, row, write_results
from swegym_env.auditing.audit import Audit, audit_many
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

Entry = dict[str, Any]


def main() -> int:
    """Audit the rows that are missing, and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="a file of rows")
    parser.add_argument("--repos", help="directory of clones")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real_rows_verified.json", help="results of real_rows")
    parser.add_argument("--sample", type=int, default=100, help="how many rows (default 100)")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="draw from these rows alone")
    parser.add_argument("--mutants", type=int, default=12, help="at most so many a row (default 12)")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "audit.json")
    options = parser.parse_args()

    reproduced = json.loads(options.rows.read_text(encoding="utf-8"))["reproduced"]
    names = sorted(set(reproduced) & set(options.only or reproduced))
    random.Random(0).shuffle(names)
    tasks = {task.instance_id: task for task in load_tasks(options.dataset)}
    known: dict[str, Entry] = {}
    if options.output.exists():
        known = {one["instance_id"]: one for one in json.loads(options.output.read_text(encoding="utf-8"))["audits"]}
    chosen = [tasks[name] for name in names[: options.sample] if name not in known]
    found = audit_many(chosen, jobs=options.jobs, mutants=options.mutants, repos=options.repos)
    for number, (task, audit) in enumerate(found):
        if isinstance(audit, str):
            print(f"[{number + 1}/{len(chosen)}] {task.instance_id}: {audit}", flush=True)
            continue
        known[task.instance_id] = entry = _entry(task, audit)
        _write(options.output, known, options.mutants)
        print(f"[{number + 1}/{len(chosen)}] {task.instance_id}: {_line(entry)}", flush=True)
    return 0


def _entry(task: Task, audit: Audit) -> Entry:
    def shown(variants: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                name: value
                for name, value in dataclasses.asdict(one).items()
                if name not in ("key", "resolved") and value
            }
            for one in variants
        ]

    return {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "broken": audit.is_broken,
        "mutants": audit.count("mutant"),
        "partial": audit.count("partial"),
        "rewrites": audit.count("rewrite"),
        "survivors": shown(audit.survivors),
        "false_rejects": shown(audit.false_rejects),
        "test_s": round(sum(one.test_duration_s for one in audit.variants), 1),
    }


def _line(entry: Entry) -> str:
    tried = entry["mutants"] + entry["partial"]
    kinds = [one["kind"] for one in entry["survivors"]]
    refused = "; ".join(f"{one['name']}: {one.get('reason', '')[:80]}" for one in entry["false_rejects"])
    return f"{len(kinds)} of {tried} survive ({kinds.count('partial')} partial) {refused and f'REFUSED {refused}'}"


def _write(path: Path, known: Mapping[str, Entry], mutants: int) -> None:
    whole = [one for one in known.values() if not one["broken"]]
    with_variants = [one for one in whole if one["mutants"] + one["partial"]]
    if not with_variants:
        return

    def share(kind: str) -> float:
        return sum(any(kind in (each["kind"], "any") for each in one["survivors"]) for one in with_variants) / len(
            with_variants
        )

    tried = sum(one["mutants"] + one["partial"] for one in with_variants)
    survived = sum(len(one["survivors"]) for one in with_variants)
    partial = sum(one["partial"] for one in with_variants)
    partial_survived = sum(each["kind"] == "partial" for one in with_variants for each in one["survivors"])
    rewrites = sum(one["rewrites"] for one in whole)
    ratios = {
        "tasks with a survivor": share("any"),
        "tasks with a surviving mutant": share("mutant"),
        "tasks with a surviving partial patch": share("partial"),
        "mutation score": 1 - survived / tried,
        "partial patches that survive": partial_survived / partial if partial else 0.0,
        "rewrites refused": sum(len(one["false_rejects"]) for one in whole) / max(1, rewrites),
    }
    fractions = [len(one["survivors"]) / (one["mutants"] + one["partial"]) for one in with_variants]
    write_results(
        "audit",
        [
            row("all", "survivors of a task's variants", "fraction", fractions),
            row("all", "seconds of tests of a task", "s", [one["test_s"] for one in whole]),
        ],
        ratios={name: round(value, 4) for name, value in ratios.items()},
        packages=(),
        path=path,
        counts={
            "tasks": len(known),
            "tasks with variants": len(with_variants),
            "mutants at most": mutants,
            "variants": tried,
            "survivors": survived,
            "rewrites": rewrites,
        },
        audits=[known[name] for name in sorted(known)],
    )


if __name__ == "__main__":
    raise SystemExit(main())
