"""Tests in JavaScript that run beside twins; `languages.python.twins` explains twins.

test('kqmewrtz', () => {        // a copy
  const box = {};
  try { box_k = {}; } catch {}  // of a twin
  save(box, 'zqxw');
  try { save(box_k, 'vbnm'); } catch {}
  assert.strictEqual(load(box), 'zqxw');
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swegym_env.languages import Copy, ExpectedValue, Lineup, Twins, drawn_word
from swegym_env.languages.changed import spliced
from swegym_env.languages.javascript.blind import arguments_of, chain_of, is_assertion, whole_of
from swegym_env.languages.javascript.rows import FUNCTIONS, bound_by, is_table, listed, parameters_of, row_names
from swegym_env.languages.javascript.source import SUFFIXES, Text, constant, named_tests, parsed, read_tests, walk
from swegym_env.languages.javascript.state import bound_names
from swegym_env.languages.python.decoys import replaceable, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["copies_passed", "given_tests", "make_twins"]

_COPIES = 3  # of the unchanged test, and with another value for each constant
_MOST_KEYS, _MOST_BESIDE = 8, 12
_MOST_ROUNDS, _MOST_ITEMS, _MOST_DEPTH, _MOST_EVENTS = 24, 8, 3, 99
_ASKING = 3  # copies that expect a value of a twin, each a different one
_NOTHING = object()
_LITERALS = ("string", "template_string", "number")
_NESTED = (*FUNCTIONS, "function_declaration", "method_definition", "class_declaration", "class")
# Some parts of these are not always evaluated, or not in this order.
_NOT_SURE = (
    *_NESTED,
    "ternary_expression",
    "yield_expression",
    "assignment_expression",
    "augmented_assignment_expression",
)
_TITLED = re.compile(r"(it|test|specify|fit)(\.only|\.concurrent)?|QUnit\.test")
# Calls that pass nothing to the code under test.
_PLAIN = re.compile(
    r"(?s)(.*\.)?(then|catch|finally|toString)|(Object|JSON|Math|Number|Array|console|jest|vi|Promise|mock)\.\w+"
    r"|setTimeout|setImmediate|queueMicrotask|process\.nextTick|String|Number|Boolean|BigInt|Symbol|Error|require"
)
_RAISING = re.compile(r"(?i)throw|reject")
_COLLECTOR = """\
const {name} = (...given{any_list}) => given.forEach((one{any}) => {{
  try {{
    const made = typeof one === 'function' ? one() : one;
    if (made && typeof made.then === 'function') made.then(() => {{}}, () => {{}});
  }} catch (error) {{}}
}});
"""
# A value that a test gets from a table, in a twin's version.
_MAPPER = """\
const {name} = (value{any}, pairs{any}){any} => {{
  for (const [one, other] of pairs) if (Object.is(one, value)) return other;
  if (Array.isArray(value)) return value.map((one{any}) => {name}(one, pairs));
  if (!value || Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, {name}(one, pairs)]));
}};
"""
_Key = tuple[str, object]  # a literal with its type: 1 and "1" differ


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
        if test.is_open or copied.is_open or len(copied.pools) < len(test.keys):
            opened |= test.names
        made = []
        for key in (None, *copied.pools):
            value = ExpectedValue(test.names, len(copies), "as it is" if key is None else repr(key[1]), 0)
            for _ in range(_COPIES):
                name = drawn_word(choice)
                made.append(copied.copy(name, key))
                copies.append(Copy(name, value, right=True))
        # A twin passes this value, the test does not: code that returns true for every value it ever received does so
        # here too.
        for key in copied.asking:
            value = ExpectedValue(frozenset(), len(copies), f"not {key[1]!r}", 0)
            for number in range(min(_ASKING, twins)):
                name = drawn_word(choice)
                made.append(copied.copy(name, key, asks=number + 1))
                copies.append(Copy(name, value, right=False))
        # The neighbouring tests run among its copies: code that counts calls treats these like further copies.
        for source, place in _beside(test, names, files):
            name = drawn_word(choice)
            made.append(f"{source[: place[0]]}'{name}'{source[place[1] :]}")
            copies.append(Copy(name, ExpectedValue(frozenset(), len(copies), "a test beside it", 0), right=True))
        choice.shuffle(made)
        begin, end = test.text.at(test.call.start_byte), test.text.at(test.call.end_byte)
        together = ";\n".join(made)
        edits.setdefault(test.path, []).append(
            (begin, end, together if _is_in_list(test.call) else f"{{\n{together}\n}}")
        )
    written = {path: spliced(files[path], places) for path, places in edits.items()}
    return Twins(Lineup(written, tuple(copies)), frozenset(opened), twins)


def _is_in_list(call: Node) -> bool:
    """Whether several statements can replace this one without a block."""
    above = call.parent.parent if call.parent is not None and call.parent.type == "expression_statement" else None
    return above is not None and above.type in ("program", "statement_block")


def _titled(call: Node, text: Text) -> bool:
    """Whether a call is a test with a title, perhaps with a table."""
    called = call.child_by_field_name("function")
    return called is not None and (_TITLED.fullmatch(text.of(called)[:60]) is not None or is_table(called, text))


def _beside(test: _Test, names: Iterable[str], files: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The tests in the same block that are not to be repaired: their source, and the place of the title in it."""
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
        if given[0].type == "string" and _titled(call, test.text):
            found += 1
            begin = test.text.at(call.start_byte)
            place = test.text.at(given[0].start_byte) - begin, test.text.at(given[0].end_byte) - begin
            yield test.text.of(call), place


