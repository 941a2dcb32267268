"""The way to one container: straight to its server where a pool named it and it can be reached, else through the pool.

Commands and files go straight, so that a pool carries leases and not the work of its fleet, and a pool that is being
started again stops nobody. Whatever a server cannot answer for, the pool is asked, by the same request id: it knows
whether the server is lost, and nothing runs twice. A way that failed is left for a minute.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import time
from typing import Any
from urllib.parse import urlsplit

from swegym_env.errors import SwegymError
from swegym_env.sandbox.remote.connection import Service, service

__all__ = ["Route", "may_go_straight"]

_STRAIGHT = frozenset(f"/container/{what}" for what in ("exec", "diff", "read", "write", "changes"))
_OWN_ANSWERS = frozenset((200, 409, 422, 424))  # of a server about a container that it has
_LEFT_FOR_S = 60.0
_left_until: dict[str, float] = {}


class Route:
    """How messages to one container travel.

    Args:
        asked: the service that gave the container.
        node: address of the server that holds it; empty where that is the service, or is not told.
    """

    def __init__(self, asked: Service, node: str = "") -> None:
        self._asked = asked
        self._node = service(node) if node and may_go_straight(asked.url, node) else None

    def call(self, path: str, message: dict[str, Any], *, timeout_s: float) -> Any:
        """See `Service.call`."""
        node = self._node if path in _STRAIGHT else None
        if node is None or time.monotonic() < _left_until.get(node.url, 0.0):
            return self._asked.call(path, message, timeout_s=timeout_s)
        request_id = os.urandom(16).hex()
        try:
            status, answer = node.try_once(path, message, timeout_s=timeout_s, request_id=request_id)
        except (OSError, http.client.HTTPException, SwegymError):  # the pool is asked instead, and tells what is wrong
            _left_until[node.url] = time.monotonic() + _LEFT_FOR_S
        else:
            if status == 200 and answer is not None:
                return answer
            if status in _OWN_ANSWERS:
                raise node.error(status, answer, path)
        return self._asked.call(path, message, timeout_s=timeout_s, request_id=request_id)


def may_go_straight(asked: str, node: str) -> bool:
    """Whether a server's address can be meant for this machine too, and the token goes no less safely there.

    Args:
        asked: address of the pool as it is known here.
        node: address of the server as the pool knows it.
    """
    pool, server = urlsplit(asked), urlsplit(node)
    if pool.scheme == "https" and server.scheme != "https":
        return False
    return not _loopback(server.hostname) or _loopback(pool.hostname)


def _loopback(host: str | None) -> bool:
    if not host or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
