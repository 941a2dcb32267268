"""Stored replies of a server: a request that is sent again is answered, and not carried out again.

What they take has a limit for the whole server, whatever the number of containers. Beyond it the oldest are dropped,
and their request ids stay known: to repeat such a request fails, where carrying it out twice could do harm.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swegym_env.sandbox.remote.wire import error_body
from swegym_env.serving.app import REUSED, Reply

__all__ = ["Replies", "StoredBytes"]

_LARGE_BYTES = 1 << 20  # a reply that may as well be computed again is not stored beyond this
_DROPPED: Reply = (
    424,
    error_body(
        "SandboxError",
        "the request was carried out, and its reply is not stored any more: those of newer requests took its place",
    ),
)

Key = tuple[str, str]
"""Action and request id."""


@dataclass(eq=False)
class _Stored:
    """A request: the digest of its body, and its reply or the work on it; None once that was dropped."""

    digest: bytes
    reply: asyncio.Task[Reply] | None
    size_bytes: int = 0


class StoredBytes:
    """What the stored replies of a server take together.

    Args:
        limit_bytes: of all together.

    Attributes:
        held_bytes: of all together now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._all: OrderedDict[_Stored, None] = OrderedDict()  # those that are complete, oldest first

    def add(self, stored: _Stored, size_bytes: int) -> None:
        """Count a reply that is complete, and drop the oldest ones if there are too many bytes."""
        stored.size_bytes = size_bytes
        self._all[stored] = None
        self.held_bytes += size_bytes
        while self.held_bytes > self.limit_bytes:
            oldest = next(iter(self._all))
            self.forget(oldest)
            oldest.reply = None

    def forget(self, stored: _Stored) -> None:
        """Count a reply no more; idempotent."""
        if stored in self._all:
            del self._all[stored]
            self.held_bytes -= stored.size_bytes


class Replies:
    """The replies to the requests of one container, or to those that concern none.

    Args:
        total: counts them, together with those of others.
        most: the largest number of them. In progress there may be more.
    """

    def __init__(self, total: StoredBytes, most: int) -> None:
        self._total, self._most = total, most
        self._stored: OrderedDict[Key, _Stored] = OrderedDict()
        self._closed = False

    def __contains__(self, key: Key) -> bool:
        return key in self._stored

    async def once(self, key: Key, digest: bytes, work: Callable[[], Awaitable[Reply]], *, repeatable: bool) -> Reply:
        """The reply to a request, computed once: a repetition with the same key waits for the same reply.

        Args:
            key: of the request.
            digest: of its body; a request with the same key and another body is refused.
            work: makes the reply.
            repeatable: the work may be done again, so that a large reply need not be stored.
        """
        stored = self._stored.get(key)
        if stored is None:
            task = asyncio.ensure_future(work())
            stored = self._stored[key] = _Stored(digest, task)
            task.add_done_callback(lambda done: self._complete(key, stored, done, repeatable=repeatable))
            self._trim()
        elif stored.digest != digest:
            return REUSED
        elif stored.reply is None:
            return _DROPPED
        else:
            task = stored.reply
        return await asyncio.shield(task)  # the client may disconnect; the work continues for its repetition

    def _complete(self, key: Key, stored: _Stored, done: asyncio.Future[Reply], *, repeatable: bool) -> None:
        if done.cancelled() or done.exception() is not None:  # the server is ending, or an error of its own
            self._stored.pop(key, None)
            return
        size_bytes = len(done.result()[1])
        fits = size_bytes <= self._total.limit_bytes
        if repeatable and (size_bytes > _LARGE_BYTES or not fits):
            self._stored.pop(key, None)
        elif not self._closed:
            self._total.add(stored, size_bytes)
            self._trim()

    def _trim(self) -> None:
        complete = [key for key, each in self._stored.items() if each.reply is None or each.reply.done()]
        for key in complete[: max(0, len(self._stored) - self._most)]:
            self._total.forget(self._stored.pop(key))

    def forget(self, key: Key) -> None:
        """Forget the reply to a request: what it made has ended, and a repetition is to make another."""
        stored = self._stored.pop(key, None)
        if stored is not None:
            self._total.forget(stored)

    def close(self) -> None:
        """Their container has ended: forget them."""
        self._closed = True
        for stored in self._stored.values():
            self._total.forget(stored)
        self._stored.clear()
