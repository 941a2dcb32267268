"""One message to a service of sandboxes and its answer, over connections that are kept.

Every message has an id, and the service does what an id asks for once: so a message whose answer did not come is sent
again, until patience ends, and nothing runs twice. Connections are this process's own; a fork begins without.
"""

from __future__ import annotations

import atexit
import functools
import http.client
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

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.sandbox.remote.wire import BUSY, raised

__all__ = ["Service", "read_token", "service"]

_CHANCE = random.Random()  # of its own: what a pause draws must not shift what others draw

_PATIENCE_S = 30.0  # of a message that is not answered: a server or pool that is started again is back by then
_WAIT_S = 1800.0  # for room, where every container is taken
_CONNECT_S = 10.0
_CONNECT_ONCE_S = 2.0  # where there is another way
_MARGIN_S = 30.0  # what an answer may take longer than the work that it tells of
_LONGEST_PAUSE_S = 2.0


def read_token() -> str:
    """The token of the service: `$SWEGYM_TOKEN`, or the first line of the file that `$SWEGYM_TOKEN_FILE` names.

    Raises:
        ConfigurationError: neither is given, the file cannot be read, or the token is too short to protect anything.
    """
    token, file = os.environ.get("SWEGYM_TOKEN", ""), os.environ.get("SWEGYM_TOKEN_FILE", "")
    if not token and file:
        try:
            token = (Path(file).read_text(encoding="utf-8").splitlines() or [""])[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"SWEGYM_TOKEN_FILE: {file} cannot be read: {error}") from error
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"the token of the sandbox service: expected 16 or more ASCII characters in $SWEGYM_TOKEN or the file of "
            f"$SWEGYM_TOKEN_FILE, got {len(token)}. Try: export SWEGYM_TOKEN=$(openssl rand -hex 32)"
        )
    return token


class Service:
    """A server, or a pool of them, at an address; its methods may be called from any thread.

    Args:
        url: `http://HOST:PORT` or `https://HOST:PORT`. `$SWEGYM_CA` names a file with an authority of one's own.
        token: what the service knows its users by.
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
        self._patience_s = float(os.environ.get("SWEGYM_PATIENCE_S") or _PATIENCE_S)
        self._wait_s = float(os.environ.get("SWEGYM_WAIT_S") or _WAIT_S)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def call(self, path: str, message: Any, *, timeout_s: float = 60.0, request_id: str = "") -> Any:
        """Send a message until it is answered, and return the answer.

        Args:
            path: of the service, "/container/exec".
            message: what JSON takes; None: nothing is sent (GET).
            timeout_s: how long the service may work on it.
            request_id: what the message is known by, when it is sent again; "": a new one.
        Raises:
            InfrastructureError: no answer in time, or one that tells of a failure.
            ConfigurationError: the message is not what the service takes, or the token is not the service's.
            OSError: a file inside the sandbox.
        """
        body = None if message is None else json.dumps(message).encode()
        headers = {**self._headers, "X-Request-Id": request_id or os.urandom(16).hex()}
        began = time.monotonic()
        pause, failures = 0.0, 0
        while True:
            try:
                status, content = self._exchange(path, body, headers, timeout_s + _MARGIN_S)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise ConfigurationError(f"{self.url}: {error}. Try: SWEGYM_CA=FILE") from error
                if time.monotonic() - began > timeout_s + self._patience_s or (
                    isinstance(error, ConnectionRefusedError) and time.monotonic() - began > self._patience_s
                ):
                    reason = f"{type(error).__name__}: {error}"
                    raise SandboxError(
                        f"{self.url}{path}: no answer after {failures + 1} attempts: {reason}"
                    ) from error
                failures += 1
                pause = 0.0 if failures == 1 else _next_pause(pause)
            else:
                answer = _parsed(content)
                if status == 200 and answer is not None:
                    return answer
                if status not in BUSY or time.monotonic() - began > self._wait_s:
                    raise self.error(status, answer, path)
                pause = _next_pause(pause)
            time.sleep(pause)

    def try_once(self, path: str, message: Any, *, timeout_s: float, request_id: str) -> tuple[int, Any]:
        """Status and content of one answer; None: no JSON. Raises OSError, HTTPException where there is none."""
        headers = {**self._headers, "X-Request-Id": request_id}
        body = json.dumps(message).encode()
        status, content = self._exchange(path, body, headers, timeout_s + _MARGIN_S, connect_s=_CONNECT_ONCE_S)
        return status, _parsed(content)

    def error(self, status: int, answer: Any, path: str) -> Exception:
        """The exception that an answer other than 200 stands for."""
        return raised(status, answer, f"{self.url}{path}")

    def call_once(self, path: str, message: Any, *, timeout_s: float) -> None:
        """Send a message whose answer does not matter. Raises SandboxError where it could not be delivered."""
        headers = {**self._headers, "X-Request-Id": os.urandom(16).hex()}
        try:
            self._exchange(path, json.dumps(message).encode(), headers, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise SandboxError(f"{self.url}{path}: no answer: {error}") from error

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
            connection = self._idle.pop() if self._idle else self._connection()
        if connection.sock is not None and _closed(connection.sock):
            connection.close()  # by the other end, while nothing was said
        try:
            if connection.sock is None:
                connection.timeout = connect_s
                connection.connect()
                _notice_dead_hosts(connection)
            connection.sock.settimeout(timeout_s)
            connection.request("GET" if body is None else "POST", path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return response.status, content

    def let_go(self) -> None:
        """Close the connections that nobody uses at the moment; the next message opens another."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port)
        authority = os.environ.get("SWEGYM_CA") or None
        try:
            context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise ConfigurationError(f"SWEGYM_CA: {authority} cannot be used: {error}") from error
        return http.client.HTTPSConnection(self._host, self._port, context=context)


def service(url: str) -> Service:
    """This process's way to the service at `url`. Raises ConfigurationError: no address, or no token."""
    return _service(url, read_token(), os.getpid())


@functools.lru_cache(maxsize=4096)
def _service(url: str, token: str, _process: int) -> Service:
    found = Service(url, token)
    atexit.register(found.let_go)
    return found


def _notice_dead_hosts(connection: http.client.HTTPConnection) -> None:
    """A host that vanished closes no connection: the kernel asks after 6 s of silence, and gives up after 15."""
    end: socket.socket = connection.sock
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (("TCP_KEEPIDLE", 6), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 15_000))
    for name, value in options:
        end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _closed(end: socket.socket) -> bool:
    """Whether the other end of an idle connection has closed it."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


def _next_pause(pause: float) -> float:
    """Twice the last, with chance in it: many who wait do not come back at once."""
    return min(_LONGEST_PAUSE_S, max(0.05, 2 * pause) * _CHANCE.uniform(0.7, 1.3))


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
