"""The source of a Python test file: test functions, their names in logs, and statements that are always executed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from swegym_env.languages.python.parsing import children, parse, walk

__all__ = [
    "EXPECTS_ERROR",
    "NO_SUBTEST",
    "Function",
    "Place",
    "begin_of",
    "called",
    "code_of",
    "is_fixture",
    "lines_of",
    "names_of",
    "place_of",
    "reached",
    "stored_in",
    "target_tests",
    "tests_in",
]

Function = ast.FunctionDef | ast.AsyncFunctionDef

EXPECTS_ERROR = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
NO_SUBTEST = "__import__('contextlib').suppress()"
"""In the place of a subtest, in tests that must fail: before Python 3.11, `unittest` ends no line of its log after a
failing subtest, so the next test would have no result."""
_SWALLOWS = (*EXPECTS_ERROR, "suppress", "warns", "deprecated_call", "xfail")
_MAY_LEAVE = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Break, ast.Continue)
_LEAVING_CALLS = frozenset({"skip", "skipTest", "xfail", "importorskip", "exit", "fail"})


def target_tests(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
) -> tuple[dict[str, dict[int, tuple[tuple[str, ...], Function]]], frozenset[str]]:
    """The test functions that `names` refer to, else those with an added line.

    Args:
        files: path → text; files that are not Python are skipped.
        names: of tests, as a log parser gives them.
        added_lines: path → numbers of the lines that the test patch adds.
    Returns:
        path → line of the function → names of the classes around it, and the function; and the names that were found.
    """
    found = {path: list(tests_in(text)) for path, text in sorted(files.items()) if path.endswith(".py")}
    named: set[str] = set()
    chosen: dict[str, dict[int, tuple[tuple[str, ...], Function]]] = {}
    places = {name: place_of(name) for name in names}
    for path, tests in found.items():
        for classes, function in tests:
            if own := names_of(function, places, path, classes):
                chosen.setdefault(path, {})[function.lineno] = classes, function
                named |= own
    if not named:
        for path, tests in found.items():
            for classes, function in tests:
                lines = set(range(function.lineno, (function.end_lineno or function.lineno) + 1))
                if function.name.startswith("test") and lines & added_lines.get(path, frozenset()):
                    chosen.setdefault(path, {})[function.lineno] = classes, function
    return chosen, frozenset(named)


@dataclass(frozen=True)
class Place:
    """The place of a test according to its name; empty parts are unknown."""

    path: str
    classes: tuple[str, ...]
    function: str
    dotted: bool = False

    def fits(self, path: str, classes: tuple[str, ...], function: str) -> bool:
        """Whether this may be the function with this name, in these classes of this file."""
        if function != self.function:
            return False
        if self.dotted:  # module.Class.method: the known path shows where the module ends
            module = path.removesuffix(".py").replace("/", ".")
            here = f"{module}.{'.'.join(classes)}".rstrip(".")
            there = ".".join(self.classes)
            return not there or here == there or here.endswith(f".{there}") or there.endswith(f".{here}")
        if self.path and not (path == self.path or path.endswith(f"/{self.path}") or self.path.endswith(f"/{path}")):
            return False
        return not self.classes or not classes or self.classes[-1] == classes[-1]


_PYTEST_NAME = re.compile(r"(?P<path>[^\s:]+\.py)(?P<classes>(?:::\w+)*)::(?P<function>\w+)(?:\[.*)?")
_UNITTEST_NAME = re.compile(r"(?P<function>\w+) \((?P<place>[\w.]+)\)")
_DOTTED_NAME = re.compile(r"(?P<place>(?:\w+\.)+)(?P<function>\w+)")


def place_of(name: str) -> Place | None:
    """The place of the test with this name, as the log parsers return it; None if the name does not contain it."""
    if match := _PYTEST_NAME.fullmatch(name):
        return Place(match["path"], tuple(match["classes"].split("::")[1:]), match["function"])
    if match := _UNITTEST_NAME.fullmatch(name):
        place = match["place"].removesuffix(f".{match['function']}")
        return Place("", tuple(place.split(".")), match["function"], dotted=True)
    if match := _DOTTED_NAME.fullmatch(name):
        return Place("", tuple(match["place"].rstrip(".").split(".")), match["function"], dotted=True)
    return Place("", (), name) if name.isidentifier() else None


def names_of(
    function: Function, places: Mapping[str, Place | None], path: str, *classes: tuple[str, ...]
) -> frozenset[str]:
    """The names that mean a function: by its place, else, as in Django, by the first line of its docstring.

    Args:
        places: name of a test → `place_of` it.
        path: of the file.
        classes: the names of the classes around it; there may be several that have it.
    """
    found = {
        name
        for name, place in places.items()
        if place is not None and any(place.fits(path, each, function.name) for each in classes)
    }
    if not found and function.name.startswith("test"):
        title = (ast.get_docstring(function) or "").strip().split("\n")[0].strip()
        found = {name for name in places if title and name.strip() == title}
    return frozenset(found)


def tests_in(text: str) -> Iterator[tuple[tuple[str, ...], Function]]:
    """Every function at the top level and in classes, with the names of the classes around it."""
    try:
        module = parse(text)
    except (SyntaxError, ValueError):  # a file that does not parse has no tests to change
        return
    waiting: list[tuple[tuple[str, ...], ast.stmt]] = [((), statement) for statement in module.body]
    for classes, statement in waiting:  # grows during the iteration
        if isinstance(statement, Function):
            yield classes, statement
        elif isinstance(statement, ast.ClassDef):
            waiting += [((*classes, statement.name), inner) for inner in statement.body]


def reached(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that a passing test always executes, also in `with` and in loops with at least one iteration."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield statement
            # In a block that expects or suppresses an error, any statement may be the last one that is executed.
            plain = all(called(item.context_expr) not in ("", *_SWALLOWS) for item in statement.items)
            if plain and not _may_leave(statement):
                yield from reached(statement.body)
        elif isinstance(statement, ast.For) and _is_certain(statement.iter) and not _may_leave(statement):
            yield from reached(statement.body)
        else:
            yield statement
        if _may_leave(statement):
            return


def stored_in(function: Function) -> Counter[str]:
    """Name → how often a function binds it, parameters included."""
    stored: Counter[str] = Counter()
    for node in walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored[node.id] += 1
        elif isinstance(node, ast.arg):
            stored[node.arg] += 1
    return stored


def _may_leave(statement: ast.stmt) -> bool:
    """Whether the test can return or jump in `statement` without failing; functions defined in it do not count."""
    waiting: list[ast.AST] = [statement]
    for node in waiting:  # grows during the iteration
        if isinstance(node, _MAY_LEAVE) or (isinstance(node, ast.Call) and called(node) in _LEAVING_CALLS):
            return True
        waiting += [inner for inner in children(node) if not isinstance(inner, Function | ast.Lambda | ast.ClassDef)]
    return False


def _is_certain(iterable: ast.expr) -> bool:
    """Whether a loop over this has at least one iteration."""
    if isinstance(iterable, ast.List | ast.Tuple | ast.Set):
        return any(not isinstance(item, ast.Starred) for item in iterable.elts)
    if called(iterable) == "range" and isinstance(iterable, ast.Call) and len(iterable.args) == 1:
        count = iterable.args[0]
        return isinstance(count, ast.Constant) and isinstance(count.value, int) and count.value > 0
    return isinstance(iterable, ast.Constant) and bool(iterable.value)


def is_fixture(function: Function) -> bool:
    """Whether a decorator makes a function a fixture of pytest."""
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def lines_of(text: str) -> list[bytes]:
    """Lines as the syntax tree counts them; `str.splitlines` splits at more characters than Python does."""
    return text.encode("utf-8", "surrogateescape").splitlines(keepends=True)


def begin_of(statement: ast.stmt, lines: Sequence[bytes]) -> tuple[int, int]:
    """Line and column where a statement begins, with its decorators: one in parentheses begins above what it calls."""
    first: ast.stmt | ast.expr = next(iter(getattr(statement, "decorator_list", ())), statement)
    line = first.lineno
    while first is not statement and line > 1 and not lines[line - 1].lstrip().startswith(b"@"):
        line -= 1
    return line, statement.col_offset


def code_of(path: str) -> str:
    """An expression: the code of a file, which a test file can execute without importing a module."""
    return f'compile(__import__("pathlib").Path("{path}").read_text(), "{path}", "exec")'


def first_statement(tree: ast.Module) -> ast.stmt:
    """The first statement before which others can be inserted: no docstring, and no import from `__future__`."""
    for statement in tree.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            return statement
    return tree.body[-1]


def with_first(text: str, code: str) -> str:
    """The text of a file that begins with a statement, on a line that is there: if there is none, at its end.

    Args:
        text: Python's source.
        code: a statement on one line.
    """
    try:
        first = first_statement(ast.parse(text))
    except (SyntaxError, ValueError, IndexError):
        return f"{text.rstrip()}\n\n\n{code}\n"
    lines = text.split("\n")
    line, column = begin_of(first, lines_of(text))
    row = line - 1
    if not hasattr(first, "body"):
        data = lines[row].encode("utf-8", "surrogateescape")
        lines[row] = (data[:column] + f"{code}; ".encode() + data[column:]).decode("utf-8", "surrogateescape")
        return "\n".join(lines)
    # The line before a compound statement, if it is a comment or empty; the first ones may declare the encoding.
    if row > 2 and lines[row - 1].strip()[:1] in ("", "#"):
        lines[row - 1] = code
        return "\n".join(lines)
    return f"{text.rstrip()}\n\n\n{code}\n"


def called(node: ast.expr) -> str:
    """The last part of the called name; empty if the expression is not a call of a name."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))
