"""Harbor's own command in our sandboxes: `scripts/test_door.sh harbor` runs this.

Besides a task of this machine's own programs, it plays the tasks in the folder `$SWEGYM_HARBOR_TASKS`, if that is set.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.env.harbor.conftest import Make, bases, harbor_place, make_task  # noqa: F401 - fixtures
from tests.programs import ROOT

MORE = os.environ.get("SWEGYM_HARBOR_TASKS")


def rewards(tasks: Path, agent: str, jobs: Path) -> dict[str, float | str]:
    """The reward of each task, or the error of its trial."""
    chosen = ["-p", str(tasks), "-a", agent, "-o", str(jobs), "--job-name", agent, "-n", "1"]
    command = ["harbor", "run", "-y", "-q", *chosen, "--env", "swegym_env.adapters.harbor:SwegymEnvironment"]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    found: dict[str, float | str] = {}
    for place in sorted((jobs / agent).glob("*/result.json")):
        result = json.loads(place.read_text())
        earned = (result.get("verifier_result") or {}).get("rewards") or {}
        error = (result.get("exception_info") or {}).get("exception_message", "no reward")
        found[result["task_name"]] = earned.get("reward", error)
    return found


@pytest.mark.parametrize(("agent", "expected"), [("oracle", 1.0), ("nop", 0.0)])
def test_the_solution_earns_one_and_no_answer_nothing(
    make_task: Make,  # noqa: F811
    tmp_path: Path,
    agent: str,
    expected: float,
) -> None:
    make_task("answer")
    assert set(rewards(tmp_path / "tasks", agent, tmp_path / "jobs").values()) == {expected}


@pytest.mark.skipif(MORE is None, reason="no further tasks: $SWEGYM_HARBOR_TASKS")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("agent", "expected"), [("oracle", 1.0), ("nop", 0.0)])
def test_further_tasks_do_too(tmp_path: Path, agent: str, expected: float) -> None:
    found = rewards(Path(str(MORE)), agent, tmp_path)
    assert found and found == dict.fromkeys(found, expected)
