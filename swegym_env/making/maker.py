"""The pipeline from a project to a folder of tasks: baseline, candidates, validation, issues, rows.

DIRECTORY/tasks.jsonl       the tasks, in the SWE-bench schema
DIRECTORY/repository.git    their repository, by a path relative to the file: the folder can be moved
DIRECTORY/.making/…         the findings so far: an interrupted run continues from them
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from swegym_env.files import write_atomically
from swegym_env.making.baseline import Baseline, read_baseline, write_baseline
from swegym_env.making.candidates import Candidate
from swegym_env.making.issues import Rewriter, difficulty, write_issue
from swegym_env.making.journal import Journal
from swegym_env.making.projects import Project, project_of
from swegym_env.making.repository import MadeRepository
from swegym_env.making.sandboxes import Bench
from swegym_env.making.settings import MakeSettings
from swegym_env.making.sources import Source
from swegym_env.making.validation import Finding
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task, task_to_row

__all__ = ["MadeTasks", "Progress", "make_tasks"]

_ENOUGH = "its function has enough tasks"


@dataclass(frozen=True)
class MadeTasks:
    """The result of a run.

    Attributes:
        tasks: the tasks, as written.
        refused: reason → number of candidates that it refused.
        unstable: tests that are not used → why.
        tests: number of tests that are used.
        seconds: wall-clock time of this run's validations, summed.
        test_seconds: the part of it that the tests took.
        validated: number of candidates that this run validated.
    """

    tasks: tuple[Task, ...]
    refused: Mapping[str, int]
    unstable: Mapping[str, str]
    tests: int
    seconds: float
    test_seconds: float
    validated: int


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        stage: "installing", "measuring", "validating" or "writing".
        done: number of finished parts of the stage.
        total: number of all its parts.
    """

    stage: str
    done: int
    total: int


