"""The Linux system calls that Python 3.10 does not offer. Each raises OSError with the name of the call."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator

__all__ = [
    "Filter",
    "can_charge_others",
    "clone",
    "clone_charged_to",
    "drop_capabilities",
    "drop_packets",
    "forbid_tracing",
    "is_of_proc",
    "is_readable",
    "join_new_session_keyring",
    "keep_capabilities",
    "make_private",
    "make_read_only",
    "map_ids",
    "mount",
    "move_mount",
    "open_inside",
    "open_tree",
    "pivoted",
    "raise_loopback",
    "receive_mounts",
    "set_fs_ids",
    "set_no_new_privileges",
    "set_parent_death_signal",
    "setns",
    "unmount",
    "unshare",
    "watch_opening",
    "write_setting",
]

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 1 << 12, 1 << 14, 1 << 18, 1 << 19
_MNT_DETACH = 2
_IN_ATTRIB, _IN_OPEN = 0x04, 0x20
_AT_EMPTY_PATH, _AT_RECURSIVE, _AT_FDCWD = 0x1000, 0x8000, -100
_OPEN_TREE_CLONE = 1
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV, _MOUNT_ATTR_IDMAP = 1, 2, 4, 1 << 20
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 1, 4, 28, 38
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAP_SETUID, _CAP_SETPCAP, _CAP_SYS_PTRACE = 7, 8, 19
_PR_CAP_AMBIENT, _RAISE, _CAPABILITY_VERSION_3 = 47, 2, 0x20080522
_PROC_SUPER_MAGIC = 0x9FA0
_RESOLVE_IN_ROOT, _RESOLVE_NO_SYMLINKS = 0x10, 0x04
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_CREATE = 0x1, 0x4, 0x400
_RTM_NEWROUTE, _RTA_OIF, _RTA_PREFSRC, _RT_TABLE_MAIN, _RTPROT_BOOT, _RTN_UNICAST = 24, 4, 7, 254, 3, 1
_RTM_NEWRULE, _FRA_PRIORITY, _FRA_DPORT_RANGE, _FR_ACT_UNREACHABLE = 32, 6, 24, 7

# Calls that not every C library has; numbers above 424 are the same on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _CLONE3, _OPENAT2, _MOUNT_SETATTR = 428, 429, 435, 437, 442
_CLONE_INTO_CGROUP = 1 << 33
_X86 = os.uname().machine in ("x86_64", "AMD64")
_CLONE, _PIVOT_ROOT = (56, 155) if _X86 else (220, 41)
_SECCOMP, _KEYCTL = (317, 250) if _X86 else (277, 219)
_SECCOMP_SET_MODE_FILTER, _KEYCTL_JOIN_SESSION_KEYRING = 1, 1

# PyDLL keeps the interpreter lock across a call: nothing here blocks, and a clone must not return without it.
_libc = ctypes.PyDLL(None, use_errno=True)


def _checked(result: int, call: str, subject: str = "") -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", subject or None)
    return result


def _path(path: str) -> bytes:
    """The bytes of a path. Raises OSError: there is no such path; C would cut it off at a NUL."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ), path) from error
    if b"\0" in encoded:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return encoded


def clone(flags: int, group: int | None = None) -> int:
    """Fork into new namespaces; returns 0 in the child, the child's id in the caller.

    With CLONE_NEWPID the child is process 1 of its namespace, and no intermediate process has to wait for it.

    Args:
        flags: CLONE_NEW…
        group: the directory of a control group of version 2 that the child is born in (Linux 5.7).
    """
    signal_child = 17
    if group is not None:
        wanted = struct.pack("=11Q", flags | _CLONE_INTO_CGROUP, 0, 0, 0, signal_child, 0, 0, 0, 0, 0, group)
        number, size = ctypes.c_long(_CLONE3), ctypes.c_size_t(len(wanted))
        return _checked(_libc.syscall(number, wanted, size), "clone3")
    return _checked(_libc.syscall(ctypes.c_long(_CLONE), ctypes.c_ulong(flags | signal_child), 0, 0, 0, 0), "clone")


