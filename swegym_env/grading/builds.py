"""What building a patched repository leaves, kept for all runs of a verdict.

The script of some tasks builds the repository before the tests (`make`, a bundler), which takes longer than the tests,
and a verdict has several runs. So a patch is built once, in a sandbox without the hidden tests; what that leaves is
copied below each run, which begins with the tests. A run sees files of its own: neither their dates nor their pages in
memory say how often the patch has been run.

Of what the build wrote, only files of the repository are kept that the base commit has not: a build that changes tests,
`.git`, or programs outside of the repository does so for itself alone. What the patch changes is kept as it was before
the build.

Whether the tests of a task can be run so is found out once, after a patch has passed: the gold patch must resolve, and
at the base commit no test of FAIL_TO_PASS may pass. Tests that are compiled themselves need the build in each run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swegym_env.errors import SandboxBrokenError
from swegym_env.files import write_atomically
from swegym_env.languages import language_of
from swegym_env.paths import large_run_dir
from swegym_env.repo.patches import touched_paths
from swegym_env.sandbox.client import clean_up, supervisor
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.leases import lease_directory, storage_error
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.sandbox.writable import copy_files
from swegym_env.tasks.task import Task

if TYPE_CHECKING:
    from swegym_env.grading.task_tests import TaskTests

__all__ = ["Builds", "environment_lines"]

_VERSION = 1
_WORTH_S = 3.0  # a build that is quicker is repeated in each run
_MOST_BYTES, _MOST_FILES = 1 << 30, 200_000  # of what a build leaves, each run has a copy
_ENVIRONMENT = re.compile(r"\s*export\s|\s*[A-Za-z_]\w*=\S*\s*$")
_MARKS = ("user.overlay.opaque", "user.fuseoverlayfs.opaque", "trusted.overlay.opaque")
_FUSE_FILES = ".wh."  # fuse-overlayfs's own files


def environment_lines(settings: str) -> str:
    """The lines of a script that set variables: what is left to do where its build has been done."""
    return "\n".join(line for line in settings.splitlines() if _ENVIRONMENT.match(line))


@dataclass(frozen=True)
class _Build:
    """One built patch. Attributes: layers: what it leaves, bottom first; none where it cannot be kept."""

    layers: tuple[Path, ...] = ()


class Builds:
    """The builds of one verdict. Thread-safe.

    Args:
        task: whose tests are run.
        store: beside which is kept what is known about tasks; None: the default.
    """

    def __init__(self, task: Task, store: LayerStore | None) -> None:
        self._task = task
        self._record = (store or LayerStore()).root.parent / "builds" / f"{task.digest}.json"
        self._lock = threading.Lock()
        self._directory: Path | None = None
        self._builds: dict[str, _Build] = {}
        self._longest_s = 0.0
        self._copies = 0
        self._are_kept = self._known() or False

    def close(self) -> None:
        """Remove everything; idempotent."""
        with self._lock:
            directory, self._directory, self._builds = self._directory, None, {}
        if directory is not None:
            clean_up({"do": "remove", "directory": str(directory)})

    def took(self, seconds: float) -> None:
        """Note how long a run's build took."""
        self._longest_s = max(self._longest_s, seconds)

    def learn(self, tests: TaskTests, gold: str) -> None:
        """Find out once for the task whether its tests run on kept builds, if its build is worth that.

        Args:
            gold: what is graded of the gold patch.
        Raises:
            InfrastructureError: as `TaskTests.run`.
        """
        if self._longest_s < _WORTH_S or self._known() is not None:
            return
        self._are_kept = not self._has_compiled_tests()
        try:
            self._are_kept = self._are_kept and self._tests_run_alone(tests, gold)
        except BaseException:
            self._are_kept = False
            raise
        self._record.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._record, json.dumps({"version": _VERSION, "are_kept": self._are_kept}))

    @contextlib.contextmanager
    def layers(self, tests: TaskTests, patch: str) -> Iterator[tuple[Path, ...]]:
        """Layers with the patched and built repository, for one run; none where the run has to build it.

        Raises:
            InfrastructureError: as `TaskTests.run`.
        """
        build = self._build(tests, patch) if self._are_kept else _Build()
        if not build.layers:
            yield ()
            return
        with self._lock:
            self._copies += 1
            directory = self._place() / f"run-{self._copies}"
        try:
            directory.mkdir(mode=0o755)
            copies = [directory / str(number) for number in range(len(build.layers))]
            for layer, copy in zip(build.layers, copies, strict=True):
                copy_files(layer, copy)
            yield tuple(copies)
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
        if not tests.verdict(tests.run(gold)).resolved or not self._builds[gold].layers:
            return False
        statuses = tests.verdict(tests.run("")).tests
        return not any(statuses.get(name) in ("PASSED", "XFAIL") for name in self._task.fail_to_pass)

    def _tested(self) -> frozenset[str]:
        return frozenset(touched_paths(self._task.test_patch))

    def _build(self, tests: TaskTests, patch: str) -> _Build:
        with self._lock:
            if patch not in self._builds:
                self._builds[patch] = self._built(tests, patch)
            return self._builds[patch]

    def _place(self) -> Path:
        if self._directory is None:
            self._directory = lease_directory("builds", supervisor().pid, large_run_dir())
            self._directory.chmod(0o755)
        return self._directory

    def _built(self, tests: TaskTests, patch: str) -> _Build:
        directory = self._place() / f"build-{len(self._builds)}"
        patched, built = directory / "patched", directory / "built"
        began = time.time_ns()
        try:
            with tests.patched(patch) as (sandbox, problem, _):
                if problem or not isinstance(sandbox, LocalSandbox):
                    return _Build()
                patched.mkdir(parents=True)
                built.mkdir()
                # Both copies are taken while nothing runs inside, so nothing in them changes while they are read.
                before = sandbox.copy_layers(patched)
                result = sandbox.run(f"cd /testbed\n{tests.evaluation.settings}", timeout_s=tests.timeout_s)
                if result.timed_out:
                    return _Build()
                after = sandbox.copy_layers(built)
        except SandboxBrokenError:
            return _Build()  # a run will say so
        try:
            for layer in (*after, *before):
                _leave(layer, "testbed")
                _remove(layer / "testbed/.git")
            products = _Products(tests, self._tested())
            for layer in after:
                products.filter(layer / "testbed")
            layers = (*after, *before)
            is_small = _set_back(layers, began, tests.workspace.spec.layers)
        except OSError as error:
            raise storage_error(error) from error
        return _Build(layers) if is_small else _Build()


