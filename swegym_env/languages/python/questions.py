"""Questions: conditions of tests that look up a constant of the test in a computed value.

Examples are `f(3).find("row 47") >= 0`, `{47} <= set(f(3))`, `call(47) in mock.mock_calls` and `f(46).same_as(47)`.
Such a condition is also true for values in which many lookups succeed: a text with many rows, a list with many numbers,
an object whose methods always return True. The constant of a question is not an argument of the code under test, as far
as the test's source shows. It is an argument of a method of a computed value, a key, the left side of `in`, a side of a
comparison of sets, a name in `hasattr`, a value with which each item is compared, or a part of a file's path.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from swegym_env.languages.python.conditions import conditions_of
from swegym_env.languages.python.parsing import parse, walk
from swegym_env.languages.python.source import Function, called, stored_in, target_tests

__all__ = [
    "COMPREHENSIONS",
    "COUNTING",
    "MOST_FOUND",
    "Asked",
    "Variables",
    "asked",
    "equalities_of",
    "holders",
    "keys",
    "may_have_many_answers",
    "questions_of",
    "says_more",
    "value_of",
    "variables_of",
]

_FILES = frozenset({"exists", "lexists", "isfile", "isdir", "is_file", "is_dir"})
_SETS = frozenset({"set", "frozenset", "keys", "items"})
_MAKERS = frozenset({"call", "set", "frozenset", "list", "tuple", "dict"})  # constants inside these are looked up
_FIRST = 3  # an item of a list at most this far from its beginning or end is one of the first
MOST_FOUND = 3  # an expected number up to this size may be a count or position of matches
COUNTING = frozenset({"count", "index", "find", "rfind", "rindex"})
"""Methods that return a small number if they find their argument."""
_OF_TESTS = frozenset({"self", "cls"})
COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.SetComp)
_SEARCHING_CALLS = frozenset(
    (
        *("assertIn", "assertRegex", "assertRegexpMatches", "assertContains", "assertRaisesRegex", "assertWarnsRegex"),
        *("assertRaisesMessage", "assertRaisesRegexp"),
        *("fnmatch_lines", "fnmatch_lines_random", "re_match_lines", "re_match_lines_random"),
        *("assert_any_call", "assert_has_calls", "assertDictContainsSubset", "assertNotIn", "assertNotRegex"),
    )
)
_RAISING = frozenset({"index", "remove", "__getitem__"})  # methods that raise an error if they do not find something
_LISTING = frozenset({"zip", "enumerate", "sorted", "reversed", "list", "range", "items", "keys", "values"})
_OF_OTHER_TESTS = re.compile(r"(^|\.)_?(tests?|conftest|helpers?|testing)(\.|_|$)")
_EQUAL_CALLS = ("assertEqual", "assertEquals", "assertIs", "assertAlmostEqual", "assertCountEqual", "eq_")
_JUDGES = ("assert", "isinstance", "issubclass", "eq_")
_TRUTHS = ("assertTrue", "assertIsNotNone")
_ORDERS = ("assertNotEqual", "assertGreater", "assertGreaterEqual", "assertLess", "assertLessEqual")


@dataclass(frozen=True)
class Variables:
    """The names that the function of a test binds.

    Attributes:
        computed: names with computed values, including parameters other than `self`.
        constants: names with one constant; for a loop over constants, the first one.
    """

    computed: frozenset[str]
    constants: Mapping[str, ast.Constant]


def variables_of(function: Function) -> Variables:
    """The names that a function itself binds."""
    stored = stored_in(function)
    written: dict[str, ast.Constant] = {}
    for node in walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.Constant):
                written[node.targets[0].id] = node.value
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            items = node.iter.elts if isinstance(node.iter, ast.List | ast.Tuple) else []
            if items and all(isinstance(item, ast.Constant) for item in items):
                assert isinstance(items[0], ast.Constant)
                written[node.target.id] = items[0]
    constants = {name: constant for name, constant in written.items() if stored[name] == 1}
    return Variables(frozenset(stored) - _OF_TESTS - constants.keys(), constants)


Asked = ast.Constant | ast.Name | ast.Attribute
"""A constant that is looked up: a literal, a name with a constant value, or an attribute, where its name counts."""


def asked(condition: ast.expr, variables: Variables) -> list[Asked]:
    """The constants that a condition looks up in computed values, and names of such constants, each once.

    Args:
        variables: of the function that contains the condition.
    """
    found = {id(constant): constant for constant, _ in _questions(condition, variables)}
    return list(found.values())


def keys(sides: Sequence[ast.expr], variables: Variables) -> list[tuple[Asked, ast.expr]]:
    """The constant keys and attributes under which an equality reads its sides, and the computed values with these.

    The expected value under a key may be public while the key itself is not.
    """
    found: list[tuple[Asked, ast.expr]] = []
    for side in sides:
        holder = side
        while isinstance(holder, ast.Subscript | ast.Attribute | ast.Call):
            wanted: ast.expr | None = None
            inner: ast.expr = holder.func if isinstance(holder, ast.Call) else holder.value
            if isinstance(holder, ast.Subscript):
                wanted = holder.slice
            elif isinstance(holder, ast.Attribute):
                wanted = holder if _is_numbered(holder) else None
            elif called(holder) == "get" and isinstance(holder.func, ast.Attribute) and holder.args:
                wanted, inner = holder.args[0], holder.func.value
            if wanted is not None and _is_computed(inner, variables):
                constants = [wanted] if isinstance(wanted, ast.Attribute) else list(_constants(wanted, variables))
                found += [
                    (one, inner) for one in constants if _is_asked(one, variables) and not _is_first(one, variables)
                ]
            holder = inner
    return found


def _is_numbered(node: ast.Attribute) -> bool:
    """Whether an attribute is one of a numbered series: its name contains a digit."""
    return any(letter.isdecimal() for letter in node.attr)


def _is_first(constant: Asked, variables: Variables) -> bool:
    """Whether this is the index of one of the first or last items of a list."""
    value = value_of(constant, variables)
    return isinstance(value, int) and abs(value) <= _FIRST


def holders(condition: ast.expr, variables: Variables) -> list[ast.expr]:
    """The computed values in which a condition looks something up; of nested ones only the outermost."""
    found = {id(holder): holder for _, holder in _questions(condition, variables) if holder is not None}
    inner = {id(part) for holder in found.values() for part in walk(holder) if part is not holder}
    return [holder for holder in found.values() if id(holder) not in inner]


_Question = tuple[Asked, ast.expr | None]  # the constant, and the value in which it is looked up


def _questions(condition: ast.expr, variables: Variables) -> Iterator[_Question]:
    if isinstance(condition, ast.Call) and not called(condition).startswith(_JUDGES):
        computed = [argument for argument in condition.args if _is_computed(argument, variables)]
        others = [argument for argument in condition.args if argument not in computed]
        for constant in (each for argument in others if len(computed) == 1 for each in _constants(argument, variables)):
            if _is_asked(constant, variables):
                yield constant, computed[0]
    for side in _sides(condition):
        # Other keys are not looked up. The first items of a list are excluded: their indices are not chosen among many.
        if isinstance(side, ast.Subscript) and _is_computed(side.value, variables):
            for constant in _constants(side.slice, variables):
                if _is_asked(constant, variables) and not _is_first(constant, variables):
                    yield constant, side.value
        elif isinstance(side, ast.Attribute) and _is_numbered(side) and _is_computed(side.value, variables):
            yield side, side.value
    for node in walk(condition):
        for constant, holder in _asked_by(node, variables):
            if _is_asked(constant, variables):
                yield constant, holder


def _sides(condition: ast.expr) -> list[ast.expr]:
    """The sides of a comparison or of an assertion call; otherwise the condition itself."""
    if isinstance(condition, ast.Compare):
        return [condition.left, *condition.comparators]
    if isinstance(condition, ast.Call) and called(condition).startswith("assert"):
        return condition.args[:2]
    return [condition]


def value_of(constant: Asked, variables: Variables) -> object:
    """The value of a constant, the first one of a name, or the name of an attribute."""
    if isinstance(constant, ast.Attribute):
        return constant.attr
    return (variables.constants[constant.id] if isinstance(constant, ast.Name) else constant).value


def _is_asked(constant: Asked, variables: Variables) -> bool:
    value = value_of(constant, variables)
    return isinstance(value, int | float | str | bytes) and not isinstance(value, bool) and value not in ("", b"")


def _asked_by(node: ast.AST, variables: Variables) -> Iterator[_Question]:
    if isinstance(node, ast.Call):
        yield from _asked_by_call(node, variables)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right, operator = node.left, node.comparators[0], node.ops[0]
        if isinstance(operator, ast.In):
            yield from _beside(left, right, variables)
        elif isinstance(operator, ast.LtE | ast.Lt | ast.GtE | ast.Gt) and (_is_set(left) or _is_set(right)):
            yield from _beside(left, right, variables)
            yield from _beside(right, left, variables)
    elif isinstance(node, COMPREHENSIONS) and any(_is_computed(one.iter, variables) for one in node.generators):
        conditions = [node.elt, *(test for one in node.generators for test in one.ifs)]
        for compared in (inner for test in conditions for inner in walk(test) if isinstance(inner, ast.Compare)):
            for side in (compared.left, *compared.comparators):
                yield from ((constant, None) for constant in _constants(side, variables))


def _asked_by_call(call: ast.Call, variables: Variables) -> Iterator[_Question]:
    name, receiver = called(call), call.func.value if isinstance(call.func, ast.Attribute) else None
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if name == "assertIn" and len(call.args) > 1:
        yield from _beside(call.args[0], call.args[1], variables)
    elif name in _FILES:
        yield from ((inner, None) for inner in walk(call) if isinstance(inner, ast.Constant))
    elif receiver is not None and _is_computed(receiver, variables):
        yield from ((constant, receiver) for argument in arguments for constant in _constants(argument, variables))
    elif name in ("hasattr", "getattr") and len(call.args) > 1:
        yield from _beside(call.args[1], call.args[0], variables)
    elif receiver is not None and name in ("issubset", "issuperset"):
        for argument in arguments:
            yield from _beside(receiver, argument, variables)


def _beside(wanted: ast.expr, holder: ast.expr, variables: Variables) -> Iterator[_Question]:
    if _is_computed(holder, variables) and not _is_computed(wanted, variables):
        yield from ((constant, holder) for constant in _constants(wanted, variables))


def _is_set(node: ast.expr) -> bool:
    return isinstance(node, ast.Set | ast.SetComp) or called(node) in _SETS


def _is_computed(node: ast.expr, variables: Variables) -> bool:
    """Whether a value is not literal: a call computes it, or a variable of the test holds it."""
    return any(
        (isinstance(inner, ast.Call) and called(inner) not in _MAKERS)
        or (isinstance(inner, ast.Name) and inner.id in variables.computed)
        or (isinstance(inner, ast.Attribute) and getattr(inner.value, "id", "") in _OF_TESTS)
        for inner in walk(node)
    )


def _constants(node: ast.expr, variables: Variables) -> Iterator[Asked]:
    """The constants in a value, inside of displays and of calls that only construct something."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in variables.constants):
        yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = [*filter(None, node.keys), *node.values]
    elif isinstance(node, ast.UnaryOp):
        parts = [node.operand]
    elif isinstance(node, ast.Call) and (called(node) in _MAKERS or called(node).lstrip("_")[:1].isupper()):
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    for part in parts:
        yield from _constants(part, variables)


