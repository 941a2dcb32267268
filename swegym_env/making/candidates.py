"""All ways to inject one bug into a project, in an order that the seed decides, one kind after the other."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from swegym_env.errors import ConfigurationError
from swegym_env.languages import Language, Splice
from swegym_env.making.code import Code, spliced
from swegym_env.making.operators import OPERATORS
from swegym_env.making.repository import MadeRepository
from swegym_env.making.sources import Source, is_test_of, is_test_path
from swegym_env.repo.patches import parse_patch

__all__ = ["REVERT", "Candidate", "candidates", "injected", "mutations"]

REVERT = "reverted-commit"
"""The kind of a candidate that reverts a commit of the project's own history."""

MAX_LINES_REVERTED = 120
_NOT_SOURCE = re.compile(
    r"(^|/)(docs?|examples?|benchmarks?|scripts?|_?vendor(ed)?|\.[^/]*)/|(^|/)(setup|noxfile)\.py$"
)


@dataclass(frozen=True)
class Candidate:
    """One way to inject a bug.

    Attributes:
        kind: the kind of mistake: a name in `OPERATORS`, or `REVERT`.
        files: path → content with the bug; None where the bug removes the file.
        lines: path → lines (from 1) of the clean project that it changes.
        function: its place, as `path:qualified.name`; the path alone outside of functions.
        commit: the reverted commit, else empty.
    """

    kind: str
    files: Mapping[str, bytes | None] = field(repr=False)
    lines: Mapping[str, frozenset[int]]
    function: str
    commit: str = ""

    @property
    def key(self) -> str:
        """Twelve hex digits; equal for equal contents, whatever the kind."""
        digest = hashlib.sha256()
        for path in sorted(self.files):
            content = self.files[path]
            digest.update(path.encode("utf-8", "surrogateescape") + (b"\0-" if content is None else b"\0+" + content))
        return digest.hexdigest()[:12]


@dataclass(frozen=True)
class _Place:
    """A place for one mistake; the changed file is made only when it is needed."""

    kind: str
    path: str
    content: bytes
    code: Code | None
    splices: tuple[Splice, ...]
    lines: frozenset[int]
    function: str


def candidates(
    source: Source,
    repository: MadeRepository,
    covered: Mapping[str, Collection[int]],
    *,
    seed: int,
    kinds: Collection[str] = (),
) -> Iterator[Candidate]:
    """All ways to break the lines that tests reach, without duplicates; equal arguments give the same sequence.

    Args:
        covered: path → lines that some test reaches, the module's top level included.
        kinds: the kinds of mistakes; empty: all.
    Raises:
        ConfigurationError: an unknown kind.
    """
    unknown = next((kind for kind in kinds if kind not in OPERATORS and kind != REVERT), None)
    if unknown is not None:
        raise ConfigurationError(f"no kind of mistake {unknown!r}; there are {', '.join([*OPERATORS, REVERT])}")
    reached = {
        path: frozenset(lines)
        for path, lines in covered.items()
        if path in source.files and not is_test_path(path) and not _NOT_SOURCE.search(path)
    }
    files = {path: source.files[path][1] for path in reached}
    reverts = _reverts(source, repository) if not kinds or REVERT in kinds else ()
    return _drawn([*_places_in(files, reached, kinds), *reverts], seed)


def mutations(
    files: Mapping[str, bytes], lines: Mapping[str, Collection[int]], *, seed: int, kinds: Collection[str] = ()
) -> Iterator[Candidate]:
    """All ways to break some lines of Python files, without duplicates; equal arguments give the same sequence.

    Args:
        files: path → content; files that this interpreter cannot parse are left out.
        lines: path → the lines, from 1.
        kinds: names of `OPERATORS`; empty: all.
    """
    return _drawn(_places_in(files, lines, kinds), seed)


def injected(source: Source, language: Language, *, seed: int, kinds: Collection[str] = ()) -> Iterator[Candidate]:
    """All ways of a language to break the sources of a project, without duplicates; else as `candidates`.

    Which of them the tests reach is not known.

    Raises:
        ConfigurationError: the language knows no such kind.
    """
    unknown = next((kind for kind in kinds if kind not in language.bug_kinds), None)
    if unknown is not None:
        raise ConfigurationError(f"no kind of mistake {unknown!r}; there are {', '.join(language.bug_kinds)}")
    return _drawn(_injected_places(source, language, kinds), seed)


