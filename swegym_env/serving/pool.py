"""Many servers under one address, with the API of one.

A container belongs to the server that made it; the pool knows which, and passes on what is said to it, under the same
request id, so that nothing runs twice however often client and pool ask again. Clients are told which server it is and
speak of commands and files straight with that (`sandbox.remote.route`), except from a pool that is to `relay`.
A server that is lost takes its containers with it: whoever uses one is told that the machine failed, and others go on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.sandbox.remote.wire import GONE, error_body
from swegym_env.serving import messages as said
from swegym_env.serving.gate import Asked
from swegym_env.serving.leases import Lease, LeaseBook
from swegym_env.serving.node import Answer
from swegym_env.serving.nodes import Server, ServerLostError
from swegym_env.serving.placement import Ticket, best, next_ticket

__all__ = ["Pool", "node_addresses"]

_HELD_S = 20.0  # how long a request for room is held before its client is asked to come again
_ABANDONED_S = 15.0  # how long a place in the queue waits for its client to come again
_FAILED, _NO_ROOM, _STOPPING = 424, 429, 503
_KEPT = 1024


class Pool:
    """What it holds, and who waits for it.

    Args:
        nodes: addresses of the servers.
        token: that the servers know the pool by.
        book: of the leases.
        node_capacity: containers of a server at most; None: its own capacity.
        capacity: containers over all at most; None: those of the servers.
        queue: requests that may wait.
        lease_s: how long a container stays that nobody uses or renews.
        relay: clients cannot reach the servers, and are not told where they are.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        token: str,
        book: LeaseBook,
        *,
        node_capacity: int | None,
        capacity: int | None,
        queue: int,
        lease_s: float,
        relay: bool = False,
    ) -> None:
        self._book, self._relay = book, relay
        self._capacity, self._most_waiting, self._lease_s = capacity, queue, lease_s
        self.draining = False
        self.under_way = 0
        self.lost = 0
        self.servers = {
            url: Server(url, token, capacity=node_capacity, on_loss=self._lose, on_room=self._grant) for url in nodes
        }
        self._queue: list[Ticket] = []
        self._grants: dict[Ticket, asyncio.Future[Server]] = {}
        self._creations: OrderedDict[str, tuple[Ticket, asyncio.Task[Answer]]] = OrderedDict()
        self._graves: OrderedDict[str, str] = OrderedDict()
        self._holding: Counter[str] = Counter()
        self._numbers = 0
        for lease in book:
            if lease.node in self.servers:
                self._count(lease, 1)
            else:
                book.drop(lease)

    @property
    def containers(self) -> int:
        """How many are held or promised."""
        return sum(server.candidate.held for server in self.servers.values())

    @property
    def waiting(self) -> int:
        """How many requests wait for room."""
        return len(self._queue)

    def _count(self, lease: Lease, change: int) -> None:
        if lease.kind == "container":
            self._holding[lease.client] += change
            self.servers[lease.node].candidate.held += change

    def _drop(self, lease: Lease) -> None:
        if self._book.requested(lease.request) is lease:
            self._book.drop(lease)
            self._count(lease, -1)
            self._grant()

    def _lose(self, server: Server, reason: str) -> None:
        for lease in self._book:
            if lease.node == server.url and lease.identity == server.identity:
                self.lost += lease.kind == "container"
                self._bury(lease, f"the server {server.url} {reason}, and with it what it held is gone")

    def _bury(self, lease: Lease, reason: str) -> None:
        self._drop(lease)
        self._graves[lease.name] = reason
        while len(self._graves) > _KEPT:
            self._graves.popitem(last=False)

    async def answer(self, path: str, message: Any, asked: Asked) -> Answer:
        """The answer to a message."""
        body, request_id = asked.body, asked.request_id
        self.under_way += 1
        try:
            if path == "/container/create":
                return await self._create(message, body, request_id, asked.client)
            if path == "/container/renew":
                return await self._renew(message, request_id)
            if path == "/images/pull":
                return await self._pull(body, request_id)
            name = getattr(message, "container", None) or getattr(message, "snapshot", None)
            if name is None:
                return await self._evaluate(message, body, request_id)
            return await self._pass_on(path, name, body, request_id)
        except ServerLostError as error:
            return _FAILED, error_body("SandboxError", str(error))
        finally:
            self.under_way -= 1

    async def _pass_on(self, path: str, name: str, body: bytes, request_id: str) -> Answer:
        """What the server says that holds this container or snapshot."""
        lease = self._book.named(name)
        if lease is None:
            if path in ("/container/destroy", "/snapshot/discard"):
                return 200, b'{"ended": false}'
            reason = self._graves.get(name)
            if reason is not None:
                return _FAILED, error_body("SandboxError", reason)
            return GONE, error_body("SandboxError", f"no container {name}: it was ended, or its lease is over")
        server = self.servers[lease.node]
        lease.at_work += 1
        try:
            status, answer = await server.send(path, body, request_id)
        finally:
            lease.at_work -= 1
            lease.used = time.monotonic()
        if status == GONE or (status == 200 and path in ("/container/destroy", "/snapshot/discard")):
            self._drop(lease)
        elif status == 200 and path in ("/container/fork", "/container/snapshot"):
            return status, self._enter(lease, request_id, answer)
        return status, answer

    def _enter(self, origin: Lease, request_id: str, answer: bytes) -> bytes:
        """A lease of what a container gave birth to; the answer as the client gets it."""
        lease = self._book.requested(request_id)
        if lease is None:
            told = json.loads(answer)
            kind = "container" if "container" in told else "snapshot"
            given = self._given(answer, origin.node) if kind == "container" else answer
            lease = Lease(request_id, kind, origin.node, origin.identity, origin.client, told[kind], given)
            self._book.put(lease)
            self._count(lease, 1)
        return lease.answer

    def _given(self, answer: bytes, node: str) -> bytes:
        """What a client is told of its container: the pool's lease, and where it lies."""
        told = json.loads(answer)
        told["lease_s"] = min(told["lease_s"], self._lease_s)
        return json.dumps(told if self._relay else told | {"node": node}).encode()

    async def _renew(self, message: said.Renew, request_id: str) -> Answer:
        at: dict[str, list[str]] = {}
        gone = []
        for name in message.containers:
            lease = self._book.named(name)
            if lease is None:
                gone.append(name)
            else:
                lease.used = time.monotonic()
                at.setdefault(lease.node, []).append(name)
        told = await asyncio.gather(
            *(
                self.servers[url].send("/container/renew", json.dumps({"containers": names}).encode(), request_id)
                for url, names in at.items()
            ),
            return_exceptions=True,
        )
        for each in told:
            if isinstance(each, tuple) and each[0] == 200:
                gone += json.loads(each[1])["gone"]
        return 200, json.dumps({"gone": gone}).encode()

    async def _pull(self, body: bytes, request_id: str) -> Answer:
        """Have an image ready on every server; the first refusal is the answer."""
        alive = [server for server in self.servers.values() if not server.lost]
        told = await asyncio.gather(*(server.send("/images/pull", body, request_id) for server in alive))
        failed = [each for each in told if each[0] != 200]
        return (failed or list(told) or [(_STOPPING, error_body("Busy", "no server answers"))])[0]

    async def _evaluate(self, message: said.Evaluate, body: bytes, request_id: str) -> Answer:
        """A verdict, of any server: where one is lost meanwhile, of another."""
        row = message.task or {}
        while True:
            alive = [server for server in self.servers.values() if server.candidate.usable]
            if not alive:
                return _STOPPING, error_body("Busy", "no server answers")
            repository = str(row.get("repo", ""))
            server = min(alive, key=lambda each: (each.grading, repository not in each.candidate.prepared, each.url))
            server.grading += 1
            try:
                return await server.send("/container/evaluate", body, request_id)
            except ServerLostError:  # it is out of use now: another one grades
                continue
            finally:
                server.grading -= 1

    async def _create(self, message: said.Create, body: bytes, request_id: str, client: str) -> Answer:
        known = self._creations.get(request_id)
        if known is None:
            lease = self._book.requested(request_id)
            if lease is not None and lease.answer:
                return 200, lease.answer
            if lease is None and self.draining:
                return _STOPPING, error_body("Draining", "this pool takes no more: it is being stopped")
            if lease is None and len(self._queue) >= self._most_waiting:
                return _NO_ROOM, error_body("Busy", f"{len(self._queue)} requests wait for room already")
            row = message.task or {}
            self._numbers += 1
            image = str(row.get("image", message.image)) or "host"
            ticket = Ticket(client, image, str(row.get("repo", "")), self._numbers, time.monotonic())
            task = asyncio.create_task(self._obtain(ticket, body, request_id, lease))
            known = self._creations[request_id] = (ticket, task)
            for old in [each for each, (_, work) in self._creations.items() if work.done()][:-_KEPT]:
                del self._creations[old]
        ticket, task = known
        ticket.listeners += 1
        try:
            done, _ = await asyncio.wait({task}, timeout=_HELD_S)
        finally:
            ticket.listeners -= 1
            ticket.asked = time.monotonic()
        if not done:
            return _NO_ROOM, error_body("Busy", "every place is taken; the place in the queue is kept")
        if task.cancelled():
            return _NO_ROOM, error_body("Busy", "nobody asked for the place in the queue; ask again")
        return task.result()

    async def _obtain(self, ticket: Ticket, body: bytes, request_id: str, lease: Lease | None) -> Answer:
        """A container: wait for room, ask a server, and the next where that is lost or full after all."""
        while True:
            if lease is None:
                server = await self._room(ticket)
                lease = Lease(request_id, "container", server.url, server.identity, ticket.client)
                self._book.put(lease)
            else:
                server = self.servers[lease.node]
            try:
                status, answer = await server.send("/container/create", body, request_id)
            except ServerLostError:
                status, answer = _NO_ROOM, b""
            if status == 200 and self._book.requested(request_id) is lease:
                lease.name, lease.used = json.loads(answer)["container"], time.monotonic()
                lease.answer = self._given(answer, server.url)
                self._book.put(lease)
                server.candidate.prepared.add(ticket.repository)
                return status, lease.answer
            self._drop(lease)
            lease = None
            if status not in (200, _NO_ROOM, _STOPPING):
                return status, answer
            server.candidate.usable = False  # until its health is known again

    async def _room(self, ticket: Ticket) -> Server:
        """Wait for a place; it is counted as taken from here on."""
        self._queue.append(ticket)
        granted: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._grants[ticket] = granted
        try:
            self._grant()
            return await granted
        finally:
            self._grants.pop(ticket, None)
            if ticket in self._queue:
                self._queue.remove(ticket)

    def _grant(self) -> None:
        """Give away what room there is, to whoever holds least."""
        while self._capacity is None or self.containers < self._capacity:
            ticket = next_ticket(self._queue, self._holding)
            if ticket is None:
                return
            place = best((each.candidate for each in self.servers.values()), ticket.image, ticket.repository)
            if place is None:
                return
            self._queue.remove(ticket)
            place.held += 1
            self._holding[ticket.client] += 1
            self._grants[ticket].set_result(self.servers[place.url])

    async def sweep(self) -> None:
        """Let go of places in the queue that nobody asks for, and of what nobody uses, again and again."""
        while True:
            await asyncio.sleep(min(2.0, self._lease_s / 4))
            now = time.monotonic()
            for ticket, task in list(self._creations.values()):
                if not ticket.listeners and ticket in self._queue and ticket.asked < now - _ABANDONED_S:
                    task.cancel()
            active = {lease.client for lease in self._book if lease.kind == "container"}
            for lease in self._book:
                in_use = lease.at_work or (lease.kind == "snapshot" and lease.client in active)
                if lease.name and not in_use and lease.used < now - self._lease_s:
                    await self._end(lease)

    async def _end(self, lease: Lease) -> None:
        path = "/container/destroy" if lease.kind == "container" else "/snapshot/discard"
        try:
            await self.servers[lease.node].send(
                path, json.dumps({lease.kind: lease.name}).encode(), f"end-{lease.name}"
            )
        except ServerLostError:  # what it held is gone with it, or ends with its own lease
            pass
        self._drop(lease)

    async def health(self) -> dict[str, Any]:
        """How it and its servers are."""
        return {
            "status": "draining" if self.draining else "ok",
            "kind": "pool",
            "capacity": sum(server.candidate.capacity for server in self.servers.values() if not server.lost),
            "containers": self.containers,
            "waiting": self.waiting,
            "nodes": {
                url: {
                    "status": "lost" if server.lost else "ok" if server.candidate.usable else "unusable",
                    "capacity": server.candidate.capacity,
                    "containers": server.candidate.held,
                }
                for url, server in self.servers.items()
            },
        }

    async def images(self) -> list[str]:
        """What any server has ready."""
        return sorted(set().union(*(server.candidate.images for server in self.servers.values())))

    def close(self) -> None:
        """Close the connections; containers and leases stay."""
        for server in self.servers.values():
            server.close()
        self._book.close()


def node_addresses(text: str) -> list[str]:
    """The servers of `--nodes`. Raises ConfigurationError where one is no address, or comes twice."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")) or urls.count(url) > 1:
            raise ConfigurationError(f"--nodes: expected different addresses http://HOST:PORT, got {url!r}")
    if not urls:
        raise ConfigurationError("--nodes: expected at least one address")
    return urls
