"""Kept builds: a patched repository is built once for all runs of a verdict.

The script of some tasks builds the repository before the tests (`make`, a bundler), which takes longer than the tests,
and a verdict has several runs. So a patch is built once, in a sandbox without the hidden tests, and each run gets a
copy of the result and begins with the tests. A run sees its own files: neither their dates nor their pages in memory
show how often the patch has been run. The content of the files may show it: a build can write the time into them, and a
run can compare it.

Of what the build wrote, files that a patch may change and the output of compilers are kept. Changes to tests, `.git`,
or programs outside of the repository are dropped. Files of the patch are kept as they were before the build. The patch
decides everything else about the files: their names, their number, their depth. A build that cannot be copied
completely runs in each run, as if builds were not kept.

Whether the tests of a task can run on kept builds is found out once, after a patch has passed: the build of the gold
patch must not read the hidden tests (it could compile, bundle or check them), the gold patch must resolve, and at the
base commit no test of FAIL_TO_PASS may pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from swegym_env.errors import GradingError, SandboxBrokenError, SandboxError
from swegym_env.files import write_atomically
from swegym_env.languages import language_of
from swegym_env.long_work import begins
from swegym_env.paths import large_run_dir
from swegym_env.repo.patches import touched_paths
from swegym_env.sandbox.changes import Below, is_whiteout
from swegym_env.sandbox.client import clean_up, supervisor
from swegym_env.sandbox.images import resolve_image
from swegym_env.sandbox.layers import LayerStore, unmark_opaque
from swegym_env.sandbox.leases import lease_directory, storage_error
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.sandbox.writable import copy_files
from swegym_env.tasks.task import Task

if TYPE_CHECKING:
    from swegym_env.grading.task_tests import TaskTests

__all__ = ["Builds", "environment_lines"]

_VERSION = 2
_WORTH_S = 3.0  # a build that is quicker is repeated in each run
_MOST_BYTES, _MOST_FILES = 1 << 30, 200_000  # of what a build leaves, each run has a copy
_DEEPEST, _LONGEST_BYTES = 64, 1024  # directories above a product, and its path: programs can reach it on the host
_EARLIER_NS = 20_000_000  # the clock of files may be behind
_CANARY = "/tmp/.swegym-canary"
_ENVIRONMENT = re.compile(r"\s*export\s|\s*[A-Za-z_]\w*=\S*\s*$")
_FUSE_FILES = ".wh."  # fuse-overlayfs's own files
_FUSE_OPAQUE = ".wh..wh..opq"
_COMPILED = re.compile(r"\.(o|obj|a|so|so\.[\d.]+|lo|la|d|gch|pch|pcm|node|wasm)$")


def environment_lines(settings: str) -> str:
    """The lines of a script that set variables: what remains to be done after the build."""
    return "\n".join(line for line in settings.splitlines() if _ENVIRONMENT.match(line))


def builds(settings: str) -> bool:
    """Whether a script does more than set variables."""
    return any(line.strip() and not _ENVIRONMENT.match(line) for line in settings.splitlines())


class Builds:
    """The builds of one verdict. Thread-safe.

    Args:
        task: the task.
        store: layer store, beside which results about tasks are stored; None: the default.
    """

    def __init__(self, task: Task, store: LayerStore | None) -> None:
        self._task = task
        self._record = (store or LayerStore()).root.parent / "builds" / f"{task.digest}.json"
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._directory: Path | None = None
        self._builds: dict[str, tuple[Path, ...]] = {}  # patch → layers that its build left; none if that is not kept
        self._longest_s = 0.0
        self._are_kept = self._known() or False
        self._begun: set[str] = set()  # patches that a run has built

    def close(self) -> None:
        """Remove everything; idempotent."""
        with self._lock:
            directory, self._directory, self._builds = self._directory, None, {}
        if directory is not None:
            clean_up({"do": "remove", "directory": str(directory)})

    def took(self, seconds: float) -> None:
        """Record how long the build of a run took."""
        self._longest_s = max(self._longest_s, seconds)

    def learn(self, tests: TaskTests, gold: str) -> None:
        """Find out, once for the task, whether its tests run on kept builds, if its build takes long enough.

        A patch that was built in its first run is built in all its runs: a run that is not could tell that it is a
        later one. The gold patch is not an attack, so its runs may differ.

        Args:
            gold: the gold patch without its excluded paths.
        Raises:
            InfrastructureError: as `TaskTests.run`.
        """
        if self._longest_s < _WORTH_S or self._known() is not None:
            return
        begins()
        self._begun -= {gold, ""}
        try:
            self._are_kept = not self._has_compiled_tests() and not _reads_tests(tests, gold, self._tested())
            self._are_kept = self._are_kept and self._tests_run_alone(tests, gold)
        except (GradingError, SandboxBrokenError):
            self._are_kept = False
            tests.run("")  # raises where the machine is at fault
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._record, json.dumps({"version": _VERSION, "are_kept": self._are_kept}))

    @contextlib.contextmanager
    def layers(self, tests: TaskTests, patch: str) -> Iterator[tuple[Path, ...]]:
        """Layers with the patched and built repository, for one run; none if the run has to build it.

        Raises:
            InfrastructureError: as `TaskTests.run`.
        """
        is_kept = self._are_kept and patch not in self._begun
        kept = self._build(tests, patch) if is_kept else ()
        if not kept:
            self._begun.add(patch)
            yield ()
            return
        directory = self._place() / secrets.token_hex(6)  # a run sees the name
        try:
            copies = tuple(directory / str(number) for number in range(len(kept)))
            try:
                directory.mkdir()
                directory.chmod(0o755)
                for layer, copy in zip(kept, copies, strict=True):
                    copy_files(layer, copy)
                    _note_no_access(copy)
            except OSError as error:
                raise storage_error(error) from error
            yield copies
        finally:
            clean_up({"do": "remove", "directory": str(directory)})

    def _known(self) -> bool | None:
        try:
            data = json.loads(self._record.read_text(encoding="utf-8"))
            return bool(data["are_kept"]) if data["version"] == _VERSION else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _has_compiled_tests(self) -> bool:
        language = language_of(self._task)
        return language.is_compiled and any(path.endswith(language.suffixes) for path in self._tested())

    def _tests_run_alone(self, tests: TaskTests, gold: str) -> bool:
        if not tests.verdict(tests.run(gold)).resolved or not self._builds[gold]:
            return False
        statuses = tests.verdict(tests.run("")).tests
        return not any(statuses.get(name) in ("PASSED", "XFAIL") for name in self._task.fail_to_pass)

    def _tested(self) -> frozenset[str]:
        """The files that contain the tests, and those that controls rewrite."""
        return frozenset({*touched_paths(self._task.test_patch), *language_of(self._task).control_files(self._task)})

    def _build(self, tests: TaskTests, patch: str) -> tuple[Path, ...]:
        with self._building:
            if patch not in self._builds:
                self._builds[patch] = self._built(tests, patch)
            return self._builds[patch]

    def _place(self) -> Path:
        with self._lock:
            if self._directory is None:
                self._directory = lease_directory("builds", supervisor().pid, large_run_dir())
                self._directory.chmod(0o755)
            return self._directory

    def _built(self, tests: TaskTests, patch: str) -> tuple[Path, ...]:
        directory = self._place() / secrets.token_hex(6)
        layers: tuple[Path, ...] = ()
        try:
            layers = self._kept_layers(tests, patch, directory)
        except (SandboxError, _NotKeptError, PermissionError):
            pass  # where more than the build is at fault, a run will say so
        except OSError as error:
            raise storage_error(error) from error
        finally:
            if not layers:
                clean_up({"do": "remove", "directory": str(directory)})
        return layers

    def _kept_layers(self, tests: TaskTests, patch: str, directory: Path) -> tuple[Path, ...]:
        """Build a patch; the kept layers, none if nothing can be kept.

        Raises:
            _NotKeptError, SandboxError, OSError: it cannot be kept.
        """
        patched, built = directory / "patched", directory / "built"
        began = time.time_ns() - _EARLIER_NS
        with tests.patched(patch) as (sandbox, problem, _):
            if problem or not isinstance(sandbox, LocalSandbox):
                return ()
            patched.mkdir(parents=True)
            built.mkdir()
            # Both copies are taken while nothing runs inside, so nothing in them changes while they are read.
            before = sandbox.copy_layers(patched)
            result = sandbox.run(f"cd /testbed\n{tests.evaluation.settings}", timeout_s=tests.timeout_s)
            if result.timed_out or sandbox.has_written_more_than(_MOST_BYTES, _MOST_FILES):
                return ()
            after, fuse = sandbox.copy_layers(built), sandbox.fuse
        below = (resolve_image(tests.workspace.spec.image), *tests.workspace.spec.layers)
        products = _Products(tests, self._tested(), before, below, fuse=fuse)
        for layer in (*before, *after):
            _leave_repository(layer)
        for layer in after:
            products.filter(layer / "testbed")
        layers = (*before, *after)
        return layers if _set_back(layers, began, below) else ()


class _NotKeptError(Exception):
    """A build cannot be kept."""


class _Products:
    """Selects what is kept of the files that a build has written.

    Args:
        tests: tests of the task.
        tested: paths of the test files.
        patched: copied layers with what the patch changed, bottom first.
        below: the layers of the task, bottom first.
        fuse: whether fuse-overlayfs wrote the layers.
    """

    def __init__(
        self, tests: TaskTests, tested: frozenset[str], patched: Sequence[Path], below: Sequence[Path], *, fuse: bool
    ) -> None:
        self._tested, self._excludes, self._fuse = tested, tests.excludes(), fuse
        self._language, self._root = language_of(tests.task), tests.workspace.base
        self._base = Below([str(tests.workspace.base)])
        self._patched, self._below = (
            Below([str(layer) for layer in reversed(layers)]).child("testbed") for layers in (patched, below)
        )

    def filter(self, root: Path) -> None:
        """Remove everything that is not kept from `/testbed` of a copied writable layer.

        Raises:
            _NotKeptError: programs outside the sandbox cannot reach all of it.
        """
        if not root.exists():
            return
        _remove_marks(root, fuse=self._fuse)
        waiting = [(root, "", self._base, self._patched, self._below)]
        while waiting:
            directory, prefix, base, patched, below = waiting.pop()
            if prefix.count("/") > _DEEPEST or len(os.fsencode(prefix)) > _LONGEST_BYTES:
                raise _NotKeptError
            for entry in list(os.scandir(directory)):
                place, status = Path(entry.path), entry.stat(follow_symlinks=False)
                is_mark = entry.name.startswith(_FUSE_FILES)
                name = entry.name.removeprefix(_FUSE_FILES)
                if is_mark and (not self._fuse or entry.name == _FUSE_OPAQUE):
                    if not self._fuse:  # fuse-overlayfs would take it for one of its own
                        remove_tree(place)
                    continue
                tracked, changed, lower = base.child(name), patched.child(name), below.child(name)
                if is_mark or is_whiteout(status):
                    if tracked or changed or not lower:
                        remove_tree(place)
                elif not stat.S_ISDIR(status.st_mode):
                    if not self._keeps(f"{prefix}{name}", status, tracked, changed, lower):
                        remove_tree(place)
                elif tracked.file is not None or changed.file is not None:
                    remove_tree(place)
                else:
                    if tracked or changed:
                        _remove_marks(place, fuse=self._fuse)
                    waiting.append((place, f"{prefix}{name}/", tracked, changed, lower))

    def _keeps(self, path: str, status: os.stat_result, tracked: Below, changed: Below, lower: Below) -> bool:
        """Whether a file or link is kept."""
        is_regular = stat.S_ISREG(status.st_mode)
        if changed or path in self._tested or not (is_regular or stat.S_ISLNK(status.st_mode)):
            return False
        if tracked:
            is_same_kind = tracked.file is not None and stat.S_ISREG(os.lstat(tracked.file).st_mode)
            return is_regular and is_same_kind and not self._excludes(path)
        if lower:
            return True
        return not (
            self._excludes(_COMPILED.sub(".compiled", path))
            or self._language.shadows_module(path.split("/"), self._root)
        )


def _reads_tests(tests: TaskTests, gold: str, tested: frozenset[str]) -> bool:
    """Whether the build of the gold patch opens the hidden tests; True if that cannot be known.

    Git opens them too, to tell whether the repository is changed. It is configured to assume that they are unchanged.
    """
    known = sorted(path for path in tested if os.path.lexists(tests.workspace.base / path))
    places = [*(f"/testbed/{path}" for path in sorted(tested)), _CANARY]
    with tests.tested(gold) as (sandbox, problem), contextlib.suppress(OSError):  # they cannot be watched
        if problem or not isinstance(sandbox, LocalSandbox):
            return True
        sandbox.write(_CANARY, b"canary\n")
        if known:
            sandbox.run(f"(cd /testbed && git update-index --assume-unchanged -- {shlex.join(known)})")
        with sandbox.watching(places) as is_opened:
            result = sandbox.run(f"cd /testbed\n{tests.evaluation.settings}", timeout_s=tests.timeout_s)
            if result.timed_out or is_opened():
                return True
            sandbox.run(f": < {_CANARY}")
            return not is_opened()
    return True


def _leave_repository(layer: Path) -> None:
    """Remove everything but the repository without `.git` from a copied layer.

    If something else is in the place of the repository, such as a link, it is removed too.
    """
    layer.chmod(0o755)
    for entry in list(layer.iterdir()):
        if entry.name == "testbed" and stat.S_ISDIR(entry.lstat().st_mode):
            entry.chmod(0o755)
            remove_tree(entry / ".git")
        else:
            remove_tree(entry)


def _remove_marks(directory: Path, *, fuse: bool) -> None:
    """Remove opaque marks, so that the lower layers of a directory are visible again."""
    unmark_opaque(directory)
    if fuse:
        (directory / _FUSE_OPAQUE).unlink(missing_ok=True)


def _set_back(layers: Sequence[Path], began: int, below: Sequence[Path]) -> bool:
    """Set the dates of files written since `began` to right after the layers below; return whether a copy is cheap.

    `make` compares dates. The order of the files is kept, but not how long ago they were written.
    """
    newest = max(int(os.lstat(layer).st_ctime_ns) for layer in below) + 1_000_000_000
    earlier = max(0, began - newest)
    size = files = 0
    for layer in layers:
        for place in _entries(layer):
            status = os.lstat(place)
            size, files = size + status.st_blocks * 512, files + 1
            if status.st_mtime_ns >= began:
                date = status.st_mtime_ns - earlier
                os.utime(place, ns=(date, date), follow_symlinks=False)
    return size <= _MOST_BYTES and files <= _MOST_FILES


def _note_no_access(layer: Path) -> None:
    """Set the access times of a copied layer to the modification times: copying changes them."""
    for place in _entries(layer):
        date = os.lstat(place).st_mtime_ns
        os.utime(place, ns=(date, date), follow_symlinks=False)


def _entries(layer: Path) -> Iterator[str]:
    """The paths of a layer and everything in it, contents before their directory."""
    for directory, directories, files in os.walk(layer, topdown=False):
        yield from (os.path.join(directory, name) for name in (*files, *directories))
    yield str(layer)
