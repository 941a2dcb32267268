"""The same scripted episode through mini-swe-agent's own back ends and through ours, in turns, in one run.

    python -m benchmarks.doors [--episodes 5]

An episode: the environment is made, its agent plays 20 turns (reading, searching, one edit), submits, and the
environment is closed. `local` has no sandbox; `singularity` is one `apptainer exec` a command on a directory image of a
few programs, which its authors' class builds for each episode; ours is the task's sandbox, and takes the patch too,
once without a verdict on it and once with one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

from benchmarks.records import row, write_results
from benchmarks.root_file_system import make_root
from swegym_env.tasks.datasets import load_tasks

TASK = load_tasks("mini")["mini__lrucache-001"]
READING = ["ls -a", "cat README.md", "grep -rn evictions lrucache", "wc -l lrucache/*.py", "head -50 lrucache/cache.py"]
EDIT = "sed -i 's/weight >= self.capacity/weight > self.capacity/' lrucache/cache.py"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
COMMANDS = [*(READING * 4)[:18], EDIT, SUBMIT]
PROGRAMS = ("bash", "cat", "grep", "head", "ls", "sed", "wc")
OURS = "swegym_env"


def local(place: Path) -> Any:
    """mini-swe-agent's `local` on a copy of the repository."""
    from minisweagent.environments.local import LocalEnvironment

    folder = Path(tempfile.mkdtemp(dir=place))
    write_files(folder)
    return LocalEnvironment(cwd=str(folder), timeout=60)


def singularity(place: Path) -> Any:
    """mini-swe-agent's `singularity`, with Apptainer, as root in its container where that is allowed."""
    from minisweagent.environments.singularity import SingularityEnvironment

    from benchmarks.env.peer_driver import flags

    root = place / "root"
    if not root.exists():
        make_root(root, PROGRAMS, more=("sys", "root"))
        (root / "etc/localtime").touch()  # without it every command's output begins with a warning
        write_files(root / "testbed")
    return SingularityEnvironment(
        image=str(root), cwd="/testbed", executable="apptainer", timeout=60, exec_args=flags(str(root))
    )


def ours(*, grade: bool) -> Callable[[Path], Any]:
    """This package's environment class."""

    def make(_: Path) -> Any:
        from swegym_env.adapters.mini_swe_agent import SwegymEnvironment

        return SwegymEnvironment(instance=TASK.instance_id, grade=grade)

    return make


BACK_ENDS: dict[str, Callable[[Path], Any]] = {
    "local": local,
    "singularity": singularity,
    OURS: ours(grade=False),
    f"{OURS}, graded": ours(grade=True),
}


def write_files(folder: Path) -> None:
    """The repository of the task."""
    for path, text in TASK.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def play(make: Callable[[Path], Any], place: Path) -> tuple[float, list[float]]:
    """Seconds of an episode, and of each of its turns but the submission."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.test_models import DeterministicModel, make_output

    model = DeterministicModel(outputs=[make_output(command, [{"command": command}]) for command in COMMANDS])
    began = time.perf_counter()
    environment = make(place)
    turns: list[float] = []
    execute = environment.execute

    def timed(action: dict[str, Any], **options: Any) -> dict[str, Any]:
        start = time.perf_counter()
        output: dict[str, Any] = execute(action, **options)
        turns.append(time.perf_counter() - start)
        assert output["returncode"] == 0, output
        return output

    environment.execute = timed
    agent = DefaultAgent(model, environment, system_template="", instance_template="", cost_limit=0)
    ended = agent.run()
    if hasattr(environment, "cleanup"):
        environment.cleanup()
    seconds = time.perf_counter() - began
    assert ended["exit_status"] == "Submitted" and len(turns) == len(COMMANDS) - 1
    return seconds, turns


def main() -> None:
    """Measure, and write benchmarks/results/doors.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=5)
    options = parser.parse_args()
    names = [name for name in BACK_ENDS if name != "singularity" or shutil.which("apptainer")]
    episodes: dict[str, list[float]] = {name: [] for name in names}
    turns: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="swegym-doors-") as folder:
        for number in range(options.episodes + 1):
            for name in names:
                seconds, steps = play(BACK_ENDS[name], Path(folder))
                if number:  # the first one of each builds what the later ones find
                    episodes[name].append(seconds)
                    turns[name] += steps
    rows = [
        each
        for name in names
        for each in (
            row(f"mini-swe-agent, {name}", "episode", "s", episodes[name]),
            row(f"mini-swe-agent, {name}", "turn", "ms", [seconds * 1000 for seconds in turns[name]]),
        )
    ]
    medians = {(each.case, each.metric): each.median for each in rows}
    ratios = {
        f"{metric}: {name} / {OURS}": medians[f"mini-swe-agent, {name}", metric]
        / medians[f"mini-swe-agent, {OURS}", metric]
        for name in names
        if not name.startswith(OURS)
        for metric in ("episode", "turn")
    }
    place = write_results(
        "doors",
        rows,
        ratios=ratios,
        packages=["mini-swe-agent"],
        conditions={"turns": len(COMMANDS), "load": os.getloadavg()[0]},
    )
    for each in rows:
        print(f"{each.case:40} {each.metric:8} {each.median:10.3f} {each.unit} ({each.p10:.3f} to {each.p90:.3f})")
    for name, value in ratios.items():
        print(f"{name:40} {value:10.2f}")
    print(place)


if __name__ == "__main__":
    main()
