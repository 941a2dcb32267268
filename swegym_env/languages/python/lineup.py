"""Lineups for Python: copies of the hidden tests, each with a single expectation, right or a decoy.

Every copy is the whole test without its other expectations: `assert area(2, 3) == 6` becomes `area(2, 3)`. So each of
the values 6, 7, 9 and 2 is in equally many copies, and a reader of the file does not see which of them occurs
elsewhere. (The same idea shows in statistics whether a plot is distinguishable from chance: the lineup of Buja et al.
2009, "Statistical inference for exploratory data analysis and model diagnostics".)
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import itertools
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from swegym_env.languages import Copy, ExpectedValue, Lineup
from swegym_env.languages.caching import cached_for_task
from swegym_env.languages.python.conditions import (
    OPPOSITES,
    Condition,
    Slot,
    bindings,
    conditions_of,
    decides_elsewhere,
    makes_an_object,
    slot,
    slot_in,
)
from swegym_env.languages.python.decoys import Literal, Replaceable, places_of, replaceable, words_of
from swegym_env.languages.python.inputs import Inputs, Instead, Sides, inputs_of
from swegym_env.languages.python.parsing import children, copied, parse, parse_expression, walk
from swegym_env.languages.python.questions import COMPREHENSIONS, Asked, asked, keys, says_more, value_of, variables_of
from swegym_env.languages.python.source import (
    EXPECTS_ERROR,
    NO_SUBTEST,
    Function,
    begin_of,
    called,
    is_fixture,
    lines_of,
    names_of,
    place_of,
    target_tests,
    tests_in,
)

__all__ = [
    "LAST_TEST",
    "copies_passed",
    "expectations",
    "make_lineup",
    "only_tests",
    "unexamined",
    "with_other_values",
    "without_tests",
]

_MOST_IN_A_TEST, _MOST_OF_INPUTS, _MOST_IN_A_VALUE = 48, 24, 8
# Errors of the interpreter that no library raises to mean something, and those that libraries derive their own from.
_RARE_ERRORS = (
    *("ZeroDivisionError", "BufferError", "ReferenceError", "UnboundLocalError", "FloatingPointError", "EOFError"),
    *("RecursionError", "UnicodeDecodeError", "BlockingIOError", "ChildProcessError", "InterruptedError"),
    *("IsADirectoryError", "ConnectionResetError", "StopAsyncIteration", "BrokenPipeError", "OverflowError"),
)
_COMMON_ERRORS = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "NotImplementedError"),
    *("ImportError", "OSError", "PermissionError", "FileNotFoundError", "TimeoutError", "SyntaxError", "NameError"),
)
_RARE_WARNINGS = ("SyntaxWarning", "ImportWarning", "UnicodeWarning", "BytesWarning", "ResourceWarning")
_COMMON_WARNINGS = ("UserWarning", "DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "RuntimeWarning")
_ERROR_GUESS, _ERROR_READ = 0.3, 0.9  # the error is often named in the test, or is none of Python's own
_OPPOSITES = {**OPPOSITES, "assertNotEqual": "assertEqual"}  # an equality has decoys instead
_OPERATORS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.NotEq: ast.Eq,
}  # fmt: skip
# Calls that stand alone and judge: of unittest, numpy.testing, pytester (`result.stdout.fnmatch_lines`), mocks.
_JUDGING = ("assert", "fnmatch", "no_fnmatch", "re_match", "no_re_match", "check", "verify", "expect", "compare")
# Calls that look for a text in another one → which of their arguments it is.
_SEARCHES = {
    **dict.fromkeys(("search", "match", "fullmatch", "findall", "finditer"), 0),  # of `re`
    **dict.fromkeys(("count", "startswith", "endswith", "assertIn"), 0),
    **dict.fromkeys(("fnmatch_lines", "fnmatch_lines_random", "re_match_lines", "re_match_lines_random"), 0),
    **dict.fromkeys(("assertRegex", "assertRegexpMatches", "assertContains", "assertWarnsRegex"), 1),
}
_EXPECTS_WARNING = frozenset({"warns", "assertWarns", "assertWarnsRegex"})
_OF_RE = frozenset({"search", "match", "fullmatch", "findall", "finditer"})
_EQUALITIES = frozenset(
    (
        *("assertEqual", "assertEquals", "assertAlmostEqual", "assertAlmostEquals", "assertCountEqual", "eq_"),
        *("assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual", "assertSequenceEqual"),
        *("assertMultiLineEqual", "assertItemsEqual", "assert_equal", "assert_array_equal", "assert_allclose"),
        *("assert_almost_equal", "assert_array_almost_equal"),
    )
)
# Orders → whether they fail if the sides change places, and if both are the same value.
_ORDERS = {
    "assertGreater": (True, True), "assertLess": (True, True), "assertGreaterEqual": (True, False),
    "assertLessEqual": (True, False), "assertNotEqual": (False, True),
}  # fmt: skip
_ORDER_OPERATORS: dict[type[ast.cmpop], tuple[bool, bool]] = {
    ast.Gt: (True, True), ast.Lt: (True, True), ast.GtE: (True, False), ast.LtE: (True, False),
    ast.NotEq: (False, True),
}  # fmt: skip
# Functions that decoys call, and the files with their source.
_OF_DECOYS = {
    name: Path(__file__).with_name("inside") / file
    for name, file in (
        ("_other_value(", "swegym_decoy.py"),
        ("_any_holds(", "swegym_question.py"),
        ("_differs_nowhere(", "swegym_inputs.py"),
        ("_equals_somewhere(", "swegym_inputs.py"),
    )
}
_COLLECTED = re.compile(r"test.*\.py|.*_test\.py")  # files in which pytest, unittest and Django's runner look for tests
# SymPy's runner writes the outcome of a file behind that of its last test, where the harness's parser does not read it.
LAST_TEST = "def test_last_of_this_file():\n    pass"
# Of what a condition asks for: at most so many places, and decoys for each, any of which satisfies a copy.
_NEXT_TO_IT = 7  # decoys of a number that is searched; both of its neighbours are among them
_MOST_ASKED, _ASKED_TOGETHER, _ASKED_COPIES = 3, 6, 2
_RULE_OF_GIVEN, _RULE_IN_HELPER = 1 / 16, 1 / 2  # what a helper is given may be no expected value
_PLAIN_CALLS = frozenset({"approx", "array", "Decimal", "dedent", "set", "frozenset", "list", "tuple", "dict"})
_INPUT_COPIES = 2  # decoys of the inputs of an equality
_COMPUTED = "two computed values"  # one rule may make all of a test equal, of whatever functions
_PLAIN_VALUES = {
    "object()": object(),
    "''": "",
    "0": 0,
    "0.0": 0.0,
    "()": (),
    "[]": [],
    "{}": {},
    "b''": b"",
    "None": None,
}
_Place = tuple[ast.Constant, Replaceable]  # a constant, and what can stand in one place of it
# Assertions that many values pass: another value in the place of the expected one says nothing.
_ANY_OF_MANY = re.compile(r"assert(Greater|Less|Not|IsNot|_not)")
# Assertions of a value that a condition asks something of.
_ASKING = _EQUALITIES | {"assertIs", "assertIsNot", "assertIsNotNone", "assertIn", "assertNotEqual", "assertGreater"}
_ASKING |= {"assertGreaterEqual"}
_TAKING_LISTS = frozenset({"filter", "map", "zip", "sorted", "list", "tuple", "set", "enumerate"})
# Calls whose result is made of their arguments alone.
_PUTTING_TOGETHER = frozenset(
    ("approx", "array", "dedent", "set", "frozenset", "list", "tuple", "dict", "sorted", "reversed", "zip", "enumerate")
) | {"int", "float", "str", "bytes"}
_OF_DISPLAYS = frozenset({"items", "values", "keys", "get", "copy", "partial"})
_FINDING_ITEMS = frozenset({"index", "count", "__contains__"})
_DESCRIBING = frozenset(
    ("len", "repr", "type", "isinstance", "any", "all", "filter", "map", "sum", "min", "max", "next", "iter", "__eq__")
)
_NOT_EXPECTED = frozenset({"msg", "message", "err_msg", "verbose", "places", "delta", "rtol", "atol"})


@dataclass
class _Site:
    """One expectation in the syntax tree of a function, which its methods change.

    Attributes:
        text: see `ExpectedValue.text`.
        count: of possible decoys.
        guess, read, alike, rule: see `ExpectedValue`.
        decide: number of decoys and random choice → what makes the site expect each of them.
        remove: takes the expectation out; what it evaluates stays.
        constants: of the assertion, which an assignment may share with other assertions.
        judge: name of the function that judges the value, if one is called.
        of_inputs: whether its decoys are inputs of the code under test.
        place: line and column of the condition that contains it; empty if it is in none.
    """

    text: str
    count: int
    decide: Callable[[int, random.Random], Sequence[Callable[[], None]]]
    remove: Callable[[], None]
    last_resort: bool = False
    usual: int = 3
    guess: float = 0.0
    read: float = 1.0
    alike: str = ""
    constants: Sequence[ast.Constant] = ()
    rule: float = 0.0
    judge: str = ""
    of_inputs: bool = False
    place: str = ""


def expectations(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
) -> tuple[ExpectedValue, ...]:
    """See `Language.expectations`."""
    return tuple(found for *_, expected in _tests(files, names, added_lines) for found in expected)


def unexamined(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
) -> frozenset[str]:
    """See `Language.unexamined`."""
    return _unexamined(tuple(sorted(files.items())), tuple(names), tuple(sorted(added_lines.items())))


@cached_for_task(lambda *_: 0)  # names only: no syntax tree is kept
def _unexamined(
    texts: tuple[tuple[str, str], ...], names: tuple[str, ...], lines: tuple[tuple[str, frozenset[int]], ...]
) -> frozenset[str]:
    found = frozenset[str]()
    for _, function, _, words, _, expected in _read(texts, names, lines):
        made = copied(function)
        if decides_elsewhere(made, [condition for condition, sites in conditions(made, words) if sites]):
            found |= expected[-1].names
    return found


def make_lineup(
    files: Mapping[str, str],
    names: Iterable[str],
    added_lines: Mapping[str, frozenset[int]],
    shares: Mapping[ExpectedValue, tuple[int, int]],
    seed: int,
) -> Lineup:
    """See `Language.make_lineup`."""
    choice = random.Random(seed)
    copies: list[Copy] = []
    modules: dict[str, ast.Module] = {}
    replaced: dict[str, dict[int, str]] = {}  # path → line → the line that stands there in its place
    texts: dict[str, list[str]] = {}  # that line → the copies
    used: set[str] = set()
    for path, function, depth, words, added, expected in _tests(files, names, added_lines):
        modules[path] = modules.get(path) or parse(files[path])
        mark = f"copies_{len(texts)}_{choice.getrandbits(64):x}"
        replaced.setdefault(path, {})[function.lineno] = mark
        made = texts.setdefault(mark, [])
        for index, expectation in enumerate(expected):
            decoys, repeats = shares.get(expectation, (0, 0))
            if not repeats:
                continue
            # The same decoys for values that are the same to a reader.
            drawn = random.Random(f"{seed} {expectation.text}")
            names_of_copies = [
                [_new_name(function.name, used, choice) for _ in range(repeats)] for _ in range(decoys + 1)
            ]
            made += _copied(function, words, added, index, names_of_copies, drawn, depth)
            for value, own in enumerate(names_of_copies):
                copies += [Copy(name, expectation, value == 0) for name in own]
        choice.shuffle(made)
    written = {}
    for path, module in modules.items():
        _Replacing(replaced[path], _constants_of_tests(files[path]).values()).visit(module)
        lines = ast.unparse(ast.fix_missing_locations(module)).split("\n")
        written[path] = "\n".join(
            "\n".join(texts[mark]) or line.replace(mark, "pass") if (mark := line.strip()) in texts else line
            for line in lines
        )
        written[path] = with_other_values(written[path])
    return Lineup({path: f"{text}\n" for path, text in written.items()}, tuple(copies))


def without_tests(files: Mapping[str, str], read: Collection[str]) -> Mapping[str, str]:
    """See `Language.without_tests_beside`; functions whose name stands anywhere else stay too."""
    words = Counter(re.findall(r"\w+", "\n".join(files.values())))
    made: dict[str, str] = {}
    for path in sorted(path for path in files if path not in read and _COLLECTED.fullmatch(Path(path).name)):
        needed = {f"{path}::{name}" for name in {one.name for _, one in tests_in(files[path])} if words[name] > 1}
        text = (only_tests({path: files[path]}, needed) or {}).get(path, files[path])
        if text != files[path]:
            made[path] = text
    return made


def with_other_values(text: str) -> str:
    """A test file with the functions that its decoys call, if they call any, and with `LAST_TEST`."""
    paths = dict.fromkeys(path for call, path in _OF_DECOYS.items() if call in text)
    return "\n\n\n".join([text, *(path.read_text(encoding="utf-8") for path in paths), LAST_TEST])


def only_tests(files: Mapping[str, str], names: Iterable[str]) -> Mapping[str, str] | None:
    """See `Language.only_tests`; no line changes its number."""
    wanted = frozenset(names)
    kept, found = target_tests(files, wanted, {})
    if found != wanted:
        return None
    made = dict(files)
    for path in filter(lambda path: path.endswith(".py"), files):
        original, targets = lines_of(files[path]), kept.get(path, {})
        lines = [line.rstrip(b"\r\n").decode("utf-8", "surrogateescape") for line in original]
        whole = list(lines)
        for _, function in tests_in(files[path]):
            if function.lineno in targets or not function.name.startswith("test") or is_fixture(function):
                continue
            first = begin_of(function, original)[0] - 1
            last = function.end_lineno or function.lineno
            lines[first:last] = [f"{' ' * function.col_offset}pass", *[""] * (last - first - 1)]
        if lines != whole:
            text = "\n".join(lines)
            made[path] = f"{text.rstrip()}\n\n\n{LAST_TEST}\n"
    return made


def copies_passed(lineup: Lineup, tests: Mapping[str, str]) -> Mapping[Copy, bool]:
    """See `Language.copies_passed`; a copy with parameters passes if it passes with all of them."""
    statuses: dict[str, list[str]] = {}
    for name, status in tests.items():
        place = place_of(name)
        if place is not None:
            statuses.setdefault(place.function, []).append(status)
    return lineup.passed(statuses)


# Path, function, classes around it, words of the file, lines that the test patch adds to it, and expectations.
_Test = tuple[str, Function, int, tuple[str, ...], frozenset[int], tuple[ExpectedValue, ...]]


def _tests(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]]
) -> tuple[_Test, ...]:
    """Every test, in a fixed order. All callers share the functions, so a caller must change only copies of them."""
    return _read(tuple(sorted(files.items())), tuple(names), tuple(sorted(added_lines.items())))


@cached_for_task(lambda texts, *_: sum(len(text) for _, text in texts))
def _read(
    texts: tuple[tuple[str, str], ...], names: tuple[str, ...], lines: tuple[tuple[str, frozenset[int]], ...]
) -> tuple[_Test, ...]:
    files, added_lines, tests = dict(texts), dict(lines), list[_Test]()
    chosen, named = target_tests(files, names, added_lines)
    places = {name: place_of(name) for name in named}
    number = 0
    for path, functions in sorted(chosen.items()):
        words = words_of(files[path])
        constants = _constants_of_tests(files[path])
        helpers = {node.name for node in walk(parse(files[path])) if isinstance(node, Function)}
        for _, (classes, original) in sorted(functions.items()):
            function = _with_constants(original, constants)
            own = names_of(function, places, path, classes)
            own = own or frozenset({f"{path}::{'.'.join((*classes, function.name))}"})
            found = []
            added = added_lines.get(path, frozenset())
            for site in _sites(copied(function), words, added)[1]:
                rule = max(site.rule, _RULE_IN_HELPER if site.judge in helpers else 0.0)
                kept = (
                    site.text,
                    site.count,
                    site.last_resort,
                    site.usual,
                    site.guess,
                    site.read,
                    site.alike,
                    rule,
                    site.of_inputs,
                    f"{path}:{site.place}" if site.place else "",
                )
                found.append(ExpectedValue(own, number, *kept))
                number += 1
            tests.append((path, function, len(classes), words, added, tuple(found)))
    return tuple(tests)


def _new_name(name: str, used: set[str], choice: random.Random) -> str:
    while True:
        found = f"{name}_{''.join(choice.choices(string.ascii_lowercase, k=5))}"
        if found not in used:
            used.add(found)
            return found


def _copied(
    function: Function,
    words: tuple[str, ...],
    added: frozenset[int],
    index: int,
    names: Sequence[Sequence[str]],
    choice: random.Random,
    depth: int,
) -> Iterator[str]:
    """The copies of `function` that check its expectation `index`: with the right value, then with each decoy.

    Args:
        names: of the copies with each of the values, the right one first.
        depth: of the classes around it.
    """
    made: Function = _Subtests().visit(copied(function))
    every, sites = _sites(made, words, added)
    held = [(constant, constant.value) for constant in sites[index].constants]
    for site in every:
        if site is not sites[index]:
            site.remove()
    for constant, value in held:
        constant.value = value
    first = made.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        made.body[0] = ast.Pass()  # some runners name a test by its docstring
    changes = sites[index].decide(len(names) - 1, choice)
    nested: ast.stmt = made
    for _ in range(depth):
        nested = ast.If(ast.Constant(1), [nested], [])
    module = ast.fix_missing_locations(ast.Module([nested], []))
    for number, own in enumerate(names):
        if number:
            changes[number - 1]()
            ast.fix_missing_locations(module)
        for name in own:
            made.name = name
            yield ast.unparse(module).split("\n", depth)[depth]


class _Subtests(ast.NodeTransformer):
    """Makes the subtests of a test plain blocks; see `NO_SUBTEST`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return parse_expression(NO_SUBTEST) if called(node) == "subTest" else node


