"""What every request passes before anything is done: the token, the size, the request id; and what is counted of it.

Messages are answered from here, by `answer`; whatever else is asked for goes to the application behind. Every command
of every sandbox passes: through FastAPI's routing, dependencies and responses one took twice the processor time.
"""

from __future__ import annotations

import hmac
import os
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from swegym_env.sandbox.remote.wire import BUSY, error_body

__all__ = ["Asked", "Gate", "Measures"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_REQUEST_ID = re.compile(rb"[\w.:-]{8,128}")
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0)


@dataclass(frozen=True)
class Asked:
    """A request as it came, past the gate.

    Attributes:
        body: all of it.
        request_id: what it is known by when it is sent again.
        client: who sent it: the name it gave itself, or its address.
    """

    body: bytes
    request_id: str
    client: str


Answer = Callable[[str, Asked], Awaitable[tuple[int, bytes]]]


class Measures:
    """What a server tells Prometheus.

    Args:
        paths: of the API; whatever else is asked for is counted under one name.
        gauges: name → what it is and how it is found when asked for.
    """

    def __init__(self, paths: frozenset[str], gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        self._paths = paths
        self._registry = CollectorRegistry()
        self._requests = Counter("swegym_requests", "Requests answered.", ["path", "status"], registry=self._registry)
        self._seconds = Histogram(
            "swegym_request_seconds", "Time to answer.", ["path"], buckets=_BUCKETS, registry=self._registry
        )
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}
        for name, (what, value) in gauges.items():
            Gauge(f"swegym_{name}", what, registry=self._registry).set_function(value)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count one answer."""
        known = path if path in self._paths else "other"
        counted = self._known.get((known, status))
        if counted is None:
            counted = self._requests.labels(known, str(status)), self._seconds.labels(known)
            self._known[known, status] = counted
        counted[0].inc()
        counted[1].observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus' own form."""
        return generate_latest(self._registry)


class Gate:
    """An ASGI application before another: nothing without the token reaches that, and no body over the limit.

    The whole body is read before anything is asked, so that a slow sender holds nothing but its connection.

    Args:
        app: what is behind it.
        answer: of a message, by its path.
        messages: the paths that have one, asked for by POST.
        token: that a request must bear.
        body_limit_bytes: of a request.
        measures: where answers are counted.
    """

    def __init__(
        self,
        app: App,
        answer: Answer,
        messages: frozenset[str],
        token: str,
        *,
        body_limit_bytes: int,
        measures: Measures,
    ) -> None:
        self._app, self._answer, self._messages = app, answer, messages
        self._expected = f"Bearer {token}".encode()
        self._limit = body_limit_bytes
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        began, status, path = time.perf_counter(), 500, scope["path"]
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()

        async def send_named(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                await _refuse(send_named, 401, "the token is missing or wrong. Try: SWEGYM_TOKEN=…")
            elif given and given.decode("latin-1") != request_id:
                await _refuse(send_named, 422, "X-Request-Id: expected 8 to 128 letters, digits and ._:-")
            elif (body := await self._body(headers, receive)) is None:
                await _refuse(send_named, 413, f"the body is larger than {self._limit} bytes")
            elif scope["method"] == "POST" and path in self._messages:
                await _send(send_named, *await self._answer(path, Asked(body, request_id, _client(scope, headers))))
            else:
                await self._app(scope, _replaying(body, receive), send_named)
        finally:
            self._measures.answered(path, status, time.perf_counter() - began)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The whole body; None where it is too large."""
        told = headers.get(b"content-length", b"0")
        if not told.isdigit() or int(told) > self._limit:
            return None
        pieces, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break  # whoever sent it is gone
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            more = message.get("more_body", False)
            if size > self._limit:
                return None
        return b"".join(pieces)


def _replaying(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _client(scope: Scope, headers: dict[bytes, bytes]) -> str:
    named = headers.get(b"x-client-id", b"").decode("latin-1")
    return (named or (scope["client"][0] if scope.get("client") else ""))[:128]


async def _refuse(send: Send, status: int, message: str) -> None:
    await _send(send, status, error_body("ConfigurationError", message))


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    elif status in BUSY:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
