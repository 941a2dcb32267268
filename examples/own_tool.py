"""Your own tool: the bundle `examples/own_tool/` in an agent's hands.

    swegym tools check examples/own_tool
    python examples/own_tool.py

A bundle is a folder with `config.yaml` and `bin/`. The model sees the tool as a function schema and calls it as its
family writes calls; a call is checked before anything runs, and what is wrong with it is an observation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gymnasium

import swegym_env  # noqa: F401 - registers SWEBench-v0

BUNDLE = str(Path(__file__).with_name("own_tool"))


def call(name: str, **arguments: object) -> str:
    """A call as Hermes and Qwen write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def main() -> None:
    argparse.ArgumentParser(description="a tool of your own in one episode").parse_args()
    env = gymnasium.make("SWEBench-v0", dataset="mini", tools=("bash", BUNDLE), action_format="hermes")
    _, info = env.reset(options={"instance_id": "mini__lrucache-001"})
    schemas = {tool["function"]["name"]: tool["function"] for tool in info["tools"]}
    print(json.dumps(schemas["outline"], indent=2))

    outline, *_ = env.step(call("outline", paths=["lrucache/cache.py"]))
    print(outline)
    refused, *_, info = env.step(call("outline", path="lrucache/cache.py"))
    print(refused)
    env.close()
    print(json.dumps({"tools": sorted(schemas), "outlined": "class" in outline, "refused": info["action_error"]}))


if __name__ == "__main__":
    main()
