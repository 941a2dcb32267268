"""Removes remains of expected values from rewritten tests of C, because code that reads memory could find them.

If a test only sends what the code under test computes, the expected side may have been in a table or a variable. The
test may still read its size or length (`sizeof wanted`), or another column; then only its letters and digits are
replaced. Arguments of the code under test are kept.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from swegym_env.languages.c.source import ESCAPE, Function, Token, closing, functions, literal, split, tokens
from swegym_env.languages.changed import spliced

__all__ = ["without_expected"]

_FILLING = frozenset(("strcpy", "strncpy", "strcat", "stpcpy", "memcpy", "memmove", "sprintf", "snprintf", "strlcpy"))
_MEASURING = frozenset(("sizeof", "strlen", "_Countof", "ARRAY_SIZE", "countof"))
_PRINTING = re.compile(r"v?d?f?printf|f?puts|perror|syslog|warnx?")
_DEPTH = 8
_Part = tuple[Token, ...]


def without_expected(source: str, removed: Mapping[str, Sequence[_Part]]) -> tuple[str, frozenset[str]]:
    """The source with other letters and digits in data that only the removed sides read; line numbers stay the same.

    Args:
        removed: name of a function → the sides that are no longer in it.

    Returns:
        The source, and the functions in which other code reads their expected values.
    """
    known = functions(source)
    spans = [(one.begin, one.end) for one in known]
    stream = [token for token in tokens(source) if token.kind != "directive"]
    outside = [token for token in stream if not any(begin <= token.start < end for begin, end in spans)]
    found = _Removal(known, outside, stream)
    for function in known:
        found.without(function, removed.get(function.name, ()))
    edits = {(token.start, token.end): _other(token) for token in found.tokens}
    return spliced(source, [(begin, end, text) for (begin, end), text in edits.items()]), frozenset(found.reading)


@dataclass
class _Removal:
    """The replacements in a file.

    Attributes:
        known, outside, stream: the functions of the file, the tokens outside of them, and all.
        tokens: tokens to replace; filled.
        ignored: offsets of arguments that the called functions do not read; filled.
        reading: the functions in which other code reads their expected values; filled.
    """

    known: Sequence[Function]
    outside: Sequence[Token]
    stream: Sequence[Token]
    tokens: list[Token] = field(default_factory=list)
    ignored: set[int] = field(default_factory=set)
    reading: set[str] = field(default_factory=set)

    def without(self, function: Function, sides: Sequence[_Part], depth: int = 0) -> None:
        """Replace the data that only these sides of a function read."""
        for use in _uses(sides):
            place = _parameters(function, self.stream).get(use.name)
            here = _Place.of(use.name, function, self.known, self.outside)
            if place is not None:
                reads = _Place(function.body, [function.body], -1).held(use, self.stream, self.ignored) is None
                if reads or depth > _DEPTH:
                    self.reading.add(function.name)
                else:
                    self._not_given(function, place, depth)
                continue
            held = here.held(use, self.stream, self.ignored) if here is not None else []
            if held is None:
                self.reading.add(function.name)
            self.tokens += (token for part in held or () for token in part)
        for name in {one.text for side in sides for one, after in pairwise(side) if after.text == "("}:
            self._not_called(function, name)

    def _not_given(self, function: Function, place: int, depth: int) -> None:
        """Replace the arguments of a function for a parameter that it does not read."""
        for caller in self.known:
            for at, token in enumerate(caller.body[:-1]):
                if token.text != function.name or caller.body[at + 1].text != "(":
                    continue
                given = split(caller.body[at + 2 : closing(caller.body, at + 1)], ",")
                if place < len(given):
                    self.ignored |= {one.start for one in given[place]}
                    self.tokens += given[place]
                    self.without(caller, [given[place]], depth + 1)

    def _not_called(self, function: Function, name: str) -> None:
        """Replace the literals in a function of the file that is no longer called."""
        for other in self.known:
            if other.name != name or not any(literal((one,)) not in (None, 0) for one in other.body):
                continue
            if sum(token.text == name for token in self.stream) == 1:
                self.tokens += other.body
            else:
                self.reading.add(function.name)


def _parameters(function: Function, stream: Sequence[Token]) -> dict[str, int]:
    """Name of a parameter → its position."""
    at = next((at for at, token in enumerate(stream) if token.start == function.begin), -1)
    close = closing(stream, at + 1) if at >= 0 else -1
    parts = split(stream[at + 2 : close], ",") if close > 0 else []
    names = [[one.text for one in part if one.kind == "name"] for part in parts]
    return {each[-1]: place for place, each in enumerate(names) if len(each) > 1}


@dataclass(frozen=True)
class _Use:
    """A variable that a side reads: the whole, one of its columns, or a field."""

    name: str
    column: int | None = None
    field: str = ""


def _uses(sides: Sequence[_Part]) -> Iterator[_Use]:
    for side in sides:
        for at, token in enumerate(side):
            after = side[at + 1].text if at + 1 < len(side) else ""
            if token.kind == "name" and after != "(" and not (at and side[at - 1].text in (".", "->")):
                yield _use_at(side, at)


def _use_at(stream: Sequence[Token], at: int) -> _Use:
    """The part of a variable that is read at a place."""
    end, indexes = at + 1, 0
    column: int | None = None
    while end < len(stream) and stream[end].text == "[":
        close = closing(stream, end)
        value = literal(stream[end + 1 : close]) if close > 0 else None
        indexes += 1
        column = value if indexes == 2 and isinstance(value, int) else None
        end = close + 1 if close > 0 else len(stream)
    is_field = end + 1 < len(stream) and stream[end].text in (".", "->")
    return _Use(stream[at].text, column, stream[end + 1].text if is_field else "")


@dataclass(frozen=True)
class _Place:
    """The place where a variable is declared (-1: as a parameter), and the code that can read it."""

    declared: Sequence[Token]
    bodies: Sequence[Sequence[Token]]
    first: int

    @classmethod
    def of(cls, name: str, function: Function, known: Sequence[Function], outside: Sequence[Token]) -> _Place | None:
        for declared, bodies in (
            (function.body, [function.body]),
            (outside, [one.body for one in known if any(token.text == name for token in one.body)]),
        ):
            for at, token in enumerate(declared):
                before = declared[at - 1] if at else None
                if (
                    token.text == name
                    and before is not None
                    and (before.kind == "name" or before.text in ("*", "}", ","))
                ):
                    return cls(declared, bodies, at)
        return None

    def held(self, use: _Use, stream: Sequence[Token], ignored: Collection[int]) -> list[_Part] | None:
        """The values of a variable; None if other code reads some of them.

        Args:
            stream: the tokens of the file.
            ignored: offsets of arguments that the called functions do not read.
        """
        value = _value(self.declared, self.first) if self.first >= 0 else ()
        if use.column is not None or use.field:
            fields = _fields(self.declared, self.first, stream) if use.field else ()
            found = list(_cells(value, use, fields))
        else:
            found = [value]
        is_read = False
        for body in self.bodies:
            for at, token in enumerate(body):
                is_first = body is self.declared and at == self.first
                if token.text != use.name or is_first or token.start in ignored:
                    continue
                if at and body[at - 1].text in (".", "->"):
                    continue
                other, filled = _use_at(body, at), _filled(body, at)
                if filled is not None and (not use.field or use.field == other.field):
                    found.append(filled)
                elif not (_measures(body, at) or _is_other(use, other)):
                    is_read = True
        is_given = self.first < 0  # the callers know the value of a parameter
        has_value = is_given or any(literal((token,)) not in (None, 0) for part in found for token in part)
        return None if is_read and has_value else found


def _is_other(use: _Use, other: _Use) -> bool:
    """Whether another column or field is read."""
    if use.field:
        return bool(other.field) and other.field != use.field
    return use.column is not None and other.column is not None and other.column != use.column


def _measures(body: Sequence[Token], at: int) -> bool:
    """Whether only the size or the existence of a value is used there, or it is only printed."""
    if _asks_for_any(body, at):
        return True
    before = [token.text for token in body[max(0, at - 3) : at]]
    if _MEASURING & {*before[-2:]} or (before[-1:] in (["*"], ["("]) and _MEASURING & {*before}):
        return True
    if before == ["(", "void", ")"]:
        return True
    depth = 0
    for place in range(at - 1, 0, -1):
        depth += (body[place].text == ")") - (body[place].text == "(")
        if body[place].text in (";", "{", "}"):
            return False
        if depth < 0:
            return _PRINTING.fullmatch(body[place - 1].text) is not None
    return False


def _end_of_access(body: Sequence[Token], at: int) -> int:
    """The offset of the token after all indexes and fields of an access to a variable."""
    end = at + 1
    while end + 1 < len(body) and body[end].text in ("[", ".", "->"):
        end = closing(body, end) + 1 or len(body) if body[end].text == "[" else end + 2
    return end


def _asks_for_any(body: Sequence[Token], at: int) -> bool:
    """Whether a condition only tests that there is a value."""
    end = _end_of_access(body, at)
    before = [token.text for token in body[max(0, at - 2) : at]]
    begins = before[-1:] in ([";"], ["&&"], ["||"], ["!"]) or before in (["if", "("], ["while", "("])
    after = [token.text for token in body[end : end + 2]]
    is_compared = after[:1] in (["=="], ["!="]) and after[1:] in (["NULL"], ["nullptr"], ["0"])
    return begins and (after[:1] in ([";"], ["&&"], ["||"], [")"]) or is_compared)


def _filled(body: Sequence[Token], at: int) -> _Part | None:
    """The tokens that are stored into a variable there: `strcpy(wanted, "x")`, `wanted[0] = 'x'`."""
    if at > 1 and body[at - 1].text == "(" and body[at - 2].text in _FILLING:
        close = closing(body, at - 1)
        return tuple(body[at:close]) if close > 0 else None
    end = _end_of_access(body, at)
    if end < len(body) and body[end].text == "=":
        last = end
        while last < len(body) and body[last].text != ";":
            last += 1
        return tuple(body[end:last])
    return None


def _value(declared: Sequence[Token], at: int) -> _Part:
    """The tokens of the initial value of a variable."""
    end = at + 1
    while end < len(declared) and declared[end].text == "[":
        end = closing(declared, end) + 1 or len(declared)
    if end >= len(declared) or declared[end].text != "=":
        return ()
    last = end + 1
    while last < len(declared) and declared[last].text not in (";", ","):
        last = closing(declared, last) + 1 or len(declared) if declared[last].text in ("(", "[", "{") else last + 1
    return tuple(declared[end + 1 : last])


def _fields(declared: Sequence[Token], at: int, stream: Sequence[Token]) -> tuple[str, ...]:
    """The names of the fields of the declared type of a variable."""
    before = at - 1
    while before > 0 and declared[before].text in ("*", "const"):
        before -= 1
    close = before if declared[before].text == "}" else -1
    known: Sequence[Token] = declared
    if close < 0:
        name = declared[before].text
        known = stream
        tagged = next(
            (
                place
                for place in range(len(stream) - 2)
                if stream[place].text == "struct" and stream[place + 1].text == name and stream[place + 2].text == "{"
            ),
            -1,
        )
        if tagged >= 0:
            close = closing(stream, tagged + 2)
        else:
            ends = [place for place in range(1, len(stream)) if stream[place].text == name]
            close = next((place - 1 for place in ends if stream[place - 1].text == "}"), -1)
    if close < 0:
        return ()
    begin = next((place for place in range(close - 1, -1, -1) if closing(known, place) == close), -1)
    lines = split(known[begin + 1 : close], ";") if begin >= 0 else []
    return tuple(
        next((one.text for one in reversed(part) if one.kind == "name"), "")
        for line in lines
        if line
        for part in split(line, ",")
    )


def _cells(value: _Part, use: _Use, fields: Sequence[str]) -> Iterator[_Part]:
    """The tokens of a column or field in a table, or of a field in a single value."""
    if not value or value[0].text != "{":
        return
    rows = split(value[1:-1], ",")
    is_table = any(row and row[0].text == "{" for row in rows) and (use.column is not None or _all_braced(rows))
    for row in [split(row[1:-1], ",") for row in rows if row and row[0].text == "{"] if is_table else [rows]:
        place = use.column if use.column is not None else _place_of(use.field, fields)
        for number, cell in enumerate(row):
            is_named = len(cell) > 2 and cell[0].text == "."
            if (is_named and cell[1].text == use.field) or (not is_named and number == place):
                yield cell[3:] if is_named else cell


def _all_braced(rows: Sequence[_Part]) -> bool:
    return all(not row or row[0].text == "{" for row in rows)


def _place_of(field: str, fields: Sequence[str]) -> int:
    return fields.index(field) if field in fields else -1


def _other(token: Token) -> str:
    """Another literal of the same length; tokens that are not literals are unchanged."""
    if token.kind in ("text", "letter"):
        begin, end = token.text.index(token.text[-1]) + 1, len(token.text) - 1
        return token.text[:begin] + _letters(token.text[begin:end]) + token.text[end:]
    if token.kind != "number" or not literal((token,)):
        return token.text
    return "7" * len(token.text) if token.text.isdecimal() and len(token.text) < 9 else "7"


def _letters(text: str) -> str:
    parts, at = [], 0
    for match in ESCAPE.finditer(text):
        parts += [_plain(text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*parts, _plain(text[at:])])


def _plain(text: str) -> str:
    return "".join(
        "7"
        if letter in string.digits
        else "q"
        if letter in string.ascii_lowercase
        else "Q"
        if letter in string.ascii_uppercase
        else letter
        for letter in text
    )
