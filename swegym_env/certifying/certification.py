"""Certification measures how far the verdicts on a task can be trusted: gold and empty patch are graded repeatedly.

The gold patch must resolve and the empty patch must not, with any hash seed, on a busy machine, and in other orders of
the tests. The gold patch must also fail negative controls (see `Language.make_control`): hidden tests that pass with a
wrong expected value cannot distinguish a repair from a forgery. The trials are stored as `grading.certificates`
describes: an interrupted run continues, and a larger number of trials adds to a smaller one.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from swegym_env.certifying.campaign import for_each_task
from swegym_env.grading.certificates import CONTROLS, ORDERS, Certificate, Record, Trial
from swegym_env.grading.grading import exclude_paths
from swegym_env.grading.task_tests import TaskTests
from swegym_env.grading.verdict import passed_control
from swegym_env.languages import language_of
from swegym_env.prepare import prepare_locally
from swegym_env.repo.patches import added_lines
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["certify", "certify_many"]


def certify(
    task: Task,
    *,
    trials: int = 3,
    repos: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
    timeout_s: float | None = None,
    place: Path | None = None,
) -> Certificate:
    """Grade the gold and the empty patch `trials` times each, and gold in other orders and with negative controls.

    Trials that are stored already are not repeated.

    Args:
        trials: of each patch in the tests' own order; every second one on a busy machine.
        place: the folder of the certificates; None: `work_dir()/certificates`.

    Raises:
        InfrastructureError: the machine failed; the trials made so far are stored.
    """
    record = Record(task, place)
    store = store or LayerStore()

    @cache
    def tests() -> TaskTests:
        workspace = prepare_locally(task, repos=repos, store=store, backend=backend)
        return TaskTests(task, workspace, "strict", backend, task.test_timeout_s if timeout_s is None else timeout_s)

    def carry_out(plan: Trial) -> Trial:
        known = record.trials.get(plan.plan)
        if known is not None:
            return known
        trial = _controlled(tests(), plan) if plan.patch == "control" else _graded(tests(), plan, store)
        record.add(trial)
        return trial

    done: list[Trial] = []
    for seed in range(trials):
        for patch in ("gold", "empty"):
            done.append(carry_out(Trial(patch, seed, loaded=seed % 2 == 1)))
    for number, order in enumerate(ORDERS):
        done.append(carry_out(Trial("gold", trials + number, order)))
        if done[-1].not_passed != done[0].not_passed:
            # Only a second run shows whether the order or chance made the difference.
            done.append(carry_out(Trial("gold", trials + number, order, repeat=1)))
    if done[0].resolved:
        done += [carry_out(Trial("control", seed)) for seed in range(CONTROLS)]
    return Certificate(task.instance_id, tuple(done))


def certify_many(
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    on_certificate: Callable[[Certificate | str], None] | None = None,
    **arguments: Any,
) -> Iterator[tuple[Task, Certificate | str]]:
    """Certify tasks, `jobs` at a time, in their order; for an infrastructure failure its text is returned.

    Args:
        on_certificate: called for each task as soon as it is done, for progress.
        arguments: see `certify`.
    """
    return for_each_task(
        tasks, lambda task: certify(task, **arguments), jobs=jobs, on_found=on_certificate, name="certify"
    )


def _graded(tests: TaskTests, plan: Trial, store: LayerStore) -> Trial:
    """Carry out a trial of the gold or the empty patch under the conditions of `plan`."""
    task, workspace = tests.task, tests.workspace
    busy = (os.cpu_count() or 1) if plan.loaded else 0
    variation = language_of(task).vary(workspace.spec.env, order=plan.order, seed=plan.seed, busy=busy)

    def write(layer: Path) -> None:
        for path, text in variation.files.items():
            target = layer / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    layer = store.get_or_build(("certify", *(part for item in variation.files.items() for part in item)), write)
    spec = dataclasses.replace(workspace.spec, env=variation.env, layers=(layer, *workspace.spec.layers))
    tests = dataclasses.replace(tests, workspace=dataclasses.replace(workspace, spec=spec))
    patch = task.patch if plan.patch == "gold" else ""
    kept, _ = exclude_paths(task, patch, workspace.base, "strict", tests.evaluation.tests)
    verdict = tests.verdict(tests.run(kept))
    statuses = {name: verdict.tests.get(name, "ABSENT") for name in (*task.fail_to_pass, *task.pass_to_pass)}
    return dataclasses.replace(
        plan,
        resolved=verdict.resolved,
        not_passed={name: status for name, status in statuses.items() if status not in ("PASSED", "XFAIL")},
        reason=verdict.failure_reason,
    )


def _controlled(tests: TaskTests, plan: Trial) -> Trial:
    """Carry out a trial of the gold patch with a negative control."""
    task, language = tests.task, language_of(tests.task)
    gold, _ = exclude_paths(task, task.patch, tests.workspace.base, "strict", tests.evaluation.tests)
    watched = language.control_files(task)
    texts = tests.read_files(gold, watched)
    control = language.make_control(texts, task.fail_to_pass, added_lines(task.test_patch), plan.seed)
    if control is None:
        return dataclasses.replace(plan, reason="no hidden test can be changed")
    run = tests.run(gold, rewritten=control.files, watched=watched)
    if run.result is None:
        return dataclasses.replace(plan, reason=run.problem)
    passed = passed_control(control, tests.verdict(run))
    if not passed:
        return plan
    changes = [
        line
        for path, text in control.files.items()
        for line in difflib.unified_diff(texts[path].splitlines(), text.splitlines(), path, path, n=0, lineterm="")
        if not line.startswith(("---", "@@"))
    ]
    return dataclasses.replace(plan, resolved=True, reason=", ".join(passed), change="\n".join(changes))
