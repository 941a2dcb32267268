"""`swegym tools`: list the shipped tool bundles, or check your own."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from swegym_env.agent.tools import PROGRAMS, TOOL_SETS, Tool, load_bundle, shell_command, shipped_bundles, tool_set
from swegym_env.cli.options import add_command, add_group, add_json, add_sandbox
from swegym_env.errors import ConfigurationError, LayerError
from swegym_env.prepare import add_tools
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.api import Sandbox

__all__ = ["add_parser"]

_NOT_FOUND = (126, 127)  # exit codes of the shell for a program that cannot be run


def add_parser(commands: Any) -> None:
    """Add `tools` to the commands of `swegym`."""
    actions = add_group(
        commands,
        "tools",
        "list the tools for agents, or check your own",
        "List the tools that an agent can use, or check your own tool bundle.",
        "swegym tools check my-tools/coverage",
    )
    listing = add_command(actions, "list", _list, "list the shipped bundles and sets", "swegym tools list --json")
    add_json(listing, "tool, its function schema")
    check = add_command(
        actions,
        "check",
        _check,
        "read a bundle, install it in a sandbox, and call each tool with its example",
        "swegym tools check my-tools/coverage",
    )
    check.add_argument("path", help="a folder with config.yaml and bin/, or the name of a shipped bundle")
    check.add_argument("--image", default="host", help="image of the sandbox (default host)")
    add_sandbox(check)
    add_json(check, "tool")


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
    """Check a bundle; 0 if every tool runs.

    Raises:
        ConfigurationError: the bundle is malformed, or one of its programs cannot be run.
        LayerError: its `install.sh` fails.
    """
    bundle = load_bundle(options.path)
    tools = tool_set([bundle.path])
    for tool in bundle.tools:
        try:
            if tool.example is not None:
                shell_command(tool, tool.example)
        except ValueError as error:
            raise ConfigurationError(f"{bundle.path / 'config.yaml'}: tools: {tool.name}: example: {error}") from error
    try:
        spec = add_tools(SandboxSpec(image=options.image), tools, backend=options.sandbox)
    except LayerError as error:
        raise ConfigurationError(str(error)) from error
    sandbox = open_sandbox(spec, backend=options.sandbox)
    failures = []
    try:
        sandbox.start()
        for tool in bundle.tools:
            found = _try(tool, sandbox)
            if options.json:
                print(json.dumps(found))
            else:
                print(f"{tool.signature}\n    {tool.command}\n    {tool.description}")
                if tool.example is None:
                    print("    (not called: config.yaml has no example)\n")
                else:
                    print(f"\n    $ {found['command']}  → exit code {found['exit_code']}\n{found['output'].strip()}\n")
            if found["exit_code"] in _NOT_FOUND:
                failures.append(f"{tool.name}: cannot be run: {' '.join(found['output'].split())[-200:]}")
    finally:
        sandbox.close()
    if failures:
        raise ConfigurationError(
            f"{Path(options.path)}: {'; '.join(failures)}. Try: a first line such as #!/usr/bin/env python3, and a "
            "program that exists in the sandbox"
        )
    return 0


def _try(tool: Tool, sandbox: Sandbox) -> dict[str, Any]:
    """Call a tool with its example; without an example, only check that the program is there."""
    program = f"{PROGRAMS}/{tool.name}"
    command = f"test -x {program}" if tool.example is None else shell_command(tool, tool.example, program=program)
    result = sandbox.run(command)
    return {
        "tool": tool.name,
        "command": tool.name if tool.example is None else shell_command(tool, tool.example),
        "exit_code": result.exit_code,
        "output": result.output,
        "schema": tool.schema,
    }
