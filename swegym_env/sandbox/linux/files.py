"""Files of a sandbox, read, written and removed from outside it: every name in there is chosen by the agent.

Reading and writing start no process and use no pipe. The kernel resolves every link as if the sandbox's root were the
root (`openat2` with RESOLVE_IN_ROOT), and the access counts as the sandbox user's: a link to the host leads nowhere.

One exception: fuse-overlayfs serves files to the user that mounted it only, not even to root. There a process that has
become that user does the same; this module is its program, see `main`.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import posixpath
import stat
import sys
from collections.abc import Iterator

from .kernel import is_of_proc, open_inside, set_fs_ids
from .processes import become_user

__all__ = ["Descent", "main", "read_file", "remove_tree", "write_file"]

_MOST_BYTES = 64 << 20  # of a file that is read: the owner's memory is not the agent's to fill
_NO_WAIT = os.O_NONBLOCK | os.O_NOCTTY  # opening a named pipe or a terminal must not block
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from linux.files import main; main(sys.argv[2:])"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 1000  # directories of one level that are remembered at a time
_VAIN_SCANS = 5  # of directories in which all was emptied and nothing can be removed: somebody is writing there


def read_file(root: int, path: str, user: tuple[int, int], *, fuse: bool = False) -> bytes:
    """The content of a regular file.

    Args:
        root: descriptor of the sandbox's root directory.
        path: absolute, inside.
        user: user and group id whose rights count.
        fuse: whether fuse-overlayfs serves the files.

    Raises:
        OSError: no such file, no permission; FileNotFoundError too where it is not a regular file; EFBIG for one of
            more than 64 MiB, as sparse ones and some of `/proc` are.
    """
    if fuse and os.geteuid() == 0:
        return _by_process(root, "read", path, 0, b"", user)
    with _rights_of(user):
        return _read(root, path)


def write_file(root: int, path: str, content: bytes, mode: int, user: tuple[int, int], *, fuse: bool = False) -> None:
    """Write a file and make its parents; an existing file keeps its mode. Arguments and errors as `read_file`."""
    if fuse and os.geteuid() == 0:
        _by_process(root, "write", path, mode, content, user)
        return
    with _rights_of(user):
        _write(root, path, content, mode)


@contextlib.contextmanager
def _rights_of(user: tuple[int, int]) -> Iterator[None]:
    """Let this thread's file accesses count as another user's."""
    set_fs_ids(*user)
    try:
        yield
    finally:
        set_fs_ids(os.geteuid(), os.getegid())


def _read(root: int, path: str) -> bytes:
    descriptor = open_inside(root, path, os.O_RDONLY | _NO_WAIT)
    with open(descriptor, "rb") as file:
        status = _require_regular(descriptor, path)
        content = file.read(_MOST_BYTES + 1) if status.st_size <= _MOST_BYTES else b""
        if max(len(content), status.st_size) > _MOST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return content


def _write(root: int, path: str, content: bytes, mode: int) -> None:
    missing = []
    directory = posixpath.dirname(path)
    while True:
        try:
            os.close(open_inside(root, directory or "/", os.O_PATH | os.O_DIRECTORY))
            break
        except FileNotFoundError:
            missing.append(directory.rstrip("/"))
            directory = posixpath.dirname(missing[-1])
    for directory in reversed(missing):
        parent = open_inside(root, posixpath.dirname(directory) or "/", os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(posixpath.basename(directory), 0o755, dir_fd=parent)
        except FileExistsError:  # another write made it meanwhile
            pass
        finally:
            os.close(parent)
    try:
        descriptor = open_inside(root, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_WAIT, mode)
        os.fchmod(descriptor, mode)
    except FileExistsError:
        descriptor = open_inside(root, path, os.O_WRONLY | os.O_CREAT | _NO_WAIT, mode)
    with open(descriptor, "wb") as file:
        _require_regular(descriptor, path)
        file.truncate(0)
        file.write(content)


def _require_regular(descriptor: int, path: str) -> os.stat_result:
    """The status of an open file that is stored somewhere.

    What a file of `/proc` holds depends on the rights of its reader, of which this process has more than the sandbox's
    user: it could read there about process 1.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or is_of_proc(descriptor):
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return status


def _by_process(root: int, action: str, path: str, mode: int, content: bytes, user: tuple[int, int]) -> bytes:
    import subprocess  # the supervisor, which removes trees with this module, starts faster without it

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    arguments = (package, *map(str, user), str(root), action, path, str(mode))
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
        input=content,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=(root,),
        env={},
        cwd="/",
        check=False,
    )
    if done.returncode:
        raise OSError(done.returncode, os.strerror(done.returncode), path)
    return done.stdout


