"""Source code with its syntax tree, and edits by position: bytes that no edit touches stay unchanged.

Also the edits of test files: tests that reveal a bug are removed and come back with the test patch.
"""

from __future__ import annotations

import ast
import bisect
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from swegym_env.languages import Splice
from swegym_env.languages.python.parsing import parse
from swegym_env.languages.python.source import begin_of

__all__ = ["Code", "find_test", "spliced", "without_tests"]

_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Dict, ast.Set, ast.JoinedStr)


class Code:
    """A Python file: bytes, tree, and where each node begins and ends.

    Attributes:
        content: the file.
        tree: its syntax tree.
    """

    def __init__(self, content: bytes) -> None:
        """Parse a file in UTF-8.

        Raises:
            ValueError: this interpreter cannot parse it (for example SyntaxError or UnicodeDecodeError).
        """
        self.content = content
        content.decode("utf-8")
        try:
            self.tree = parse(content)
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise ValueError(str(error)) from error
        self._rows = content.splitlines(keepends=True)
        self._lines = [0]
        for line in self._rows:
            self._lines.append(self._lines[-1] + len(line))
        self._dumps: dict[int, str] = {}
        self._parents: dict[ast.AST, tuple[ast.AST, Any]] = {}
        for parent in ast.walk(self.tree):
            for _, field in ast.iter_fields(parent):
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        self._parents[child] = (parent, field)

    def start(self, node: Any) -> int:
        """The offset of a node's first byte."""
        line: int = node.lineno
        return self._lines[line - 1] + int(node.col_offset)

    def end(self, node: Any) -> int:
        """The offset after a node's last byte."""
        line: int = node.end_lineno
        return self._lines[line - 1] + int(node.end_col_offset)

    def start_of_line(self, statement: ast.stmt) -> int:
        """The offset of the first byte of a statement's first line, decorators included."""
        return self._lines[self._extent(statement)[0] - 1]

    def slice(self, start: int, stop: int) -> str:
        """The text between two offsets."""
        return self.content[start:stop].decode("utf-8")

    def text(self, node: Any) -> str:
        """The source text of a node."""
        return self.slice(self.start(node), self.end(node))

    def parenthesized(self, node: ast.expr) -> str:
        """The source text of a node, in parentheses where its neighbours could bind more tightly."""
        text = self.text(node)
        return text if isinstance(node, _SIMPLE) and "\n" not in text else f"({text})"

    def replace(self, node: Any, text: str) -> Splice:
        """The edit that puts `text` in a node's place."""
        return Splice(self.start(node), self.end(node), text)

    def before(self, node: Any, text: str) -> Splice:
        """The edit that puts `text` before a node."""
        return Splice(self.start(node), self.start(node), text)

    def after(self, node: Any, text: str) -> Splice:
        """The edit that puts `text` behind a node."""
        return Splice(self.end(node), self.end(node), text)

    def follows_keyword(self, outer: Any, inner: Any) -> bool:
        """Whether only `return` or `await` stands between the starts of two nodes."""
        return self.slice(self.start(outer), self.start(inner)).split() in (["return"], ["await"])

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around this one, innermost first."""
        while node in self._parents:
            node = self._parents[node][0]
            yield node

    def parameters(self, node: ast.AST) -> list[str]:
        """The parameters of the function around a node, without `self` and `cls`."""
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        function = next((outer for outer in self.ancestors(node) if isinstance(outer, functions)), None)
        if function is None:
            return []
        named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        return [argument.arg for argument in named if argument.arg not in ("self", "cls")]

    def without(self, statement: ast.stmt) -> Iterator[tuple[Splice, ...]]:
        """The edit that removes a statement with its lines; `pass` replaces it where the block would be empty.

        Yields nothing if the statement shares a line with another.
        """
        lines = self._rows
        first, last = self._extent(statement)
        head = self.content[self._lines[first - 1] : self.start(statement)] if not decorators(statement) else b""
        tail = self.content[self.end(statement) : self._lines[last]].strip()
        if head.strip() or (tail and not tail.startswith(b"#")):
            return
        block = self._parents[statement][1]
        alone = isinstance(block, list) and len(block) == 1
        indent = lines[first - 1][: len(lines[first - 1]) - len(lines[first - 1].lstrip())].decode()
        ending = "\r\n" if lines[last - 1].endswith(b"\r\n") else "\n"
        yield (Splice(self._lines[first - 1], self._lines[last], f"{indent}pass{ending}" if alone else ""),)

    def _extent(self, statement: ast.stmt) -> tuple[int, int]:
        """First and last line of a statement, decorators included."""
        return begin_of(statement, self._rows)[0], statement.end_lineno or statement.lineno

    def spliced(self, splices: Sequence[Splice]) -> bytes:
        """The file after these edits. Raises ValueError where they overlap."""
        return spliced(self.content, splices)

    def changed_by(self, splices: Sequence[Splice]) -> bool:
        """Whether the file after these edits, all in one top-level statement, parses and has another syntax tree."""
        first, last = min(splice.start for splice in splices), max(splice.stop for splice in splices)
        for number, statement in enumerate(self.tree.body):
            begin, end = self._extent(statement)
            start, stop = self._lines[begin - 1], self._lines[end]
            if start <= first and last <= stop:
                if number not in self._dumps:
                    self._dumps[number] = ast.dump(parse(b"".join(self._rows[begin - 1 : end])))
                inner = [Splice(one.start - start, one.stop - start, one.text) for one in splices]
                try:
                    part = spliced(self.content[start:stop], inner)
                    return ast.dump(parse(part)) != self._dumps[number]
                except (SyntaxError, RecursionError, MemoryError, ValueError):
                    return False
        return False

    def line_of(self, offset: int) -> int:
        """The line, from 1, that holds a byte."""
        return bisect.bisect_right(self._lines, offset)


def spliced(content: bytes, splices: Sequence[Splice]) -> bytes:
    """A file after some edits. Raises ValueError where they overlap."""
    parts: list[bytes] = []
    done = 0
    for splice in sorted(splices, key=lambda one: (one.start, one.stop)):
        if splice.start < done:
            raise ValueError(f"edits overlap at byte {splice.start}")
        parts += [content[done : splice.start], splice.text.encode("utf-8")]
        done = splice.stop
    return b"".join([*parts, content[done:]])


def decorators(statement: ast.stmt) -> list[ast.expr]:
    """The decorators of a statement."""
    return list(getattr(statement, "decorator_list", []))


_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def without_tests(content: bytes, names: Collection[str]) -> bytes:
    """A test file without the functions of these tests; a class that becomes empty is removed if nothing refers to it.

    Args:
        content: a Python file; one that cannot be parsed is returned unchanged.
        names: the part of pytest's ids after the path: `Class::test_x[1]`; parameters are ignored.
    """
    try:
        code = Code(content)
    except ValueError:
        return content
    removed = {_plain(name) for name in names}
    splices: list[Splice] = []
    _remove_tests(code, code.tree.body, (), removed, splices)
    return code.spliced(splices)


def find_test(content: bytes, name: str) -> str:
    """The source text of a test's function, not indented; empty if it is not found."""
    try:
        code = Code(content)
    except ValueError:
        return ""
    body: list[ast.stmt] = code.tree.body
    found: ast.stmt | None = None
    for part in _plain(name):
        found = next((one for one in body if isinstance(one, _Definition) and one.name == part), None)
        if not isinstance(found, _Definition):
            return ""
        body = found.body
    return textwrap.dedent(" " * found.col_offset + code.text(found)) if found is not None else ""


