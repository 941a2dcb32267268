"""The report of a run, or of several that differ in their seed: settings, key figures, diagrams and some episodes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from swe_trainers.errors import ConfigurationError
from swe_trainers.files import write_whole
from swe_trainers.logging import read_metrics
from swe_trainers.report.examples import read_examples
from swe_trainers.report.html import render_html
from swe_trainers.report.panels import EPISODES, RESULTS, SPEED, Curve, Panel, curve, panels_of
from swe_trainers.report.svg import draw, number

__all__ = ["RunRecord", "RunningReport", "differences", "read_run", "write_report"]

_TABLE_ROWS = 12


def write_report(runs: Sequence[str | Path], target: str | Path | None = None) -> Path:
    """Write the report of a run, or of several that differ in their seed.

    Args:
        runs: their output directories.
        target: the file; by default `report.html`, in the run's directory or, for several runs, in the working
            directory.
    Returns:
        The file.
    Raises:
        ConfigurationError: there is no run, or it cannot be read.
        OSError: the report cannot be written.
    """
    records = [read_run(run) for run in runs]
    if target is None:
        target = Path(runs[0]) / "report.html" if len(runs) == 1 else Path("report.html")
    evaluations = [
        (record.name, os.path.relpath(path, Path(target).parent))
        for record, run in zip(records, runs, strict=True)
        if (path := Path(run) / "evaluation" / "report.html").is_file()
    ]
    return write_whole(target, _rendered(records, evaluations))


class RunningReport:
    """Updates the report of a run while it trains, in less than a hundredth of its time.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = 0.0

    def refresh(self) -> None:
        """Write the report again if the last one is old enough.

        Raises:
            OSError: it cannot be written.
        """
        started = time.monotonic()
        if started >= self._next and (self._directory / "metrics.jsonl").is_file():
            write_report([self._directory])
            ended = time.monotonic()
            self._next = ended + max(20.0, 100 * (ended - started))


