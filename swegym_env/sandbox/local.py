"""A sandbox on this machine: a container that the supervisor keeps, a shell in it, and the layers it stands on."""

from __future__ import annotations

import errno
import os
import posixpath
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from swegym_env.errors import SandboxError
from swegym_env.sandbox.backends import Backend, read_only_binds, read_only_layers
from swegym_env.sandbox.changes import find_changes
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.container import START_TIMEOUT_S, Container
from swegym_env.sandbox.host_image import HOME
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.inside import read_inside, write_inside
from swegym_env.sandbox.leases import lease_directory, no_place
from swegym_env.sandbox.limits import ENDINGS, reached_limit
from swegym_env.sandbox.protocol import Change, CommandResult, SandboxSpec, Snapshot
from swegym_env.sandbox.shell import ABORT_SIGNAL, SAVE_STATE, STATE_FILE, quoted
from swegym_env.sandbox.starvation import were_starved
from swegym_env.sandbox.supervisor.processes import descendants
from swegym_env.sandbox.writable import WritableLayer, copy_files, place_for

__all__ = ["LocalSandbox", "LocalSnapshot"]

_ABORT_GRACE_S = 0.3
_LONG_COMMAND_BYTES = 8192  # bash reads a pipe byte by byte; beyond this a file is faster
_BASH = ("/bin/bash", "--noprofile", "--norc")

# What becomes of a Docker image's ENV lines, and of a definition's %environment; sourced in this order.
_IMAGE_ENVIRONMENT = ("/.singularity.d/env/10-docker2singularity.sh", "/.singularity.d/env/90-environment.sh")
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PIP_PROGRESS_BAR": "off",
    "TQDM_DISABLE": "1",
}


class LocalSnapshot:
    """Files, directory and variables of a sandbox, kept in a directory of their own."""

    def __init__(self, directory: Path, spec: SandboxSpec, shell_directory: str) -> None:
        self.directory = directory
        self.spec = spec
        self.shell_directory = shell_directory

    def discard(self) -> None:
        """Free what it holds; idempotent."""
        supervisor().send({"do": "remove", "directory": str(self.directory)})


