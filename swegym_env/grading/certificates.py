"""Stored certificates: what `swegym certify` has measured about the tasks of this machine.

A certificate contains the graded trials of one task. It is stored in `work_dir()/certificates` under a digest of the
task's row and set-up, one JSON object per line and trial: an interrupted certification continues where it stopped, and
a task with a changed row or set-up has no certificate. The environment reads them for `info["trust"]` and `trust=…`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from swegym_env.arguments import check_between
from swegym_env.errors import ConfigurationError
from swegym_env.files import append_json_line, read_json_lines
from swegym_env.languages import digest_with_setup
from swegym_env.paths import work_dir
from swegym_env.tasks.task import Task, TaskSet

__all__ = ["CONTROLS", "ORDERS", "Certificate", "Record", "Trial", "find_certificate", "trusted"]

Status = Literal["sound", "flaky", "blind", "order-dependent", "broken"]

ORDERS = ("reversed", "shuffled")
"""Orders of the tests, besides their own, in which a complete certificate has the gold patch graded."""

CONTROLS = 2
"""Negative controls of a complete certificate."""


@dataclass(frozen=True)
class Trial:
    """One graded run of the gold patch or the empty patch.

    Attributes:
        patch: "gold" or "empty"; "control": gold, with one expected value changed in each hidden test.
        seed: of hashes, of a shuffled order, of a control's random choices.
        order: of the tests: "own", "reversed" or "shuffled".
        loaded: whether other processes were busy while the tests ran.
        repeat: 1 for the second run of a trial whose outcome differed from that in the tests' own order.
        resolved: the verdict; for a control, whether a test passed that must fail.
        not_passed: those of the task's tests that did not pass → their status; empty for a control.
        reason: why the task was not resolved, if not by a failing test; for a control, which tests passed.
        change: for a control that passed, its changes as lines of a diff.
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
        """Whether the verdict is the expected one."""
        return self.resolved == (self.patch == "gold")

    @property
    def plan(self) -> tuple[object, ...]:
        """The conditions of the trial, which identify it in its task."""
        return (self.patch, self.seed, self.order, self.loaded, self.repeat)


@dataclass(frozen=True)
class Certificate:
    """The trials of one task, and conclusions from them.

    Attributes:
        instance_id: of the task.
        trials: in the order in which they were planned.
    """

    instance_id: str
    trials: tuple[Trial, ...]

    @property
    def trust(self) -> float:
        """The fraction of trials with the right verdict; 0 if a control passed, since the tests then prove nothing."""
        if self.passed_controls:
            return 0.0
        return sum(trial.right for trial in self.trials) / len(self.trials)

    @property
    def flaky_tests(self) -> tuple[str, ...]:
        """Tests whose outcome differs between trials of the same patch in the same order."""
        found: set[str] = set()
        for patch in ("gold", "empty"):
            for order in ("own", *ORDERS):
                alike = [set(one.not_passed) for one in self.trials if (one.patch, one.order) == (patch, order)]
                if alike:
                    found |= alike[0].union(*alike[1:]) - alike[0].intersection(*alike[1:])
        return tuple(sorted(found))

    @property
    def order_dependent_tests(self) -> tuple[str, ...]:
        """Tests whose outcome with the gold patch differs in another order, flaky ones excluded."""
        found: set[str] = set()
        own = [set(one.not_passed) for one in self.trials if one.patch == "gold" and one.order == "own"]
        for one in self.trials:
            if one.patch == "gold" and one.order != "own" and own:
                found |= set(one.not_passed) ^ own[0]
        return tuple(sorted(found - set(self.flaky_tests)))

    @property
    def broken_tests(self) -> tuple[str, ...]:
        """Tests that never pass with the gold patch in their own order."""
        own: list[set[str]] = [set(one.not_passed) for one in self.trials if one.patch == "gold" and one.order == "own"]
        return tuple(sorted(set.intersection(*own))) if own else ()

    @property
    def passed_controls(self) -> tuple[Trial, ...]:
        """The negative controls that the gold patch passed: its tests accept a wrong expected value."""
        return tuple(one for one in self.trials if one.patch == "control" and one.resolved)

    @property
    def status(self) -> Status:
        """In one word: broken, flaky, blind (a control passed), order-dependent or sound."""
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
        """What is wrong, in one line; empty if nothing is."""
        gold = [one for one in self.trials if one.patch == "gold" and not one.right]
        empty = [one for one in self.trials if one.patch == "empty" and not one.right]
        parts = []
        if gold:
            detail = next((f" ({one.reason})" for one in gold if one.reason), "")
            count = sum(one.patch == "gold" for one in self.trials)
            parts.append(f"gold does not resolve in {len(gold)} of {count} trials{detail}")
        if empty:
            parts.append(f"empty resolves in {len(empty)} of {sum(one.patch == 'empty' for one in self.trials)} trials")
        if self.passed_controls:
            first = self.passed_controls[0]
            count = sum(one.patch == "control" for one in self.trials)
            detail = f"{first.reason} ({' '.join(first.change.split())})"
            parts.append(f"gold passes {len(self.passed_controls)} of {count} negative controls: {detail}")
        for name, tests in (
            ("flaky", self.flaky_tests),
            ("order-dependent", self.order_dependent_tests),
            ("never passing", self.broken_tests),
        ):
            if tests:
                parts.append(f"{name}: {', '.join(tests[:3])}{f' and {len(tests) - 3} more' if len(tests) > 3 else ''}")
        return "; ".join(parts)


class Record:
    """The stored trials of one task; `add` is safe for threads and processes.

    Args:
        task: whose trials.
        place: the folder of the certificates; None: `work_dir()/certificates`.

    Attributes:
        trials: plan → trial.
    """

    def __init__(self, task: Task, place: Path | None = None) -> None:
        self._path = (place or work_dir() / "certificates") / f"{digest_with_setup(task)}.jsonl"
        self._lock = threading.Lock()
        self.trials: dict[tuple[object, ...], Trial] = {}
        for row in read_json_lines(self._path):
            with contextlib.suppress(TypeError, ValueError):  # a row of another version
                trial = Trial(**row)
                self.trials.setdefault(trial.plan, trial)

    def add(self, trial: Trial) -> None:
        """Store one more trial."""
        with self._lock:
            self.trials[trial.plan] = trial
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_json_line(self._path, dataclasses.asdict(trial))


def find_certificate(task: Task, place: Path | None = None) -> Certificate | None:
    """The stored certificate of a task; None if its certification never began or did not finish on this machine."""
    trials = tuple(Record(task, place).trials.values())
    made = [(trial.patch, trial.order) for trial in trials]
    if not {("gold", "own"), ("empty", "own"), *(("gold", order) for order in ORDERS)} <= set(made):
        return None
    first = next(trial for trial in trials if (trial.patch, trial.order, trial.seed) == ("gold", "own", 0))
    if first.resolved and made.count(("control", "own")) < CONTROLS:
        return None
    return Certificate(task.instance_id, trials)


def trusted(tasks: TaskSet[Task], least: float) -> TaskSet[Task]:
    """The tasks whose stored certificate has at least this much trust, from 0 to 1.

    Raises:
        ConfigurationError: `least` is out of range, or no task qualifies.
    """
    check_between("trust", least, 0, 1)
    found = [task.instance_id for task in tasks if (known := find_certificate(task)) and known.trust >= least]
    if not found:
        raise ConfigurationError(
            f"trust: none of the {len(tasks)} tasks of {tasks.name} is certified here with {least:g} or more. "
            f"Try: swegym certify --dataset {tasks.name}"
        )
    return tasks.subset(found)
