"""Tests that run beside twins: the same statements with other values, so that the code under test receives several.

Code that keeps its arguments can return them later: the last value, the first one, or one object that all calls share.
A decoy in an assertion (`lineup`) does not reveal this, because the test passes one value and the decoy is another. So
copies of the whole test run beside twins, whose statements have other expected values and their own variables, and
check nothing. The order is random for each statement, so the last or the first value is one of many. In some copies the
test itself has another value, in every place. Most repairs pass these too (the gold patch shows which), and then
knowledge of the original value does not help either.

    def test_load():                # a copy
        box_k = Box()               # of a twin
        box = Box()
        box.save("zqxw")
        box_k.save("vbnm")          # the last value that the code received
        assert box.load() == "zqxw"
"""

from __future__ import annotations

import ast
import copy
import random
import string
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swegym_env.languages import Copy, ExpectedValue, Lineup, Twins
from swegym_env.languages.python.decoys import replaceable, words_of
from swegym_env.languages.python.lineup import LAST_TEST
from swegym_env.languages.python.parsing import children, copied, parse, parse_expression, walk
from swegym_env.languages.python.source import (
    EXPECTS_ERROR,
    Function,
    called,
    is_fixture,
    names_of,
    place_of,
    target_tests,
    tests_in,
)

__all__ = ["given_tests", "make_twins", "written_values"]

_COPIES = 3  # of the unchanged test, and with another value for each constant
_MOST_KEYS = 8
_JUDGING = ("assert", "fnmatch", "no_fnmatch", "re_match", "no_re_match", "check", "verify", "expect", "compare", "eq_")
_PLAIN = frozenset({"approx", "array", "set", "frozenset", "dict", "list", "tuple", "dedent", "str", "int", "float"})
# Blocks that do not change the effect of the statements in them.
_SAME_BLOCKS = frozenset({*EXPECTS_ERROR, "subTest", "warns", "assertWarns", "suppress", "catch_warnings"})
# Some parts of these are not always evaluated, or have a scope of their own.
_NOT_SURE = (
    *(ast.Lambda, ast.IfExp, ast.BoolOp, ast.NamedExpr, ast.Await, ast.JoinedStr, ast.Yield, ast.YieldFrom),
    *(ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.Starred),
)
_WRITTEN = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp)
_NO_TWIN = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)
# The twin's own instance of the test class, with its set-up.
_OWN_CASE = "self{0} = __import__('copy').copy(self)\nself{0}.setUp()\nself{0}.setup_method(None)\n"
_FIXTURE = "made_by_"  # prefix of the name of a fixture's function, which a twin calls
_Key = tuple[str, Any]  # a constant with its type: 1, 1.0 and True differ


def given_tests(
    files: Mapping[str, str], names: Iterable[str], rewritten: Mapping[str, str] | None = None
) -> frozenset[str]:
    """See `Language.given_tests`."""
    names = tuple(names)
    _, named = target_tests(files, names, {})
    found = set(names) - named
    for path, classes, function, test in _tests(files, names):
        gives = test.gives
        if rewritten is not None:
            others = {(*inside, other.name): other for inside, other in tests_in(rewritten.get(path, ""))}
            other = others.get((*classes, function.name))
            gives = other is None or _still_gives(function, other, test.shared)
        if gives:
            found |= _names_at(named, path, classes, function)
    return frozenset(found)


def written_values(files: Mapping[str, str]) -> dict[str, list[Any]]:
    """See `Language.written_values`."""
    found: dict[str, list[Any]] = {}
    for path, text in files.items():
        for _, function in tests_in(text) if path.endswith(".py") else ():
            mine = found.setdefault(function.name, [])
            for node in walk(function):
                if isinstance(node, _WRITTEN):
                    try:
                        mine.append(ast.literal_eval(node))
                    except (ValueError, TypeError, RecursionError, MemoryError):
                        continue
    return found


def _names_at(names: Iterable[str], path: str, classes: tuple[str, ...], function: Function) -> frozenset[str]:
    return names_of(function, {name: place_of(name) for name in names}, path, classes)


def _tests(
    files: Mapping[str, str], names: Iterable[str]
) -> Iterator[tuple[str, tuple[str, ...], Function, _Expected]]:
    """Path, classes and function of each test, and its expected values."""
    chosen, named = target_tests(files, names, {})
    for path, functions in sorted(chosen.items()) if named else ():
        every = [function for _, function in tests_in(files[path])]
        shared = Counter(_keys(parse(files[path])))
        for function in every:
            shared -= Counter(_keys(function) if function.name.startswith("test") else ())
        helpers = {function.name for function in every if not function.name.startswith("test")}
        for _, (classes, function) in sorted(functions.items()):
            yield path, classes, function, _Expected(function, {*shared}, helpers)


