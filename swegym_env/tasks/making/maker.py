"""From a project to a folder of tasks: measured, broken in many ways, validated, told, written.

DIRECTORY/tasks.jsonl       the tasks, in the SWE-bench schema
DIRECTORY/repository.git    the repository that they name, relative to the file: the folder can be moved
DIRECTORY/.making/…         what was found so far: a run that was stopped goes on from here
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

from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.making.baseline import Baseline, command_for
from swegym_env.tasks.making.candidates import Candidate, candidates
from swegym_env.tasks.making.hiding import without_tests
from swegym_env.tasks.making.issues import difficulty, write_issue
from swegym_env.tasks.making.kept import Kept
from swegym_env.tasks.making.repository import MadeRepository
from swegym_env.tasks.making.rewriting import Rewriter
from swegym_env.tasks.making.sandboxes import Progress, Sandboxes
from swegym_env.tasks.making.sources import Source
from swegym_env.tasks.making.validation import Finding, Limits
from swegym_env.tasks.rows import task_to_row
from swegym_env.tasks.task import Task
from swegym_env.writing import write_whole

__all__ = ["Made", "Order", "Progress", "make_tasks"]

_ENOUGH = "its function has tasks enough"


@dataclass(frozen=True)
class Order:
    """What is asked for.

    Attributes:
        count: tasks to make; fewer where the project gives no more.
        seed: decides which mistakes are tried, in which order.
        kinds: the kinds of mistakes; empty: all.
        tests: paths of the tests to use; empty: those that pytest finds.
        requires: what pip installs for the tests, besides what the project says.
        install: commands that install the project, instead of `pip install -e .`.
        per_function: most tasks of one function.
        tries: most candidates that are looked at for each task that is asked for.
        limits: what a task may ask of its tests.
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
class Made:
    """What came of it.

    Attributes:
        tasks: as they were written.
        refused: why candidates were no tasks → how many.
        unstable: tests that are left out, and why.
        tests: how many tests are relied on.
        seconds: summed wall clock of the validations that this run made.
        test_seconds: of it, what pytest itself took.
        validated: how many candidates this run validated.
    """

    tasks: tuple[Task, ...]
    refused: Mapping[str, int]
    unstable: Mapping[str, str]
    tests: int
    seconds: float
    test_seconds: float
    validated: int


