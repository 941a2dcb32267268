"""Test files of JavaScript and TypeScript: their tests by name and expected values, parsed by tree-sitter.

Supported are `it` and `test` of mocha, Jest, Vitest, Jasmine and QUnit inside `describe` and `QUnit.module`;
`assert.equal` and similar ones of Node.js, Chai and QUnit; and the chains of `expect(…)` of Chai, Jest, Vitest and
Jasmine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from swegym_env.languages.grammars import parser

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = [
    "SUFFIXES",
    "TSX",
    "TYPESCRIPT",
    "Expected",
    "Test",
    "Text",
    "constant",
    "named_tests",
    "parsed",
    "read_tests",
    "source_text",
    "string_value",
    "walk",
]

TSX, TYPESCRIPT = "tree_sitter_typescript:language_tsx", "tree_sitter_typescript:language_typescript"

SUFFIXES = (".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts")

_TESTS = frozenset({"it", "test", "specify", "fit"})
_SUITES = frozenset({"describe", "context", "suite", "module", "fdescribe"})
_VARIANTS = frozenset({"only", "each", "concurrent", "sequential", "for", "runIf", "QUnit"})
_EQUALITIES = frozenset(
    {
        *("equal", "equals", "strictEqual", "deepEqual", "deepStrictEqual", "propEqual", "eql", "eq", "same", "is"),
        *("match", "include", "includes", "lengthOf", "closeTo", "isEqual"),
        *("calledWith", "calledOnceWith", "calledWithExactly", "calledOnceWithExactly", "calledWithMatch", "callCount"),
    }
)
# Methods that search for their argument, or in it; and the comparisons of their result that mean "found".
_SEARCHES = frozenset(
    {
        *("includes", "indexOf", "lastIndexOf", "startsWith", "endsWith", "match", "test", "search", "exec", "has"),
        *("hasOwnProperty", "contains", "contain", "matchAll", "hasOwn", "hasAttribute", "hasClass"),
    }
)
_FOUND = frozenset(
    {
        ">= 0",
        "> -1",
        "!== -1",
        "!= -1",
        "!== null",
        "!= null",
        "!== undefined",
        "!== false",
        "=== true",
        "== true",
        "> 0",
    }
)
_OPPOSITE = {
    "equal": "notEqual",
    "strictEqual": "notStrictEqual",
    "deepEqual": "notDeepEqual",
    "deepStrictEqual": "notDeepStrictEqual",
    "throws": "doesNotThrow",
    "rejects": "doesNotReject",
}
_THROWS = frozenset({"throws", "rejects"})
_INEQUALITIES = frozenset({"notEqual", "notStrictEqual", "notDeepEqual", "notDeepStrictEqual", "notPropEqual"})
_UNEQUAL_MATCHERS = frozenset({"toBe", "toEqual", "toStrictEqual", "equal", "equals", "eql", "eq", "eqls"})
# Methods that call a function of the test with their elements.
_ASKING = frozenset({"some", "every", "find", "findIndex", "findLast", "findLastIndex", "filter"})
_ERRORS = frozenset({"TypeError", "RangeError", "SyntaxError", "URIError", "EvalError", "ReferenceError"})
_OWN_ERROR = re.compile(r"[A-Z][\w$]*(Error|Exception)")
_TRUTHS = frozenset({"ok", "isTrue", "isOk", "true"})
_MATCHERS = frozenset(
    {
        *(
            "toBe",
            "toEqual",
            "toStrictEqual",
            "toMatch",
            "toContain",
            "toContainEqual",
            "toHaveLength",
            "toMatchObject",
        ),
        *("toHaveBeenCalledTimes", "toMatchInlineSnapshot", "toThrowErrorMatchingInlineSnapshot", "toHaveTextContent"),
        *(
            "toHaveBeenWarned",
            "toThrow",
            "toThrowError",
            "throw",
            "throws",
            "Throw",
            "rejectedWith",
            "toHaveProperty",
            "toBeCalledTimes",
            "toHaveBeenCalledWith",
            "toBeCalledWith",
            "toHaveBeenLastCalledWith",
            "lastCalledWith",
            "toHaveBeenNthCalledWith",
            "nthCalledWith",
            "calledWith",
            "calledOnceWith",
            "calledWithExactly",
            "calledOnceWithExactly",
            "calledWithMatch",
            "callCount",
        ),
        *("equal", "equals", "eql", "eq", "eqls", "lengthOf", "length", "include", "contain", "match", "string"),
    }
)
_THROWING = frozenset({"toThrow", "toThrowError", "throw", "throws", "Throw", "rejectedWith"})
# Matchers that search for the expected value among several values.
_AMONG = frozenset(
    {"toHaveBeenCalledWith", "toBeCalledWith", "toContainEqual", "calledWith", "calledWithExactly", "calledWithMatch"}
)
_PARTS = frozenset({"object", "array", "pair", "parenthesized_expression", "unary_expression", "as_expression"})
_VALUES = frozenset({"number", "string", "template_string", "true", "false", "null", "undefined", "regex"})
_ANY = re.compile(".+", re.DOTALL)  # a computed title
_HOLE = re.compile(r"%[sdifjoOp#$c]|%%|\$\{[^{}]*\}|\$[\w.]+")


@dataclass(frozen=True)
class Expected:
    """What an assertion expects.

    Attributes:
        kind: "number", "text", "pattern" (a regular expression), "word" (true, false, null, undefined), "error" (the
            class of one), or "turned": a condition or computed value.
        begin, end: offsets of the literal, in characters; of "error" and "turned", of what `turned` replaces.
        letters: offsets of the letters and digits of a text without a special meaning.
        turned: source that makes the assertion fail if it holds.
        condition: offsets of the condition that fails with any other literal; None if that is the assertion itself.
        assertion: offsets of an assertion that searches for the literal among several values; else None.
    """

    kind: str
    begin: int
    end: int
    letters: tuple[int, ...] = ()
    turned: str = ""
    condition: tuple[int, int] | None = None
    assertion: tuple[int, int] | None = None


@dataclass(frozen=True)
class Test:
    """One call of `it` or `test`.

    Attributes:
        title: of the suites and the test, outermost first; a pattern where a part is computed.
        first_line, last_line: counted from 1.
        begin: offset of the call, in bytes.
        expected: all that its assertions expect, in order.
    """

    __test__ = False  # pytest must not collect this class

    title: tuple[re.Pattern[str], ...]
    first_line: int
    last_line: int
    begin: int
    expected: tuple[Expected, ...]

    def has_path(self, name: str) -> bool:
        """Whether a log names this test by its suites and its title, perhaps after a file and other suites.

        Runners join the parts by a blank or " > ".
        """
        for separator in (" > ", " "):
            whole = separator.join(f"(?:{part.pattern})" for part in self.title)
            if re.search(rf"(?:\A|{separator}){whole}\Z", name, re.DOTALL):
                return True
        return False


def named_tests(tests: Iterable[Test], name: str) -> tuple[Test, ...]:
    """The tests with this name in a log: those with most suites in the name, else those with such a title (Jest)."""
    known = tuple(tests)
    by_path = [test for test in known if test.has_path(name)]
    depth = max((len(test.title) for test in by_path), default=0)
    own = tuple(test for test in known if test.title[-1] != _ANY and test.title[-1].fullmatch(name))
    return own or tuple(test for test in by_path if len(test.title) == depth)


@lru_cache(maxsize=32)
def read_tests(path: str, source: str) -> tuple[Test, ...]:
    """The tests of a file, in order; the file's suffix determines the dialect.

    Raises:
        ConfigurationError: tree-sitter is not installed.
    """
    content = source.encode("utf-8", "surrogatepass")
    return tuple(_tests(parsed(path, source), (), Text(content)))


@lru_cache(maxsize=32)
def parsed(path: str, source: str) -> Node:
    """The tree of a file; the file's suffix determines the dialect.

    Raises:
        ConfigurationError: tree-sitter is not installed.
    """
    grammar = TYPESCRIPT if path.endswith((".ts", ".mts", ".cts")) else TSX
    return parser(grammar).parse(source.encode("utf-8", "surrogatepass")).root_node


class Text:
    """A source, which converts byte offsets to character offsets."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._plain = content.isascii()

    def at(self, byte: int) -> int:
        return byte if self._plain else len(self.content[:byte].decode("utf-8", "surrogatepass"))

    def of(self, node: Node) -> str:
        return self.content[node.start_byte : node.end_byte].decode("utf-8", "surrogatepass")