def main(arguments: list[str]) -> None:
    """Read a file to standard output or write it from standard input; exits with the error's number, or 0.

    Args:
        arguments: the user and the group to become (they may be unable to start this program themselves), the root's
            descriptor, "read" or "write", the path, the mode of a file to write.
    """
    uid, gid, root, action, path, mode = arguments
    become_user(int(uid), int(gid))
    try:
        if action == "read":
            sys.stdout.buffer.write(_read(int(root), path))
        else:
            _write(int(root), path, sys.stdin.buffer.read(), int(mode))
    except OSError as error:
        sys.exit(error.errno)


def remove_tree(path: str | os.PathLike[str], *, most: int | None = None, truncate: bool = False) -> bool:
    """Remove a file, or a directory and everything below it, without following links; does nothing if it is gone.

    One directory is open at a time, and memory does not grow with the depth but for 16 bytes a level: an agent may have
    made a tree as deep or as wide as the file system allows. Directories without permissions (an overlay's `work/work`
    has mode 000) are opened up first. Another process may be removing the tree too, or still be writing to it. Nothing
    is made or moved, so it works on a full disk.

    Args:
        most: how many entries to remove at most; None: all.
        truncate: free the space of files at once, also of those that somebody still has open or mounted.
    Returns:
        Whether everything is gone.
    Raises:
        OSError: it cannot be removed; what is left stays.
    """
    name = os.path.basename(path)
    try:
        tree = Descent(os.path.dirname(path) or ".")
    except FileNotFoundError:
        return True
    with tree:
        if _discard(tree.here, name):
            return True
        left, vain_scans = sys.maxsize if most is None else most, 0
        full = {0: [name]}  # depth → some directories there that are not empty
        while left > 0:
            names = full.get(tree.depth)
            entered = bool(names)
            if names:
                entry = names.pop()
                if not names:
                    del full[tree.depth]
                if not tree.enter(entry, unlock=True):
                    continue  # removed meanwhile
            if tree.depth:
                removed, found = _empty(tree.here, left, truncate=truncate)
            else:
                removed = int(_discard(tree.here, name))
                found = [] if removed else [name]
            left -= removed
            if found:
                # All directories found here before have been emptied. Unless somebody writes, some can be removed now.
                vain_scans += not entered and not removed
                if vain_scans > _VAIN_SCANS:
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
                full[tree.depth] = found
            elif tree.depth == 0:
                return True
            else:
                tree.leave()
    return False


def _empty(directory: int, most: int, *, truncate: bool) -> tuple[int, list[str]]:
    """Remove the entries of an open directory but for directories that are not empty.

    Returns:
        How many were removed; some of the others: none if there are no others.
    """
    removed, found = 0, []
    with os.scandir(directory) as entries:
        for entry in entries:
            if truncate and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # removed meanwhile
                    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                    os.close(os.open(entry.name, flags, dir_fd=directory))
            if _discard(directory, entry.name, is_directory=entry.is_dir(follow_symlinks=False)):
                removed += 1
            else:
                found.append(entry.name)
            if removed >= most or len(found) >= _BATCH:
                break
    return removed, found


def _discard(parent: int, name: str, *, is_directory: bool = False) -> bool:
    """Remove one entry of an open directory; False if it is a directory that is not empty."""
    try:
        if not is_directory:
            try:
                os.unlink(name, dir_fd=parent)
                return True
            except IsADirectoryError:
                pass
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


class Descent:
    """A way through a tree of any depth: one open directory, and what is needed to return to those above it.

    Attributes:
        here: descriptor of the directory.
        depth: levels below the first one.

    Raises:
        OSError: the first directory cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.here = os.open(path, _DIRECTORY)
        self._above = array.array("Q")  # device and inode of each directory above

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.here)

    @property
    def depth(self) -> int:
        """Levels below the first directory."""
        return len(self._above) // 2

    def enter(self, name: str, *, unlock: bool = False) -> bool:
        """Go to a directory in this one; False if there is none.

        Args:
            unlock: give its owner all rights first.
        """
        try:
            below = os.open(name, _DIRECTORY, dir_fd=self.here)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            if not unlock:
                raise
            closed = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=self.here)
            try:
                os.chmod(f"/proc/self/fd/{closed}", 0o700)  # by its name a link would be followed
                below = os.open(".", _DIRECTORY, dir_fd=closed)
            finally:
                os.close(closed)
        if unlock and os.fstat(below).st_mode & 0o700 != 0o700:
            os.fchmod(below, 0o700)
        status = os.fstat(self.here)
        self._above.extend((status.st_dev, status.st_ino))
        os.close(self.here)
        self.here = below
        return True

    def leave(self) -> None:
        """Return to the directory above. Raises OSError (ESTALE) if this one was moved to another place meanwhile."""
        above = os.open("..", _DIRECTORY, dir_fd=self.here)
        os.close(self.here)
        self.here = above
        inode, device = self._above.pop(), self._above.pop()
        status = os.fstat(above)
        if (status.st_dev, status.st_ino) != (device, inode):
            raise OSError(errno.ESTALE, "a directory was moved meanwhile")