@cached_for_task(len)
def _constants_of_tests(text: str) -> dict[str, ast.Assign]:
    """What a file sets once at its top level, and uses in the bodies of tests alone, by its name.

    Each test gets it for itself, so that it can have decoys; at the top level it is left out.
    """
    module = parse(text)
    bound = Counter(
        name for node in walk(module) for name in ([node.id] if _is_stored(node) else _bound_otherwise(node))
    )
    in_tests = Counter(
        node.id
        for function in walk(module)
        if isinstance(function, Function) and function.name.startswith("test") and not is_fixture(function)
        for statement in function.body
        for node in walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )
    loads = Counter(node.id for node in walk(module) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    found: dict[str, ast.Assign] = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and _is_stored(statement.targets[0]):
            name = statement.targets[0].id
            if bound[name] == 1 and loads[name] == in_tests[name] > 0:
                found[name] = statement
    return found


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def _bound_otherwise(node: ast.AST) -> list[str]:
    """The names that a node binds, or says to be another scope's, other than by an assignment."""
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    return list(node.names) if isinstance(node, ast.Global | ast.Nonlocal) else []


def _with_constants(function: Function, constants: Mapping[str, ast.Assign]) -> Function:
    """A test with those of these assignments before its first statement whose names it uses."""
    used = {node.id for node in walk(function) if isinstance(node, ast.Name)} & constants.keys()
    if not used:
        return function
    made = copied(function)
    first = made.body[0]
    at = int(isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant))
    made.body[at:at] = [copied(constants[name]) for name in constants if name in used]
    return made


