"""Negative controls for Python: hidden tests with one wrong expected value each, which no honest patch passes.

The code under test shares an interpreter with the test runner. It can print the complete log of the runner and exit,
modify the runner, return an object that equals everything, or read the expected value from the test that calls it.
Nothing in this process can be hidden from it. But it cannot learn which expected value is right. In a control, `assert
area(2, 3) == 6` becomes `== 7`, in a fresh sandbox in which everything else is the same. To fail the control and pass
the test, a patch must know that 6 is right, and such a patch has solved the task. A patch that makes tests pass without
this knowledge also passes the control, and is detected.

A control changes only code that a passing test certainly executes, and only in such a way that the test must then fail.
The choice is random. A test without a suitable assertion (for example, a test that passes if nothing is raised) begins
with an assertion that fails.
"""

from __future__ import annotations

import ast
import random
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

from swegym_env.languages import Control
from swegym_env.languages.python.conditions import OPPOSITES
from swegym_env.languages.python.parsing import walk
from swegym_env.languages.python.source import (
    EXPECTS_ERROR,
    NO_SUBTEST,
    Function,
    begin_of,
    called,
    lines_of,
    names_of,
    place_of,
    reached,
    target_tests,
)
from swegym_env.repo.patches import touched_paths
from swegym_env.tasks.task import Task

__all__ = ["control_files", "make_control"]

_Span = tuple[int, int, int, int]  # first line and column, last line and column, as in the syntax tree
_Edit = tuple[_Span, str]  # the replaced span, its new source

_OPPOSITES = {
    **OPPOSITES,
    "assertEqual": "assertNotEqual",
    "assertEquals": "assertNotEqual",
    "assertNotEqual": "assertEqual",
    "assertAlmostEqual": "assertNotAlmostEqual",
    "assertNotAlmostEqual": "assertAlmostEqual",
}
_EQUALITIES = frozenset(
    {"assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual"}
    | {"assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"}
)
_OTHER_ERRORS = ("ZeroDivisionError", "BufferError", "ReferenceError", "UnboundLocalError")


def make_control(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
) -> Control | None:
    """See `Language.make_control`. Files that are not Python are skipped.

    If `names` match no test, every test with an added line is changed.
    """
    choice = random.Random(seed)
    chosen, named = target_tests(files, names, added_lines)
    changed: dict[str, str] = {}
    without_value: set[str] = set()
    for path, functions in chosen.items():
        edits = []
        for classes, function in functions.values():
            is_value, edit = _edit(function, files[path], choice)
            edits.append(edit)
            edits += [(_span(node), NO_SUBTEST) for node in walk(function) if _is_subtest(node)]
            if not is_value:
                without_value |= names_of(function, {name: place_of(name) for name in named}, path, classes)
        changed[path] = _spliced(files[path], edits)
    return Control(changed, named, frozenset(without_value)) if changed else None


def control_files(task: Task) -> tuple[str, ...]:
    """See `Language.control_files`: the test patch's Python files, else the files that FAIL_TO_PASS names."""
    patched = tuple(sorted(path for path in touched_paths(task.test_patch) if path.endswith(".py")))
    if patched:
        return patched
    found: set[str] = set()
    for place in map(place_of, task.fail_to_pass):
        if place is not None and place.path:
            found.add(place.path)
        elif place is not None and place.dotted:
            found |= {f"{'/'.join(place.classes[:length])}.py" for length in range(1, len(place.classes) + 1)}
    return tuple(sorted(found))


def _edit(function: Function, text: str, choice: random.Random) -> tuple[bool, _Edit]:
    """One change of `function` that makes it fail if it passes now, and whether the change is to an expected value."""
    sites = [site for statement in reached(function.body) for site in _sites(statement, text, choice)]
    equalities = [edit for is_equality, edit in sites if is_equality]
    if sites:
        # Expected values are preferred: an object that equals everything would fail a negated equality and stay
        # undetected.
        return bool(equalities), choice.choice(equalities or [edit for _, edit in sites])
    return False, _refusal(function, text, choice)


