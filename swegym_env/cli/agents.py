"""`swegym agents`: list the agent programs that are ready, or check your own."""

from __future__ import annotations

import argparse
import json
from typing import Any

from swegym_env.cli.options import add_command, add_group, add_json, add_sandbox
from swegym_env.errors import ConfigurationError, SwegymError
from swegym_env.programs.spec import agent_names, load_agent

__all__ = ["add_parser"]

_PROTOCOLS = {"chat": "chat completions", "messages": "messages", "responses": "responses"}
"""The names that these have in the documentation of the servers that offer them."""


def add_parser(commands: Any) -> None:
    """Add `agents` to the commands of `swegym`."""
    actions = add_group(
        commands,
        "agents",
        "list the agent programs, or check your own",
        "List the agent programs that SWEAgent-v0 and swegym run --agent have, or check your own.",
        "swegym agents check my-agent",
    )
    listing = add_command(actions, "list", _list, "list the agents that are ready", "swegym agents list --json")
    add_json(listing, "agent")
    check = add_command(
        actions,
        "check",
        _check,
        "install an agent in a sandbox, start it on a small task, and answer its first request",
        "swegym agents check my-agent",
    )
    check.add_argument("path", help="a folder with agent.yaml, or the name of an agent")
    check.add_argument("--answer", default="I have no more to say.", help="answer of the model")
    add_sandbox(check)
    add_json(check, "")


def _list(options: argparse.Namespace) -> int:
    for name in agent_names():
        spec = load_agent(name)
        if options.json:
            print(json.dumps({"agent": name, "description": spec.description}))
        else:
            print(f"{name:18}{spec.description}")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Check an agent; 0 if it asks for something.

    Raises:
        ConfigurationError: `agent.yaml` is malformed, it cannot be installed, or it ends before it asks.
    """
    from swegym_env.programs.env import SWEAgentEnv

    env = SWEAgentEnv("mini", agent=options.path, sandbox=options.sandbox, pool=0, reward="none")
    try:
        try:
            observation, info = env.reset(seed=0)
        except SwegymError as error:
            raise ConfigurationError(str(error)) from error
        answered, _, terminated, truncated, after = env.step(options.answer)
    finally:
        env.close()
    found = {
        "agent": env.agent,
        "protocol": info["protocol"],
        "tools": [tool["function"]["name"] for tool in info["tools"]],
        "stream": bool(info["request"].get("stream")),
        "start_s": round(info["timing"].seconds, 3),
        "messages": info["messages"],
        "then": after["end_reason"] if terminated or truncated else "asks again",
        "continues": bool(after.get("continues")),
        "imports_problem": env.imports_problem,
        "observation": answered,
    }
    if options.json:
        print(json.dumps(found))
        return 0
    protocol = _PROTOCOLS.get(info["protocol"], info["protocol"])
    how = "streamed" if found["stream"] else "not streamed"
    print(f"{env.agent}: first request after {found['start_s']:.1f} s ({protocol}, {how})")
    if load_agent(options.path).imports is not None:
        print(f"imported in each episode: {env.imports_problem}" if env.imports_problem else "imported once")
    print(f"tools: {', '.join(found['tools']) or 'none'}\n\n{info['system_prompt']}\n\n{observation}".rstrip())
    print(f"\n>>> {options.answer}\n{answered}")
    same = "the same conversation" if found["continues"] else "another conversation"
    print(f"\nthen: {found['then']}{f', {same}' if found['then'] == 'asks again' else ''}")
    return 0
