"""Start a container: a process in new namespaces, whose root is a writable layer over read-only ones.

All begin alike: a clone into a new user and mount namespace in which the sandbox's user has all rights, and an overlay
mounted there with `userxattr`, so that their writable layers are alike too. They differ in who makes the rest of the
container:

this code, in the same process
    for sandboxes of both back ends. With Apptainer their lowest layer is the root of the image's container.
Apptainer
    for the container of an image, whose root is the image itself, without an overlay; and for each sandbox where no
    such container can be entered. Apptainer then gets the overlay as a writable directory image. Its own `--overlay`
    mounts without `userxattr` for an ordinary user, and then no directory of a lower layer can be removed or replaced
    (`rm -r` fails with EIO), which no agent could work with.

Neither needs a daemon or a privilege. The mounts end with the last process of their namespace, so there is nothing to
unmount.

Process 1 is this code too, not the command: it waits for the command and for orphans. Nothing inside can see, trace or
read it, or any other process that is not the agent's: they are not dumpable or have rights that nobody inside has, and
`/proc` lists only processes that the reader may trace. It keeps no descriptor.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import os
import resource
import select
import signal
import socket
import stat
import time
from collections.abc import Sequence

from . import kernel
from .cgroups import Group, enter
from .processes import become_user
from .users import User

TYPE_CHECKING = False  # `typing` is not imported: see `linux`
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "MASKED",
    "READ_ONLY",
    "SHARED_MEMORY_BYTES",
    "Lifeline",
    "clone_into",
    "launch",
    "launch_below",
    "map_layers",
    "send_event",
]

MASKED = tuple(
    path
    for name in (
        *("acpi", "asound", "interrupts", "kcore", "key-users", "keys", "latency_stats", "pressure", "sched_debug"),
        *("scsi", "sysrq-trigger", "timer_list", "timer_stats"),
    )
    if os.path.exists(path := f"/proc/{name}")
)
"""Files and directories of `/proc` that tell about the machine and about others, as far as this kernel has them."""
READ_ONLY = "/proc/sys"

_NAMESPACES = {
    "command": kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET,
    "supervisor": kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET,
    # For an imported program, whose children enter user namespaces below this one, see `sandbox.imported`.
    "imports": kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWNET,
}
# What the kernel counts for each user namespace, and so for each sandbox. It also counts for the user who made it, with
# the machine's limits (128 instances): where sandboxes share a user, none may take more than half of those.
_USER_LIMITS = {"max_inotify_instances": 64, "max_inotify_watches": 1 << 16}
# Of each process: soft and hard. Signals, queues and locked memory count for each user namespace, too.
_PROCESS_LIMITS = {
    resource.RLIMIT_SIGPENDING: 4096,
    resource.RLIMIT_MSGQUEUE: 800 << 10,
    resource.RLIMIT_MEMLOCK: 8 << 20,
    resource.RLIMIT_RTPRIO: 0,
    resource.RLIMIT_CORE: 0,
}
# What one socket may hold: least, at first and most. All TCP sockets of the machine together have one limit. Connecting
# to an address that nobody answers is given up after three more attempts, in 15 s and not two minutes.
_NETWORK_SETTINGS = {"tcp_rmem": "4096 65536 262144", "tcp_wmem": "4096 16384 262144", "tcp_syn_retries": "3"}
_MOST_DESCRIPTORS = os.sysconf("SC_OPEN_MAX")  # of the supervisor
_WAITING_CONNECTIONS = 64  # that the owner has not accepted yet
_SOFT_DESCRIPTORS = 1024  # what programs expect; some use every number up to it
_Trees = Sequence[tuple[int, str]]  # an opened mount and where it is to be attached
# Python and the supervisor ignore or handle these; a command expects the defaults.
_DEFAULT_SIGNALS = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM,
)  # fmt: skip
SHARED_MEMORY_BYTES = 256 << 20
_TERMINALS = 64
# Since this version a process enters its new time namespace when it executes a program; before, only its children did.
_PROGRAMS_CHANGE_CLOCKS = tuple(map(int, os.uname().release.partition("-")[0].split(".")[:2])) >= (6, 3)
_DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
_DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_FUSE = "fuse-overlayfs"
_FUSE_PATH = "/usr/local/bin:/usr/bin:/bin"
_FUSE_TIMEOUT_S = 10.0
# The kernel's overlay may be refused to ordinary users by a security module, be left out of the kernel, or find that
# the writable layer's file system stores no extended attributes.
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP)


class Lifeline:
    """Lets children die with the supervisor, even if it dies before they have asked for their parent-death signal.

    Only the supervisor keeps the writing end of a pipe. A child asks for the signal first and looks at the pipe
    afterwards: if it is closed, the supervisor is gone already.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def bind(self) -> None:
        """In a child, after its last change of user, which clears the signal: die with the supervisor from here on."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
        kernel.set_parent_death_signal(signal.SIGKILL)
        poll = select.poll()
        poll.register(self._read, 0)
        if poll.poll(0):
            os._exit(1)


def send_event(event_pipe: int, line: str) -> None:
    """Write a line to a sandbox's event pipe; its reader may be gone, or not be reading."""
    with contextlib.suppress(BrokenPipeError, BlockingIOError):
        os.write(event_pipe, line.encode()[:4000] + b"\n")


