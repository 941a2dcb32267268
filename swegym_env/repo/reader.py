"""Processes that compute the patches of episodes with many or large changes, in place of the one that plays them.

A thread that walks and reads 40,000 files takes the interpreter from all other episodes of its process, some
milliseconds at a time, for seconds. So a patch that is not ready after 5 ms is computed anew by another process: it
does the same (`capture.compute_patch`) with the same rights and limits, and remembers the files that it has read.

It starts in 0.2 s without the packages that an environment needs, with a lower priority than the episodes, and ends
with its owner, by whatever death: a thread of it waits for the end of a pipe. Nobody waits for the patch of another
episode: there are as many as are in use at once, and one that is idle.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from swegym_env import errors
from swegym_env.errors import InfrastructureError, SandboxError
from swegym_env.paths import run_dir
from swegym_env.sandbox.api import Limits
from swegym_env.sandbox.budget import SHORT_S
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.leases import lease_directory
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["Reading", "main", "readers"]

# The parent package's own __init__ is not run: it registers environments, which takes longer than all the rest.
_PROGRAM = """\
import sys, types
package = types.ModuleType("swegym_env")
package.__path__ = [sys.argv[1]]
sys.modules["swegym_env"] = package
from swegym_env.repo.reader import main
main(sys.argv[2:])
"""
_INHERITED = ("PATH", "LD_LIBRARY_PATH")
_PIECE_BYTES = 1 << 18
_TIMEOUT_S = 300.0  # of wall time, where the machine must be at fault: processor time is limited by what is read
_MOST_IDLE = 1
_MOST_KNOWN, _MOST_CHARACTERS = 64, 64 << 20  # of the last patches
_MOST_BYTES = 256 << 20  # of memory: a reader that has needed more is not kept
_NICENESS = 5
_TRIES = 2


@dataclass(frozen=True)
class Reading:
    """A patch to compute; see `capture.capture_patch`.

    Attributes:
        upper: the writable layer.
        lowers: the layers below it, bottom first.
        own: how many of the last of them are former writable layers, see `sandbox.changes.find_changes`.
        fuse: whether the writable layer was written by fuse-overlayfs.
        base: the repository at the base commit.
        limits: what it may cost.
        fresh: read every changed file again.
    """

    upper: Path
    lowers: Sequence[Path]
    own: int
    fuse: bool
    base: Path
    limits: Limits
    fresh: bool

    def request(self, known: str) -> bytes:
        """One line for the process. `known`: digest of the last patch of the same layer, which need not be sent."""
        fields: dict[str, Any] = {
            "upper": os.fspath(self.upper),
            "lowers": [os.fspath(layer) for layer in self.lowers],
            "own": self.own,
            "fuse": self.fuse,
            "base": os.fspath(self.base),
            "limits": vars(self.limits),
            "fresh": self.fresh,
            "known": known,
        }
        return json.dumps(fields).encode() + b"\n"


class _DiedError(Exception):
    """The process has ended, or does not answer."""


class _Reader:
    """One process, for one reading at a time."""

    def __init__(self) -> None:
        package = Path(__file__).parent.parent
        self._directory = lease_directory("reader", supervisor().pid)
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(package), str(self._directory), str(lifeline)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(lifeline,),
                env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                start_new_session=True,  # Ctrl-C is handled by its owner
                cwd="/",
            )
        except BaseException:
            os.close(self._lifeline)
            remove_tree(self._directory)
            raise
        finally:
            os.close(lifeline)
        self.pid = self._process.pid
        self.memory_bytes = 0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def ask(self, request: bytes) -> tuple[dict[str, Any], str]:
        """The answer and its text. Raises _DiedError."""
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while request:
                request = request[self._requests.write(request) :]
        except OSError as error:
            raise _DiedError from error
        head = bytearray()
        while not head.endswith(b"\n"):
            head += self._read(1, deadline)
        answer = json.loads(head)
        self.memory_bytes = answer["memory_bytes"]
        # Piece by piece: each call holds the interpreter's lock, and a patch may take 64 MiB.
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        text, left = [], answer["size_bytes"]
        while left:
            piece = self._read(min(left, _PIECE_BYTES), deadline)
            left -= len(piece)
            text.append(decoder.decode(piece, not left))
        return answer, "".join(text)

    def _read(self, most: int, deadline: float) -> bytes:
        if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise _DiedError
        piece = os.read(self._answers.fileno(), most)
        if not piece:
            raise _DiedError
        return piece

    def close(self) -> None:
        """End it and remove its objects."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()
        remove_tree(self._directory)

    def abandon(self) -> None:
        """In a forked child: the process belongs to the parent, and must see the end of the parent's pipe."""
        self._close_pipes()
        self._process.returncode = 0

    def _close_pipes(self) -> None:
        for stream in (self._requests, self._answers):
            stream.close()
        os.close(self._lifeline)


