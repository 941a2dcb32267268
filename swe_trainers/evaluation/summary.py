"""The summary of an evaluation, and the comparison of two, from their rows alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.records import FORMAT, Row, read_results
from swe_trainers.evaluation.statistics import (
    Paired,
    clustered_interval,
    mcnemar,
    mean_interval,
    paired_interval,
    pass_at_k,
)

__all__ = ["Comparison", "Difference", "compare", "outcome", "outcomes", "summarise", "task_name"]


def outcome(row: Row) -> str:
    """`resolved`, `failed`, `invalid`; `played` if success is not defined."""
    if not row["valid"]:
        return "invalid"
    return {True: "resolved", False: "failed", None: "played"}[row["resolved"]]


def task_name(row: Row) -> str:
    """The environment's name of the task, if it has one; else the plan's name of the episode."""
    return str(row.get("task_id") or row["instance_id"])


def outcomes(rows: Sequence[Row]) -> dict[str, list[bool]]:
    """Instance → the outcomes of its valid samples, if success is defined."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row["valid"] and row["resolved"] is not None:
            found.setdefault(row["instance_id"], []).append(bool(row["resolved"]))
    return found


def summarise(rows: Sequence[Row], *, planned: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of `summary.json`.

    Rates and means are over valid episodes; tokens, cost and seconds over all, since all were paid for. `cost` is None
    if the cost of one episode is unknown. The interval is Wilson's, at 95 %, corrected for several samples of one
    instance (`clustered_interval`). `pass_at` has the unbiased estimate for each k up to the number of samples, over
    the instances with so many valid ones (`pass_at_instances`).

    Args:
        rows: one per episode.
        planned: number of planned episodes.
        settings: of the evaluation, copied into the summary.
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
        "format": FORMAT,
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


@dataclass(frozen=True)
class Difference:
    """An instance with different results in the two evaluations.

    Attributes:
        instance_id: its name.
        first, second: fraction of its samples that each solved.
    """

    instance_id: str
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """Two evaluations, compared on the instances that have a valid verdict in both.

    Attributes:
        first, second: the folders.
        instances: number of compared instances.
        left_out: excluded instances, without a valid verdict in one of the two.
        rate_first, rate_second: mean fractions of solved samples, over the compared instances.
        interval_first, interval_second: of these, at 95 %.
        difference: the second rate minus the first.
        interval: of the difference, at 95 %: Newcombe's for one sample per instance, else of the mean difference.
        better_first, better_second: instances that one of them solved more often.
        equal: the others.
        p_value: exact and two-sided, for the hypothesis that both are equal: McNemar's test with one sample per
            instance, else the sign test.
        test: its name.
        differences: the instances that differ, the worst for the second first.
    """

    first: str
    second: str
    instances: int
    left_out: int
    rate_first: float
    rate_second: float
    interval_first: tuple[float, float]
    interval_second: tuple[float, float]
    difference: float
    interval: tuple[float, float]
    better_first: int
    better_second: int
    equal: int
    p_value: float
    test: str
    differences: tuple[Difference, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def report(self) -> str:
        """For people."""
        width = max(len(self.first), len(self.second))
        left_out = f", {self.left_out} excluded: not valid in both" if self.left_out else ""
        low, high = self.interval
        split = f"better in A {self.better_first}, better in B {self.better_second}, equal {self.equal}"
        lines = [
            f"{self.instances} instances{left_out}",
            f"A  {self.first:<{width}}  {_share(self.rate_first, self.interval_first)}",
            f"B  {self.second:<{width}}  {_share(self.rate_second, self.interval_second)}",
            f"B − A  {100 * self.difference:+.1f} points (95 % interval {100 * low:+.1f} to {100 * high:+.1f})",
            f"{split}: p = {self.p_value:.3g} ({self.test})",
        ]
        if self.differences:
            longest = max(len("instance"), *(len(each.instance_id) for each in self.differences))
            lines.append(f"\n{'instance':<{longest}}  {'A':>5}  {'B':>5}")
            lines += [f"{d.instance_id:<{longest}}  {d.first:>5.0%}  {d.second:>5.0%}" for d in self.differences]
        return "\n".join(lines)


def compare(first: Path, second: Path) -> Comparison:
    """Compare two evaluations.

    Args:
        first, second: folders that `swe-eval` wrote, finished or not.
    Raises:
        ConfigurationError: a folder holds no results, or no instance has a verdict in both.
    """
    one, other = (outcomes(list(read_results(place).values())) for place in (first, second))
    shared = [name for name in one if name in other]
    if not shared:
        raise ConfigurationError(f"{first} and {second}: no instance has a verdict in both")
    pairs = {name: (sum(one[name]) / len(one[name]), sum(other[name]) / len(other[name])) for name in shared}
    better_first = sum(a > b for a, b in pairs.values())
    better_second = sum(b > a for a, b in pairs.values())
    n = len(shared)
    rates = [math.fsum(pair[side] for pair in pairs.values()) / n for side in (0, 1)]
    single = all(len(one[name]) == len(other[name]) == 1 for name in shared)
    if single:
        both = sum(a == b == 1 for a, b in pairs.values())
        table = Paired(both, better_first, better_second, n - both - better_first - better_second)
        interval = paired_interval(table)
    else:
        interval = mean_interval([b - a for a, b in pairs.values()])
    differences = sorted(
        (Difference(name, a, b) for name, (a, b) in pairs.items() if a != b),
        key=lambda each: (each.second - each.first, each.instance_id),
    )
    return Comparison(
        first=str(first),
        second=str(second),
        instances=n,
        left_out=len(one.keys() | other.keys()) - n,
        rate_first=rates[0],
        rate_second=rates[1],
        interval_first=clustered_interval([one[name] for name in shared]),
        interval_second=clustered_interval([other[name] for name in shared]),
        difference=rates[1] - rates[0],
        interval=interval,
        better_first=better_first,
        better_second=better_second,
        equal=n - better_first - better_second,
        p_value=mcnemar(better_first, better_second),
        test="exact McNemar test" if single else "exact sign test over instances",
        differences=tuple(differences),
    )


def _share(rate: float, interval: tuple[float, float]) -> str:
    return f"{rate:6.1%}  ({interval[0]:.1%} to {interval[1]:.1%})"
