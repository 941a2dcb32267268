"""The HTTP application of servers and pools: authentication, limits, request ids, metrics, and the requests of the API.

`Gate` is an ASGI application in front of FastAPI. It handles the requests of the API itself: through FastAPI's routing,
dependencies and responses, one took twice the CPU time. FastAPI describes them in the schema and handles the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from swegym_env import __version__
from swegym_env.sandbox.remote.wire import BUSY, error_body
from swegym_env.serving import requests
from swegym_env.serving.connections import Connection

__all__ = [
    "REQUESTS",
    "REUSED",
    "Bodies",
    "Gate",
    "Handler",
    "Incoming",
    "Metrics",
    "Reply",
    "cancelled",
    "logged",
    "make_app",
]

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Reply = tuple[int, bytes]
"""Status and JSON body of a response."""

REQUESTS: Mapping[str, type[BaseModel]] = {
    "/container/create": requests.Create,
    "/container/exec": requests.Exec,
    "/container/diff": requests.Diff,
    "/container/endpoint": requests.Endpoint,
    "/container/evaluate": requests.Evaluate,
    "/container/read": requests.Read,
    "/container/write": requests.Write,
    "/container/changes": requests.Changes,
    "/container/snapshot": requests.Snapshot,
    "/container/restore": requests.Restore,
    "/container/fork": requests.Fork,
    "/container/interrupt": requests.Interrupt,
    "/container/renew": requests.Renew,
    "/container/destroy": requests.Destroy,
    "/snapshot/discard": requests.Discard,
    "/images/pull": requests.Pull,
}
_OTHERS = ("/healthz", "/images", "/metrics")
_INVALID = 422
_PIECE_BYTES = 1 << 18
_SMALL_BODY_BYTES = 64 << 10  # such requests are never refused: commands, leases and what ends the large ones
_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong."},
    404: {"description": "No such container or snapshot: it was ended, or its lease expired."},
    409: {"description": "The file system in the sandbox refused; `errno` is the reason."},
    411: {"description": "The body has no Content-Length."},
    413: {"description": "The body is too large."},
    422: {"description": "The request does not fit the schema."},
    424: {"description": "The infrastructure failed; the request may be repeated with another request id."},
    429: {"description": "No capacity now: repeat with the same request id."},
    503: {"description": "Shutting down, no server is left, or too many large bodies are in progress: repeat."},
}
REUSED: Reply = (
    _INVALID,
    error_body("ConfigurationError", "X-Request-Id: another request had this id; only a repetition may have the same"),
)
"""The reply to a request whose id belongs to a request with another body."""
_REQUEST_ID = re.compile(rb"[\w.:-]{8,128}")
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0)


@dataclass(frozen=True)
class Incoming:
    """A request that passed the gate.

    Attributes:
        body: complete.
        request_id: the same if the request is repeated.
        client: the sender's own name, or its address.
    """

    body: bytes
    request_id: str
    client: str

    def digest(self) -> bytes:
        """Of the body: a repetition has the same, and another request must have another id."""
        return hashlib.sha256(self.body).digest()


class Handler(Protocol):
    """A server or a pool."""

    async def handle(self, path: str, message: Any, incoming: Incoming) -> Reply:
        """The reply to a request of `REQUESTS`, parsed as `message`."""

    async def health(self) -> dict[str, Any]:
        """Status and capacity."""

    async def images(self) -> list[str]:
        """The images that are ready."""


class Metrics:
    """The metrics of a server, for Prometheus.

    Args:
        gauges: name → description and the function that reads it.
    """

    def __init__(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("swegym_requests", "Requests handled.", ["path", "status"], registry=self._registry)
        self._seconds = Histogram(
            "swegym_request_seconds", "Time to respond.", ["path"], buckets=_BUCKETS, registry=self._registry
        )
        self._counters: dict[tuple[str, int], tuple[Any, Any]] = {}
        for name, (description, value) in gauges.items():
            self.add_gauge(name, description, value)

    def add_gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a gauge and the function that reads it."""
        Gauge(f"swegym_{name}", description, registry=self._registry).set_function(value)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count one response; paths outside the API are counted together."""
        known = path if path in REQUESTS or path in _OTHERS else "other"
        counters = self._counters.get((known, status))
        if counters is None:
            counters = self._requests.labels(known, str(status)), self._seconds.labels(known)
            self._counters[known, status] = counters
        counters[0].inc()
        counters[1].observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class Bodies:
    """The bodies of all requests that have not been answered: what they may take, and what they take.

    Args:
        limit_bytes: of one request.
        total_bytes: of all together, but for those up to `_SMALL_BODY_BYTES`; None: an eighth of the machine's memory,
            since a body is there some four times while it is parsed.

    Attributes:
        held_bytes: of all together now.
    """

    def __init__(self, limit_bytes: int, total_bytes: int | None = None) -> None:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.limit_bytes = limit_bytes
        self._total_bytes = max(limit_bytes, memory_bytes // 8) if total_bytes is None else total_bytes
        self.held_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Count a body before it is read; False: it has no place now."""
        if size_bytes > _SMALL_BODY_BYTES and self.held_bytes + size_bytes > self._total_bytes:
            return False
        self.held_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Its request is answered."""
        self.held_bytes -= size_bytes


class Gate:
    """Checks token, body size and request id of every request; see the module.

    The whole body is read before it is handled, so that a slow sender occupies nothing but its connection.

    Args:
        app: handles everything outside `REQUESTS`.
        handler: handles `REQUESTS`.
        token: required in every request.
        bodies: what the bodies of requests may take.
        metrics: counts the responses.
    """

    def __init__(self, app: App, handler: Handler, token: str, *, bodies: Bodies, metrics: Metrics) -> None:
        self._app, self._handler = app, handler
        self._expected = f"Bearer {token}".encode()
        self._bodies = bodies
        self.metrics = metrics
        metrics.add_gauge("body_bytes", "Bodies of the requests in progress.", lambda: float(bodies.held_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        began, status, path = time.perf_counter(), 500, scope["path"]
        connection: Connection = scope["connection"]
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else os.urandom(16).hex()

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                await _refuse(send_with_id, connection, 401, "the token is missing or wrong. Try: SWEGYM_TOKEN=…")
                return
            if not connection.trusted:
                connection.trust()
            if given and given.decode("latin-1") != request_id:
                reason = "X-Request-Id: expected 8 to 128 letters, digits and ._:-"
                await _refuse(send_with_id, connection, _INVALID, reason)
            elif b"transfer-encoding" in headers:
                reason = "expected Content-Length instead of Transfer-Encoding"
                await _refuse(send_with_id, connection, 411, reason)
            elif (size_bytes := _declared_bytes(headers)) > self._bodies.limit_bytes:
                reason = f"the body is larger than {self._bodies.limit_bytes} bytes"
                await _refuse(send_with_id, connection, 413, reason)
            elif not self._bodies.take(size_bytes):
                reason = f"the requests in progress take {self._bodies.held_bytes} bytes; repeat it"
                await _refuse(send_with_id, connection, 503, reason, kind="Busy")
            else:
                try:
                    body = await _whole_body(receive)
                    if scope["method"] == "POST" and path in REQUESTS:
                        named = headers.get(b"x-client-id", b"").decode("latin-1")
                        client = (named or (scope["client"][0] if scope.get("client") else ""))[:128]
                        await _respond(send_with_id, *await self._handled(path, Incoming(body, request_id, client)))
                    else:
                        await self._app(scope, _replaying(body, receive), send_with_id)
                finally:
                    self._bodies.give_back(size_bytes)
        finally:
            self.metrics.count(path, status, time.perf_counter() - began)

    async def _handled(self, path: str, incoming: Incoming) -> Reply:
        try:
            message = REQUESTS[path].model_validate(json.loads(incoming.body))
        except ValidationError as error:
            reasons = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
            return _INVALID, error_body("ConfigurationError", reasons[:1000])
        except (ValueError, RecursionError) as error:
            return _INVALID, error_body("ConfigurationError", f"expected JSON: {error}"[:1000])
        return await self._handler.handle(path, message, incoming)


def _declared_bytes(headers: Mapping[bytes, bytes]) -> int:
    """The length of the body; beyond all limits if it is no number, which the connection's parser refuses too."""
    declared = headers.get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else sys.maxsize


