"""The leases of this process's remote sandboxes: renewed while the process lives, released when it ends.

A sandbox stays as long as its process renews the lease, however long the agent thinks. The lease of a process that died
expires, and the server removes the sandbox. While a pool does not respond, leases are renewed at its servers.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from dataclasses import dataclass, field

from swegym_env.errors import SwegymError
from swegym_env.sandbox.remote.connection import ServerClient

__all__ = ["hold", "release"]

_log = logging.getLogger(__name__)

_LONGEST_PERIOD_S = 20.0
_RELEASE_TIMEOUT_S = 1.0


@dataclass
class _Held:
    """This process's containers on one server. Each server has its own thread: one that hangs delays no other."""

    containers: dict[str, ServerClient | None] = field(default_factory=dict)  # with its server, if that is another
    period_s: float = _LONGEST_PERIOD_S
    period_changed: threading.Event = field(default_factory=threading.Event)


_lock = threading.Lock()
_held: dict[ServerClient, _Held] = {}


def hold(client: ServerClient, container: str, lease_s: float, server: ServerClient | None = None) -> None:
    """Renew the lease of a container until it is released, at least four times in `lease_s`.

    Args:
        client: of the server or pool that gave the container.
        server: the one of the pool that runs it, if it can be reached.
    """
    with _lock:
        held = _held.get(client)
        if held is None:
            held = _held[client] = _Held()
            name = f"swegym-leases {client.url}"
            threading.Thread(target=_renew, args=(client, held), name=name, daemon=True).start()
        held.containers[container] = server
        if lease_s / 4 < held.period_s:
            held.period_s = lease_s / 4
            held.period_changed.set()


def release(client: ServerClient, container: str) -> bool:
    """Stop renewing a lease; returns whether this process held it."""
    with _lock:
        held = _held.get(client)
        if held is None or container not in held.containers:
            return False
        del held.containers[container]
        return True


def _renew(client: ServerClient, held: _Held) -> None:
    while True:
        held.period_changed.wait(held.period_s)
        held.period_changed.clear()
        with _lock:
            containers = dict(held.containers)
            if not containers:
                del _held[client]
                return
        if _renewed(client, sorted(containers), held.period_s):
            continue
        at: dict[ServerClient, list[str]] = {}
        for container, server in containers.items():
            if server is not None:
                at.setdefault(server, []).append(container)
        for server, names in at.items():
            _renewed(server, sorted(names), held.period_s)


def _renewed(client: ServerClient, containers: list[str], timeout_s: float) -> bool:
    """Renew once; whether that was delivered. If not, the next period tries again, and the next use reports it."""
    try:
        client.notify("/container/renew", {"containers": containers}, timeout_s=timeout_s)
    except SwegymError:
        return False
    except Exception:  # noqa: BLE001 - a thread that ended here would let all leases expire
        _log.exception("the leases at %s could not be renewed; the next period tries again", client.url)
        return False
    return True


def _destroy_all() -> None:
    """At the end of the process, destroy the containers that were not closed before their leases expire."""
    with _lock:
        everything = [(client, sorted(held.containers)) for client, held in _held.items()]
    for client, containers in everything:
        for container in containers:
            release(client, container)
            try:
                client.notify("/container/destroy", {"container": container}, timeout_s=_RELEASE_TIMEOUT_S)
            except SwegymError:  # no response, or a refusal: the leases of the rest expire
                break


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - a fork may come while it is held
    _lock = threading.Lock()
    _held.clear()  # the leases are the parent's


atexit.register(_destroy_all)
os.register_at_fork(after_in_child=_forget_in_child)
