"""A pool: many servers under one address, with the API of one.

A container belongs to one server. The pool forwards requests to it with the same request id, so that nothing runs twice
however often client and pool repeat a request. Clients learn the address of the server and send commands and files
directly to it (`sandbox.remote.connection.Route`), unless the pool relays.

Only a server knows which containers it has. While it does not respond, a request to one of them fails as an
infrastructure failure, and that container is given up; the others are there again when the server responds, unless it
is another process or their leases have expired. A pool that has lost its file asks the servers for what it is asked.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from swegym_env.errors import ConfigurationError
from swegym_env.sandbox.remote.wire import GONE, error_body
from swegym_env.serving import requests
from swegym_env.serving.app import REUSED, Bodies, Gate, Incoming, Reply, cancelled, logged, make_app
from swegym_env.serving.leases import Lease, LeaseBook
from swegym_env.serving.member import Member, ServerLostError
from swegym_env.serving.placement import Ticket, best, next_ticket

__all__ = ["Pool", "node_addresses", "pool_app"]

_HELD_S = 20.0  # a request for capacity is held this long before the client must repeat it
_ABANDONED_S = 15.0  # a ticket stays in the queue this long without its client
_RENEWAL_S = 2.0  # a renewal waits this long for slow servers; they are renewed nevertheless
_ENDING = ("/container/destroy", "/snapshot/discard")
_INTERRUPT = "/container/interrupt"  # a server of an earlier version answers that there is no such path
_FAILED, _FULL, _STOPPING = 424, 429, 503
_STORED = 1024


class Pool:
    """Containers on many servers, and the queue for them.

    Args:
        nodes: addresses of the servers.
        token: required by the servers.
        book: of the leases.
        node_capacity: largest number of containers of a server; None: its own capacity.
        capacity: largest number of containers over all servers; None: the sum of the servers.
        queue: largest number of waiting requests.
        lease_s: a container is ended after this time without use or renewal.
        silence_s: see `Member`.
        relay: clients cannot reach the servers and do not get their addresses.
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
        silence_s: float,
        relay: bool = False,
    ) -> None:
        self._book, self._relay = book, relay
        self._capacity, self._most_waiting, self._lease_s = capacity, queue, lease_s
        self.draining = False
        self.pending = 0
        self.lost = 0
        # Servers that are not in `nodes` any more keep their containers and get no new ones.
        capacities = {lease.node: 0 for lease in book} | dict.fromkeys(nodes, node_capacity)
        self.members = {
            url: Member(url, token, capacity=most, silence_s=silence_s, on_identity=self._compare, on_room=self._grant)
            for url, most in capacities.items()
        }
        self._queue: list[Ticket] = []
        self._grants: dict[Ticket, asyncio.Future[Member]] = {}
        self._creations: OrderedDict[str, tuple[bytes, Ticket, asyncio.Task[Reply]]] = OrderedDict()
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._late: set[asyncio.Task[list[str] | None]] = set()
        self._holding: Counter[str] = Counter()
        self._numbers = 0
        for lease in book:
            self._count(lease, 1)

    @property
    def containers(self) -> int:
        """The number of containers, including those that are starting."""
        return sum(server.candidate.held for server in self.members.values())

    @property
    def _in_use(self) -> int:
        return sum(server.candidate.held for server in self.members.values() if not server.lost)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    def _count(self, lease: Lease, change: int) -> None:
        if lease.kind == "container":
            self._holding[lease.client] += change
            self.members[lease.node].candidate.held += change

    def _drop(self, lease: Lease) -> None:
        if self._book.requested(lease.request) is lease:
            self._book.drop(lease)
            self._count(lease, -1)
            if lease.request in self._creations and self._creations[lease.request][2].done():
                del self._creations[lease.request]  # a repetition makes another container
            self._grant()

    def _compare(self, server: Member) -> None:
        """The containers of the server's former process are lost."""
        for lease in self._book:
            if lease.node == server.url and lease.identity != server.identity:
                self._mark_lost(lease, f"the server {server.url} was restarted, and its containers are lost")

    def _mark_lost(self, lease: Lease, reason: str) -> None:
        is_known = lease.name and self._book.named(lease.name) is lease
        self._drop(lease)
        if is_known:
            self.lost += lease.kind == "container"
            self._lost[lease.name] = reason
            while len(self._lost) > _STORED:
                self._lost.popitem(last=False)

    async def handle(self, path: str, message: Any, incoming: Incoming) -> Reply:
        """The reply to a request of the API."""
        body, request_id = incoming.body, incoming.request_id
        self.pending += 1
        try:
            if path == "/container/create":
                return await self._create(message, incoming)
            if path == "/container/renew":
                return await self._renew(message, incoming)
            if path == "/images/pull":
                return await self._pull(body, request_id)
            name = getattr(message, "container", None) or getattr(message, "snapshot", None)
            if name is None:
                return await self._evaluate(message, body, request_id)
            return await self._forward(path, name, incoming)
        except ServerLostError as error:
            return _FAILED, error_body("SandboxError", str(error))
        finally:
            self.pending -= 1

    async def _forward(self, path: str, name: str, incoming: Incoming) -> Reply:
        """The reply of the server that has this container or snapshot."""
        makes, ends = path in ("/container/fork", "/container/snapshot"), path in _ENDING
        silent: list[str] = []
        if self._book.named(name) is None and name not in self._lost and path != "/snapshot/discard":
            _, silent = await self._find([name], incoming)
        lease = self._book.named(name)
        if lease is None:
            if ends:
                return 200, b'{"ended": false}'
            reason = self._lost.get(name)
            if reason is None and silent:
                reason = f"no container {name} on the servers that respond; these do not: {', '.join(silent)}"
            if reason is not None:
                return _FAILED, error_body("SandboxError", reason)
            return GONE, error_body("SandboxError", f"no container {name}: it was ended, or its lease expired")
        made = self._book.requested(incoming.request_id) if makes else None
        if made is not None and made.digest != incoming.digest():
            return REUSED
        lease.active += 1
        try:
            status, reply = await self.members[lease.node].send(path, incoming.body, incoming.request_id)
        except ServerLostError as error:
            self._mark_lost(lease, str(error))
            if ends:
                return 200, b'{"ended": false}'
            raise
        finally:
            lease.active -= 1
            lease.used = time.monotonic()
        if (status == GONE and path != _INTERRUPT) or (status == 200 and ends):
            self._drop(lease)
        elif status == 200 and makes:
            return status, self._add_lease(lease, incoming, reply)
        return status, reply

    async def _find(self, names: Sequence[str], incoming: Incoming) -> tuple[list[str], list[str]]:
        """Ask the servers for containers of which this pool has no lease, and lease those that they have.

        Returns:
            The names that none of the servers that responded has, and the addresses of those that did not respond.
        """
        servers = list(self.members.values())
        replies = await asyncio.gather(*(self._renew_at(server.url, names, incoming) for server in servers))
        for server, gone in zip(servers, replies, strict=True):
            for name in () if gone is None else set(names).difference(gone):
                if self._book.named(name) is None:
                    lease = Lease(f"found-{name}", "container", server.url, server.identity, incoming.client, name)
                    self._book.put(lease)
                    self._count(lease, 1)
        missing = [name for name in names if self._book.named(name) is None]
        return missing, [server.url for server, gone in zip(servers, replies, strict=True) if gone is None]

    def _add_lease(self, origin: Lease, incoming: Incoming, reply: bytes) -> bytes:
        """The lease of a forked container or a snapshot; returns the reply for the client."""
        created = json.loads(reply)
        kind = "container" if "container" in created else "snapshot"
        lease = self._book.requested(incoming.request_id)
        if lease is not None and lease.name != created[kind]:  # that one expired at the server, which made another
            self._drop(lease)
            lease = None
        if lease is None:
            shown = self._for_client(reply, origin.node) if kind == "container" else reply
            lease = Lease(
                incoming.request_id, kind, origin.node, origin.identity, origin.client, created[kind], shown,
                incoming.digest(),
            )  # fmt: skip
            self._book.put(lease)
            self._count(lease, 1)
        return lease.reply

    def _for_client(self, reply: bytes, node: str) -> bytes:
        """The reply for the client: with the pool's lease and the server's address."""
        created = json.loads(reply)
        created["lease_s"] = min(created["lease_s"], self._lease_s)
        return json.dumps(created if self._relay else created | {"node": node}).encode()

    async def _renew(self, message: requests.Renew, incoming: Incoming) -> Reply:
        at: dict[str, list[str]] = {}
        unknown = []
        for name in message.containers:
            lease = self._book.named(name)
            if lease is None:
                unknown.append(name)
            else:
                lease.used = time.monotonic()
                at.setdefault(lease.node, []).append(name)
        work: list[Coroutine[Any, Any, list[str] | None]] = [
            self._renew_at(url, names, incoming) for url, names in at.items()
        ]
        if unknown:
            work.append(self._expired([name for name in unknown if name not in self._lost], incoming))
        tasks = {asyncio.create_task(each) for each in work}
        # A server that does not respond must not delay the next renewal of the others' containers.
        done, late = await asyncio.wait(tasks, timeout=_RENEWAL_S) if tasks else (set(), set())
        self._late |= late
        for task in late:
            task.add_done_callback(self._late.discard)
        gone = {name for task in done for name in task.result() or ()} | self._lost.keys() & set(unknown)
        return 200, json.dumps({"gone": sorted(gone)}).encode()

    async def _expired(self, names: Sequence[str], incoming: Incoming) -> list[str]:
        """Those that no server has; none as long as one of the servers does not respond."""
        missing, silent = await self._find(names, incoming)
        return [] if silent else missing

    async def _renew_at(self, url: str, names: Sequence[str], incoming: Incoming) -> list[str] | None:
        """Renew at one server; returns the names that it does not have, None if it does not respond."""
        body = json.dumps({"containers": names}).encode()
        try:
            status, reply = await self.members[url].send("/container/renew", body, incoming.request_id)
        except ServerLostError:
            return None
        return list(json.loads(reply)["gone"]) if status == 200 else None

    async def _pull(self, body: bytes, request_id: str) -> Reply:
        """Pull an image on every server; returns the first failure, if any."""
        alive = [server for server in self.members.values() if not server.lost]
        replies = await asyncio.gather(*(server.send("/images/pull", body, request_id) for server in alive))
        failed = [each for each in replies if each[0] != 200]
        return (failed or list(replies) or [(_STOPPING, error_body("Busy", "no server responds"))])[0]

    async def _evaluate(self, message: requests.Evaluate, body: bytes, request_id: str) -> Reply:
        """Grade on any server; if it is lost, on another."""
        row = message.task or {}
        while True:
            alive = [server for server in self.members.values() if server.candidate.usable]
            if not alive:
                return _STOPPING, error_body("Busy", "no server responds")
            repository = str(row.get("repo", ""))
            server = min(alive, key=lambda each: (each.grading, repository not in each.candidate.prepared, each.url))
            server.grading += 1
            try:
                return await server.send("/container/evaluate", body, request_id)
            except ServerLostError:  # it is not usable now: try another
                continue
            finally:
                server.grading -= 1

    async def _create(self, message: requests.Create, incoming: Incoming) -> Reply:
        request_id, digest = incoming.request_id, incoming.digest()
        made = self._book.requested(request_id)
        if made is not None and made.reply and made.digest in (b"", digest):
            # The reply was lost. It may be late, and nobody has renewed the container since.
            made.used = time.monotonic()
            if made.name not in (await self._renew_at(made.node, [made.name], incoming) or ()):
                return 200, made.reply
            self._drop(made)
        known = self._creations.get(request_id)
        if known is None:
            lease = self._book.requested(request_id)
            if lease is not None and lease.digest not in (b"", digest):
                return REUSED
            if lease is None and self.draining:
                return _STOPPING, error_body("Draining", "this pool is shutting down and accepts no containers")
            if lease is None and len(self._queue) >= self._most_waiting:
                return _FULL, error_body("Busy", f"{len(self._queue)} requests are waiting already")
            row = message.task or {}
            self._numbers += 1
            image = str(row.get("image", message.image)) or "host"
            ticket = Ticket(incoming.client, image, str(row.get("repo", "")), self._numbers, time.monotonic())
            task = asyncio.create_task(self._obtain(ticket, incoming, lease))
            known = self._creations[request_id] = (digest, ticket, task)
            for old in [each for each, (_, _, work) in self._creations.items() if work.done()][:-_STORED]:
                del self._creations[old]
        if known[0] != digest:
            return REUSED
        _, ticket, task = known
        ticket.listeners += 1
        try:
            done, _ = await asyncio.wait({task}, timeout=_HELD_S)
        finally:
            ticket.listeners -= 1
            ticket.asked = time.monotonic()
        if not done:
            return _FULL, error_body("Busy", "no capacity is free; the request stays in the queue")
        if task.cancelled():
            return _FULL, error_body("Busy", "the request left the queue; repeat it")
        return task.result()

    async def _obtain(self, ticket: Ticket, incoming: Incoming, lease: Lease | None) -> Reply:
        """Start a container: wait for capacity, ask a server, and another one if that is lost or full."""
        request_id = incoming.request_id
        while True:
            if lease is None:
                server = await self._reserve(ticket)
                lease = Lease(request_id, "container", server.url, server.identity, ticket.client)
                lease.digest = incoming.digest()
                try:
                    self._book.put(lease)
                except BaseException:
                    self._count(lease, -1)  # what was reserved
                    raise
            else:
                server = self.members[lease.node]
            try:
                status, reply = await server.send("/container/create", incoming.body, request_id)
            except ServerLostError:
                status, reply = _FULL, b""
            if status == 200 and self._book.requested(request_id) is lease:
                created = json.loads(reply)
                lease.name, lease.used = created["container"], time.monotonic()
                # The server may have restarted since its last health check.
                lease.identity = created.get("identity", lease.identity)
                lease.reply = self._for_client(reply, server.url)
                self._book.put(lease)
                server.candidate.prepared.add(ticket.repository)
                return status, lease.reply
            self._drop(lease)
            lease = None
            if status not in (200, _FULL, _STOPPING):
                return status, reply
            server.candidate.usable = False  # until its next health check

    async def _reserve(self, ticket: Ticket) -> Member:
        """Wait for capacity on a server and reserve it."""
        self._queue.append(ticket)
        granted: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._grants[ticket] = granted
        try:
            self._grant()
            return await granted
        finally:
            self._grants.pop(ticket, None)
            if ticket in self._queue:
                self._queue.remove(ticket)

    def _grant(self) -> None:
        """Grant free capacity to waiting clients, those with the fewest containers first."""
        while self._capacity is None or self._in_use < self._capacity:
            waiting = [each for each in self._queue if not self._grants[each].done()]  # cancelled a moment ago
            ticket = next_ticket(waiting, self._holding)
            if ticket is None:
                return
            place = best((each.candidate for each in self.members.values()), ticket.image, ticket.repository)
            if place is None:
                return
            self._queue.remove(ticket)
            place.held += 1
            self._holding[ticket.client] += 1
            self._grants[ticket].set_result(self.members[place.url])

    async def sweep(self) -> None:
        """Remove abandoned tickets and expired leases, periodically. What fails is tried again."""
        while True:
            await asyncio.sleep(min(2.0, self._lease_s / 4))
            with logged("removing expired leases"):
                await self._sweep_once()

    async def _sweep_once(self) -> None:
        now = time.monotonic()
        for _, ticket, task in list(self._creations.values()):
            if not ticket.listeners and ticket in self._queue and ticket.asked < now - _ABANDONED_S:
                task.cancel()
        for server in self.members.values():
            if server.lost and server.silent_s > self._lease_s:  # it has ended them itself if it lives
                reason = f"the server {server.url} does not respond: its containers are lost"
                for lease in self._book:
                    if lease.node == server.url and lease.name:
                        with logged(f"giving up the container {lease.name}"):
                            self._mark_lost(lease, reason)
        active = {lease.client for lease in self._book if lease.kind == "container"}
        for lease in self._book:
            in_use = lease.active or (lease.kind == "snapshot" and lease.client in active)
            if lease.name and not in_use and lease.used < now - self._lease_s:
                with logged(f"ending the expired {lease.kind} {lease.name}"):
                    await self._end(lease)

    async def _end(self, lease: Lease) -> None:
        path = "/container/destroy" if lease.kind == "container" else "/snapshot/discard"
        try:
            await self.members[lease.node].send(
                path, json.dumps({lease.kind: lease.name}).encode(), f"end-{lease.name}"
            )
        except ServerLostError:  # its containers are lost, or end with their own leases
            pass
        self._drop(lease)

    async def health(self) -> dict[str, Any]:
        """Status of the pool and its servers."""
        return {
            "status": "draining" if self.draining else "ok",
            "kind": "pool",
            "capacity": sum(server.candidate.capacity for server in self.members.values() if not server.lost),
            "containers": self.containers,
            "waiting": self.waiting,
            "nodes": {
                url: {
                    "status": server.status,
                    "capacity": server.candidate.capacity,
                    "containers": server.candidate.held,
                }
                for url, server in self.members.items()
            },
        }

    async def images(self) -> list[str]:
        """The images that are ready on any server."""
        return sorted(set().union(*(server.candidate.images for server in self.members.values())))

    def close(self) -> None:
        """Close the connections; containers and leases remain."""
        for server in self.members.values():
            server.close()
        self._book.close()


