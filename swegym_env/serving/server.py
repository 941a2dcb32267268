"""A server: the containers of one machine. A request id is handled once; a container runs one request at a time.

Everything here runs on one event loop; the work of sandboxes runs on threads. A container whose lease is not renewed
for `lease_s` is closed. Replies are stored for as long as a client may repeat its request, as far as there is room.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from fastapi import FastAPI

from swegym_env.errors import ConfigurationError, SandboxError, SwegymError
from swegym_env.grading.grading import grade
from swegym_env.grading.remote import verdict_to_message
from swegym_env.prepare import LocalWorkspace
from swegym_env.sandbox import Sandbox
from swegym_env.sandbox import Snapshot as SandboxSnapshot
from swegym_env.sandbox.api import ProgramEnded
from swegym_env.sandbox.budget import Budget
from swegym_env.sandbox.client import end_all
from swegym_env.sandbox.images import image_store
from swegym_env.sandbox.remote.wire import GONE, error_body, status_of
from swegym_env.serving import requests
from swegym_env.serving.app import Bodies, Gate, Incoming, Reply, cancelled, logged, make_app
from swegym_env.serving.preparing import Rules
from swegym_env.serving.replies import Replies, StoredBytes

__all__ = ["Server", "server_app"]

T = TypeVar("T")

_STORED = 4  # replies of one container: its client sends one request at a time
_REPEATABLE = ("changes", "diff", "read")
_ENCODED_BYTES = 3 << 16  # a multiple of three, as base64 wants
_STORED_BY_ALL = 1024  # replies to creations and evaluations
_FULL, _DRAINING = 429, 503
_INTERRUPT_AGAIN_S = 1.0


@dataclass
class _Container:
    name: str
    sandbox: Sandbox
    workspace: LocalWorkspace | None  # None without a task
    used: float
    family: str  # the container that it was forked from, or itself
    replies: Replies
    origin: tuple[Replies, tuple[str, str]]  # the request that made it, among the stored replies
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    active: int = 0


@dataclass
class _Snapshot:
    snapshot: SandboxSnapshot
    used: float
    family: str


class Server:
    """At most `capacity` containers on this machine.

    Args:
        rules: how they are prepared.
        capacity: the largest number of containers.
        lease_s: a container is closed after this time without use or renewal.
        graders: the largest number of concurrent gradings.
        stored_bytes: what the stored replies may take together; None: a sixteenth of the machine's memory.

    Attributes:
        stored: what they take.
    """

    def __init__(
        self, rules: Rules, *, capacity: int, lease_s: float, graders: int, stored_bytes: int | None = None
    ) -> None:
        self.rules, self.capacity, self.lease_s = rules, capacity, lease_s
        self.identity = os.urandom(8).hex()  # a restarted server has another identity: its containers are gone
        self.draining = False
        self.reaped = 0
        self._containers: dict[str, _Container] = {}
        self._snapshots: dict[str, _Snapshot] = {}
        self._starting = self._ending = 0
        self._closing: set[asyncio.Task[None]] = set()
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.stored = StoredBytes(memory_bytes // 16 if stored_bytes is None else stored_bytes)
        self._replies = Replies(self.stored, _STORED_BY_ALL)
        self._threads = ThreadPoolExecutor(capacity + graders + 8, thread_name_prefix="swegym-serve")
        self._grading = asyncio.Semaphore(graders)

    @property
    def containers(self) -> int:
        """The number of containers, including those that are starting or ending."""
        return len(self._containers) + self._starting + self._ending

    async def handle(self, path: str, message: Any, incoming: Incoming) -> Reply:
        """The reply to a request of the API, by the method that the last part of its path names."""
        method = getattr(self, path.rpartition("/")[2])
        reply: Reply = await method(message, incoming)
        return reply

    async def health(self) -> dict[str, Any]:
        """Status and capacity."""
        return {
            "status": "draining" if self.draining else "ok",
            "kind": "server",
            "identity": self.identity,
            "capacity": self.capacity,
            "containers": self.containers,
        }

    async def images(self) -> list[str]:
        """The images that are ready."""
        stored = await asyncio.to_thread(image_store().inventory)
        return ["host", *sorted({name for image in stored for name in image.names})]

    async def _once(
        self, replies: Replies, action: str, incoming: Incoming, work: Callable[[], Awaitable[Any]]
    ) -> Reply:
        """The reply to a request, computed once: a repetition with the same id waits for the same reply."""
        key, digest = (action, incoming.request_id), incoming.digest()
        return await replies.once(key, digest, lambda: _reply(work), repeatable=action in _REPEATABLE)

    async def _on(self, name: str, action: str, incoming: Incoming, work: Callable[[_Container], Any]) -> Reply:
        """Do something with a container on a thread, after its running request."""
        container = self._containers.get(name)
        if container is None:
            return _unknown(name)

        async def locked() -> Any:
            async with container.lock:
                return await self._thread(lambda: work(container))

        container.active += 1
        try:
            return await self._once(container.replies, action, incoming, locked)
        finally:
            container.active -= 1
            container.used = time.monotonic()

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def create(self, message: requests.Create, incoming: Incoming) -> Reply:
        """Start a container. A repetition gets the same one while it exists, and its lease begins again."""
        origin = self._replies, ("create", incoming.request_id)
        if origin[1] not in self._replies:
            if self.draining:
                return _DRAINING, error_body("Draining", "this server is shutting down and accepts no containers")
            if self.containers >= self.capacity:
                return _FULL, error_body("Busy", f"all {self.capacity} containers of this server are in use")
            self._starting += 1  # before the work begins: the next request may come earlier

        async def work() -> Any:
            try:
                return self._admit(*await self._thread(lambda: self.rules.start(message)), origin)
            finally:
                self._starting -= 1

        return self._renewed(await self._once(self._replies, "create", incoming, work))

    def _admit(
        self,
        sandbox: Sandbox,
        workspace: LocalWorkspace | None,
        origin: tuple[Replies, tuple[str, str]],
        family: str = "",
    ) -> dict[str, Any]:
        name = os.urandom(16).hex()
        replies = Replies(self.stored, _STORED)
        self._containers[name] = _Container(name, sandbox, workspace, time.monotonic(), family or name, replies, origin)
        reply = {"container": name, "backend": sandbox.backend, "workdir": sandbox.spec.workdir}
        return {**reply, "lease_s": self.lease_s, "identity": self.identity}

    def _renewed(self, reply: Reply) -> Reply:
        """The same reply; the lease of the container that it names begins now."""
        status, body = reply
        container = self._containers.get(json.loads(body)["container"]) if status == 200 else None
        if container is not None:
            container.used = time.monotonic()
        return reply

    async def exec(self, message: requests.Exec, incoming: Incoming) -> Reply:
        """Run a command."""

        def work(container: _Container) -> dict[str, Any]:
            self.rules.ceilings.check("timeout_s", message.timeout_s, "timeout")
            self.rules.ceilings.check("output_limit_bytes", message.output_limit_bytes, "output")
            result = container.sandbox.run(
                message.command, timeout_s=message.timeout_s, output_limit_bytes=message.output_limit_bytes
            )
            reply = asdict(result)
            if message.diff:
                reply["patch"] = _patch(container, fresh=False)
            return reply

        return await self._on(message.container, "exec", incoming, work)

    async def endpoint(self, message: requests.Endpoint, incoming: Incoming) -> Reply:
        """Answer a program inside, and wait for its next request."""

        def work(container: _Container) -> dict[str, Any]:
            self.rules.ceilings.check("timeout_s", message.timeout_s, "timeout")
            endpoint = container.sandbox.endpoint()
            if message.answer is not None:
                body = _decoded(message.answer.body, "answer: body")
                endpoint.answer(message.answer.number, message.answer.status, body, message.answer.content_type)
            found = endpoint.next(message.timeout_s) if message.wait else None
            reply: dict[str, Any] = {"asked": None, "ended": None}
            if isinstance(found, ProgramEnded):
                reply["ended"] = found.exit_code
            elif found is not None:
                reply["asked"] = {**vars(found), "body": base64.b64encode(found.body).decode()}
            if message.diff:
                reply["patch"] = _patch(container, fresh=False)
            return reply

        return await self._on(message.container, "endpoint", incoming, work)

    async def diff(self, message: requests.Diff, incoming: Incoming) -> Reply:
        """The patch of a container's task."""
        return await self._on(
            message.container, "diff", incoming, lambda container: {"patch": _patch(container, fresh=message.fresh)}
        )

    async def read(self, message: requests.Read, incoming: Incoming) -> Reply:
        """Read a file."""

        def work(container: _Container) -> bytes:
            content = container.sandbox.read(message.path)
            # Piece by piece: every call holds the interpreter's lock, and with it the event loop.
            pieces = (content[at : at + _ENCODED_BYTES] for at in range(0, len(content), _ENCODED_BYTES))
            return b"".join([b'{"content": "', *map(base64.b64encode, pieces), b'"}'])

        return await self._on(message.container, "read", incoming, work)

    async def write(self, message: requests.Write, incoming: Incoming) -> Reply:
        """Write a file."""

        def work(container: _Container) -> dict[str, Any]:
            content = _decoded(message.content, "content")
            container.sandbox.write(message.path, content, mode=message.mode)
            return {}

        return await self._on(message.container, "write", incoming, work)

    async def changes(self, message: requests.Changes, incoming: Incoming) -> Reply:
        """The changed paths."""

        def work(container: _Container) -> dict[str, Any]:
            with Budget(container.sandbox.spec.limits) as budget:
                found = container.sandbox.changes(message.root, budget=budget)
                return {"changes": [(change.path, change.kind) for change in found]}

        return await self._on(message.container, "changes", incoming, work)

    async def snapshot(self, message: requests.Snapshot, incoming: Incoming) -> Reply:
        """Take a snapshot."""

        def work(container: _Container) -> dict[str, Any]:
            name = os.urandom(16).hex()
            self._snapshots[name] = _Snapshot(container.sandbox.snapshot(), time.monotonic(), container.family)
            return {"snapshot": name}

        return await self._on(message.container, "snapshot", incoming, work)

    async def restore(self, message: requests.Restore, incoming: Incoming) -> Reply:
        """Return to a snapshot."""

        def work(container: _Container) -> dict[str, Any]:
            kept = self._snapshots.get(message.snapshot)
            if kept is None:
                raise SandboxError(f"no snapshot {message.snapshot}: it was discarded, or it expired")
            kept.used = time.monotonic()
            container.sandbox.restore(kept.snapshot)
            container.family = kept.family
            return {}

        return await self._on(message.container, "restore", incoming, work)

    async def fork(self, message: requests.Fork, incoming: Incoming) -> Reply:
        """Fork a container."""
        container = self._containers.get(message.container)
        begins = container is not None and ("fork", incoming.request_id) not in container.replies
        if begins and self.containers >= self.capacity:
            return _FULL, error_body("Busy", f"all {self.capacity} containers of this server are in use")

        def work(container: _Container) -> dict[str, Any]:
            origin = container.replies, ("fork", incoming.request_id)
            return self._admit(container.sandbox.fork(), container.workspace, origin, container.family)

        return self._renewed(await self._on(message.container, "fork", incoming, work))

    async def interrupt(self, message: requests.Interrupt, incoming: Incoming) -> Reply:
        """End what runs in a container: beside its running request, which this ends."""
        del incoming
        container = self._containers.get(message.container)
        if container is None:
            return _unknown(message.container)

        async def work() -> dict[str, Any]:
            await self._thread(container.sandbox.interrupt)
            return {}

        return await _reply(work)

    async def destroy(self, message: requests.Destroy, incoming: Incoming) -> Reply:
        """End a container, with what its running request does. Ending one that is gone is not an error."""
        del incoming
        container = self._containers.pop(message.container, None)
        if container is not None:
            self._end(container)
        return 200, b'{"ended": true}' if container is not None else b'{"ended": false}'

    def _end(self, container: _Container) -> None:
        async def closed() -> None:
            async with container.lock:
                await self._thread(lambda: _close(container.sandbox))

        async def work() -> None:
            is_busy, close = container.lock.locked(), asyncio.create_task(closed())
            try:
                while not close.done():
                    if is_busy:  # with a command that may not have begun yet: it is interrupted again then
                        await self._thread(container.sandbox.interrupt)
                    await asyncio.wait([close], timeout=_INTERRUPT_AGAIN_S)
                close.result()
            finally:
                self._ending -= 1

        self._ending += 1
        container.replies.close()
        replies, key = container.origin
        replies.forget(key)
        closing = asyncio.create_task(work())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def discard(self, message: requests.Discard, incoming: Incoming) -> Reply:
        """Free a snapshot."""
        del incoming
        return await _reply(lambda: self._discard(message.snapshot))

    async def _discard(self, name: str) -> dict[str, Any]:
        """Free a snapshot, if there is one. If that fails, it stays, and is freed later."""
        kept = self._snapshots.get(name)
        if kept is not None:
            await self._thread(kept.snapshot.discard)
            self._snapshots.pop(name, None)
        return {}

    async def renew(self, message: requests.Renew, incoming: Incoming) -> Reply:
        """Renew leases; the reply lists the containers that are gone."""
        del incoming
        gone = []
        for name in message.containers:
            container = self._containers.get(name)
            if container is None:
                gone.append(name)
            else:
                container.used = time.monotonic()
        return 200, json.dumps({"gone": gone}).encode()

    async def evaluate(self, message: requests.Evaluate, incoming: Incoming) -> Reply:
        """Grade a patch in a fresh sandbox; the container, if named, is not changed."""
        container = None
        if message.container is not None:
            container = self._containers.get(message.container)
            if container is None:
                return _unknown(message.container)

        def work() -> dict[str, Any]:
            if container is not None and container.workspace is not None:
                task = container.workspace.task
                patch = _patch(container, fresh=True) if message.patch is None else message.patch
            elif message.task is not None and message.patch is not None:
                task, patch = self.rules.task(message.task), message.patch
            else:
                raise ConfigurationError("expected a task with a patch, or a container with a task")
            self.rules.ceilings.check("timeout_s", message.timeout_s, "timeout")
            verdict = grade(
                task,
                patch,
                repos=self.rules.repos,
                backend=self.rules.backend,
                timeout_s=message.timeout_s,
                policy=message.policy,
                max_forgery_chance=message.max_forgery_chance,
            )
            return verdict_to_message(verdict)

        async def locked() -> Any:
            async with self._grading:
                return await self._thread(work)

        return await self._once(self._replies, "evaluate", incoming, locked)

    async def pull(self, message: requests.Pull, incoming: Incoming) -> Reply:
        """Pull an image ahead of its use."""

        async def work() -> Any:
            await self._thread(lambda: self.rules.pull(message.image))
            return {"image": message.image}

        return await self._once(self._replies, "pull", incoming, work)

    async def reap(self) -> None:
        """Close containers and snapshots whose lease expired, periodically. What fails is tried again."""
        while True:
            await asyncio.sleep(min(5.0, self.lease_s / 4))
            before = time.monotonic() - self.lease_s
            for container in [each for each in self._containers.values() if each.used < before and not each.active]:
                with logged(f"closing the expired container {container.name}"):
                    del self._containers[container.name]
                    self.reaped += 1
                    self._end(container)
            # A tree search may return to an old snapshot while any of its containers lives.
            families = {container.family for container in self._containers.values()}
            for name, kept in list(self._snapshots.items()):
                if kept.family in families:
                    kept.used = time.monotonic()
                elif kept.used < before:
                    with logged(f"freeing the expired snapshot {name}"):
                        await self._discard(name)

    async def close(self) -> None:
        """End every container immediately."""
        self.draining = True
        await self._thread(end_all)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _unknown(name: str) -> Reply:
    return GONE, error_body("SandboxError", f"no container {name}: it was ended, or its lease expired")


