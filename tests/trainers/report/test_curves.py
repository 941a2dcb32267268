"""Curves, axes and panels of a report."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_trainers.report.panels import Panel, curve, panels_of
from swe_trainers.report.svg import draw, labels, number, ticks


def rows(values, name="x", first=1):
    return [{"update": first + i, name: value} for i, value in enumerate(values)]


def test_each_of_few_updates_is_a_point_without_a_band():
    found = curve("x", [rows([1.0, None, 3.0])])
    assert (found.updates, found.values, found.low, found.high) == ((1, 3), (1.0, 3.0), (1.0, 3.0), (1.0, 3.0))


def test_neighbouring_updates_share_a_point_and_its_band_is_their_spread():
    found = curve("x", [rows([1.0, 3.0, 5.0, 11.0, 2.0])], max_points=3)
    assert (found.updates, found.values) == ((2, 4, 5), (2.0, 8.0, 2.0))
    assert (found.low, found.high) == ((1.0, 5.0, 2.0), (3.0, 11.0, 2.0))


def test_runs_are_averaged_at_the_same_updates_and_the_band_is_over_the_runs():
    found = curve("x", [rows([0.0, 2.0]), rows([4.0, 4.0, 9.0])], max_points=2)
    assert (found.updates, found.values) == ((2, 3), (2.5, 9.0))  # means 1 and 4; then one run alone
    assert (found.low, found.high, found.runs) == ((1.0, 9.0), (4.0, 9.0), 2)


def test_values_that_are_not_finite_numbers_are_skipped():
    assert curve("x", [rows([None, math.nan, "a", True])]) is None
    assert curve("y", [rows([1.0])]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(1, 50))
def test_a_curve_has_at_most_the_given_points_and_stays_between_the_extremes(values, most):
    found = curve("x", [rows(values)], max_points=most)
    assert len(found.updates) <= most
    assert found.updates[-1] == len(values)
    assert min(found.low) == min(values)
    assert max(found.high) == max(values)
    near = 1e-9 * (1 + max(map(abs, values)))
    assert all(a - near <= b <= c + near for a, b, c in zip(found.low, found.values, found.high, strict=True))


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_ticks_cover_the_range_and_are_few(a, b):
    low, high = sorted((a, b))
    marks = ticks(low, high)
    near = 1e-6 * (1 + high - low)
    assert marks[0] <= low + near
    assert marks[-1] >= high - near
    assert 2 <= len(marks) <= 7
    assert marks == sorted(set(marks))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (-1.5, "−1.5"), (0.00034567, "0.00035"), (1234.0, "1234"), (16600, "16.6k"),
     (2.5e6, "2.5M"), (9.1e-8, "9.1e−8")],
)  # fmt: skip
def test_numbers_are_formatted_in_few_characters(value, text):
    assert number(value) == text


def test_labels_of_close_ticks_are_distinct():
    assert labels(ticks(6.9181, 6.9204)) == ["6.918", "6.919", "6.92", "6.921"]
    assert labels(ticks(0, 1)) == ["0", "0.25", "0.5", "0.75", "1"]


def test_phases_of_an_update_are_stacked():
    recorded = [{"update": 1, "seconds/rollout": 2.0, "seconds/update": 3.0}]
    (panel,) = [p for p in panels_of([recorded]) if p.stacked]
    assert [c.name for c in panel.curves] == ["seconds/rollout", "seconds/update"]
    shown = draw(panel)
    top = [float(piece.split('cy="')[1].split('"')[0]) for piece in shown.split("<circle")[1:]]
    # 2 and 5 seconds on an axis from 0 to 6: 174 units high, its foot at 184.
    assert top == pytest.approx([184 - 174 * 2 / 6, 184 - 174 * 5 / 6], abs=0.06)


def test_end_reasons_reward_components_and_invalid_episodes_have_panels():
    recorded = [
        {"update": 1, "reward/step": -0.1, "reward/resolved": 1.0, "environment/end_reason/time": 0.25,
         "environment/end_reason/submitted": 0.75, "episodes": 3.0, "episodes_invalid": 1.0},
    ]  # fmt: skip
    named = {panel.title: panel for panel in panels_of([recorded])}
    assert [c.name for c in named["Reward components"].curves] == ["reward/resolved", "reward/step"]
    assert named["End reasons"].fraction
    (invalid,) = named["Truncated and invalid episodes"].curves
    assert invalid.values == (0.25,)


def test_a_diagram_has_a_description_for_screen_readers():
    panel = Panel("Loss <a>", (curve("loss", [rows([3.0, 1.0], "loss")]),))
    assert 'aria-label="Loss &lt;a&gt;: loss from 3 at update 1 to 1 at update 2, at least 1, at most 3."' in draw(
        panel
    )