def _still_gives(function: Function, rewritten: Function, shared: set[_Key]) -> bool:
    """Whether a rewritten test still passes an expected value of the original one to the code, or this is unknown."""
    kept = Counter(_keys(rewritten))
    gone = Counter(_keys(function)) - kept
    return not gone or any(key in kept or key in shared for key in gone)


def _key(node: ast.AST) -> _Key | None:
    """The key of a constant that is specific enough to be recognised."""
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    known = isinstance(value, int | float | str | bytes) and not isinstance(value, bool) and value not in ("", b"")
    return (type(value).__name__, value) if known else None


def _keys(node: ast.AST) -> Iterator[_Key]:
    for inner in walk(node):
        if (key := _key(inner)) is not None:
            yield key


def _is_judging(call: ast.Call) -> bool:
    return called(call).lstrip("_").lower().startswith(_JUDGING)


@dataclass
class _Expected:
    """The expected values of a test, and whether the code under test receives them outside of the tested call.

    Attributes:
        shared: constants of the file outside of its tests.
        helpers: functions of the file that are not tests.
        keys: expected constants that the code under test may receive.
        gives: whether there are such constants, or conditions that can be passed by counting calls: truth values, small
            numbers.
        is_open: whether an expected value that the code receives is not a constant.
    """

    function: Function
    shared: set[_Key]
    helpers: set[str]
    keys: list[_Key] = field(default_factory=list)
    gives: bool = False
    is_open: bool = False

    def __post_init__(self) -> None:
        self._assigned = dict(_assigned(self.function))
        self._inline: list[ast.expr] = []  # constants in conditions
        found: list[tuple[_Key, bool]] = []
        conditions = list(_conditions(self.function))
        calls = {called(node) for node in walk(self.function) if isinstance(node, ast.Call)}
        for condition in conditions:
            parts = _parts(condition)
            written = [part for part in parts if self._is_written(part, 0)]
            if not written and not _is_truth(condition):
                self.is_open = True
            self.gives = self.gives or not written
            for part in written if len(written) < len(parts) else written[-1:]:
                found += self._expected_keys(part)
                self.gives = self.gives or _is_small(part)
        if calls & self.helpers or not (conditions or calls & EXPECTS_ERROR):
            self.is_open = True
        inline = {id(node) for node in self._inline}
        others = {key for node in walk(self.function) if id(node) not in inline and (key := _key(node)) is not None}
        given = [key for key, is_given in found if is_given or key in others or key in self.shared]
        self.keys = list(dict.fromkeys(given))
        self.gives = self.gives or self.is_open or bool(self.keys)

    def _is_written(self, node: ast.AST, depth: int) -> bool:
        """Whether an expression consists of constants and of classes constructed from them."""
        if isinstance(node, ast.Name):
            value = self._assigned.get(node.id)
            return value is not None and depth < 5 and self._is_written(value, depth + 1)
        if isinstance(node, ast.Call):
            inner: list[ast.AST] = [*node.args, *node.keywords]
            made = called(node).lstrip("_")[:1].isupper() or called(node) in _PLAIN
            return made and all(self._is_written(part, depth) for part in inner)
        if isinstance(node, ast.Attribute | ast.Lambda | ast.Await | ast.GeneratorExp | ast.ListComp | ast.Subscript):
            return False
        return all(self._is_written(part, depth) for part in children(node))

    def _expected_keys(self, part: ast.expr) -> Iterator[tuple[_Key, bool]]:
        """The constants in an expected value, and whether the code under test receives them by an object or a name."""
        waiting: list[tuple[ast.AST, bool]] = [(part, False)]
        seen: set[str] = set()
        for node, given in waiting:  # grows during the iteration
            if isinstance(node, ast.Name) and node.id not in seen and node.id in self._assigned:
                seen.add(node.id)
                names = [each for each in walk(self.function) if isinstance(each, ast.Name) and each.id == node.id]
                uses = sum(isinstance(each.ctx, ast.Load) for each in names)
                waiting.append((self._assigned[node.id], given or uses > 1))
            elif (key := _key(node)) is not None:
                yield key, given
                if isinstance(node, ast.expr):
                    self._inline.append(node)
            made = isinstance(node, ast.Call) and called(node) not in _PLAIN
            waiting += [(inner, given or made) for inner in children(node)]