def _injected_places(source: Source, language: Language, kinds: Collection[str]) -> Iterator[_Place]:
    for path, (_, content) in sorted(source.files.items()):
        if not path.endswith(tuple(language.grammars)) or is_test_of(language, path) or _NOT_SOURCE.search(path):
            continue
        for bug in language.injected_bugs(path, content):
            if not kinds or bug.kind in kinds:
                first = content.count(b"\n", 0, min(one.start for one in bug.splices)) + 1
                last = content.count(b"\n", 0, max(max(one.start, one.stop - 1) for one in bug.splices)) + 1
                function = f"{path}:{bug.function}" if bug.function else path
                lines = frozenset(range(first, last + 1))
                yield _Place(bug.kind, path, content, None, bug.splices, lines, function)


def _places_in(
    files: Mapping[str, bytes], lines: Mapping[str, Collection[int]], kinds: Collection[str]
) -> Iterator[_Place]:
    for path in sorted(lines):
        if path in files and path.endswith(".py"):
            try:
                code = Code(files[path])
            except ValueError:
                continue  # not UTF-8, or syntax of another Python version
            for place in _places(path, code, kinds):
                if place.lines & set(lines[path]):
                    yield place


def _drawn(found: Iterable[_Place | Candidate], seed: int) -> Iterator[Candidate]:
    """The candidates, one of each kind in turn, each kind in an order drawn by `seed`."""
    queues: dict[str, list[_Place | Candidate]] = {}
    for one in found:
        queues.setdefault(one.kind, []).append(one)
    for kind, queue in queues.items():
        random.Random(f"{seed} {kind}").shuffle(queue)
    seen: set[str] = set()
    # Reverted commits come first: real mistakes.
    iterators = {kind: iter(queues[kind]) for kind in sorted(queues, key=lambda kind: (kind != REVERT, kind))}
    while iterators:
        for kind in list(iterators):
            for entry in iterators[kind]:
                candidate = entry if isinstance(entry, Candidate) else _candidate_at(entry)
                if candidate is not None and candidate.key not in seen:
                    seen.add(candidate.key)
                    yield candidate
                    break
            else:
                del iterators[kind]


def _candidate_at(place: _Place) -> Candidate | None:
    """The candidate of a place; None if the edits do not parse or change nothing."""
    if place.code is not None and not place.code.changed_by(place.splices):
        return None
    content = spliced(place.content, place.splices)
    return Candidate(place.kind, {place.path: content}, {place.path: place.lines}, place.function)


def _places(path: str, code: Code, kinds: Collection[str]) -> Iterator[_Place]:
    for node in _breakable(code.tree):
        for kind, operator in OPERATORS.items():
            if kinds and kind not in kinds:
                continue
            for splices in operator(node, code):
                if splices:
                    lines = frozenset(
                        line
                        for splice in splices
                        for line in range(
                            code.line_of(splice.start), code.line_of(max(splice.start, splice.stop - 1)) + 1
                        )
                    )
                    yield _Place(kind, path, code.content, code, splices, lines, _function(path, node, code))


def _breakable(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the project is used: no annotations, f-string contents or `__main__` blocks."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.expr_context):
                continue
            if isinstance(child, ast.If) and re.search(r"TYPE_CHECKING|__name__|version_info", ast.dump(child.test)):
                continue
            yield from _breakable(child)


def _function(path: str, node: ast.AST, code: Code) -> str:
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [outer.name for outer in (node, *code.ancestors(node)) if isinstance(outer, named)]
    return f"{path}:{'.'.join(reversed(names))}" if names else path


def _reverts(source: Source, repository: MadeRepository) -> Iterator[Candidate]:
    """Reverts the source part of commits that changed source and tests; the tests stay unchanged."""
    for commit in source.history:
        python = [part for part in parse_patch(commit.patch) if all(path.endswith(".py") for path in part.paths)]
        reverted = [
            part for part in python if not any(is_test_path(path) or _NOT_SOURCE.search(path) for path in part.paths)
        ]
        changed = sum(line[:1] in ("+", "-") for part in reverted for line in part.body.split("\n"))
        if not reverted or len(reverted) == len(python) or changed > MAX_LINES_REVERTED:
            continue
        files = repository.undo("".join(part.text for part in reverted))
        if files and all(content is not None and _parses(content) for content in files.values()):
            lines = {path: _changed_lines(source.files[path][1], content or b"") for path, content in files.items()}
            yield Candidate(REVERT, files, lines, min(files), commit.commit)


def _parses(content: bytes) -> bool:
    try:
        Code(content)
    except ValueError:
        return False
    return True


def _changed_lines(before: bytes, after: bytes) -> frozenset[int]:
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    return frozenset(
        line
        for tag, start, stop, _, _ in matcher.get_opcodes()
        if tag != "equal"
        for line in range(start + 1, max(stop, start + 1) + 1)
    )
