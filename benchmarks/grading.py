"""The time of grading beyond the tests: `python -m benchmarks.grading [--tasks N] [--sandbox NAME]`.

Gold patches of the shipped dataset `mini` under both policies, and under `strict` with each level of screening: plain
edits (no lineup), others, and those that may read what the tests expect. What is made once a task is not in the times.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.records import Row, row, write_results
from swegym_env.grading.grading import grade
from swegym_env.grading.verdict import Policy, Verdict
from swegym_env.languages import CHANCE, Scrutiny
from swegym_env.tasks.datasets import load_tasks

CASES: dict[str, tuple[Policy, Scrutiny]] = {
    "official": ("official", Scrutiny(1.0)),
    "strict, a plain edit": ("strict", Scrutiny(1.0)),
    "strict, a lineup": ("strict", Scrutiny(CHANCE)),
    "strict, a lineup for readers": ("strict", Scrutiny(CHANCE, reads=True, required=True)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--output", type=Path, help="instead of benchmarks/results/grading.json")
    options = parser.parse_args()
    tasks = load_tasks("mini").shuffled(0)[: options.tasks]
    for task in tasks:
        grade(task, "", backend=options.sandbox)  # layers are built once, and not measured
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for task in tasks:
        grade(task, task.patch, backend=options.sandbox, scrutiny=Scrutiny(CHANCE))  # nor the probe
    found: dict[str, list[Verdict]] = {case: [] for case in CASES}
    for task in tasks:  # in turns: a machine that slows down meanwhile slows all cases
        for case, (policy, scrutiny) in CASES.items():
            found[case].append(grade(task, task.patch, backend=options.sandbox, policy=policy, scrutiny=scrutiny))
    for case, verdicts in found.items():
        scrutiny = CASES[case][1]
        for task, verdict in zip(tasks, verdicts, strict=True):
            # A lineup proves nothing of a patch that may read what the tests expect; its time counts all the same.
            as_expected = verdict.resolved or (scrutiny.required and verdict.failure_reason == "unproven")
            if not as_expected or (verdict.controls > 0) != (scrutiny.chance < 1):
                raise SystemExit(f"{case}: {task.instance_id}: {verdict.failure_reason}, {verdict.controls} controls")
        beyond = [verdict.duration_s - verdict.test_duration_s - verdict.control_duration_s for verdict in verdicts]
        rows.append(row(case, "tests", "s", [verdict.test_duration_s for verdict in verdicts]))
        rows.append(row(case, "beyond the tests, controls apart", "s", beyond))
        rows.append(row(case, "controls and repetition", "s", [verdict.control_duration_s for verdict in verdicts]))
        whole = sum(verdict.duration_s for verdict in verdicts)
        ratios[f"{case}: whole over tests"] = whole / sum(verdict.test_duration_s for verdict in verdicts)
    write_results("grading", rows, ratios=ratios, packages=["gymnasium"], path=options.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