class Readers:
    """As many readers as are in use at once, and an idle one. Thread-safe; no caller waits for another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Reader] = []
        self._all: set[_Reader] = set()
        # Of layers that took long the last time: digest and patch.
        self._known: OrderedDict[Path, tuple[str, str]] = OrderedDict()

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        with self._lock:
            return [one.pid for one in self._all]

    def patch(self, reading: Reading) -> str:
        """The patch.

        Raises:
            OSError: the writable layer cannot be read.
            RepositoryError, StorageError: as `capture.capture_patch`.
            SandboxError: the process died, twice.
        """
        with self._lock:
            digest, known = self._known.get(reading.upper, ("", ""))
        for _ in range(_TRIES):
            with contextlib.suppress(_DiedError), self._one() as one:
                answer, text = one.ask(reading.request(digest))
                break
        else:
            raise SandboxError("the process that reads changed files died. Try: more memory for this machine")
        if answer["kind"] == "error":
            kind = getattr(errors, answer["type"], SandboxError)
            raise kind(text) if issubclass(kind, InfrastructureError) else SandboxError(text)
        if answer["kind"] == "unreadable":
            raise OSError(answer["errno"], text)
        if answer["kind"] == "known":
            text = known
        with self._lock:
            self._known.pop(reading.upper, None)
            if answer["cpu_s"] > SHORT_S:
                self._known[reading.upper] = answer["digest"], text
            kept = sum(len(patch) for _, patch in self._known.values())
            while self._known and (kept > _MOST_CHARACTERS or len(self._known) > _MOST_KNOWN):
                kept -= len(self._known.popitem(last=False)[1][1])
        return text

    def takes_long(self, upper: Path) -> bool:
        """Whether the last patch of this writable layer took long."""
        with self._lock:
            return upper in self._known

    def close(self) -> None:
        """End those that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._known.clear()
        for one in idle:
            self._end(one)

    def abandon(self) -> None:
        """See `_Reader.abandon`; for all of them."""
        for one in self._all:
            one.abandon()

    @contextlib.contextmanager
    def _one(self) -> Iterator[_Reader]:
        with self._lock:
            one = self._idle.pop() if self._idle else None
        if one is None:
            one = _Reader()
            with self._lock:
                self._all.add(one)
        try:
            yield one
        except BaseException:  # an answer may be half read
            self._end(one)
            raise
        with self._lock:
            kept = len(self._idle) < _MOST_IDLE and one.memory_bytes < _MOST_BYTES
            if kept:
                self._idle.append(one)
        if not kept:
            self._end(one)

    def _end(self, one: _Reader) -> None:
        with self._lock:
            self._all.discard(one)
        one.close()


_readers: dict[Path, Readers] = {}
_readers_lock = threading.Lock()


def readers() -> Readers:
    """This process's readers in `run_dir()`."""
    with _readers_lock:
        if not _readers:
            atexit.register(_close_all)
        return _readers.setdefault(run_dir(), Readers())


def _close_all() -> None:
    for one in _readers.values():
        one.close()


def _forget_in_child() -> None:
    for one in _readers.values():
        one.abandon()
    _readers.clear()
    _readers_lock.release()


os.register_at_fork(
    before=_readers_lock.acquire, after_in_parent=_readers_lock.release, after_in_child=_forget_in_child
)


def main(arguments: list[str]) -> None:
    """The process: one answer for each request on standard input.

    Args:
        arguments: a leased directory for git's objects; the descriptor of a pipe that ends with the owner.
    """
    from swegym_env.repo.differ import work_in

    directory, lifeline = arguments
    threading.Thread(target=_end_with_owner, args=(int(lifeline),), daemon=True).start()
    os.nice(_NICENESS)
    work_in(Path(directory))
    for line in sys.stdin.buffer:
        head, content = _answer(json.loads(line))
        sys.stdout.buffer.write(json.dumps(head).encode() + b"\n" + content)
        sys.stdout.buffer.flush()


def _answer(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    from swegym_env.repo.capture import compute_patch
    from swegym_env.sandbox.changes import find_changes

    head: dict[str, Any] = {"kind": "patch"}
    upper, lowers = Path(request["upper"]), [Path(layer) for layer in request["lowers"]]
    began_s = time.thread_time()
    fuse, own = request["fuse"], request["own"]
    try:
        text = compute_patch(
            lambda budget: find_changes(upper, lowers, "/testbed", fuse=fuse, budget=budget, own=own),
            Path(request["base"]),
            Limits(**request["limits"]),
            fresh=request["fresh"],
        )
    except InfrastructureError as error:
        head, text = {"kind": "error", "type": type(error).__name__}, str(error)
    except OSError as error:
        head, text = {"kind": "unreadable", "errno": error.errno or 0}, str(error.strerror)
    content = text.encode("utf-8", "surrogateescape")
    if head["kind"] == "patch":
        head["digest"] = blake2b(content, digest_size=16).hexdigest()
        if head["digest"] == request["known"]:
            head["kind"], content = "known", b""
    head["cpu_s"] = time.thread_time() - began_s
    head["size_bytes"] = len(content)
    head["memory_bytes"] = _peak_memory_bytes()
    return head, content


def _peak_memory_bytes() -> int:
    """Of this program alone: `getrusage` counts the memory of the process that it was forked from too."""
    found = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _end_with_owner(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)
