"""What this process may spend on reading an agent's files: their number, size, depth and its own processor time.

A sandbox has its own limits, but what lies in it is read outside of them, beside other episodes.
"""

from __future__ import annotations

import contextlib
import errno
import time

from swegym_env.sandbox.api import Limits
from swegym_env.sandbox.interpreter import shared_interpreter

__all__ = ["SHORT_S", "Budget", "LongReadingError", "OverBudgetError"]

SHORT_S = 0.005
"""Processor seconds of a short reading, for which no other thread is made to wait less."""
_SHORT_BYTES = 4 << 20


class OverBudgetError(OSError):
    """What an agent left is more than this process may spend on reading it.

    Attributes:
        reason: one line for the agent.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EFBIG, reason)
        self.reason = reason


class LongReadingError(Exception):
    """A reading that was to be short takes long: another process should do it, see `Budget`."""


class Budget:
    """What reading an agent's files may cost; one for each reading, on one thread.

    Time is processor time, so a busy machine refuses no work that an idle one accepts. Within a `with` block a reading
    that takes long lets the other threads of this process work beside it.

    Args:
        limits: the fields `patch_…` count.
        short: raise LongReadingError once it has taken 5 ms or read 4 MiB.
    """

    def __init__(self, limits: Limits, *, short: bool = False) -> None:
        self.limits = limits
        self._short = short
        self._files = self._size_bytes = 0
        self._began_s = time.thread_time()
        self._block: contextlib.ExitStack | None = None
        self._long = False

    def __enter__(self) -> Budget:
        self._block = contextlib.ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        if self._block is not None:
            self._block.close()
            self._block = None

    @property
    def left_s(self) -> float:
        """Processor seconds that are left; not positive where none are."""
        return self.limits.patch_cpu_s - (time.thread_time() - self._began_s)

    def spend(self, *, files: int = 0, size_bytes: int = 0, depth: int = 0) -> None:
        """Count what was read. Raises OverBudgetError if it is too much, LongReadingError if it was to be short."""
        self._files += files
        self._size_bytes += size_bytes
        limits = self.limits
        if self._files > limits.patch_files:
            raise OverBudgetError(f"it changes more than {limits.patch_files} files")
        if self._size_bytes > limits.patch_bytes:
            raise OverBudgetError(f"its files take more than {limits.patch_bytes} bytes")
        if depth > limits.patch_depth:
            raise OverBudgetError(f"it has more than {limits.patch_depth} nested directories")
        if self._short and self._size_bytes > _SHORT_BYTES:
            raise LongReadingError
        if files and self._files % 64 == 0:
            self.check_time()

    def check_time(self) -> None:
        """Raise OverBudgetError if no time is left, and LongReadingError if it was to be short."""
        left_s = self.left_s
        if left_s <= 0:
            raise self.too_slow("reading it")
        if self._long or self.limits.patch_cpu_s - left_s <= SHORT_S:
            return
        if self._short:
            raise LongReadingError
        if self._block is not None:
            self._long = True
            self._block.enter_context(shared_interpreter())

    def too_slow(self, what: str, limit_s: float | None = None) -> OverBudgetError:
        """The error for a part of the reading that takes longer than `limit_s`; by default than all of it may."""
        limit_s = self.limits.patch_cpu_s if limit_s is None else limit_s
        return OverBudgetError(f"{what} takes more than {limit_s:g} s of processor time")
