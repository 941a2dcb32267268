"""Tests in JavaScript that run beside twins; `languages.python.twins` says what twins are, and what they show.

test('kqmewrtz', () => {        // a copy
  const box = {};
  try { box_k = {}; } catch {}  // of a twin
  save(box, 'zqxw');
  try { save(box_k, 'vbnm'); } catch {}
  assert.strictEqual(load(box), 'zqxw');
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swegym_env.languages import Copy, ExpectedValue, Lineup, Twins
from swegym_env.languages.changed import spliced
from swegym_env.languages.javascript.blind import arguments_of, chain_of, drawn_word, judges, whole_of
from swegym_env.languages.javascript.source import Text, constant, named_tests, parsed, read_tests, walk
from swegym_env.languages.javascript.state import bound_names
from swegym_env.languages.python.decoys import replaceable, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["copies_passed", "given_tests", "make_twins"]

_COPIES = 3  # of the test as it is, and with another value for each constant
_MOST_KEYS, _MOST_BESIDE = 8, 12
_NOTHING = object()
_LITERALS = ("string", "template_string", "number")
_FUNCTIONS = ("arrow_function", "function_expression")
_NESTED = (*_FUNCTIONS, "function_declaration", "method_definition", "class_declaration", "class")
# Of these not all parts are evaluated, or not in this order.
_NOT_SURE = (
    *_NESTED,
    "ternary_expression",
    "yield_expression",
    "assignment_expression",
    "augmented_assignment_expression",
)
_TITLED = re.compile(r"(it|test|specify|fit)(\.only|\.concurrent)?|QUnit\.test")
_RAISING = re.compile(r"(?i)throw|reject")
_COLLECTOR = """\
const {name} = (...given{any_list}) => given.forEach((one{any}) => {{
  try {{
    const made = typeof one === 'function' ? one() : one;
    if (made && typeof made.then === 'function') made.then(() => {{}}, () => {{}});
  }} catch (error) {{}}
}});
"""
_Key = tuple[str, object]  # a literal: 1 and "1" are two


def given_tests(
    files: Mapping[str, str], names: Iterable[str], rewritten: Mapping[str, str] | None = None
) -> frozenset[str]:
    """See `Language.given_tests`."""
    names = tuple(names)
    tests = list(_tests(files, names))
    found = set(names) - {name for test in tests for name in test.names}
    for test in tests:
        gives = test.gives
        if gives and rewritten is not None:
            others = [other for other in _tests(rewritten, test.names) if other.path == test.path]
            left = Counter(key for other in others for _, key in _literals(other.call, other.text))
            gone = Counter(key for _, key in _literals(test.call, test.text)) - left
            gives = not (others and gone) or any(key in left or key in test.shared for key in gone)
        found |= test.names if gives else frozenset()
    return frozenset(found)


def copies_passed(lineup: Lineup, tests: Mapping[str, str]) -> Mapping[Copy, bool]:
    """See `Language.copies_passed`."""
    statuses: dict[str, list[str]] = {}
    for name, status in tests.items():
        for word in re.findall(r"\w+", name):
            statuses.setdefault(word, []).append(status)
    return lineup.passed(statuses)


def make_twins(files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins:
    """See `Language.make_twins`."""
    choice = random.Random(seed)
    names = tuple(names)
    copies: list[Copy] = []
    tests = list(_tests(files, names))
    opened = set(names) - {name for test in tests for name in test.names}
    edits: dict[str, list[tuple[int, int, str]]] = {}
    for test in tests:
        if not test.gives:
            continue
        copied = _Copied.of(test, words_of(files[test.path]), twins, choice)
        if copied is None:
            opened |= test.names
            continue
        if test.is_open or len(copied.pools) < len(test.keys):
            opened |= test.names
        made = []
        for key in (None, *copied.pools):
            value = ExpectedValue(test.names, len(copies), "as it is" if key is None else repr(key[1]), 0)
            for _ in range(_COPIES):
                name = drawn_word(choice)
                made.append(copied.copy(name, key))
                copies.append(Copy(name, value, right=True))
        # The tests beside it run among its copies: who counts calls answers these as if they were further copies.
        for source, place in _beside(test, names, files):
            name = drawn_word(choice)
            made.append(f"{source[: place[0]]}'{name}'{source[place[1] :]}")
            copies.append(Copy(name, ExpectedValue(frozenset(), len(copies), "a test beside it", 0), right=True))
        choice.shuffle(made)
        begin, end = test.text.at(test.call.start_byte), test.text.at(test.call.end_byte)
        edits.setdefault(test.path, []).append((begin, end, ";\n".join(made)))
    written = {path: spliced(files[path], places) for path, places in edits.items()}
    return Twins(Lineup(written, tuple(copies)), frozenset(opened), twins)


def _beside(test: _Test, names: Iterable[str], files: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The tests in the same block that are not to be repaired: their source, and where their title is in it."""
    known = read_tests(test.path, files[test.path])
    repaired = {one.begin for name in names for one in named_tests(known, name)}
    statement = test.call.parent
    block = statement.parent if statement is not None else None
    found = 0
    for other in block.named_children if block is not None else ():
        call = other.named_children[0] if other.type == "expression_statement" else other
        called, given = call.child_by_field_name("function"), arguments_of(call)
        if called is None or not given or call.start_byte in repaired or found == _MOST_BESIDE:
            continue
        if given[0].type == "string" and _TITLED.fullmatch(test.text.of(called)):
            found += 1
            begin = test.text.at(call.start_byte)
            place = test.text.at(given[0].start_byte) - begin, test.text.at(given[0].end_byte) - begin
            yield test.text.of(call), place