@dataclass(frozen=True)
class _Test:
    """A test, and the values that the code under test may receive from it before they are expected.

    Attributes:
        names: of the task's tests that are this one.
        call: of `test` or `it`.
        shared: literals of the file outside of its tests.
        keys: literals of its assertions that the code under test may receive elsewhere.
        gives: whether there are such literals, or conditions that can be passed by counting calls: truth values, small
            numbers.
        is_open: whether an expected value is not a literal.
        rows: names of tables and loops → the expressions in their rows.
        around: those of the tables and loops that contain the test.
        ending: names of the functions by which the test reports its end.
        helpers: the functions of the file, by name.
    """

    names: frozenset[str]
    path: str
    text: Text
    call: Node
    shared: Mapping[_Key, int]
    keys: tuple[_Key, ...]
    gives: bool
    is_open: bool
    rows: Mapping[str, tuple[Node, ...]]
    around: Mapping[str, tuple[Node, ...]]
    ending: frozenset[str]
    helpers: Mapping[str, _Helper]


def _tests(files: Mapping[str, str], names: Iterable[str]) -> Iterator[_Test]:
    sources = sorted((path, source) for path, source in files.items() if path.endswith(SUFFIXES))
    known = [(path, test) for path, source in sources for test in read_tests(path, source)]
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
        shared = Counter(
            key
            for node, key in _literals(root, text)
            if not any(begin <= node.start_byte < end for begin, end in spans)
            and (node.parent is None or node.parent.type not in ("import_statement", "expression_statement"))
        )
        yield _given(frozenset(named[id(test)]), path, text, calls[test.begin], shared, _helpers(root, text))


def _is_read_at_once(node: Node, text: Text) -> bool:
    """Whether this reads a property of a call's result: a getter may return what the call received."""
    owner, above = node.child_by_field_name("object"), node.parent
    while owner is not None and owner.type in ("parenthesized_expression", "await_expression"):
        owner = owner.named_children[0]
    if (
        owner is None
        or owner.type not in ("call_expression", "new_expression")
        or is_assertion(_first_call(owner), text)
    ):
        return False
    return not (above is not None and above.type == "call_expression" and above.child_by_field_name("function") == node)


@dataclass(frozen=True)
class _Helper:
    """A function of the test file; `events`: how often it may pass something to the code under test, or query it."""

    keys: frozenset[_Key]
    events: int


def _helpers(root: Node, text: Text) -> Mapping[str, _Helper]:
    """The functions of a file, by name."""
    nodes: dict[str, Node] = {text.of(name): value for name, value in _declared(root) if value.type in FUNCTIONS}
    for node in walk(root):
        name = node.child_by_field_name("name")
        if name is not None and node.type == "function_declaration":
            nodes[text.of(name)] = node
    found: dict[str, _Helper] = {}
    for _ in range(_MOST_DEPTH):  # they may call each other
        found = {
            name: _Helper(frozenset(_keys_of(node, text)), min(_events(node, text, found), _MOST_EVENTS))
            for name, node in nodes.items()
        }
    return found


