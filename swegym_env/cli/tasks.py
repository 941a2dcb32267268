"""`swegym tasks`: list the tasks of a dataset, or show one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from swegym_env.cli.options import DATASETS, add_command, add_dataset_arguments, add_json, find_task, load_chosen
from swegym_env.errors import ConfigurationError
from swegym_env.tasks.task import task_to_row

__all__ = ["add_parser"]

_KNOWN = ("instance_id", "repo", "base_commit", "version", "created_at", "image", "problem_statement")
"""What whoever solves a task may see."""


def add_parser(commands: Any) -> None:
    """Add `tasks` to the commands of `swegym`."""
    parser = add_command(
        commands, "tasks", _run, "list the tasks of a dataset, or show one", "swegym tasks --dataset mini"
    )
    parser.add_argument("--dataset", default="mini", help=DATASETS)
    add_dataset_arguments(parser)
    parser.add_argument("--instance", help="print the issue of this task; --json: its row without what solves it")
    parser.add_argument(
        "--full",
        action="store_true",
        help="with --instance: the whole row in JSON, with gold patch, tests and hints",
    )
    add_json(parser, "task")


def _run(options: argparse.Namespace) -> int:
    if options.full and not options.instance:
        raise ConfigurationError("--full: only with --instance")
    tasks = load_chosen(options, options.dataset)
    if options.instance:
        task = find_task(tasks, options.instance)
        if not (options.full or options.json):
            print(task.problem_statement.strip())
            return 0
        row = task_to_row(task)
        shown = row if options.full else {name: row[name] for name in _KNOWN if row[name]}
        print(json.dumps(shown, indent=None if options.json else 2))
        return 0
    for task in tasks:
        title = task.problem_statement.strip().partition("\n")[0]
        if options.json:
            print(json.dumps({"instance_id": task.instance_id, "repo": task.repo, "problem_statement": title}))
        else:
            print(f"{task.instance_id:40}  {title[:100]}")
    return 0
