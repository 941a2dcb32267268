"""Tests in C and C++ that run beside twins; `languages.python.twins` explains twins.

A test cannot be added if a list names all tests, so the copies are in the test itself, one after the other:

    {
        struct box box_k = { 0 };      // of a twin
        struct box box = { 0 };
        save(&box, "zqxw");
        save(&box_k, "vbnm");
        CHECK_STR(load(&box), "zqxw");
        (void)(load(&box_k));
    }
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from swegym_env.languages import Copy, ExpectedValue, Lineup, Twins
from swegym_env.languages.c import tcl
from swegym_env.languages.c.assertions import is_assertion
from swegym_env.languages.c.source import (
    ESCAPE,
    Call,
    Function,
    Token,
    calls,
    closing,
    functions,
    is_named,
    split,
    target_functions,
    tokens,
)
from swegym_env.languages.changed import spliced

__all__ = ["given_tests", "make_twins"]

_COPIES = 3  # of the unchanged test, and with other values
_MOST_KEYS, _MOST_TOKENS = 8, 60_000
_LEAST_NUMBER, _LEAST_LETTERS, _TELLING_LETTERS = 10, 2, 4
_WORD = re.compile(r"[A-Za-z0-9]+")
_BLOCKS = frozenset(("if", "for", "while", "switch", "do", "{", "try"))
_LAZY = frozenset(("&&", "||", "?", "sizeof", "alignof", "_Alignof", "_Generic", "decltype", "typeof", "[", "{"))
_MEASURING = frozenset(("sizeof", "strlen"))
_NO_NAMES = frozenset(("if", "for", "while", "switch", "return", "sizeof", "catch", "do", "else", "new", "delete"))


def given_tests(files: Mapping[str, str], names: Iterable[str]) -> frozenset[str]:
    """See `Language.given_tests`; values are not removed from what these tests pass to the code."""
    names = tuple(names)
    scripts = {path: source for path, source in files.items() if path.endswith(".tcl")}
    if scripts:  # no repository has tests of both kinds
        return tcl.given_tests(scripts, names)
    tests = list(_tests(files, names))
    known = frozenset().union(*(test.names for test in tests))
    return frozenset(names) - known | frozenset().union(*(test.names for test in tests if test.keys or test.is_open))


def make_twins(files: Mapping[str, str], names: Iterable[str], seed: int, twins: int) -> Twins:
    """See `Language.make_twins`."""
    choice = random.Random(seed)
    names = tuple(names)
    tests = list(_tests(files, names))
    opened = frozenset(names) - frozenset().union(*(test.names for test in tests))
    opened |= frozenset().union(*(test.names for test in tests if test.is_open))
    bodies: list[tuple[_Test, _Body]] = []
    for test in tests:
        body = _Body.of(test, files[test.path]) if test.keys and not test.names <= opened else None
        bodies += [(test, body)] if body is not None else []
        opened |= test.names if test.keys and body is None else frozenset()
    size = 2 * _COPIES * max((sum(map(len, body.statements)) for _, body in bodies), default=1)
    twins = max(3, min(twins, _MOST_TOKENS // max(1, size) - 1))
    edits: dict[str, list[tuple[int, int, str]]] = {}
    for test, body in bodies:
        edits.setdefault(test.path, []).append((*_inside(test.function), body.copies(twins, choice)))
    copied = frozenset().union(*(test.names for test, _ in bodies))
    copies = tuple(
        Copy(name, ExpectedValue(frozenset({name}), number, "with other values", 0), right=True)
        for number, name in enumerate(sorted(copied))
        for _ in range(_COPIES)
    )
    return Twins(Lineup({path: spliced(files[path], each) for path, each in edits.items()}, copies), opened, twins)


@dataclass(frozen=True)
class _Test:
    """A function of a test file.

    Attributes:
        names: of the task's tests that consist of it or call it.
        keys: words of literals that it passes to the code under test and expects.
        is_open: whether it may pass an expected value to the code in a way that twins cannot vary.
    """

    names: frozenset[str]
    path: str
    function: Function
    keys: frozenset[str]
    is_open: bool


def _tests(files: Mapping[str, str], names: tuple[str, ...]) -> Iterator[_Test]:
    for path, source in sorted(files.items()):
        targets = target_functions(source, names)
        for function in functions(source):
            tests = targets.get(function.name)
            if tests:
                keys, is_open = _given(function, source)
                is_own = any(is_named(function.name, name) for name in tests)
                yield _Test(tests, path, function, keys, is_open or (bool(keys) and not is_own))


def _given(function: Function, source: str) -> tuple[frozenset[str], bool]:
    """The words that a function passes and expects; whether it may pass expected values by another kind of name."""
    body = function.body
    judging = [call for call in calls(body) if is_assertion(call)]
    spans = [(call.start, call.end) for call in judging]
    often = Counter(word for token in body for word in _words(token))
    alike = Counter(token.text for token in body if token.kind == "text")
    own = {call: Counter(word for token in _own_tokens(call) for word in _words(token)) for call in judging}
    keys = {
        word
        for call in judging
        for token in _expected_of(call)
        for word in _words(token)
        if often[word] > own[call][word] and (alike[token.text] > 1 or token.kind == "number" or _is_specific(word))
    }
    judged = {token.text for call in judging for token in _expected_of(call) if _is_variable(token, body)}
    is_open = False
    held = _initial(body)
    measured = {
        token.start for at, token in enumerate(body) if {one.text for one in body[max(0, at - 2) : at]} & _MEASURING
    }
    for name in judged:
        uses = [token for token in body if token.text == name and token.kind == "name"]
        given = [
            one
            for one in uses[name in held :]
            if not any(begin <= one.start < end for begin, end in spans) and one.start not in measured
        ]
        words = [word for token in held.get(name, ()) for word in _words(token)]
        if given and words and len(held[name]) == 1:
            keys |= {*words}
        elif given and name in _parameters(function, source):
            is_open = True
    return frozenset(keys), is_open


def _expected_of(call: Call) -> Iterator[Token]:
    """The tokens of an assertion except arguments of calls; of a condition, also arguments that are a single token."""
    for argument in call.arguments:
        at = 0
        while at < len(argument):
            is_call = at + 1 < len(argument) and argument[at].kind == "name" and argument[at + 1].text == "("
            close = closing(argument, at + 1) if is_call else -1
            if close < 0:
                yield argument[at]
            elif len(call.arguments) == 1:
                yield from (token for part in split(argument[at + 2 : close], ",") if len(part) == 1 for token in part)
            at = max(at, close) + 1


def _own_tokens(call: Call) -> Iterator[Token]:
    """The tokens of an assertion, except arguments of calls that are nested in the outermost ones."""
    for argument in call.arguments:
        depth = 0
        for token in argument:
            depth += (token.text == "(") - (token.text == ")")
            if depth < (3 if len(call.arguments) == 1 else 2):  # a condition compares by a call, one level deeper
                yield token


def _words(token: Token) -> list[str]:
    """The words of a literal that count as passed and expected; small numbers do not, as they are sizes and indices."""
    if token.kind == "number":
        return [token.text] if token.text.isdecimal() and int(token.text) >= _LEAST_NUMBER else []
    words = _WORD.findall(ESCAPE.sub(" ", token.text)) if token.kind == "text" else []
    return [word for word in words if len(word) >= _LEAST_LETTERS]


def _is_specific(word: str) -> bool:
    """Whether a word is so specific that two texts that contain it are related."""
    return len(word) >= _TELLING_LETTERS or word.isdecimal()


def _is_variable(token: Token, body: Sequence[Token]) -> bool:
    return token.kind == "name" and any(one.text == token.text for one in body if one.start != token.start)


def _initial(body: Sequence[Token]) -> dict[str, tuple[Token, ...]]:
    """Name of a variable → the tokens of its initial value."""
    found: dict[str, tuple[Token, ...]] = {}
    for at in range(1, len(body) - 2):
        before, after = body[at - 1], body[at + 1]
        if body[at].kind != "name" or after.text not in ("=", "[") or not (before.kind == "name" or before.text == "*"):
            continue
        end = at + 1
        while end < len(body) and body[end].text == "[":
            end = closing(body, end) + 1 or len(body)
        if end < len(body) and body[end].text == "=":
            last = end + 1
            while last < len(body) and body[last].text not in (";", ",", "{"):
                last += 1
            found.setdefault(body[at].text, tuple(body[end + 1 : last]))
    return found


def _parameters(function: Function, source: str) -> frozenset[str]:
    begin = source.index("(", function.begin)
    end = function.body[0].start if function.body else function.end
    return frozenset(token.text for token in tokens(source[begin:end]) if token.kind == "name")


def _inside(function: Function) -> tuple[int, int]:
    return function.body[0].start, function.body[-1].end


@dataclass(frozen=True)
class _Body:
    """The statements of a test, each of which can be written with other names and values.

    Attributes:
        statements: the tokens of each.
        names: the variables that they declare.
        keys: words of literals that get other values.
    """

    statements: tuple[tuple[Token, ...], ...]
    names: frozenset[str]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, test: _Test, source: str) -> _Body | None:
        """The body of a test; None if it can have no twins: it returns early, or contains directives."""
        begin, end = _inside(test.function)
        inner = tokens(source[begin:end])
        words = {token.text for token in inner}
        if words & {"return", "goto", "co_return", "co_await", "#"} or any(one.kind == "directive" for one in inner):
            return None
        used = {token.text for token in tokens(source)}
        fresh = (name for number in range(10_000) if (name := f"made_{number}") not in used)
        keyword = "__auto_type" if test.path.endswith(".c") else "auto &&"
        statements: list[tuple[Token, ...]] = []
        for statement in _statements(inner):
            taken: list[tuple[Token, ...]] = []
            kept = _taken_out(statement, keyword, fresh, taken)
            statements += [*taken, kept]
        names = frozenset(name for statement in statements for name in _declared(statement))
        return cls(tuple(statements), names, tuple(sorted(test.keys))[:_MOST_KEYS])

    def copies(self, twins: int, choice: random.Random) -> str:
        """The source of all copies, half of them with other values."""
        parts = [self._copy(twins, choice, is_other=number < _COPIES) for number in range(2 * _COPIES)]
        choice.shuffle(parts)
        return "\n".join(parts)

    def _copy(self, twins: int, choice: random.Random, *, is_other: bool) -> str:
        drawn: dict[str, list[str]] = {}
        for key in self.keys:
            others = _others(key, twins, choice)
            first = choice.choice(others) if is_other else key
            rest = [one for one in (key, *others) if one != first]
            choice.shuffle(rest)
            drawn[key] = [first, *rest]
        bodies: list[list[str]] = []
        for number in range(twins + 1):
            changes = {key: values[number] for key, values in drawn.items()}
            suffix = (
                f"_{''.join(choices)}" if number and (choices := choice.choices("bcdfghjkmnpqrstvwxz", k=8)) else ""
            )
            bodies.append([_written(one, self.names if number else (), suffix, changes) for one in self.statements])
        lines = [line for together in zip(*bodies, strict=True) for line in choice.sample(together, len(together))]
        return "{\n" + "\n".join(lines) + "\n}"


def _others(key: str, count: int, choice: random.Random) -> list[str]:
    """Different words of the same shape."""
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    found: list[str] = []
    while len(found) < count:
        made = "".join(choice.choice(next(kind for kind in kinds if letter in kind)) for letter in key)
        if made != key and made not in found and not (made[0] == "0" != key[0]):
            found.append(made)
    return found


def _statements(body: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """The statements of a block, each with the statements that it controls."""
    begin = at = 0
    while at < len(body):
        token = body[at]
        if token.text in ("(", "[", "{"):
            close = closing(body, at)
            if close < 0:
                break
            is_block = token.text == "{" and body[begin].text in _BLOCKS and body[begin].text != "do"
            at = close
            ends = is_block and not (body[at + 1 : at + 2] and body[at + 1].text in ("else", "catch"))
        else:
            ends = token.text == ";" and not (body[at + 1 : at + 2] and body[at + 1].text == "else")
        at += 1
        if ends:
            yield tuple(body[begin:at])
            begin = at
    if begin < len(body):
        yield tuple(body[begin:])


def _declared(statement: Sequence[Token]) -> Iterator[str]:
    """The variables that a statement declares in its block."""
    if len(statement) < 3 or statement[0].kind != "name" or statement[0].text in (*_BLOCKS, *_NO_NAMES):
        return
    ends = ("=", ";", "{", "(", "[")
    for number, part in enumerate(split([one for one in statement if one.text != ";"], ",")):
        head = part[: next((at for at, one in enumerate(part) if one.text in ends), len(part))]
        if not head or head[-1].kind != "name":
            return
        is_typed = len(head) > 1 and (head[-2].kind == "name" or head[-2].text in ("*", "&", ">", "&&"))
        if not number and not is_typed:
            return
        yield head[-1].text


def _taken_out(
    statement: tuple[Token, ...], keyword: str, fresh: Iterator[str], taken: list[tuple[Token, ...]]
) -> tuple[Token, ...]:
    """A statement whose nested calls are moved into statements before it, so that twins can run in between.

    Args:
        taken: gets the statements that make these calls.
    """
    if {token.text for token in statement} & _LAZY or statement[0].text in _BLOCKS:
        return statement
    made = list(statement)
    at = len(made) - 2
    depth = 0
    while at > 0:  # from the innermost call of a chain to the outermost one, starting at its end
        depth += (made[at].text == ")") - (made[at].text == "(")
        is_call = made[at].kind == "name" and made[at + 1].text == "(" and not made[at].text.isupper()
        if is_call and made[at].text not in _NO_NAMES and made[at - 1].text in ("(", ","):
            close = closing(made, at + 1)
            after = made[close + 1].text if close > 0 else ""
            if depth > 0 and after in (")", ","):
                name = Token("name", next(fresh), made[at].start)
                given = made[at : close + 1]
                inner = _taken_out((*given, Token("sign", ";", given[-1].end)), keyword, fresh, taken)
                at_sign = Token("sign", "=", name.start)
                taken.append((Token("name", keyword, name.start), name, at_sign, *inner))
                made[at : close + 1] = [name]
        at -= 1
    return tuple(made)


def _written(statement: Sequence[Token], renamed: Collection[str], suffix: str, changes: Mapping[str, str]) -> str:
    """A statement with other literals; for a twin, also with other names, and with assertions that check nothing."""
    stream = list(statement)
    if suffix:
        for call in reversed(list(calls((Token("sign", ";", -1), *stream)))):
            if is_assertion(call):
                first = next(at for at, token in enumerate(stream) if token.start == call.start)
                last = closing(stream, first + 1)
                parts = [part for part in split(stream[first + 2 : last], ",") if any(t.kind == "name" for t in part)]
                sign = Token("sign", "(void)(", -1), Token("sign", ")", -1), Token("sign", ";", -1)
                evaluated = [token for part in parts for token in (sign[0], *part, sign[1], sign[2])]
                stream[first : last + 2] = [Token("sign", "{", -1), *evaluated, Token("sign", "}", -1)]
    words: list[str] = []
    for at, token in enumerate(stream):
        is_member = at > 0 and stream[at - 1].text in (".", "->")
        if token.kind == "name" and token.text in renamed and not is_member:
            words.append(token.text + suffix)
        else:
            words.append(_changed(token, changes))
    return " ".join(words)


def _changed(token: Token, changes: Mapping[str, str]) -> str:
    """A literal with other words; other tokens are unchanged."""
    if token.kind != "text":
        return changes.get(token.text, token.text) if token.kind == "number" else token.text
    parts, at = [], 0
    for match in (*ESCAPE.finditer(token.text), None):
        end = match.start() if match is not None else len(token.text)
        parts.append(_WORD.sub(lambda word: changes.get(word[0], word[0]), token.text[at:end]))
        parts.append(match[0] if match is not None else "")
        at = match.end() if match is not None else end
    return "".join(parts)
