"""Names that are in a table with the name that a test searches for: the whole table contains the right name.

A text with all names of a table passes a test that searches for one of them (`assertIn("EUR", f(2))`). Likewise a text
with all names that several tests search for passes each of them. A user may want such a text, so this is no reason to
reject a patch. But it does not prove that the patch knows which name is right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from swegym_env.grading.bits import leaves
from swegym_env.grading.comparisons import plain_value

__all__ = ["Tables", "count_names", "is_name"]

_NAME = re.compile(r"[^\W\d_][\w.-]{2,39}")
_TEXT = re.compile(r"""(['"])((?:(?!\1)[^\\\n]){1,60})\1""")
# What stands between two texts of one table: a comma, a colon, a value that is no text, a comment, a name.
_BETWEEN = re.compile(
    r"\s*:\s*|\s*(?::[^'\"\n]{0,60})?,\s*(?:[#/][^\n]*\s*)*(?:\w+\s*[:=]\s*)?|[^'\"\n,]{0,20}\n\s*\w+\s*=\s*"
)
_LEAST, _MOST = 3, 200


def is_name(value: Any) -> bool:
    """Whether this may be one of the names of a table."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


class Tables:
    """Finds the tables that contain names, while another reader iterates over the files.

    Args:
        names: names to look for.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._found: dict[str, set[str]] = {name: set() for name in names}
        self._marks = [name.encode() for name in names]

    def reading(self, contents: Iterable[bytes]) -> Iterator[bytes]:
        """Yields these contents, and records the tables in each."""
        for content in contents:
            if any(mark in content for mark in self._marks):
                for table in _tables(content.decode("utf-8", "replace")):
                    for name in self._found.keys() & table:
                        self._found[name] |= table
            yield content

    def companions(self) -> dict[str, frozenset[str]]:
        """Each name → the other names of its tables, as far as they were read."""
        return {name: frozenset(sorted(others - {name})[:_MOST]) for name, others in self._found.items()}


def _tables(text: str) -> Iterator[set[str]]:
    """The names of each table in a source text."""
    table: set[str] = set()
    end = -1
    for match in _TEXT.finditer(text):
        if end < 0 or match.start() - end > 200 or not _BETWEEN.fullmatch(text, end, match.start()):
            if len(table) >= _LEAST:
                yield table
            table = set()
        if is_name(match[2]):
            table.add(match[2])
        end = match.end()
    if len(table) >= _LEAST:
        yield table


def count_names(names: Sequence[str], value: Any) -> int:
    """How many of these names are words in the texts of a value."""
    if not names:
        return 0
    text = "\n".join(leaf for leaf in leaves(plain_value(value)) if isinstance(leaf, str))
    return sum(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None for name in names)
