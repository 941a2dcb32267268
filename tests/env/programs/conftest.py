"""Agents for tests: a small one, and programs that a test writes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import AgentSpec
from swegym_env.tasks.task import Task

SMALL = Path(__file__).parent / "small"

# What the programs of tests share: one request of chat completions over a new connection.
ASK = """
import http.client, json, os, sys, threading, time
PORT = 8390
def send(body, path="/v1/chat/completions", method="POST", headers={}):
    connection = http.client.HTTPConnection("127.0.0.1", PORT)
    connection.request(method, path, body, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    return response.status, response.read().decode()
def ask(*texts, **more):
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts)]
    status, reply = send(json.dumps({"model": "m", "messages": messages, **more}))
    return json.loads(reply)["choices"][0]["message"]["content"] if status == 200 else f"{status}: {reply}"
"""

Make = Callable[..., SWEAgentEnv]


def python_agent(source: str) -> AgentSpec:
    """An agent that is this Python program, with `send` and `ask`."""
    return AgentSpec(command=f"exec python3 -c {shlex.quote(ASK + source)}", name="written")


@pytest.fixture
def make(task: Task) -> Iterator[Make]:
    """Make environments of the small task; all are closed at the end."""
    made: list[SWEAgentEnv] = []

    def make(agent: Any = SMALL, **arguments: Any) -> SWEAgentEnv:
        spec = python_agent(agent) if isinstance(agent, str) else agent
        made.append(SWEAgentEnv(tasks=[task], agent=spec, **{"pool": 0, **arguments}))
        return made[-1]

    yield make
    for env in made:
        env.close()
