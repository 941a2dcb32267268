"""What the commands of `swegym` share: options with one name, meaning and help text, checks, progress, log lines."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from swegym_env.errors import ConfigurationError, TaskFormatError
from swegym_env.tasks.datasets import SHIPPED, OfficialImages, load_tasks, skipped_lines
from swegym_env.tasks.task import Task, TaskSet

__all__ = [
    "DATASETS",
    "add_command",
    "add_dataset_arguments",
    "add_group",
    "add_instances",
    "add_jobs",
    "add_json",
    "add_json_logs",
    "add_repos",
    "add_sandbox",
    "add_strict_rows",
    "add_task",
    "add_test_timeout",
    "chosen_instances",
    "find_task",
    "load_chosen",
    "load_for_task",
    "report_skipped",
    "require_at_least",
    "require_repos",
    "require_seconds",
    "show_progress",
    "start_json_logs",
]

DATASETS = f"a shipped set ({', '.join(SHIPPED)}), a name on the hub, or a .jsonl, .json or .parquet file"
_LINE_EVERY_S = 60.0
_SPLIT = "train, test, hash:train, …; by default everything, or the default split of the dataset"


def add_command(
    commands: Any,
    name: str,
    command: Callable[[argparse.Namespace], int],
    purpose: str,
    example: str,
    *,
    more: str = ".",
) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: the subparsers of `swegym` or of a group.
        command: runs it; returns the exit code.
        purpose: shown in the list of commands and, followed by `more`, above the command's own options.
        example: a call that works.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}{more}", epilog=f"example: {example}"
    )
    parser.set_defaults(command=command, parser=parser)
    return parser


def add_group(commands: Any, name: str, purpose: str, description: str, example: str) -> Any:
    """Add a command that only contains others; returns the subparsers for `add_command`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=purpose, description=description, epilog=f"example: {example}"
    )
    return parser.add_subparsers(required=True, metavar="ACTION")


def add_sandbox(parser: argparse.ArgumentParser) -> None:
    """Add --sandbox."""
    from swegym_env.sandbox.backends import BACKENDS

    parser.add_argument("--sandbox", default="auto", help=f"auto or a back end: {', '.join(BACKENDS)}")


def add_repos(parser: argparse.ArgumentParser) -> None:
    """Add --repos."""
    parser.add_argument("--repos", help="source of git repositories: a directory of clones, a clone, or a URL")


def require_repos(options: argparse.Namespace) -> None:
    """Raise ConfigurationError if --repos is given and can be the source of no repository."""
    source = getattr(options, "repos", None)
    if source is None:
        return
    from swegym_env.repo.repositories import source_problem

    if problem := source_problem(source):
        raise ConfigurationError(f"--{problem}")


def add_test_timeout(parser: argparse.ArgumentParser) -> None:
    """Add --timeout, for the tests of one instance."""
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="seconds for the tests of one instance (default: those of the task)",
    )


def add_jobs(parser: argparse.ArgumentParser, *, default: int = 1) -> None:
    """Add -j, --jobs."""
    parser.add_argument("-j", "--jobs", type=int, default=default, help=f"number of parallel jobs (default {default})")


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --json, which prints one JSON object for each `what`; an empty `what`: one object in all."""
    parser.add_argument("--json", action="store_true", help=f"print one JSON object{what and f' per {what}'}")


def add_json_logs(parser: argparse.ArgumentParser) -> None:
    """Add --json-logs: log lines on standard error as JSON objects, with the fields of `swe-train --json-logs`."""
    parser.add_argument(
        "--json-logs", action="store_true", help="write log lines as JSON objects: time, level, message, exception"
    )


def start_json_logs(options: argparse.Namespace) -> None:
    """Write what is logged from here on as JSON objects, warnings included, if `--json-logs` was given."""
    if options.json_logs:
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonLine())
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
        logging.captureWarnings(capture=True)
        for noisy in ("httpx2", "httpx", "httpcore", "urllib3", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.WARNING)


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        created = datetime.fromtimestamp(record.created).astimezone()
        line = {"time": created.isoformat(), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def add_dataset_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select tasks of a dataset: split, filter, seed, slice, and bad rows."""
    parser.add_argument("--split", help=_SPLIT)
    parser.add_argument(
        "--where", action="append", default=[], metavar="FIELD=PATTERN", help="only matching tasks; may be repeated"
    )
    parser.add_argument("--seed", type=int, help="shuffle the tasks")
    parser.add_argument("--select", help="a slice of the tasks that are left, such as 0:50")
    add_strict_rows(parser)


