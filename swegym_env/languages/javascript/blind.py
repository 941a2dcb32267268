"""Blind expectations for JavaScript and TypeScript: hidden tests whose expected values are not inside the sandbox.

`assert.strictEqual(greet("Ada"), "Hello")` becomes a call that sends the value of `greet("Ada")` out of the sandbox.
The text stays outside and is compared there. Code that reads the tests, whose results satisfy every check, or that ends
the process has nothing to forge. Conditions without a literal stay in the test, and the values that they compare are
sent in addition. With `computed` they are removed too, and the values must equal those that the gold patch sends.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swegym_env.languages import Blinded, Comparison, Expectation, drawn_word
from swegym_env.languages.changed import spliced
from swegym_env.languages.javascript.snapshots import shown_in, shown_value, snapshots_of, without_shown
from swegym_env.languages.javascript.source import (
    SUFFIXES,
    Test,
    Text,
    constant,
    named_tests,
    parsed,
    read_tests,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["arguments_of", "chain_of", "is_assertion", "make_blind", "python_pattern", "whole_of"]

_SENDER = Path(__file__).parent / "inside" / "blind.js"
_STRICT = frozenset({"strictEqual", "deepStrictEqual", "toBe", "toStrictEqual", "equal", "eq", "equals"})
_DEEP = frozenset({"deepEqual", "toEqual", "eql", "eqls", "propEqual", "same", "deepStrictEqual", "toStrictEqual"})
_EQUALITIES = _STRICT | _DEEP
_INEQUALITIES = frozenset(
    {"notEqual", "notStrictEqual", "notDeepEqual", "notDeepStrictEqual", "notPropEqual", "notEqualDeep"}
)
_THROWS = frozenset({"throws", "throw", "Throw", "toThrow", "toThrowError"})
_SEARCHES = frozenset({"match", "toMatch", "include", "includes", "contain", "toContain", "string"})
_TRUTHS = frozenset({"ok", "isTrue", "isOk", "toBeTruthy", "true"})
# Assertions about the calls of a spy: any call, the last one, their number.
_CALLED = frozenset(
    {
        *("toHaveBeenCalledWith", "toBeCalledWith", "toHaveBeenNthCalledWith", "nthCalledWith", "calledWith"),
        *(
            "calledOnceWith",
            "calledWithExactly",
            "calledOnceWithExactly",
            "calledWithMatch",
            "toHaveBeenCalledOnceWith",
        ),
        *("toHaveBeenCalledExactlyOnceWith", "neverCalledWith", "alwaysCalledWith", "alwaysCalledWithExactly"),
    }
)
_LAST_CALLED = frozenset({"toHaveBeenLastCalledWith", "lastCalledWith"})
_CALLED_TIMES = frozenset({"toHaveBeenCalledTimes", "toBeCalledTimes", "callCount"})
_SNAPSHOTS = frozenset({"toMatchSnapshot", "toMatchInlineSnapshot"})
_SHOWN = _SNAPSHOTS | {"toContainEqual"}
_ERROR_SNAPSHOTS = frozenset({"toThrowErrorMatchingSnapshot", "toThrowErrorMatchingInlineSnapshot"})
_IN_FILES = frozenset({"toMatchSnapshot", "toThrowErrorMatchingSnapshot"})
_JUDGING = re.compile(r"(?i)assert|expect|should|verify|check")
_LINKS = frozenset({"to", "be", "deep", "that", "is", "and", "have", "been"})
_FOUND = frozenset({">= 0", "> -1", "!== -1", "!= -1", "!== null", "!= null"})
_COMPARISONS = frozenset({"===", "!==", "==", "!=", "<", ">", "<=", ">="})
# Methods that call a function argument: their object decides with which values.
_ASKING = frozenset(
    {
        *("some", "every", "find", "findIndex", "findLast", "findLastIndex", "filter", "map", "flatMap", "reduce"),
        *("forEach", "has", "includes", "indexOf", "lastIndexOf", "contains", "test", "match", "search", "startsWith"),
    }
)
# Errors of the language that are not base classes of others. A class of the product, or of the test, stays in the test.
_ERRORS = frozenset({"TypeError", "RangeError", "SyntaxError", "ReferenceError", "EvalError", "URIError"})
_REJECTS = frozenset({"rejects", "toThrow of a promise", "toThrowError of a promise"})
_FUNCTIONS = ("arrow_function", "function_expression")
_NOTHING = object()


def make_blind(
    files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
) -> Blinded | None:
    """See `Language.make_blind`."""
    choice = random.Random(seed)
    sender, output = drawn_word(choice), f"/tmp/{drawn_word(choice)}"
    wanted = tuple(names)
    changed: dict[str, str] = {}
    expectations: dict[str, Expectation] = {}
    unread: set[str] = set()
    sources = sorted(path for path in files if path.endswith(SUFFIXES))
    known = [(path, test) for path in sources for test in read_tests(path, files[path])]
    lines: dict[str, list[tuple[int, int, frozenset[str]]]] = {}
    for path, test in known:
        mine = frozenset(name for name in wanted if test in named_tests((one for _, one in known), name))
        lines.setdefault(path, []).append((test.first_line, test.last_line, mine))
    for path, spans in lines.items():
        source = files[path]
        text = Text(source.encode("utf-8", "surrogatepass"))
        root = parsed(path, source)
        edits: list[tuple[int, int, str]] = []
        helpers = _helpers(root, spans, text)
        hidden = _Hidden.of(path, files, [test for one, test in known if one == path], wanted, left, computed=computed)
        for call in (node for node in walk(root) if node.type == "call_expression"):
            function = call.child_by_field_name("function")
            if not is_assertion(call, text) or (function is not None and text.of(function) in helpers):
                continue
            line = call.start_point[0] + 1
            inside = [names for first, last, names in spans if first <= line <= last]
            inside = inside or [names for first, last, names in helpers.values() if first <= line <= last]
            tests = inside[-1] if inside else frozenset(wanted)
            if not inside:  # any test may call it
                unread |= tests
                continue
            if not tests:
                continue
            place = f"{path}:{line}:{call.start_point[1] + 1}"
            plan = hidden.plans.get(call.start_byte) or _planned(call, place, left, text, computed=computed)
            if not _is_alone(whole_of(call), is_promise=any(one.by == "rejected" for one in plan.sent)):
                plan = dataclasses.replace(plan, sent=())  # the result of the assertion is used
            keys = {one.place: drawn_word(choice) for one in (*plan.sent, *plan.beside)}
            for one in (*plan.sent, *plan.beside):
                expectation = Expectation(one.place, one.kind, tests, min(tests), True, one.value, one.options)
                expectations[keys[one.place]] = expectation
            if not plan.sent:
                unread |= tests
            edits += _edits(call, plan, keys, sender, text)
        if hidden.tests:
            changed[snapshots_of(path)] = without_shown(files[snapshots_of(path)], hidden.tests)
        if edits:
            end = len(source)
            edits.append((end, end, _code(path, root, sender, output)))
            changed[path] = spliced(source, edits)
            if computed:
                changed[path] = _without_unused(path, changed[path], helpers.keys())
    if not expectations:
        return None
    return Blinded(changed, {}, output, expectations, {}, frozenset(unread))


_Span = tuple[int, int, frozenset[str]]  # first and last line, and the tests


def _functions(root: Node, text: Text) -> Iterator[tuple[str, Node]]:
    """The functions that a file declares at top level, by name."""
    for node in root.named_children:
        node = node.named_children[0] if node.type == "export_statement" and node.named_children else node
        for one in node.named_children if node.type in ("lexical_declaration", "variable_declaration") else [node]:
            name, value = one.child_by_field_name("name"), one.child_by_field_name("value")
            if name is not None and value is not None and value.type in _FUNCTIONS:
                yield text.of(name), value
            elif name is not None and one.type == "function_declaration":
                yield text.of(name), one


def _helpers(root: Node, spans: list[_Span], text: Text) -> dict[str, _Span]:
    """The functions outside of the tests: their lines, and the tests that use them directly or by other functions."""
    functions = dict(_functions(root, text))
    names = {
        place: {text.of(one) for one in walk(node) if one.type == "identifier"} & functions.keys()
        for place, node in functions.items()
    }
    found: dict[str, set[str]] = {name: set() for name in functions}
    for node in (one for one in walk(root) if one.type == "identifier" and text.of(one) in functions):
        line = node.start_point[0] + 1
        for tests in [tests for first, last, tests in spans if first <= line <= last][-1:]:
            found[text.of(node)] |= tests
    for _ in functions:
        for name, called in names.items():
            for other in called:
                found[other] |= found[name]
    return {
        name: (node.start_point[0] + 1, node.end_point[0] + 1, frozenset(found[name]))
        for name, node in functions.items()
        if not any(first <= node.start_point[0] + 1 <= last for first, last, _ in spans)
    }


def _without_unused(path: str, source: str, helpers: Collection[str]) -> str:
    """The source without literal arguments of its functions for parameters that these do not use."""
    text = Text(source.encode("utf-8", "surrogatepass"))
    root = parsed(path, source)
    unused: dict[str, set[int]] = {}
    for name, node in _functions(root, text):
        parameters, body = node.child_by_field_name("parameters"), node.child_by_field_name("body")
        if name in helpers and parameters is not None and body is not None:
            used = {text.of(one) for one in walk(body) if "identifier" in one.type}
            plain = [text.of(one) for one in parameters.named_children]
            unused[name] = {number for number, one in enumerate(plain) if not {*re.findall(r"[\w$]+", one)} & used}
    edits = []
    for call in (one for one in walk(root) if one.type == "call_expression"):
        function = call.child_by_field_name("function")
        for number in unused.get(text.of(function), ()) if function is not None else ():
            given = arguments_of(call)
            if number < len(given) and constant(given[number], text, _NOTHING) is not _NOTHING:
                empty = {"string": "''", "template_string": "''", "number": "0"}.get(given[number].type, "null")
                edits.append((text.at(given[number].start_byte), text.at(given[number].end_byte), empty))
    return spliced(source, edits)


@dataclass(frozen=True)
class _Sent:
    """One value that is sent: place, kind, value and options of its expectation, and its form.

    If `by` is "thrown", the error that a function throws is sent; if "rejected", the error of a promise.
    """

    place: str
    kind: Comparison
    value: Any
    node: Node
    how: str
    options: Mapping[str, float] = field(default_factory=dict)
    by: str = ""


@dataclass(frozen=True)
class _Plan:
    """The values that are sent instead of an assertion, and those that are sent in place in addition to it."""

    sent: tuple[_Sent, ...] = ()
    beside: tuple[_Sent, ...] = ()


def _edits(call: Node, plan: _Plan, keys: Mapping[str, str], sender: str, text: Text) -> Iterator[tuple[int, int, str]]:
    """The edits of an assertion: its values are sent instead of it, or in place."""
    wraps = [(one.node, f'{sender}("{keys[one.place]}", (', f'), "{one.how}")') for one in plan.beside]
    if not plan.sent:
        for node, before, after in wraps:
            yield text.at(node.start_byte), text.at(node.start_byte), before
            yield text.at(node.end_byte), text.at(node.end_byte), after
        return
    written = []
    for one in plan.sent:
        inner = _wrapped(one.node, wraps, text)
        inner = f"{sender}thrown({inner})" if one.by == "thrown" else inner
        function = f"{sender}rejected" if one.by == "rejected" else sender
        written.append(f'{function}("{keys[one.place]}", ({inner}), "{one.how}")')
    whole = whole_of(call)
    together = ", ".join(written)
    # Without a parenthesis at the start, because the line before may end without a semicolon.
    together = f"Promise.all([{together}])" if plan.sent[0].by == "rejected" else f"void ({together})"
    yield text.at(whole.start_byte), text.at(whole.end_byte), together


@dataclass(frozen=True)
class _Hidden:
    """The tests whose snapshot files stay outside: all values that such a test compares with them are sent.

    Attributes:
        plans: offset of an assertion, in bytes → the values that are sent instead of it.
    """

    tests: tuple[Test, ...]
    plans: Mapping[int, _Plan]

    @classmethod
    def of(
        cls,
        path: str,
        files: Mapping[str, str],
        known: list[Test],
        names: Collection[str],
        left: frozenset[str],
        *,
        computed: bool,
    ) -> _Hidden:
        source, shown = files[path], files.get(snapshots_of(path), "")
        text, root = Text(source.encode("utf-8", "surrogatepass")), parsed(path, source)
        calls = (
            [node for node in walk(root) if node.type == "call_expression" and is_assertion(node, text)]
            if shown
            else []
        )
        tests: list[Test] = []
        plans: dict[int, _Plan] = {}
        for test in known if shown else ():
            held = shown_in(shown, test)
            inside = [one for one in calls if test.first_line <= one.start_point[0] + 1 <= test.last_line]
            asking = [one for one in inside if _comparison(one, text)[0] in _IN_FILES]
            if not (held and asking and any(test in named_tests(known, name) for name in names)):
                continue
            counts: Counter[str] = Counter()
            sent: dict[int, _Sent | None] = {}
            for call in asking:
                hint = _hint(call, text)
                counts[hint or ""] += 1
                place = f"{path}:{call.start_point[0] + 1}:{call.start_point[1] + 1}"
                value = _shown(held.get((hint or "", counts[hint or ""]), ""), call, text)
                is_known = value is not _NOTHING and len(held) == len(asking)
                one = _of_shown(call, place, value if is_known else _NOTHING, text)
                is_sent = hint is not None and one.place not in left and (is_known or computed)
                sent[call.start_byte] = one if is_sent and _is_alone(whole_of(call), is_promise=False) else None
            if all(one is not None for one in sent.values()):
                tests.append(test)
                plans |= {begin: _Plan((one,)) for begin, one in sent.items() if one is not None}
        return cls(tuple(tests), plans)


def _hint(call: Node, text: Text) -> str | None:
    """The hint of a snapshot; None if the call also compares something else, or the hint is computed."""
    expected = _comparison(call, text)[1][1:]
    values = [constant(one, text, _NOTHING) for one in expected]
    if not values:
        return ""
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None


def _of_shown(call: Node, place: str, value: object, text: Text) -> _Sent:
    """The value that is sent for a comparison with a snapshot file; if unknown, it must equal the gold patch's."""
    name, sides, _ = _comparison(call, text)
    by, how = ("thrown", "message") if name in _ERROR_SNAPSHOTS else ("", "loose")
    if value is _NOTHING:
        return _Sent(f"{place}/0", "gold", None, sides[0], how, {"one": 1.0}, by)
    if isinstance(value, tuple):
        value, how = value[0], "error"
    return _Sent(place, "is", value, sides[0], how, by=by)


