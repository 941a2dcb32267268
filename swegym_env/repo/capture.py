"""The agent's changes as a git patch.

The sandbox's writable layer lists the changed files, so the cost depends on what changed, and an unchanged state costs
nothing: its patch is cached. In a changed one, only files with new stat data are read, and git compares only files that
are not known from before. The files are the agent's and not trusted: they are read as bytes within a budget, no link is
followed, and git compares two trees made of them in a private object store. Git never sees the agent's work tree,
configuration, attributes or hooks; of everything that the agent wrote, it interprets the patterns in `.gitignore` files
alone. What takes longer than some milliseconds is done by another process, see `repo.reader`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Generic, TypeVar

from swegym_env.errors import StorageError
from swegym_env.repo.differ import differ
from swegym_env.repo.git import ANY_OWNER, Git
from swegym_env.repo.objects import GITLINK, Blob
from swegym_env.repo.patches import refused_patch
from swegym_env.repo.reader import Reading, readers
from swegym_env.sandbox.api import Change, Limits, Sandbox
from swegym_env.sandbox.budget import Budget, LongReadingError, OverBudgetError
from swegym_env.sandbox.changes import MACHINE_ERRORS
from swegym_env.sandbox.linux.kernel import open_inside

__all__ = ["PatchCache", "capture_patch", "compute_patch"]

MAX_FILE_BYTES = 16 << 20

_Fingerprint = tuple[object, ...]
_V = TypeVar("_V")

_SETTLED_S = 0.05  # several ticks of the coarsest clock from which tmpfs and usual file systems take times
_MAX_IGNORE_FILE_BYTES = 1 << 20
_MAX_BASE_PATHS = 200_000  # remembered of one base commit; the agent can ask for any number that it does not have
_HEAD = "/.git/HEAD"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LINK = os.O_PATH | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class _Cache(Generic[_V]):
    """The most recently used values. Thread-safe."""

    def __init__(self, max_cost: int) -> None:
        self._values: OrderedDict[Hashable, tuple[_V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._cost = 0
        self._max_cost = max_cost

    def get(self, key: Hashable) -> _V | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: _V, cost: int) -> None:
        if cost > self._max_cost:
            return
        with self._lock:
            former = self._values.pop(key, None)
            self._cost += cost - (former[1] if former else 0)
            self._values[key] = value, cost
            while self._cost > self._max_cost:
                self._cost -= self._values.popitem(last=False)[1][1]


class PatchCache:
    """Patches by the fingerprint of the state that they were computed from. Thread-safe.

    A fingerprint consists of the stat data of the changed files, above all their change times, which no process inside
    can set. A file that was changed within the clock's last tick may change again and keep its stat data: such a state
    is not cached.
    """

    def __init__(self, max_characters: int = 32 << 20) -> None:
        """Keep patches of at most `max_characters` in total."""
        self._patches: _Cache[str] = _Cache(max_characters)

    def get(self, fingerprint: _Fingerprint) -> str | None:
        """The patch of a state; None if it is not cached."""
        return self._patches.get(fingerprint)

    def put(self, fingerprint: _Fingerprint, patch: str, *, changed: float, read: float) -> None:
        """Cache the patch of a state.

        Args:
            changed: time of the state's last change.
            read: time before the first of its files was looked at.
        """
        if changed <= read - _SETTLED_S:
            self._patches.put(fingerprint, patch, len(patch))


_cache = PatchCache()
_ids: _Cache[bytes] = _Cache(200_000)  # stat data of a file → its blob id
_parts: _Cache[str] = _Cache(32 << 20)  # path and both its states → its part of a patch
_ignored_paths: _Cache[bool] = _Cache(32 << 20)  # .gitignore files and path → whether git ignores it


def capture_patch(sandbox: Sandbox, base: Path, *, fresh: bool = False) -> str:
    """The changes in `sandbox` against the base commit, as `git add -A && git diff --cached --no-renames` prints them.

    Includes untracked and binary files, modes, deletions, links, and nested repositories as the commit that they are
    at. Excludes `.git`, byte code, files of submodules that are not checked out, and those that `.gitignore` names.
    Attributes and settings have no effect. A file over 16 MiB, or one that cannot be read, is excluded and named in a
    line before the first diff, which git skips.

    Changes beyond the limits `patch_…` of the sandbox are refused: the patch is one line that says why, see
    `repo.patches.refusal`.

    Args:
        sandbox: a running sandbox; nothing is executed in it.
        base: the `testbed` directory of the task's repository layer.
        fresh: read every changed file again. False: a file with unchanged stat data counts as unchanged, which misses
            writes through a memory mapping that was made earlier.
    Returns:
        A patch that `git apply` accepts on the base commit; empty if nothing changed. Bytes that are not UTF-8 become
        surrogates (`surrogateescape`).
    Raises:
        RepositoryError: git is missing or failed.
        SandboxError: the sandbox is gone, or its files cannot be read.
        StorageError: there is no space for git's objects.
    """
    from swegym_env.sandbox.local import LocalSandbox  # needs more than the process that reads in place of this one

    limits = sandbox.spec.limits
    if not isinstance(sandbox, LocalSandbox):
        return compute_patch(lambda budget: sandbox.changes("/testbed", budget=budget), base, limits, fresh=fresh)
    with sandbox.listing() as (upper, lowers):
        long = readers().takes_long(upper)
    patch = None
    if not long:
        with contextlib.suppress(LongReadingError):
            patch = compute_patch(
                lambda budget: sandbox.changes("/testbed", budget=budget), base, limits, fresh=fresh, short=True
            )
    if patch is None:
        with sandbox.listing() as (upper, lowers):
            patch = readers().patch(Reading(upper, lowers, sandbox.own_layers, sandbox.fuse, base, limits, fresh))
    sandbox.require_files()
    return patch


def compute_patch(
    changes_in: Callable[[Budget], Sequence[Change]], base: Path, limits: Limits, *, fresh: bool, short: bool = False
) -> str:
    """See `capture_patch`.

    Args:
        changes_in: lists the changes within a budget.
        base: the `testbed` directory of the task's repository layer.
        limits: what it may cost.
        fresh: read every changed file again.
        short: give up if it takes long.
    Raises:
        LongReadingError: it takes long.
    """
    read = time.time()
    with Budget(limits, short=short) as budget:
        try:
            changes = changes_in(budget)
            if not changes:
                return ""
            fingerprint, changed = _fingerprint(base, changes)
            patch = None if fresh else _cache.get(fingerprint)
            if patch is None:
                try:
                    patch = _compute_patch(base, changes, budget, read, fresh=fresh)
                except OverBudgetError as error:
                    patch = refused_patch(error.reason)
                _cache.put(fingerprint, patch, changed=changed, read=read)
            return patch
        except OverBudgetError as error:
            return refused_patch(error.reason)


def _fingerprint(base: Path, changes: Sequence[Change]) -> tuple[_Fingerprint, float]:
    """Identifies a state without reading any file; and the time of its latest change."""
    digest = hashlib.blake2b(digest_size=16)  # the state may have tens of thousands of files
    newest = 0.0
    for change in changes:
        status = None if change.status is None else _stat_data(change.status)
        digest.update(repr((change.path, change.kind, status)).encode())
        if change.status is not None:
            newest = max(newest, change.status.st_mtime, change.status.st_ctime)
    return (str(base), digest.digest()), newest


def _stat_data(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


@dataclass(frozen=True)
class _File:
    """A file of one side: mode, blob id (of a nested repository its commit), size, and content where it was read.

    The content of a nested repository is its commit in hex, as in `Blob`.
    """

    mode: int
    oid: bytes
    size_bytes: int
    content: bytes | None = None

    @property
    def state(self) -> tuple[int, bytes]:
        return self.mode, self.oid


def _file(blob: Blob) -> _File:
    mode, content = blob
    oid = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    oid.update(content)
    return _File(mode, oid.digest(), len(content), content)


def _compute_patch(base: Path, changes: Sequence[Change], budget: Budget, read: float, *, fresh: bool) -> str:
    """The patch of a state.

    Args:
        read: time before the first of its files was looked at.
    """
    with _Files(changes) as theirs:
        return _patch_of(base, theirs, changes, budget, read, fresh=fresh)


class _Files:
    """The files of changes, each read from the layer that it lies in."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._roots = {change.path: change.root for change in changes if change.root is not None}
        self._open: dict[str, int] = {}

    def __enter__(self) -> _Files:
        try:
            for root in set(self._roots.values()):
                self._open[root] = _open_root(root)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)

    def read(self, path: str) -> Blob | None:
        """The file of a change, see `_read_without_links`."""
        return _read_without_links(self._open[self._roots[path]], path)


