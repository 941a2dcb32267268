"""State that a JavaScript patch newly keeps between calls: with it, code could return what an earlier call received.

A repair may also keep state (a cache, a registry), so this alone does not reject a patch; see `twins`. Attributes of
objects that the code under test receives, or that a class creates, do not count: the test decides how long these exist.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from swegym_env.languages.caching import cached_for_patches
from swegym_env.languages.changed import ChangedFile, has_kinds_beyond_gold
from swegym_env.languages.javascript.screening import script_of
from swegym_env.languages.javascript.source import SUFFIXES, parsed, source_text, walk
from swegym_env.repo.patches import parse_patch

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["bound_names", "keeps_state"]

_Kept = tuple[str, str]  # a kind, and the name of the object that keeps the value
_DECLARED = ("function_declaration", "generator_function_declaration", "class_declaration")
_FUNCTIONS = ("function_declaration", "generator_function_declaration", "function_expression", "generator_function")
_SCOPES = (*_FUNCTIONS, "arrow_function", "method_definition")
_MEMBERS = ("member_expression", "subscript_expression")
_AROUND = ("parenthesized_expression", "non_null_expression", "as_expression", "satisfies_expression")
_CHANGING = re.compile(
    r"(add|append|assign|clear|copyWithin|define|delete|emit|extend|fill|insert|mark|next|off|on|once|pop|prepend|push|put"
    r"|register|remember|remove|return|reverse|seed|set|shift|sort|splice|store|throw|unshift|update|write)([A-Z_]\w*)?"
)
# Functions whose result for a list or an object contains nothing mutable of it; and functions that query it and keep
# nothing.
_READING = re.compile(
    r"keys|values|entries|from|isArray|concat|includes|has|get|indexOf|lastIndexOf|join|max|min|freeze|stringify|test"
    r"|match|search|exec|replace|replaceAll|split|is|isDeepStrictEqual|String|Number|Boolean|Set|Map|WeakSet|RegExp|log"
    r"|error|warn|format|inspect|every|some|isFrozen|fromEntries|startsWith|endsWith"
)
_MAKING = frozenset({"assign", "defineProperty", "defineProperties", "set", "deleteProperty"})
_BUILTINS = frozenset(
    {"Object", "Reflect", "Array", "Math", "JSON", "Number", "String", "Promise", "Symbol", "console"}
)
# Functions that call their function argument at once; and constructors of the language, whose methods have known names.
_AT_ONCE = re.compile(
    r"forEach|(flatM|m)ap|filter|reduce(Right)?|some|every|find(Last)?(Index)?|sort|replace(All)?|from"
)
_BUILT_IN = re.compile(
    r"(Weak)?(Map|Set)|Array|RegExp|Date|U?[iI]nt\w*Array|Float\w*Array|URL|URLSearchParams|Error|TextEncoder"
)
_CONTAINERS = ("object", "array", "new_expression", "call_expression", "await_expression", "class")
_OF_LAST_MATCH = re.compile(r"\$\W?\d?|lastMatch|lastParen|leftContext|rightContext|input|RegExp\[.*")


def keeps_state(patch: str, base: Path, gold: str) -> bool:
    """Whether a patch keeps something between calls that its files did not keep before, in a way that gold does not.

    Args:
        patch: what is graded of the agent's patch.
        base: the repository at the base commit.
        gold: the gold patch.
    """
    return has_kinds_beyond_gold(_newly_kept, patch, base, gold)


@cached_for_patches(lambda patch, _base: len(patch))
def _newly_kept(patch: str, base: Path) -> frozenset[_Kept]:
    found: set[_Kept] = set()
    for section in parse_patch(patch):
        path = section.new_path
        if path is None or not path.endswith((*SUFFIXES, ".vue", ".svelte")):
            continue
        text = ChangedFile.of(section, base)
        if text is None:
            found.add(("unknown", path))
            continue
        before, after = (parsed(path, script_of(path, each)) for each in (text.before, text.after))
        found |= {("unknown", path)} if after.has_error and not before.has_error else set()
        found |= set(Counter(_File(after).kept()) - Counter(_File(before).kept()))
    return frozenset(found)


class _File:
    """A syntax tree, the names that its functions bind, and the objects that outlive a call."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._bound: dict[int, dict[str, Node | None]] = {root.id: {}}
        for node in walk(root):
            self._bind(node)

    def kept(self) -> Iterator[_Kept]:
        """Everything that is kept, repeated for each write, use as an argument, and query."""
        for node in walk(self._root):
            kind = node.type
            if kind in ("field_definition", "public_field_definition"):
                value = node.child_by_field_name("value")
                if (
                    value is not None
                    and value.type in _CONTAINERS
                    and any(one.type == "static" for one in node.children)
                ):
                    yield "content of a class", source_text(node.named_children[0])
            if self._function_of(node) is None:
                continue  # runs only once
            if kind in ("assignment_expression", "augmented_assignment_expression"):
                yield from self._written(node.child_by_field_name("left"), node)
            elif kind == "update_expression" or (kind == "unary_expression" and node.children[0].type == "delete"):
                yield from self._written(node.child_by_field_name("argument"), node)
            elif kind == "for_in_statement" and node.child_by_field_name("kind") is None:
                yield from self._written(node.child_by_field_name("left"), node)
            elif kind == "call_expression":
                yield from self._called(node)
            elif kind in ("identifier", "shorthand_property_identifier"):
                yield from self._named(node)
            elif kind == "spread_element" or (
                kind == "for_in_statement" and node.child_by_field_name("kind") is not None
            ):
                yield from self._iterated(node.child_by_field_name("right") or node.named_children[0], node)
            elif kind in _MEMBERS and _OF_LAST_MATCH.fullmatch(source_text(node).removeprefix("RegExp.")):
                yield "pattern", "RegExp"

    def _bind(self, node: Node) -> None:
        kind = node.type
        value: Node | None = None
        scope = self._scope_of(node)
        names: list[Node | None] = []
        if kind == "variable_declarator":
            names, value = [node.child_by_field_name("name")], node.child_by_field_name("value")
        elif kind in _DECLARED or kind in ("function_expression", "generator_function", "class"):
            # The name of a function expression refers to the function, whose properties outlive its calls.
            names, value = [node.child_by_field_name("name")], node
            scope = self._scope_of(node.parent) if node.parent is not None else scope
        elif kind == "formal_parameters":
            names = [node]
        elif kind in ("arrow_function", "catch_clause"):
            names = [node.child_by_field_name("parameter")]
        elif kind == "for_in_statement" and node.child_by_field_name("kind") is not None:
            names = [node.child_by_field_name("left")]
        elif kind == "import_clause":
            names = [one for one in walk(node) if one.type == "identifier"]
        for name in (found for one in names if one is not None for found in bound_names(one)):
            self._bound.setdefault(scope.id, {}).setdefault(name, value)

    def _function_of(self, node: Node | None) -> Node | None:
        """The innermost function that contains a node, or the node itself."""
        while node is not None and node.type not in _SCOPES:
            node = node.parent
        return node

    def _scope_of(self, node: Node | None) -> Node:
        return self._function_of(node) or self._root

    def _outlives(self, name: str, node: Node) -> tuple[str, Node | None]:
        """How the value of a name outlives the call in which `node` is evaluated ("" if it does not), and the value."""
        inner: Node | None = None
        function = self._function_of(node)
        while function is not None:
            if name in self._bound.get(function.id, {}):
                is_own = inner is None or _is_called_at_once(inner)
                return "" if is_own else "closure", self._bound[function.id][name]
            inner, function = function, self._function_of(function.parent)
        return "module", self._bound[self._root.id].get(name)

    def _written(self, target: Node | None, node: Node) -> Iterator[_Kept]:
        """The ways in which an assignment to `target` keeps something."""
        if target is None:
            return
        if target.type in _MEMBERS:
            yield from self._changed(target, node)
        elif target.type == "identifier":
            where, _ = self._outlives(source_text(target), node)
            if where:
                yield f"variable of a {where}", source_text(target)
        elif target.type in (*_AROUND, "object_pattern", "array_pattern", "rest_pattern"):
            for child in target.named_children:
                yield from self._written(child, node)
        elif target.type in ("pair_pattern", "assignment_pattern", "object_assignment_pattern"):
            yield from self._written(target.child_by_field_name("value") or target.named_children[0], node)
        elif target.type == "shorthand_property_identifier_pattern":
            where, _ = self._outlives(source_text(target), node)
            if where:
                yield f"variable of a {where}", source_text(target)

    def _changed(self, target: Node | None, node: Node) -> Iterator[_Kept]:
        """The ways in which a change of an object through `target` keeps something."""
        while target is not None and target.type in (*_MEMBERS, *_AROUND):
            target = target.child_by_field_name("object") or target.named_children[0]
        if target is None:
            return
        if target.type == "identifier":
            where, _ = self._outlives(source_text(target), node)
            if where:
                yield f"content of a {where}", source_text(target)
        elif target.type == "this" and self._is_shared_this(target):
            yield "content of this", source_text(self._function_of(target))[:40]
        elif target.type == "call_expression" and source_text(target.child_by_field_name("function")) == "require":
            yield "content of a module", source_text(target)

    def _is_shared_this(self, node: Node) -> bool:
        """Whether `this` is an object that all calls share: a class, the module, the global object."""
        function = self._function_of(node)
        while function is not None and function.type == "arrow_function":
            function = self._function_of(function.parent)
        above = function.parent if function is not None else None
        if function is None or above is None:
            return True
        if function.type == "method_definition":
            return above.type == "object" or any(child.type == "static" for child in function.children)
        if function.type.endswith("declaration"):
            return not source_text(function.child_by_field_name("name"))[:1].isupper()
        if above.type == "assignment_expression":
            return ".prototype." not in source_text(above.child_by_field_name("left"))
        name = source_text(above.child_by_field_name("name")) if above.type == "variable_declarator" else ""
        return not name[:1].isupper()

    def _called(self, call: Node) -> Iterator[_Kept]:
        """A call of a method that changes its object or its first argument (`Object.assign`)."""
        function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        given = arguments.named_children if arguments is not None else []
        if function is not None and function.type == "identifier":
            where, value = self._outlives(source_text(function), call)
            if where and value is not None and value.type == "call_expression" and self._may_keep(value):
                yield f"content of a {where}", source_text(function)
        if function is None or function.type != "member_expression":
            return
        owner, method = function.child_by_field_name("object"), source_text(function.child_by_field_name("property"))
        takes_first = method in ("call", "apply") or (method in _MAKING and source_text(owner) in ("Object", "Reflect"))
        if takes_first and given and given[0].type in ("identifier", *_MEMBERS, "this"):
            yield from self._changed(given[0], call)
        elif (_CHANGING.fullmatch(method) and source_text(owner) not in _BUILTINS) or self._has_own_methods(
            owner, call
        ):
            yield from self._changed(owner, call)
        elif method in ("test", "exec") and owner is not None and owner.type == "identifier":
            where, value = self._outlives(source_text(owner), call)
            if where and value is not None and re.search(r"/\w*[gy]\w*\Z", source_text(value)):
                yield "pattern", source_text(owner)

    def _has_own_methods(self, owner: Node | None, node: Node) -> bool:
        """Whether an object, or one that contains it, has an own class: any of its methods may keep something."""
        while owner is not None and owner.type in (*_MEMBERS, *_AROUND):
            owner = owner.child_by_field_name("object") or owner.named_children[0]
        if owner is None or owner.type != "identifier":
            return False
        where, value = self._outlives(source_text(owner), node)
        return bool(where) and value is not None and value.type in _CONTAINERS and self._may_keep(value)

    def _may_keep(self, value: Node) -> bool:
        """Whether an object is created by code that is not of the language."""
        made = [one for one in walk(value) if one.type in ("new_expression", "call_expression")]
        names = [
            source_text(one.child_by_field_name("constructor") or one.child_by_field_name("function")) for one in made
        ]
        return any(
            not (_BUILT_IN.fullmatch(name) or name.partition(".")[0] in (*_BUILTINS, "require", "Symbol"))
            for name in names
        )

    def _iterated(self, iterated: Node, node: Node) -> Iterator[_Kept]:
        """An iteration of an object that remembers its position."""
        where, value = self._outlives(source_text(iterated), node) if iterated.type == "identifier" else ("", None)
        if where and value is not None and value.type == "call_expression" and self._may_keep(value):
            yield f"content of a {where}", source_text(iterated)

    def _named(self, node: Node) -> Iterator[_Kept]:
        """A use of a name that passes the object on, or assigns it to another name: later changes are not known."""
        above = node.parent
        if above is None:
            return
        where, value = self._outlives(source_text(node), node)
        if not where or value is None:
            return
        is_value = above.type == "variable_declarator" and above.child_by_field_name("value") == node
        is_value |= above.type == "assignment_expression" and above.child_by_field_name("right") == node
        is_value |= (
            above.type in ("assignment_pattern", "object_assignment_pattern") and above.named_children[-1] == node
        )
        is_value |= above.type == "required_parameter" and above.child_by_field_name("value") == node
        is_container = value.type in _CONTAINERS and not source_text(value).startswith("require(")
        if is_container:
            is_value |= above.type in ("return_statement", "array", "shorthand_property_identifier")
            is_value |= above.type == "object" or (above.type == "pair" and above.child_by_field_name("value") == node)
            is_value |= above.type == "arrow_function" and above.child_by_field_name("body") == node
            is_value |= above.type == "arguments" and not self._is_read_by(above.parent)
        if is_value and (is_container or value.type in _SCOPES or value.type in _DECLARED):
            yield f"content of a {where}", source_text(node)

    def _is_read_by(self, call: Node | None) -> bool:
        """Whether a call only reads its arguments."""
        function = call.child_by_field_name("function") or call.child_by_field_name("constructor") if call else None
        name = source_text(function).rpartition(".")[2]
        return bool(_READING.fullmatch(name))


def _is_called_at_once(function: Node) -> bool:
    """Whether a function is only used in the call in which it is created: `list.forEach(() => …)`."""
    arguments = function.parent
    if arguments is None or arguments.type != "arguments" or arguments.parent is None:
        return False
    return bool(_AT_ONCE.fullmatch(source_text(arguments.parent.child_by_field_name("function")).rpartition(".")[2]))


def bound_names(pattern: Node) -> Iterator[str]:
    """The names that a pattern binds: parameters, or destructured names; not the names in defaults and types."""
    kind = pattern.type
    if kind in ("identifier", "shorthand_property_identifier_pattern", "type_identifier"):
        yield source_text(pattern)
    elif kind in ("assignment_pattern", "object_assignment_pattern"):
        yield from bound_names(pattern.named_children[0])
    elif kind in ("required_parameter", "optional_parameter"):
        inner = pattern.child_by_field_name("pattern")
        yield from bound_names(inner) if inner is not None else ()
    elif kind == "pair_pattern":
        value = pattern.child_by_field_name("value")
        yield from bound_names(value) if value is not None else ()
    elif kind in ("formal_parameters", "object_pattern", "array_pattern", "rest_pattern"):
        for child in pattern.named_children:
            yield from bound_names(child)
