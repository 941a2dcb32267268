"""The git repository of the made tasks: the clean project, and one commit for each injected bug.

It is bare, has no other history, and equal sources give equal commit ids on every machine.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from swegym_env.errors import RepositoryError
from swegym_env.repo.git import Git
from swegym_env.repo.objects import Blob, ObjectWriter

__all__ = ["MadeRepository"]

_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n"

Tree = dict[str, tuple[int, str]]
"""Path → mode and blob id."""


class MadeRepository:
    """A bare repository at `path`, created from `files` if it does not exist. Thread-safe.

    Attributes:
        path: the directory.
        clean: id of the commit of the project without bugs.
    """

    def __init__(self, path: Path, files: Mapping[str, Blob]) -> None:
        """Open or create it; raises OSError if it cannot be written."""
        self.path = path.absolute()
        self._lock = threading.Lock()
        for directory in ("objects/info", "objects/pack", "refs/heads", "refs/tasks", "info"):
            (self.path / directory).mkdir(parents=True, exist_ok=True)
        (self.path / "config").write_text(_CONFIG)
        (self.path / "HEAD").write_text("ref: refs/heads/main\n")
        self._objects = ObjectWriter(self.path / "objects")
        self._git = Git(str(self.path), None, f"--git-dir={self.path}")
        self._blobs: Tree = {
            path: (mode, self._objects.write("blob", content)) for path, (mode, content) in files.items()
        }
        self._tree = self._objects.write_tree(self._blobs)
        self.clean = self._objects.write_commit(self._tree)
        (self.path / "refs" / "heads" / "main").write_text(f"{self.clean}\n")

    def commit_bug(
        self, name: str, broken: Mapping[str, bytes | None], without_tests: Mapping[str, bytes]
    ) -> tuple[str, str, str]:
        """Commit the project with a bug and without the tests that show it, as `refs/tasks/NAME`.

        Args:
            broken: path → content with the bug; None where the bug removes the file.
            without_tests: path → content of test files without those tests.
        Returns:
            The commit, the patch that fixes it, the patch that adds the tests again.
        """
        with self._lock:
            fixed = self._changed(self._blobs, without_tests)
            base_tree = self._objects.write_tree(self._changed(fixed, broken))
            fixed_tree = self._objects.write_tree(fixed)
            base = self._objects.write_commit(base_tree)
            (self.path / "refs" / "tasks" / name).write_text(f"{base}\n")
        return base, self._diff(base_tree, fixed_tree), self._diff(fixed_tree, self._tree)

    def undo(self, patch: str) -> dict[str, bytes | None] | None:
        """The files that `patch` touched as they would be without it; None if it no longer applies in reverse."""
        with tempfile.TemporaryDirectory(prefix="swegym-index-") as private:
            index = {"GIT_INDEX_FILE": os.path.join(private, "index")}
            self._git.run("read-tree", self._tree, env=index)
            try:
                self._git.run("apply", "--cached", "-R", "-", stdin=patch, env=index)
            except RepositoryError:
                return None
            listed = self._git.text("diff-index", "--cached", "-z", "--no-renames", self._tree, env=index)
        parts = listed.split("\0")
        changed: dict[str, bytes | None] = {}
        for about, path in zip(parts[0::2], parts[1::2], strict=False):
            _, _, _, blob, status = about.split()
            changed[path] = None if status == "D" else self._git.run("cat-file", "blob", blob)
        return changed

    def _changed(self, blobs: Tree, contents: Mapping[str, bytes | None]) -> Tree:
        changed = dict(blobs)
        for path, content in contents.items():
            if content is None:
                changed.pop(path, None)
            else:
                mode = blobs[path][0] if path in blobs else 0o100644
                changed[path] = (mode, self._objects.write("blob", content))
        return changed

    def _diff(self, before: str, after: str) -> str:
        options = ("--patch", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
        return self._git.text("diff-tree", "-r", "--no-renames", *options, before, after)