def _open_root(root: str) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise StorageError(f"cannot compute the patch: {error}") from error
        raise OverBudgetError("the repository's directory was replaced while it was read") from error


def _patch_of(
    base: Path, theirs: _Files, changes: Sequence[Change], budget: Budget, read: float, *, fresh: bool
) -> str:
    commit = _base_commit(base)
    before: dict[str, _File] = {}
    after: dict[str, _File] = {}
    nested = _nested_repositories(base, theirs, changes, budget)
    repositories = {path: head for path, head in nested.items() if not commit.is_in_submodule(path)}
    candidates: dict[str, os.stat_result] = {}
    for number, change in enumerate(changes):
        if number % 64 == 63:
            budget.check_time()
        if f"/{change.path}/".find("/.git/") >= 0:
            continue
        before.update(commit.files_at(change.path))
        if change.status is None or _is_below(repositories, change.path) or commit.is_in_submodule(change.path):
            continue
        candidates[change.path] = change.status
    for path, head in repositories.items():
        before.update(commit.files_at(path))
        after[path] = _File(GITLINK, bytes.fromhex(head), 0, head.encode())

    new = [path for path in (*candidates, *repositories) if path not in before]
    for path in _ignored(base, theirs, changes, candidates, repositories, new, budget):
        candidates.pop(path, None)
        after.pop(path, None)
    files, left_out = _files_after(theirs, candidates, budget, read, fresh=fresh)
    for path in left_out:
        before.pop(path, None)
    after |= files
    notes = "".join(f"# left out: {path!r}: {reason}\n" for path, reason in left_out.items())
    return notes + _differences(commit, theirs, before, after, budget)


