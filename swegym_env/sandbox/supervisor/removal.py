"""Removing what a sandbox leaves on disk, whatever modes it gave its directories."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

__all__ = ["remove_tree"]

_ATTEMPTS = 5


def remove_tree(path: str) -> None:
    """Remove a directory and all below it, without following links; quiet where it is gone.

    Directories without permissions (an overlay's `work/work` has mode 000) are opened up first.
    """
    try:
        parent = os.open(os.path.dirname(path), os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _remove(parent, os.path.basename(path))
    finally:
        os.close(parent)


def _remove(parent: int, name: str) -> None:
    """Remove an entry of an open directory. Another process may be removing the tree too, or still be writing to it."""
    for attempt in range(_ATTEMPTS):
        try:
            os.unlink(name, dir_fd=parent)
            return
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):  # a directory: below
            pass
        try:
            _empty(parent, name)
            os.rmdir(name, dir_fd=parent)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _ATTEMPTS - 1:
                raise


def _empty(parent: int, name: str) -> None:
    here = _open_directory(parent, name)
    try:
        with os.scandir(here) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_directory in names:
            if is_directory:
                _remove(here, inner)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(inner, dir_fd=here)
    finally:
        os.close(here)


def _open_directory(parent: int, name: str) -> int:
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        raise PermissionError(errno.EPERM, "cannot be removed", name)
    if mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)  # a directory of ours, as was just seen, and nobody runs in here any more
    return os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
