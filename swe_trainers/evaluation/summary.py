"""What an evaluation came to, from its rows alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from swe_trainers.evaluation.records import Row
from swe_trainers.evaluation.statistics import clustered_interval, pass_at_k

__all__ = ["outcome", "outcomes", "summarise"]


def outcome(row: Row) -> str:
    """`solved`, `failed`, `invalid`; `played` where nothing says what success is."""
    if not row["valid"]:
        return "invalid"
    return {True: "solved", False: "failed", None: "played"}[row["resolved"]]


def outcomes(rows: Sequence[Row]) -> dict[str, list[bool]]:
    """Instance → the outcomes of its valid samples, where something says what success is."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row["valid"] and row["resolved"] is not None:
            found.setdefault(row["instance_id"], []).append(bool(row["resolved"]))
    return found


def summarise(rows: Sequence[Row], *, planned: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of `summary.json`.

    Shares and means are of valid episodes; tokens, cost and seconds are of all, for all were paid. `cost` is None where
    one episode has no price. The interval is Wilson's, at 95 %; samples of one instance count for less than as many
    instances (`clustered_interval`). `pass_at` has the unbiased estimate for each k up to the number of samples, of the
    instances with so many valid ones (`pass_at_instances`).

    Args:
        rows: one an episode.
        planned: how many episodes there were to play.
        settings: repeated in it.
    """
    valid = [row for row in rows if row["valid"]]
    groups = outcomes(rows)
    judged = [won for group in groups.values() for won in group]
    samples = int(settings["samples"])
    costs = [row["cost"] for row in rows if row["requests"]]
    totals = {
        name: sum(row[name] for row in rows)
        for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "uncounted_requests")
    }
    return {
        "episodes": len(rows),
        "planned": planned,
        "valid": len(valid),
        "invalid": len(rows) - len(valid),
        "instances": len({row["instance_id"] for row in rows}),
        "resolved": sum(judged) if judged else None,
        "resolve_rate": sum(judged) / len(judged) if judged else None,
        "resolve_rate_95": list(clustered_interval(list(groups.values()))) if judged else None,
        "pass_at": {str(k): pass_at_k(list(groups.values()), k) for k in range(1, samples + 1)} if judged else None,
        "pass_at_instances": {str(k): sum(len(g) >= k for g in groups.values()) for k in range(1, samples + 1)},
        "mean_return": _mean([row["return"] for row in valid]),
        "mean_turns": _mean([row["turns"] for row in valid]),
        "end_reasons": dict(Counter(row["end_reason"] for row in valid).most_common()),
        "failure_reasons": dict(Counter(row["failure_reason"] for row in rows if not row["valid"]).most_common()),
        **totals,
        "cost": None if None in costs else math.fsum(costs),
        "mean_seconds": _mean([row["seconds"] for row in rows]),
        "episode_seconds": math.fsum(row["seconds"] for row in rows),
        "model_seconds": math.fsum(row["model_seconds"] for row in rows),
        "settings": dict(settings),
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
