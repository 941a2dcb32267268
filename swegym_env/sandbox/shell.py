r"""The long-lived bash of a sandbox: started by the supervisor in a container, it receives one command at a time.

Three pipes connect it. Each command is sent to its standard input as one frame:

    { eval 'COMMAND'; } </dev/null >&8 2>&1 7>&- 8>&-
    builtin printf '\001NONCE %d %s\0' $? "${PWD:0:4097}" >&7

The command runs in the shell itself, so its directory, variables and functions persist. Output arrives on standard
output, and the trailer on the pipe of standard error. So output cannot be taken for a trailer, whatever its bytes, and
a background job that keeps the output open delays nothing. The shell contains no function, variable or prompt of ours
that the command could see or break.

Programs inherit none of the pipes (bash keeps them close-on-exec), but a program that runs as the agent can take them
from bash, read the nonce and write a trailer, stop bash, or fill the pipes. It gains nothing: a trailer states the exit
code and the directory of the agent's own command, and both are bounded and used for nothing else. No wait here is
longer than the command may take, whatever the pipes contain. A byte on the status pipe that is not part of the one
expected trailer ends the shell, as if the command had killed it. The next command gets another shell.

A fourth pipe, the event pipe, comes from the supervisor: see `linux.supervisor` for its lines. No process in the
container has it.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import select
import signal
import socket
import termios
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from swegym_env.errors import SandboxBrokenError, SandboxError
from swegym_env.sandbox.api import CommandResult, SandboxSpec
from swegym_env.sandbox.client import SupervisorClient
from swegym_env.sandbox.host_image import HOME
from swegym_env.sandbox.identity import sandbox_user
from swegym_env.sandbox.interpreter import shared_interpreter
from swegym_env.sandbox.limits import EXIT_CODES, reached_limit, were_starved
from swegym_env.sandbox.linux.cgroups import Counters
from swegym_env.sandbox.linux.files import read_file, write_file
from swegym_env.sandbox.linux.kernel import is_readable, open_inside, watch_opening
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.sandbox.writable import WritableLayer

__all__ = ["BASH", "ENVIRONMENT", "SHELL_OUTPUT", "STATE_FILE", "CappedOutput", "Shell", "program_command"]

BASH = ("/bin/bash", "--noprofile", "--norc")
STATE_FILE = "/.swegym/state"
SHELL_OUTPUT = 8
"""The shell's descriptor for the output of its commands."""

# The state that a shell saves for its successor, at its exit or on request. The file is sourced inside the sandbox
# only. A named pipe in its place would block the shell, so anything but a regular file is removed first. `shopt` comes
# before the functions, which can be read only with the `extglob` that they were written with.
_SAVE_STATE = (
    f"{{ [[ -f {STATE_FILE} || ! -e {STATE_FILE} ]] || \\command \\rm -rf {STATE_FILE}; "
    "{ \\builtin declare -p; \\builtin shopt -p; \\builtin declare -f; \\builtin alias -p; \\builtin set +o; "
    "\\builtin umask -p; } "
    f">|{STATE_FILE}; }} 2>/dev/null"
)
_ABORT_SIGNAL = signal.SIGUSR2
_ABORT_GRACE_S = 0.3
_RESUME_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 20.0
_EXIT_GRACE_S = 1.0  # from the end of bash to the end of its container
_LONG_COMMAND_BYTES = 8192  # bash reads a pipe byte by byte; beyond this a file is faster
_SET_UP = "SWEGYM_SET_UP"  # bash reads the line that sets it up from this variable, for the same reason
_LONG_SET_UP = 1 << 14  # characters; a longer one is sent through the pipe
_LONGEST_DIRECTORY = 4096  # characters; the shell sends none that is longer
_FRAME = (
    b"\n} </dev/null >&8 2>&1 7>&- 8>&-\nbuiltin printf '\\001",
    b' %%d %%s\\0\' $? "${PWD:0:%d}" >&7\n' % (_LONGEST_DIRECTORY + 1),
)
_TRAILER_BYTES = 8 * _LONGEST_DIRECTORY  # no trailer is longer
_TRAILER = re.compile(rb"([0-9]{1,3}) (.*)", re.DOTALL)
_LARGEST_EXIT_CODE = 255
_KILLED = 128 + signal.SIGKILL
_BROKEN = b"bash: killed: a command damaged the descriptors through which the shell is used\n"
_READ_BYTES = 1 << 16
# A program that prints line by line would wake the reader for each line: after a few pieces that are smaller than this,
# the reader waits for more. The end of a command arrives on another pipe and is never delayed.
_FEW_PIECES, _SMALL_PIECE_BYTES, _WAIT_FOR_MORE_MS = 4, 4096, 2
_WATCH_AFTER_S = 0.1  # most commands have ended by then and need no monitoring
_SUPERVISOR_DIED = "the sandbox is gone: its supervisor died. Try: reset, which starts another"
_ENDS_COMMAND = ("cpu", "disk")  # the limits at which the owner ends the command

