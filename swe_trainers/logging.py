"""What a run writes: the console, `training.log`, `metrics.jsonl`, progress bars, and TensorBoard or W&B when asked."""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from loguru import logger

from swe_trainers.errors import ConfigurationError
from swe_trainers.writing import write_whole

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ProgressBar", "Run", "read_metrics"]


class Run:
    """The directory of one run and everything that is written into it; a context manager.

    Only one process at a time may write into a run's directory.

    Args:
        directory: made if it is not there.
        console: say what goes on to the terminal as well.
        tensorboard: write TensorBoard events to `DIRECTORY/tensorboard`.
        wandb_project: log to this project of Weights & Biases as well.
    Raises:
        ConfigurationError: the directory cannot be written, another process writes into it, or a logger that was asked
            for is not installed.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        console: bool = True,
        tensorboard: bool = False,
        wandb_project: str | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._bars: Progress | None = None
        self._console: Any = None
        self._sinks: list[int] = []
        self._tensorboard: Any = None
        self._wandb: Any = None
        self._lock = _lock(self.directory)
        try:
            self._tensorboard = _tensorboard(self.directory) if tensorboard else None
            self._wandb = _wandb(self.directory, wandb_project) if wandb_project else None
        except ConfigurationError:
            self.close()
            raise
        self.log = logger.bind(run=str(self.directory))
        _drop_default_sink()
        self._sinks.append(self._add_sink(str(self.directory / "training.log")))
        if console:
            with _random_state_kept():
                from rich.console import Console

                self._console = Console(stderr=True, highlight=False, soft_wrap=True)
            self._sinks.append(self._add_sink(self._say))

    def info(self, message: str) -> None:
        """One line to the console and to `training.log`."""
        self.log.info("{}", message)

    def warning(self, message: str) -> None:
        """One line that should not be overlooked."""
        self.log.warning("{}", message)

    def record(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Append one object to `metrics.jsonl`; numbers that are not finite become null.

        Args:
            update: its number.
            metrics: numbers, strings, and lists and dictionaries of these.
        Raises:
            OSError: it cannot be written; nothing of it is.
        """
        row = {"update": update, "time": round(time.time(), 3), **metrics}
        _append(self.directory / "metrics.jsonl", json.dumps(_finite(row), allow_nan=False) + "\n")
        numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
        if self._tensorboard is not None:
            for name, value in numbers.items():
                self._tensorboard.add_scalar(name, value, update)
        if self._wandb is not None:
            self._wandb.log(numbers, step=update)

    def rewind(self, stage: str, update: int) -> None:
        """Forget what a stage recorded after this update: the run goes on from there, and would record it twice."""
        path = self.directory / "metrics.jsonl"
        if path.exists():
            kept = [row for row in read_metrics(path) if row.get("stage") != stage or row["update"] <= update]
            write_whole(path, "".join(json.dumps(row) + "\n" for row in kept))

    @contextmanager
    def progress(self, description: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """A bar with an estimate of what remains; nested ones share the terminal. Silent where there is no terminal.

        Args:
            description: what is going on.
            total: units of work.
            done: units done before.
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
        """Flush and let go of everything; the directory is free for another process."""
        for sink in self._sinks:
            logger.remove(sink)
        self._sinks = []
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
        self._lock.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _add_sink(self, sink: Any) -> int:
        mine = str(self.directory)
        layout = "{time:YYYY-MM-DD HH:mm:ss} {level:<7} {message}"
        # `catch`: a log that cannot be written ends the run, instead of a traceback for every line of it.
        return logger.add(sink, format=layout, filter=lambda record: record["extra"].get("run") == mine, catch=False)

    def _say(self, message: str) -> None:
        self._console.print(message, end="", markup=False)


class ProgressBar:
    """One bar of a run."""

    def __init__(self, bars: Progress, task: Any) -> None:
        self._bars = bars
        self._task = task

    def advance(self, units: int = 1) -> None:
        """So many more units are done."""
        self._bars.advance(self._task, units)

    def describe(self, description: str) -> None:
        """Say something else beside the bar."""
        self._bars.update(self._task, description=description)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`; a last line cut short by a death is left out."""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _append(path: Path, line: str) -> None:
    """Append a line, whole or not at all."""
    content = line.encode()
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        if file.write(content) != len(content):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _lock(directory: Path) -> IO[str]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{directory}: cannot write a run here: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigurationError(
            f"{directory}: another process is writing this run. Try: another output_dir"
        ) from error
    return file


def _drop_default_sink() -> None:
    """Loguru's own sink to stderr would say everything a second time, or what was to stay off the terminal."""
    try:
        logger.remove(0)
    except ValueError:  # the program has removed it itself
        return


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Rich draws from Python's global generator when it is set up; a run that goes on must not differ by that."""
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
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=console or Console(quiet=True),
        disable=console is None or not console.is_terminal,
    )


def _tensorboard(directory: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigurationError("tensorboard is not installed. Try: pip install tensorboard") from error
    return SummaryWriter(str(directory / "tensorboard"))


def _wandb(directory: Path, project: str) -> Any:
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigurationError("wandb is not installed. Try: pip install wandb") from error
    return wandb.init(project=project, dir=str(directory), name=directory.name, resume="allow")