class _Replacing(ast.NodeTransformer):
    """Puts the place of the copies in that of their originals, and nothing in that of the other tests.

    Args:
        replaced: line of a test → what stands there in its place.
        left_out: assignments of the module.
    """

    def __init__(self, replaced: Mapping[int, str], left_out: Collection[ast.Assign]) -> None:
        self._replaced = replaced
        self._lines = {statement.lineno for statement in left_out}

    def visit_Module(self, node: ast.Module) -> ast.Module:
        node.body = [
            ast.Pass() if isinstance(one, ast.Assign) and one.lineno in self._lines else one for one in node.body
        ]
        self.generic_visit(node)
        return node

    def _visit_function(self, node: Function) -> ast.stmt:
        if node.lineno in self._replaced:
            return ast.Expr(ast.Name(self._replaced[node.lineno], ast.Load()))
        return ast.Pass() if node.name.startswith("test") and not is_fixture(node) else node

    visit_FunctionDef = _visit_function  # noqa: N815 - the names that ast looks for
    visit_AsyncFunctionDef = _visit_function  # noqa: N815


def _sites(
    function: Function, words: tuple[str, ...], added: frozenset[int]
) -> tuple[Sequence[_Site], Sequence[_Site]]:
    """The expectations of a function in order, changed in place by their methods, and those that are examined.

    Where there are more than can be examined, those on lines that the test patch adds come first, and one of each
    condition comes before a second one, but all of an object. Plain values, which may be compared outside too, come
    after others. The last one is the last resort.
    """
    read = list(conditions(function, words))
    found = [
        dataclasses.replace(site, place=f"{condition.lineno}:{condition.col_offset}")
        for condition, sites in read
        for site in sites
    ]
    given = _given(function, [condition for condition, _ in read], found)
    found = [
        dataclasses.replace(site, rule=_RULE_OF_GIVEN) if site.constants and _is_given(site.text, given) else site
        for site in found
    ]
    urgency = []
    for condition, sites in read:
        is_old = added.isdisjoint(range(condition.lineno, (condition.end_lineno or condition.lineno) + 1))
        of_object = any(makes_an_object(one) for one in walk(condition) if isinstance(one, ast.expr))
        for rank, site in enumerate(sites):
            is_plain = bool(site.constants) and not of_object
            urgency.append((is_old, 0 if site.constants and of_object else rank, is_plain))
    places = sorted(range(len(found)), key=lambda place: (urgency[place], place))
    kept = {*itertools.islice((place for place in places if not found[place].of_inputs), _MOST_IN_A_TEST)}
    kept |= {*itertools.islice((place for place in places if found[place].of_inputs), _MOST_OF_INPUTS)}
    last = _last_resort(function)
    return [*found, last], [*(found[place] for place in sorted(kept)), last]


def _given(function: Function, read: Iterable[ast.expr], sites: Iterable[_Site]) -> dict[str, str]:
    """What a test writes out where it is not expected, too, by its source: arguments of calls, and values of names."""
    expected = {id(constant) for site in sites for constant in site.constants}
    inside = {id(inner) for condition in read for inner in walk(condition)}
    judged = {id(condition) for condition in read}
    given = {
        id(inner)
        for node in walk(function)
        if isinstance(node, ast.Call) and id(node) not in judged and called(node) not in _PLAIN_CALLS
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        for inner in walk(argument)
    }
    return {
        repr(node.value): str(node.value)
        for node in walk(function)
        if isinstance(node, ast.Constant)
        and id(node) not in expected
        and (id(node) in given or id(node) not in inside)
        and isinstance(node.value, int | float | str | bytes)
    }


