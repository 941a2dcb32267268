"""Files below an open root directory, with every link resolved as if that were the root; also as a program of its own.

As a program it does the same as whoever starts it wants it to be: fuse file systems open to nobody but their user, and
not even to root.
"""

from __future__ import annotations

import os
import posixpath
import stat
import sys

from .kernel import open_inside
from .processes import become_user

__all__ = ["main", "read_at", "write_at"]

_NO_WAIT = os.O_NONBLOCK | os.O_NOCTTY  # a named pipe or a terminal put there must not hold us


def read_at(root: int, path: str) -> bytes:
    """The content of a regular file. Raises FileNotFoundError or another OSError."""
    descriptor = open_inside(root, path, os.O_RDONLY | _NO_WAIT)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(2, "not a regular file", path)
        return file.read()


def write_at(root: int, path: str, content: bytes, mode: int) -> None:
    """Write a file; parents are made. An existing file keeps its mode. Raises OSError."""
    _make_parents(root, posixpath.dirname(path))
    try:
        descriptor = open_inside(root, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_WAIT, mode)
        os.fchmod(descriptor, mode)
    except FileExistsError:
        descriptor = open_inside(root, path, os.O_WRONLY | os.O_CREAT | _NO_WAIT, mode)
    with open(descriptor, "wb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(2, "not a regular file", path)
        file.truncate(0)
        file.write(content)


def _make_parents(root: int, directory: str) -> None:
    try:
        os.close(open_inside(root, directory or "/", os.O_PATH | os.O_DIRECTORY))
    except FileNotFoundError:
        above, name = posixpath.split(directory.rstrip("/"))
        _make_parents(root, above)
        parent = open_inside(root, above or "/", os.O_PATH | os.O_DIRECTORY)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:  # another write made it meanwhile
            pass
        finally:
            os.close(parent)


def main(arguments: list[str]) -> None:
    """Read a file to standard output or write it from standard input; exits with the number of the error, or 0.

    Args:
        arguments: the user and the group to become (they may be unable to start this program), the root's descriptor,
            "read" or "write", the path, the mode of a file to write.
    """
    uid, gid, root, what, path, mode = arguments
    become_user(int(uid), int(gid))
    try:
        if what == "read":
            sys.stdout.buffer.write(read_at(int(root), path))
        else:
            write_at(int(root), path, sys.stdin.buffer.read(), int(mode))
    except OSError as error:
        sys.exit(error.errno)