@dataclass(frozen=True)
class _Test:
    """A test, and what of it the code under test may be given before it is expected.

    Attributes:
        names: of the task's tests that are this one.
        call: of `test` or `it`.
        shared: literals of the file outside of its tests.
        keys: literals of its assertions that the code under test may get elsewhere.
        gives: whether there are such, or conditions that can be met by counting calls: truths, small numbers.
        is_open: whether something that is expected is no literal.
    """

    names: frozenset[str]
    path: str
    text: Text
    call: Node
    shared: frozenset[_Key]
    keys: tuple[_Key, ...]
    gives: bool
    is_open: bool


def _tests(files: Mapping[str, str], names: Iterable[str]) -> Iterator[_Test]:
    known = [(path, test) for path, source in sorted(files.items()) for test in read_tests(path, source)]
    named: dict[int, set[str]] = {}
    for name in names:
        for test in named_tests((test for _, test in known), name):
            named.setdefault(id(test), set()).add(name)
    begins: dict[str, set[int]] = {}
    for path, test in known:
        begins.setdefault(path, set()).add(test.begin)
    for path, test in known:
        if id(test) not in named:
            continue
        root, text = parsed(path, files[path]), Text(files[path].encode("utf-8", "surrogatepass"))
        calls = {node.start_byte: node for node in reversed(list(walk(root))) if node.type == "call_expression"}
        others = [calls[begin] for begin in begins[path] if begin in calls]
        spans = [(other.start_byte, other.end_byte) for other in others]
        shared = frozenset(
            key
            for node, key in _literals(root, text)
            if not any(begin <= node.start_byte < end for begin, end in spans)
            and (node.parent is None or node.parent.type not in ("import_statement", "expression_statement"))
        )
        yield _given(frozenset(named[id(test)]), path, text, calls[test.begin], shared)