def make_tasks(
    source: Source,
    directory: Path,
    order: Order,
    *,
    jobs: int = 1,
    backend: str = "auto",
    store: LayerStore | None = None,
    rewriter: Rewriter | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Made:
    """Make tasks of `source` in `directory`. Equal arguments (but for `jobs`) make equal tasks; what is there is used.

    Raises:
        ConfigurationError: the directory holds something else, an unknown kind, or the rewriter does not answer.
        LayerError: the project cannot be installed.
        GradingError: none of its tests passes.
        SandboxError: the machine failed; what was found so far is kept.
    """
    tell = on_progress or (lambda _progress: None)
    kept = Kept(directory, {**asdict(order), "count": 0, "source": source.digest, "name": source.name})
    repository = MadeRepository(directory / "repository.git", source.files)
    clean = _clean_task(source, repository, order)
    sandboxes = Sandboxes(
        clean,
        kept.place / "baseline.json",
        tests=order.tests,
        limits=order.limits,
        jobs=jobs,
        backend=backend,
        store=store,
        tell=tell,
    )
    choice = _Choice(order)
    try:
        baseline = sandboxes.baseline()
        covered = {path: _all_lines(source, path, lines) for path, lines in baseline.reached.items()}
        stream = candidates(source, repository, covered, seed=order.seed, kinds=order.kinds)
        for candidate, finding, is_new in _validated(stream, sandboxes, kept, choice, jobs):
            choice.add(candidate, finding, is_new=is_new)
            tell(Progress("validating", len(choice.chosen), order.count))
            if len(choice.chosen) >= order.count:
                break
    finally:
        sandboxes.close()
    rows = []
    for number, (candidate, finding) in enumerate(choice.chosen):
        tell(Progress("writing", number, len(choice.chosen)))
        rows.append(_row(candidate, finding, source, repository, clean, baseline, kept, rewriter, order.seed))
    write_whole(directory / "tasks.jsonl", "".join(json.dumps(row) + "\n" for _, row in rows))
    return Made(
        tuple(task for task, _ in rows),
        dict(choice.refused),
        baseline.unstable,
        len(baseline.tests),
        sum(finding.seconds for finding in choice.new),
        sum(finding.test_seconds for finding in choice.new),
        len(choice.new),
    )


class _Choice:
    """Which validated candidates become tasks.

    Attributes:
        chosen: those that do, in order.
        refused: why the others do not → how many.
        new: what this run found out.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._effects: set[object] = set()
        self._functions: Counter[str] = Counter()
        self.chosen: list[tuple[Candidate, Finding]] = []
        self.refused: Counter[str] = Counter()
        self.new: list[Finding] = []

    @property
    def most_tries(self) -> int:
        """How many candidates are looked at."""
        return self._order.tries * self._order.count

    def has_enough(self, candidate: Candidate) -> bool:
        """Whether its function has as many tasks as it may have.

        Asked before a validation and again after it: the count only grows, so the tasks are the same for any `jobs`.
        """
        return self._functions[candidate.function] >= self._order.per_function

    def add(self, candidate: Candidate, finding: Finding, *, is_new: bool) -> None:
        """Take a candidate as a task, or count why not."""
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


def _clean_task(source: Source, repository: MadeRepository, order: Order) -> Task:
    """The task whose sandbox holds the project as it should be, installed; all made tasks share its installation."""
    needed = " ".join(shlex.quote(one) for one in ("pytest", *source.requirements, *order.requires))
    install = list(order.install) or ["python -m pip install -q -e ."]
    # Each base commit runs these again: all but the first find the project installed (its files are where they were)
    # and only need what installing left among them.
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


def _all_lines(source: Source, path: str, reached: Mapping[int, Sequence[int]]) -> set[int]:
    """The lines that a mistake may be made in: what tests reach, and the module's top level, which runs on import."""
    try:
        tree = ast.parse(source.files[path][1])
    except (KeyError, SyntaxError, ValueError, RecursionError, MemoryError):  # no file that could be changed
        return set()
    inner: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner |= set(range(node.lineno + (not isinstance(node, ast.Lambda)), (node.end_lineno or node.lineno) + 1))
    lines = source.files[path][1].count(b"\n") + 1
    return set(reached) | (set(range(1, lines + 1)) - inner)


def _validated(
    stream: Iterator[Candidate],
    sandboxes: Sandboxes,
    kept: Kept,
    choice: _Choice,
    jobs: int,
) -> Iterator[tuple[Candidate, Finding, bool]]:
    """The candidates with what became of them, in their own order, whoever is ready first; and whether it is new."""

    def one(candidate: Candidate) -> tuple[Candidate, Finding, bool]:
        known = kept.findings.get(candidate.key)
        if known is not None:
            return candidate, known, False
        if choice.has_enough(candidate):
            return candidate, Finding(candidate.key, refused=_ENOUGH), False
        finding = sandboxes.validate(candidate)
        kept.add(finding)
        return candidate, finding, True

    pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="validate")
    pending: deque[Future[tuple[Candidate, Finding, bool]]] = deque()
    try:
        for _, candidate in zip(range(choice.most_tries), stream, strict=False):
            if candidate.key in kept.findings and not pending:
                yield one(candidate)
                continue
            pending.append(pool.submit(one, candidate))
            if len(pending) > 2 * jobs:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _row(
    candidate: Candidate,
    finding: Finding,
    source: Source,
    repository: MadeRepository,
    clean: Task,
    baseline: Baseline,
    kept: Kept,
    rewriter: Rewriter | None,
    seed: int,
) -> tuple[Task, dict[str, Any]]:
    """The task of a validated candidate, and its row: the columns of SWE-bench, and how it was made."""
    name = f"{source.name}__{candidate.kind}-{candidate.key}"
    hidden: dict[str, list[str]] = {}
    for test in finding.failing:
        path, _, inner = test.partition("::")
        hidden.setdefault(path, []).append(inner)
    pruned = {path: without_tests(source.files[path][1], names) for path, names in hidden.items()}
    pruned = {path: content for path, content in pruned.items() if path not in candidate.files}
    base, patch, test_patch = repository.commit_bug(name, candidate.files, pruned)
    issue = write_issue(source.name, finding, source.files)
    if rewriter is not None:
        issue = kept.rewritten(rewriter, issue, seed)
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
