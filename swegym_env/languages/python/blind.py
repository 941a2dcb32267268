"""Blind expectations for Python: hidden tests whose expected values are not inside the sandbox.

`assert area(2, 3) == 6` becomes a call that sends the value of `area(2, 3)` out of the sandbox. The 6 stays outside and
is compared there. Code that does not know the 6 cannot send it, whatever else it does to the test, the runner and the
interpreter.

The syntax tree is searched for assertions of pytest and unittest (and similar ones of Django and NumPy) that compare
with a constant expression (`constants.fold`). The search covers the tests of FAIL_TO_PASS and the functions of the same
file that they call. A constant may be written in the assertion, be assigned to a name, be in a column of `parametrize`
or in the list of a loop, or be an argument of a function that compares it. A constant that is only used for comparisons
is replaced by a placeholder. A constant that is also used for something else is kept, because the code would fail
without it; its assertion is not rewritten, or counts no bits (see `grading.bits`). Line numbers stay the same.

The class of a builtin error that a block raises is sent as well. Conditions in which all values are computed
(`assertNotEqual`, `assertGreater`, `assertEqual(parse(x), Point(3, 4))`) and errors of other classes stay in the test,
which also sends the values that they compare. With `computed` the test checks none of them: one side of an equality is
sent, and the other is removed from the test. Everything in the files that these tests do not need is then removed.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swegym_env.languages import Blinded, Comparison, Expectation, Placeholder, drawn_word
from swegym_env.languages.caching import cached_for_task
from swegym_env.languages.python.conditions import Condition, conditions_of, decides_elsewhere, truth_of
from swegym_env.languages.python.constants import NotConstantError, fold, names_in
from swegym_env.languages.python.controls import _spliced
from swegym_env.languages.python.parsing import children, parse, walk
from swegym_env.languages.python.questions import (
    COMPREHENSIONS,
    COUNTING,
    MOST_FOUND,
    asked,
    equalities_of,
    holders,
    keys,
    questions_of,
    value_of,
    variables_of,
)
from swegym_env.languages.python.source import begin_of, code_of, first_statement, lines_of, names_of, place_of

__all__ = ["make_blind"]

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SENDER = Path(__file__).with_name("inside") / "swegym_blind.py"

_EQUAL = frozenset(
    (
        *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual"),
        *("assertSequenceEqual", "assertMultiLineEqual", "eq_"),
    )
)
_COUNTED = frozenset({"assertCountEqual", "assertItemsEqual"})
_QUERYSETS = frozenset({"assertQuerysetEqual", "assertQuerySetEqual"})
_MESSAGES: Mapping[str, tuple[Comparison, str]] = {
    "assertRaisesMessage": ("in", "assertRaises"),
    "assertRaisesRegex": ("search", "assertRaises"),
    "assertRaisesRegexp": ("search", "assertRaises"),
}
_SYMBOLS = frozenset({"symbols", "Symbol", "Function", "var", "MatrixSymbol", "IndexedBase", "Idx"})
# SymPy functions that print an expression; their results are compared by structure.
_SYMPY = frozenset(
    (
        *("S", "pi", "oo", "I", "E", "zoo", "nan", "GoldenRatio", "EulerGamma", "sqrt", "cbrt", "root", "Rational"),
        *("Integer", "Float", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
        *("asinh", "acosh", "atanh", "exp", "log", "ln", "Abs", "sign", "gamma", "factorial", "binomial", "Add", "Mul"),
        *("Pow", "Matrix", "ImmutableMatrix", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not", "Piecewise"),
        *("Interval", "FiniteSet", "Tuple", "Union", "Intersection", "EmptySet", "Derivative", "Integral", "Sum"),
        *("Product", "Max", "Min", "re", "im", "conjugate", "true", "false", "erf", "zeta", "polylog", "Heaviside"),
    )
)
_OPAQUE = frozenset({"Decimal", "Fraction", "Path", "PurePath", "UUID", "Symbol", "Function", "Q", "F", "Matrix", "S"})
_PLAIN = frozenset({"isinstance", "hasattr", "issubclass", "callable"})  # not secret which result is expected
_TOLERANCES = {"rel_tol": "rtol", "abs_tol": "atol"}
# Assertions of numpy.testing → parameters by position, tolerances.
_ARRAYS: Mapping[str, tuple[tuple[str, ...], Mapping[str, float]]] = {
    "assert_array_equal": (("x", "y"), {}),
    "assert_equal": (("actual", "desired"), {}),
    "assert_allclose": (("actual", "desired", "rtol"), {"rtol": 1e-7, "atol": 0.0}),
    "assert_almost_equal": (("actual", "desired", "decimal"), {"decimal": 7.0}),
    "assert_array_almost_equal": (("x", "y", "decimal"), {"decimal": 6.0}),
    "assert_approx_equal": (("actual", "desired", "significant"), {"significant": 7.0}),
}
# Search functions → prefix and suffix that turn their pattern into an equivalent pattern of `re.search`.
_SEARCHES = {"re.search": ("", ""), "re.match": (r"\A(?:", ")"), "re.fullmatch": (r"\A(?:", r")\Z")}
_METHODS: Mapping[str, Comparison] = {"startswith": "start", "endswith": "end"}
_HARMLESS_CALLS = frozenset({"subTest", "print"})
# Assertions whose compared values are all computed, and those that check only their first argument.
_CONDITIONS = frozenset(
    (
        *("assertNotEqual", "assertNotEquals", "assertGreater", "assertGreaterEqual", "assertLess", "assertLessEqual"),
        *("assertIs", "assertIsNot", "assertIn", "assertNotIn", "assertCountEqual", "assertItemsEqual", "assert_equal"),
        *("assert_array_equal", "assert_allclose", "assertAlmostEqual", "assertNotAlmostEqual", "assert_not_equal"),
    )
)
_ONE_VALUE = frozenset(
    (
        *("assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone", "assertIsInstance", "assertNotIsInstance"),
        *("assertRegex", "assertNotRegex"),
    )
)
_COMPARING = frozenset({"count", "index", "__eq__", "__ne__"})  # methods that compare with their argument
_COUNTING = frozenset({"all", "any", "sum", "bool", "int", "len", "min", "max", "next", "list", "filter"})
_FINDING = frozenset(
    {"all", "any", "search", "match", "fullmatch", "findall", "finditer", "find", "startswith", "endswith"}
)
_ENDING = re.compile("raise|warn|fail", re.IGNORECASE)  # what such calls check is not a value
_JUDGING = re.compile(
    r"_*(assert|raises|warns|fail|deprecated_call|fnmatch|no_fnmatch|re_match|no_re_match|check|verify|expect|compare)",
    re.IGNORECASE,
)
_SCOPED = (*_Function.__args__, ast.Lambda, ast.ClassDef, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
_MISSING: Any = object()


@dataclass
class _Binding:
    """One binding of a name to a value."""

    kind: str  # "assign", "loop", "parameter", "unpacked", "definition", "other"
    value: ast.expr | None = None
    column: int | None = None
    function: _Function | None = None


@dataclass
class _Scope:
    """A scope of names: the bindings, and where the names are read."""

    node: ast.AST
    parent: _Scope | None
    bindings: dict[str, list[_Binding]] = field(default_factory=dict)
    loads: dict[str, list[ast.Name]] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)

    def find(self, name: str) -> _Scope | None:
        """The scope that binds `name` as it is read here."""
        scope: _Scope | None = self
        while scope is not None:
            visible = scope is self or not isinstance(scope.node, ast.ClassDef)
            if visible and name in scope.bindings and name not in scope.outer:
                return scope
            scope = scope.parent
        return None


@dataclass
class _Site:
    """A comparison: `actual` of some `kind` with `expected`, at the span of `node`."""

    node: ast.expr
    kind: Comparison
    actual: str  # source of the value that is sent
    expected: ast.expr
    form: str = "test"  # form of the rewritten expression: "test", "call", "raises", "raised", "beside"
    method: str = ""  # "call": source of the method; "raises": source without the message
    swapped: bool = False
    options: Mapping[str, float] = field(default_factory=dict)
    tail: str = ""
    message: ast.expr | None = None
    function: str = ""
    parts: list[ast.expr] = field(default_factory=list)  # "beside": the expressions that are sent, in place
    searched: ast.expr | None = None  # the argument of `re.search` that is sent
    is_negated: bool = False  # whether `node` has to be false


def make_blind(
    files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
) -> Blinded | None:
    """See `Language.make_blind`. Files that do not parse are left as they are."""
    choice = random.Random(seed)
    wanted = tuple(names)
    mark = f"_{drawn_word(choice)}"
    directory = f"/tmp/.{drawn_word(choice)}"
    output, sender = f"{directory}.out", f"{directory}.py"
    changed: dict[str, str] = {}
    expectations: dict[str, Expectation] = {}
    placeholders: dict[str, Placeholder] = {}
    unread: set[str] = set()
    for path, text in sorted(files.items()):
        if not path.endswith(".py"):
            continue
        try:
            source = copy.copy(_read(path, text, wanted, left, computed))
            source.begin(choice, mark)
        except (SyntaxError, ValueError, RecursionError):
            continue
        rewritten = source.rewrite(sender, output)
        unread |= source.open_tests()
        if source.expectations or (computed and rewritten != text):
            changed[path] = rewritten
            expectations |= source.expectations
            placeholders |= source.placeholders
    if not expectations:
        return None
    support = {sender: _SENDER.read_text(encoding="utf-8")}
    return Blinded(changed, support, output, expectations, placeholders, frozenset(unread))


class _File:
    """One test file, its comparisons and their rewriting."""

    def __init__(self, path: str, text: str, names: tuple[str, ...], left: frozenset[str], computed: bool) -> None:
        self.path, self.text, self.left = path, text, left
        self.computed, self._names = computed, names
        self.tree = parse(text)
        self._parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, _Scope] = {}
        self._scope_of: dict[ast.AST, _Scope] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        self._imported = {
            alias.asname or alias.name: node.module
            for node in walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module and not node.level
            for alias in node.names
        }
        self._lines = lines_of(text)
        self._read_scopes()
        self._tests = self._find_tests(names)
        self._noted = list(self._find_comments())
        self._keyed = {} if computed else dict(self._find_keyed())
        self._holders = () if computed else (*self._find_asked(), *self._keyed)

    def begin(self, choice: random.Random, mark: str) -> None:
        """Choose the random tokens of a rewriting. Copies of a file that share its analysis are made before this."""
        self.choice, self.mark = choice, mark
        self._scope_of = dict(self._scope_of)  # sites add their own nodes
        self.expectations: dict[str, Expectation] = {}
        self.placeholders: dict[str, Placeholder] = {}
        self._asked = {holder: drawn_word(choice) for holder in self._holders}
        self._sites = [site for function in self._tests for site in self._sites_in(function)]
        self._dynamic: dict[tuple[int, str], bool] = {}
        self._partly: set[str] = set()  # places of assertions that are partly compared inside the sandbox

    # Names

    def _read_scopes(self) -> None:
        module = _Scope(self.tree, None)
        self._scopes[self.tree] = module
        waiting: list[tuple[ast.AST, _Scope]] = [(self.tree, module)]
        reads: list[tuple[ast.Name, _Scope]] = []
        for node, scope in waiting:  # grows during the iteration
            self._scope_of[node] = scope
            inner = scope
            if isinstance(node, _SCOPED):
                inner = self._scopes[node] = _Scope(node, scope)
            self._bind(node, scope, inner)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                reads.append((node, scope))
            elif isinstance(node, ast.Call):
                self._calls.setdefault(_called(node), []).append(node)
            for child in children(node):
                self._parents[child] = node
                # Decorators, defaults and bases are evaluated outside of the definition that they belong to.
                outside = isinstance(node, _Function | ast.ClassDef) and child not in node.body
                waiting.append((child, scope if outside and not isinstance(child, ast.arguments) else inner))
        for name, scope in reads:
            found = scope.find(name.id)
            if found is not None:
                found.loads.setdefault(name.id, []).append(name)

    def _bind(self, node: ast.AST, scope: _Scope, inner: _Scope) -> None:
        def bind(where: _Scope, name: str, binding: _Binding) -> None:
            where.bindings.setdefault(name, []).append(binding)

        if isinstance(node, ast.Global | ast.Nonlocal):
            scope.outer.update(node.names)
            for name in node.names:
                outermost = self._scopes[self.tree]
                bind(outermost, name, _Binding("other"))
        elif isinstance(node, _Function | ast.ClassDef):
            bind(scope, node.name, _Binding("definition"))
        elif isinstance(node, ast.arg):
            function = self._parents.get(self._parents[node])
            kind = "parameter" if isinstance(function, _Function) else "other"
            bind(inner, node.arg, _Binding(kind, function=function if isinstance(function, _Function) else None))
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bind(scope, node.id, self._binding_of(node))
        elif isinstance(node, ast.alias):
            bind(scope, (node.asname or node.name).split(".")[0], _Binding("definition"))
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bind(scope, node.name, _Binding("other"))

    def _binding_of(self, name: ast.Name) -> _Binding:
        parent = self._parents[name]
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            return _Binding("assign", parent.value)
        if isinstance(parent, ast.AnnAssign) and parent.value is not None:
            return _Binding("assign", parent.value)
        if isinstance(parent, ast.For) and parent.target is name:
            return _Binding("loop", parent.iter)
        if isinstance(parent, ast.Tuple | ast.List):
            loop = self._parents[parent]
            if isinstance(loop, ast.For) and loop.target is parent:
                return _Binding("loop", loop.iter, parent.elts.index(name))
            if isinstance(loop, ast.Assign) and len(loop.targets) == 1 and isinstance(loop.value, ast.Call):
                return _Binding("unpacked", loop.value)
            if isinstance(loop, ast.Assign) and len(loop.targets) == 1 and isinstance(loop.value, ast.Tuple | ast.List):
                values = loop.value.elts
                starred = any(isinstance(item, ast.Starred) for item in (*values, *parent.elts))
                if len(values) == len(parent.elts) and not starred:
                    return _Binding("assign", values[parent.elts.index(name)])
        return _Binding("other")

    def _find_tests(self, names: tuple[str, ...]) -> dict[_Function, frozenset[str]]:
        """The tests called `names` and the functions of this file that they call → test names that each belongs to."""
        functions: dict[str, list[_Function]] = {}
        found: dict[_Function, set[str]] = {}
        waiting: list[tuple[tuple[str, ...], ast.stmt]] = [((), statement) for statement in self.tree.body]
        places = {name: place_of(name) for name in names}
        heirs = self._heirs()
        for classes, statement in waiting:  # grows during the iteration
            if isinstance(statement, ast.ClassDef):
                waiting += [((*classes, statement.name), inner) for inner in statement.body]
            elif isinstance(statement, ast.If | ast.Try | ast.With):
                waiting += [(classes, inner) for inner in statement.body]
            elif isinstance(statement, _Function):
                functions.setdefault(statement.name, []).append(statement)
                homes = [classes, *((*classes[:-1], heir) for heir in heirs.get(classes[-1:], ()))]
                fitting = names_of(statement, places, self.path, *homes)
                if fitting:
                    found[statement] = {*fitting}
        queue = list(found)
        for function in queue:  # grows during the iteration
            for node in walk(function):
                name = _called(node) if isinstance(node, ast.Call) else ""
                for helper in functions.get(name, ()):
                    if helper.name.startswith("test"):
                        continue
                    missing = found[function] - found.setdefault(helper, set())
                    if missing:
                        found[helper] |= missing
                        queue.append(helper)
        return {function: frozenset(names) for function, names in found.items()}

    def _heirs(self) -> dict[tuple[str, ...], list[str]]:
        """Class of this file → its direct and indirect subclasses in this file."""
        bases = {
            node.name: [getattr(base, "id", "") for base in node.bases]
            for node in self.tree.body
            if isinstance(node, ast.ClassDef)
        }
        found: dict[tuple[str, ...], list[str]] = {}
        for name, direct in bases.items():
            above = list(direct)
            for one in above:  # grows during the iteration
                found.setdefault((one,), []).append(name)
                above += [other for other in bases.get(one, ()) if other not in above]
        return found

    def _find_asked(self) -> Iterator[ast.expr]:
        """The computed values in which conditions look something up (`questions`); they are sent in addition."""
        for function in self._tests:
            variables = variables_of(function)
            for condition in (one for node in walk(function) for one in questions_of(node)):
                for holder in holders(condition, variables):
                    if f"{self._place(holder)}?" not in self.left:
                        yield holder

    def _find_keyed(self) -> Iterator[tuple[ast.expr, object]]:
        """Each computed value that an equality reads under a key (`questions.keys`), with that key."""
        for function in self._tests:
            variables = variables_of(function)
            for sides in (one for node in walk(function) for one in equalities_of(node)):
                for key, holder in keys(sides, variables)[:1]:
                    if f"{self._place(holder)}?" not in self.left:
                        yield holder, value_of(key, variables)

    # Comparisons

    def _sites_in(self, function: _Function) -> Iterator[_Site]:
        for node in walk(function):
            found: list[_Site] = []
            conditions = list(self._conditions_at(node, function))
            if isinstance(node, ast.Assert):
                found = list(self._conditions(node.test))
                parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
                if found and len(found) == len(parts):
                    found[0].message = node.msg
            elif isinstance(node, ast.Expr):
                value = node.value.value if isinstance(node.value, ast.Await) else node.value
                if isinstance(value, ast.Call) and (not conditions or _called(value) in ("assertTrue", "assertFalse")):
                    found = list(self._called_sites(value))
            elif isinstance(node, ast.With | ast.AsyncWith):
                for item in node.items:
                    sites = list(self._expected_errors(item.context_expr, ""))
                    found += sites or self._raised(item)
            if self.computed:
                found = [site for site in found if not any(map(self._tells_equal, _judged(site.node)))]
            compared = {id(site.node) for site in found}
            for condition in conditions:
                if compared.isdisjoint(map(id, walk(condition.whole))):
                    found += self._computed_condition(condition)
            found = found or list(self._computed_sites(node))
            for site in found:
                site.function = function.name
                if site.form != "beside" and self._is_loose(site, function):
                    site.options = {**site.options, "loose": 1.0}
                yield site

    def _is_loose(self, site: _Site, function: _Function) -> bool:
        """Whether more than one value, or more than one error, may pass.

        This holds if the sent value is itself the result of a search, of a comparison or of a lookup (`questions`).
        """
        if site.form == "raises":  # the test contains its class
            return True
        sent = [part for part in _judged(site.node) or [site.node] if part is not site.expected]
        sent = [site.searched] if site.searched is not None else sent
        calls = [node for part in sent for node in walk(part) if isinstance(node, ast.Call)]
        little = self._tells_little(site.expected)
        variables = variables_of(function)
        return (
            any(isinstance(node, ast.Compare) for part in sent for node in walk(part))
            or any(map(self._tells_equal, sent))
            or any(_called(call) in _COMPARING | _FINDING for call in calls)
            or any(self._is_object(value, little) for call in calls for value in call.args)
            or (
                (site.kind == "gold" or self._says_found(site.expected, calls))
                and any(asked(one, variables) for one in sent)
            )
        )

    def _says_found(self, expected: ast.expr, calls: list[ast.Call]) -> bool:
        """Whether the expected value may only say that something was found: True, or the number of matches."""
        try:
            value = fold(expected, self._constants_of(expected))
        except NotConstantError:
            return True
        counts = any(_called(call) in COUNTING for call in calls)
        return value is True or (counts and type(value) is int and 1 <= value <= MOST_FOUND)

    def _tells_little(self, expected: ast.expr) -> bool:
        """Whether the expected value may be the result of a comparison: a truth value, None, or an integer near 0."""
        try:
            value = fold(expected, self._constants_of(expected))
        except NotConstantError:
            return True  # the value depends on the case
        return value is None or (isinstance(value, int) and abs(value) <= 1)

    def _is_object(self, node: ast.expr, little: bool) -> bool:
        """Whether an argument constructs an object to compare with, or is a name bound to one.

        A number type of the standard library is treated like `1.5` and does not count, unless the result may be that of
        a comparison.
        """
        if isinstance(node, ast.Name):
            scope = self._scope_of[node].find(node.id)
            values = [binding.value for binding in scope.bindings[node.id]] if scope is not None else []
            return any(isinstance(value, ast.Call) and self._is_object(value, little) for value in values)
        return _called_or_none(node)[:1].isupper() and (little or not self._is_number(node))

    def _is_defined(self, name: ast.Name) -> bool:
        """Whether a name is bound only by imports and definitions, or not at all in this file."""
        scope = self._scope_of[name].find(name.id)
        return scope is None or all(binding.kind == "definition" for binding in scope.bindings[name.id])

    def _is_number(self, node: ast.expr) -> bool:
        """Whether this constructs a number of the standard library from constants, which is an argument like `1.5`."""
        if not isinstance(node, ast.Call) or not all(map(self._is_constant, node.args)) or node.keywords:
            return False
        where = getattr(getattr(node.func, "value", None), "id", self._imported.get(getattr(node.func, "id", "")))
        return (where, _called(node)) in (("decimal", "Decimal"), ("fractions", "Fraction"))

    def _conditions(self, test: ast.expr) -> Iterator[_Site]:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                yield from self._conditions(part)
        elif isinstance(test, ast.Name) and (bound := self._truth_of(test)) is not None:
            yield from self._conditions(bound)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right, kind = test.left, test.comparators[0], test.ops[0]
            if isinstance(kind, ast.Eq):
                yield from self._equal(test, left, right)
            elif isinstance(kind, ast.Is) and isinstance(right, ast.Constant):
                yield _Site(test, "is", self._source(left), right)
            elif isinstance(kind, ast.In):
                if self._could_be_constant(left):
                    yield _Site(test, "in", self._source(right), left)
                elif self._could_be_constant(right):
                    yield _Site(test, "of", self._source(left), right)
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and _called(test) in _METHODS:
            if len(test.args) != 1 or test.keywords:
                return
            if self._could_be_constant(test.args[0]):
                yield _Site(test, _METHODS[_called(test)], self._source(test.func.value), test.args[0])
        elif (close := self._closeness(test) or self._pattern_search(test, test)) is not None:
            yield close
        else:
            yield from self._truth(test, test, expected=True)

    def _computed_sites(self, node: ast.AST) -> Iterator[_Site]:
        """Conditions whose values are all computed: the gold patch's values are the expected ones."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call, name = node.value, _called(node.value)
            if self._is_helper(call) or (not self.computed and _ENDING.search(name)):
                return  # assertions of a helper are rewritten in the helper
            if not _JUDGING.match(name) or any(isinstance(part, ast.Starred) for part in call.args):
                return
            if name in ("assertTrue", "assertFalse") and call.args:
                return
            parts = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "msg")]
            if name in _EQUAL or name in _CONDITIONS:
                parts = call.args[:2]
            elif name in _ONE_VALUE:
                parts = call.args[:1]
            elif isinstance(call.func, ast.Attribute) and not isinstance(call.func.value, ast.Name):
                parts = [call.func.value, *parts]  # a method call whose object is the checked value
            parts = [part for part in parts if not isinstance(part, ast.Lambda)]
            if any(not self._is_constant(part) for part in parts) and not any(map(self._tells_equal, parts)):
                yield self._computed(call, parts, one_side=name in _EQUAL)

    def _conditions_at(self, node: ast.AST, function: _Function) -> Iterator[Condition]:
        """The conditions that a statement checks; those that `or` joins apart. A helper checks its own."""
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(node, ast.stmt) or (isinstance(call, ast.Call) and self._is_helper(call)):
            return
        for one in conditions_of(node, function):
            if isinstance(one.node, ast.BoolOp) and one.whole is one.node:
                yield from (dataclasses.replace(one, node=value, whole=value) for value in one.node.values)
            else:
                yield one

    def _is_helper(self, call: ast.Call) -> bool:
        return any(helper.name == _called(call) for helper in self._tests)

    def _truth_of(self, name: ast.Name) -> ast.expr | None:
        """The condition that a name stands for, if it is bound to one."""
        bound = truth_of(name, self._scope_of[name].node) if name in self._scope_of else None
        return bound.value if bound is not None else None

    def _computed_condition(self, condition: Condition) -> Iterator[_Site]:
        """The values that a condition compares; its truth value alone could come from any `__eq__` of the patch."""
        parts: list[ast.expr] = []
        one_side = False
        waiting = [(condition.node, condition.holds)]
        for part, truth in waiting:  # grows during the iteration
            if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
                waiting.append((part.operand, not truth))
            elif isinstance(part, ast.BoolOp):
                waiting += [(value, truth) for value in part.values]
            elif isinstance(part, ast.Compare):
                parts += [part.left, *part.comparators]
                one_side = len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq if truth else ast.NotEq)
            else:
                parts.append(part)
        if not any(map(self._tells_equal, parts)) and any(not self._is_constant(part) for part in parts):
            site = self._computed(condition.whole, parts, one_side=one_side)
            yield dataclasses.replace(site, is_negated=condition.is_negated)

    def _tells_equal(self, node: ast.expr, depth: int = 0) -> bool:
        """Whether a value is the truth value or the count of comparisons, which an `__eq__` of the patch decides."""
        if isinstance(node, ast.Name):
            scope = self._scope_of[node].find(node.id) if node in self._scope_of else None
            bindings = scope.bindings[node.id] if scope is not None else []
            values = [binding.value for binding in bindings if binding.kind == "assign" and binding.value is not None]
            return depth < 5 and any(self._tells_equal(value, depth + 1) for value in values)
        if isinstance(node, ast.Compare):
            return not all(isinstance(kind, ast.Is | ast.IsNot) for kind in node.ops)
        if isinstance(node, ast.Call) and _called(node) in _COMPARING:
            return any(not self._is_constant(part) for part in node.args)
        if isinstance(node, ast.Call) and _called(node) in _COUNTING:
            compared = any(isinstance(inner, ast.Compare) for part in node.args for inner in walk(part))
            return compared or any(self._tells_equal(part, depth) for part in node.args)
        if isinstance(node, COMPREHENSIONS):
            compares = [inner for inner in walk(node) if isinstance(inner, ast.Compare) and self._tells_equal(inner)]
            return not all(any(map(self._is_constant, (one.left, *one.comparators))) for one in compares)
        inner: list[ast.expr] = []
        if isinstance(node, ast.UnaryOp):
            inner = [node.operand]
        elif isinstance(node, ast.BoolOp):
            inner = node.values
        elif isinstance(node, ast.BinOp):
            inner = [node.left, node.right]
        elif isinstance(node, ast.IfExp):
            inner = [node.test, node.body, node.orelse]
        return any(self._tells_equal(part, depth) for part in inner)

    def _computed(self, node: ast.expr, parts: list[ast.expr], *, one_side: bool) -> _Site:
        """A condition of computed values.

        Of an equality, the side that looks less like an expected value is sent, or the other one if "~" is noted for
        the place. If not `computed`, the test still checks the condition, and the compared values are sent in addition.
        Option "given": the code under test may have received the expected value before it computed the first part.
        Option "either": each part may be the expected one.
        """
        computed = [part for part in parts if not self._is_constant(part)]
        if not self.computed:
            nothing = ast.copy_location(ast.Constant(None), node)
            options = {"checked": 1.0, "beside": 1.0}
            later = [part for part in parts if part is not computed[0]]
            names = [name for part in later for name in walk(part) if isinstance(name, ast.Name)]
            if not all(map(self._is_defined, names)):
                options["given"] = 1.0
            if len(computed) > 1 and (_is_written_out(computed[0]) or not all(map(_is_written_out, computed[1:]))):
                options["either"] = 1.0
            if one_side and len(computed) == len(parts) == 2:
                options["equal"] = 1.0
            return _Site(node, "gold", "", nothing, form="beside", options=options, parts=computed)
        if one_side and len(parts) == 2:
            other = _looks_expected(parts[0]) and not _looks_expected(parts[1])
            if f"{self._place(node)}~" in self.left:
                other = not other
            sent, expected = parts[::-1] if other else parts
            return _Site(node, "gold", self._source(sent), expected, options={"sides": 2.0})
        sent_parts = [self._source(part) for part in computed]
        return _Site(node, "gold", f"[{', '.join(sent_parts)}]", ast.copy_location(ast.Constant(None), node))

    def _raised(self, item: ast.withitem) -> Iterator[_Site]:
        """The error that a block raises, if only its class is expected.

        The name of a builtin class is removed from the test; with `computed`, so is the name of any other class.
        Otherwise the test still checks the class of an error that is not builtin ("checked"): two classes may have the
        same name, and a repair may define the class in another place than the gold patch.
        """
        call = item.context_expr
        if not isinstance(call, ast.Call) or _called(call) not in ("raises", "assertRaises"):
            return
        kind = getattr(builtins, getattr(call.args[0], "id", ""), None) if call.args else None
        builtin = isinstance(kind, type) and issubclass(kind, BaseException)
        if len(call.args) == 1 and not call.keywords:
            options = {} if self.computed or builtin else {"checked": 1.0}
            method = self._source(call.func)
            yield _Site(call, "raised", "", call.args[0], form="raised", method=method, options=options)

    def open_tests(self) -> set[str]:
        """The tests with an assertion, or a statement that looks like one, that was not rewritten completely."""
        rewritten = {expectation.place for expectation in self.expectations.values()} - self._partly
        found: set[str] = set()
        for function, names in self._tests.items():
            read: list[ast.expr] = []
            for node in walk(function):
                inner = [one.whole for one in self._conditions_at(node, function)]
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not inner:
                    read += [node.value] if _is_judging(node.value) else []
                    inner = [node.value] if _is_judging(node.value) and not self._is_helper(node.value) else []
                elif isinstance(node, ast.With | ast.AsyncWith):
                    inner = [
                        item.context_expr for item in node.items if _JUDGING.match(_called_or_none(item.context_expr))
                    ]
                read += inner
                for part in inner:
                    if not self._places(part) & rewritten:
                        found |= names
            if decides_elsewhere(function, read):
                found |= names
        return found

    def _places(self, node: ast.expr) -> set[str]:
        return {self._place(piece) for piece in walk(node) if isinstance(piece, ast.expr)}

    def _truth(self, node: ast.expr, value: ast.expr, *, expected: bool) -> Iterator[_Site]:
        """A truth value that is not a comparison; whether True or False is expected is one bit."""
        while isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
            value, expected = value.operand, not expected
        if (self.computed and self._tells_equal(value)) or (isinstance(value, ast.Name) and self._truth_of(value)):
            return
        if (
            isinstance(value, ast.Call | ast.Attribute | ast.Name | ast.Subscript)
            and _called_or_none(value) not in _PLAIN
        ):
            wanted = ast.copy_location(ast.Constant(expected), node)
            yield _Site(node, "is", f"bool({self._source(value)})", wanted)

    def _closeness(self, test: ast.expr) -> _Site | None:
        """`np.allclose(a, CONSTANT)`, `np.all(a == CONSTANT)` and `(a == CONSTANT).all()`."""
        if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Attribute):
            return None
        name, arguments = test.func.attr, test.args
        if name in ("allclose", "isclose") and len(arguments) == 2:
            options = self._numbers(test.keywords, ("rtol", "atol", "rel_tol", "abs_tol"))
            if options is None or not self._is_constant(arguments[1]) or self._is_constant(arguments[0]):
                return None
            renamed = {_TOLERANCES.get(key, key): value for key, value in options.items()}
            standard = {"rtol": 1e-5, "atol": 1e-8} if name == "allclose" else {"rtol": 1e-9, "atol": 0.0}
            return _Site(test, "close", self._source(arguments[0]), arguments[1], options=standard | renamed)
        inner = arguments[0] if name == "all" and len(arguments) == 1 else test.func.value if name == "all" else None
        if isinstance(inner, ast.Compare) and len(inner.ops) == 1 and isinstance(inner.ops[0], ast.Eq):
            left, right = inner.left, inner.comparators[0]
            if not test.keywords and self._is_constant(right) and not self._is_constant(left):
                return _Site(test, "close", self._source(left), right, options={"rtol": 0.0, "atol": 0.0})
        return None

    def _pattern_search(self, node: ast.expr, test: ast.expr) -> _Site | None:
        """`re.search(PATTERN, text)`, and `re.match` and `re.fullmatch` with a literal pattern."""
        if not isinstance(test, ast.Call) or ast.unparse(test.func) not in _SEARCHES:
            return None
        if len(test.args) != 2 or test.keywords or not self._is_constant(test.args[0]):
            return None
        pattern, searched = test.args
        begin, end = _SEARCHES[ast.unparse(test.func)]
        if begin and not isinstance(pattern, ast.Constant):
            return None
        value = fold(pattern, self._constants_of(pattern))
        if not isinstance(value, str) or self._is_constant(searched):
            return None
        if begin:
            pattern = ast.copy_location(ast.Constant(f"{begin}{value}{end}"), pattern)
        return _Site(node, "search", self._source(searched), pattern, searched=searched)

    def _equal(self, test: ast.expr, left: ast.expr, right: ast.expr) -> Iterator[_Site]:
        for actual, expected in ((left, right), (right, left)):
            if isinstance(expected, ast.Call) and _called(expected) == "approx" and expected.args:
                options = self._numbers(expected.keywords, ("rel", "abs"))
                if len(expected.args) == 1 and options is not None and self._is_constant(expected.args[0]):
                    yield _Site(test, "approx", self._source(actual), expected.args[0], options=options)
                return
        for actual, expected in ((left, right), (right, left)):
            fits = self._could_be_constant(expected) or self._holds_constants(expected)
            written = self._is_expression(expected) and not self._is_constant(expected)
            if fits and not written and self._may_differ(actual):
                yield _Site(test, "eq", self._source(actual), expected)
                return
        for actual, expected in ((left, right), (right, left)):
            if self._is_expression(expected) and not self._is_expression(actual):
                yield _Site(test, "same", self._source(actual), expected)
                return

    def _called_sites(self, call: ast.Call) -> Iterator[_Site]:  # noqa: C901, PLR0912 - one case per assertion
        name, arguments = _called(call), call.args
        if any(isinstance(item, ast.Starred) for item in arguments):
            return
        if isinstance(call.func, ast.Name) and name != "eq_" and name not in _ARRAYS:
            return
        plain = {str(keyword.arg) for keyword in call.keywords} <= {"msg"}
        method = self._source(call.func)
        if name in _EQUAL and len(arguments) >= 2 and plain:
            left, right = arguments[:2]
            for actual, expected, swapped in ((left, right, False), (right, left, True)):
                fits = self._could_be_constant(expected) or self._holds_constants(expected)
                if name == "assertSequenceEqual" and self._is_constant(expected) and not self._is_constant(actual):
                    yield _Site(call, "rows", f"list({self._source(actual)})", expected)
                    return
                if fits and self._may_differ(actual):
                    yield _Site(call, "eq", self._source(actual), expected, form="call", method=method, swapped=swapped)
                    return
        elif name in _COUNTED and len(arguments) >= 2 and plain and self._is_constant(arguments[1]):
            yield _Site(call, "count", f"list({self._source(arguments[0])})", arguments[1])
        elif name == "assertTrue" and arguments and plain:
            found = list(self._conditions(arguments[0]))
            if found and not isinstance(arguments[0], ast.BoolOp):
                yield found[0]
        elif name == "assertFalse" and arguments and plain:
            yield from self._truth(call, arguments[0], expected=False)
        elif name in _ARRAYS and len(arguments) >= 2:
            known, standard = _ARRAYS[name]
            options = self._numbers([k for k in call.keywords if k.arg not in ("err_msg", "verbose")], tuple(standard))
            if len(arguments) == 3 and len(known) > 2:
                options = self._numbers([ast.keyword(known[2], arguments[2])], tuple(standard))
            for actual, expected in ((arguments[0], arguments[1]), (arguments[1], arguments[0])):
                if options is not None and self._is_constant(expected) and not self._is_constant(actual):
                    chosen = {**standard, **options}
                    yield _Site(call, "close", self._source(actual), expected, options=chosen)
                    return
        elif name == "assertIsNotNone" and arguments and plain:
            if (search := self._pattern_search(call, arguments[0])) is not None:
                yield search
        elif name == "assertIsNone" and arguments and plain:
            yield _Site(call, "is", self._source(arguments[0]), ast.copy_location(ast.Constant(None), arguments[0]))
        elif name == "assertIs" and len(arguments) >= 2 and plain and isinstance(arguments[1], ast.Constant):
            yield _Site(call, "is", self._source(arguments[0]), arguments[1])
        elif name == "assertIn" and len(arguments) >= 2 and plain:
            if self._could_be_constant(arguments[0]):
                yield _Site(
                    call, "in", self._source(arguments[1]), arguments[0], form="call", method=method, swapped=True
                )
            elif self._could_be_constant(arguments[1]):
                yield _Site(call, "of", self._source(arguments[0]), arguments[1], form="call", method=method)
        elif name in ("assertRegex", "assertRegexpMatches") and len(arguments) == 2 and self._is_constant(arguments[1]):
            yield _Site(call, "search", self._source(arguments[0]), arguments[1])
        elif name in ("assertAlmostEqual", "assertAlmostEquals") and len(arguments) >= 2:
            options = self._numbers(call.keywords, ("places", "delta"))
            if len(arguments) == 3 and options == {}:
                places = self._numbers([ast.keyword("places", arguments[2])], ("places",))
                options = places
            if options is not None:
                for actual, expected in ((arguments[0], arguments[1]), (arguments[1], arguments[0])):
                    if self._is_constant(expected) and not self._is_constant(actual):
                        yield _Site(call, "almost", self._source(actual), expected, options=options)
                        return
        else:
            yield from self._library_sites(call, name)

    def _library_sites(self, call: ast.Call, name: str) -> Iterator[_Site]:
        """Assertions of Django, of pytest's own tests, and expected errors in the form of a call."""
        arguments = call.args
        receiver = self._source(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name in _QUERYSETS and len(arguments) >= 2 and self._is_constant(arguments[1]):
            known = {"transform", "ordered"}
            named = {str(keyword.arg): keyword.value for keyword in call.keywords}
            transform = arguments[2] if len(arguments) > 2 else named.get("transform")
            ordered = named.get("ordered", ast.Constant(True))
            if not set(named) <= known or len(arguments) > 3 or not isinstance(ordered, ast.Constant):
                return
            value = fold(arguments[1], self._constants_of(arguments[1]))
            as_repr = isinstance(value, list | tuple) and all(isinstance(row, str) and row[:1] == "<" for row in value)
            kind: Comparison = "rows" if ordered.value else "count"
            rows = f"{self._source(arguments[0])}, {self._source(transform) if transform else None}, {as_repr}"
            yield _Site(call, kind, f'{self.mark}["rows"]({rows})', arguments[1])
        elif name == "assertHTMLEqual" and len(arguments) == 2 and not call.keywords:
            for actual, expected in (arguments, arguments[::-1]):
                if self._is_constant(expected) and not self._is_constant(actual):
                    yield _Site(call, "same", f'{self.mark}["html"]({self._source(actual)})', expected)
                    return
        elif (
            name == "assertJSONEqual" and len(arguments) == 2 and not call.keywords and self._is_constant(arguments[1])
        ):
            yield _Site(call, "json", self._source(arguments[0]), arguments[1])
        elif name == "assertContains" and len(arguments) == 2 and not call.keywords and self._is_constant(arguments[1]):
            sent = f'{self.mark}["content"]({receiver}, {self._source(arguments[0])})'
            yield _Site(call, "in", sent, arguments[1])
        elif name == "fnmatch_lines" and len(arguments) == 1 and not call.keywords and self._is_constant(arguments[0]):
            yield _Site(call, "lines", f"{receiver}.lines", arguments[0])
        elif name == "assert_outcomes" and not arguments and all(keyword.arg for keyword in call.keywords):
            keys: list[ast.expr | None] = [ast.Constant(str(keyword.arg)) for keyword in call.keywords]
            expected_dict = ast.Dict(keys, [keyword.value for keyword in call.keywords])
            ast.copy_location(expected_dict, call)
            self._scope_of[expected_dict] = self._scope_of[call]
            if self._is_constant(expected_dict):
                yield _Site(call, "outcomes", f"{receiver}.parseoutcomes()", expected_dict)
        else:
            yield from self._expected_errors(call, "run")

    def _expected_errors(self, expression: ast.expr, run: str) -> Iterator[_Site]:
        """Expected errors with a message; `run`: only the forms that call a function, else only context managers."""
        if not isinstance(expression, ast.Call):
            return
        name, arguments = _called(expression), expression.args
        function, source = expression.func, self._source
        if name == "raises" and arguments:
            match = [keyword for keyword in expression.keywords if keyword.arg == "match"]
            others = [keyword for keyword in expression.keywords if keyword.arg != "match"]
            if run or len(arguments) != 1 or len(match) != 1 or others:
                return
            plain = f"{source(function)}({source(arguments[0])})"
            yield _Site(expression, "search", "", match[0].value, form="raises", method=plain)
        elif name in _MESSAGES and isinstance(function, ast.Attribute) and len(arguments) >= 2:
            kind, method = _MESSAGES[name]
            if bool(run) != (len(arguments) > 2) or (expression.keywords and not run):
                return
            plain = f"{source(function.value)}.{method}({source(arguments[0])})"
            rest = [source(item) for item in arguments[2:]]
            rest += [f"{keyword.arg}={source(keyword.value)}" for keyword in expression.keywords if keyword.arg]
            tail = f".run({', '.join(rest)})" if run else ""
            yield _Site(expression, kind, "", arguments[1], form="raises", method=plain, tail=tail)

    def _numbers(self, keywords: list[ast.keyword], known: tuple[str, ...]) -> dict[str, float] | None:
        """Constant numbers given by keyword; None if there are other keywords or values."""
        found: dict[str, float] = {}
        for keyword in keywords:
            if keyword.arg == "msg":
                continue
            try:
                value = fold(keyword.value)
            except NotConstantError:
                return None
            if keyword.arg not in known or not isinstance(value, int | float):
                return None
            found[keyword.arg] = float(value)
        return found

    # Constants

    def _constants_of(self, node: ast.expr) -> dict[str, Any]:
        """The names in an expression that are bound exactly once, to a constant."""
        found: dict[str, Any] = {}
        for name in names_in(node):
            value = self._constant_of(name)
            if value is not _MISSING:
                found[name.id] = value
        return found

    def _constant_of(self, name: ast.Name, depth: int = 0) -> Any:
        scope = self._scope_of[name].find(name.id)
        bindings = scope.bindings[name.id] if scope is not None else []
        if len(bindings) != 1 or bindings[0].kind != "assign" or bindings[0].value is None or depth > 5:
            return _MISSING
        value = bindings[0].value
        names = {inner.id: self._constant_of(inner, depth + 1) for inner in names_in(value)}
        try:
            return fold(value, {key: item for key, item in names.items() if item is not _MISSING})
        except NotConstantError:
            return _MISSING

    def _is_expression(self, node: ast.expr) -> bool:
        """Whether this is a SymPy expression of literals: symbols, numbers, operators, constructors."""
        if isinstance(node, ast.Constant):
            return type(node.value) in (int, float)
        if isinstance(node, ast.Name):
            return (node.id in _SYMPY and self._is_of_sympy(node.id)) or self._is_symbol(node)
        if isinstance(node, ast.Attribute):
            return isinstance(node.value, ast.Name) and node.value.id == "S" and self._is_of_sympy("S")
        if isinstance(node, ast.BinOp):
            return self._is_expression(node.left) and self._is_expression(node.right)
        if isinstance(node, ast.UnaryOp):
            return self._is_expression(node.operand)
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return bool(node.elts) and all(map(self._is_expression, node.elts))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            known = node.func.id in _SYMPY and self._is_of_sympy(node.func.id)
            known = known or self._is_symbol(node.func)
            return known and not node.keywords and all(map(self._is_expression, node.args))
        return False

    def _is_of_sympy(self, name: str) -> bool:
        return self._imported.get(name, "").partition(".")[0] == "sympy"

    def _is_symbol(self, name: ast.Name) -> bool:
        """Whether every binding of a name creates symbols or functions of SymPy."""
        if self._imported.get(name.id) == "sympy.abc":
            return True
        scope = self._scope_of[name].find(name.id)
        values = [binding.value for binding in scope.bindings[name.id]] if scope is not None else []
        return bool(values) and all(
            isinstance(value, ast.Call) and _called(value) in _SYMBOLS and self._is_of_sympy(_called(value))
            for value in values
        )

    def _is_constant(self, node: ast.expr) -> bool:
        try:
            fold(node, self._constants_of(node))
        except NotConstantError:
            return False
        return True

    def _may_differ(self, node: ast.expr) -> bool:
        """Whether an expression is not constant, or names a container that the code under test may have changed."""
        known = self._constants_of(node)
        try:
            fold(node, known)
        except NotConstantError:
            return True
        return any(isinstance(value, list | dict | set) for value in known.values())

    def _could_be_constant(self, node: ast.expr) -> bool:
        """Whether the expression is constant, or a name that placeholders can reach."""
        if self._is_constant(node):
            return True
        if not isinstance(node, ast.Name):
            return False
        scope = self._scope_of[node].find(node.id)
        kinds = {binding.kind for binding in scope.bindings[node.id]} if scope is not None else set()
        return bool(kinds) and not kinds & {"other", "definition", "unpacked"}

    # Placeholders

    def _only_compared(self, scope: _Scope, name: str) -> bool:
        """Whether every use of a name is the expected side of a comparison that accepts placeholders."""
        key = id(scope), name
        if key not in self._dynamic:
            self._dynamic[key] = True  # during the analysis, for recursive functions
            uses = scope.loads.get(name, [])
            self._dynamic[key] = bool(uses) and all(self._compares(use) for use in uses)
        return self._dynamic[key]

    def _compares(self, use: ast.Name) -> bool:
        if any(site.expected is use and self._place(site.node) not in self.left for site in self._active):
            return True
        outer: ast.AST = use
        while not isinstance(outer, ast.stmt | ast.Module):
            if any(site.message is outer for site in self._active):
                return True
            above = self._parents[outer]
            if isinstance(above, ast.Call):
                if _called(above) in _HARMLESS_CALLS or any(
                    site.node is above and site.form == "call" and outer in above.args[2:] for site in self._active
                ):
                    return True
                if outer is use or isinstance(outer, ast.keyword):
                    parameter = self._parameter(above, use, outer)
                    return parameter is not None and self._only_compared(*parameter)
            outer = above
        return False

    def _parameter(self, call: ast.Call, use: ast.expr, argument: ast.AST) -> tuple[_Scope, str] | None:
        """The parameter of a function of this file that receives an argument of a call."""
        helper = self._helper(call)
        if helper is None:
            return None
        parameters = [item.arg for item in (*helper.args.posonlyargs, *helper.args.args)]
        if isinstance(call.func, ast.Attribute):
            parameters = parameters[1:]
        if isinstance(argument, ast.keyword):
            known = {*parameters, *(item.arg for item in helper.args.kwonlyargs)}
            return (self._scopes[helper], argument.arg) if argument.arg in known and argument.arg else None
        if argument not in call.args or any(isinstance(item, ast.Starred) for item in call.args):
            return None
        place = call.args.index(use)
        return (self._scopes[helper], parameters[place]) if place < len(parameters) else None

    def _helper(self, call: ast.Call) -> _Function | None:
        """The only function with the called name, if it is rewritten."""
        name = _called(call)
        if isinstance(call.func, ast.Attribute) and not (
            isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls")
        ):
            return None
        fitting = [function for function in self._tests if function.name == name]
        everywhere = [node for node in self._scopes if isinstance(node, _Function) and node.name == name]
        return fitting[0] if len(fitting) == len(everywhere) == 1 else None

    def _cells(self, scope: _Scope, name: str) -> Iterator[tuple[ast.expr, bool]]:
        """The constant expressions that a name can have, and whether pytest uses them in names of tests."""
        for binding in scope.bindings[name]:
            if binding.kind == "assign" and binding.value is not None:
                yield binding.value, False
            elif binding.kind == "loop" and binding.value is not None:
                for item in self._items(binding.value):
                    cell = _column(item, binding.column)
                    if cell is not None:
                        yield cell, False
            elif binding.kind == "parameter" and binding.function is not None:
                yield from self._parametrized(binding.function, name)
                for call in self._calls.get(binding.function.name, ()):
                    if self._helper(call) is binding.function:
                        arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
                        for argument in arguments:
                            value = argument.value if isinstance(argument, ast.keyword) else argument
                            if self._parameter(call, value, argument) == (scope, name):
                                yield value, False

    def _items(self, iterable: ast.expr) -> list[ast.expr]:
        """The elements of a display, or of the only display that a name is bound to, if nothing else uses it."""
        if isinstance(iterable, ast.Name):
            scope = self._scope_of[iterable].find(iterable.id)
            bindings = scope.bindings[iterable.id] if scope is not None else []
            if scope is None or len(bindings) != 1 or len(scope.loads.get(iterable.id, ())) != 1:
                return []
            value = bindings[0].value if bindings[0].kind == "assign" else None
            iterable = value if value is not None else iterable
        return iterable.elts if isinstance(iterable, ast.List | ast.Tuple) else []

    def _parametrized(self, function: _Function, name: str) -> Iterator[tuple[ast.expr, bool]]:
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call) or _called(decorator) != "parametrize" or len(decorator.args) < 2:
                continue
            try:
                names = fold(decorator.args[0])
            except NotConstantError:
                continue
            single = isinstance(names, str) and "," not in names
            listed = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
            if name in listed:
                for item in self._items(decorator.args[1]):
                    row: ast.expr | None = item
                    if isinstance(item, ast.Call) and _called(item) == "param":
                        row = ast.Tuple(item.args, ast.Load())
                    cell = _column(row, 0 if single and row is not item else None if single else listed.index(name))
                    if cell is not None:
                        yield cell, True

    # Rewriting

    def rewrite(self, sender: str, output: str) -> str:
        """The text of the file with placeholders; `expectations` and `placeholders` describe them."""
        edits: list[tuple[tuple[int, int, int, int], str]] = []
        taken: list[tuple[tuple[int, int], tuple[int, int]]] = []

        def edit(node: ast.AST, text: str) -> bool:
            span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
            begin, end = span[:2], span[2:]
            if any(begin < other_end and other_begin < end for other_begin, other_end in taken):
                return False
            taken.append((begin, end))
            edits.append((span, text))
            return True

        self._active = [site for site in self._sites if self._place(site.node) not in self.left]
        cells: dict[ast.expr, tuple[str, bool]] = {}
        bound: list[tuple[_Scope, str]] = []
        for site in sorted(self._active, key=lambda site: (site.node.lineno, site.node.col_offset)):
            value, text = self._direct(site, bound), ""
            key = drawn_word(self.choice)
            if value is _MISSING:
                text = "" if self.computed else self._template_source(site, key, cells)
                if text:
                    self._partly.add(self._place(site.node))
                text = text or self._dynamic_source(site, key, cells)
                if not text and (other := self._as_computed(site)) is not None:
                    site, value = other, None
                    text = self._direct_source(site, key) if self.computed else ""
            else:
                text = self._direct_source(site, key)
            node = site.node
            if site.form == "beside":
                if not self._send_beside(site, key, edit, taken):
                    continue
                text = ""
            lines = (node.end_lineno or node.lineno) - node.lineno - text.count("\n")
            text = text[:-1] + "\n" * max(0, lines) + text[-1] if text.endswith(")") else text
            if site.form != "beside" and (not text or not edit(node, text)):
                continue
            if site.message is not None:
                edit(site.message, "None")
            names = next(names for function, names in self._tests.items() if _holds(function, node))
            self.expectations[key] = Expectation(
                self._place(node),
                site.kind,
                names,
                site.function,
                value is not _MISSING,
                None if value is _MISSING else value,
                dict(site.options),
            )
        if not self.expectations and not self.computed:
            return self.text
        self._note_asked()
        self._fill(cells, edit)
        scrubbed = self._scrub(bound, edit)
        if self.computed:
            self._empty_what_is_not_needed(edit)
        self._note_readable(scrubbed)
        edits += self._comments(taken)
        if edits:
            edits.append(self._prelude(sender, output))
        return _spliced(self.text, edits)

    def _fill(self, cells: dict[ast.expr, tuple[str, bool]], edit: Any) -> None:
        """Replace constants that reach a comparison through names by placeholders."""
        for cell, (token, named) in cells.items():
            value = fold(cell, self._constants_of(cell))
            scalar = value is None or isinstance(value, str | bytes | int | float | complex)
            kind = "Text" if named and scalar else "Token"
            if edit(cell, f'{self.mark}["{kind}"]("{token}"{self._filling(cell)})'):
                self.placeholders[token] = Placeholder(
                    self._place(cell), value, _id_text(value) if named and scalar else None
                )

    def _empty_what_is_not_needed(self, edit: Any) -> None:
        """Remove what the rewritten tests do not use and what may contain their expected values.

        This concerns the other tests, descriptive texts, and the values of names, attributes and functions that are
        used only in them or in rewritten code.
        """
        places = {expectation.place for expectation in self.expectations.values()}
        rewritten = [site for site in self._active if self._place(site.node) in places]
        gone = {inner for site in rewritten for part in _dropped(site) for inner in walk(part)}
        unused: list[ast.stmt | ast.expr] = []
        values = self._named_values()
        before = -1
        while before < len(gone):  # a value may be used only by another one
            before = len(gone)
            for uses, cell, named in values:
                is_used = not gone.issuperset(uses) if uses else not self._is_test(cell)
                if cell not in gone and not is_used and not (named and self._is_constant(cell)):
                    unused.append(cell)
                    gone.update(walk(cell))
        unused.sort(key=lambda node: (node.end_lineno or node.lineno) - node.lineno, reverse=True)
        for node in unused:  # functions before the nodes inside them
            if isinstance(node, _Function):
                self._empty(node, edit)
            elif isinstance(node, ast.expr):
                edit(node, f'{self.mark}["Token"]("{drawn_word(self.choice)}"{self._filling(node)})')
        for text in self._descriptions():
            edit(text, f'""{self._filling(text)}')

    def _named_values(self) -> list[tuple[list[ast.AST], Any, bool]]:
        """For each place that reads a name or attribute: its possible values, and whether pytest names tests by it."""
        read: dict[str, list[ast.AST]] = {}
        for node in self._parents:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                read.setdefault(node.attr, []).append(node)

        def uses(scope: _Scope, name: str) -> list[ast.AST]:
            inherited = read.get(name, []) if isinstance(scope.node, ast.ClassDef) else []
            return [*scope.loads.get(name, ()), *inherited]

        found: list[tuple[list[ast.AST], Any, bool]] = []
        for scope in self._scopes.values():
            for name in scope.bindings:
                found += [(uses(scope, name), cell, named) for cell, named in self._cells(scope, name)]
        for node in self._parents:
            if isinstance(node, _Function) and (node not in self._tests or not self._is_test(node)):
                found.append((uses(self._scope_of[node], node.name) + self._uses_of_fixture(node), node, False))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and len(node.targets) == 1:
                found.append((read.get(node.targets[0].attr, []), node.value, False))
        return found

    def _is_test(self, node: ast.AST) -> bool:
        is_outer = isinstance(self._scope_of[node].node, ast.Module | ast.ClassDef)
        return isinstance(node, _Function) and is_outer and node.name.startswith("test")

    def _uses_of_fixture(self, function: _Function) -> list[ast.AST]:
        """The places that read the value of a fixture, and the parameters that request one without reading it."""
        if not any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list):
            return []
        found: list[ast.AST] = []
        for node in self._parents:
            if isinstance(node, ast.arg) and node.arg == function.name:
                user = self._parents[self._parents[node]]
                found += self._scopes[user].loads.get(node.arg, [node]) if user in self._scopes else [node]
        return found

    def _empty(self, function: _Function, edit: Any) -> None:
        """Reduce a function to its name, with its decorators if it is a test."""
        last = function.end_lineno or function.lineno
        if function.decorator_list and not self._is_test(function):
            body = ast.copy_location(ast.Pass(), function.body[0])
            body.end_lineno, body.end_col_offset = last, function.end_col_offset or 0
            edit(body, "pass" + "\n" * (last - body.lineno))
            return
        first, _ = begin_of(function, self._lines)
        line = self._lines[first - 1]
        whole = ast.copy_location(ast.Pass(), function)
        whole.lineno, whole.col_offset = first, len(line) - len(line.lstrip())
        edit(whole, f"def {function.name}(*_, **__): pass" + "\n" * (last - first))

    def _descriptions(self) -> Iterator[ast.expr]:
        """Constants that are statements, such as docstrings, except those by which the test runner names a test."""
        for node in self._parents:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                first = str(node.value.value).strip().split("\n")[0].strip()
                if not any(first and first == name.strip() for name in self._names):
                    yield node.value

    def _as_computed(self, site: _Site) -> _Site | None:
        """A comparison with a value that no placeholder can represent, treated as one of computed values."""
        parts = [] if site.form in ("raises", "raised") else _judged(site.node)
        if not parts or any(map(self._tells_equal, parts)) or all(map(self._is_constant, parts)):
            return None
        one_side = self.computed and site.kind == "eq" and len(parts) == 2
        return dataclasses.replace(self._computed(site.node, parts, one_side=one_side), function=site.function)

    def _send_beside(self, site: _Site, key: str, edit: Any, taken: list[Any]) -> bool:
        """Send the parts of a condition in place; False if one of them is already rewritten."""
        spans = [((part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)) for part in site.parts]
        if any(begin < other_end and other_begin < end for begin, end in spans for other_begin, other_end in taken):
            return False
        last = len(site.parts) - 1
        for number, part in enumerate(site.parts):
            edit(part, f'{self.mark}["beside"]("{key}", {number}, {last}, ({self._source(part)}))')
        return True

    def _direct(self, site: _Site, bound: list[tuple[_Scope, str]]) -> Any:
        """The constant value of the expected side; names that are bound once are noted in `bound`.

        For an expression of SymPy, the value is the list of its constants and names, by which its bits are counted.
        """
        if site.kind == "gold":
            return None
        if site.kind == "raised":  # the name of the class in the test
            return getattr(site.expected, "attr", getattr(site.expected, "id", ""))
        if site.kind == "same" and not self._is_constant(site.expected):
            nodes = list(walk(site.expected))
            numbers = [node.value for node in nodes if isinstance(node, ast.Constant)]
            return [*numbers, *(node.id for node in nodes if isinstance(node, ast.Name))]
        try:
            value = fold(site.expected, self._constants_of(site.expected))
        except NotConstantError:
            return _MISSING
        for name in names_in(site.expected):
            scope = self._scope_of[name].find(name.id)
            if scope is not None and (scope, name.id) not in bound:
                bound.append((scope, name.id))
        return value

    def _direct_source(self, site: _Site, key: str) -> str:
        if site.form == "raised":
            error = self._source(site.expected) if "checked" in site.options else "BaseException"
            return f'{self.mark}["raised"]("{key}", lambda: {site.method}({error}))'
        if site.form == "raises":
            return f'{self.mark}["raises"]("{key}", lambda: {site.method}){site.tail}'
        return f'{"not " * site.is_negated}{self.mark}["compare"]("{key}", "{site.kind}", ({site.actual}))'

    def _template_source(self, site: _Site, key: str, cells: dict[ast.expr, tuple[str, bool]]) -> str:
        """For a display that is not constant: each constant is compared outside, everything else inside."""
        node = site.expected
        if site.kind != "eq" or site.form == "raises":
            return ""
        if isinstance(node, ast.Name):
            scope = self._scope_of[node].find(node.id)
            bindings = scope.bindings[node.id] if scope is not None else []
            if scope is None or len(bindings) != 1 or bindings[0].kind != "assign" or bindings[0].value is None:
                return ""
            found = [cell for cell in _constants_in(bindings[0].value, self) if self._place(cell) not in self.left]
            if not found or not self._only_compared(scope, node.id):
                return ""
            for cell in found:
                cells.setdefault(cell, (drawn_word(self.choice), False))
            source = node.id
        else:
            found = [cell for cell in _constants_in(node, self) if self._place(cell) not in self.left]
            if not found:
                return ""
            tokens = {cell: drawn_word(self.choice) for cell in found}
            for cell, token in tokens.items():
                self.placeholders[token] = Placeholder(self._place(cell), fold(cell), None)
            source = self._source_with(node, {cell: f'{self.mark}["Token"]("{tokens[cell]}")' for cell in found})
        strict = not site.method.endswith("assertSequenceEqual")
        return f'{self.mark}["parts"]("{key}", ({site.actual}), {source}, {strict})'

    def _source_with(self, node: ast.expr, replaced: Mapping[ast.expr, str]) -> str:
        """The source of an expression in which some parts are replaced."""

        def offset(line: int, column: int) -> int:
            return sum(map(len, self._lines[node.lineno - 1 : line - 1])) + column - node.col_offset

        data = self._plain_source(node).encode("utf-8", "surrogateescape")
        for cell, text in sorted(replaced.items(), key=lambda item: (-item[0].lineno, -item[0].col_offset)):
            begin = offset(cell.lineno, cell.col_offset)
            end = offset(cell.end_lineno or cell.lineno, cell.end_col_offset or 0)
            data = data[:begin] + text.encode() + data[end:]
        return data.decode("utf-8", "surrogateescape")

    def _holds_constants(self, node: ast.expr) -> bool:
        return next(_constants_in(node, self), None) is not None

    def is_constant(self, node: ast.expr) -> bool:
        """Whether the expression is constant and not a name."""
        return not isinstance(node, ast.Name) and self._is_constant(node) and not any(names_in(node))

    def _dynamic_source(self, site: _Site, key: str, cells: dict[ast.expr, tuple[str, bool]]) -> str:
        """The source of a placeholder that reaches the expected side through a name; empty if there is none."""
        if not isinstance(site.expected, ast.Name):
            return ""
        scope = self._scope_of[site.expected].find(site.expected.id)
        if scope is None or not self._only_compared(scope, site.expected.id):
            return ""
        if not self._token(scope, site.expected.id, cells):
            return ""
        expected = self._source(site.expected)
        if site.form == "raises":
            original = self._source(site.node) if not site.tail else ""
            if site.tail:
                return ""
            return f'{self.mark}["raises"]("{key}", lambda: {site.method}, {expected}, lambda: {original})'
        if site.form == "call":
            how = f'"{site.kind}", {site.method}, {site.swapped}'
            return f'{self.mark}["call"]("{key}", {how}, ({site.actual}), {expected})'
        if site.kind not in ("eq", "is", "in", "of"):
            return ""
        return f'{self.mark}["compare"]("{key}", "{site.kind}", ({site.actual}), {expected})'

    def _token(self, scope: _Scope, name: str, cells: dict[ast.expr, tuple[str, bool]]) -> bool:
        """Note a placeholder for each constant that a name can have; returns whether it can have one."""
        found = False
        for cell, named in self._cells(scope, name):
            if isinstance(cell, ast.Name) and self._constant_of(cell) is _MISSING:
                inner = self._scope_of[cell].find(cell.id)
                if inner is not None and inner is not scope and self._only_compared(inner, cell.id):
                    found |= self._token(inner, cell.id, cells)
                continue
            if self._is_constant(cell) and not isinstance(cell, ast.Name) and self._place(cell) not in self.left:
                cells.setdefault(cell, (drawn_word(self.choice), named))
                found = True
        return found

    def _note_asked(self) -> None:
        for holder, key in self._asked.items():
            function, names = next((one, names) for one, names in self._tests.items() if _holds(one, holder))
            place = f"{self._place(holder)}?"
            options = {"beside": 1.0, **({"keyed": 1.0} if holder in self._keyed else {})}
            wanted = self._keyed.get(holder)
            self.expectations[key] = Expectation(place, "asked", names, function.name, True, wanted, options)

    def _note_readable(self, scrubbed: set[tuple[int, str]]) -> None:
        """For each comparison, note the values of the names that it uses and that the rewritten file still contains."""
        for key, expectation in list(self.expectations.items()):
            if expectation.kind == "asked":
                continue
            site = next(site for site in self._active if self._place(site.node) == expectation.place)
            values: list[Any] = []
            for name in names_in(site.expected) if expectation.constant else ():
                scope = self._scope_of[name].find(name.id)
                value = self._constant_of(name)
                if scope is not None and (id(scope), name.id) not in scrubbed and value is not _MISSING:
                    values.append(value)
            if values:
                alone = isinstance(site.expected, ast.Name)
                self.expectations[key] = dataclasses.replace(
                    expectation, readable=(*values, expectation.value) if alone else tuple(values)
                )

    def _scrub(self, bound: list[tuple[_Scope, str]], edit: Any) -> set[tuple[int, str]]:
        """Replace the values of names whose uses were all rewritten; returns them, with the `id` of their scope."""
        rewritten = [
            site for site in self._active if any(e.place == self._place(site.node) for e in self.expectations.values())
        ]
        inside = {name for site in rewritten for part in _dropped(site) for name in names_in(part)}
        scrubbed: set[tuple[int, str]] = set()
        for _ in range(3):  # a name may be used by the value of another one
            for scope, name in list(bound):
                uses = scope.loads.get(name, [])
                if uses and all(use in inside for use in uses):
                    value = scope.bindings[name][0].value
                    if value is not None and edit(
                        value, f'{self.mark}["Token"]("{drawn_word(self.choice)}"{self._filling(value)})'
                    ):
                        scrubbed.add((id(scope), name))
                        for deeper in names_in(value):
                            inside.add(deeper)
                            found = self._scope_of[deeper].find(deeper.id)
                            if found is not None and (found, deeper.id) not in bound:
                                bound.append((found, deeper.id))
        return scrubbed

    def _find_comments(self) -> Iterator[tuple[int, int, int]]:
        """Row, start and end (in bytes) of each comment."""
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type == tokenize.COMMENT and "noqa" not in token.string:
                    row, column = token.start
                    line = token.line.splitlines()[0] if token.line else ""
                    begin = len(line[:column].encode("utf-8", "surrogateescape"))
                    yield row, begin, begin + len(token.string.encode("utf-8", "surrogateescape"))
        except (tokenize.TokenError, SyntaxError):
            return

    def _comments(self, taken: list[Any]) -> Iterator[tuple[tuple[int, int, int, int], str]]:
        """The comments to empty because they may contain an expected value: of the rewritten functions, or all."""
        rows = {row for function in self._tests for row in range(function.lineno, (function.end_lineno or 0) + 1)}
        if self.computed:
            rows = {*range(3, len(self._lines) + 2)}  # the first lines may declare the encoding of the file
        for row, begin, end in self._noted:
            if row in rows and not any(first < (row, end) and (row, begin) < last for first, last in taken):
                yield (row, begin, row, end), "#"

    def _prelude(self, sender: str, output: str) -> tuple[tuple[int, int, int, int], str]:
        """Insert the code that loads the sending functions, before the first statement that can use them."""
        code = f'{self.mark} = {{"OUT": "{output}"}}; exec({code_of(sender)}, {self.mark})'
        first = first_statement(self.tree)
        line, column = begin_of(first, self._lines)
        return (line, column, line, column), code + ("\n" if hasattr(first, "body") else "; ")

    def _place(self, node: ast.expr) -> str:
        return f"{self.path}:{node.lineno}:{node.col_offset}"

    def _filling(self, node: ast.expr) -> str:
        return "\n" * ((node.end_lineno or node.lineno) - node.lineno)

    def _source(self, node: ast.expr) -> str:
        """The source of an expression, with the queried values of conditions sent."""
        inside = {*walk(node)} if self._asked else set()
        sending = {
            holder: f'{self.mark}["asked"]("{key}", ({self._plain_source(holder)}))'
            for holder, key in self._asked.items()
            if holder in inside
        }
        return self._source_with(node, sending) if sending else self._plain_source(node)

    def _plain_source(self, node: ast.expr) -> str:
        """The source of an expression; unlike `ast.get_source_segment`, it takes linear time for many of them."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if first == last:
            data = self._lines[first][node.col_offset : node.end_col_offset]
        else:
            data = self._lines[first][node.col_offset :] + b"".join(self._lines[first + 1 : last])
            data += self._lines[last][: node.end_col_offset]
        return data.decode("utf-8", "surrogateescape")


@cached_for_task(lambda path, text, *_: len(text))
def _read(path: str, text: str, names: tuple[str, ...], left: frozenset[str], computed: bool) -> _File:
    return _File(path, text, names, left, computed)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _constants_in(node: ast.expr, file: _File) -> Iterator[ast.expr]:
    """The largest constant expressions in a display that is not constant, keys of dictionaries excluded."""
    inner: list[ast.expr] = []
    if isinstance(node, ast.List | ast.Tuple):
        inner = node.elts
    elif isinstance(node, ast.Dict) and None not in node.keys:
        inner = node.values
    elif isinstance(node, ast.Call) and _called(node)[:1].isupper() and _called(node) not in _OPAQUE:
        # A class that stores its arguments, such as a message. Only texts count: other values are inspected too often.
        for item in (*node.args, *(keyword.value for keyword in node.keywords)):
            if file.is_constant(item) and isinstance(fold(item), str):
                yield item
    for item in inner:
        if file.is_constant(item):
            yield item
        else:
            yield from _constants_in(item, file)


def _judged(node: ast.expr) -> list[ast.expr]:
    """The values that an assertion or a condition compares."""
    if isinstance(node, ast.Call) and _called(node) in ("assertTrue", "assertFalse") and node.args:
        node = node.args[0]
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    return node.args[:2] if isinstance(node, ast.Call) and (_called(node) == "eq_" or _is_judging(node)) else []


def _is_judging(call: ast.Call) -> bool:
    return _JUDGING.match(_called(call)) is not None


def _dropped(site: _Site) -> list[ast.expr]:
    """The parts of an assertion that are missing after its rewriting: expected values, and messages."""
    if site.form == "beside":
        return []
    parts = [site.expected] + ([site.message] if site.message is not None else [])
    if isinstance(site.node, ast.Call) and site.form != "raises":
        parts += [*site.node.args[2:], *(keyword.value for keyword in site.node.keywords)]
    return parts


def _looks_expected(node: ast.expr) -> bool:
    """Whether an expression has no call, or is a call of a class, as expected values in tests usually are."""
    if isinstance(node, ast.Call):
        return _called(node)[:1].isupper()
    return not any(isinstance(inner, ast.Call) for inner in walk(node)) and not isinstance(node, ast.Name)


def _is_written_out(node: ast.expr) -> bool:
    """Whether an expression only constructs objects of classes from other names and constants."""
    calls = [inner for inner in walk(node) if isinstance(inner, ast.Call)]
    return not isinstance(node, ast.Name) and all(_called(call)[:1].isupper() for call in calls)


def _called_or_none(node: ast.expr) -> str:
    return _called(node) if isinstance(node, ast.Call) else ""


def _column(row: ast.expr | None, column: int | None) -> ast.expr | None:
    if column is None or row is None:
        return row
    if not isinstance(row, ast.Tuple | ast.List) or any(isinstance(item, ast.Starred) for item in row.elts):
        return None
    return row.elts[column] if column < len(row.elts) else None


def _holds(function: _Function, node: ast.expr) -> bool:
    return function.lineno <= node.lineno <= (function.end_lineno or function.lineno)


def _id_text(value: Any) -> str:
    """The text by which pytest names a test with this value."""
    if isinstance(value, str):
        return value.encode("unicode_escape").decode("ascii")
    if isinstance(value, bytes):
        return re.sub(r"^b['\"]|['\"]$", "", repr(value))
    return str(value)
