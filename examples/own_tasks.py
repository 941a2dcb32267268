"""Your own repository as a task set: git repository → tasks → dataset → episode.

    python examples/own_tasks.py                       # a small repository, created by this script
    python examples/own_tasks.py ~/src/project --count 20 --output runs/made/project

The same as `swegym make-tasks`, `swegym grade --predictions gold` and `gymnasium.make(…, dataset="…/tasks.jsonl")`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import gymnasium

import swegym_env  # noqa: F401 - registers SWEBench-v0
from swegym_env.grading.grading import grade
from swegym_env.making.maker import make_tasks
from swegym_env.making.settings import MakeSettings
from swegym_env.making.sources import read_source
from swegym_env.tasks.datasets import load_tasks

SOURCE = """\
def mean(numbers):
    if not numbers:
        return 0
    return sum(numbers) / len(numbers)


def spread(numbers):
    return max(numbers) - min(numbers)
"""
TESTS = """\
from figures import mean, spread


def test_mean():
    assert mean([1, 2, 6]) == 3
    assert mean([]) == 0


def test_spread():
    assert spread([4, 1, 9]) == 8
"""


def small_repository(folder: Path) -> Path:
    """A git repository with one module and its tests; one that is there already is used again."""
    if (folder / ".git").is_dir():
        return folder
    (folder / "tests").mkdir(parents=True)
    (folder / "figures.py").write_text(SOURCE)
    (folder / "tests/test_figures.py").write_text(TESTS)
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-qm", "Figures"],
    ):
        subprocess.run(["git", "-C", str(folder), *command], check=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="your own repository as a task set")
    parser.add_argument("repository", nargs="?", help="default: create a small one")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/made/own"))
    options = parser.parse_args()

    source = options.repository or str(small_repository(options.output.with_name("figures")))
    install = () if options.repository else ("true",)  # the small one needs no installation
    settings = MakeSettings(count=options.count, install=install, requires=("pytest",))
    print(f"making tasks of {source}: each bug that is tried runs the tests", flush=True)
    made = make_tasks(read_source(source), options.output, settings)
    print(f"{len(made.tasks)} tasks, from {made.tests} stable tests; bugs refused: {dict(made.refused)}")

    dataset = str(options.output / "tasks.jsonl")
    tasks = load_tasks(dataset)
    sound = sum(grade(task, task.patch).resolved and not grade(task, "").resolved for task in tasks)

    env = gymnasium.make("SWEBench-v0", dataset=dataset, action_format="raw")
    observation, info = env.reset(seed=0)
    print(f"\n{observation}\n")
    env.step("ls && git log --oneline")
    *_, info = env.step("submit")
    env.close()
    print(json.dumps({"tasks": len(tasks), "sound": sound, "resolved_by_doing_nothing": info["resolved"]}))


if __name__ == "__main__":
    main()
