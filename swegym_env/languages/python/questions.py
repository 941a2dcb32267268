"""Questions: conditions of tests that ask a computed value for something that the test writes out.

`f(3).find("row 47") >= 0`, `{47} <= set(f(3))`, `call(47) in mock.mock_calls`, `f(46).same_as(47)`: the truth of such a
condition is that of every value that answers more than one question with yes: a text of many rows, a list of many
numbers, an object that agrees to anything. What is asked for is a constant that is no argument of the code under test,
as far as the test's own text says: it stands in a method of a computed value, in a key, beside `in`, in an order of
sets, in `hasattr`, in what is compared with each item, or in the path of a file.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping

from swegym_env.languages.python.parsing import parse, walk
from swegym_env.languages.python.source import Function, called, target_tests

__all__ = ["asked", "may_have_many_answers", "tells_more", "variable_names"]

_FILES = frozenset({"exists", "lexists", "isfile", "isdir", "is_file", "is_dir"})
_SETS = frozenset({"set", "frozenset", "keys", "items"})
_MAKERS = frozenset({"call", "set", "frozenset", "list", "tuple", "dict"})  # what is made of constants by them is asked
_MOST_FOUND = 3  # an expected number of this size may be that of what was found
_OF_TESTS = frozenset({"self", "cls"})
_COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp)
_SEARCHING_CALLS = frozenset(
    (
        *("assertIn", "assertRegex", "assertRegexpMatches", "assertContains", "assertRaisesRegex", "assertWarnsRegex"),
        *("assertRaisesMessage", "assertRaisesRegexp"),
        *("fnmatch_lines", "fnmatch_lines_random", "re_match_lines", "re_match_lines_random"),
        *("assert_any_call", "assert_has_calls", "assertDictContainsSubset"),
    )
)
_EQUAL_CALLS = ("assertEqual", "assertEquals", "assertIs", "assertAlmostEqual", "assertCountEqual", "eq_")
_TRUTHS = ("assertTrue", "assertIsNotNone")
_ORDERS = ("assertNotEqual", "assertGreater", "assertGreaterEqual", "assertLess", "assertLessEqual")


def variable_names(function: Function) -> frozenset[str]:
    """The names that a function binds itself, its parameters but `self` among them: they hold what was computed."""
    found: set[str] = set()
    for node in walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return frozenset(found - _OF_TESTS)


def asked(condition: ast.expr, variables: frozenset[str]) -> list[ast.Constant]:
    """The constants that a condition asks computed values for, each once.

    Args:
        variables: `variable_names` of the function that the condition stands in.
    """
    found: dict[int, ast.Constant] = {}
    for node in walk(condition):
        for constant in _asked_by(node, variables):
            if isinstance(constant.value, int | float | str | bytes) and constant.value not in (True, False, "", b""):
                found[id(constant)] = constant
    return list(found.values())


def _asked_by(node: ast.AST, variables: frozenset[str]) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Call):
        yield from _asked_by_call(node, variables)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_computed(node.value, variables):
        # The first items of a list are no answers among others.
        yield from (one for one in _constants(node.slice) if not isinstance(one.value, int) or abs(one.value) > 3)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right, operator = node.left, node.comparators[0], node.ops[0]
        if isinstance(operator, ast.In):
            yield from _beside(left, right, variables)
        elif isinstance(operator, ast.LtE | ast.Lt | ast.GtE | ast.Gt) and (_is_set(left) or _is_set(right)):
            yield from _beside(left, right, variables)
            yield from _beside(right, left, variables)
    elif isinstance(node, _COMPREHENSIONS) and any(_is_computed(one.iter, variables) for one in node.generators):
        conditions = [node.elt, *(test for one in node.generators for test in one.ifs)]
        for compared in (inner for test in conditions for inner in walk(test) if isinstance(inner, ast.Compare)):
            for side in (compared.left, *compared.comparators):
                yield from _constants(side)


def _asked_by_call(call: ast.Call, variables: frozenset[str]) -> Iterator[ast.Constant]:
    name, receiver = called(call), call.func.value if isinstance(call.func, ast.Attribute) else None
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "assertIn" and len(call.args) > 1:
        yield from _beside(call.args[0], call.args[1], variables)
    elif name in _FILES:
        yield from (inner for inner in walk(call) if isinstance(inner, ast.Constant))
    elif receiver is not None and _is_computed(receiver, variables):
        for argument in arguments:
            yield from _constants(argument)
    elif name in ("hasattr", "getattr") and len(call.args) > 1:
        yield from _beside(call.args[1], call.args[0], variables)
    elif receiver is not None and name in ("issubset", "issuperset"):
        for argument in arguments:
            yield from _beside(receiver, argument, variables)


def _beside(wanted: ast.expr, holder: ast.expr, variables: frozenset[str]) -> Iterator[ast.Constant]:
    if _is_computed(holder, variables) and not _is_computed(wanted, variables):
        yield from _constants(wanted)


def _is_set(node: ast.expr) -> bool:
    return isinstance(node, ast.Set | ast.SetComp) or called(node) in _SETS


def _is_computed(node: ast.expr, variables: frozenset[str]) -> bool:
    """Whether a value is not written out: a call computes it, or a variable of the test holds it."""
    return any(
        (isinstance(inner, ast.Call) and called(inner) not in _MAKERS)
        or (isinstance(inner, ast.Name) and inner.id in variables)
        or (isinstance(inner, ast.Attribute) and getattr(inner.value, "id", "") in _OF_TESTS)
        for inner in walk(node)
    )


def _constants(node: ast.expr) -> Iterator[ast.Constant]:
    """The constants that a value is made of, by displays and by calls that only make something."""
    if isinstance(node, ast.Constant):
        yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for item in node.elts:
            yield from _constants(item)
    elif isinstance(node, ast.Dict):
        for value in (*filter(None, node.keys), *node.values):
            yield from _constants(value)
    elif isinstance(node, ast.UnaryOp):
        yield from _constants(node.operand)
    elif isinstance(node, ast.Call) and (called(node) in _MAKERS or called(node).lstrip("_")[:1].isupper()):
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _constants(argument)


def may_have_many_answers(files: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether a test has a condition that more than one answer of the code under test passes.

    It searches, it asks for something, or both of its sides are computed: an edit of expressions can pass it by several
    answers at once, or by no answer on both sides.

    Args:
        files: path → text of the test files.
        names: of the tests, as the log parser gives them.
    """
    try:
        chosen, _ = target_tests(files, names, {})
        helpers = {
            (path, node.name): node
            for path in chosen
            for node in walk(parse(files[path]))
            if isinstance(node, Function) and not node.name.startswith("test")
        }
    except (SyntaxError, ValueError, RecursionError):
        return True
    functions = [(path, function) for path, each in chosen.items() for _, function in each.values()]
    for path, function in functions:  # grows during the iteration
        for node in walk(function):
            helper = helpers.pop((path, called(node)), None) if isinstance(node, ast.Call) else None
            functions += [(path, helper)] if helper is not None else []
    own = {path: _own_names(parse(files[path])) for path in chosen}
    return not functions or any(
        _has_many_answers(node, variable_names(function), own[path])
        for path, function in functions
        for node in walk(function)
    )