async def _whole_body(receive: Receive) -> bytes:
    """The body, or what came before the sender disconnected."""
    pieces, more = [], True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


def make_app(
    handler: Handler,
    token: str,
    *,
    gauges: dict[str, tuple[str, Callable[[], float]]],
    bodies: Bodies,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> Gate:
    """The whole application behind its gate.

    Args:
        handler: handles the requests.
        token: required in every request.
        gauges: see `Metrics`.
        bodies: what the bodies of requests may take.
        lifespan: background work while the application runs.
    """
    app = FastAPI(
        title="swegym sandboxes", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        responses=_ERRORS,
    )  # fmt: skip
    metrics = Metrics(gauges)

    @app.exception_handler(HTTPException)
    async def refused(_request: Request, error: HTTPException) -> Response:
        response = _json(error_body("ConfigurationError", str(error.detail)), error.status_code)
        response.headers.update(error.headers or {})
        return response

    @app.get("/healthz", summary="Status and capacity.")
    async def health() -> Response:
        return _json(json.dumps(await handler.health()).encode())

    @app.get("/images", summary="The images that are ready.")
    async def images() -> Response:
        return _json(json.dumps({"images": await handler.images()}).encode())

    @app.get("/metrics", summary="Metrics for Prometheus.")
    async def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    for path, model in REQUESTS.items():
        app.add_api_route(path, _schema_route(model), methods=["POST"], summary=model.__doc__, name=path)
    return Gate(app, handler, token, bodies=bodies, metrics=metrics)


def _schema_route(model: type[BaseModel]) -> Callable[..., Awaitable[Response]]:
    """A route for the schema only: the gate handles the request."""

    async def route(message: Any) -> Response:
        raise RuntimeError(f"{message} passed the gate without being handled")

    route.__annotations__ = {"message": model, "return": Response}
    return route


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A receiver that first returns the body that was already read."""
    given = False

    async def replay() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(
    send: Send, connection: Connection, status: int, message: str, *, kind: str = "ConfigurationError"
) -> None:
    """Refuse a request whose body was not read, and close the connection."""
    body = error_body(kind, message)
    headers = [*_headers(status, body), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await connection.discard()
    await send({"type": "http.response.body"})


async def _respond(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _headers(status, body)})
    for start in range(0, len(body) - _PIECE_BYTES, _PIECE_BYTES):  # others have their turn between two pieces
        await send({"type": "http.response.body", "body": body[start : start + _PIECE_BYTES], "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": body[(len(body) - 1) // _PIECE_BYTES * _PIECE_BYTES :]})


def _headers(status: int, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    elif status in BUSY:
        headers.append((b"retry-after", b"1"))
    return headers


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextmanager
def logged(what: str) -> Iterator[None]:
    """Log what fails in the block with its traceback, and go on: for the periodic work of a server.

    Args:
        what: the work, as "closing the container x".
    """
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is, the next round must come
        _log.exception("%s failed; the server goes on, and tries again", what)
