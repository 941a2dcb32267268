"""`HarborEnv`: an agent in the sandbox of a Harbor task, graded on the state that it leaves (`Harbor-v0`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swegym_env.agent.tools import ToolSet
from swegym_env.arguments import check_choice
from swegym_env.env import SWEBenchEnv
from swegym_env.harbor.image import build_image
from swegym_env.harbor.state import Protect, grade_state, limits_of
from swegym_env.harbor.tasks import HarborTask, load_harbor_tasks
from swegym_env.prepare import Workspace, add_tools
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, start_sandbox
from swegym_env.tasks.task import Task

__all__ = ["HarborEnv", "make_vector"]

_PROMPT = str(Path(__file__).parent / "prompt")


@dataclass(frozen=True)
class _HarborWorkspace:
    """A Harbor task, ready to be worked on; see `prepare.Workspace`. There is no patch: the state is graded."""

    spec: SandboxSpec
    backend: str

    def start(self) -> Sandbox:
        return start_sandbox(self.spec, backend=self.backend)

    def patch(self, sandbox: Sandbox, *, fresh: bool = False) -> str:
        return ""


class HarborEnv(SWEBenchEnv):
    """A task of Harbor's format; the reward is the one that its tests write.

    `info` at the end has `rewards`, all that the tests wrote, `set_aside`, the paths whose changes were not graded, and
    `resolved` for a reward of at least 1. `info["patch"]` is empty: there is no repository.

    Args:
        dataset: a folder of task folders, or one task folder.
        protect: "system": the image's programs and libraries are the image's again when the tests run; "none": the
            state is graded as it is, as Harbor does. See `harbor.state`.
        network: let agent and tests have the machine's own network, loopback included, where their task does not refuse
            it. Many public tasks install what their tests need.

    The other arguments, and the errors, are those of `SWEBenchEnv`.
    """

    def __init__(
        self,
        dataset: str,
        *,
        protect: Protect = "system",
        network: bool = False,
        sandbox: str = "auto",
        reward: str = "resolved",
        action_format: str = "auto",
        chat_template: str | None = None,
        tools: str | Sequence[str] = ("bash",),
        prompt: str = _PROMPT,
        max_turns: int | None = 50,
        turn_timeout_s: float = 60.0,
        episode_timeout_s: float | None = None,
        limits: Mapping[str, float] | None = None,
        observation_limit: int = 10_000,
        show_duration: bool = False,
        pool: int = 1,
        render_mode: str | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        check_choice("protect", protect, ("system", "none"))
        self._protect: Protect = protect
        self._harbor = load_harbor_tasks(dataset, network=network)
        self._rewards: Mapping[str, float] = {}
        self._set_aside: tuple[str, ...] = ()
        self._earned = 0.0
        super().__init__(
            str(dataset),
            tasks=[task.as_task() for task in self._harbor],
            sandbox=sandbox,
            reward=reward,
            action_format=action_format,
            chat_template=chat_template,
            tools=tools,
            prompt=prompt,
            max_turns=max_turns,
            turn_timeout_s=turn_timeout_s,
            episode_timeout_s=episode_timeout_s,
            limits=limits,
            observation_limit=observation_limit,
            show_duration=show_duration,
            pool=pool,
            render_mode=render_mode,
        )
        self.arguments = arguments

    def _prepare(self, task: Task) -> Workspace:
        harbor = self._harbor_task(task)
        spec = build_image(harbor, backend=self._backend).spec(
            limits_of(harbor, self._limits), network=harbor.network, env=harbor.env
        )
        return _HarborWorkspace(self._with_tools(spec, self._tools), self._backend)

    def _with_tools(self, spec: SandboxSpec, tools: ToolSet) -> SandboxSpec:
        return add_tools(spec, tools, env={"SWEGYM_TURN_TIMEOUT_S": f"{self._turn_timeout_s:g}"}, backend=self._backend)

    def _harbor_task(self, task: Task) -> HarborTask:
        return self._harbor[task.instance_id]

    def verdict(self) -> Any:
        """Grade the state as it is, in a separate sandbox; the episode is not affected. Raises InfrastructureError."""
        sandbox, _ = self._live()
        limits: Limits | None = self._limits
        verdict = grade_state(
            self._harbor_task(self.task), sandbox, backend=self._backend, protect=self._protect, limits=limits
        )
        self._rewards, self._set_aside, self._earned = verdict.rewards, verdict.set_aside, verdict.reward
        return verdict

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `TextEpisode.step`; the reward at the end is the one of the tests."""
        self._rewards, self._set_aside, self._earned = {}, (), 0.0
        observation, reward, terminated, truncated, info = super().step(action)
        if "end_reason" in info:
            info |= {"rewards": dict(self._rewards), "set_aside": self._set_aside}
            reward = self._earned if info["valid"] else 0.0
        return observation, reward, terminated, truncated, info


make_vector = HarborEnv.make_vector
