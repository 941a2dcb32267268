"""The pipeline from a project to a folder of tasks: baseline, candidates, validation, issues, rows.

DIRECTORY/tasks.jsonl       the tasks, in the SWE-bench schema
DIRECTORY/repository.git    their repository, by a path relative to the file: the folder can be moved
DIRECTORY/.making/…         the findings so far: an interrupted run continues from them
"""

from __future__ import annotations

import ast
import json
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from swegym_env.files import write_atomically
from swegym_env.languages.python.parsing import parse
from swegym_env.making.baseline import Baseline, command_for, measure, read_baseline, write_baseline
from swegym_env.making.candidates import Candidate, candidates
from swegym_env.making.code import without_tests
from swegym_env.making.issues import Rewriter, difficulty, write_issue
from swegym_env.making.journal import Journal
from swegym_env.making.repository import MadeRepository
from swegym_env.making.sandboxes import Bench
from swegym_env.making.sources import Source
from swegym_env.making.validation import Finding, Limits, validate
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task, task_to_row

__all__ = ["MadeTasks", "MakeSettings", "Progress", "make_tasks"]

_ENOUGH = "its function has enough tasks"


@dataclass(frozen=True)
class MakeSettings:
    """Which tasks to make, and how many.

    Attributes:
        count: number of tasks; fewer are made if the project gives no more.
        seed: decides which bugs are tried, and in which order.
        kinds: kinds of mistakes; empty: all.
        tests: paths of the tests to use; empty: those that pytest finds.
        requires: what pip installs for the tests, besides the project's own requirements.
        install: commands that install the project, instead of `pip install -e .`.
        per_function: largest number of tasks in one function.
        tries: largest number of candidates for each task.
        limits: limits of the tests of one task.
    """

    count: int = 50
    seed: int = 0
    kinds: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    per_function: int = 4
    tries: int = 40
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class MadeTasks:
    """The result of a run.

    Attributes:
        tasks: the tasks, as written.
        refused: reason → number of candidates that it refused.
        unstable: tests that are not used → why.
        tests: number of tests that are used.
        seconds: wall-clock time of this run's validations, summed.
        test_seconds: the part of it that pytest itself took.
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
    journal = Journal(directory, run)
    repository = MadeRepository(directory / "repository.git", source.files)
    clean = _clean_task(source, repository, settings)
    bench = Bench(clean, store=store, backend=backend)
    selection = _Selection(settings)
    try:
        known = journal.place / "baseline.json"
        baseline = read_baseline(known)
        if baseline is None:
            report(Progress("installing", 0, 1))
            bench.start()
            report(Progress("measuring", 0, 1))
            baseline = measure(
                bench,
                settings.tests,
                jobs=jobs,
                on_progress=lambda done, total: report(Progress("measuring", done, total)),
            )
            write_baseline(baseline, known)
        bench.options, bench.modules = baseline.options, baseline.modules
        covered = {path: _lines_to_change(source, path, lines) for path, lines in baseline.reached.items()}
        stream = candidates(source, repository, covered, seed=settings.seed, kinds=settings.kinds)
        for candidate, finding, is_new in _validated(stream, bench, baseline, journal, selection, jobs):
            selection.add(candidate, finding, is_new=is_new)
            report(Progress("validating", len(selection.chosen), settings.count))
            if len(selection.chosen) >= settings.count:
                break
    finally:
        bench.close()
    tasks, rows = [], []
    for number, (candidate, finding) in enumerate(selection.chosen):
        report(Progress("writing", number, len(selection.chosen)))
        issue = write_issue(source.name, finding, source.files)
        if rewriter is not None:
            issue = journal.rewritten(rewriter, issue, settings.seed)
        task, row = _task_and_row(candidate, finding, issue, source, repository, clean, baseline)
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


def _clean_task(source: Source, repository: MadeRepository, settings: MakeSettings) -> Task:
    """The task whose sandbox holds the clean project, installed; all made tasks share its installation."""
    needed = " ".join(shlex.quote(one) for one in ("pytest", *source.requirements, *settings.requires))
    install = list(settings.install) or ["python -m pip install -q -e ."]
    # Each base commit runs these again: all but the first find the project installed (its files have not moved) and
    # only need the files that installing generated among them.
    first = " && ".join(
        [
            f"python -m pip install -q {needed}",
            *install,
            "mkdir -p /opt/testbed/generated",
            "git ls-files -z --others --exclude='*.pyc' | xargs -0r cp --parents -t /opt/testbed/generated",
        ]
    )
    setup = f"if [ -d /opt/testbed/generated ]; then cp -a /opt/testbed/generated/. .; else {first}; fi"
    return Task(
        instance_id=f"{source.name}__clean",
        repo=f"made/{source.name}",
        base_commit=repository.clean,
        problem_statement="",
        patch="",
        version=source.version,
        environment_setup_commit=repository.clean,
        repository=str(repository.path),
        setup=(setup,),
    )


def _lines_to_change(source: Source, path: str, reached: Mapping[int, Sequence[int]]) -> set[int]:
    """The lines that may get a bug: those that tests reach, and the module's top level, which runs on import."""
    try:
        tree = parse(source.files[path][1])
    except (KeyError, SyntaxError, ValueError, RecursionError, MemoryError):  # no file that can be changed
        return set()
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner |= set(range(node.lineno + (not isinstance(node, ast.Lambda)), (node.end_lineno or node.lineno) + 1))
    lines = source.files[path][1].count(b"\n") + 1
    return set(reached) | (set(range(1, lines + 1)) - inner)


class _Selection:
    """Chooses the tasks among the validated candidates.

    Attributes:
        chosen: the chosen candidates, in order.
        refused: reason → number of refused candidates.
        new: the findings that this run made.
    """

    def __init__(self, settings: MakeSettings) -> None:
        self._per_function = settings.per_function
        self.limits = settings.limits
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
    stream: Iterator[Candidate], bench: Bench, baseline: Baseline, journal: Journal, selection: _Selection, jobs: int
) -> Iterator[tuple[Candidate, Finding, bool]]:
    """The candidates in their order with their findings, and whether each finding is new; `jobs` run at a time."""

    def find(candidate: Candidate) -> tuple[Candidate, Finding, bool]:
        known = journal.findings.get(candidate.key)
        if known is not None:
            return candidate, known, False
        if selection.has_enough(candidate):
            return candidate, Finding(candidate.key, refused=_ENOUGH), False
        bench.start(compile_with=baseline.tests[:1])
        finding = validate(candidate, baseline, bench, selection.limits)
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
    source: Source,
    repository: MadeRepository,
    clean: Task,
    baseline: Baseline,
) -> tuple[Task, dict[str, Any]]:
    """The task of a validated candidate; and its row: SWE-bench's columns, and how it was made."""
    name = f"{source.name}__{candidate.kind}-{candidate.key}"
    revealing: dict[str, list[str]] = {}
    for test in finding.failing:
        path, _, inner = test.partition("::")
        revealing.setdefault(path, []).append(inner)
    remaining = {
        path: without_tests(source.files[path][1], names)
        for path, names in revealing.items()
        if path not in candidate.files
    }
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
        test_command=command_for(baseline.options, finding.files),
        log_parser="pytest",
        test_timeout_s=max(120.0, round(20 * baseline.seconds(baseline.tests), 1)),
    )
    about = {"kind": candidate.kind, "function": candidate.function, "difficulty": label, "difficulty_score": score}
    about |= {"reverted_commit": candidate.commit} if candidate.commit else {}
    return task, {**task_to_row(task), "repository": "repository.git", **about}