def _files_after(
    theirs: _Files, candidates: Mapping[str, os.stat_result], budget: Budget, read: float, *, fresh: bool
) -> tuple[dict[str, _File], dict[str, str]]:
    """The agent's files; and path → reason of those that are too large or cannot be read."""
    files: dict[str, _File] = {}
    left_out: dict[str, str] = {}
    for status in candidates.values():  # all are counted before the first is read
        if status.st_size <= MAX_FILE_BYTES:
            budget.spend(size_bytes=status.st_size)
    for number, (path, status) in enumerate(candidates.items()):
        if number % 64 == 63:
            budget.check_time()
        if status.st_size > MAX_FILE_BYTES:
            left_out[path] = f"{status.st_size} bytes, more than {MAX_FILE_BYTES}"
            continue
        try:
            file = _file_after(theirs, path, status, read, fresh=fresh)
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise StorageError(f"cannot compute the patch: {error}") from error
            left_out[path] = str(error.strerror)
            continue
        if file is not None:
            files[path] = file
    return files, left_out


def _file_after(theirs: _Files, path: str, status: os.stat_result, read: float, *, fresh: bool) -> _File | None:
    """A file of the agent, with its content unless its stat data is known; None if it is neither a file nor a link."""
    key = _stat_data(status)
    oid = None if fresh else _ids.get(key)
    if oid is not None:
        return _File(_git_mode(status.st_mode), oid, status.st_size)
    blob = theirs.read(path)
    if blob is None:
        return None
    file = _file(blob)
    if max(status.st_mtime, status.st_ctime) <= read - _SETTLED_S and file.size_bytes == status.st_size:
        _ids.put(key, file.oid, 1)
    return file


def _differences(
    commit: _BaseCommit, theirs: _Files, before: Mapping[str, _File], after: Mapping[str, _File], budget: Budget
) -> str:
    """The patch from one set of files to another; git compares what was not compared before."""
    parts: dict[str, str] = {}
    unknown: list[str] = []
    for path in before.keys() | after.keys():
        old, now = before.get(path), after.get(path)
        if old is not None and now is not None and old.state == now.state:
            continue
        budget.spend(size_bytes=0 if old is None else old.size_bytes)
        part = _parts.get(_part_key(path, old, now))
        if part is None:
            unknown.append(path)
        else:
            parts[path] = part
    if unknown:
        old_blobs = {path: commit.blob(path) for path in unknown if path in before}
        new_files = {path: _with_content(theirs, path, after[path]) for path in unknown if path in after}
        new_blobs = {
            path: (file.mode, file.content)
            for path, file in new_files.items()
            if file is not None and file.content is not None
        }
        for path, part in differ().diff(old_blobs, new_blobs, budget).items():
            parts[path] = part
            _parts.put(_part_key(path, before.get(path), new_files.get(path)), part, len(part) + len(path))
    if sum(map(len, parts.values())) > budget.limits.patch_bytes:
        raise OverBudgetError(f"the patch takes more than {budget.limits.patch_bytes} bytes")
    return "".join(parts[path] for path in sorted(parts, key=os.fsencode))


def _part_key(path: str, old: _File | None, now: _File | None) -> Hashable:
    return path, None if old is None else old.state, None if now is None else now.state


