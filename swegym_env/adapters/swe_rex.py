"""Our sandboxes as a deployment of SWE-ReX, the execution layer of SWE-agent: one session, commands, files.

A session is the sandbox's long-lived bash; `execute` runs in a subshell of it. There is one session at a time, and it
has no terminal: what asks for one (`is_interactive_command`) is refused. A failure of the machine is a `SandboxError`,
which no caller of SWE-ReX takes for the result of a command.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shlex
from pathlib import Path
from typing import Any

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime import abstract as rex

from swegym_env.adapters.workbench import OneCaller, SplitOutput, Workbench, subshell
from swegym_env.errors import SandboxError
from swegym_env.sandbox import CommandResult
from swegym_env.tasks.datasets import load_tasks

__all__ = ["SwegymDeployment", "SwegymRuntime"]

_MOST_S = 24 * 3600.0
"""SWE-ReX allows a command without a limit."""


class SwegymRuntime(rex.AbstractRuntime):
    """A task's sandbox, as SWE-ReX uses one.

    Args:
        bench: the sandbox.
        logger: SWE-ReX's.
    """

    def __init__(self, bench: Workbench, logger: logging.Logger) -> None:
        self.logger = logger
        self._bench = bench
        self._session = ""
        self._split = SplitOutput()
        self._caller = OneCaller(lambda: bench.sandbox)

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        """Whether its shell answers."""
        try:
            await self._run(":", timeout)
        except (SandboxError, CommandTimeoutError) as error:
            return rex.IsAliveResponse(is_alive=False, message=str(error))
        return rex.IsAliveResponse(is_alive=True)

    async def create_session(self, request: rex.CreateSessionRequest) -> rex.CreateSessionResponse:
        """Begin the session. Raises SessionExistsError: there is one already."""
        if self._session:
            raise SessionExistsError(f"session {self._session!r} exists, and a sandbox has one shell")
        self._session = request.session
        sourced = "\n".join(f"source {shlex.quote(path)}" for path in request.startup_source)
        done = await self._run(sourced, None) if sourced else None
        return rex.CreateBashSessionResponse(output=done.output if done else "")

    async def run_in_session(self, action: rex.Action) -> rex.Observation:
        """Run a command in the session; see `BashAction`.

        Raises:
            SessionDoesNotExistError, BashIncorrectSyntaxError, CommandTimeoutError, NonZeroExitCodeError: as SWE-ReX's.
            SwerexException: the command needs a terminal.
            SandboxError: the machine failed.
        """
        self._check_session(action.session)
        if isinstance(action, rex.BashInterruptAction):  # a command that timed out is ended already
            return rex.BashObservation(output="", exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit:
            raise SwerexException(f"{action.command!r} needs a terminal, which a session of swegym has not")
        checked = await self._run(f"bash -n <<< {shlex.quote(action.command)}", action.timeout)
        if checked.exit_code != 0:
            message = f"{action.command!r}: {checked.output}"
            raise BashIncorrectSyntaxError(message, extra_info={"bash_stdout": "", "bash_stderr": checked.output})
        done = await self._run(action.command, action.timeout)
        if action.check == "raise" and done.exit_code != 0:
            raise NonZeroExitCodeError(_failed(action.command, done.exit_code, done.output, action.error_msg))
        return rex.BashObservation(output=done.output, exit_code=None if action.check == "ignore" else done.exit_code)

    async def close_session(self, request: rex.CloseSessionRequest) -> rex.CloseSessionResponse:
        """End the session."""
        self._check_session(request.session)
        self._session = ""
        return rex.CloseBashSessionResponse()

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        """Run a command in a subshell; see `Command`.

        Raises:
            CommandTimeoutError, NonZeroExitCodeError: as SWE-ReX's.
            SandboxError: the machine failed.
        """
        text = command.command if isinstance(command.command, str) else shlex.join(command.command)
        line, stderr = subshell(text, cwd=command.cwd or "", env=command.env), ""
        if command.merge_output_streams:
            done = await self._run(line, command.timeout)
        else:

            def run() -> tuple[CommandResult, str]:
                found = self._split.run(self._bench.sandbox, line, timeout_s=command.timeout or _MOST_S)
                self._split.remove(self._bench.sandbox)  # nothing of ours is in the session's /tmp
                return found

            done, stderr = await self._caller.call(run)
            _check_in_time(done, text, command.timeout)
        if command.check and done.exit_code != 0:
            raise NonZeroExitCodeError(_failed(text, done.exit_code, done.output + stderr, command.error_msg))
        return rex.CommandResponse(stdout=done.output, stderr=stderr, exit_code=done.exit_code)

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        """The text of a file. Raises OSError, SandboxError."""
        content = await self._caller.call(lambda: self._bench.sandbox.read(request.path))
        return rex.ReadFileResponse(content=content.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        """Write a text. Raises OSError, SandboxError."""
        await self._caller.call(lambda: self._bench.sandbox.write(request.path, request.content.encode()))
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        """Copy a file or a folder of this machine into the sandbox. Raises OSError, SandboxError."""
        source, target = Path(request.source_path), Path(request.target_path)
        files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]

        def write() -> None:
            for path in files:
                place = target / path.relative_to(source) if source.is_dir() else target
                mode = path.stat().st_mode & 0o755
                self._bench.sandbox.write(str(place), path.read_bytes(), mode=mode)

        await self._caller.call(write)
        return rex.UploadResponse()

    async def close(self) -> rex.CloseResponse:
        """Remove the sandbox. Idempotent."""
        self._session = ""
        await asyncio.to_thread(self._caller.finish, self._bench.close)
        return rex.CloseResponse()

    def _check_session(self, name: str) -> None:
        if not self._session or name != self._session:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")

    async def _run(self, command: str, timeout_s: float | None) -> CommandResult:
        run = functools.partial(self._bench.sandbox.run, command, timeout_s=timeout_s or _MOST_S)
        done = await self._caller.call(run)
        _check_in_time(done, command, timeout_s)
        return done


def _check_in_time(done: CommandResult, command: str, timeout_s: float | None) -> None:
    if done.timed_out:
        raise CommandTimeoutError(f"timeout after {timeout_s} seconds while running command {command!r}")


class SwegymDeployment(AbstractDeployment):
    """The sandbox of a task as a deployment: `SWEEnv(deployment=SwegymDeployment(instance=…), …)`.

    Args:
        dataset: as `swegym_env.tasks.datasets.load_tasks` takes it.
        split: of the dataset.
        instance: id of the task.
        sandbox: a back end, see `sandbox.open_sandbox`.
        repos: source of git repositories, see `prepare`.
        logger: where SWE-ReX logs.
    """

    def __init__(
        self,
        *,
        instance: str,
        dataset: str = "mini",
        split: str | None = None,
        sandbox: str = "auto",
        repos: str | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.logger = logger or logging.getLogger("swegym.rex")
        self.bench: Workbench | None = None
        self._task = load_tasks(dataset, split=split, on_bad_row="skip")[instance]
        self._sandbox, self._repos = sandbox, repos
        self._runtime: SwegymRuntime | None = None
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook: DeploymentHook) -> None:
        """Call a hook at the steps of the start."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        """Whether the sandbox answers."""
        if self._runtime is None:
            return rex.IsAliveResponse(is_alive=False, message="the deployment is not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self, *_: Any, **__: Any) -> None:
        """Start the sandbox. Raises InfrastructureError."""
        self._hooks.on_custom_step("Starting the sandbox")
        self.bench = Workbench(self._task, backend=self._sandbox, repos=self._repos)
        self._runtime = SwegymRuntime(self.bench, self.logger)

    async def stop(self, *_: Any, **__: Any) -> None:
        """Remove the sandbox. Idempotent."""
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    @property
    def runtime(self) -> SwegymRuntime:
        """The runtime. Raises DeploymentNotStartedError."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime


def _failed(command: str, exit_code: int, output: str, message: str) -> str:
    reason = f"Command {command!r} failed with exit code {exit_code}. Here is the output:\n{output!r}"
    return f"{message}: {reason}" if message else reason