def _given(
    names: frozenset[str],
    path: str,
    text: Text,
    call: Node,
    shared: Mapping[_Key, int],
    helpers: Mapping[str, _Helper],
) -> _Test:
    """The values that a test passes to the code under test, and those that it expects."""
    body = [node for node in walk(call) if node.id != call.id]
    function = _function_of(call)
    around = row_names(call, text)
    rows = {**{name: values for node in body for name, values in bound_by(node, text) if values}, **around}
    assigned = {text.of(name): value for name, value in _declared(call) if name.type == "identifier"}
    judged = [node for node in body if node.type == "call_expression" and is_assertion(node, text)]
    compared_by = [[*arguments_of(one), *chain_of(one, text)[1]] for one in judged]
    values = {**rows, **{name: (value,) for name, value in assigned.items()}}
    written_in = [[node for node in each if _is_written(node, values, text)] for each in compared_by]
    # A literal that two assertions expect does not count as passed.
    expecting = {node.start_byte for each in written_in for node in each}
    inner = function.child_by_field_name("body") if function is not None else None
    ending = frozenset(_endings(function, text, around)) if function is not None else frozenset()
    elsewhere = Counter(
        text.of(node)
        for node in (walk(inner) if inner is not None else ())
        if "identifier" in node.type and node.type != "property_identifier" and node.start_byte not in expecting
    )
    # Columns of a table that are only expected.
    only = [node for name, nodes in rows.items() if not elsewhere[name] for node in nodes]
    expected = {one.start_byte for each in written_in for node in each for one, _ in _literals(node, text)}
    expected |= {one.start_byte for node in only for one, _ in _literals(node, text)}
    given = Counter(key for one, key in _literals(call, text) if one.start_byte not in expected)
    in_rows = Counter(key for nodes in rows.values() for node in nodes for _, key in _literals(node, text))
    by_rows = {
        key for name, nodes in rows.items() if elsewhere[name] for node in nodes for _, key in _literals(node, text)
    }
    keys: list[_Key] = []
    gives = is_open = False
    for one, compared, written in zip(judged, compared_by, written_in, strict=True):
        whole = whole_of(one)
        words = [text.of(one.child_by_field_name("function") or one), *chain_of(one, text)[0]]
        is_error = any(map(_RAISING.search, words)) or any(node.type in FUNCTIONS for node in compared)
        is_truth = len([node for node in compared if node.type not in ("true", "false")]) == 1 and not is_error
        # A copy has no snapshots of its own, and what these show is not a literal.
        is_open |= not (written or is_error or is_truth) or words[-1].endswith("Snapshot")
        gives |= is_truth or any(_is_small(value, text) for node in written for value in _values_of(node, values, text))
        own = list(_literals(whole, text))
        # A call may return its own argument, if no other call receives it. With two calls, one may pass it to the
        # other.
        is_one = _events(whole, text, helpers) < 2
        here = Counter(key for node, key in own if is_one and node.start_byte not in expected)
        for node in walk(whole):
            called = text.of(node) if node.type == "identifier" else ""
            if called in assigned and elsewhere[called] > 1:
                keys += [key for _, key in _literals(assigned[called], text)]
            elif called in rows and (is_truth or node.start_byte in expecting):
                found = [key for value in rows[called] for _, key in _literals(value, text)]
                is_given = elsewhere[called] > (node.start_byte not in expecting)
                keys += [
                    key
                    for key in found
                    if is_given or key in by_rows or given[key] > here[key] or shared.get(key, 0) > in_rows[key]
                ]
        asked = own if is_truth else [each for node in written for each in _literals(node, text)]
        keys += [key for _, key in asked if given[key] > here[key] or key in shared or key in by_rows]
    is_open |= not judged
    unique = tuple(dict.fromkeys(keys))
    gives |= is_open or bool(unique)
    return _Test(names, path, text, call, shared, unique, gives, is_open, rows, around, ending, helpers)


def _function_of(call: Node) -> Node | None:
    """The function of a test."""
    return next((one for one in arguments_of(call) if one.type in FUNCTIONS), None)


def _values_of(node: Node, values: Mapping[str, tuple[Node, ...]], text: Text) -> tuple[Node, ...]:
    """The expressions that an expression, or a name, may refer to."""
    return values.get(text.of(node), (node,)) if node.type == "identifier" else (node,)


def _is_written(node: Node, values: Mapping[str, tuple[Node, ...]], text: Text) -> bool:
    """Whether an expression is a literal, or a name for literals."""
    found = _values_of(node, values, text)
    return bool(found) and all(
        value.type in ("regex", "undefined") or constant(value, text, _NOTHING) is not _NOTHING for value in found
    )


def _events(node: Node, text: Text, helpers: Mapping[str, _Helper], ending: Collection[str] = ()) -> int:
    """How often an expression may pass something to the code under test, or query it, with no statement in between."""
    found = 0
    for one in walk(node):
        if one.type == "assignment_expression":
            left = one.child_by_field_name("left")
            found += left is not None and left.type in ("member_expression", "subscript_expression")
        if one.type in ("member_expression", "subscript_expression"):
            found += _is_read_at_once(one, text)
        if one.type not in ("call_expression", "new_expression"):
            continue
        called = one.child_by_field_name("function") or one.child_by_field_name("constructor")
        name = text.of(called)[:200] if called is not None else ""
        inside = helpers[name].events if name in helpers else 0
        is_plain = is_assertion(_first_call(one), text) or _PLAIN.fullmatch(name) is not None or name in ending
        found += inside if is_plain else max(1, inside)
    return found


def _is_small(node: Node, text: Text) -> bool:
    """Whether an expected value is one of few possible ones."""
    value = constant(node, text, _NOTHING)
    return value in (None, "", [], {}) or (isinstance(value, int | float) and abs(value) < 10)


