"""The supervisor's loop: requests arrive on one socket, and the end of that socket ends everything.

A request is one JSON message on a SEQPACKET socket:

    {"do": "layer", "path": …, …}              make the directory of a writable layer; one descriptor, for the answer
    {"do": "measure", "id": …, "path": …, …}   measure the files of a layer; one descriptor, for the answer
    {"do": "copy", "from": …, "to": …}         copy a directory as it is; one descriptor, for the answer
    {"do": "launch", "id": …, "isolation": …, …}    start a sandbox; four descriptors: stdin, stdout, stderr, event pipe
                                               (with a "port" five: before the last, where the listener is sent)
                                               (with "within", the id of an imported program, below its processes)
    {"do": "adopt", "id": …, "pid": …, "add": …}    a process that is about to enter it, with what it starts, and
                                               whether it is still to be added to the control groups; one descriptor,
                                               for the answer
    {"do": "attach", "id": …, "image": …, "path": …}    attach the root of a container; one descriptor, for the answer
    {"do": "watch", "id": …, "cpu_s": …}       a command takes long: measure its usage often
    {"do": "rest", "id": …}                    that command has ended
    {"do": "end", "id": …}                     kill the sandbox; its directory stays
    {"do": "close", "id": …, "directory": …}   kill it and remove its directory
    {"do": "remove", "directory": …}           remove a directory

Nothing is sent back on the socket. A layer is answered with one line, `tmpfs`, `directory` or `error TEXT`; a
measurement with bytes and files; a copy with the messages of `cp` and then `exit CODE`; an attachment with `attached`
or `error TEXT`, an adoption with `adopted` or `error TEXT`. What happens to a sandbox is reported on its own event
pipe, in lines:

    user N           who it is on the host, if it has a user of its own
    pid N            it is launched                    overlay NAME   what mounts its layers, "kernel" or "fuse"
    group JSON       its control groups                error TEXT     it could not be launched
    limit NAME       its usage exceeded a limit        counts JSON    at the end: how often the kernel enforced one
    broken TEXT      its files filled the disk; they are removed, and it cannot go on
    used SECONDS     after "rest": processor seconds since "watch"
    exit CODE        its process has ended and has been waited for

No request ends the supervisor: one that fails is answered with `error TEXT` on its last descriptor, or else reported on
standard error. Nothing that takes long is done here, since the other sandboxes are waiting: a directory with many files
is removed, and a layer on disk measured, by a child.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from . import kernel
from .cgroups import Counters, Group, existing_groups, make_group
from .container import Lifeline, launch, launch_below, map_layers, send_event
from .files import remove_tree
from .processes import descendants, kill_one, start_child
from .usage import Usage, measure
from .users import User, Users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]

_MESSAGE_BYTES = 1 << 18
_COPY_CPU_S = 60  # a layer of 4 GiB in memory takes about 3
_STREAMS = ("input", "output", "error")
_OFTEN_MS, _SELDOM_MS = 50, 1000  # between two measurements
_ENDING_S = 2.0  # how long a launch waits for the user of a container that was killed
_FILLED_DISK = "the sandbox's files filled the disk of the machine, and were more than its limit: they are removed"
_FEW_FILES = 200  # a directory with so many is removed faster than a child is started
_message = memoryview(bytearray(_MESSAGE_BYTES))  # the one that is being received


class _Running:
    """A container that was launched and has not been waited for."""

    def __init__(
        self,
        pid: int,
        event_pipe: int,
        directory: str,
        group: Group,
        usage: Usage,
        user: User | None,
        layer: str,
        *,
        within: bool,
    ) -> None:
        self.pid = pid
        self.event_pipe = event_pipe
        self.directory = directory
        self.group = group
        self.usage = usage
        self.user = user
        self.layer = layer
        self.killed = self.remove = self.over_disk_limit = False
        self._handle: int | None = None
        if within:  # another process waits for it, and then its id may be given again
            with contextlib.suppress(OSError):  # it has ended, or a kernel without (Linux 5.3)
                self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill its first process: the kernel kills all others of its process namespace with it."""
        if self._handle is None:
            kill_one(self.pid)
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def adopt(self, pid: int, *, add: bool) -> None:
        """Count a process outside, and what it starts, as the container's; `add`: it is not in its groups yet."""
        self.usage.adopt(pid)
        if add:
            self.group.add(pid)

    def close(self) -> None:
        """It was waited for."""
        if self._handle is not None:
            os.close(self._handle)