def clone_charged_to(uid: int, flags: int, group: int | None = None) -> int:
    """`clone`, in which the new user namespace belongs to `uid`, not to this process's user (root).

    What the kernel counts for each user (user namespaces, watches of files, queued signals) it also counts for whoever
    made the namespace. The child still is root for the host's files, and has this process's real user.
    """
    keep = ctypes.c_ulong(_SECBIT_NO_SETUID_FIXUP)
    _checked(_libc.prctl(_PR_SET_SECUREBITS, keep, 0, 0, 0), "prctl")  # the capabilities, whatever the effective user
    own = os.geteuid()
    os.setresuid(-1, uid, -1)
    child = -1
    try:
        _libc.setfsuid(ctypes.c_uint(own))
        child = clone(flags, group)
    finally:
        if child != 0:
            os.setresuid(-1, own, -1)
            _checked(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0), "prctl")
    return child


def can_charge_others() -> bool:
    """Whether this process may use `clone_charged_to`.

    The right to trace is needed by others of its user: meanwhile this process looks like one that changed its user.
    """
    with open("/proc/self/status") as file:
        effective = next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
    return os.geteuid() == 0 and all(effective >> number & 1 for number in (_CAP_SETUID, _CAP_SETPCAP, _CAP_SYS_PTRACE))


def unshare(flags: int) -> None:
    """Move this process to new namespaces, as the command of that name does."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(namespace: int, kind: int) -> None:
    """Move this process to the namespace of an open file of `/proc/PID/ns`, which is of a kind CLONE_NEW…, at once."""
    _checked(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    """Mount a file system, as the command of that name does."""
    code = _libc.mount(_path(source), _path(target), kind.encode() or None, ctypes.c_ulong(flags), _path(data) or None)
    _checked(code, f"mount {kind or 'flags'}", target)


def make_private() -> None:
    """Keep later mounts of this namespace invisible to others, and those of others invisible here."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)


def receive_mounts() -> None:
    """Receive later mounts of the parent namespace, and keep those made here invisible to it."""
    mount("none", "/", "", MS_REC | MS_SLAVE)


def unmount(target: str) -> None:
    """Detach a mount at once, even in use; the kernel frees it when its last user has ended."""
    _checked(_libc.umount2(_path(target), ctypes.c_int(_MNT_DETACH)), "umount", target)


def open_tree(source: str, *, recursive: bool = True) -> int:
    """A detached copy of the mount at `source`; later the caller need not reach `source`.

    Args:
        recursive: copy the mounts below it too.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    number, here = ctypes.c_long(_OPEN_TREE), ctypes.c_int(_AT_FDCWD)
    return _checked(_libc.syscall(number, here, _path(source), ctypes.c_uint(flags)), "open_tree", source)


def make_read_only(tree: int, target: str, *, devices: bool = False) -> None:
    """Let nothing be written in a tree from `open_tree`, and set-user-id programs have no effect in it.

    Args:
        target: for the error.
        devices: device files in it have an effect, also where those of the mount that it is a copy of have none.
    """
    cleared = _MOUNT_ATTR_NODEV if devices else 0
    _set_attributes(tree, struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, cleared, 0, 0), target)


def map_ids(tree: int, user_namespace: int, *, read_only: bool) -> None:
    """Show the files of a tree from `open_tree` with the owners that a user namespace maps theirs to.

    Device files and set-user-id programs have no effect in it, and mounts of others do not appear in it.
    """
    attributes = (_MOUNT_ATTR_RDONLY if read_only else 0) | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | _MOUNT_ATTR_IDMAP
    _set_attributes(tree, struct.pack("=QQQQ", attributes, 0, MS_PRIVATE, user_namespace))


def _set_attributes(tree: int, wanted: bytes, target: str = "") -> None:
    code = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(tree),
        b"",
        ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE),
        wanted,
        ctypes.c_size_t(len(wanted)),
    )
    _checked(code, "mount_setattr", target)


def move_mount(tree: int, target: str) -> None:
    """Attach a tree from `open_tree` at `target`."""
    code = _libc.syscall(
        ctypes.c_long(_MOVE_MOUNT), ctypes.c_int(tree), b"", ctypes.c_int(_AT_FDCWD), _path(target), ctypes.c_uint(4)
    )
    _checked(code, "move_mount", target)


@contextlib.contextmanager
def pivoted(new_root: str) -> Iterator[None]:
    """Make `new_root`, a mount, the root; within the block the old root has no path, and after it, it is unmounted."""
    os.chdir(new_root)
    _checked(_libc.syscall(ctypes.c_long(_PIVOT_ROOT), b".", b"."), "pivoted", new_root)
    yield
    # The old root lies over the new one in the mount tree: "." is where both are.
    _checked(_libc.umount2(b".", ctypes.c_int(_MNT_DETACH)), "umount", "the old root")
    os.chdir("/")


def set_parent_death_signal(number: int) -> None:
    """Request a signal at the death of the thread that made this process; any change of user clears the request."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0), "prctl")


