"""Our environments as servers of OpenEnv. Clients are in `openenv_client`.

    app = make_app("SWEBench-v0", dataset="mini")         in server.py, for `uvicorn server:app`

Each session plays an episode of its own: by texts in `step`, or by calls of the environment's tools, in `step` or over
MCP. If the machine fails, the step or the call is answered by an error of the protocol: there is no reward.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import gymnasium
from fastapi import FastAPI
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool, ToolResult
from gymnasium.envs.registration import load_env_creator
from openenv.core import env_server
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import Field

from swegym_env import __version__
from swegym_env.adapters.messages import bounded, bounded_text, plain
from swegym_env.agent.formats import action_format
from swegym_env.agent.formats.openai import OPENAI
from swegym_env.errors import ConfigurationError, InfrastructureError

__all__ = ["CALLS", "SwegymAction", "SwegymEnvironment", "SwegymObservation", "SwegymState", "make_app"]

CALLS = replace(
    OPENAI,
    name="openenv",
    parse=lambda text: (OPENAI if text.startswith('{"role": "assistant"') else action_format("auto")).parse(text),
)
"""The action format of a served environment that is given none: calls of tools, and text in any other format."""

_OUTCOME = ("resolved", "fail_to_pass", "pass_to_pass", "end_reason", "failure_reason")
_TEXT_ALONE = {"fastmcp": {"wrap_result": True}}  # FastMCP's clients then return only `result` as the data


class SwegymAction(env_server.Action):
    """What an agent does: a text, or a call of a tool.

    Attributes:
        text: in the action format of the environment.
        tool_name: the tool that is called in place of a text.
        arguments: of the tool.
        type: OpenEnv's own actions have "call_tool" and "list_tools", and are answered by OpenEnv's own observations.
    """

    type: Literal["text", "call_tool", "list_tools"] = "text"
    text: str = ""
    tool_name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)


class SwegymObservation(env_server.Observation):
    """What the agent reads. OpenEnv's `metadata` is `info` of the environment, without wall-clock times.

    Attributes:
        text: the task, or the result of the action.
        truncated: the episode is over, and not by a rule of the task.
    """

    text: str = ""
    truncated: bool = False


class SwegymState(env_server.State):
    """The episode of a session.

    Attributes:
        instance_id: its task; empty before the first episode.
        outcome: once it is over: `valid`, and where that is True `reward` and the verdict.
    """

    instance_id: str = ""
    outcome: dict[str, Any] | None = None


class SwegymEnvironment(env_server.MCPEnvironment):
    """An environment of this package in OpenEnv's server, on a thread of its own.

    Args:
        env_id, arguments: of `gymnasium.make`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env_id: str = "SWEBench-v0", **arguments: Any) -> None:
        server = FastMCP("swegym", version=__version__)
        super().__init__(server)
        server.add_middleware(_Tools(self))
        self._env_id, self._arguments = env_id, _with_format(env_id, arguments)
        self._env: gymnasium.Env[str, str] | None = None
        self._offered: list[env_server.Tool] | None = None  # the tools; None: there is no episode
        self._state, self._reward, self._closed = SwegymState(), 0.0, False
        self._reset_failed = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="swegym-openenv")

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, instance_id: str | None = None, **unknown: Any
    ) -> SwegymObservation:
        """Begin an episode. The seed chooses its task, unless that is named.

        Raises:
            ConfigurationError: there is no such task or option.
            InfrastructureError: the episode cannot be started.
        """
        self._reset_failed = True  # a call of a tool must not begin an episode of another task in its place
        if unknown:
            raise ConfigurationError(f"reset: unknown option {min(unknown)!r}; there are seed, episode_id, instance_id")
        return self._thread.submit(self._reset, seed, episode_id or "", instance_id or "").result()

    def _reset(self, seed: int | None, episode_id: str, instance_id: str) -> SwegymObservation:
        observation = self._begin(seed, episode_id, instance_id)
        self._reset_failed = False
        return observation

    async def step_async(self, action: SwegymAction, *unused: Any, **kwargs: Any) -> env_server.Observation:
        """Play a turn. Its time is limited by the environment, by `turn_timeout_s`.

        Raises:
            InfrastructureError: the machine failed, and the episode is invalid.
            gymnasium.error.ResetNeeded: no episode is in progress.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._step_impl, action)

    def _step_impl(self, action: SwegymAction, *unused: Any, **kwargs: Any) -> env_server.Observation:
        if self._offered is None:
            if self._reset_failed or (action.type == "text" and not action.tool_name):
                raise gymnasium.error.ResetNeeded("no episode is in progress: reset first")
            self._begin()  # clients of MCP alone cannot reset
        assert self._env is not None and self._offered is not None
        if action.type == "list_tools":
            return env_server.ListToolsObservation(tools=self._offered)
        text = action.text
        if action.tool_name or action.type == "call_tool":
            write_call = action_format(self._arguments.get("action_format", "auto")).write_call
            if not self._offered or write_call is None:
                raise ConfigurationError(f"{self._env_id} has no tools to call: an action is a text")
            text = write_call(action.tool_name, action.arguments)
        observation, reward, terminated, truncated, info = self._env.step(text)
        self._reward += float(reward)
        self._state.step_count += 1
        if not info.get("valid", True):
            self._state.outcome = plain({"valid": False, "failure_reason": info["failure_reason"]})
            raise InfrastructureError(f"the episode is invalid: {info['failure_reason']}")
        if terminated or truncated:
            verdict = {key: info[key] for key in _OUTCOME if key in info}
            self._state.outcome = plain({"valid": True, "reward": self._reward, **verdict})
        answer = {"reward": float(reward), "done": terminated or truncated, "metadata": bounded(info)}
        shown = bounded_text(observation)
        if action.type == "call_tool":
            return env_server.CallToolObservation(tool_name=action.tool_name, result={"data": shown}, **answer)
        return SwegymObservation(text=shown, truncated=truncated, **answer)

    def _begin(self, seed: int | None = None, episode_id: str = "", instance_id: str = "") -> SwegymObservation:
        self._state, self._offered, self._reward = SwegymState(), None, 0.0
        if self._env is None:
            self._env = gymnasium.make(self._env_id, disable_env_checker=True, **self._arguments)
        text, info = self._env.reset(seed=seed, options={"instance_id": instance_id} if instance_id else None)
        self._offered = [_tool(schema["function"]) for schema in info.get("tools") or []]
        self._state = SwegymState(episode_id=episode_id or str(uuid.uuid4()), instance_id=info.get("instance_id", ""))
        return SwegymObservation(text=bounded_text(text), metadata=bounded(info))

    @property
    def state(self) -> SwegymState:
        """The episode after its last turn."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """What is served."""
        given = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        return EnvironmentMetadata(name=self._env_id, description=f"{self._env_id}({given})", version=__version__)

    def close(self) -> None:
        """Remove the sandbox of the episode, once the turn that runs has ended. Idempotent."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._end).result()
            self._thread.shutdown()
            super().close()

    def _end(self) -> None:
        if self._env is not None:
            self._env.close()


