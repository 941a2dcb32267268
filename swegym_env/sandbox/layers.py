"""Layers: read-only directories that sandboxes are made of, each built once and named by the hash of its key.

A layer is built in a temporary directory and published by one atomic rename, so a layer that exists is complete. A
builder that fails or is killed leaves only a temporary, which `LayerStore.collect_garbage` removes. Builders of the
same layer wait for each other on a lock; readers of a published layer take no lock.

    work_dir()/layers/KIND-HASH/          a published layer; its content lies over the image's root
    work_dir()/layers/.records/…          what is known of each layer that may travel, see `Provenance`
    work_dir()/layers/.building/…         temporaries, each named after the lock under which it is built
    work_dir()/layers/.locks/…            one file for each layer under construction
    work_dir()/layers/.uses/…             a file for each layer, whose time is that of the layer's last use
    work_dir()/layers/.files/…            files of repositories, each stored once for all of them, see `equal_files`

Layers with a provenance may travel: a store takes them from a shared store, if one is named, before it builds them, see
`sharing`.

Several machines may share the directory. A lock is therefore a lease of `filelock` on a file made with O_EXCL, which
NFS (version 3 and later), Lustre and the like carry out on the server; `flock` is emulated on some of them and refused
on others. The holder renews the lease. A lock is taken over at once when its holder was a process of this machine that
has ended, and when it was not renewed for `_LEASE_S` seconds. A builder that was suspended for so long goes on beside
its successor: the lock only saves work, the rename makes the result right.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swegym_env.errors import LayerError
from swegym_env.files import is_full, make_directory, write_atomically
from swegym_env.long_work import begins
from swegym_env.paths import work_dir
from swegym_env.sandbox.equal_files import link_equal_files, remove_unused
from swegym_env.sandbox.identity import own, sandbox_user
from swegym_env.sandbox.linux.files import remove_tree

if TYPE_CHECKING:
    from swegym_env.sandbox.sharing.api import SharedStore

__all__ = [
    "TRAVELLING",
    "USE_NOTED_EVERY_S",
    "LayerRecord",
    "LayerStore",
    "Provenance",
    "StoredLayer",
    "disk_bytes",
    "entries",
    "layer_name",
    "mark_opaque",
    "system_of",
    "unmark_opaque",
]

TRAVELLING = frozenset(
    (
        *("repository", "submodule", "interpreter", "node", "programs"),
        *("environment", "installation", "setup", "installed-tools", "findings"),
    )
)
"""The kinds of layers that may be taken from a shared store: costly to build, and the same on every machine."""

_WITH_EQUAL_FILES = ("repository", "image-repository")
"""The kinds of layers whose files are mostly those of others."""
USE_NOTED_EVERY_S = 24 * 3600.0
"""How often a use is noted, of a layer and of what is known of a task's tests."""
_LEASE_S, _HEARTBEAT_S = 120.0, 15.0  # NFS may show another machine's heartbeat up to a minute late
_LAYER = re.compile(r"[^.].*-[0-9a-f]{24}")  # see `layer_name`
_OPAQUE = ("user.overlay.opaque", "user.fuseoverlayfs.opaque", "trusted.overlay.opaque")
_UNWRITTEN_S = 60.0  # age at which an empty lock file is a crash's, not one that its holder is about to write
_ABANDONED_S = 24 * 3600.0  # since a lock was renewed, wherever its holder was


@dataclass(frozen=True)
class Provenance:
    """What a layer that may travel was built on and needs.

    Attributes:
        parents: names of the layers that it was built on, bottom first.
        requires: the system whose programs fit to it, from `system_of`; empty: any.
    """

    parents: tuple[str, ...] = ()
    requires: str = ""


@dataclass(frozen=True)
class LayerRecord:
    """What a store knows of a layer that may travel.

    Attributes:
        key: its key parts.
        provenance: see there.
        taken: whether it came from a shared store.
    """

    key: tuple[str, ...]
    provenance: Provenance
    taken: bool


@dataclass(frozen=True)
class StoredLayer:
    """A layer on this machine.

    Attributes:
        path: its directory.
        last_used: Unix time in seconds, to a day.
    """

    path: Path
    last_used: float


def layer_name(key_parts: Sequence[str]) -> str:
    """The name of the layer with these key parts: KIND-HASH; the first part is the kind."""
    digest = hashlib.sha256(json.dumps(list(key_parts)).encode()).hexdigest()[:24]
    return f"{key_parts[0]}-{digest}"


