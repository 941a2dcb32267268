"""Long work on one thread beside those of other episodes: how this process's interpreter is shared meanwhile.

A thread that computes keeps the interpreter for 5 ms each time that another one wants it (`sys.getswitchinterval`). A
step of an episode wants it some 30 times, for microseconds each: beside a thread that reads the 40,000 files of another
episode it would take 200 ms instead of one. What such a thread makes also starts full garbage collections, which stop
all threads for longer the more there is, and find nothing.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Iterator

__all__ = ["shared_interpreter"]

_INTERVAL_S = 1e-4

_lock = threading.Lock()
_blocks = 0
_former_s = 0.0
_collects = False


@contextlib.contextmanager
def shared_interpreter() -> Iterator[None]:
    """Within the block, let other threads have the interpreter after 0.1 ms, and collect no garbage. Blocks nest."""
    global _blocks  # noqa: PLW0603 - the interpreter belongs to the process
    with _lock:
        if _blocks == 0:
            _begin()
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks = max(0, _blocks - 1)  # a fork has left it already
            if _blocks == 0:
                _end()


def _begin() -> None:
    global _former_s, _collects
    _former_s, _collects = sys.getswitchinterval(), gc.isenabled()
    sys.setswitchinterval(min(_former_s, _INTERVAL_S))
    gc.disable()


def _end() -> None:
    sys.setswitchinterval(_former_s)
    if _collects:
        gc.enable()


def _leave_in_child() -> None:
    global _blocks  # noqa: PLW0603 - the other threads stayed in the parent
    if _blocks:
        _end()
    _blocks = 0
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_leave_in_child)
