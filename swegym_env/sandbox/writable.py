"""A sandbox's writable layer: the directory that holds it, its first content, and copies of it.

The supervisor makes the directory: a tmpfs where that is possible, else a plain directory. A tmpfs is mounted for the
supervisor and its containers only, so a layer has two paths: `path` is the supervisor's, `view` is this process's.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import posixpath
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from swegym_env.errors import SandboxBrokenError, SandboxError
from swegym_env.paths import large_run_dir, run_dir
from swegym_env.sandbox.api import Limits
from swegym_env.sandbox.client import clean_up, supervisor
from swegym_env.sandbox.host_image import HOME
from swegym_env.sandbox.identity import own
from swegym_env.sandbox.layers import mark_opaque
from swegym_env.sandbox.leases import storage_error
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["FormerLayer", "SandboxDirectory", "WritableLayer", "copy_files", "run_dir_for"]

_MEMORY_FRACTION = 0.5  # of the machine's memory that one layer may take; larger ones lie on disk
_LARGEST_STATE_BYTES = 16 << 20
# How the messages of `cp` end about files that no program reaches by their path.
_UNREACHABLE = ("File name too long", "No such file or directory", "as it was replaced while being copied")
_LITTLE_BYTES, _LITTLE_FILES = 1 << 16, 1  # a file system with less left is full
_SHARE = 2  # one layer takes at most 1 / _SHARE of the free space of its disk
_LEAST_BYTES, _LEAST_FILES = 64 << 20, 1024  # with less, the machine is at fault and not the agent
_MOST_STATE_FILES = 64
_PATIENCE_S = 20.0  # a disk may be full for so long until the sandbox that filled it has ended


class SandboxDirectory:
    """The directory of a sandbox, removed when nobody uses it or a layer in it any more. Thread-safe.

    Args:
        path: of the directory, which the caller uses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._users = 1
        self._lock = threading.Lock()

    def share(self) -> None:
        """Count one more user."""
        with self._lock:
            self._users += 1

    def release(self) -> bool:
        """Count one user less; whether it was the last. The directory is then removed, and what runs on it ended."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            clean_up({"do": "close", "id": self.path.name, "directory": str(self.path)})
        return last


@dataclass(frozen=True)
class FormerLayer:
    """A writable layer that nobody writes to any more: several sandboxes and snapshots lie over it.

    Attributes:
        directory: of the sandbox that wrote it.
        path: its files, the supervisor's path.
        view: its files, as this process sees them.
        size_bytes, inodes: what it takes of the limits.
    """

    directory: SandboxDirectory
    path: Path
    view: Path
    size_bytes: int
    inodes: int


class WritableLayer:
    """One writable layer, whose directory is made at once.

    Args:
        directory: of the sandbox.
        name: of the layer in it; a sandbox may go through several layers.
        limits: of the sandbox.

    Attributes:
        has_own_file_system: it is a tmpfs, which limits its size.
        view: its directory, as this process sees it.
        upper: the directory of what was written, as this process sees it.
        disk_bytes, inodes: the limits on it; on a disk at most half of what is free.

    Raises:
        StorageError: the directory cannot be made.
        SandboxError: the supervisor is gone.
    """

    def __init__(self, directory: Path, name: str, limits: Limits) -> None:
        self._client = client = supervisor()
        self.path = directory / name
        self._full = False
        self._replaced = 0
        self._is_over_former = False
        in_memory = _fits_in_memory(limits) and _is_tmpfs(directory.parent)
        size_bytes = limits.disk_bytes if in_memory else 0
        request = {"do": "layer", "path": str(self.path), "size_bytes": size_bytes, "inodes": limits.inodes}
        answer = client.ask(request)
        if answer.startswith("error"):
            raise storage_error(OSError(answer.removeprefix("error ")), directory.parent)
        self.has_own_file_system = answer == "tmpfs"
        self.view = Path(f"/proc/{client.pid}/root{self.path}") if self.has_own_file_system else self.path
        self.upper = self.view / "upper"
        self.disk_bytes, self.inodes = limits.disk_bytes, limits.inodes
        if not self.has_own_file_system:
            free = os.statvfs(self.path)
            self.disk_bytes = min(self.disk_bytes, free.f_bavail * free.f_frsize // _SHARE)
            self.inodes = min(self.inodes, free.f_favail // _SHARE) if free.f_files else self.inodes
            if self.disk_bytes < min(limits.disk_bytes, _LEAST_BYTES) or self.inodes < min(limits.inodes, _LEAST_FILES):
                raise storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), directory.parent)

    def populate(self, workdir: str, binds: Mapping[str, str]) -> None:
        """Fill an empty layer: a home, temporary directories, targets of binds, and the working directory."""
        view, upper = str(self.view), str(self.upper)
        _make_directory(f"{view}/work", 0o755)
        _make_directory(upper, 0o755)
        wanted = {"tmp": 0o1777, "var": 0o755, "var/tmp": 0o1777, "home": 0o755, HOME[1:]: 0o755, ".swegym": 0o755}
        files = [target for source, target in binds.items() if not os.path.isdir(source)]
        directories = [workdir, *(target for target in binds.values() if target not in files)]
        for path in (*directories, *(posixpath.dirname(target) for target in files)):
            for parent in (*reversed(PurePosixPath(path).parents), PurePosixPath(path)):
                wanted.setdefault(str(parent)[1:], 0o755)
        for name, mode in wanted.items():
            if name:
                _make_directory(f"{upper}/{name}", mode)
        for target in files:
            Path(upper + target).touch()
            own(upper + target)

    def copy_from(self, upper: Path, *, over_former: bool = False) -> None:
        """Fill an empty layer with a copy of the files in `upper`, the supervisor's path.

        Args:
            over_former: they lie over a former layer, see `continue_from`.
        Raises:
            SandboxError: they cannot be copied.
        """
        self._is_over_former = over_former
        try:
            _make_directory(self.view / "work", 0o755)
        except OSError as error:
            raise storage_error(error, self.path.parent.parent) from error
        copy_files(upper, self.path / "upper")

    def used(self) -> tuple[int, int]:
        """Bytes and files on a file system of its own."""
        status = os.statvfs(self.view)
        return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree

    def continue_from(self, former: FormerLayer, state: str) -> None:
        """Prepare an empty layer to lie over a former one.

        The directory of the file `state` hides the former one's, and has copies of its regular files: whatever an agent
        put there, a new shell finds the state or nothing.

        Raises:
            StorageError: there is no place.
        """
        self._is_over_former = True
        try:
            _make_directory(self.view / "work", 0o755)
            _make_directory(self.upper, stat.S_IMODE(os.stat(former.view).st_mode))
            target = self.upper / state[1:].partition("/")[0]
            _make_directory(target, 0o755)
            mark_opaque(target)
            for name, content, mode in _regular_files(former.view / target.name):
                (target / name).write_bytes(content)
                (target / name).chmod(mode)
                own(target / name)
        except OSError as error:
            raise storage_error(error, self.path.parent.parent) from error

    def has_state(self, name: str) -> bool:
        """Whether the file `name` (absolute, in a directory of the root) can be read by a new shell.

        Nothing may be running in the sandbox. If it is anything but a regular file of a sensible size in a directory,
        the directory is made again: the agent may have put a link or a named pipe there.
        """
        directory, base = name[1:].split("/")
        upper = os.open(self.upper, os.O_PATH | os.O_DIRECTORY)
        try:
            with contextlib.suppress(FileNotFoundError):
                here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=upper)
                try:
                    status = os.stat(base, dir_fd=here, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_STATE_BYTES:
                        return True
                finally:
                    os.close(here)
        except (NotADirectoryError, PermissionError):
            pass  # the agent replaced or closed the directory
        finally:
            os.close(upper)
        self.discard_state(name)
        return False

    def discard_state(self, name: str) -> None:
        """Remove the directory of the file `name` and make it again. Nothing may be running in the sandbox."""
        directory = name[1:].partition("/")[0]
        # The agent decides how much lies there, so the supervisor removes it.
        self._replaced += 1
        discarded = f"replaced-{self._replaced}"
        with contextlib.suppress(OSError):  # the layer may be full: then the next shell saves no state
            try:
                os.rename(self.upper / directory, self.view / discarded)
                self._client.send({"do": "remove", "directory": str(self.path / discarded)})
            except FileNotFoundError:
                pass
            except PermissionError:  # a directory that the agent closed to itself, and to an ordinary owner
                remove_tree(self.upper / directory)
            _make_directory(self.upper / directory, 0o755)
            if self._is_over_former:
                mark_opaque(self.upper / directory)

    def alive(self) -> bool:
        """Whether the supervisor that made it still runs: a layer in memory ends with it."""
        return self._client.alive()

    def reached_disk_limit(self, exit_code: int) -> bool:
        """Whether a command that ended with `exit_code` filled the layer, or failed while it was full.

        Raises:
            SandboxBrokenError: it has no file system of its own, the machine's is full, and it is over its limit.
            StorageError: the machine's is full, whatever is in this layer.
        """
        was_full, self._full = self._full, self._is_full()
        if self._full and not self.has_own_file_system:
            if self._is_over_its_limit():
                raise SandboxBrokenError(
                    f"the sandbox's files fill the disk of the machine: they take more than {self.disk_bytes} bytes, "
                    f"or are more than {self.inodes}"
                )
            deadline = time.monotonic() + _PATIENCE_S
            while self._is_full():
                if time.monotonic() > deadline:
                    raise storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), self.path.parent.parent)
                time.sleep(0.05)
            self._full = False
        return self._full and (exit_code != 0 or not was_full)

    def _is_full(self) -> bool:
        try:
            status = os.statvfs(self.view)
        except OSError:
            return False
        no_inode = status.f_files > 0 and status.f_favail < _LITTLE_FILES
        return no_inode or status.f_bavail * status.f_frsize < _LITTLE_BYTES

    def _is_over_its_limit(self) -> bool:
        """Measure it, with what its processes have open: an agent may have been faster than the last measurement."""
        return self.is_larger_than(self.disk_bytes, self.inodes)

    def is_larger_than(self, size_bytes: int, inodes: int) -> bool:
        """Whether it takes more than either."""
        limits = [size_bytes, inodes]
        request = {"do": "measure", "id": self.path.parent.name, "path": str(self.path / "upper"), "limits": limits}
        words = next(self._client.lines(request), "").split()
        sizes = [int(word) for word in words if word.isdigit()]  # none where it is gone
        return any(size > limit for size, limit in zip(sizes, limits, strict=False))

    def remove(self) -> None:
        """Remove the layer and everything in it."""
        clean_up({"do": "remove", "directory": str(self.path)})


def run_dir_for(limits: Limits) -> Path:
    """The run directory of a sandbox with these limits: in memory if its layer may grow there, else on disk."""
    return run_dir() if _fits_in_memory(limits) else large_run_dir()


def copy_files(source: Path, target: Path) -> None:
    """Copy a writable layer as it is; both paths are the supervisor's.

    A process that was not stopped may remove files meanwhile, and an agent can make paths longer than any program can
    name: these are left out.

    Raises:
        SandboxError: other files cannot be copied.
    """
    fault = last = ""
    for line in supervisor().lines({"do": "copy", "from": str(source), "to": str(target)}):
        if not (line.endswith(_UNREACHABLE) and f"{source}/" in line):
            fault, last = fault or last, line
    if last != "exit 0" and (fault or last != "exit 1"):
        clean_up({"do": "remove", "directory": str(target)})
        raise SandboxError(f"a sandbox's files cannot be copied: {(fault or last or 'the supervisor died')[:500]}")


def _make_directory(path: str | Path, mode: int) -> None:
    os.mkdir(path)
    os.chmod(path, mode)
    own(path)


def _regular_files(directory: Path) -> Iterator[tuple[str, bytes, int]]:
    """Name, content and mode of the regular files of a directory that nobody writes to; no link is followed."""
    try:
        here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # the agent replaced or closed it
        return
    try:
        for name in sorted(os.listdir(here))[:_MOST_STATE_FILES]:
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_STATE_BYTES:
                    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=here), "rb") as file:
                        content = file.read()
                    yield name, content, stat.S_IMODE(status.st_mode) & 0o777
    finally:
        os.close(here)


def _fits_in_memory(limits: Limits) -> bool:
    return limits.disk_bytes <= _MEMORY_FRACTION * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.lru_cache(maxsize=64)
def _is_tmpfs(directory: Path) -> bool:
    """Whether a directory lies on a tmpfs; a user who chose another file system wants no sandboxes in memory."""
    best, kind = -1, ""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        if directory.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind == "tmpfs"
