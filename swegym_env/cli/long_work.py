"""Lines on standard error for work that takes long: what is done, and how long it took."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator

from swegym_env.long_work import LOG, Work

__all__ = ["show_long_work"]

_SHOWN_AFTER_S = 5.0
_SHOWN_IN_LOGS_AFTER_S = 60.0  # as often as progress is written where no terminal shows it


@contextlib.contextmanager
def show_long_work(after_s: float | None = None) -> Iterator[None]:
    """Show the messages of `swegym_env.long_work` on standard error, of work that takes longer than `after_s`.

    Args:
        after_s: seconds; None: 5 on a terminal, 60 elsewhere.
    """
    if after_s is None:
        after_s = _SHOWN_AFTER_S if sys.stderr is not None and sys.stderr.isatty() else _SHOWN_IN_LOGS_AFTER_S
    handler = _LongWorkLines(after_s)
    before = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOG.setLevel(before)
        LOG.removeHandler(handler)
        handler.close()


class _LongWorkLines(logging.Handler):
    """Holds a first message back until its work has taken long; then it and the last one are written."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self._after_s = after_s
        self._waiting: dict[Work, threading.Timer] = {}

    def emit(self, record: logging.LogRecord) -> None:
        work: Work = record.__dict__["work"]
        waiting = self._waiting.pop(work, None)
        if waiting is not None:  # it has ended
            waiting.cancel()
        elif work.over:
            self._write(record.getMessage())
        else:
            self._waiting[work] = threading.Timer(self._after_s, self._show, (work,))
            self._waiting[work].daemon = True
            self._waiting[work].start()

    def close(self) -> None:
        with self.lock or contextlib.nullcontext():
            for timer in self._waiting.values():
                timer.cancel()
            self._waiting.clear()
        super().close()

    def _show(self, work: Work) -> None:
        with self.lock or contextlib.nullcontext():
            if self._waiting.pop(work, None) is not None:
                self._write(f"{work.what} …")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"swegym: {text}\n")
            sys.stderr.flush()