def set_no_new_privileges() -> None:
    """Let no set-user-id program give this process or its children privileges, ever."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0), "prctl")


def forbid_tracing() -> None:
    """Let nobody without rights over this process's first user namespace trace it, or read its memory or descriptors.

    It lasts until the process executes a program.
    """
    _checked(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0), "prctl")


class Filter:
    """A program for `install`, prepared where there is time: a new process pays for every page that it touches.

    Args:
        program: see `seccomp.compile_profile`.
    """

    def __init__(self, program: bytes) -> None:
        self._instructions = ctypes.create_string_buffer(program, len(program))
        described = struct.pack("@HP", len(program) // 8, ctypes.addressof(self._instructions))
        self._described = ctypes.create_string_buffer(described, len(described))
        self._words = (ctypes.c_long(_SECCOMP), ctypes.c_uint(_SECCOMP_SET_MODE_FILTER), ctypes.c_uint(0))

    def install(self) -> None:
        """Run it at every system call of this process and of all that it starts, forever.

        Needs `set_no_new_privileges`, or all rights over the user namespace.
        """
        _checked(_libc.syscall(*self._words, self._described), "seccomp")


def join_new_session_keyring() -> None:
    """Leave the keys of whoever started this process: its session gets an empty keyring, which ends with it.

    Where the kernel has no keys, or this user already has as many as allowed, nothing changes.
    """
    with contextlib.suppress(OSError):
        number, operation = ctypes.c_long(_KEYCTL), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING)
        _checked(_libc.syscall(number, operation, None), "keyctl")


def raise_loopback() -> None:
    """Bring `lo` up in this network namespace: servers on 127.0.0.1 inside work, nothing else does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)[0]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _netlink(kind: int, body: bytes, *attributes: tuple[int, bytes]) -> bytes:
    """One request of rtnetlink(7) that adds something and is acknowledged; values are padded to four bytes."""
    for number, value in attributes:
        body += struct.pack("=HH", 4 + len(value), number) + value.ljust(-(-len(value) // 4) * 4, b"\0")
    return struct.pack("=IHHII", 16 + len(body), kind, _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE, 0, 0) + body


# Family, lengths of destination and source, type of service, table, protocol (boot), scope, kind; flags.
_REFUSE_NAMES = _netlink(
    _RTM_NEWRULE,
    struct.pack("=8BI", socket.AF_INET, 0, 0, 0, 0, 0, 0, _FR_ACT_UNREACHABLE, 0),
    (_FRA_PRIORITY, struct.pack("=I", 1000)),  # after the local addresses, before all routes
    (_FRA_DPORT_RANGE, struct.pack("=HH", 53, 53)),
)
_DEFAULT_ROUTE = _netlink(
    _RTM_NEWROUTE,
    struct.pack("=8BI", socket.AF_INET, 0, 0, 0, _RT_TABLE_MAIN, _RTPROT_BOOT, 0, _RTN_UNICAST, 0),
    (_RTA_OIF, struct.pack("=I", 1)),  # `lo` is the first interface of every network namespace
    (_RTA_PREFSRC, socket.inet_aton("127.0.0.1")),
)


def drop_packets() -> None:
    """Lose what is sent to other addresses in this network namespace, as on the internet where nobody answers.

    The default route leads to `lo`, which is up, and there the kernel drops what it would have to forward. Without a
    route, connecting fails at once. Requests to name servers (port 53) still do: looking a name up would take ten
    seconds otherwise.

    Raises:
        OSError: the kernel refuses a route.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as routing:
        for request in (_REFUSE_NAMES, _DEFAULT_ROUTE):
            routing.send(request)
            number = -int(struct.unpack_from("=i", routing.recv(4096), 16)[0])
            if number:
                raise OSError(number, f"rtnetlink: {os.strerror(number)}")


def open_inside(root_fd: int, path: str, flags: int, mode: int = 0, *, follow_links: bool = True) -> int:
    """openat2(2) with every link resolved as if `root_fd` were the root: the path cannot lead outside.

    Args:
        follow_links: False: a path with a link in it is an error (ELOOP).
    """
    resolve = _RESOLVE_IN_ROOT if follow_links else _RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    code = _libc.syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(root_fd), _path(path), how, ctypes.c_size_t(len(how)))
    return _checked(code, "openat2", path)


def is_of_proc(descriptor: int) -> bool:
    """Whether a file is one of `/proc`."""
    status = ctypes.create_string_buffer(256)
    _checked(_libc.fstatfs(ctypes.c_int(descriptor), status), "fstatfs")
    return bool(struct.unpack_from("@l", status)[0] == _PROC_SUPER_MAGIC)


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Whether something can be read from a descriptor, or its end, within some seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def watch_opening(files: Iterable[int]) -> int:
    """A descriptor, not blocking, that has something to read once anybody has opened one of these files again.

    Another link to it counts too, since an overlay may have another inode for that, and any other change of its status.

    Args:
        files: descriptors of them, O_PATH will do.
    """
    watch = _checked(_libc.inotify_init1(ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC)), "inotify_init1")
    try:
        for file in files:
            place = _path(f"/proc/self/fd/{file}")
            code = _libc.inotify_add_watch(ctypes.c_int(watch), place, ctypes.c_uint32(_IN_OPEN | _IN_ATTRIB))
            _checked(code, "inotify_add_watch")
    except OSError:
        os.close(watch)
        raise
    return watch


def keep_capabilities() -> None:
    """Let the next program keep all capabilities that this process has in its user namespace, without being root."""
    header, data = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _checked(_libc.capget(header, data), "capget")
    effective, permitted, _, effective_high, permitted_high, _ = struct.unpack("=6I", data.raw)
    wanted = struct.pack("=6I", effective, permitted, permitted, effective_high, permitted_high, permitted_high)
    _checked(_libc.capset(header, wanted), "capset")
    for number in range(64):
        if (permitted | permitted_high << 32) >> number & 1:
            raised = _libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_RAISE), ctypes.c_ulong(number), 0, 0)
            _checked(raised, "prctl")


def drop_capabilities() -> None:
    """Have no capability any more in this process's user namespace."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, ctypes.create_string_buffer(24)), "capset")


def set_fs_ids(uid: int, gid: int) -> None:
    """Let this thread access files as another user; does nothing without the privilege."""
    _libc.setfsgid(ctypes.c_uint(gid))
    _libc.setfsuid(ctypes.c_uint(uid))


def write_setting(path: str, text: str) -> None:
    """Write to a file of `/proc` or of a control group, at once; the file exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
