"""`swegym view`: recorded episodes as one HTML page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from swegym_env.cli.options import add_command
from swegym_env.errors import ConfigurationError
from swegym_env.files import write_atomically

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `view` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "view",
        _run,
        "write recorded episodes as one HTML page",
        "swegym view runs/episodes/ -o episodes.html",
        more=" that needs no server and no network.",
    )
    parser.add_argument("place", metavar="DIR", help="a recorded episode, a trajectory in ATIF, or a directory of them")
    parser.add_argument(
        "-o", "--output", default="", help="the file to write (default DIR/view.html); - for standard output"
    )


def _run(options: argparse.Namespace) -> int:
    from swegym_env.adapters.episodes import read_episodes
    from swegym_env.recording.viewer import render_page

    place = Path(options.place)
    page = render_page(read_episodes(place), title=place.resolve().name)
    if options.output == "-":
        sys.stdout.buffer.write(page.encode())
        return 0
    beside = place.with_suffix(".html") if place.is_file() else place / "view.html"
    output = Path(options.output) if options.output else beside
    try:
        write_atomically(output, page)
    except OSError as error:
        raise ConfigurationError(f"{output}: the page was not written: {error.strerror}") from error
    print(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser")
    return 0