class _Supervisor:
    def __init__(
        self,
        owner: socket.socket,
        run_directories: list[str],
        owner_name: str,
        without: frozenset[str],
        users: Users | None,
    ) -> None:
        self._owner = owner
        self._run_directories = run_directories
        self._owner_name = owner_name
        self._without = without
        self._own_mounts = _enter_mount_namespace()
        self._can_mount = self._own_mounts and "tmpfs" not in without
        self._users = users
        self._mounted: set[str] = set()
        self._lifeline = Lifeline()
        self._running: dict[str, _Running] = {}
        self._ids: dict[int, str] = {}  # of the child whose end is the sandbox's → of the sandbox
        self._copies: dict[int, int] = {}  # process id → the descriptor for its answer
        self._removals: dict[int, str] = {}  # process id → the directory that it removes

    def serve(self) -> None:
        """Serve until the owner's end of the socket is closed, then remove everything."""
        child_ended, wake = os.pipe()
        for descriptor in (child_ended, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._owner, select.POLLIN)
        poll.register(child_ended, select.POLLIN)
        measured = measured_all = time.monotonic()
        while True:
            usages = [running.usage for running in self._running.values() if running.layer]  # not of images' containers
            interval_ms = None  # nothing has to be measured
            if any(usage.often for usage in usages):
                interval_ms = _OFTEN_MS
            elif any(usage.needed or usage.shares(alone=len(usages) == 1) for usage in usages):
                interval_ms = _SELDOM_MS
            ready = poll.poll(interval_ms)
            if interval_ms is not None and time.monotonic() - measured >= interval_ms / 1000:
                everything = time.monotonic() - measured_all >= _SELDOM_MS / 1000
                self._measure(everything=everything)
                measured = time.monotonic()
                measured_all = measured if everything else measured_all
            for descriptor, _ in ready:
                if descriptor == child_ended:
                    os.read(child_ended, 4096)
                    self._reap(os.WNOHANG)
                elif not self._handle_request():
                    self._end_all()
                    return

    def _measure(self, *, everything: bool) -> None:
        """Measure the sandboxes in which a command has been running for long, or all."""
        for running in self._running.values():
            if running.usage.often or everything:
                with _reported("the share of a sandbox could not be changed"):
                    running.usage.adapt_share()
            if running.usage.often or (running.usage.needed and everything):
                with _reported("a sandbox could not be measured"):
                    for limit in running.usage.newly_exceeded():
                        send_event(running.event_pipe, f"limit {limit}")
                        if limit == "disk":
                            running.over_disk_limit = True
                            if not running.usage.often or running.usage.fills_disk():
                                running.kill()  # no owner waits for a command to end it, or nobody can wait
                    running.usage.kill_largest()

    def _handle_request(self) -> bool:
        """Receive one request and do what it asks; False when there will be no more."""
        try:
            message, descriptors = _receive(self._owner)
        except ConnectionResetError:
            return False
        if not message:
            return False
        try:
            with _reported("a request failed", descriptors):
                self._do(json.loads(message), descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _do(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Do what a request asks. Descriptors that are still in use afterwards are taken out of the list."""
        running = self._running.get(request.get("id", ""))
        match request["do"]:
            case "launch":
                self._launch(request, descriptors)
            case "layer":
                self._make_layer(request, descriptors[0])
            case "measure":
                work = partial(measure, request["path"], 0 if running is None else running.pid, request["limits"])
                start_child(work, descriptors[0])
            case "attach" if running is not None:
                self._attach_root(running.pid, request["image"], request["path"])
                send_event(descriptors[0], "attached")
            case "copy":
                child = _start_copy(request["from"], request["to"], descriptors[0])
                self._copies[child] = descriptors.pop()
            case "remove":
                self._remove(request["directory"])
            case "close" if running is None:  # it has ended by itself; only its files are left
                self._remove(request["directory"])
            case "watch" if running is not None:
                running.usage.command_began(request["cpu_s"])
            case "rest" if running is not None:
                send_event(running.event_pipe, f"used {running.usage.command_ended():.2f}")
            case "end" | "close" if running is not None:
                running.killed = True
                running.remove |= request["do"] == "close"  # an "end" may follow: whoever closes also interrupts
                running.kill()
            case "adopt" if running is not None:
                running.adopt(request["pid"], add=request["add"])
                send_event(descriptors[0], "adopted")
            case "attach" | "adopt":
                raise ProcessLookupError(errno.ESRCH, "it has ended")
            case "watch" | "rest" | "end":
                pass  # it has ended by itself
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")

    def _make_layer(self, request: dict[str, Any], answer: int) -> None:
        """Make the directory of a writable layer, as a tmpfs of the size asked for where that is possible.

        A file system of its own is a hard limit: a program meets "No space left on device" and goes on. It is mounted
        in the supervisor's mount namespace only, so it ends with the supervisor, and nobody else's view of the machine
        changes; the owner sees it through `/proc/SUPERVISOR/root`. A plain directory is limited by measuring it.
        """
        path, size_bytes = request["path"], request["size_bytes"]
        try:
            os.mkdir(path, 0o711)
            if self._can_mount and size_bytes:
                options = f"size={size_bytes},nr_inodes={request['inodes']},mode=711"
                with contextlib.suppress(OSError):
                    kernel.mount("swegym", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
                    self._mounted.add(path)
            send_event(answer, "tmpfs" if path in self._mounted else "directory")
        except OSError as error:
            send_event(answer, f"error {error.strerror}")

    def _attach_root(self, launched: int, image: str, path: str) -> None:
        """Attach the root of an image's container at a directory, read-only: the lowest layer of sandboxes.

        It is attached in this process's mount namespace, of which all that it starts get a copy. It stays when the
        container ends.

        Raises:
            OSError: the container cannot be entered, or its root is not the image.
        """
        if not self._own_mounts:
            raise OSError(errno.EPERM, "the supervisor has no mount namespace of its own")
        inside = descendants(launched)[-1]
        places = [f"/proc/{inside}/root", f"/proc/{inside}/ns/mnt", "/proc/self/ns/mnt"]
        root, theirs, ours = (os.open(place, os.O_RDONLY | os.O_CLOEXEC) for place in places)
        try:
            if not os.path.samestat(os.fstat(root), os.stat(image)):
                raise OSError(errno.ESTALE, "the root of its container is not the image")
            kernel.setns(theirs, kernel.CLONE_NEWNS)
            try:
                os.fchdir(root)
                tree = kernel.open_tree(".", recursive=False)
            finally:
                kernel.setns(ours, kernel.CLONE_NEWNS)
        finally:
            for descriptor in (root, theirs, ours):
                os.close(descriptor)
        try:
            kernel.make_read_only(tree, path)
            if path in self._mounted:
                kernel.unmount(path)
            kernel.move_mount(tree, path)
            self._mounted.add(path)
        finally:
            os.close(tree)

    def _launch(self, request: dict[str, Any], descriptors: list[int]) -> None:
        *streams, event_pipe = descriptors
        if len(streams) != len(_STREAMS) + bool(request.get("port")):
            raise ValueError(f"expected {len(_STREAMS)} streams and an event pipe, got {len(descriptors)} descriptors")
        os.set_blocking(event_pipe, False)
        limits = request["limits"]
        request["without"] = self._without
        if request.get("image"):
            if request["image"] not in self._mounted:
                raise ProcessLookupError(errno.ESRCH, "the container of its image is not up")
            request["layers"][0] = request["image"]
        self._await_end(request["id"])
        within = self._running.get(request["within"]) if request.get("within") else None
        if within is not None:
            request["owner"] = request["uid"] if within.user is None else within.user.id
        elif request.get("within"):
            raise ProcessLookupError(errno.ESRCH, "the imported program has ended")
        user, layers = self._own_user(request)
        group = Group({})
        try:
            if "cgroups" not in self._without:
                memory_bytes = limits["memory_bytes"] + limits["files_in_memory_bytes"]
                processes = limits["processes"] + (within is not None)  # and what waits for the imported program's end
                group = make_group(request["id"], memory_bytes, processes, limits["cpus"])
            given = request, streams, event_pipe, self._lifeline, group, user, layers
            if within is None:
                child, pid = launch(*given)
            else:
                first = next(iter(descendants(within.pid)), within.pid)  # its process 1 shows nothing to its own user
                space = os.open(f"/proc/{first}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    child, pid = launch_below(space, *given)
                finally:
                    os.close(space)
        except BaseException:
            group.remove()
            self._give_back(user)
            raise
        finally:
            for tree, _ in layers:
                os.close(tree)
        upper = None if limits["files_in_memory_bytes"] else os.path.join(request["layer"], "upper")
        usage = Usage(pid, limits, group, upper)
        self._running[request["id"]] = _Running(
            pid,
            descriptors.pop(),
            request["directory"],
            group,
            usage,
            user,
            request["layer"],
            within=within is not None,
        )
        self._ids[child] = request["id"]
        if user is not None:
            send_event(event_pipe, f"user {user.id}")
        send_event(event_pipe, f"pid {pid}")
        send_event(event_pipe, f"group {json.dumps(group.directories)}")

    def _await_end(self, name: str) -> None:
        """Let the last container of that name end, whose owner saw it end before its processes were waited for.

        Raises:
            OSError: it does not.
        """
        deadline = time.monotonic() + _ENDING_S
        while name in self._running:
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "the last container of this sandbox has not ended")
            running = self._running[name]
            running.killed = True
            running.kill()
            time.sleep(0.001)
            self._reap(os.WNOHANG)

    def _own_user(self, request: dict[str, Any]) -> tuple[User | None, Sequence[tuple[int, str]]]:
        """A user for the container and the layers as its own.

        None where a file system cannot show other owners, and for the container of an image: nobody else is that user.
        """
        if self._users is None or not request["layer"]:
            return None, ()
        user = self._take_user(self._users)
        try:
            return user, map_layers(request, user)
        except OSError:
            self._give_back(user)
            return None, ()

    def _take_user(self, users: Users) -> User:
        """A user that is free, or soon will be: of a container that was killed and has not ended yet."""
        deadline = time.monotonic() + _ENDING_S
        while True:
            try:
                return users.take()
            except OSError:
                if not any(running.killed for running in self._running.values()) or time.monotonic() > deadline:
                    raise
            time.sleep(0.001)
            self._reap(os.WNOHANG)

    def _give_back(self, user: User | None) -> None:
        if self._users is not None and user is not None:
            self._users.give_back(user)

    def _reap(self, options: int) -> None:
        """Wait for every child that has ended, report it, and remove its directory if it was being closed."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            with _reported(f"the end of process {pid} was not handled"):
                self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        if pid in self._copies:
            answer = self._copies.pop(pid)
            send_event(answer, f"exit {code}")
            os.close(answer)
        elif pid in self._removals:
            directory = self._removals.pop(pid)
            if code:
                _report(f"{directory} was not removed (exit code {code}). Try: swegym gc")
            else:
                self._mounted -= self._mounts_in(directory)
        elif pid in self._ids:
            running = self._running.pop(self._ids.pop(pid))
            running.usage.close()
            running.close()
            counters = Counters(running.group.directories)
            send_event(running.event_pipe, f"counts {json.dumps(counters.read())}")
            # Others have no room before its files are gone.
            filled_disk = running.over_disk_limit and running.usage.fills_disk()
            if filled_disk:
                send_event(running.event_pipe, f"broken {_FILLED_DISK}")
            send_event(running.event_pipe, f"exit {code if code >= 0 else 128 - code}")
            counters.close()
            os.close(running.event_pipe)
            running.group.remove()
            self._give_back(running.user)
            if running.remove:
                self._remove(running.directory)
            elif filled_disk:
                self._remove(running.layer, truncate=True)  # its owner still has the mount open

    def _end_all(self) -> None:
        for running in self._running.values():
            running.kill()
        for pid in self._copies:
            kill_one(pid)
        self._reap(0)
        for run_directory in filter(os.path.isdir, self._run_directories):
            with _reported(f"{run_directory} could not be listed"):  # it may have been removed by now
                for name in os.listdir(run_directory):
                    if name.removeprefix(".").startswith(self._owner_name):  # hidden while its lease is being written
                        with _reported(f"{name} was not removed"):
                            self._remove(os.path.join(run_directory, name))
        with _reported("control groups were not removed"):
            for name, group in existing_groups().items():
                if name.startswith(self._owner_name):  # of an earlier supervisor, which was killed
                    group.remove()
        self._reap(0)

    def _remove(self, directory: str, *, truncate: bool = False) -> None:
        """Unmount and remove a directory; a child goes on where it is large. What it leaves is for `swegym gc`."""
        if f"/{self._owner_name}" not in directory.replace("/.", "/"):
            raise ValueError(f"{directory!r} is no directory of this owner")
        mounted = self._mounts_in(directory)
        if sum(map(_files_in, mounted)) < _FEW_FILES:
            _unmount(mounted)
            if remove_tree(directory, most=_FEW_FILES, truncate=truncate):
                self._mounted -= mounted
                return

        def remove() -> bytes:
            _unmount(mounted)
            remove_tree(directory, truncate=truncate)
            return b""

        child = start_child(remove)
        self._removals[child] = directory

    def _mounts_in(self, directory: str) -> set[str]:
        return {path for path in self._mounted if path == directory or path.startswith(directory + "/")}


@contextlib.contextmanager
def _reported(what: str, descriptors: Sequence[int] = ()) -> Iterator[None]:
    """Report a failure and go on: the other sandboxes need the supervisor, whatever is wrong with one of them.

    Args:
        what: what failed.
        descriptors: of a request; the failure is sent to the last one, or to standard error where there is none.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the only place: nothing may end the supervisor's loop
        text = " ".join(str(error).split())
        if descriptors:
            send_event(descriptors[-1], f"error {text or type(error).__name__}")
        else:
            _report(f"{what}: {type(error).__name__}: {text}")


def _report(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it
        os.write(2, f"swegym: {line}\n".encode(errors="backslashreplace"))


def _files_in(mounted: str) -> int:
    """How many files a file system of its own has; the kernel frees each one while it unmounts it."""
    try:
        status = os.statvfs(mounted)
    except OSError:
        return 0
    return status.f_files - status.f_ffree


def _unmount(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it is not mounted any more
            kernel.unmount(path)


def _enter_mount_namespace() -> bool:
    """Give this process a mount namespace, in a new user namespace where it is not root; False where that is refused.

    An ordinary user stays the same user there. Later mounts of others are seen here, mounts made here only here.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        kernel.unshare(kernel.CLONE_NEWNS if uid == 0 else kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        if uid != 0:
            for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        kernel.receive_mounts()
    except OSError:
        return False
    return True


def _start_copy(source: str, target: str, stderr: int) -> int:
    """Copy a writable layer with its whiteouts, marks, owners and holes; the id of the process that does it.

    That process may read what its owner closed to itself. Blocks are shared where the file system can. Its processor
    time is limited: it is quadratic in the depth of a tree.
    """
    child = os.fork()
    if child == 0:
        try:
            os.dup2(stderr, 2)
            kernel.set_parent_death_signal(signal.SIGKILL)
            kernel.keep_capabilities()
            resource.setrlimit(resource.RLIMIT_CPU, (_COPY_CPU_S, _COPY_CPU_S))
            command = ["cp", "--archive", "--reflink=auto", "--no-target-directory", source, target]
            os.execvpe(command[0], command, {"LC_ALL": "C", "PATH": os.defpath})
        finally:
            os._exit(127)
    return child


def _receive(owner: socket.socket) -> tuple[bytes, list[int]]:
    """One message and its descriptors, closed on exec from the first moment: `socket.recv_fds` drops that flag."""
    size = socket.CMSG_LEN(5 * array.array("i").itemsize)
    received, ancillary, _, _ = owner.recvmsg_into([_message], size, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data)
    return bytes(_message[:received]), list(descriptors)


def main(arguments: list[str]) -> None:
    """Serve one owner.

    Args:
        arguments: the descriptor of the socket; the prefix of the names of the owner's directories; the kernel's
            features not to use, separated by commas ("overlay", "cgroups", "tmpfs"); the ids of the containers' users,
            as FIRST:COUNT:ON_DISK, see `Users`, or nothing where they share one; the run directories.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides when it ends, and the socket shows when it has
    os.umask(0o022)
    owner = socket.socket(fileno=int(arguments[0]))
    owner.set_inheritable(False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    kernel.join_new_session_keyring()
    users = None
    if arguments[3]:
        with _reported("sandboxes share one user"):
            first, count, on_disk = map(int, arguments[3].split(":"))
            users = Users(first, count, on_disk)
    _Supervisor(owner, arguments[4:], arguments[1], frozenset(arguments[2].split(",")), users).serve()
