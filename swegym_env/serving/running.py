"""A server's life: it listens, it drains when it is asked to stop, it ends.

The first SIGTERM or SIGINT lets what is under way come to its end: no more containers are taken, those that there are
go on, until none is left or `drain_s` is over. The second ends it at once.
"""

from __future__ import annotations

import ipaddress
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn

from swegym_env.errors import ConfigurationError
from swegym_env.serving.gate import Gate

__all__ = ["Listening", "serve"]

_KEEP_ALIVE_S = 120
_CLOSING_S = 5
_BACKLOG = 2048


@dataclass(frozen=True)
class Listening:
    """Where and how a server listens.

    Attributes:
        host: an address of this machine.
        port: 0: any that is free.
        certificate: file with the certificate for TLS, in PEM.
        key: file with its key.
        in_clear: listen without TLS beyond this machine too: a network that nobody else hears.
    """

    host: str = "127.0.0.1"
    port: int = 8300
    certificate: str | None = None
    key: str | None = None
    in_clear: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"--port: expected 0 to 65535, got {self.port}")
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("--tls-cert and --tls-key: expected both or neither")
        if self.certificate is None and not self.in_clear and not _is_loopback(self.host):
            raise ConfigurationError(
                f"--host {self.host}: the token would cross the network in clear. Try: --tls-cert FILE --tls-key FILE, "
                "or --in-clear where nobody else hears that network"
            )

    def open(self) -> socket.socket:
        """The listening socket. Raises ConfigurationError where the address cannot be had."""
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
    """Serve until a signal ends it. One line of JSON on standard output says where it listens, once it does.

    Args:
        app: what answers.
        listening: where.
        drain: called at the first signal.
        empty: whether nothing is under way any more.
        drain_s: how long to wait for that.
    """
    listener = listening.open()
    config = uvicorn.Config(
        app,
        log_level="warning",
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
    server = _Server(config, drain, empty, drain_s)
    scheme = "https" if listening.certificate else "http"
    host = f"[{listening.host}]" if ":" in listening.host else listening.host
    server.told = json.dumps({"url": f"{scheme}://{host}:{listener.getsockname()[1]}"})
    with listener:
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    told = ""

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], None], empty: Callable[[], bool], drain_s: float
    ) -> None:
        super().__init__(config)
        self._drain, self._empty, self._drain_s = drain, empty, drain_s
        self._ends: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.told, flush=True)

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