def may_have_many_answers(files: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether a test has a condition that more than one result of the code under test passes.

    Such a condition searches, looks something up, or compares two computed values. An edit of expressions could pass it
    with several results at once, or with the same empty result on both sides. Conditions in a function that the code
    under test is to call hold as well if it is not called, and those in a loop over a result if this is empty.

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
    asserting = {path: _asserting(parse(files[path])) for path in chosen}
    if not functions or any(_asserts_inside(function, asserting[path]) for path, function in functions):
        return True
    if any(_asserts_in_a_loop(function) for _, function in functions):
        return True
    return any(
        _has_many_answers(node, function, variables, own[path])
        for path, function in functions
        for variables in [variables_of(function)]
        for node in walk(function)
    )


def says_more(sides: Sequence[ast.expr]) -> bool:
    """Whether an equality expects more than the information that something was found, or how often."""
    counts = any(map(_counts, sides))
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return not any(value is True or (counts and type(value) is int and 1 <= value <= MOST_FOUND) for value in values)


def _counts(side: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) and called(node) in COUNTING for node in walk(side))


def _own_names(module: ast.Module) -> frozenset[str]:
    """The functions that a test file defines, and the names that it imports from the standard library."""
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
    """Whether a module is of Python's library."""
    return module.partition(".")[0] in sys.stdlib_module_names


