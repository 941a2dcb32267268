"""Public Harbor tasks in our sandboxes: what their own solution and an empty answer earn.

    python -m benchmarks.harbor_tasks FOLDER [--only NAME …] [--backend auto]

FOLDER holds the folders of the tasks named in `TASKS`, which were chosen by their names. Each is built from its
Dockerfile, solved by its `solution/solve.sh`, and graded by its `tests/test.sh`, once with that and once without.
`$SWEGYM_BASE_IMAGES` names bases that this machine cannot pull; `benchmarks/harbor_bases` has those that were used.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from swegym_env.errors import ConfigurationError, InfrastructureError, TaskFormatError
from swegym_env.harbor.state import grade_state, solve, start_task
from swegym_env.harbor.tasks import load_harbor_tasks

# Terminal-Bench's whose folders could be had; EvoEval's and Aider's polyglot exercises drawn at random, the latter
# among the languages whose packages come from Debian, PyPI and npm.
TASKS = (
    "build-cython-ext", "chess-best-move", "configure-git-webserver", "fix-code-vulnerability", "hello-world",
    "polyglot-c-py", "qemu-alpine-ssh", "qemu-startup", "regex-log",
    "28", "41", "57", "82", "89",
    "polyglot_cpp_clock", "polyglot_cpp_knapsack", "polyglot_javascript_forth", "polyglot_javascript_queen-attack",
    "polyglot_python_beer-song", "polyglot_python_paasio",
)  # fmt: skip


def earned(folder: Path, backend: str, *, answered: bool) -> float | str:
    """The reward of a task's own solution, or of an empty answer; the cause where there is none."""
    try:
        [task] = load_harbor_tasks(folder, network=True)
        sandbox = start_task(task, backend=backend)
        try:
            if answered:
                solve(task, sandbox)
            return grade_state(task, sandbox, backend=backend).reward
        finally:
            sandbox.close()
    except (ConfigurationError, InfrastructureError, TaskFormatError) as error:
        return str(error)


def main() -> None:
    """Play the tasks, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=TASKS)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    for name in options.only:
        began = time.monotonic()
        oracle = earned(options.folder / name, options.backend, answered=True)
        empty = earned(options.folder / name, options.backend, answered=False)
        print(f"{name:36} {oracle!s:>6.6} {empty!s:>6.6} {time.monotonic() - began:6.0f} s", flush=True)
        for each in (oracle, empty):
            if isinstance(each, str):
                print(f"    {each}", flush=True)


if __name__ == "__main__":
    main()
