"""The report's page: what was run, the figures that matter, diagrams, and a few episodes as a person reads them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from swe_trainers.report.drawing import draw, number
from swe_trainers.report.panels import Panel, panels_of
from swe_trainers.report.runs import RunRecord, differences, read_run
from swe_trainers.report.series import Curve, curve
from swe_trainers.writing import write_whole

__all__ = ["RunningReport", "render_report", "write_report"]

_TABLE_ROWS = 12


def write_report(runs: Sequence[str | Path], target: str | Path | None = None) -> Path:
    """Write the report of a run, or of several that differ in their seed.

    Args:
        runs: their output directories.
        target: the file; `report.html` in the only run where not given, in the working directory for several.
    Returns:
        The file.
    Raises:
        ConfigurationError: there is no run, or it cannot be read.
        OSError: the report cannot be written.
    """
    records = [read_run(run) for run in runs]
    if target is None:
        target = Path(runs[0]) / "report.html" if len(runs) == 1 else Path("report.html")
    return write_whole(target, render_report(records))


class RunningReport:
    """Keeps the report of a run up to date at a cost that stays below a hundredth of its time.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = 0.0

    def refresh(self) -> None:
        """Write the report anew if the last one is old enough.

        Raises:
            OSError: it cannot be written.
        """
        started = time.monotonic()
        if started >= self._next and (self._directory / "metrics.jsonl").is_file():
            write_report([self._directory])
            ended = time.monotonic()
            self._next = ended + max(20.0, 100 * (ended - started))


def render_report(runs: Sequence[RunRecord]) -> str:
    """The page of some runs; nothing in it is fetched from anywhere.

    Args:
        runs: at least one.
    """
    stages = list(dict.fromkeys(stage for run in runs for stage in run.stages()))
    drawn: list[tuple[Panel, str]] = []
    body = [*_head(runs), *_tiles(runs, stages[-1])]
    for stage in stages:
        panels = panels_of([run.of(stage) for run in runs])
        body.append(f"<section><h2>{_text(stage or 'training')}</h2><div class=grid>")
        for panel in panels:
            body.append(_figure(panel, len(drawn)))
            drawn.append((panel, stage))
        body.append("</div></section>")
    if any(c.low != c.high for panel, _ in drawn for c in panel.curves):
        spread = "runs, which the line is the mean of" if len(runs) > 1 else "updates that share a point of the line"
        body.append(f"<p class='note reading'>A band reaches from the least to the greatest of the {spread}.</p>")
    body += _episodes(runs)
    page = files("swe_trainers.report") / "page"
    script = (page / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "HASH": f"sha256-{digest}",
        "TITLE": _text(_title(runs)),
        "STYLE": (page / "page.css").read_text(encoding="utf-8"),
        "BODY": "\n".join(body),
        "DATA": json.dumps([_plain(panel) for panel, _ in drawn]).replace("<", "\\u003c"),
        "SCRIPT": script,
    }
    before, *rest = (page / "page.html").read_text(encoding="utf-8").split("@")
    # Each part is put in once: what stands in one is never taken for the name of another.
    return before + "".join(parts.get(piece, piece) for piece in rest)


def _title(runs: Sequence[RunRecord]) -> str:
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs: {', '.join(run.name for run in runs)}"


def _head(runs: Sequence[RunRecord]) -> Iterator[str]:
    first = runs[0]
    kwargs = first.setting("environment.kwargs") or {}
    played = " ".join(filter(None, [first.setting("environment.id"), str(kwargs.get("dataset") or "")]))
    model = first.setting("model.path") or (first.setting("model.architecture") or {}).get("model_type")
    seeds = [str(run.setting("seed")) for run in runs if run.setting("seed") is not None]
    facts = [first.setting("trainer.algorithm"), played, model, f"seed {', '.join(seeds)}" if seeds else None]
    yield f"<header><div><h1>{_text(_title(runs))}</h1>"
    yield f"<p class=facts>{_text(' · '.join(str(fact) for fact in facts if fact))}</p></div>"
    yield "<button id=theme type=button>light / dark</button></header>"
    different = differences(runs)
    if different:
        shown = ", ".join(different[:8]) + (f" and {len(different) - 8} more" if len(different) > 8 else "")
        yield f"<p class=warning>These runs differ in more than their seed: {_text(shown)}.</p>"