def map_layers(request: dict[str, Any], user: User) -> _Trees:
    """All layers of `request` with `user` as owner of the files, for `launch`.

    Raises:
        OSError: a file system cannot show other owners.
    """
    trees: list[tuple[int, str]] = []
    try:
        for path in (*request["layers"], request["layer"]):
            trees.append((user.tree(path, read_only=path != request["layer"]), path))
    except OSError:
        for tree, _ in trees:
            os.close(tree)
        raise
    return trees


def launch(
    request: dict[str, Any],
    streams: Sequence[int],
    event_pipe: int,
    lifeline: Lifeline,
    group: Group,
    user: User | None = None,
    layers: _Trees = (),
) -> tuple[int, int]:
    """Start a container that runs `request["command"]`.

    Args:
        request: isolation ("supervisor": this module makes all namespaces and the root; "command": the command enters
            `root` and makes the rest; "imports": as "supervisor", but in the user namespace of this process, as a user
            without rights there), owner (the user on the host whose processes may enter its namespaces; absent: the
            one who it runs as), directory (with `root` in it), layer (a directory with `upper` and `work`;
            empty: one of the binds is the root, and no overlay), layers (bottom first), binds (source and target; the
            target lies inside for "supervisor", on the host for "command"), shared (the same, of directories that many
            sandboxes have, see `_open_apart`), network, uid,
            gid, hostname, environment, filter (of its system calls: the program in base64), limits (descriptors,
            file_size_bytes, processes), clock_offset_s (of the clocks that count from the start of the machine),
            command, without (features not to use), port (of its loopback; a socket that listens there is passed on).
        streams: its standard input, output and error; where there is a port, also the socket for what listens there.
        event_pipe: where a failure before the command runs is reported.
        lifeline: of the supervisor.
        group: the control group that it starts in.
        user: who it runs as on the host; None: the user that it is inside.
        layers: from `map_layers`, for a user of its own.

    Returns:
        The id of its first process, for this process and as `/proc` shows it.
    """
    _filter(request["filter"])
    uid, gid = (request["uid"], request["gid"]) if user is None else (user.id, user.id)
    request = {**request, "as": (uid, gid)}
    if user is not None and request["isolation"] == "command":
        os.chown(os.path.join(request["directory"], "binds"), uid, gid)  # where the container attaches them
    proceed, step = os.pipe()  # one byte when the user is mapped and the process is in its control group
    answer, entered = os.pipe()  # one byte: whether the process has entered the group
    flags = _NAMESPACES[request["isolation"]]
    flags = flags & ~kernel.CLONE_NEWNET if request["network"] else flags
    devices = _make_devices(os.path.join(request["directory"], "nodes"))
    try:
        threads, place = group.entrances()
        try:
            owner = request.get("owner", uid) if flags & kernel.CLONE_NEWUSER else os.geteuid()
            child, inside = clone_into(owner, flags, place)
            if child == 0:
                try:
                    os.close(step)
                    shown = os.readlink("/proc/self").encode()  # this process may be in another namespace of processes
                    os.write(entered, (b"1" if enter(threads) and inside else b"0") + shown)
                    if os.read(proceed, 1):
                        _become_command(request, streams, event_pipe, lifeline, layers, devices)
                except (OSError, ValueError) as error:
                    send_event(event_pipe, f"error {error}")
                finally:
                    os._exit(126)
        finally:
            trees = [tree for tree, _ in devices]
            for descriptor in (proceed, entered, *threads, *([] if place is None else [place]), *trees):
                os.close(descriptor)
        host_pid = child
        try:
            reply = os.read(answer, 32)  # nothing, if the process has been killed
            host_pid = int(reply[1:] or child)
            # One user and one group are mapped: nobody inside is root, not even by name.
            if flags & kernel.CLONE_NEWUSER:
                if os.geteuid() != 0:
                    kernel.write_setting(f"/proc/{host_pid}/setgroups", "deny")
                kernel.write_setting(f"/proc/{host_pid}/gid_map", f"{request['gid']} {gid} 1")
                kernel.write_setting(f"/proc/{host_pid}/uid_map", f"{request['uid']} {uid} 1")
            if reply[:1] != b"1":
                group.add(child)
            os.write(step, b"1")
        except OSError as error:
            os.kill(child, signal.SIGKILL)
            send_event(event_pipe, f"error cannot map the user: {error}")
    finally:
        os.close(step)
        os.close(answer)
    return child, host_pid