def add_strict_rows(parser: argparse.ArgumentParser) -> None:
    """Add --strict-rows. `--skip-bad-rows` was needed before skipping became the default, and is still accepted."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--strict-rows", action="store_true", help="stop at a malformed row instead of skipping it")
    choice.add_argument("--skip-bad-rows", action="store_true", help=argparse.SUPPRESS)


def add_instances(parser: argparse.ArgumentParser) -> None:
    """Add --instance, which selects tasks by id."""
    parser.add_argument("--instance", action="append", metavar="ID", help="only this task; may be repeated")


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the task of one episode: dataset, split, bad rows, id and seed."""
    parser.add_argument("--dataset", default="mini", help=DATASETS)
    parser.add_argument("--split", help=_SPLIT)
    add_strict_rows(parser)
    parser.add_argument("--instance", help="id of the task; by default the seed chooses it")
    parser.add_argument("--seed", type=int, default=0, help="seed that chooses the task (default 0)")


def load_for_task(options: argparse.Namespace) -> TaskSet[Task]:
    """The tasks of the dataset; the number of skipped rows is printed. Raises what `find_task` does for --instance."""
    tasks = load_tasks(options.dataset, split=options.split, on_bad_row="raise" if options.strict_rows else "skip")
    report_skipped(tasks)
    if options.instance:
        find_task(tasks, options.instance)
    return tasks


def chosen_instances(options: argparse.Namespace, tasks: TaskSet[Task]) -> Sequence[Task]:
    """The tasks that --instance names, else all. Raises UnknownTaskError if one of them does not exist."""
    return [find_task(tasks, name) for name in options.instance] if options.instance else list(tasks)


def find_task(tasks: TaskSet[Task], instance_id: str) -> Task:
    """The task of this id. Raises UnknownTaskError if there is none, TaskFormatError if its row was skipped."""
    if instance_id not in tasks.ids:
        for reason in tasks.skipped:
            if f"(instance {instance_id})" in reason:
                raise TaskFormatError(reason)
    return tasks[instance_id]


def report_skipped(tasks: TaskSet[Task]) -> None:
    """Print the number of skipped rows, and the first reasons, on standard error."""
    if not tasks.skipped:
        return
    lines = skipped_lines(tasks.skipped, "--strict-rows")
    sys.stderr.write("".join(f"swegym: {line}\n" for line in lines))


def load_chosen(options: argparse.Namespace, dataset: str, *, official_images: OfficialImages = False) -> TaskSet[Task]:
    """The tasks that the options select; the number of skipped rows is printed on standard error.

    Raises:
        ConfigurationError: an option is invalid, or what `load_tasks` raises.
    """
    filters: dict[str, str] = {}
    for text in options.where:
        field, equals, pattern = text.partition("=")
        if not equals or not field:
            raise ConfigurationError(f"--where: expected FIELD=PATTERN such as repo='django/*', got {text!r}")
        filters[field] = pattern
    tasks = load_tasks(
        dataset,
        split=options.split,
        on_bad_row="raise" if options.strict_rows else "skip",
        where=filters,
        seed=options.seed,
        select=options.select,
        official_images=official_images,
    )
    report_skipped(tasks)
    if not tasks:
        sys.stderr.write(f"swegym: no task of {dataset} is selected\n")
    return tasks


def require_at_least(options: argparse.Namespace, **least: int) -> None:
    """Raise ConfigurationError for the first of these options that is below its minimum."""
    for name, number in least.items():
        value = getattr(options, name)
        if value is not None and not value >= number:
            raise ConfigurationError(f"--{name.replace('_', '-')}: expected at least {number}, got {value}")


def require_seconds(options: argparse.Namespace, name: str) -> None:
    """Raise ConfigurationError if this option is given and is not a positive, finite number of seconds."""
    seconds = getattr(options, name)
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigurationError(f"--{name.replace('_', '-')}: expected more than 0 seconds, got {seconds:g}")


@contextlib.contextmanager
def show_progress(total: int, what: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal if there is more than one item, elsewhere a line a minute.

    Yields a function that advances it; any thread may call it.
    """
    if not sys.stderr.isatty():
        with _lines(total, what) as advance:
            yield advance
        return
    if total < 2:
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
    # Standard output is redirected above the bar only if both are on one terminal; a file or pipe is left alone.
    with Progress(*columns, console=Console(stderr=True, soft_wrap=True), redirect_stdout=sys.stdout.isatty()) as bar:
        shown = bar.add_task(what, total=total)
        yield lambda *_done: bar.advance(shown)


@contextlib.contextmanager
def _lines(total: int, what: str) -> Iterator[Callable[..., None]]:
    """Write a line a minute on standard error: how much is done, and how long it took."""
    began, over, done = time.monotonic(), threading.Event(), itertools.count()
    count = [0]

    def write() -> None:
        while not over.wait(_LINE_EVERY_S):
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            sys.stderr.write(f"swegym: {what}: {count[0]} of {total} done after {minutes}:{seconds:02} min\n")
            sys.stderr.flush()

    def advance(*_done: object) -> None:
        count[0] = next(done) + 1

    writer = threading.Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield advance
    finally:
        over.set()
        writer.join()
