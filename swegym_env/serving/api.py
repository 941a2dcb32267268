"""The API: one list of what can be asked, which a server and a pool answer each in its own way.

Messages are read and answered here; FastAPI has them for the schema, and answers all else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from swegym_env import __version__
from swegym_env.sandbox.remote.wire import error_body
from swegym_env.serving import messages as said
from swegym_env.serving.gate import Asked, Gate, Measures

__all__ = ["MESSAGES", "Answering", "make_app"]

MESSAGES: Mapping[str, type[BaseModel]] = {
    "/container/create": said.Create,
    "/container/exec": said.Exec,
    "/container/diff": said.Diff,
    "/container/evaluate": said.Evaluate,
    "/container/read": said.Read,
    "/container/write": said.Write,
    "/container/changes": said.Changes,
    "/container/snapshot": said.Snapshot,
    "/container/restore": said.Restore,
    "/container/fork": said.Fork,
    "/container/renew": said.Renew,
    "/container/destroy": said.Destroy,
    "/snapshot/discard": said.Discard,
    "/images/pull": said.Pull,
}
_INVALID = 422
_OTHERS = ("/healthz", "/images", "/metrics")
_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong."},
    404: {"description": "No such container or snapshot: it was ended, or its lease is over."},
    409: {"description": "The file system inside refused; `errno` says why."},
    413: {"description": "The body is too large."},
    422: {"description": "The message is not what is expected."},
    424: {"description": "The machine failed; what was asked for may be asked for again under another request id."},
    429: {"description": "No room now: ask again, by the same request id."},
    503: {"description": "It is being stopped, or has not one server left: ask again."},
}


class Answering(Protocol):
    """Who answers: a node, or a pool of them."""

    async def answer(self, path: str, message: Any, asked: Asked) -> tuple[int, bytes]:
        """The answer to a message of `MESSAGES`: status and JSON."""

    async def health(self) -> dict[str, Any]:
        """How it is."""

    async def images(self) -> list[str]:
        """What it has ready."""


def make_app(
    answering: Answering,
    token: str,
    *,
    gauges: dict[str, tuple[str, Callable[[], float]]],
    body_limit_bytes: int,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]],
) -> Gate:
    """The whole application, behind its gate.

    Args:
        answering: who answers.
        token: that every request must bear.
        gauges: see `Measures`.
        body_limit_bytes: of a request.
        lifespan: what goes on while it is served.
    """
    app = FastAPI(
        title="swegym sandboxes",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_REFUSALS,
    )
    measures = Measures(frozenset((*MESSAGES, *_OTHERS)), gauges)

    @app.exception_handler(HTTPException)
    async def refused(_request: Request, error: HTTPException) -> Response:
        answer = _json(error_body("ConfigurationError", str(error.detail)), error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    @app.get("/healthz", summary="How it is, and how much room there is.")
    async def health() -> Response:
        return _json(json.dumps(await answering.health()).encode())

    @app.get("/images", summary="The images that are ready.")
    async def images() -> Response:
        return _json(json.dumps({"images": await answering.images()}).encode())

    @app.get("/metrics", summary="What Prometheus reads.")
    async def metrics() -> Response:
        return Response(measures.text(), media_type="text/plain; version=0.0.4")

    async def answer(path: str, asked: Asked) -> tuple[int, bytes]:
        try:
            message = MESSAGES[path].model_validate(json.loads(asked.body))
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
            return _INVALID, error_body("ConfigurationError", told[:1000])
        except (ValueError, RecursionError) as error:
            return _INVALID, error_body("ConfigurationError", f"expected JSON: {error}"[:1000])
        return await answering.answer(path, message, asked)

    for path, model in MESSAGES.items():
        app.add_api_route(path, _described(model), methods=["POST"], summary=model.__doc__, name=path)
    return Gate(app, answer, frozenset(MESSAGES), token, body_limit_bytes=body_limit_bytes, measures=measures)


def _described(model: type[BaseModel]) -> Callable[..., Awaitable[Response]]:
    """A route for the schema; what is sent there by POST has been answered before it."""

    async def route(message: Any) -> Response:
        raise RuntimeError(f"{message} came past the gate unanswered")

    route.__annotations__ = {"message": model, "return": Response}
    return route


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


async def cancelled(task: asyncio.Task[None]) -> None:
    """End a task of one's own, and wait until it has."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