def system_of(image: str) -> str:
    """The system that programs in a layer over `image` need: for "host", distribution, release and architecture."""
    if image != "host":
        return platform.machine()
    system: dict[str, str] = {}
    with suppress(OSError):
        system = platform.freedesktop_os_release()
    return " ".join(filter(None, (system.get("ID"), system.get("VERSION_ID"), platform.machine())))


class LayerStore:
    """The layers stored on this machine. Safe for threads and processes; equal key parts mean the same layer."""

    def __init__(self, root: Path | None = None, *, shared: str | None = None, may_build: bool = True) -> None:
        """Open the store at `root` (default: `work_dir()/layers`); no directory is made before the first layer.

        Args:
            shared: address of the shared store that layers are taken from, see `sharing`; None: that in
                `$SWEGYM_LAYERS`; empty: none.
            may_build: False: layers that may travel are not built; that one is missing is a LayerError.
        """
        self.root = (root or work_dir() / "layers").absolute()
        self.address = os.environ.get("SWEGYM_LAYERS", "") if shared is None else shared
        self._may_build = may_build
        self._known: dict[tuple[str, ...], Path] = {}

    @property
    def shared(self) -> SharedStore | None:
        """The shared store; None without an address. Raises ConfigurationError: the address is malformed."""
        if not self.address:
            return None
        from swegym_env.sandbox.sharing import open_shared_store

        return open_shared_store(self.address)

    def path_of(self, key_parts: Sequence[str]) -> Path:
        """The path of the layer with these key parts, built or not: `root/KIND-HASH`; the first part is the kind."""
        return self.root / layer_name(key_parts)

    def get_or_build(
        self, key_parts: Sequence[str], builder: Callable[[Path], None], provenance: Provenance | None = None
    ) -> Path:
        """The layer with these key parts; `builder(directory)` builds it if neither this nor the shared store has it.

        Args:
            key_parts: everything that the content depends on; the first is the kind of layer, a short word.
            builder: fills the empty directory that it is given. Its exceptions are passed on; nothing is published.
            provenance: of a layer that may travel; None: it stays on this machine.
        Returns:
            The published directory, never to be written again.
        Raises:
            LayerError: the store cannot be written (no space, no permission); or the shared store does not answer, or
                has the layer and it is refused.
        """
        path = self._obtain(tuple(key_parts), builder, provenance)
        assert path is not None  # built, or raised
        return path

    def find(self, key_parts: Sequence[str], provenance: Provenance) -> Path | None:
        """The layer with these key parts, if this or the shared store has it. Arguments, errors: `get_or_build`."""
        return self._obtain(tuple(key_parts), None, provenance)

    def _obtain(
        self, key: tuple[str, ...], builder: Callable[[Path], None] | None, provenance: Provenance | None
    ) -> Path | None:
        known = self._known.get(key)
        if known is not None and os.path.isdir(known):
            self._note_use(known.name)
            return known
        assert provenance is None or key[0] in TRAVELLING
        path = self.path_of(key)
        taken = False
        try:
            if not path.is_dir():
                if builder is None and not self.address:
                    return None
                if builder is not None and provenance is not None:
                    begins()
                with self.building(path.name) as temporary:
                    if not path.is_dir():
                        taken = provenance is not None and self._take(key, provenance, temporary)
                        if not taken:
                            if builder is None:
                                return None
                            if provenance is not None and not self._may_build:
                                raise LayerError(f"{path.name} is not in {self.address}. Try: swegym images build")
                            builder(temporary)
                        if key[0] in _WITH_EQUAL_FILES:
                            link_equal_files(temporary, self.root / ".files")
                        self.publish(temporary, path)
            if provenance is not None:
                self._write_record(path.name, LayerRecord(key, provenance, taken))
        except OSError as error:
            prune = "Try: swegym layers prune --unused-for 30, or another $SWEGYM_WORKDIR"
            hint = prune if is_full(error) else "Try: another $SWEGYM_WORKDIR"
            raise LayerError(f"layer {path.name} cannot be built under {self.root}: {error}. {hint}") from error
        self._note_use(path.name)
        self._known[key] = path
        return path

    def _take(self, key: tuple[str, ...], provenance: Provenance, target: Path) -> bool:
        """Fill the empty directory `target` from the shared store; False if there is none, or it lacks the layer."""
        shared = self.shared
        if shared is None:
            return False
        from swegym_env.sandbox.sharing import take_layer

        return take_layer(shared, key, provenance, target)

    def _write_record(self, name: str, record: LayerRecord) -> None:
        place = self.root / ".records" / f"{name}.json"
        fields = {"key": record.key, "parents": record.provenance.parents, "requires": record.provenance.requires}
        try:
            if self.record(name) is None:
                place.parent.mkdir(exist_ok=True)
                write_atomically(place, json.dumps({**fields, "taken": record.taken}) + "\n")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # of another user, or read-only
                raise

    def record(self, name: str) -> LayerRecord | None:
        """What is known of a layer; None if this store does not have it, or it does not travel."""
        if not (self.root / name).is_dir():
            return None
        try:
            fields = json.loads((self.root / ".records" / f"{name}.json").read_bytes())
            provenance = Provenance(tuple(fields["parents"]), fields["requires"])
            return LayerRecord(tuple(fields["key"]), provenance, fields["taken"])
        except (FileNotFoundError, ValueError, KeyError):  # built before there were records, or cut off by a crash
            return None

    def travelling(self) -> list[str]:
        """The names of all layers in this store that may travel, sorted."""
        names = [place.stem for place in entries(self.root / ".records") if not place.name.startswith(".")]
        return [name for name in names if self.record(name) is not None]

    def records(self, kind: str) -> dict[str, LayerRecord]:
        """What is known of the layers of a kind in this store that may travel, by their names."""
        names = (place.stem for place in entries(self.root / ".records") if place.name.startswith(f"{kind}-"))
        return {name: record for name in names if (record := self.record(name)) is not None}

    def offered(self, kind: str) -> list[tuple[str, ...]]:
        """The keys of the layers of a kind that the shared store has, and of those that were taken from one.

        Raises:
            LayerError: the shared store does not answer.
        """
        keys = {name: record.key for name, record in self.records(kind).items() if record.taken}
        if self.address:
            from swegym_env.sandbox.sharing import offered_keys

            keys |= offered_keys(self.address, kind)
        return list(keys.values())

    def collect_garbage(self) -> tuple[Path, ...]:
        """Remove the temporaries of dead builders; returns what was removed."""
        removed: list[Path] = []
        temporaries = entries(self.root / ".building")
        names = {temporary.name.rpartition(".")[0] for temporary in temporaries}
        names.update(lock.name for lock in entries(self.root / ".locks"))
        known = {place.stem for place in entries(self.root / ".records") if not place.name.startswith(".")}
        known.update(place.name for place in entries(self.root / ".uses") if place.is_file())
        names.update(name for name in known if not (self.root / name).is_dir())
        for name in sorted(names):
            with suppress(TimeoutError), self._lock(name, timeout_s=0):  # a lock that can be had has no living holder
                for temporary in temporaries:
                    if temporary.name.rpartition(".")[0] == name:
                        with suppress(FileNotFoundError):  # its builder has ended meanwhile
                            remove_tree(self.withdraw(temporary))  # a suspended builder cannot publish the rest
                            removed.append(temporary)
                if name in known and not (self.root / name).is_dir():
                    self._forget(name)
        remove_unused(self.root / ".files")
        return tuple(removed)

    def layers(self) -> list[StoredLayer]:
        """All layers, the least recently used first."""
        found = []
        for path in entries(self.root):
            if _LAYER.fullmatch(path.name):
                with suppress(FileNotFoundError):  # another process removes it
                    found.append(StoredLayer(path, self._last_use(path)))
        return sorted(found, key=lambda layer: layer.last_used)

    def _last_use(self, layer: Path) -> float:
        return self._noted_use(layer.name) or layer.stat().st_atime

    def _noted_use(self, name: str) -> float:
        try:
            return (self.root / ".uses" / name).stat().st_mtime
        except FileNotFoundError:  # its uses were not noted: it is older than they are
            return 0.0

    def _note_use(self, name: str) -> None:
        """Note that a layer is used, once a day. Reading a directory changes its own times on some mounts only."""
        place = self.root / ".uses" / name
        with suppress(OSError):  # the store belongs to another user, is read-only, or the disk is full
            if time.time() - self._noted_use(name) >= USE_NOTED_EVERY_S:
                place.parent.mkdir(exist_ok=True)
                place.touch()

    def unused_for(self, seconds: float) -> list[StoredLayer]:
        """The layers that were not used for so long, at least two days: a use is noted once a day."""
        oldest = time.time() - max(seconds, 2 * USE_NOTED_EVERY_S)
        return [layer for layer in self.layers() if layer.last_used < oldest]

    def remove(self, layers: Iterable[StoredLayer]) -> list[StoredLayer]:
        """Remove layers that were not used since they were listed; no sandbox may be running on them.

        Returns:
            Those that were removed, by this or another process.
        """
        removed = []
        for layer in layers:
            name = layer.path.name
            with self._lock(name), suppress(FileNotFoundError):  # another process removed it meanwhile
                if self._noted_use(name) > layer.last_used:
                    continue
                doomed = self.withdraw(layer.path)
                self._forget(name)
                remove_tree(doomed)
            removed.append(layer)
        remove_unused(self.root / ".files")
        return removed

    def _forget(self, name: str) -> None:
        """Remove what is known of a layer that is gone."""
        for place in (".records", f"{name}.json"), (".uses", name):
            self.root.joinpath(*place).unlink(missing_ok=True)

    @contextmanager
    def building(self, name: str) -> Iterator[Path]:
        """Hold the lock called `name`, and provide an empty temporary directory that is removed at the end.

        Raises:
            OSError: the directory cannot be made.
            LayerError: the sandbox's user cannot reach the store.
        """
        _make_public(self.root)
        make_directory(self.root / ".building")
        with self._lock(name):
            temporary = self.root / ".building" / f"{name}.{secrets.token_hex(6)}"
            try:
                make_directory(temporary)
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

        def drop_abandoned() -> bool:
            """Remove a lock file that filelock would never take over; False: go on waiting."""
            with suppress(FileNotFoundError):
                status = path.stat()
                if time.time() - status.st_mtime > (_ABANDONED_S if status.st_size else _UNWRITTEN_S):
                    path.unlink()
            return False

        drop_abandoned()
        lease = SoftFileLease(path, lease_duration=_LEASE_S, heartbeat_interval=_HEARTBEAT_S)
        with lease.acquire(timeout=timeout_s, cancel_check=drop_abandoned):
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