def _given(names: frozenset[str], path: str, text: Text, call: Node, shared: frozenset[_Key]) -> _Test:
    """What a test gives the code under test, and expects."""
    body = [node for node in walk(call) if node.id != call.id]
    assigned = {
        text.of(name): value
        for node in body
        if node.type == "variable_declarator"
        and (name := node.child_by_field_name("name")) is not None
        and (value := node.child_by_field_name("value")) is not None
        and name.type == "identifier"
    }
    uses = Counter(text.of(node) for node in body if "identifier" in node.type and node.type != "property_identifier")
    judged = [node for node in body if node.type == "call_expression" and judges(node, text)]
    compared_by = [[*arguments_of(one), *chain_of(one, text)[1]] for one in judged]
    written_in = [[node for node in each if _is_written(node, assigned, text)] for each in compared_by]
    # What two assertions expect is not given by that.
    expected = {one.start_byte for each in written_in for node in each for one, _ in _literals(node, text)}
    given = Counter(key for one, key in _literals(call, text) if one.start_byte not in expected)
    keys: list[_Key] = []
    gives = is_open = False
    for one, compared, written in zip(judged, compared_by, written_in, strict=True):
        whole = whole_of(one)
        words = [text.of(one.child_by_field_name("function") or one), *chain_of(one, text)[0]]
        is_error = any(map(_RAISING.search, words)) or any(node.type in _FUNCTIONS for node in compared)
        is_truth = len(compared) == 1 and not is_error
        is_open |= not (written or is_error or is_truth)
        gives |= is_truth or any(_is_small(node, text) for node in written)
        own = list(_literals(whole, text))
        here = Counter(key for node, key in own if node.start_byte not in expected)
        for node in walk(whole):
            called = text.of(node) if node.type == "identifier" else ""
            if called in assigned and uses[called] > 2:
                keys += [key for _, key in _literals(assigned[called], text)]
        asked = own if is_truth else [each for node in written for each in _literals(node, text)]
        keys += [key for _, key in asked if given[key] > here[key] or key in shared]
    is_open |= not judged
    found = tuple(dict.fromkeys(keys))
    return _Test(names, path, text, call, shared, found, gives or is_open or bool(found), is_open)


def _is_written(node: Node, assigned: Mapping[str, Node], text: Text) -> bool:
    """Whether an expression is a literal, or the name of one."""
    value = assigned.get(text.of(node), node) if node.type == "identifier" else node
    return value.type in ("regex", "undefined") or constant(value, text, _NOTHING) is not _NOTHING


def _is_small(node: Node, text: Text) -> bool:
    """Whether what is expected is one of few values."""
    value = constant(node, text, _NOTHING)
    return value in (None, "", [], {}) or (isinstance(value, int | float) and abs(value) < 10)


def _literals(node: Node, text: Text) -> Iterator[tuple[Node, _Key]]:
    """The texts and numbers below a node that may be recognised; no titles, keys and indices."""
    for inner in walk(node):
        above = inner.parent
        if inner.type not in _LITERALS or above is None or above.type == "subscript_expression":
            continue
        if above.type == "pair" and above.child_by_field_name("key") == inner:
            continue
        call = above.parent if above.type == "arguments" else None
        if call is not None and _TITLED.fullmatch(text.of(call)[:40].partition("(")[0]):
            continue
        value = constant(inner, text, _NOTHING)
        if value is not _NOTHING and value != "":
            yield inner, (type(value).__name__, value)


