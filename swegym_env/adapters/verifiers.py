"""Adapter for verifiers 0.4: an environment that plays our tasks, with our sandboxes as its runtime.

    vf-eval swegym-verifiers --env.taskset.dataset mini -n 5 -m MODEL

verifiers imports the module `swegym_verifiers` for this name. Its own runtimes are a closed list, but an environment
lends its agents any `Runtime`: `SwegymEnv` lends the task's sandbox. `SwegymHarness` plays the agent in this process:
the tools work in the sandbox, the model is asked through verifiers' interception, which nothing in the sandbox reaches.
If the infrastructure fails, verifiers gets its `SandboxError`, and the episode has no reward.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ApptainerRuntimeInfo

from swegym_env.adapters.workbench import OneCaller, SplitOutput, Workbench, outcome_of, subshell, tasks_of
from swegym_env.agent.actions import Command, Malformed
from swegym_env.agent.formats.calls import call_from_json
from swegym_env.agent.observations import render_result
from swegym_env.agent.tools import ToolSet, tool_set
from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxBrokenError
from swegym_env.tasks.task import Task

__all__ = ["SwegymEnv", "SwegymHarness", "SwegymRuntime", "SwegymTaskset"]

_MOST_S = 3600.0  # of a command that verifiers gives no limit
_OBSERVATION_LIMIT = 10_000
_WORKDIR = "/testbed"
_CALL = '{"function": {"name": NAME, "arguments": "{…}"}}'
_SYSTEM_PROMPT = (
    "You are a software engineer. You work in a Linux sandbox without network, by calling functions. Find the cause of "
    "the issue, repair it in the source files, check your repair, then submit. What is judged is how the repository as "
    "you leave it differs from what you found: hidden tests must pass. Changes to tests are set aside."
)
_PROMPT = f"The repository at {_WORKDIR} has this issue. Change the repository so that it is resolved.\n\n"


class BrokenByAgentError(vf.SandboxError):
    """The sandbox cannot go on, and the agent is the cause: its work is worth 0."""


class SwegymRuntime(vf.Runtime):
    """The sandbox of a task as a runtime of verifiers, whose traces record it as its kind `apptainer`.

    Args:
        task: the task.
        options: the other arguments of `Workbench`.
    """

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__()
        self.config = vf.ApptainerConfig(image=task.image, workdir=_WORKDIR)
        self.info = ApptainerRuntimeInfo(**self.config.model_dump())
        self._bench: Workbench | None = None
        self._make = partial(Workbench, task, **options)
        self._split = SplitOutput()
        self._caller = OneCaller(lambda: None if self._bench is None else self._bench.sandbox)

    async def call(self, use: Callable[[Workbench], Any]) -> Any:
        """Use the sandbox. Raises vf.SandboxError: it fails, or a file cannot be read or written."""

        def call() -> Any:
            self._bench = self._bench or self._make()
            return use(self._bench)

        try:
            return await self._caller.call(call)
        except (InfrastructureError, OSError) as error:
            kind = BrokenByAgentError if isinstance(error, SandboxBrokenError) else vf.SandboxError
            raise kind(f"{type(error).__name__}: {error}") from error

    async def start(self) -> None:
        self.info.id = await self.call(lambda bench: f"swegym-{bench.sandbox.backend}")

    def cleanup(self) -> None:
        """End the command that still runs, and remove the sandbox. The end of the process does the same."""
        self._caller.finish(lambda: None if self._bench is None else self._bench.close())

    async def run(self, argv: list[str], env: dict[str, str]) -> vf.ProgramResult:
        """Run a program in the repository; bytes that are no UTF-8 are replaced. Raises vf.SandboxError."""
        line = subshell(f"exec {shlex.join(argv)}", cwd=_WORKDIR, env=self.process_env(env))

        def run(bench: Workbench) -> vf.ProgramResult:
            done, errors = self._split.run(bench.sandbox, line, timeout_s=_MOST_S)
            return vf.ProgramResult(done.exit_code, done.output, errors)

        return await self.call(run)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        return bytes(await self.call(lambda bench: bench.sandbox.read(path)))[:max_bytes]

    async def write(self, path: str, data: bytes) -> None:
        await self.call(lambda bench: bench.sandbox.write(path, data))


class SwegymData(vf.TaskData):
    """What traces record of a task, without its solution. The fields are those of `SwegymTasksetConfig`."""

    dataset: str
    split: str | None = None
    repos: str | None = None
    sandbox: str = "auto"


class SwegymTask(vf.Task[SwegymData]):
    """A task whose reward is our verdict: 1 where it is resolved, else 0. Its `key` is the instance id."""

    @property
    def key(self) -> str:
        return str(self.data.id)

    @property
    def task(self) -> Task:
        """The task as this package has it."""
        return tasks_of(self.data.dataset, self.data.split)[self.key]

    @vf.reward
    async def resolved(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        """The verdict on what the agent left; without an agent (`vf-validate`), on the repository as it was."""
        if isinstance(runtime, SwegymRuntime):
            try:
                patch = await runtime.call(lambda bench: bench.patch())
            except BrokenByAgentError:
                return 0.0
        elif trace.nodes:
            raise ConfigurationError("swegym-verifiers: its agents play in its own environment. Remove --env.id")
        else:
            patch = ""
        trace.info["swegym"] = found = await self._grade(patch)
        return float(found["reward"])

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the solution resolves the task. Raises vf.SandboxError."""
        del runtime  # grading has sandboxes of its own
        return bool((await self._grade(self.task.patch))["resolved"])

    async def _grade(self, patch: str) -> dict[str, Any]:
        data = self.data
        found = await asyncio.to_thread(outcome_of, self.task, patch, backend=data.sandbox, repos=data.repos)
        if not found["valid"]:
            raise vf.SandboxError(found["failure_reason"])
        return found


