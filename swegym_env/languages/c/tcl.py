"""Tests in Tcl, such as those of Redis and Valkey: their commands and expected values.

A test is `test NAME BODY ?EXPECTED?`. Its body compares by `assert_equal`, `assert_match` and `assert_error`, and by
`assert` with a condition. Only commands directly in the body are read, because every passing run executes them; those
in loops, branches and procedures are not read.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from swegym_env.languages import Control
from swegym_env.languages.changed import spliced

__all__ = ["given_tests", "make_control"]

_TEST = re.compile(r"^[ \t]*test[ \t]", re.MULTILINE)
_SUBSTITUTED = re.compile(r"\$\{[^}]*\}|\$\w+(?:\([^)]*\))?|\[[^\]]*\]|\\.")
_EQUALITY = re.compile(r"(?:==|\beq)\s*(?P<literal>-?\d+|\{[^{}]*\}|\"[^\"$\[\\]*\")\s*\Z")
_CLOSING = {"{": "}", "[": "]"}
_KINDS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)


@dataclass(frozen=True)
class _Word:
    """A word of a command, by its offsets in the file; `text` has its braces or quotes."""

    begin: int
    end: int
    text: str

    @property
    def is_literal(self) -> bool:
        return self.text.startswith("{") or not re.search(r"[\[$\\]", self.text)


@dataclass(frozen=True)
class _Edit:
    begin: int
    end: int
    text: str
    is_value: bool = True


def make_control(
    files: Mapping[str, str], names: Iterable[str], added_lines: Mapping[str, frozenset[int]], seed: int
) -> Control | None:
    """See `Language.make_control`. If `names` match no test, each test with an added line is changed."""
    choice = random.Random(seed)
    tests = [(path, words) for path, source in sorted(files.items()) for words in _tests(source)]
    named = {id(words): {name for name in names if _name_of(words).fullmatch(name)} for _, words in tests}
    by_name = any(named.values())
    edits: dict[str, list[_Edit]] = {}
    changed: set[str] = set()
    without_value: set[str] = set()
    for path, words in tests:
        first, last = (files[path].count("\n", 0, place) + 1 for place in (words[0].begin, words[-1].end))
        if not (
            named[id(words)] if by_name else added_lines.get(path, frozenset()).intersection(range(first, last + 1))
        ):
            continue
        found = list(_expected(words, files[path], choice))
        values = [edit for edit in found if edit.is_value]
        if found:
            edits.setdefault(path, []).append(choice.choice(values or found))
            changed |= named[id(words)]
            without_value |= named[id(words)] if not values else set()
    if not edits:
        return None
    changes = {path: [(edit.begin, edit.end, edit.text) for edit in each] for path, each in edits.items()}
    return Control(
        {path: spliced(files[path], each) for path, each in changes.items()},
        frozenset(changed),
        frozenset(without_value),
    )


def given_tests(files: Mapping[str, str], names: Iterable[str]) -> frozenset[str]:
    """See `Language.given_tests`: the tests with a word that one command receives and another one expects."""
    names = frozenset(names)
    apart: set[str] = set()
    known: set[str] = set()
    for source in files.values():
        for words in _tests(source):
            named = {name for name in names if _name_of(words).fullmatch(name)}
            expected = [words[3].text] if len(words) > 3 else []
            for command in _commands(source, words[2].begin + 1, words[2].end - 1):
                expected += _literals(command)
            wanted = {word for text in expected for word in _telling(text)}
            often = Counter(_telling(source[words[2].begin : words[-1].end]))
            known |= named
            apart |= named if not any(often[word] > 1 for word in wanted) else set()
    return names - (known & apart)


def _literals(command: list[_Word]) -> list[str]:
    """The literals that a command compares with."""
    name, arguments = command[0].text, command[1:]
    if name == "assert" and arguments:
        equality = _EQUALITY.search(arguments[0].text[1:-1])
        return [equality["literal"]] if equality is not None else []
    compared = arguments[:2] if name == "assert_equal" else arguments[:1] if name.startswith("assert_") else []
    return [word.text for word in compared if word.is_literal]


def _telling(text: str) -> list[str]:
    """The words that are specific enough to be recognised: no variables, commands and small numbers."""
    plain = re.sub(r"\$\{[^}]*\}|\$\w+|\\.", " ", text)
    return [word for word in re.findall(r"[A-Za-z0-9]+", plain) if len(word) > 1 and word not in _COMMANDS]


_COMMANDS = frozenset(("assert", "equal", "match", "error", "range", "if", "for", "foreach", "set", "expr", "eq", "ne"))


def _tests(source: str) -> Iterator[list[_Word]]:
    """The words of each `test` command with a body."""
    for match in _TEST.finditer(source):
        words = next(_commands(source, match.start(), len(source)), [])
        if len(words) > 2 and words[2].text.startswith("{"):
            yield words


def _name_of(test: list[_Word]) -> re.Pattern[str]:
    """A pattern for the names that a test can have; parts of a name may be variables."""
    name = test[1].text
    bare = name[1:-1] if name[:1] in ('"', "{") else name
    if test[1].is_literal:
        return re.compile(re.escape(bare))
    return re.compile(".+".join(map(re.escape, _SUBSTITUTED.split(bare))))


def _expected(test: list[_Word], source: str, choice: random.Random) -> Iterator[_Edit]:
    """Changes of a test, each of which makes it fail if it passes now."""
    if len(test) > 3 and test[3].is_literal:
        yield _other(test[3], choice)
    for words in _commands(source, test[2].begin + 1, test[2].end - 1):
        command, arguments = words[0].text, words[1:]
        if command == "assert_equal" and len(arguments) > 1:
            literals = [word for word in arguments[:2] if word.is_literal]
            if len(literals) == 1:
                yield _other(literals[0], choice)
        elif command in ("assert_match", "assert_error") and len(arguments) > 1 and arguments[0].is_literal:
            if "[" not in arguments[0].text and arguments[0].text.strip('{}"*?'):
                yield _other(arguments[0], choice)
        elif command == "assert" and arguments and arguments[0].text.startswith("{"):
            yield _other_condition(arguments[0], choice)


def _other_condition(word: _Word, choice: random.Random) -> _Edit:
    condition = word.text[1:-1]
    equality = None if re.search(r"&&|\|\||\?", condition) else _EQUALITY.search(condition)
    if equality is None:
        return _Edit(word.begin, word.end, "{!(" + condition + ")}", is_value=False)
    begin = word.begin + 1 + equality.start("literal")
    return _other(_Word(begin, begin + len(equality["literal"]), equality["literal"]), choice)


def _other(word: _Word, choice: random.Random) -> _Edit:
    """A different literal to replace one."""
    letters = [place for place, letter in enumerate(word.text) if letter in string.ascii_letters + string.digits]
    if not letters:
        quotes = (word.text[0], word.text[-1]) if word.text[:1] in ('"', "{") else ("", "")
        inside = word.text[1:-1] if quotes[0] else word.text
        return _Edit(word.begin, word.end, f"{quotes[0]}{inside}{choice.choice(string.ascii_lowercase)}{quotes[1]}")
    at = choice.choice(letters)
    kind = next(kind for kind in _KINDS if word.text[at] in kind)
    other = choice.choice([letter for letter in kind if letter.lower() != word.text[at].lower() and letter != "0"])
    return _Edit(word.begin + at, word.begin + at + 1, other)


def _commands(source: str, begin: int, end: int) -> Iterator[list[_Word]]:
    """The commands of a script, each as its words. Ends early where braces do not match."""
    at, words = begin, list[_Word]()
    while at < end:
        letter = source[at]
        if letter in "\n;":
            if words:
                yield words
            words = []
            at += 1
        elif letter in " \t\r" or source.startswith("\\\n", at):
            at += 2 if letter == "\\" else 1
        elif letter == "#" and not words:
            at = source.find("\n", at) % (end + 1)
        else:
            after = _word_end(source, at, end)
            if after is None:
                return
            words.append(_Word(at, after, source[at:after]))
            at = after
    if words:
        yield words


def _word_end(source: str, begin: int, end: int) -> int | None:
    if source[begin] == "{":
        return _closed(source, begin, end)
    quoted = source[begin] == '"'
    at = begin + quoted
    while at < end:
        letter = source[at]
        if letter == "\\":
            at += 2
        elif letter == "[":
            closed = _closed(source, at, end)
            if closed is None:
                return None
            at = closed
        elif quoted and letter == '"':
            return at + 1
        elif not quoted and letter in " \t\r\n;":
            return at
        else:
            at += 1
    return None if quoted else end


def _closed(source: str, begin: int, end: int) -> int | None:
    """The offset after the closing counterpart of the brace or bracket at `begin`."""
    opening, depth, at = source[begin], 0, begin
    while at < end:
        if source[at] == "\\":
            at += 1
        elif source[at] == opening:
            depth += 1
        elif source[at] == _CLOSING[opening]:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return None
