"""What can be said of a share that was measured: intervals, pass@k, and the comparison of two runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Paired", "clustered_interval", "mcnemar", "paired_interval", "pass_at_k", "wilson"]

_Z = 1.959963984540054
"""Of the standard normal distribution, for 95 %."""


def wilson(successes: float, n: float, z: float = _Z) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927); from 0 to 1 where nothing was measured.

    Args:
        successes: of `n` trials; both may be fractions, where trials depend on one another and count for less.
        n: trials.
        z: 1.96 for 95 %.
    """
    if n <= 0:
        return 0.0, 1.0
    share = successes / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the formula gives the end itself, but for rounding.
    low = 0.0 if successes <= 0 else max(0.0, middle - half)
    high = 1.0 if successes >= n else min(1.0, middle + half)
    return low, high


def clustered_interval(groups: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """Wilson's interval where several trials share an instance, and so say less than as many instances would.

    The number of trials is divided by the design effect (Kish 1965, section 5.4): the variance between instances over
    that of independent trials, never taken to be below 1. With one trial an instance it is Wilson's own.

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
        n_effective = float(len(groups))  # all alike: how much samples of one instance depend cannot be seen
    return wilson(share * n_effective, n_effective)


def pass_at_k(outcomes: Sequence[Sequence[bool]], k: int) -> float | None:
    """The chance that one of k samples is right, without bias (Chen et al. 2021, eq. 1): mean of 1 − C(n−c, k)/C(n, k).

    Args:
        outcomes: of each instance; those with fewer than k samples are left out.
        k: samples.
    Returns:
        None where no instance has k samples.
    """
    enough = [group for group in outcomes if len(group) >= k]
    if not enough:
        return None
    chances = [1 - math.comb(len(group) - sum(group), k) / math.comb(len(group), k) for group in enough]
    return math.fsum(chances) / len(chances)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: 2 · P(Binomial(b + c, ½) ≤ min(b, c)), 1 at most.

    Args:
        only_first, only_second: pairs of which only the one, or only the other, succeeded.
    """
    n = only_first + only_second
    tail = sum(math.comb(n, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, tail / 2 ** (n - 1)) if n else 1.0


@dataclass(frozen=True)
class Paired:
    """A fourfold table: how many instances both solved, only the first, only the second, neither."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def n(self) -> int:
        """All instances."""
        return self.both + self.only_first + self.only_second + self.neither


def paired_interval(table: Paired) -> tuple[float, float]:
    """95 % interval of the second share less the first, of the same instances (Newcombe 1998, method 10).

    It joins the Wilson intervals of both shares by their correlation, and keeps its promise for few instances and for
    shares near 0 and 1, where the normal approximation does not.
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