def _with_content(theirs: _Files, path: str, file: _File) -> _File | None:
    """A file of the agent, read again where it was known by its stat data alone; None if it is gone meanwhile."""
    if file.content is not None:
        return file
    try:
        blob = theirs.read(path)
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise StorageError(f"cannot compute the patch: {error}") from error
        return None
    return None if blob is None else _file(blob)


def _nested_repositories(base: Path, theirs: _Files, changes: Sequence[Change], budget: Budget) -> dict[str, str]:
    """New directories that are git repositories → the commit that they are at; only the outermost.

    Git records the commit of such a directory and none of its files. Git refuses to add a repository without a commit;
    its files are captured like any others.
    """
    heads = [change.path.removesuffix(_HEAD) for change in changes if change.path.endswith(_HEAD)]
    if not heads:
        return {}
    written = frozenset(change.path for change in changes if change.kind == "written")
    with_objects = {path[:at] for path in written if (at := path.find("/.git/objects/")) >= 0}
    found: dict[str, str] = {}
    for place in sorted(heads, key=lambda path: path.count("/")):  # the outermost first
        budget.check_time()
        nested = "/.git/" in f"/{place}/" or _is_below(found, place)
        if nested or place not in with_objects or (base / place).is_dir():
            continue
        commit = _head_commit(theirs, written, f"{place}/.git", budget)
        if commit is not None:
            found[place] = commit
    return found


def _is_below(directories: Mapping[str, str], path: str) -> bool:
    """Whether `path` is one of the directories, or below one."""
    if not directories:
        return False
    at = len(path)
    while at >= 0:
        if path[:at] in directories:
            return True
        at = path.rfind("/", 0, at)
    return False


def _head_commit(theirs: _Files, written: frozenset[str], git: str, budget: Budget) -> str | None:
    """The commit that HEAD of the repository in `git` resolves to, without running git; None if there is none."""

    def text(name: str) -> str | None:
        path = f"{git}/{name}"
        try:
            blob = theirs.read(path) if path in written else None
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise StorageError(f"cannot compute the patch: {error}") from error
            return None
        if blob is None or stat.S_ISLNK(blob[0]):
            return None
        budget.spend(size_bytes=len(blob[1]))
        return blob[1].decode("utf-8", "replace").strip()

    name = "HEAD"
    for _ in range(5):
        value = text(name)
        if value is None:
            lines = (text("packed-refs") or "").splitlines()
            ending = f" {name}"
            value = next((line.partition(" ")[0] for line in lines if line.endswith(ending) and line[:1] != "#"), "")
        if not value.startswith("ref:"):
            return value if _COMMIT.fullmatch(value) else None
        name = value.removeprefix("ref:").strip()
    return None


