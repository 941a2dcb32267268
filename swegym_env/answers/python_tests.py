"""How a dataset's module of Python tests (KodCode, file repair) is run, and the names of its tests.

Tests that need Python alone are run by `unittest`, which every image has: a few lines after the functions put them into
a class. Tests written for pytest (fixtures, parameters, `import pytest`) are run by pytest, installed into a set-up
layer. The name of such a test has no parameters, since they are known only when it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from swegym_env.errors import TaskFormatError
from swegym_env.languages.python.parsing import parse

__all__ = ["TestModule", "runnable_tests"]

MODULE = "test_solution"

_ADAPTER = """

# The code below lets unittest run the functions above.
import unittest as _unittest

Functions = type(
    "Functions",
    (_unittest.TestCase,),
    {name: staticmethod(test) for name, test in list(globals().items()) if name in %r},
)
"""
_CONFTEST = '''\
"""Reports a test without its parameters."""

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    report.nodeid = report.nodeid.partition("[")[0]
    return report
'''


@dataclass(frozen=True)
class TestModule:
    """How a module of tests is run.

    Attributes:
        files: path → text, to add to the repository.
        command: runs the tests.
        log_parser: name of the parser of the command's output.
        names: of all tests, as the parser reports them.
        setup: commands that install the requirements of the tests.
    """

    __test__ = False  # not a test class for pytest

    files: Mapping[str, str]
    command: str
    log_parser: str
    names: tuple[str, ...]
    setup: tuple[str, ...] = ()


def runnable_tests(text: str, *, where: str, column: str = "tests") -> TestModule:
    """The way to run a module of tests.

    Raises:
        TaskFormatError: it is not Python, or has no test; the text names `where` and `column`.
    """
    try:
        tree = parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskFormatError(
            f"{where}: field {column!r}: expected a Python module: {' '.join(str(error).split())}"
        ) from error
    functions = [node for node in tree.body if _is_test(node)]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and any(map(_is_test, node.body))]
    if not functions and not classes:
        raise TaskFormatError(f"{where}: field {column!r}: expected functions or methods named test_…, got none")
    plain = all(map(_is_plain, functions)) and all(map(_is_test_case, classes)) and not _imports_pytest(tree)
    path = f"{MODULE}.py"
    methods = [(owner.name, method.name) for owner in classes for method in owner.body if _is_test(method)]
    if plain:
        own = [function.name for function in functions]
        names = [f"{MODULE}.Functions.{name}" for name in own] + [f"{MODULE}.{o}.{m}" for o, m in methods]
        adapted = text.rstrip() + "\n" + (_ADAPTER % (own,) if own else "")
        return TestModule({path: adapted}, f"python3 -m unittest -v {MODULE}", "unittest", tuple(dict.fromkeys(names)))
    names = [f"{path}::{function.name}" for function in functions] + [f"{path}::{o}::{m}" for o, m in methods]
    return TestModule(
        {path: text.rstrip() + "\n", "conftest.py": _CONFTEST},
        f"pytest -rA {path}",
        "pytest",
        tuple(dict.fromkeys(names)),
        setup=(_INSTALL,),
    )


_INSTALL = "python -m pip install 'pytest>=8,<9'"


def _is_test(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test")


def _is_plain(function: ast.stmt) -> bool:
    """Whether a function can be called directly: no fixtures, no parameters, no decorators."""
    if not isinstance(function, ast.FunctionDef):
        return False
    arguments = function.args
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return (
        required == 0 and not any(default is None for default in arguments.kw_defaults) and not function.decorator_list
    )


def _is_test_case(node: ast.ClassDef) -> bool:
    return any(ast.unparse(parent).rpartition(".")[2] == "TestCase" for parent in node.bases)


def _imports_pytest(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(name.name.partition(".")[0] == "pytest" for name in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pytest":
            return True
    return False
