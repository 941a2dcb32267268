"""A user of its own for every container, where the supervisor is root.

The kernel counts inotify instances, descriptors in flight, pages of pipes, keys, pending signals and processes by user:
of containers with one user, each could take them from all others. So each gets an id that no other container of the
machine has, and its user namespace is made by that user, so that nothing is charged to root either.

On disk all files of sandboxes belong to one user. A container sees them through mounts that swap this user's id and
its own (Linux 5.12; for overlays 5.19, for tmpfs 6.3). Layers are therefore shared, and a writable layer is read,
copied and removed as if there were one user only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections import deque

from . import kernel

__all__ = ["User", "Users", "why_shared"]

# One byte for each id: whoever holds a lock on it has that id. The kernel releases the locks of a process
# that has ended.
_LOCKS = "/run/swegym-users"
_ALL_IDS = (1 << 32) - 1


class User:
    """A user that one container at a time has.

    Args:
        id: on the host, of the user and its group.
        mapping: descriptor of a user namespace that swaps this id and the one that files on disk have.
    """

    __slots__ = ("id", "mapping")

    def __init__(self, id: int, mapping: int) -> None:  # noqa: A002 - its name on the host
        self.id = id
        self.mapping = mapping

    def tree(self, path: str, *, read_only: bool) -> int:
        """The mount at `path` with this user as owner of the files; a descriptor for `kernel.move_mount`.

        Raises:
            OSError: the file system cannot map ids, or this process is not root.
        """
        tree = kernel.open_tree(path, recursive=False)
        try:
            kernel.map_ids(tree, self.mapping, read_only=read_only)
        except OSError:
            os.close(tree)
            raise
        return tree


class Users:
    """Users of a range of ids.

    Args:
        first: the first id.
        count: how many.
        on_disk: the user that files on disk belong to.
        locks: the file on which ids are locked; the same for all processes of the machine.

    Raises:
        OSError: that file cannot be made.
    """

    def __init__(self, first: int, count: int, on_disk: int, *, locks: str = _LOCKS) -> None:
        self._first, self._count, self._on_disk = first, count, on_disk
        self._locks = os.open(locks, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._held: set[int] = set()  # a lock of the same open file would be granted again
        self._free: deque[User] = deque()

    def take(self) -> User:
        """A user that no container has. Raises OSError if all are taken."""
        if self._free:
            return self._free.popleft()
        # A random one first: root of another container may see another file of locks.
        start = int.from_bytes(os.urandom(8), "little") % self._count
        for number in range(self._count):
            free = self._first + (start + number) % self._count
            if free != self._on_disk and free not in self._held and self._lock(free):
                self._held.add(free)
                return User(free, _swapping(self._on_disk, free))
        raise OSError(
            f"all {self._count} user ids from {self._first} on are in use. Try: a larger range in SWEGYM_SUBUID"
        )

    def give_back(self, user: User) -> None:
        """Let another container of this process have a user whose processes have all ended."""
        self._free.append(user)

    def _lock(self, number: int) -> bool:
        # The lock belongs to the open file (F_OFD_SETLK): closing another descriptor of the same file keeps it.
        wanted = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        try:
            fcntl.fcntl(self._locks, fcntl.F_OFD_SETLK, wanted)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let other processes have all its users; none may be in use."""
        for user in self._free:
            os.close(user.mapping)
        os.close(self._locks)


def why_shared(first: int, count: int, on_disk: int, paths: list[str]) -> str:
    """Why containers share one user here; empty where each gets its own.

    Args:
        first: the range's first id.
        count: its length.
        on_disk: the user that files on disk belong to.
        paths: directories on the file systems of layers.
    """
    path = _LOCKS
    try:
        users = Users(first, count, on_disk)
        try:
            user = users.take()
            users.give_back(user)
            for path in paths:
                os.close(user.tree(path, read_only=True))
        finally:
            users.close()
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""


def _swapping(one: int, other: int) -> int:
    """Descriptor of a user namespace in which two ids are swapped and all others mapped to themselves."""
    read, write = os.pipe()
    status, reports = os.pipe()
    holder = os.fork()  # not `clone`, whose child has no interpreter lock of its own if other threads run
    if holder == 0:
        try:
            os.close(write)
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(reports, b"\0")
            os.read(read, 1)
        except OSError as error:
            os.write(reports, bytes([error.errno or errno.EPERM]))
        finally:
            os._exit(0)
    try:
        os.close(reports)
        failure = os.read(status, 1)
        if failure != b"\0":
            number = failure[0] if failure else errno.EPERM
            raise OSError(number, os.strerror(number))
        low, high = sorted((one, other))
        ranges = [(0, 0, low), (low, high, 1), (low + 1, low + 1, high - low - 1), (high, low, 1)]
        ranges.append((high + 1, high + 1, _ALL_IDS - high - 1))
        text = "\n".join(f"{inside} {outside} {count}" for inside, outside, count in ranges if count)
        for name in ("gid_map", "uid_map"):
            with open(f"/proc/{holder}/{name}", "w") as file:
                file.write(text)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (read, write, status):
            os.close(descriptor)
        os.waitpid(holder, 0)
