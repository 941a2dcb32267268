"""`swegym replay` and `swegym view`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from swegym_env.command_line import add_command, add_repos, show_progress
from swegym_env.errors import ConfigurationError
from swegym_env.writing import write_whole

__all__ = ["add_parsers"]


def add_parsers(commands: Any) -> None:
    """Add both commands to `swegym`'s."""
    replay = add_command(
        commands,
        "replay",
        _replay,
        "play recorded episodes again and report the first divergence",
        "swegym replay runs/episodes/",
        more=", action by action. Exit code 0: all came out as recorded; 1: one diverged.",
    )
    replay.add_argument("place", metavar="DIR", help="a recorded episode, or a directory of them")
    replay.add_argument("--exact", action="store_true", help="durations and addresses in the text must agree too")
    replay.add_argument("--sandbox", help="another back end than the recorded one: apptainer or namespace")
    add_repos(replay)
    replay.add_argument("--json", action="store_true", help="print one object for each episode")

    view = add_command(
        commands,
        "view",
        _view,
        "write recorded episodes as one page of HTML",
        "swegym view runs/episodes/ -o episodes.html",
        more=" that needs no server and no network.",
    )
    view.add_argument("place", metavar="DIR", help="a recorded episode, or a directory of them")
    view.add_argument("-o", "--output", default="", help="the file to write (default DIR/view.html); - for the output")


def _replay(options: argparse.Namespace) -> int:
    from swegym_env.recording.record import find_records, read_record
    from swegym_env.recording.replay import replay

    records = [read_record(folder) for folder in find_records(options.place)]
    diverged = 0
    with show_progress(sum(len(record.turns) for record in records), "replaying") as advance:
        for record in records:
            found = replay(
                record,
                sandbox=options.sandbox,
                repos=options.repos,
                exact=options.exact,
                on_turn=advance,
            )
            diverged += found.divergence is not None
            if options.json:
                print(json.dumps({**dataclasses.asdict(found), "place": str(found.place)}))
                continue
            note = f", {found.approximate} of them but for times and addresses" if found.approximate else ""
            verdict = "as recorded" if found.divergence is None else str(found.divergence)
            print(f"{found.instance_id}: {found.agreed} of {found.turns} turns agree{note}: {verdict}")
    return 1 if diverged else 0


def _view(options: argparse.Namespace) -> int:
    from swegym_env.recording.record import find_records, read_record
    from swegym_env.recording.viewer import render_page

    place = Path(options.place)
    page = render_page([read_record(folder) for folder in find_records(place)], title=place.resolve().name)
    if options.output == "-":
        sys.stdout.buffer.write(page.encode())
        return 0
    output = Path(options.output) if options.output else place / "view.html"
    try:
        write_whole(output, page)
    except OSError as error:
        raise ConfigurationError(f"{output}: the page was not written: {error.strerror}") from error
    print(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser")
    return 0