async def _reply(work: Callable[[], Awaitable[Any]]) -> Reply:
    """The reply of some work, whose result is JSON or can be written as JSON; errors of the package are replies too."""
    try:
        result = await work()
        return 200, result if isinstance(result, bytes) else json.dumps(result).encode()
    except SwegymError as error:
        return status_of(error), error_body(type(error).__name__, str(error))
    except OSError as error:
        return status_of(error), error_body("OSError", str(error.filename or ""), error.errno or 5)


def _decoded(text: str, field: str) -> bytes:
    """The bytes of a field in base64. Raises ConfigurationError if it is none."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ConfigurationError(f"{field}: expected base64: {error}") from error


def _patch(container: _Container, *, fresh: bool) -> str:
    if container.workspace is None:
        raise ConfigurationError("the container has no task: there is no base commit to compare with")
    return container.workspace.patch(container.sandbox, fresh=fresh)


def _close(sandbox: Sandbox) -> None:
    try:
        sandbox.close()
    except SwegymError:
        pass  # its supervisor is dead, and the sandbox with it


def server_app(server: Server, token: str, *, bodies: Bodies) -> Gate:
    """The HTTP application of a server."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        reaping = asyncio.create_task(server.reap())
        try:
            yield
        finally:
            await cancelled(reaping)
            await server.close()

    gauges = {
        "containers": ("Number of containers.", lambda: float(server.containers)),
        "capacity": ("Largest number of containers.", lambda: float(server.capacity)),
        "reaped": ("Containers closed because their lease expired.", lambda: float(server.reaped)),
        "draining": ("Whether the server is shutting down.", lambda: float(server.draining)),
        "stored_bytes": ("Replies stored for repeated requests.", lambda: float(server.stored.held_bytes)),
    }
    return make_app(server, token, gauges=gauges, bodies=bodies, lifespan=lifespan)
