"""Snapshot files of Jest and Vitest: what they contain for a test, and the same file without it.

exports[`a suite a test 1`] = `"shown"`;      // with a hint: `a suite a test: hint 1`
exports[`a suite > a test 1`] = `"shown"`;    // Vitest; with a hint: `a suite > a test > hint 1`
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from swegym_env.languages.javascript.source import Test

__all__ = ["SNAPSHOTS", "shown_in", "shown_value", "snapshots_of", "without_shown"]

SNAPSHOTS = ".snap"
_ENTRY = re.compile(r"^exports\[`((?:\\.|[^`\\])*)`\] = `((?:\\.|[^`\\])*)`;\n*", re.MULTILINE | re.DOTALL)
_ESCAPED = re.compile(r"\\([`\\$])")
_PLAIN = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,9})?|true|false|null")


def snapshots_of(path: str) -> str:
    """The path of the file with the snapshots of a test file."""
    place = PurePosixPath(path)
    return str(place.parent / "__snapshots__" / f"{place.name}{SNAPSHOTS}")


def shown_in(source: str, test: Test) -> dict[tuple[str, int], str]:
    """The snapshots of a test in a file: its hint and number → the text; "" if several rows of a table have one."""
    found: dict[tuple[str, int], str] = {}
    for match in _ENTRY.finditer(source):
        if place := _place(match, test):
            found[place] = "" if place in found else _ESCAPED.sub(r"\1", match[2])
    return found


def _place(entry: re.Match[str], test: Test) -> tuple[str, int] | None:
    """The hint and the number of a snapshot; None if it belongs to another test."""
    name = _ESCAPED.sub(r"\1", entry[1])
    for separator in (" > ", " "):
        title = separator.join(f"(?:{part.pattern})" for part in test.title)
        if found := re.fullmatch(rf"{title}(?:(?:: | > )(?P<hint>.*))? (?P<number>\d+)", name, re.DOTALL):
            return found["hint"] or "", int(found["number"])
    return None


def without_shown(source: str, tests: Collection[Test]) -> str:
    """A file without its snapshots of these tests."""
    return "".join(_pieces(source, tests))


def _pieces(source: str, tests: Collection[Test]) -> Iterator[str]:
    begin = 0
    for match in _ENTRY.finditer(source):
        yield source[begin : match.start()]
        begin = match.end() if any(_place(match, test) is not None for test in tests) else match.start()
    yield source[begin:]


def shown_value(text: str, nothing: object) -> object:
    """The text, number or truth value that a snapshot shows; `nothing` for anything else."""
    inner = text[1:-1] if len(text) > 2 and text.startswith("\n") and text.endswith("\n") else text
    if len(inner) > 1 and inner.startswith('"') and inner.endswith('"'):
        return inner[1:-1]
    return json.loads(inner) if _PLAIN.fullmatch(inner) else nothing