def _shown(shown: str, call: Node, text: Text) -> object:
    """The value that a snapshot shows; for an error in Vitest's form, which includes its class, a tuple."""
    is_error = _comparison(call, text)[0] in _ERROR_SNAPSHOTS
    if is_error and (found := re.fullmatch(r"\[(\w*Error: .*)\]", shown.strip("\n"), re.DOTALL)):
        return (found[1],)
    value = shown_value(shown, _NOTHING)
    return _NOTHING if is_error and not isinstance(value, str) else value


def is_assertion(call: Node, text: Text) -> bool:
    """Whether a call is an assertion, known or not; in a chain of `expect`, only its innermost call."""
    function = call.child_by_field_name("function")
    if function is None:
        return False
    if function.type == "identifier":
        return _JUDGING.search(text.of(function)) is not None
    owner, method = function.child_by_field_name("object"), function.child_by_field_name("property")
    if owner is None or method is None or owner.type == "call_expression":
        return False
    name = text.of(owner) if owner.end_byte - owner.start_byte < 40 else ""
    return re.search(r"(^|\.)(t|assert|should)$", name) is not None or _JUDGING.search(text.of(method)) is not None


def whole_of(call: Node) -> Node:
    """The chain that begins with this call: `expect(a).to.equal(1)`."""
    node = call
    while node.parent is not None and (
        (node.parent.type == "member_expression" and node.parent.child_by_field_name("object") == node)
        or (node.parent.type == "call_expression" and node.parent.child_by_field_name("function") == node)
    ):
        node = node.parent
    return node