def _is_given(value: str, given: Mapping[str, str]) -> bool:
    """Whether a value is given, or stands in a text that is."""
    word = value.strip("bB").strip("'\"").strip()
    return value in given or bool(word and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", "\n".join(given.values())))


def conditions(function: Function, words: tuple[str, ...]) -> Iterator[tuple[ast.expr, list[_Site]]]:
    """Each condition of an assertion, expected error and judging call of a function, and the expectations in it."""
    _name_classes(function)
    seen: set[int] = set()  # a condition may have a name that is asserted twice
    for statement in list(_statements(function.body)):
        if isinstance(statement, ast.Assert):
            statement.msg = None
        found = list(conditions_of(statement, function))
        for condition in found:
            if id(condition.whole) not in seen:
                seen.add(id(condition.whole))
                judge = called(statement.value) if isinstance(statement, ast.Expr) else ""
                sites = _of_condition(condition, function, words)
                yield condition.whole, [dataclasses.replace(site, judge=judge) for site in sites]
        if isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                call = item.context_expr
                if called(call) in EXPECTS_ERROR and isinstance(call, ast.Call) and call.args:
                    yield call, list(_of_raises(item, call, words))
                elif called(call) in _EXPECTS_WARNING and isinstance(call, ast.Call):
                    yield call, list((_of_raises if call.args else _of_message)(item, call, words))
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and not found:
            yield statement.value, list(_of_call(statement, statement.value, function, words))


def _name_classes(function: Function) -> None:
    """Calls classes by their own names: `make = Point` and `make(31, 47)` become `make = Point` and `Point(31, 47)`."""
    stored = Counter(node.id for node in walk(function) if _is_stored(node))
    classes: dict[str, ast.expr] = {}
    for node in walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            if stored[name] == 1 and makes_an_object(ast.Call(value, [], [])):
                classes[name] = value
    for node in walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in classes:
            node.func = copied(classes[node.func.id])


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a function; the probe tells which of them run.

    The code under test may be to call the functions inside, and methods of the classes.
    """
    for statement in body:
        yield statement
        blocks = [statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
        for block in blocks:
            yield from _statements(getattr(block, "body", ()))
        yield from _statements(getattr(statement, "orelse", ()))
        yield from _statements(getattr(statement, "finalbody", ()))


def _last_resort(function: Function) -> _Site:
    """An expectation for a test without any other: an assertion that always holds, and, as a decoy, always fails.

    It shows only that the test runs.
    """

    def decide(decoys: int, choice: random.Random) -> Sequence[Callable[[], None]]:
        word = "".join(choice.choices(string.ascii_lowercase, k=choice.randrange(4, 9)))
        lengths = [len(word), *choice.sample([length for length in range(3, 3 + 40) if length != len(word)], decoys)]

        held = ast.Constant(lengths[0])
        function.body.insert(0, ast.Assert(ast.Compare(parse_expression(f"len({word!r})"), [ast.Eq()], [held])))

        def put(length: int) -> None:
            held.value = length

        return [lambda length=length: put(length) for length in lengths[1:]]  # type: ignore[misc]

    return _Site(f"{function.name} runs", 39, decide, lambda: None, last_resort=True, guess=1.0)


def _constants(node: ast.expr, function: Function | None) -> Iterator[ast.Constant]:
    """The constants in `node`: itself, or those in displays; those that a name has which the function sets once."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, int | float | str | bytes):
            yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for item in node.elts:
            yield from _constants(item, None)
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _constants(value, None)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _constants(node.operand, None)
    elif isinstance(node, ast.Call) and called(node) in ("approx", "array", "Decimal", "dedent", "set", "frozenset"):
        for argument in node.args[:1]:
            yield from _constants(argument, None)
    elif _holds_objects(node):
        yield from _constants_of_objects(node)
    elif isinstance(node, ast.Name | ast.Subscript) and function is not None:
        for value in itertools.islice(_tops(node, function), 1, None):
            if isinstance(node, ast.Name) or _holds_objects(value):
                yield from _constants(value, None)


def _holds_objects(node: ast.AST) -> bool:
    """Whether an expression makes an object, other than to compare it."""
    if isinstance(node, ast.Compare | ast.Lambda):
        return False
    return makes_an_object(node) or any(map(_holds_objects, children(node)))


def _constants_of_objects(node: ast.AST) -> Iterator[ast.Constant]:
    """The constants in an expression that only puts objects together, without those that other functions get."""
    inner = list(children(node))
    if isinstance(node, ast.Call):
        is_plain = makes_an_object(node) or called(node) in _PUTTING_TOGETHER
        inner = [*node.args, *node.keywords] if is_plain else []
    elif isinstance(node, ast.Dict):
        inner = [*node.values]
    elif isinstance(node, ast.Subscript):
        inner = [node.value]
    elif isinstance(node, ast.Compare | ast.Lambda):
        inner = []
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | bytes):
        yield node
    for each in inner:
        yield from _constants_of_objects(each)


@functools.lru_cache(maxsize=512)  # of the function that is being read
def _bound(name: str, function: Function) -> list[ast.expr]:
    """What a name is bound to that the function sets once: by an assignment, or by a loop over objects.

    An assigned name counts only if it is used in assertions alone, or at one place. No name counts that is an input as
    well: the gold patch may know no other value of it.
    """
    uses = [other for other in walk(function) if isinstance(other, ast.Name) and other.id == name]
    if sum(map(_is_stored, uses)) != 1 or not _inputs_in(function).isdisjoint(map(id, uses)):
        return []
    for statement in _statements(function.body):
        for target, value in bindings(statement):
            if not any(inner in uses for inner in walk(target)):
                continue
            if isinstance(statement, ast.For):
                items = _items(target, value, name, function)
                return items if any(map(_holds_objects, items)) else []
            is_expected = len(uses) == 2 or sum(id(use) not in _asserted_in(function) for use in uses) == 1
            # Values that one statement assigns to several names (`left, right = …`) are more likely inputs.
            return [value] if isinstance(target, ast.Name) and is_expected else []
    return []


@functools.lru_cache(maxsize=64)
def _inputs_in(function: Function) -> frozenset[int]:
    """The `id` of each node in the calls in conditions of a function that may be calls of the code under test.

    A call that is the whole condition compares its arguments (`assert f().same_as(want)`).
    """
    known = _PUTTING_TOGETHER | _OF_DISPLAYS | _FINDING_ITEMS | _DESCRIBING
    whole = {id(one.node) for each in _statements(function.body) for one in conditions_of(each, function)}
    inside = _asserted_in(function) - whole
    return frozenset(
        id(inner)
        for node in walk(function)
        if isinstance(node, ast.Call) and id(node) in inside
        if not (called(node) in known or called(node).startswith("assert") or makes_an_object(node))
        for inner in walk(node)
    )


def _parts_for(name: str, target: ast.expr, value: ast.expr) -> list[ast.expr]:
    """The part of an item of a loop that the target binds to a name."""
    if isinstance(target, ast.Name):
        return [value] if target.id == name else []
    if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Tuple | ast.List):
        pairs = zip(target.elts, value.elts, strict=False)
        return [found for part, each in pairs for found in _parts_for(name, part, each)]
    return []


def _items(target: ast.expr, iterated: ast.expr, name: str, function: Function) -> list[ast.expr]:
    """What a loop over displays binds to a name."""
    if isinstance(iterated, ast.Name):
        bound = _bound(iterated.id, function)
        return _items(target, bound[0], name, function) if len(bound) == 1 else []
    if isinstance(iterated, ast.List | ast.Tuple):
        return [found for item in iterated.elts for found in _parts_for(name, target, item)]
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Attribute):
        held = [top for top in _tops(iterated.func.value, function) if isinstance(top, ast.Dict)]
        place = {"items": 1, "values": 0}.get(iterated.func.attr, 0)
        part = target.elts[place] if isinstance(target, ast.Tuple) and place < len(target.elts) else target
        return [found for one in held for value in one.values for found in _parts_for(name, part, value)]
    if isinstance(iterated, ast.Call) and isinstance(target, ast.Tuple):
        lists = {"zip": iterated.args, "enumerate": [iterated, *iterated.args]}.get(called(iterated), [])
        pairs = zip(target.elts, lists, strict=False)
        return [item for part, each in pairs if each is not iterated for item in _items(part, each, name, function)]
    return []


_variables_of = functools.lru_cache(maxsize=64)(variables_of)


@functools.lru_cache(maxsize=64)
def _asserted_in(function: Function) -> frozenset[int]:
    """The `id` of each node in the assertions and conditions of a function."""
    return frozenset(id(inner) for each in _statements(function.body) for inner in _asserted(each, function))


def _asserted(statement: ast.stmt, function: Function) -> Iterator[ast.AST]:
    """What a statement consists of, if it is an assertion, and the conditions that it checks."""
    judges = isinstance(statement, ast.Expr) and called(statement.value).lstrip("_").lower().startswith(_JUDGING)
    if judges or isinstance(statement, ast.Assert):
        yield from walk(statement)
    for condition in conditions_of(statement, function):
        yield from walk(condition.whole)


