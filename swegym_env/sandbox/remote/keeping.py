"""The leases of this process's remote sandboxes: renewed while it lives, given back when it ends.

A sandbox belongs to a process that says so now and then, however long its agent thinks. One whose process died is not
renewed, and its service removes it.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass, field

from swegym_env.errors import SwegymError
from swegym_env.sandbox.remote.connection import Service

__all__ = ["keep", "let_go"]

_LONGEST_PERIOD_S = 20.0
_FAREWELL_S = 1.0


@dataclass
class _Held:
    """This process's containers of one service, renewed by a thread of their own: another service may be dead."""

    containers: set[str] = field(default_factory=set)
    period_s: float = _LONGEST_PERIOD_S
    sooner: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_held: dict[Service, _Held] = {}


def keep(service: Service, container: str, lease_s: float) -> None:
    """Renew the lease of a container from here on, four times in `lease_s` or more often."""
    with _lock:
        held = _held.get(service)
        if held is None:
            held = _held[service] = _Held()
            name = f"swegym-leases {service.url}"
            threading.Thread(target=_renew, args=(service, held), name=name, daemon=True).start()
        held.containers.add(container)
        if lease_s / 4 < held.period_s:
            held.period_s = lease_s / 4
            held.sooner.set()


def let_go(service: Service, container: str) -> bool:
    """Renew it no more; whether this process held it."""
    with _lock:
        held = _held.get(service)
        if held is None or container not in held.containers:
            return False
        held.containers.discard(container)
        return True


def _renew(service: Service, held: _Held) -> None:
    while True:
        held.sooner.wait(held.period_s)
        held.sooner.clear()
        with _lock:
            containers = sorted(held.containers)
            if not containers:
                del _held[service]
                return
        try:
            service.call("/container/renew", {"containers": containers}, timeout_s=_LONGEST_PERIOD_S)
        except SwegymError:
            pass  # whoever uses the container next is told


def _give_back() -> None:
    """At the end of the process: what was not closed is destroyed now, not when its lease is over."""
    with _lock:
        everything = [(service, sorted(held.containers)) for service, held in _held.items()]
    for service, containers in everything:
        for container in containers:
            let_go(service, container)
            try:
                service.call_once("/container/destroy", {"container": container}, timeout_s=_FAREWELL_S)
            except SwegymError:  # it does not answer, or refuses: the end of the leases ends the rest
                break


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - a fork may come while it is held
    _lock = threading.Lock()
    _held.clear()  # the parent's


atexit.register(_give_back)
os.register_at_fork(after_in_child=_forget_in_child)