def _is_alone(whole: Node, *, is_promise: bool) -> bool:
    """Whether no code but the test runner uses the result of an assertion; a promise may be awaited or returned."""
    above = whole.parent
    if is_promise and above is not None and above.type == "await_expression":
        above = above.parent
    kinds = ("expression_statement", "arrow_function", *(("return_statement",) if is_promise else ()))
    return above is not None and above.type in kinds


def arguments_of(call: Node) -> list[Node]:
    """The arguments of a call, without comments."""
    arguments = call.child_by_field_name("arguments")
    return [child for child in arguments.named_children if child.type != "comment"] if arguments is not None else []


def _planned(call: Node, place: str, left: frozenset[str], text: Text, *, computed: bool) -> _Plan:
    name, sides, how = _comparison(call, text)
    if name in _THROWS or name in _REJECTS:
        by = "rejected" if name in _REJECTS else "thrown"
        sent = [one for one in _thrown(call, sides, place, text, by) if one.place not in left]
        return _Plan(tuple(sent)) if sent else _of_a_class(sides, place, left, text, by, computed=computed)
    if name in _CALLED | _LAST_CALLED | _CALLED_TIMES | _SHOWN | _ERROR_SNAPSHOTS:
        return _spied(call, name, sides, place, left, text, computed=computed)
    if name in _TRUTHS and len(sides) == 1:
        exact = name in ("true", "isTrue")
        parts, sent = list(_compared(sides[0], text)), _asked(sides[0], place, text)
        sent = sent or ([] if parts else [_truth(sides[0], place, exact=exact)])
        loose = not sent or "loose" in sent[0].options
    elif name in _INEQUALITIES and len(sides) == 2:
        parts, sent, loose = list(sides), [], True
    elif name in _SEARCHES and len(sides) == 2:
        parts, sent, loose = [sides[0]], _searched(sides[0], sides[1], place, text), False
    elif name in _EQUALITIES and len(sides) == 2:
        parts, sent = _equality(sides[0], sides[1], place, text, how=how)
        loose = False
    else:
        return _Plan()
    parts = [part for part in parts if constant(part, text, _NOTHING) is _NOTHING and not _is_function(part)]
    receivers = [one for side in sides for one in _receivers(side, text) if one not in parts]
    sent = [one for one in sent if one.place not in left and one.node.type != "spread_element"]
    how = "strict" if how in ("", "equal") else how
    if not computed:
        options = {"beside": 1.0, "one": 1.0}
        chosen = receivers if sent else [*parts, *receivers]
        numbers = {part.id: number for number, part in enumerate([*parts, *receivers])}
        sides_ = {"side": 1.0} if len(parts) == 2 and name in (_EQUALITIES | _INEQUALITIES | _TRUTHS) else {}
        beside = [
            _Sent(
                f"{place}/{numbers[part.id]}", "gold", None, part, how, {**options, **(sides_ if part in parts else {})}
            )
            for part in chosen
            if not any(_is_inside(part, other) for other in chosen)
        ]
        return _Plan(tuple(sent), tuple(one for one in beside if one.place not in left))
    # No expected value may stay in the test: of an equality one side is sent, of a condition the values that it
    # compares.
    is_whole = all(one.node in sides and one.kind != "search" for one in sent)
    if sent and is_whole and not receivers and not loose:
        return _Plan(tuple(sent))
    gold = [
        _Sent(f"{place}/{number}", "gold", None, part, how, {"one": 1.0})
        for number, part in enumerate([*parts, *receivers])
    ]
    if name in _EQUALITIES and parts == sides and not receivers:
        side = gold[1 if f"{place}/0~" in left else 0]
        gold = [dataclasses.replace(side, options={"one": 1.0, "sides": 2.0})]
    if receivers and not any(one.place in left for one in gold[len(parts) :]):
        gold = gold[len(parts) :]
    if gold and not any(one.place in left for one in gold):
        return _Plan(tuple(gold))
    return _Plan(tuple(sent)) if not (parts and loose) else _Plan()


