"""The images on this machine: found or made under a lock, kept within a budget of disk, listed and removed.

    work_dir()/images/image-HASH/         a root file system, named by the hash of what is in it
    work_dir()/images/.names/…            a record for each name under which one was asked for
    work_dir()/images/.uses/image-HASH/   a file for each process that uses it; the time of `last` is the last use
    work_dir()/images/.building, .locks   see `layers`

Two names of equal content share one directory. A process that has asked for an image uses it until it ends; what a dead
one left counts no more, and what one on another machine left counts for a day after its last sign.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from swegym_env.errors import ConfigurationError, ImageError, LayerError
from swegym_env.paths import work_dir
from swegym_env.sandbox.images.building import PullOptions, make_image
from swegym_env.sandbox.images.content import check_root, settle
from swegym_env.sandbox.images.references import Reference, parse
from swegym_env.sandbox.images.tools import Report
from swegym_env.sandbox.layers import LayerStore, remove_tree
from swegym_env.sandbox.leases import process_start
from swegym_env.sandbox.locks import machine_id

__all__ = ["ImageStore", "StoredImage", "parse_size"]

_SIGN_OF_LIFE_S = 3600.0
_FOREIGN_USE_S = 24 * 3600.0
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class _Record:
    """What is known of one name."""

    image: str
    root: str
    size_bytes: int
    made: float
    seconds: float


@dataclass(frozen=True)
class StoredImage:
    """One image of the store.

    Attributes:
        names: under which it was asked for.
        root: its root file system.
        size_bytes: on disk.
        made: when, in seconds since the epoch.
        seconds: that making it took.
        last_used: when, in seconds since the epoch.
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
    """Bytes of "500M", "50G", "2T" or a plain number. Raises ConfigurationError that begins with `what`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ConfigurationError(f"{what}: expected a size such as 50G, got {text!r}")
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


class ImageStore:
    """The images under one directory. Safe for threads, processes and machines that share it."""

    def __init__(self, root: Path | None = None) -> None:
        """Open the store at `root` (by default `work_dir()/images`); nothing is made until the first image is."""
        self.layers = LayerStore(root or work_dir() / "images")
        self.root = self.layers.root
        self._known: dict[tuple[str, ...], Path] = {}
        self._marked: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def get(
        self,
        image: str,
        *,
        options: PullOptions = PullOptions(),  # noqa: B008 - frozen
        refresh: bool = False,
        report: Report | None = None,
    ) -> Path:
        """The directory with the root file system of `image`, made if this machine does not have it.

        Args:
            refresh: pull or build again, and let the name stand for what comes of it.
            report: hears what is done.
        Raises:
            ImageError: it cannot be read, pulled or built; nothing half-made is left.
            ConfigurationError: an environment variable makes no sense.
        """
        return self.get_reference(parse(image), options=options, refresh=refresh, report=report)

    def get_reference(
        self, reference: Reference, *, options: PullOptions, refresh: bool = False, report: Report | None = None
    ) -> Path:
        """As `get`, of a name that was parsed already; one that has to be made (`key` is not empty)."""
        known = self._known.get(reference.key)
        if known is None or refresh or not self._use(known):
            try:
                known = self._find_or_make(reference, options, refresh, report or _say_nothing)
            except (OSError, LayerError) as error:
                raise ImageError(f"{reference.text}: {error}") from error
            self._known[reference.key] = known
        return known

    def _find_or_make(self, reference: Reference, options: PullOptions, refresh: bool, report: Report) -> Path:
        budget = os.environ.get("SWEGYM_IMAGE_BUDGET")
        limit = parse_size(budget, "SWEGYM_IMAGE_BUDGET") if budget else None
        record = self._record_path(reference)
        asked = time.time()
        if not refresh and (found := self._recorded(record)) is not None:
            return found
        with self.layers.building(record.stem) as temporary:
            # Whoever held the lock before may have made it, or made it anew.
            read = _read_record(record)
            if (not refresh or (read is not None and read.made > asked)) and (found := self._recorded(record)):
                return found
            began = time.monotonic()
            make_image(reference, temporary, options, report)
            report("checking")
            content = settle(temporary)
            check_root(temporary, reference.text)
            root = self.root / f"image-{content.digest[:24]}"
            self._mark(root)  # before it is there: whoever makes room sees it
            if not root.is_dir():
                self.layers.publish(temporary, root)
            seconds = round(time.monotonic() - began, 3)
            _write(
                record, json.dumps(asdict(_Record(reference.text, root.name, content.size_bytes, time.time(), seconds)))
            )
        if limit is not None:
            self.prune(budget_bytes=limit)
        return root

    def _record_path(self, reference: Reference) -> Path:
        digest = hashlib.sha256(json.dumps(reference.key).encode()).hexdigest()[:24]
        return self.root / ".names" / f"name-{digest}.json"

    def _recorded(self, record: Path) -> Path | None:
        read = _read_record(record)
        root = None if read is None else self.root / read.root
        return root if root is not None and self._use(root) else None

    def _use(self, root: Path) -> bool:
        """Note that this process uses `root`; False where it is not there any more."""
        since = self._marked.get((os.getpid(), root.name))
        if since is None or time.monotonic() - since > _SIGN_OF_LIFE_S:
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
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # others keep this store; we may only read
                raise
        with self._lock:
            if not self._marked:
                atexit.register(self._unmark)
            self._marked[os.getpid(), root.name] = time.monotonic()

    def _unmark(self) -> None:
        """At the end of this process: it uses nothing any more."""
        for pid, root in self._marked:
            if pid == os.getpid():  # a forked child knows its parent's too
                for mark in (self.root / ".uses" / root).glob(f"{machine_id()}-{pid}-*"):
                    mark.unlink(missing_ok=True)

    def _users(self, root: str) -> bool:
        """Whether a living process uses an image; marks of dead ones go."""
        living = False
        for mark in _entries(self.root / ".uses" / root):
            if mark.name == "last":
                continue
            machine, pid, start = mark.name.split("-")
            try:
                if machine == machine_id():
                    alive = process_start(int(pid)) == int(start)
                else:
                    alive = time.time() - mark.stat().st_mtime < _FOREIGN_USE_S
            except FileNotFoundError:  # its user has ended, and took the mark away
                continue
            if alive:
                living = True
            else:
                mark.unlink(missing_ok=True)
        return living

    def inventory(self) -> list[StoredImage]:
        """Every image, the least recently used first."""
        names: dict[str, list[_Record]] = {}
        for path in _entries(self.root / ".names"):
            record = _read_record(path)
            if record is not None:
                names.setdefault(record.root, []).append(record)
        images = []
        for root in _entries(self.root):
            if not root.name.startswith("image-"):
                continue
            records = sorted(names.get(root.name, []), key=lambda record: record.made)
            last = self.root / ".uses" / root.name / "last"
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
            budget_bytes: until what is left takes no more than this.
            unused_for_s: those not used for so long.
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
        """Remove an image, unless somebody begins to use it at this moment."""
        try:
            doomed = self.layers.withdraw(root)
        except FileNotFoundError:
            return False
        if self._users(root.name):
            self.layers.publish(doomed, root)
            return False
        for path in _entries(self.root / ".names"):
            record = _read_record(path)
            if record is not None and record.root == root.name and not root.exists():
                path.unlink(missing_ok=True)
        remove_tree(self.root / ".uses" / root.name)
        remove_tree(doomed)
        return True


def _say_nothing(_line: str) -> None:
    pass


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _read_record(path: Path) -> _Record | None:
    try:
        return _Record(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        unfinished.write_text(text)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
