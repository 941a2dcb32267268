"""`swegym run`: play one episode with commands from standard input."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from swegym_env.cli.options import (
    DATASETS,
    SPLIT,
    add_command,
    add_json,
    add_repos,
    add_sandbox,
    add_strict_rows,
    find_task,
    report_skipped,
    require_at_least,
)
from swegym_env.tasks.datasets import load_tasks

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `run` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "run",
        _run,
        "play one episode, commands from standard input",
        "printf 'ls\\nsubmit\\n' | swegym run --dataset mini --seed 0",
    )
    parser.add_argument("--dataset", default="mini", help=DATASETS)
    parser.add_argument("--split", help=SPLIT)
    add_strict_rows(parser)
    parser.add_argument("--instance", help="id of the task; by default the seed chooses it")
    parser.add_argument("--seed", type=int, default=0, help="chooses the task (default 0)")
    add_sandbox(parser)
    parser.add_argument("--tools", default="bash", help="tools, separated by commas (default bash); see: tools list")
    add_repos(parser)
    parser.add_argument("--record", metavar="DIR", help="record the episode in a folder in DIR, for replay and view")
    parser.add_argument(
        "--deterministic", action="store_true", help="fix the hash seed, time zone, locale and, if possible, the clock"
    )
    add_json(parser, "step")


def _run(options: argparse.Namespace) -> int:
    import gymnasium

    from swegym_env.env import SWEBenchEnv
    from swegym_env.recording.recorder import RecordTrajectory

    require_at_least(options, seed=0)
    tasks = load_tasks(options.dataset, split=options.split, on_bad_row="raise" if options.strict_rows else "skip")
    report_skipped(tasks)
    if options.instance:
        find_task(tasks, options.instance)
    env: gymnasium.Env[str, str] = SWEBenchEnv(
        options.dataset,
        split=options.split,
        tasks=tasks,
        sandbox=options.sandbox,
        action_format="raw",
        tools=options.tools.split(","),
        repos=options.repos,
        max_turns=None,
        deterministic=options.deterministic,
    )
    if options.record:
        env = RecordTrajectory(env, options.record, notes={"agent": "swegym run"})
    try:
        choice = {"instance_id": options.instance} if options.instance else None
        observation, info = env.reset(seed=options.seed, options=choice)
        if not options.json:
            print(f"{info['system_prompt']}\n\n{observation}")
        for line in sys.stdin.buffer if sys.stdin is not None else ():
            # Bytes that are not UTF-8 are replaced, as in everything that an agent reads.
            command = line.decode("utf-8", "replace").rstrip("\n")
            observation, reward, terminated, truncated, info = env.step(command)
            if options.json:
                info["timing"] = info["timing"].seconds
                print(json.dumps({"observation": observation, "reward": reward, "info": info}))
            else:
                print(f"\n>>> {command}\n{observation}", flush=True)
            if terminated or truncated:
                if not info["valid"]:
                    print(f"swegym: {info['failure_reason']}", file=sys.stderr)
                    return 2
                if not options.json:
                    tests = f"tests passed: {info['fail_to_pass']} {info['pass_to_pass']}"
                    print(f"\nresolved: {info['resolved']}  {tests}\n{info['patch']}")
                return 0
    finally:
        env.close()
    print("swegym: standard input ended before the work was submitted", file=sys.stderr)
    return 1
