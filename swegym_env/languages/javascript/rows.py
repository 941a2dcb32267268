"""Values that a test in JavaScript gets from its table or loop: `test.each(rows)`, `for … of rows`.

test.each([['zqxw', 4]])('%s', (name, length) => …)      // name: 'zqxw', length: 4
for (const { name } of [{ name: 'zqxw' }]) test(name, () => …)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from swegym_env.languages.javascript.source import Text, string_value, walk
from swegym_env.languages.javascript.state import bound_names

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["FUNCTIONS", "bound_by", "is_table", "listed", "parameters_of", "row_names"]

FUNCTIONS = ("arrow_function", "function_expression")
_EACH = re.compile(r"(f?it|test|specify|f?describe|suite|context)(\.(only|concurrent|sequential))?\.each")
_LISTED = re.compile(r"forEach|map|flatMap")
_AROUND = ("parenthesized_expression", "as_expression", "satisfies_expression", "non_null_expression")


def is_table(function: Node, text: Text) -> bool:
    """Whether what is called is `test.each(…)`, or a suite's."""
    inner = function.child_by_field_name("function") if function.type == "call_expression" else None
    return inner is not None and _EACH.fullmatch(text.of(inner)[:60]) is not None


def row_names(call: Node, text: Text) -> Mapping[str, tuple[Node, ...]]:
    """The names that the tables and loops around a test bind → the expressions in their rows; empty if unknown.

    Args:
        call: of `test` or `it`.
    """
    found: dict[str, tuple[Node, ...]] = {}
    here: Node | None = call
    while here is not None:
        for name, values in bound_by(here, text):
            found.setdefault(name, values)
        here = here.parent
    return found


def bound_by(node: Node, text: Text) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """The names that a loop, or a call with a table or a list, binds in its body."""
    function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if node.type == "for_in_statement" and node.child_by_field_name("kind") is not None:
        pattern, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        rows = listed(right, text) if any(child.type == "of" for child in node.children) else ()
        yield from _matched(pattern, rows, text) if pattern is not None else ()
    elif node.type == "call_expression" and function is not None and arguments is not None:
        runs = next((one for one in arguments.named_children if one.type in FUNCTIONS), None)
        parameters = parameters_of(runs) if runs is not None else []
        if is_table(function, text):
            table = function.child_by_field_name("arguments")
            rows = listed(table.named_children[0], text) if table is not None and table.named_children else ()
            if rows and all(row.type == "array" for row in rows):
                for place, parameter in enumerate(parameters):
                    yield from _matched(parameter, _items(rows, place), text)
            else:
                for place, parameter in enumerate(parameters):
                    yield from _matched(parameter, () if place else rows, text)
        elif function.type == "member_expression" and parameters:
            method, owner = function.child_by_field_name("property"), function.child_by_field_name("object")
            if method is not None and _LISTED.fullmatch(text.of(method)):
                for place, parameter in enumerate(parameters):
                    yield from _matched(parameter, () if place else listed(owner, text), text)


def parameters_of(function: Node) -> list[Node]:
    """The patterns of a function's parameters."""
    single, several = function.child_by_field_name("parameter"), function.child_by_field_name("parameters")
    found = [single] if single is not None else several.named_children if several is not None else []
    return [one.child_by_field_name("pattern") or one for one in found if one.type != "comment"]


def listed(node: Node | None, text: Text) -> tuple[Node, ...]:
    """The items of a literal list, perhaps by its name in the file; none if the list is computed."""
    while node is not None and node.type in _AROUND:
        node = node.named_children[0]
    if node is not None and node.type == "identifier":
        name, root = text.of(node), node
        while root.parent is not None:
            root = root.parent
        values = [
            value
            for one in walk(root)
            if one.type == "variable_declarator"
            and (declared := one.child_by_field_name("name")) is not None
            and text.of(declared) == name
            and (value := one.child_by_field_name("value")) is not None
        ]
        node = values[0] if len(values) == 1 else None
        while node is not None and node.type in _AROUND:
            node = node.named_children[0]
    if node is None or node.type != "array":
        return ()
    items = tuple(one for one in node.named_children if one.type != "comment")
    return () if any(one.type == "spread_element" for one in items) else items


def _items(rows: Iterable[Node], place: int) -> tuple[Node, ...]:
    """The elements of lists at one index; none if a list has no element there."""
    found = []
    for row in rows:
        items = [one for one in row.named_children if one.type != "comment"] if row.type == "array" else []
        if place >= len(items) or any(one.type == "spread_element" for one in items[: place + 1]):
            return ()
        found.append(items[place])
    return tuple(found)


def _fields(rows: Iterable[Node], name: str, text: Text) -> tuple[Node, ...]:
    """The properties of objects with one name; none if one is not an object literal, or contains more than literals."""
    found = []
    for row in rows:
        for pair in row.named_children if row.type == "object" else ():
            key, value = pair.child_by_field_name("key"), pair.child_by_field_name("value")
            if pair.type in ("spread_element", "shorthand_property_identifier"):
                return ()
            if key is not None and value is not None and (string_value(key) or text.of(key)) == name:
                found.append(value)
        if row.type != "object":
            return ()
    return tuple(found)


def _matched(pattern: Node, rows: tuple[Node, ...], text: Text) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """The names that a pattern binds, and the part of each row that they get."""
    if pattern.type == "identifier":
        yield text.of(pattern), rows
    elif pattern.type == "array_pattern":
        for place, inner in enumerate(pattern.named_children):
            yield from _matched(inner, _items(rows, place), text)
    elif pattern.type == "object_pattern":
        for inner in pattern.named_children:
            key = inner.child_by_field_name("key")
            value = inner.child_by_field_name("value")
            if inner.type == "shorthand_property_identifier_pattern":
                yield text.of(inner), _fields(rows, text.of(inner), text)
            elif inner.type == "pair_pattern" and key is not None and value is not None:
                yield from _matched(value, _fields(rows, text.of(key), text), text)
            else:
                yield from ((name, ()) for name in bound_names(inner))
    else:
        yield from ((name, ()) for name in bound_names(pattern))
