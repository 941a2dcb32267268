"""Log messages of what takes minutes once: one as it begins, one as it ends.

Whoever does such work for a task names it (`long_work`). What is known already takes no time and is not worth a
message, and only who builds or learns knows that: it calls `begins`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["LOG", "Work", "begins", "long_work"]

LOG = logging.getLogger(__name__)
"""All messages, of level INFO; the attribute `work` of a record is a `Work`, the same in both messages."""


@dataclass(eq=False)
class Work:
    """Attributes: what: with the task's id; began: by the monotonic clock, None: it has not; over: whether it ended."""

    what: str
    began: float | None = None
    over: bool = False


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
            seconds = time.monotonic() - work.began
            LOG.info("%s: %s after %.1f s", work.what, ended, seconds, extra={"work": work})


def begins() -> None:
    """Log that the work that is named around this call has begun, if it is and has not been."""
    work = _current.get()
    if work is not None and work.began is None:
        work.began = time.monotonic()
        LOG.info("%s", work.what, extra={"work": work})