def source_text(node: Node | None) -> str:
    """The source of a node; empty for None."""
    return node.text.decode("utf-8", "replace") if node is not None and node.text is not None else ""


def walk(node: Node) -> Iterator[Node]:
    """All descendants of a node in pre-order; without recursion, because sources can be deeply nested."""
    left = [node]
    while left:
        here = left.pop()
        yield here
        left.extend(reversed(here.children))


def _tests(root: Node, suites: tuple[re.Pattern[str], ...], text: Text) -> Iterator[Test]:
    left: list[tuple[Node, tuple[re.Pattern[str], ...]]] = [(root, suites)]
    helpers = frozenset(_judging_functions(root, text))
    while left:
        node, titles = left.pop()
        inner = titles
        if node.type == "call_expression":
            kind, title = _named_call(node, text)
            if title is not None and kind in _SUITES:
                inner = (*titles, title)
            elif title is not None:
                inner_calls = [call for call in walk(node) if call.type == "call_expression"]
                expected = tuple(
                    one for call in inner_calls for one in (*_expected(call, text), *_given(call, helpers, text))
                )
                lines = node.start_point[0] + 1, node.end_point[0] + 1
                yield Test((*titles, title), *lines, node.start_byte, expected)
                continue
        left.extend((child, inner) for child in reversed(node.children))


