"""`swegym mcp` with the official Python client: over stdio, over HTTP, and when a part of it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from swegym_env.recording.record import find_records, read_record
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks
from tests.env.sandbox.test_reaping import eventually, gone, sandboxes, users
from tests.places import public_directory
from tests.programs import ROOT

TASK = load_tasks("mini")["mini__lrucache-001"]
SWEGYM_MCP = (sys.executable, "-m", "swegym_env", "mcp", "--instance", TASK.instance_id)
REPAIR = f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"
TOKEN = "0123456789abcdef0123456789abcdef"


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "SWEGYM_TOKEN": TOKEN}


@contextmanager
def http_server(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`swegym mcp --http` and its address."""
    command = [*SWEGYM_MCP, "--http", "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables()
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


@asynccontextmanager
async def connected(address: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=100) as http,
        Client(streamable_http_client(address, http_client=http), mode=mode) as client,
    ):
        yield client


def text_of(result: object) -> str:
    return "".join(part.text for part in result.content)  # type: ignore[attr-defined]


def test_an_episode_over_stdio_is_that_of_the_environment() -> None:
    async def play() -> None:
        server = StdioServerParameters(command=SWEGYM_MCP[0], args=[*SWEGYM_MCP[1:]], env=variables())
        async with Client(stdio_client(server)) as client:
            assert client.instructions is not None and TASK.problem_statement in client.instructions
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert list(tools) == ["bash", "search", "view", "edit", "run_tests", "submit"]
            assert tools["bash"].input_schema["required"] == ["command"]
            prompt = await client.get_prompt("task")
            assert TASK.problem_statement in prompt.messages[0].content.text  # type: ignore[union-attr]
            first = await client.call_tool("bash", {"command": "cd lrucache; ME=7; false"})
            assert (first.structured_content, first.is_error) == ({"exit_code": 1}, False)
            second = await client.call_tool("bash", {"command": 'pwd; echo "$ME ü"'})
            assert text_of(second).startswith("/testbed/lrucache\n7 ü\n")  # one shell
            wrong = await client.call_tool("bash", {"comand": "ls"})
            assert wrong.is_error and "takes one argument, command" in text_of(wrong)
            assert (await client.call_tool("bash", {"command": f"cd /testbed; {REPAIR}"})).structured_content == {
                "exit_code": 0
            }
            last = await client.call_tool("submit", {})
            assert last.structured_content == {
                "valid": True,
                "reward": 1.0,
                "resolved": True,
                "fail_to_pass": [len(TASK.fail_to_pass)] * 2,
                "pass_to_pass": [len(TASK.pass_to_pass)] * 2,
                "end_reason": "submitted",
                "failure_reason": "",
            }
            after = await client.call_tool("bash", {"command": "ls"})
            assert after.is_error and text_of(after) == "The episode is over."

    anyio.run(play)


def test_clients_over_http_share_the_episode_and_need_the_token(place: Path) -> None:
    async def play(address: str) -> None:
        for mode, command in (("legacy", "echo first > note"), ("auto", "cat note")):
            async with connected(address, mode) as client:
                result = await client.call_tool("bash", {"command": command})
        assert text_of(result).startswith("first\n")

    with (
        public_directory("record") as records,
        http_server("--max-turns", "3", "--record", str(records)) as (
            process,
            address,
        ),
    ):
        anyio.run(play, address)
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx2.post(address, headers=headers, json={}).status_code == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1  # nothing was submitted
        assert eventually(lambda: not sandboxes(place) and not users(place))
        (record,) = records.iterdir()
        assert len(json.loads((record / "traj.json").read_text())["turns"]) == 2


def test_a_failure_of_the_machine_is_an_error_and_no_reward(place: Path) -> None:
    async def play(process: subprocess.Popen[str], address: str) -> None:
        async with connected(address) as client:
            await client.call_tool("bash", {"command": REPAIR})
            os.kill(descendants(process.pid)[0], signal.SIGKILL)  # the supervisor of the sandboxes
            for name, arguments in (("bash", {"command": "ls"}), ("submit", {})):
                with pytest.raises(MCPError, match="the episode is invalid: SandboxError"):
                    await client.call_tool(name, arguments)

    with http_server() as (process, address):
        anyio.run(play, process, address)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        outcome = json.loads(process.stderr.read().splitlines()[-1])
        assert outcome.keys() == {"valid", "failure_reason"} and outcome["valid"] is False
        assert process.wait(60) == 2


CLIENT = textwrap.dedent("""
    import anyio, os, sys
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def play():
        server = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:], env=dict(os.environ))
        async with Client(stdio_client(server)) as client:
            await client.call_tool("bash", {"command": "setsid sleep 1000 & touch /tmp/there"})
            print("ready", flush=True)
            await client.call_tool("bash", {"command": "sleep 1000"})

    anyio.run(play)
""")


@pytest.mark.parametrize("dies", ["client", "server"])
def test_nothing_is_left_when_a_side_is_killed_in_a_call(place: Path, dies: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLIENT, *SWEGYM_MCP, "--record", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables()
    ) as client:
        assert client.stdout is not None and client.stdout.readline() == "ready\n"
        below = descendants(client.pid)
        assert sandboxes(place) and users(place)
        os.kill(client.pid if dies == "client" else below[0], signal.SIGKILL)
        if dies == "client":
            client.wait(60)
        assert eventually(lambda: not sandboxes(place) and not users(place))
        assert gone(below)
        client.kill()
    if dies == "client":  # the server keeps what was played
        (record,) = find_records(tmp_path)
        assert read_record(record).turns[0].info["exit_code"] == 0


def test_what_cannot_be_served_is_one_line() -> None:
    def refused(*options: str, **changed: str) -> str:
        ran = subprocess.run(
            [*SWEGYM_MCP, *options], capture_output=True, text=True, env={**variables(), **changed}, check=False
        )
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
        return ran.stderr

    assert "--host: 0.0.0.0 is reached from other machines" in refused("--http", "--host", "0.0.0.0")
    assert "expected 16 or more ASCII characters in $SWEGYM_TOKEN" in refused("--http", SWEGYM_TOKEN="short")
    assert "no instance 'nothing'" in refused("--instance", "nothing")
