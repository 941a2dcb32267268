"""Curves of a run, from its `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swe_trainers.logging import read_metrics
from swe_trainers.writing import replacing

__all__ = ["plot_metrics"]

_PANELS = (
    ("Return of training episodes", ("reward_mean",)),
    ("Evaluation", ("eval/success", "eval/resolve_rate", "eval/return")),
    ("Loss", ("loss", "policy_loss", "value_loss")),
    ("Entropy, nats", ("entropy",)),
    ("Divergence, nats a token", ("kl_old", "kl_reference")),
    ("Explained variance", ("explained_variance",)),
    ("Gradient norm", ("grad_norm",)),
    ("Clipped share", ("clip_fraction",)),
)


def plot_metrics(metrics: str | Path, target: str | Path) -> None:
    """Draw what a run measured, one panel a subject of each stage; panels without data are left out.

    Args:
        metrics: a `metrics.jsonl`.
        target: the image, replaced as a whole.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = read_metrics(metrics)
    panels = _panels(rows)
    columns = 2
    height = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(6 * columns, 2.8 * height), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (title, lines) in enumerate(panels, start=1):
        axes = figure.add_subplot(height, columns, number)
        for label, updates, values in lines:
            axes.plot(updates, values, label=label, linewidth=1.2, marker="." if len(updates) < 30 else None)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("update")
        axes.grid(alpha=0.3)
        if len(lines) > 1:
            axes.legend(fontsize=8)
    with replacing(target) as partial:
        figure.savefig(partial, dpi=110, format="png")


def _panels(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, list[int], list[float]]]]]:
    """(title, lines) of each panel; a line is (label, updates, values). Stages differ too much to share one."""
    panels = []
    stages = list(dict.fromkeys(str(row.get("stage", "")) for row in rows))
    for stage in stages:
        here = [row for row in rows if str(row.get("stage", "")) == stage]
        for title, names in _PANELS:
            lines = [
                (name, [row["update"] for row in measured], [row[name] for row in measured])
                for name in names
                if (measured := [row for row in here if row.get(name) is not None])
            ]
            if lines:
                panels.append((f"{stage}: {title}" if len(stages) > 1 else title, lines))
    return panels