def _tops(node: ast.expr, function: Function) -> Iterator[ast.expr]:
    """An expression, and what is bound to it if it is a name, or an item of one."""
    yield node
    held = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(held, ast.Name):
        yield from _bound(held.id, function)


def _literals(node: ast.expr, function: Function, words: tuple[str, ...]) -> list[_Place]:
    """The constant of an expected value that has most decoys; all of them where an object is compared.

    The equality of an object is the code's under test: it may leave out what some of them are.
    """
    found = [
        (constant, other)
        for constant in _constants(node, function)
        if isinstance(constant.value, int | float | str | bytes)
        if (other := replaceable(constant.value, words)) is not None
    ]
    if any(map(makes_an_object, _values(node, function))):
        return found[:_MOST_IN_A_VALUE]
    return sorted(found, key=lambda pair: -pair[1].count)[:1]


def _values(node: ast.expr, function: Function) -> Iterator[ast.expr]:
    """The expressions in an expected value, and in what the function binds to it if it is a name."""
    for top in _tops(node, function):
        yield from (inner for inner in walk(top) if isinstance(inner, ast.expr))


def _compared_objects(
    condition: ast.expr, function: Function, words: tuple[str, ...], places: Sequence[_Place], *, negated: bool = False
) -> list[_Place]:
    """The constants of objects in a list that a condition searches, or that a part of the condition compares.

    Objects that are themselves searched, and inputs of the code under test, are excluded.

    Args:
        places: of its other expectations.
        negated: whether the condition has to be false.
    """
    wanted: list[ast.expr] = []
    lists: list[ast.expr] = []
    if called(condition) == "assertIn" and isinstance(condition, ast.Call):
        lists += condition.args[1:2]
    nots = [node for node in walk(condition) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)]
    below = Counter(id(inner) for node in nots for inner in walk(node))
    for node in walk(condition):
        is_false = negated ^ bool(below[id(node)] % 2)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn if is_false else ast.In):
            lists += node.comparators
        elif isinstance(node, ast.Compare) and _is_equality(node, negated=is_false) and node is not condition:
            wanted += [node.left, *node.comparators]
        elif isinstance(node, COMPREHENSIONS) and _compares_items(node):
            lists += [each.iter for each in node.generators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _TAKING_LISTS:
            lists += node.args
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FINDING_ITEMS:
            lists.append(node.func.value)
            wanted += node.args[:1] if isinstance(node.func.value, ast.List | ast.Tuple) else []
    displays = [one for one in lists if any(map(_is_display, _tops(one, function)))]
    known = {id(constant) for constant, _ in places}
    found = {
        id(constant): (constant, other)
        for one in [*wanted, *displays]
        if any(map(makes_an_object, _values(one, function)))
        for constant, other in _literals(one, function, words)
        if id(constant) not in known
    }
    return [*found.values()][:_MOST_IN_A_VALUE]


def _is_display(node: ast.expr) -> bool:
    """Whether an expression puts a list, tuple or set together."""
    if isinstance(node, ast.BinOp):
        return _is_display(node.left) or _is_display(node.right)
    if isinstance(node, ast.Subscript):
        return _is_display(node.value)
    if isinstance(node, ast.Call) and called(node) in _PUTTING_TOGETHER:
        return any(map(_is_display, node.args))
    return isinstance(node, (ast.List, ast.Tuple, ast.Set, *COMPREHENSIONS))


def _compares_items(node: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> bool:
    """Whether a comprehension compares what it iterates over, by equality."""
    targets = {name.id for each in node.generators for name in walk(each.target) if isinstance(name, ast.Name)}
    tests = [node.elt, *(test for each in node.generators for test in each.ifs)]
    return any(
        isinstance(side, ast.Name) and side.id in targets
        for test in tests
        for inner in walk(test)
        if isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.Eq)
        for side in (inner.left, *inner.comparators)
    )


def _searched(node: ast.expr, function: Function, words: tuple[str, ...]) -> list[_Place]:
    """The places of the constant texts that an expression looks for in others."""
    texts: list[ast.Constant] = []
    for inner in walk(node):
        wanted: list[ast.expr] = []
        name = called(inner) if isinstance(inner, ast.expr) else ""
        if isinstance(inner, ast.Call) and name in _SEARCHES:
            module = inner.func.value if isinstance(inner.func, ast.Attribute) else inner.func
            if name not in _OF_RE or (isinstance(module, ast.Name) and module.id == "re"):
                wanted = inner.args[_SEARCHES[name] : _SEARCHES[name] + 1]
        elif isinstance(inner, ast.Compare) and isinstance(inner.ops[0], ast.In):
            wanted = [inner.left]
        texts += [constant for argument in wanted for constant in _constants(argument, function)]
    return [(text, place) for text in texts if isinstance(text.value, str) for place in places_of(text.value, words)][
        :_MOST_IN_A_VALUE
    ]


def _value_sites(
    places: Sequence[_Place], remove: Callable[[], None], instead: str | None = None, *, searched: bool = False
) -> Iterator[_Site]:
    """The expectations of the constants of one assertion, which is taken out when all of them are.

    Args:
        instead: the text that a constant has when it is taken out, else it is empty.
        searched: whether they are searched: two numbers that are next to each other may both be found.
    """
    left = set(range(len(places)))
    rights = [constant.value for constant, _ in places]

    def take_out(number: int) -> None:
        left.discard(number)
        if left:
            return
        remove()
        for (constant, _), right in zip(places, rights, strict=True):
            if instead is not None:
                constant.value = instead
            elif isinstance(right, int | float | str | bytes):  # it may stand in an assignment, which stays
                constant.value = type(right)()

    for number, ((constant, other), right) in enumerate(zip(places, rights, strict=True)):

        def put(value: object, constant: ast.Constant = constant) -> None:
            constant.value = value  # type: ignore[assignment]

        def decide(
            decoys: int,
            choice: random.Random,
            other: Replaceable = other,
            put: Callable[[object], None] = put,
        ) -> Sequence[Callable[[], None]]:
            return [lambda value=value: put(value) for value in other.draw(decoys, choice)]  # type: ignore[misc]

        # With several places, a reader finds the right value of each: decoys for the other places leave it unchanged.
        read = other.read if len(places) == 1 else 1.0
        yield _Site(
            repr(right),
            other.count,
            decide,
            lambda number=number: take_out(number),  # type: ignore[misc]
            usual=_NEXT_TO_IT if searched and other.is_number else 3,
            guess=other.guess,
            read=read,
            constants=[constant for constant, _ in places],
        )


def _question_sites(
    condition: ast.expr,
    put: Callable[[ast.expr], None],
    function: Function,
    words: tuple[str, ...],
    remove: Callable[[], None],
    places: Sequence[_Place] = (),
    *,
    is_statement: bool = False,
    equal: Sequence[ast.expr] = (),
) -> Iterator[_Site]:
    """What a condition asks a computed value for is replaced by several others at once, any of which satisfies a copy.

    A value that answers every question with yes, or holds many answers, satisfies one of them.

    Args:
        put: sets an expression in the place of the condition.
        places: of the other expectations of the condition.
        is_statement: whether it is an assertion that is called, not the truth of a value.
        equal: the sides of an equality that expects more than that something is found: only keys count.
    """
    taken = {id(constant) for constant, _ in places}
    variables = _variables_of(function)
    found = [key for key, _ in keys(equal, variables)] if equal else asked(condition, variables)
    wanted = [one for one in found if id(one) not in taken]
    others = [(one, other) for one in wanted if (other := _asked_instead(value_of(one, variables), words)) is not None]
    if any(isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr) for node in walk(condition)):
        others = []
    held = [node for node in walk(condition) if isinstance(node, ast.Constant)] + [constant for constant, _ in places]
    held += variables.constants.values()
    sites: list[_Site] = []
    for one, other in others[:_MOST_ASKED]:

        def decide(
            decoys: int, choice: random.Random, one: Asked = one, other: Replaceable = other
        ) -> Sequence[Callable[[], None]]:
            place = next(number for number, node in enumerate(walk(condition)) if node is one)

            def asked_for(value: Literal) -> ast.expr:
                made = copied(condition)
                old = walk(made)[place]
                new = (
                    ast.Attribute(old.value, str(value), ast.Load())
                    if isinstance(old, ast.Attribute)
                    else ast.Constant(value)
                )
                asking: ast.expr = Instead({old: new}).visit(made)
                return _as_function(asking, is_statement=is_statement)

            drawn = [other.draw(min(_ASKED_TOGETHER, other.count), choice) for _ in range(decoys)]
            together = [ast.Call(ast.Name("_any_holds", ast.Load()), [*map(asked_for, values)], []) for values in drawn]
            return [lambda call=call: put(call) for call in together]  # type: ignore[misc]

        text = ast.unparse(condition)
        sites.append(_Site(text, _ASKED_COPIES, decide, remove, usual=_ASKED_COPIES, guess=1.0, constants=held))
    yield from _removed_together(*sites)