def _asserts_inside(function: ast.AST, helpers: Collection[str]) -> bool:
    """Whether a test has a function that asserts something and that the code under test may be to call.

    Args:
        helpers: names of the functions and classes of its file that assert something.
    """
    nodes = walk(function)
    calls = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, Function | ast.Lambda | ast.ClassDef) and node is not function:
            if any(_may_fail(one) for one in walk(node)):
                return True
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in calls:
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name.startswith(("assert", "fail")) or name in helpers or name in _RAISING:
                return True  # handed on
    return False


def _may_fail(node: ast.AST) -> bool:
    is_raising = isinstance(node, ast.Call) and called(node) in _RAISING
    return isinstance(node, ast.Assert | ast.Raise) or _judges(node) or is_raising


def _asserts_in_a_loop(function: Function) -> bool:
    """Whether a test asserts something in a loop over a result of the code under test."""
    variables = variables_of(function)
    written = {
        target.id
        for node in walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple | ast.Dict | ast.Set)
        if not _is_empty(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def is_computed(iterated: ast.expr) -> bool:
        if isinstance(iterated, ast.Name):
            return iterated.id in variables.computed - written
        if isinstance(iterated, ast.Call) and called(iterated) in _LISTING:
            of_value = [iterated.func.value] if isinstance(iterated.func, ast.Attribute) else []
            return any(map(is_computed, (*of_value, *iterated.args)))
        return not isinstance(iterated, ast.List | ast.Tuple | ast.Dict | ast.Set) and _is_computed(iterated, variables)

    loops = [node for node in walk(function) if isinstance(node, ast.For | ast.AsyncFor) and is_computed(node.iter)]
    return any(_may_fail(node) for loop in loops for statement in loop.body for node in walk(statement))


def _is_empty(display: ast.expr) -> bool:
    return not (getattr(display, "elts", ()) or getattr(display, "keys", ()))


def _asserting(tree: ast.Module) -> frozenset[str]:
    """The names of functions and plain classes of a file that assert something, without its tests.

    What a file imports from other tests may assert something.
    """
    own = {
        node.name
        for node in walk(tree)
        if isinstance(node, Function) or (isinstance(node, ast.ClassDef) and not node.bases)
        if not node.name.lower().startswith("test")
        if any(isinstance(one, ast.Assert) or _judges(one) for one in walk(node))
    }
    imports = [node for node in walk(tree) if isinstance(node, ast.ImportFrom)]
    of_tests = [node for node in imports if node.level or _OF_OTHER_TESTS.search(node.module or "")]
    return frozenset(own | {alias.asname or alias.name for node in of_tests for alias in node.names})


def _judges(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node).startswith(("assert", "fail"))


def _has_many_answers(node: ast.AST, function: Function, variables: Variables, own: frozenset[str]) -> bool:
    if isinstance(node, ast.stmt):
        return any(_passes_many(one.node, variables, own) for one in conditions_of(node, function))
    if not isinstance(node, ast.Call):
        return False
    name = called(node)
    if name in _SEARCHING_CALLS or any(keyword.arg == "match" for keyword in node.keywords):
        return True
    if name in _EQUAL_CALLS:
        sides = node.args[:2]
        asks = not says_more(sides) and any(asked(side, variables) for side in sides)
        asks = asks or bool(keys(sides, variables)) or any(map(_filters, sides))
        return asks or _are_computed(sides, own)
    judged = _TRUTHS + _ORDERS
    return name in judged and any(_passes_many(argument, variables, own) for argument in node.args[:2])


def _passes_many(condition: ast.expr, variables: Variables, own: frozenset[str]) -> bool:
    """Whether several values pass a condition: it searches, looks something up, or compares two computed values."""
    if _filters(condition):
        return True
    for node in walk(condition):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if isinstance(node.ops[0], ast.In | ast.NotIn):
                return True
            if isinstance(node.ops[0], ast.Eq) and _are_computed(sides, own):
                return True
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            return True
    if _says_more(condition):
        return bool(keys(_sides(condition), variables))
    return bool(asked(condition, variables))


def _filters(node: ast.expr) -> bool:
    """Whether an expression looks for items that fulfil a condition: there may be none."""
    return any(each.ifs for inner in walk(node) if isinstance(inner, COMPREHENSIONS) for each in inner.generators)


def _says_more(condition: ast.expr) -> bool:
    """Whether a condition is an equality that expects more than the information that something was found."""
    if not isinstance(condition, ast.Compare) or not isinstance(condition.ops[0], ast.Eq | ast.Is):
        return False
    return says_more([condition.left, *condition.comparators])


def questions_of(statement: ast.AST) -> list[ast.expr]:
    """The conditions of an assertion that may look something up; none if it expects a more specific value."""
    conditions: list[ast.expr] = []
    if isinstance(statement, ast.Assert):
        conditions = statement.test.values if isinstance(statement.test, ast.BoolOp) else [statement.test]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        name, sides = called(statement.value), statement.value.args[:2]
        if name in _TRUTHS + _ORDERS or (name in _EQUAL_CALLS and not says_more(sides)):
            conditions = sides
    return [one for one in conditions if not _says_more(one)]


def equalities_of(statement: ast.AST) -> list[list[ast.expr]]:
    """The sides of each equality of an assertion that expects more than that something was found."""
    found: list[list[ast.expr]] = []
    if isinstance(statement, ast.Assert):
        conditions = statement.test.values if isinstance(statement.test, ast.BoolOp) else [statement.test]
        found = [_sides(one) for one in conditions if _says_more(one)]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        sides = statement.value.args[:2]
        found = [sides] if called(statement.value) in _EQUAL_CALLS and says_more(sides) else []
    return found


def _are_computed(sides: list[ast.expr], own: frozenset[str]) -> bool:
    """Whether the code under test computes all sides."""
    return len(sides) > 1 and all(any(_calls_the_product(inner, own) for inner in walk(side)) for side in sides)


def _calls_the_product(node: ast.AST, own: frozenset[str]) -> bool:
    """Whether this calls something other than a class, a function of the test file or of the standard library."""
    if not isinstance(node, ast.Call) or called(node) in _MAKERS or called(node).lstrip("_")[:1].isupper():
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id not in own and not hasattr(builtins, node.func.id)
    root: ast.expr = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return not (isinstance(root, ast.Name) and (root.id in own or root.id in _OF_TESTS))
