"""What a patch changes: files before and after it, the added lines, and what it adds beyond the gold patch."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from swegym_env.languages import CHANCE, Scrutiny
from swegym_env.repo.patches import FilePatch, without_sections

__all__ = [
    "AddedMeans",
    "ChangedFile",
    "MovedLines",
    "has_kinds_beyond_gold",
    "kept_lines",
    "parts_without_means",
    "read_source",
    "scrutiny_by_means",
    "spliced",
    "unreadable",
]

_HUNK = re.compile(r"@@ -(?P<start>\d{1,9})(?:,(?P<count>\d{1,9}))? \+")
_MOST_BYTES = 1 << 21

AddedMeans = Callable[[str, Path], tuple[frozenset[str], frozenset[str]]]
"""From a patch and the repository at the base commit to the means of forgery that it adds: those that cannot read what
the tests expect, and those that may."""


@dataclass(frozen=True)
class ChangedFile:
    """A file that a patch changes.

    Attributes:
        path: after the patch; empty where the patch deletes it.
        before, after: its text; of a file that the repository has not, what the hunks show of it.
        added: numbers of the lines of `after` that the patch adds, from 1.
        removed: the lines that it removes.
    """

    path: str
    before: str
    after: str
    added: frozenset[int]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, section: FilePatch, base: Path) -> ChangedFile | None:
        """What a section changes in the repository at `base`; None if its hunks do not fit."""
        old = next((text for path in sorted(section.paths) if (text := read_source(base / path)) is not None), None)
        lines = old.split("\n") if old is not None else None
        before: list[str] = []
        after: list[str] = []
        added: set[int] = set()
        done = 0
        for start, hunk in _hunks(section.body):
            if lines is not None:
                begin = _place_of(hunk, lines, start, done)
                if begin is None:
                    return None
                before += lines[done:begin]
                after += lines[done:begin]
                done = begin
            for line in hunk:
                if line.startswith("+"):
                    after.append(line[1:])
                    added.add(len(after))
                else:
                    done += 1
                    before.append(line[1:])
                    after += [line[1:]] * (line[0] == " ")
        if lines is not None:
            before += lines[done:]
            after += lines[done:]
        removed = tuple(line[1:] for line in section.body.split("\n") if line.startswith("-"))
        return cls(section.new_path or "", "\n".join(before), "\n".join(after), frozenset(added), removed)

    @cached_property
    def _ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.after)]

    def is_added(self, offset: int) -> bool:
        """Whether a character of `after` stands in an added line."""
        return bisect_right(self._ends, offset) + 1 in self.added


def kept_lines(
    before: Iterable[tuple[int, Hashable]], after: Iterable[tuple[int, Hashable]], added: Collection[int]
) -> set[int]:
    """The numbers of added lines that their function already had as often.

    Args:
        before, after: number of each line of a file, and what it is: its function and its text, in any form.
        added: numbers of the lines that the patch adds.
    """
    had, now = Counter(line for _, line in before), list(after)
    counts = Counter(line for _, line in now)
    return {number for number, line in now if number in added and counts[line] <= had[line]}


class MovedLines:
    """The lines that a patch removes from a file and may add elsewhere in it, each as often as it removes them.

    Args:
        removed: lines that the patch removes, in any form.
        kept: added lines that stay where they were, in the same form.
    """

    def __init__(self, removed: Iterable[Hashable], kept: Iterable[Hashable]) -> None:
        self._left = Counter(removed) - Counter(kept)

    def take(self, line: Hashable) -> bool:
        """Whether an added line is one of them; it is then used up."""
        is_moved = self._left[line] > 0
        self._left[line] -= is_moved
        return is_moved


def has_kinds_beyond_gold(
    found_in: Callable[[str, Path], frozenset[tuple[str, str]]], patch: str, base: Path, gold: str
) -> bool:
    """Whether a patch brings something of a kind that the gold patch does not.

    Args:
        found_in: what a patch brings to a repository at its base commit, each with its kind and name.
    """
    ways = {kind for kind, _ in _found_in_gold(found_in, gold, base)}
    return any(kind not in ways for kind, _ in found_in(patch, base))


@lru_cache(maxsize=1024)  # as the files at a base commit, the gold patch of a task never changes
def _found_in_gold(
    found_in: Callable[[str, Path], frozenset[tuple[str, str]]], gold: str, base: Path
) -> frozenset[tuple[str, str]]:
    return found_in(gold, base)


def scrutiny_by_means(added: AddedMeans, patch: str, base: Path, gold: str) -> Scrutiny:
    """See `Language.scrutiny_of`: by the means that the patch adds and the gold patch does not."""
    forging, reading = added(patch, base)
    known = frozenset().union(*added(gold, base))
    return Scrutiny(CHANCE, reads=bool(reading - known), required=bool((forging | reading) - known))


def parts_without_means(added: AddedMeans, patch: str, base: Path, gold: str) -> tuple[str, ...]:
    """See `Language.without_means`."""
    known = frozenset().union(*added(gold, base))
    return without_sections(patch, lambda text: bool(frozenset().union(*added(text, base)) - known))


def spliced(source: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """Replace spans of a text; each edit has the begin and the end of its span, and the new text."""
    for begin, end, text in sorted(edits, reverse=True):
        source = source[:begin] + text + source[end:]
    return source


def _hunks(body: str) -> Iterator[tuple[int, list[str]]]:
    """The hunks of a section: the line of the old file that each names, from 0, and its lines with their signs."""
    lines: list[str] = []
    start = 0
    body_lines = body.split("\n")
    for number, line in enumerate(body_lines):
        if match := _HUNK.match(line):
            if lines:
                yield start, lines
            lines, start = [], max(0, int(match["start"]) - (match["count"] != "0"))
        elif not line and number < len(body_lines) - 1:
            lines.append(" ")  # an empty line of the file, without the blank that begins it
        elif line.startswith((" ", "-", "+")):
            lines.append(line)
    if lines:
        yield start, lines


def _place_of(hunk: Sequence[str], lines: Sequence[str], start: int, done: int) -> int | None:
    """Where a hunk stands, after the line `done`: where git puts it, as near to the line that it names as it fits.

    One that names the first line stands there, and one without context after it at the end of the file.
    """
    plain = [_plain(line[1:]) for line in hunk if line[0] != "+"]
    last = len(lines) - (lines[-1:] == [""]) - len(plain)
    places = range(done, last + 1)
    if start == 0:
        places = range(done, min(last, 0) + 1)
    elif hunk[-1][0] != " ":
        places = range(max(done, last), last + 1)

    def fits(at: int) -> bool:
        return plain == [_plain(line) for line in lines[at : at + len(plain)]]

    if start in places and fits(start):
        return start
    first = plain[0] if plain else None
    near = sorted(
        (at for at in places if first in (None, _plain(lines[at]))), key=lambda at: (abs(at - start), at < start)
    )
    return next((at for at in near if fits(at)), None)


def _plain(line: str) -> str:
    """A line without what another encoding or another end of lines changes."""
    return re.sub(r"[^\x00-\x7f]+", "?", line).rstrip("\r")


def unreadable(what: str, text: str) -> str:
    """The name of a means of forgery that cannot be read: what it is, and a hash of its text.

    The gold patch has a means of the same name only if it contains the same text.
    """
    return f"{what}: {hashlib.sha256(text.strip().encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def read_source(path: Path) -> str | None:
    """The text of a file of a repository; None if it is none, or a long one."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return None