def _assigned(function: Function) -> Iterator[tuple[str, ast.expr]]:
    """The names that a test assigns, with the assigned expression or the one that contains the value."""
    for node in walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.For) else []
        value = getattr(node, "value", None) if isinstance(node, ast.Assign) else getattr(node, "iter", None)
        for target in targets:
            for name in walk(target):
                if isinstance(name, ast.Name) and isinstance(value, ast.expr):
                    yield name.id, value
    yield from _parameters(function).items()


def _parameters(function: Function) -> dict[str, ast.expr]:
    """The arguments that pytest passes to a test by `parametrize`, and all their values."""
    found: dict[str, ast.expr] = {}
    for decorator in function.decorator_list:
        if called(decorator) != "parametrize" or not isinstance(decorator, ast.Call) or len(decorator.args) < 2:
            continue
        names, rows = decorator.args[:2]
        listed = names.elts if isinstance(names, ast.List | ast.Tuple) else [names]
        texts = [str(each.value) for each in listed if isinstance(each, ast.Constant)]
        for name in ",".join(texts).split(","):
            found[name.strip()] = rows
    return found


def _fixtures(module: ast.Module) -> dict[str, Function]:
    """The fixtures of a file that request no other fixture."""
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return {node.name: node for node in functions if is_fixture(node) and not ast.unparse(node.args)}


def _conditions(function: Function) -> Iterator[ast.expr]:
    for node in walk(function):
        if isinstance(node, ast.Assert):
            yield from node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_judging(node.value):
            yield from [node.value] if called(node.value) not in EXPECTS_ERROR else []


def _parts(condition: ast.expr) -> list[ast.expr]:
    """The operands of a condition."""
    if isinstance(condition, ast.Call) and called(condition) in ("assertTrue", "assertFalse") and condition.args:
        condition = condition.args[0]
    while isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        condition = condition.operand
    if isinstance(condition, ast.Compare):
        return [condition.left, *condition.comparators]
    if isinstance(condition, ast.Call) and _is_judging(condition):
        return [*condition.args[:2], *(keyword.value for keyword in condition.keywords if keyword.arg != "msg")]
    if isinstance(condition, ast.Call) and not all(isinstance(part, ast.Constant) for part in condition.args):
        # A method that compares its object with the arguments.
        receiver = [condition.func.value] if isinstance(condition.func, ast.Attribute) else []
        return [*receiver, *condition.args]
    return [condition]


def _is_truth(condition: ast.expr) -> bool:
    """Whether this is the truth value of an expression whose calls have only constant arguments."""
    parts = _parts(condition)
    calls = [node for part in parts for node in walk(part) if isinstance(node, ast.Call)]
    arguments = [part for call in calls for part in (*call.args, *(keyword.value for keyword in call.keywords))]
    return len(parts) < 2 and all(isinstance(part, ast.Constant) for part in arguments)


def _is_small(part: ast.expr) -> bool:
    """Whether an expected value is one of few possible ones."""
    if not isinstance(part, ast.Constant):
        return False
    return part.value in (None, "", b"") or (isinstance(part.value, int) and abs(part.value) < 10)