def launch_below(
    namespace: int,
    request: dict[str, Any],
    streams: Sequence[int],
    event_pipe: int,
    lifeline: Lifeline,
    group: Group,
    user: User | None = None,
    layers: _Trees = (),
) -> tuple[int, int]:
    """`launch` with the container's processes below another namespace of processes, whose end is theirs too.

    Args:
        namespace: descriptor of that namespace, which is below this process's own.

    Returns:
        The id of a child that ends as the container does, and with which it ends; the id of the container's first
        process.

    Raises:
        OSError: it cannot be entered, or what `launch` raises.
    """
    answer, report = os.pipe()
    try:
        child = os.fork()
        if child == 0:
            try:
                lifeline.bind()
                kernel.setns(namespace, kernel.CLONE_NEWPID)  # for its children; there is no way back for all users
                launcher = os.fork()
                if launcher == 0:
                    lifeline.bind()
                    first, shown = launch(request, streams, event_pipe, lifeline, group, user, layers)
                    os.write(report, str(shown).encode())
                    launcher = first
                _remain_as_init(launcher)
            except BaseException as error:  # noqa: BLE001 - reported; nothing of the supervisor may go on here
                os.write(report, f"error {error}".encode()[:4000])
            finally:
                os._exit(126)
        os.close(report)
        report = -1
        text = os.read(answer, 4096).decode(errors="replace")
        if not text.isdecimal():
            os.waitpid(child, 0)
            raise OSError(errno.EIO, text.removeprefix("error ") or "the process that launches was killed")
        return child, int(text)
    finally:
        for descriptor in (answer, report):
            if descriptor >= 0:
                os.close(descriptor)