# Apptainer writes the ENV lines of a Docker image and %environment of a definition into these; sourced in this order.
_IMAGE_ENVIRONMENT = ("/.singularity.d/env/10-docker2singularity.sh", "/.singularity.d/env/90-environment.sh")
ENVIRONMENT = {
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

_NoTrailer = Literal["exited", "timed out", "over a limit", "broken"]


class CappedOutput:
    """Keeps the head and the tail of a stream, at most `limit_bytes`, and counts the bytes dropped between them."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = (limit_bytes + 1) // 2
        self._tail_bytes = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def feed(self, data: bytes) -> None:
        """Add the next piece of the stream."""
        free = self._head_bytes - len(self._head)
        if free > 0:
            self._head += data[:free]
            data = data[free:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes + _READ_BYTES:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess

    def take(self) -> bytes:
        """The bytes kept: the head and the tail, next to each other."""
        self._trim()
        return bytes(self._head + self._tail)


class Shell:
    """One bash in a container of its own. A sandbox may use several in turn: files persist, the shell is replaced.

    Args:
        client: the supervisor.
        request: the supervisor's launch request, see `Backend.request`; its command is `BASH`.
        layer: the writable layer that the container runs on.
        spec: variables, search path and limits.
        directory: where to start.
        between: as an earlier shell of the sandbox found it; 0: no program of the agent has run in the sandbox.

    Attributes:
        between: number of processes between the supervisor and bash.
        listener: listens at the port of the sandbox's loopback that the request names; None if it names none.
        pid: of bash, on the host; 0 until `start` has returned.
        groups: directories of the container's control groups, by controller.
        directory: bash's working directory after the last command; None before the first.
        ended: bash has ended. The next command needs another shell.
        unread: bash had ended before it read anything of the last command, which therefore did not run.
        fuse: whether fuse-overlayfs serves the files.
    """

    def __init__(
        self,
        client: SupervisorClient,
        request: Mapping[str, Any],
        layer: WritableLayer,
        spec: SandboxSpec,
        directory: str,
        between: int = 0,
    ) -> None:
        set_up = _set_up(spec, directory)
        self._set_up = os.fsencode(set_up) + b"\n"
        if request["isolation"] == "supervisor" and len(set_up) < _LONG_SET_UP and "\0" not in set_up:
            request = {**request, "environment": {**request["environment"], _SET_UP: set_up}}
            self._set_up = b'eval "$%b"; unset -v %b\n' % (_SET_UP.encode(), _SET_UP.encode())
        self.pid = 0
        self.between = between
        self.groups: Mapping[str, str] = {}
        self.directory: str | None = None
        self.ended = False
        self.unread = False
        self.fuse = False
        self._client = client
        self._user = sandbox_user()  # on the host
        self._id = request["id"]
        self._cpu_s = request["limits"]["cpu_s"]
        self._layer = layer
        self._launched = 0  # the first process of the container, on the host
        self._infrastructure: frozenset[int] = frozenset()  # the first process, and those between it and bash
        self._root: int | None = None  # the container's root directory
        self._status_tail = b""  # the last bytes of the status pipe, which explain a failed start
        self._unsent = b""  # bytes that are still to be sent
        self._sent = 0  # bytes of the current command that were written to the pipe
        self._start = self._received = b""  # the beginning of the trailer, and the bytes received since its command
        self._event_line = b""  # the last, unfinished line of the event pipe
        self._events: dict[str, str] = {}
        self._limits: set[str] = set()  # reported by the supervisor since the last `_take_reached_limits`
        self._counters: Counters | None = None
        self._counts: dict[str, int] = {}
        self._status_closed = self._output_closed = False  # by all processes that could write
        self._small_pieces, self._waits_for_more = 0, False  # of the current command's output
        commands_read, self._commands = os.pipe()
        self._output, output_write = os.pipe()
        self._status, status_write = os.pipe()
        self._event_pipe, event_write = os.pipe()
        self.listener: socket.socket | None = None
        channel: tuple[socket.socket, ...] = ()
        if request.get("port"):
            channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for descriptor in (self._commands, self._output, self._status):
            os.set_blocking(descriptor, False)  # a process of the agent may have read the bytes already
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._status, select.POLLIN)
        passed = [end.detach() for end in channel[1:]]
        theirs = (commands_read, output_write, status_write, *passed, event_write)
        self._channel = channel[0] if channel else None
        try:
            client.send({"do": "launch", **request}, theirs)
        except SandboxError:
            self.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def start(self, *, resume: bool, timeout_s: float) -> str:
        """Set bash up and wait for its first answer; "" if it answers, else the reason why not, and it is closed.

        Args:
            resume: source the state that the last shell of the sandbox saved.
            timeout_s: seconds until bash must have answered, not counting the state.

        Raises:
            SandboxError: the supervisor does not answer.
        """
        started = False
        try:
            answer = self._exchange(b":", timeout_s, CappedOutput(4096), set_up=self._set_up)
            if isinstance(answer, tuple):
                failure = self._enter()
                if not failure and resume:
                    # The directory was recorded by the last shell itself; options that ended that shell are not
                    # restored. `cd` sets OLDPWD, which is kept in $1.
                    restored = (
                        f'. {STATE_FILE}; set +eut -- "$OLDPWD"; builtin cd -- "$PWD"; OLDPWD=$1; set --'.encode()
                    )
                    answer = self._exchange(restored, _RESUME_TIMEOUT_S, CappedOutput(4096))
                    failure = "" if isinstance(answer, tuple) else "its saved state cannot be restored"
                started = not failure
            elif answer == "exited":
                written = self._status_tail.decode(errors="replace").strip().splitlines()
                failure = self._events.get("error") or (written or ["no reason given"])[-1]
            else:
                failure = "its shell did not answer"
            if failure:
                self.end()
        except SandboxError:
            raise
        except BaseException:  # an interrupt: when its pipes close, bash would save a state that is not restored
            self.end()
            raise
        finally:
            if not started:
                self.close()
        return failure

    def _enter(self) -> str:
        """Find bash, which has no process of the agent around it yet, and open its root; "" or the reason why not."""
        while "pid" not in self._events and self._read_events(_EXIT_TIMEOUT_S):
            pass
        self._read_new_events()
        if "pid" not in self._events:
            raise SandboxError(_SUPERVISOR_DIED)
        self.fuse = self._events.get("overlay") == "fuse"
        if "user" in self._events:
            self._user = int(self._events["user"]), int(self._events["user"])
        self._launched = int(self._events["pid"])
        # In a container in which no program of the agent has run, bash is the last process. Later the agent may have
        # replaced bash by a program that starts others; the processes between supervisor and bash are those that
        # started first.
        found = [self._launched, *descendants(self._launched)]
        between = found[: self.between or len(found) - 1]
        if not between:
            return "its shell is gone"
        bash = next(iter(descendants(between[-1])), 0)
        try:
            self._root = os.open(f"/proc/{bash}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            return f"its files cannot be reached: {error.strerror}"
        with contextlib.suppress(PermissionError):  # fuse-overlayfs answers only its own user
            if os.path.samestat(os.fstat(self._root), os.stat("/")):
                return "its shell is gone"  # this process is not in the container's root
        if self._channel is not None:
            self.listener = _received_socket(self._channel)
            if self.listener is None:
                return "nothing listens at its port"
        self.pid = bash
        self.between = len(between)
        self._infrastructure = frozenset(between)
        return ""

    def run(self, command: bytes, timeout_s: float, output_limit_bytes: int) -> CommandResult:
        """Run one command and wait until it ends, times out, or exceeds a limit.

        In the last two cases bash is asked to save its state, and everything in the container is killed. Nothing that a
        command does raises an error. An interrupt of the caller ends the command in the same way.

        Raises:
            SandboxBrokenError: its files filled the machine's disk.
            SandboxError: the supervisor has ended.
            StorageError: the machine's disk is full.
        """
        if len(command) > _LONG_COMMAND_BYTES:
            path = f"/.swegym/command-{time.monotonic_ns()}"
            with contextlib.suppress(OSError):  # no write access any more, or a full disk: it takes longer
                self.write(path, command, 0o600)
                command = f'eval "$(<{path})"'.encode()
        with self._ended_by_interrupts():
            return self._run(command, timeout_s, output_limit_bytes)

    def _run(self, command: bytes, timeout_s: float, output_limit_bytes: int) -> CommandResult:
        began = time.monotonic()
        kept = CappedOutput(output_limit_bytes)
        answer = self._exchange(command, timeout_s, kept, watched=True)
        timed_out = answer == "timed out"
        seconds = time.monotonic() - began
        starved = timed_out and seconds > 2 * _WATCH_AFTER_S and self._was_starved(seconds)
        reached = {"time"} if timed_out else set()
        if isinstance(answer, str):
            with shared_interpreter():  # the agent may have many processes
                exit_code = self._wait() if answer == "exited" else self._abort()
            self.ended = True
            self.unread = answer == "exited" and _waiting_bytes(self._commands) == self._sent
            if not timed_out:
                reached |= self._take_reached_limits()
            if answer == "over a limit":
                exit_code = next(EXIT_CODES[limit] for limit in _ENDS_COMMAND if limit in reached)
            elif answer == "broken":
                exit_code = _KILLED
                kept.feed(_BROKEN)
        else:
            exit_code, directory = answer
            self.directory = directory or self.directory
            reached |= self._take_reached_limits()
        self.check()
        if self._layer.reached_disk_limit(exit_code):
            reached.add("disk")
        output = kept.take()
        return CommandResult(
            output=output.decode("utf-8", "replace"),
            exit_code=exit_code,
            timed_out=timed_out,
            truncated_bytes=kept.dropped,
            duration_s=time.monotonic() - began,
            limit=reached_limit(reached, output=output, exit_code=exit_code, truncated=kept.dropped > 0),
            starved=starved,
        )

    @property
    def first_process(self) -> int:
        """The first process of the container, on the host: it ends after all others. 0 until `start` has returned."""
        return self._launched

    def processes(self) -> list[int]:
        """Every process of the agent in the container, bash included."""
        return [pid for pid in descendants(self._launched) if pid not in self._infrastructure]

    def read(self, path: str) -> bytes:
        """The content of the regular file at an absolute path inside; bash need not be running. Raises OSError."""
        assert self._root is not None
        return read_file(self._root, path, self._user, fuse=self.fuse)

    def write(self, path: str, content: bytes, mode: int) -> None:
        """Write a file at an absolute path inside; an existing file keeps its mode. Raises OSError."""
        assert self._root is not None
        write_file(self._root, path, content, mode, self._user, fuse=self.fuse)

    def watch_opening(self, paths: Iterable[str]) -> int:
        """See `kernel.watch_opening`.

        Args:
            paths: absolute, inside; paths that do not exist are left out.
        Raises:
            OSError: they cannot be watched.
        """
        assert self._root is not None
        with contextlib.ExitStack() as stack:
            files = []
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    files.append(open_inside(self._root, path, os.O_PATH))
                    stack.callback(os.close, files[-1])
            return watch_opening(files)

    def save_state(self, timeout_s: float) -> None:
        """Write variables, functions and options to `STATE_FILE`. If bash does not do so, the shell has `ended`."""
        with self._ended_by_interrupts():
            if isinstance(self._exchange(_SAVE_STATE.encode(), timeout_s, CappedOutput(4096)), str):
                self.check()
                self.end()

    @contextlib.contextmanager
    def _ended_by_interrupts(self) -> Iterator[None]:
        """End the command if an interrupt leaves the block, so that the next command does not get its later output.

        Any exception of a signal handler is an interrupt: KeyboardInterrupt, or the TimeoutError of a caller's alarm.
        """
        try:
            yield
        except SandboxError:
            raise
        except BaseException:
            self.ended = True
            try:
                self._abort()
            except BaseException:
                self._client.send({"do": "end", "id": self._id})
                raise
            raise

    def check(self) -> None:
        """Raise SandboxBrokenError if the supervisor has removed the files of the sandbox, which needs them."""
        self._read_new_events()
        if "broken" in self._events:
            raise SandboxBrokenError(self._events["broken"])

    def end(self) -> None:
        """Kill everything in the container and wait until it is gone; its files stay."""
        self.ended = True
        self._client.send({"do": "end", "id": self._id})
        self._wait()

    def close(self) -> None:
        """Close the pipes."""
        for descriptor in (self._commands, self._output, self._status, self._event_pipe):
            os.close(descriptor)
        for end in (self._channel, self.listener):
            if end is not None:
                end.close()
        if self._root is not None:
            os.close(self._root)
        if self._counters is not None:
            self._counters.close()

    def _exchange(
        self, command: bytes, timeout_s: float, kept: CappedOutput, *, watched: bool = False, set_up: bytes = b""
    ) -> tuple[int, str] | _NoTrailer:
        """Send a command and collect its output; returns exit code and bash's directory, or why there is no trailer.

        Args:
            watched: let the supervisor monitor the resources of a long command, and stop at the limits in
                `_ENDS_COMMAND`.
            set_up: sent before the first command; until its trailer, other bytes may arrive on the status pipe.
        """
        nonce = secrets.token_hex(16).encode()
        frame = set_up + b"{ eval " + _quoted(command) + _FRAME[0] + nonce + _FRAME[1]
        self._received, self._start = b"", b"\1" + nonce + b" "
        self._sent, self._small_pieces, self._waits_for_more = 0, 0, False
        self._unsent = self._send(frame)
        if self._unsent:
            self._poll.register(self._commands, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        watch_at = time.monotonic() + _WATCH_AFTER_S if watched else math.inf
        watching = listening = False
        try:
            while (now := time.monotonic()) < deadline:
                if now >= watch_at:
                    self._read_new_events()
                    self._events.pop("used", None)
                    self._client.send({"do": "watch", "id": self._id, "cpu_s": self._cpu_s})
                    watch_at, watching = math.inf, True
                if not listening and (watching or self._status_closed):
                    self._poll.register(self._event_pipe, select.POLLIN)
                    listening = True
                    # Bash is about to end, or `exec` has replaced it by a program, which may take its time.
                    deadline = max(deadline, now + _EXIT_GRACE_S * self._status_closed)
                answer = self._receive(min(deadline, watch_at) - now, kept, lenient=bool(set_up))
                if answer is not None:
                    self._drain_output(kept)
                    return answer
            return "timed out"
        finally:
            if self._unsent:
                self._poll.unregister(self._commands)
            if listening:
                self._poll.unregister(self._event_pipe)
            if watching:
                self._client.send({"do": "rest", "id": self._id})

    def _receive(self, timeout_s: float, kept: CappedOutput, *, lenient: bool) -> tuple[int, str] | _NoTrailer | None:
        """Wait for data on the pipes and handle it; returns the result of the exchange, or None if it continues."""
        timeout_ms = timeout_s * 1000 + 1
        waits_for_more = self._waits_for_more and not self._output_closed
        self._waits_for_more = False
        if waits_for_more:
            self._poll.modify(self._output, 0)
            ready = dict(self._poll.poll(min(timeout_ms, _WAIT_FOR_MORE_MS)))
            self._poll.modify(self._output, select.POLLIN)
            ready[self._output] = select.POLLIN
        else:
            ready = dict(self._poll.poll(timeout_ms))
        if self._commands in ready:
            self._unsent = self._send(self._unsent)
            if not self._unsent:
                self._poll.unregister(self._commands)
        if self._output in ready:
            self._read_output(kept)
        if self._status in ready:
            answer = self._read_status(lenient=lenient)
            if answer is not None:
                return "broken" if self._unsent or self._output_closed else answer
        if self._event_pipe in ready:
            if not self._read_events(0) or "exit" in self._events:
                return "exited"
            if self._limits.intersection(_ENDS_COMMAND):
                return "over a limit"
        return None

    def _send(self, data: bytes) -> bytes:
        """Write as much of `data` as the pipe accepts now; returns the rest, which is empty if bash has ended."""
        try:
            written = os.write(self._commands, data)
        except BlockingIOError:
            return data
        except BrokenPipeError:  # its earlier output still has to be read
            return b""
        self._sent += written
        return data[written:]

    def _read_status(self, *, lenient: bool) -> tuple[int, str] | Literal["broken"] | None:
        """The exit code and the directory, once the trailer is complete; "broken" if the bytes are not the trailer.

        Args:
            lenient: ignore bytes before the trailer.
        """
        piece = _read(self._status)
        if piece is None:
            return None
        if not piece:
            self._poll.unregister(self._status)
            self._status_closed = True
            return None
        self._status_tail = (self._status_tail + piece)[-4096:]
        self._received += piece
        if lenient and not self._received.startswith(self._start):
            noise, found, trailer = self._received.partition(self._start)
            self._received = found + trailer if found else noise[-len(self._start) :]
            if not found:
                return None
        return _parse_trailer(self._received, self._start)

    def _read_output(self, kept: CappedOutput) -> None:
        piece = _read(self._output)
        if piece:
            kept.feed(piece)
            self._small_pieces += len(piece) < _SMALL_PIECE_BYTES
            self._waits_for_more = len(piece) < _SMALL_PIECE_BYTES and self._small_pieces > _FEW_PIECES
        elif piece is not None and not self._output_closed:
            self._poll.unregister(self._output)
            self._output_closed = True

    def _drain_output(self, kept: CappedOutput) -> None:
        """Read the available output, without waiting for more."""
        left = _waiting_bytes(self._output)
        while left > 0:
            piece = _read(self._output, min(left, _READ_BYTES))
            if not piece:
                return
            kept.feed(piece)
            left -= len(piece)

    def _abort(self) -> int:
        """Ask bash to save its state, and kill everything in the container; returns the exit code for a timeout."""
        deadline = time.monotonic() + _ABORT_GRACE_S
        self._read_new_events()
        if "exit" not in self._events:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, _ABORT_SIGNAL)
                os.kill(self.pid, signal.SIGCONT)
            while time.monotonic() < deadline:
                # Bash handles the signal as soon as the program that it waits for has ended.
                for pid in descendants(self.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                if is_readable(self._status, 0.005):
                    break
        self.end()
        return EXIT_CODES["time"]

    def _was_starved(self, seconds: float) -> bool:
        """Whether a monitored command that timed out after `seconds` lacked processors that other processes used."""
        while "used" not in self._events and self._read_events(_EXIT_TIMEOUT_S):
            pass
        used_s = float(self._events.get("used", math.inf))
        with shared_interpreter():
            return were_starved(self.processes(), used_s, seconds)

    def _wait(self) -> int:
        """Wait until the container has exited; returns its exit code, 126 if it was never launched.

        Raises:
            SandboxError: the supervisor died.
        """
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        while "exit" not in self._events:
            if not self._read_events(deadline - time.monotonic()):
                if "error" in self._events and "pid" not in self._events:
                    return 126
                raise SandboxError(_SUPERVISOR_DIED)
        return int(self._events["exit"])

    def _take_reached_limits(self) -> set[str]:
        """The limits that were reached since the last call, according to the supervisor or the kernel's counters."""
        self._read_new_events()
        reached, self._limits = self._limits, set()
        if "counts" in self._events:
            counts = json.loads(self._events["counts"])
        else:
            counts = {} if self._counters is None else self._counters.read()
        reached.update(limit for limit, count in counts.items() if count > self._counts.get(limit, 0))
        self._counts = counts or self._counts
        return reached

    def _read_new_events(self) -> None:
        while is_readable(self._event_pipe, 0) and self._read_events(0):
            pass

    def _read_events(self, timeout_s: float) -> bool:
        """Wait for events and record them; False at the end of the pipe. Raises SandboxError if none comes in time."""
        if not is_readable(self._event_pipe, timeout_s):
            raise SandboxError(
                f"the sandbox supervisor (process {self._client.pid}) did not answer in time. Try: reset"
            )
        piece = os.read(self._event_pipe, 4096)
        *lines, self._event_line = (self._event_line + piece).split(b"\n")
        for line in lines:
            event, _, value = line.decode(errors="replace").partition(" ")
            self._events[event] = value
            if event == "limit":
                self._limits.add(value)
            elif event == "group":
                self.groups = json.loads(value)
                self._counters = Counters(self.groups)
                self._counts = self._counters.read()
        return bool(piece)


def _set_up(spec: SandboxSpec, directory: str) -> str:
    """The line that sets up a new bash as the shell of a sandbox."""
    lines = [
        "exec 7>&2 8>&1 >/dev/null 2>&1",
        *_variables(spec),
        f"ulimit -d {spec.limits.memory_bytes // 1024}",
        f"cd -- {_quote(directory)}",
        f"trap '{_SAVE_STATE}' EXIT",
        f"trap 'exit {EXIT_CODES['time']}' {_ABORT_SIGNAL.name}",
    ]
    return "; ".join(lines)


def _variables(spec: SandboxSpec) -> list[str]:
    """The commands that set the variables of a sandbox in a shell."""
    return [
        # Apptainer adds variables of its own, and accepts none that contain a comma or a line break.
        "unset ${!APPTAINER*} ${!SINGULARITY*} LD_LIBRARY_PATH OLDPWD PROMPT_COMMAND PS1; BASH_ARGV0=bash",
        _export(ENVIRONMENT),
        *(f"[ -r {file} ] && . {file}" for file in _IMAGE_ENVIRONMENT),
        _export(spec.env),
        *(f'export PATH={_quote(path)}:"$PATH"' for path in reversed(spec.path)),
    ]


def program_command(spec: SandboxSpec, environment: Mapping[str, str], command: str) -> tuple[str, ...]:
    """The words that run `command` with a sandbox's variables in its directory; no shell remains in between."""
    lines = [*_variables(spec), _export(environment), f"cd -- {_quote(spec.workdir)}", command]
    return (*BASH, "-c", "; ".join(lines))


def _parse_trailer(status: bytes, start: bytes) -> tuple[int, str] | Literal["broken"] | None:
    """The exit code and the directory from the bytes of the status pipe; None while the trailer is incomplete.

    Args:
        status: everything since the command was sent.
        start: how the trailer begins.
    """
    if len(status) > _TRAILER_BYTES or status[: len(start)] != start[: len(status)]:
        return "broken"
    end = status.find(b"\0")
    if end < 0:
        return None
    found = _TRAILER.fullmatch(status, len(start), end)
    if found is None or int(found[1]) > _LARGEST_EXIT_CODE or end + 1 < len(status):
        return "broken"
    directory = os.fsdecode(found[2])
    return int(found[1]), directory if len(directory) <= _LONGEST_DIRECTORY else ""


def _received_socket(channel: socket.socket) -> socket.socket | None:
    """The socket that was sent over `channel`; None if there is none."""
    channel.settimeout(_EXIT_TIMEOUT_S)
    with contextlib.suppress(OSError):
        _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                return socket.socket(fileno=array.array("i", data)[0])
    return None


def _read(descriptor: int, most: int = _READ_BYTES) -> bytes | None:
    """The bytes in a pipe; empty at its end, None if there are none yet."""
    try:
        return os.read(descriptor, most)
    except BlockingIOError:
        return None


def _waiting_bytes(pipe: int) -> int:
    """The number of bytes in a pipe."""
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0]


def _export(variables: Mapping[str, str]) -> str:
    return " ".join(["export", *(_quote(f"{name}={value}") for name, value in variables.items())])


def _quote(text: str) -> str:
    return os.fsdecode(_quoted(os.fsencode(text)))


def _quoted(text: bytes) -> bytes:
    """One word of bash whose value is `text`, which may contain anything except NUL."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
