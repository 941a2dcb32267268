"""One file of a patch, whole: before and after it, and which lines it adds."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from swegym_env.repo.patches import FilePatch

__all__ = ["ChangedFile", "read_source"]

_HUNK = re.compile(r"@@ -(?P<start>\d{1,9})(?:,(?P<count>\d{1,9}))? \+")
_MOST_BYTES = 1 << 21


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
        body = section.body.split("\n")
        for number, line in enumerate(body):
            hunk = _HUNK.match(line)
            if not line and number < len(body) - 1:
                line = " "  # an empty line of the file, without the blank that begins it
            if hunk and lines is not None:
                start = max(0, int(hunk["start"]) - (hunk["count"] != "0"))
                if start < done:
                    return None
                before += lines[done:start]
                after += lines[done:start]
                done = start
            elif line.startswith("+"):
                after.append(line[1:])
                added.add(len(after))
            elif line.startswith((" ", "-")):
                if lines is not None:
                    if done >= len(lines) or _plain(lines[done]) != _plain(line[1:]):
                        return None
                    done += 1
                before.append(line[1:])
                after += [line[1:]] * (line[0] == " ")
        if lines is not None:
            before += lines[done:]
            after += lines[done:]
        removed = tuple(line[1:] for line in body if line.startswith("-"))
        return cls(section.new_path or "", "\n".join(before), "\n".join(after), frozenset(added), removed)

    @cached_property
    def _ends(self) -> list[int]:
        return [match.start() for match in re.finditer("\n", self.after)]

    def is_added(self, offset: int) -> bool:
        """Whether a character of `after` stands in an added line."""
        return bisect_right(self._ends, offset) + 1 in self.added


def _plain(line: str) -> str:
    """A line without what another encoding or another end of lines changes."""
    return re.sub(r"[^\x00-\x7f]+", "?", line).rstrip("\r")


def read_source(path: Path) -> str | None:
    """The text of a file of a repository; None if it is none, or a long one."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return None
