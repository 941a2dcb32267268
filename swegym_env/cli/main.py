"""`swegym`: the command line. A command is one file beside this one, with `add_parser`, and an entry in `COMMANDS`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from swegym_env import __version__
from swegym_env.arguments import nearest
from swegym_env.cli.long_work import show_long_work
from swegym_env.cli.options import require_repos
from swegym_env.errors import SwegymError

__all__ = ["COMMANDS", "build_parser", "main"]

COMMANDS = (
    "doctor",
    "tasks",
    "run",
    "grade",
    "certify",
    "audit",
    "make-tasks",
    "images",
    "layers",
    "export",
    "replay",
    "view",
    "tools",
    "agents",
    "serve",
    "pool",
    "mcp",
    "gc",
    "completion",
)
"""The commands in the order of `swegym --help`; `make-tasks` is in `make_tasks.py`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `swegym` with these arguments (by default those of the process).

    Returns:
        0 on success; 1 if the answer is no (a task is not sound, a replay diverged, no sandbox can run here) or an
        episode ended without a submission; 2 if the request is wrong or cannot be fulfilled here (one line on standard
        error says why); 130 after Ctrl-C; 141 if standard output is closed.
    """
    _open_standard_streams()
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        from swegym_env.sandbox.client import end_all

        end_all()
        print("swegym: interrupted; its sandboxes are removed", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: Sequence[str] | None) -> int:
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # otherwise each of its retries prints a line
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # tasks contain characters that a terminal may not have
    options, unread = build_parser().parse_known_args(arguments)
    if unread:
        options.parser.error(f"unrecognized arguments: {' '.join(unread)}{_instead_of(unread[0], options.parser)}")
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        require_repos(options)
        with contextlib.nullcontext() if getattr(options, "json_logs", False) else show_long_work():
            code = command(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _flush_output()
        return 128 + signal.SIGPIPE
    except (SwegymError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        if getattr(options, "json_logs", False):
            logging.getLogger("swegym").log(logging.ERROR, _one_line(error))
        else:
            print(f"swegym: {_one_line(error)}", file=sys.stderr)
        _flush_output()
        return 2


def _open_standard_streams() -> None:
    """Open the null device in the place of closed streams: Python has none, and a file would take their number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the free number, since those below it are open
            os.set_inheritable(descriptor, descriptor == number)
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115 as long as Python


def _instead_of(unread: str, parser: argparse.ArgumentParser) -> str:
    """What was probably meant by an argument that a command does not have."""
    known = sorted({*re.findall(r"--[a-z][a-z-]+", parser.format_help())})
    if not unread.startswith("-"):
        return f"; did you mean --dataset {unread}?" if "--dataset" in known else ""
    return nearest(unread.partition("=")[0], known)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def _flush_output() -> None:
    """Flush standard output; if it is closed or full, replace it, so that Python does not complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


_CHOICE = re.compile(r"invalid choice: '(?P<got>.*)' \(choose from (?P<known>.*)\)$")  # of argparse


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        if choice := _CHOICE.search(message):
            message += nearest(choice["got"], re.findall(r"[^\s',]+", choice["known"]))
        self.exit(2, f"{self.prog}: {message}{'' if message.endswith('?') else '.'} Try: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of `swegym` with all of its commands."""
    parser = _Parser(prog="swegym", description="Software engineering tasks in sandboxes, for agents.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        importlib.import_module(f"swegym_env.cli.{name.replace('-', '_')}").add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
