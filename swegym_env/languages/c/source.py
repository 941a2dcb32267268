"""C and C++ as tokens: the functions of a file, the calls in them, and literal values.

Test files contain many macros of their framework (`TEST(Parser, Empty) {`), which the grammar of the language does not
contain. So files are read as tokens and brackets. Code that cannot be read in this way is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "ESCAPE",
    "Call",
    "Function",
    "Token",
    "added",
    "calls",
    "closing",
    "functions",
    "is_named",
    "is_transparent",
    "literal",
    "split",
    "target_functions",
    "tokens",
]

_TOKEN = re.compile(
    r"""(?P<space>\s+|//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
    |(?P<directive>\#(?:[^\n\\/]|\\\n|\\.|/(?![/*])|/\*.*?\*/)*)
    |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    |(?P<text>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
    |(?P<letter>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<name>[A-Za-z_$]\w*)
    |(?P<sign>->|\+\+|--|<<=|>>=|<=>|&&|\|\||::|[-+*/%&|^<>=!]=|<<|>>|\.\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uUlLzZ]*")
ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]+)|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_KEYWORDS = frozenset(
    {"if", "for", "while", "switch", "return", "sizeof", "catch", "do", "else", "alignof", "decltype"}
)
# Macros that begin a test: the arguments name it.
_TEST_MACRO = re.compile(
    r"(?:\w+_)?(?:TEST|TEST_[FP]|TYPED_TEST|TEST_CASE(?:_FIXTURE)?|SUBCASE|START_TEST|UTEST|CTEST2?|Test)\Z"
)


@dataclass(frozen=True)
class Token:
    """Attributes: kind: "name", "number", "text", "raw", "letter", "directive" or "sign"; start: in the source."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.start + len(self.text)


@dataclass(frozen=True)
class Function:
    """A function with a body, or a test that a macro begins.

    Attributes:
        name: of the function; for a test by a macro, the complete name in the macro ("Suite.Test").
        body: the tokens between its braces.
        begin, end: offsets of its head and of the end of its body in the source.
    """

    name: str
    body: tuple[Token, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Call:
    """A statement that is one call.

    Attributes:
        name: of the function or macro.
        arguments: the tokens of each.
        start, end: offsets of the call without its semicolon.
    """

    name: str
    arguments: tuple[tuple[Token, ...], ...]
    start: int
    end: int


@lru_cache(maxsize=64)
def tokens(source: str) -> tuple[Token, ...]:
    """The tokens of a file, without white space and comments."""
    found = []
    for match in _TOKEN.finditer(source):
        kind = match.lastgroup if match.lastgroup != "mark" else "raw"
        if kind is not None and kind != "space":
            found.append(Token(kind, match[0], match.start()))
    return tuple(found)


def closing(stream: Sequence[Token], at: int) -> int:
    """The index of the bracket that closes the one at `at`; -1 if there is none."""
    depth = 0
    for index in range(at, len(stream)):
        if stream[index].kind == "sign":
            if stream[index].text in _CLOSING:
                depth += 1
            elif stream[index].text in _CLOSING.values():
                depth -= 1
                if not depth:
                    return index
    return -1


@lru_cache(maxsize=64)
def functions(source: str) -> tuple[Function, ...]:
    """The functions of a file, in order; those of namespaces and of `extern "C"` too."""
    stream = [token for token in tokens(source) if token.kind != "directive"]
    found: list[Function] = []
    at = 0
    while at < len(stream):
        token = stream[at]
        if token.text == "(" and at and stream[at - 1].kind == "name" and stream[at - 1].text not in _KEYWORDS:
            close = closing(stream, at)
            if close < 0:
                break
            brace = close + 1
            while brace < len(stream) and (stream[brace].text in ("const", "noexcept", "override", "final")):
                brace += 1
            if brace < len(stream) and stream[brace].text == "{":
                end = closing(stream, brace)
                if end < 0:
                    break
                name, inner = stream[at - 1].text, stream[at + 1 : close]
                if _TEST_MACRO.match(name):
                    parts = [_plain(part) for part in split(inner, ",")]
                    name = ".".join(part for part in parts if part and part[0] != "[")
                found.append(Function(name, tuple(stream[brace + 1 : end]), stream[at - 1].start, stream[end].end))
                at = end
            else:
                at = close
        elif token.text in ("{", "[") and not is_transparent(stream, at):
            at = max(at, closing(stream, at))
        at += 1
    return tuple(found)


def _plain(part: Sequence[Token]) -> str:
    value = literal(part)
    return value if isinstance(value, str) else "".join(token.text for token in part)


def is_transparent(stream: Sequence[Token], brace: int) -> bool:
    """Whether the brace opens a namespace or `extern "C"`, in which functions are defined."""
    before = [token.text for token in stream[max(0, brace - 6) : brace]]
    return "namespace" in before or before[-2:] == ["extern", '"C"'] or before[-2:] == ["extern", '"C++"']


def split(stream: Sequence[Token], separator: str) -> list[tuple[Token, ...]]:
    """The parts between separators outside of brackets; empty if there are no tokens."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in stream:
        if token.kind == "sign" and token.text in _CLOSING:
            depth += 1
        elif token.kind == "sign" and token.text in _CLOSING.values():
            depth -= 1
        if token.kind == "sign" and token.text == separator and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts] if stream else []