class _Tools(Middleware):
    """Answers MCP with the tools of an environment's episode."""

    def __init__(self, environment: SwegymEnvironment) -> None:
        self._environment = environment

    async def on_list_tools(self, context: Any, call_next: Any) -> list[Tool]:
        listed = await self._environment.step_async(SwegymAction(type="list_tools"))
        return [
            Tool(name=tool.name, description=tool.description, parameters=tool.input_schema) for tool in listed.tools
        ]

    async def on_call_tool(self, context: Any, call_next: Any) -> ToolResult:
        asked = context.message
        turn = await self._environment.step_async(SwegymAction(tool_name=asked.name, arguments=asked.arguments or {}))
        more = self._environment.state.outcome or {"exit_code": turn.metadata.get("exit_code")}
        return ToolResult(turn.text, {"result": turn.text, **more}, meta=_TEXT_ALONE)


def make_app(
    env_id: str = "SWEBench-v0", *, sessions: int = 16, session_timeout_s: float = 3600.0, **arguments: Any
) -> FastAPI:
    """An environment as an application, made by OpenEnv's `create_app`.

    Args:
        env_id, arguments: of `gymnasium.make`.
        sessions: how many episodes are played at a time.
        session_timeout_s: a session in which nothing happens for so long is closed.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    gymnasium.make(env_id, disable_env_checker=True, **_with_format(env_id, arguments)).close()
    limits = env_server.ConcurrencyConfig(max_concurrent_envs=sessions, session_timeout=session_timeout_s)
    factory, named = partial(SwegymEnvironment, env_id, **arguments), {"env_name": env_id, "state_cls": SwegymState}
    made: FastAPI = env_server.create_app(factory, SwegymAction, SwegymObservation, concurrency_config=limits, **named)
    return made


def _with_format(env_id: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with `CALLS` where the environment has an action format and none is given."""
    entry: Any = gymnasium.spec(env_id).entry_point
    taken = inspect.signature(load_env_creator(entry) if isinstance(entry, str) else entry).parameters
    return {**({"action_format": f"{__name__}:CALLS"} if "action_format" in taken else {}), **arguments}


def _tool(function: Mapping[str, Any]) -> env_server.Tool:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return env_server.Tool(name=function["name"], description=function.get("description") or "", input_schema=schema)
