"""Fractions, intervals and tests against enumeration and published figures."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_trainers.evaluation.statistics import (
    Paired,
    clustered_interval,
    mcnemar,
    mean_interval,
    paired_interval,
    pass_at_k,
    student_t,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_matches_published_values(successes, n, low, high):
    """Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_is_symmetric_and_bounded():
    assert wilson(20, 20) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_clustered_interval_with_one_sample_per_instance_is_wilsons(outcomes):
    assert clustered_interval([[won] for won in outcomes]) == pytest.approx(wilson(sum(outcomes), len(outcomes)))


def test_identical_samples_of_an_instance_count_once():
    groups = [[True] * 4] * 6 + [[False] * 4] * 14
    assert clustered_interval(groups) == pytest.approx(wilson(6, 20))
    assert clustered_interval([[True] * 5] * 8) == pytest.approx(wilson(8, 8))


def test_independent_samples_of_an_instance_count_fully():
    groups = [[True, False]] * 10  # no variance between instances at all
    assert clustered_interval(groups) == pytest.approx(wilson(10, 20))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_pass_at_k_equals_the_fraction_over_all_choices(outcomes, k):
    enough = [group for group in outcomes if len(group) >= k]
    if not enough:
        assert pass_at_k(outcomes, k) is None
        return
    shares = []
    for group in enough:
        choices = list(combinations(group, k))
        shares.append(sum(any(choice) for choice in choices) / len(choices))
    assert pass_at_k(outcomes, k) == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize(("first", "second"), list(product(range(7), range(7))))
def test_mcnemar_equals_enumerated_probability(first, second):
    n = first + second
    splits = [sum(flips) for flips in product((0, 1), repeat=n)]
    as_far = [abs(heads - n / 2) >= abs(first - n / 2) for heads in splits]
    assert mcnemar(first, second) == pytest.approx(sum(as_far) / 2**n)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [((36, 12, 2, 0), 0.0569, 0.3404), ((0, 0, 0, 54), -0.0664, 0.0664), ((30, 0, 0, 0), -0.1135, 0.1135)],
)
def test_paired_interval_matches_published_values(table, low, high):
    """The first: Newcombe 1998 (Statistics in Medicine 17:2635), table III, method 10; the others by hand.

    Where all agree, φ is 0 and each end is √(0² + (z²/(n + z²))²).
    """
    a, only_first, only_second, d = table
    assert paired_interval(Paired(a, only_second, only_first, d)) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_paired_interval_contains_the_difference_and_is_antisymmetric(a, b, c, d):
    low, high = paired_interval(Paired(a, b, c, d))
    turned = paired_interval(Paired(a, c, b, d))
    assert (-turned[1], -turned[0]) == pytest.approx((low, high))
    if a + b + c + d:
        assert -1 - 1e-9 <= low <= (c - b) / (a + b + c + d) <= high <= 1 + 1e-9
    else:
        assert math.isclose(high - low, 2)


@pytest.mark.parametrize(
    ("freedom", "bound"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980), (499, 1.965)],
)
def test_bound_of_students_distribution_matches_the_printed_table(freedom, bound):
    """Abramowitz and Stegun 1964, table 26.10; the last figure by its expansion 26.7.5."""
    assert student_t(freedom) == pytest.approx(bound, abs=6e-4)


def test_interval_of_a_mean_of_few_values_is_as_wide_as_students():
    low, high = mean_interval([0.0, 0.1, 0.2])  # deviation 0.1, so 4.303 · 0.1 / √3 on either side
    assert (low, high) == pytest.approx((0.1 - 0.2484, 0.1 + 0.2484), abs=1e-4)
    assert mean_interval([0.5]) == (-1.0, 1.0)