def node_addresses(text: str) -> list[str]:
    """The addresses in `--nodes`. Raises ConfigurationError if one is invalid or given twice."""
    urls = [url.strip().rstrip("/") for url in text.split(",") if url.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")) or urls.count(url) > 1:
            raise ConfigurationError(f"--nodes: expected different addresses http://HOST:PORT, got {url!r}")
    if not urls:
        raise ConfigurationError("--nodes: expected at least one address")
    return urls


def pool_app(pool: Pool, token: str, *, bodies: Bodies) -> Gate:
    """The HTTP application of a pool."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        watches = [member.watch() for member in pool.members.values()]
        tasks = [asyncio.create_task(each) for each in (pool.sweep(), *watches)]
        try:
            yield
        finally:
            for task in tasks:
                await cancelled(task)
            pool.close()

    gauges = {
        "containers": ("Number of containers, including those that are starting.", lambda: float(pool.containers)),
        "waiting": ("Number of waiting requests.", lambda: float(pool.waiting)),
        "lost": ("Containers lost with their server.", lambda: float(pool.lost)),
        "nodes": ("Servers that respond.", lambda: float(sum(not member.lost for member in pool.members.values()))),
        "draining": ("Whether the pool is shutting down.", lambda: float(pool.draining)),
    }
    return make_app(pool, token, gauges=gauges, bodies=bodies, lifespan=lifespan)
