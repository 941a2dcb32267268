"""`swegym mcp`: serve the tools of an episode to a client of the Model Context Protocol."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from swegym_env.cli.options import add_command, add_repos, add_sandbox, add_task, load_for_task, require_at_least
from swegym_env.errors import ConfigurationError, install_hint

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `mcp` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "mcp",
        _run,
        "serve the tools of an episode to clients of the Model Context Protocol",
        "swegym mcp --dataset mini --instance mini__lrucache-001 --tools default",
        more=", over standard input and output, or over HTTP. When the client is gone, the outcome is printed on "
        "standard error as JSON. Exit code 0: the episode has ended; 1: it was not submitted; 2: the machine failed.",
    )
    add_task(parser)
    add_sandbox(parser)
    parser.add_argument(
        "--tools", default="default", help="tools, separated by commas (default default); see: tools list"
    )
    parser.add_argument(
        "--max-turns", type=int, help="maximum number of tool calls before the work is graded (default: no limit)"
    )
    add_repos(parser)
    parser.add_argument("--record", metavar="DIR", help="record the episode in a folder in DIR, for replay and view")
    parser.add_argument(
        "--http",
        action="store_true",
        help="serve streamable HTTP and print the address; the token is read from $SWEGYM_TOKEN or $SWEGYM_TOKEN_FILE",
    )
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8301, help="port to listen on (default 8301); 0: any free port")


def _run(options: argparse.Namespace) -> int:
    import gymnasium

    from swegym_env.env import SWEBenchEnv
    from swegym_env.recording.recorder import RecordTrajectory
    from swegym_env.sandbox.remote.connection import read_token

    require_at_least(options, seed=0)
    try:
        from swegym_env.adapters import mcp as adapter
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is not installed. {install_hint('mcp')}") from error
    token = read_token() if options.http else ""
    tasks = load_for_task(options)
    env: gymnasium.Env[str, str] = SWEBenchEnv(
        options.dataset,
        split=options.split,
        tasks=tasks,
        sandbox=options.sandbox,
        action_format=adapter.ACTION_FORMAT,
        tools=options.tools.split(","),
        repos=options.repos,
        max_turns=options.max_turns,
        pool=0,
    )
    if options.record:
        env = RecordTrajectory(env, options.record, notes={"agent": "swegym mcp"})
    choice = {"instance_id": options.instance} if options.instance else None
    episode = adapter.Episode(env, seed=options.seed, options=choice)
    try:
        if options.http:
            adapter.serve_http(episode, options.host, options.port, token)
        else:
            adapter.serve_stdio(episode)
    finally:
        episode.close()
    print(json.dumps(episode.outcome()), file=sys.stderr)
    return (0 if episode.info["valid"] else 2) if episode.over else 1
