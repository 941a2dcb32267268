"""Writes the results of a benchmark: machine, versions, medians with spread, and ratios inside one run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from swe_trainers.files import write_whole

__all__ = ["RESULTS", "Row", "commit", "cpu_name", "head", "row", "write_results"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Row:
    """One measured quantity: the median of n, with the spread."""

    case: str
    metric: str
    unit: str
    median: float
    p10: float
    p90: float
    n: int


def row(case: str, metric: str, unit: str, values: Sequence[float]) -> Row:
    """Median and spread of some values."""
    low, middle, high = np.percentile(values, [10, 50, 90])
    return Row(case, metric, unit, float(middle), float(low), float(high), len(values))


def write_results(
    name: str,
    rows: Iterable[Row],
    *,
    ratios: Mapping[str, float],
    packages: Sequence[str],
    path: Path | None = None,
    **more: Any,
) -> Path:
    """Write benchmarks/results/NAME.json atomically, with `more` keys after the usual ones."""
    path = path or RESULTS / f"{name}.json"
    result = {
        **head(packages),
        "rows": [asdict(each) for each in rows],
        "ratios": dict(ratios),
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, json.dumps(result, indent=1) + "\n")


def head(packages: Sequence[str] = ()) -> dict[str, Any]:
    """The first keys of a results file: commit, machine, and the versions of Python and of `packages`."""
    return {
        **commit(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
    }


def commit() -> dict[str, Any]:
    """Commit, and whether files other than results differ from it; both are unknown in a copy without git."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != ROOT.resolve():  # no git, or a copy inside another repository
        return {"commit": "unknown", "dirty": None}
    # Without the results: a benchmark that writes them as it goes would make itself dirty.
    changed = _git("-C", top, "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")
    return {"commit": _git("rev-parse", "HEAD") or "unknown", "dirty": bool(changed)}


def _git(*arguments: str) -> str | None:
    """What git prints, or None where there is no git or no repository."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def cpu_name() -> str:
    """The processor's name, by the system."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
