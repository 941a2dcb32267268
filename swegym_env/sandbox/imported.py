"""A Python program that is imported once and forked into each sandbox: the owner's side of `inside.imported`.

An agent in Python may need seconds of processor time for its imports, the same in each episode. Here one process
imports the modules, in a container of its own: it has the layers of the sandboxes except the last one (the task's
repository), no network, and no data of any episode. For each sandbox it forks a child, which enters the sandbox's
namespaces and becomes its user, with its filter of system calls, its limits and its control group. Only then does the
child read what it is started with, and run the program.

Permissions:

- A process may enter a user namespace if its user owns the namespace and it is in the parent namespace. So only this
  container has no user namespace of its own; it has a user of its own if the supervisor is root. This user owns the
  user namespaces of the sandboxes into which children are forked. It has no other rights, sees no processes except
  those in these sandboxes, and holds no descriptor of a sandbox: a child gets those of one sandbox.
- A process namespace can only be entered from an ancestor. So the process namespaces of these sandboxes are descendants
  of this container's. The sandboxes cannot see or signal anything above them, and they end with this container.
- An episode has its own copy of the memory, and no other process sees its changes.

The program of a module (`python3 -m unittest`, which runs graded tests) belongs to one sandbox at a time. The owner
makes its child what the sandbox's idle shell would have started, without a waiting program inside the sandbox.

If forking is not possible, or a normal start would give the program a different environment, it is started normally.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import dataclasses
import marshal
import os
import select
import shlex
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swegym_env.errors import SandboxError
from swegym_env.sandbox.api import Imports, SandboxSpec
from swegym_env.sandbox.client import SupervisorClient, disabled_features, supervisor
from swegym_env.sandbox.filters import program
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.inside import imported as inside
from swegym_env.sandbox.linux.cgroups import Group
from swegym_env.sandbox.shell import SHELL_OUTPUT, Shell, program_command

if TYPE_CHECKING:
    from swegym_env.sandbox.local import LocalSandbox
    from swegym_env.sandbox.writable import WritableLayer

__all__ = ["MODULE", "ImportedProgram", "find_imported", "module_script", "place_program", "release", "started_through"]

PROGRAM_FILE = "/.swegym/imported.py"
"""Path of `inside.imported` in a sandbox."""

MODULE = "-m"
"""`Imports.program` for the program of a module."""

_LOG = "/.swegym/imports.log"
_IMPORT_TIMEOUT_S = 300.0
_FORK_TIMEOUT_S = 60.0
_MOST = 4  # imported programs of one process that are shared by many sandboxes
_MOST_LENT = max(8, 4 * (os.cpu_count() or 1))  # equal imported programs that serve one sandbox at a time each
_SHOWN_BYTES = 300
_NAMESPACES = ("user", "pid", "time", "cgroup", "ipc", "uts", "net", "mnt")
_SOURCE = Path(inside.__file__).read_bytes()


def place_program(layer: WritableLayer, program: str) -> None:
    """Write the file that starts `program` to a sandbox that has not started: `inside.imported`, or a named pipe."""
    if program == MODULE:
        place = f"{layer.upper}{inside.ENDED}"
        os.mkfifo(place, 0o600)
        own(place)
        return
    _write(f"{layer.upper}{PROGRAM_FILE}", _SOURCE)


def _write(file: str, content: bytes) -> None:
    Path(file).write_bytes(content)
    own(file)


def module_script() -> str:
    """The commands that a shell runs while a forked child runs a module's program."""
    ended = "swegym_ended() { return $swegym; }; swegym_ended"
    return f"IFS= builtin read -r swegym <>{inside.ENDED}; {ended}"


def started_through(interpreter: Sequence[str]) -> str:
    """The words in front of a program, in a shell's command, that start it through its imported copy."""
    return " ".join([*interpreter, "-I", "-S", PROGRAM_FILE, "join"])


