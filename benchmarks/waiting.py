"""Waits for a condition in another process."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(holds: Callable[[], bool], patience_s: float, *, every_s: float = 0.05) -> bool:
    """Whether the condition became true in time; checked every `every_s` seconds."""
    ends = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(every_s)
    return True