class LocalSandbox:
    """A sandbox of this process; see `protocol.Sandbox`. Made by `open_sandbox`."""

    def __init__(self, spec: SandboxSpec, backend: Backend) -> None:
        self.spec = spec
        self.backend = backend.name
        self._backend = backend
        self._directory: Path | None = None
        self._layer: WritableLayer | None = None
        self._layers_made = 0
        self._was_full = False
        self._fuse = False
        self._container: Container | None = None
        self._shell_pid = 0
        self._shell_directory = spec.workdir
        self._closed = False
        self._owner = os.getpid()

    def start(self) -> None:
        """Bring it up and wait for the shell's first answer. Raises SandboxError (StorageError), ImageError."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if self._layer is None:
            layer = self._make_layer()
            try:
                layer.furnish(self.spec.workdir, read_only_binds(self.spec))
            except OSError as error:
                raise no_place(error, place_for(self.spec.limits)) from error
            self._layer = layer
        if self._container is None:
            self._launch()

    def _make_layer(self) -> WritableLayer:
        """An empty writable layer, and at the first time the sandbox's directory."""
        if self._directory is None:
            parent = place_for(self.spec.limits)
            self._directory = lease_directory("sandbox", supervisor().pid, parent)
            try:
                for name in ("root", "shm", "binds"):
                    (self._directory / name).mkdir(mode=0o755)
                own(self._directory / "binds")
            except OSError as error:
                raise no_place(error, parent) from error
        self._layers_made += 1
        return WritableLayer(self._directory, f"layer-{self._layers_made}", self.spec.limits)

    def _launch(self) -> None:
        """Start a container on the writable layer; with the last shell's state if there is one that can be used."""
        layer = self._writable()
        try:
            resumes = layer.has_state(STATE_FILE)
        except OSError as error:
            raise SandboxError(f"the sandbox's files cannot be reached: {error}") from error
        failure = ""
        for with_state in (True, False) if resumes else (False,):
            request = self._backend.request(self.spec, layer.place.parent, _BASH)
            request["layer"] = str(layer.place)
            request["limits"] = asdict(self.spec.limits)
            request["limits"]["files_in_memory_bytes"] = self.spec.limits.disk_bytes * layer.has_own_file_system
            container = Container(supervisor(), request)
            container.shell.prepare(self._preparation(with_state))
            answer = container.shell.run(b":", 10.0 if with_state else START_TIMEOUT_S, 4096)
            if answer.exit_code == 0:
                self._container = container
                self._shell_pid = self._backend.shell_pid(container.pid())
                self._fuse = container.overlay == "fuse"
                return
            failure = f"{container.failure()}" if answer.ended else "its shell did not answer"
            container.end()
            failure = container.failure() if answer.ended else failure
            container.close()
        raise SandboxError(f"the {self.backend} sandbox did not start: {failure}. Try: swegym doctor")

    def _preparation(self, with_state: bool) -> list[str]:
        limits = self.spec.limits
        lines = [
            # Apptainer adds variables of its own, and takes none that hold a comma or a line break.
            "unset ${!APPTAINER*} ${!SINGULARITY*} LD_LIBRARY_PATH OLDPWD PROMPT_COMMAND PS1; BASH_ARGV0=bash",
            _exported(_ENVIRONMENT),
            *(f"[ -r {given} ] && . {given}" for given in _IMAGE_ENVIRONMENT),
            _exported(self.spec.env),
            *(f'export PATH={_word(place)}:"$PATH"' for place in reversed(self.spec.path)),
            f"ulimit -c 0 -f {limits.file_size_bytes // 1024} -u {limits.processes} -d {limits.memory_bytes // 1024}",
            f"cd -- {_word(self._shell_directory)}",
            f"trap '{SAVE_STATE}' EXIT",
            f"trap 'exit {ENDINGS['time']}' {ABORT_SIGNAL}",
        ]
        if with_state:
            # The directory is the shell's own record of it; options that ended the last shell are not taken over.
            lines.append(f'. {STATE_FILE}; cd -- "$PWD"; set +eu')
        return lines

    def run(
        self, command: str, *, timeout_s: float | None = None, output_limit_bytes: int | None = None
    ) -> CommandResult:
        """See `protocol.Sandbox.run`.

        At the time limit the shell is asked to save its state, everything in the sandbox is killed, and the next
        command meets a fresh shell in the same directory with the same variables and functions. The same holds after
        `exit`, `exec` and the like.
        """
        limits = self.spec.limits
        timeout = limits.turn_timeout_s if timeout_s is None else timeout_s
        output_limit = limits.output_bytes if output_limit_bytes is None else output_limit_bytes
        text = command.encode("utf-8", "surrogateescape")
        if b"\0" in text:
            return CommandResult("bash: a command cannot hold a NUL byte\n", 2)
        container = self._live()
        if len(text) > _LONG_COMMAND_BYTES:
            text = self._deposit(text)
        begin = time.monotonic()
        answer = container.shell.run(text, timeout, output_limit, container)
        timed_out = answer.exit_code is None and not answer.ended and not answer.stopped
        known = {"time"} if timed_out else set()
        starved = timed_out and were_starved(descendants(self._shell_pid), time.monotonic() - begin)
        if answer.exit_code is not None:
            code = answer.exit_code
            self._shell_directory = answer.directory or self._shell_directory
            known |= container.reached_limits()
        else:
            try:
                code = container.wait() if answer.ended else self._abort()
                known |= container.reached_limits() if not timed_out else set()
                code = next((ENDINGS[limit] for limit in ("cpu", "disk") if limit in known and answer.stopped), code)
            finally:
                self._drop_container()
        return CommandResult(
            output=answer.output.decode("utf-8", "replace"),
            exit_code=code,
            timed_out=timed_out,
            truncated_bytes=answer.truncated_bytes,
            duration_s=time.monotonic() - begin,
            limit=reached_limit(
                known | self._full_disk(code),
                output=answer.output,
                exit_code=code,
                truncated=answer.truncated_bytes > 0,
            ),
            starved=starved,
        )

    def _full_disk(self, exit_code: int) -> set[str]:
        """{"disk"} where the command used up the sandbox's own room, or failed in a full one.

        Raises:
            StorageError: the machine's room is used up.
        """
        layer = self._writable()
        was_full, self._was_full = self._was_full, layer.is_full()
        if self._was_full and not layer.has_own_file_system:
            raise no_place(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), layer.place.parent.parent)
        return {"disk"} if self._was_full and (exit_code != 0 or not was_full) else set()

    def _deposit(self, command: bytes) -> bytes:
        path = f"/.swegym/command-{time.monotonic_ns()}"
        try:
            write_inside(self._shell_pid, path, command, 0o600, fuse=self._fuse)
        except OSError as error:
            raise no_place(error) from error
        return f'eval "$(<{path})"'.encode()

    def _abort(self) -> int:
        """End the running command and all it started: ask the shell to save its state, then kill everything."""
        container = self._container
        assert container is not None
        deadline = time.monotonic() + _ABORT_GRACE_S
        _signal(self._shell_pid, signal.SIGUSR2)
        while time.monotonic() < deadline:
            # The shell acts on the signal once the program it waits for is gone.
            for pid in descendants(self._shell_pid):
                _signal(pid, signal.SIGKILL)
            if container.shell.wait_for_end(0.005):
                break
        container.end()
        return ENDINGS["time"]

    def _live(self) -> Container:
        if self._closed or self._layer is None:
            raise SandboxError("the sandbox is closed" if self._closed else "the sandbox was not started")
        if self._container is None:
            self._launch()
        assert self._container is not None
        return self._container

    def _writable(self) -> WritableLayer:
        assert self._layer is not None
        return self._layer

    def _drop_container(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = None

    def read(self, path: str) -> bytes:
        """See `protocol.Sandbox.read`."""
        self._live()
        return read_inside(self._shell_pid, posixpath.join(self.spec.workdir, path), fuse=self._fuse)

    def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """See `protocol.Sandbox.write`; an existing file keeps its mode."""
        self._live()
        write_inside(self._shell_pid, posixpath.join(self.spec.workdir, path), content, mode, fuse=self._fuse)

    def changes(self, root: str) -> Sequence[Change]:
        """See `protocol.Sandbox.changes`."""
        if self._layer is None or self._closed:
            raise SandboxError("the sandbox was not started, or is closed")
        layers = read_only_layers(self.spec)
        try:
            return find_changes(self._layer.upper, layers, root, fuse=self._fuse)
        except FileNotFoundError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error

    def snapshot(self) -> LocalSnapshot:
        """See `protocol.Sandbox.snapshot`: the writable layer is copied while everything inside stands still."""
        self._save_state()
        directory = lease_directory("snapshot", supervisor().pid, place_for(self.spec.limits))
        self._while_still(lambda upper: copy_files(upper, directory / "upper"))
        return LocalSnapshot(directory, self.spec, self._shell_directory)

    def restore(self, snapshot: Snapshot) -> None:
        """See `protocol.Sandbox.restore`; what runs in the background ends."""
        if not isinstance(snapshot, LocalSnapshot) or snapshot.spec != self.spec:
            raise SandboxError("a snapshot of another sandbox cannot be restored here")
        container = self._live()
        container.end()
        self._drop_container()
        layer = self._make_layer()
        layer.fill_from(snapshot.directory / "upper")
        self._writable().drop()
        self._layer = layer
        self._shell_directory = snapshot.shell_directory
        self._launch()

    def fork(self) -> LocalSandbox:
        """See `protocol.Sandbox.fork`."""
        self._save_state()
        other = LocalSandbox(self.spec, self._backend)
        other._shell_directory = self._shell_directory
        try:
            other._layer = other._make_layer()
            self._while_still(other._layer.fill_from)
            other.start()
        except SandboxError:
            other.close()
            raise
        return other

    def _save_state(self) -> None:
        answer = self._live().shell.run(SAVE_STATE.encode(), self.spec.limits.turn_timeout_s, 4096)
        if answer.exit_code is None:
            raise SandboxError("the shell could not be asked for its state: it does not answer")

    def _while_still(self, copy: Callable[[Path], None]) -> None:
        """Copy the writable layer while no process inside moves."""
        still = descendants(self._shell_pid)
        for pid in still:
            _signal(pid, signal.SIGSTOP)
        try:
            copy(self._writable().place / "upper")
        finally:
            for pid in still:
                _signal(pid, signal.SIGCONT)

    def close(self) -> None:
        """End everything and remove everything; idempotent. The supervisor does it while the caller goes on."""
        if self._closed:
            return
        self._closed = True
        if self._owner != os.getpid():
            return  # a forked child of the owner: the sandbox is not its own
        self._drop_container()
        if self._directory is not None:
            supervisor().send({"do": "close", "id": self._directory.name, "directory": str(self._directory)})


def _exported(variables: Mapping[str, str]) -> str:
    return " ".join(["export", *(_word(f"{name}={value}") for name, value in variables.items())])


def _word(text: str) -> str:
    return os.fsdecode(quoted(os.fsencode(text)))


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has ended
        pass