@dataclass
class _Copied:
    """A test whose copies run beside twins.

    Attributes:
        head, tail: the source of the call before the statements of its function, without the title, and after them.
        statements: of the function, with the calls in their expressions as statements before them.
        pools: literal → it and what stands in its place.
    """

    head: tuple[str, str]
    tail: str
    statements: tuple[Node, ...]
    text: Text
    pools: Mapping[_Key, Sequence[str]]
    is_typed: bool
    twins: int
    choice: random.Random

    @classmethod
    def of(cls, test: _Test, words: tuple[str, ...], twins: int, choice: random.Random) -> _Copied | None:
        """None of a test that has no function with statements of its own, or leaves it before its end."""
        given, text = arguments_of(test.call), test.text
        function = next((one for one in given if one.type in _FUNCTIONS), None)
        body = function.child_by_field_name("body") if function is not None else None
        above, called = test.call.parent, test.call.child_by_field_name("function")
        is_alone = above is not None and above.type == "expression_statement"
        if body is None or not is_alone or called is None or not _TITLED.fullmatch(text.of(called)):
            return None
        if any(node.type in ("return_statement", "yield_expression") for node in _own_nodes(body)):
            return None
        pools: dict[_Key, Sequence[str]] = {}
        for key in test.keys[:_MOST_KEYS]:
            value = key[1]
            other = replaceable(value, words) if isinstance(value, int | float | str) else None
            if other is not None and other.count >= twins:
                pools[key] = [json.dumps(one) for one in (value, *other.draw(twins, choice))]
        whole = text.content
        title = given[0]
        head = (
            whole[test.call.start_byte : title.start_byte].decode("utf-8", "surrogatepass"),
            whole[title.end_byte : body.start_byte].decode("utf-8", "surrogatepass"),
        )
        tail = whole[body.end_byte : test.call.end_byte].decode("utf-8", "surrogatepass")
        flat = f"async function k() {{\n{_flattened(body, text)}\n}}"
        inner = parsed(test.path, flat).named_children[0].child_by_field_name("body")
        if inner is None or inner.has_error:
            return None
        statements = tuple(node for node in inner.named_children if node.type != "comment")
        is_typed = test.path.endswith((".ts", ".tsx", ".mts", ".cts"))
        flat_text = Text(flat.encode("utf-8", "surrogatepass"))
        return cls(head, tail, statements, flat_text, pools, is_typed, twins, choice)

    def copy(self, name: str, key: _Key | None) -> str:
        """A copy as the test is, or with another value for `key`, in the place of each of its literals."""
        drawn = {each: self.choice.sample(pool, len(pool)) for each, pool in self.pools.items()}
        for each, values in drawn.items():
            first = self.choice.choice(self.pools[each][1:]) if each == key else self.pools[each][0]
            values.remove(first)
            values.insert(0, first)
        collector = drawn_word(self.choice)
        own = {name for node in self.statements for name in _bound(node)}
        bodies: list[list[str]] = []
        hoisted: list[str] = []
        for number in range(self.twins + 1):
            changes = {each: values[number] for each, values in drawn.items()}
            suffix = f"_{drawn_word(self.choice)}" if number else ""
            renamed = {name: name + suffix for name in own if number}
            bodies.append(
                [self._statement(node, renamed, changes, collector if number else "") for node in self.statements]
            )
            kinds = ("lexical_declaration", "variable_declaration")
            hoisted += [
                renamed[one] for node in self.statements if node.type in kinds and number for one in _bound(node)
            ]
        typed = (": any", ": any[]") if self.is_typed else ("", "")
        lines = [_COLLECTOR.format(name=collector, any=typed[0], any_list=typed[1])]
        lines += [f"let {one}{typed[0]};\n" for one in hoisted]
        for together in zip(*bodies, strict=True):
            lines += self.choice.sample(together, len(together))
        return f"{self.head[0]}'{name}'{self.head[1]}{{\n{''.join(lines)}}}{self.tail}"

    def _statement(self, node: Node, renamed: Mapping[str, str], changes: Mapping[_Key, str], collector: str) -> str:
        """A statement with other literals; of a twin, with other names too, and failing in nothing."""
        edits = [
            (one.start_byte, one.end_byte, changes[key]) for one, key in _literals(node, self.text) if key in changes
        ]
        if not collector:
            return f"{self._with(node, edits)}\n"
        for one in walk(node):
            name = self.text.of(one) if "identifier" in one.type else ""
            if name in renamed and one.type in ("identifier", "type_identifier"):
                edits.append((one.start_byte, one.end_byte, renamed[name]))
            elif name in renamed and one.type.startswith("shorthand"):
                edits.append((one.start_byte, one.end_byte, f"{name}: {renamed[name]}"))
            elif one.type == "call_expression" and judges(one, self.text):
                edits += self._evaluated(one, collector)
        if node.type in ("function_declaration", "generator_function_declaration"):
            return f"{self._with(node, edits)}\n"
        if node.type == "class_declaration":
            return f"{self._with(node, edits)}\n"
        if node.type not in ("lexical_declaration", "variable_declaration"):
            return f"try {{ {self._with(node, edits)} }} catch (error) {{}}\n"
        parts = []
        for declared in (child for child in node.named_children if child.type == "variable_declarator"):
            pattern, value = declared.child_by_field_name("name"), declared.child_by_field_name("value")
            if pattern is not None and value is not None:
                parts.append(f"({self._with(pattern, edits)} = {self._with(value, edits)});")
        return f"try {{ {' '.join(parts)} }} catch (error) {{}}\n"

    def _evaluated(self, call: Node, collector: str) -> Iterator[tuple[int, int, str]]:
        """The edits that make an assertion compute what it would compare, and check nothing."""
        function, whole = call.child_by_field_name("function"), whole_of(call)
        if function is None:
            return
        yield function.start_byte, function.end_byte, collector
        if whole.end_byte > call.end_byte:
            last = arguments_of(whole) if whole.type == "call_expression" and chain_of(call, self.text)[1] else []
            begin = whole.child_by_field_name("arguments") if last else None
            end = begin.start_byte if begin is not None else whole.end_byte
            yield call.end_byte, end, f", {collector}" if last else ""

    def _with(self, node: Node, edits: Collection[tuple[int, int, str]]) -> str:
        """The source of a node with these edits that lie in it."""
        content = self.text.content[node.start_byte : node.end_byte]
        for begin, end, new in sorted(edits, reverse=True):
            if node.start_byte <= begin and end <= node.end_byte:
                first, last = begin - node.start_byte, end - node.start_byte
                content = content[:first] + new.encode() + content[last:]
        return content.decode("utf-8", "surrogatepass")


