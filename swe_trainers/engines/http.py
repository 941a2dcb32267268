"""JSON over HTTP: timeouts, retries with growing pauses, a request rate, and errors of one line."""

from __future__ import annotations

import email.utils
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import httpx2

from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["JsonClient", "Pace", "RefusedError"]

_RANDOM = random.Random()  # separate: pauses must not change the random numbers of others

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which another try may succeed."""
_LONGEST_WAIT_S = 900.0
"""A longer `Retry-After` is an error at once."""


class RefusedError(EngineError):
    """A server answered with an error status.

    Attributes:
        status: the HTTP status.
        retry_after_s: seconds that the server asks to wait; None if it does not say.
    """

    def __init__(self, message: str, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return RefusedError, (str(self), self.status, self.retry_after_s)  # it may cross processes


class Pace:
    """The rate of requests, shared by any number of threads and clients.

    Args:
        per_minute: most requests per minute, evenly spaced; None for no limit.
    """

    def __init__(self, per_minute: float | None = None) -> None:
        self._interval_s = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._held_until = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Sleep until a request may be sent, and count it."""
        while True:
            with self._lock:
                now = time.monotonic()
                due, held = max(self._next, now), self._held_until
                if due >= held:
                    self._next = due + self._interval_s
                    break
            # Requests that were held together are not sent all at once.
            time.sleep(held - now + _RANDOM.uniform(0.0, min(1.0, 0.1 * (held - now))))
        time.sleep(due - now)

    def hold(self, seconds: float) -> None:
        """Send no request for so many seconds."""
        with self._lock:
            self._held_until = max(self._held_until, time.monotonic() + seconds)


class JsonClient:
    """A client of one server; any number of threads may use it.

    Args:
        url: `http://host:port` or `https://…`, with a path that precedes every request's own.
        api_key: sent as a bearer token.
        timeout_s: of one try.
        tries: of one request.
        pause_s: after the first failed try; doubled after each, reduced by a random part, 30 s at most.
        revive: called after a try that reached no server; may start the server again.
        patience_s: if no server is reached, a request is repeated for so long, however many tries that takes.
        pace: of requests; a server's `Retry-After` holds all clients with the same pace.
        option: the option that gave the URL, for messages.

    Raises:
        ConfigurationError: the URL is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        tries: int = 5,
        pause_s: float = 0.5,
        revive: Callable[[], None] | None = None,
        patience_s: float = 0.0,
        pace: Pace | None = None,
        option: str = "engine.url",
    ) -> None:
        if not _is_address(url):
            raise ConfigurationError(f"{option}: got {url!r}, expected http://HOST:PORT")
        self.url = url.rstrip("/")
        self._timeout_s, self._tries, self._pause_s = timeout_s, tries, pause_s
        self._revive, self._patience_s = revive, patience_s
        self._pace, self._api_key = pace or Pace(), api_key

    def get(self, path: str) -> Any:
        """See `request`."""
        return self.request("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any], *, tries: int | None = None) -> Any:
        """See `request`."""
        return self.request("POST", path, body, tries=tries)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None, *, tries: int | None = None) -> Any:
        """Send a request until it is answered. It must be safe to send it twice.

        Returns:
            The JSON of the response; None if it has no body.
        Raises:
            RefusedError: the server refuses the request.
            EngineError: no try succeeded.
        """
        most = tries or self._tries
        deadline = time.monotonic() + self._patience_s
        for number in itertools.count(1):
            self._pace.wait()
            try:
                return self._try(method, path, body)
            except RefusedError as error:
                wait_s = error.retry_after_s or 0.0
                if error.status not in _TRANSIENT or number >= most or wait_s > _LONGEST_WAIT_S:
                    raise
                self._pace.hold(wait_s)
            except _GarbledError:
                if number >= most:
                    raise
            except httpx2.TransportError as error:
                if number >= most and time.monotonic() >= deadline:
                    reason = str(error) or type(error).__name__
                    raise EngineError(
                        f"{self.url}{path}: no answer after {number} tries: {reason}. Is the server up?"
                    ) from error
                if self._revive is not None:
                    self._revive()
            time.sleep(min(30.0, self._pause_s * 2 ** min(number - 1, 16)) * _RANDOM.uniform(0.5, 1.0))
        raise AssertionError("unreachable: the last try returns or raises")

    @cached_property
    def _client(self) -> httpx2.Client:
        # One connection per request: it costs little beside a generation, and none is found closed by the server. No
        # proxies from the environment: servers are local or in the cluster.
        return httpx2.Client(
            headers={"Authorization": f"Bearer {self._api_key}"} if self._api_key else None,
            timeout=self._timeout_s,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
            verify=self.url.startswith("https:"),
            trust_env=False,
        )

    def _try(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        response = self._client.request(method, self.url + path, json=body)
        content = response.content
        if response.status_code >= 400:
            if self._api_key:  # some servers quote it, and messages are written to files
                content = content.replace(self._api_key.encode(), b"(the key)")
            wait_s = _seconds(response.headers.get("Retry-After", ""))
            raise RefusedError(
                f"{self.url}{path}: {response.status_code}: {_reason(content)}", response.status_code, wait_s
            )
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            if path == "/health":
                return None
            raise _GarbledError(f"{self.url}{path}: the answer is no JSON: {content[:80]!r}") from error


class _GarbledError(EngineError):
    """The response is not an answer of the API; most likely a proxy's page."""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number from 0 to 65535, or an IPv6 address without its end
        return False


def _seconds(retry_after: str) -> float | None:
    """The value of a `Retry-After` header: seconds, or a date."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _reason(content: bytes) -> str:
    """The error message in a response, in one line."""
    text = content.decode(errors="replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text[:200] or "no reason given"
    code = ""
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            if isinstance(found.get("code"), str):
                code = f" ({found['code']})"
            found = found[key]
    return " ".join(str(found).split())[:300] + code
