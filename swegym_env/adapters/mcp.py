"""An episode as a server of the Model Context Protocol: the tools of its agent, over stdio or streamable HTTP.

The server's instructions are the prompt of the episode, its tools are those of `info["tools"]`. The result of a call is
what the agent reads. The result of the last one has the outcome as structured content. If the machine fails, the call
fails too, with an error of the protocol: there is no result that could be taken for a reward of 0.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread
import gymnasium
import mcp_types as types
import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from swegym_env import __version__
from swegym_env.agent.formats.calls import call_format, dump_json
from swegym_env.agent.formats.openai import OPENAI
from swegym_env.errors import ConfigurationError
from swegym_env.sandbox.client import end_all
from swegym_env.serving.listening import Listening

__all__ = ["ACTION_FORMAT", "CALLS", "Episode", "serve_http", "serve_stdio"]

ACTION_FORMAT = f"{__name__}:CALLS"
"""The action format that an environment for an `Episode` is made with."""
CALLS = call_format(
    "mcp",
    OPENAI.parse,
    lambda name, arguments: dump_json({"name": name, "arguments": dict(arguments)}),
    "Call one tool at a time.",
)
"""Calls as `tools/call` has them."""

_CLOSING_S = 20.0
_OUTCOME = ("resolved", "fail_to_pass", "pass_to_pass", "end_reason", "failure_reason")
_Context = ServerRequestContext[dict[str, Any], Any]


class Episode:
    """One episode, played by the calls of tools.

    Args:
        env: an environment of tools, made with `action_format=ACTION_FORMAT`.
        options: of its `reset`.
        seed: of its `reset`.

    Attributes:
        info: the last one; it has `end_reason` once the episode is over.
        server: of the Model Context Protocol.

    Raises:
        InfrastructureError: the episode cannot be started.
    """

    def __init__(
        self, env: gymnasium.Env[str, str], *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        self._env = env
        self._turn = threading.Lock()  # an environment has one caller at a time
        self._reward = 0.0
        self._closing = False
        self._task, self.info = env.reset(seed=seed, options=options)
        self._tools = [_as_tool(schema) for schema in self.info["tools"]]
        system_prompt = self.info["system_prompt"]
        self.server: Server[dict[str, Any]] = Server(
            "swegym",
            version=__version__,
            title=str(self.info["instance_id"]),
            instructions=f"{system_prompt}\n\n{self._task}".strip(),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )

    @property
    def over(self) -> bool:
        """Whether the episode has ended: by the submission, a limit or a failure."""
        return "end_reason" in self.info

    def outcome(self) -> dict[str, Any]:
        """The outcome of the episode, as values for JSON.

        Returns:
            `valid`, and where it is True `reward` and the keys of `info` at the end.
        """
        if not self.info.get("valid", False):
            return {"valid": False, "failure_reason": self.info.get("failure_reason", "the episode was not submitted")}
        return {"valid": True, "reward": self._reward, **{key: self.info[key] for key in _OUTCOME if key in self.info}}

    def call(self, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Play one turn. Raises MCPError: the machine failed, in this turn or before."""
        with self._turn:
            observation, failed = "The episode is over.", True
            if not self.over:
                action = dump_json({"name": name, "arguments": arguments})
                observation, reward, _, _, info = self._env.step(action)
                if self._closing:  # `close` has ended the episode: no client waits for this result
                    return types.CallToolResult(content=[], is_error=True)
                self.info = info
                self._reward += float(reward)
                failed = bool(self.info["action_error"])
            if not self.info.get("valid", True):
                raise MCPError(types.INTERNAL_ERROR, f"the episode is invalid: {self.info['failure_reason']}")
            structured = self.outcome() if self.over else {"exit_code": self.info["exit_code"]}
            content: list[types.ContentBlock] = [types.TextContent(text=observation)]
            return types.CallToolResult(content=content, structured_content=structured, is_error=failed)

    def close(self) -> None:
        """End the episode, and with it a command that a client did not wait for."""
        self._closing = True
        if not self._turn.acquire(blocking=False):
            end_all()
            if not self._turn.acquire(timeout=_CLOSING_S):
                return
        self._env.close()

    async def _list_tools(self, _: _Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools)

    async def _call_tool(self, _: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        # A client that goes away does not wait for its command; whoever ends the server ends the sandbox.
        play = partial(self.call, params.name, dict(params.arguments or {}))
        return await anyio.to_thread.run_sync(play, abandon_on_cancel=True)

    async def _list_prompts(self, _: _Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="task", description="The task of this episode.")])

    async def _get_prompt(self, _: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        if params.name != "task":
            raise MCPError(types.INVALID_PARAMS, f"no prompt {params.name!r}; there is task")
        message = types.PromptMessage(role="user", content=types.TextContent(text=self._task))
        return types.GetPromptResult(messages=[message])


def serve_stdio(episode: Episode) -> None:
    """Serve one client over standard input and output, until it closes them."""

    async def run() -> None:
        async with stdio_server() as (received, sent):
            await episode.server.run(received, sent, episode.server.create_initialization_options())

    anyio.run(run)


def serve_http(episode: Episode, host: str, port: int, token: str) -> None:
    """Serve clients over streamable HTTP, until SIGINT or SIGTERM. The address is printed as soon as it answers.

    Args:
        episode: what all clients share.
        host: an address of the loopback interface: the connection is not encrypted.
        port: 0: any free one.
        token: every request has the header `Authorization: Bearer TOKEN`.

    Raises:
        ConfigurationError: another machine could listen, or the port is taken.
    """
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError as error:
        raise ConfigurationError(f"--host: expected an address of this machine, got {host!r}") from error
    if not loopback:
        raise ConfigurationError(f"--host: {host} is reached from other machines. Try: ssh -L, or a TLS proxy")
    app = _with_token(episode.server.streamable_http_app(host=host), token)
    server = _Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with Listening(host, port).open() as listener:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}/mcp"
        print(json.dumps({"url": url}), flush=True)  # noqa: T201 - what a program that starts this one waits for
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Return from `run`; uvicorn's own would then raise the signal again."""
        self.should_exit = True


_App = Callable[[Any, Any, Any], Awaitable[None]]


def _with_token(app: _App, token: str) -> _App:
    """An ASGI application that answers 401 to requests without the token."""
    expected = f"Bearer {token}".encode()

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, expected):
                body = json.dumps({"error": "the header Authorization: Bearer TOKEN is missing or wrong"}).encode()
                headers = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await app(scope, receive, send)

    return checked


def _as_tool(schema: dict[str, Any]) -> types.Tool:
    """The tool of a function schema of OpenAI's chat API."""
    function = schema["function"]
    return types.Tool(name=function["name"], description=function["description"], input_schema=function["parameters"])
