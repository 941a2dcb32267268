"""The owner's end of the supervisor: one for each process, started with its first sandbox, ended with the process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.files import make_directory
from swegym_env.paths import large_run_dir, run_dir
from swegym_env.sandbox.gc import collect_garbage
from swegym_env.sandbox.identity import own_users
from swegym_env.sandbox.leases import owner_prefix, storage_error

__all__ = ["SupervisorClient", "clean_up", "disabled_features", "end_all", "supervisor"]

# Isolated and without site-packages it starts in about 10 ms. The package's own __init__ is not imported: `linux` is
# found beside this file as a top-level package of standard-library code.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from linux.supervisor import main; main(sys.argv[2:])"
_MESSAGE_BYTES = 1 << 18
_LINE_BYTES = 1 << 16  # a quoted path of the greatest length takes less
_END_TIMEOUT_S = 10.0
_TRY = "Try: reset, which starts another"
_OPTIONAL_FEATURES = ("overlay", "cgroups", "tmpfs", "seccomp", "users", "container", "imports")


def disabled_features() -> list[str]:
    """What not to use, from `SWEGYM_WITHOUT`. Raises ConfigurationError for an unknown word."""
    without = [word for word in os.environ.get("SWEGYM_WITHOUT", "").replace(",", " ").split() if word]
    for word in without:
        if word not in _OPTIONAL_FEATURES:
            raise ConfigurationError(
                f"SWEGYM_WITHOUT: unknown word {word!r}; there are: {', '.join(_OPTIONAL_FEATURES)}"
            )
    return without


class EndingError(SandboxError):
    """This process is ending."""


class SupervisorClient:
    """A running supervisor. Its methods may be called from any thread."""

    def __init__(self, directory: Path, large: Path) -> None:
        without = disabled_features()
        make_directory(directory, 0o711)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        with theirs:
            package = str(Path(__file__).parent)
            run_directories = sorted({str(directory), str(large)})
            users = "" if "users" in without else ":".join(map(str, own_users()))
            arguments = [package, str(theirs.fileno()), owner_prefix(), ",".join(without), users, *run_directories]
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd="/",
                    env={},
                )
            except OSError as error:  # no lack of place for files
                ours.close()
                raise SandboxError(f"the sandbox supervisor cannot be started: {error}") from error
        self.pid = self._process.pid
        self._socket = ours
        self._gone = False  # its end of the socket is closed

    def send(self, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send a request; answers come on its descriptors. Raises SandboxError if the supervisor is gone."""
        message = json.dumps(request).encode("utf-8", "surrogatepass")
        if len(message) >= _MESSAGE_BYTES:
            raise SandboxError(
                f"a sandbox's specification takes {len(message)} bytes, expected at most {_MESSAGE_BYTES}. "
                "Try: fewer layers, binds or variables"
            )
        try:
            socket.send_fds(self._socket, [message], descriptors)
        except OSError as error:
            self._gone = self._gone or isinstance(error, ConnectionError)
            raise SandboxError(f"the sandbox supervisor (process {self.pid}) is gone: {error}. {_TRY}") from error

    def ask(self, request: dict[str, Any]) -> str:
        """Send a request and wait for its answer. Raises SandboxError if none comes."""
        answer = "\n".join(self.lines(request)).strip()
        if not answer:
            raise SandboxError(f"the sandbox supervisor (process {self.pid}) died. {_TRY}")
        return answer

    def lines(self, request: dict[str, Any]) -> Iterator[str]:
        """The lines of an answer as they come; of a copy there may be any number. Raises SandboxError as `ask`."""
        ours, theirs = os.pipe()
        with open(ours, "rb") as lines:
            try:
                self.send(request, (theirs,))
            finally:
                os.close(theirs)
            while line := lines.readline(_LINE_BYTES):
                yield line.decode(errors="replace").rstrip("\n")

    def alive(self) -> bool:
        """Whether it still runs."""
        if self._gone:  # a moment before the process has ended, too
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END_TIMEOUT_S)
        return not self._gone and self._process.poll() is None

    def finish(self) -> None:
        """At the owner's end: let the supervisor reap everything, and wait until it has."""
        self._socket.close()
        try:
            self._process.wait(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.returncode = 0  # it goes on reaping by itself

    def abandon(self) -> None:
        """Close the connection only: the supervisor died, or this is a forked child whose parent still uses it."""
        self._socket.close()
        self._process.returncode = 0  # this process does not wait for it


_lock = threading.RLock()
_clients: dict[Path, SupervisorClient] = {}
_ended = False


def supervisor() -> SupervisorClient:
    """This process's supervisor of `run_dir()`, started if none is alive. Raises StorageError if it cannot start."""
    directory = run_dir()
    with _lock:
        if _ended:
            raise EndingError("this process is ending its sandboxes and starts no others")
        client = _clients.get(directory)
        if client is not None and client.alive():
            return client
        if client is not None:
            client.abandon()
        if not _clients:
            atexit.register(end_all)
        try:
            collect_garbage()
            _clients[directory] = SupervisorClient(directory, large_run_dir())
        except OSError as error:
            raise storage_error(error) from error
        return _clients[directory]


def clean_up(request: dict[str, Any]) -> None:
    """Have the supervisor end or remove something. If it is dying, its successor does it.

    What a supervisor accepted and did not do before it died, its successor removes at the end of this process.

    Raises:
        SandboxError: there is no supervisor and no successor.
    """
    try:
        supervisor().send(request)
    except SandboxError:
        supervisor().send(request)


def end_all() -> None:
    """End every sandbox of this process for good, whatever runs in them; callers that wait for one get an error."""
    global _ended  # noqa: PLW0603 - a process ends once
    with _lock:
        _ended = True
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        client.finish()


def _release_in_child() -> None:
    for client in _clients.values():
        client.abandon()
    _clients.clear()
    _lock.release()


# A fork waits until no thread is starting a supervisor; the child begins without one.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_release_in_child)