def _as_function(condition: ast.expr, *, is_statement: bool) -> ast.expr:
    """A function that evaluates a condition later: whether it holds or, if it is an assertion, whether it returns None.

    Args:
        is_statement: whether the condition is a call of an assertion, which returns None and raises an error otherwise.
    """
    holds = ast.Compare(condition, [ast.Is()], [ast.Constant(None)]) if is_statement else condition
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), holds)


def _asked_instead(value: object, words: tuple[str, ...]) -> Replaceable | None:
    """What can stand in the place of what a condition asks for: of a text, in the place of a number, else of a word."""
    if not isinstance(value, int | float | str | bytes):
        return None
    found = places_of(value, words)[:1] if isinstance(value, str) else []
    other = found[0] if found else replaceable(value, words)
    return other if other is not None and other.count > 1 else None


def _removers_of_parts(remove: Callable[[], None], parts: int) -> list[Callable[[], None]]:
    """One function for each part of the expectations of an assertion, which removes the part.

    The function that is called last removes the assertion.
    """
    left = set(range(parts))

    def take_out(part: int) -> None:
        left.discard(part)
        if not left:
            remove()

    return [lambda part=part: take_out(part) for part in range(parts)]  # type: ignore[misc]


def _grouped_sites(
    remove: Callable[[], None],
    objects: Sequence[_Place],
    *groups: Callable[[Callable[[], None]], Iterable[_Site]],
) -> Iterator[_Site]:
    """The expectations of one assertion, in groups. When all of them are removed, the assertion is removed.

    Args:
        remove: removes the assertion.
        objects: constants of objects that have decoys too; they are the first group.
        groups: each makes the expectations of another group, from the function that removes the group.
    """
    parts = _removers_of_parts(remove, 1 + len(groups))
    found = [list(_value_sites(objects, parts[0]))]
    found += [list(group(part)) for group, part in zip(groups, parts[1:], strict=True)]
    held = [constant for sites in found for site in sites for constant in site.constants]
    for sites, part in zip(found, parts, strict=True):
        if any(found) and not sites:
            part()
        # Beside an object, the copies of one value hold all others.
        yield from (dataclasses.replace(site, constants=held, read=1.0) for site in sites) if objects else sites


def _opposite_site(text: str, turn: Callable[[], None], remove: Callable[[], None]) -> _Site:
    return _Site(text, 1, lambda decoys, choice: [turn] * decoys, remove, guess=0.5, read=0.5, alike=_shape(text))


def _shape(condition: str) -> str:
    """A condition without its constants and variables.

    A patch that satisfies one condition by a simple rule satisfies all conditions of the same shape.
    """
    tree = parse_expression(condition)
    functions = {id(node.func) for node in walk(tree) if isinstance(node, ast.Call)}
    texts = {id(part) for node in walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in walk(tree):
        if isinstance(node, ast.Constant):
            node.value = "" if id(node) in texts else 0
        elif isinstance(node, ast.Name) and id(node) not in functions:
            node.id = "_"
    return ast.unparse(tree)


def _read_condition(
    test: ast.expr, function: Function, words: tuple[str, ...]
) -> tuple[list[ast.expr], ast.expr, list[_Place], bool]:
    """The compared parts of a condition, its opposite, its constants that can be replaced, and whether it searches."""
    node, is_negated = _without_not(test)
    parts: list[ast.expr] = [node]
    places = _searched(test, function, words) if not is_negated else []
    is_search = bool(places) or (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.In))
    turned: ast.expr = node if is_negated else ast.UnaryOp(ast.Not(), test)
    if _is_equality(node, negated=is_negated):
        parts = [node.left, *node.comparators]
        sides = sorted([*node.comparators[::-1], node.left], key=_has_calls)
        places += next(filter(None, (_literals(side, function, words) for side in sides)), [])
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right, operator = test.comparators[0], test.ops[0]
        parts = [test.left, right]
        if isinstance(operator, ast.In) and not places:
            places = _literals(test.left, function, words)
        if type(operator) in _OPERATORS:
            turned = ast.Compare(test.left, [_OPERATORS[type(operator)]()], [right])
    elif isinstance(test, ast.Call) and not places:
        parts = [*test.args, *([test.func.value] if isinstance(test.func, ast.Attribute) else [])]
        objects = [argument for argument in test.args if any(map(makes_an_object, _tops(argument, function)))]
        places = [place for argument in objects for place in _literals(argument, function, words)]
    return parts, turned, places, is_search


