"""Lines on standard error for work that takes long: what is done, every minute how far it is, and how long it took."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator

from swegym_env.long_work import LOG, Work

__all__ = ["show_long_work"]

_SHOWN_AFTER_S = 5.0
_AGAIN_AFTER_S = 60.0


@contextlib.contextmanager
def show_long_work(after_s: float = _SHOWN_AFTER_S, again_after_s: float = _AGAIN_AFTER_S) -> Iterator[None]:
    """Show the messages of `swegym_env.long_work` on standard error, of work that takes longer than `after_s`.

    Args:
        after_s: seconds.
        again_after_s: seconds between the lines that say how far it is.
    """
    handler = _LongWorkLines(after_s, again_after_s)
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
    """Holds a first message back until its work has taken long; then it, the progress and the last one are written."""

    def __init__(self, after_s: float, again_after_s: float) -> None:
        super().__init__()
        self._after_s, self._again_after_s = after_s, again_after_s
        self._waiting: dict[Work, threading.Timer] = {}  # for the first line of this work, or for the next
        self._shown: set[Work] = set()

    def emit(self, record: logging.LogRecord) -> None:
        work: Work = record.__dict__["work"]
        if not work.over:
            self._wait(work, self._after_s)
            return
        waiting = self._waiting.pop(work, None)
        if waiting is not None:
            waiting.cancel()
        if work in self._shown:
            self._shown.remove(work)
            self._write(record.getMessage())

    def close(self) -> None:
        with self.lock or contextlib.nullcontext():
            for timer in self._waiting.values():
                timer.cancel()
            self._waiting.clear()
        super().close()

    def _wait(self, work: Work, seconds: float) -> None:
        self._waiting[work] = threading.Timer(seconds, self._show, (work,))
        self._waiting[work].daemon = True
        self._waiting[work].start()

    def _show(self, work: Work) -> None:
        with self.lock or contextlib.nullcontext():
            if self._waiting.pop(work, None) is None:  # it has ended
                return
            done = ""
            if work in self._shown and work.began is not None:
                runs = f", {work.runs} runs of the tests" if work.runs else ""
                done = f" {time.monotonic() - work.began:.0f} s so far{runs}"
            self._write(f"{work.what} …{done}")
            self._shown.add(work)
            self._wait(work, self._again_after_s)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error is closed
            sys.stderr.write(f"swegym: {text}\n")
            sys.stderr.flush()