class _Products:
    """What is kept of the files that a build has written.

    Args:
        tests: of the task.
        tested: paths of its test patch.
    """

    def __init__(self, tests: TaskTests, tested: frozenset[str]) -> None:
        self._base, self._tested = tests.workspace.base, tested
        self._below = [layer / "testbed" for layer in tests.workspace.spec.layers]
        self._language, self._command = language_of(tests.task), tests.evaluation.tests

    def filter(self, directory: Path, path: str = "") -> None:
        """Remove the rest from a copied writable layer; `path` is what `directory` is in the repository."""
        if not directory.is_dir():
            return
        for entry in sorted(os.scandir(directory), key=lambda one: one.name):
            inside = f"{path}{entry.name.removeprefix(_FUSE_FILES)}"
            if entry.is_dir(follow_symlinks=False) and self._is_directory(inside):
                _remove_marks(Path(entry.path))
                self.filter(Path(entry.path), f"{inside}/")
            elif os.path.lexists(self._base / inside) or (entry.name == f"{_FUSE_FILES}{_FUSE_FILES}.opq" and path):
                _remove(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                self.filter(Path(entry.path), f"{inside}/")
            elif not self._keeps(inside, entry.stat(follow_symlinks=False)):
                _remove(Path(entry.path))

    def _is_directory(self, path: str) -> bool:
        place = self._base / path
        return place.is_dir() and not place.is_symlink()

    def _keeps(self, path: str, status: os.stat_result) -> bool:
        is_whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
        if path in self._tested or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) or is_whiteout):
            return False
        if any(os.path.lexists(layer / path) for layer in self._below):
            return True
        return not self._language.is_protected(path, self._base, self._command)


def _leave(layer: Path, name: str) -> None:
    """Remove all but one entry of a directory."""
    for entry in list(layer.iterdir()):
        if entry.name != name:
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_marks(directory: Path) -> None:
    for mark in _MARKS:
        with contextlib.suppress(OSError):  # it has none
            os.removexattr(directory, mark)


def _set_back(layers: Sequence[Path], began: int, below: Sequence[Path]) -> bool:
    """Date what was written since `began` as if it had been right after the layers below; whether a copy is cheap.

    `make` compares dates. The order of files stays, and how long ago they were written cannot be seen any more.
    """
    newest = max(int(os.lstat(layer).st_ctime_ns) for layer in below) + 1_000_000_000
    earlier = max(0, began - newest)
    size = files = 0
    for layer in layers:
        for directory, _, names in os.walk(layer, topdown=False):
            for place in (*(os.path.join(directory, name) for name in names), directory):
                status = os.lstat(place)
                size, files = size + status.st_blocks * 512, files + 1
                if status.st_mtime_ns >= began:
                    date = status.st_mtime_ns - earlier
                    os.utime(place, ns=(date, date), follow_symlinks=False)
    return size <= _MOST_BYTES and files <= _MOST_FILES
