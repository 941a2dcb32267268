"""Tests of JavaScript and TypeScript without their expected values, for patches that controls leave unproven.

`assert.strictEqual(greet("Ada"), "Hello")` becomes a call that sends the value of `greet("Ada")` out; the text stays
outside and is compared there. Whoever reads the tests finds nothing. Only runs with `computed` exist (see
`Language.make_blind`): they can prove a repair whose patch has means of forgery, and reject none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swegym_env.languages import Blinded, Comparison, Expectation
from swegym_env.languages.javascript.source import (
    SUFFIXES,
    Text,
    constant,
    named_tests,
    parsed,
    read_tests,
    string_value,
    walk,
)

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["make_blind"]

_SENDER = Path(__file__).parent / "inside" / "blind.js"
_STRICT = frozenset({"strictEqual", "deepStrictEqual", "toBe", "toStrictEqual", "equal", "eq", "equals"})
_DEEP = frozenset({"deepEqual", "toEqual", "eql", "eqls", "propEqual", "same", "deepStrictEqual", "toStrictEqual"})
_EQUALITIES = _STRICT | _DEEP
_SEARCHES = frozenset({"match", "toMatch", "include", "includes", "contain", "toContain", "string"})
_TRUTHS = frozenset({"ok", "isTrue", "isOk", "toBeTruthy", "true"})
_JUDGING = re.compile(r"(?i)assert|expect|should|verify|check")
_LINKS = frozenset({"to", "be", "deep", "that", "is", "and", "have", "been"})
_COMPARISONS = frozenset({"===", "!==", "==", "!=", "<", ">", "<=", ">="})
_NOTHING = object()


def make_blind(
    files: Mapping[str, str], names: Iterable[str], left: frozenset[str], seed: int, *, computed: bool = False
) -> Blinded | None:
    """See `Language.make_blind`. Without `computed` nothing is rewritten."""
    if not computed:
        return None
    choice = random.Random(seed)
    sender, output = _word(choice), f"/tmp/{_word(choice)}"
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
        for call in (node for node in walk(root) if node.type == "call_expression"):
            if not _judges(call, text):
                continue
            line = call.start_point[0] + 1
            inside = [names for first, last, names in spans if first <= line <= last]
            if not inside:  # in a helper: any test may call it
                unread |= {*wanted}
                continue
            tests = inside[-1]
            if not tests:
                continue
            place = f"{path}:{line}:{call.start_point[1] + 1}"
            sent = _sent(call, place, left, text) if place not in left else []
            whole = _whole(call)
            if not sent or whole.parent is None or whole.parent.type not in ("expression_statement", "arrow_function"):
                unread |= tests
                continue
            written = []
            for one in sent:
                key = _word(choice)
                expectations[key] = Expectation(one.place, one.kind, tests, min(tests), True, one.value, one.options)
                written.append(f'{sender}("{key}", ({text.of(one.node)}), "{one.how}")')
            edits.append((text.at(whole.start_byte), text.at(whole.end_byte), f"({', '.join(written)})"))
        if edits:
            end = len(source)
            edits.append((end, end, _code(path, root, sender, output)))
            changed[path] = _spliced(source, edits)
    if not expectations:
        return None
    return Blinded(changed, {}, output, expectations, {}, frozenset(unread))


@dataclass(frozen=True)
class _Sent:
    """One value that is sent: place, kind, value and options of its expectation, and how it is written."""

    place: str
    kind: Comparison
    value: Any
    node: Node
    how: str
    options: Mapping[str, float] = field(default_factory=dict)


def _word(choice: random.Random) -> str:
    return "k" + "".join(choice.choices("bcdfghjkmnpqrstvwxz", k=11))


def _judges(call: Node, text: Text) -> bool:
    """Whether a call is an assertion, known or not: of a chain of `expect`, its innermost call."""
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


def _whole(call: Node) -> Node:
    """The chain that begins with this call: `expect(a).to.equal(1)`."""
    node = call
    while node.parent is not None and (
        (node.parent.type == "member_expression" and node.parent.child_by_field_name("object") == node)
        or (node.parent.type == "call_expression" and node.parent.child_by_field_name("function") == node)
    ):
        node = node.parent
    return node


def _given(call: Node) -> list[Node]:
    arguments = call.child_by_field_name("arguments")
    return [child for child in arguments.named_children if child.type != "comment"] if arguments is not None else []


def _sent(call: Node, place: str, left: frozenset[str], text: Text) -> list[_Sent]:
    """What is sent in the place of an assertion; nothing if it cannot be."""
    name, sides, how = _comparison(call, text)
    if len(sides) == 1 and name in _TRUTHS:
        return _truth(sides[0], place, text, exact=name in ("true", "isTrue"))
    if len(sides) != 2:
        return []
    if name in _SEARCHES:
        return [_searched(sides[0], sides[1], place, text)]
    return _equality(sides[0], sides[1], place, left, text, how=how) if name in _EQUALITIES else []


def _comparison(call: Node, text: Text) -> tuple[str, list[Node], str]:
    """The name of an assertion, what it compares (what is computed first), and how it is sent."""
    function, given = call.child_by_field_name("function"), _given(call)
    if function is None or not given:
        return "", [], ""
    if function.type == "identifier" and text.of(function) == "assert":
        return "ok", given[:1], ""
    if function.type == "identifier":
        words, expected = _chain(call, text)
        if text.of(function) != "expect" or any(word not in _LINKS for word in words[:-1]):
            return "", [], ""
        name = words[-1] if words else ""
        return name, [given[0], *expected], "loose" if name in ("toEqual", "eql", "eqls") else "strict"
    method, owner = function.child_by_field_name("property"), function.child_by_field_name("object")
    name = text.of(method) if method is not None else ""
    if owner is None or text.of(owner) not in ("assert", "t", "QUnit.assert", "chai.assert"):
        return "", [], ""
    if name in _TRUTHS:
        return name, given[:1], ""
    sides = given[:2] if constant(given[0], text, _NOTHING) is _NOTHING or len(given) < 2 else given[1::-1]
    how = "strict" if name in ("strictEqual", "deepStrictEqual") else "equal" if name == "equal" else "loose"
    return name, sides, how


def _searched(actual: Node, expected: Node, place: str, text: Text) -> _Sent:
    """What is searched: it holds the text that stays outside; for a pattern, it is what the gold patch sends."""
    value = constant(expected, text, _NOTHING)
    if isinstance(value, str | int):
        return _Sent(place, "in", value, actual, "strict")
    return _Sent(place, "gold", None, actual, "strict")


def _chain(call: Node, text: Text) -> tuple[list[str], list[Node]]:
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
            expected = _given(above)
        else:
            break
        node = above
    return words, expected


def _equality(actual: Node, expected: Node, place: str, left: frozenset[str], text: Text, *, how: str) -> list[_Sent]:
    value = constant(expected, text, _NOTHING)
    if constant(actual, text, _NOTHING) is not _NOTHING:
        return []
    if value is _NOTHING:  # both are computed: one side is no longer in the test
        side = expected if f"{place}~" in left else actual
        return [_Sent(place, "gold", None, side, how, {"sides": 2.0})]
    if isinstance(value, bool) and (parts := _truth(actual, place, text, exact=True)) and parts[0].kind == "gold":
        return parts
    if how == "equal":
        how = "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else "strict"
    kind: Comparison = "eq" if isinstance(value, dict | list) else "is"
    return [_Sent(place, kind, value, actual, how)]


def _truth(condition: Node, place: str, text: Text, *, exact: bool) -> list[_Sent]:
    """The truth of a plain call; of a comparison or a search what it compares, as the gold patch sends it."""
    parts = [part for part in _compared(condition, text) if constant(part, text, _NOTHING) is _NOTHING]
    if parts:
        return [_Sent(f"{place}/{number}", "gold", None, part, "strict") for number, part in enumerate(parts)]
    if condition.type in ("call_expression", "await_expression", "member_expression", "identifier"):
        return [_Sent(place, "is", True, condition, "strict" if exact else "truth")]
    return []


def _compared(condition: Node, text: Text) -> Iterator[Node]:
    if condition.type == "parenthesized_expression":
        yield from _compared(condition.named_children[0], text)
    elif condition.type == "binary_expression" and len(condition.children) == 3:
        one, sign, other = condition.children
        if sign.type in _COMPARISONS or sign.type == "&&":
            for side in (one, other):
                yield from list(_compared(side, text)) or [side]
    elif condition.type == "call_expression":
        function = condition.child_by_field_name("function")
        method = function.child_by_field_name("property") if function is not None else None
        owner = function.child_by_field_name("object") if function is not None else None
        if method is None or owner is None:
            return
        arguments = _given(condition)
        if owner.type == "regex" and arguments:
            yield arguments[0]
        elif (arguments and string_value(arguments[0]) is not None) or any(one.type == "regex" for one in arguments):
            yield owner


def _code(path: str, root: Node, sender: str, output: str) -> str:
    """What sends a value, at the end of the file: functions and imports are known before it."""
    kinds = {node.type for node in root.named_children}
    is_module = path.endswith((".mjs", ".mts")) or bool(kinds & {"import_statement", "export_statement"})
    load = f"import * as {sender}files from 'fs';\n" if is_module and not path.endswith(".cts") else ""
    code = _SENDER.read_text(encoding="utf-8").partition("*/\n")[2]
    code = code.replace("@FILES@", f"{sender}files" if load else "require('fs')")
    code = code.replace("@OUTPUT@", output).replace("SWEGYM", sender)
    if path.endswith((".ts", ".tsx", ".mts", ".cts")):
        code = f"// @ts-ignore\n{code.replace('(key, value, how)', '(key: any, value: any, how: any): any')}"
        code = code.replace("(value, how, depth)", "(value: any, how: any, depth: any): any")
    return f"\n{load}{code}"


def _spliced(source: str, edits: list[tuple[int, int, str]]) -> str:
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source
