"""Which tests compare an object that no copy changes: its equality is the code's under test, which may be weakened.

An object of a test counts as examined if copies change a constant of it, and as harmless if the code under test gets it
or the test only reads a part of it. Each other use is one that nothing is known of.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from swegym_env.languages.python.conditions import bindings, compares, compares_objects, makes_an_object
from swegym_env.languages.python.parsing import children, parse, walk
from swegym_env.languages.python.questions import COMPREHENSIONS, is_standard
from swegym_env.languages.python.source import Function, called, tests_in

__all__ = ["Module", "compares_what_no_copy_changes"]

_BUILTINS = frozenset(dir(builtins))
_JUDGING = ("assert", "check", "verify", "expect", "compare", "eq_", "ok_")
# Their result holds none of their arguments.
_PLAIN = frozenset(
    ("len", "repr", "str", "isinstance", "issubclass", "hasattr", "callable", "type", "id", "int", "float", "bool")
) | {"bytes", "format", "print", "vars", "dir", "complex", "ascii", "setattr", "delattr"}
_OF_CONTAINERS = frozenset(
    (
        *("items", "values", "keys", "get", "copy", "pop", "popitem", "popleft", "append", "appendleft", "add"),
        *("insert", "extend", "update", "setdefault", "__setitem__", "_replace"),
        *("union", "difference", "intersection", "symmetric_difference"),
    )
)
_OF_NAMESPACES = frozenset({"eval", "exec", "globals", "locals"})
_TAKING = frozenset({"index", "count", "remove", "items", "values", "keys", "get"})
# Of an object they give what its own methods give.
_ITERATING = frozenset(
    ("iter", "next", "list", "tuple", "set", "frozenset", "dict", "sorted", "reversed", "zip", "enumerate", "sum")
) | {"min", "max", "any", "all", "map", "filter"}
_HASHING = frozenset({"add", "set", "frozenset", "Counter", "fromkeys", "groupby", "discard", "issubset", "issuperset"})
_OF_TEXT = frozenset(
    (
        *("split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "format", "join", "encode", "decode"),
        *("lower", "upper", "title", "replace", "partition", "rpartition", "zfill", "removeprefix", "removesuffix"),
    )
)
_COPYING = frozenset({"copy", "deepcopy", "loads", "dumps"})
_FILLING = frozenset({"append", "appendleft", "add", "insert", "extend", "update", "setdefault", "__setitem__"})
# Assertions that ask nothing of the equality of what they are given.
_OF_IDENTITY = re.compile(
    r"assert_?(Raises|Warns|Logs|Is(Not|None|NotNone|Instance)?$|NotIsInstance|True|False|Regex|raises|warns)"
)
_EQUALITIES = re.compile(r"assert.*(Equal|In$|equal|allclose)|eq_")
_SAME = (ast.IfExp, ast.BoolOp, ast.Await, ast.keyword, ast.Lambda)  # whose value may be that of a part
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
_PASSING = (*_DISPLAYS, ast.Starred, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_UNUSED = (ast.ClassDef, ast.Slice, ast.Expr, ast.Raise, ast.JoinedStr, ast.FormattedValue, ast.UnaryOp, ast.Delete)
_TRUTHS = (ast.If, ast.While, ast.Assert)


@dataclass(frozen=True)
class Module:
    """What a test file imports and has.

    Attributes:
        imports: name → the module it is from, and its name there, "" for the module itself.
        functions: the names of its functions, other than tests and those inside of them.
        comparing: those of them that compare objects which they make.
        compared: function → the places and names of its parameters that it compares.
        making: functions, also in classes, that return an object which they make → whether that is all they return.
        asserting: those that assert something, or compare it.
        plain: names that are bound once, to literals.
    """

    imports: Mapping[str, tuple[str, str]]
    functions: frozenset[str]
    comparing: frozenset[str]
    compared: Mapping[str, frozenset[int | str]]
    making: Mapping[str, bool]
    asserting: frozenset[str]
    plain: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Module:
        functions = [function for _, function in tests_in(text) if not function.name.startswith("test")]
        comparing = frozenset(function.name for function in functions if compares_objects(function))
        compared: dict[str, frozenset[int | str]] = defaultdict(frozenset)
        for function in functions:
            compared[function.name] |= frozenset(_compared_parameters(function))
        module = parse(text)
        return cls(
            _imports_of(module),
            frozenset(compared),
            comparing,
            dict(compared),
            _making(functions),
            frozenset(function.name for function in functions if any(map(_decides, walk(function)))),
            _plain_names(module),
        )


def _imports_of(node: ast.AST) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for inner in walk(node):
        if isinstance(inner, ast.Import):
            found |= {(each.asname or each.name.partition(".")[0]): (each.name, "") for each in inner.names}
        elif isinstance(inner, ast.ImportFrom):
            prefix = "." * inner.level + (inner.module or "")
            found |= {(each.asname or each.name): (prefix, each.name) for each in inner.names}
    return found


def _decides(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return not any(map(_is_literal, (node.left, *node.comparators)))
    return isinstance(node, ast.Call) and called(node).startswith("assert")


def _making(functions: Iterable[Function]) -> dict[str, bool]:
    """Functions that return an object which they make → whether they return nothing else, such as a list of them."""
    found: dict[str, bool] = {}
    for function in functions:
        nodes = walk(function)
        made = {
            name
            for node in nodes
            for target, value in bindings(node)
            if _holds(value, frozenset())
            for name in _names(target)
        }
        for node in nodes:
            if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value and _holds(node.value, made):
                is_itself = isinstance(node, ast.Return) and makes_an_object(node.value)
                found[function.name] = is_itself and found.get(function.name, True)
    return found


def _holds(node: ast.expr, made: Collection[str]) -> bool:
    """Whether an expression is an object that is made, or a container of some."""
    if isinstance(node, ast.Name):
        return node.id in made
    if isinstance(node, (*_DISPLAYS, *COMPREHENSIONS, *_SAME, ast.Starred)):
        return any(_holds(each, made) for each in children(node) if isinstance(each, ast.expr))
    return makes_an_object(node)


def _plain_names(module: ast.Module) -> frozenset[str]:
    """The names of a module that are bound once, to literals."""
    bound = Counter(name for node in walk(module) for target, _ in bindings(node) for name in _names(target))
    return frozenset(
        name
        for statement in module.body
        for target, value in bindings(statement)
        if _is_literal(value)
        for name in _names(target)
        if bound[name] == 1
    )


def _plain_columns(function: Function) -> set[str]:
    """The parameters of a test that are literals in each row of its table."""
    found: set[str] = set()
    for decorator in function.decorator_list:
        if called(decorator) != "parametrize" or not isinstance(decorator, ast.Call) or len(decorator.args) < 2:
            continue
        names, rows = decorator.args[:2]
        if isinstance(names, ast.Constant) and isinstance(rows, ast.List | ast.Tuple):
            columns = [name.strip() for name in str(names.value).split(",")]
            for place, name in enumerate(columns):
                cells = [_cell(row, place, len(columns)) for row in rows.elts]
                if all(cell is not None and _is_literal(cell) for cell in cells):
                    found.add(name)
    return found


def _cell(row: ast.expr, place: int, n_columns: int) -> ast.expr | None:
    values = row.args if called(row) == "param" and isinstance(row, ast.Call) else None
    if values is None and n_columns == 1:
        return row
    values = row.elts if values is None and isinstance(row, ast.Tuple | ast.List) else values
    return values[place] if values is not None and len(values) == n_columns else None


def _is_literal(node: ast.expr) -> bool:
    return not any(isinstance(inner, (ast.Call, ast.Name, ast.Attribute, *COMPREHENSIONS)) for inner in walk(node))


def _compared_parameters(function: Function) -> Iterator[int | str]:
    """Where a call has the arguments that a function compares: places, without `self`, and names."""
    compared = {
        inner.id
        for node in walk(function)
        if (isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot))
        or (isinstance(node, ast.Call) and (called(node).startswith(_JUDGING) or compares(node)))
        for inner in walk(node)
        if isinstance(inner, ast.Name)
    }
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    others = [each.arg for each in function.args.kwonlyargs]
    yield from (place for place, name in enumerate(names) if name in compared)
    yield from (name for name in (*names, *others) if name in compared)


def compares_what_no_copy_changes(
    function: Function, changed: Collection[int], module: Module, outside: Collection[int] = frozenset()
) -> bool:
    """Whether a test may compare an object of which no copy changes a constant, see `decides_elsewhere` for the rest.

    Args:
        changed: the `id` of each constant of the function that copies change.
        module: its file.
        outside: the `id` of each comparison and assertion whose values are compared outside of the sandbox.
    """
    calls = {called(node) for node in walk(function) if isinstance(node, ast.Call)}
    if calls & (module.comparing | _OF_NAMESPACES):
        return True
    test = _Test(function, changed, module, outside)
    return any(map(test.is_open, test.objects()))


@dataclass(frozen=True)
class _Held:
    """An expression that has an object.

    Attributes:
        is_itself: its value is the object; if not, it may hold the object.
        is_made: the test makes the object; if not, it has it from elsewhere.
        is_part: it is what an attribute or method of something that holds the object gives, perhaps the object.
    """

    node: ast.AST
    is_itself: bool
    is_made: bool
    is_part: bool = False

    def by(self, node: ast.AST, *, is_itself: bool | None = None) -> _Held:
        """The same object in another expression, by default in the same way."""
        return replace(self, node=node, is_itself=self.is_itself if is_itself is None else is_itself)

    @property
    def may_contain(self) -> bool:
        """Whether the value may be a container of the object."""
        return not self.is_itself or not self.is_made

    def part(self, node: ast.AST) -> _Held:
        """What an attribute or method of something that holds the object gives."""
        return replace(self, node=node, is_part=True)

    def within(self, node: ast.AST) -> _Held:
        """An expression that may hold the object in a container."""
        return replace(self, node=node, is_itself=False)


class _Test:
    """A test, of which each object is followed to where it is used."""

    def __init__(self, function: Function, changed: Collection[int], module: Module, outside: Collection[int]) -> None:
        self._changed, self._module, self._outside = changed, module, outside
        self._imports = {**module.imports, **_imports_of(function)}
        self._nodes = [node for statement in function.body for node in walk(statement)]
        self._parents = {id(child): node for node in (function, *self._nodes) for child in children(node)}
        self._inner = {node.name: node for node in self._nodes if isinstance(node, Function) and node is not function}
        functions = [node for node in self._nodes if isinstance(node, Function | ast.Lambda) and node is not function]
        self._parameters = {each.arg for one in functions for each in walk(one.args) if isinstance(each, ast.arg)}
        columns = _plain_columns(function)
        self._parameters |= columns | (module.plain - self._imports.keys())
        self._fixtures = {each.arg for each in walk(function.args) if isinstance(each, ast.arg)} - {"self", *columns}
        self._uses: dict[str, list[ast.expr]] = defaultdict(list)
        self._values: dict[str, list[ast.expr]] = defaultdict(list)
        self._computed: dict[str, bool] = {}
        for node in self._nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._uses[node.id if isinstance(node, ast.Name) else node.attr].append(node)
            for target, value in bindings(node):
                for name in _names(target):
                    self._values[name].append(value)
        self._by_kind: dict[tuple[type[ast.AST], ...], Callable[..., list[_Held] | None]] = {
            (ast.Compare,): self._compared,
            (ast.Call,): self._given,
            (ast.Attribute,): self._asked,
            (ast.Return, ast.Yield, ast.YieldFrom): self._returned,
            (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr): self._bound,
            (ast.For, ast.AsyncFor, ast.comprehension): self._iterated,
            (ast.withitem,): self._entered,
            (ast.Subscript,): self._item,
            (ast.BinOp,): self._added,
        }
        self._fallible = {
            id(inner)
            for node in self._nodes
            if isinstance(node, ast.With | ast.AsyncWith)
            if any("AssertionError" in ast.unparse(item.context_expr) for item in node.items)
            for statement in node.body
            for inner in walk(statement)
        }

    def objects(self) -> Iterator[ast.expr]:
        """The expressions that make an object of a class of the code under test, or that take one from elsewhere."""
        callees = {id(node.func) for node in self._nodes if isinstance(node, ast.Call)}
        for node in self._nodes:
            if isinstance(node, ast.expr) and id(node) not in callees and self._is_source(node):
                yield node

    def _is_source(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            if called(node) in self._module.making or called(node) == "getattr":
                return True
            return self._makes(node) and not any(map(self._computes, _arguments(node)))
        if isinstance(node, ast.Attribute):
            return self._is_taken(node)
        return isinstance(node, ast.Name) and self._is_from_elsewhere(node)

    def _is_taken(self, node: ast.Attribute) -> bool:
        """Whether an attribute of something from elsewhere is used as it is, or as a container."""
        root = _root(node)
        if root is None or not (isinstance(node.value, ast.Name) or node.attr.isupper()):
            return False
        is_own = root in self._values or root in self._inner or root in self._parameters
        parent = self._parents[id(node)]
        is_whole = not isinstance(parent, ast.Attribute)
        if isinstance(parent, ast.Attribute) and root == "self" and parent.attr in _TAKING:
            user = self._parents.get(id(self._parents.get(id(parent))))
            is_whole = parent.attr != "get" or isinstance(user, ast.Compare) or _is_assertion(user)
        return isinstance(node.ctx, ast.Load) and is_whole and not is_own and not self._is_standard(root)

    def _is_from_elsewhere(self, node: ast.Name) -> bool:
        is_own = node.id in self._values or node.id in self._inner or node.id in self._parameters
        if node.id in self._fixtures:
            return isinstance(node.ctx, ast.Load) and not isinstance(self._parents[id(node)], ast.Attribute)
        if is_own or not isinstance(node.ctx, ast.Load) or node.id in _BUILTINS or self._is_standard(node.id):
            return False
        is_whole = not isinstance(self._parents[id(node)], ast.Attribute)
        if node.id in self._imports:
            return node.id.isupper() and is_whole  # else a module, a class or a function
        if node.id == "self" or node.id.startswith("__") or not is_whole:
            return False  # attributes are looked at by themselves
        return not node.id.lstrip("_")[:1].isupper() or node.id.isupper()

    def is_open(self, made: ast.expr) -> bool:
        """Whether an object may be compared without a copy that changes a part of it."""
        if (id(made) not in self._fallible and self._is_changed(made)) or self._is_sent(made):
            return False
        followed: set[tuple[int, bool, bool]] = set()
        is_made = isinstance(made, ast.Call) and called(made) != "getattr"
        waiting = [_Held(made, is_itself=self._module.making.get(called(made), True), is_made=is_made)]
        for held in waiting:  # grows during the iteration
            if (key := (id(held.node), held.is_itself, held.is_part)) not in followed:
                followed.add(key)
                onward = self._used(held)
                if onward is None:
                    return True
                waiting += onward
        return False

    def _is_sent(self, made: ast.expr) -> bool:
        """Whether an object is, by itself or in displays, a side of what is compared outside."""
        node: ast.AST | None = made
        while node is not None and id(node) not in self._outside:
            node = self._parents.get(id(node))
            if not isinstance(node, (*_DISPLAYS, ast.Starred, ast.keyword)) and id(node) not in self._outside:
                return False
        return node is not None

    def _is_changed(self, made: ast.expr) -> bool:
        """Whether copies change an object, in each argument that is no constant too."""
        if not any(id(inner) in self._changed for inner in walk(made)):
            return False
        arguments = _arguments(made) if isinstance(made, ast.Call) else []
        return all(
            isinstance(each, ast.Constant)
            or any(id(inner) in self._changed for inner in walk(each))
            or self._is_harmless(each)
            for each in arguments
        )

    def _is_harmless(self, argument: ast.expr) -> bool:
        """Whether an argument is a class, a function or a module, or is itself followed as an object."""
        if isinstance(argument, ast.Name):
            return argument.id not in self._values and argument.id not in self._module.plain
        if isinstance(argument, ast.Attribute):
            return _root(argument) != "self" and not self._is_standard(_root(argument) or "")
        return not isinstance(argument, ast.Call) or self._makes(argument)

    def _used(self, held: _Held) -> list[_Held] | None:
        """The expressions that have the object next; None if it may be compared."""
        node, parent = held.node, self._parents.get(id(held.node))
        if parent is None or isinstance(parent, _UNUSED):
            return []
        for kinds, used in self._by_kind.items():
            if isinstance(parent, kinds):
                return used(held, parent)
        if isinstance(parent, _TRUTHS) or (isinstance(parent, ast.IfExp) and node is parent.test):
            return [] if isinstance(node, ast.expr) else None
        if isinstance(parent, ast.Set) or (isinstance(parent, ast.Dict) and node in parent.keys):
            return None if held.is_made and not held.is_part else []  # its members are compared with each other
        if isinstance(parent, (*_SAME, *_PASSING)):
            return [held.by(parent, is_itself=held.is_itself and isinstance(parent, _SAME))]
        return None

    def _bound(self, held: _Held, parent: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> list[_Held]:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        outer = [held.by(parent)] if isinstance(parent, ast.NamedExpr) else []
        return [*outer, *(use for target in targets for use in self._uses_of(target, held))]

    def _iterated(self, held: _Held, parent: ast.For | ast.AsyncFor | ast.comprehension) -> list[_Held]:
        """The items of a container; those of an object come from the code under test."""
        is_container = held.node is parent.iter and held.may_contain
        return self._uses_of(parent.target, held) if is_container else []

    def _entered(self, held: _Held, parent: ast.withitem) -> list[_Held]:
        return self._uses_of(parent.optional_vars, held) if parent.optional_vars is not None else []

    def _item(self, held: _Held, parent: ast.Subscript) -> list[_Held] | None:
        if held.node is not parent.value:
            return None if held.is_made else []  # as a key it is compared with keys
        return [held.by(parent)] if held.may_contain else []

    def _added(self, held: _Held, parent: ast.BinOp) -> list[_Held] | None:
        """A sum of lists, or of sets, which may compare; of objects, the code under test computes something."""
        if held.is_itself or held.is_part:
            return []
        return [held.by(parent)] if isinstance(parent.op, ast.Add | ast.Mult | ast.BitOr) else None

    def _returned(self, held: _Held, leaving: ast.AST) -> list[_Held]:
        """The calls of the function that a statement leaves; the test itself is not called."""
        outer: ast.AST | None = leaving
        while outer is not None and not isinstance(outer, Function):
            outer = self._parents.get(id(outer))
        if outer is None or outer.name not in self._inner:
            return []
        is_itself = held.is_itself and isinstance(leaving, ast.Return)
        parents = [self._parents[id(use)] for use in self._uses[outer.name]]
        return [held.by(call, is_itself=is_itself) for call in parents if isinstance(call, ast.Call)]

    def _compared(self, held: _Held, parent: ast.Compare) -> list[_Held] | None:
        if id(parent) in self._outside:
            return []
        if not any(isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for operator in parent.ops):
            return [] if held.is_itself or not held.is_made else None  # orders of containers compare what they hold
        is_asked = isinstance(parent.ops[0], ast.In | ast.NotIn) and held.node is parent.comparators[0]
        if is_asked and not held.may_contain:
            return []  # in which something is looked for: that is the code under test
        return [] if self._meets_constants(held, [parent.left, *parent.comparators]) else None

    def _meets_constants(self, held: _Held, sides: list[ast.expr]) -> bool:
        """Whether what may be no object is compared with literals only: then it is none."""
        others = [side for side in sides if side is not held.node]
        if not others:
            return False
        if all(isinstance(side, ast.Constant) and side.value is None for side in others):
            return True
        is_plain = all(_is_literal(side) or self._is_of_python(side) for side in others)
        return (held.is_part or not held.is_made) and is_plain

    def _is_of_python(self, node: ast.expr) -> bool:
        name = _root(node)
        return name is not None and (name in _BUILTINS or self._is_standard(name))

    def _asked(self, held: _Held, attribute: ast.Attribute) -> list[_Held] | None:
        """An attribute of an object is a value of the code under test; what holds an object may give it."""
        parent = self._parents.get(id(attribute))
        call = parent if isinstance(parent, ast.Call) and parent.func is attribute else None
        asserts = attribute.attr.startswith("assert") or attribute.attr in self._module.asserting
        if call is not None and (asserts or (self._compares(call) and call.args)):
            return None
        given = attribute if call is None else call
        if held.is_made and (not held.is_itself or attribute.attr in self._inner):
            return [held.by(given) if attribute.attr in _OF_CONTAINERS else held.part(given)]
        return [held.by(given)] if call and attribute.attr in _OF_CONTAINERS and held.may_contain else []

    def _compares(self, call: ast.Call) -> bool:
        """See `compares`; the module `operator` may have another name."""
        root = _root(call.func)
        return compares(call) or (root is not None and self._imports.get(root, ("", ""))[0] == "operator")

    def _given(self, held: _Held, call: ast.Call) -> list[_Held] | None:
        """An object that is called, or is given to a function."""
        name, node = called(call), held.node
        if node is call.func:
            return [] if held.is_itself or not held.is_made else [held.by(call)]
        if name.startswith(_JUDGING):
            return self._judged(held, call)
        hashes = name in _HASHING and held.is_made and not held.is_part and (name != "add" or self._is_of_set(call))
        is_sentinel = name == "iter" and node in call.args[1:]
        if hashes or is_sentinel or self._is_compared_by(call, node) or self._compares(call):
            return None
        if name == "setattr" and node not in call.args[:1]:
            return self._uses_of(call.args[0], held.within(node))
        if self._is_plain(call) or self._iterates(held, call):
            return []
        if name in self._inner:
            return self._used_as(_parameters(self._inner[name].args), held)
        is_class = makes_an_object(call) or self._names_a_class(call)
        if self._passes_on(call) and (held.is_made or not is_class):
            return self._passed_on(held, call)
        is_bound = isinstance(call.func, ast.Name) and name in self._values and not self._is_computed(name)
        is_nameless = not (name or self._computes(call.func))
        return None if is_bound or is_nameless or any(map(self._is_comparing, _arguments(call))) else []

    def _is_of_set(self, call: ast.Call) -> bool:
        """Whether the method of a name that is bound to a set is called."""
        values = self._values.get(_root(call.func) or "", [])
        return any(isinstance(value, ast.Set | ast.SetComp) or called(value) == "set" for value in values)

    def _iterates(self, held: _Held, call: ast.Call) -> bool:
        """Whether a function of Python asks an object for its items, which are values of the code under test."""
        name = called(call)
        is_first = held.node in call.args[:1] and (len(call.args) == 1 or name not in ("min", "max"))
        return isinstance(call.func, ast.Name) and name in _ITERATING and not held.may_contain and is_first

    def _passed_on(self, held: _Held, call: ast.Call) -> list[_Held]:
        """The result of a call, what it fills, and what functions that it is given get."""
        name = called(call)
        fills = isinstance(call.func, ast.Attribute) and name in _FILLING
        filled = [call.func.value] if fills and isinstance(call.func, ast.Attribute) else call.args[:1]
        lambdas = [each for each in _arguments(call) if isinstance(each, ast.Lambda)]
        return [
            held.by(call, is_itself=held.is_itself and name in _COPYING),
            *(use for one in filled if one is not held.node for use in self._uses_of(one, held.within(one))),
            *(use for one in lambdas for use in self._used_as(_parameters(one.args), held)),
        ]

    def _used_as(self, names: Iterable[str], held: _Held) -> list[_Held]:
        return [held.within(use) for name in names for use in self._uses[name]]

    def _is_comparing(self, node: ast.expr) -> bool:
        """Whether an argument is a function of the file that compares what it gets."""
        name = getattr(node, "attr", getattr(node, "id", ""))
        return bool(self._module.compared.get(name))

    def _is_compared_by(self, call: ast.Call, node: ast.AST) -> bool:
        """Whether a function of the file compares the argument `node`."""
        compared = self._module.compared.get(called(call), frozenset())
        if not compared or any(isinstance(each, ast.Starred) for each in call.args):
            return bool(compared)
        shift = int((_root(call.func) or "")[:1].isupper())  # of a class: the first argument is the object
        places: list[int | str] = [place - shift for place, each in enumerate(call.args) if each is node]
        return bool(compared & {*places, *(each.arg for each in call.keywords if each is node and each.arg)})

    def _judged(self, held: _Held, call: ast.Call) -> list[_Held] | None:
        """An object that is given to an assertion."""
        if id(call) in self._outside:
            return []
        name, arguments = called(call), _arguments(call)
        is_asked = name in ("assertIn", "assertNotIn") and not held.may_contain and held.node not in call.args[:1]
        if _OF_IDENTITY.match(name) or is_asked or self._meets_constants(held, arguments):
            return []
        return None if held.is_made or _EQUALITIES.match(name) else []

    def _is_plain(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute):
            return call.func.attr in _OF_TEXT
        return isinstance(call.func, ast.Name) and call.func.id in _PLAIN

    def _passes_on(self, call: ast.Call) -> bool:
        """Whether the result of a call may hold its arguments: of Python's library, of a class, of a container."""
        if makes_an_object(call) or self._names_a_class(call):
            return True
        if isinstance(call.func, ast.Name):
            return call.func.id in self._module.functions | _BUILTINS or self._is_standard(call.func.id)
        root = _root(call.func)
        if root is not None and self._is_standard(root):
            return True
        if called(call) not in _OF_CONTAINERS:
            return False
        if root is None:
            return True
        is_object = any(isinstance(value, ast.Call) and self._makes(value) for value in self._values.get(root, ()))
        return root in self._values and not is_object and not self._is_computed(root)

    def _makes(self, call: ast.Call) -> bool:
        """Whether a call makes an object of a class of the code under test, as far as its name says."""
        root = _root(call.func)
        if root is not None and (self._is_standard(root) or root in _BUILTINS):
            return isinstance(call.func, ast.Attribute) and call.func.attr == "__new__"
        if isinstance(call.func, ast.Name) and call.func.id in self._values:
            return not self._is_computed(call.func.id)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "__new__":
            return True
        return makes_an_object(call) or self._names_a_class(call)

    def _names_a_class(self, call: ast.Call) -> bool:
        """Whether a class is called by another name than its own."""
        if isinstance(call.func, ast.Name):
            return self._imports.get(call.func.id, ("", ""))[1].lstrip("_")[:1].isupper()
        if isinstance(call.func, ast.Attribute):
            return call.func.attr == "__class__"
        if called(call.func) == "getattr" and isinstance(call.func, ast.Call) and len(call.func.args) > 1:
            name = call.func.args[1]
            return isinstance(name, ast.Constant) and str(name.value).lstrip("_")[:1].isupper()
        return called(call.func) == "type"

    def _is_standard(self, name: str) -> bool:
        return is_standard(self._imports.get(name, ("", ""))[0])

    def _is_computed(self, name: str) -> bool:
        """Whether the code under test makes what a name is bound to, other than by a class."""
        if name not in self._computed:
            self._computed[name] = False  # what a name gets from itself says nothing
            self._computed[name] = any(map(self._computes, self._values[name]))
        return self._computed[name]

    def _computes(self, value: ast.expr) -> bool:
        """Whether an expression calls the code under test, other than a class."""
        return any(
            isinstance(node, ast.Call)
            and bool(called(node))
            and not (self._is_plain(node) or self._passes_on(node) or self._makes(node) or called(node) in self._inner)
            for node in walk(value)
        )

    def _uses_of(self, target: ast.expr, held: _Held) -> list[_Held]:
        is_itself = held.is_itself and isinstance(target, ast.Name | ast.Attribute)
        found = [held.by(use, is_itself=is_itself) for name in _names(target) for use in self._uses[name]]
        root = _root(target)
        if isinstance(target, ast.Attribute) and root not in (None, "self", "cls"):
            found += [held.within(use) for use in self._uses[root or ""]]
        return found


def _names(target: ast.expr) -> Iterator[str]:
    """The names and attributes that a target sets, or fills."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _names(each)


def _parameters(arguments: ast.arguments) -> list[str]:
    return [each.arg for each in walk(arguments) if isinstance(each, ast.arg)]


def _is_assertion(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and called(node).startswith(_JUDGING)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _root(node: ast.expr) -> str | None:
    """The name with which a chain of attributes begins."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