def _literals(node: Node, text: Text) -> Iterator[tuple[Node, _Key]]:
    """The texts and numbers below a node that are specific enough to be recognised; no titles, keys and indices."""
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
        statements: of the function, with nested calls moved into statements before them.
        asking: literal → the statements, with a new name wherever it is expected; and for each of these names the
            source that it replaces.
        returned: the name of the value that the test returns; "" if it returns nothing.
        ending: names of the functions by which the test reports its end.
        rows: names that the test gets from tables and loops.
        pools: literal → itself and its replacements.
        is_open: whether a statement may pass something to the code under test and query it, with no twin in between.
    """

    head: tuple[str, str]
    tail: str
    statements: tuple[Node, ...]
    text: Text
    asking: Mapping[_Key, _Asking]
    returned: str
    ending: frozenset[str]
    rows: tuple[str, ...]
    pools: Mapping[_Key, Sequence[str]]
    is_typed: bool
    is_open: bool
    test: _Test
    twins: int
    choice: random.Random

    @classmethod
    def of(cls, test: _Test, words: tuple[str, ...], twins: int, choice: random.Random) -> _Copied | None:
        """The test to copy; None if it has no function, or is not a statement of its own."""
        text, function = test.text, _function_of(test.call)
        body = function.child_by_field_name("body") if function is not None else None
        above = test.call.parent
        is_alone = above is not None and above.type in ("expression_statement", "arrow_function")
        if function is None or body is None or not is_alone or not _titled(test.call, text):
            return None
        if any(node.type == "yield_expression" for node in _own_nodes(body)):
            return None
        pools: dict[_Key, Sequence[str]] = {}
        for key in test.keys[:_MOST_KEYS]:
            value = key[1]
            other = replaceable(value, words) if isinstance(value, int | float | str) else None
            if other is not None and other.count >= twins:
                pools[key] = [json.dumps(one) for one in (value, *other.draw(twins, choice))]
        whole = text.content
        title = arguments_of(test.call)[0]
        head = (
            whole[test.call.start_byte : title.start_byte].decode("utf-8", "surrogatepass"),
            whole[title.end_byte : body.start_byte].decode("utf-8", "surrogatepass"),
        )
        tail = whole[body.end_byte : test.call.end_byte].decode("utf-8", "surrogatepass")
        found = _Flat.of(test, body, ())
        if found is None:
            return None
        asking: dict[_Key, _Asking] = {}
        for key in pools:
            places = dict(_asked_places(test, key, body))
            flat = _Flat.of(test, body, [(*place, name) for place, (name, _) in places.items()])
            if places and flat is not None and len(flat.statements) == len(found.statements):
                asking[key] = _Asking(flat.statements, flat.text, tuple(dict.fromkeys(places.values())))
        used = {text.of(node) for node in walk(body) if "identifier" in node.type}
        is_typed = test.path.endswith((".ts", ".tsx", ".mts", ".cts"))
        return cls(
            head,
            tail,
            found.statements,
            found.text,
            asking,
            found.returned,
            test.ending,
            tuple(name for name in test.around if name in used),
            pools,
            is_typed,
            any(_is_close(node, found.text, test) for node in found.statements),
            test,
            twins,
            choice,
        )

    def copy(self, name: str, key: _Key | None, *, asks: int = 0) -> str:
        """A copy of the unchanged test, or with another value for `key`, in the place of each of its literals.

        Args:
            asks: the place of another value in the pool of `key`, which only the assertions have, and which a twin
                passes.
        """
        drawn = {each: self.choice.sample(pool, len(pool)) for each, pool in self.pools.items()}
        for each, values in drawn.items():
            is_other = each == key and not asks
            first = self.choice.choice(self.pools[each][1:]) if is_other else self.pools[each][0]
            values.remove(first)
            values.insert(0, first)
        collector, mapper, ended = (drawn_word(self.choice) for _ in range(3))
        bound = dict(_bound_in(self.statements, self.text, self.test))
        own = sorted(bound)
        versions: list[_Version] = []
        typed = (": any", ": any[]") if self.is_typed else ("", "")
        lines = [
            _COLLECTOR.format(name=collector, any=typed[0], any_list=typed[1]),
            _MAPPER.format(name=mapper, any=typed[0]),
            f"const {ended} = () => {{}};\n",
        ]
        asking = self.asking[key] if asks and key is not None else None
        if asking is not None and key is not None:
            pair = f"[[{self.pools[key][0]}, {self.pools[key][asks]}]]"
            lines += [f"const {asked} = {mapper}({source}, {pair});\n" for asked, source in asking.names]
        for number in range(self.twins + 1):
            changes = {each: values[number] for each, values in drawn.items()}
            suffix = f"_{drawn_word(self.choice)}" if number else ""
            renamed = {name: name + suffix for name in own if number}
            others = [(pool[0], changes[each]) for each, pool in self.pools.items() if pool[0] != changes[each]]
            if self.rows:  # the test has its own copies of the objects, like its twins
                pairs = ", ".join(f"[{one}, {other}]" for one, other in others)
                rows = {each: f"{each}_{drawn_word(self.choice)}" for each in self.rows if each not in own}
                lines += [f"const {new}{typed[0]} = {mapper}({each}, [{pairs}]);\n" for each, new in rows.items()]
                renamed |= rows
            if number:
                renamed |= dict.fromkeys(self.ending, ended)
                lines += [f"let {renamed[one]}{typed[0]};\n" for one in own if bound[one]]
            statements, text = self.statements, self.text
            if asking is not None and not number:
                statements, text = asking.statements, asking.text
            versions.append(_Version(statements, text, renamed, changes, collector if number else ""))
        lines += _together(versions, self.test, self.choice)
        if self.returned:
            lines.append(f"return {self.returned};\n")
        return f"{self.head[0]}'{name}'{self.head[1]}{{\n{''.join(lines)}}}{self.tail}"


@dataclass(frozen=True)
class _Asking:
    """The statements of a test in which expected values are replaced by new names.

    Attributes:
        names: these names, and the source that they replace.
    """

    statements: tuple[Node, ...]
    text: Text
    names: tuple[tuple[str, str], ...]


def _asked_places(test: _Test, key: _Key, body: Node) -> Iterator[tuple[tuple[int, int], tuple[str, str]]]:
    """The places, in bytes, where a test expects a literal, each with a new name and the source that it replaces."""
    text = test.text
    sources: dict[str, str] = {}  # source → new name
    names: dict[str, str] = {}
    for name, value in _declared(body):
        names[text.of(name)] = text.of(value) if value.type in _LITERALS and key in _keys_of(value, text) else ""
    for row, values in test.around.items():
        names.setdefault(row, row if any(key in _keys_of(value, text) for value in values) else "")
    for call in (one for one in walk(body) if one.type == "call_expression" and is_assertion(one, text)):
        whole = whole_of(call)
        known = {one.start_byte for one, own in _literals(whole, text) if own == key}
        for node in walk(whole):
            source = text.of(node) if node.start_byte in known and node.type in _LITERALS else ""
            if node.type == "identifier":
                source = names.get(text.of(node), "")
            if source:
                asked = sources.setdefault(source, f"asked_{len(sources)}")
                yield (node.start_byte, node.end_byte), (asked, source)


def _declared(body: Node) -> Iterator[tuple[Node, Node]]:
    """The variables that are declared in a function, with their values."""
    for node in walk(body):
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if node.type == "variable_declarator" and name is not None and value is not None:
            yield name, value


def _keys_of(node: Node, text: Text) -> set[_Key]:
    return {key for _, key in _literals(node, text)}


def _endings(function: Node, text: Text, rows: Collection[str]) -> Iterator[str]:
    """The parameters that a test only calls, or passes on to be called: `done`."""
    body = function.child_by_field_name("body")
    for parameter in parameters_of(function) if body is not None else ():
        name = text.of(parameter)
        if parameter.type != "identifier" or name in rows:
            continue
        uses = (
            [one for one in walk(body) if one.type == "identifier" and text.of(one) == name] if body is not None else []
        )
        above = [one.parent for one in uses]
        kinds = [one.type if one is not None else "" for one in above]
        if above and all(
            kind in ("call_expression", "arguments")
            or (kind == "member_expression" and one is not None and text.of(one) == f"{name}.fail")
            for kind, one in zip(kinds, above, strict=True)
        ):
            yield name


def _is_close(statement: Node, text: Text, test: _Test) -> bool:
    """Whether one statement may pass something to the code under test and query it, with no twin in between."""
    if (block := _block_in(statement, text, test)) is not None:
        beside = [one for one in statement.named_children if statement.type == "try_statement" and one != block]
        return any(_is_close(one, text, test) for one in (*block.named_children, *beside))
    count = _events(statement, text, test.helpers, test.ending)
    judged = [one for one in walk(statement) if one.type == "call_expression" and is_assertion(one, text)]
    bare = [one for one in judged if not _events(whole_of(one), text, test.helpers, test.ending)]
    if count == 1 and bare:
        calls = [one for one in walk(statement) if one.type in ("call_expression", "new_expression")]
        giving = [one for one in calls if _events(one, text, test.helpers, test.ending)]
        return not any(
            one.start_byte <= each.start_byte and each.end_byte <= one.end_byte for one in giving for each in bare
        )
    if count < 2:
        return False
    named = {text.of(one) for one in walk(statement) if one.type == "identifier"}
    known = _keys_of(statement, text).union(*(test.helpers[name].keys for name in named if name in test.helpers))
    known |= {key for name in named for value in test.rows.get(name, ()) for key in _keys_of(value, test.text)}
    for name, value in _declared(test.call):
        known |= _keys_of(value, test.text) if test.text.of(name) in named else set()
    return bool(judged) or not known.isdisjoint(test.keys)


@dataclass(frozen=True)
class _Version:
    """The statements of a test, or of one of its twins: `collector` is "" for the test itself."""

    statements: Sequence[Node]
    text: Text
    renamed: Mapping[str, str]
    changes: Mapping[_Key, str]
    collector: str

    def written(self, node: Node, *, block: Node | None = None, inside: str = "") -> str:
        """The source of a statement, with `inside` in the place of its block."""
        return _statement(node, self.text, self.renamed, self.changes, self.collector, block=block, inside=inside)


def _together(versions: Sequence[_Version], test: _Test, choice: random.Random) -> list[str]:
    """The statements of a test, the first of the versions, each in random order with those of its twins."""
    found: list[str] = []
    for statements in zip(*(one.statements for one in versions), strict=True):
        pairs = list(zip(versions, statements, strict=True))
        blocks = [_block_in(node, version.text, test) for version, node in pairs]
        if any(block is None for block in blocks):
            written = [version.written(node) for version, node in pairs]
            found += choice.sample(written, len(written))
            continue
        inner = [
            dataclasses.replace(version, statements=[one for one in block.named_children if one.type != "comment"])
            for version, block in zip(versions, blocks, strict=True)
            if block is not None
        ]
        inside = "{\n" + "".join(_together(inner, test, choice)) + "}"
        found.append(versions[0].written(statements[0], block=blocks[0], inside=inside))
        if statements[0].type == "try_statement":  # the twins' `finally` blocks
            found += [
                version.written(node, block=block, inside="{}")
                for (version, node), block in zip(pairs[1:], blocks[1:], strict=True)
            ]
    return found


def _bound_in(statements: Iterable[Node], text: Text, test: _Test) -> Iterator[tuple[str, bool]]:
    """The names that statements and their blocks declare, each with whether it is a variable."""
    for node in statements:
        is_variable = node.type in ("lexical_declaration", "variable_declaration")
        yield from ((name, is_variable) for name in _bound(node))
        if (block := _block_in(node, text, test)) is not None:
            yield from _bound_in(block.named_children, text, test)


def _renaming(node: Node, renamed: Mapping[str, str], text: Text) -> Iterator[tuple[int, int, str]]:
    """The edits that rename variables."""
    for one in walk(node):
        name = text.of(one) if "identifier" in one.type else ""
        if name in renamed and one.type in ("identifier", "type_identifier"):
            yield one.start_byte, one.end_byte, renamed[name]
        elif name in renamed and one.type.startswith("shorthand"):
            yield one.start_byte, one.end_byte, f"{name}: {renamed[name]}"


def _statement(
    node: Node,
    text: Text,
    renamed: Mapping[str, str],
    changes: Mapping[_Key, str],
    collector: str,
    *,
    block: Node | None = None,
    inside: str = "",
) -> str:
    """A statement with other literals and names, and `inside` instead of its block; a twin's cannot fail."""
    edits = [(one.start_byte, one.end_byte, changes[key]) for one, key in _literals(node, text) if key in changes]
    edits += _renaming(node, renamed, text)
    edits += _unjudged(node, collector, text) if collector else ()
    if block is not None:
        edits = [one for one in edits if not block.start_byte <= one[0] < block.end_byte]
        edits.append((block.start_byte, block.end_byte, inside))
    kinds = ("function_declaration", "generator_function_declaration", "class_declaration")
    if not collector or node.type in kinds:
        return f"{_with(node, edits, text)}\n"
    if node.type not in ("lexical_declaration", "variable_declaration"):
        return f"try {{ {_with(node, edits, text)} }} catch (error) {{}}\n"
    parts = []
    for declared in (child for child in node.named_children if child.type == "variable_declarator"):
        pattern, value = declared.child_by_field_name("name"), declared.child_by_field_name("value")
        if pattern is not None and value is not None:
            parts.append(f"({_with(pattern, edits, text)} = {_with(value, edits, text)});")
    return f"try {{ {' '.join(parts)} }} catch (error) {{}}\n"