def make_twins(files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins:
    """See `Language.make_twins`."""
    names = tuple(names)
    choice = random.Random(seed)
    copies: list[Copy] = []
    opened: set[str] = set()
    modules: dict[str, ast.Module] = {}
    replaced: dict[str, dict[int, list[Function]]] = {}
    for path, classes, function, expected in _tests(files, names):
        own = _names_at(names, path, classes, function)
        modules[path] = modules.get(path) or parse(files[path])
        made = replaced.setdefault(path, {}).setdefault(function.lineno, [])
        if not expected.gives or any(isinstance(node, _NO_TWIN) for node in _own_nodes(function)):
            opened |= own if expected.gives else set()
            continue
        test = _Test(function, expected.keys, words_of(files[path]), twins, choice, _fixtures(modules[path]))
        if expected.is_open or len(test.pools) < len(expected.keys):
            opened |= own
        for key in (None, *test.pools):
            value = ExpectedValue(own, len(copies), "as it is" if key is None else repr(key[1]), 0)
            for _ in range(_COPIES):
                made.append(test.copy_with(key))
                copies.append(Copy(made[-1].name, value, right=True))
        choice.shuffle(made)
    for path, module in modules.items():
        _Replacing(replaced[path], _fixtures(module)).visit(module)
    written = {
        path: f"{ast.unparse(ast.fix_missing_locations(module))}\n\n\n{LAST_TEST}\n" for path, module in modules.items()
    }
    return Twins(Lineup(written, tuple(copies)), frozenset(opened), twins)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, without those of nested functions and classes."""
    waiting: list[ast.AST] = [*function.body]
    for node in waiting:  # grows during the iteration
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting += children(node)


class _Replacing(ast.NodeTransformer):
    """Replaces tests by their copies, and removes the other tests."""

    def __init__(self, replaced: Mapping[int, list[Function]], fixtures: Collection[str]) -> None:
        self._replaced, self._fixtures = replaced, fixtures

    def _visit_function(self, node: Function) -> ast.stmt | list[ast.stmt]:
        if node.lineno in self._replaced:
            return [*self._replaced[node.lineno]] or ast.Pass()
        if node.name in self._fixtures and is_fixture(node):
            plain = copied(node)
            plain.name, plain.decorator_list = f"{_FIXTURE}{node.name}", []
            return [node, plain]
        return ast.Pass() if node.name.startswith("test") and not is_fixture(node) else node

    visit_FunctionDef = _visit_function  # noqa: N815 - the names that ast looks for
    visit_AsyncFunctionDef = _visit_function  # noqa: N815


class _Test:
    """A test whose copies run beside twins.

    In each copy, the code under test receives every value of a constant once, including the right one, and the values
    of two constants in random pairs. So neither frequent nor rare values show which one belongs to the test.
    """

    def __init__(
        self,
        function: Function,
        keys: Sequence[_Key],
        words: tuple[str, ...],
        twins: int,
        choice: random.Random,
        fixtures: Mapping[str, Function],
    ) -> None:
        self._function, self._twins, self._choice = copied(function), twins, choice
        self._fixtures = fixtures
        names = {node.id for node in walk(function) if isinstance(node, ast.Name)}
        self._function.body = _flattened(self._function.body, names)
        self.pools: dict[_Key, list[Any]] = {}  # constant → itself and its replacements
        for key in keys[:_MOST_KEYS]:
            other = replaceable(key[1], words)
            if other is not None and other.count >= twins:
                self.pools[key] = [key[1], *other.draw(twins, choice)]

    def copy_with(self, key: _Key | None) -> Function:
        """A copy of the unchanged test, or with another value for `key`."""
        drawn = {each: self._choice.sample(pool, len(pool)) for each, pool in self.pools.items()}
        for each, values in drawn.items():
            first = self._choice.choice(self.pools[each][1:]) if each == key else self.pools[each][0]
            values.remove(first)
            values.insert(0, first)
        bodies, begin = [], []
        for number in range(self._twins + 1):
            changes = {each: values[number] for each, values in drawn.items()}
            suffix = f"_{''.join(self._choice.choices(string.ascii_lowercase, k=8))}" if number else ""
            prepared = dict(self._own_arguments(suffix, {values[0]: values[number] for values in drawn.values()}))
            begin += [_harmless(each) for text in prepared.values() if number for each in parse(text).body]
            bodies.append(_changed(self._function, changes, suffix, {*prepared}))
        made = copy.copy(self._function)
        first_changes = _Changing({each: values[0] for each, values in drawn.items()}, set(), "")
        made.decorator_list = [first_changes.visit(copied(each)) for each in made.decorator_list]
        made.name = f"{self._function.name}_{''.join(self._choice.choices(string.ascii_lowercase, k=8))}"
        made.body = begin + _together(bodies, self._choice)
        first_statement = made.body[0]
        if isinstance(first_statement, ast.Expr) and isinstance(first_statement.value, ast.Constant):
            made.body.insert(0, ast.Pass())  # some runners name a test by its docstring
        return made

    def _own_arguments(self, suffix: str, changes: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
        """The arguments of which a twin can have its own, and the code that creates them."""
        parameters = _parameters(self._function)
        for name in (each.arg for each in self._function.args.args):
            if name == "self":
                yield name, _OWN_CASE.format(suffix)
            elif name in parameters:
                yield name, f"{name}{suffix} = {dict(changes)!r}.get({name}, {name})"
            elif name in self._fixtures:
                made = f"{_FIXTURE}{name}()"
                is_generator = any(isinstance(node, ast.Yield) for node in walk(self._fixtures[name]))
                yield name, f"{name}{suffix} = {f'next({made})' if is_generator else made}"


def _flattened(body: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """Statements with their nested calls moved into statements before them, so that twins can run in between."""
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Expr | ast.Assign | ast.Assert):
            taking = _TakingOut(names)
            taking.take_from(statement.test if isinstance(statement, ast.Assert) else statement.value)
            found += taking.taken
        elif _is_open_block(statement):
            assert isinstance(statement, ast.For | ast.With)
            statement.body = _flattened(statement.body, names)
        found.append(statement)
    return found


class _TakingOut(ast.NodeTransformer):
    """Replaces the calls in an expression that are always executed by names, in the order of evaluation."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.taken: list[ast.stmt] = []

    def take_from(self, node: ast.expr) -> None:
        """Extract the calls in an expression, but not the expression itself."""
        if not isinstance(node, _NOT_SURE) and not (isinstance(node, ast.Compare) and len(node.ops) > 1):
            self.generic_visit(node)

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr):
            self.take_from(node)
        else:
            self.generic_visit(node)
        if not isinstance(node, ast.Call) or called(node) == "super":
            return node
        name = next(name for number in range(len(self._names) + 1) if (name := f"made_{number}") not in self._names)
        self._names.add(name)
        self.taken.append(ast.Assign([ast.Name(name, ast.Store())], node))
        return ast.Name(name, ast.Load())


