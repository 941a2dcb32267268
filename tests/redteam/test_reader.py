"""No reader of a lineup finds the right value more often than its claimed chance."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from pathlib import Path

from swegym_env.repo.patches import touched_paths
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task

from .reader import CHOICES, achieved


def _hidden_tests(task: Task, place: Path) -> dict[str, str]:
    """Path → text of the test files after the test patch."""
    for path in touched_paths(task.test_patch) & task.files.keys():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(task.files[path])
    subprocess.run(["git", "apply", "-"], input=task.test_patch, text=True, cwd=place, check=True)
    return {path: (place / path).read_text() for path in touched_paths(task.test_patch) if (place / path).exists()}


def test_no_program_that_reads_the_values_is_right_more_often_than_claimed(tmp_path: Path) -> None:
    claimed: dict[str, float] = defaultdict(float)
    values: Counter[str] = Counter()
    right: dict[str, Counter[str]] = defaultdict(Counter)
    for number, task in enumerate(load_tasks("mini", select="::8")):
        place = tmp_path / str(number)
        place.mkdir()
        for kind, chance, won in achieved(_hidden_tests(task, place), task.fail_to_pass, 12, number):
            values[kind] += 1
            claimed[kind] += chance
            right[kind].update(won)
    assert values.total() >= 20 and len(values) >= 3, values
    for kind, count in values.items():  # two standard deviations are at most the root of the number
        for name in CHOICES:
            assert right[kind][name] <= claimed[kind] + count**0.5, (kind, name, right[kind][name], claimed[kind])
    best = max(max(found.values(), default=0) for found in right.values())
    assert best, "a reader that is never right would show nothing"
