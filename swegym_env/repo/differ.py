"""Compares two sets of files with git: a few processes and object stores for many patches, and no work tree.

Every step of an episode takes a patch, and starting git costs more (4 ms) than comparing a few files (0.3 ms): so a
`Differ` keeps a `git diff-tree --stdin`. It starts git without GitPython, whose import would add 0.2 s to the first
step of a process, with the isolated environment of `repo.git`. The compared files are loose objects in a leased
directory, which is removed however this process ends; git exits when our end of its pipe closes.

What git reads was written by agents. So it runs as an ordinary user, with limits on memory and processor time, and a
caller waits for no other: each takes a `Differ` of its own from `Differs`.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import math
import os
import secrets
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from swegym_env.errors import RepositoryError, StorageError
from swegym_env.files import make_directory
from swegym_env.paths import run_dir
from swegym_env.repo.git import git_command
from swegym_env.repo.objects import GITLINK, Blob, ObjectWriter
from swegym_env.sandbox.api import Limits
from swegym_env.sandbox.budget import Budget, OverBudgetError
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.leases import lease_directory
from swegym_env.sandbox.linux.files import remove_tree

__all__ = ["Differ", "Differs", "differ", "work_in"]

_PURPOSE = "cannot compute the patch"
_TIMEOUT_S = 120.0  # of wall time, where the machine and not the agent's files must be at fault
_LOOK_S = 0.1  # between two looks at the processor time of git
_MAX_REQUESTS = 512  # git keeps every tree that it has read
_MAX_BYTES = 32 << 20
_MAX_IDLE = 8
_MEMORY_BYTES = 1 << 30
_IGNORE_CPU_S = 3.0  # of reading patterns: 200,000 names take less than one second
_PROCESS_CPU_S = 600  # of one git over all its requests: it ends even where nobody is left to end it
_NOBODY = 65534
_OPTIONS = (
    "--patch",
    "--binary",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
)
# The user that git runs as may be unable to read `repo.git`'s own configuration file.
_CONFIG = """\
[core]
	repositoryformatversion = 0
	bare = true
	attributesFile = /dev/null
	excludesFile = /dev/null
