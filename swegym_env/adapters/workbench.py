"""What other projects need of a task's sandbox: commands in fresh subshells, files, the patch, and the verdict on it.

An agent of another project expects that each command begins in the same directory with the same variables. It runs in a
subshell of the sandbox's long-lived shell, which costs a fork and no container.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

from swegym_env.agent.tools import ToolSet
from swegym_env.errors import InfrastructureError, SandboxBrokenError
from swegym_env.grading.grading import grade
from swegym_env.prepare import prepare
from swegym_env.sandbox import CommandResult, Limits, Sandbox
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task, TaskSet

__all__ = ["OneCaller", "SplitOutput", "Workbench", "broken_by_agent", "outcome_of", "subshell", "tasks_of"]

_FILES = "/tmp/.swegym-"
_REMOVE = f"rm -rf {_FILES}*"
_REMOVE_AFTER = 64  # commands
_INTERRUPT_AGAIN_S = 1.0
_Found = TypeVar("_Found")


@cache
def tasks_of(dataset: str, split: str | None) -> TaskSet[Task]:
    """The tasks of a dataset, without malformed rows; see `tasks.datasets.load_tasks`."""
    return load_tasks(dataset, split=split, on_bad_row="skip")


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

    def verdict(self) -> dict[str, Any]:
        """Grade the repository as it is now; see `outcome_of`. A sandbox that the agent broke is a failure.

        Raises:
            InfrastructureError: the changes cannot be read.
        """
        try:
            patch = self.patch()
        except SandboxBrokenError as error:
            return broken_by_agent(error)
        return self.outcome(patch)

    def close(self) -> None:
        """Remove the sandbox. Idempotent."""
        self.sandbox.close()


def subshell(command: str, *, cwd: str = "", env: Mapping[str, str] | None = None) -> str:
    """A line for bash that runs `command` in a subshell, with variables, from the directory `cwd` (empty: as it is)."""
    directory = f"cd -- {shlex.quote(cwd)} || exit; " if cwd else ""
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in (env or {}).items())
    return f"( {directory}{exports}eval {shlex.quote(command)} )"


class OneCaller:
    """The one thread that uses a sandbox: each call waits for the one before, also for a cancelled one.

    Nobody reads the result of a cancelled call, and a command may have no time limit: so cancelling a call ends what
    runs in the sandbox, and so does closing it.

    Args:
        sandbox: the sandbox, None where it was not started.
    """

    def __init__(self, sandbox: Callable[[], Sandbox | None]) -> None:
        self._sandbox = sandbox
        self._thread = ThreadPoolExecutor(1, "swegym-sandbox")
        self._lock = threading.Lock()
        self._running: object | None = None  # the call that uses the sandbox now

    async def call(self, use: Callable[[], _Found]) -> _Found:
        """Run what uses the sandbox on the thread."""
        call = object()

        def run() -> _Found:
            with self._lock:
                self._running = call
            try:
                return use()
            finally:
                with self._lock:
                    self._running = None

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except asyncio.CancelledError:
            with self._lock:  # it may have ended, and another one may run by now
                if self._running is call:
                    self._interrupt()
            raise

    def finish(self, close: Callable[[], None], *, patience_s: float = math.inf) -> None:
        """Run `close` on the thread, and end the calls before it; no other call is accepted. Idempotent.

        Args:
            close: closes the sandbox.
            patience_s: how long to wait for it; it is done in any case.
        """
        try:
            last = self._thread.submit(close)
        except RuntimeError:  # finished already
            return
        self._thread.shutdown(wait=False)
        ends = time.monotonic() + patience_s
        while not last.done() and time.monotonic() < ends:
            self._interrupt()
            wait([last], timeout=_INTERRUPT_AGAIN_S)
        if last.done():
            last.result()

    def _interrupt(self) -> None:
        """End what runs in the sandbox."""
        sandbox = self._sandbox()
        if sandbox is not None:
            sandbox.interrupt()


class SplitOutput:
    """Runs commands with their two outputs apart: the shell has one, so standard error goes through a file.

    The file is read from outside, which costs no second command and waits for nothing. Each command has one of its own,
    since what it left running may still write; they are removed now and then. No agent can guess the name of the next
    one, and put a link or a named pipe there.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def run(
        self, sandbox: Sandbox, line: str, *, timeout_s: float | None = None, data: bytes | None = None
    ) -> tuple[CommandResult, str]:
        """Run a line for bash with `data` as its input; the result with standard output, and standard error.

        Bytes that are no UTF-8 are replaced. Raises SandboxError, OSError: the input cannot be written.
        """
        name = f"{_FILES}{secrets.token_hex(8)}"
        source, place = "/dev/null" if data is None else f"{name}-in", f"{name}-err"
        old = f"{_REMOVE}; " if next(self._numbers) % _REMOVE_AFTER == 0 and data is None else ""
        if data is not None:
            sandbox.write(source, data)
        done = sandbox.run(f"{old}{line} <{source} 2>{place}", timeout_s=timeout_s)
        try:
            return done, sandbox.read(place).decode("utf-8", "replace")
        except OSError as error:  # the command removed it, or it is too large
            return done, f"standard error cannot be read: {error}"

    def remove(self, sandbox: Sandbox) -> None:
        """Remove the files of the commands so far, which costs a command. Raises SandboxError."""
        sandbox.run(_REMOVE)


def broken_by_agent(error: SandboxBrokenError) -> dict[str, Any]:
    """The outcome of an episode whose sandbox the agent has broken: a failure like any other, see `outcome_of`."""
    return {"valid": True, "reward": 0.0, "resolved": False, "failure_reason": str(error)}


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
