"""One run of a task's tests on a patch, in a sandbox of its own that nothing else has used."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from swegym_env.errors import GradingError
from swegym_env.judging.evaluation import Evaluation, evaluation_of
from swegym_env.judging.policy import Policy, is_protected, touched_paths
from swegym_env.judging.verdict import FORGED
from swegym_env.sandbox import CommandResult, Sandbox, open_sandbox
from swegym_env.sandbox.leases import no_place
from swegym_env.tasks.task import Task
from swegym_env.tasks.workspace import Workspace

__all__ = ["Bench", "Trial"]

_LOG_BYTES = 64 << 20
_PATCH = "/tmp/.swegym-patch"
_APPLY_TIMEOUT_S = 120.0
_NO_GIT = 69  # EX_UNAVAILABLE, which neither git nor patch ends with

# As the SWE-bench harness tries them; `git apply --3way` works on the index, so what it leaves half done can be undone.
_APPLY = f"""\
if git apply --whitespace=nowarn {_PATCH}; then exit 0; fi
if git apply --whitespace=nowarn --3way {_PATCH}; then git reset -q; exit 0; fi
git reset -q --hard
if git apply --whitespace=nowarn --reject {_PATCH}; then exit 0; fi
git reset -q --hard
"""
_APPLY_OFFICIAL = f"""\
if git apply --verbose {_PATCH}; then exit 0; fi
if git apply --verbose --reject {_PATCH}; then exit 0; fi
"""
# `-u`: without it patch would also take an ed script, which runs commands.
_APPLY_FUZZY = f"patch -u --batch --fuzz=5 -p1 -i {_PATCH}"


@dataclass(frozen=True)
class Trial:
    """How one run went.

    Attributes:
        problem: why the tests were not run, which is the patch's fault; else empty.
        result: of the test command; None where it was not run.
        files: path → text of the test files asked for, as the task has them.
    """

    problem: str = ""
    result: CommandResult | None = None
    files: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Bench:
    """Where trials of one task are made.

    Attributes:
        task: whose tests are run.
        workspace: of the task.
        policy: decides how patches are applied.
        backend: of the sandboxes.
        timeout_s: for the tests.
    """

    task: Task
    workspace: Workspace
    policy: Policy
    backend: str
    timeout_s: float

    @property
    def evaluation(self) -> Evaluation:
        """The commands that are run."""
        return evaluation_of(self.task, self.workspace.test_command)

    def run(self, patch: str, *, rewritten: Mapping[str, str] | None = None, watched: tuple[str, ...] = ()) -> Trial:
        """Apply `patch` and the task's tests to a fresh checkout, and run them.

        Args:
            patch: what is graded of the agent's patch.
            rewritten: path → text of test files to run in place of the task's own.
            watched: test files whose text is wanted. They are written anew in every trial, the task's own text where
                nothing else is given: no date of a file tells one trial from another.
        Raises:
            InfrastructureError: the machine failed, or the task's own tests cannot be run.
        """
        evaluation = self.evaluation
        with self._patched(patch) as (sandbox, problem):
            if problem:
                return Trial(problem)
            files = _texts(sandbox, watched)
            for path, text in files.items():
                _write(sandbox, f"/testbed/{path}", (rewritten or {}).get(path, text))
            result = self._run_tests(sandbox, evaluation)
            self._require_runner(sandbox, evaluation, result)
        return Trial("", result, files)

    def texts(self, patch: str, paths: tuple[str, ...]) -> Mapping[str, str]:
        """Path → text of the task's test files as they lie beside `patch`; no test is run. Raises as `run`."""
        with self._patched(patch) as (sandbox, problem):
            return {} if problem else _texts(sandbox, paths)

    @contextlib.contextmanager
    def _patched(self, patch: str) -> Iterator[tuple[Sandbox, str]]:
        """A fresh sandbox with both patches, and why they cannot be applied where that is the agent's fault."""
        sandbox = open_sandbox(self.workspace.spec, backend=self.backend)
        try:
            sandbox.start()
            yield sandbox, self._apply_agent_patch(sandbox, patch) or self._apply_test_patch(sandbox, patch)
        finally:
            sandbox.close()

    def _apply_agent_patch(self, sandbox: Sandbox, patch: str) -> str:
        """Apply what is graded of the agent's patch; why it cannot be, else empty."""
        if not patch:
            return ""
        task = self.task
        _write(sandbox, _PATCH, patch)
        script = _APPLY if self.policy == "strict" else _APPLY_OFFICIAL
        if self.policy == "official" or ".git/" not in patch:  # git refuses to write there, patch does not
            script += _APPLY_FUZZY
        applied = sandbox.run(
            f"(\ncd /testbed\ncommand -v git >/dev/null || exit {_NO_GIT}\n{script}\n)", timeout_s=_APPLY_TIMEOUT_S
        )
        result = self._unstarved(applied, "the programs that apply the patch did not end", _APPLY_TIMEOUT_S)
        if result.exit_code == _NO_GIT:
            raise GradingError(f"{task.instance_id}: image {task.image} has no git, which patches are applied with")
        if result.exit_code != 0:
            last = [line for line in result.output.splitlines() if line.strip()][-1:]
            return f"the patch does not apply: {last[0] if last else 'no message'}"
        if self.policy == "official":
            return ""
        # What was really changed counts, not what our reading of the patch says.
        allowed = touched_paths(task.patch)
        beyond = [
            change.path
            for change in sandbox.changes("/testbed")
            if change.path not in allowed and is_protected(change.path, self.workspace.base, self.evaluation.tests)
        ]
        return f"{FORGED}the patch changes {beyond[0]} in disguise" if beyond else ""

    def _apply_test_patch(self, sandbox: Sandbox, agent_patch: str) -> str:
        """Bring the test patch's files to the base commit's state, then apply it; why the agent's patch prevents it."""
        task, official = self.task, self.policy == "official"
        if not task.test_patch:
            return ""
        paths = sorted(touched_paths(task.test_patch))
        known = [path for path in paths if os.path.lexists(self.workspace.base / path)]
        steps = []
        if touched_paths(agent_patch).intersection(paths):
            # The harness leaves files that the test patch will add where an agent made them, and then cannot apply it.
            steps = [] if official else [f"rm -rf -- {shlex.join(paths)}"]
            steps += [f"git checkout -q HEAD -- {shlex.join(known)}"] if known else []
        _write(sandbox, _PATCH, task.test_patch)
        steps.append(f"git apply --whitespace=nowarn {_PATCH}")
        script = "(\ncd /testbed &&\n" + " &&\n".join(steps) + f"\n) && rm -f {_PATCH}"
        applied = sandbox.run(script, timeout_s=_APPLY_TIMEOUT_S)
        result = self._unstarved(applied, "the programs that apply the test patch did not end", _APPLY_TIMEOUT_S)
        if result.exit_code == 0 or (official and agent_patch):
            return ""
        if agent_patch:
            return f"the test patch does not apply over the agent's: {result.output.strip()[-300:]}"
        raise GradingError(
            f"{task.instance_id}: the task's own test patch does not apply to {task.base_commit or 'its files'}: "
            f"{result.output.strip()[-300:]}"
        )

    def _run_tests(self, sandbox: Sandbox, evaluation: Evaluation) -> CommandResult:
        if evaluation.settings:
            sandbox.run(f"cd /testbed\n{evaluation.settings}", timeout_s=_APPLY_TIMEOUT_S)
        script = f"(\ncd /testbed\n{evaluation.tests}\n)"
        result = sandbox.run(script, timeout_s=self.timeout_s, output_limit_bytes=_LOG_BYTES)
        return self._unstarved(result, "the tests did not end", self.timeout_s)

    def _unstarved(self, result: CommandResult, what: str, timeout_s: float) -> CommandResult:
        """The result, unless the time limit was met through the machine's fault: that is no verdict."""
        if result.starved:
            raise GradingError(
                f"{self.task.instance_id}: {what} within {timeout_s:g} s, and waited for a processor meanwhile: "
                "this machine is too busy. Try: fewer jobs at a time, or a longer time limit (--timeout)"
            )
        return result

    def _require_runner(self, sandbox: Sandbox, evaluation: Evaluation, result: CommandResult) -> None:
        """Tell a test command that does not exist, which is no fault of the patch, from tests that fail."""
        if result.exit_code != 127:
            return
        task, last = self.task, evaluation.tests.splitlines()[-1]
        command = next((word for word in shlex.split(last, comments=True) if "=" not in word), "")
        if sandbox.run(f"command -v -- {shlex.quote(command)}").exit_code != 0:
            raise GradingError(
                f"{task.instance_id}: the tests cannot be run: {command}: command not found. "
                f"Try: set-up commands for {task.repo} {task.version} that install it"
            )


def _texts(sandbox: Sandbox, paths: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        try:
            found[path] = sandbox.read(f"/testbed/{path}").decode("utf-8", "surrogateescape")
        except OSError:
            continue  # a file that the test patch removes, or that a name only seems to tell
    return found


def _write(sandbox: Sandbox, path: str, text: str) -> None:
    try:
        sandbox.write(path, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise no_place(error) from error