def _make_devices(directory: str) -> _Trees:
    """Device files of this sandbox alone: a lock on one, or a watch, is no signal to others.

    They lie in `directory`, for all containers of the sandbox. None where this user may not make any, or the file
    system has none.
    """
    trees: list[tuple[int, str]] = []
    try:
        if not os.path.isdir(directory):
            os.mkdir(directory, 0o700)
            for name in _DEVICES:
                os.mknod(f"{directory}/{name}", stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev)
                os.chmod(f"{directory}/{name}", 0o666)  # whatever the umask of the owner
        for name in _DEVICES:
            trees.append((kernel.open_tree(f"{directory}/{name}", recursive=False), name))
            kernel.make_read_only(trees[-1][0], name, devices=True)  # it can be written to, and its times cannot
        os.close(os.open(f"/proc/self/fd/{trees[0][0]}", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        for tree, _ in trees:
            os.close(tree)
        return ()
    return trees


def clone_into(uid: int, flags: int, group: int | None) -> tuple[int, bool]:
    """Clone for the user `uid`, into a control group of version 2 where there is one.

    Returns:
        As `kernel.clone`; whether the child is in that group, which needs Linux 5.7 and `clone3`.
    """
    clone = functools.partial(kernel.clone_charged_to, uid) if _can_charge_others() else kernel.clone
    if group is not None:
        with contextlib.suppress(OSError):
            return clone(flags, group), True
    return clone(flags), group is None


@functools.cache
def _can_charge_others() -> bool:
    return kernel.can_charge_others()


@functools.lru_cache(maxsize=4)
def _filter(program: str) -> kernel.Filter:
    return kernel.Filter(base64.b64decode(program))


def _become_command(
    request: dict[str, Any],
    streams: Sequence[int],
    event_pipe: int,
    lifeline: Lifeline,
    layers: _Trees,
    devices: _Trees,
) -> None:
    """Everything between the clone and the command; runs in the new namespaces, with all rights over them."""
    os.setsid()
    kernel.join_new_session_keyring()
    _set_clocks(request["clock_offset_s"])
    kernel.make_private()
    # Sources are opened while this process still is the owner: the sandbox's user may be unable to reach them.
    binds = [(kernel.open_tree(source), target) for source, target in request["binds"]]
    shares_users = request["isolation"] == "imports"
    if not shares_users:
        become_user(request["uid"], request["gid"])
    lifeline.bind()
    binds += [(_open_apart(source, request), target) for source, target in request["shared"]]
    root = os.path.join(request["directory"], "root")
    devices = devices or _open_devices()
    for tree, path in layers:
        kernel.move_mount(tree, path)
    with contextlib.suppress(OSError):  # a kernel without
        kernel.unshare(kernel.CLONE_NEWCGROUP)  # control groups above the one that it is in have no names
    fuse = _mount_overlay(root, request) if request["layer"] else ()
    send_event(event_pipe, f"overlay {'fuse' if fuse else 'kernel'}")
    if fuse and shares_users:
        raise OSError(errno.EOPNOTSUPP, "fuse-overlayfs serves no imported program")
    if fuse:
        # The server of the files must not be visible inside: its descriptors lead to the host's files, and whoever
        # stopped it would stop all who use the files, the owner too.
        inner = kernel.clone(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS)
        if inner:
            _remain_as_init(inner, *fuse)
    if not request["network"]:
        _make_network()
        if request.get("port"):
            _listen(request["port"], streams[-1])
    if request["isolation"] != "command":
        _isolate(root, request, binds, devices)
    else:
        for tree, target in binds:
            _attach(tree, target)
        # Apptainer's own /dev/shm may grow to half of the machine's memory.
        _mount_devices(os.path.join(request["directory"], "dev"), devices)
        _mount_processes()
        _limit_user(namespaces=1)  # Apptainer's own, and none for anybody inside it
    if shares_users:
        become_user(*request["as"])
        kernel.drop_capabilities()
        lifeline.bind()
    os.chdir("/")
    os.umask(0o022)
    kernel.forbid_tracing()
    _limit_process(request["limits"], processes=not shares_users)
    if "seccomp" not in request["without"]:
        _filter(request["filter"]).install()
    # Apptainer clears its parent-death signal. This process keeps its own, and since it is the first of a process
    # namespace, the kernel kills the command and all that it started together with it.
    command = os.posix_spawn(
        request["command"][0],
        request["command"],
        request["environment"],
        file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(streams[:3])],
        setsigdef=_DEFAULT_SIGNALS,
    )
    _remain_as_init(command)


def _open_devices() -> _Trees:
    """The machine's device files."""
    trees = [(kernel.open_tree(f"/dev/{name}"), name) for name in _DEVICES]
    for tree, name in trees:
        kernel.make_read_only(tree, name)  # the device can be written to, and its times, which all would see, cannot
    return trees


def _open_apart(source: str, request: dict[str, Any]) -> int:
    """A tree with the files of `source`, a directory that everybody may read, as files of this sandbox alone.

    Locks and watches of a file of an overlay are not those of the file below: nobody inside sees who else uses it.
    Where an overlay cannot be mounted, it is `source` itself.
    """
    stage, nothing = (os.path.join(request["directory"], name) for name in ("dev", "empty"))
    if "overlay" not in request["without"]:
        with contextlib.suppress(OSError):
            options = f"userxattr,lowerdir={_escaped(source)}:{_escaped(nothing)}"
            kernel.mount("overlay", stage, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)
            return kernel.open_tree(stage)
    return kernel.open_tree(source)


def _set_clocks(offset_s: int) -> None:
    """Where the kernel can: clocks of its own for the next program, which do not tell since when the machine runs."""
    if _PROGRAMS_CHANGE_CLOCKS:
        with contextlib.suppress(OSError):
            kernel.unshare(kernel.CLONE_NEWTIME)
            kernel.write_setting("/proc/self/timens_offsets", f"monotonic {offset_s} 0\nboottime {offset_s} 0\n")


def _make_network() -> None:
    """A network with nothing but loopback: from every other address comes no answer."""
    for name, value in _NETWORK_SETTINGS.items():
        kernel.write_setting(f"/proc/sys/net/ipv4/{name}", value)
    kernel.raise_loopback()
    with contextlib.suppress(OSError):  # a kernel without rules for routes: connecting fails at once
        kernel.drop_packets()


def _listen(port: int, channel: int) -> None:
    """Pass a socket that listens on this network's loopback to the owner: what connects to it is answered outside.

    Nothing of it stays here. Nobody inside can bind to the same port, or accept in the owner's place.
    """
    with (
        socket.socket(fileno=os.dup(channel)) as answer,
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener,
    ):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(_WAITING_CONNECTIONS)
        socket.send_fds(answer, [b"1"], [listener.fileno()])


def _limit_process(limits: dict[str, Any], *, processes: bool) -> None:
    """Limit what this process and each that it starts may hold: before any program that the agent may have replaced.

    Args:
        processes: limit how many there are, of this user in this user namespace.
    """
    chosen = {
        resource.RLIMIT_NOFILE: limits["descriptors"],
        resource.RLIMIT_FSIZE: limits["file_size_bytes"],
    }
    if processes:
        chosen[resource.RLIMIT_NPROC] = limits["processes"]
    for limit, most in {**chosen, **_PROCESS_LIMITS}.items():
        allowed = resource.getrlimit(limit)[1]
        hard = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        soft = min(hard, _SOFT_DESCRIPTORS) if limit == resource.RLIMIT_NOFILE else hard
        resource.setrlimit(limit, (soft, hard))


def _remain_as_init(*awaited: int) -> None:
    """Stay as process 1 until one of `awaited` ends, and exit as it did; the kernel then ends the whole namespace.

    Orphans that end before are waited for too.
    """
    kernel.forbid_tracing()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(0, _MOST_DESCRIPTORS)
    while True:
        pid, status = os.wait()
        if pid in awaited:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _isolate(root: str, request: dict[str, Any], binds: _Trees, devices: _Trees) -> None:
    """Make what Apptainer would: devices, /proc, a root without a way back, and no way to gain rights.

    The root is entered first. A writable layer that was used before may hold links where directories are expected;
    they then lead somewhere inside.
    """
    with kernel.pivoted(root):
        for tree, target in binds:
            _attach(tree, target)
        _mount_devices("/dev", devices)
        # Before the old root goes: a user namespace may mount /proc only where it can see a complete one already.
        _mount_processes()
        if request["isolation"] != "imports":  # whose user namespace is that of all
            _limit_user(namespaces=0)  # nobody inside becomes root of a namespace of their own
        _mask_proc()
    socket.sethostname(request["hostname"])
    kernel.set_no_new_privileges()


def _limit_user(namespaces: int) -> None:
    """Limit what the user of this namespace may hold, here and below."""
    for name, most in {"max_user_namespaces": namespaces, **_USER_LIMITS}.items():
        with contextlib.suppress(FileNotFoundError):  # a kernel without inotify
            kernel.write_setting(f"/proc/sys/user/{name}", str(most))


def _mask_proc() -> None:
    _attach(kernel.open_tree(READ_ONLY), READ_ONLY)
    for path in MASKED:
        if os.path.isdir(path):
            kernel.mount("none", path, "tmpfs", kernel.MS_RDONLY, "size=0,nr_inodes=1")
        else:
            kernel.mount("/dev/null", path, "", kernel.MS_BIND)


def _attach(tree: int, target: str) -> None:
    """Attach an opened tree at `target`, read-only, which is made where there is none."""
    if not os.path.lexists(target):
        directory = stat.S_ISDIR(os.fstat(tree).st_mode)
        os.makedirs(target if directory else os.path.dirname(target), exist_ok=True)
        if not directory:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.make_read_only(tree, target)
    kernel.move_mount(tree, target)


def _mount_processes() -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", flags, "hidepid=2")  # other processes than the agent's lead to the host


def _mount_devices(target: str, devices: _Trees) -> None:
    """Devices that hold nothing of the host, terminals and shared memory of the sandbox's own."""
    # No device files can be made in it, but links, and each takes memory that its size does not count.
    kernel.mount("tmpfs", target, "tmpfs", kernel.MS_NOSUID, "size=64k,nr_inodes=256,mode=755")
    for tree, name in devices:
        os.close(os.open(f"{target}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
        kernel.move_mount(tree, f"{target}/{name}")
    for name, link in _DEVICE_LINKS.items():
        os.symlink(link, f"{target}/{name}")
    os.mkdir(f"{target}/pts")
    options = f"newinstance,ptmxmode=0666,max={_TERMINALS}"
    kernel.mount("devpts", f"{target}/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
    os.mkdir(f"{target}/shm")
    options = f"size={SHARED_MEMORY_BYTES},nr_inodes=4096,mode=1777"
    kernel.mount("tmpfs", f"{target}/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def _mount_overlay(root: str, request: dict[str, Any]) -> tuple[int, ...]:
    """Mount the layers of `request` at `root`, an empty directory; the ids of the processes that serve them.

    The kernel's overlay needs no process and is several times faster. Where it is refused, fuse-overlayfs serves.

    Raises:
        OSError: neither works; the text gives both reasons.
    """
    for layer in request["layers"]:
        os.stat(os.path.join(layer, "."))  # names a layer that is missing or out of the user's reach; mount(2) does not
    lower = ":".join(_escaped(layer) for layer in reversed(request["layers"]))
    upper, work = (_escaped(os.path.join(request["layer"], name)) for name in ("upper", "work"))
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if "overlay" in request["without"]:
        reason = "the kernel's overlay was not to be used"
    else:
        try:
            kernel.mount("overlay", root, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, f"userxattr,{options}")
            return ()
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            reason = str(error)
    for path in (*request["layers"], request["layer"]):
        if ":" in path:  # it knows no escape of what separates its layers
            raise OSError(errno.EINVAL, f"{reason}; and {_FUSE} takes no path with ':', got {path}")
    # What belongs to a user without an id in here cannot be copied up: for fuse-overlayfs all is the sandbox user's.
    squashed = f"{options},squash_to_uid={request['uid']},squash_to_gid={request['gid']}"
    return (_serve_overlay(root, squashed, reason),)


def _serve_overlay(root: str, options: str, reason: str) -> int:
    """Start fuse-overlayfs and wait until the layers are mounted; its process id."""
    places = [os.path.join(place, _FUSE) for place in _FUSE_PATH.split(":")]
    program = next((place for place in places if os.access(place, os.X_OK)), None)
    if program is None:
        raise OSError(errno.ENOENT, f"{reason}; and {_FUSE} is not installed")
    outside = os.stat(root).st_dev
    messages, write = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            kernel.keep_capabilities()
            null = os.open("/dev/null", os.O_RDWR)
            for target, source in enumerate((null, write, write)):
                os.dup2(source, target)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.execve(program, [_FUSE, "-f", "-o", options, root], {"PATH": _FUSE_PATH})
        finally:
            os._exit(127)
    os.close(write)
    deadline = time.monotonic() + _FUSE_TIMEOUT_S
    while os.stat(root).st_dev == outside:
        if os.waitpid(server, os.WNOHANG)[0] or time.monotonic() > deadline:
            os.set_blocking(messages, False)
            last_line = "no reason given"
            with contextlib.suppress(BlockingIOError, IndexError):
                last_line = os.read(messages, 4096).decode(errors="replace").strip().splitlines()[-1]
            raise OSError(errno.EIO, f"{reason}; and {_FUSE}: {last_line}")
        time.sleep(0.002)
    os.close(messages)
    return server


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