"""
# Errors of writing the agent's names again, in a directory of ours.
_ITS_NAMES = frozenset({errno.ENAMETOOLONG, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ})


class Differ:
    """A git process and its objects, for one request at a time.

    Attributes:
        requests: number of comparisons made.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._bytes = 0
        self._served = 0  # requests of the running process
        self.requests = 0

    @property
    def pid(self) -> int | None:
        """The id of the git process; None while none runs."""
        return None if self._process is None else self._process.pid

    def diff(
        self, before: Mapping[str, Blob], after: Mapping[str, Blob], budget: Budget | None = None
    ) -> dict[str, str]:
        """The patch from one set of files to another, as `git diff --binary --full-index --no-renames` prints it.

        Args:
            before: path → file.
            after: path → file.
            budget: what it may cost; None: the default limits.
        Returns:
            Path → its part of the patch, in git's order; a path that both have alike is absent. Bytes that are not
            UTF-8 become surrogates.
        Raises:
            RepositoryError: git is missing or failed.
            StorageError: there is no space for the objects.
            OverBudgetError: it costs more than `budget`.
        """
        budget = budget or Budget(Limits())
        changed = sorted(
            (path for path in before.keys() | after.keys() if before.get(path) != after.get(path)), key=os.fsencode
        )
        if not changed:
            return {}
        try:
            process, objects = self._start()
            trees = [self._write(objects, side, budget) for side in (before, after)]
            pair = f"{trees[0]} {trees[1]}\n".encode()
            # git copies a line that is no object id to its output, and flushes what it wrote before.
            end = f"end {secrets.token_hex(16)}\n".encode()
            used_s = _cpu_s(process.pid)
            assert process.stdin is not None
            try:
                os.write(process.stdin.fileno(), pair + end)  # less than a pipe takes at once
            except OSError as error:
                raise _exit_error(process) from error
            self._served += 1
            self.requests += 1
            printed = _read_until(process, end, used_s, budget).removeprefix(pair)
        except BaseException as error:
            self.close()  # an object may be half written, an answer half read
            if isinstance(error, OSError) and not isinstance(error, OverBudgetError):
                raise StorageError(f"{_PURPOSE}: {error}") from error
            raise
        return _by_path(printed, changed, before, after)

    def ignored(
        self, ignore_files: Mapping[str, bytes], paths: Sequence[str], budget: Budget | None = None
    ) -> set[str]:
        """Those of `paths`, all untracked, that git ignores given these `.gitignore` files.

        Args:
            ignore_files: path → content.
            paths: relative to the root; a path below an ignored directory is ignored too.
            budget: as of `diff`; some patterns take exponential time.
        Raises:
            RepositoryError, StorageError, OverBudgetError: as `diff`.
        """
        budget = budget or Budget(Limits())
        directory = self._open_directory()
        tree = directory / f"ignore-{secrets.token_hex(4)}"
        try:
            make_directory(tree)
            try:
                _write_files(tree, ignore_files, budget)
            except OSError as error:
                if error.errno in _ITS_NAMES:
                    raise OverBudgetError(f"its .gitignore files cannot be read: {error.strerror}") from error
                raise
            names = b"".join(b"./" + os.fsencode(path) + b"\0" for path in paths)  # a leading colon is a pattern
            options = ("--git-dir=../git", "--work-tree=.", "check-ignore", "--no-index", "-z", "--stdin")
            limit_s = max(1, math.ceil(min(budget.left_s, _IGNORE_CPU_S)))
            with _start_git(tree, limit_s, *options) as process:
                try:
                    found, errors = process.communicate(names, timeout=_TIMEOUT_S)
                except BaseException:
                    process.kill()
                    raise
        except OverBudgetError:
            raise
        except subprocess.TimeoutExpired as error:
            raise RepositoryError(f"{_PURPOSE}: git check-ignore did not end within {_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise StorageError(f"{_PURPOSE}: {error}") from error
        finally:
            remove_tree(tree)
        if process.returncode == -signal.SIGXCPU:
            raise budget.too_slow("reading its .gitignore patterns", limit_s)
        if process.returncode not in (0, 1):
            raise _failure("check-ignore", process.returncode, errors, "reading its .gitignore patterns")
        return {os.fsdecode(name[2:]) for name in found.split(b"\0") if name}

    def abandon(self) -> None:
        """Close the pipes in a forked child: git exits only when every copy of its standard input is closed."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
            self._process.returncode = 0  # the parent's to wait for

    def _start(self) -> tuple[subprocess.Popen[bytes], ObjectWriter]:
        """A running git and the writer of its objects; both are replaced before they grow large."""
        if self._served >= _MAX_REQUESTS or self._bytes >= _MAX_BYTES:
            self.close()
        directory = self._open_directory()
        if self._process is not None and (
            self._process.poll() is not None or _cpu_s(self._process.pid) > _PROCESS_CPU_S / 2
        ):
            self._end_process()  # it died: its pipes are still open
        if self._process is None:
            options = ("--git-dir=git", "diff-tree", "--stdin", "-r", *_OPTIONS)
            self._process = _start_git(directory, _PROCESS_CPU_S, *options)
        return self._process, ObjectWriter(directory / "git" / "objects")

    def _write(self, objects: ObjectWriter, side: Mapping[str, Blob], budget: Budget) -> str:
        blobs = {}
        for number, (path, (mode, content)) in enumerate(side.items()):
            if mode == GITLINK:
                blobs[path] = (mode, content.decode())
            else:
                blobs[path] = (mode, objects.write("blob", content))
                self._bytes += len(content)
            if number % 64 == 63:
                budget.check_time()
        return objects.write_tree(blobs)

    def _open_directory(self) -> Path:
        """The leased directory with an empty bare repository, made at the first use."""
        if self._directory is not None and (self._directory / "git" / "HEAD").exists():
            return self._directory
        self._end_process()
        self._directory = _new_directory()
        git = self._directory / "git"
        try:
            for place in (git, git / "objects", git / "refs"):
                make_directory(place)
            for name, text in (("config", _CONFIG), ("HEAD", "ref: refs/heads/main\n")):
                (git / name).write_text(text)
                (git / name).chmod(0o644)
        except OSError as error:
            raise StorageError(f"{_PURPOSE}: {error}") from error
        return self._directory

    def _end_process(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End git and remove its objects; the next request starts anew."""
        self._end_process()
        if self._directory is not None:
            remove_tree(self._directory)
            self._directory = None
        self._served = self._bytes = 0


class Differs:
    """As many differs as are in use at once, and a few idle ones. Thread-safe; no caller waits for another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Differ] = []
        self._all: set[Differ] = set()
        self._of_closed = 0

    @property
    def requests(self) -> int:
        """Number of comparisons made."""
        with self._lock:
            return self._of_closed + sum(one.requests for one in self._all)

    @property
    def pids(self) -> list[int]:
        """The ids of the git processes."""
        with self._lock:
            return [one.pid for one in self._all if one.pid is not None]

    def diff(
        self, before: Mapping[str, Blob], after: Mapping[str, Blob], budget: Budget | None = None
    ) -> dict[str, str]:
        """See `Differ.diff`."""
        with self._one() as one:
            return one.diff(before, after, budget)

    def ignored(
        self, ignore_files: Mapping[str, bytes], paths: Sequence[str], budget: Budget | None = None
    ) -> set[str]:
        """See `Differ.ignored`."""
        with self._one() as one:
            return one.ignored(ignore_files, paths, budget)

    def close(self) -> None:
        """End every git that is not in use and remove its objects; the next request starts anew."""
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            self._forget(one)

    def abandon(self) -> None:
        """See `Differ.abandon`; for all of them."""
        for one in self._all:
            one.abandon()

    @contextlib.contextmanager
    def _one(self) -> Iterator[Differ]:
        with self._lock:
            one = self._idle.pop() if self._idle else Differ()
            self._all.add(one)
        try:
            yield one
        finally:
            with self._lock:
                kept = len(self._idle) < _MAX_IDLE
                if kept:
                    self._idle.append(one)
            if not kept:
                self._forget(one)

    def _forget(self, one: Differ) -> None:
        one.close()
        with self._lock:
            self._all.discard(one)
            self._of_closed += one.requests


def _write_files(tree: Path, files: Mapping[str, bytes], budget: Budget) -> None:
    """Write files below `tree` that every user can read. Names are the agent's: paths may be deeper than any stack."""
    made = {""}
    for number, (path, content) in enumerate(files.items()):
        missing = []
        above = path.rpartition("/")[0]
        while above not in made:
            missing.append(above)
            above = above.rpartition("/")[0]
        for directory in reversed(missing):
            os.mkdir(tree / directory)
            os.chmod(tree / directory, 0o755)
            made.add(directory)
        with open(tree / path, "xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        if number % 64 == 63:
            budget.check_time()


def _by_path(
    printed: bytes, changed: Sequence[str], before: Mapping[str, Blob], after: Mapping[str, Blob]
) -> dict[str, str]:
    """Divide what git printed. Only a header begins a line with `diff --git`: each line of a file follows a mark."""
    starts = [0] if printed else []
    mark = b"\ndiff --git "
    at = printed.find(mark)
    while at >= 0:
        starts.append(at + 1)
        at = printed.find(mark, at + 1)
    # A file that became a link, or the other way, is printed as removed and created.
    twice = {
        path for path in changed if path in before and path in after and (before[path][0] ^ after[path][0]) & 0o170000
    }
    if len(starts) != len(changed) + len(twice):
        raise RepositoryError(f"{_PURPOSE}: git printed {len(starts)} parts for {len(changed) + len(twice)} changes")
    starts.append(len(printed))
    parts = {}
    number = 0
    for path in changed:
        first, number = number, number + 1 + (path in twice)
        parts[path] = printed[starts[first] : starts[number]].decode("utf-8", "surrogateescape")
    return parts


def _start_git(directory: Path, cpu_s: int, *arguments: str) -> subprocess.Popen[bytes]:
    """Start git in a directory with limits, as an ordinary user where this process is root, and without its secrets.

    Where other users cannot reach the directory, git stays this process's user.
    """
    command, environment = git_command(_PURPOSE, *arguments, env={"GIT_CONFIG_GLOBAL": os.devnull})
    # At the soft limit of time the signal says so; at the hard one it is SIGKILL.
    limits = (
        f"ulimit -c 0; ulimit -f 0; ulimit -v {_MEMORY_BYTES >> 10}; ulimit -S -t {cpu_s}; ulimit -H -t {cpu_s + 2}"
    )
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    drop: list[str] = []
    nobody = None
    if os.geteuid() == 0 and _open_to_all(directory.parent.parent):
        # Python changes the user in a fork of this process, which copies the tables of all its memory and stops every
        # thread meanwhile: 0.1 s for 2 GB. A program that does it is started without a copy.
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            nobody = _NOBODY
        else:
            drop = [setpriv, f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--"]
    return subprocess.Popen(
        [*drop, "/bin/sh", "-c", f'{limits}; exec "$@"', "git", *command],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**kept, **environment},
        cwd=directory,
        start_new_session=True,  # Ctrl-C is handled by us
        user=nobody,
        group=nobody,
        extra_groups=None if nobody is None else [],
    )


@functools.lru_cache(maxsize=64)
def _open_to_all(directory: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (directory, *directory.parents))


def _cpu_s(pid: int) -> float:
    """Processor seconds that a child has used; infinite where it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python has for threads only
    except OSError:
        return math.inf


def _read_until(process: subprocess.Popen[bytes], end: bytes, used_s: float, budget: Budget) -> bytes:
    """The output of git up to `end`, without it.

    Args:
        used_s: processor seconds that git had used before.
    """
    assert process.stdout is not None
    stream = process.stdout.fileno()
    watcher = select.poll()
    watcher.register(stream, select.POLLIN)
    output = bytearray()
    began = looked = time.monotonic()
    while not output.endswith(end):
        ready = watcher.poll(_LOOK_S * 1000)
        now = time.monotonic()
        if now - looked >= _LOOK_S:
            looked = now
            if _cpu_s(process.pid) - used_s > max(0.0, budget.left_s) and process.poll() is None:
                raise budget.too_slow("comparing its files")
            if now - began > _TIMEOUT_S:
                raise RepositoryError(f"{_PURPOSE}: git did not answer within {_TIMEOUT_S:g} s")
        if not ready:
            continue
        chunk = os.read(stream, 1 << 16)
        if not chunk:
            raise _exit_error(process)
        output += chunk
        if len(output) > budget.limits.patch_bytes + len(end) + 128:
            raise OverBudgetError(f"the patch takes more than {budget.limits.patch_bytes} bytes")
    return bytes(output[: -len(end)])


def _exit_error(process: subprocess.Popen[bytes]) -> Exception:
    assert process.stderr is not None
    return _failure("diff-tree", process.wait(), process.stderr.read(), "comparing its files")


def _failure(command: str, code: int, errors: bytes, what: str) -> Exception:
    """Why git ended: the agent's files need more memory than it may use, or else it failed."""
    message = errors.decode("utf-8", "replace").strip().partition("\n")[0] or "no message"
    if "out of memory" in message.lower():
        return OverBudgetError(f"{what} takes more than {_MEMORY_BYTES} bytes of memory")
    return RepositoryError(f"{_PURPOSE}: git {command} exited with {code}: {message}")


_place: Path | None = None


def work_in(directory: Path) -> None:
    """Keep the objects of this process below a directory that its parent has leased, which needs no supervisor."""
    global _place  # noqa: PLW0603 - set once, at the start of the process
    _place = directory


def _new_directory() -> Path:
    if _place is None:
        return lease_directory("differ", supervisor().pid)
    directory = Path(tempfile.mkdtemp(dir=_place))
    directory.chmod(0o711)
    return directory


_differs: dict[Path, Differs] = {}
_differs_lock = threading.Lock()


def differ() -> Differs:
    """This process's differs in `run_dir()`."""
    with _differs_lock:
        if not _differs:
            atexit.register(_close_all)
        return _differs.setdefault(run_dir(), Differs())


def _close_all() -> None:
    for one in _differs.values():
        one.close()


def _forget_in_child() -> None:
    for one in _differs.values():
        one.abandon()
    _differs.clear()
    _differs_lock.release()


os.register_at_fork(
    before=_differs_lock.acquire, after_in_parent=_differs_lock.release, after_in_child=_forget_in_child
)
