"""What other projects ask of a place to work in: commands in fresh subshells, files, the patch, and the verdict on it.

An agent of another project expects that each command begins in the same directory with the same variables. It runs in a
subshell of the sandbox's long-lived shell, which costs a fork and no container.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from typing import Any

from swegym_env.agent.tools import ToolSet
from swegym_env.errors import InfrastructureError
from swegym_env.grading.grading import grade
from swegym_env.prepare import prepare
from swegym_env.sandbox import CommandResult, Limits, Sandbox
from swegym_env.tasks.task import Task

__all__ = ["SplitOutput", "Workbench", "outcome_of", "subshell"]

_ERRORS = "/tmp/.swegym-errors-"
_REMOVE_AFTER = 64  # commands


class Workbench:
    """A started sandbox of a task.

    Args:
        task: the task.
        backend: see `sandbox.open_sandbox`.
        repos: see `prepare`.
        env: variables of every command.
        limits: of the sandbox, in place of the defaults.
        tools: programs for the agent.

    Attributes:
        task: the task.
        sandbox: its sandbox.

    Raises:
        InfrastructureError: it cannot be started; then nothing is left of it.
        ConfigurationError: the back end does not work here.
    """

    def __init__(
        self,
        task: Task,
        *,
        backend: str = "auto",
        repos: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        tools: ToolSet | None = None,
    ) -> None:
        self.task = task
        self._backend, self._repos = backend, repos
        self._workspace = prepare(task, tools=tools or ToolSet(shell=True), backend=backend, repos=repos, limits=limits)
        self.sandbox: Sandbox = self._workspace.start()
        if env:
            assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
            try:
                self.sandbox.run(f"export {assignments}")
            except InfrastructureError:
                self.close()
                raise

    def run(
        self, command: str, *, cwd: str = "", env: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> CommandResult:
        """Run a command in a subshell: its directory, variables and traps do not outlive it.

        Args:
            command: for bash.
            cwd: where it begins; empty: the repository.
            env: further variables, for this command.
            timeout_s: seconds; None: the limit of the sandbox.
        Raises:
            SandboxError: the sandbox is dead.
        """
        line = subshell(command, cwd=cwd or self.sandbox.spec.workdir or "/testbed", env=env)
        return self.sandbox.run(line, timeout_s=timeout_s)

    def patch(self) -> str:
        """The changes of the repository as a git diff; see `repo.capture.capture_patch`."""
        return self._workspace.patch(self.sandbox, fresh=True)

    def outcome(self, patch: str) -> dict[str, Any]:
        """Grade a patch in a fresh sandbox; see `outcome_of`."""
        return outcome_of(self.task, patch, backend=self._backend, repos=self._repos)

    def close(self) -> None:
        """Remove the sandbox. Idempotent."""
        self.sandbox.close()


def subshell(command: str, *, cwd: str, env: Mapping[str, str] | None = None) -> str:
    """A line for bash that runs `command` in a subshell, from the directory `cwd`, with further variables."""
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in (env or {}).items())
    return f"( cd -- {shlex.quote(cwd)} || exit; {exports}eval {shlex.quote(command)} )"


class SplitOutput:
    """Runs commands with their two outputs apart: the shell has one, so standard error goes through a file.

    The file is read from outside, which costs no second command. Each command has one of its own, since what it left
    running may still write; they are removed now and then.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def run(self, sandbox: Sandbox, line: str, *, timeout_s: float | None = None) -> tuple[CommandResult, str]:
        """Run a line for bash without input; the result with standard output, and standard error.

        Bytes that are no UTF-8 are replaced. Raises SandboxError.
        """
        number = next(self._numbers)
        place = f"{_ERRORS}{number}"
        old = f"rm -f {_ERRORS}*; " if number % _REMOVE_AFTER == 0 else ""
        done = sandbox.run(f"{old}{line} </dev/null 2>{place}", timeout_s=timeout_s)
        try:
            return done, sandbox.read(place).decode("utf-8", "replace")
        except OSError as error:  # the command removed it, or it is too large
            return done, f"standard error cannot be read: {error}"


def outcome_of(task: Task, patch: str, *, backend: str = "auto", repos: str | None = None) -> dict[str, Any]:
    """Grade a patch of `task` in a fresh sandbox.

    Returns:
        `valid`, `failure_reason`, and only where `valid` is True: `reward`, `resolved` and the counts of tests.
    """
    try:
        verdict = grade(task, patch, repos=repos, backend=backend)
    except InfrastructureError as error:
        return {"valid": False, "failure_reason": f"{type(error).__name__}: {error}"}
    if not verdict.valid:
        return {"valid": False, "failure_reason": verdict.failure_reason}
    return {
        "valid": True,
        "reward": float(verdict.resolved),
        "resolved": verdict.resolved,
        "fail_to_pass": list(verdict.fail_to_pass),
        "pass_to_pass": list(verdict.pass_to_pass),
        "failure_reason": verdict.failure_reason,
    }
