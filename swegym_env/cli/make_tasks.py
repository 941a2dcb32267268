"""`swegym make-tasks`: make tasks from any project with tests, in Python, C, C++, JavaScript or TypeScript."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from swegym_env.cli.options import add_command, add_jobs, add_sandbox, require_at_least, require_seconds
from swegym_env.errors import SetUpError

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add `make-tasks` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "make-tasks",
        run,
        "make tasks from a project with tests",
        "swegym make-tasks humanize-4.9.0.tar.gz --output made/humanize --count 50 -j 2",
        more=": inject bugs, and keep those that its own tests detect. The project is installed and run in sandboxes "
        "only. An interrupted run continues where it stopped.",
    )
    parser.add_argument("source", help="a source archive, a directory, a git repository, or a URL that git can clone")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="folder in which tasks.jsonl is written"
    )
    parser.add_argument("--count", type=int, default=50, help="number of tasks (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order in which bugs are tried (default 0)")
    parser.add_argument(
        "--kind", action="append", default=[], metavar="KIND", help="only this kind of mistake; repeatable"
    )
    parser.add_argument(
        "--history",
        type=int,
        default=200,
        help="number of latest commits in which to look for changes to revert (default 200)",
    )
    parser.add_argument("--tests", action="append", default=[], metavar="PATH", help="only these tests; repeatable")
    parser.add_argument(
        "--requires",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="further package that the tests need; repeatable",
    )
    parser.add_argument(
        "--install",
        action="append",
        default=[],
        metavar="COMMAND",
        help="command that installs the project (default `pip install -e .`; JavaScript: `npm install`); repeatable",
    )
    parser.add_argument(
        "--test-command",
        default="",
        metavar="COMMAND",
        help="runs the tests of a project in C, C++, JavaScript or TypeScript (default: `make test`, or the script of "
        "package.json)",
    )
    parser.add_argument(
        "--test-seconds",
        type=float,
        default=20.0,
        metavar="SECONDS",
        help="maximum seconds of the tests of one bug (default 20)",
    )
    parser.add_argument("--rewrite-url", metavar="URL", help="OpenAI-compatible server that rewrites the issues")
    parser.add_argument("--rewrite-model", metavar="NAME", default="default", help="the model's name on that server")
    add_jobs(parser)
    add_sandbox(parser)
    parser.add_argument("--json", action="store_true", help="print one object at the end")


def run(options: argparse.Namespace) -> int:
    """Make the tasks; 0 if there are as many as requested, 1 if the project gives fewer.

    Raises:
        ConfigurationError, LayerError, GradingError, SandboxError: see `make_tasks`.
    """
    from swegym_env.making.issues import Rewriter
    from swegym_env.making.maker import make_tasks
    from swegym_env.making.settings import MakeSettings
    from swegym_env.making.sources import read_source
    from swegym_env.making.validation import Limits

    require_at_least(options, count=1, jobs=1, history=0)
    require_seconds(options, "test_seconds")
    rewriter = Rewriter(options.rewrite_url, options.rewrite_model) if options.rewrite_url else None
    begin = time.monotonic()
    source = read_source(options.source, history=options.history)
    for note in source.notes:
        print(f"swegym: {note}", file=sys.stderr)
    settings = MakeSettings(
        count=options.count,
        seed=options.seed,
        kinds=tuple(options.kind),
        tests=tuple(options.tests),
        requires=tuple(options.requires),
        install=tuple(options.install),
        test_command=options.test_command,
        limits=Limits(test_seconds=options.test_seconds),
    )
    with _progress_bar() as on_progress:
        try:
            made = make_tasks(
                source,
                options.output,
                settings,
                jobs=options.jobs,
                backend=options.sandbox,
                rewriter=rewriter,
                on_progress=on_progress,
            )
        except SetUpError as error:
            if options.install:
                raise
            hint = "Try: --install COMMAND, or --install true where nothing is to install"
            raise SetUpError(f"{error}. {hint}") from error
    place = options.output / "tasks.jsonl"
    if options.json:
        summary = {"tasks": len(made.tasks), "dataset": str(place), "refused": made.refused, "unstable": made.unstable}
        summary |= {"tests": made.tests, "validated": made.validated, "validation_s": round(made.seconds, 2)}
        print(json.dumps({**summary, "test_s": round(made.test_seconds, 2), "seconds": time.monotonic() - begin}))
    else:
        print(f"{len(made.tasks)} tasks in {place} (from {made.tests} stable tests)")
        for reason, count in sorted(made.refused.items(), key=lambda item: -item[1]):
            print(f"{count:6} refused: {reason}")
        for test, why in list(made.unstable.items())[:10]:
            print(f"       not used: {test}: {why}")
        print(f"Show them: swegym tasks --dataset {place}")
    if len(made.tasks) < options.count:
        print(f"swegym: {len(made.tasks)} of {options.count} tasks: the project gives no more", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[Any], None] | None]:
    """A progress bar on standard error if it is a terminal; yields the callback that moves it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        shown = bar.add_task("reading", total=1)
        yield lambda progress: bar.update(
            shown, description=progress.stage, completed=progress.done, total=max(1, progress.total)
        )
