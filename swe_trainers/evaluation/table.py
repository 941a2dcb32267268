"""Progress of an evaluation: a live table on a terminal, lines elsewhere, JSON objects for a program."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from swe_trainers.evaluation.records import Row
from swe_trainers.evaluation.summary import outcome, task_name

__all__ = ["Tally", "dollars", "duration", "evaluation_title", "showing", "summary_lines"]

_LINE_EVERY_S = 1.0


class Tally:
    """Counts of an evaluation in progress.

    Args:
        planned: number of planned episodes.
        before: episodes that are finished already.

    Attributes:
        done: finished episodes.
        kinds: episodes by `outcome`.
        tokens: read and generated.
        cost: dollars so far; None if the cost of an episode is unknown.
        running: start times of the running episodes.
    """

    def __init__(self, planned: int, before: Iterable[Row] = ()) -> None:
        self.planned, self.done, self.tokens = planned, 0, 0
        self.cost: float | None = 0.0
        self.kinds: Counter[str] = Counter()
        self.running: dict[tuple[str, int], float] = {}
        for row in before:
            self.add(row)
        self._before, self._began = self.done, time.monotonic()

    def add(self, row: Row) -> None:
        """Count a finished episode."""
        self.done += 1
        self.kinds[outcome(row)] += 1
        self.tokens += row["prompt_tokens"] + row["completion_tokens"]
        if row["requests"]:
            self.cost = None if self.cost is None or row["cost"] is None else self.cost + row["cost"]

    @property
    def rest_s(self) -> float | None:
        """Estimated seconds to the end; None before the first episode has ended."""
        new = self.done - self._before
        return (time.monotonic() - self._began) / new * (self.planned - self.done) if new else None

    def line(self) -> str:
        """All counts in one line."""
        judged = self.kinds["resolved"] or self.kinds["failed"] or not self.kinds["played"]
        kinds = ["resolved", "failed", "invalid"] if judged else ["played", "invalid"]
        words = [f"{kind} {self.kinds[kind]}" for kind in kinds] + [f"running {len(self.running)}"]
        words.append(f"{_short(self.tokens)} tokens")
        if self.cost:
            words.append(dollars(self.cost))
        if self.rest_s is not None and self.done < self.planned:
            words.append(f"{duration(self.rest_s)} to go")
        return " · ".join(words)


@contextmanager
def showing(
    tally: Tally, *, title: str, as_json: bool, log: Callable[[str], None] | None = None, output: IO[str] | None = None
) -> Iterator[Callable[[Row], None]]:
    """Show progress; yields a function to call with the row of each finished episode.

    Args:
        tally: the counts so far.
        title: of the table on a terminal.
        as_json: print the rows as JSON objects.
        log: takes the lines for people instead of `output`.
        output: standard output by default.
    """
    output = output or sys.stdout
    if as_json:
        yield lambda row: print(json.dumps(row), file=output, flush=True)
    elif log is not None:
        yield lambda row: log(_line(tally, row))
    elif output.isatty():
        with _live(tally, title, output) as ended:
            yield ended
    else:
        yield _Lines(tally, output).ended


class _Lines:
    """At most one line a second, each with the counts; invalid episodes and the last one always have one."""

    def __init__(self, tally: Tally, output: IO[str]) -> None:
        self._tally, self._output, self._written_at = tally, output, -math.inf

    def ended(self, row: Row) -> None:
        now = time.monotonic()
        if row["valid"] and self._tally.done < self._tally.planned and now - self._written_at < _LINE_EVERY_S:
            return
        self._written_at = now
        print(_line(self._tally, row), file=self._output, flush=True)


def dollars(cost: float) -> str:
    """`$12.34`, `$0.0012`."""
    return f"${cost:.2f}" if cost >= 0.01 or not cost else f"${cost:.2g}"


def duration(seconds: float) -> str:
    """`4.2 s`, `42 s`, `7 min`, `3 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def _line(tally: Tally, row: Row) -> str:
    """A line for a finished episode, with the counts after it."""
    width = len(str(tally.planned))
    reason = row["end_reason"] if row["valid"] else row["failure_reason"]
    return (
        f"[{tally.done:>{width}}/{tally.planned}] {outcome(row):8} {_name(row)}  {row['turns']} turns, "
        f"{row['seconds']:.1f} s, {reason}  ({tally.line()})"
    )


@contextmanager
def _live(tally: Tally, title: str, output: IO[str]) -> Iterator[Callable[[Row], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    latest: list[Row] = []
    styles = {"resolved": "green", "failed": "red", "invalid": "yellow", "played": "cyan"}

    class Shown:
        """Rendered four times a second."""

        def __rich__(self) -> Any:
            table = Table(box=None, pad_edge=False, header_style="dim")
            for name in ("", "instance", "turns", "tokens", "time", "end"):
                table.add_column(name, justify="right" if name in ("turns", "tokens", "time") else "left", no_wrap=True)
            for row in latest:
                kind = outcome(row)
                tokens = _short(row["prompt_tokens"] + row["completion_tokens"])
                end = row["end_reason"] if row["valid"] else row["failure_reason"]
                cells = (_name(row), str(row["turns"]), tokens, duration(row["seconds"]), Text(end[:60], style="dim"))
                table.add_row(Text(kind, style=styles[kind]), *cells)
            now = time.monotonic()
            for (name, sample), since in list(tally.running.items())[:12]:
                shown = _name({"instance_id": name, "sample": sample})
                table.add_row(Text("running", style="blue"), shown, "", "", duration(now - since), "")
            bar = Table.grid()
            bar.add_row(ProgressBar(total=max(1, tally.planned), completed=tally.done, width=60))
            head = Text(f"{title}  {tally.done}/{tally.planned}", style="bold")
            return Group(head, bar, Text(tally.line()), table)

    def ended(row: Row) -> None:
        latest.append(row)
        del latest[:-8]

    with Live(Shown(), console=Console(file=output), refresh_per_second=4, transient=True):
        yield ended


def _name(row: Row | dict[str, Any]) -> str:
    return task_name(row) + (f" #{row['sample']}" if row["sample"] else "")


def _short(count: int) -> str:
    """`734`, `12.3k`, `4.5M`."""
    return str(count) if count < 1000 else f"{count / 1e3:.1f}k" if count < 1e6 else f"{count / 1e6:.1f}M"


def evaluation_title(model: str, environment: str, arguments: Mapping[str, Any]) -> str:
    """Who plays what: the agent program, if there is one, its model, and the dataset or the environment."""
    agent = arguments.get("agent")
    player = model if agent is None else f"{Path(str(agent)).name} with {model}"
    return f"{player} on {arguments.get('dataset', environment)}"


def summary_lines(summary: dict[str, Any], place: str) -> Sequence[str]:
    """The summary for people."""
    lines = []
    if summary["resolve_rate"] is not None:
        low, high = summary["resolve_rate_95"]
        lines.append(
            f"resolved {summary['resolved']} of {summary['valid']}: {summary['resolve_rate']:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%})"
        )
        if len(summary["pass_at"]) > 1:
            known = {k: rate for k, rate in summary["pass_at"].items() if rate is not None}
            lines.append("  ".join(f"pass@{k} {rate:.1%}" for k, rate in known.items()))
    elif summary["mean_return"] is not None:
        lines.append(f"mean return {summary['mean_return']:.4g} over {summary['valid']} episodes")
    tokens = summary["prompt_tokens"] + summary["completion_tokens"]
    cost = "" if not summary["cost"] else f", {dollars(summary['cost'])}"
    if summary["mean_turns"] is not None:
        lines.append(
            f"{summary['mean_turns']:.1f} turns and {summary['mean_seconds']:.1f} s an episode; "
            f"{_short(tokens)} tokens{cost}"
        )
    if summary["invalid"]:
        reason = next(iter(summary["failure_reasons"]))
        lines.append(
            f"{summary['invalid']} invalid: excluded, repeated by --resume; the most frequent reason: {reason[:200]}"
        )
    return [*lines, f"look at the report: python -m webbrowser {place}/report.html"]