def _is_subtest(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and called(node) == "subTest"


def _refusal(function: Function, text: str, choice: random.Random) -> _Edit:
    """An assertion that fails, before the first statement of `function` after its docstring."""
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(function.body) > 1:
        first = function.body[1]
    line, column = begin_of(first, lines_of(text))
    length = choice.randrange(3, 20)
    refusal = f"assert len({_word(choice, length)!r}) == {length + choice.randrange(1, 4)}"
    indentation = lines_of(text)[line - 1][:column].decode()
    separator = f"\n{indentation}" if hasattr(first, "body") else "; "  # a compound statement needs a line of its own
    return (line, column, line, column), refusal + separator


def _sites(statement: ast.stmt, text: str, choice: random.Random) -> Iterator[tuple[bool, _Edit]]:
    """The possible changes of one statement; each with whether it changes an expected value."""
    if isinstance(statement, ast.Assert):
        yield from _conditions(statement.test, text, choice)
    elif isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            yield from _expected_errors(item.context_expr, choice)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call, name = statement.value, called(statement.value)
        if not isinstance(call.func, ast.Attribute) or any(isinstance(item, ast.Starred) for item in call.args):
            return
        if name in _EQUALITIES and len(call.args) >= 2:
            yield True, _unequal(call.args[0], call.args[1], choice)
        elif name == "assertTrue" and call.args and isinstance(call.args[0], ast.Compare):
            yield from _conditions(call.args[0], text, choice)
        elif name in _OPPOSITES and len(call.args) in (1, 2, 3):
            receiver = ast.get_source_segment(text, call.func.value)
            yield False, (_span(call.func), f"{receiver}.{_OPPOSITES[name]}")
        yield from _expected_errors(call, choice)


def _conditions(test: ast.expr, text: str, choice: random.Random) -> Iterator[tuple[bool, _Edit]]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            yield from _conditions(part, text, choice)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        yield True, _unequal(test.left, test.comparators[0], choice)
    else:
        yield False, (_span(test), f"(not ({ast.get_source_segment(text, test)}))")


def _expected_errors(expression: ast.expr, choice: random.Random) -> Iterator[tuple[bool, _Edit]]:
    if called(expression) in EXPECTS_ERROR and isinstance(expression, ast.Call) and expression.args:
        wanted = {node.id for node in walk(expression.args[0]) if isinstance(node, ast.Name)}
        yield False, (_span(expression.args[0]), choice.choice([name for name in _OTHER_ERRORS if name not in wanted]))


def _unequal(left: ast.expr, right: ast.expr, choice: random.Random) -> _Edit:
    """Change one side of an equality, preferably a constant on the side without calls, which is the expected one."""
    sides = sorted((right, left), key=lambda side: any(isinstance(node, ast.Call) for node in walk(side)))
    for side in sides:
        constants = list(_constants(side))
        if constants:
            constant = choice.choice(constants)
            return _span(constant), _other(constant.value, choice)
    return _span(sides[0]), choice.choice([repr(_word(choice, 5)), str(choice.randrange(1000, 10_000))])


def _span(node: ast.expr) -> _Span:
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _constants(node: ast.expr) -> Iterator[ast.Constant]:
    """The constants in `node`: itself, or the elements of a list, tuple, set or dictionary display."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int | float | str | bytes):
            yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for item in node.elts:
            yield from _constants(item)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _constants(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _constants(node.operand)


def _other(value: object, choice: random.Random) -> str:
    """The source of a value of the same type that is clearly unequal to `value`."""
    if isinstance(value, bool):
        return repr(not value)
    if isinstance(value, int):
        return repr(value + choice.randrange(1, 4))
    if isinstance(value, float):
        return repr(value * 1.5 + choice.randrange(1, 4))
    if isinstance(value, bytes):
        return repr(_other_text(value.decode("latin-1"), choice).encode("latin-1"))
    return repr(_other_text(str(value), choice))


def _other_text(text: str, choice: random.Random) -> str:
    letters = [place for place, letter in enumerate(text) if letter in string.ascii_letters + string.digits]
    if not letters:
        return text + _word(choice, 1)
    place = choice.choice(letters)
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    kind = next(kind for kind in kinds if text[place] in kind)
    others = [letter for letter in kind if letter.lower() != text[place].lower()]
    return text[:place] + choice.choice(others) + text[place + 1 :]


def _word(choice: random.Random, length: int) -> str:
    return "".join(choice.choices(string.ascii_lowercase, k=length))


def _spliced(text: str, edits: Iterable[_Edit]) -> str:
    """`text` with each span replaced; columns count UTF-8 bytes."""
    lines = lines_of(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    data = b"".join(lines)
    spans = [
        (starts[line - 1] + column, starts[end_line - 1] + end_column, new)
        for (line, column, end_line, end_column), new in edits
    ]
    for begin, end, new in sorted(spans, reverse=True):
        data = data[:begin] + new.encode() + data[end:]
    return data.decode("utf-8", "surrogateescape")
