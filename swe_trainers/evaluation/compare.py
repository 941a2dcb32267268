"""Two evaluations of the same instances, side by side."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.records import read_results
from swe_trainers.evaluation.statistics import Paired, clustered_interval, mcnemar, paired_interval
from swe_trainers.evaluation.summary import outcomes

__all__ = ["Comparison", "Difference", "compare"]

_Z = 1.959963984540054


@dataclass(frozen=True)
class Difference:
    """An instance on which the two are not equal.

    Attributes:
        instance_id: its name.
        first, second: the share of its samples that each solved.
    """

    instance_id: str
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """What the instances say that both have a valid verdict on.

    Attributes:
        first, second: the folders.
        instances: that are compared.
        left_out: instances that only one of them has, or has no valid verdict on.
        rate_first, rate_second: mean shares of solved samples, over the compared instances.
        interval_first, interval_second: of these, at 95 %.
        difference: the second less the first.
        interval: of that, at 95 %: Newcombe's for one sample an instance, else of the instances' mean difference.
        better_first, better_second: instances that the one solved more often.
        equal: the others.
        p_value: exact and two-sided, of so lopsided a split where both are alike: McNemar's test where there is one
            sample of an instance, and with several the sign test that it is a case of.
        test: its name.
        differences: those instances, the worst for the second first.
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
        """As JSON has it."""
        return asdict(self)

    def report(self) -> str:
        """For people."""
        width = max(len(self.first), len(self.second))
        left_out = f", {self.left_out} left out: not valid in both" if self.left_out else ""
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
        ConfigurationError: one of them holds no results, or they share no instance with a verdict.
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
        interval = _mean_interval([b - a for a, b in pairs.values()])
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


def _mean_interval(values: list[float]) -> tuple[float, float]:
    """95 % of a mean by the normal approximation; all there is where there is one value."""
    n = len(values)
    if n < 2:
        return -1.0, 1.0
    mean = math.fsum(values) / n
    half = _Z * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


def _share(rate: float, interval: tuple[float, float]) -> str:
    return f"{rate:6.1%}  ({interval[0]:.1%} to {interval[1]:.1%})"
