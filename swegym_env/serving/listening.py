"""Listens for HTTP until a signal ends it.

After the first SIGTERM or SIGINT the server drains: it accepts no new containers and ends when none is left or after
`drain_s`. The second signal ends it at once.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from swegym_env.errors import ConfigurationError
from swegym_env.serving.app import Gate
from swegym_env.serving.connections import Acceptor, Connection, Connections, most_connections

__all__ = ["Listening", "serve"]

_log = logging.getLogger(__name__)

_KEEP_ALIVE_S = 120
_CLOSING_S = 5
_BACKLOG = 2048
_TICKS_PER_S = 10


@dataclass(frozen=True)
class Listening:
    """Where and how a server listens.

    Attributes:
        host: an address of this machine.
        port: 0: any free port.
        certificate: file with the certificate for TLS, in PEM.
        key: file with its key.
        in_clear: allow HTTP without TLS outside the loopback interface, on a private network.
        connections: open at a time; None: as many as this process has descriptors for.
        head_s: a connection ends that has not sent the head of a request for this many seconds.
    """

    host: str = "127.0.0.1"
    port: int = 8300
    certificate: str | None = None
    key: str | None = None
    in_clear: bool = False
    connections: int | None = None
    head_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"--port: expected 0 to 65535, got {self.port}")
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("--tls-cert and --tls-key: expected both or neither")
        if self.certificate is None and not self.in_clear and not _is_loopback(self.host):
            raise ConfigurationError(
                f"--host {self.host}: the token would cross the network in clear. Try: --tls-cert FILE --tls-key FILE, "
                "or --in-clear on a private network"
            )

    def open(self) -> socket.socket:
        """The listening socket. Raises ConfigurationError if the address is not available."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise ConfigurationError(
                f"{self.host} port {self.port}: {error.strerror or error}. Try: another --port, or 0 for a free one"
            ) from error
        return listener


def serve(
    app: Gate, listening: Listening, *, drain: Callable[[], None], empty: Callable[[], bool], drain_s: float
) -> None:
    """Serve until a signal ends it. Once it listens, one line of JSON on standard output contains the address.

    Args:
        app: the application.
        listening: address and TLS.
        drain: called at the first signal.
        empty: whether it may end.
        drain_s: how long to wait for that.
    Raises:
        ConfigurationError: the certificate or its key cannot be read, or the address cannot be listened on.
    """
    listener = listening.open()
    config = uvicorn.Config(
        app,
        log_level="warning",
        log_config=None if logging.getLogger().hasHandlers() else LOGGING_CONFIG,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSING_S,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
        server_header=False,
        ws="none",
    )
    try:
        config.load()
    except OSError as error:
        raise ConfigurationError(f"--tls-cert, --tls-key: {listening.certificate}: {error}") from error
    connections = Connections(listening.connections or most_connections(), listening.head_s)
    app.metrics.add_gauge("connections", "Open connections.", lambda: float(len(connections)))
    app.metrics.add_gauge(
        "connections_ended", "Connections ended by a limit, or refused.", lambda: float(connections.ended)
    )
    server = _Server(config, connections, drain, empty, drain_s)
    scheme = "https" if listening.certificate else "http"
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    server.url = f"{scheme}://{host}:{listener.getsockname()[1]}"
    with listener:
        server.run(sockets=[listener])
    _log.info("ended")


class _Server(uvicorn.Server):
    url = ""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        drain: Callable[[], None],
        empty: Callable[[], bool],
        drain_s: float,
    ) -> None:
        super().__init__(config)
        self._connections = connections
        self._acceptors: list[Acceptor] = []
        self._drain, self._empty, self._drain_s = drain, empty, drain_s
        self._ends: float | None = None
        self._drains = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)  # as uvicorn does
        for listener in sockets or []:
            acceptor = Acceptor(listener, self._connections, self._connection, self.config.ssl)
            acceptor.start()
            self._acceptors.append(acceptor)
        self.servers = []  # uvicorn's own, which would accept without counting
        self.started = True
        print(json.dumps({"url": self.url}), flush=True)
        _log.info("listening at %s", self.url)

    def _connection(self, end: socket.socket, peer: str) -> Connection:
        return Connection(self.config, self.server_state, self.lifespan.state, self._connections, end, peer)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del sig, frame
        if self._ends is None:
            self._ends = time.monotonic() + self._drain_s
            self._drain()
        else:
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_S == 0:
            self._connections.end_overdue()
        if self._ends is not None and not self._drains:  # not logged by the signal's handler, amid another line
            self._drains = True
            _log.info("draining for at most %g s", self._drain_s)
        if self._ends is not None and (self._empty() or time.monotonic() > self._ends):
            self.should_exit = True
        return await super().on_tick(counter)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
