"""Equivalent rewrites of a gold patch, made mechanically: repairs that are as good, with another text.

A verdict that rejects one of them is wrong. Each rewrite changes the functions that the gold patch changes:

- `renamed-locals`: each local variable gets another name, where no scope inside, f-string, `except` clause, `locals()`
  or `exec` makes that unsafe; the function gets a comment.
- `reformatted`: the function is printed anew from its syntax tree, without comments.
- `restructured`: what is returned gets a name first, and `if … else` is inverted.
- `extra-files`: the gold patch as it is, beside files that agents leave behind: a script, a test, a note.

The first three also add a file of notes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping

from swegym_env.auditing.gold import GoldPatch
from swegym_env.languages.python.parsing import parse
from swegym_env.languages.python.source import begin_of
from swegym_env.repo.objects import Blob

__all__ = ["REWRITES", "rewrite"]

_NOTES = "NOTES-of-the-repair.txt"
_UNSAFE = frozenset({"locals", "vars", "exec", "eval", "dir", "globals", "_getframe", "currentframe"})
_UNSAFE |= {"yacc", "lex"}  # PLY reads the variables of the function that calls it
_RETURNED = "returned_value"
_EXTRA_FILES = {
    "reproduce_issue.py": "import subprocess\nimport sys\n\nprint(subprocess.run([sys.executable, '-V']).returncode)\n",
    "test_reproduced_issue.py": "def test_reproduced_issue():\n    assert open(__file__).read()\n",
    _NOTES: "The issue is solved. The script reproduces it: git stash; python reproduce_issue.py\n",
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def rewrite(gold: GoldPatch, how: str) -> str:
    """Another patch with the effect of the gold patch; empty if there is nothing to rewrite.

    Args:
        how: a key of `REWRITES`.
    """
    added: dict[str, Blob] = {}
    for path, (mode, content) in gold.sources.items():
        text = content.decode("utf-8")
        changed = REWRITES[how](text, gold.lines[path])
        if changed != text:
            added[path] = (mode, changed.encode("utf-8"))
    if how == "extra-files":
        added |= {path: (0o100644, text.encode()) for path, text in _EXTRA_FILES.items()}
    elif added:
        added[_NOTES] = (0o100644, f"The issue is solved; the changed functions are {how}.\n".encode())
    return gold.with_files(added) if added else ""


def _unchanged(text: str, lines: frozenset[int]) -> str:
    return text


def _renamed_locals(text: str, lines: frozenset[int]) -> str:
    """Rename the local variables of the functions that have one of `lines` (from 1)."""
    rows = _rows(text)
    places: dict[tuple[int, int], str] = {}
    comments: list[tuple[int, int]] = []
    for function in _functions(parse(text), lines):
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
    parse(changed)
    return changed


def _reformatted(text: str, lines: frozenset[int]) -> str:
    """Print the functions that have one of `lines` from their syntax trees, which stay as they are."""
    changed = _printed(text, lines, lambda function: None)
    return changed if ast.dump(parse(changed)) == ast.dump(parse(text)) else text


def _restructured(text: str, lines: frozenset[int]) -> str:
    """Give names to what the functions that have one of `lines` return, and turn their `if … else` round."""
    return _printed(text, lines, lambda function: _Restructuring(function).visit(function))


REWRITES: Mapping[str, Callable[[str, frozenset[int]], str]] = {
    "renamed-locals": _renamed_locals,
    "reformatted": _reformatted,
    "restructured": _restructured,
    "extra-files": _unchanged,
}
"""Name → what it does to the text of a Python file that the gold patch changes at some lines (from 1)."""


def _rows(text: str) -> list[str]:
    """The lines as the syntax tree counts them: a form feed does not end one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _functions(tree: ast.AST, lines: frozenset[int]) -> Iterator[_Function]:
    """The outermost functions that have one of `lines`."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, _Function):
            yield from _functions(node, lines)
        elif not lines.isdisjoint(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
            yield node


def _printed(text: str, lines: frozenset[int], change: Callable[[_Function], object]) -> str:
    rows = _rows(text)
    for function in sorted(_functions(parse(text), lines), key=lambda function: -function.lineno):
        first, _ = begin_of(function, [row.encode("utf-8", "surrogateescape") for row in rows])
        last = function.end_lineno or function.lineno
        depth, rest = divmod(function.col_offset, 4)
        if rest or rows[first - 1][: function.col_offset].strip(" "):
            continue  # indented by tabs, or not by fours
        change(function)
        body: ast.stmt = function
        for _ in range(depth):  # printed inside of blocks, so that texts of several lines keep theirs
            body = ast.If(ast.Constant(value=True), [body], [])
        printed = ast.unparse(ast.fix_missing_locations(ast.Module([body], []))).split("\n")[depth:]
        rows[first - 1 : last] = [f"{row}\n" for row in _without_leading_blanks(printed)]
    return "".join(rows)


def _without_leading_blanks(rows: list[str]) -> list[str]:
    return rows[next(number for number, row in enumerate(rows) if row.strip()) :]


class _Restructuring(ast.NodeTransformer):
    """Turns `return f(x)` into two statements and `if a: b else: c` into `if not a: c else: b`."""

    def __init__(self, function: _Function) -> None:
        self._is_safe = not {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} & {
            *_UNSAFE,
            _RETURNED,
        }

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        if not self._is_safe or node.value is None or isinstance(node.value, ast.Name | ast.Constant):
            return node
        named = ast.Assign([ast.Name(_RETURNED, ast.Store())], node.value)
        return [named, ast.Return(ast.Name(_RETURNED, ast.Load()))]

    def visit_If(self, node: ast.If) -> ast.stmt:
        self.generic_visit(node)
        is_chain = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        if not node.orelse or is_chain:
            return node
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node


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
