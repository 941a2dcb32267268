"""What a report draws: numbers of one or several runs over their updates, in as many points as a screen can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Curve", "curve"]

MAX_POINTS = 240


@dataclass(frozen=True)
class Curve:
    """One quantity over updates; P points.

    Attributes:
        name: of the metric.
        updates: (P,) the last update of each point.
        values: (P,) means: of the updates that make a point, then of the runs.
        low, high: (P,) over the runs where there are several, else over the updates that make a point.
        runs: how many have it.
    """

    name: str
    updates: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int


def curve(name: str, runs: Sequence[Sequence[Mapping[str, Any]]], *, max_points: int = MAX_POINTS) -> Curve | None:
    """A metric of some runs.

    Neighbouring updates share a point where there are more than fit; all runs are cut at the same updates, and a point
    is drawn from the runs that have it.

    Args:
        name: of the metric.
        runs: rows of each, with an `update` and numbers; rows without the metric, or with null, are passed over.
        max_points: of the curve.
    Returns:
        The curve; None where no row has it.
    """
    found = [[(int(row["update"]), float(row[name])) for row in rows if _is_number(row.get(name))] for rows in runs]
    found = [pairs for pairs in found if pairs]
    if not found:
        return None
    every = sorted({update for pairs in found for update, _ in pairs})
    width = math.ceil(len(every) / max_points)
    edges = [every[min(start + width, len(every)) - 1] for start in range(0, len(every), width)]
    points = [[_within(pairs, edges, index) for index in range(len(edges))] for pairs in map(_sorted, found)]
    values, low, high = [], [], []
    for index in range(len(edges)):
        here = [run[index] for run in points if run[index]]
        means = [sum(inside) / len(inside) for inside in here]
        values.append(sum(means) / len(means))
        spread = means if len(found) > 1 else here[0]
        low.append(min(spread))
        high.append(max(spread))
    return Curve(name, tuple(edges), tuple(values), tuple(low), tuple(high), len(found))


def _sorted(pairs: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted(pairs)


def _within(pairs: Sequence[tuple[int, float]], edges: Sequence[int], index: int) -> list[float]:
    """Values of the updates that belong to a point."""
    from bisect import bisect_right

    after = edges[index - 1] if index else -math.inf
    first, last = (bisect_right(pairs, edge, key=lambda pair: pair[0]) for edge in (after, edges[index]))
    return [value for _, value in pairs[first:last]]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
