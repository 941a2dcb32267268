"""How far the verdicts on a task can be trusted: its gold patch and the empty one, graded again and again.

The gold patch must resolve and the empty one must not, whatever the hash seed, with other work going on beside the
tests, and in other orders of them. And the gold patch must fail negative controls (see `controls`): hidden tests that
pass with a wrong expected value too cannot tell a repair from a forgery. What was found is kept in
`work_dir()/certificates`, by the content of the task, so that a stopped run goes on, a greater N adds to a smaller one,
and the environment can show it (`info["trust"]`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.judging.controls import added_lines, make_control, test_files
from swegym_env.judging.log_verdict import judge_log
from swegym_env.judging.policy import partition
from swegym_env.judging.trial import Bench
from swegym_env.paths import work_dir
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.loading import TaskSet
from swegym_env.tasks.rows import task_to_row
from swegym_env.tasks.task import Task
from swegym_env.tasks.workspace import Workspace, prepare_workspace

__all__ = ["Certificate", "Trial", "certify", "certify_many", "find_certificate", "trusted"]

Status = Literal["sound", "flaky", "blind", "order-dependent", "broken"]

_ORDERS = ("reversed", "shuffled")
_CONTROLS = 2  # as many as grading asks of a patch at the most
_INSIDE = Path(__file__).with_name("inside")
_PLACE = "/opt/swegym-certify"


@dataclass(frozen=True)
class Trial:
    """One graded run of the gold patch or the empty one.

    Attributes:
        patch: "gold" or "empty"; "control": gold, with one expected value changed in each of the hidden tests.
        seed: of hashes, of the order where it is shuffled, of a control's choices.
        order: of the tests: "own", "reversed" or "shuffled".
        loaded: other processes were busy beside the tests.
        repeat: 1 where an outcome that only another order brought was tried once more.
        resolved: the verdict; of a control, whether a test passed that cannot.
        not_passed: those of the task's tests that did not pass → what became of them; of a control, none.
        reason: why it was not resolved, where that is no failing test; of a control, which tests passed.
        change: what a control that was passed had changed, as lines of a diff.
    """

    patch: Literal["gold", "empty", "control"]
    seed: int
    order: str = "own"
    loaded: bool = False
    repeat: int = 0
    resolved: bool = False
    not_passed: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    change: str = ""

    @property
    def right(self) -> bool:
        """Whether the verdict is what it should be."""
        return self.resolved == (self.patch == "gold")

    @property
    def plan(self) -> tuple[object, ...]:
        """What tells it from the other trials of a task."""
        return (self.patch, self.seed, self.order, self.loaded, self.repeat)


@dataclass(frozen=True)
class Certificate:
    """What the trials of one task say of it.

    Attributes:
        instance_id: of the task.
        trials: in the order in which they are planned.
    """

    instance_id: str
    trials: tuple[Trial, ...]

    @property
    def trust(self) -> float:
        """The share of trials whose verdict was right; 0 where a control was passed, for then no verdict tells much."""
        if self.passed_controls:
            return 0.0
        return sum(trial.right for trial in self.trials) / len(self.trials)

    @property
    def flaky_tests(self) -> tuple[str, ...]:
        """Tests that fared differently on the same patch in the same order."""
        found: set[str] = set()
        for patch in ("gold", "empty"):
            for order in ("own", *_ORDERS):
                alike = [set(one.not_passed) for one in self.trials if (one.patch, one.order) == (patch, order)]
                if alike:
                    found |= alike[0].union(*alike[1:]) - alike[0].intersection(*alike[1:])
        return tuple(sorted(found))

    @property
    def order_dependent_tests(self) -> tuple[str, ...]:
        """Tests that fared otherwise on the gold patch in another order, and are not flaky besides."""
        found: set[str] = set()
        own = [set(one.not_passed) for one in self.trials if one.patch == "gold" and one.order == "own"]
        for one in self.trials:
            if one.patch == "gold" and one.order != "own" and own:
                found |= set(one.not_passed) ^ own[0]
        return tuple(sorted(found - set(self.flaky_tests)))

    @property
    def broken_tests(self) -> tuple[str, ...]:
        """Tests that never pass with the gold patch, in their own order."""
        own: list[set[str]] = [set(one.not_passed) for one in self.trials if one.patch == "gold" and one.order == "own"]
        return tuple(sorted(set.intersection(*own))) if own else ()

    @property
    def passed_controls(self) -> tuple[Trial, ...]:
        """The negative controls that the gold patch passed: its tests took a wrong expected value."""
        return tuple(one for one in self.trials if one.patch == "control" and one.resolved)

    @property
    def status(self) -> Status:
        """In one word: broken, flaky, blind (a control was passed), order-dependent or sound."""
        own = [one for one in self.trials if one.order == "own" and one.patch != "control"]
        for patch in ("gold", "empty"):
            if not any(one.right for one in own if one.patch == patch):
                return "broken"
        flaky_gold = len({tuple(sorted(one.not_passed)) for one in own if one.patch == "gold"}) > 1
        if flaky_gold or not all(one.right for one in own):
            return "flaky"
        if self.passed_controls:
            return "blind"
        if any(not one.right for one in self.trials):
            return "flaky" if self.flaky_tests else "order-dependent"
        return "sound"

    @property
    def reason(self) -> str:
        """What is wrong, in one line; empty where nothing is."""
        gold = [one for one in self.trials if one.patch == "gold" and not one.right]
        empty = [one for one in self.trials if one.patch == "empty" and not one.right]
        parts = []
        if gold:
            told = next((f" ({one.reason})" for one in gold if one.reason), "")
            of = sum(one.patch == "gold" for one in self.trials)
            parts.append(f"gold does not resolve in {len(gold)} of {of} trials{told}")
        if empty:
            parts.append(f"empty resolves in {len(empty)} of {sum(one.patch == 'empty' for one in self.trials)} trials")
        if self.passed_controls:
            first = self.passed_controls[0]
            of = sum(one.patch == "control" for one in self.trials)
            told = f"{first.reason} ({' '.join(first.change.split())})"
            parts.append(f"gold passes {len(self.passed_controls)} of {of} negative controls: {told}")
        for name, tests in (
            ("flaky", self.flaky_tests),
            ("order-dependent", self.order_dependent_tests),
            ("never passing", self.broken_tests),
        ):
            if tests:
                parts.append(f"{name}: {', '.join(tests[:3])}{f' and {len(tests) - 3} more' if len(tests) > 3 else ''}")
        return "; ".join(parts)


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
    """Grade gold and empty `trials` times each, gold in two other orders and by two controls; what is known is used.

    Args:
        trials: in the tests' own order, of each patch; every second one with other work beside it.
        place: of the certificates; None: `work_dir()/certificates`.
    Raises:
        InfrastructureError: the machine failed; the trials made so far are kept.
    """
    record = _Record(task, place)
    workspace: list[Workspace] = []

    def trial(plan: Trial) -> Trial:
        known = record.trials.get(plan.plan)
        if known is not None:
            return known
        if not workspace:
            workspace.append(prepare_workspace(task, repos=repos, store=store, backend=backend))
        limit = task.test_timeout_s if timeout_s is None else timeout_s
        make = _control if plan.patch == "control" else _carry_out
        made = make(task, plan, workspace[0], store or LayerStore(), backend, limit)
        record.add(made)
        return made

    done: list[Trial] = []
    for seed in range(trials):
        for patch in ("gold", "empty"):
            done.append(trial(Trial(patch, seed, loaded=seed % 2 == 1)))
    for number, order in enumerate(_ORDERS):
        done.append(trial(Trial("gold", trials + number, order)))
        if done[-1].not_passed != done[0].not_passed:
            # The order's doing, or chance's: only a second look can tell.
            done.append(trial(Trial("gold", trials + number, order, repeat=1)))
    if done[0].resolved:
        done += [trial(Trial("control", seed)) for seed in range(_CONTROLS)]
    return Certificate(task.instance_id, tuple(done))


def certify_many(
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    on_certificate: Callable[[Certificate | str], None] | None = None,
    **arguments: Any,
) -> Iterator[tuple[Task, Certificate | str]]:
    """Certify tasks, `jobs` at a time, in their order; a failure of the machine is given as its text.

    Args:
        on_certificate: called as each is done, for progress.
        arguments: see `certify`.
    """

    def one(task: Task) -> tuple[Task, Certificate | str]:
        found: Certificate | str
        try:
            found = certify(task, **arguments)
        except InfrastructureError as error:
            found = str(error)
        if on_certificate is not None:
            on_certificate(found)
        return task, found

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="certify")
    try:
        yield from pool.map(one, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def find_certificate(task: Task, place: Path | None = None) -> Certificate | None:
    """What is known of a task on this machine; None where it was never certified, or not to the end."""
    trials = tuple(_Record(task, place).trials.values())
    made = [(trial.patch, trial.order) for trial in trials]
    if not {("gold", "own"), ("empty", "own"), *(("gold", order) for order in _ORDERS)} <= set(made):
        return None
    first = next(trial for trial in trials if (trial.patch, trial.order, trial.seed) == ("gold", "own", 0))
    if first.resolved and made.count(("control", "own")) < _CONTROLS:
        return None
    return Certificate(task.instance_id, trials)


def trusted(tasks: TaskSet[Task], least: float) -> TaskSet[Task]:
    """The tasks that are certified on this machine with at least this much trust, from 0 to 1.

    Raises:
        ConfigurationError: `least` is no such number, or there are none.
    """
    if not 0 <= least <= 1:
        raise ConfigurationError(f"trust: expected a number from 0 to 1, got {least!r}")
    found = [task.instance_id for task in tasks if (known := find_certificate(task)) and known.trust >= least]
    if not found:
        raise ConfigurationError(
            f"trust: none of the {len(tasks)} tasks of {tasks.name} is certified here with {least:g} or more. "
            f"Try: swegym certify --dataset {tasks.name}"
        )
    return tasks.subset(found)


def _carry_out(
    task: Task, plan: Trial, workspace: Workspace, store: LayerStore, backend: str, timeout_s: float
) -> Trial:
    env = {**workspace.spec.env, "PYTHONHASHSEED": str(plan.seed)}
    if plan.loaded:
        env["SWEGYM_LOAD"] = str(os.cpu_count() or 1)
    if plan.order != "own":
        env["SWEGYM_ORDER"] = plan.order if plan.order == "reversed" else f"{plan.order} {plan.seed}"
        env["PYTEST_ADDOPTS"] = f"{env.get('PYTEST_ADDOPTS', '')} -p swegym_order".strip()
    if plan.loaded or plan.order != "own":
        env["PYTHONPATH"] = ":".join(filter(None, [_PLACE, env.get("PYTHONPATH", "")]))
    spec = dataclasses.replace(workspace.spec, env=env, layers=(_inside_layer(store), *workspace.spec.layers))
    bench = Bench(task, dataclasses.replace(workspace, spec=spec), "strict", backend, timeout_s)
    patch = task.patch if plan.patch == "gold" else ""
    run = bench.run(partition(task, patch, workspace.base, "strict", bench.evaluation.tests).kept)
    names = (*task.fail_to_pass, *task.pass_to_pass)
    if run.result is None:
        return dataclasses.replace(plan, not_passed=dict.fromkeys(names, "ABSENT"), reason=run.problem)
    result = run.result
    verdict = judge_log(task, result.output, exit_code=result.exit_code, command=bench.evaluation.tests)
    reason = f"the tests did not end within {timeout_s:g} s" if result.timed_out else verdict.failure_reason
    outcomes = {name: verdict.tests.get(name, "ABSENT") for name in names}
    return dataclasses.replace(
        plan,
        resolved=verdict.resolved,
        not_passed={name: outcome for name, outcome in outcomes.items() if outcome not in ("PASSED", "XFAIL")},
        reason="" if verdict.resolved else reason,
    )


def _control(
    task: Task, plan: Trial, workspace: Workspace, _store: LayerStore, backend: str, timeout_s: float
) -> Trial:
    """The gold patch against hidden tests of which each has one wrong expected value."""
    bench = Bench(task, workspace, "strict", backend, timeout_s)
    gold = partition(task, task.patch, workspace.base, "strict", bench.evaluation.tests).kept
    watched = test_files(task)
    texts = bench.texts(gold, watched)
    control = make_control(texts, task.fail_to_pass, added_lines(task.test_patch), plan.seed)
    if control is None:
        return dataclasses.replace(plan, reason="no hidden test can be changed")
    run = bench.run(gold, rewritten=control.files, watched=watched)
    if run.result is None:
        return dataclasses.replace(plan, reason=run.problem)
    log, code = run.result.output, run.result.exit_code
    passing = control.passing(judge_log(task, log, exit_code=code, command=bench.evaluation.tests))
    if not passing:
        return plan
    changes = [
        line
        for path, text in control.files.items()
        for line in difflib.unified_diff(texts[path].splitlines(), text.splitlines(), path, path, n=0, lineterm="")
        if not line.startswith(("---", "@@"))
    ]
    return dataclasses.replace(plan, resolved=True, reason=", ".join(passing), change="\n".join(changes))


def _inside_layer(store: LayerStore) -> Path:
    """The layer with what changes orders and makes work; it does nothing unless it is asked to."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(_INSIDE.glob("*.py"))}

    def write(layer: Path) -> None:
        place = layer / _PLACE.lstrip("/")
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / name).write_text(text, encoding="utf-8")

    return store.get_or_build(("certify", *(part for item in files.items() for part in item)), write)


class _Record:
    """The trials of one task that this machine has made: a line of JSON each. Safe for threads and processes."""

    def __init__(self, task: Task, place: Path | None) -> None:
        row = {column: value for column, value in task_to_row(task).items() if column != "repository"}
        key = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:32]
        self._path = (place or work_dir() / "certificates") / f"{key}.jsonl"
        self._lock = threading.Lock()
        self.trials: dict[tuple[object, ...], Trial] = {}
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:  # nothing is certified yet
            return
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # a line that was cut short, or of another version
                trial = Trial(**json.loads(line))
                self.trials.setdefault(trial.plan, trial)

    def add(self, trial: Trial) -> None:
        with self._lock:
            self.trials[trial.plan] = trial
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write((json.dumps(dataclasses.asdict(trial)) + "\n").encode())
