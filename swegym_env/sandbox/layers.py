"""Layers: read-only directories that sandboxes are made of, each built once and named by the hash of its key.

A layer is built in a temporary directory and published by one atomic rename, so a layer that exists is complete. A
builder that fails or is killed leaves only a temporary, which `LayerStore.collect_garbage` removes. Builders of the
same layer wait for each other on a lock; readers of a published layer take no lock.

    work_dir()/layers/KIND-HASH/          a published layer; its content lies over the image's root
    work_dir()/layers/.building/…         temporaries, each named after the lock under which it is built
    work_dir()/layers/.locks/…            one file for each layer under construction

Several machines may share the directory. A lock is therefore a lease of `filelock` on a file made with O_EXCL, which
NFS (version 3 and later), Lustre and the like carry out on the server; `flock` is emulated on some of them and refused
on others. The holder renews the lease. A lock is taken over at once when its holder was a process of this machine that
has ended, and when it was not renewed for `_LEASE_S` seconds. A builder that was suspended for so long goes on beside
its successor: the lock only saves work, the rename makes the result right.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from swegym_env.errors import LayerError
from swegym_env.paths import work_dir
from swegym_env.sandbox.identity import own, sandbox_user
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["LayerStore", "mark_opaque"]

_USE_NOTED_EVERY_S = 24 * 3600.0
_LEASE_S, _HEARTBEAT_S = 120.0, 15.0  # NFS may show another machine's heartbeat up to a minute late
_UNWRITTEN_S = 60.0  # age at which an empty lock file is a crash's, not one that its holder is about to write


class LayerStore:
    """The layers stored on this machine. Safe for threads and processes; equal key parts mean the same layer."""

    def __init__(self, root: Path | None = None) -> None:
        """Open the store at `root` (default: `work_dir()/layers`); no directory is made before the first layer."""
        self.root = (root or work_dir() / "layers").absolute()
        self._known: dict[tuple[str, ...], Path] = {}

    def path_of(self, key_parts: Sequence[str]) -> Path:
        """The path of the layer with these key parts, built or not: `root/KIND-HASH`; the first part is the kind."""
        digest = hashlib.sha256(json.dumps(list(key_parts)).encode()).hexdigest()[:24]
        return self.root / f"{key_parts[0]}-{digest}"

    def get_or_build(self, key_parts: Sequence[str], builder: Callable[[Path], None]) -> Path:
        """The layer with these key parts; `builder(directory)` builds it if the store does not have it yet.

        Args:
            key_parts: everything that the content depends on; the first is the kind of layer, a short word.
            builder: fills the empty directory that it is given. Its exceptions are passed on; nothing is published.
        Returns:
            The published directory, never to be written again.
        Raises:
            LayerError: the store cannot be written (no space, no permission).
        """
        key = tuple(key_parts)
        known = self._known.get(key)
        if known is not None and os.path.isdir(known):
            return known
        path = self.path_of(key)
        if not path.is_dir():
            try:
                with self.building(path.name) as temporary:
                    if not path.is_dir():
                        builder(temporary)
                        self.publish(temporary, path)
            except OSError as error:
                raise LayerError(
                    f"layer {path.name} cannot be built under {self.root}: {error}. "
                    "Try: swegym gc, or another $SWEGYM_WORKDIR"
                ) from error
        _note_use(path)
        self._known[key] = path
        return path

    def collect_garbage(self, *, unused_for_s: float | None = None) -> tuple[Path, ...]:
        """Remove the temporaries of dead builders and, if asked, layers not used for `unused_for_s` seconds.

        No sandbox may be running on a layer that old. Returns what was removed.
        """
        removed: list[Path] = []
        temporaries = _entries(self.root / ".building")
        names = {temporary.name.rpartition(".")[0] for temporary in temporaries}
        for name in sorted(names.union(lock.name for lock in _entries(self.root / ".locks"))):
            with suppress(TimeoutError), self._lock(name, timeout_s=0):  # a lock that can be had has no living holder
                for temporary in temporaries:
                    if temporary.name.rpartition(".")[0] == name:
                        remove_tree(temporary)
                        removed.append(temporary)
        if unused_for_s is not None:
            oldest = time.time() - max(unused_for_s, 2 * _USE_NOTED_EVERY_S)
            for layer in _entries(self.root):
                if not layer.name.startswith(".") and layer.stat().st_atime < oldest:
                    remove_tree(self.withdraw(layer))
                    removed.append(layer)
        return tuple(removed)

    @contextmanager
    def building(self, name: str) -> Iterator[Path]:
        """Hold the lock called `name`, and provide an empty temporary directory that is removed at the end.

        Raises:
            OSError: the directory cannot be made.
            LayerError: the sandbox's user cannot reach the store.
        """
        _make_public(self.root)
        (self.root / ".building").mkdir(exist_ok=True)
        with self._lock(name):
            temporary = self.root / ".building" / f"{name}.{secrets.token_hex(6)}"
            try:
                temporary.mkdir(mode=0o755)
                own(temporary)
                yield temporary
            finally:
                remove_tree(temporary)

    @contextmanager
    def _lock(self, name: str, *, timeout_s: float = -1) -> Iterator[None]:
        """Hold the lock called `name`. Raises TimeoutError if it is not free in time; -1 waits without limit."""
        from filelock import SoftFileLease  # 40 ms to import, and only builders need it

        path = self.root / ".locks" / name
        path.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            status = path.stat()
            if not status.st_size and time.time() - status.st_mtime > _UNWRITTEN_S:
                path.unlink()  # the machine crashed at this moment; filelock never takes over an empty file
        with SoftFileLease(path, timeout=timeout_s, lease_duration=_LEASE_S, heartbeat_interval=_HEARTBEAT_S):
            yield

    def publish(self, temporary: Path, path: Path) -> None:
        """Rename a finished directory to `path`, atomically. If another builder was first, its directory stays."""
        temporary.chmod(0o755)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise

    def withdraw(self, path: Path) -> Path:
        """Rename a published directory, atomically, so that nobody finds it; returns its new path for `remove_tree`."""
        building = self.root / ".building"
        building.mkdir(exist_ok=True)
        return path.rename(building / f"{path.name}.{secrets.token_hex(6)}")


def mark_opaque(directory: Path) -> None:
    """Make `directory` hide the same directory of lower layers, in every overlay that this user can mount."""
    names = ["user.overlay.opaque", "user.fuseoverlayfs.opaque"]
    if os.geteuid() == 0:
        names.append("trusted.overlay.opaque")
    for name in names:
        os.setxattr(directory, name, b"y")


def _make_public(directory: Path) -> None:
    """Make a directory that the sandbox's user can reach. Raises LayerError where a parent is closed to that user."""
    for path in reversed([directory, *directory.parents]):
        if not path.exists():
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        elif path.is_dir() and sandbox_user()[0] != os.geteuid() and not path.stat().st_mode & stat.S_IXOTH:
            raise LayerError(
                f"layers under {directory}: the user of sandboxes cannot enter {path}. "
                f"Try: chmod o+x {path}, or another $SWEGYM_WORKDIR"
            )


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _note_use(layer: Path) -> None:
    """Keep the access time of a layer's directory accurate to a day (mounts are often `noatime`)."""
    status = os.stat(layer)
    now = time.time()
    if now - status.st_atime > _USE_NOTED_EVERY_S and os.access(layer, os.W_OK):
        os.utime(layer, (now, status.st_mtime))
