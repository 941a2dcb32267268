"""Honest rewrites of gold patches, made mechanically: other names of local variables, comments, and a note beside them.

Such a patch is a repair as good as the gold patch, and another text: a verdict that rejects it is wrong. In every
function that the gold patch changes, each local variable gets another name, where no scope inside, f-string, `except`
clause, `locals()` or `exec` makes that unsafe; the function gets a comment, and the repository a file of notes.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

from swegym_env.repo.patches import added_lines, parse_patch

__all__ = ["rename_locals", "rewrite"]

_UNSAFE = frozenset({"locals", "vars", "exec", "eval", "dir", "globals", "_getframe", "currentframe"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def rewrite(base: Path, gold: str, scratch: Path) -> str:
    """Another patch with the effect of `gold`.

    Args:
        base: the repository at the base commit.
        scratch: an empty directory.
    Raises:
        subprocess.CalledProcessError: git cannot apply the gold patch.
    """
    for section in parse_patch(gold):
        for path in section.paths:
            if (base / path).is_file():
                (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                (scratch / path).write_bytes((base / path).read_bytes())
    git = [
        "git",
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@example.org",
        "-c",
        "core.autocrlf=false",
        "-C",
        str(scratch),
    ]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "base"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    subprocess.run([*git, "apply", "--whitespace=nowarn", "-"], input=gold.encode(), check=True, capture_output=True)
    for path, lines in added_lines(gold).items():
        place = scratch / path
        if place.suffix == ".py" and place.is_file():
            text = place.read_text(encoding="utf-8")
            place.write_text(rename_locals(text, lines), encoding="utf-8")
    (scratch / "NOTES-of-the-repair.txt").write_text("The issue is solved; local variables have other names.\n")
    subprocess.run([*git, "add", "-A"], check=True, capture_output=True)
    words = ["diff", "--cached", "--no-renames", "--no-ext-diff", "--binary"]
    return subprocess.run([*git, *words], check=True, capture_output=True).stdout.decode("utf-8", "surrogateescape")


def rename_locals(text: str, lines: frozenset[int]) -> str:
    """Rename the local variables of the functions of a Python file that have one of `lines` (from 1)."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # of another Python
        return text
    rows = text.splitlines(keepends=True)
    places: dict[tuple[int, int], str] = {}
    comments: list[tuple[int, int]] = []
    for function in _outermost_functions(tree):
        if lines.isdisjoint(range(function.lineno, (function.end_lineno or function.lineno) + 1)):
            continue
        if function.body[0].lineno > function.lineno:
            comments.append((function.body[0].lineno, function.body[0].col_offset))
        chosen = _safe_locals(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in chosen:
                places[node.lineno, node.col_offset] = node.id
    for (line, column), name in sorted(places.items(), reverse=True):
        row = rows[line - 1].encode()
        rows[line - 1] = (row[:column] + f"own_{name}".encode() + row[column + len(name.encode()) :]).decode()
    for line, column in sorted(comments, reverse=True):
        if "\n" in rows[line - 2] and not rows[line - 2].rstrip().endswith("\\"):
            rows.insert(line - 1, " " * column + "# Its local variables have other names than before.\n")
    changed = "".join(rows)
    ast.parse(changed)
    return changed


def _outermost_functions(tree: ast.AST) -> Iterator[_Function]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Function):
            yield node
        else:
            yield from _outermost_functions(node)


def _safe_locals(function: _Function) -> frozenset[str]:
    """Names that the function itself binds, by assignment alone, and that mean nothing else anywhere in it."""
    own: set[str] = set()
    unsafe: set[str] = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    used: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            used.add(node.id)
            if isinstance(node.ctx, ast.Store):
                own.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            unsafe.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            unsafe.add(node.name)
        elif isinstance(node, ast.alias):
            unsafe.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.MatchMapping):
            unsafe.update(ast.unparse(node).split())
            return frozenset()
        elif isinstance(node, ast.JoinedStr):  # its places are not known before Python 3.12
            unsafe.update(part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        if isinstance(node, _Function | ast.ClassDef) and node is not function:
            unsafe.add(node.name)
            inner = ast.walk(node)
            unsafe.update(part.id for part in inner if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    if used & _UNSAFE:
        return frozenset()
    return frozenset(name for name in own - unsafe if not name.startswith("__") and f"own_{name}" not in used)
