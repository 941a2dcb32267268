"""The supervisor's loop: requests come in on one socket, and its end ends everything.

A request is one message of JSON on a SEQPACKET socket:

    {"do": "room", "place": …, …}              make the room of a writable layer; with one descriptor for the answer
    {"do": "copy", "from": …, "to": …}         copy a directory as it is; with one descriptor for the answer
    {"do": "launch", "kind": …, "id": …, …}    start a sandbox; with four descriptors: stdin, stdout, stderr, life line
    {"do": "watch", "id": …, "cpu_s": …}       a command takes long: look often at what it uses
    {"do": "rest", "id": …}                    it is over
    {"do": "end", "id": …}                     kill it; its directory stays
    {"do": "close", "id": …, "directory": …}   kill it and remove its directory
    {"do": "remove", "directory": …}           remove a directory

Nothing is answered there. A room is told in one line: `memory`, `plain` or `error TEXT`; a copy by what `cp` had to say
and then `exit CODE`. What becomes of a sandbox is told on its own life line, in lines:

    pid N            it is launched                    overlay NAME   "kernel" or "fuse" lays its layers over each other
    group JSON       its control groups                error TEXT     it could not be launched
    limit NAME       the watch saw a limit exceeded    counts JSON    at the end: how often the kernel saw one reached
    exit CODE        its process ended and has been waited for
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from .cgroups import Counters, Group, make_group
from .launching import launch
from .processes import Lifeline, kill_one, start_copy, tell
from .removal import remove_tree
from .rooms import Rooms, enter_own_mounts
from .watching import Watch

__all__ = ["main"]

_MESSAGE_BYTES = 1 << 18
_OFTEN_MS, _SELDOM_MS = 50, 1000  # between two looks at what is watched


@dataclass
class _Running:
    pid: int
    life: int
    directory: str
    group: Group
    watch: Watch
    remove: bool = False


class _Supervisor:
    def __init__(
        self, owner: socket.socket, run_directories: list[str], owner_name: str, without: frozenset[str]
    ) -> None:
        self._owner = owner
        self._run_directories = run_directories
        self._owner_name = owner_name
        self._without = without
        self._rooms = Rooms(may_mount="rooms" not in without and enter_own_mounts())
        self._lifeline = Lifeline()
        self._running: dict[str, _Running] = {}
        self._names: dict[int, str] = {}
        self._copies: dict[int, int] = {}  # process id → where its end is to be told

    def serve(self) -> None:
        """Serve until the owner's end of the socket is shut, then leave nothing."""
        child_ended, wake = os.pipe()
        for descriptor in (child_ended, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        watcher = select.poll()
        watcher.register(self._owner, select.POLLIN)
        watcher.register(child_ended, select.POLLIN)
        looked = time.monotonic()
        while True:
            pause_ms = self._pause_ms()
            ready = watcher.poll(pause_ms)
            if pause_ms is not None and time.monotonic() - looked >= pause_ms / 1000:
                self._look(often=pause_ms == _OFTEN_MS)
                looked = time.monotonic()
            for descriptor, _ in ready:
                if descriptor == child_ended:
                    os.read(child_ended, 4096)
                    self._reap(os.WNOHANG)
                elif not self._answer():
                    self._end_all()
                    return

    def _pause_ms(self) -> int | None:
        """How long to wait for requests until the next look; None: there is nothing to look at."""
        watches = [running.watch for running in self._running.values()]
        if any(watch.often for watch in watches):
            return _OFTEN_MS
        return _SELDOM_MS if any(watch.needed for watch in watches) else None

    def _look(self, *, often: bool) -> None:
        for running in self._running.values():
            if running.watch.often or (running.watch.needed and not often):
                for limit in running.watch.look():
                    tell(running.life, f"limit {limit}")
                    if limit == "disk" and not running.watch.often:
                        kill_one(running.pid)  # in the background, where no owner waits for a command to end it
                running.watch.enforce()

    def _answer(self) -> bool:
        """Do what one message asks; False when there will be no more."""
        try:
            message, descriptors = _receive(self._owner)
        except ConnectionResetError:
            return False
        if not message:
            return False
        request = json.loads(message)
        if request["do"] == "launch":
            self._launch(request, descriptors)
        elif request["do"] == "room":
            self._give_room(request, descriptors[0])
        elif request["do"] == "copy":
            self._copies[start_copy(request["from"], request["to"], descriptors[0])] = descriptors[0]
        elif request["do"] == "remove":
            self._remove(request["directory"])
        else:
            self._change(request)
        return True

    def _change(self, request: dict[str, Any]) -> None:
        """What concerns a running sandbox; one that has ended by itself only has files left."""
        running = self._running.get(request["id"])
        if running is None:
            if request["do"] == "close":
                self._remove(request["directory"])
        elif request["do"] == "watch":
            running.watch.begin(request["cpu_s"])
        elif request["do"] == "rest":
            running.watch.end()
        else:
            running.remove = request["do"] == "close"
            kill_one(running.pid)  # the first of its process namespace: all inside go with it

    def _give_room(self, request: dict[str, Any], answer: int) -> None:
        try:
            own = self._rooms.give(request["place"], request["size_bytes"], request["inodes"])
            tell(answer, "memory" if own else "plain")
        except OSError as error:
            tell(answer, f"error {error.strerror}")
        finally:
            os.close(answer)

    def _launch(self, request: dict[str, Any], descriptors: list[int]) -> None:
        stdin, stdout, status, life = descriptors
        os.set_blocking(life, False)
        limits = request["limits"]
        group = Group({})
        if "cgroups" not in self._without:
            memory_bytes = limits["memory_bytes"] + limits["files_in_memory_bytes"]
            group = make_group(request["id"], memory_bytes, limits["processes"])
        request["without"] = self._without
        try:
            pid = launch(request, (stdin, stdout, status), life, self._lifeline, group)
        except OSError as error:
            tell(life, f"error {error}")
            os.close(life)
            group.remove()
        else:
            tell(life, f"pid {pid}")
            tell(life, f"group {json.dumps(group.directories)}")
            upper = None if limits["files_in_memory_bytes"] else os.path.join(request["layer"], "upper")
            watch = Watch(pid, limits, group, upper)
            self._running[request["id"]] = _Running(pid, life, request["directory"], group, watch)
            self._names[pid] = request["id"]
        finally:
            for descriptor in (stdin, stdout, status):
                os.close(descriptor)

    def _reap(self, options: int) -> None:
        """Wait for every child that has ended, tell its life line, and remove what was to go with it."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._copies:
                answer = self._copies.pop(pid)
                tell(answer, f"exit {os.waitstatus_to_exitcode(status)}")
                os.close(answer)
            name = self._names.pop(pid, None)
            if name is None:
                continue
            running = self._running.pop(name)
            code = os.waitstatus_to_exitcode(status)
            counters = Counters(running.group.directories)
            tell(running.life, f"counts {json.dumps(counters.read())}")
            tell(running.life, f"exit {code if code >= 0 else 128 - code}")
            counters.close()
            os.close(running.life)
            running.group.remove()
            if running.remove:
                self._remove(running.directory)

    def _end_all(self) -> None:
        for pid in (*(running.pid for running in self._running.values()), *self._copies):
            kill_one(pid)
        self._reap(0)
        for run_directory in filter(os.path.isdir, self._run_directories):
            for name in os.listdir(run_directory):
                if name.startswith(self._owner_name):
                    self._remove(os.path.join(run_directory, name))

    def _remove(self, directory: str) -> None:
        """Remove a directory; what cannot be removed now is left to `swegym gc`, for others wait to be served."""
        self._rooms.take_back(directory)
        try:
            remove_tree(directory)
        except OSError as error:
            sys.stderr.write(f"swegym: {directory} cannot be removed: {error}\n")


def _receive(owner: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, closed on exec from the first moment: `socket.recv_fds` drops that flag."""
    room = socket.CMSG_LEN(4 * array.array("i").itemsize)
    message, ancillary, _, _ = owner.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data)
    return message, list(descriptors)


def main(arguments: list[str]) -> None:
    """Serve one owner.

    Args:
        arguments: the descriptor of the socket; how the names of the owner's directories begin; what this machine has
            and is not to be used, with commas between ("overlay": the kernel's, "cgroups", "rooms": file systems of the
            sandboxes' own); and the run directories.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides when it ends, and its end is seen on the socket
    owner = socket.socket(fileno=int(arguments[0]))
    owner.set_inheritable(False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _Supervisor(owner, arguments[3:], arguments[1], frozenset(arguments[2].split(","))).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
