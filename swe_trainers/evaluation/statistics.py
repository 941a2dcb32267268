"""Statistics of success rates: confidence intervals, pass@k, and tests for two paired runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "Paired",
    "clustered_interval",
    "mcnemar",
    "mean_interval",
    "paired_interval",
    "pass_at_k",
    "student_t",
    "wilson",
]

_Z = 1.959963984540054
"""Of the standard normal distribution, for 95 %."""
_CONFIDENCE = 0.95


def wilson(successes: float, n: float, z: float = _Z) -> tuple[float, float]:
    """The score interval of a rate (Wilson 1927); from 0 to 1 without trials.

    Args:
        successes: of `n` trials; both may be fractional, for an effective number of dependent trials.
        n: trials.
        z: 1.96 for 95 %.
    """
    if n <= 0:
        return 0.0, 1.0
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and 1 the formula gives the end itself, except for rounding.
    low = 0.0 if successes <= 0 else max(0.0, middle - half)
    high = 1.0 if successes >= n else min(1.0, middle + half)
    return low, high


def clustered_interval(groups: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """Wilson's interval for several trials of each instance, which are not independent.

    The number of trials is divided by the design effect (Kish 1965, section 5.4): the variance between instances over
    that of independent trials, at least 1. With one trial per instance it is Wilson's own.

    Args:
        groups: the outcomes of each instance.
    """
    groups = [group for group in groups if group]
    n = sum(len(group) for group in groups)
    if not n:
        return 0.0, 1.0
    share = sum(map(sum, groups)) / n
    if 0 < share < 1:
        between = sum((sum(group) - share * len(group)) ** 2 for group in groups) / n**2
        n_effective = n / max(1.0, between / (share * (1 - share) / n))
    else:
        n_effective = float(len(groups))  # all equal: the dependence of samples of one instance cannot be estimated
    return wilson(share * n_effective, n_effective)


def pass_at_k(outcomes: Sequence[Sequence[bool]], k: int) -> float | None:
    """The unbiased probability that one of k samples is right (Chen et al. 2021, eq. 1): mean of 1 − C(n−c, k)/C(n, k).

    Args:
        outcomes: of each instance; those with fewer than k samples are excluded.
        k: samples.
    Returns:
        None if no instance has k samples.
    """
    enough = [group for group in outcomes if len(group) >= k]
    if not enough:
        return None
    chances = [1 - math.comb(len(group) - sum(group), k) / math.comb(len(group), k) for group in enough]
    return math.fsum(chances) / len(chances)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: 2 · P(Binomial(b + c, ½) ≤ min(b, c)), 1 at most.

    Args:
        only_first, only_second: numbers of pairs in which only one of the two succeeded.
    """
    n = only_first + only_second
    tail = sum(math.comb(n, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, tail / 2 ** (n - 1)) if n else 1.0


@dataclass(frozen=True)
class Paired:
    """A 2×2 table: instances solved by both runs, only the first, only the second, neither."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def n(self) -> int:
        """All instances."""
        return self.both + self.only_first + self.only_second + self.neither


def paired_interval(table: Paired) -> tuple[float, float]:
    """95 % interval of the second rate minus the first, for the same instances (Newcombe 1998, method 10).

    It combines the Wilson intervals of both rates by their correlation, and keeps its coverage for few instances and
    for rates near 0 and 1, where the normal approximation does not.
    """
    n = table.n
    if not n:
        return -1.0, 1.0
    first, second = table.both + table.only_first, table.both + table.only_second
    p1, p2 = first / n, second / n
    (l1, u1), (l2, u2) = wilson(first, n), wilson(second, n)
    product = math.sqrt(first * (n - first) * second * (n - second))
    covariance: float = table.both * table.neither - table.only_first * table.only_second
    if covariance > 0:
        covariance = max(covariance - n / 2, 0)
    phi = covariance / product if product else 0.0
    below = (p2 - l2) ** 2 - 2 * phi * (p2 - l2) * (u1 - p1) + (u1 - p1) ** 2
    above = (u2 - p2) ** 2 - 2 * phi * (u2 - p2) * (p1 - l1) + (p1 - l1) ** 2
    difference = p2 - p1
    return difference - math.sqrt(max(0.0, below)), difference + math.sqrt(max(0.0, above))


def mean_interval(values: list[float]) -> tuple[float, float]:
    """95 % interval of a mean in [-1, 1] by Student's t distribution; the whole range for one value."""
    n = len(values)
    if n < 2:
        return -1.0, 1.0
    mean = math.fsum(values) / n
    half = student_t(n - 1) * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


def student_t(freedom: int) -> float:
    """The bound of Student's t distribution that its absolute value exceeds in 5 % of all cases.

    Found by bisection of its distribution function (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).

    Args:
        freedom: degrees of freedom, at least 1.
    """

    def inside(t: float) -> float:
        angle = math.atan(t / math.sqrt(freedom))
        term, total = (math.cos(angle) if freedom % 2 else 1.0), 0.0
        for number in range(1 + freedom % 2, freedom, 2):
            total += term
            term *= number / (number + 1) * math.cos(angle) ** 2
        total *= math.sin(angle)
        return 2 / math.pi * (angle + total) if freedom % 2 else total

    low, high = _Z, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < _CONFIDENCE else (low, middle)
    return high
