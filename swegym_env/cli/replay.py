"""`swegym replay`: play recorded episodes again and compare."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from swegym_env.cli.options import add_command, add_json, add_repos, show_progress

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `replay` to the commands of `swegym`."""
    from swegym_env.sandbox.backends import BACKENDS

    parser = add_command(
        commands,
        "replay",
        _run,
        "play recorded episodes again and report the first divergence",
        "swegym replay runs/episodes/",
        more=", action by action. Exit code 0: every episode went as recorded; 1: one diverged.",
    )
    parser.add_argument("place", metavar="DIR", help="a recorded episode, or a directory of them")
    parser.add_argument("--exact", action="store_true", help="compare durations and addresses in the text too")
    parser.add_argument("--sandbox", help=f"a back end other than the recorded one: {', '.join(BACKENDS)}")
    add_repos(parser)
    add_json(parser, "episode")


def _run(options: argparse.Namespace) -> int:
    from swegym_env.recording.record import find_records, read_record
    from swegym_env.recording.replay import replay

    records = [read_record(folder) for folder in find_records(options.place)]
    diverged = 0
    with show_progress(sum(len(record.turns) for record in records), "replaying") as advance:
        for record in records:
            found = replay(record, sandbox=options.sandbox, repos=options.repos, exact=options.exact, on_turn=advance)
            diverged += found.divergence is not None
            if options.json:
                print(json.dumps({**dataclasses.asdict(found), "place": str(found.place)}))
                continue
            note = f", {found.approximate} of them except for times and addresses" if found.approximate else ""
            verdict = "as recorded" if found.divergence is None else str(found.divergence)
            print(f"{found.instance_id}: {found.agreed} of {found.turns} turns agree{note}: {verdict}")
    return 1 if diverged else 0
