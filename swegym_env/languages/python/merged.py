"""Merged tests for Python: blind tests and the copies of a lineup in the same files.

A blind run and a lineup need two sandboxes, and most of the cost of the second one is to start the tests again. Here
the copies (see `lineup`) follow the blind tests (see `blind`), in the same class or at the end of the file.

If a condition is examined by copies and the blind test would check it too, it is removed from the blind test, as in a
copy that examines another condition; the expressions in it are still evaluated. So the test passes as a whole if it and
its right copies pass. For every examined value the file contains the same as a lineup: each candidate in equally many
copies. If something that a lineup does not have tells the right one, nothing is merged: the test itself, its docstring,
or another test that the test patch adds or changes (except for truth values and digits). Comments are removed. Helpers
of the file are blind too; the copies call the original ones under other names. Line numbers stay the same, except after
a class with copies.
"""

from __future__ import annotations

import ast
import io
import itertools
import random
import re
import string
import textwrap
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swegym_env.languages import Blinded, Copy, ExpectedValue, Merged
from swegym_env.languages.python.lineup import _copied, _new_name, _sites, _Test, _tests, conditions, with_other_values
from swegym_env.languages.python.parsing import copied, parse, walk
from swegym_env.languages.python.source import Function, begin_of, lines_of

__all__ = ["make_merged"]

_ORDINARY = frozenset(("True", "False", "None", "''", *string.digits))
_PRELUDE = re.compile(r'(\w+) = \{"OUT": ')


def make_merged(
    files: Mapping[str, str],
    blinded: Blinded,
    names: Iterable[str],
    added_lines: Mapping[str, frozenset[int]],
    shares: Mapping[ExpectedValue, tuple[int, int]],
    seed: int,
    *,
    sure: frozenset[str],
) -> Merged | None:
    """See `Language.make_merged`."""
    merging = _Merging(files, blinded, added_lines, shares, seed, sure)
    for test in _tests(files, names, added_lines):
        *_, expected = test
        if any(one in shares for one in expected) and not merging.add(test):
            return None
    return None if merging.reveals_right_copies() else merging.merged()


