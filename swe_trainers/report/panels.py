"""What a report draws: the table of panels by metric keys, and curves of one or several runs over their updates."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["PANELS", "Curve", "Panel", "PanelRow", "curve", "metric_names", "panels_of"]

Rows = Sequence[Mapping[str, Any]]

MAX_POINTS = 240


@dataclass(frozen=True)
class PanelRow:
    """One row of the table of panels.

    Attributes:
        title: the caption.
        metrics: keys of `metrics.jsonl`; a key that ends with a slash stands for all keys with that prefix.
        note: how to read it, in a sentence.
        fraction: the values are fractions, from 0 to 1.
        overview: is also part of `curves.png`.
        section: of the page.
    """

    title: str
    metrics: tuple[str, ...]
    note: str = ""
    fraction: bool = False
    overview: bool = False
    section: str = "Learning"


RESULTS, EPISODES, SPEED = "Results", "Episodes", "Speed"
PANELS = (
    PanelRow(
        "Evaluation success", ("eval/success", "eval/resolve_rate"), fraction=True, overview=True, section=RESULTS
    ),
    PanelRow("Evaluation return", ("eval/return",), overview=True, section=RESULTS),
    PanelRow(
        "Training return",
        ("reward_mean", "environment_reward_mean"),
        "Mean of the episodes.",
        overview=True,
        section=RESULTS,
    ),
    PanelRow("Reward components", ("reward/",), "Sum over an episode, mean of the episodes.", section=EPISODES),
    PanelRow("Loss", ("loss", "policy_loss", "value_loss"), overview=True),
    PanelRow("Entropy", ("entropy",), "Nats per token. Near 0 the policy no longer explores.", overview=True),
    PanelRow("KL to the reference", ("kl/reference",), "Nats per token.", overview=True),
    PanelRow("KL to the sampling policy", ("kl/old",), "Nats per token.", overview=True),
    PanelRow("KL coefficient", ("kl/coefficient",)),
    PanelRow(
        "Representation",
        ("representation/",),
        "Spread of the hidden states over different observations, and nats that an action's first token has about "
        "them. If both fall towards 0, the policy no longer sees what it observes.",
    ),
    PanelRow("Clip fraction", ("clip_fraction",), "Tokens whose gradient is clipped.", fraction=True, overview=True),
    PanelRow(
        "Explained variance",
        ("explained_variance",),
        "Of the returns, by the critic; 0 is no better than their mean.",
        overview=True,
    ),
    PanelRow("Gradient norm", ("grad_norm", "critic_grad_norm"), "Before clipping.", overview=True),
    PanelRow("Tokens per episode", ("length/tokens", "length/action_tokens", "length/tokens_max"), section=EPISODES),
    PanelRow("Turns per episode", ("turns_mean",), section=EPISODES),
    PanelRow("End reasons", ("environment/end_reason/",), "Fraction of the episodes.", fraction=True, section=EPISODES),
    PanelRow(
        "Truncated and invalid episodes",
        ("truncated_fraction", "invalid_fraction"),
        "Truncated: ended by a limit. Invalid: excluded from training.",
        fraction=True,
        section=EPISODES,
    ),
    PanelRow("Training success", ("environment/resolved",), "Resolved tasks.", fraction=True, section=RESULTS),
    PanelRow(
        "Patch size",
        ("patch/lines_added", "patch/lines_removed", "patch/files"),
        "Lines and files, mean of the episodes.",
        section=EPISODES,
    ),
    PanelRow("Effective sample fraction", ("effective_sample_fraction",), fraction=True),
    PanelRow("Log-probability gap", ("logprob_gap", "engine/probe_gap"), "Between engine and trainer, nats per token."),
    PanelRow("Learning rate", ("learning_rate",)),
    PanelRow("Episodes per second", ("episodes_per_second",), "While episodes are played.", section=SPEED),
    PanelRow(
        "Where an episode spends its time",
        ("episode_time/",),
        "The greatest share limits the rate.",
        fraction=True,
        section=SPEED,
    ),
)
_PHASES = ("seconds/rollout", "seconds/update")


@dataclass(frozen=True)
class Curve:
    """One metric over updates; P points.

    Attributes:
        name: of the metric.
        updates: (P,) the last update of each point.
        values: (P,) means over the updates of a point, then over the runs.
        low, high: (P,) extremes over the runs, or, of a single run, over the updates of a point.
        runs: number of runs that have the metric.
    """

    name: str
    updates: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    runs: int


@dataclass(frozen=True)
class Panel:
    """One diagram.

    Attributes:
        title: the caption.
        curves: at most six.
        note: how to read it, in a sentence.
        fraction: the values are fractions, from 0 to 1.
        stacked: curves add up and are drawn on top of one another.
        section: of the page.
    """

    title: str
    curves: tuple[Curve, ...]
    note: str = ""
    fraction: bool = False
    stacked: bool = False
    section: str = "Learning"


def panels_of(runs: Sequence[Rows]) -> list[Panel]:
    """The panels of one stage that have data.

    Args:
        runs: rows of each run, of one stage.
    """
    runs = [[_with_derived_metrics(row) for row in rows] for rows in runs]

    def curves(names: Iterable[str]) -> tuple[Curve, ...]:
        return tuple(filter(None, (curve(name, runs) for name in names)))[:6]

    panels = [
        Panel(row.title, found, row.note, row.fraction, section=row.section)
        for row in PANELS
        if (found := curves(metric_names(row.metrics, runs)))
    ]
    if phases := curves(_PHASES):
        panels.append(Panel("Seconds per update", phases, "Phases on top of one another.", stacked=True, section=SPEED))
    if speeds := curves(("tokens_per_second/rollout", "tokens_per_second/update")):
        note = "Rollout: sampled tokens, time of the environment included. Update: tokens trained on."
        panels.append(Panel("Tokens per second", speeds, note, section=SPEED))
    return panels


def metric_names(patterns: Sequence[str], runs: Sequence[Rows]) -> Iterator[str]:
    """The metrics of a panel; a pattern that ends with a slash stands for all keys with that prefix."""
    for pattern in patterns:
        if pattern.endswith("/"):
            yield from sorted({name for rows in runs for row in rows for name in row if name.startswith(pattern)})
        else:
            yield pattern


def _with_derived_metrics(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with the fraction of invalid episodes and the tokens per second of rollout and update."""
    derived: dict[str, float] = {}
    invalid, trained = row.get("episodes_invalid"), row.get("episodes")
    if invalid is not None and trained:
        derived["invalid_fraction"] = invalid / (invalid + trained)
    for phase, tokens in (("rollout", "engine/sampled_tokens"), ("update", "tokens")):
        if row.get(tokens) and row.get(f"seconds/{phase}"):
            derived[f"tokens_per_second/{phase}"] = row[tokens] / row[f"seconds/{phase}"]
    return {**row, **derived}