class SwegymTasksetConfig(vf.TasksetConfig):
    """Attributes: dataset, split: see `tasks.datasets.load_tasks`. repos, sandbox: see `prepare` (`backend`)."""

    dataset: str = "mini"
    split: str | None = None
    repos: str | None = None
    sandbox: str = "auto"


class SwegymTaskset(vf.Taskset[SwegymTask, SwegymTasksetConfig]):
    """Our tasks for verifiers."""

    def load(self) -> Iterable[SwegymTask]:
        """The tasks, in the order of the dataset."""
        chosen = self.config.model_dump(include={"dataset", "split", "repos", "sandbox"})
        for task in tasks_of(self.config.dataset, self.config.split):
            prompt = _PROMPT + task.problem_statement
            yield SwegymTask(SwegymData(id=task.instance_id, prompt=prompt, **chosen), self.config.task)


class SwegymHarnessConfig(vf.HarnessConfig):
    """Attributes: tools: see `agent.tools.tool_set`. turn_timeout_s: of a command, as in `SWEBench-v0`."""

    tools: list[str] = ["default"]  # noqa: RUF012 - a model copies it
    turn_timeout_s: float = 60.0


class SwegymHarness(vf.Harness[SwegymHarnessConfig]):
    """An agent with the tools of `SWEBench-v0`; it ends when it submits, or calls nothing."""

    APPENDS_SYSTEM_PROMPT = True

    async def launch(
        self, ctx: Any, trace: Any, runtime: vf.Runtime, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> vf.ProgramResult:
        """See `Harness.launch`. Raises vf.SandboxError."""
        assert isinstance(runtime, SwegymRuntime)  # `SwegymEnv` lends no other
        tools = tool_set(self.config.tools)
        system, prompt = self.resolve_text_prompt(data)
        given = {"system": system or _SYSTEM_PROMPT, "user": prompt}
        schemas: Any = tools.schemas  # the client's own types of them differ by its version
        messages: list[Any] = [{"role": role, "content": content} for role, content in given.items()]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            while True:
                asked = client.chat.completions.create(model=ctx.model, messages=messages, tools=schemas)
                answer = (await asked).choices[0].message
                messages.append(answer.model_dump(exclude_none=True))
                for call in answer.tool_calls or ():
                    shown = await self._play(runtime, tools, call.model_dump())
                    if shown is None:
                        return vf.ProgramResult(0, "", "")
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": shown})
                if not answer.tool_calls:
                    return vf.ProgramResult(0, "", "")

    async def _play(self, runtime: SwegymRuntime, tools: ToolSet, call: dict[str, Any]) -> str | None:
        """What the agent reads after a call; None after the submission, and where it has broken its sandbox."""
        action, seconds = tools.resolve(call_from_json(call, _CALL)), self.config.turn_timeout_s
        if not isinstance(action, Command):
            return action.message if isinstance(action, Malformed) else None
        try:
            result = await runtime.call(lambda bench: bench.sandbox.run(action.text, timeout_s=seconds))
        except BrokenByAgentError:
            return None
        return render_result(result, limit_chars=_OBSERVATION_LIMIT).text


class SwegymEnvConfig(vf.EnvConfig):
    """Configuration of `SwegymEnv`.

    Attributes:
        agent: the agent that plays. Its `runtime` must keep the default; the agent always plays in the task's sandbox.
    """

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.ApptainerConfig())


class SwegymEnv(vf.Env[SwegymEnvConfig]):
    """One agent on one task, in the task's sandbox."""

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Start the sandbox, let the agent play in it, remove it. Raises vf.SandboxError, ConfigurationError."""
        assert isinstance(task, SwegymTask)
        harness, data = agents.agent.harness, task.data
        if self.config.agent.runtime != vf.ApptainerConfig() or not isinstance(harness, SwegymHarness):
            raise ConfigurationError("--env.agent: runtime and harness are those of swegym-verifiers")
        tools = tool_set(harness.config.tools)
        runtime = SwegymRuntime(task.task, backend=data.sandbox, repos=data.repos, tools=tools)
        try:
            await runtime.start()
            await agents.agent.run(task, runtime=runtime)
        finally:
            await runtime.stop()