def _tiles(runs: Sequence[RunRecord], stage: str) -> Iterator[str]:
    rows = [run.of(stage) for run in runs]
    yield "<dl class=tiles>"
    for title, names in (
        ("Success", ("eval/success", "eval/resolve_rate")),
        ("Return when measured", ("eval/return",)),
        ("Return in training", ("reward_mean",)),
    ):
        found = next((c for name in names if (c := curve(name, rows, max_points=1 << 30))), None)
        if found is not None:
            spread = f"{number(found.low[-1])} to {number(found.high[-1])}" if len(runs) > 1 else ""
            before = f"<small>{number(found.values[0])} →</small> "
            after = f"{number(found.values[-1])}<small class=spread>{spread}</small>"
            yield f"<div><dt>{title}</dt><dd>{before}{after}</dd></div>"
    updates = max(row["update"] for run in rows for row in run)
    yield f"<div><dt>Updates</dt><dd>{number(updates)}</dd></div>"
    for title, name in (("Episodes learnt from", "episodes"), ("Tokens sampled", "engine/sampled_tokens")):
        total = sum(row.get(name) or 0 for run in rows for row in run)
        if total:
            yield f"<div><dt>{title}</dt><dd>{number(total / len(runs))}<small>{_a_run(runs)}</small></dd></div>"
    seconds = [row["seconds"] for run in runs for row in run.rows[-1:] if row.get("seconds")]
    if seconds:
        yield f"<div><dt>Time</dt><dd>{_duration(sum(seconds) / len(seconds))}<small>{_a_run(runs)}</small></dd></div>"
    yield "</dl>"


def _figure(panel: Panel, index: int) -> str:
    legend = "".join(
        f"<span class=c{i}>{_text(_label(c, panel))} <b>{number(c.values[-1])}</b></span>"
        for i, c in enumerate(panel.curves, start=1)
    )
    return (
        f"<figure data-panel={index}><h3>{_text(panel.title)}</h3><div class=legend>{legend}</div>"
        f"{draw(panel)}<div class=tip hidden></div>"
        f"<figcaption class=note>{_text(panel.note)}</figcaption>"
        f"<details><summary>as a table</summary><div class=scroll>{_table(panel)}</div></details></figure>"
    )


def _table(panel: Panel) -> str:
    longest = max(panel.curves, key=lambda c: len(c.updates))
    step = max(1, -(-len(longest.updates) // _TABLE_ROWS))
    chosen = sorted({*longest.updates[::step], longest.updates[-1]})
    head = "".join(f"<th scope=col>{_text(_label(c, panel))}</th>" for c in panel.curves)
    rows = []
    for update in chosen:
        cells = [dict(zip(c.updates, c.values, strict=True)).get(update) for c in panel.curves]
        row = "".join(f"<td>{'' if cell is None else number(cell)}</td>" for cell in cells)
        rows.append(f"<tr><th scope=row>{update}</th>{row}</tr>")
    return f"<table><thead><tr><th scope=col>update</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _label(c: Curve, panel: Panel) -> str:
    """The metric's name without what the title says already."""
    return c.name.rpartition("/")[2] if panel.stacked or "/" in c.name else c.name


def _plain(panel: Panel) -> list[dict[str, Any]]:
    def few(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    return [
        {
            "label": _label(c, panel),
            "updates": c.updates,
            "values": few(c.values),
            "low": few(c.low),
            "high": few(c.high),
        }
        for c in panel.curves
    ]


def _episodes(runs: Sequence[RunRecord]) -> Iterator[str]:
    """An early, a middle and a late episode of the first run that kept some, and the worst of the last third."""
    kept = next((run.examples for run in runs if run.examples), [])
    if not kept:
        return
    usual = [row for row in kept if row["which"] == "middle"]
    late = [row for row in kept if row["update"] >= usual[-1]["update"] * 2 / 3]
    shown = {
        "early": usual[0],
        "middle": usual[len(usual) // 2],
        "late": usual[-1],
        "worst": min(late, key=lambda row: row["return"]),
    }
    yield "<section><h2>Episodes</h2>"
    yield "<p class=note>The middle one of an update by return; worst: the least return of the last third.</p>"
    for title, row in shown.items():
        yield _episode(title, row)
    yield "</section>"


def _episode(title: str, row: Mapping[str, Any]) -> str:
    ended = row.get("end_reason") or ("terminated" if row["terminated"] else "cut off")
    sign = "good" if row["return"] > 0 else "bad" if row["return"] < 0 else ""
    turns = []
    left_out = row["n_turns"] - len(row["turns"])
    for place, turn in enumerate(row["turns"], start=1):
        gap = left_out and place > len(row["turns"]) // 2
        name = place + left_out if gap else place
        turns.append(
            f"<li class=turn><p>read</p><pre>{_text(turn['observation'])}</pre>"
            f"<p>turn {name} wrote, reward {number(turn['reward'])}</p>"
            f"<pre class=action>{_text(turn['action'])}</pre></li>"
        )
    return (
        f"<details class=episode><summary><b>{title}</b><span>update {row['update']}</span>"
        f"<span class={sign or 'none'}>return {number(row['return'])}</span><span>{row['n_turns']} turns</span>"
        f"<span>{_text(str(ended))}</span></summary><ol>{''.join(turns)}</ol></details>"
    )


def _a_run(runs: Sequence[RunRecord]) -> str:
    return " a run" if len(runs) > 1 else ""


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 3 else f"{hours:.1f} h"


def _text(text: str) -> str:
    return html.escape(text.encode("utf-8", "replace").decode())