def curve(name: str, runs: Sequence[Rows], *, max_points: int = MAX_POINTS) -> Curve | None:
    """A metric of some runs.

    If there are more updates than points, neighbouring updates share a point. All runs are cut at the same updates; a
    point is the mean of the runs that have it.

    Args:
        name: of the metric.
        runs: rows of each, with an `update` and numbers; rows without a finite number for the metric are skipped.
        max_points: of the curve.
    Returns:
        The curve; None if no row has the metric.
    """
    pairs_of_runs = [
        sorted((int(row["update"]), float(row[name])) for row in rows if _is_number(row.get(name))) for rows in runs
    ]
    pairs_of_runs = [pairs for pairs in pairs_of_runs if pairs]
    if not pairs_of_runs:
        return None
    updates = sorted({update for pairs in pairs_of_runs for update, _ in pairs})
    width = math.ceil(len(updates) / max_points)
    edges = [updates[min(start + width, len(updates)) - 1] for start in range(0, len(updates), width)]
    values, low, high = [], [], []
    after = -math.inf
    for edge in edges:
        in_point = []  # the values of each run that has some between `after` and `edge`
        for pairs in pairs_of_runs:
            first, last = (bisect_right(pairs, end, key=lambda pair: pair[0]) for end in (after, edge))
            if first < last:
                in_point.append([value for _, value in pairs[first:last]])
        means = [sum(inside) / len(inside) for inside in in_point]
        values.append(sum(means) / len(means))
        spread = means if len(pairs_of_runs) > 1 else in_point[0]
        low.append(min(spread))
        high.append(max(spread))
        after = edge
    return Curve(name, tuple(edges), tuple(values), tuple(low), tuple(high), len(pairs_of_runs))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