def _plain(name: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\[.*", "", name, flags=re.DOTALL).split("::"))


def _remove_tests(
    code: Code,
    body: list[ast.stmt],
    outer: tuple[str, ...],
    removed: Collection[tuple[str, ...]],
    splices: list[Splice],
) -> None:
    for one in (statement for statement in body if isinstance(statement, _Definition)):
        path = (*outer, one.name)
        if isinstance(one, ast.ClassDef):
            inner = [(*path, child.name) for child in one.body if isinstance(child, _Definition)]
            only_tests = all(
                isinstance(child, _Definition)
                or (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant))
                for child in one.body
            )
            if inner and only_tests and set(inner) <= set(removed) and not _is_used(code, one.name):
                splices += [splice for found in code.without(one) for splice in found]
            elif set(inner) <= set(removed) and inner and len(inner) == len(one.body):
                # Without `pass` the class would have no body.
                first, *rest = one.body
                splices.append(Splice(code.start_of_line(first), code.end(first), f"{' ' * first.col_offset}pass"))
                splices += [splice for child in rest for found in code.without(child) for splice in found]
            else:
                _remove_tests(code, one.body, path, removed, splices)
        elif path in removed:
            splices += [splice for found in code.without(one) for splice in found]


def _is_used(code: Code, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(code.tree))
