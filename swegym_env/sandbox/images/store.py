"""The images stored on this machine: found or made under a lock, kept within a disk budget, listed and removed.

    work_dir()/images/image-HASH/         a root file system, named by the hash of its content
    work_dir()/images/.names/…            a record for each name under which one was requested
    work_dir()/images/.uses/image-HASH/   a file for each process that uses it; the time of `last` is the last use
    work_dir()/images/.building, .locks   see `layers`

Two names of equal content share one directory. A process that has requested an image uses it until the process ends.
Uses of dead processes do not count; one of a process on another machine counts for a day after it was last renewed.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from swegym_env.errors import ConfigurationError, ImageError, LayerError
from swegym_env.files import write_atomically
from swegym_env.long_work import begins
from swegym_env.paths import work_dir
from swegym_env.sandbox.identity import sandbox_user
from swegym_env.sandbox.images.building import PullOptions, Report, make_image
from swegym_env.sandbox.images.references import Reference, parse
from swegym_env.sandbox.layers import LayerStore, entries
from swegym_env.sandbox.leases import machine_id, process_start
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["Content", "ImageStore", "StoredImage", "check_root", "parse_size", "settle"]

_RENEW_USE_S = 3600.0
_FOREIGN_USE_S = 24 * 3600.0
# Apptainer's notes of the build itself: equal images built twice, or under two names, differ in nothing else.
_BUILD_NOTES = frozenset({".singularity.d/labels.json", ".singularity.d/Singularity"})
_READ_BYTES = 1 << 20
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class _Record:
    """What is stored for one name."""

    image: str
    root: str
    size_bytes: int
    made: float
    seconds: float


@dataclass(frozen=True)
class StoredImage:
    """One image of the store.

    Attributes:
        names: under which it was requested.
        root: its root file system.
        size_bytes: on disk.
        made: time, in seconds since the epoch.
        seconds: it took to make it.
        last_used: time, in seconds since the epoch.
        in_use: whether a living process uses it.
    """

    names: tuple[str, ...]
    root: Path
    size_bytes: int
    made: float
    seconds: float
    last_used: float
    in_use: bool


def parse_size(text: str, what: str) -> int:
    """Bytes of "500M", "50G", "2T" or a plain number. Raises ConfigurationError, whose text begins with `what`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ConfigurationError(f"{what}: expected a size such as 50G, got {text!r}")
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


@dataclass(frozen=True)
class Content:
    """What an unpacked root file system consists of.

    Attributes:
        digest: SHA-256 over paths, modes, links and bytes, in hexadecimal.
        size_bytes: on disk.
    """

    digest: str
    size_bytes: int


def check_root(root: Path, image: str) -> Path:
    """`root`, if it is a root file system that a sandbox's shell can run in. Raises ImageError."""
    # `bin` may be a link that is absolute, and then leads to the host's when seen from here.
    for places in (("bin/bash", "usr/bin/bash"), ("dev",), ("proc",)):
        if not any(os.path.lexists(root / place) for place in places):
            raise ImageError(
                f"{image}: not a root file system that a sandbox can use: it has no /{places[0]}. "
                "Try: an image with bash, /dev and /proc"
            )
    return root


def settle(root: Path) -> Content:
    """Give everything in `root` to the sandbox's user, make it readable, and hash it; no link is followed.

    Devices, pipes and sockets are removed: a sandbox has its own devices, and an overlay takes some for deleted files.
    """
    owner = sandbox_user() if os.geteuid() == 0 else None
    total = hashlib.sha256()
    size = 0
    for place, names, files in os.walk(root, onerror=_fail):
        names.sort()
        for name in (*names, *sorted(files)):
            path = os.path.join(place, name)
            status = os.lstat(path)
            if owner is not None and (status.st_uid, status.st_gid) != owner:
                os.lchown(path, *owner)
            relative = os.path.relpath(path, root)
            size += status.st_blocks * 512
            if stat.S_ISLNK(status.st_mode):
                what, mode = os.fsencode(os.readlink(path)), 0
            elif stat.S_ISDIR(status.st_mode):
                what, mode = b"", _opened(path, status.st_mode)
            elif stat.S_ISREG(status.st_mode):
                mode = _opened(path, status.st_mode)
                what = b"" if relative in _BUILD_NOTES else _digest(path)
            else:
                os.unlink(path)
                continue
            fields = (os.fsencode(relative), b"%o" % (stat.S_IFMT(status.st_mode) | mode), what)
            total.update(b"".join(b"%d:%s" % (len(field), field) for field in fields))
    if owner is not None:
        os.chown(root, *owner)
    return Content(total.hexdigest(), size)


