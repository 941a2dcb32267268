"""Sandboxes started before they are asked for: an episode then begins with one that is ready.

Who takes them knows what comes next and says so (`expect`). Each is started on a thread of its own; what turns out not
to be wanted is closed. Nothing is started ahead while the machine is short of memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from swegym_env.errors import SwegymError
from swegym_env.sandbox.protocol import Sandbox

__all__ = ["WarmPool", "memory_is_short"]

_SHORT_BYTES = 2 << 30


class WarmPool:
    """At most `size` sandboxes that are ready or being started, each under the name of what it is for.

    Its methods may be called from any thread. In a forked child it is empty: what the parent started is the parent's.

    Args:
        size: how many at most; 0: none ever.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._start_anew()

    def _start_anew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ahead: dict[str, _Ahead] = {}

    def expect(self, orders: Mapping[str, Callable[[], Sandbox]]) -> None:
        """Start what will be asked for next, and close what will not be.

        Args:
            orders: name → what opens and starts that sandbox; the most likely first. What it raises is forgotten:
                whoever asks for the sandbox will try again and be told.
        """
        if self._process != os.getpid():
            self._start_anew()
        wanted = dict(list(orders.items())[: 0 if memory_is_short() else self.size])
        with self._lock:
            unwanted = [self._ahead.pop(name) for name in set(self._ahead) - set(wanted)]
            for name, order in wanted.items():
                if name not in self._ahead:
                    self._ahead[name] = _Ahead(order)
        for ahead in unwanted:
            ahead.abandon()

    def take(self, name: str) -> Sandbox | None:
        """The sandbox under that name, if one is ready or being started; it is the caller's from here on."""
        if self._process != os.getpid():
            self._start_anew()
        with self._lock:
            ahead = self._ahead.pop(name, None)
        return None if ahead is None else ahead.result()

    def close(self) -> None:
        """Close all that nobody took. Idempotent; the pool may be used again."""
        self.expect({})


class _Ahead:
    """One sandbox on its way. It ends with `result` or with `abandon`."""

    def __init__(self, order: Callable[[], Sandbox]) -> None:
        self._order = order
        self._sandbox: Sandbox | None = None
        self._abandoned = False
        self._lock = threading.Lock()
        # A daemon: the end of the process ends all sandboxes, and must not wait for one that is on its way.
        self._thread = threading.Thread(target=self._work, name="swegym-ahead", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            sandbox = self._order()
        except SwegymError:  # whoever asks for it will try again and be told
            return
        with self._lock:
            self._sandbox = sandbox
            if not self._abandoned:
                return
        self._close()

    def result(self) -> Sandbox | None:
        self._thread.join()
        return self._sandbox

    def abandon(self) -> None:
        """Close it, now or as soon as it is there."""
        with self._lock:
            self._abandoned = True
            if self._sandbox is None:
                return
        self._close()

    def _close(self) -> None:
        assert self._sandbox is not None
        try:
            self._sandbox.close()
        except SwegymError:
            pass  # its supervisor is gone, and it with that


def memory_is_short() -> bool:
    """Whether the machine has too little memory left for sandboxes that may not be needed."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10 < _SHORT_BYTES
    return False