def _is_function(node: Node) -> bool:
    return node.type in (*_FUNCTIONS, "function")


def _is_inside(node: Node, other: Node) -> bool:
    return node != other and other.start_byte <= node.start_byte and node.end_byte <= other.end_byte


def _wrapped(node: Node, wraps: list[tuple[Node, str, str]], text: Text) -> str:
    """The source of a node, with texts inserted around some of the nodes in it."""
    source, begin = text.of(node).encode("utf-8", "surrogatepass"), node.start_byte
    for inner, before, after in sorted(wraps, key=lambda wrap: -wrap[0].start_byte):
        if node.start_byte <= inner.start_byte and inner.end_byte <= node.end_byte:
            first, last = inner.start_byte - begin, inner.end_byte - begin
            source = source[:first] + before.encode() + source[first:last] + after.encode() + source[last:]
    return source.decode("utf-8", "surrogatepass")


def _receivers(node: Node, text: Text) -> Iterator[Node]:
    """The objects of calls with functions of the test as arguments; they decide with which values these are called."""
    for call in (one for one in walk(node) if one.type == "call_expression"):
        function = call.child_by_field_name("function")
        owner = function.child_by_field_name("object") if function is not None else None
        method = function.child_by_field_name("property") if function is not None else None
        if owner is None or method is None or text.of(method) not in _ASKING:
            continue
        if not any(_is_function(given) for given in arguments_of(call)) or any(_receivers(owner, text)):
            continue
        if constant(owner, text, _NOTHING) is _NOTHING and not any(_is_function(one) for one in _ancestors(call, node)):
            yield owner


