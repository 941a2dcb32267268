"""The clients of a server of Tinker's API, and the results that they wait for."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine, MutableMapping
from typing import Any

from fastapi.responses import JSONResponse, Response

from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.tinker.requests import Retrieve

__all__ = ["Answer", "Results", "Sessions"]

_WAIT_S = 30.0  # of a request for a result; the client gives up after 45 s and asks again
_KEPT_RESULTS = 1000
Answer = bytes | dict[str, Any]
"""A message of the protocol, or JSON."""


class Sessions:
    """The sessions of the clients, and the training runs that belong to each.

    Args:
        runs: the training runs by name; when a session ends, its runs are removed.
        timeout_s: a session ends if its client sends nothing for so long; clients send something every 10 s.
    """

    def __init__(self, runs: MutableMapping[str, Any], timeout_s: float) -> None:
        self._runs, self._timeout_s = runs, timeout_s
        self._seen: dict[str, float] = {}
        self._owned: dict[str, set[str]] = {}

    def begin(self) -> str:
        """A new session."""
        self._end_silent()
        name = secrets.token_hex(8)
        self._seen[name], self._owned[name] = time.monotonic(), set()
        return name

    def alive(self, name: str) -> None:
        """Note that a client sent something. Raises ConfigurationError: its session has ended."""
        if name in self._seen:
            self._seen[name] = time.monotonic()
        self._end_silent()
        if name not in self._seen:
            raise ConfigurationError(f"session {name!r} does not exist, or has ended")

    def add_run(self, name: str, run: str, most: int) -> None:
        """Note a training run of a session. Raises ConfigurationError: the session has ended, or there are `most`."""
        self.alive(name)
        if len(set().union(*self._owned.values()) | {run}) > most:
            raise ConfigurationError(f"there are {most} training runs already. Try: close another client")
        self._owned[name].add(run)

    def end(self, name: str) -> None:
        """Remove a session with its runs."""
        self._seen.pop(name, None)
        for run in self._owned.pop(name, ()):
            self._runs.pop(run, None)

    def _end_silent(self) -> None:
        now = time.monotonic()
        for name in [name for name, seen in self._seen.items() if now - seen > self._timeout_s]:
            self.end(name)


class Results:
    """What takes time is begun under a name, and waited for by another request."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[Answer]] = {}

    def begin(self, of: str, number: int | None, work: Coroutine[Any, Any, Answer]) -> dict[str, Any]:
        """Begin work, unless the same request came before, and was sent again.

        Args:
            of: training run or sampling session.
            number: of the request there; one without a number is a request of its own.
            work: gives the result.
        """
        name = f"{of}:{secrets.token_hex(8) if number is None else number}"
        if name in self._tasks:
            work.close()
        else:
            self._tasks[name] = asyncio.ensure_future(work)
            for old in [key for key, task in self._tasks.items() if task.done()][:-_KEPT_RESULTS]:
                del self._tasks[old]
        return {"request_id": name}

    async def retrieve(self, body: Retrieve) -> Response:
        """Respond to a request for a result: with the result, with "try again" if it is not ready, or with an error."""
        name = body.request_id
        task = self._tasks.get(name)
        if task is None:
            return JSONResponse({"error": f"no request {name}"}, 404)
        await asyncio.wait({task}, timeout=_WAIT_S)
        if not task.done():
            return JSONResponse({"type": "try_again", "request_id": name, "queue_state": "active"}, 408)
        error = task.exception()
        if error is not None:
            users = isinstance(error, TrainerError | KeyError | TypeError | ValueError)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return JSONResponse({"error": reason, "category": "user" if users else "server"})
        found = task.result()
        return Response(found, media_type="application/x-protobuf") if isinstance(found, bytes) else JSONResponse(found)
