"""Clients of OpenEnv: one for our own servers, and any server as a Gymnasium environment of text, `OpenEnv-v0`.

A server says in JSON schemas what its actions and observations are. This is how a text becomes an action, and an
observation a text; where the user does not say it, the schemas decide:

    action        a field's name   the text, or the text read as JSON where the field is no string     the only field
                  tools            a call of one of the server's tools, in any action format          of a call
                  json             an object of all fields                                            else
    observation   a field's name   what it holds                                                      the only string
                  tools            the result of a call                                               of a call
                  json             all fields                                                         else

and in both places `module:function` of your own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import gymnasium
from openenv.core import EnvClient, GenericEnvClient
from openenv.core.client_types import StepResult
from websockets.exceptions import WebSocketException

from swegym_env import vector
from swegym_env.adapters.openenv import SwegymAction, SwegymObservation, SwegymState
from swegym_env.agent.actions import Call, Command, Malformed, Submit
from swegym_env.agent.formats import action_format
from swegym_env.agent.formats.calls import dump_json
from swegym_env.agent.spaces import AnyText
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.registry import resolve

__all__ = ["OpenEnvEnv", "SwegymClient", "make_vector"]

_FAILURES = (RuntimeError, OSError, ValueError, asyncio.TimeoutError, WebSocketException)
_REFUSED = "(code: VALIDATION_ERROR)"  # the end of the message of OpenEnv's client where the server's schema forbids it
_SHOWN_CHARS = 500


class SwegymClient(EnvClient[SwegymAction | str, SwegymObservation, SwegymState]):
    """OpenEnv's client of a `SwegymEnvironment`. An action may be written as a plain `str`.

    Args:
        base_url: of the server.
        message_timeout_s: seconds for one answer; the last one of an episode waits for its tests.
        settings: further ones of `EnvClient`.
    """

    def __init__(self, base_url: str | None = None, *, message_timeout_s: float = 600.0, **settings: Any) -> None:
        super().__init__(base_url, message_timeout_s=message_timeout_s, **settings)

    def _step_payload(self, action: SwegymAction | str) -> dict[str, Any]:
        return {"text": action} if isinstance(action, str) else action.model_dump(exclude={"type"})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SwegymObservation]:
        observation = SwegymObservation(**payload["observation"], reward=payload["reward"], done=payload["done"])
        return StepResult(observation, observation.reward, observation.done, observation.metadata)

    def _parse_state(self, payload: dict[str, Any]) -> SwegymState:
        return SwegymState(**payload)


class OpenEnvEnv(gymnasium.Env[str, str]):
    """A session of an OpenEnv server as an environment of text.

    An action that cannot be read, or that the server's schema forbids, is answered by `info["action_error"]`, and the
    episode goes on. If the server answers by an error or the connection is lost, the episode is truncated,
    `info["valid"]` is False, and `info["failure_reason"]` says why. `info["observation"]` and `info["metadata"]` are
    the server's own, and `info["tools"]` its tools. Of a server of this package, `info` has the keys that it has there.

    Args:
        url: of the server.
        action: how a text becomes an action, see above; a function takes a `str` and returns a `dict`, or raises
            ValueError with a message for the agent.
        observation: how an observation becomes a text; a function takes a `dict`.
        formats: the action format in which tools are called, see `agent.formats`.
        reset_options: for every reset of the server; `reset(options=…)` adds to them.
        headers: of HTTP, for a server that asks for a token.
        timeout_s: seconds for one answer.
        render_mode: None.

    Raises:
        ConfigurationError: there is no such function, format or render mode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own contract

    def __init__(
        self,
        url: str,
        *,
        action: str | None = None,
        observation: str | None = None,
        formats: str = "auto",
        reset_options: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None:
            raise ConfigurationError(f"render_mode: expected None, got {render_mode!r}")
        self.observation_space, self.action_space, self.render_mode = AnyText(), AnyText(), None
        self._url, self._headers, self._timeout_s = url.rstrip("/"), dict(headers or {}), timeout_s
        self._writes = resolve(action, "action") if action and ":" in action else None
        self._reads = resolve(observation, "observation") if observation and ":" in observation else None
        self._action, self._observation, self._format = action, observation, action_format(formats)
        self._reset_options = dict(reset_options or {})
        self._client: Any = None
        self._functions: list[dict[str, Any]] = []
        self._over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the server's episode; without a seed, with the next number of the last one's sequence.

        Raises:
            InfrastructureError: the server cannot be reached, or answers by an error.
        """
        super().reset(seed=seed)
        self._over = True
        drawn = int(self.np_random.integers(1 << 31)) if seed is None else seed
        try:
            self._connect()
            result = self._client.reset(**{"seed": drawn, **self._reset_options, **(options or {})})
        except _FAILURES as error:
            raise InfrastructureError(f"OpenEnv server {self._url}: {_reason(error)}") from error
        self._over = False
        return self._read(result.observation), {"tools": self._functions, **self._info(result)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play a turn. Raises gymnasium.error.ResetNeeded if no episode is in progress."""
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset() before step()")
        try:
            fields = self._written(action.encode("utf-8", "replace").decode())
        except ValueError as error:
            return str(error), 0.0, False, False, {"action_error": str(error)}
        try:
            result = self._client.step(fields)
        except _FAILURES as error:
            reason = _reason(error)
            if reason.endswith(_REFUSED):
                message = f"This is no action of this environment: {dump_json(fields)[:_SHOWN_CHARS]}"
                return message, 0.0, False, False, {"action_error": message}
            self._over = True
            lost = {"valid": False, "failure_reason": reason, "end_reason": "error", "action_error": None}
            return f"The server failed; this episode is invalid. {reason}", 0.0, False, True, lost
        info = {"action_error": None, **self._info(result)}
        self._over = bool(result.done)
        truncated = self._over and self._ours and bool(result.observation["truncated"])
        reward = float(result.reward or 0.0)
        return self._read(result.observation), reward, self._over and not truncated, truncated, info

    def close(self) -> None:
        """Close the session, and with it what it holds on the server. Idempotent."""
        client, self._client, self._over = self._client, None, True
        if client is not None:
            client.close()

    def _connect(self) -> None:
        """Connect, once, and learn the server's schemas and tools."""
        if self._client is not None:
            return
        place = self._url if "://" in self._url else f"http://{self._url}"
        place = place.replace("ws", "http", 1) if place.startswith("ws") else place
        direct = urlsplit(place).hostname in ("localhost", "127.0.0.1", "::1")  # no proxy, as OpenEnv's client
        opener = build_opener(ProxyHandler({})) if direct else build_opener()
        with opener.open(Request(f"{place}/schema", headers=self._headers), timeout=self._timeout_s) as answer:
            schemas = json.load(answer)
        fields, shown = _fields(schemas["action"]), _fields(schemas["observation"])
        self._ours = schemas["observation"].get("title") == SwegymObservation.__name__
        calls = fields.keys() >= {"tool_name", "arguments"} and not self._ours
        if self._action is None:
            alone = "text" if self._ours else next(iter(fields)) if len(fields) == 1 else "json"
            self._action = "tools" if calls else alone
        if self._observation is None:
            texts = [name for name, field in shown.items() if field.get("type") == "string"]
            self._observation = "tools" if calls else texts[0] if len(texts) == 1 else "json"
        self._is_text = fields.get(self._action, {}).get("type", "string") == "string"
        client = GenericEnvClient(
            self._url, message_timeout_s=self._timeout_s, mode="simulation", headers=self._headers
        )
        self._client = client.sync()
        if self._action == "tools":
            listed = self._client.step({"type": "list_tools"}).observation["tools"]
            self._functions = [{"type": "function", "function": _function(tool)} for tool in listed]

    def _written(self, text: str) -> dict[str, Any]:
        """The action that a text stands for. Raises ValueError: none, with a message for the agent."""
        if self._writes is not None:
            return dict(self._writes(text))
        if self._action == "tools":
            call = self._format.parse(text)
            if isinstance(call, Command | Submit):
                call = Call("bash", {"command": call.text}) if isinstance(call, Command) else Call("submit")
            if not isinstance(call, Call):
                raise ValueError(call.message if isinstance(call, Malformed) else "Call one of the tools.")
            return {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
        if self._is_text and self._action != "json":
            return {str(self._action): text}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ValueError(f"The action is not JSON: {error}") from error
        fields = value if self._action == "json" else {str(self._action): value}
        if isinstance(fields, dict):
            return fields
        raise ValueError("The action is not a JSON object.")

    def _read(self, observation: Mapping[str, Any]) -> str:
        if self._reads is not None:
            return str(self._reads(observation))
        value: Any = observation.get(str(self._observation), observation)
        if self._observation == "tools" and "result" in observation:
            result, error = observation["result"], observation.get("error")
            value = error["message"] if error else result
            if isinstance(value, dict):
                texts = [part["text"] for part in value.get("content") or [] if "text" in part]
                value = "\n".join(texts) if texts else value.get("data", value)
        return value if isinstance(value, str) else dump_json(value)

    def _info(self, result: StepResult[dict[str, Any]]) -> dict[str, Any]:
        metadata = result.metadata or {}
        return dict(metadata) if self._ours else {"observation": result.observation, "metadata": metadata}


make_vector = partial(vector.make_vector, OpenEnvEnv)  # sessions of one server on threads


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an environment adds to OpenEnv's own."""
    own = ("metadata", "type", "done", "reward")
    return {name: field for name, field in schema.get("properties", {}).items() if name not in own}


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description", ""), "parameters": parameters}