def disk_bytes(tree: Path, counted: set[tuple[int, int]] | None = None) -> int:
    """Bytes on disk below a directory; a file with several names counts once.

    Args:
        counted: device and inode of files that do not count any more; those of this tree are added.
    """
    counted = set() if counted is None else counted
    total = 0
    for directory, _, files in os.walk(tree):
        for place in (directory, *(os.path.join(directory, name) for name in files)):
            with suppress(FileNotFoundError):  # removed meanwhile
                status = os.lstat(place)
                if (status.st_dev, status.st_ino) not in counted:
                    counted.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * 512
    return total


def mark_opaque(directory: Path) -> None:
    """Make `directory` hide the same directory of lower layers, in every overlay that this user can mount."""
    for name in _OPAQUE:
        if os.geteuid() == 0 or not name.startswith("trusted."):
            os.setxattr(directory, name, b"y")


def unmark_opaque(directory: Path) -> bool:
    """Let the same directory of lower layers be seen again; whether it was hidden. No link is followed."""
    try:
        marks = [name for name in os.listxattr(directory, follow_symlinks=False) if name in _OPAQUE]
    except OSError as error:
        if error.errno != errno.ENOTSUP:  # such a file system has no marks
            raise
        return False
    for name in marks:
        os.removexattr(directory, name, follow_symlinks=False)
    return bool(marks)


def _make_public(directory: Path) -> None:
    """Make a directory that the sandbox's user can reach. Raises LayerError where a parent is closed to that user."""
    for path in reversed([directory, *directory.parents]):
        if not path.exists():
            make_directory(path)
        elif path.is_dir() and sandbox_user()[0] != os.geteuid() and not path.stat().st_mode & stat.S_IXOTH:
            raise LayerError(
                f"layers under {directory}: the user of sandboxes cannot enter {path}. "
                f"Try: chmod o+x {path}, or another $SWEGYM_WORKDIR"
            )


def entries(directory: Path) -> list[Path]:
    """What is in a directory, sorted; nothing where there is none."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