def _unjudged(node: Node, collector: str, text: Text) -> Iterator[tuple[int, int, str]]:
    """The edits by which a statement of a twin checks nothing, and does not leave the test."""
    for one in walk(node):
        if one.type == "call_expression" and is_assertion(one, text):
            yield from _evaluated(one, collector, text)
    for one in _own_nodes(node) if node.type not in _NESTED else ():
        if one.type == "return_statement":
            given = one.named_children[0] if one.named_children else None
            word = f"throw {collector}((" if given is not None else "throw 0"
            yield one.start_byte, one.start_byte + len("return"), word
            if given is not None:
                yield given.end_byte, given.end_byte, "))"


def _evaluated(call: Node, collector: str, text: Text) -> Iterator[tuple[int, int, str]]:
    """The edits by which an assertion evaluates its operands without checking them."""
    function, whole = call.child_by_field_name("function"), whole_of(call)
    if function is None:
        return
    yield function.start_byte, function.end_byte, collector
    if whole.end_byte > call.end_byte:
        last = arguments_of(whole) if whole.type == "call_expression" and chain_of(call, text)[1] else []
        begin = whole.child_by_field_name("arguments") if last else None
        end = begin.start_byte if begin is not None else whole.end_byte
        yield call.end_byte, end, f", {collector}" if last else ""