def _judging_functions(root: Node, text: Text) -> Iterator[str]:
    """The names of the functions of the file, outside of tests, that contain assertions."""
    for node in root.named_children:
        node = node.named_children[0] if node.type == "export_statement" and node.named_children else node
        declared = node.named_children if node.type in ("lexical_declaration", "variable_declaration") else [node]
        for one in declared:
            name, value = one.child_by_field_name("name"), one.child_by_field_name("value")
            is_function = one.type in ("function_declaration", "generator_function_declaration")
            if name is None or not (is_function or (value is not None and value.type in _FUNCTION_VALUES)):
                continue
            if any(call.type == "call_expression" and any(_expected(call, text)) for call in walk(one)):
                yield text.of(name)


_PROMISED = ("resolves", "rejects", "eventually")
_FUNCTION_VALUES = ("arrow_function", "function_expression")


def _given(call: Node, helpers: frozenset[str], text: Text) -> Iterator[Expected]:
    """The last literal, or class of errors, among the arguments of an asserting function of the test file."""
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if function is None or arguments is None or function.type != "identifier" or text.of(function) not in helpers:
        return
    given = [[*_literals(child, text), *_errors(child, text)] for child in arguments.named_children]
    yield from next((values for values in reversed(given) if values), [])


def _named_call(node: Node, text: Text) -> tuple[str, re.Pattern[str] | None]:
    """The kind and title of a call `it("…", …)`, `test.each(…)("…", …)`, `QUnit.module("…", …)`; else "" and None."""
    function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if function is None or arguments is None or len(arguments.named_children) < 2:
        return "", None
    if function.type == "call_expression":  # each(table)
        function = function.child_by_field_name("function")
    words = (
        re.split(r"\W+", text.of(function))
        if function is not None and function.end_byte - function.start_byte < 80
        else []
    )
    kind = next((word for word in words if word in _TESTS or word in _SUITES), "")
    if not kind or any(word not in _VARIANTS and word != kind for word in words if word):
        return "", None
    return kind, _title(arguments.named_children[0], text)


def _title(node: Node, text: Text) -> re.Pattern[str] | None:
    if node.type in ("string", "template_string"):
        parts = []
        for child in node.children:
            if child.type == "string_fragment":
                parts.append(_HOLE.sub("\0", text.of(child)))
            elif child.type == "escape_sequence":
                parts.append({"\\n": "\n", "\\t": "\t"}.get(text.of(child), text.of(child)[1:]))
            elif child.type == "template_substitution":
                parts.append("\0")
        return re.compile(re.escape("".join(parts)).replace("\0", ".*").replace("\\\0", ".*"), re.DOTALL)
    return (
        re.compile(".+", re.DOTALL) if node.type in ("identifier", "binary_expression", "member_expression") else None
    )


