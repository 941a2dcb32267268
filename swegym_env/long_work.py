"""Log messages about work that takes minutes and is done once: one when it begins, one when it ends.

The caller names the work (`long_work`). The code that does it calls `begins`, only if there is something to do: results
that are stored already need no message.

Both messages have the level INFO. Where this level is not shown, a warning announces the first such work of a process
that takes longer than 5 s, and another says when it has ended: the first reset of a task is not silent for minutes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["LOG", "Work", "begins", "long_work", "ran_tests"]

LOG = logging.getLogger(__name__)
"""All messages; the attribute `work` of a record is a `Work`, the same in all messages about it."""
_SILENT_S = 5.0
_warned = threading.Event()


@dataclass(eq=False)
class Work:
    """Work that takes long.

    Attributes:
        what: with the task's id.
        began: by the monotonic clock; None: not yet.
        over: whether it ended.
        runs: of the tests so far; 0 also for work that runs none.
        timer: gives the warning; None: none is needed.
        announced: whether it was given.
    """

    what: str
    began: float | None = None
    over: bool = False
    runs: int = 0
    timer: threading.Timer | None = None
    announced: bool = False


_current: ContextVar[Work | None] = ContextVar("work", default=None)


@contextlib.contextmanager
def long_work(instance_id: str, what: str) -> Iterator[None]:
    """Name the work that is done inside; it is logged from the first `begins` on.

    Args:
        instance_id: of the task that it is done for.
        what: in the form "setting up its environment".
    """
    work = Work(f"{instance_id}: {what}")
    outer = _current.set(work)
    ended = "failed"
    try:
        yield
        ended = "done"
    finally:
        _current.reset(outer)
        if work.began is not None:
            work.over = True
            if work.timer is not None:
                work.timer.cancel()
            seconds = time.monotonic() - work.began
            level = logging.WARNING if work.announced else logging.INFO
            LOG.log(level, "%s: %s after %.1f s", work.what, ended, seconds, extra={"work": work})


def begins() -> None:
    """Log that the work that is named around this call has begun, if it is and has not been."""
    work = _current.get()
    if work is not None and work.began is None:
        work.began = time.monotonic()
        LOG.info("%s", work.what, extra={"work": work})
        if not LOG.isEnabledFor(logging.INFO) and not _warned.is_set():
            work.timer = threading.Timer(_SILENT_S, _warn, (work,))
            work.timer.daemon = True
            work.timer.start()


def ran_tests() -> None:
    """Count a run of the tests for the work that is named around this call, if any."""
    work = _current.get()
    if work is not None:
        work.runs += 1


def _warn(work: Work) -> None:
    if not work.over and not LOG.isEnabledFor(logging.INFO) and not _warned.is_set():
        _warned.set()
        work.announced = True
        text = "%s … (once for each task; logging.basicConfig(level=logging.INFO) shows all such work)"
        LOG.warning(text, work.what, extra={"work": work})