class _Merging:
    """The merged tests as they are made, test by test.

    Args:
        files, blinded, added_lines, shares, seed, sure: as of `make_merged`.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        blinded: Blinded,
        added_lines: Mapping[str, frozenset[int]],
        shares: Mapping[ExpectedValue, tuple[int, int]],
        seed: int,
        sure: frozenset[str],
    ) -> None:
        self._files, self._blinded, self._added_lines = files, blinded, added_lines
        self._shares, self._seed, self._sure = shares, seed, sure
        self._choice = random.Random(seed)
        self._used: set[str] = set()  # names of functions
        self._texts = {path: _Text(text, blinded.files.get(path, text)) for path, text in files.items()}
        self._copied: dict[str, set[int]] = {}  # path → first lines of the tests with copies
        self._copies: list[Copy] = []
        self._differing: set[str] = set()  # constants of right copies that their decoys do not have
        self._readable: set[str] = set()
        self._removed: set[str] = set()
        # Comparisons and values with placeholders, whose expected values are not in the blind tests; beside the second
        # kind there may be other values.
        self._partly = {each.place for each in blinded.placeholders.values()}
        self._hidden = self._partly | {
            each.place for each in blinded.expectations.values() if "beside" not in each.options
        }
        self._beside = {
            each.place for each in blinded.expectations.values() if "beside" in each.options and each.kind == "gold"
        }

    def add(self, test: _Test) -> bool:
        """Add the copies of a test that examines something; False if the tests cannot be merged."""
        path, function, depth, words, added, expected = test
        read = self._read(test)
        sites = [*((one, places & self._hidden) for one, places in read), (expected[-1], set[str]())]
        examined = [
            one if one in self._shares and (places & self._partly or not places & self._sure) else None
            for one, places in sites
        ]
        if not any(examined):
            return True
        if self._is_in_a_constant(examined, function):
            return False
        text = self._texts[path]
        checked = [one in examined for one, places in sites[:-1] if not places]
        unchecked = [places & self._beside for one, places in read if one in examined and not places & self._hidden]
        if not all(unchecked):  # the copies alone would say whether the patch is right, and they run later
            return False
        self._removed.update(*unchecked)
        stripped = text.stripped(function, words, checked)
        original = text.with_helpers(function, self._used, self._choice)
        if len(sites) != len(expected) or len(_sites(original, words, added)[0]) != len(expected):
            return False
        if stripped is None or function.col_offset != 4 * depth:
            return False
        made: list[str] = []
        for index, expectation in enumerate(examined):
            if expectation is not None:
                made += self._copies_of(expectation, original, test, index, is_hidden=bool(sites[index][1]))
        text.replace(function, stripped, depth, made)
        self._copied.setdefault(path, set()).add(function.lineno)
        return True

    def _read(self, test: _Test) -> list[tuple[ExpectedValue, set[str]]]:
        """The expectations of the conditions of a test, and all places in the condition of each."""
        path, function, _, words, _, expected = test
        numbered = iter(expected)
        return [
            (one, _places(condition, path))
            for condition, found in conditions(copied(function), words)
            for one in itertools.islice(numbered, len(found))
        ]

    def _is_in_a_constant(self, examined: Iterable[ExpectedValue | None], function: Function) -> bool:
        """Whether a constant of the file, which stays there, contains an examined value of a test."""
        lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
        moved = [node for one in function.body if one.lineno not in lines for node in walk(one)]
        values = {repr(node.value) for node in moved if isinstance(node, ast.Constant)}
        return any(value in one.text for one in examined if one is not None for value in values)

    def _copies_of(
        self, expectation: ExpectedValue, original: Function, test: _Test, index: int, *, is_hidden: bool
    ) -> list[str]:
        """The copies of a test that examine one of its expectations.

        Args:
            original: the test, which calls the original helpers.
            index: of the expectation.
            is_hidden: whether the blind test does not contain its value.
        """
        path, function, depth, words, added, _ = test
        decoys, repeats = self._shares[expectation]
        drawn = random.Random(f"{self._seed} {expectation.text}")
        own = [[_new_name(function.name, self._used, self._choice) for _ in range(repeats)] for _ in range(decoys + 1)]
        made = list(_copied(original, words, added, index, own, drawn, depth))
        shown = [set(_constants(each)) for each in made[::repeats]]
        candidates = set[str]().union(*shown) - shown[0].intersection(*shown)
        self._differing |= candidates & shown[0]
        # Copies show nothing new about the constants of the blind test, except which of them are expected values.
        held = set(_constants(self._texts[path].blind_source(function)))
        held -= candidates | {expectation.text} if is_hidden else set()
        self._readable |= set[str]().union(*shown) - held
        self._copies += [Copy(name, expectation, not value) for value, same in enumerate(own) for name in same]
        return made

    def reveals_right_copies(self) -> bool:
        """Whether the file shows which copies are right: by other tests or docstrings, which lineups do not contain."""
        examined = {one.expectation.text for one in self._copies} - _ORDINARY
        revealing = _tokens(" ".join(self._differing))
        for path, text in self._texts.items():
            added = self._added_lines.get(path, frozenset())
            values = set(text.new_values(added, self._copied.get(path, ())))
            if values & examined or revealing & _tokens(" ".join(values)):
                return True
        return False

    def merged(self) -> Merged:
        changed = {path: text for path, text in self._texts.items() if path in self._copied}
        helpers = {each for text in changed.values() for helper in text.helpers for each in _constants(helper)}
        written = {path: with_other_values(text.written(self._choice)) for path, text in changed.items()}
        return Merged(
            {**self._blinded.files, **written},
            tuple(self._copies),
            frozenset(self._readable | helpers),
            frozenset(self._removed),
        )


@dataclass
class _Text:
    """A file, its blind version, and the texts that are inserted into it."""

    original: str
    blind: str
    replaced: list[tuple[int, int, str]] = field(default_factory=list)  # first line, last line, text
    behind: dict[int, list[str]] = field(default_factory=dict)  # line → the copies that follow it
    helpers: list[str] = field(default_factory=list)  # of the copies
    _rewritten: dict[str, list[Function]] = field(default_factory=dict)  # name → helpers of the original
    _named: dict[str, str] = field(default_factory=dict)  # that name → the one that the copies call

    def __post_init__(self) -> None:
        self._tree, self._lines = parse(self.blind), lines_of(self.blind)
        found = _PRELUDE.search(self.blind)
        self._mark = found[1] if found else ""
        functions = [node for node in walk(parse(self.original)) if isinstance(node, Function)]
        blind = [node for node in walk(self._tree) if isinstance(node, Function)]
        # Blind tests have the same functions in the same order; only line numbers may differ.
        same = [node.name for node in functions] == [node.name for node in blind]
        self._blind_of = {one.lineno: other for one, other in zip(functions, blind, strict=True)} if same else {}
        for one in functions if same else ():
            if not one.name.startswith("test") and ast.dump(one) != ast.dump(self._blind_of[one.lineno]):
                self._rewritten.setdefault(one.name, []).append(one)

    def with_helpers(self, function: Function, used: set[str], choice: random.Random) -> Function:
        """A copy of a test that calls the original (not blind) helpers of the file, under new names."""
        made = copied(function)
        for node in walk(made):
            name = getattr(node, "id", getattr(node, "attr", ""))
            if name not in self._rewritten:
                continue
            if name not in self._named:
                self._named[name] = _new_name(name, used, choice)
                for helper in self._rewritten[name]:
                    own = self.with_helpers(helper, used, choice)
                    own.name = self._named[name]
                    self.helpers.append(_source(own, 0))
                    self._put_behind(helper, [_source(own, helper.col_offset // 4)])
            if isinstance(node, ast.Name):
                node.id = self._named[name]
            elif isinstance(node, ast.Attribute):
                node.attr = self._named[name]
        return made

    def stripped(self, function: Function, words: tuple[str, ...], examined: Sequence[bool]) -> Function | None:
        """The blind version of `function` without the conditions that copies examine.

        Args:
            examined: for each expectation that is not compared outside, whether copies examine it.
        Returns:
            None if it still contains an examined value.
        """
        found = self._blind_of.get(function.lineno)
        if found is None:
            return None
        unwrapping = _Unwrapping(self._sender)
        made: Function = unwrapping.visit(copied(found))
        inside = [sites for each, sites in conditions(made, words) if not self._is_hidden(each)]
        if sum(map(len, inside)) != len(examined):
            return None
        values: set[str] = set()
        flags = iter(examined)
        for sites in inside:
            if any(list(itertools.islice(flags, len(sites)))):
                values |= {site.text for site in sites}
                for site in sites:
                    site.remove()
        bare = copied(function)
        for _, sites in list(conditions(bare, words)):
            for site in sites:
                site.remove()
        held = Counter(repr(value) for value in self._values(made) if repr(value) in values)
        held -= Counter(repr(node.value) for node in walk(bare) if isinstance(node, ast.Constant))
        wrapped: Function = _Wrapping(unwrapping.calls).visit(made)
        return None if held else wrapped

    def _is_hidden(self, condition: ast.expr) -> bool:
        return any(self._sender(node) for node in walk(condition) if isinstance(node, ast.Call))

    def _sender(self, call: ast.Call) -> str:
        """The name of the called function if it sends values; empty for any other function."""
        called = call.func
        if not isinstance(called, ast.Subscript) or not isinstance(called.slice, ast.Constant):
            return ""
        return str(called.slice.value) if getattr(called.value, "id", "") == self._mark else ""

    def _values(self, function: Function) -> Iterator[object]:
        """The constants of a blind test, except those in the calls that send values."""
        senders = [node for node in walk(function) if isinstance(node, ast.Call) and self._sender(node)]
        apart = {id(part) for call in senders for part in (*call.args, getattr(call.func, "slice", None))}
        for node in walk(function):
            if isinstance(node, ast.Constant) and id(node) not in apart:
                yield node.value

    def new_values(self, added_lines: frozenset[int], copied: Collection[int]) -> Iterator[str]:
        """What the other tests with added lines contain, as source, and the docstrings of the tests with copies.

        Args:
            added_lines: that the test patch adds to the original file.
            copied: first lines of the tests with copies.
        """
        lines = lines_of(self.original)
        for function in [node for node in walk(parse(self.original)) if isinstance(node, Function)]:
            own = range(begin_of(function, lines)[0], (function.end_lineno or function.lineno) + 1)
            if function.lineno in copied:
                yield from [repr(ast.get_docstring(function))] if ast.get_docstring(function) else []
            elif function.name.startswith("test") and added_lines.intersection(own):
                yield from map(repr, self._values(self._blind_of.get(function.lineno, function)))

    def blind_source(self, function: Function) -> str:
        """The source of the blind version of a test; empty if there is none."""
        found = self._blind_of.get(function.lineno)
        return _source(found, 0) if found is not None else ""

    def replace(self, function: Function, made: Function, depth: int, copies: list[str]) -> None:
        """Replace a function by `made`, and insert its copies after the class or module that contains it."""
        found = self._blind_of[function.lineno]
        first, _ = begin_of(found, self._lines)
        last = found.end_lineno or found.lineno
        text = _source(made, depth)
        self.replaced.append((first, last, text + "\n" * max(0, last - first - text.count("\n"))))
        self._put_behind(function, copies)

    def _put_behind(self, function: Function, texts: list[str]) -> None:
        """Insert texts after the class or module that contains a function of the original file."""
        found = self._blind_of[function.lineno]
        around = [
            node
            for node in walk(self._tree)
            if isinstance(node, ast.ClassDef) and node.lineno < found.lineno <= (node.end_lineno or 0)
        ]
        end = max(around, key=lambda node: node.lineno).end_lineno if around else None
        self.behind.setdefault(end or len(self.blind.split("\n")), []).extend(texts)

    def written(self, choice: random.Random) -> str:
        """The complete text; copies in the same place have a random order."""
        lines: list[str | None] = [*_without_comments(self.blind).split("\n")]
        for first, last, text in self.replaced:
            lines[first - 1] = text
            lines[first:last] = [None] * (last - first)
        for line, copies in self.behind.items():
            choice.shuffle(copies)
            before = lines[line - 1]  # None: a line of a test that is replaced
            lines[line - 1] = "\n".join([*([] if before is None else [before]), *copies])
        return "\n".join(line for line in lines if line is not None) + "\n"


class _Unwrapping(ast.NodeTransformer):
    """Replaces the calls that send values of a condition in addition to its check by the values themselves."""

    def __init__(self, sender: Callable[[ast.Call], str]) -> None:
        self._sender = sender
        self.calls: dict[ast.AST, ast.Call] = {}  # value → the call that sends it

    def visit_Call(self, node: ast.Call) -> ast.AST:
        sender = self._sender(node)
        if sender == "asked":
            asked: ast.AST = self.visit(node.args[-1])
            return asked
        if sender:
            return node if sender != "beside" else self._without(node)
        return self.generic_visit(node)

    def _without(self, node: ast.Call) -> ast.AST:
        value: ast.AST = self.visit(node.args[-1])
        self.calls[value] = node
        return value


class _Wrapping(ast.NodeTransformer):
    """Restores the sending calls that an `_Unwrapping` replaced, as far as their values are still there."""

    def __init__(self, calls: Mapping[ast.AST, ast.Call]) -> None:
        self._calls = calls
        self._parts: dict[object, list[ast.Call]] = {}  # key → the remaining calls, in order

    def visit(self, node: ast.AST) -> Any:
        call = self._calls.get(node)
        inner: ast.AST = super().visit(node)
        if call is None or not isinstance(inner, ast.expr):
            return inner
        key, *_ = call.args
        parts = self._parts.setdefault(ast.unparse(key), [])
        parts.append(call)
        call.args[-1] = inner
        for number, part in enumerate(parts):
            part.args[1:3] = [ast.Constant(number), ast.Constant(len(parts) - 1)]
        return call


def _source(function: Function, depth: int) -> str:
    """The source of a function, indented for this number of enclosing classes."""
    nested: ast.stmt = function
    for _ in range(depth):
        nested = ast.If(ast.Constant(1), [nested], [])
    text = ast.unparse(ast.fix_missing_locations(ast.Module([nested], [])))
    return text.split("\n", depth)[depth].lstrip("\n")


def _tokens(text: str) -> set[str]:
    """The words and numbers of a text; 1 digit says nothing, and 12.0 says the same as 12."""
    words = re.findall(r"[^\W\d_]{2,}|\d+(?:\.\d+)?", text.lower())
    return {f"{float(word):g}" if word[0].isdigit() else word for word in words} - {*string.digits}


def _without_comments(text: str) -> str:
    """The text of a file without its comments, as many lines."""
    lines = text.split("\n")
    try:
        tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.COMMENT]
    except (tokenize.TokenError, SyntaxError):
        return text
    for token in tokens:
        line, column = token.start
        if line > 2:  # the first two may set the encoding
            lines[line - 1] = lines[line - 1][:column]
    return "\n".join(lines)


def _places(condition: ast.expr, path: str) -> set[str]:
    return {f"{path}:{node.lineno}:{node.col_offset}" for node in walk(condition) if isinstance(node, ast.expr)}


def _constants(test: str) -> Iterator[str]:
    """The constants and the names in the source of tests, as source text."""
    for node in walk(parse(textwrap.dedent(test))):
        if isinstance(node, ast.Constant):
            yield repr(node.value)
        elif isinstance(node, ast.Name):
            yield repr(node.id)
