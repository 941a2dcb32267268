"""Agents of the package with their real programs, installed from the package index, in real sandboxes."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from typing import Any

import pytest

from swegym_env.programs import env as programs
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import load_agent
from tests.env.programs.conftest import Make

FINISH = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

# Clients of all protocols that come with mini-swe-agent, written by others: they read answers whole and in streams.
CLIENTS = r"""
import json, os, litellm, openai

messages = [{"role": "system", "content": "be good"}, {"role": "user", "content": "hi"}]
schema = {"type": "object", "properties": {"command": {"type": "string"}}}
tool = {"type": "function", "function": {"name": "bash", "parameters": schema}}
client = openai.OpenAI()
expected = ("I look.", "bash", {"command": "ls"})

plain = client.chat.completions.create(model="m", messages=messages, tools=[tool]).choices[0].message
call = plain.tool_calls[0].function
assert (plain.content, call.name, json.loads(call.arguments)) == expected, plain

content, name, arguments = "", "", ""
asked = {"model": "m", "messages": messages, "tools": [tool]}
for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
    for choice in chunk.choices:
        content += choice.delta.content or ""
        for each in choice.delta.tool_calls or ():
            name, arguments = name + (each.function.name or ""), arguments + (each.function.arguments or "")
assert (content, name, json.loads(arguments)) == expected
assert chunk.usage.total_tokens > 0

flat = {"type": "function", "name": "bash", "parameters": schema, "strict": False}
response = client.responses.create(model="m", instructions="be good", input="hi", tools=[flat])
called = next(item for item in response.output if item.type == "function_call")
assert (response.output_text, called.name, json.loads(called.arguments)) == expected, response

with client.responses.stream(model="m", instructions="be good", input="hi", tools=[flat]) as stream:
    for event in stream:
        pass
    final = stream.get_final_response()
called = next(item for item in final.output if item.type == "function_call")
assert (final.output_text, called.name, json.loads(called.arguments)) == expected, final

for streams in (False, True):
    reply = litellm.completion(
        "anthropic/m", messages=messages, tools=[tool], api_base=os.environ["ANTHROPIC_BASE_URL"], stream=streams
    )
    if streams:
        reply = litellm.stream_chunk_builder(list(reply), messages=messages)
    message = reply.choices[0].message
    call = message.tool_calls[0].function
    assert (message.content, call.name, json.loads(call.arguments)) == expected, message

for wrong in ({"n": 3}, {"tools": [{"type": "custom", "custom": {"name": "x"}}]}):
    try:
        client.chat.completions.create(model="m", messages=messages, **wrong)
    except openai.BadRequestError as error:
        assert error.body["message"], error
    else:
        raise AssertionError(wrong)
assert [model.id for model in client.models.list()] == ["policy"]
"""


@pytest.mark.timeout(900)
def test_mini_swe_agent_repairs_a_repository_and_its_clients_read_every_protocol(make: Make) -> None:
    """One test, since it installs: half a minute, and the layer stays for the next run on this machine."""
    env = make(load_agent("mini-swe-agent"), turn_timeout_s=300)
    observation, info = env.reset(seed=0)
    assert "Please solve this issue: add subtracts" in observation
    assert [tool["function"]["name"] for tool in info["tools"]] == ["bash"]
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "%s"}}\n</tool_call>'
    observation, *_, info = env.step("I look.\n" + call % "cat calc/add.py")
    assert "return a - b" in observation and info["continues"] and info["new_messages"] == 1
    *_, info = env.step(call % "sed -i 's/a - b/a + b/' calc/add.py")
    assert info["continues"] and info["conversation"] == 0
    function = {"name": "bash", "arguments": json.dumps({"command": FINISH})}
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": function}],
    }
    _, reward, terminated, _, info = env.step(json.dumps(message))
    assert (reward, terminated, info["end_reason"], info["resolved"]) == (1.0, True, "submitted", True), info

    command = f'exec "$SWEGYM_AGENT/venv/bin/python" -c {shlex.quote(CLIENTS)}'
    spec = dataclasses.replace(load_agent("mini-swe-agent"), command=command, imports=None)
    env = make(spec, turn_timeout_s=300)
    _, info = env.reset(seed=0)
    protocols = []
    terminated = False
    while not terminated:
        protocols.append((info["protocol"], bool(info["request"].get("stream"))))
        assert [message["role"] for message in info["messages"]] == ["system", "user"]
        observation, _, terminated, _, info = env.step("I look.\n" + call % "ls")
    assert info["end_reason"] == "submitted", observation
    expected = [(name, streams) for name in ("chat", "responses", "messages") for streams in (False, True)]
    assert protocols == expected


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_smolagents_repairs_a_repository(make: Make) -> None:
    env = make(load_agent("smolagents"), turn_timeout_s=300)
    observation, info = env.reset(seed=0)
    assert "add subtracts" in observation and info["request"]["stop"]
    observation, *_, info = env.step("Thought: I count.\n<code>\nprint(6 * 7)\n</code> and so on")
    # It writes what it ran after the answer, into the same message.
    assert "42" in observation and (info["continues"], info["conversation"]) == (True, 0)
    code = """from pathlib import Path
