"""Timing, the tasks of the benchmark, and the memory of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.records import Row, row
from swegym_env.repo.objects import write_repository
from swegym_env.tasks.task import Task

__all__ = ["Run", "footprint", "milliseconds", "repository_task", "resident_bytes", "small_task", "timed", "tree"]


_T = TypeVar("_T")


@dataclass
class Run:
    """The results of one run of the benchmark.

    Attributes:
        repos: directory of the repositories.
        scale: fraction of the repetitions; 1 for a full run.
        values: case and metric → measured values with their unit.
        targets: name → value, target, and whether less is better.
    """

    repos: Path
    scale: float = 1.0
    values: dict[tuple[str, str], tuple[str, list[float]]] = field(default_factory=dict)
    targets: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, case: str, metric: str, unit: str, *values: float) -> None:
        """Add measured values of one metric."""
        self.values.setdefault((case, metric), (unit, []))[1].extend(values)

    def median(self, case: str, metric: str) -> float:
        """The median of a metric."""
        return row(case, metric, "", self.values[case, metric][1]).median

    def target(self, name: str, value: float, target: float, *, less: bool = True) -> None:
        """Compare a value with its target."""
        self.targets[name] = (value, target, less)

    def times(self, wanted: int) -> int:
        """The number of repetitions for something with `wanted` repetitions in a full run."""
        return max(3, round(wanted * self.scale))

    def rows(self) -> list[Row]:
        """All results."""
        return [row(case, metric, unit, values) for (case, metric), (unit, values) in self.values.items()]


def milliseconds(action: Callable[[], object]) -> float:
    """The duration of an action."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def timed(action: Callable[[], _T]) -> tuple[float, _T]:
    """The milliseconds of an action, and its result."""
    began = time.perf_counter()
    result = action()
    return (time.perf_counter() - began) * 1e3, result


def repository_task(repos: Path, files: int) -> Task:
    """A task whose git repository, created under `repos` at first use, has this many files and an ignore file."""
    clone = repos / f"bench+files-{files}"
    if not clone.is_dir():
        text = "".join(f"value_{number} = {number}\n" for number in range(20))
        content = {f"package_{number // 100}/module_{number}.py": text for number in range(files)}
        clone.mkdir(parents=True)
        (clone / "commit").write_text(write_repository(_made(clone / "repo"), {**content, ".gitignore": "*.log\n"}))
    commit = (clone / "commit").read_text()
    return Task(
        instance_id=f"files-{files}",
        repo=f"bench/files-{files}",
        base_commit=commit,
        problem_statement="p",
        patch="",
    )


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def small_task(number: int) -> Task:
    """A task with a repository of ten files."""
    files = {f"module_{index}.py": f"value = {number}\n" for index in range(10)}
    return Task(instance_id=f"small-{number}", repo="x/y", base_commit="", problem_statement="p", patch="", files=files)


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for one in found:  # grows during the iteration
        try:
            found += [int(word) for word in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        except OSError:
            continue
    return found


def footprint(pids: list[int]) -> dict[str, float]:
    """Proportional set size of processes in megabytes (10⁶ bytes): total, and without the page cache of files."""
    total = files = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        figures = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        total += figures["Pss:"]
        files += figures["Pss_File:"]
    return {"pss": total * 1024 / 1e6, "beyond_page_cache": (total - files) * 1024 / 1e6}


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