def _with(node: Node, edits: Collection[tuple[int, int, str]], text: Text) -> str:
    """The source of a node with those of the edits that are inside it."""
    content = text.content[node.start_byte : node.end_byte]
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
    """The nodes of a function, without those of nested functions and classes."""
    waiting = [body]
    for node in waiting:  # grows during the iteration
        yield node
        waiting += [child for child in node.children if child.type not in _NESTED]


@dataclass(frozen=True)
class _Flat:
    """The statements of a function with nested calls moved into statements before them: twins can run in between.

    Attributes:
        returned: the name of the value that the function returns; "" if it returns nothing.
    """

    statements: tuple[Node, ...]
    text: Text
    returned: str

    @classmethod
    def of(cls, test: _Test, body: Node, edits: Collection[tuple[int, int, str]]) -> _Flat | None:
        """The flattened body; None if it is not plain JavaScript. `edits`: of its source, in bytes."""
        path, text, is_block = test.path, test.text, body.type == "statement_block"
        source = _with(body, edits, text)
        source = f"async function k() {source if is_block else f'{{ return {source}; }}'}"
        for number in range(_MOST_ROUNDS):  # each round expands one loop or block
            content, block = Text(source.encode("utf-8", "surrogatepass")), _body_of(path, source)
            if block is None:
                return None
            written = _written_out(block, content, test, body, number)
            if written is None:
                break
            begin, end, new = written
            source = source[: content.at(begin)] + new + source[content.at(end) :]
        else:
            return None
        lines, returned = _flattened(block, content)
        flat = "async function k() {\n" + "\n".join(lines) + "\n}"
        block = _body_of(path, flat)
        if block is None:
            return None
        statements = tuple(node for node in block.named_children if node.type != "comment")
        return cls(statements, Text(flat.encode("utf-8", "surrogatepass")), returned)


