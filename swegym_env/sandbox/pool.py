"""Sandboxes started ahead of their use, so that an episode begins with one that is ready.

The owner says which ones come next (`expect`). Each is started on a thread; those no longer expected are closed. None
is started while the machine is short of memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from swegym_env.errors import SwegymError
from swegym_env.sandbox.api import Sandbox

__all__ = ["WarmPool"]

_log = logging.getLogger(__name__)

_SHORT_BYTES = 2 << 30
_IDLE_S = 10.0  # how long a thread waits for another sandbox to start


class WarmPool:
    """At most `size` sandboxes that are ready or starting, each under a name.

    Its methods may be called from any thread. In a fork it is empty: the sandboxes belong to the parent.

    Args:
        size: how many at most; 0: none.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._clear()

    def _clear(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ahead: dict[str, _Ahead] = {}

    def expect(self, starts: Mapping[str, Callable[[], Sandbox]]) -> None:
        """Start the sandboxes that are needed next, and close all others.

        Args:
            starts: name → function that opens and starts the sandbox, the most likely first. Its errors are ignored:
                a caller that needs the sandbox starts it itself, and gets the error.
        """
        if self._process != os.getpid():
            self._clear()
        expected = dict(list(starts.items())[: 0 if _memory_is_short() else self.size])
        with self._lock:
            unexpected = [self._ahead.pop(name) for name in set(self._ahead) - set(expected)]
            for name, start in expected.items():
                if name not in self._ahead:
                    self._ahead[name] = _Ahead(start)
        for ahead in unexpected:
            ahead.abandon()

    def take(self, name: str) -> Sandbox | None:
        """The sandbox under that name, if it is ready or starting; the caller then owns it."""
        if self._process != os.getpid():
            self._clear()
        with self._lock:
            ahead = self._ahead.pop(name, None)
        return None if ahead is None else ahead.result()

    def close(self) -> None:
        """Close all sandboxes that were not taken. Idempotent; the pool may be used again."""
        self.expect({})


class _Ahead:
    """One sandbox that is starting or ready. Its use ends with `result` or with `abandon`."""

    def __init__(self, start: Callable[[], Sandbox]) -> None:
        self._sandbox: Sandbox | None = None
        self._abandoned = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        _threads.run(partial(self._work, start))  # kept no longer than it takes: it refers to the owner of the pool

    def _work(self, start: Callable[[], Sandbox]) -> None:
        try:
            time.sleep(0.001)  # gives the interpreter lock back: the caller's reset continues, and waits no 5 ms
            with contextlib.suppress(SwegymError):  # the caller that needs it starts it again, and gets the error
                sandbox = start()
                with self._lock:
                    self._sandbox = sandbox
                    abandoned = self._abandoned
                if abandoned:
                    _close(sandbox)
        finally:
            self._done.set()

    def result(self) -> Sandbox | None:
        self._done.wait()
        return self._sandbox

    def abandon(self) -> None:
        """Close it, now or as soon as it has started."""
        with self._lock:
            self._abandoned = True
            sandbox = self._sandbox
        if sandbox is not None:
            _close(sandbox)


class _Threads:
    """Threads that are kept for a while: to start one takes as long as the rest of a warm reset.

    They are daemons: the end of the process ends all sandboxes, and must not wait for one that is starting.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0  # threads that wait, less the works that wait for them

    def run(self, work: Callable[[], None]) -> None:
        """Do something on a thread, at once."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._works.put(work)
                return
        threading.Thread(target=self._serve, args=(work,), name="swegym-ahead", daemon=True).start()

    def _serve(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except Exception:  # noqa: BLE001 - logged, as an exception that ends a thread; whoever needs a sandbox starts it
                _log.exception("a sandbox could not be started ahead")
            del work  # it holds the sandbox
            with self._lock:
                self._idle += 1
            try:
                work = self._works.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._works.empty():
                        self._idle -= 1
                        return
                    work = self._works.get()


_threads = _Threads()


def _forget_in_child() -> None:
    global _threads  # noqa: PLW0603 - threads stay in the parent
    _threads = _Threads()


os.register_at_fork(after_in_child=_forget_in_child)


def _close(sandbox: Sandbox) -> None:
    with contextlib.suppress(SwegymError):  # its supervisor is gone, and the sandbox with it
        sandbox.close()


def _memory_is_short() -> bool:
    """Whether the machine has too little free memory for sandboxes that may not be needed."""
    with open("/proc/meminfo", "rb", 0) as file:
        _, _, available = file.read(256).partition(b"MemAvailable:")
    return bool(available) and int(available.split()[0]) << 10 < _SHORT_BYTES