class _BaseCommit:
    """The files of a base commit: every file of the layer is tracked, and none ever changes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, _File | bool] = {}  # path → the file; else whether it is a directory
        self._submodules: dict[str, bool] = {}  # directory → whether it is a submodule that is not checked out

    def files_at(self, path: str) -> dict[str, _File]:
        """The files at `path`, below it, or above it; without their content."""
        at = path.find("/")
        while True:
            place = path if at < 0 else path[:at]
            known = self._look(place)
            if isinstance(known, _File):
                return {place: known}
            if not known:
                return {}
            if at < 0:
                return self._below(path)
            at = path.find("/", at + 1)

    def is_in_submodule(self, path: str) -> bool:
        """Whether `path` is below a submodule that is not checked out: git does not look there."""
        at, directory = path.find("/"), ""
        while at >= 0 and self._look(path[:at]) is True:
            directory, at = path[:at], path.find("/", at + 1)
        if not directory:
            return False
        known = self._submodules.get(directory)
        if known is None:
            # A checkout makes empty directories for submodules alone; an image can have others.
            known = not os.listdir(self._root / directory) and self._is_submodule(directory)
            self._submodules[directory] = known
        return known

    def _is_submodule(self, directory: str) -> bool:
        git = Git(f"the base commit in {self._root}", self._root)
        return git.text("ls-tree", "HEAD", "--", directory, env=ANY_OWNER).startswith("160000 ")

    def blob(self, path: str) -> Blob:
        """The file at `path`, which exists."""
        blob = self._read(path)
        assert not isinstance(blob, bool)
        return blob

    def _below(self, path: str) -> dict[str, _File]:
        found: dict[str, _File] = {}
        for directory, names, files in os.walk(self._root / path):
            if path == "." and ".git" in names and directory == str(self._root):
                names.remove(".git")
            for name in (*files, *names):
                place = os.path.relpath(os.path.join(directory, name), self._root)
                known = self._look(place)
                if isinstance(known, _File):
                    found[place] = known
        return found

    def _look(self, path: str) -> _File | bool:
        known = self._known.get(path)
        if known is None:
            if len(self._known) >= _MAX_BASE_PATHS:
                self._known.clear()
            blob = self._read(path)
            if isinstance(blob, bool):
                known = blob
            else:
                file = _file(blob)
                known = _File(file.mode, file.oid, file.size_bytes)
            self._known[path] = known
        return known

    def _read(self, path: str) -> Blob | bool:
        """The file at `path`; else whether it is a directory."""
        place = os.path.join(self._root, path)
        try:
            mode = os.lstat(place).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return False
            raise
        if stat.S_ISLNK(mode):
            return 0o120000, os.fsencode(os.readlink(place))
        if stat.S_ISREG(mode):
            with open(place, "rb") as file:
                return _git_mode(mode), file.read()
        return stat.S_ISDIR(mode)


@lru_cache(maxsize=256)
def _base_commit(base: Path) -> _BaseCommit:
    return _BaseCommit(base)


def _git_mode(mode: int) -> int:
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & 0o100 else 0o100644


def _read_without_links(directory: int, path: str) -> Blob | None:
    """Read a file of the agent without following a link in any component; None if it is neither a file nor a link.

    Processes of the agent may still run and replace a directory by a link, or the file by something else.

    Args:
        directory: the repository's root, open.
    """
    try:
        handle = open_inside(directory, path, _FILE, follow_links=False)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        link = open_inside(directory, path, _LINK, follow_links=False)  # else a directory above it is a link
        try:
            return 0o120000, os.fsencode(os.readlink("", dir_fd=link))
        finally:
            os.close(link)
    with open(handle, "rb", 0) as file:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            return None
        pieces = []
        left = MAX_FILE_BYTES
        while left > 0 and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
        return _git_mode(mode), b"".join(pieces)


def _ignored(
    base: Path,
    theirs: _Files,
    changes: Sequence[Change],
    candidates: Mapping[str, os.stat_result],
    repositories: Mapping[str, str],
    new: Sequence[str],
    budget: Budget,
) -> set[str]:
    """Those of the paths `new`, which are not in the base commit, that `git add -A` ignores."""
    found = {path for path in new if path.endswith((".pyc", ".pyo")) or "__pycache__" in path.split("/")}
    # A nested repository is a directory, so git is asked about a path inside it.
    asked = {path + "/x" * (path in repositories): path for path in new if path not in found}
    files = _ignore_files(base, theirs, changes, candidates, budget) if asked else {}
    if not files:
        return found
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(b"%d %d " % (len(os.fsencode(path)), len(content)) + os.fsencode(path) + content)
    key = digest.digest()
    unknown = []
    for path, name in asked.items():
        known = _ignored_paths.get((key, path))
        if known is None:
            unknown.append(path)
        elif known:
            found.add(name)
    if unknown:
        ignored = differ().ignored(files, unknown, budget)
        for path in unknown:
            _ignored_paths.put((key, path), path in ignored, len(path) + len(key))
        found |= {asked[path] for path in ignored}
    return found


def _ignore_files(
    base: Path,
    theirs: _Files,
    changes: Sequence[Change],
    candidates: Mapping[str, os.stat_result],
    budget: Budget,
) -> dict[str, bytes]:
    """The `.gitignore` files as they are in the sandbox now; git reads none that is a link."""
    found = dict(_base_ignore_files(base))
    if found:
        replaced = {change.path: "" for change in changes if change.kind == "deleted" or change.path in candidates}
        found = {path: content for path, content in found.items() if not _is_below(replaced, path)}
    for path, status in candidates.items():
        if path.rpartition("/")[2] != ".gitignore" or not stat.S_ISREG(status.st_mode):
            continue
        if status.st_size > _MAX_IGNORE_FILE_BYTES:
            continue
        budget.spend(size_bytes=status.st_size)
        try:
            blob = theirs.read(path)
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise StorageError(f"cannot compute the patch: {error}") from error
            continue
        if blob is not None and stat.S_ISREG(blob[0]) and len(blob[1]) <= _MAX_IGNORE_FILE_BYTES:
            found[path] = blob[1]
    return found


@lru_cache(maxsize=1024)
def _base_ignore_files(base: Path) -> tuple[tuple[str, bytes], ...]:
    found = []
    for directory, names, files in os.walk(base):
        if directory == str(base):
            names.remove(".git")
        if ".gitignore" in files:
            place = Path(directory, ".gitignore")
            if not place.is_symlink():
                found.append((str(place.relative_to(base)), place.read_bytes()))
    return tuple(found)
