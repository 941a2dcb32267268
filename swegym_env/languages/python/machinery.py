"""Test machinery in a repository's own packages: modules with which the hidden tests check results.

A repository may contain code that its tests use for checks: `sympy.testing`, `sphinx.testing`, a base class for test
cases, the fixtures of a plugin, or pytest's own `raises`. The paths of such files look like product code. They are
found through the imports and names in the hidden tests and in the `conftest.py` files above them:

- functions and classes whose names say that they check something (`assert…`, `raises`, `…TestCase`), and base classes
  of test classes, followed through the `__init__.py` files that re-export them,
- packages and modules whose own names say that they are for tests (`testing`, `test_utils`),
- functions under any name that check something: a test calls them as a statement, and they assert something about two
  of their arguments or raise if these differ; or a test asserts their result, and it says whether two of their
  arguments are equal,
- plugins in `pytest_plugins`, and modules that define a fixture which the tests request.

The same search continues in the modules that are found, and in helper modules that the tests import.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from swegym_env.languages.python.parsing import parse, walk
from swegym_env.languages.python.source import Function, called, is_fixture
from swegym_env.repo.patches import apply_hunks, parse_patch, touched_paths

__all__ = ["test_machinery"]

_JUDGES = re.compile(r"_*(assert\w*|raises|warns|deprecated_call|approx|fail|XFAIL|\w*TestCase|\w*Assertions?)")
_FOR_TESTS = re.compile(r"_?test(s|ing|er)?(_?(utils?|helpers?|tools?|lib|support|cases?))?|_?pytester|conftest")
_ROOTS = ("", "src", "lib")
_NOT_PRODUCT = frozenset({".git", "node_modules", "build", "dist", "site-packages", "test", "tests", "docs", "doc"})
_FIXTURE = re.compile(r"@(?:pytest\.)?(?:yield_)?fixture\b[^\n]*(?:\n[^\n]*){0,6}?\ndef (\w+)")
_TESTS = frozenset({"test", "tests"})
_MOST_FILES, _MOST_TRUTHS, _MOST_CALLS = 4000, 50, 2


@lru_cache(maxsize=256)
def test_machinery(test_patch: str, named: tuple[str, ...], base: Path) -> frozenset[str]:
    """Files and directories (with a slash at the end) of the repository that the hidden tests use for checks.

    Args:
        test_patch: of the task.
        named: test files without a change.
        base: the repository at the base commit.
    """
    search = _Search(base)
    for path in {*(path for path in touched_paths(test_patch) if path.endswith(".py")), *named}:
        search.read(path)
        above = Path(path).parent
        for directory in (above, *above.parents):
            search.read((directory / "conftest.py").as_posix())
    for part in parse_patch(test_patch):
        path = part.new_path or ""
        changed = apply_hunks(_text(base / path) if path else "", part.body)
        added = "\n".join(line[1:] for line in part.body.split("\n") if line.startswith("+"))
        whole = _parsed(changed[0]) if changed is not None else None
        search.look(whole or _parsed(added) or _parsed(_imports(added)), path)
    search.find_fixtures()
    return frozenset(place for path in search.found for place in _places(path))


test_machinery.__test__ = False  # type: ignore[attr-defined]  # the name is no test's


@dataclass
class _Search:
    """The state of the search: what was found, and which files were read."""

    base: Path
    found: set[str] = field(default_factory=set)
    _read: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _defined: set[str] = field(default_factory=set)

    def read(self, path: str) -> None:
        """Search a file of the repository at the base commit, once."""
        if path in self._read:
            return
        self._read.add(path)
        text = _text(self.base / path)
        self._defined.update(_FIXTURE.findall(text))
        self.look(_parsed(text), path)

    def look(self, tree: ast.Module | None, path: str) -> None:
        """Find what a file of tests or of machinery uses for checks."""
        if tree is None:
            return
        imported = dict(self._imported(tree, path))
        for name, (module, original) in imported.items():
            if original and (_JUDGES.fullmatch(original) or _JUDGES.fullmatch(name)):
                self._name(module, original)
        tests = _test_classes(tree)
        of_tests = path not in self.found or not _TESTS.isdisjoint(path.split("/"))
        values = {
            target.id: node.value
            for node in walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in walk(tree):
            if isinstance(node, ast.Attribute) and _JUDGES.fullmatch(node.attr):
                self._name(*_origin(node, imported))
            elif isinstance(node, ast.ClassDef) and node.name in tests:
                for parent in node.bases:
                    self._name(*_origin(parent, imported))
            elif isinstance(node, ast.Expr | ast.Assert | ast.If) and of_tests:
                self._judged_in(node, imported, values)
            elif isinstance(node, Function) and (node.name.startswith("test") or is_fixture(node)):
                self._asked.update(argument.arg for argument in node.args.args)
            elif isinstance(node, ast.Assign):
                for plugin in _plugins(node):
                    self._add(self._file(plugin))

    def _judged_in(
        self,
        statement: ast.Expr | ast.Assert | ast.If,
        imported: Mapping[str, tuple[str, str]],
        values: Mapping[str, ast.expr],
    ) -> None:
        """Add the functions with which a statement of a test checks something; `values`: name → assigned expression."""
        conditions: list[ast.expr] = []
        if isinstance(statement, ast.Expr):
            self._judged_by(statement.value, imported, _asserts)
            if called(statement.value) in ("assertTrue", "assertFalse") and isinstance(statement.value, ast.Call):
                conditions = statement.value.args[:1]
        elif isinstance(statement, ast.Assert) or any(map(_refuses, statement.body)):
            conditions = [statement.test]
        for truth in _truths(conditions, values):
            self._judged_by(truth, imported, _compares)

    def _judged_by(
        self, call: ast.expr, imported: Mapping[str, tuple[str, str]], judges: Callable[[Function, ast.Module], bool]
    ) -> None:
        """Add the file of an imported function if `judges` says that its code checks something."""
        if not isinstance(call, ast.Call) or len(call.args) + len(call.keywords) < 2:
            return
        place = self._defined_in(*_origin(call.func, imported))
        if place is not None and judges(place[1], place[2]):
            self._add(place[0])

    def _defined_in(self, module: str, name: str, depth: int = 0) -> tuple[str, Function, ast.Module] | None:
        """The file of the repository that defines a function of a module, the function, and the file's syntax tree."""
        path = self._file(module) if name else ""
        tree = _parsed(_text(self.base / path)) if path and depth < 7 else None
        if tree is None:
            return None
        for node in tree.body:
            if isinstance(node, Function) and node.name == name:
                return path, node, tree
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._defined_in(_absolute(node, path), alias.name, depth + 1)
        return None

    def _imported(self, tree: ast.Module, path: str) -> Iterator[tuple[str, tuple[str, str]]]:
        """Name in the file → module and name in it (empty for the module itself); also finds modules for tests."""
        for node in walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    yield alias.asname or top, (alias.name if alias.asname else top, "")
                    self._module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = _absolute(node, path)
                for alias in node.names:
                    yield alias.asname or alias.name, (module, alias.name)
                    self._module(f"{module}.{alias.name}")

    def find_fixtures(self) -> None:
        """Find the modules that define a fixture which the tests request and do not define."""
        asked = self._asked - self._defined - {"self", "cls", "request"}
        if not asked:
            return
        for number, path in enumerate(_product_files(self.base)):
            if number == _MOST_FILES:
                break
            if asked.intersection(_FIXTURE.findall(_text(self.base / path))):
                self._add(path)

    def _module(self, module: str) -> None:
        """Add a module or package whose name says that it is for tests; read helper modules of the tests."""
        parts = module.split(".")
        if not _TESTS.isdisjoint(parts):
            self.read(self._file(module))
        for length, part in enumerate(parts, 1):
            if length > 1 and _FOR_TESTS.fullmatch(part):
                path = self._file(".".join(parts[:length]))
                if path.endswith("/__init__.py"):
                    self.found.add(path.removesuffix("__init__.py"))
                self._add(path)

    def _name(self, module: str, name: str, depth: int = 0) -> None:
        """Add the file that defines a name of a module, and the files that re-export it."""
        path = self._file(module)
        if not path or depth > 6:
            return
        self._add(path)
        tree = _parsed(_text(self.base / path)) or ast.Module([], [])
        imported: dict[str, tuple[str, str]] | None = None
        for node in walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name and node.bases:
                imported = dict(self._imported(tree, path)) if imported is None else imported
                for parent in node.bases:
                    self._name(*_origin(parent, imported), depth + 1)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        self._name(_absolute(node, path), alias.name, depth + 1)

    def _add(self, path: str) -> None:
        if path and path not in self.found:
            self.found.add(path)
            self.read(path)

    def _file(self, module: str) -> str:
        """The path of a module of the repository; empty if there is none."""
        place = module.strip(".").replace(".", "/")
        for root in _ROOTS if place else ():
            for path in (f"{root}/{place}.py", f"{root}/{place}/__init__.py"):
                path = path.lstrip("/")
                if (self.base / path).is_file() and not (self.base / path).is_symlink():
                    return path
        return ""