def _ancestors(node: Node, last: Node) -> Iterator[Node]:
    """The ancestors of a node up to another node that contains it."""
    here = node.parent if node != last else None
    while here is not None and here != last.parent:
        yield here
        here = here.parent


def _of_a_class(sides: list[Node], place: str, left: frozenset[str], text: Text, by: str, *, computed: bool) -> _Plan:
    """For an expected error whose class is not of the language: the classes of the error, and those of that class."""
    if len(sides) != 2 or sides[1].type not in ("identifier", "member_expression"):
        return _Plan()
    is_class = _is_class(sides[1], text)
    error = _Sent(f"{place}/0", "gold", None, sides[0], "classes", {"one": 1.0, "error": 1.0}, by)
    if computed:  # an expression that does not look like a class may be a function that reads the message
        message = _Sent(f"{place}/1", "gold", None, sides[0], "message", {"one": 1.0}, by)
        parts = (error,) if is_class else (error, message)
        return _Plan(parts if not any(one.place in left for one in parts) else ())
    if not is_class:
        return _Plan()
    beside = {"beside": 1.0, "one": 1.0, "side": 1.0}
    error = dataclasses.replace(error, how="watched", options={**beside, "error": 1.0})
    both = error, _Sent(f"{place}/1", "gold", None, sides[1], "bases", beside)
    return _Plan(beside=tuple(one for one in both if one.place not in left))


