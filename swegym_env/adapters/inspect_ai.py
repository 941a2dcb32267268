"""Adapter for Inspect: the sandbox provider `swegym`, and a task that scores samples by our verdict.

    inspect eval swegym_env/swegym -T dataset=mini --model openai/gpt-5 --limit 10

Inspect finds both by the entry point of this package. Other tasks use the provider by `sandbox="swegym"`, with
`dataset`, `instance_id` and optionally `split` in the metadata of each sample.

If the infrastructure fails, the sample has an error and no score.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState
from inspect_ai.tool import ToolError, bash
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandbox,
    sandboxenv,
)

from swegym_env.adapters.workbench import OneCaller, SplitOutput, Workbench, subshell, tasks_of
from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxBrokenError
from swegym_env.sandbox import CommandResult, Limits, Sandbox

__all__ = ["SwegymSandbox", "swegym", "verdict"]

_FOUND_BUT_NOT_EXECUTABLE = 126
_STARTS_AT_ONCE = 32
_MOST_S = 24 * 3600.0  # of a command without a limit of its own; Inspect has limits of a sample
_PROMPT = (
    "The repository of your working directory has this issue. Change the repository so that it is resolved, and submit "
    "when you are done.\n\n"
)
_Found = TypeVar("_Found")


@sandboxenv(name="swegym")
class SwegymSandbox(SandboxEnvironment):
    """The sandbox of a task.

    Args:
        bench: the started sandbox.
    """

    def __init__(self, bench: Workbench) -> None:
        super().__init__()
        self.bench = bench
        self._split = SplitOutput()
        self._caller = OneCaller(lambda: self.bench.sandbox)
        self._users: frozenset[str] = frozenset()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Start the sandbox of a sample's task.

        Raises:
            ConfigurationError: the sample does not name a task, or there is a configuration, which has no meaning.
            InfrastructureError: it cannot be started.
        """
        del task_name
        if config is not None:
            raise ConfigurationError(f'sandbox "swegym": takes no configuration, got {config!r}')
        if "instance_id" not in metadata:
            raise ConfigurationError('sandbox "swegym": the metadata of the sample have no "instance_id"')
        tasks = tasks_of(metadata.get("dataset", "mini"), metadata.get("split"))
        limits = replace(Limits(), output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
        bench = await asyncio.to_thread(
            Workbench,
            tasks[metadata["instance_id"]],
            backend=metadata.get("sandbox", "auto"),
            repos=metadata.get("repos"),
            limits=limits,
        )
        return {"default": cls(bench)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End what runs in the sandboxes of a sample, and remove them."""
        del task_name, config, interrupted
        for environment in environments.values():
            await asyncio.to_thread(environment.as_type(cls).finish)

    @classmethod
    def default_concurrency(cls) -> int | None:
        """How many sandboxes there are at once, where nothing else limits it."""
        return _STARTS_AT_ONCE

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """See `SandboxEnvironment.exec`; bytes that are no UTF-8 are replaced.

        Raises:
            InfrastructureError: the machine failed, which is no result of a command.
            ToolError: the agent has broken the sandbox.
        """
        del timeout_retry, concurrency
        if user is not None and user not in await self._own_names():
            raise SandboxUserUnsupportedError(f"a sandbox of swegym has one user, and cannot execute as {user!r}")
        line = subshell(shlex.join(cmd), cwd=self._absolute(cwd or "."), env=env)

        def run(box: Sandbox) -> tuple[CommandResult, str]:
            data = input.encode() if isinstance(input, str) else input
            try:
                return self._split.run(box, line, timeout_s=timeout or _MOST_S, data=data)
            except OSError as error:  # the agent has filled or closed the place
                raise ToolError(f"the input of the command cannot be written: {error}") from error

        done, errors = await self._call(run)
        if done.timed_out:
            raise TimeoutError(f"timeout after {timeout} seconds: {shlex.join(cmd)[:200]}")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if done.truncated_bytes or len(errors) > most:
            shown = done.output if done.truncated_bytes else errors[:most]
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, shown)
        if done.exit_code == _FOUND_BUT_NOT_EXECUTABLE and errors.rstrip().endswith("Permission denied"):
            raise PermissionError(errors.strip())
        return ExecResult(done.exit_code == 0, done.exit_code, done.output, errors)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """See `SandboxEnvironment.write_file`."""
        data = contents.encode() if isinstance(contents, str) else contents
        await self._call(lambda box: box.write(self._absolute(file), data))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """See `SandboxEnvironment.read_file`."""
        try:
            data = await self._call(lambda box: box.read(self._absolute(file)))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            raise
        if len(data) > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    def finish(self) -> None:
        """End what runs in the sandbox, and remove it."""
        self._caller.finish(self.bench.close)

    async def outcome(self) -> dict[str, Any]:
        """The verdict on the repository as it is now; see `Workbench.verdict`."""
        return await self._call(lambda _: self.bench.verdict())

    def _absolute(self, path: str) -> str:
        return posixpath.join(self.bench.sandbox.spec.workdir or "/testbed", path)

    async def _own_names(self) -> frozenset[str]:
        if not self._users:
            done = await self._call(lambda box: box.run("id -un; id -u"))
            self._users = frozenset(done.output.split())
        return self._users

    async def _call(self, use: Callable[[Sandbox], _Found]) -> _Found:
        """Use the sandbox.

        Raises:
            ToolError: the agent has broken the sandbox. The agent reads this error. Its work is graded if that is still
                possible, else its score is 0.
            InfrastructureError: the machine failed.
        """
        try:
            return await self._caller.call(lambda: use(self.bench.sandbox))
        except SandboxBrokenError as error:
            raise ToolError(f"The sandbox is broken: {error}") from error


@scorer(metrics=[accuracy(), stderr()])
def verdict() -> Scorer:
    """1 where our grading resolves the task with the repository as the agent left it, else 0.

    Raises:
        InfrastructureError: the machine failed while it graded: the sample has no score.
    """

    async def score(state: TaskState, target: Target) -> Score:
        del state, target
        found = await sandbox().as_type(SwegymSandbox).outcome()
        if not found["valid"]:
            raise InfrastructureError(found["failure_reason"])
        return Score(value=found["reward"], explanation=found["failure_reason"] or None, metadata=found)

    return score


@task
def swegym(dataset: str = "mini", split: str | None = None, sandbox: str = "auto", repos: str | None = None) -> Task:
    """Our tasks, an agent with bash, and our verdict.

    Args:
        dataset: as `swegym_env.tasks.datasets.load_tasks` takes it.
        split: of the dataset.
        sandbox: a back end, see `sandbox.open_sandbox`.
        repos: source of git repositories, see `prepare`.
    """
    known = {"dataset": dataset, "split": split, "sandbox": sandbox, "repos": repos}
    metadata = {name: value for name, value in known.items() if value is not None}
    samples = [
        Sample(
            id=each.instance_id,
            input=_PROMPT + each.problem_statement,
            metadata={**metadata, "instance_id": each.instance_id},
        )
        for each in tasks_of(dataset, split)
    ]
    return Task(
        dataset=MemoryDataset(samples, name=dataset),
        solver=react(tools=[bash(timeout=60)]),
        scorer=verdict(),
        sandbox="swegym",
    )
