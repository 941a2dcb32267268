"""`swegym tools`: what is shipped, and whether a bundle of one's own works."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swegym_env.command_line import add_command, add_group, add_sandbox
from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.interaction.bundles import Bundle, Tool, load_bundle, shipped_bundles
from swegym_env.interaction.tool_layers import equip
from swegym_env.interaction.toolsets import PROGRAMS, TOOL_SETS, ToolSet, tool_set, written
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.protocol import Sandbox

__all__ = ["add_parser"]

_NOT_FOUND = (126, 127)  # what the shell says of a program that cannot be run


def add_parser(commands: Any) -> None:
    """Add `tools` to the subcommands of `swegym`."""
    actions = add_group(
        commands,
        "tools",
        "list the agent's tools, or check a bundle of your own",
        "List the tools that an agent can be given, or check a bundle of your own.",
        "swegym tools check my-tools/coverage",
    )
    listing = add_command(actions, "list", _list, "list the shipped bundles and sets", "swegym tools list --json")
    listing.add_argument("--json", action="store_true", help="print one object for each tool, as a function schema")
    check = add_command(
        actions,
        "check",
        _check,
        "read a bundle, install it in a sandbox, and call each tool as its example says",
        "swegym tools check my-tools/coverage",
    )
    check.add_argument("path", help="a folder with config.yaml and bin/, or the name of a shipped bundle")
    check.add_argument("--image", default="host", help="what the sandbox runs (default: host)")
    add_sandbox(check)
    check.add_argument("--json", action="store_true", help="print one object for each tool")


def _list(options: argparse.Namespace) -> int:
    for name in shipped_bundles():
        bundle = load_bundle(name)
        if options.json:
            for tool in bundle.tools:
                print(json.dumps(tool.schema))
        else:
            print(f"{name:12}{bundle.description}")
    if not options.json:
        print("\nsets:")
        for name, members in TOOL_SETS.items():
            print(f"{name:14}{', '.join(members)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    """Check a bundle; 0 where every tool can be run.

    Raises:
        ConfigurationError: the bundle cannot work as it is written, or a program of it cannot be run.
        LayerError: its `install.sh` fails.
    """
    bundle = load_bundle(options.path)
    tools = tool_set([bundle.path])
    for problem in _examples_that_cannot_be(bundle):
        raise ConfigurationError(problem)
    try:
        spec = equip(SandboxSpec(image=options.image), tools, backend=options.sandbox)
    except LayerError as error:
        raise ConfigurationError(str(error)) from error
    sandbox = open_sandbox(spec, backend=options.sandbox)
    failures = []
    try:
        sandbox.start()
        for tool in bundle.tools:
            found = _try(tool, tools, sandbox)
            _tell(found, tool, options.json)
            if found["exit_code"] in _NOT_FOUND:
                failures.append(f"{tool.name}: cannot be run: {' '.join(found['output'].split())[-200:]}")
    finally:
        sandbox.close()
    if failures:
        raise ConfigurationError(
            f"{Path(options.path)}: {'; '.join(failures)}. Try: a first line such as #!/usr/bin/env python3, and a "
            "program that the sandbox has"
        )
    return 0


def _examples_that_cannot_be(bundle: Bundle) -> Iterator[str]:
    for tool in bundle.tools:
        try:
            if tool.example is not None:
                written(tool, tool.example)
        except ValueError as error:
            yield f"{bundle.path / 'config.yaml'}: tools: {tool.name}: example: {error}"


def _try(tool: Tool, tools: ToolSet, sandbox: Sandbox) -> dict[str, Any]:
    """Call a tool as its example has it; without one only ask whether there is such a program."""
    program = f"{PROGRAMS}/{tool.name}"
    command = f"test -x {program}" if tool.example is None else written(tool, tool.example, program=program)
    result = sandbox.run(command)
    return {
        "tool": tool.name,
        "command": tool.name if tool.example is None else written(tool, tool.example),
        "exit_code": result.exit_code,
        "output": result.output,
        "schema": tool.schema,
    }


def _tell(found: dict[str, Any], tool: Tool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    print(f"{tool.signature}\n    {tool.command}\n    {tool.description}")
    if tool.example is None:
        print("    (no example in config.yaml, so it was not called)\n")
    else:
        said = found["output"].strip()
        print(f"\n    $ {found['command']}  → exit code {found['exit_code']}\n{said}\n")