def _expected(call: Node, text: Text) -> Iterator[Expected]:
    """The expected values of an assertion; empty if the call is not one."""
    function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
    if function is None or arguments is None or arguments.type != "arguments":
        return
    given = [child for child in arguments.named_children if child.type != "comment"]
    if function.type == "identifier":
        name = text.of(function)
        if name == "expect" and given:
            yield from _of_chain(call, text)
        elif name == "assert" and given:
            yield from _asked(given[0], text) or _turned(given[0], text)
        return
    if function.type != "member_expression":
        return
    owner, method = function.child_by_field_name("object"), function.child_by_field_name("property")
    if owner is None or method is None or not re.search(r"(^|\W)(assert|t|should)$", text.of(owner)[-40:]):
        return
    name = text.of(method)
    if name in _TRUTHS and given:
        yield from _asked(given[0], text) or _turned(given[0], text)
    elif name in _THROWS and given:
        values = [one for node in given[1:2] for one in (*_literals(node, text), *_errors(node, text))]
        yield from values or [
            Expected("turned", text.at(method.start_byte), text.at(method.end_byte), turned=_OPPOSITE[name])
        ]
    elif name in _INEQUALITIES and len(given) > 1:
        yield from _doubled(given[0], given[1], text)
    elif name in _EQUALITIES and len(given) > 1 and given[1].type == "true" and (asked := _asked(given[0], text)):
        yield from asked
    elif name in _EQUALITIES and given:
        values = [one for node in reversed(given[:2]) for one in _literals(node, text)]
        if values:
            yield from _among(values, call, text) if name in _AMONG else values
            yield from (one for node in given[:2] for one in _asked(node, text))
        elif name in _OPPOSITE and len(given) > 1:
            yield Expected("turned", text.at(method.start_byte), text.at(method.end_byte), turned=_OPPOSITE[name])


def _among(values: list[Expected], assertion: Node, text: Text) -> Iterator[Expected]:
    """The same literals, marked as searched for among several values."""
    whole = text.at(assertion.start_byte), text.at(assertion.end_byte)
    for one in values:
        yield replace(one, assertion=whole) if one.kind in ("text", "number") else one


def _asked(condition: Node, text: Text) -> list[Expected]:
    """The literals that a condition searches for (`list.includes("a")`): with another one, it fails."""
    begin, end = text.at(condition.start_byte), text.at(condition.end_byte)
    found: list[Expected] = []
    for call in _needed(condition, text):
        function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        if function is None or arguments is None or function.type != "member_expression":
            continue
        method, owner = function.child_by_field_name("property"), function.child_by_field_name("object")
        if method is None or owner is None:
            continue
        if text.of(method) in _ASKING:
            asked = [one for given in arguments.named_children[:1] for one in _asked_of(given, text)]
            found += [replace(one, condition=(begin, end)) for one in asked]
        if text.of(method) not in _SEARCHES:
            continue
        literals = [owner] if owner.type == "regex" else arguments.named_children[:1]
        for literal in literals:
            if literal.type in ("string", "template_string", "number", "regex"):
                # Most texts contain a given single letter.
                plain = literal.type == "number" or re.search(r"[A-Za-z]{2}|\d", text.of(literal))
                found += [replace(one, condition=(begin, end)) for one in _literals(literal, text) if plain]
    return found


def _asked_of(function: Node, text: Text) -> Iterator[Expected]:
    """The literals that a function of the test compares with its arguments."""
    if function.type not in ("arrow_function", "function_expression"):
        return
    for node in walk(function):
        if node.type == "binary_expression" and len(node.children) == 3 and node.children[1].type in ("===", "=="):
            for side in (node.children[0], node.children[2]):
                if side.type in ("string", "number", "template_string"):
                    yield from _literals(side, text)


def _needed(node: Node, text: Text) -> Iterator[Node]:
    """The calls that must succeed for a condition to hold."""
    if node.type == "call_expression":
        yield node
    elif node.type == "member_expression":
        owner = node.child_by_field_name("object")
        if owner is not None:
            yield from _needed(owner, text)
    elif node.type in ("parenthesized_expression", "await_expression"):
        yield from _needed(node.named_children[0], text)
    elif node.type == "unary_expression" and node.children[0].type == "!":
        inner = node.named_children[0]
        if inner.type == "unary_expression" and inner.children[0].type == "!":
            yield from _needed(inner.named_children[0], text)
    elif node.type == "binary_expression" and len(node.children) == 3:
        left, sign, right = node.children
        if sign.type == "&&":
            yield from _needed(left, text)
            yield from _needed(right, text)
        elif f"{sign.type} {text.of(right)}" in _FOUND or (
            sign.type in ("===", "==") and right.type in ("number", "true")
        ):
            yield from _needed(left, text)


def _opposite(node: Node, text: Text) -> Expected:
    return Expected("turned", text.at(node.start_byte), text.at(node.end_byte), turned=f"!({text.of(node)})")


