"""Public Harbor tasks in our sandboxes: what their own solution and an empty answer earn.

    SWEGYM_BASE_IMAGES=benchmarks/harbor_bases python -m benchmarks.harbor_tasks FOLDER [--only NAME …]

FOLDER holds the folders of the tasks named in `TASKS`. EvoEval's and Aider's were migrated by `harbor tasks migrate`;
the scripts of Aider's, which exit before the reward is written, were put in a subshell. `build-cython-ext`, of before
planarity 1.0, was played with PIP_CONSTRAINT naming a file with `planarity<1`.
Each task is built from its Dockerfile, solved by its `solution/solve.sh`, and graded by its `tests/test.sh`, once with
that and once without. Results are kept task by task: `--only` renews some.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, head
from swe_trainers.files import write_whole
from swegym_env.errors import ConfigurationError, InfrastructureError, TaskFormatError
from swegym_env.harbor.state import grade_state, solve, start_task
from swegym_env.harbor.tasks import load_harbor_tasks

# Of Terminal-Bench those whose folders could be had; of EvoEval and Aider's polyglot exercises drawn at random, the
# latter among the languages whose packages come from Debian, PyPI and npm.
TASKS = (
    "build-cython-ext", "chess-best-move", "configure-git-webserver", "fix-code-vulnerability", "hello-world",
    "polyglot-c-py", "qemu-alpine-ssh", "qemu-startup", "regex-log",
    "28", "41", "57", "82", "89",
    "polyglot_cpp_clock", "polyglot_cpp_knapsack", "polyglot_javascript_forth", "polyglot_javascript_queen-attack",
    "polyglot_python_beer-song", "polyglot_python_paasio",
)  # fmt: skip
PLACE = RESULTS / "harbor_tasks.json"


def earned(folder: Path, backend: str, *, answered: bool) -> dict[str, Any]:
    """What a task's own solution earns, or an empty answer: `reward`, None without one, and `last`, a line of why."""
    try:
        [task] = load_harbor_tasks(folder, network=True)
        sandbox = start_task(task, backend=backend)
        try:
            if answered:
                solve(task, sandbox)
            verdict = grade_state(task, sandbox, backend=backend)
        finally:
            sandbox.close()
    except (ConfigurationError, InfrastructureError, TaskFormatError) as error:
        return {"reward": None, "last": str(error)}
    return {"reward": verdict.reward, "last": (verdict.log.strip().splitlines() or [""])[-1][:300]}


def main() -> None:
    """Play the tasks, and write benchmarks/results/harbor_tasks.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=TASKS)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    about, tasks = head(), json.loads(PLACE.read_text())["tasks"] if PLACE.exists() else {}
    made = {key: about.pop(key) for key in ("commit", "dirty")}  # of each task, since not all are renewed
    for name in options.only:
        began = time.monotonic()
        found = {
            who: earned(options.folder / name, options.backend, answered=who == "solution")
            for who in ("solution", "empty")
        }
        rewards = [each["reward"] for each in found.values()]
        tasks[name] = {**found, "seconds": round(time.monotonic() - began), **made}
        print(f"{name:36} {rewards[0]!s:>5} {rewards[1]!s:>5} {tasks[name]['seconds']:6} s", flush=True)
        held = {"solution": 1.0, "empty": 0.0}
        right = [each for each, them in tasks.items() if {who: them[who]["reward"] for who in held} == held]
        written = {**about, "right": len(right), "of": len(tasks), "tasks": {key: tasks[key] for key in sorted(tasks)}}
        write_whole(PLACE, json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
