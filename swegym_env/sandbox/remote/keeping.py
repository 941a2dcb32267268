"""The leases of this process's remote sandboxes: renewed while it lives, given back when it ends.

A sandbox belongs to a process that says so now and then, however long its agent thinks. One whose process died is not
renewed, and its service removes it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import defaultdict

from swegym_env.errors import SwegymError
from swegym_env.sandbox.remote.connection import Service

__all__ = ["keep", "let_go"]

_LONGEST_PERIOD_S = 20.0
_FAREWELL_S = 1.0
_lock = threading.Lock()
_held: defaultdict[Service, set[str]] = defaultdict(set)
_threads: set[int] = set()
_period_s = _LONGEST_PERIOD_S
_sooner = threading.Event()


def keep(service: Service, container: str, lease_s: float) -> None:
    """Renew the lease of a container from here on, four times in `lease_s` or more often."""
    global _period_s  # noqa: PLW0603 - of the one thread that renews
    with _lock:
        _held[service].add(container)
        if lease_s / 4 < _period_s:
            _period_s = lease_s / 4
            _sooner.set()
        if os.getpid() in _threads:
            return
        _threads.add(os.getpid())
    threading.Thread(target=_renew, name="swegym-leases", daemon=True).start()
    atexit.register(_give_back)


def let_go(service: Service, container: str) -> bool:
    """Renew it no more; whether this process held it."""
    with _lock:
        held = container in _held[service]
        _held[service].discard(container)
        return held


def _all() -> list[tuple[Service, list[str]]]:
    with _lock:
        return [(service, sorted(containers)) for service, containers in _held.items() if containers]


def _renew() -> None:
    while True:
        _sooner.wait(_period_s)
        _sooner.clear()
        for service, containers in _all():
            try:
                service.call("/container/renew", {"containers": containers}, timeout_s=_LONGEST_PERIOD_S)
            except SwegymError:
                pass  # whoever uses the container next is told


def _give_back() -> None:
    """At the end of the process: what was not closed is destroyed now, not when its lease is over."""
    for service, containers in _all():
        for container in containers:
            let_go(service, container)
            try:
                service.call_once("/container/destroy", {"container": container}, timeout_s=_FAREWELL_S)
            except SwegymError:  # it does not answer, or refuses: the end of the leases ends the rest
                break


def _forget_in_child() -> None:
    global _lock, _sooner  # a fork may come while they are held
    _lock, _sooner = threading.Lock(), threading.Event()
    _held.clear()  # the parent's


os.register_at_fork(after_in_child=_forget_in_child)