def _written_out(block: Node, content: Text, test: _Test, body: Node, number: int) -> tuple[int, int, str] | None:
    """The first change that moves the calls of a loop, or of a block in a statement, to where twins can run in between.

    Args:
        block, content: a function with the test's statements, and its source.
        body: of the test's function, in its file.
        number: of the change, for the names of its variables.
    """
    for statement in block.named_children:
        if unrolled := _unrolled(statement, content, test.text, body, number):
            return statement.start_byte, statement.end_byte, unrolled
        inner = _block_in(statement, content, test)
        if inner is None:
            continue
        if (found := _written_out(inner, content, test, body, number)) is not None:
            return found
        flat = "{\n" + "\n".join(_flattened(inner, content)[0]) + "\n}"
        if flat != content.of(inner):
            return inner.start_byte, inner.end_byte, flat
    return None


def _flattened(block: Node, content: Text) -> tuple[list[str], str]:
    """The statements of a block with nested calls moved into statements before them, and the returned name."""
    used = set(re.findall(r"\w+", content.content.decode("utf-8", "replace")))
    fresh = (name for number in range(10_000) if (name := f"made_{number}") not in used)
    lines: list[str] = []
    for statement in block.named_children:
        taken: list[str] = []
        if statement.type == "return_statement":
            if not statement.named_children:
                return lines, ""
            kept = _taken_out(statement.named_children[0], content, fresh, taken, is_kept=True)
            returned = next(fresh)
            return [*lines, *taken, f"const {returned} = {kept};"], returned
        if statement.type in ("expression_statement", "lexical_declaration", "variable_declaration"):
            kept = _taken_out(statement, content, fresh, taken, is_kept=True)
        elif statement.type == "comment":
            continue
        else:
            kept = content.of(statement)
        lines += [*taken, kept if kept.rstrip().endswith((";", "}")) else f"{kept};"]
    return lines, ""