def _turned(node: Node, text: Text) -> list[Expected]:
    """Edits that make a condition fail: for an inequality or order, the same side twice; else the negation."""
    if node.type == "parenthesized_expression":
        return _turned(node.named_children[0], text)
    if node.type == "binary_expression" and len(node.children) == 3 and node.children[1].type in _UNLIKE:
        doubled = list(_doubled(node.children[0], node.children[2], text))
        return doubled if len(doubled) > 1 else [_opposite(node, text)]
    if node.type == "unary_expression" and node.children[0].type == "!":  # !isEqual(a, b)
        arguments = node.named_children[0].child_by_field_name("arguments")
        given = arguments.named_children if arguments is not None else []
        doubled = list(_doubled(given[0], given[1], text)) if len(given) == 2 else []
        return doubled if len(doubled) > 1 else [_opposite(node, text)]
    return [_opposite(node, text)]


_UNLIKE = ("!==", "!=", "<", ">")


def _doubled(one: Node, other: Node, text: Text) -> Iterator[Expected]:
    """The same side on both sides: a value differs from itself only if it differs from everything."""
    for node, source in ((one, other), (other, one)):
        if source.type not in _VALUES or any(child.type == "template_substitution" for child in source.children):
            yield Expected("turned", text.at(node.start_byte), text.at(node.end_byte), turned=text.of(source))


def _errors(node: Node, text: Text) -> Iterator[Expected]:
    """The class of an expected error, replaced by one that all errors of other classes are instances of."""
    name = text.of(node).rpartition(".")[2] if node.type in ("identifier", "member_expression") else ""
    if not name[:1].isupper():
        return
    expected = text.of(node)
    known = ", ".join(sorted(_ERRORS - {expected}))
    if expected == "Error":  # every class of the language is an Error
        holds = "false"
    elif expected in _ERRORS:
        holds = f"[{known}].some((one) => arguments[0] instanceof one)"
    else:
        others = ", ".join(sorted(_own_errors(node, text) - {expected}))
        holds = (
            f"[Error, {known}].some((one) => Object.getPrototypeOf(Object(arguments[0])) === one.prototype) || "
            f"[{others}].some((one) => typeof one === 'function' && arguments[0] instanceof one && "
            f"!Object.is(one, {expected}) && !(one.prototype instanceof {expected}) && "
            f"!({expected}.prototype instanceof one))"
        )
    turned = f"class extends Error {{ static [Symbol.hasInstance]() {{ return {holds}; }} }}"
    yield Expected("error", text.at(node.start_byte), text.at(node.end_byte), turned=turned)


def _own_errors(node: Node, text: Text) -> set[str]:
    """The names of error classes that a file imports or declares at top level."""
    root = node
    while root.parent is not None:
        root = root.parent
    kinds = ("import_statement", "lexical_declaration", "variable_declaration", "class_declaration")
    declaring = [child for child in root.named_children if child.type in kinds]
    names = {
        text.of(one)
        for child in declaring
        for one in (child.named_children[:1] if child.type == "class_declaration" else walk(child))
        if one.type in ("identifier", "type_identifier", "shorthand_property_identifier_pattern")
    }
    return {name for name in names if _OWN_ERROR.fullmatch(name)} - _ERRORS


def _of_chain(call: Node, text: Text) -> Iterator[Expected]:
    """The part after `expect(…)`: literals in the arguments of a matcher, else the place for a `.not`."""
    words: list[str] = []
    values: list[Expected] = []
    truths: list[bool] = []
    arguments = call.child_by_field_name("arguments")
    given = arguments.named_children[0] if arguments is not None and arguments.named_children else None
    compared: list[Node] = []
    asked = _asked(arguments.named_children[0], text) if arguments is not None and arguments.named_children else []
    negated: Expected | None = None
    node = call
    while node.parent is not None:
        above = node.parent
        if above.type == "member_expression" and above.child_by_field_name("object") == node:
            word = above.child_by_field_name("property")
            words.append(text.of(word) if word is not None else "")
            if words[-1] == "not":
                negated = Expected("turned", text.at(node.end_byte), text.at(above.end_byte))
        elif above.type == "call_expression" and above.child_by_field_name("function") == node:
            arguments = above.child_by_field_name("arguments")
            compared = arguments.named_children if arguments is not None else []
            if words and words[-1] in _MATCHERS and arguments is not None:
                most = 8 if "alledWith" in words[-1] else 2
                values += [one for child in arguments.named_children[:most] for one in _literals(child, text)]
                if words[-1] in _THROWING:
                    values += [one for child in arguments.named_children[:1] for one in _errors(child, text)]
                truths.append([child.type for child in arguments.named_children] == ["true"])
        else:
            break
        node = above
    if not words or words.count("not") > 1:
        return
    if negated is not None:
        yield negated
        if words[-1] in _UNEQUAL_MATCHERS and given is not None and compared:
            yield from _doubled(given, compared[0], text)
    elif asked and (truths == [True] or words[-1] in ("toBeTruthy", "true", "ok")):
        yield from asked
    elif values:
        yield from _among(values, node, text) if words[-1] in _AMONG and words[0] not in _PROMISED else values
    elif words[-1].endswith("Snapshot") and given is not None:  # these matchers have no `.not`
        yield Expected("turned", text.at(given.start_byte), text.at(given.end_byte), turned=f"[{text.of(given)}]")
    else:
        yield Expected("turned", text.at(call.end_byte), text.at(call.end_byte), turned=".not")


