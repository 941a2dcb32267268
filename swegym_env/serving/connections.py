"""Connections: what a peer may send, how long it may take, and how many it may open before it has shown the token.

Everybody who reaches the port can open connections. uvicorn reads them with httptools, which takes a third of the time
of h11 and bounds neither the size of a head nor the time until it is complete. Its `limit_concurrency` answers 503 to
all, honest clients included, and its timeout begins after the first response. So each connection is counted from its
first packet, before TLS:

    head        at most `HEAD_BYTES` of request line and headers, complete within `head_s`; one request at a time
    body        not read before the token, and after `head_s` not slower than `_LEAST_BYTES_PER_S`; the gate bounds it
    response    the client reads something of it within `head_s`
    strangers   connections that have not shown the token: where there are too many, the oldest ends. An honest client
                shows it within milliseconds, so a flood ends its own connections. They are accepted at
                `_STRANGERS_PER_S`: more wait in the kernel's queue, and take no time from those that have shown it
    all         as many as the process has descriptors for

A connection that has shown the token stays until it is idle for `timeout_keep_alive`. uvicorn would set a timer for
that after each response; here every deadline is a number that is looked at once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import resource
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

__all__ = ["HEAD_BYTES", "Acceptor", "Connection", "Connections", "most_connections"]

HEAD_BYTES = 16 << 10
"""The largest request line with headers."""

_HEADERS = 100
_PIECE_BYTES = 2 << 10  # of a head that is parsed at once; the least header takes five bytes
_LEAST_BYTES_PER_S = 16 << 10
_LINGER_S = 2.0  # a client that is still sending can read a refusal for this long,
_DISCARDED_BYTES = 1 << 18  # and without the token, after it has sent this much
_STRANGERS, _STRANGERS_OF_PEER = 2048, 512
_STRANGERS_AT_ONCE, _STRANGERS_PER_S = 512, 250
_ACCEPTED_AT_ONCE = 16  # then others have their turn
_NO_DESCRIPTOR_PAUSE_S = 0.1
_NETWORK_BITS = 64  # of an IPv6 address: one customer has all addresses below


def most_connections() -> int:
    """Half of the descriptors that this process may open: sandboxes and servers of a pool need the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(32, (1 << 20 if soft == resource.RLIM_INFINITY else soft) // 2)


class Connections:
    """All connections of a server.

    Args:
        most: open at a time.
        head_s: how long a connection may take for the head of a request, and send or read nothing of the rest.
    """

    def __init__(self, most: int, head_s: float) -> None:
        self.most, self.head_s = most, head_s
        self.ended = 0
        self._credit, self._credited = float(_STRANGERS_AT_ONCE), time.monotonic()
        self._all: set[Connection] = set()
        self._strangers: dict[Connection, None] = {}  # oldest first, as all dictionaries
        self._of_peer: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def pause_s(self) -> float:
        """How long to accept no connection: too many came that have not shown the token."""
        now = time.monotonic()
        earned = (now - self._credited) * _STRANGERS_PER_S
        self._credit, self._credited = min(_STRANGERS_AT_ONCE, self._credit + earned), now
        return max(0.0, (1 - self._credit) / _STRANGERS_PER_S)

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, and end the oldest stranger if there are too many; False: there is no place."""
        self._credit -= 1
        of_peer = self._of_peer.setdefault(connection.peer, {})
        if len(of_peer) >= _STRANGERS_OF_PEER:
            self.end(next(iter(of_peer)))
        elif self._strangers and (len(self._strangers) >= _STRANGERS or len(self._all) >= self.most):
            self.end(next(iter(self._strangers)))
        if len(self._all) >= self.most:
            self.ended += 1
            return False
        self._all.add(connection)
        self._strangers[connection] = None
        self._of_peer.setdefault(connection.peer, {})[connection] = None  # the end of the last one may have removed it
        return True

    def trust(self, connection: Connection) -> None:
        """A request on it has shown the token."""
        if self._remove_stranger(connection):
            self._credit += 1

    def forget(self, connection: Connection) -> None:
        """It is closed; idempotent."""
        self._all.discard(connection)
        self._remove_stranger(connection)

    def _remove_stranger(self, connection: Connection) -> bool:
        if connection not in self._strangers:
            return False
        del self._strangers[connection]
        of_peer = self._of_peer[connection.peer]
        del of_peer[connection]
        if not of_peer:
            del self._of_peer[connection.peer]
        return True

    def end(self, connection: Connection) -> None:
        """Close a connection at once."""
        self.ended += 1
        self.forget(connection)
        connection.abort()

    def end_overdue(self) -> None:
        """End the connections that have taken too long."""
        now = time.monotonic()
        for connection in [each for each in self._all if each.overdue(now)]:
            self.end(connection)


class Connection(HttpToolsProtocol):
    """One connection, from its first packet on; see the module.

    Args:
        end: the accepted socket.
        peer: the address that it counts for.

    Attributes:
        deadline: when it ends unless something is completed before, `time.monotonic()`.
        trusted: a request on it has shown the token.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        connections: Connections,
        end: socket.socket,
        peer: str,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state=app_state)
        self._end, self.peer = end, peer
        self.deadline = time.monotonic() + connections.head_s
        self.opening: asyncio.Task[Any] | None = None
        self._all = connections
        self._in_head, self._head_bytes = True, 0
        self._body_began, self._body_bytes, self._unread_bytes = 0.0, 0, 0
        self.trusted = self._open = self._refused = False
        self.headers: list[tuple[bytes, bytes]] = []
        self._held, self._discarded_bytes = b"", 0
        self._lost: asyncio.Future[None] = self.loop.create_future()

    def trust(self) -> None:
        """The first request has shown the token: read its body, which was not looked at before."""
        self.trusted = True
        self._all.trust(self)
        held, self._held = self._held, b""
        if held:
            self._feed(held)
            self._note_progress(len(held))
        self.flow.resume_reading()

    def abort(self) -> None:
        """Close it at once, also while it is opened: that fails then, or ends in `connection_made`."""
        self._refused = True
        if self._open:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):  # the peer has closed it
                self._end.shutdown(socket.SHUT_RDWR)

    async def discard(self) -> None:
        """After a refusal: read no more of the request, and leave the client some time to read the response.

        If the connection were closed while the client is sending, the kernel would discard the response too.
        """
        self._stop_reading()
        if self.cycle.more_body:
            self.flow.resume_reading()
            await asyncio.wait({self._lost}, timeout=_LINGER_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._open = True
        super().connection_made(transport)
        if self._refused:  # it was ended while it was opened
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        if not self._lost.done():
            self._lost.set_result(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if self._refused:
            self._discarded_bytes += size
            if not self.trusted and self._discarded_bytes > _DISCARDED_BYTES:
                self.flow.pause_reading()  # until it ends: a peer that is ended at once is back at once
            return
        if self._in_head:
            self._head_bytes += size
            if not self.trusted or self._head_bytes > HEAD_BYTES:
                self._feed_head(data)
                return
        self._feed(data)
        if self._head_bytes:  # neither a whole request nor the rest of one
            self._note_progress(size)

    def _feed_head(self, data: bytes) -> None:
        """Parse piece by piece until the head is complete; the rest is held until the token was found in it."""
        begin, at = self._head_bytes - len(data), 0
        while at < len(data) and self._takes_head():
            self._feed(data[at : at + _PIECE_BYTES])
            at += _PIECE_BYTES
            if self._takes_head() and (begin + at > HEAD_BYTES or len(self.headers) > _HEADERS):
                self._refuse(431, b"Request Header Fields Too Large")
        if at < len(data) and not self._refused:
            if self.trusted:
                self._feed(data[at:])
            else:
                self._held += data[at:]
                self.flow.pause_reading()
        if self._head_bytes:
            self._note_progress(max(0, len(data) - at))

    def _takes_head(self) -> bool:
        return self._in_head and not self._refused

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request is handled as any other
        except httptools.HttpParserError:
            self._refuse(400, b"Bad Request")

    def _note_progress(self, size_bytes: int) -> None:
        """Set the deadline of a head or a body that is incomplete."""
        if self._refused:
            return
        if self._in_head:
            self.deadline = min(self.deadline, time.monotonic() + self._all.head_s)
        elif self.trusted:
            self._body_began = self._body_began or time.monotonic()
            self._body_bytes += size_bytes
            self.deadline = self._body_began + self._all.head_s + self._body_bytes / _LEAST_BYTES_PER_S

    def _refuse(self, status: int, phrase: bytes) -> None:
        self._stop_reading()
        self.deadline = time.monotonic() + _LINGER_S
        self._discarded_bytes = _DISCARDED_BYTES
        head = b"HTTP/1.1 %d %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, phrase))

    def _stop_reading(self) -> None:
        self._refused, self._held, self.headers = True, b"", []

    def on_message_begin(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            raise ValueError("a second request before the response to the first")
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope["connection"] = self

    def on_headers_complete(self) -> None:
        self._in_head, self._body_began, self._body_bytes = False, 0.0, 0
        self.deadline = math.inf
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self.deadline = math.inf
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.deadline = time.monotonic() + (self._all.head_s if self._unread_bytes else self.timeout_keep_alive)

    def overdue(self, now: float) -> bool:
        """Whether something was not completed in time. A response is measured by what the client has read since."""
        if self.deadline >= now:
            return False
        before, self._unread_bytes = self._unread_bytes, self.transport.get_write_buffer_size() if self._open else 0
        if self._open and self._unread_bytes < before:
            self.deadline = now + self._all.head_s
            return False
        return True

    def pause_writing(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self.deadline = time.monotonic() + self._all.head_s
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_bytes = 0
        self.deadline = time.monotonic() + self.timeout_keep_alive if self.cycle.response_complete else math.inf
        super().resume_writing()


class Acceptor:
    """Accepts connections and opens them, with TLS if there is a context.

    Args:
        listener: the listening socket.
        connections: counts them.
        make: socket, peer → a new connection.
        tls: None: HTTP in clear.
    """

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        make: Callable[[socket.socket, str], Connection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener, self._connections, self._make, self._tls = listener, connections, make, tls
        self._loop = asyncio.get_running_loop()
        self._paused: asyncio.TimerHandle | None = None
        listener.setblocking(False)

    def start(self) -> None:
        """Begin to accept."""
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Accept no more; open connections stay."""
        self._loop.remove_reader(self._listener)
        if self._paused is not None:
            self._paused.cancel()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            pause_s = self._connections.pause_s()
            if pause_s:
                self._pause(pause_s)
                return
            try:
                end, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left: the connection waits in the kernel's queue
                self._pause(_NO_DESCRIPTOR_PAUSE_S)
                return
            connection = self._make(end, _counted_as(address[0]))
            if self._connections.admit(connection):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.opening = self._loop.create_task(self._open(connection, end))
            else:
                end.close()

    def _pause(self, seconds: float) -> None:
        """Let connections wait in the kernel's queue."""
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(seconds, self.start)

    async def _open(self, connection: Connection, end: socket.socket) -> None:
        timeout_s = None if self._tls is None else self._connections.head_s
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, end, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # the peer is gone, does not speak TLS, or took too long
            self._connections.forget(connection)
            end.close()


def _counted_as(address: str) -> str:
    """The address, of IPv6 its network."""
    if ":" not in address:
        return address
    found = ipaddress.IPv6Address(address.partition("%")[0])
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found), _NETWORK_BITS), strict=False))