class ImportedProgram:
    """A process that has imported a program's modules, in a container of its own; `fork` may be called from any thread.

    Args:
        place: a sandbox that was not started, for its files; it belongs to this object.
        imports: what is imported.

    Attributes:
        name: of its container.
        pid: of the container's first process, on the host.
        problem: why forking is not possible; empty if it is.
        interpreter: the words that start the program's Python.
    """

    def __init__(self, place: LocalSandbox, imports: Imports) -> None:
        self._place, self._imports = place, imports
        self._lock = threading.Lock()
        self._client: SupervisorClient | None = None
        self._control: socket.socket | None = None
        self._owner = os.getpid()
        self.clock_offset_s = place.clock_offset_s
        self.name = ""
        self.pid = 0
        self.problem = ""
        self.import_done = False
        self._worked = False
        self.users = 0  # sandboxes whose process namespace is below this one
        self.last: int | None = None  # a handle of the first process of the last such sandbox
        self.is_lent = imports.program == MODULE  # serves one sandbox at a time
        self.interpreter: list[str] = []

    def start(self) -> None:
        """Start it and wait until everything is imported, unless it was started; `problem` says why this failed."""
        with self._lock:
            if self._control is not None or self.problem:
                return
            try:
                self.problem = self._start()
            except SandboxError as error:
                self.problem = str(error)
            except OSError as error:
                self.problem = f"it cannot be started: {error}"
            self.import_done = True
        if self.problem:
            self.close()

    def _start(self) -> str:
        place = self._place
        layer = place.make_layer()
        request = place.request(layer, ())
        imports = self._imports
        self.interpreter = ["python3"] if self.is_lent else _interpreter(imports.program, request["layers"][::-1])
        _write(f"{layer.upper}{PROGRAM_FILE}", _SOURCE)
        _write(f"{layer.upper}{_LOG}", b"")
        words = [*self.interpreter, PROGRAM_FILE, "serve", imports.program, *imports.modules]
        if imports.unless:
            words += ["--", *imports.unless]
        # Its standard output has the type that the program's will have: a file, or a pipe like that of a shell.
        output = "" if self.is_lent else f" >{_LOG}"
        command = f"exec 3<&0 </dev/null{output} 2>&1; exec {shlex.join(words)}"
        request["command"] = list(program_command(place.spec, imports.environment, command))
        if request["isolation"] != "supervisor":
            return "Apptainer runs each sandbox by itself"
        request |= {"isolation": "imports", "filter": program(for_imports=True)}
        self._client = supervisor()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.name = str(request["id"])
        printed, output_write = os.pipe()
        events, event_write = os.pipe()
        try:
            self._client.send({"do": "launch", **request}, (theirs.fileno(), output_write, output_write, event_write))
        finally:
            theirs.close()
            os.close(output_write)
            os.close(event_write)
        self._control.settimeout(_IMPORT_TIMEOUT_S)
        try:
            answer = self._control.recv(4096)
        except OSError as error:
            answer = b"error " + str(error).encode()
        text = answer.decode(errors="replace")
        happened, log = (_read_now(pipe).decode(errors="replace") for pipe in (events, printed))
        pids = [line.removeprefix("pid ") for line in happened.splitlines() if line.startswith("pid ")]
        self.pid = int(next(iter(pids), 0))
        if text.startswith("ready"):
            return text.removeprefix("ready").strip()
        with contextlib.suppress(OSError):
            log = log or Path(f"{layer.upper}{_LOG}").read_text(errors="replace")
        text = log[-_SHOWN_BYTES:] or text
        errors = [line for line in happened.splitlines() if line.startswith("error ")]
        return f"importing failed: {' '.join(' '.join([text, *errors]).split()) or 'it was ended'}"

    def alive(self, wait_s: float = 0.0) -> bool:
        """Whether it can be used: it is running, and still is after this many seconds."""
        if self._control is None or self._client is None or not self._client.alive():
            return False
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        return not poll.poll(wait_s * 1000)  # it sends nothing by itself, so an event means that it has ended

    def is_free(self) -> bool:
        """Whether no sandbox uses it, and no process of the last one is left."""
        if self.users or self.last is None:
            return not self.users
        poll = select.poll()
        poll.register(self.last, select.POLLIN)  # the first process ends after all others
        return bool(poll.poll(0))

    def fork(self, name: str, shell: Shell, request: dict[str, Any]) -> str:
        """Let a child become the program that waits in a sandbox; returns "", or why it is started normally instead.

        Args:
            name: of the sandbox.
            shell: of the sandbox, whose namespaces and control groups the child enters.
            request: the launch request of the sandbox.
        """
        ours, theirs = _socket_pair()
        with ours:
            return self._fork(ours, theirs, name, shell, request)

    @contextlib.contextmanager
    def forked_module(
        self, name: str, shell: Shell, request: dict[str, Any], command: Sequence[str], directory: str
    ) -> Iterator[str]:
        """In the block, a child runs a module's program in a sandbox with an idle shell, and writes to its output.

        Yields "", or why the program is to be started normally.

        Args:
            name, shell: of the sandbox.
            request: the launch request of the sandbox.
            command: the words of the command line, `python3 -m NAME ARG…`.
            directory: the working directory of the program.
        """
        module: dict[str, Any] = {"command": [os.fsencode(word) for word in command], "directory": directory}
        ours, theirs = _socket_pair()
        with ours, theirs:
            try:
                module["shell"] = _id_inside(shell.pid)
                output = os.open(f"/proc/{shell.pid}/fd/{SHELL_OUTPUT}", os.O_WRONLY | os.O_CLOEXEC)
            except OSError as error:
                problem = f"its shell has ended: {error}"
            else:
                try:
                    problem = self._fork(ours, theirs, name, shell, request, module, output)
                finally:
                    os.close(output)
            yield problem

    def _fork(
        self,
        ours: socket.socket,
        theirs: socket.socket,
        name: str,
        shell: Shell,
        request: dict[str, Any],
        module: dict[str, Any] | None = None,
        output: int | None = None,
    ) -> str:
        if self._control is None or self._client is None:
            return self.problem
        opened: dict[str, int] = {}
        try:
            for kind in _NAMESPACES:
                with contextlib.suppress(FileNotFoundError):  # a kernel without this file
                    opened[kind] = os.open(f"/proc/{shell.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
            spaces = [*opened.values()]
            message = {
                "namespaces": list(opened),
                "uid": request["uid"],
                "gid": request["gid"],
                "processes": request["limits"]["processes"],
                "filter": b"" if "seccomp" in disabled_features() else base64.b64decode(request["filter"]),
            }
            threads, version_2 = Group(shell.groups).entrances()
            opened |= {str(number): descriptor for number, descriptor in enumerate(threads)}
            if version_2 is not None:  # a control group that a process cannot enter by itself
                opened["group"] = version_2
                threads = []
            message["groups"] = len(threads)
            passed = [*spaces, *threads, *([] if output is None else [output]), theirs.fileno()]
            with self._lock:
                self._control.settimeout(_FORK_TIMEOUT_S)
                socket.send_fds(self._control, [marshal.dumps(message, 2)], passed)
            theirs.close()
            first, pid = _sender(ours)
            if pid == 0:
                return "the imported program has ended, or no process is left for its child"
            answer = self._client.ask({"do": "adopt", "id": name, "pid": pid, "add": first != b"here"})
            if answer != "adopted":
                return answer
            ours.send(b"go")
            if module is not None:
                ours.send(marshal.dumps(module, 2))
            word, _, reason = ours.recv(4096).decode(errors="replace").partition(" ")
        except OSError as error:
            return f"the imported program does not answer: {error}"
        finally:
            for descriptor in opened.values():
                os.close(descriptor)
            theirs.close()
        if word == "failed" and not self._worked:  # after a first success, the cause is that the sandbox has ended
            self.problem = self.problem or f"its child cannot enter a sandbox: {reason}"
        self._worked = self._worked or word in ("started", "usual")
        return "" if word == "started" else reason or "its child was ended"

    def leave(self) -> None:
        """Close the descriptors that lead to it; it ends when no process has them any more."""
        if self._control is not None:
            self._control.close()

    def close(self) -> None:
        """End it, and all sandboxes below it."""
        if self._owner == os.getpid():
            self.leave()
        if self.last is not None:
            os.close(self.last)
            self.last = None
        self._place.close()


def _read_now(pipe: int) -> bytes:
    """The content of a pipe, which is then closed."""
    with open(pipe, "rb", buffering=0) as file:
        os.set_blocking(pipe, False)
        return file.read(1 << 16) or b""


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets; the kernel tells the first one which process sends a message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(_FORK_TIMEOUT_S)
    return ours, theirs


def _id_inside(pid: int) -> int:
    """The id of a process of this machine in its innermost process namespace."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(next(line for line in status if line.startswith("NSpid:")).split()[-1])


def _sender(ours: socket.socket) -> tuple[bytes, int]:
    """The first report of the child, and its id according to the kernel; 0 if there is none."""
    message, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_SPACE(12))
    for level, kind, data in ancillary:
        if message and (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return message, int(struct.unpack("=iII", data)[0])
    return b"", 0


def _interpreter(path: str, layers: Sequence[str]) -> list[str]:
    """The words that start a program's Python: those of its first line, or python3."""
    for layer in layers:
        with contextlib.suppress(OSError), open(f"{layer}{path}", "rb") as file:
            first = file.readline(256)
            if first.startswith(b"#!"):
                return first[2:].decode(errors="replace").split()
            return ["/usr/bin/env", "python3"]
    raise OSError(f"there is no program {path}")


_lock = threading.Lock()
_programs: dict[tuple[tuple[Any, ...], int], ImportedProgram] = {}


def find_imported(spec: SandboxSpec, sandbox: LocalSandbox) -> tuple[ImportedProgram | None, str]:
    """The imported program for a sandbox, started if there is none; else None and the reason.

    The program of a module belongs to one sandbox until all processes of that sandbox have ended. So what the kernel
    shows or counts for all processes of one program (locks on its file, instances of inotify) carries no information
    from one run to another.

    The caller counts as a user of it until `release`.
    """
    assert spec.imports is not None
    if "imports" in disabled_features():
        return None, "switched off by SWEGYM_WITHOUT"
    if spec.network:
        return None, "the sandbox has the network of the machine, in which others could answer for it"
    layers = spec.layers[:-1]
    imports = spec.imports
    key = (
        supervisor().pid, spec.image, layers, spec.workdir, spec.path, tuple(spec.binds.items()), spec.network,
        spec.limits, imports.program, imports.modules, imports.unless, tuple(imports.environment.items()),
        sandbox.backend,
    )  # fmt: skip
    is_lent = imports.program == MODULE
    most = 2 * _MOST_LENT if is_lent else _MOST
    with _lock:
        places = [(key, number) for number in range(_MOST_LENT if is_lent else 1)]
        free = [place for place in places if place in _programs and (_programs[place].is_free() or not is_lent)]
        free += [place for place in places if place not in _programs]
        found = _programs.pop(free[0], None) if free else None
        if found is not None and not found.problem and found.import_done and not found.alive():
            found.close()
            found = None
        same = {place: one for place, one in _programs.items() if one.is_lent == is_lent}
        unused = [place for place, one in same.items() if not one.users]
        while found is None and len(same) >= most and unused:
            del same[unused[0]]
            _programs.pop(unused.pop(0)).close()
        if not free or (found is None and len(same) >= most):
            return None, "all imported programs are in use"
        if found is None:
            place = dataclasses.replace(spec, layers=layers, imports=None, port=None)
            found = ImportedProgram(sandbox.unstarted(place), imports)
        _programs[free[0]] = found
        found.users += 1
    found.start()
    if found.problem:
        release(found)
        return None, found.problem
    return found, ""


def release(imported: ImportedProgram, first_process: int = 0) -> None:
    """A sandbox that uses it has ended, or will soon.

    Args:
        first_process: of the sandbox, on the host; 0: none of its processes is left.
    """
    with _lock:
        imported.users -= 1
        if not imported.is_lent or not first_process:
            return
        if imported.last is not None:
            os.close(imported.last)
            imported.last = None
        with contextlib.suppress(OSError):  # the process was already waited for
            imported.last = os.pidfd_open(first_process)


def _leave_all() -> None:
    for one in _programs.values():
        one.leave()
    _programs.clear()


def _forget() -> None:
    """In a forked child: forget the parent's imported programs, since the child has sandboxes of its own."""
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.Lock()
    _leave_all()


os.register_at_fork(after_in_child=_forget)
atexit.register(_leave_all)
