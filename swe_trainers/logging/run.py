"""A run's output: its directory, log lines, progress bars and metrics."""

from __future__ import annotations

import fcntl
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from loguru import logger

from swe_trainers.errors import ConfigurationError
from swe_trainers.logging.backends import MetricsLogger, open_logger
from swe_trainers.logging.json_logs import json_line
from swe_trainers.logging.jsonl import JsonLines

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressBar", "Run", "lock"]

_LINE_EVERY_S = 1.0


class Run:
    """The directory of one run and everything written to it; a context manager.

    Only one process at a time can write to a run's directory.

    Args:
        directory: created if absent.
        console: write log lines and progress bars to the terminal as well.
        json_logs: write log lines as JSON objects (`time`, `level`, `message`), and no progress bars.
        loggers: logging back ends for metrics besides `metrics.jsonl`, with their options: names of `LOGGERS` or
            `module:Class`.
    Raises:
        ConfigurationError: the directory cannot be written, another process writes to it, or a back end cannot be
            opened.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        console: bool = True,
        json_logs: bool = False,
        loggers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._bars: Progress | None = None
        self._console: Any = None
        self._frequent_at = -math.inf
        self._json_logs = json_logs
        self._sinks: list[int] = []
        self._metrics = JsonLines(self.directory)
        self._loggers: list[MetricsLogger] = []
        self._lock = lock(self.directory)
        try:
            for name, options in (loggers or {}).items():
                self._loggers.append(open_logger(name, self.directory, options))
        except ConfigurationError:
            self.close()
            raise
        self.log = logger.bind(run=str(self.directory))
        if json_logs:
            self.log = self.log.patch(lambda record: record["extra"].update(json=json_line(record)))
        with suppress(ValueError):  # the program has removed it already
            logger.remove(0)  # loguru's own sink to stderr would repeat every line
        # The text of an environment's error may have lone surrogates, which UTF-8 has not.
        log = str(self.directory / "training.log").replace("{", "{{").replace("}", "}}")  # loguru formats it
        self._sinks.append(self._add_sink(log, errors="backslashreplace"))
        if console and json_logs:
            self._sinks.append(self._add_sink(sys.stderr, level="INFO"))
        elif console:
            with _random_state_kept():
                from rich.console import Console

                self._console = Console(stderr=True, highlight=False, soft_wrap=True)
            sink = lambda line: self._console.print(line, end="", markup=False)  # noqa: E731
            self._sinks.append(self._add_sink(sink, level="INFO", everything=False))

    def info(self, message: str, *, frequent: bool = False) -> None:
        """Write a line to the console and to `training.log`.

        Args:
            message: the line.
            frequent: leave it out on the console if the last such line there is less than a second old.
        """
        if frequent and self._console is not None:
            now = time.monotonic()
            if now - self._frequent_at < _LINE_EVERY_S:
                self.log.bind(file_only=True).info("{}", message)
                return
            self._frequent_at = now
        self.log.info("{}", message)

    def warning(self, message: str) -> None:
        """Write a warning to the console and to `training.log`."""
        self.log.warning("{}", message)

    def detail(self, message: str) -> None:
        """Write lines to `training.log` alone."""
        self.log.debug("{}", message)

    def record(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of an update to `metrics.jsonl` and log their finite numbers to the other back ends.

        Args:
            update: its number.
            metrics: numbers, strings, and lists and dictionaries of these.
        Raises:
            OSError: `metrics.jsonl` cannot be written; no part of the line is left.
        """
        self._metrics.log(update, metrics)
        numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        for backend in self._loggers:
            backend.log(update, numbers)

    def rewind(self, stage: str, update: int) -> int:
        """Remove a stage's rows after this update: a run that resumes from a checkpoint records them again.

        Returns:
            The last update that was recorded, or `update`.
        """
        return self._metrics.rewind(stage, update)

    @contextmanager
    def progress(self, description: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """A progress bar with the remaining time; nested bars share the terminal. Silent without a terminal.

        Args:
            description: of the work.
            total: units of work.
            done: units that are done already.
        """
        outermost = self._bars is None
        if outermost:
            with _random_state_kept():
                self._bars = _bars(self._console)
                self._bars.start()
        assert self._bars is not None
        task = self._bars.add_task(description, total=total, completed=done)
        try:
            yield ProgressBar(self._bars, task)
        finally:
            self._bars.remove_task(task)
            if outermost:
                self._bars.stop()
                self._bars = None

    def close(self) -> None:
        """Flush and close everything; another process can then write to the directory."""
        for sink in self._sinks:
            logger.remove(sink)
        self._sinks = []
        for backend in self._loggers:
            backend.close()
        self._loggers = []
        self._lock.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _add_sink(self, sink: Any, *, level: str = "DEBUG", everything: bool = True, **options: Any) -> int:
        own = str(self.directory)

        def is_wanted(record: Any) -> bool:
            extra = record["extra"]
            return extra.get("run") == own and (everything or not extra.get("file_only", False))

        layout = "{time:YYYY-MM-DD HH:mm:ss} {level:<7} {message}"
        if self._json_logs:
            layout = "{extra[json]}"
        # Without `catch` a log that cannot be written ends the run, instead of a traceback for every line.
        return logger.add(sink, level=level, format=layout, filter=is_wanted, catch=False, **options)


class ProgressBar:
    """One progress bar of a run."""

    def __init__(self, bars: Progress, task: Any) -> None:
        self._bars = bars
        self._task = task

    def advance(self, units: int = 1) -> None:
        """Count units as done."""
        self._bars.advance(self._task, units)

    def describe(self, description: str) -> None:
        """Change the description."""
        self._bars.update(self._task, description=description)


def lock(directory: Path) -> IO[str]:
    """Keep other processes from writing a run until the file is closed.

    Raises:
        ConfigurationError: the directory cannot be written, or another process writes to it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{directory}: cannot write a run here: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigurationError(f"{directory}: another process is writing this run. Try: another directory") from error
    return file


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Rich draws from Python's global generator at start; a resumed run must not differ because of that."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def _bars(console: Any) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Description(ProgressColumn):
        """The description in what room the other columns leave: rich narrows columns that may wrap first."""

        def render(self, task: Task) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    return Progress(
        Description(table_column=Column(no_wrap=False, overflow="ellipsis")),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=console or Console(quiet=True),
        disable=console is None or not console.is_terminal,
    )