def make_tasks(
    source: Source,
    directory: Path,
    settings: MakeSettings,
    *,
    jobs: int = 1,
    backend: str = "auto",
    store: LayerStore | None = None,
    rewriter: Rewriter | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> MadeTasks:
    """Make tasks of `source` in `directory`. Equal arguments give equal tasks, whatever `jobs`; findings are reused.

    Raises:
        ConfigurationError: the directory holds something else, a kind is unknown, or the rewriter fails.
        LayerError: the project cannot be installed.
        GradingError: none of its tests passes.
        SandboxError: a sandbox failed; the findings so far are kept.
    """
    report = on_progress or (lambda _progress: None)
    run = {**asdict(settings), "count": 0, "source": source.digest, "name": source.name}
    run = {key: value for key, value in run.items() if key != "test_command" or value}
    journal = Journal(directory, run)
    repository = MadeRepository(directory / "repository.git", source.files)
    project = project_of(source, settings)
    clean = project.clean_task(repository)
    bench = Bench(clean, warm_up=project.warm_up(), store=store, backend=backend)
    selection = _Selection(settings)
    try:
        known = journal.place / "baseline.json"
        baseline = read_baseline(known)
        if baseline is None:
            report(Progress("installing", 0, 1))
            bench.start()
            report(Progress("measuring", 0, 1))
            baseline = project.measure(bench, jobs, lambda done, total: report(Progress("measuring", done, total)))
            write_baseline(baseline, known)
        bench.options, bench.modules = baseline.options, baseline.modules
        stream = project.candidates(repository, baseline)
        for candidate, finding, is_new in _validated(stream, project, bench, baseline, journal, selection, jobs):
            selection.add(candidate, finding, is_new=is_new)
            report(Progress("validating", len(selection.chosen), settings.count))
            if len(selection.chosen) >= settings.count:
                break
    finally:
        bench.close()
    tasks, rows = [], []
    for number, (candidate, finding) in enumerate(selection.chosen):
        report(Progress("writing", number, len(selection.chosen)))
        issue = write_issue(source.name, finding, project.test_source(finding.shown_test), project.fence)
        if rewriter is not None:
            issue = journal.rewritten(rewriter, issue, settings.seed)
        task, row = _task_and_row(candidate, finding, issue, project, repository, clean, baseline)
        tasks.append(task)
        rows.append(row)
    write_atomically(directory / "tasks.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return MadeTasks(
        tuple(tasks),
        dict(selection.refused),
        baseline.unstable,
        len(baseline.tests),
        sum(finding.seconds for finding in selection.new),
        sum(finding.test_seconds for finding in selection.new),
        len(selection.new),
    )


class _Selection:
    """Chooses the tasks among the validated candidates.

    Attributes:
        chosen: the chosen candidates, in order.
        refused: reason → number of refused candidates.
        new: the findings that this run made.
    """

    def __init__(self, settings: MakeSettings) -> None:
        self._per_function = settings.per_function
        self.max_candidates = settings.tries * settings.count
        self._effects: set[object] = set()
        self._functions: Counter[str] = Counter()
        self.chosen: list[tuple[Candidate, Finding]] = []
        self.refused: Counter[str] = Counter()
        self.new: list[Finding] = []

    def has_enough(self, candidate: Candidate) -> bool:
        """Whether its function has as many tasks as allowed.

        Checked before a validation and again after it: the count only grows, so `jobs` does not change the tasks.
        """
        return self._functions[candidate.function] >= self._per_function

    def add(self, candidate: Candidate, finding: Finding, *, is_new: bool) -> None:
        """Choose a candidate, or count why it is refused."""
        if is_new:
            self.new.append(finding)
        first_lines = tuple(sorted((path, min(lines)) for path, lines in candidate.lines.items() if lines))
        effect = (finding.failing, first_lines)
        reason = finding.refused
        if not reason and effect in self._effects:
            reason = "fails the same tests at the same line as another"
        if not reason and self.has_enough(candidate):
            reason = _ENOUGH
        if reason:
            self.refused[reason] += 1
        else:
            self._effects.add(effect)
            self._functions[candidate.function] += 1
            self.chosen.append((candidate, finding))


def _validated(
    stream: Iterator[Candidate],
    project: Project,
    bench: Bench,
    baseline: Baseline,
    journal: Journal,
    selection: _Selection,
    jobs: int,
) -> Iterator[tuple[Candidate, Finding, bool]]:
    """The candidates in their order with their findings, and whether each finding is new; `jobs` run at a time."""

    def find(candidate: Candidate) -> tuple[Candidate, Finding, bool]:
        known = journal.findings.get(candidate.key)
        if known is not None:
            return candidate, known, False
        if selection.has_enough(candidate):
            return candidate, Finding(candidate.key, refused=_ENOUGH), False
        finding = project.validate(candidate, baseline, bench)
        journal.add(finding)
        return candidate, finding, True

    pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="validate")
    pending: deque[Future[tuple[Candidate, Finding, bool]]] = deque()
    try:
        for _, candidate in zip(range(selection.max_candidates), stream, strict=False):
            if candidate.key in journal.findings and not pending:
                yield find(candidate)
                continue
            pending.append(pool.submit(find, candidate))
            if len(pending) > 2 * jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _task_and_row(
    candidate: Candidate,
    finding: Finding,
    issue: str,
    project: Project,
    repository: MadeRepository,
    clean: Task,
    baseline: Baseline,
) -> tuple[Task, dict[str, Any]]:
    """The task of a validated candidate; and its row: SWE-bench's columns, and how it was made."""
    name = f"{clean.instance_id.removesuffix('__clean')}__{candidate.kind}-{candidate.key}"
    remaining = project.remaining_tests(candidate, finding)
    base, patch, test_patch = repository.commit_bug(name, candidate.files, remaining)
    label, score = difficulty(candidate, finding)
    task = replace(
        clean,
        instance_id=name,
        base_commit=base,
        problem_statement=issue,
        patch=patch,
        test_patch=test_patch,
        fail_to_pass=finding.fail_to_pass,
        pass_to_pass=finding.pass_to_pass,
        **project.how_tested(baseline, finding),
        test_timeout_s=max(120.0, round(20 * baseline.seconds(baseline.tests), 1)),
    )
    about = {"kind": candidate.kind, "function": candidate.function, "difficulty": label, "difficulty_score": score}
    about |= {"reverted_commit": candidate.commit} if candidate.commit else {}
    return task, {**task_to_row(task), "repository": "repository.git", **about}
