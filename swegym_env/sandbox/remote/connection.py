"""One request to a server and its response, over connections that are kept open.

Every request has an id, and a server carries out a request id once. A request without a response is therefore sent
again until the timeout, and nothing runs twice. Connections belong to one process; a fork starts without any.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import http.client
import ipaddress
import json
import os
import random
import select
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from swegym_env.errors import ConfigurationError, SandboxError, SwegymError
from swegym_env.sandbox.remote.wire import BUSY, raised

__all__ = ["Route", "ServerClient", "connect", "is_direct_route_safe", "read_token"]

_JITTER = random.Random()  # its own generator: pauses must not shift the draws of others

_RETRY_S = 30.0  # how long a request without a response is sent again: a restarted server or pool is back by then
_WAIT_S = 1800.0  # how long to wait for a place where all containers are in use
_CONNECT_S = 10.0
_CONNECT_DIRECT_S = 2.0  # where the pool remains as another route
_MARGIN_S = 30.0  # what a response may take longer than the work itself
_LONGEST_PAUSE_S = 2.0
_LONGEST_S = 1e9  # what a socket can wait; the server refuses less

_DIRECT = frozenset(
    f"/container/{action}" for action in ("exec", "diff", "read", "write", "changes", "endpoint", "interrupt")
)
_FINAL = frozenset((200, 409, 422, 424))  # a server's statuses about a container that it has
_AVOID_S = 60.0
_avoid_until: dict[str, float] = {}  # server's address → time until which the direct route is not used


def read_token() -> str:
    """The servers' token: `$SWEGYM_TOKEN`, or the first line of the file that `$SWEGYM_TOKEN_FILE` names.

    Raises:
        ConfigurationError: neither is set, the file cannot be read, or the token is too short to protect anything.
    """
    token, file = os.environ.get("SWEGYM_TOKEN", ""), os.environ.get("SWEGYM_TOKEN_FILE", "")
    if not token and file:
        try:
            token = (Path(file).read_text(encoding="utf-8").splitlines() or [""])[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"SWEGYM_TOKEN_FILE: {file} cannot be read: {error}") from error
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"the token of the sandbox server: expected 16 or more ASCII characters in $SWEGYM_TOKEN or the file of "
            f"$SWEGYM_TOKEN_FILE, got {len(token)}. Try: export SWEGYM_TOKEN=$(openssl rand -hex 32)"
        )
    return token


class ServerClient:
    """A client of a server, or of a pool, at an address. Its methods may be called from any thread.

    Args:
        url: `http://HOST:PORT` or `https://HOST:PORT`. `$SWEGYM_CA` names a file with your own certificate authority.
        token: authenticates this client.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise ConfigurationError(f"sandbox {url!r}: {error}") from error
        if not parts.hostname or parts.username or parts.query or parts.fragment or parts.path not in ("", "/"):
            raise ConfigurationError(f"sandbox {url!r}: expected http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        self._host, self._port, self._secure = parts.hostname, port, parts.scheme == "https"
        self._headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "X-Client-Id": f"{os.uname().nodename}-{os.getpid()}",
        }
        self._retry_s = _seconds("SWEGYM_PATIENCE_S", _RETRY_S)
        self._wait_s = _seconds("SWEGYM_WAIT_S", _WAIT_S)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def call(self, path: str, payload: Any, *, timeout_s: float = 60.0, request_id: str = "") -> Any:
        """Send a request until there is a response, and return its JSON.

        Args:
            path: of the API, "/container/exec".
            payload: JSON of the request; None sends a GET.
            timeout_s: how long the server may work on it.
            request_id: identifies the request when it is sent again; "" makes a new one.
        Raises:
            InfrastructureError: no response in time, or one that reports a failure.
            ConfigurationError: the server does not accept the request or the token.
            OSError: a file inside the sandbox.
        """
        body = None if payload is None else json.dumps(payload).encode()
        headers = {**self._headers, "X-Request-Id": request_id or os.urandom(16).hex()}
        began = time.monotonic()
        pause, failures = 0.0, 0
        while True:
            try:
                status, content = self._exchange(path, body, headers, timeout_s + _MARGIN_S)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise ConfigurationError(f"{self.url}: {error}. Try: SWEGYM_CA=FILE") from error
                if time.monotonic() - began > timeout_s + self._retry_s or (
                    isinstance(error, ConnectionRefusedError) and time.monotonic() - began > self._retry_s
                ):
                    reason = f"{type(error).__name__}: {error}"
                    raise SandboxError(
                        f"{self.url}{path}: no response after {failures + 1} attempts: {reason}"
                    ) from error
                failures += 1
                pause = 0.0 if failures == 1 else _next_pause(pause)
            else:
                response = _parsed(content)
                if status == 200 and response is not None:
                    return response
                if status not in BUSY or time.monotonic() - began > self._wait_s:
                    raise self.error(status, response, path)
                pause = _next_pause(pause)
            time.sleep(pause)

    def try_once(self, path: str, payload: Any, *, timeout_s: float, request_id: str) -> tuple[int, Any]:
        """Status and JSON of one response, None where it is no JSON. Raises OSError, HTTPException if there is none."""
        headers = {**self._headers, "X-Request-Id": request_id}
        body = json.dumps(payload).encode()
        status, content = self._exchange(path, body, headers, timeout_s + _MARGIN_S, connect_s=_CONNECT_DIRECT_S)
        return status, _parsed(content)

    def notify(self, path: str, payload: Any, *, timeout_s: float) -> None:
        """Send a request once and ignore the response. Raises SandboxError if it cannot be delivered."""
        headers = {**self._headers, "X-Request-Id": os.urandom(16).hex()}
        try:
            self._exchange(path, json.dumps(payload).encode(), headers, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise SandboxError(f"{self.url}{path}: no response: {error}") from error

    def error(self, status: int, response: Any, path: str) -> Exception:
        """The exception that a response with a status other than 200 stands for."""
        return raised(status, response, f"{self.url}{path}")

    def _exchange(
        self,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        timeout_s: float,
        *,
        connect_s: float = _CONNECT_S,
    ) -> tuple[int, bytes]:
        with self._lock:
            connection = self._idle.pop() if self._idle else self._new_connection()
        if connection.sock is not None and _is_closed(connection.sock):
            connection.close()  # the server closed it while it was idle
        try:
            if connection.sock is None:
                connection.timeout = connect_s
                connection.connect()
                _detect_dead_peer(connection)
            connection.sock.settimeout(min(timeout_s, _LONGEST_S))
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return response.status, content

    def close_idle(self) -> None:
        """Close the connections that are not in use; the next request opens another."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _new_connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port)
        authority = os.environ.get("SWEGYM_CA") or None
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise ConfigurationError(f"SWEGYM_CA: {authority} cannot be used: {error}") from error
        return http.client.HTTPSConnection(self._host, self._port, context=context)


def _seconds(variable: str, default: float) -> float:
    """The seconds in a variable of the environment. Raises ConfigurationError: it is not a number of 0 or more."""
    text = os.environ.get(variable)
    if not text:
        return default
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) >= 0:
            return seconds
    raise ConfigurationError(f"{variable}: expected seconds, 0 or more, got {text!r}")


def connect(url: str) -> ServerClient:
    """This process's client of the server at `url`. Raises ConfigurationError: a malformed address, or no token."""
    return _client(url, read_token(), os.getpid())


@functools.lru_cache(maxsize=4096)
def _client(url: str, token: str, _process: int) -> ServerClient:
    found = ServerClient(url, token)
    atexit.register(found.close_idle)
    return found


class Route:
    """How the requests of one container travel: directly to its server where that is possible, else through the pool.

    Commands and files go directly. The pool then carries leases and not the work of its servers, and a pool that
    restarts stops nobody. Where the server gives no final response, the pool gets the same request id: it knows whether
    the server is lost, and nothing runs twice. A route that failed is not used for a minute.

    Args:
        client: of the server or pool that gave the container.
        server_url: of the server that runs the container; empty where `client` is its client, or it is unknown.

    Attributes:
        server: the client of that server; None if requests cannot go there.
    """

    def __init__(self, client: ServerClient, server_url: str = "") -> None:
        self._client = client
        self.server = connect(server_url) if server_url and is_direct_route_safe(client.url, server_url) else None

    def call(self, path: str, payload: dict[str, Any], *, timeout_s: float) -> Any:
        """See `ServerClient.call`."""
        direct = self.server if path in _DIRECT else None
        if direct is None or time.monotonic() < _avoid_until.get(direct.url, 0.0):
            return self._client.call(path, payload, timeout_s=timeout_s)
        request_id = os.urandom(16).hex()
        try:
            status, response = direct.try_once(path, payload, timeout_s=timeout_s, request_id=request_id)
        except (OSError, http.client.HTTPException, SwegymError):  # the pool's response says what is wrong
            _avoid_until[direct.url] = time.monotonic() + _AVOID_S
        else:
            if status == 200 and response is not None:
                return response
            if status in _FINAL:
                raise direct.error(status, response, path)
        return self._client.call(path, payload, timeout_s=timeout_s, request_id=request_id)


def is_direct_route_safe(pool_url: str, server_url: str) -> bool:
    """Whether a server's address is valid on this machine too, and the token travels as safely as to the pool.

    Args:
        pool_url: address of the pool as this machine knows it.
        server_url: address of the server as the pool knows it.
    """
    pool, server = urlsplit(pool_url), urlsplit(server_url)
    if pool.scheme == "https" and server.scheme != "https":
        return False
    return not _is_loopback(server.hostname) or _is_loopback(pool.hostname)


def _is_loopback(host: str | None) -> bool:
    if not host or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _detect_dead_peer(connection: http.client.HTTPConnection) -> None:
    """A host that vanished closes no connection: the kernel probes after 6 s of silence, and gives up after 15 s."""
    end: socket.socket = connection.sock
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (("TCP_KEEPIDLE", 6), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000))
    for name, value in options:
        end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_closed(end: socket.socket) -> bool:
    """Whether the peer closed an idle connection."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


def _next_pause(pause: float) -> float:
    """Exponential backoff with jitter, in seconds."""
    return min(_LONGEST_PAUSE_S, max(0.05, 2 * pause) * _JITTER.uniform(0.7, 1.3))


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