def _parameters(function: Function) -> set[str]:
    return {item.arg for item in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}


def _origin(node: ast.expr, imported: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    """The module and the name in it that a dotted name refers to; empty if its first part is not imported."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imported:
        return "", ""
    parts = [*filter(None, imported[node.id]), *names]
    return ".".join(parts[:-1]), parts[-1]


def _truths(conditions: list[ast.expr], values: Mapping[str, ast.expr]) -> Iterator[ast.expr]:
    """The expressions whose truth values decide these conditions.

    Args:
        values: name → what the file assigns to it.
    """
    waiting = list(conditions)
    for node in waiting:  # grows during the iteration
        yield node
        inner: list[ast.expr] = []
        if isinstance(node, ast.UnaryOp):
            inner = [node.operand]
        elif isinstance(node, ast.BoolOp):
            inner = node.values
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Constant) and isinstance(side.value, bool) for side in sides):
                inner = sides
        elif isinstance(node, ast.GeneratorExp | ast.ListComp):
            inner = [node.elt]
        elif isinstance(node, ast.Name) and node.id in values:
            inner = [values[node.id]]
        elif isinstance(node, ast.Call) and called(node) in ("all", "any", "bool"):
            inner = node.args
        if len(waiting) < _MOST_TRUTHS:
            waiting += inner


def _refuses(statement: ast.stmt) -> bool:
    """Whether a statement makes a test fail."""
    return isinstance(statement, ast.Raise) or (
        isinstance(statement, ast.Expr) and bool(_JUDGES.fullmatch(called(statement.value)))
    )


def _asserts(function: Function, module: ast.Module, depth: int = 0) -> bool:
    """Whether a function mainly asserts something about two of its arguments, or that they are equal.

    Functions of the same module that it calls with two of the arguments are included.
    """
    parameters, found = _parameters(function), False
    for node in walk(function):
        judges, condition = False, node
        if isinstance(node, ast.Assert):
            judges, condition = True, node.test
        elif isinstance(node, ast.If) and any(isinstance(inner, ast.Raise) for inner in node.body):
            asserts = any(isinstance(inner, ast.Raise) and _raises_assertion(inner) for inner in node.body)
            judges, condition = asserts or _alike(node.test, function), node.test
        elif isinstance(node, ast.Call):
            judges = bool(_JUDGES.fullmatch(called(node)))
            if not judges and depth < _MOST_CALLS and isinstance(node.func, ast.Name):
                judges = any(
                    isinstance(other, Function) and other.name == node.func.id and _asserts(other, module, depth + 1)
                    for other in module.body
                )
        elif isinstance(node, ast.Return) and node.value is not None:
            return False  # a test would use what it returns
        if judges:
            found |= len(_origins(condition, function) & parameters) >= 2
    return found


def _raises_assertion(node: ast.Raise) -> bool:
    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(error, ast.Name) and error.id == "AssertionError"


def _compares(function: Function, module: ast.Module, depth: int = 0) -> bool:
    """Whether a function returns whether two of its arguments, after the same processing, are equal."""
    if _alike(function, function):
        return True
    called_here = {called(node.value) for node in walk(function) if isinstance(node, ast.Return) and node.value}
    return depth < _MOST_CALLS and any(
        isinstance(other, Function) and other.name in called_here and _compares(other, module, depth + 1)
        for other in module.body
    )


def _alike(node: ast.AST, function: Function) -> bool:
    """Whether an expression or a function compares two of the function's arguments, after the same processing."""
    parameters = _parameters(function)
    for compare in walk(node):
        if not isinstance(compare, ast.Compare) or len(compare.ops) != 1:
            continue
        if not isinstance(compare.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
            continue
        left, right = compare.left, compare.comparators[0]
        sides = [_origins(side, function) & parameters for side in (left, right)]
        if all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
            names = {inner.id for inner in (*walk(left), *walk(right)) if isinstance(inner, ast.Name)}
            if _shape(left, names) == _shape(right, names):
                return True
    return False


def _shape(node: ast.expr, names: set[str]) -> str:
    """The structure of an expression, without names other than those of called functions."""
    functions = {
        inner.func.id for inner in walk(node) if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
    }
    return re.sub(r"id='(\w+)'", lambda found: found[0] if found[1] in functions else "id=''", ast.dump(node))


def _origins(node: ast.AST, function: Function) -> set[str]:
    """The names in an expression, and those in the values that the function assigns to them."""
    found = {inner.id for inner in walk(node) if isinstance(inner, ast.Name)}
    assigned = [inner for inner in walk(function) if isinstance(inner, ast.Assign)]
    for _ in range(3):
        for statement in assigned:
            targets = {
                inner.id for target in statement.targets for inner in walk(target) if isinstance(inner, ast.Name)
            }
            if targets & found and len(targets) == 1:
                found |= {inner.id for inner in walk(statement.value) if isinstance(inner, ast.Name)}
    return found


def _test_classes(tree: ast.Module) -> set[str]:
    """The names of the classes with tests, and of their base classes in the file."""
    classes = {node.name: node for node in walk(tree) if isinstance(node, ast.ClassDef)}
    found = {
        name
        for name, node in classes.items()
        if any(isinstance(inner, Function) and inner.name.startswith("test") for inner in node.body)
    }
    waiting = list(found)
    for name in waiting:  # grows during the iteration
        parents = {base.id for base in classes[name].bases if isinstance(base, ast.Name)} & classes.keys() - found
        found |= parents
        waiting += parents
    return found


def _plugins(node: ast.Assign) -> Iterator[str]:
    """The modules in `pytest_plugins = …`."""
    if any(isinstance(target, ast.Name) and target.id == "pytest_plugins" for target in node.targets):
        for constant in walk(node.value):
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                yield constant.value


def _absolute(node: ast.ImportFrom, path: str) -> str:
    """The module that an import names, which may be relative to the file at `path`."""
    if not node.level:
        return node.module or ""
    parts = path.split("/")[: -node.level]
    if parts and parts[0] in _ROOTS[1:]:
        parts = parts[1:]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _places(path: str) -> Iterator[str]:
    """A file, and the paths from which Python could import another one instead: a package of its name, another root."""
    module = path.rstrip("/").removesuffix(".py")
    for root in _ROOTS:
        if root and module.startswith(f"{root}/"):
            module = module.removeprefix(f"{root}/")
    for root in _ROOTS:
        place = f"{root}/{module}".lstrip("/")
        if not module.endswith("__init__"):
            yield f"{place}/"
        yield f"{place}.py"


def _product_files(base: Path) -> Iterator[str]:
    for directory, names, files in os.walk(base):
        names[:] = sorted(name for name in names if name not in _NOT_PRODUCT and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".py") and name != "conftest.py" and not name.startswith("test_"):
                yield os.path.relpath(os.path.join(directory, name), base)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace") if not path.is_symlink() else ""
    except OSError:
        return ""


def _parsed(text: str) -> ast.Module | None:
    try:
        return parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(text: str) -> str:
    """The import statements of one line in an incomplete source."""
    lines = map(str.strip, text.splitlines())
    return "\n".join(line for line in lines if re.fullmatch(r"(from [\w.]+ )?import [\w.,* ]+", line))