def _fail(error: OSError) -> None:
    raise error


def _opened(path: str, mode: int) -> int:
    """Let the owner write, everybody read, and everybody execute what anybody may; returns the new mode."""
    wanted = (mode & 0o1777) | 0o644
    if stat.S_ISDIR(mode) or mode & 0o111:
        wanted |= 0o111
    if wanted != stat.S_IMODE(mode):
        os.chmod(path, wanted)
    return wanted


def _digest(path: str) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.digest()


class ImageStore:
    """The images under one directory. Safe for threads, processes and machines that share it."""

    def __init__(self, root: Path | None = None) -> None:
        """Open the store at `root` (default: `work_dir()/images`); no directory is made before the first image."""
        self.layers = LayerStore(root or work_dir() / "images")
        self.root = self.layers.root
        self._known: dict[tuple[str, ...], Path] = {}
        self._marked: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def get(
        self,
        image: str | Reference,
        *,
        options: PullOptions = PullOptions(),  # noqa: B008 - frozen
        refresh: bool = False,
        report: Report | None = None,
    ) -> Path:
        """The directory with the root file system of `image`, made if the store does not have it.

        Args:
            image: a name, or one that is parsed already; neither "host" nor a directory.
            refresh: pull or build again; the name then stands for the new content.
            report: called with one line for each step.
        Raises:
            ImageError: it cannot be read, pulled or built; nothing half-made is left.
            ConfigurationError: an environment variable is invalid.
        """
        reference = parse(image) if isinstance(image, str) else image
        known = self._known.get(reference.key)
        if known is None or refresh or not self._use(known):
            try:
                known = self._find_or_make(reference, options, refresh, report or (lambda _: None))
            except (OSError, LayerError) as error:
                raise ImageError(f"{reference.text}: {error}") from error
            self._known[reference.key] = known
        return known

    def _find_or_make(self, reference: Reference, options: PullOptions, refresh: bool, report: Report) -> Path:
        budget = os.environ.get("SWEGYM_IMAGE_BUDGET")
        limit = parse_size(budget, "SWEGYM_IMAGE_BUDGET") if budget else None
        digest = hashlib.sha256(json.dumps(reference.key).encode()).hexdigest()[:24]
        record = self.root / ".names" / f"name-{digest}.json"
        requested = time.time()
        if not refresh and (found := self._recorded(record)) is not None:
            return found
        with self.layers.building(record.stem) as temporary:
            # The previous holder of the lock may have made it, or made it again.
            read = _read_record(record)
            if (not refresh or (read is not None and read.made > requested)) and (found := self._recorded(record)):
                return found
            began = time.monotonic()
            begins()
            make_image(reference, temporary, options, report)
            report("checking")
            content = settle(temporary)
            check_root(temporary, reference.text)
            root = self.root / f"image-{content.digest[:24]}"
            self._mark(root)  # before it exists, so that no other process prunes it
            if not root.is_dir():
                self.layers.publish(temporary, root)
            seconds = round(time.monotonic() - began, 3)
            record.parent.mkdir(exist_ok=True)
            made = _Record(reference.text, root.name, content.size_bytes, time.time(), seconds)
            write_atomically(record, json.dumps(asdict(made)))
        if limit is not None:
            self.prune(budget_bytes=limit)
        return root

    def _recorded(self, record: Path) -> Path | None:
        """The image that a record names, now in use by this process; None where there is none."""
        read = _read_record(record)
        root = None if read is None else self.root / read.root
        return root if root is not None and self._use(root) else None

    def _use(self, root: Path) -> bool:
        """Note that this process uses `root`; False where it no longer exists."""
        since = self._marked.get((os.getpid(), root.name))
        if since is None or time.monotonic() - since > _RENEW_USE_S:
            if not root.is_dir():
                return False
            self._mark(root)
        return root.is_dir()

    def _mark(self, root: Path) -> None:
        uses = self.root / ".uses" / root.name
        mark = uses / f"{machine_id()}-{os.getpid()}-{process_start(os.getpid())}"
        try:
            uses.mkdir(parents=True, exist_ok=True)
            mark.touch()
            (uses / "last").touch()
        except OSError as error:
            if error.errno not in (
                errno.EACCES,
                errno.EPERM,
                errno.EROFS,
            ):  # read-only for this user
                raise
        with self._lock:
            if not self._marked:
                atexit.register(self._unmark)
            self._marked[os.getpid(), root.name] = time.monotonic()

    def _unmark(self) -> None:
        """At the end of this process, remove its marks."""
        for pid, root in self._marked:
            if pid == os.getpid():  # a forked child has its parent's in memory too
                for mark in (self.root / ".uses" / root).glob(f"{machine_id()}-{pid}-*"):
                    mark.unlink(missing_ok=True)

    def _users(self, root: str) -> bool:
        """Whether a living process uses an image; marks of dead processes are removed."""
        living = False
        for mark in entries(self.root / ".uses" / root):
            if mark.name == "last":
                continue
            machine, pid, start = mark.name.split("-")
            try:
                if machine == machine_id():
                    alive = process_start(int(pid)) == int(start)
                else:
                    alive = time.time() - mark.stat().st_mtime < _FOREIGN_USE_S
            except FileNotFoundError:  # its process has ended and removed it
                continue
            if alive:
                living = True
            else:
                mark.unlink(missing_ok=True)
        return living

    def inventory(self) -> list[StoredImage]:
        """Every image, the least recently used first."""
        names: dict[str, list[_Record]] = {}
        for path in entries(self.root / ".names"):
            record = _read_record(path)
            if record is not None:
                names.setdefault(record.root, []).append(record)
        images = []
        for root in entries(self.root):
            if not root.name.startswith("image-"):
                continue
            records = sorted(names.get(root.name, []), key=lambda record: record.made)
            last = self.root / ".uses" / root.name / "last"
            with suppress(FileNotFoundError):  # another process removes it
                images.append(
                    StoredImage(
                        names=tuple(record.image for record in records),
                        root=root,
                        size_bytes=records[0].size_bytes if records else 0,
                        made=records[0].made if records else root.stat().st_mtime,
                        seconds=records[0].seconds if records else 0.0,
                        last_used=(last if last.exists() else root).stat().st_mtime,
                        in_use=self._users(root.name),
                    )
                )
        return sorted(images, key=lambda image: image.last_used)

    def prune(
        self,
        *,
        budget_bytes: int | None = None,
        unused_for_s: float | None = None,
        images: Sequence[str] = (),
        dry_run: bool = False,
    ) -> list[StoredImage]:
        """Remove images that no living process uses, the least recently used first.

        Args:
            budget_bytes: until the others take no more disk than this.
            unused_for_s: those not used for this long.
            images: those that have one of these names.
            dry_run: remove nothing.
        Returns:
            What was removed, or would be.
        """
        stored = self.inventory()
        total = sum(image.size_bytes for image in stored)
        removed = []
        for image in stored:
            doomed = (
                (budget_bytes is not None and total > budget_bytes)
                or (unused_for_s is not None and time.time() - image.last_used > unused_for_s)
                or any(name in image.names for name in images)
            )
            if doomed and not image.in_use and (dry_run or self._remove(image.root)):
                total -= image.size_bytes
                removed.append(image)
        return removed

    def _remove(self, root: Path) -> bool:
        """Remove an image, unless a process begins to use it at this moment."""
        try:
            doomed = self.layers.withdraw(root)
        except FileNotFoundError:
            return False
        if self._users(root.name):
            self.layers.publish(doomed, root)
            return False
        for path in entries(self.root / ".names"):
            record = _read_record(path)
            if record is not None and record.root == root.name and not root.exists():
                path.unlink(missing_ok=True)
        remove_tree(self.root / ".uses" / root.name)
        remove_tree(doomed)
        return True


def _read_record(path: Path) -> _Record | None:
    try:
        return _Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