def _spied(
    call: Node, name: str, sides: list[Node], place: str, left: frozenset[str], text: Text, *, computed: bool
) -> _Plan:
    """For assertions about a spy, its calls are sent; for snapshots and assertions about objects, the value itself."""
    actual, values = sides[0], [constant(one, text, _NOTHING) for one in sides[1:]]
    is_error = name in _ERROR_SNAPSHOTS
    gold = _Sent(f"{place}/0", "gold", None, actual, "message" if is_error else "calls", {"one": 1.0})
    if is_error:
        gold = dataclasses.replace(gold, by="thrown")
    elif name in _SHOWN:
        if any(value is _NOTHING for value in values) or (name in _SNAPSHOTS and dict in map(type, values)):
            return _Plan()  # `expect.any(Number)`
        gold = dataclasses.replace(gold, how="loose")
    elif name in _CALLED_TIMES and len(values) == 1 and isinstance(values[0], int):
        count = _Sent(place, "is", values[0], actual, "count")
        return _Plan((count,) if place not in left else ())
    elif name in _LAST_CALLED and all(value is not _NOTHING for value in values):
        last = _Sent(place, "eq", values, actual, "last call", {"typed": 1.0})
        if place not in left:
            return _Plan((last,))
    if "Inline" in name and len(values) == 1 and isinstance(values[0], str):
        shown = _shown(values[0], call, text)
        if shown is not _NOTHING and place not in left:
            return _Plan((_of_shown(call, place, shown, text),))
    # Jest fails if no test uses a snapshot of a file any more; see `_Hidden`.
    if gold.place in left or (is_error and not computed) or (name in _IN_FILES and computed):
        return _Plan()
    if computed:
        return _Plan((gold,))
    return _Plan(beside=(dataclasses.replace(gold, options={"one": 1.0, "beside": 1.0}),))


def _is_class(node: Node, text: Text) -> bool:
    """Whether an expression looks like the name of a class, other than one of the language."""
    name = text.of(node).rpartition(".")[2]
    return name[:1].isupper() and name not in (*_ERRORS, "Error")


def _thrown(call: Node, sides: list[Node], place: str, text: Text, by: str) -> Iterator[_Sent]:
    """The values sent for an expected error: its message or class, or the properties that an object describes."""
    kinds = (*_FUNCTIONS, "identifier", *(("call_expression",) if by == "rejected" else ()))
    if len(sides) != 2 or sides[0].type not in kinds:
        return
    is_node = not text.of(call).startswith("expect")  # `assert.throws` matches "Error: message"
    function, expected = sides
    if expected.type == "regex":
        pattern = python_pattern(text.of(expected))
        if pattern is not None:
            how = "error" if is_node else "message"
            yield _Sent(place, "search", pattern, function, how, by=by)
    elif expected.type == "identifier" and text.of(expected) in _ERRORS:
        yield _Sent(place, "is", text.of(expected), function, "class", {"error": 1.0}, by)
    elif not is_node and isinstance(value := constant(expected, text, _NOTHING), str):
        yield _Sent(place, "in", value, function, "message", by=by)
    elif is_node and expected.type == "object":
        found = []
        for number, child in enumerate(expected.named_children):
            key, value_ = child.child_by_field_name("key"), child.child_by_field_name("value")
            if child.type != "pair" or key is None or value_ is None or text.of(key) not in ("name", "message", "code"):
                return
            pattern = python_pattern(text.of(value_)) if value_.type == "regex" else None
            value = constant(value_, text, _NOTHING) if pattern is None else pattern
            if not isinstance(value, str | int) or isinstance(value, bool):
                return
            kind: Comparison = "is" if pattern is None else "search"
            # The name of an error of the language counts as few bits as a class.
            options = {"error": 1.0} if value in (*_ERRORS, "Error") else {}
            found.append(_Sent(f"{place}/{number}", kind, value, function, text.of(key), options, by))
        yield from found


