"""`report.html`: one evaluation as a page that needs no server and no network.

Text of models and environments is escaped by the template. The page's content security policy allows only the script
that sorts and filters, and no loading of resources.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swe_trainers.evaluation.records import Row
from swe_trainers.evaluation.statistics import wilson
from swe_trainers.evaluation.summary import outcome, task_name
from swe_trainers.evaluation.table import dollars, duration, evaluation_title
from swe_trainers.report.html import render_html

__all__ = ["render_report"]

_PATCH_CHARACTERS = 6_000
"""Limit of one patch on the page; the whole patch is in the episode's folder."""
_ALL_PATCHES = 4_000_000
"""Limit of all patches on the page, so that a page of thousands of episodes can be opened."""
_BINS = 16


@dataclass(frozen=True)
class _Group:
    """The instances of one repository, by the prefix of their names."""

    name: str
    resolved: int
    judged: int
    low: float
    high: float


def render_report(rows: Sequence[Row], summary: Mapping[str, Any], place: Path) -> str:
    """The page.

    Args:
        rows: of `results.jsonl`, in the order of the page.
        summary: of the evaluation.
        place: the folder of the evaluation, with the patches.
    """
    settings = summary["settings"]
    return render_html(
        "swe_trainers.evaluation",
        "report.html.j2",
        "report.js",
        title=evaluation_title(settings["model"], settings["environment"], settings["arguments"]),
        s=summary,
        place=place,
        settings=json.dumps(settings, indent=2),
        kinds=Counter(outcome(row) for row in rows),
        groups=_groups(rows),
        turns=_histogram(rows),
        episodes=_episodes(rows, place),
        dollars=dollars,
        duration=duration,
    )


def _groups(rows: Sequence[Row]) -> list[_Group]:
    """By the prefix of an instance's name before the last hyphen: in SWE-bench its repository."""
    judged: dict[str, list[bool]] = {}
    for row in rows:
        if row["valid"] and row["resolved"] is not None:
            name = task_name(row)
            judged.setdefault(name.rpartition("-")[0] or name, []).append(row["resolved"])
    groups = [_Group(name, sum(won), len(won), *wilson(sum(won), len(won))) for name, won in judged.items()]
    return sorted(groups, key=lambda group: (-group.judged, group.name)) if len(groups) > 1 else []


def _histogram(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Episodes by number of turns: label, resolved, others; bins of equal width, at most `_BINS`."""
    valid = [row for row in rows if row["valid"]]
    if not valid:
        return []
    most = max(row["turns"] for row in valid)
    width = -(-(most + 1) // _BINS)
    bins = [{"label": _label(start, width), "resolved": 0, "other": 0} for start in range(0, most + 1, width)]
    for row in valid:
        found: Any = bins[row["turns"] // width]
        found["resolved" if row["resolved"] else "other"] += 1
    return bins


def _label(start: int, width: int) -> str:
    return str(start) if width == 1 else f"{start} to {start + width - 1}"


def _episodes(rows: Sequence[Row], place: Path) -> list[dict[str, Any]]:
    """The rows with their patches."""
    left = _ALL_PATCHES
    shown = []
    for row in rows:
        path = place / row["episode"] / "patch.diff" if row["episode"] else None
        patch = ""
        if left > 0 and path is not None and path.is_file():
            with path.open("rb") as file:
                patch = file.read(4 * _PATCH_CHARACTERS).decode("utf-8", "replace")[:_PATCH_CHARACTERS]
            left -= len(patch)
        lines = [{"text": line, "kind": _kind(line)} for line in patch.splitlines()]
        shown.append(
            {
                **row,
                "name": task_name(row),
                "kind": outcome(row),
                "patch": lines,
                "cut": len(patch) == _PATCH_CHARACTERS,
            }
        )
    return shown


def _kind(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "meta"
    return {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