def tells_more(side: ast.expr) -> bool:
    """Whether a side of an equality is written out, and says more than that something was found, or how often."""
    try:
        value = ast.literal_eval(side)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return not (isinstance(value, int) and 1 <= value <= _MOST_FOUND)


def _own_names(module: ast.Module) -> frozenset[str]:
    """The functions that a test file defines, and what it has from Python's library."""
    found: set[str] = set()
    for node in walk(module):
        if isinstance(node, Function):
            found.add(node.name)
        elif isinstance(node, ast.Import):
            names = [alias for alias in node.names if _is_standard(alias.name)]
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_standard(node.module or ""):
            found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _has_many_answers(node: ast.AST, variables: frozenset[str], own: frozenset[str]) -> bool:
    if isinstance(node, ast.Assert):
        return _passes_many(node.test, variables, own)
    if not isinstance(node, ast.Call):
        return False
    name = called(node)
    if name in _SEARCHING_CALLS or any(keyword.arg == "match" for keyword in node.keywords):
        return True
    if name in _EQUAL_CALLS:
        sides = node.args[:2]
        return _are_computed(sides, own) or _asks(sides, variables)
    return name in _TRUTHS + _ORDERS and any(_passes_many(argument, variables, own) for argument in node.args[:2])


def _passes_many(condition: ast.expr, variables: frozenset[str], own: frozenset[str]) -> bool:
    """Whether several values pass a condition: it searches, it asks for something, or both sides are computed."""
    for node in walk(condition):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if isinstance(node.ops[0], ast.In) or (isinstance(node.ops[0], ast.Eq) and _are_computed(sides, own)):
                return True
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            return True
    sides = [condition.left, *condition.comparators] if isinstance(condition, ast.Compare) else [condition]
    return _asks(sides, variables)


def _asks(sides: list[ast.expr], variables: frozenset[str]) -> bool:
    return not any(map(tells_more, sides)) and any(asked(side, variables) for side in sides)


def _are_computed(sides: list[ast.expr], own: frozenset[str]) -> bool:
    """Whether the code under test computes all sides."""
    return len(sides) > 1 and all(any(_calls_the_product(inner, own) for inner in walk(side)) for side in sides)


def _calls_the_product(node: ast.AST, own: frozenset[str]) -> bool:
    """Whether this calls more than a class, a function of the test file or one of Python's library."""
    if not isinstance(node, ast.Call) or called(node) in _MAKERS or called(node).lstrip("_")[:1].isupper():
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id not in own and not hasattr(builtins, node.func.id)
    root: ast.expr = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return not (isinstance(root, ast.Name) and (root.id in own or root.id in _OF_TESTS))
