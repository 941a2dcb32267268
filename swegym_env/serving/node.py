"""The containers of one machine, and what is asked of them: each request id once, one thing at a time in each.

Everything here runs on one event loop; what a sandbox does runs on threads. A container whose owner is silent for
`lease_s` is closed. What it was asked for before is remembered with its answer for as long as it may be asked again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from swegym_env.errors import ConfigurationError, InfrastructureError, SandboxError, SwegymError
from swegym_env.judging.grading import grade
from swegym_env.judging.patch import capture_patch
from swegym_env.judging.remote import verdict_to_message
from swegym_env.sandbox import Sandbox, open_sandbox
from swegym_env.sandbox import Snapshot as SandboxSnapshot
from swegym_env.sandbox.client import end_all
from swegym_env.sandbox.remote.wire import GONE, error_body, status_of
from swegym_env.serving import messages as said
from swegym_env.serving.preparing import Preparation, Rules

__all__ = ["Answer", "Node"]

Answer = tuple[int, bytes]
T = TypeVar("T")

_REMEMBERED = 4  # answers of a container: whoever uses it asks for one thing at a time
_REMEMBERED_BY_ALL = 1024  # creations and evaluations
_NO_ROOM, _DRAINING = 429, 503

Memory = OrderedDict[tuple[str, str], "asyncio.Task[Answer]"]


@dataclass
class _Container:
    name: str
    sandbox: Sandbox
    prepared: Preparation
    used: float
    family: str  # what it was forked from, or itself
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    memory: Memory = field(default_factory=OrderedDict)
    at_work: int = 0


@dataclass
class _Snapshot:
    snapshot: SandboxSnapshot
    used: float
    family: str


class Node:
    """At most `capacity` containers on this machine.

    Args:
        rules: how they are prepared.
        capacity: how many there may be.
        lease_s: how long a container stays that nobody uses or renews.
        graders: how many verdicts are found at a time.
    """

    def __init__(self, rules: Rules, *, capacity: int, lease_s: float, graders: int) -> None:
        self.rules, self.capacity, self.lease_s = rules, capacity, lease_s
        self.identity = os.urandom(8).hex()  # another after every start: what was held before is gone then
        self.draining = False
        self.reaped = 0
        self._containers: dict[str, _Container] = {}
        self._snapshots: dict[str, _Snapshot] = {}
        self._starting = self._ending = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._memory: Memory = OrderedDict()
        self._threads = ThreadPoolExecutor(capacity + graders + 8, thread_name_prefix="swegym-serve")
        self._grading = asyncio.Semaphore(graders)

    @property
    def containers(self) -> int:
        """How many there are, those included that are being started or ended."""
        return len(self._containers) + self._starting + self._ending

    async def _once(
        self, memory: Memory, most: int, key: tuple[str, str], work: Callable[[], Awaitable[Any]]
    ) -> Answer:
        """The answer to a request, found once: who asks again by the same id waits for, and gets, the same."""
        task = memory.get(key)
        if task is None:
            task = memory[key] = asyncio.create_task(_answered(work))
            for old in [name for name, known in memory.items() if known.done()][: max(0, len(memory) - most)]:
                del memory[old]
        return await asyncio.shield(task)  # whoever asked may leave; the work goes on for when they come back

    async def _on(self, name: str, key: tuple[str, str], work: Callable[[_Container], Any]) -> Answer:
        """Do something with a container, on a thread, after what is being done with it."""
        container = self._containers.get(name)
        if container is None:
            return GONE, error_body("SandboxError", f"no container {name}: it was ended, or its lease is over")

        async def in_turn() -> Any:
            async with container.turn:
                return await self._thread(lambda: work(container))

        container.at_work += 1
        try:
            return await self._once(container.memory, _REMEMBERED, key, in_turn)
        finally:
            container.at_work -= 1
            container.used = time.monotonic()

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def create(self, message: said.Create, request_id: str) -> Answer:
        """A new container."""
        key = ("create", request_id)
        if key not in self._memory:
            if self.draining:
                return _DRAINING, error_body("Draining", "this server takes no more containers: it is being stopped")
            if self.containers >= self.capacity:
                return _NO_ROOM, error_body("Busy", f"all {self.capacity} containers of this server are in use")
            self._starting += 1  # now: the next request may come before the work begins

        async def work() -> Any:
            try:
                return self._admit(*await self._thread(lambda: self._start(message)))
            finally:
                self._starting -= 1

        return await self._once(self._memory, _REMEMBERED_BY_ALL, key, work)

    def _start(self, message: said.Create) -> tuple[Sandbox, Preparation]:
        prepared = self.rules.prepare(message)
        sandbox = open_sandbox(prepared.spec, backend=self.rules.backend)
        try:
            sandbox.start()
        except InfrastructureError:
            sandbox.close()
            raise
        return sandbox, prepared

    def _admit(self, sandbox: Sandbox, prepared: Preparation, family: str = "") -> dict[str, Any]:
        name = os.urandom(16).hex()
        self._containers[name] = _Container(name, sandbox, prepared, time.monotonic(), family or name)
        told = {"container": name, "backend": sandbox.backend, "workdir": sandbox.spec.workdir}
        return {**told, "lease_s": self.lease_s}

    async def exec(self, message: said.Exec, request_id: str) -> Answer:
        """Run a command."""

        def work(container: _Container) -> dict[str, Any]:
            result = container.sandbox.run(
                message.command, timeout_s=message.timeout_s, output_limit_bytes=message.output_limit_bytes
            )
            told = asdict(result)
            if message.diff:
                told["patch"] = _patch(container, fresh=False)
            return told

        return await self._on(message.container, ("exec", request_id), work)

    async def diff(self, message: said.Diff, request_id: str) -> Answer:
        """The patch."""
        return await self._on(
            message.container, ("diff", request_id), lambda container: {"patch": _patch(container, fresh=message.fresh)}
        )

    async def read(self, message: said.Read, request_id: str) -> Answer:
        """A file's content."""

        def work(container: _Container) -> dict[str, Any]:
            return {"content": base64.b64encode(container.sandbox.read(message.path)).decode()}

        return await self._on(message.container, ("read", request_id), work)

    async def write(self, message: said.Write, request_id: str) -> Answer:
        """A file's new content."""

        def work(container: _Container) -> dict[str, Any]:
            try:
                content = base64.b64decode(message.content, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ConfigurationError(f"content: no base64: {error}") from error
            container.sandbox.write(message.path, content, mode=message.mode)
            return {}

        return await self._on(message.container, ("write", request_id), work)

    async def changes(self, message: said.Changes, request_id: str) -> Answer:
        """What was changed."""

        def work(container: _Container) -> dict[str, Any]:
            return {"changes": [(change.path, change.kind) for change in container.sandbox.changes(message.root)]}

        return await self._on(message.container, ("changes", request_id), work)

    async def snapshot(self, message: said.Snapshot, request_id: str) -> Answer:
        """Freeze."""

        def work(container: _Container) -> dict[str, Any]:
            name = os.urandom(16).hex()
            self._snapshots[name] = _Snapshot(container.sandbox.snapshot(), time.monotonic(), container.family)
            return {"snapshot": name}

        return await self._on(message.container, ("snapshot", request_id), work)

    async def restore(self, message: said.Restore, request_id: str) -> Answer:
        """Return to a snapshot."""

        def work(container: _Container) -> dict[str, Any]:
            kept = self._snapshots.get(message.snapshot)
            if kept is None:
                raise SandboxError(f"no snapshot {message.snapshot}: it was discarded, or its time is over")
            kept.used = time.monotonic()
            container.sandbox.restore(kept.snapshot)
            return {}

        return await self._on(message.container, ("restore", request_id), work)

    async def fork(self, message: said.Fork, request_id: str) -> Answer:
        """Another container in the same state."""
        container = self._containers.get(message.container)
        if container is not None and ("fork", request_id) not in container.memory and self.containers >= self.capacity:
            return _NO_ROOM, error_body("Busy", f"all {self.capacity} containers of this server are in use")

        def work(container: _Container) -> dict[str, Any]:
            return self._admit(container.sandbox.fork(), container.prepared, container.family)

        return await self._on(message.container, ("fork", request_id), work)

    async def destroy(self, message: said.Destroy, request_id: str) -> Answer:
        """End a container, after the command that runs in it; one that is gone already is no mistake."""
        del request_id
        container = self._containers.pop(message.container, None)
        if container is not None:
            self._end(container)
        return 200, b'{"ended": true}' if container is not None else b'{"ended": false}'

    def _end(self, container: _Container) -> None:
        async def work() -> None:
            try:
                async with container.turn:
                    await self._thread(lambda: _close(container.sandbox))
            finally:
                self._ending -= 1

        self._ending += 1
        closing = asyncio.create_task(work())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def discard(self, message: said.Discard, request_id: str) -> Answer:
        """Free a snapshot."""
        del request_id
        kept = self._snapshots.pop(message.snapshot, None)
        if kept is not None:
            await self._thread(kept.snapshot.discard)
        return 200, b"{}"

    async def renew(self, message: said.Renew, request_id: str) -> Answer:
        """Remember that these are in use; which of them are gone."""
        del request_id
        gone = []
        for name in message.containers:
            container = self._containers.get(name)
            if container is None:
                gone.append(name)
            else:
                container.used = time.monotonic()
        return 200, json.dumps({"gone": gone}).encode()

    async def evaluate(self, message: said.Evaluate, request_id: str) -> Answer:
        """A verdict; the container, if one is named, does not notice."""
        container = None
        if message.container is not None:
            container = self._containers.get(message.container)
            if container is None:
                return GONE, error_body("SandboxError", f"no container {message.container}")

        def work() -> dict[str, Any]:
            if container is not None and container.prepared.task is not None:
                task = container.prepared.task
                patch = _patch(container, fresh=True) if message.patch is None else message.patch
            elif message.task is not None and message.patch is not None:
                task, patch = self.rules.task(message.task), message.patch
            else:
                raise ConfigurationError("expected a task with a patch, or a container that is for a task")
            verdict = grade(
                task,
                patch,
                repos=self.rules.repos,
                backend=self.rules.backend,
                timeout_s=message.timeout_s,
                policy=message.policy,
            )
            return verdict_to_message(verdict)

        async def in_turn() -> Any:
            async with self._grading:
                return await self._thread(work)

        return await self._once(self._memory, _REMEMBERED_BY_ALL, ("evaluate", request_id), in_turn)

    async def pull(self, message: said.Pull, request_id: str) -> Answer:
        """Have an image ready."""

        async def work() -> Any:
            await self._thread(lambda: self.rules.pull(message.image))
            return {"image": message.image}

        return await self._once(self._memory, _REMEMBERED_BY_ALL, ("pull", request_id), work)

    async def reap(self) -> None:
        """Close what nobody has used or renewed for `lease_s`, again and again."""
        while True:
            await asyncio.sleep(min(5.0, self.lease_s / 4))
            before = time.monotonic() - self.lease_s
            for container in [each for each in self._containers.values() if each.used < before and not each.at_work]:
                del self._containers[container.name]
                self.reaped += 1
                self._end(container)
            # A search may return to an old state for as long as it runs.
            families = {container.family for container in self._containers.values()}
            for name, kept in list(self._snapshots.items()):
                if kept.used < before and kept.family not in families:
                    await self._thread(self._snapshots.pop(name).snapshot.discard)

    async def close(self) -> None:
        """End every container, whatever runs in it: this process starts no more."""
        self.draining = True
        await self._thread(end_all)
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _answered(work: Callable[[], Awaitable[Any]]) -> Answer:
    """What came of the work as an answer; what fails on purpose is one too."""
    try:
        return 200, json.dumps(await work()).encode()
    except SwegymError as error:
        return status_of(error), error_body(type(error).__name__, str(error))
    except OSError as error:
        return status_of(error), error_body("OSError", str(error.filename or ""), error.errno or 5)


def _patch(container: _Container, *, fresh: bool) -> str:
    if container.prepared.base is None:
        raise ConfigurationError("the container is for no task: there is nothing to compare with")
    return capture_patch(container.sandbox, container.prepared.base, fresh=fresh)


def _close(sandbox: Sandbox) -> None:
    try:
        sandbox.close()
    except SwegymError:
        pass  # its supervisor is gone, and it with that
