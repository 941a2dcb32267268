"""Validation: a candidate is a task if some test fails because of the bug, and fails again in a fresh sandbox."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from swegym_env.arguments import CheckedArguments
from swegym_env.making.baseline import Baseline, command_for
from swegym_env.making.candidates import Candidate
from swegym_env.making.sandboxes import Bench, Run, statuses

__all__ = ["Finding", "Limits", "too_many_fail", "validate"]

_FAILED = {"FAILED", "ERROR"}


@dataclass(frozen=True)
class Limits(CheckedArguments):
    """What the tests of a task may cost, and how many may fail.

    Attributes:
        test_seconds: longest time of the tests that reach a bug, measured on the clean project.
        failing: largest number of tests that a bug fails.
        failing_fraction: largest fraction of the tests that reach a bug, if more than 20 fail.
    """

    test_seconds: float = 20.0
    failing: int = 60
    failing_fraction: float = 0.8


@dataclass(frozen=True)
class Finding:
    """The result of validating a candidate.

    Attributes:
        key: the candidate's.
        refused: why it is no task; empty if it is one.
        fail_to_pass: tests that fail with the bug and pass without it, by their names in logs.
        pass_to_pass: tests of the same files that pass with and without it, by their names in logs.
        failing: all tests that fail with the bug, by pytest's ids.
        files: test files that the task runs.
        text: pytest's text of the failing test with the shortest text.
        shown_test: that test's id.
        covering: number of tests that reach the bug.
        visited: number of lines of the project that the shown test reaches.
        seconds: wall-clock time of the validation.
        test_seconds: the part of it that pytest itself took.
    """

    key: str
    refused: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    text: str = ""
    shown_test: str = ""
    covering: int = 0
    visited: int = 0
    seconds: float = 0.0
    test_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Finding:
        """The finding of a JSON object; raises TypeError for unknown or missing fields."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return Finding(**values)


def validate(candidate: Candidate, baseline: Baseline, bench: Bench, limits: Limits) -> Finding:
    """Run the tests that reach a bug in a warm process and, if some fail, the task's own command in a fresh sandbox.

    Raises:
        SandboxError: the sandbox failed, whatever the candidate.
    """
    start = time.monotonic()
    covering = baseline.covering(candidate.lines)
    finding = Finding(candidate.key, refused=_refused_untested(covering, baseline, limits))
    if not finding.refused:
        screening, screening_s = _screen(candidate, covering, baseline, bench)
        failing = [test for test in covering if screening.outcomes.get(test) in _FAILED]
        finding = Finding(candidate.key, refused=_refused_screening(screening, failing, covering, limits))
        if not finding.refused:
            finding = _confirm(candidate, covering, screening, failing, baseline, bench)
        finding = replace(finding, test_seconds=finding.test_seconds + screening_s)
    seconds = time.monotonic() - start
    return replace(finding, covering=len(covering), seconds=seconds, test_seconds=min(seconds, finding.test_seconds))


def _refused_untested(covering: Sequence[str], baseline: Baseline, limits: Limits) -> str:
    """Why a bug is not tested at all; empty if it is."""
    if not covering:
        return "no test reaches it"
    return "the tests that reach it take too long" if baseline.seconds(covering) > limits.test_seconds else ""


def _screen(candidate: Candidate, covering: Sequence[str], baseline: Baseline, bench: Bench) -> tuple[Run, float]:
    """The run of the tests that reach the bug, in a warm process, and how long pytest took."""
    files = sorted({test.partition("::")[0] for test in covering})
    timeout_s = 15 + 10 * baseline.seconds(covering)
    with bench.worker() as worker:
        run = worker.run(files, files=candidate.files, only=covering, timeout_s=timeout_s)
    return run, timeout_s if run.late else run.seconds


def _refused_screening(run: Run, failing: Sequence[str], covering: Sequence[str], limits: Limits) -> str:
    """Why the screening run refuses a bug; empty if it does not."""
    if run.late:
        return "tests hang"
    if run.exit_code is None:
        return "the tests' process dies"
    if run.collection_errors:
        return "tests cannot be collected"
    if not failing:
        return "no test fails"
    return "too many tests fail" if too_many_fail(len(failing), len(covering), limits) else ""


def too_many_fail(failing: int, covering: int, limits: Limits) -> bool:
    """Whether so many tests fail that a bug would be found at once."""
    return failing > limits.failing or (failing > 20 and failing > limits.failing_fraction * covering)


def _confirm(
    candidate: Candidate,
    covering: Sequence[str],
    screening: Run,
    failing: Sequence[str],
    baseline: Baseline,
    bench: Bench,
) -> Finding:
    """Run the task's own command in a fresh sandbox: the same tests must fail, and others must pass."""
    files = _files_to_run(failing, covering, baseline)
    tests = [test for test in baseline.tests if test.partition("::")[0] in files]
    run = bench.command(
        command_for(baseline.options, files), candidate.files, timeout_s=60 + 10 * baseline.seconds(tests)
    )
    ended = re.findall(r" in ([\d.]+)s(?: \([\d:]+\))? ?=*$", run.output, re.MULTILINE)
    finding = Finding(candidate.key, test_seconds=min(run.duration_s, float(ended[-1])) if ended else run.duration_s)
    if run.timed_out:
        return replace(finding, refused="tests hang")
    found = statuses(run.output)
    # Logs cut a name at its first blank: a cut name counts if all tests that share it have the same outcome.
    names = list(dict.fromkeys(map(_log_name, tests)))
    fails = [name for name in names if found.get(name, set()) & _FAILED]
    if set(fails) != set(map(_log_name, failing)):
        return replace(finding, refused="the tests that fail differ from run to run")
    fail_to_pass = tuple(name for name in fails if found[name] <= _FAILED)
    pass_to_pass = tuple(name for name in names if found.get(name) == {"PASSED"})
    if not fail_to_pass:
        return replace(finding, refused="logs cannot distinguish the tests that fail from others")
    if not pass_to_pass:
        return replace(finding, refused="no test passes")
    candidates = [test for test in failing if _log_name(test) in fail_to_pass]
    shown = min(candidates, key=lambda test: (len(screening.failures.get(test, "")), test))
    position = baseline.tests.index(shown)
    return replace(
        finding,
        fail_to_pass=fail_to_pass,
        pass_to_pass=pass_to_pass,
        failing=tuple(failing),
        files=tuple(files),
        text=screening.failures.get(shown, ""),
        shown_test=shown,
        visited=sum(position in tests for lines in baseline.reached.values() for tests in lines.values()),
    )


def _files_to_run(failing: Sequence[str], covering: Sequence[str], baseline: Baseline) -> list[str]:
    """The files of the failing tests, and another one if no test in those would pass."""
    files = {test.partition("::")[0] for test in failing}
    if all(test in failing for test in baseline.tests if test.partition("::")[0] in files):
        others = [test.partition("::")[0] for test in covering if test not in failing]
        files |= set(others[:1])
    return sorted(files)


def _log_name(test: str) -> str:
    return test.split(maxsplit=1)[0]
