"""The sets of small tasks (`kodcode-mini`, `file-repair-mini`, `vulnerabilities-mini`), one file each in `short/`.

Every fourth entry belongs to the split "test", the others to "train".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swegym_env.errors import UnknownTaskError
from swegym_env.files import read_yaml

__all__ = ["file_repairs", "functions", "vulnerabilities"]


def functions(split: str | None) -> Iterator[dict[str, Any]]:
    """The rows of `kodcode-mini`."""
    yield from _entries("functions.yaml", "kodcode-mini", split)


def file_repairs(split: str | None) -> Iterator[dict[str, Any]]:
    """The rows of `file-repair-mini`: one for each bug of a file."""
    for entry in _entries("file_repair.yaml", "file-repair-mini", split):
        solution, path = entry["solution"], entry["path"]
        for bug in entry["bugs"]:
            yield {
                "instance_id": f"{path.removesuffix('.py')}__{bug['id']}",
                "problem_statement": bug["problem_statement"],
                "path": path,
                "source": solution.replace(bug["correct"], bug["broken"]),
                "solution": solution,
                "tests": entry["tests"],
            }


def vulnerabilities(split: str | None) -> Iterator[dict[str, Any]]:
    """The rows of `vulnerabilities-mini`: the vulnerable and the fixed side of each pair, in an order set by its id."""
    for entry in _entries("vulnerabilities.yaml", "vulnerabilities-mini", split):
        sides = [("vulnerable", 1), ("fixed", 0)]
        if sum(entry["id"].encode()) % 2:
            sides.reverse()
        for letter, (side, label) in zip("ab", sides, strict=True):
            yield {
                "id": f"{entry['id']}-{letter}",
                "text": entry[side],
                "label": label,
                "language": entry["language"],
                "cwe": entry["cwe"] if label else "",
                "explanation": entry["explanation"] if label else "",
                "pair": entry["id"],
            }


def _entries(file: str, dataset: str, split: str | None) -> Iterator[dict[str, Any]]:
    """The entries of one split, or of both. Raises UnknownTaskError: there is no such split."""
    if split not in (None, "train", "test"):
        raise UnknownTaskError(f"{dataset}: no split {split!r}; there are train, test")
    for number, entry in enumerate(read_yaml(Path(__file__).parent / "short" / file), start=1):
        if split in (None, "train" if number % 4 else "test"):
            yield entry