path = Path("calc/add.py")
_ = path.write_text(path.read_text().replace("a - b", "a + b"))
final_answer("done")"""
    _, reward, terminated, _, info = env.step(f"Thought: I repair it.\n<code>\n{code}\n</code>")
    assert (reward, terminated, info["end_reason"], info["resolved"]) == (1.0, True, "submitted", True), info


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_qwen_code_repairs_a_repository(make: Make) -> None:
    env = make(load_agent("qwen-code"), turn_timeout_s=300)
    observation, info = env.reset(seed=0)
    assert "add subtracts" in observation and info["request"]["stream"]
    assert "run_shell_command" in [tool["function"]["name"] for tool in info["tools"]]
    for command in ("cat calc/add.py", "sed -i 's/a - b/a + b/' calc/add.py; git diff"):
        arguments = {"command": command, "description": "I work.", "is_background": False}
        call = json.dumps({"name": "run_shell_command", "arguments": arguments})
        observation, *_, info = env.step(f"I work.\n<tool_call>\n{call}\n</tool_call>")
        assert info["continues"] and info["conversation"] == 0
    terminated = False
    for _ in range(10):  # after its work it asks, in other conversations, what to remember
        _, reward, terminated, _, info = env.step("The addition is repaired. There is nothing to remember.")
        if terminated:
            break
    assert (reward, terminated, info["end_reason"], info["resolved"]) == (1.0, True, "submitted", True), info


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_aider_repairs_a_repository(make: Make) -> None:
    env = make(load_agent("aider"), turn_timeout_s=300)
    observation, info = env.reset(seed=0)
    assert "add subtracts" in observation and "def add" in observation and info["request"]["stream"]
    # A file that an answer names is shown to the model from then on: what it asks next begins anew.
    observation, *_, info = env.step("I have to see calc/add.py.")
    assert "return a - b" in observation and (info["continues"], info["conversation"]) == (False, 1)
    edit = "calc/add.py\n```python\n<<<<<<< SEARCH\n    return a - c\n=======\n    return a + b\n>>>>>>> REPLACE\n```\n"
    observation, *_, info = env.step(f"I repair it.\n\n{edit}")
    assert "block failed to match" in observation
    _, reward, terminated, _, info = env.step(f"I repair it.\n\n{edit.replace('a - c', 'a - b')}")
    assert (reward, terminated, info["end_reason"], info["resolved"]) == (1.0, True, "submitted", True), info
    assert "aider" not in info["patch"] and info["patch"].count("diff --git") == 1, info["patch"]


# What the kernel knows of the agent's process while it waits for its answer.
LOOK = r"""
for each in /proc/[0-9]*; do
    if tr '\0' ' ' < $each/cmdline | grep -v imported.py | grep -q '^[^ ]*python[^ ]* [^ ]*venv/bin/'; then
        grep -E '^(Umask|Uid|Gid|Groups|Threads|SigBlk|SigIgn|SigCgt|Cap|NoNewPrivs|Seccomp:)' $each/status
        tr '\0' '\n' < $each/cmdline; tr '\0' '\n' < $each/environ | sort
        readlink $each/cwd; cat $each/comm $each/limits
        for open in $each/fd/*; do echo "${open##*/} $(readlink $open | tr -d 0-9)"; done | sort
    fi
done
"""

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "%s"}}\n</tool_call>'
IDS = "import os, random, sys, time, uuid\nprint(sys.argv, os.getcwd(), sorted(os.environ), len(uuid.uuid4().hex))"
ANSWERS = {
    "mini-swe-agent": ("No call.", CALL % "env | sort; pwd; ls /proc/self/fd; ulimit -a", CALL % FINISH),
    "smolagents": ("No code.", f"I look.\n<code>\n{IDS}\n</code>", "<code>\nfinal_answer('done')\n</code>"),
    "aider": (
        "I have to see calc/add.py.",
        "calc/add.py\n```python\n<<<<<<< SEARCH\nno such line\n=======\nx\n>>>>>>> REPLACE\n```\n",
        "calc/add.py\n```python\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n```\n",
    ),
}


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ANSWERS)
def test_an_agent_that_is_imported_once_asks_byte_for_byte_what_it_asks_otherwise(
    make: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    read = programs.read_request
    monkeypatch.setattr(programs, "read_request", lambda request: (asked.append(request), read(request))[1])

    def episode(env: SWEAgentEnv) -> tuple[Any, ...]:
        asked.clear()
        env.reset(seed=0)
        process = env._sandbox.run(LOOK, timeout_s=60).output  # type: ignore[union-attr]
        for answer in ANSWERS[name]:
            observation, _, terminated, _, info = env.step(answer)
        assert terminated, observation
        http = [(each.method, each.path, dict(each.headers), bytes(each.body)) for each in asked]
        output = re.sub(r"Duration [0-9.]+ seconds", "", observation)
        return http, process, output, info["patch"], info["end_reason"], info["exit_code"]

    agent = load_agent(name)
    once, usual = make(agent, turn_timeout_s=300), make(dataclasses.replace(agent, imports=None), turn_timeout_s=300)
    expected = episode(usual)
    assert len(expected[0]) >= 3 and "SigCgt" in expected[1] and expected[-2] == "submitted"
    for _ in range(3):
        found = episode(once)
        assert once.imports_problem == ""
        assert found == expected