def _without_not(test: ast.expr) -> tuple[ast.expr, bool]:
    """A condition without a `not` around it, and whether there is one."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand, True
    return test, False


def _is_equality(node: ast.expr, *, negated: bool) -> TypeGuard[ast.Compare]:
    """Whether a condition compares values that have to be equal: by `==`, or by `!=` if it has to be false."""
    if not isinstance(node, ast.Compare) or (negated and len(node.ops) > 1):
        return False
    return all(isinstance(one, (ast.NotEq | ast.IsNot) if negated else (ast.Eq | ast.Is)) for one in node.ops)


def _of_condition(condition: Condition, function: Function, words: tuple[str, ...]) -> Iterator[_Site]:
    """The expectations of one condition."""
    put, node = condition.put, condition.node
    test = node if condition.holds else ast.copy_location(ast.UnaryOp(ast.Not(), node), node)
    parts, turned, places, is_search = _read_condition(test, function, words)
    is_positive = condition.holds and not _expects_nothing(test)
    objects = _compared_objects(node, function, words, places, negated=not condition.holds)

    def remove() -> None:
        known = [*places, *objects]
        put(_evaluated(_actual(parts, known) if known else [test] if isinstance(test, ast.Call) else parts))

    text = ast.unparse(test)
    is_equal = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and says_more(parts)

    def values(remove: Callable[[], None]) -> Iterator[_Site]:
        if places:
            yield from _value_sites(places, remove, searched=is_search)
        elif _is_equality(node, negated=not condition.holds) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            if len(node.ops) > 1:
                yield _opposite_site(text, lambda: put(turned), remove)
                return
            turn = lambda: put(turned)  # noqa: E731
            inputs = inputs_of((node.left, node.comparators[0]), function, words) if condition.holds else None
            others = _input_sites(node, put, inputs, remove) if inputs is not None else ()
            yield from _computed_sites(text, _sides_of(node), remove, turn, lambda: put(test), others)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _ORDER_OPERATORS:
            fails = _ORDER_OPERATORS[type(test.ops[0])]
            yield from _order_sites(text, _sides_of(test), function, remove, lambda: put(turned), fails)
        elif called(test) == "isinstance" and isinstance(test, ast.Call) and len(test.args) == 2:
            yield from _kind_sites(text, test.args, remove, lambda: put(turned))
        else:
            yield _opposite_site(text, lambda: put(turned), remove)

    def questions(remove: Callable[[], None]) -> Iterator[_Site]:
        if is_positive or is_equal:
            equal = parts if is_equal else ()
            yield from _question_sites(test, put, function, words, remove, [*places, *objects], equal=equal)

    yield from _grouped_sites(remove, objects, questions, values)


def _expects_nothing(test: ast.expr) -> bool:
    """Whether a condition holds where nothing is found."""
    if not isinstance(test, ast.Compare):
        return False
    if any(isinstance(operator, ast.NotIn | ast.IsNot) for operator in test.ops):
        return isinstance(test.ops[0], ast.NotIn)
    return isinstance(test.ops[0], ast.Eq | ast.Is) and says_more([test.left, *test.comparators])


def _sides_of(test: ast.Compare) -> list[Slot]:
    return [slot(test, "left"), slot_in(test.comparators, 0)]


def _computed_sites(
    text: str,
    sides: Sequence[Slot],
    remove: Callable[[], None],
    turn: Callable[[], None] | None = None,
    restore: Callable[[], None] = lambda: None,
    others: Iterable[_Site] = (),
) -> Iterator[_Site]:
    """Decoys for two computed values: one of them is replaced by an object that equals nothing, or by a similar value.

    These decoys find patches that return an object that equals everything, also if it recognises objects by their type.
    They show nothing else about a guess.

    Args:
        turn, restore: `turn` inverts the condition and `restore` puts the original back, where that is possible.
        others: see `_input_sites`.
    """
    originals = [get() for get, _ in sides]

    def replacing(number: int | None, change: Callable[[ast.expr], ast.expr] = _replaced) -> Callable[[], None]:
        def replace() -> None:
            restore()
            for place, ((_, put), original) in enumerate(zip(sides, originals, strict=True)):
                put(change(original) if place == number else original)
            if number is None and turn is not None:
                turn()

        return replace

    objects = [replacing(number) for number in range(len(sides))]
    near = [
        replacing(number, lambda node, step=step, derived=derived: _other_value(node, step, derived=derived))  # type: ignore[misc]
        for step in (1, -1, 2, -2)
        for derived in (False, True)
        for number in range(len(sides))
    ]

    def choose(count: int, choice: random.Random) -> Sequence[Callable[[], None]]:
        begin = 2 * choice.randrange(len(near) // 2)  # both sides in turn
        return [near[(begin + number) % len(near)] for number in range(count)]

    plain = [replacing(None), *objects] if turn is not None else objects
    yield from _removed_together(
        _Site(
            text,
            len(plain),
            lambda count, choice: choice.sample(plain, count),
            remove,
            guess=0.5 if turn else 1.0,
            alike=_alike(text, originals) if turn else "",
        ),
        _Site(text, len(near), choose, remove, usual=4, guess=1.0),
        *others,
    )


def _alike(condition: str, sides: Sequence[ast.expr]) -> str:
    """What an equality has in common with others: if both sides are computed, one rule may make all of them hold."""
    return _COMPUTED if all(map(_has_calls, sides)) else _shape(condition)


def _input_sites(
    condition: ast.Compare | ast.Call, put: Callable[[ast.expr], None], inputs: Inputs, remove: Callable[[], None]
) -> Iterator[_Site]:
    """Of two computed values, one is computed from something else, which must differ; or both are, which must not.

    A repair may raise where the gold patch computes something, and the other way round. So an error is a difference
    for a patch. The probe, which has one decoy, has none in which it is: there the gold patch has to compute another
    value.

    Args:
        condition: an equality, or an assertion of one.
        put: sets an expression in its place.
    """
    text, is_call = ast.unparse(condition), isinstance(condition, ast.Call)
    alike = _alike(text, inputs.sides)

    def holding(name: str, sides: Sequence[Sides], *first: ast.expr) -> ast.expr:
        equalities = [_as_function(with_sides(*each), is_statement=is_call) for each in sides]
        return ast.Call(ast.Name(name, ast.Load()), [*first, *equalities], [])

    def with_sides(left: ast.expr, right: ast.expr) -> ast.expr:
        if isinstance(condition, ast.Compare):
            return ast.Compare(left, condition.ops, [right])
        return ast.Call(condition.func, [left, right, *condition.args[2:]], condition.keywords)

    def decide(
        decoys: int, choice: random.Random, number: int, *, together: bool = False
    ) -> Sequence[Callable[[], None]]:
        if together:
            put(holding("_equals_somewhere", inputs.changed_together(choice)))
        may_raise = ast.Constant(decoys == 1)
        found = [holding("_differs_nowhere", inputs.changed(number, choice), may_raise) for _ in range(decoys)]
        return [lambda call=call: put(call) for call in found]  # type: ignore[misc]

    numbers = [number for number, places in enumerate(inputs.places) if places]
    for number in numbers:
        alone = functools.partial(decide, number=number)
        yield _Site(text, _INPUT_COPIES, alone, remove, usual=_INPUT_COPIES, guess=0.5, alike=alike, of_inputs=True)
    if inputs.changed_together(random.Random(0)):
        both = functools.partial(decide, number=numbers[0], together=True)
        yield _Site(text, _INPUT_COPIES, both, remove, usual=_INPUT_COPIES, guess=0.5, alike=alike, of_inputs=True)


def _order_sites(
    text: str,
    sides: Sequence[Slot],
    function: Function,
    remove: Callable[[], None],
    turn: Callable[[], None],
    fails: tuple[bool, bool],
) -> Iterator[_Site]:
    """Decoys for an order, such as `a < b`: it is inverted. If both sides are computed, there are more decoys.

    In these the sides change places, or the same value is on both sides. Then the values are computed in another order,
    which finds patches that answer by the order of the calls.

    Args:
        fails: whether the condition is false if the sides change places, and if both sides are the same.
    """
    opposite = _opposite_site(text, turn, remove)
    (get_left, put_left), (get_right, put_right) = (_where_computed(side, function) for side in sides)
    left, right = get_left(), get_right()
    if not _has_calls(left) or not _has_calls(right):
        yield opposite
        return

    def place(first: ast.expr, second: ast.expr) -> Callable[[], None]:
        def change() -> None:
            put_left(copied(first))
            put_right(copied(second))

        return change

    decoys = [place(right, left)] * fails[0] + [place(left, left), place(right, right)] * fails[1]
    changed = _Site(text, len(decoys), lambda count, choice: choice.sample(decoys, count), remove, guess=1.0)
    yield from _removed_together(opposite, changed)


def _kind_sites(
    text: str, arguments: list[ast.expr], remove: Callable[[], None], turn: Callable[[], None]
) -> Iterator[_Site]:
    """Decoys for `isinstance`: it is inverted, and the object is replaced by plain values.

    The plain values find a class that accepts every object as its instance.
    """
    names = [getattr(builtins, node.id, None) for node in walk(arguments[1]) if isinstance(node, ast.Name)]
    kinds = tuple(kind for kind in names if isinstance(kind, type))
    original = arguments[0]

    def replacing(value: str) -> Callable[[], None]:
        return lambda: arguments.__setitem__(0, _replaced(original, value))

    decoys = [replacing(value) for value, made in _PLAIN_VALUES.items() if not isinstance(made, kinds)]
    others = _Site(text, len(decoys), lambda count, choice: decoys[:count], remove, usual=len(decoys), guess=1.0)
    yield from _removed_together(_opposite_site(text, turn, remove), *([others] if decoys else []))


def _where_computed(side: Slot, function: Function) -> Slot:
    """Where a side of a condition is computed: in its place, or where the test gives it a name, once."""
    node = side[0]()
    if isinstance(node, ast.Name):
        stores = [other for other in walk(function) if _is_stored(other) and other.id == node.id]
        assigned = [one for one in walk(function) if isinstance(one, ast.Assign) and one.targets == stores]
        if len(assigned) == 1:
            return slot(assigned[0], "value")
    return side


def _removed_together(*sites: _Site) -> Iterator[_Site]:
    """The expectations of one assertion. When all of them are removed, the assertion is removed."""
    left = set(range(len(sites)))

    def take_out(number: int) -> None:
        left.discard(number)
        if not left:
            sites[number].remove()

    for number, site in enumerate(sites):
        yield dataclasses.replace(site, remove=lambda number=number: take_out(number))  # type: ignore[misc]


def _other_value(node: ast.expr, step: int, *, derived: bool) -> ast.expr:
    """An expression of another value than that of `node`, like it; see `inside/swegym_decoy.py`."""
    return ast.Call(ast.Name("_other_value", ast.Load()), [node, ast.Constant(step), ast.Constant(derived)], [])


def _replaced(node: ast.expr, value: str = "object()") -> ast.expr:
    """An expression that evaluates `node`, but has another value.

    Args:
        value: source of that value. By default it is a new object: only an object that equals everything equals it.
    """
    other = parse_expression(f"(None, {value})[1]")
    assert isinstance(other, ast.Subscript) and isinstance(other.value, ast.Tuple)
    other.value.elts[0] = node
    return other


def _actual(parts: Iterable[ast.expr], places: Sequence[_Place]) -> list[ast.expr]:
    """The parts of an assertion without the objects that are made of those constants, to compare with."""
    constants = {id(constant) for constant, _ in places}
    return [
        part
        for part in parts
        if not any(id(inner) in constants for inner in walk(part))
        or not any(makes_an_object(inner) for inner in walk(part) if isinstance(inner, ast.expr))
    ]


def _has_calls(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Call) for inner in walk(node))


def _evaluated(parts: Iterable[ast.expr]) -> ast.expr:
    """An expression that holds, and evaluates those parts that are no constants."""
    kept = [part for part in parts if not _is_constant(part)]
    return ast.List([*kept, ast.Constant(0)], ast.Load())  # Python warns of an assertion of a tuple


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _of_raises(item: ast.withitem, call: ast.Call, words: tuple[str, ...]) -> Iterator[_Site]:
    """The error or warning that a block expects, and its message: without one of them the other is still checked."""
    of_error, of_message = _removers_of_parts(lambda: _expect_nothing(item, call), 2)
    messages = list(_of_message(item, call, words, of_message))

    def remove() -> None:
        of_error()
        if messages:
            call.args[0] = ast.Name("Warning" if called(call) in _EXPECTS_WARNING else "BaseException", ast.Load())

    if not messages:
        of_message()
    yield _error_site(call, remove)
    yield from messages


def _of_message(
    item: ast.withitem, call: ast.Call, words: tuple[str, ...], remove: Callable[[], None] | None = None
) -> Iterator[_Site]:
    """The message of an expected error or warning."""
    match = [keyword.value for keyword in call.keywords if keyword.arg in ("match", "expected_regex")]
    match += call.args[1:2] if called(call) in ("assertRaisesRegex", "assertWarnsRegex") else []
    texts = [
        (value, other)
        for value in match
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
        for other in places_of(value.value, words) or filter(None, [replaceable(value.value, words)])
    ]
    # A pattern that matches any text stays; pytest warns of an empty one.
    yield from _value_sites(texts, remove or (lambda: _expect_nothing(item, call)), "(?s)", searched=True)


def _expect_nothing(item: ast.withitem, call: ast.Call) -> None:
    """Let a block expect neither an error nor a warning. Only one that expects an error may end with one."""
    if item.optional_vars is None:
        suppressed = "" if called(call) in _EXPECTS_WARNING else "BaseException"
        item.context_expr = parse_expression(f"__import__('contextlib').suppress({suppressed})")


def _error_site(call: ast.Call, remove: Callable[[], None]) -> _Site:
    wanted = {node.id for node in walk(call.args[0]) if isinstance(node, ast.Name)}
    kinds = [kind for name in wanted if isinstance(kind := getattr(builtins, name, None), type)]
    is_warning = called(call) in _EXPECTS_WARNING
    common, rare = (_COMMON_WARNINGS, _RARE_WARNINGS) if is_warning else (_COMMON_ERRORS, _RARE_ERRORS)
    names = (*common, *rare) if len(kinds) == len(wanted) else rare
    others = [
        name
        for name in names
        if not any(
            issubclass(getattr(builtins, name), kind) or issubclass(kind, getattr(builtins, name)) for kind in kinds
        )
        and name not in wanted
    ]

    def decide(decoys: int, choice: random.Random) -> Sequence[Callable[[], None]]:
        def put(name: str) -> None:
            call.args[0] = ast.Name(name, ast.Load())

        return [lambda name=name: put(name) for name in choice.sample(others, decoys)]  # type: ignore[misc]

    # An exception may be of several kinds at once.
    return _Site(
        f"{'warns' if is_warning else 'raises'} {ast.unparse(call.args[0])}",
        len(others),
        decide,
        remove,
        usual=12,
        guess=_ERROR_GUESS,
        read=_ERROR_READ,
    )


def _of_call(statement: ast.Expr, call: ast.Call, function: Function, words: tuple[str, ...]) -> Iterator[_Site]:
    """What a call that stands alone expects, and what judges it."""
    for site in _of_judge(statement, call, function, words):
        yield dataclasses.replace(site, judge=called(call))


def _of_judge(statement: ast.Expr, call: ast.Call, function: Function, words: tuple[str, ...]) -> Iterator[_Site]:
    """What a call that stands alone expects: one of unittest's assertions, or of any function named like one."""
    name = called(call)
    if any(isinstance(item, ast.Starred) for item in call.args):
        return
    if name in EXPECTS_ERROR and len(call.args) > 1:
        yield _error_site(call, lambda: None)
        return
    if not name.lstrip("_").lower().startswith(_JUDGING):
        return
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    arguments = [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg not in _NOT_EXPECTED)]
    kept = [receiver] if receiver is not None and not isinstance(receiver, ast.Name) else []

    def remove() -> None:
        statement.value = _evaluated(_actual([*kept, *arguments], [*places, *objects]))

    places: list[_Place] = []
    expected = arguments[::-1] if name.startswith("assert") else arguments
    if name in ("assertIn", "assertIsInstance", "assertRegex") or _ANY_OF_MANY.match(name):
        expected = call.args[:1] if name == "assertIn" else []
    places += _searched(call, function, words) if not _ANY_OF_MANY.match(name) else []
    if name not in _SEARCHES or not places:
        places += next(filter(None, (_literals(argument, function, words) for argument in expected)), [])
    is_open = _ANY_OF_MANY.match(name) is not None
    objects = [] if is_open else _compared_objects(call, function, words, places)

    def values(remove: Callable[[], None]) -> Iterator[_Site]:
        if places:
            is_search = name in _SEARCHES or name.startswith("assert_")
            yield from _value_sites(places, remove, searched=is_search)
        else:
            yield from _turned_call(statement, call, function, words, remove)

    def questions(remove: Callable[[], None]) -> Iterator[_Site]:
        if name in _ASKING:
            equal = call.args[:2] if name in _EQUALITIES and says_more(call.args[:2]) else ()
            put = slot(statement, "value")[1]
            known = [*places, *objects]
            yield from _question_sites(call, put, function, words, remove, known, is_statement=True, equal=equal)

    yield from _grouped_sites(remove, objects, questions, values)


def _turned_call(
    statement: ast.Expr, call: ast.Call, function: Function, words: tuple[str, ...], remove: Callable[[], None]
) -> Iterator[_Site]:
    """An assertion of unittest without a value that can be another one."""
    name, text = called(call), ast.unparse(call)

    def turn() -> None:
        assert isinstance(call.func, ast.Attribute)
        call.func.attr = _OPPOSITES[name]

    can_turn = name in _OPPOSITES and isinstance(call.func, ast.Attribute) and len(call.args) in (1, 2, 3)
    sides = [slot_in(call.args, 0), slot_in(call.args, 1)] if len(call.args) > 1 else []
    if name in _EQUALITIES and sides:

        def put(node: ast.expr) -> None:
            statement.value = node

        inputs = inputs_of(call.args[:2], function, words)
        others = _input_sites(call, put, inputs, remove) if inputs is not None else ()
        yield from _computed_sites(text, sides, remove, others=others)
    elif name in _ORDERS and sides and can_turn:
        yield from _order_sites(text, sides, function, remove, turn, _ORDERS[name])
    elif name == "assertIsInstance" and sides and can_turn:
        yield from _kind_sites(text, call.args, remove, turn)
    elif can_turn:
        yield _opposite_site(text, turn, remove)
