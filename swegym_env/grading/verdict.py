"""Verdicts: the result of grading a patch, and how it is derived from the log of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from swegym_env.grading.evaluation import evaluation_of
from swegym_env.languages import Control, LogParser, language_of, log_parser
from swegym_env.tasks.task import Task

__all__ = [
    "FORGED",
    "NO_TEST",
    "UNPROVEN",
    "Policy",
    "Proof",
    "Verdict",
    "grade_log",
    "names_by_outcome",
    "passed_control",
]

Policy = Literal["strict", "official"]
Proof = Literal["blind", "controls", "none"]

FORGED = "invalid: forged: "
"""Prefix of the failure reason of a verdict whose tests were made to pass by other means than a repair."""
UNPROVEN = "unproven"
"""The failure reason of a verdict that could be a forgery or a repair: the chance of forgery is too large."""

NO_TEST = "the log names no test"
"""The failure reason of a verdict on a run that named no test."""

# The harness writes these around and into its logs, and searches the whole log for them.
_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"
_NO_RUN = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")


@dataclass(frozen=True)
class Verdict:
    """The result of grading one patch.

    Attributes:
        instance_id: id of the task.
        resolved: every test of FAIL_TO_PASS and of PASS_TO_PASS passed, the log is credible, and under `strict` nothing
            shows a forgery and enough is proved.
        valid: False if the infrastructure failed: the verdict then says nothing about the patch.
        failure_reason: why the verdict is not valid, or why the patch is not resolved if no test failed; else empty.
        fail_to_pass: (passed, total).
        pass_to_pass: (passed, total).
        tests: each test of the log → PASSED, FAILED, ERROR, SKIPPED or XFAIL.
        patch_applied: False if the patch does not apply to the base commit. True for an empty patch.
        set_aside: paths whose changes were not graded: excluded paths, and files with means of forgery without which
            the tests pass.
        exit_code: exit code of the test command; None if it did not run.
        controls: number of negative controls (see `examination`) that the patch failed, as it should.
        proof: evidence that the tests passed by a repair: "blind" expectations, negative "controls", or "none".
        proof_bits: number of bits in the blind expectations that the tests met, see `grading.bits`; if a run without
            expected values proves what controls left open, those of the test with the fewest.
        proof_tests: the tests of FAIL_TO_PASS that the blind expectations prove: the run that proves them did not have
            their expected values in the sandbox.
        forgery_chance: the largest chance that a patch without the repair gets this verdict, see docs/verdict_rules.md;
            None if the patch was not examined.
        log: the output of the tests.
        duration_s: wall-clock seconds of grading, preparation and controls included.
        test_duration_s: wall-clock seconds of the first run of the tests.
        control_duration_s: wall-clock seconds of all further runs.
    """

    instance_id: str
    resolved: bool
    valid: bool = True
    failure_reason: str = ""
    fail_to_pass: tuple[int, int] = (0, 0)
    pass_to_pass: tuple[int, int] = (0, 0)
    tests: Mapping[str, str] = field(default_factory=dict, repr=False)
    patch_applied: bool = True
    set_aside: tuple[str, ...] = ()
    exit_code: int | None = None
    controls: int = 0
    proof: Proof = "none"
    proof_bits: float = 0.0
    proof_tests: tuple[str, ...] = ()
    forgery_chance: float | None = None
    log: str = field(default="", repr=False)
    duration_s: float = 0.0
    test_duration_s: float = 0.0
    control_duration_s: float = 0.0

    @property
    def forged(self) -> bool:
        """Whether the tests passed, or seemed to pass, by a forgery."""
        return self.failure_reason.startswith(FORGED)

    def with_chance(self, at_least: float) -> Verdict:
        """The same with a `forgery_chance` of at least this."""
        return replace(self, forgery_chance=max(at_least, self.forgery_chance or 0.0))


def grade_log(
    task: Task, log: str, *, exit_code: int | None = None, policy: Policy = "strict", command: str | None = None
) -> Verdict:
    """The verdict from a log of the task's tests.

    `official` is the rule of the SWE-bench harness: a skipped test counts neither way, an expected failure counts as
    passed, an absent test has failed. `strict` counts a skipped test as failed, and rejects a log that contradicts
    itself or the exit code. Under both policies only a test with the status FAILED has failed if `eval_type` is
    "fail_only". Whether a failure is expected cannot be seen in a log: `grade` compares with the gold patch.

    Args:
        log: the output of the test command, without the harness's markers.
        exit_code: exit code of the test command; None if unknown.
        command: the test command; None: the task's own.
    """
    parser = log_parser(task)
    if policy == "official":
        return _official(task, log, parser, exit_code)
    language = language_of(task)
    nested = task.repo in language.nested_logs
    report = None if nested else language.runner_report(log, parser)
    tests = parser(log)
    if report is not None and report.statuses is not None:
        tests = dict(report.statuses)  # what a test printed is not in the runner's own summary
    if command is None:
        command = evaluation_of(task).tests if task.eval_script else task.test_command
    reason = ""
    if language.reporting_runners.search(command) and not nested:
        passed = sum(status == "PASSED" for status in tests.values())
        if report is None:
            reason = f"{FORGED}the log names passed tests but the test runner did not reach its end" if passed else ""
        elif passed > report.passed_at_most:
            reason = f"{FORGED}the log names {passed} passed tests, the test runner counted {report.passed_at_most}"
        elif exit_code is not None and len(command.splitlines()) == 1 and (exit_code == 0) != report.success:
            claim = "success" if report.success else "failures"
            reason = f"{FORGED}the test runner reported {claim} and exited with {exit_code}"
    return _counted(task, tests, log, exit_code, policy, reason or ("" if tests else NO_TEST))


def _official(task: Task, log: str, parser: LogParser, exit_code: int | None) -> Verdict:
    """The log as the SWE-bench harness reads it: between its markers, or all of it if there is no test between them."""
    content = f"{_START}\n{log}\n{_END}\n"
    if any(mark in content for mark in _NO_RUN):
        return _counted(task, {}, log, exit_code, "official", "the log holds a mark of failure")
    tests = parser(content.split(_START)[1].split(_END, maxsplit=1)[0]) or parser(content)
    return _counted(task, tests, log, exit_code, "official")


def _counted(
    task: Task, tests: Mapping[str, str], log: str, exit_code: int | None, policy: Policy, failure_reason: str = ""
) -> Verdict:
    outcomes = [
        names_by_outcome(names, tests, task.eval_type, policy) for names in (task.fail_to_pass, task.pass_to_pass)
    ]
    counts = [(len(passed), len(passed) + len(failed)) for passed, failed in outcomes]
    return Verdict(
        task.instance_id,
        not failure_reason and not any(failed for _, failed in outcomes),
        failure_reason=failure_reason,
        fail_to_pass=counts[0],
        pass_to_pass=counts[1],
        tests=tests,
        exit_code=exit_code,
        log=log,
    )


def names_by_outcome(
    names: Iterable[str], tests: Mapping[str, str], eval_type: str, policy: Policy
) -> tuple[list[str], list[str]]:
    """Those of `names` that passed and those that failed; under `official` a skipped test is in neither list."""
    passed: list[str] = []
    failed: list[str] = []
    for name in names:
        status = tests.get(name)
        if eval_type == "fail_only":
            good = status != "FAILED"
        else:
            good = status in ("PASSED", "XFAIL")
            if policy == "official" and not good and status not in (None, "FAILED", "ERROR"):
                continue
        (passed if good else failed).append(name)
    return passed, failed


def passed_control(control: Control, verdict: Verdict) -> tuple[str, ...]:
    """The tests that passed in a negative control although they must fail, by the verdict on its log."""
    if control.names:
        return tuple(sorted(name for name in control.names if verdict.tests.get(name) == "PASSED"))
    passed, total = verdict.fail_to_pass
    return ("all of FAIL_TO_PASS",) if passed == total else ()
