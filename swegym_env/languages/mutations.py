"""Ways to inject one bug into a source of C, C++, JavaScript or TypeScript, found on tree-sitter's tree.

The kinds are those of mistakes that people make, with the names that `making.operators` has for Python. What the
grammars share (binary expressions, `if`, calls) is written once; where their nodes differ in name, both are listed.
Whether an edit changes the behaviour is decided by the tests, not here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from swegym_env.languages import Bug, Splice
from swegym_env.languages.grammars import parser

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["KINDS", "injected_bugs"]

_Edits = Iterator[tuple[Splice, ...]]
_Operator = Callable[["Node", bytes], _Edits]

_ARITHMETIC = {
    "+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "**": "*", "<<": ">>", ">>": "<<", ">>>": "<<",
    "&": "|", "|": "&", "^": "|", "+=": "-=", "-=": "+=", "*=": "+=", "/=": "*=", "%=": "/=", "<<=": ">>=",
    ">>=": "<<=", "&=": "|=", "|=": "&=", "^=": "|=", "++": "--", "--": "++",
}  # fmt: skip
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_DIRECTION = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATION = {"==": "!=", "!=": "==", "===": "!==", "!==": "==="}
_CONFUSED = (
    *(("min", "max"), ("floor", "ceil"), ("some", "every"), ("push", "unshift"), ("pop", "shift"), ("keys", "values")),
    *(("indexOf", "lastIndexOf"), ("startsWith", "endsWith"), ("toLowerCase", "toUpperCase"), ("trimStart", "trimEnd")),
    *(
        ("isdigit", "isalpha"),
        ("tolower", "toupper"),
        ("strchr", "strrchr"),
        ("islower", "isupper"),
        ("memcpy", "memcmp"),
    ),
)
_CONFUSIONS = {one: other for pair in _CONFUSED for one, other in (pair, pair[::-1])}
_JUMPS = frozenset({"return_statement", "break_statement", "continue_statement", "throw_statement", "goto_statement"})
_CALLS = frozenset({"call_expression", "new_expression"})
_LOOPS = frozenset({"for_statement", "for_in_statement", "for_range_loop", "while_statement", "do_statement"})
_NUMBERS = frozenset({"number", "number_literal"})
_FUNCTIONS = frozenset(
    {
        *("function_definition", "function_declaration", "generator_function_declaration", "method_definition"),
        *("function_expression", "arrow_function"),
    }
)
# Nothing below these runs: types, what the preprocessor decides, imports.
_NOT_CODE = frozenset(
    {
        *("preproc_def", "preproc_function_def", "preproc_include", "preproc_call"),
        *("type_annotation", "interface_declaration", "type_alias_declaration", "import_statement", "type_arguments"),
        *("field_declaration", "enum_specifier", "type_parameters", "parameter_list", "formal_parameters"),
    }
)


def _wrong_operator(node: Node, source: bytes) -> _Edits:
    """`a + b` → `a - b`; `a += b` → `a -= b`; `a++` → `a--`."""
    kinds = ("binary_expression", "assignment_expression", "augmented_assignment_expression", "update_expression")
    if node.type in kinds and not _has_text(node):
        yield from _operator_of(node, source, _ARITHMETIC)


def _wrong_boundary(node: Node, source: bytes) -> _Edits:
    """`a < b` → `a <= b`."""
    if node.type == "binary_expression":
        yield from _operator_of(node, source, _BOUNDARY)


def _wrong_direction(node: Node, source: bytes) -> _Edits:
    """`a < b` → `a > b`."""
    if node.type == "binary_expression":
        yield from _operator_of(node, source, _DIRECTION)


def _inverted_condition(node: Node, source: bytes) -> _Edits:
    """`a == b` → `a != b`; `!a` → `a`; `if (a)` → `if (!(a))`."""
    if node.type == "binary_expression":
        yield from _operator_of(node, source, _NEGATION)
    elif node.type == "unary_expression" and node.children[0].type == "!":
        yield (Splice(node.children[0].start_byte, node.children[0].end_byte, ""),)
    elif node.type == "if_statement":
        condition = node.child_by_field_name("condition")
        if condition is not None and condition.named_child_count == 1:
            inner = condition.named_children[0]
            if inner.type in (
                "identifier",
                "call_expression",
                "member_expression",
                "field_expression",
                "pointer_expression",
            ):
                yield (Splice(inner.start_byte, inner.start_byte, "!"),)


def _wrong_connective(node: Node, source: bytes) -> _Edits:
    """`a && b` → `a || b`, in parentheses, since the precedence differs."""
    if node.type == "binary_expression":
        for (edit,) in _operator_of(node, source, {"&&": "||", "||": "&&"}):
            yield (Splice(node.start_byte, node.start_byte, "("), edit, Splice(node.end_byte, node.end_byte, ")"))


def _dropped_condition(node: Node, source: bytes) -> _Edits:
    """`a && b` → `a`, or `b`."""
    sides = _sides(node, ("&&", "||"))
    for side in sides:
        yield (Splice(node.start_byte, node.end_byte, f"({_text(side, source)})"),)


def _dropped_term(node: Node, source: bytes) -> _Edits:
    """`a + b` → `a`."""
    sides = _sides(node, ("+", "-", "*"))
    if sides and not _has_text(node):
        yield (Splice(node.start_byte, node.end_byte, f"({_text(sides[0], source)})"),)


def _off_by_one(node: Node, source: bytes) -> _Edits:
    """`x[1]` → `x[2]`; `n - 1` → `n`; `== 2` → `== 3`."""
    sides = _sides(node, ("+", "-"))
    if sides and _text(sides[1], source) == "1":
        yield (Splice(node.start_byte, node.end_byte, f"({_text(sides[0], source)})"),)
    above = node.parent
    places = (
        *("binary_expression", "subscript_expression", "subscript_argument_list", "assignment_expression"),
        *("return_statement", "variable_declarator", "init_declarator"),
    )
    if node.type in _NUMBERS and above is not None and above.type in places and not _sides(above, ("+", "-")):
        text = _text(node, source)
        if text.isdigit() and (text == "0" or text[0] != "0"):
            yield (Splice(node.start_byte, node.end_byte, str(int(text) + 1)),)


def _swapped_arguments(node: Node, source: bytes) -> _Edits:
    """`f(a, b)` → `f(b, a)`."""
    arguments = node.child_by_field_name("arguments") if node.type in _CALLS else None
    if arguments is None:
        return
    given = [child for child in arguments.named_children if child.type not in ("comment", "spread_element")]
    for one, other in itertools.pairwise(given):
        texts = _text(one, source), _text(other, source)
        if texts[0] != texts[1]:
            yield (
                Splice(one.start_byte, one.end_byte, texts[1]),
                Splice(other.start_byte, other.end_byte, texts[0]),
            )


def _dropped_guard(node: Node, source: bytes) -> _Edits:
    """`if (…) return …;` (or throw, break, continue, goto) is removed."""
    if node.type != "if_statement" or node.child_by_field_name("alternative") is not None:
        return
    body = node.child_by_field_name("consequence")
    if body is not None and body.type in ("statement_block", "compound_statement"):
        inside = [child for child in body.named_children if child.type != "comment"]
        body = inside[0] if len(inside) == 1 else None
    if body is not None and body.type in _JUMPS:
        yield from _removed(node, source)


def _lost_update(node: Node, source: bytes) -> _Edits:
    """`x.y = …;`, `n += 1;` or `f(x);` is removed."""
    changing = ("assignment_expression", "augmented_assignment_expression", "update_expression", "call_expression")
    if node.type == "expression_statement" and node.named_child_count == 1 and node.named_children[0].type in changing:
        yield from _removed(node, source)


def _wrong_constant(node: Node, source: bytes) -> _Edits:
    """`true` → `false`."""
    other = {"true": "false", "false": "true"}.get(node.type)
    if other is not None:
        yield (Splice(node.start_byte, node.end_byte, other),)


def _removed_return(node: Node, source: bytes) -> _Edits:
    """`return f(x);` → `f(x);`, where a function without a result is no error."""
    if (
        node.type == "return_statement"
        and node.named_child_count == 1
        and node.named_children[0].type == "call_expression"
    ):
        yield (Splice(node.start_byte, node.named_children[0].start_byte, ""),)


def _confused_name(node: Node, source: bytes) -> _Edits:
    """`min` → `max`, `indexOf` → `lastIndexOf`, `isdigit` → `isalpha` and the like."""
    function = node.child_by_field_name("function") if node.type == "call_expression" else None
    if function is not None and function.type == "member_expression":
        function = function.child_by_field_name("property")
    if function is not None and _text(function, source) in _CONFUSIONS:
        yield (Splice(function.start_byte, function.end_byte, _CONFUSIONS[_text(function, source)]),)


def _swapped_branches(node: Node, source: bytes) -> _Edits:
    """`c ? a : b` → `c ? b : a`."""
    if node.type in ("conditional_expression", "ternary_expression"):
        one, other = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
        if one is not None and other is not None:
            yield (
                Splice(one.start_byte, one.end_byte, f"({_text(other, source)})"),
                Splice(other.start_byte, other.end_byte, f"({_text(one, source)})"),
            )


def _dropped_sign(node: Node, source: bytes) -> _Edits:
    """`-x` → `x`."""
    if node.type == "unary_expression" and node.children[0].type in ("-", "~"):
        yield (Splice(node.children[0].start_byte, node.children[0].end_byte, ""),)


def _wrong_jump(node: Node, source: bytes) -> _Edits:
    """`continue` → `break` and vice versa, in loops."""
    if node.type in ("break_statement", "continue_statement") and node.named_child_count == 0:
        above = node.parent
        while above is not None and above.type not in _LOOPS | _FUNCTIONS | {"switch_statement"}:
            above = above.parent
        if above is not None and above.type in _LOOPS:
            word = "break" if node.type == "continue_statement" else "continue"
            yield (Splice(node.children[0].start_byte, node.children[0].end_byte, word),)


_OPERATORS: Mapping[str, _Operator] = {
    "wrong-operator": _wrong_operator,
    "wrong-boundary": _wrong_boundary,
    "wrong-direction": _wrong_direction,
    "inverted-condition": _inverted_condition,
    "wrong-connective": _wrong_connective,
    "dropped-condition": _dropped_condition,
    "dropped-term": _dropped_term,
    "off-by-one": _off_by_one,
    "swapped-arguments": _swapped_arguments,
    "dropped-guard": _dropped_guard,
    "lost-update": _lost_update,
    "wrong-constant": _wrong_constant,
    "removed-return": _removed_return,
    "confused-name": _confused_name,
    "swapped-branches": _swapped_branches,
    "dropped-sign": _dropped_sign,
    "wrong-jump": _wrong_jump,
}
KINDS = tuple(_OPERATORS)
"""The kinds of mistakes."""


def injected_bugs(grammar: str, source: bytes) -> Iterator[Bug]:
    """All ways to inject one bug into a source, in its order.

    Args:
        grammar: of tree-sitter, "package:function".
        source: in UTF-8.
    Raises:
        ConfigurationError: tree-sitter or the grammar is not installed.
    """
    left: list[tuple[Node, str]] = [(parser(grammar).parse(source).root_node, "")]
    while left:
        node, function = left.pop()
        if node.type in _NOT_CODE:
            continue
        if node.type in _FUNCTIONS:
            function = _name_of(node, source) or function
        if not node.has_error:  # what a macro makes of it is not known
            for kind, operator in _OPERATORS.items():
                for splices in operator(node, source):
                    yield Bug(kind, splices, function)
        # Include guards hold whole files.
        condition = node.child_by_field_name("condition") if node.type.startswith("preproc_") else None
        left.extend((child, function) for child in reversed(node.children) if child != condition)


def _name_of(function: Node, source: bytes) -> str:
    name = function.child_by_field_name("name")
    if name is None and function.parent is not None:  # an expression that is given a name
        fields = {"variable_declarator": "name", "pair": "key", "assignment_expression": "left"}
        name = function.parent.child_by_field_name(fields.get(function.parent.type, "name"))
    declarator = function.child_by_field_name("declarator")
    while name is None and declarator is not None:
        inner = declarator.child_by_field_name("declarator")
        if inner is None:
            name = declarator
        declarator = inner
    return _text(name, source) if name is not None else ""


def _text(node: Node, source: bytes) -> str:
    return source[node.start_byte : node.end_byte].decode("utf-8", "replace")


def _operator_of(node: Node, source: bytes, table: Mapping[str, str]) -> _Edits:
    operator = node.child_by_field_name("operator")
    if operator is not None and operator.type in table:
        yield (Splice(operator.start_byte, operator.end_byte, table[operator.type]),)


def _sides(node: Node, operators: tuple[str, ...]) -> tuple[Node, ...]:
    """Both sides of a binary expression with one of these operators; else none."""
    operator = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    if operator is None or operator.type not in operators:
        return ()
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    return (left, right) if left is not None and right is not None else ()


def _has_text(node: Node) -> bool:
    return any(child.type in ("string", "template_string", "string_literal") for child in node.children)


def _removed(node: Node, source: bytes) -> _Edits:
    """The edit that removes a statement with its lines; `;` replaces one that is another's body, or shares a line."""
    above = node.parent
    begin = source.rfind(b"\n", 0, node.start_byte) + 1
    end = source.find(b"\n", node.end_byte) + 1 or len(source)
    alone = not source[begin : node.start_byte].strip() and not source[node.end_byte : end].strip()
    blocks = ("statement_block", "compound_statement", "program", "translation_unit")
    if alone and above is not None and above.type in blocks:
        yield (Splice(begin, end, ""),)
    else:
        yield (Splice(node.start_byte, node.end_byte, ";"),)