_UNKNOWN_IN_PATTERN = re.compile(r"\\[pPcuxk]|\(\?<|\[\^?\]|\[[^\]]*(\[|--|&&|\|\||~~)")


def python_pattern(source: str) -> str | None:
    """A regular expression of JavaScript (`/a$/i`) as an equivalent one of Python; None if there is none."""
    body, _, flags = source[1:].rpartition("/")
    if set(flags) - set("gimsu") or _UNKNOWN_IN_PATTERN.search(body):
        return None
    parts = re.split(r"(\\.|\[(?:\\.|[^\]\\])*\])", body, flags=re.DOTALL)
    ends = r"(?=\n|\Z)" if "m" in flags else r"\Z"
    body = "".join(part if number % 2 else part.replace("$", ends) for number, part in enumerate(parts))
    pattern = f"(?a{''.join(sorted(set(flags) & set('ims')))}){body}"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
    return pattern


def _comparison(call: Node, text: Text) -> tuple[str, list[Node], str]:
    """The name of an assertion, its operands (the computed one first), and the form in which they are sent."""
    function, given = call.child_by_field_name("function"), arguments_of(call)
    if function is None or not given:
        return "", [], ""
    if function.type == "identifier" and text.of(function) == "assert":
        return "ok", given[:1], ""
    if function.type == "identifier":
        words, expected = chain_of(call, text)
        if words[:1] == ["rejects"] and len(words) == 2:
            return f"{words[1]} of a promise", [given[0], *expected], ""
        if text.of(function) != "expect" or any(word not in (*_LINKS, "not") for word in words[:-1]):
            return "", [], ""
        name = words[-1] if words else ""
        if "not" in words:
            return ("notEqual" if name in _EQUALITIES and words.count("not") == 1 else ""), [given[0], *expected], ""
        return name, [given[0], *expected], "loose" if name in ("toEqual", "eql", "eqls") else "strict"
    method, owner = function.child_by_field_name("property"), function.child_by_field_name("object")
    name = text.of(method) if method is not None else ""
    if owner is not None and text.of(owner) == "sinon.assert" and name in _CALLED | _CALLED_TIMES:
        return name, given, ""
    if owner is None or text.of(owner) not in ("assert", "t", "QUnit.assert", "chai.assert"):
        return "", [], ""
    if name in _TRUTHS or name in _THROWS or name in _REJECTS:
        return name, given[: 2 - (name in _TRUTHS)], ""
    sides = given[:2] if constant(given[0], text, _NOTHING) is _NOTHING or len(given) < 2 else given[1::-1]
    how = "strict" if name in ("strictEqual", "deepStrictEqual") else "equal" if name == "equal" else "loose"
    return name, sides, how


def _searched(actual: Node, expected: Node, place: str, text: Text) -> list[_Sent]:
    """The value in which an assertion searches for a literal."""
    value = constant(expected, text, _NOTHING)
    if isinstance(value, str | int) and not isinstance(value, bool):
        return [_Sent(place, "in", value, actual, "searched")]
    pattern = python_pattern(text.of(expected)) if expected.type == "regex" else None
    return [_Sent(place, "search", pattern, actual, "strict")] if pattern is not None else []


def chain_of(call: Node, text: Text) -> tuple[list[str], list[Node]]:
    """The words after `expect(…)`, and the arguments of the last of them."""
    words: list[str] = []
    expected: list[Node] = []
    node = call
    while node.parent is not None:
        above = node.parent
        if above.type == "member_expression" and above.child_by_field_name("object") == node:
            word = above.child_by_field_name("property")
            words.append(text.of(word) if word is not None else "")
        elif above.type == "call_expression" and above.child_by_field_name("function") == node:
            if expected:
                return [], []
            expected = arguments_of(above)
        else:
            break
        node = above
    return words, expected


def _equality(actual: Node, expected: Node, place: str, text: Text, *, how: str) -> tuple[list[Node], list[_Sent]]:
    """The operands of an equality, and the values that are sent if one side is a literal."""
    value = constant(expected, text, _NOTHING)
    if constant(actual, text, _NOTHING) is not _NOTHING:
        return [], []
    if value is _NOTHING:
        return [actual, expected], []
    if isinstance(value, bool) and how != "equal" and (parts := list(_compared(actual, text))):
        return parts, _asked(actual, place, text) if value else []
    if how == "equal":
        if isinstance(value, bool):  # 1 == true
            return [actual], []
        how = "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else "strict"
    kind: Comparison = "eq" if isinstance(value, dict | list) else "is"
    options = {"typed": 1.0} if kind == "eq" else {}
    return [actual], [_Sent(place, kind, value, actual, how, options)]


