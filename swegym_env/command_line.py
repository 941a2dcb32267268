"""What the commands of `swegym` share: options that are named and said alike, their checks, a bar of progress."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from swegym_env.errors import ConfigurationError

__all__ = [
    "DATASETS",
    "add_command",
    "add_group",
    "add_jobs",
    "add_repos",
    "add_sandbox",
    "require_at_least",
    "require_seconds",
    "show_progress",
]

DATASETS = "a shipped set (mini, mini-edit, …), a hub name, or a .jsonl, .json or .parquet file"


def add_command(
    commands: Any,
    name: str,
    command: Callable[[argparse.Namespace], int],
    purpose: str,
    example: str,
    *,
    more: str = ".",
) -> argparse.ArgumentParser:
    """Add a command; what it is for is said in the list of commands and, with `more`, above its own options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}{more}", epilog=f"example: {example}"
    )
    parser.set_defaults(command=command)
    return parser


def add_group(commands: Any, name: str, purpose: str, description: str, example: str) -> Any:
    """Add a command that only holds others; returns what `add_command` adds those to."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=description, epilog=f"example: {example}"
    )
    return parser.add_subparsers(required=True, metavar="ACTION")


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """Add --sandbox."""
    parser.add_argument("--sandbox", default="auto", help="auto, apptainer or namespace")


def add_repos(parser: argparse.ArgumentParser) -> None:
    """Add --repos."""
    parser.add_argument("--repos", help="where git repositories come from: a directory of clones, a clone, or a URL")


def add_jobs(parser: argparse.ArgumentParser, *, default: int = 1) -> None:
    """Add -j, --jobs."""
    parser.add_argument("-j", "--jobs", type=int, default=default, help=f"how many at a time (default {default})")


def require_at_least(options: argparse.Namespace, **least: int) -> None:
    """Raise ConfigurationError for the first of these options that is smaller than it may be."""
    for name, number in least.items():
        if getattr(options, name) < number:
            raise ConfigurationError(f"--{name}: expected at least {number}, got {getattr(options, name)}")


def require_seconds(options: argparse.Namespace, name: str) -> None:
    """Raise ConfigurationError where this option is given and is no time that something can take."""
    seconds = getattr(options, name)
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigurationError(f"--{name.replace('_', '-')}: expected more than 0 seconds, got {seconds:g}")


@contextlib.contextmanager
def show_progress(total: int, what: str) -> Iterator[Callable[..., None]]:
    """A bar on standard error where there are many and somebody looks; yields what to call for each that is done."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda *_done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # What is printed goes above the bar where both are on one screen, else untouched to its file or pipe.
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        shown = bar.add_task(what, total=total)
        yield lambda *_done: bar.advance(shown)