def calls(body: Sequence[Token]) -> Iterator[Call]:
    """The statements of a body, at any depth, that consist of one call of a plain name."""
    for at in range(len(body) - 2):
        name = body[at]
        if name.kind != "name" or name.text in _KEYWORDS or body[at + 1].text != "(":
            continue
        if at and body[at - 1].text not in ("{", "}", ";", ")", ":", "else", "do"):
            continue
        close = closing(body, at + 1)
        if close < 0 or close + 1 >= len(body) or body[close + 1].text != ";":
            continue
        yield Call(name.text, tuple(split(body[at + 2 : close], ",")), name.start, body[close].end)


def literal(stream: Sequence[Token]) -> int | float | str | None:
    """The value of a literal, perhaps with a sign or in brackets; None for anything else."""
    stream = tuple(stream)
    while len(stream) > 2 and stream[0].text == "(" and closing(stream, 0) == len(stream) - 1:
        stream = stream[1:-1]
    if not stream:
        return None
    if all(token.kind in ("text", "raw") for token in stream):
        parts = [_text(token) for token in stream]
        return None if None in parts else "".join(part or "" for part in parts)
    sign = 1
    if len(stream) == 2 and stream[0].text in ("-", "+"):
        sign, stream = (-1 if stream[0].text == "-" else 1), stream[1:]
    if len(stream) != 1:
        return None
    token = stream[0]
    if token.kind == "letter":
        value = _opened(token.text[token.text.index("'") + 1 : -1])
        return sign * ord(value) if value is not None and len(value) == 1 and ord(value) < 128 else None
    if token.text in ("true", "false"):
        return int(token.text == "true")
    if token.kind != "number":
        return None
    plain = token.text.replace("'", "")
    if match := _INTEGER.fullmatch(plain):
        digits = match[1]
        octal = len(digits) > 1 and digits[0] == "0" and digits.isdigit()
        try:
            return sign * int(digits, 8 if octal else 0)
        except ValueError:
            return None
    try:
        return sign * float(plain.rstrip("fFlL"))
    except ValueError:
        return None


def _text(token: Token) -> str | None:
    if token.kind == "raw":
        return token.text[token.text.index("(") + 1 : token.text.rindex(")")]
    return _opened(token.text[token.text.index('"') + 1 : -1]) if token.text[0] not in "UL" else None


def _opened(inner: str) -> str | None:
    """Text without escapes; None if an escape is a byte that is not a complete character."""
    if any(int(match[1] or "0", 8) > 127 or int(match[2] or "0", 16) > 127 for match in ESCAPE.finditer(inner)):
        return None

    def char(match: re.Match[str]) -> str:
        octal, hexadecimal, short, long, other = match.groups()
        if octal:
            return chr(int(octal, 8))
        if number := hexadecimal or short or long:
            return chr(int(number, 16))
        return "" if other == "\n" else _ESCAPED.get(other, other)

    return ESCAPE.sub(char, inner)


def target_functions(source: str, names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Name of a function → those of `names` whose tests are it or call it, also through functions of the file."""
    known = functions(source)
    own = {name: {function.name for function in known if is_named(function.name, name)} for name in names}
    inner = {
        function.name: {token.text for token in function.body if token.kind == "name"} & {one.name for one in known}
        for function in known
    }
    found: dict[str, set[str]] = {}
    for name, begun in own.items():
        reached: set[str] = set()
        left = set(begun)
        while left:
            here = left.pop()
            reached.add(here)
            left |= inner[here] - reached
        for function_name in reached:
            found.setdefault(function_name, set()).add(name)
    return {name: frozenset(tests) for name, tests in found.items()}


def is_named(function: str, name: str) -> bool:
    """Whether a log names the test of `function` by `name`: exactly, or after the name of a file or suite."""
    return function == name or (
        name.endswith(function) and not (name[-len(function) - 1]).isalnum() and name[-len(function) - 1] != "_"
    )


def added(source: str, lines: frozenset[int]) -> frozenset[str]:
    """The names of the functions that contain one of these lines."""
    return frozenset(
        function.name
        for function in functions(source)
        if lines & set(range(source.count("\n", 0, function.begin) + 1, source.count("\n", 0, function.end) + 2))
    )
