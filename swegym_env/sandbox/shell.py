r"""The protocol with one long-lived bash over three pipes.

Each command goes down standard input as one frame:

    { eval 'COMMAND'; } </dev/null >&8 2>&1 7>&- 8>&-
    builtin printf '\001NONCE %d %s\0' $? "$PWD" >&7

The command runs in the shell itself, so its directory, variables and functions stay; it sees neither the shell's own
input nor the descriptor on which the trailer is sent (bash keeps both close-on-exec), and the nonce is fresh. Output
comes on standard output, the trailer on standard error's pipe: nothing printed can be taken for a trailer, whatever
its bytes, and a background job that keeps the output open delays nothing. No helper, variable or prompt is left in
the shell for the command to see or break.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import secrets
import select
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Answer", "CappedOutput", "Shell", "Watcher", "quoted"]

STATE_FILE = "/.swegym/state"
ABORT_SIGNAL = "USR2"

# What a shell leaves behind for its successor: at its exit, or when asked. Sourced inside the sandbox only. A pipe put
# in the file's place would hold the shell until somebody reads it.
SAVE_STATE = (
    f"{{ [[ -f {STATE_FILE} || ! -e {STATE_FILE} ]] || \\command \\rm -rf {STATE_FILE}; "
    f"{{ declare -p; declare -f; shopt -p; alias -p; }} >{STATE_FILE}; }} 2>/dev/null"
)
_READ_BYTES = 1 << 16
_WATCH_AFTER_S = 0.1  # most commands are over by then, and cost no watching

_NoTrailer = Literal["ended", "time", "stopped"]


class Watcher(Protocol):
    """Who looks at what a long command uses."""

    descriptor: int

    def watch(self) -> None:
        """The command takes long."""

    def heard(self) -> bool:
        """The descriptor can be read: True if the command is to be ended."""

    def rest(self) -> None:
        """The command is over."""


@dataclass(frozen=True)
class Answer:
    """How a command ended.

    Attributes:
        output: what it printed, capped.
        truncated_bytes: how much of it was dropped.
        exit_code: None where the shell gave no trailer.
        directory: the shell's directory afterwards; None where the shell gave no trailer.
        ended: the shell is gone (`exit`, `exec`, killed).
        stopped: the watcher wants it ended.
    """

    output: bytes
    truncated_bytes: int
    exit_code: int | None
    directory: str | None
    ended: bool = False
    stopped: bool = False


class CappedOutput:
    """Keeps the head and the tail of a stream, at most `limit_bytes`, and counts what lies between."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_bytes = (limit_bytes + 1) // 2
        self._tail_bytes = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes + _READ_BYTES:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_bytes
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess

    def take(self) -> bytes:
        """What was kept. Where something was dropped, it lies between the head and the tail."""
        self._trim()
        return bytes(self._head + self._tail)


class Shell:
    """One bash at the other end of three pipes. The descriptors belong to it from here on."""

    def __init__(self, commands: int, output: int, status: int) -> None:
        self._commands, self._output, self._status = commands, output, status
        self._poll = select.poll()
        self._poll.register(output, select.POLLIN)
        self._poll.register(status, select.POLLIN)
        self.unparsed = b""  # what came on the status pipe besides trailers; what a failing start has to say

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the shell is gone or has said something; False if time is up first."""
        watcher = select.poll()
        watcher.register(self._status, select.POLLIN)
        return bool(watcher.poll(timeout_s * 1000))

    def prepare(self, lines: Sequence[str]) -> None:
        """Send what must come before the first command; the first answer tells whether it went well."""
        self._send(os.fsencode("; ".join(("exec 7>&2 8>&1 >/dev/null 2>&1", *lines))) + b"\n")

    def run(self, command: bytes, timeout_s: float, output_limit: int, watcher: Watcher | None = None) -> Answer:
        """Run one command and wait for its trailer, the shell's end, the time limit or the watcher's word."""
        nonce = secrets.token_hex(16).encode()
        frame = (
            b"{ eval " + quoted(command) + b"\n} </dev/null >&8 2>&1 7>&- 8>&-\n"
            b"builtin printf '\\001" + nonce + b' %d %s\\0\' $? "$PWD" >&7\n'
        )
        kept = CappedOutput(output_limit)
        self._send(frame)  # to a shell that is gone too: what it said before it went is still to be read
        trailer = self._await_trailer(b"\1" + nonce + b" ", kept, time.monotonic() + timeout_s, watcher)
        if isinstance(trailer, str):
            return Answer(kept.take(), kept.dropped, None, None, ended=trailer == "ended", stopped=trailer == "stopped")
        self.drain(kept)
        code, _, directory = trailer.partition(b" ")
        return Answer(kept.take(), kept.dropped, int(code), os.fsdecode(directory))

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._commands, data) :]

    def _await_trailer(
        self, start: bytes, kept: CappedOutput, deadline: float, watcher: Watcher | None
    ) -> bytes | _NoTrailer:
        """The trailer's text, or why there is none."""
        status = b""
        watch_at = time.monotonic() + _WATCH_AFTER_S if watcher else deadline
        watching = False
        try:
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return "time"
                if watcher and not watching and now >= watch_at:
                    watcher.watch()
                    self._poll.register(watcher.descriptor, select.POLLIN)
                    watching = True
                ready = dict(self._poll.poll(((deadline if watching else min(deadline, watch_at)) - now) * 1000 + 1))
                if self._output in ready:
                    kept.feed(os.read(self._output, _READ_BYTES))
                if self._status in ready:
                    piece = os.read(self._status, _READ_BYTES)
                    if not piece:
                        self.drain(kept)
                        return "ended"
                    status += piece
                    self.unparsed = (self.unparsed + piece)[-4096:]
                    _, found, rest = status.partition(start)
                    if found and b"\0" in rest:
                        return rest.partition(b"\0")[0]
                    if not found:
                        status = status[-len(start) :]
                if watcher and watcher.descriptor in ready and watcher.heard():
                    return "stopped"
        finally:
            if watcher and watching:
                self._poll.unregister(watcher.descriptor)
                watcher.rest()

    def drain(self, kept: CappedOutput) -> None:
        """Take what lies in the output pipe now, and wait for nothing more."""
        waiting = array.array("i", [0])
        fcntl.ioctl(self._output, termios.FIONREAD, waiting)
        left = waiting[0]
        while left > 0:
            data = os.read(self._output, min(left, _READ_BYTES))
            kept.feed(data)
            left -= len(data) or left

    def close(self) -> None:
        """Close the pipes."""
        for descriptor in (self._commands, self._output, self._status):
            os.close(descriptor)


def quoted(text: bytes) -> bytes:
    """One word of bash that means `text`, whatever it holds but NUL."""
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
