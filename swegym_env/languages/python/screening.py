"""Screening for Python: how closely a patch is examined, decided by what its added lines can do.

A repair that only changes expressions, with names that its file defines or the replaced lines contain, cannot affect
the test runner; most repairs of small tasks are of this kind. If the repository does not define its own comparisons, no
further runs are needed, unless a test has a condition that several answers pass. Otherwise such an edit may change how
objects compare, and comparisons that a blind run does not cover are examined by a lineup (see `lineup`), as is any
other patch that resolves. If the patch has means of forgery that the gold patch does not have, the lineup decides the
verdict. If these are means to read what the tests expect, a lineup seldom suffices, however many decoys it has; then a
run of the tests without their expected values decides.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from swegym_env.languages import CHANCE, Scrutiny
from swegym_env.languages.caching import cached_for_patches
from swegym_env.languages.python.means import (
    FORGING,
    REACHING,
    READING,
    WORD,
    Source,
    encodings_of,
    is_telling,
    means_of,
    source_at_base,
    source_of,
)
from swegym_env.languages.python.state import keeps_state
from swegym_env.repo.patches import FilePatch, apply_hunks, parse_patch, without_sections

__all__ = ["changed_functions", "scrutiny_of", "without_means"]

_SAFE_KEYWORDS = frozenset(
    WORD.findall("and or not in is if elif else for while break continue return pass None True False")
)
# Escaped characters are matched first; otherwise each quote in a hostile line would be tried as the start of a string.
_STRING = re.compile(r"""\\.|(?<![\w"'])[rRbBuU]{0,2}(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
_BUILTINS = frozenset(dir(builtins))
_NOT_AN_EDIT = re.compile(r"^(new|deleted|rename|copy|old mode|similarity|Binary|GIT binary)", re.MULTILINE)
# A format field with an attribute or an item, or the beginning of one.
_FIELD = re.compile(r"\{[^{}:!]*[.\[]|\{[^{}]*$")
# Definitions of comparisons, in Python or through a library, and functions that tests could use for checks.
_COMPARING = re.compile(
    r"__(eq|ne|lt|le|gt|ge|cmp|hash|bool|contains|instancecheck|getattr|getattribute|missing)__|"
    r"\b(dataclass\w*|attrs?|attr|define|total_ordering|pydantic|\w*Struct|\w*Model)\b"
)
_JUDGING = re.compile(r"\bAssertionError\b|\bdef\s+\w*(assert|same|equal|match|check|verify|compare|close)\w*\s*\(")
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_SMALL_BYTES = 1 << 20
_NOT_PLAIN = re.compile(r'"""|\'\'\'|\\$|@|__')


@cached_for_patches(lambda patch, _base, gold="": len(patch) + len(gold))
def scrutiny_of(patch: str, base: Path, gold: str = "") -> Scrutiny:
    """See `Language.scrutiny_of`."""
    sections = parse_patch(patch)
    if not patch or (sections and all(_is_plain(section, base) for section in sections)):
        compares, judges = _comparing(base)
        harmless = not compares and (not judges or changed_functions(patch, base) <= _changed_by_gold(gold, base))
        return Scrutiny(1.0, harmless=harmless and not keeps_state(patch, base, gold))
    means, reading = means_of(patch, base, gold)
    return Scrutiny(CHANCE, reads=bool(reading), required=bool(means))


def without_means(patch: str, base: Path, gold: str = "") -> tuple[str, ...]:
    """See `Language.without_means`."""
    return without_sections(patch, lambda text: bool(means_of(text, base, gold)[0]))


@lru_cache(maxsize=1024)  # as the files at a base commit, the gold patch of a task never changes
def _changed_by_gold(gold: str, base: Path) -> set[tuple[str, str]]:
    return changed_functions(gold, base)


@lru_cache(maxsize=1024)  # the files at a base commit never change
def _comparing(base: Path) -> tuple[bool, bool]:
    """Whether a repository defines how objects compare, and whether it has functions that tests could use for checks.

    Both are assumed for a large repository.
    """
    size_bytes = 0
    judges = False
    for directory, directories, names in os.walk(base):
        directories[:] = [name for name in directories if name != ".git"]
        for name in names:
            if name.endswith((".py", ".pyi")) and not (place := Path(directory, name)).is_symlink():
                text = place.read_text(encoding="utf-8", errors="replace")
                size_bytes += len(text)
                if _COMPARING.search(text) or size_bytes > _SMALL_BYTES:
                    return True, True
                judges = judges or bool(_JUDGING.search(text))
    return False, judges


def changed_functions(patch: str, base: Path) -> set[tuple[str, str]]:
    """See `Language.changed_functions`."""
    found: set[tuple[str, str]] = set()
    for section in parse_patch(patch):
        for path in section.paths:
            place = base / path
            if place.name == "__init__.py" and not place.exists() and place.parent.with_suffix(".py").is_file():
                found.add((f"{Path(path).parent}.py", ""))  # a package that takes the place of a module
            if not path.endswith(".py") or not place.is_file():
                continue
            text = place.read_text(encoding="utf-8", errors="replace")
            changed = apply_hunks(text, section.body)
            if changed is None:
                found.add((path, ""))
                continue
            after, added, removed = changed
            old, new = source_at_base(text), source_of(after)
            known = {node.name for node in old.nodes if isinstance(node, _Function)}
            words = {"*", *WORD.findall(text)}
            for source, lines in ((old, removed), (new, added)):
                functions = [node for node in source.nodes if isinstance(node, _Function)]
                for line in lines - _without_effect(source, functions, words):
                    name = _function_at(functions, line)
                    if name in known or name in words or not name or name.startswith("__"):
                        found.add((path, name if name in known else ""))
    return found


def _without_effect(source: Source, functions: Sequence[_Function], words: set[str]) -> set[int]:
    """Lines without code, and those that only bind names which are none of these words."""
    lines = source.text.split("\n")
    found = {number for number, line in enumerate(lines, 1) if line.strip()[:1] in ("", "#")}
    for node in source.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        else:
            continue
        if names.isdisjoint(words) and not _function_at(functions, node.lineno):
            found |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return found


def _function_at(functions: Sequence[_Function], line: int) -> str:
    around = [each for each in functions if _first_line(each) <= line <= (each.end_lineno or each.lineno)]
    return max(around, key=lambda each: each.lineno).name if around else ""


def _first_line(function: _Function) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _is_plain(section: FilePatch, base: Path) -> bool:
    """Whether a section only changes expressions of one Python file, with names that the file already contains."""
    paths, body = section.paths, section.body
    if len(paths) != 1 or _NOT_AN_EDIT.search(section.header) or not body.startswith("@@ "):
        return False
    place = base / next(iter(paths))
    if place.suffix != ".py" or place.is_symlink() or not place.is_file() or "\ndiff --git" in body:
        return False
    if any(line.startswith(("+++", "---")) for line in body.split("\n")):
        return False
    text = place.read_text(encoding="utf-8", errors="replace")
    if FORGING.search(text):
        return False  # even `return True` is only an expression, for example in `__eq__`
    known = set(WORD.findall(text)) - REACHING
    lines = body.split("\n")[1:]
    added = [line[1:].rstrip("\r") for line in lines if line.startswith("+")]
    if not all(_is_plain_line(line, known) and not READING.search(line) for line in added):
        return False
    removed = {word for line in lines if line.startswith("-") for word in WORD.findall(line)}
    return _stays_inside(text, body, removed)


def _stays_inside(text: str, body: str, used: set[str]) -> bool:
    """Whether the added lines use no new names from outside the function, and assign only to names.

    An imported name may be an object that equals everything, or a function that ends the test; an attribute may belong
    to an object that tests compare.

    Args:
        text: of the file before the change.
        body: of the section, its hunks.
        used: words of the lines that are removed.
    """
    changed = apply_hunks(text, body)
    if changed is None:
        return False
    after, added, _ = changed
    old, new = source_at_base(text), source_of(after)
    if old.tree is None or new.tree is None or not _keeps_texts(old, new):
        return False
    if encodings_of(after) - encodings_of(text):
        return False
    own = _bound(old)
    kept = {ast.unparse(node) for node in old.nodes if _stores_attribute(node)}
    for node in new.nodes:
        if getattr(node, "lineno", 0) not in added:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id not in own and node.id not in used and node.id not in _BUILTINS:
                return False
        elif _stores_attribute(node):
            if ast.unparse(node) not in kept or not ast.unparse(node).startswith("self."):
                return False
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and not _is_name(node.value, own):
            return False
    return True


def _keeps_texts(before: Source, after: Source) -> bool:
    """Whether no new text names a means, or an attribute that `str.format` would read from its arguments."""
    try:
        new = after.texts - before.texts
        formats = _formats(after) - _formats(before)
    except RecursionError:
        return False
    return not formats and not any(is_telling(text) or _FIELD.search(text) for text in new)


def _formats(source: Source) -> set[str]:
    """The objects of the methods `format` and `format_map`, except constants."""
    attributes = [node for node in source.nodes if isinstance(node, ast.Attribute)]
    return {
        ast.unparse(node.value)
        for node in attributes
        if node.attr in ("format", "format_map") and not isinstance(node.value, ast.Constant)
    }


def _is_name(node: ast.AST, own: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in own


def _stores_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def _bound(source: Source) -> set[str]:
    """The names that a file binds other than by an import."""
    found: set[str] = set()
    imported: set[str] = set()
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.alias):
            imported.add((node.asname or node.name).partition(".")[0])
    return found - imported


def _is_plain_line(line: str, known: set[str]) -> bool:
    if _NOT_PLAIN.search(line):
        return False
    code = _STRING.sub(lambda found: found[0] if found[0].startswith("\\") else "0", line).partition("#")[0]
    if '"' in code or "'" in code:
        return False
    words = WORD.findall(code)
    return all(word in _SAFE_KEYWORDS or (word in known and not keyword.iskeyword(word)) for word in words)
