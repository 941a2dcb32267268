"""Which paths an episode changed, found by walking its writable layer: the cost depends on what changed only.

The writable layer of an overlay holds what was written, a whiteout (a character device 0:0) for what was deleted, and
an "opaque" mark on a directory that hides what lies below it. Nobody inside can make either directly. It also holds
files that were opened for writing and stayed the same, and directories that were deleted and made again: both are
compared with the layers below. fuse-overlayfs has marks of its own. Only the marks of the one in use are trusted: the
agent can make the other's. No link made inside is followed, and a budget bounds what is read.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from swegym_env.sandbox.api import Change
from swegym_env.sandbox.budget import Budget, OverBudgetError
from swegym_env.sandbox.linux.kernel import open_inside

__all__ = ["MACHINE_ERRORS", "Below", "find_changes", "is_whiteout"]

MACHINE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE})
"""Errors of opening or reading a file that no agent can cause by what it does to the file."""

_KERNEL_MARKS = ("user.overlay.opaque", "trusted.overlay.opaque")
_FUSE_MARKS = ("user.fuseoverlayfs.opaque",)
# How the names of files begin that fuse-overlayfs keeps for itself; nobody inside can make one there.
_FUSE_FILES = ".wh."
_NO_FOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 16
_LONGEST_PATH_BYTES = 4095  # of the kernel; git has no names for longer paths either


class Below:
    """One path in the layers under the writable one: the directories that merge there, top first, or a file.

    No link is followed. It is False where there is nothing.
    """

    def __init__(self, directories: Sequence[str] = (), file: str | None = None) -> None:
        self.directories = directories
        self.file = file

    def __bool__(self) -> bool:
        return bool(self.directories) or self.file is not None

    def child(self, name: str) -> Below:
        """The entry `name` of this directory."""
        directories: list[str] = []
        for directory in self.directories:
            path = os.path.join(directory, name)
            try:
                status = os.lstat(path)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                    continue
                raise
            if is_whiteout(status):
                break
            if not stat.S_ISDIR(status.st_mode):
                return Below(directories) if directories else Below(file=path)
            directories.append(path)
            if _is_opaque(path, _KERNEL_MARKS):
                break
        return Below(directories)

    def at(self, path: str) -> Below:
        """The entry at a path below this directory."""
        below = self
        for name in filter(None, posixpath.normpath(path).split("/")):
            below = below if name == "." else below.child(name)
        return below

    def names(self) -> set[str]:
        """The visible entries of this directory."""
        return {name for directory in self.directories for name in os.listdir(directory) if self.child(name)}


_NOTHING = Below()


def find_changes(
    upper: Path,
    lowers: Sequence[Path],
    root: str,
    *,
    skip: Sequence[str] = (".git",),
    fuse: bool = False,
    budget: Budget | None = None,
    own: int = 0,
) -> list[Change]:
    """Every path under `root` at which the writable layer differs from the layers below.

    Args:
        upper: the writable layer.
        lowers: the layers below, bottom first.
        root: an absolute path inside.
        skip: names directly under `root` to leave out.
        fuse: whether the writable layer was written by fuse-overlayfs.
        budget: what the walk may cost; None: no limit.
        own: how many of the last of `lowers` are former writable layers of the sandbox, which nobody writes to any
            more: what they hold is changed too.
    Returns:
        Sorted by path. A path that was a directory and became a file, or the other way, comes twice: "deleted" first.
        A deleted directory is one change. Where `root` itself is gone, the one change has the path ".". Directories
        that the agent closed to the sandbox's user, which may be the owner too, are left out, as git does.
    Raises:
        OverBudgetError: the walk costs more than `budget`.
        OSError: the writable layer cannot be read.
    """
    base = lowers[: len(lowers) - own]
    found: list[Change] = []
    for number, layer in enumerate((*lowers[len(base) :], upper), len(base)):
        changes = _changes_in(layer, lowers[:number], root, frozenset(skip), fuse=fuse, budget=budget)
        found = _merged(found, changes, Below([str(one) for one in reversed(base)]).at(root)) if found else changes
    return sorted(found, key=lambda change: (os.fsencode(change.path), change.kind != "deleted"))


def _merged(former: Sequence[Change], later: Sequence[Change], base: Below) -> list[Change]:
    """The changes against `base` that two layers make together.

    Args:
        former: those of the lower one, against `base`.
        later: those of the upper one, against the lower one.
        base: the directory that they are changes of.
    """
    touched = {change.path for change in later}
    if "." in touched:
        return list(later)
    removed = {change.path for change in later if change.kind == "deleted"}
    found = {
        (change.path, change.kind == "deleted"): change
        for change in former
        if change.path not in touched and not _is_inside(change.path, removed)
    }
    for change in later:
        below = base.at(change.path)
        if (change.kind == "deleted" and below) or (change.kind != "deleted" and below.directories):
            found[change.path, True] = Change(change.path, "deleted")
        if change.kind != "deleted":
            found[change.path, False] = change
    return list(found.values())


def _is_inside(path: str, directories: set[str]) -> bool:
    at = path.rfind("/")
    while at > 0:
        if path[:at] in directories:
            return True
        at = path.rfind("/", 0, at)
    return False


def _changes_in(
    upper: Path, lowers: Sequence[Path], root: str, skip: frozenset[str], *, fuse: bool, budget: Budget | None
) -> list[Change]:
    """See `find_changes`; of one layer, unsorted."""
    below = Below([str(layer) for layer in reversed(lowers)])
    try:
        here = os.open(upper, os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        if os.stat(upper).st_mode & 0o500 == 0o500:  # the owner's own directories above it are at fault
            raise
        return []
    host, hidden, marks = str(upper), False, _FUSE_MARKS if fuse else _KERNEL_MARKS
    try:
        for name in filter(None, posixpath.normpath(f"/{root}").split("/")):  # no ".." is left
            below = below.child(name)
            try:  # without a look before: a background process may replace it meanwhile
                inner = os.open(name, _NO_FOLLOW | os.O_DIRECTORY, dir_fd=here)
            except (FileNotFoundError, PermissionError):
                return []
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                return [Change(".", "deleted")] if below else []
            os.close(here)
            here, host = inner, os.path.join(host, name)
            hidden = hidden or _is_opaque(here, marks)
        return list(_walk(here, host, below, hidden, marks, skip, budget))
    finally:
        os.close(here)


def _walk(
    root: int,
    host: str,
    below: Below,
    hidden: bool,
    marks: tuple[str, ...],
    skip: frozenset[str],
    budget: Budget | None,
) -> Iterator[Change]:
    """The changes below an open directory of the writable layer. An agent can make a tree deeper than any stack.

    Args:
        root: the directory.
        host: its path.
        below: the same directory in the layers below.
        hidden: nothing of `below` is visible.
        marks: what an opaque directory is marked with.
        skip: names directly in `root` to leave out.
        budget: what the walk may cost.
    """
    waiting = [("", below, hidden, 0)]
    while waiting:
        prefix, below, hidden, depth = waiting.pop()
        try:
            here = open_inside(root, prefix or ".", _NO_FOLLOW | os.O_DIRECTORY, follow_links=False)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                continue  # closed by the agent, or replaced by a background process meanwhile
            raise
        try:
            hidden = hidden or _is_opaque(here, marks)
            longest = _LONGEST_PATH_BYTES - len(os.fsencode(f"{host}/{prefix}"))
            names = {
                name
                for name in _names(here, len(prefix), depth, marks, budget)
                if (prefix or name not in skip) and len(os.fsencode(name)) <= longest
            }
            if marks is _FUSE_MARKS:
                own = {name for name in names if name.startswith(_FUSE_FILES)}
                names -= own
                for name in {name.removeprefix(_FUSE_FILES) for name in own} - names:
                    if below.child(name):
                        yield Change(prefix + name, "deleted")
            for name in names:
                status, lower = _status(here, name), below.child(name) if below.directories else _NOTHING
                if status is not None:
                    yield from _entry(here, name, host, prefix + name, status, lower, budget)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append((f"{prefix}{name}/", lower, hidden, depth + 1))
            if hidden:
                for name in below.names() - names - (skip if not prefix else set()):
                    yield Change(prefix + name, "deleted")
        finally:
            os.close(here)


def _names(here: int, prefix_length: int, depth: int, marks: tuple[str, ...], budget: Budget | None) -> Iterator[str]:
    """The names in an open directory; each that is not fuse-overlayfs's own is counted before the next one is read."""
    with os.scandir(here) as entries:
        for entry in entries:
            if budget is not None and not (marks is _FUSE_MARKS and entry.name.startswith(_FUSE_FILES)):
                budget.spend(files=1, size_bytes=prefix_length + len(entry.name), depth=depth)
            yield entry.name


