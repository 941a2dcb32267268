"""`RemoteSandbox`: a sandbox that another machine keeps."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.sandbox.protocol import Change, CommandResult, SandboxSpec, Snapshot
from swegym_env.sandbox.remote import keeping
from swegym_env.sandbox.remote.connection import Service, service
from swegym_env.sandbox.remote.route import Route

__all__ = ["RemoteSandbox", "RemoteSnapshot", "RemoteSpec"]

_CREATE_S = 3600.0  # a task's first sandbox on a machine waits for its image and its set-up
_FILES_S = 120.0
_CLOSE_S = 10.0


@dataclass(frozen=True)
class RemoteSpec(SandboxSpec):
    """A sandbox that the service prepares: what it is made of lies there, and is asked for by content.

    Attributes:
        order: what the service is told beside image, directory and variables, as JSON: a task's row, tool bundles.
    """

    order: str = "{}"


@dataclass(frozen=True)
class RemoteSnapshot:
    """A state that the service keeps."""

    service: Service
    name: str
    spec: SandboxSpec

    def discard(self) -> None:
        """Free what it holds; idempotent."""
        try:
            self.service.call("/snapshot/discard", {"snapshot": self.name}, timeout_s=_CLOSE_S)
        except SandboxError:
            pass  # gone with its container, or soon


class RemoteSandbox:
    """A sandbox of the service at `url`; see `protocol.Sandbox`. Made by `open_sandbox`.

    `backend` is that of the service, once started. Changes have no place on this machine: their `host_path` is None.

    Raises:
        ConfigurationError: the specification names directories of this machine, which the service does not have.
    """

    def __init__(self, spec: SandboxSpec, url: str) -> None:
        if spec.layers or spec.binds or spec.network:
            raise ConfigurationError(
                f"sandbox {url}: layers, binds and network of this machine cannot be had there; it prepares tasks"
            )
        self.spec = spec
        self.backend = url
        self._service = service(url)
        self._route = Route(self._service)
        self._container = ""
        self._closed = False
        self._owner = os.getpid()
        self._patch: str | None = None

    def start(self) -> None:
        """Ask for it and wait until it is there, for as long as all places are taken (`$SWEGYM_WAIT_S`)."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if self._container:
            return
        spec = self.spec
        order: dict[str, Any] = json.loads(spec.order) if isinstance(spec, RemoteSpec) else {}
        order |= {
            "image": spec.image,
            "workdir": spec.workdir,
            "env": dict(spec.env),
            "path": list(spec.path),
            "limits": dataclasses.asdict(spec.limits),
        }
        self._begin(self._service.call("/container/create", order, timeout_s=_CREATE_S))

    def _begin(self, answer: dict[str, Any]) -> None:
        self._container, self.backend = answer["container"], answer["backend"]
        self._route = Route(self._service, answer.get("node", ""))
        keeping.keep(self._service, self._container, answer["lease_s"])

    def _call(self, path: str, message: dict[str, Any] | None = None, *, timeout_s: float = _FILES_S) -> Any:
        if self._closed or not self._container:
            raise SandboxError("the sandbox is closed" if self._closed else "the sandbox was not started")
        return self._route.call(path, {"container": self._container, **(message or {})}, timeout_s=timeout_s)

    def run(
        self, command: str, *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult:
        """See `protocol.Sandbox.run`. What the command changed is told with its result: a step is one message."""
        limit = self.spec.limits.turn_timeout_s if timeout_s is None else timeout_s
        message = {
            "command": command,
            "timeout_s": limit,
            "output_limit_bytes": output_limit_bytes,
            "diff": isinstance(self.spec, RemoteSpec),
        }
        self._patch = None
        answer = self._call("/container/exec", message, timeout_s=limit)
        self._patch = answer.pop("patch", None)
        return CommandResult(**answer)

    def patch(self, *, fresh: bool = False) -> str:
        """The task's repository against its base commit (see `judging.patch.capture_patch`), taken where it lies."""
        if fresh or self._patch is None:
            self._patch = str(self._call("/container/diff", {"fresh": fresh})["patch"])
        return self._patch

    def read(self, path: str) -> bytes:
        """See `protocol.Sandbox.read`."""
        return base64.b64decode(self._call("/container/read", {"path": path})["content"])

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """See `protocol.Sandbox.write`."""
        self._patch = None
        encoded = base64.b64encode(content).decode()
        self._call("/container/write", {"path": path, "content": encoded, "mode": mode})

    def changes(self, root: str) -> Sequence[Change]:
        """See `protocol.Sandbox.changes`; without the places of their contents, which are the service's."""
        answer = self._call("/container/changes", {"root": root})
        return [Change(path, kind, None) for path, kind in answer["changes"]]

    def snapshot(self) -> RemoteSnapshot:
        """See `protocol.Sandbox.snapshot`."""
        return RemoteSnapshot(self._service, self._call("/container/snapshot")["snapshot"], self.spec)

    def restore(self, snapshot: Snapshot) -> None:
        """See `protocol.Sandbox.restore`."""
        if not isinstance(snapshot, RemoteSnapshot) or snapshot.spec != self.spec:
            raise SandboxError("a snapshot of another sandbox cannot be restored here")
        self._patch = None
        self._call("/container/restore", {"snapshot": snapshot.name})

    def fork(self) -> RemoteSandbox:
        """See `protocol.Sandbox.fork`."""
        other = RemoteSandbox(self.spec, self._service.url)
        other._begin(self._call("/container/fork"))
        return other

    def close(self) -> None:
        """Give it back; idempotent. Where the service cannot be told, the end of the lease ends it."""
        if self._closed:
            return
        self._closed = True
        if self._owner == os.getpid() and keeping.let_go(self._service, self._container):
            try:
                self._service.call_once("/container/destroy", {"container": self._container}, timeout_s=_CLOSE_S)
            except SandboxError:
                pass