@dataclass(frozen=True)
class RunRecord:
    """What a run's directory holds.

    Attributes:
        name: of the directory.
        config: the resolved configuration; empty if there is none.
        rows: of `metrics.jsonl`.
        examples: of `examples.jsonl`.
        changes: of `changes.jsonl`: settings that were changed when the run was resumed.
    """

    name: str
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    examples: Sequence[Mapping[str, Any]]
    changes: Sequence[Mapping[str, Any]] = ()

    def stages(self) -> list[str]:
        """The stages in `rows`, in order."""
        return list(dict.fromkeys(str(row.get("stage", "")) for row in self.rows))

    def of(self, stage: str) -> list[Mapping[str, Any]]:
        """The rows of a stage."""
        return [row for row in self.rows if str(row.get("stage", "")) == stage]

    def setting(self, dotted: str) -> Any:
        """A value of the configuration, or None."""
        value: Any = self.config
        for key in dotted.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run(directory: str | Path) -> RunRecord:
    """Read the directory of a run.

    Raises:
        ConfigurationError: nothing is recorded there, or it cannot be read.
    """
    directory = Path(directory)
    metrics = directory / "metrics.jsonl"
    if not metrics.is_file():
        raise ConfigurationError(f"{directory}: no metrics.jsonl there. Try: the output_dir of a swe-train run")
    try:
        rows = [row for row in read_metrics(metrics) if isinstance(row.get("update"), int)]
        config = yaml.safe_load((directory / "config.yaml").read_text()) if (directory / "config.yaml").exists() else {}
        examples = read_examples(directory / "examples.jsonl")
        changed = directory / "changes.jsonl"
        changes = [json.loads(line) for line in changed.read_text().splitlines()] if changed.exists() else []
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigurationError(f"{directory}: the run cannot be read: {reason}") from error
    if not rows:
        raise ConfigurationError(f"{metrics}: no update is recorded yet")
    return RunRecord(directory.resolve().name, config if isinstance(config, dict) else {}, rows, examples, changes)


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """The settings, by dotted name, in which runs differ besides `seed` and `output_dir`."""

    def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in values.items():
            if isinstance(value, Mapping):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", value

    settings = [dict(flat(run.config)) for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    return [
        name
        for name in names
        if name not in ("seed", "output_dir") and len({repr(values.get(name)) for values in settings}) > 1
    ]


def _rendered(runs: Sequence[RunRecord], evaluations: Sequence[tuple[str, str]]) -> str:
    """The page; `evaluations` has names of runs with the addresses of the reports of their evaluations."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"
    stages: dict[str, dict[str, list[dict[str, Any]]]] = {}  # stage → section → panels
    data: list[list[dict[str, Any]]] = []  # of each panel, for the page's script
    has_bands = False
    for stage in dict.fromkeys(stage for run in runs for stage in run.stages()):
        sections: dict[str, list[dict[str, Any]]] = {name: [] for name in (RESULTS, "Learning", EPISODES, SPEED)}
        for panel in panels_of([run.of(stage) for run in runs]):
            labels = [
                c.name.rpartition("/")[2] if panel.stacked or "/" in c.name else c.name for c in panel.curves
            ]  # without what the title contains already
            sections[panel.section].append(
                {
                    "index": len(data),
                    "title": panel.title,
                    "note": panel.note,
                    "legend": [(label, c.values[-1]) for label, c in zip(labels, panel.curves, strict=True)],
                    "svg": draw(panel),
                    "table": _table(panel),
                }
            )
            data.append([_points(label, c) for label, c in zip(labels, panel.curves, strict=True)])
            has_bands = has_bands or any(c.low != c.high for c in panel.curves)
        stages[stage] = {name: panels for name, panels in sections.items() if panels}
    spread = "runs, the line is their mean" if len(runs) > 1 else "updates that share a point of the line"
    return render_html(
        "swe_trainers.report",
        "page.html.j2",
        "page.js",
        title=title,
        facts=_facts(runs),
        differences=differences(runs),
        evaluations=evaluations,
        tiles=list(_tiles(runs, list(stages)[-1])),
        stages=stages,
        spread=spread if has_bands else "",
        episodes=_episodes(runs),
        data=data,
        number=number,
    )


def _facts(runs: Sequence[RunRecord]) -> str:
    """Algorithm, environment, model and seeds in one line."""
    first = runs[0]
    kwargs = first.setting("environment.kwargs") or {}
    environment = " ".join(filter(None, [first.setting("environment.id"), str(kwargs.get("dataset") or "")]))
    model = first.setting("model.path") or (first.setting("model.architecture") or {}).get("model_type")
    seeds = [str(run.setting("seed")) for run in runs if run.setting("seed") is not None]
    facts = [first.setting("trainer.algorithm"), environment, model, f"seed {', '.join(seeds)}" if seeds else None]
    for run in runs:
        named = f" of {run.name}" if len(runs) > 1 else ""
        for row in run.changes:
            changed = (f"{name} {each['from']} → {each['to']}" for name, each in row["changes"].items())
            facts.append(f"changed{named} after update {row['update']}: {', '.join(changed)}")
    return " · ".join(str(fact) for fact in facts if fact)


def _tiles(runs: Sequence[RunRecord], stage: str) -> Iterator[dict[str, str]]:
    """Key figures of a stage."""
    rows = [run.of(stage) for run in runs]
    for title, names in (
        ("Evaluation success", ("eval/success", "eval/resolve_rate")),
        ("Evaluation return", ("eval/return",)),
        ("Training return", ("reward_mean",)),
    ):
        found = next((c for name in names if (c := curve(name, rows, max_points=1 << 30))), None)
        if found is not None:
            spread = f"{number(found.low[-1])} to {number(found.high[-1])}" if len(runs) > 1 else ""
            yield {
                "title": title,
                "first": number(found.values[0]),
                "value": number(found.values[-1]),
                "note": spread,
            }
    per_run = " per run" if len(runs) > 1 else ""
    tiles = [("Updates", number(max(row["update"] for run in rows for row in run)), "")]
    for title, name in (("Episodes trained on", "episodes"), ("Tokens sampled", "engine/sampled_tokens")):
        total = sum(row.get(name) or 0 for run in rows for row in run)
        if total:
            tiles.append((title, number(total / len(runs)), per_run))
    seconds = [row["seconds"] for run in runs for row in run.rows[-1:] if row.get("seconds")]
    if seconds:
        mean = sum(seconds) / len(seconds)
        minutes, hours = mean / 60, mean / 3600
        shown = f"{mean:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 3 else f"{hours:.1f} h"
        tiles.append(("Time", shown, per_run))
    for title, value, note in tiles:
        yield {"title": title, "first": "", "value": value, "note": note}


def _table(panel: Panel) -> list[tuple[int, list[float | None]]]:
    """Some updates of a panel, evenly spread, with the value of each curve."""
    longest = max(panel.curves, key=lambda c: len(c.updates))
    step = max(1, -(-len(longest.updates) // _TABLE_ROWS))
    updates = sorted({*longest.updates[::step], longest.updates[-1]})
    columns = [dict(zip(c.updates, c.values, strict=True)) for c in panel.curves]
    return [(update, [column.get(update) for column in columns]) for update in updates]


def _points(label: str, c: Curve) -> dict[str, Any]:
    def short(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    return {
        "label": label,
        "updates": c.updates,
        "values": short(c.values),
        "low": short(c.low),
        "high": short(c.high),
    }


def _episodes(runs: Sequence[RunRecord]) -> dict[str, Mapping[str, Any]]:
    """An early, a middle and a late episode of the first run that kept some, and the worst of the last third."""
    kept = next((run.examples for run in runs if run.examples), [])
    if not kept:
        return {}
    median = [row for row in kept if row["which"] == "middle"]
    late = [row for row in kept if row["update"] >= median[-1]["update"] * 2 / 3]
    return {
        "early": median[0],
        "middle": median[len(median) // 2],
        "late": median[-1],
        "worst": min(late, key=lambda row: row["return"]),
    }