def _is_open_block(statement: ast.stmt) -> bool:
    """Whether statements of twins can be inserted into a block."""
    if isinstance(statement, ast.For):
        leaves = any(isinstance(node, ast.Break | ast.Continue) for node in walk(statement))
        return not leaves and not statement.orelse
    return isinstance(statement, ast.With) and all(
        item.optional_vars is None and called(item.context_expr) in _SAME_BLOCKS for item in statement.items
    )


def _together(bodies: Sequence[list[ast.stmt]], choice: random.Random) -> list[ast.stmt]:
    """The statements of a test, the first of `bodies`, each in random order with those of its twins."""
    found: list[ast.stmt] = []
    for statement, *others in zip(*bodies, strict=True):
        if not _is_open_block(statement):
            together = [statement, *map(_harmless, others)]
            choice.shuffle(together)
            found += together
            continue
        assert isinstance(statement, ast.For | ast.With)
        begin: list[ast.stmt] = []
        for number, other in enumerate(others):
            if isinstance(other, ast.For):
                items = f"items_{number}_{''.join(choice.choices(string.ascii_lowercase, k=8))}"
                every = ast.Call(ast.Name("iter", ast.Load()), [other.iter], [])
                found.append(_harmless(ast.Assign([ast.Name(items, ast.Store())], every)))
                following = ast.Call(ast.Name("next", ast.Load()), [ast.Name(items, ast.Load())], [])
                begin.append(_harmless(ast.Assign([other.target], following)))
        inner = [each.body for each in (statement, *others) if isinstance(each, ast.For | ast.With)]
        statement.body = begin + _together(inner, choice)
        found.append(statement)
    return found


def _harmless(statement: ast.stmt) -> ast.stmt:
    """The statement with all its exceptions suppressed."""
    return ast.With([ast.withitem(parse_expression("__import__('contextlib').suppress(BaseException)"))], [statement])


def _changed(
    function: Function, changes: Mapping[_Key, Any], suffix: str, arguments: Collection[str]
) -> list[ast.stmt]:
    """The statements of a function with other constants; for a twin, variables also get a suffix."""
    own: set[str] = set()
    if suffix:
        own = {*arguments} | {
            node.id for node in walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        own |= {node.name for node in _own_nodes(function) if isinstance(node, Function | ast.ClassDef)}
        own |= {node.name for node in walk(function) if isinstance(node, ast.ExceptHandler) and node.name}
    changing = _Changing(changes, own, suffix)
    return [changing.visit(copied(statement)) for statement in function.body]


class _Changing(ast.NodeTransformer):
    """Replaces constants and names in statements; the conditions of a twin are evaluated but not checked."""

    def __init__(self, changes: Mapping[_Key, Any], own: set[str], suffix: str) -> None:
        self._changes, self._own, self._suffix = changes, own, suffix

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        key = (type(node.value).__name__, node.value)
        return ast.Constant(self._changes[key]) if key in self._changes else node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(node.id + self._suffix, node.ctx) if node.id in self._own else node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = node.name + self._suffix if node.name in self._own else node.name
        return self.generic_visit(node)

    def _visit_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        node.name = node.name + self._suffix if node.name in self._own else node.name
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_definition  # noqa: N815 - names of ast

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = node.arg + self._suffix if node.arg in self._own else node.arg
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return self.generic_visit(ast.Expr(node.test) if self._suffix else node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if isinstance(call, ast.Call) and self._suffix and _is_judging(call) and called(call) not in EXPECTS_ERROR:
            node = ast.Expr(ast.List([*call.args, *(keyword.value for keyword in call.keywords)], ast.Load()))
        return self.generic_visit(node)
