"""Equal files of many layers are stored once: they are hard links to one file in a pool beside the layers.

The commits of a repository differ in a few files. 230 layers of Django take a third of the space with links, and what
one sandbox has read, the page cache has for the sandboxes of the other commits.

Files are equal if content, permissions, owner and time of change are. Two files of one layer are never links to the
same file, so that no program takes them for one. Sandboxes see links in a lower layer of their overlay, where nothing
can be written: the first change of a file copies it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections import Counter
from contextlib import suppress
from pathlib import Path

from swegym_env.files import make_directory

__all__ = ["link_equal_files", "remove_unused"]

_REFUSED = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV)  # the file system has no hard links
_APART = ".git"  # its files differ with the commit


def link_equal_files(tree: Path, pool: Path) -> None:
    """Replace the files of a finished tree by links to equal files in `pool`, and add the others to it.

    Several processes may do this at once. Where the file system has no hard links, nothing changes.

    Args:
        tree: nobody else uses it yet; on the file system of `pool`.
        pool: made if it does not exist.
    Raises:
        OSError: the pool cannot be written.
    """
    made = Counter[str]()
    for directory, names, files in os.walk(tree):
        if _APART in names:
            names.remove(_APART)
        for name in files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_size or status.st_nlink > 1:
                continue
            key = _key(path, status)
            made[key] += 1
            if not _link(path, status, pool / key[:2] / f"{key[2:]}-{made[key]}"):
                return


def _key(path: str, status: os.stat_result) -> str:
    with open(path, "rb") as file:
        content = hashlib.sha256(file.read()).hexdigest()
    about = (content, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns)
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _link(path: str, status: os.stat_result, pooled: Path) -> bool:
    """Make a file a link to the pool's, or the pool's a link to it; False if the file system has no hard links."""
    beside = os.path.join(os.path.dirname(path), f".{secrets.token_hex(6)}")  # its own name may have no room for more
    try:
        if os.lstat(pooled).st_size != status.st_size:  # cut off when the machine crashed
            os.unlink(pooled)
        os.link(pooled, beside)
        os.rename(beside, path)
        return True
    except FileNotFoundError:
        make_directory(pooled.parent)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        if error.errno != errno.EMLINK:
            raise
        with suppress(FileNotFoundError):
            os.unlink(pooled)  # as many links as a file may have: the next layers link to another one
    try:
        with suppress(FileExistsError):  # by another process in the meantime; this file stays alone
            os.link(path, pooled)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


def remove_unused(pool: Path) -> None:
    """Remove the files of the pool that no layer has any more."""
    for directory, _, names in os.walk(pool):
        for name in names:
            path = os.path.join(directory, name)
            with suppress(FileNotFoundError):  # another process removes them too
                if os.lstat(path).st_nlink == 1:
                    os.unlink(path)