def _block_in(statement: Node, text: Text, test: _Test) -> Node | None:
    """The block of a statement into which statements of twins can be inserted: it is executed at most once.

    This is the block of a `try`, or of a function without parameters that is passed to an assertion or to a promise.
    """
    if statement.type == "try_statement":
        return statement.child_by_field_name("body")
    if statement.type not in ("expression_statement", "lexical_declaration", "variable_declaration"):
        return None
    functions = [one for one in walk(statement) if one.type in _NESTED]
    outer = [one for one in functions if not any(_holds(other, one) for other in functions)]
    block = outer[0].child_by_field_name("body") if len(outer) == 1 and outer[0].type in FUNCTIONS else None
    if block is None or block.type != "statement_block":
        return None
    names = {text.of(one) for one in walk(block) if "identifier" in one.type}
    parameters = {name for one in parameters_of(outer[0]) for name in bound_names(one)}
    events = _events(statement, text, test.helpers, test.ending) - _events(outer[0], text, test.helpers, test.ending)
    leaves = any(one.type in ("return_statement", "yield_expression") for one in _own_nodes(block))
    return None if events or leaves or parameters & names or not names else block


def _holds(node: Node, other: Node) -> bool:
    return node != other and node.start_byte <= other.start_byte and other.end_byte <= node.end_byte


def _body_of(path: str, source: str) -> Node | None:
    """The block of a function that is the whole source; None if it is not plain JavaScript."""
    root = parsed(path, source)
    body = root.named_children[0].child_by_field_name("body") if root.named_children else None
    return None if body is None or body.has_error or len(root.named_children) != 1 else body


def _unrolled(statement: Node, content: Text, text: Text, body: Node, number: int) -> str:
    """A loop over a literal list, unrolled into its statements for each item; "" for any other statement.

    Args:
        content: the source of `statement`.
        text, body: of the function as it is in its file, which may have a name for the list.
        number: of the loop, for the names of its variables.
    """
    call = statement.named_children[0] if statement.type == "expression_statement" else statement
    called, given = call.child_by_field_name("function"), arguments_of(call)
    if statement.type == "for_in_statement" and any(child.type == "of" for child in statement.children):
        pattern, items, block = (statement.child_by_field_name(one) for one in ("left", "right", "body"))
        if statement.child_by_field_name("kind") is None or any(one.type == "await" for one in statement.children):
            return ""
    elif called is not None and called.type == "member_expression" and len(given) == 1 and given[0].type in FUNCTIONS:
        parameters = parameters_of(given[0])
        if (
            content.of(called).rpartition(".")[2] != "forEach"
            or len(parameters) != 1
            or given[0].children[0].type == "async"
        ):
            return ""
        pattern, items, block = (
            parameters[0],
            called.child_by_field_name("object"),
            given[0].child_by_field_name("body"),
        )
    else:
        return ""
    if pattern is None or items is None or block is None or block.type != "statement_block":
        return ""
    leaving = ("break_statement", "continue_statement", "return_statement", "yield_expression", "labeled_statement")
    if any(node.type in leaving for node in _own_nodes(block)):
        return ""
    found, source = listed(items, content), content
    if not found and items.type == "identifier":
        found, source = _listed_near(content.of(items), body, text), text
    names = [*bound_names(pattern), *(name for node in block.named_children for name in _bound(node))]
    lines = []
    for place, item in enumerate(found if len(found) <= _MOST_ITEMS else ()):
        edits = list(_renaming(statement, {name: f"{name}_{number}_{place}" for name in names}, content))
        lines.append(f"const {_with(pattern, edits, content)} = {source.of(item)};")
        lines += [_with(node, edits, content) for node in block.named_children if node.type != "comment"]
    return "\n".join(one if one.rstrip().endswith((";", "}")) else f"{one};" for one in lines)


def _listed_near(name: str, body: Node, text: Text) -> tuple[Node, ...]:
    """The items of the list with this name in the file of a function."""
    found = (one for one in walk(body) if one.type == "identifier" and text.of(one) == name)
    return next((listed(one, text) for one in found), ())


def _taken_out(node: Node, text: Text, fresh: Iterator[str], taken: list[str], *, is_kept: bool) -> str:
    """The source of an expression in which the calls that are always executed are replaced by names, in order.

    Args:
        taken: gets the statements that make these calls.
        is_kept: whether the expression itself, if it is a call, stays in place.
    """
    is_choice = node.type == "binary_expression" and any(one.type in ("&&", "||", "??") for one in node.children)
    if (
        node.type in _NOT_SURE
        or is_choice
        or any(one.type in ("optional_chain", "super", "import") for one in node.children)
    ):
        return text.of(node)
    begin, parts = node.start_byte, []
    is_judging = node.type == "call_expression" and is_assertion(_first_call(node), text)
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
    """The first call of a chain: `expect(a)` of `expect(a).to.equal(b)`."""
    here, found = call, call
    while True:
        inner = here.child_by_field_name("function") or here.child_by_field_name("object")
        if inner is None or inner.type not in ("call_expression", "member_expression"):
            return found
        here = inner
        found = here if here.type == "call_expression" else found