def _truth(condition: Node, place: str, *, exact: bool) -> _Sent:
    """The truth value of a condition, which many values satisfy."""
    return _Sent(place, "is", True, condition, "strict" if exact else "truth", {} if exact else {"loose": 1.0})


def _asked(condition: Node, place: str, text: Text) -> list[_Sent]:
    """The values that a condition compares with a literal, if it is a single comparison or search."""
    if condition.type == "parenthesized_expression":
        return _asked(condition.named_children[0], place, text)
    if condition.type == "binary_expression" and len(condition.children) == 3:
        one, sign, other = condition.children
        if f"{sign.type} {text.of(other)}" in _FOUND and one.type == "call_expression":
            return _asked_by_call(one, place, text) if _method(one, text) in ("indexOf", "search", "match") else []
        for side, value in ((one, constant(other, text, _NOTHING)), (other, constant(one, text, _NOTHING))):
            is_value = isinstance(value, str | int | float) or value is None
            if sign.type == "===" and is_value and constant(side, text, _NOTHING) is _NOTHING:
                return [_Sent(place, "is", value, side, "strict")]
        return []
    return _asked_by_call(condition, place, text) if condition.type == "call_expression" else []


def _method(call: Node, text: Text) -> str:
    function = call.child_by_field_name("function")
    method = function.child_by_field_name("property") if function is not None else None
    return text.of(method) if method is not None else ""


def _asked_by_call(call: Node, place: str, text: Text) -> list[_Sent]:
    function, given = call.child_by_field_name("function"), arguments_of(call)
    owner = function.child_by_field_name("object") if function is not None else None
    if owner is None or len(given) != 1:
        return []
    method = _method(call, text)
    if owner.type == "regex" or given[0].type == "regex":
        regex, searched = (owner, given[0]) if owner.type == "regex" else (given[0], owner)
        pattern = python_pattern(text.of(regex)) if method in ("test", "match", "search", "exec") else None
        return [_Sent(place, "search", pattern, searched, "strict")] if pattern is not None else []
    value = constant(given[0], text, _NOTHING)
    if not isinstance(value, str | int) or isinstance(value, bool):
        return []
    if method in ("includes", "indexOf", "has"):
        return [_Sent(place, "in", value, owner, "searched")]
    if method in ("startsWith", "endsWith") and isinstance(value, str):
        return [_Sent(place, "start" if method == "startsWith" else "end", value, owner, "strict")]
    return []


def _compared(condition: Node, text: Text) -> Iterator[Node]:
    """The values that a condition compares or searches; none for a plain call."""
    is_negated = condition.type == "unary_expression" and condition.children[0].type == "!"
    if condition.type == "parenthesized_expression" or is_negated:
        yield from _compared(condition.named_children[0], text)
    elif condition.type == "binary_expression" and len(condition.children) == 3:
        one, sign, other = condition.children
        if sign.type in _COMPARISONS or sign.type in ("&&", "||"):
            for side in (one, other):
                yield from list(_compared(side, text)) or [side]
    elif condition.type == "call_expression":
        function = condition.child_by_field_name("function")
        owner = function.child_by_field_name("object") if function is not None else None
        if owner is None:
            return
        arguments = arguments_of(condition)
        if owner.type == "regex" and arguments:
            yield arguments[0]
        elif _method(condition, text) in _ASKING or any(one.type == "regex" for one in arguments):
            yield owner


def _code(path: str, root: Node, sender: str, output: str) -> str:
    """The sending code for the end of the file: functions and imports are hoisted."""
    kinds = {node.type for node in root.named_children}
    is_module = path.endswith((".mjs", ".mts")) or bool(kinds & {"import_statement", "export_statement"})
    load = f"import * as {sender}files from 'fs';\n" if is_module and not path.endswith(".cts") else ""
    code = _SENDER.read_text(encoding="utf-8").partition("*/\n")[2]
    code = code.replace("@FILES@", f"{sender}files" if load else "require('fs')")
    code = code.replace("@OUTPUT@", output).replace("SWEGYM", sender)
    if path.endswith((".ts", ".tsx", ".mts", ".cts")):
        code = re.sub(r"(?m)^function (\w+)\(([\w, ]+)\)", _typed, code)
    return f"\n{load}{code}"


def _typed(head: re.Match[str]) -> str:
    parameters = ", ".join(f"{name.strip()}: any" for name in head[2].split(","))
    return f"// @ts-ignore\nfunction {head[1]}({parameters}): any"