def _entry(
    here: int, name: str, host: str, path: str, status: os.stat_result, below: Below, budget: Budget | None
) -> Iterator[Change]:
    """The changes that one entry of the open directory `here` makes, without those in it."""
    if is_whiteout(status):
        if below:
            yield Change(path, "deleted")
    elif stat.S_ISDIR(status.st_mode):
        if below.file is not None:
            yield Change(path, "deleted")
    elif stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode):
        if below.directories:
            yield Change(path, "deleted")
        if not _same(here, name, status, below.file, budget):
            yield Change(path, "symlink" if stat.S_ISLNK(status.st_mode) else "written", host, status)


def _status(here: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=here, follow_symlinks=False)
    except (FileNotFoundError, PermissionError):  # removed meanwhile, or in a directory that the agent closed
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Whether an entry of a layer marks a deleted one."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_opaque(directory: str | int, marks: tuple[str, ...]) -> bool:
    for mark in marks:
        try:
            if os.getxattr(directory, mark) == b"y":
                return True
        except OSError:
            continue
    return False


def _same(here: int, name: str, status: os.stat_result, other: str | None, budget: Budget | None) -> bool:
    """Whether a file or link of the writable layer equals the one below it, in kind, permissions and content.

    One that the agent closed, leased or removed meanwhile equals none.
    """
    if other is None:
        return False
    try:
        against = os.lstat(other)
        if (status.st_mode, status.st_size) != (against.st_mode, against.st_size):
            return False
        if stat.S_ISLNK(status.st_mode):
            return os.readlink(name, dir_fd=here) == os.readlink(other)
        with open(os.open(name, _NO_FOLLOW, dir_fd=here), "rb", 0) as ours, open(other, "rb", 0) as theirs:
            while True:
                piece = ours.read(_CHUNK_BYTES)
                if piece != theirs.read(_CHUNK_BYTES):
                    return False
                if not piece:
                    return True
                if budget is not None:
                    budget.check_time()
    except OSError as error:
        if isinstance(error, OverBudgetError) or error.errno in MACHINE_ERRORS:
            raise
        return False