def _bound(statement: Node) -> Iterator[str]:
    """The names that a statement of a function declares in it."""
    if statement.type in ("lexical_declaration", "variable_declaration"):
        for declared in statement.named_children:
            name = declared.child_by_field_name("name")
            yield from bound_names(name) if name is not None else ()
    elif statement.type.endswith("_declaration") and (name := statement.child_by_field_name("name")) is not None:
        yield from bound_names(name)


def _own_nodes(body: Node) -> Iterator[Node]:
    """The nodes of a function but for those of functions and classes in it."""
    waiting = [body]
    for node in waiting:  # grows during the iteration
        yield node
        waiting += [child for child in node.children if child.type not in _NESTED]


def _flattened(body: Node, text: Text) -> str:
    """Statements with the calls in their expressions as statements before them: twins come between."""
    statements = body.named_children if body.type == "statement_block" else [body]
    used = set(re.findall(r"\w+", text.content.decode("utf-8", "replace")))
    fresh = (name for number in range(10_000) if (name := f"made_{number}") not in used)
    lines: list[str] = []
    for statement in statements:
        taken: list[str] = []
        kinds = ("expression_statement", "lexical_declaration", "variable_declaration")
        if statement.type in kinds or body.type != "statement_block":
            kept = _taken_out(statement, text, fresh, taken, is_kept=True)
        else:
            kept = text.of(statement)
        lines += [*taken, kept if kept.rstrip().endswith((";", "}")) else f"{kept};"]
    return "\n".join(lines)


def _taken_out(node: Node, text: Text, fresh: Iterator[str], taken: list[str], *, is_kept: bool) -> str:
    """The source of an expression with names in the place of the calls that are surely made, in their order.

    Args:
        taken: gets the statements that make these calls.
        is_kept: whether the call itself, if it is one, stays where it is.
    """
    is_choice = node.type == "binary_expression" and any(one.type in ("&&", "||", "??") for one in node.children)
    if (
        node.type in _NOT_SURE
        or is_choice
        or any(one.type in ("optional_chain", "super", "import") for one in node.children)
    ):
        return text.of(node)
    begin, parts = node.start_byte, []
    is_judging = node.type == "call_expression" and judges(_first_call(node), text)
    for child in node.named_children:
        inner_kept = child.type != "arguments" and (is_judging or node.type == "await_expression")
        inner_kept |= is_kept and node.type in ("expression_statement", "variable_declarator")
        declares = node.type in ("lexical_declaration", "variable_declaration")
        parts.append(text.content[begin : child.start_byte].decode("utf-8", "surrogatepass"))
        parts.append(_taken_out(child, text, fresh, taken, is_kept=inner_kept or (is_kept and declares)))
        begin = child.end_byte
    parts.append(text.content[begin : node.end_byte].decode("utf-8", "surrogatepass"))
    source = "".join(parts)
    if node.type not in ("call_expression", "new_expression", "await_expression") or is_kept or is_judging:
        return source
    name = next(fresh)
    taken.append(f"const {name} = {source};")
    return name


def _first_call(call: Node) -> Node:
    """The call that a chain begins with: `expect(a)` of `expect(a).to.equal(b)`."""
    here, found = call, call
    while True:
        inner = here.child_by_field_name("function") or here.child_by_field_name("object")
        if inner is None or inner.type not in ("call_expression", "member_expression"):
            return found
        here = inner
        found = here if here.type == "call_expression" else found
