"""The verdict on a patch: apply it to a fresh checkout, add the tests, run them, read the log, and doubt what it says.

Never in the agent's sandbox: nothing that an agent left running, installed or hid takes part. Under the policy
`strict` a patch that passes is examined further, in more fresh sandboxes, as far as what it could do asks for it (see
`screening`): negative controls, which no honest patch passes (see `controls`), and the same tests once more.

What is promised: changes to tests, to the runner's configuration and to what Python loads before them are not graded;
a log that disagrees with itself or with the exit code is not believed; a patch that makes hidden tests pass by
whatever means that work without knowing the expected value, from a forged log to an object that equals everything, is
`invalid: forged`.

What is not: a patch that solves exactly the hidden tests and nothing else is a solution to them. A patch that knows
the hidden tests' text from elsewhere can tell a control from them, and so can one where the tests that show the repair
lie in the repository for the agent to read, or are written in another language than Python (`Verdict.controls` is 0
then). One that forges by chance gets through one time in sixteen at best, or in four where it uses nothing that
`screening` knows as a means of forging. And it is not a virtual machine: see `sandbox`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.judging.controls import Control, added_lines, make_control, test_files
from swegym_env.judging.log_verdict import judge_log
from swegym_env.judging.policy import Policy, partition
from swegym_env.judging.remote import grade_remotely
from swegym_env.judging.screening import Scrutiny, scrutiny_of
from swegym_env.judging.trial import Bench, Trial
from swegym_env.judging.verdict import FORGED, Verdict
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.remote import is_remote
from swegym_env.tasks.task import Task
from swegym_env.tasks.workspace import prepare_workspace

__all__ = ["Verdict", "grade", "grade_many", "judge_log"]


def grade(
    task: Task,
    patch: str,
    *,
    repos: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
    timeout_s: float | None = None,
    policy: Policy = "strict",
    scrutiny: Scrutiny | None = None,
) -> Verdict:
    """Grade one patch on fresh layers.

    Args:
        patch: git diff against the base commit; empty for none.
        repos: where the repository comes from, see `repository_layer`.
        backend: of the sandbox; where it is a service, that grades.
        store: of the layers.
        timeout_s: for the tests; by default the task's own.
        policy: `strict` sets changes of tests and of the runner's configuration aside and examines what passes,
            `official` judges as the SWE-bench harness does.
        scrutiny: how closely `strict` examines; None: as closely as the patch asks for.
    Raises:
        InfrastructureError: the machine failed, or the task's own tests cannot be run; the patch is not at fault.
    """
    if is_remote(backend):
        if repos is not None or store is not None or scrutiny is not None:
            raise ConfigurationError(f"{backend}: repos, store and scrutiny are the service's (swegym serve --repos)")
        return grade_remotely(task, patch, backend, timeout_s=timeout_s, policy=policy)
    begin = time.monotonic()
    workspace = prepare_workspace(task, repos=repos, store=store, backend=backend)
    bench = Bench(task, workspace, policy, backend, task.test_timeout_s if timeout_s is None else timeout_s)
    parts = partition(task, patch, workspace.base, policy, bench.evaluation.tests)
    if policy == "official":
        scrutiny = Scrutiny(1, 0)
    elif scrutiny is None:
        scrutiny = scrutiny_of(parts.kept, workspace.base)
    watched = test_files(task) if scrutiny.controls else ()
    trial = bench.run(parts.kept, watched=watched)
    verdict = _judged(bench, trial)
    passed_at = time.monotonic()
    if verdict.resolved and (scrutiny.passes > 1 or scrutiny.controls):
        verdict = _Examination(bench, parts.kept, watched, trial.files or {}, verdict).carry_out(scrutiny)
    return dataclasses.replace(
        verdict,
        set_aside=parts.set_aside,
        duration_s=time.monotonic() - begin,
        control_duration_s=time.monotonic() - passed_at,
    )


def _judged(bench: Bench, trial: Trial) -> Verdict:
    """The verdict of one trial by itself."""
    task, result = bench.task, trial.result
    if result is None:
        return Verdict(
            task.instance_id,
            False,
            failure_reason=trial.problem,
            fail_to_pass=(0, len(task.fail_to_pass)),
            pass_to_pass=(0, len(task.pass_to_pass)),
            patch_applied=False,
        )
    verdict = judge_log(
        task, result.output, exit_code=result.exit_code, policy=bench.policy, command=bench.evaluation.tests
    )
    reason = verdict.failure_reason
    if result.timed_out:
        reason = f"the tests did not end within {bench.timeout_s:g} s"
    elif result.limit == "disk" and not verdict.resolved:
        reason = ": ".join(filter(None, (reason, "the tests filled the sandbox's disk")))
    return dataclasses.replace(
        verdict, failure_reason="" if verdict.resolved else reason, test_duration_s=result.duration_s
    )


@dataclasses.dataclass(frozen=True)
class _Examination:
    """Further trials of a patch that passed once."""

    bench: Bench
    patch: str
    watched: tuple[str, ...]
    files: Mapping[str, str]
    verdict: Verdict

    def carry_out(self, scrutiny: Scrutiny) -> Verdict:
        """The verdict that stands after all trials."""
        for _ in range(scrutiny.passes - 1):
            again = _judged(self.bench, self.bench.run(self.patch, watched=self.watched))
            if not again.resolved:
                reason = again.failure_reason or "a test failed"
                return self._denied(f"the tests passed once and not again: {reason}")
        failed = 0
        for _ in range(scrutiny.controls):
            control = self._control()
            if control is None:
                break
            if self._passes(self.patch, control):
                if self._is_sound(control):
                    return self._denied(f"{FORGED}the tests passed with a wrong expected value too")
                continue
            failed += 1
        return dataclasses.replace(self.verdict, controls=failed)

    def _denied(self, reason: str) -> Verdict:
        return dataclasses.replace(self.verdict, resolved=False, failure_reason=reason)

    def _control(self) -> Control | None:
        task = self.bench.task
        names = [name for name in task.fail_to_pass if self.verdict.tests.get(name) == "PASSED"]
        return make_control(self.files, names, added_lines(task.test_patch), secrets.randbits(64))

    def _passes(self, patch: str, control: Control) -> bool:
        """Whether a test passes that cannot."""
        return bool(
            control.passing(_judged(self.bench, self.bench.run(patch, rewritten=control.files, watched=self.watched)))
        )

    def _is_sound(self, control: Control) -> bool:
        """Whether the gold patch fails it: a test that cannot fail accuses nobody."""
        gold = partition(self.bench.task, self.bench.task.patch, self.bench.workspace.base).kept
        return not self._passes(gold, control)


def grade_many(
    patches: Iterable[tuple[Task, str]],
    *,
    jobs: int = 1,
    on_verdict: Callable[[Verdict], None] | None = None,
    repos: str | os.PathLike[str] | None = None,
    backend: str = "auto",
    store: LayerStore | None = None,
    timeout_s: float | None = None,
    policy: Policy = "strict",
) -> Iterator[Verdict]:
    """Grade many patches, `jobs` at a time; verdicts come in the order of `patches`.

    A failure of the machine becomes a verdict that is not `valid`, with its reason. `on_verdict` is called as each is
    found, for progress.
    """
    store = store or (None if is_remote(backend) else LayerStore())

    def one(task: Task, patch: str) -> Verdict:
        begin = time.monotonic()
        try:
            verdict = grade(task, patch, repos=repos, backend=backend, store=store, timeout_s=timeout_s, policy=policy)
        except InfrastructureError as error:
            verdict = Verdict(
                task.instance_id,
                False,
                valid=False,
                failure_reason=str(error),
                patch_applied=False,
                duration_s=time.monotonic() - begin,
            )
        if on_verdict is not None:
            on_verdict(verdict)
        return verdict

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="grade")
    pending: dict[int, Future[Verdict]] = {}
    given = 0
    try:
        for number, (task, patch) in enumerate(patches):
            pending[number] = pool.submit(one, task, patch)
            if len(pending) >= 4 * max(1, jobs):
                wait([pending[given]], return_when=FIRST_COMPLETED)
            while given in pending and pending[given].done():
                yield pending.pop(given).result()
                given += 1
        while pending:
            yield pending.pop(given).result()
            given += 1
    finally:
        # Whoever leaves early, by an error or Ctrl-C, is not held up by tests that may run for minutes.
        pool.shutdown(wait=False, cancel_futures=True)
