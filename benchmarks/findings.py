"""`make bench-findings ARGS="--dataset rows.parquet --repos clones/ --only ID …"`: first verdicts on other machines.

For each task, one machine grades the gold patch and keeps what that finds out of the tests. Then two machines, which
are stores of their own with the same set-up layers, grade a rewrite of the gold patch for the first time: one takes
what the first has found out from a shared store, the other finds it out. The verdicts of each machine have a process
of their own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from benchmarks.real_rows import mechanical_rewrite
from benchmarks.records import row, write_results
from swegym_env.grading.findings import keep_findings
from swegym_env.grading.grading import grade
from swegym_env.paths import work_dir
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.sharing import open_shared_store, share_layer
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

T = TypeVar("T")


def find_out(task: Task, repos: str | None, layers: str, findings: str) -> str:
    """Grade the gold patch, and share the set-up layers in both stores and what is known in one; the rewrite."""
    store = LayerStore()
    workspace = prepare_locally(task, repos=repos, store=store)
    verdict = grade(task, task.patch, repos=repos, store=store)
    if not verdict.resolved:
        raise SystemExit(f"{task.instance_id}: the gold patch is not resolved: {verdict.failure_reason}")
    known = keep_findings(task, store)
    assert known is not None
    names = [layer.name for layer in workspace.spec.layers if store.record(layer.name) is not None]
    for address, chosen in ((layers, names), (findings, [*names, known.name])):
        shared = open_shared_store(address)
        shared.create()
        for name in chosen:
            share_layer(store, name, shared)
    return mechanical_rewrite(task, workspace)


def grade_on(machine: Path, task: Task, patch: str, repos: str | None, address: str) -> tuple[float, float]:
    """Seconds of the first verdict, and of the second."""
    store = LayerStore(machine / "layers", shared=address)
    prepare_locally(task, repos=repos, store=store)
    verdicts = [grade(task, patch, repos=repos, store=store) for _ in range(2)]
    if not all(verdict.resolved for verdict in verdicts):
        raise SystemExit(f"{task.instance_id}: the rewrite is not resolved: {verdicts[0].failure_reason}")
    return verdicts[0].duration_s, verdicts[1].duration_s


def _apart(work: Callable[..., T], *arguments: object) -> T:
    """The result of `work` in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--repos", help="folder of clones")
    parser.add_argument("--only", nargs="+", required=True, metavar="ID")
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/findings.json")
    options = parser.parse_args(arguments)
    tasks = {task.instance_id: task for task in load_tasks(options.dataset)}
    rows, ratios = [], list[float]()
    with tempfile.TemporaryDirectory(dir=work_dir(), prefix="bench-findings-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        layers, findings = str(place / "layers"), str(place / "findings")
        for name in options.only:
            task = tasks[name]
            patch = _apart(find_out, task, options.repos, layers, findings)
            with_them = _apart(grade_on, place / "taking", task, patch, options.repos, findings)
            without = _apart(grade_on, place / "finding", task, patch, options.repos, layers)
            rows += [
                row(name, "first verdict, findings taken", "s", with_them[:1]),
                row(name, "first verdict", "s", without[:1]),
                row(name, "second verdict", "s", [with_them[1], without[1]]),
            ]
            ratios.append(without[0] / with_them[0])
            print(
                f"{name}: {without[0]:.1f} s, with findings {with_them[0]:.1f} s, later {with_them[1]:.1f} s",
                flush=True,
            )
            for machine in ("taking", "finding"):
                shutil.rmtree(place / machine)
    together = {"first verdict, without / with findings": statistics.median(ratios)}
    print(together, write_results("findings", rows, ratios=together, packages=[], path=options.output), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
