"""`RemoteBackend` and `RemoteSandbox`: sandboxes that a server runs on its machine."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.sandbox.api import (
    Change,
    CommandResult,
    ProgramEnded,
    ProgramRequest,
    SandboxSpec,
    Snapshot,
    refused_command,
)
from swegym_env.sandbox.budget import Budget
from swegym_env.sandbox.remote import leases
from swegym_env.sandbox.remote.connection import Route, ServerClient, connect
from swegym_env.sandbox.unclosed import close_unclosed, note_unclosed

__all__ = ["RemoteBackend", "RemoteEndpoint", "RemoteSandbox", "RemoteSnapshot"]

_CREATE_TIMEOUT_S = 3600.0  # the first sandbox of a task on a machine waits for its image and its set-up
_FILES_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 10.0
_RESULT_FIELDS = frozenset(field.name for field in dataclasses.fields(CommandResult))


class RemoteBackend:
    """The back end of the server or pool at an address; see `backends.Backend`.

    Raises:
        ConfigurationError: the address is malformed, or the token is missing.
    """

    remedy = "start it with swegym serve"

    def __init__(self, name: str) -> None:
        self.name = name
        self.server = connect(name)

    def problem(self, *, fresh: bool = False) -> str:
        """See `backends.Backend.problem`; without `fresh` the first request shows it, and waits for a restart."""
        if fresh:
            try:
                self.server.call("/healthz", None)
            except (ConfigurationError, SandboxError) as error:
                return str(error)
        return ""

    def open(self, spec: SandboxSpec) -> RemoteSandbox:
        """See `backends.Backend.open`."""
        return RemoteSandbox(spec, self.server)


@dataclass(frozen=True)
class RemoteSnapshot:
    """A state that the server keeps."""

    client: ServerClient
    name: str
    spec: SandboxSpec

    def discard(self) -> None:
        """Free what it holds; idempotent."""
        try:
            self.client.call("/snapshot/discard", {"snapshot": self.name}, timeout_s=_CLOSE_TIMEOUT_S)
        except SandboxError:
            pass  # the server removes it with its container


class RemoteEndpoint:
    """The endpoint of a sandbox on a server; see `api.Endpoint`. An answer is sent together with the next wait.

    Args:
        sandbox: that has the endpoint.
    """

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox
        self._answer: Mapping[str, Any] | None = None

    def next(self, timeout_s: float) -> ProgramRequest | ProgramEnded | None:
        """See `api.Endpoint`."""
        answer, self._answer = self._answer, None
        wait_s = max(0.0, timeout_s)
        found = self._sandbox.ask_endpoint({"answer": answer, "timeout_s": wait_s}, timeout_s=wait_s)
        if found["ended"] is not None:
            return ProgramEnded(found["ended"])
        asked = found["asked"]
        return None if asked is None else ProgramRequest(**{**asked, "body": base64.b64decode(asked["body"])})

    def answer(self, number: int, status: int, body: bytes, content_type: str = "application/json") -> None:
        """See `api.Endpoint`."""
        before = self._answer
        encoded = base64.b64encode(body).decode()
        self._answer = {"number": number, "status": status, "body": encoded, "content_type": content_type}
        if before is not None:
            self._sandbox.ask_endpoint({"answer": before, "wait": False}, timeout_s=0)


class RemoteSandbox:
    """A sandbox on a server; see `api.Sandbox`.

    `backend` is the name of the server's own back end, once started. The content of changes is not on this machine:
    their `host_path` is None.

    Args:
        spec: image, directory, variables and limits.
        client: of the server.
        create: more fields of the request that creates the container: what the server is to prepare in it.
        with_command: more fields of the request that runs a command: what the server is to add to its response.

    Attributes:
        reply: the fields of the last command's response besides its result; empty once anything else changed the files.

    Raises:
        ConfigurationError: the specification names directories of this machine, which the server does not have.
    """

    _note_unclosed = staticmethod(note_unclosed)

    def __init__(
        self,
        spec: SandboxSpec,
        client: ServerClient,
        *,
        create: Mapping[str, Any] | None = None,
        with_command: Mapping[str, Any] | None = None,
    ) -> None:
        if spec.layers or spec.binds or spec.network:
            raise ConfigurationError(
                f"sandbox {client.url}: layers, binds and network of this machine are not available there; "
                "the server prepares tasks itself"
            )
        self.spec = spec
        self.backend = client.url
        self.reply: Mapping[str, Any] = {}
        self._client = client
        self._create = create or {}
        self._with_command = with_command or {}
        self._route = Route(client)
        self._endpoint = RemoteEndpoint(self)
        self._container = ""
        self._closed = False
        self._owner = os.getpid()

    def start(self) -> None:
        """Create it, and wait while all places are taken (at most `$SWEGYM_WAIT_S` seconds)."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if self._container:
            return
        close_unclosed()
        payload = {
            **self._create,
            "image": self.spec.image,
            "workdir": self.spec.workdir,
            "env": dict(self.spec.env),
            "path": list(self.spec.path),
            **({} if self.spec.port is None else {"port": self.spec.port}),  # an older server knows no ports
            "limits": dataclasses.asdict(self.spec.limits),
        }
        self._begin(self._client.call("/container/create", payload, timeout_s=_CREATE_TIMEOUT_S))

    def _begin(self, created: Mapping[str, Any]) -> None:
        self._container, self.backend = created["container"], created["backend"]
        self._route = Route(self._client, created.get("node", ""))
        leases.hold(self._client, self._container, created["lease_s"], self._route.server)

    def call(self, path: str, payload: Mapping[str, Any] | None = None, *, timeout_s: float = _FILES_TIMEOUT_S) -> Any:
        """The response to a request about this container; see `ServerClient.call`."""
        if self._closed or not self._container:
            raise SandboxError("the sandbox is closed" if self._closed else "the sandbox was not started")
        return self._route.call(path, {"container": self._container, **(payload or {})}, timeout_s=timeout_s)

    def run(
        self, command: str, *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult:
        """See `api.Sandbox.run`: one request."""
        if (refused := refused_command(command)) is not None:
            return refused
        limit = self.spec.limits.turn_timeout_s if timeout_s is None else timeout_s
        payload = {
            **self._with_command,
            "command": command,
            "timeout_s": limit,
            "output_limit_bytes": output_limit_bytes,
        }
        self.reply = {}
        response = self.call("/container/exec", payload, timeout_s=limit)
        self.reply = {name: value for name, value in response.items() if name not in _RESULT_FIELDS}
        return CommandResult(**{name: value for name, value in response.items() if name in _RESULT_FIELDS})

    def read(self, path: str) -> bytes:
        """See `api.Sandbox.read`."""
        return base64.b64decode(self.call("/container/read", {"path": path})["content"])

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """See `api.Sandbox.write`."""
        self.reply = {}
        encoded = base64.b64encode(content).decode()
        self.call("/container/write", {"path": path, "content": encoded, "mode": mode})

    def changes(self, root: str, *, budget: Budget | None = None) -> Sequence[Change]:
        """See `api.Sandbox.changes`: the budget is the server's."""
        del budget
        response = self.call("/container/changes", {"root": root})
        return [Change(path, kind) for path, kind in response["changes"]]

    def endpoint(self) -> RemoteEndpoint:
        """See `api.Sandbox.endpoint`."""
        if self.spec.port is None:
            raise ConfigurationError("the sandbox has no endpoint: SandboxSpec.port is None")
        return self._endpoint

    def ask_endpoint(self, payload: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
        """A request to the endpoint's route; the response gets the same additional fields as that of a command."""
        self.reply = {}
        response: Mapping[str, Any] = self.call(
            "/container/endpoint", {**self._with_command, **payload}, timeout_s=timeout_s + _FILES_TIMEOUT_S
        )
        self.reply = {name: value for name, value in response.items() if name not in ("asked", "ended")}
        return response

    def snapshot(self) -> RemoteSnapshot:
        """See `api.Sandbox.snapshot`."""
        return RemoteSnapshot(self._client, self.call("/container/snapshot")["snapshot"], self.spec)

    def restore(self, snapshot: Snapshot) -> None:
        """See `api.Sandbox.restore`."""
        if not isinstance(snapshot, RemoteSnapshot) or snapshot.spec != self.spec:
            raise SandboxError("a snapshot of another sandbox cannot be restored here")
        self.reply = {}
        self.call("/container/restore", {"snapshot": snapshot.name})

    def fork(self) -> RemoteSandbox:
        """See `api.Sandbox.fork`."""
        other = RemoteSandbox(self.spec, self._client, create=self._create, with_command=self._with_command)
        other._begin(self.call("/container/fork"))
        return other

    def interrupt(self) -> None:
        """See `api.Sandbox.interrupt`. If the server cannot be reached, commands end at their limits."""
        if self._container and not self._closed:
            with contextlib.suppress(SandboxError):
                self.call("/container/interrupt", timeout_s=_CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Destroy it; idempotent. If the server cannot be reached, its lease expires."""
        if self._closed:
            return
        self._closed = True
        if self._owner == os.getpid() and leases.release(self._client, self._container):
            try:
                self._client.notify("/container/destroy", {"container": self._container}, timeout_s=_CLOSE_TIMEOUT_S)
            except SandboxError:
                pass

    def __del__(self) -> None:
        """Have its container destroyed, where its user has forgotten it."""
        if self.__dict__.get("_container") and not self._closed:
            self._note_unclosed(self)