def _literals(node: Node, text: Text) -> Iterator[Expected]:
    """The literals of which an expected value consists; none if parts are computed."""
    if node.type == "pair":
        value = node.child_by_field_name("value")
        if value is not None:
            yield from _literals(value, text)
    elif node.type == "call_expression" and text.of(node)[:7] == "expect.":  # expect.arrayContaining([…])
        arguments = node.child_by_field_name("arguments")
        for child in arguments.named_children if arguments is not None else ():
            yield from _literals(child, text)
    elif node.type in _PARTS:
        for child in node.named_children[: 1 if node.type == "as_expression" else None]:
            yield from _literals(child, text)
    elif node.type in _VALUES:
        begin, end = text.at(node.start_byte), text.at(node.end_byte)
        if node.type == "number":
            yield Expected("number", begin, end)
        elif node.type in ("true", "false", "null", "undefined"):
            yield Expected("word", begin, end)
        elif not any(child.type == "template_substitution" for child in node.children):
            kinds = ("string_fragment", "regex_pattern")
            pieces = [(text.at(child.start_byte), text.of(child)) for child in node.children if child.type in kinds]
            letters = tuple(
                start + place
                for start, piece in pieces
                for place, letter in enumerate(piece)
                if letter.isascii() and letter.isalnum() and "\\" not in piece[max(0, place - 6) : place]
            )
            if letters or (node.type == "string" and not pieces):  # also an empty text
                yield Expected("pattern" if node.type == "regex" else "text", begin, end, letters)


_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)


def string_value(node: Node) -> str | None:
    """The value of a text; None if it is computed."""
    if node.type not in ("string", "template_string") or any(
        child.type == "template_substitution" for child in node.children
    ):
        return None

    def char(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code:
            return chr(min(int(code, 16), 0x10FFFF))
        return {"n": "\n", "t": "\t", "r": "\r", "\n": ""}.get(match[4], match[4])

    return _ESCAPE.sub(char, (node.text or b"").decode("utf-8", "replace")[1:-1])


def constant(node: Node, text: Text, nothing: object) -> object:
    """The value of a literal, or of a list or object of literals, as a Python value; else `nothing`."""
    kind = node.type
    if kind in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[kind]
    if kind in ("string", "template_string"):
        found = string_value(node)
        return nothing if found is None else found
    if kind in ("number", "unary_expression"):
        return _number(text.of(node), nothing)
    if kind == "array":
        items = [constant(child, text, nothing) for child in node.named_children if child.type != "comment"]
        return nothing if any(item is nothing for item in items) or ",," in text.of(node) else items
    if kind != "object":
        return nothing
    pairs: dict[str, object] = {}
    for child in (one for one in node.named_children if one.type != "comment"):
        key, value = child.child_by_field_name("key"), child.child_by_field_name("value")
        if child.type != "pair" or key is None or value is None:
            return nothing
        name = string_value(key) if key.type == "string" else text.of(key)
        item = constant(value, text, nothing)
        if name is None or key.type not in ("string", "property_identifier", "number") or item is nothing:
            return nothing
        pairs[name] = item
    return pairs


def _number(written: str, nothing: object) -> object:
    plain = written.replace("_", "").replace(" ", "").removesuffix("n")
    try:
        return int(plain, 0)
    except ValueError:
        try:
            number = float(plain)
        except ValueError:
            return nothing
        return int(number) if number.is_integer() else number
