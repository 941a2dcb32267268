"""The agent's changes as a git patch.

The changed files are known from the sandbox's writable layer, so a patch costs by what changed, and one that was taken
of the same state before costs nothing. The files are the agent's: they are read as bytes without following any link,
laid down as git objects in a private directory, and git compares two trees there. No work tree, configuration,
attribute file or hook of the agent's is in git's reach; of all that it wrote only `.gitignore` files mean anything to
git, which takes patterns from them.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from swegym_env.judging.differ import GITLINK, Blob, differ
from swegym_env.sandbox.protocol import Change, PatchSource, Sandbox

__all__ = ["Memory", "capture_patch"]

MAX_FILE_BYTES = 16 << 20

_Signature = tuple[object, ...]

_SETTLED_S = 0.05  # several ticks of the coarsest clock that file systems in memory and on usual disks take times from
_IGNORE_FILE_BYTES = 1 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Memory:
    """Patches taken before, by the state that they were taken of.

    A state is told from others by figures of the changed files, above all their times of change, which nobody inside
    can set. A file changed so shortly before it was read that it may change again within the same tick of the clock
    would have the same figures: such a state is not remembered.
    """

    def __init__(self, most_characters: int = 64 << 20) -> None:
        """Keep patches of so many characters in all."""
        self._kept: OrderedDict[_Signature, str] = OrderedDict()
        self._lock = threading.Lock()
        self._characters = 0
        self._most_characters = most_characters

    def recall(self, signature: _Signature) -> str | None:
        """The patch of this state, if it is known."""
        with self._lock:
            if signature not in self._kept:
                return None
            self._kept.move_to_end(signature)
            return self._kept[signature]

    def remember(self, signature: _Signature, patch: str, *, changed: float, read: float) -> None:
        """Keep the patch of a state whose last change was at `changed`, and which was read from `read` on."""
        if changed > read - _SETTLED_S or len(patch) > self._most_characters:
            return
        with self._lock:
            self._characters += len(patch) - len(self._kept.pop(signature, ""))
            self._kept[signature] = patch
            while self._characters > self._most_characters or len(self._kept) > 4096:
                self._characters -= len(self._kept.popitem(last=False)[1])


_memory = Memory()


def capture_patch(sandbox: Sandbox, base: Path, *, fresh: bool = False) -> str:
    """The repository in `sandbox` against its base commit, as `git add -A && git diff --cached --no-renames` shows it.

    Untracked and binary files, modes, deletions, links and nested repositories (as the commit that they are at) are in
    it; `.git`, files that `.gitignore` names, and byte code are not. Neither attributes nor settings count. A file over
    16 MiB, or one that cannot be read, is left out and named in a line before the first diff, which git skips.

    Args:
        sandbox: running; nothing is executed in it.
        base: the `testbed` directory of the task's repository layer.
        fresh: read every changed file again. Else a file is taken for unchanged while its figures are, which misses
            what a process writes through memory that it had mapped before.
    Returns:
        What `git apply` takes on the base commit; empty where nothing changed. Bytes that are no UTF-8 are surrogates
        (`surrogateescape`).
    Raises:
        RepositoryError: git cannot be run.
        StorageError: there is no place to compare in.
    """
    if isinstance(sandbox, PatchSource):
        return sandbox.patch(fresh=fresh)
    changes = sandbox.changes("/testbed")
    if not changes:
        return ""
    read = time.time()
    signature, changed = _signature(base, changes)
    known = None if fresh else _memory.recall(signature)
    if known is None:
        known = _diff(base, changes)
        _memory.remember(signature, known, changed=changed, read=read)
    return known


def _signature(base: Path, changes: Sequence[Change]) -> tuple[_Signature, float]:
    """What tells this state from others without reading any file, and the latest time in it."""
    parts: list[object] = [str(base)]
    newest = 0.0
    for change in changes:
        parts.append((change.path, change.kind))
        if change.host_path is not None:
            try:
                status = os.lstat(change.host_path)
            except OSError:  # it goes while we look: equal to no state
                return (object(),), time.time()
            parts.append(
                (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
            )
            newest = max(newest, status.st_mtime, status.st_ctime)
    return tuple(parts), newest


def _diff(base: Path, changes: Sequence[Change]) -> str:
    before: dict[str, Blob] = {}
    after: dict[str, Blob] = {}
    left_out: list[str] = []
    repositories = _nested_repositories(base, changes)
    for change in changes:
        if ".git" in change.path.split("/"):
            continue
        before.update(_base_blobs(base, change.path))
        if change.host_path is None or change.kind == "deleted" or _lies_in(repositories, change.path):
            continue
        try:
            blob = _read_unfollowed(change.host_path, change.path)
        except OSError as error:
            left_out.append(f"# left out: {change.path!r}: {error.strerror}\n")
            before.pop(change.path, None)
            continue
        if blob is not None:
            after[change.path] = blob
    for path, commit in repositories.items():
        before.update(_base_blobs(base, path))
        after[path] = GITLINK, commit.encode()
    for path in _ignored(base, changes, after, before):
        del after[path]
    return "".join(left_out) + differ().diff(before, after)


def _nested_repositories(base: Path, changes: Sequence[Change]) -> dict[str, str]:
    """The outermost directories, none of whose files the base commit has, that are repositories at a commit.

    Git does not look into these, and records the commit. One without a commit it refuses to add; its files are taken as
    any others.
    """
    found: dict[str, str] = {}
    written = {change.path: change for change in changes if change.kind == "written"}
    for path in sorted(written):
        place, inside, _ = path.partition("/.git/HEAD")
        if not inside or not path.endswith("/.git/HEAD") or _lies_in(found, place) or (base / place).is_dir():
            continue
        commit = _commit_of(written, f"{place}/.git")
        if commit is not None and any(other.startswith(f"{place}/.git/objects/") for other in written):
            found[place] = commit
    return found


def _lies_in(directories: Mapping[str, str], path: str) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:depth]) in directories for depth in range(1, len(parts) + 1))


def _commit_of(written: Mapping[str, Change], git: str) -> str | None:
    """What HEAD of the repository in `git` leads to, read as bytes; None where that is no commit."""
    name = "HEAD"
    for _ in range(5):
        text = _small_text(written.get(f"{git}/{name}"))
        if text is None:
            lines = (_small_text(written.get(f"{git}/packed-refs")) or "").splitlines()
            text = next((line.split()[0] for line in lines if line.endswith(f" {name}") and line[:1] != "#"), "")
        if not text.startswith("ref:"):
            return text if _COMMIT.fullmatch(text) else None
        name = text.removeprefix("ref:").strip()
    return None


def _small_text(change: Change | None) -> str | None:
    if change is None or change.host_path is None:
        return None
    try:
        blob = _read_unfollowed(change.host_path, change.path)
    except OSError:
        return None
    return None if blob is None or blob[0] == 0o120000 else blob[1].decode("utf-8", "replace").strip()


def _base_blobs(base: Path, path: str) -> dict[str, Blob]:
    """What the base commit has at `path`, below it, or above it; every file of the layer is tracked."""
    found: dict[str, Blob] = {}
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        place = "/".join(parts[:depth])
        blob = _base_blob(base, place)
        if blob is not None:
            return {place: blob}
    for directory, names, files in os.walk(base / path):
        if os.path.samefile(directory, base):
            names.remove(".git")
        for name in (*files, *names):
            place = os.path.relpath(os.path.join(directory, name), base)
            blob = _base_blob(base, place)
            if blob is not None:
                found[place] = blob
    return found


def _base_blob(base: Path, path: str) -> Blob | None:
    place = os.path.join(base, path)
    try:
        mode = os.lstat(place).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        return 0o120000, os.fsencode(os.readlink(place))
    if stat.S_ISREG(mode):
        with open(place, "rb") as file:
            return (0o100755 if mode & 0o100 else 0o100644), file.read()
    return None


def _read_unfollowed(host_path: Path, path: str) -> Blob | None:
    """Read one of the agent's files, following no link on the way; None where it is neither file nor link.

    Processes of the agent may still run and put a link where a directory was.
    """
    parts = [os.fspath(part) for part in path.split("/")]
    root = host_path.parents[len(parts) - 1]
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = below
        status = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return 0o120000, os.fsencode(os.readlink(parts[-1], dir_fd=directory))
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, more than {MAX_FILE_BYTES}")
        handle = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        with open(handle, "rb") as file:
            return (0o100755 if status.st_mode & 0o100 else 0o100644), file.read(MAX_FILE_BYTES)
    finally:
        os.close(directory)


def _ignored(base: Path, changes: Sequence[Change], after: Mapping[str, Blob], before: Mapping[str, Blob]) -> set[str]:
    """Those paths of `after`, none of which the base commit has, that `git add -A` passes over."""
    new = [path for path in after if path not in before]
    ignored = {path for path in new if path.endswith((".pyc", ".pyo")) or "__pycache__" in path.split("/")}
    files = _ignore_files(base, changes, after)
    # What is asked of a nested repository is asked of something in it: it is a directory, which a file's path is not.
    asked = {path + "/x" * (after[path][0] == GITLINK): path for path in new if path not in ignored}
    if not files or not asked:
        return ignored
    return ignored | {asked[path] for path in _passed_over(tuple(sorted(files.items())), tuple(asked))}


def _ignore_files(base: Path, changes: Sequence[Change], after: Mapping[str, Blob]) -> dict[str, bytes]:
    """The `.gitignore` files as they are in the sandbox now; git takes none that is a link."""
    found = dict(_base_ignore_files(base))
    if found:
        gone = [change.path for change in changes if change.kind == "deleted" or change.path in after]
        for path in list(found):
            if any(path == place or path.startswith(f"{place}/") for place in gone):
                del found[path]
    for path, (mode, content) in after.items():
        if path.rpartition("/")[2] == ".gitignore" and stat.S_ISREG(mode) and len(content) <= _IGNORE_FILE_BYTES:
            found[path] = content
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


@lru_cache(maxsize=256)
def _passed_over(ignore_files: tuple[tuple[str, bytes], ...], paths: tuple[str, ...]) -> frozenset[str]:
    return frozenset(differ().ignored(dict(ignore_files), paths))
