"""`curves.png`: the curves of a run as an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swe_trainers.files import replacing
from swe_trainers.logging import read_metrics
from swe_trainers.report.panels import PANELS, metric_names

__all__ = ["plot_metrics"]


def plot_metrics(metrics: str | Path, target: str | Path) -> None:
    """Draw the metrics of a run, with a subplot for each overview panel of each stage that has data.

    Args:
        metrics: a `metrics.jsonl`.
        target: the image file, replaced atomically.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(read_metrics(metrics))
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
    """(title, lines) of each subplot; a line is (label, updates, values). Stages have separate subplots."""
    panels = []
    stages = list(dict.fromkeys(str(row.get("stage", "")) for row in rows))
    for stage in stages:
        of_stage = [row for row in rows if str(row.get("stage", "")) == stage]
        for panel in PANELS:
            lines = [
                (name, [row["update"] for row in measured], [row[name] for row in measured])
                for name in metric_names(panel.metrics, [of_stage])
                if (measured := [row for row in of_stage if row.get(name) is not None])
            ]
            if lines and panel.overview:
                panels.append((f"{stage}: {panel.title}" if len(stages) > 1 else panel.title, lines))
    return panels
