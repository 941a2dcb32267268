"""The endpoint of a sandbox: HTTP requests of programs inside, answered by the owner.

The listening socket is created inside the sandbox's network, which has only loopback, and passed out. Nothing is
forwarded, and nothing else can be reached through it. Every client is a program of the agent, and may send anything.
There is no thread: bytes are read and sent while the owner waits in `next`. At other times they wait in the kernel,
whose buffers are small. The limits on what a program may use of the owner:

    connections   `_CONNECTIONS` at once; others wait in the kernel's queue
    head          `_HEAD_BYTES` of request line and headers
    body          `_REQUEST_BYTES` of one request, `_BODY_BYTES` in all connections together
    answers       `_BODY_BYTES` that nobody reads, in all connections together
    time          `_REQUEST_S` from the first byte of a request to its last, of the time in which the owner reads

A connection that exceeds a limit gets an error in the form that clients of language models know, and is closed. After
`_REFUSALS` of them the program counts as ended.

One connection does not use HTTP: the lifeline, which the program that the owner started holds while it runs
(`run_command`). Its last bytes are the exit code, and its end is the end of the program, for whatever reason. There is
one lifeline, the first connection of this kind. A program of the agent can end it, which ends its own episode.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import select
import shlex
import socket
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from swegym_env.sandbox.api import ProgramEnded, ProgramRequest

__all__ = ["Endpoint", "run_command"]

_CONNECTIONS = 64
_HEAD_BYTES = 64 << 10
_REQUEST_BYTES = 16 << 20  # some four million tokens
_BODY_BYTES = 64 << 20
_REQUEST_S = 30.0
_REFUSALS = 1000  # of one sandbox; after that its program counts as ended
_LOST = 16  # answers that are kept for a program that asks again
_READ_BYTES = 1 << 18
_LIFELINE = b"swegym-agent\n"
_LIFELINE_BYTES = 64
_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,8191}|\*) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_VALUE = re.compile(rb"[\r\n\0]")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
    413: "Content Too Large", 422: "Unprocessable Content", 431: "Request Header Fields Too Large",
    501: "Not Implemented", 505: "HTTP Version Not Supported",
}  # fmt: skip


def run_command(command: str, port: int, output: str) -> str:
    """The shell command that runs `command` in the background, with a lifeline to the endpoint.

    Args:
        command: for bash.
        port: of the endpoint.
        output: the file inside that its output goes to.
    """
    held = f"exec 9<>/dev/tcp/127.0.0.1/{port} && printf 'swegym-agent\\n' >&9"
    run = f"/bin/bash -c {shlex.quote(command)} 9>&-"
    # Job control: the program has its own process group, and does not ignore the signal of Ctrl-C.
    return f"set -m; {{ {held} && {{ {run}; printf '%d\\n' $? >&9; }}; }} </dev/null >{output} 2>&1 & disown; set +m"


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class _Head:
    method: str
    path: str
    headers: Mapping[str, str]
    keeps: bool  # the connection stays open after the answer
    left: int  # bytes of the body that are still to come; -1: in chunks


@dataclass
class _Connection:
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    head: _Head | None = None
    body: bytearray = field(default_factory=bytearray)
    number: int = 0  # of the request that waits for its answer
    spent_s: float = 0.0  # on the request that is being read
    used_s: float = 0.0  # when something came last
    lifeline: bool = False
    closing: bool = False  # when everything is sent
    refused: bool = False  # closing, after reading what the client still sends, so that the answer arrives
    discarded: int = 0  # bytes
    events: int = 0  # that the poll waits for


class Endpoint:
    """See `api.Endpoint`.

    Args:
        listener: listens inside; closed by `close`.
    """

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._poll = select.poll()
        self._connections: dict[int, _Connection] = {}
        self._waiting: deque[ProgramRequest] = deque()
        self._open: dict[int, tuple[_Connection, ProgramRequest]] = {}  # requests without an answer, by number
        self._lost: dict[bytes, tuple[int, bytes, str]] = {}  # answers for closed connections, by digest of the request
        self._numbers = 0
        self._refusals = 0
        self._has_lifeline = False
        self._ended: ProgramEnded | None = None
        self._listening = False
        self._listen(on=True)

    def next(self, timeout_s: float) -> ProgramRequest | ProgramEnded | None:
        """See `api.Endpoint`."""
        deadline = time.monotonic() + timeout_s
        self._serve(0)
        while True:
            if self._ended is not None:
                return self._ended
            while self._waiting:
                asked = self._waiting.popleft()
                if not self._open[asked.number][0].closing:
                    return asked
                del self._open[asked.number]  # the client has gone, and will repeat the request if needed
            left_s = deadline - time.monotonic()
            if left_s < 0:
                return None
            self._serve(min(left_s, 1.0))

    def answer(self, number: int, status: int, body: bytes, content_type: str = "application/json") -> None:
        """See `api.Endpoint`."""
        self._serve(0)  # the client may have closed the connection
        if number not in self._open:
            return
        connection, asked = self._open.pop(number)
        if connection.closing:
            for same in self._waiting:
                again = self._open[same.number][0]
                if not again.closing and _digest(same) == _digest(asked):  # the client has repeated the request already
                    del self._open[same.number]
                    self._waiting.remove(same)
                    self._respond(again, status, body, content_type)
                    return
            self._lost[_digest(asked)] = status, body, content_type
            while len(self._lost) > _LOST or sum(len(lost[1]) for lost in self._lost.values()) > _REQUEST_BYTES:
                del self._lost[next(iter(self._lost))]
            return
        self._respond(connection, status, body, content_type)

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._listener.close()
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._open.clear()
        self._waiting.clear()
        self._ended = self._ended or ProgramEnded(-1)

    def _listen(self, *, on: bool) -> None:
        if on != self._listening:
            (self._poll.register if on else self._poll.unregister)(self._listener)
            self._listening = on

    def _serve(self, timeout_s: float) -> None:
        """Wait for events, and handle them."""
        began = time.monotonic()
        ready = self._poll.poll(timeout_s * 1000 + bool(timeout_s))
        passed_s = time.monotonic() - began
        for connection in list(self._connections.values()):
            if connection.refused or ((connection.received or connection.head) and not connection.number):
                self._spend(connection, passed_s)
        for descriptor, event in ready:
            if self._listening and descriptor == self._listener.fileno():
                self._accept()
            elif descriptor in self._connections:
                connection = self._connections[descriptor]
                if event & select.POLLOUT:
                    self._send(connection)
                if event & ~select.POLLOUT and descriptor in self._connections:
                    self._receive(connection)
        self._listen(on=len(self._connections) < _CONNECTIONS)

    def _spend(self, connection: _Connection, seconds: float) -> None:
        connection.spent_s += seconds
        if connection.spent_s <= _REQUEST_S or connection.lifeline:
            return
        if connection.refused:
            self._drop(connection)
        else:
            self._refuse(connection, _RefusedError(408, f"the request took more than {_REQUEST_S:g} s to arrive"))

    def _accept(self) -> None:
        while len(self._connections) < _CONNECTIONS:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # no client waits, or the waiting one has gone
                return
            accepted.setblocking(False)
            with contextlib.suppress(OSError):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(accepted)
            self._connections[accepted.fileno()] = connection
            self._poll.register(accepted, select.POLLIN)
            connection.events = select.POLLIN
            self._receive(connection)
        idle = [
            one for one in self._connections.values() if not (one.lifeline or one.number or one.received or one.unsent)
        ]
        if idle:  # a new connection may replace the least recently used one
            self._drop(min(idle, key=lambda one: one.used_s))

    def _receive(self, connection: _Connection) -> None:
        try:
            piece = connection.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        connection.used_s = time.monotonic()
        if not piece:
            if connection.lifeline:
                code = bytes(connection.received).strip()
                self._ended = self._ended or ProgramEnded(int(code) if code.isdigit() and len(code) <= 3 else -1)
            connection.closing = True
            self._drop(connection)
            return
        if connection.refused:
            connection.discarded += len(piece)
            if connection.discarded > _BODY_BYTES:
                self._drop(connection)
            return
        connection.received += piece
        try:
            self._read_requests(connection)
        except _RefusedError as error:
            self._refuse(connection, error)

    def _read_requests(self, connection: _Connection) -> None:
        """Read as much as possible: one request, and the next one when that is answered."""
        received = connection.received
        if received.startswith(_LIFELINE) and connection.head is None and not self._has_lifeline:
            connection.lifeline = self._has_lifeline = True
            del received[: len(_LIFELINE)]
        if connection.lifeline:
            del received[_LIFELINE_BYTES:]
            return
        if connection.number:
            if len(received) > _HEAD_BYTES:  # pipelined: it is read when this one is answered, and bounded until then
                self._watch(connection)
            return
        if connection.head is None:
            connection.head = _read_head(received)
            if connection.head is None:
                return
            if connection.head.headers.get("expect", "").lower() == "100-continue":
                connection.unsent += b"HTTP/1.1 100 Continue\r\n\r\n"
                self._send(connection)
        self._check_size()
        if not _read_body(connection, connection.head):
            return
        head, body = connection.head, bytes(connection.body)
        connection.body.clear()
        connection.spent_s = 0.0
        self._numbers += 1
        connection.number = self._numbers
        asked = ProgramRequest(self._numbers, head.method, head.path, head.headers, body)
        lost = self._lost.pop(_digest(asked), None) if self._lost else None
        if lost is not None:
            self._respond(connection, *lost)
            return
        self._open[asked.number] = connection, asked
        self._waiting.append(asked)

    def _check_size(self) -> None:
        bodies = sum(len(one.body) + len(one.received) for one in self._connections.values())
        bodies += sum(len(asked.body) for _, asked in self._open.values())
        if bodies > _BODY_BYTES:
            raise _RefusedError(413, f"requests may have {_BODY_BYTES} bytes, all that wait together")

    def _respond(self, connection: _Connection, status: int, body: bytes, content_type: str) -> None:
        keeps = connection.head is not None and connection.head.keeps
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: {'keep-alive' if keeps else 'close'}\r\n\r\n"
        )
        sends_body = connection.head is None or connection.head.method != "HEAD"
        connection.unsent += head.encode() + (body if sends_body else b"")
        connection.head, connection.number = None, 0
        connection.closing = not keeps
        self._send(connection)
        while sum(len(one.unsent) for one in self._connections.values()) > _BODY_BYTES:
            self._drop(max(self._connections.values(), key=lambda one: len(one.unsent)))
        if connection.received and connection.socket.fileno() in self._connections:
            try:
                self._read_requests(connection)
            except _RefusedError as error:
                self._refuse(connection, error)

    def _refuse(self, connection: _Connection, error: _RefusedError) -> None:
        """Answer with an error, after which the connection is closed."""
        error_body = {"type": "invalid_request_error", "message": str(error), "code": None, "param": None}
        self._refusals += 1
        if self._refusals > _REFUSALS:
            self._ended = self._ended or ProgramEnded(-1)
        connection.head, connection.refused = None, True
        connection.received.clear()
        connection.body.clear()
        connection.spent_s = 0.0
        self._respond(
            connection, error.status, json.dumps({"type": "error", "error": error_body}).encode(), "application/json"
        )

    def _send(self, connection: _Connection) -> None:
        while connection.unsent:
            try:
                sent = connection.socket.send(memoryview(connection.unsent)[:_READ_BYTES])
            except BlockingIOError:
                break
            except OSError:
                connection.unsent.clear()
                connection.closing, connection.refused = True, False
                break
            del connection.unsent[:sent]
        if connection.closing and not connection.unsent:
            if connection.refused:
                with contextlib.suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_WR)
                self._watch(connection)
            else:
                self._drop(connection)
        else:
            self._watch(connection)

    def _watch(self, connection: _Connection) -> None:
        """Register the events that this connection waits for."""
        full = bool(connection.number) and len(connection.received) > _HEAD_BYTES
        events = (0 if full else select.POLLIN) | (select.POLLOUT if connection.unsent else 0)
        if events != connection.events and connection.socket.fileno() in self._connections:
            self._poll.modify(connection.socket, events)
            connection.events = events

    def _drop(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        if self._connections.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
            connection.socket.close()
            connection.closing = True


def _read_head(received: bytearray) -> _Head | None:
    """Take a complete head out of `received`; None if it is not complete. Raises _RefusedError."""
    while received[:2] == b"\r\n":
        del received[:2]
    end = received.find(b"\r\n\r\n", 0, _HEAD_BYTES)
    if end < 0:
        if len(received) >= _HEAD_BYTES:
            raise _RefusedError(431, f"the head of a request may have {_HEAD_BYTES} bytes")
        if received and not received[:1].isalpha():
            raise _RefusedError(400, "not a request of HTTP/1.1")
        return None
    first, *lines = bytes(received[:end]).split(b"\r\n")
    del received[: end + 4]
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise _RefusedError(400, "the request line is not one of HTTP/1.1")
    headers: dict[str, str] = {}
    for each in lines:
        field_name, colon, value = each.partition(b":")
        if not colon or not _NAME.fullmatch(field_name) or _NOT_IN_VALUE.search(value):
            raise _RefusedError(400, "a header of the request is malformed")
        name = field_name.decode().lower()
        if name == "content-length" and name in headers:
            raise _RefusedError(400, "the request has two lengths")
        headers[name] = value.strip(b" \t").decode("latin-1")
    words = headers.get("connection", "").lower()
    keeps = "close" not in words if line[3] == b"1" else "keep-alive" in words
    return _Head(line[1].decode(), line[2].decode(), headers, keeps, _length(headers))


def _length(headers: Mapping[str, str]) -> int:
    """Bytes of the body; -1 for a chunked one. Raises _RefusedError."""
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise _RefusedError(501, "compressed requests are not read here")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise _RefusedError(400, "expected Transfer-Encoding: chunked without a length")
        return -1
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        raise _RefusedError(400, "the length of the request is no number")
    if int(length) > _REQUEST_BYTES:
        raise _RefusedError(413, f"a request may have {_REQUEST_BYTES} bytes, this one has {length}")
    return int(length)


def _read_body(connection: _Connection, head: _Head) -> bool:
    """Move the received part of the body; returns whether it is complete. Raises _RefusedError."""
    received = connection.received
    if head.left >= 0:
        piece = received[: head.left]
        del received[: len(piece)]
        connection.body += piece
        head.left -= len(piece)
        return head.left == 0
    while True:
        end = received.find(b"\r\n", 0, 1024)
        if end < 0:
            if len(received) >= 1024:
                raise _RefusedError(400, "a chunk of the request is malformed")
            return False
        size = _CHUNK.fullmatch(bytes(received[:end]))
        if size is None:
            raise _RefusedError(400, "a chunk of the request is malformed")
        length = int(size[1], 16)
        if len(connection.body) + length > _REQUEST_BYTES:
            raise _RefusedError(413, f"a request may have {_REQUEST_BYTES} bytes")
        if len(received) < end + 2 + length + 2:
            return False
        if received[end + 2 + length : end + 4 + length] != b"\r\n":
            raise _RefusedError(400, "a chunk of the request is malformed, or trailers follow, which are not read here")
        connection.body += received[end + 2 : end + 2 + length]
        del received[: end + 4 + length]
        if length == 0:
            return True


def _digest(asked: ProgramRequest) -> bytes:
    return hashlib.sha256(f"{asked.method} {asked.path}\n".encode() + asked.body).digest()
