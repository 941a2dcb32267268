"""A gold patch as files before and after, from which variants of it are made."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from swegym_env.errors import RepositoryError
from swegym_env.languages.python.parsing import parse
from swegym_env.making.sources import is_test_path
from swegym_env.repo.applying import apply_to_files
from swegym_env.repo.differ import differ
from swegym_env.repo.objects import Blob
from swegym_env.repo.patches import added_lines, touched_paths

__all__ = ["GoldPatch"]

_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class GoldPatch:
    """What a gold patch changes.

    Attributes:
        patch: the git diff.
        base: the repository at the base commit.
        before: path → file at the base commit; paths that the patch adds are absent.
        after: path → file with the patch; paths that it removes are absent.
    """

    patch: str
    base: Path
    before: Mapping[str, Blob]
    after: Mapping[str, Blob]

    @classmethod
    def of(cls, patch: str, base: Path) -> GoldPatch:
        """Apply `patch` to the repository `base`, in a directory apart.

        Raises:
            RepositoryError: git cannot apply it.
        """
        return cls(patch, base, *apply_to_files(patch, base))

    @cached_property
    def lines(self) -> Mapping[str, frozenset[int]]:
        """Path → the lines (from 1) of `after` that the patch adds."""
        return added_lines(self.patch)

    @cached_property
    def sources(self) -> Mapping[str, Blob]:
        """Those of `after` that are Python files with added lines, no tests, and can be parsed."""
        return {path: blob for path, blob in self.after.items() if self.lines.get(path) and _is_source(path, blob[1])}

    def with_files(self, files: Mapping[str, Blob]) -> str:
        """The patch with other content, or further files."""
        return self.between(self.before, {**self.after, **files})

    @staticmethod
    def between(before: Mapping[str, Blob], after: Mapping[str, Blob]) -> str:
        """The git diff from one set of files to another."""
        return "".join(differ().diff(before, after).values())

    def with_part(self, part: str) -> Mapping[str, Blob]:
        """`after` if the patch were `part` of it; empty if git cannot apply that, or no code is different."""
        try:
            _, after = apply_to_files(part, self.base)
        except RepositoryError:  # a hunk that needs another one
            return {}
        after = {**{path: blob for path, blob in self.before.items() if path not in touched_paths(part)}, **after}
        return after if any(_code(after.get(path)) != code for path, code in self._codes.items()) else {}

    @cached_property
    def _codes(self) -> Mapping[str, str | None]:
        return {path: _code(blob) for path, blob in self.after.items()}


def _is_source(path: str, content: bytes) -> bool:
    return path.endswith(".py") and not is_test_path(path) and _code((0, content)) is not None


def _code(blob: Blob | None) -> str | None:
    """What a Python file does, without its comments and docstrings; None for anything else."""
    if blob is None:
        return None
    try:
        tree = parse(blob[1].decode("utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)
