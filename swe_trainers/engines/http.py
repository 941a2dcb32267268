"""JSON over HTTP: time-outs, retries with growing pauses, a rate that is kept, errors of one line."""

from __future__ import annotations

import email.utils
import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["JsonClient", "Pace", "RefusedError"]

_CHANCE = random.Random()  # of its own: what a pause draws must not shift what others draw

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Answers that another try may cure."""
_LONGEST_WAIT_S = 900.0
"""Whoever is told to come back later than this gives up instead."""


class RefusedError(EngineError):
    """A server answered that it will not: another try would not help.

    Attributes:
        status: the HTTP status.
        retry_after_s: how long the server asks to be left alone; None where it does not say.
    """

    def __init__(self, message: str, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return RefusedError, (str(self), self.status, self.retry_after_s)  # it may be told by another process


class Pace:
    """When the next request may go out; any number of threads and clients may keep one pace.

    Args:
        per_minute: most requests a minute, evenly spaced; None for any number.
    """

    def __init__(self, per_minute: float | None = None) -> None:
        self._interval_s = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._held_until = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Sleep until a request may go out, and count it."""
        while True:
            with self._lock:
                now = time.monotonic()
                due, held = max(self._next, now), self._held_until
                if due >= held:
                    self._next = due + self._interval_s
                    break
            # Those who were held up together do not come back all at once.
            time.sleep(held - now + _CHANCE.uniform(0.0, min(1.0, 0.1 * (held - now))))
        time.sleep(due - now)

    def hold(self, seconds: float) -> None:
        """Let no request out for so long."""
        with self._lock:
            self._held_until = max(self._held_until, time.monotonic() + seconds)


class JsonClient:
    """Speaks to one server; any number of threads may use it.

    Args:
        url: `http://host:port` or `https://…`, with a path before every call's own where there is one.
        api_key: sent as a bearer token.
        timeout_s: of one try.
        tries: of one call.
        pause_s: after the first failed try; doubled after each, a random part of it left out, 30 s at most.
        revive: called after a try that found nobody at the other end; may start the server again.
        patience_s: a call goes on asking for so long where nobody is at the other end, however many tries that takes.
        pace: kept by every try; a server's `Retry-After` holds up all who keep the same.
        option: that gave the address, for messages.

    Raises:
        ConfigurationError: the address is not one.
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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"{option}: got {url!r}, expected http://HOST:PORT")
        self.url = url.rstrip("/")
        self._parts, self._prefix = parts, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Connection": "close"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s, self._tries, self._pause_s = timeout_s, tries, pause_s
        self._revive, self._patience_s = revive, patience_s
        self._pace, self._api_key = pace or Pace(), api_key

    def get(self, path: str) -> Any:
        """See `call`."""
        return self.call("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any], *, tries: int | None = None) -> Any:
        """See `call`."""
        return self.call("POST", path, body, tries=tries)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None, *, tries: int | None = None) -> Any:
        """Ask until there is an answer. What is asked must be safe to ask twice.

        Returns:
            The answer's JSON; None where it has no body.
        Raises:
            RefusedError: the server said no in a way that stays.
            EngineError: no try succeeded.
        """
        payload = None if body is None else json.dumps(body).encode()
        most = tries or self._tries
        deadline = time.monotonic() + self._patience_s
        for number in itertools.count(1):
            self._pace.wait()
            try:
                return self._once(method, path, payload)
            except RefusedError as error:
                wait_s = error.retry_after_s or 0.0
                if error.status not in _PASSING or number >= most or wait_s > _LONGEST_WAIT_S:
                    raise
                self._pace.hold(wait_s)
            except _GarbledError:
                if number >= most:
                    raise
            except (OSError, http.client.HTTPException) as error:
                if number >= most and time.monotonic() >= deadline:
                    reason = str(error) or type(error).__name__
                    raise EngineError(
                        f"{self.url}{path}: no answer after {number} tries: {reason}. Is the server up?"
                    ) from error
                if self._revive is not None:
                    self._revive()
            time.sleep(min(30.0, self._pause_s * 2 ** min(number - 1, 16)) * _CHANCE.uniform(0.5, 1.0))
        raise AssertionError("unreachable: the last try returns or raises")

    def _once(self, method: str, path: str, payload: bytes | None) -> Any:
        # A connection a call: its cost is nothing beside a generation's, and none is ever found closed at the far end.
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        with closing(kind(self._parts.hostname, self._parts.port, timeout=self._timeout_s)) as connection:
            connection.request(method, self._prefix + path, payload, self._headers)
            response = connection.getresponse()
            content = response.read()
        if response.status >= 400:
            if self._api_key:  # some servers quote it, and what they say is written down
                content = content.replace(self._api_key.encode(), b"(the key)")
            wait_s = _seconds(response.getheader("Retry-After", ""))
            raise RefusedError(f"{self.url}{path}: {response.status}: {_reason(content)}", response.status, wait_s)
        try:
            return json.loads(content) if content.strip() else None
        except ValueError as error:
            if path == "/health":
                return None
            raise _GarbledError(f"{self.url}{path}: the answer is no JSON: {content[:80]!r}") from error


class _GarbledError(EngineError):
    """What came is no answer; a proxy's page, most likely."""


def _seconds(retry_after: str) -> float | None:
    """What a `Retry-After` header says: seconds, or a date."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None


def _reason(content: bytes) -> str:
    """What a server says of its refusal, in one line."""
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
