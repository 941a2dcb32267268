"""Removes literals of a rewritten test file that nothing uses any more: code that reads memory could find them.

If a test only sends what the code under test computes, the literal that it was compared with may still be an argument
of a function of the test file, an entry of a table, or the value of a constant. It is removed if nothing reads it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from swegym_env.languages.c.source import Token, closing, functions, literal, split, tokens

__all__ = ["without_unused"]

_DEFINED = re.compile(
    r"#[ \t]*define[ \t]+(?P<name>\w+)[ \t]+(?P<value>\"(?:[^\"\\\n]|\\.)*\"|-?\d\w*)[ \t]*(?:/[/*].*)?"
)


def without_unused(source: str) -> str:
    """The source with literals that nothing reads replaced by empty texts and zeros; line numbers stay the same."""
    stream = [token for token in tokens(source) if token.kind != "directive"]
    macros = [token for token in tokens(source) if token.kind == "directive"]
    names = Counter(token.text for token in _read(stream))
    names.update(word for macro in macros for word in re.findall(r"[A-Za-z_]\w*", macro.text))
    edits: list[tuple[int, int, str]] = []
    for part in (*_given_unused(source, stream), *_in_unused_fields(stream, names), *_with_unused_names(stream, names)):
        value = literal(part)
        if value is not None:
            edits.append((part[0].start, part[-1].end, '""' if isinstance(value, str) else "0"))
    for macro in macros:
        match = _DEFINED.match(macro.text)
        if match and names[match["name"]] == 1:
            begin = macro.start + match.start("value")
            empty = '""' if match["value"][0] == '"' else "0"
            edits.append((begin, macro.start + match.end("value"), empty))
    for begin, end, text in sorted(set(edits), reverse=True):
        source = source[:begin] + text + source[end:]
    return source


def _read(stream: Sequence[Token]) -> Iterator[Token]:
    """The names that are used other than for printing or in `(void)name`."""
    printed = -1
    for at, token in enumerate(stream):
        if (
            token.kind == "name"
            and _PRINTING.fullmatch(token.text)
            and [t.text for t in stream[at + 1 : at + 2]] == ["("]
        ):
            printed = max(printed, closing(stream, at + 1))
        is_void = [one.text for one in stream[max(0, at - 3) : at]] == ["(", "void", ")"]
        if token.kind == "name" and at > printed and not is_void:
            yield token


_PRINTING = re.compile(r"v?d?f?printf|f?puts|perror|syslog|warnx?")


def _given_unused(source: str, stream: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """The arguments of functions of the file for parameters that they do not use."""
    unused: dict[str, list[int]] = {}
    for function in functions(source):
        at = next((at for at, token in enumerate(stream) if token.start == function.begin), -1)
        close = closing(stream, at + 1) if at >= 0 else -1
        used = {token.text for token in _read(function.body)}
        for number, parameter in enumerate(split(stream[at + 2 : close], ",") if close > 0 else []):
            name = next((token.text for token in reversed(parameter) if token.kind == "name"), "")
            if len(parameter) > 1 and name not in used:
                unused.setdefault(function.name, []).append(number)
    for at, token in enumerate(stream[:-1]):
        if token.text in unused and stream[at + 1].text == "(":
            close = closing(stream, at + 1)
            arguments = split(stream[at + 2 : close], ",") if close > 0 else []
            yield from (arguments[number] for number in unused[token.text] if number < len(arguments))


def _in_unused_fields(stream: Sequence[Token], names: Counter[str]) -> Iterator[tuple[Token, ...]]:
    """The values of tables in fields that nothing reads."""
    tables: dict[str, list[tuple[int, str]]] = {}  # name of a type or a variable → its unused fields
    for at, token in enumerate(stream):
        if token.text != "struct":
            continue
        brace = at + 1 if stream[at + 1 : at + 2] and stream[at + 1].text == "{" else at + 2
        if brace >= len(stream) or stream[brace].text != "{":
            continue
        close = closing(stream, brace)
        if close < 0:
            return
        fields = [
            next((one.text for one in reversed(part) if one.kind == "name"), "")
            for line in split(stream[brace + 1 : close], ";")
            for part in split(line, ",")
        ]
        designated = Counter(
            stream[place + 1].text for place in range(len(stream) - 2) if _is_designator(stream, place)
        )
        unused = [(number, name) for number, name in enumerate(fields) if name and names[name] - designated[name] == 1]
        for known in (stream[brace - 1], *stream[close + 1 : close + 2]):
            if known.kind == "name" and known.text != "struct" and unused:
                tables[known.text] = unused
    for at, token in enumerate(stream):
        end = at
        while end < len(stream) and stream[end].text not in ("=", ";", "{", "}", ",", "("):
            end += 1
        if (
            token.text not in tables
            or stream[end : end + 2] == []
            or [t.text for t in stream[end : end + 2]] != ["=", "{"]
        ):
            continue
        close = closing(stream, end + 1)
        rows = split(stream[end + 2 : close], ",") if close > 0 else []
        is_list = any(row[:1] and row[0].text == "{" for row in rows)
        for row in [split(row[1:-1], ",") for row in rows if row and row[-1].text == "}"] if is_list else [rows]:
            for number, name in tables[token.text]:
                yield from (cell[3:] for cell in row if len(cell) > 3 and (cell[0].text, cell[1].text) == (".", name))
                if number < len(row) and row[number] and row[number][0].text != ".":
                    yield row[number]


def _is_designator(stream: Sequence[Token], at: int) -> bool:
    """Whether `.name =` begins here."""
    return stream[at].text == "." and stream[at + 2].text == "=" and (not at or stream[at - 1].text in ("{", ","))


def _with_unused_names(stream: Sequence[Token], names: Counter[str]) -> Iterator[tuple[Token, ...]]:
    """The values of variables that nothing reads."""
    for at, token in enumerate(stream):
        if token.kind != "name" or names[token.text] != 1:
            continue
        end = at + 1
        while end + 1 < len(stream) and stream[end].text == "[":
            end = closing(stream, end) + 1
            if end <= 0:
                return
        if [one.text for one in stream[end : end + 2]] == ["=", "{"]:
            yield from split(stream[end + 2 : closing(stream, end + 1)], ",")
        elif end < len(stream) and stream[end].text == "=":
            last = end + 1
            while last < len(stream) and stream[last].text not in (";", ",", "}", "{"):
                last += 1
            yield tuple(stream[end + 1 : last])
