"""The container of an image: one a process, which stays up, and whose root is the lowest layer of all its sandboxes.

A container runtime takes some hundred milliseconds of processor time to open an image. Here it does so once. The
supervisor attaches the container's root for itself, and starts every sandbox on it in namespaces of the sandbox's own.
No program of an agent runs in the container, and no sandbox depends on its life: what the sandboxes use is mounted for
each of them. A container that has ended is replaced when the next sandbox starts.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swegym_env.errors import SandboxError
from swegym_env.files import make_directory
from swegym_env.sandbox.api import Limits
from swegym_env.sandbox.client import SupervisorClient, supervisor
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.leases import lease_directory, storage_error
from swegym_env.sandbox.linux.kernel import is_readable

__all__ = ["container_root"]

_UP = b"up\n"
# The builtins of any bash: an image may lack every other program. Standard input ends with the owner.
_COMMAND = ("/bin/bash", "--noprofile", "--norc", "-c", "echo up; read -r")
_START_TIMEOUT_S = 60.0
_RETRY_S = 60.0  # after a container that did not start
# Of one process; another one takes the place of the one that was needed least recently. A root is one mount more for
# every sandbox that starts.
_MOST, _MOST_ROOTS = 8, 64
_LIMITS = Limits(memory_bytes=1 << 30, processes=64)

Request = Callable[[Path, tuple[str, ...]], dict[str, Any]]
"""The supervisor's launch request for a container in this directory that runs this command."""


def container_root(image: Path, version: tuple[object, ...], request: Request) -> str:
    """Where this process's supervisor has attached the root of the image's container, which is started if it is not up.

    Args:
        image: the directory that the container runs on.
        version: of the program that runs it.
        request: see `Request`.

    Raises:
        SandboxError: the container does not start, or the supervisor cannot enter it.
        StorageError: there is no place for its files.
    """
    while True:
        client = supervisor()
        root = _place(client, image, version).root(client, image, request)
        if root is not None:
            return root


def _place(client: SupervisorClient, image: Path, version: tuple[object, ...]) -> _Place:
    """The place of an image's container, which is now the one that was needed most recently."""
    try:
        status = os.stat(image)
    except OSError as error:
        raise SandboxError(f"{image}: {error.strerror}") from error
    # A directory that was removed and made again is another image: the root of the former one cannot be used any more.
    key = (client.pid, str(image), status.st_dev, status.st_ino, status.st_mtime_ns, *version)
    with _lock:
        gone = [_places.pop(other) for other in list(_places) if other[0] != client.pid]
        place = _places[key] = _places.pop(key) if key in _places else _Place()
        least_recent = list(_places.values())[::-1]
        dropped = [_places.pop(other) for other in list(_places)[: max(0, len(_places) - _MOST_ROOTS)]]
    for each in (*gone, *least_recent[_MOST:]):
        each.end()
    for each in dropped:
        each.drop(client)
    return place


class _Place:
    """The directory of an image's container, and the container in it while it is up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._container: _Container | None = None
        self._dropped = False
        self._attached = False  # a root, which stays when its container ends
        self._failure, self._failed = "", 0.0  # the last failure and its time

    def root(self, client: SupervisorClient, image: Path, request: Request) -> str | None:
        """See `container_root`; None where it was dropped meanwhile."""
        with self._lock:
            if self._dropped:
                return None
            if self._container is not None and not self._container.is_up():
                self._close()
            if self._directory is None:
                self._directory = _make_directory(client)
            root = self._directory / "image"
            if self._container is None and (not self._failure or time.monotonic() - self._failed > _RETRY_S):
                try:
                    self._container = _Container(client, request(self._directory, _COMMAND))
                    self._container.attach(image, root)
                    self._attached, self._failure = True, ""
                except SandboxError as error:
                    self._failure, self._failed = str(error), time.monotonic()
                    self._close()
            if not self._attached:
                raise SandboxError(self._failure)
            return str(root)

    def end(self) -> None:
        """End the container; sandboxes go on, and others can still be started on its root."""
        with self._lock:
            self._close()

    def drop(self, client: SupervisorClient) -> None:
        """End the container and remove its directory: no other sandbox can be started on its root."""
        with self._lock:
            self._dropped = True
            self._close()
            if self._directory is not None:
                with contextlib.suppress(SandboxError):  # the supervisor is gone: its successor removes the directory
                    client.send({"do": "close", "id": self._directory.name, "directory": str(self._directory)})

    def _close(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = None


class _Container:
    """A container that was launched; it ends when it is closed, or this process ends."""

    def __init__(self, client: SupervisorClient, request: dict[str, Any]) -> None:
        self._client, self._id = client, request["id"]
        self._owner = os.getpid()
        limits = {**vars(_LIMITS), "files_in_memory_bytes": 1}  # it writes no file
        theirs_in, self._input = os.pipe()
        self._output, theirs_out = os.pipe()
        self._events, theirs_event = os.pipe()
        theirs = (theirs_in, theirs_out, theirs_out, theirs_event)
        try:
            client.send({"do": "launch", **request, "limits": limits, "clock_offset_s": 0}, theirs)
        except SandboxError:
            self._close_pipes()
            raise
        finally:
            for descriptor in {*theirs}:
                os.close(descriptor)

    def attach(self, image: Path, target: Path) -> None:
        """Wait until it is up, and let the supervisor attach its root. Raises SandboxError."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        printed = b""
        while not printed.endswith(_UP):
            if not is_readable(self._output, deadline - time.monotonic()):
                raise SandboxError(f"its container was not up after {_START_TIMEOUT_S:g} s")
            piece = os.read(self._output, 4096)
            if not piece:
                lines = (printed + b"\n" + self._reason()).decode(errors="replace").strip().splitlines()
                raise SandboxError(f"its container did not start: {(lines or ['no reason given'])[-1]}")
            printed = (printed + piece)[-4096:]
        answer = self._client.ask({"do": "attach", "id": self._id, "image": str(image), "path": str(target)})
        if answer != "attached":
            raise SandboxError(f"its container cannot be entered: {answer.removeprefix('error ')}")

    def _reason(self) -> bytes:
        """The supervisor's reason for a failed launch, if it has one."""
        while is_readable(self._events, 1.0) and (piece := os.read(self._events, 4096)):
            for line in piece.split(b"\n"):
                if line.startswith(b"error "):
                    return line.removeprefix(b"error ")
        return b""

    def is_up(self) -> bool:
        """Whether it still runs: its standard output is open."""
        return self._client.alive() and not is_readable(self._output, 0)

    def close(self) -> None:
        """End it."""
        if self._owner == os.getpid():
            with contextlib.suppress(SandboxError):  # the supervisor is gone, and with it the container
                self._client.send({"do": "end", "id": self._id})
        self._close_pipes()

    def _close_pipes(self) -> None:
        for descriptor in (self._input, self._output, self._events):
            os.close(descriptor)


def _make_directory(client: SupervisorClient) -> Path:
    directory = lease_directory("container", client.pid)
    try:
        for name in ("root", "dev", "binds", "empty", "image"):
            make_directory(directory / name)
        own(directory / "binds")
    except OSError as error:
        raise storage_error(error, directory.parent) from error
    return directory


_lock = threading.Lock()
_places: dict[tuple[object, ...], _Place] = {}  # by supervisor, image and version of the program


def _forget() -> None:
    """A forked child has a supervisor of its own."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _places.clear()


os.register_at_fork(after_in_child=_forget)
