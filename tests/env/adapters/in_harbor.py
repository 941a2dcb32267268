"""Harbor's own command in our sandboxes: `scripts/test_adapter.sh harbor` runs this.

Besides a task of this machine's own programs, it plays the tasks in the folder `$SWEGYM_HARBOR_TASKS`, if that is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from swegym_env.adapters.harbor import SwegymEnvironment
from swegym_env.errors import SandboxError
from swegym_env.sandbox.linux.processes import descendants
from tests.env.harbor.conftest import NO_NETWORK, Make, bases, harbor_place, make_task  # noqa: F401 - fixtures
from tests.env.sandbox.test_reaping import commands, eventually, gone, sandboxes, users
from tests.places import own_run_directory
from tests.programs import ROOT

MORE = os.environ.get("SWEGYM_HARBOR_TASKS")


def run(tasks: Path, agent: str, jobs: Path) -> list[str]:
    """Harbor's command that plays the tasks."""
    chosen = ["-p", str(tasks), "-a", agent, "-o", str(jobs), "--job-name", agent, "-n", "1"]
    return ["harbor", "run", "-y", "-q", *chosen, "--env", "swegym_env.adapters.harbor:SwegymEnvironment"]


def own() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def rewards(tasks: Path, agent: str, jobs: Path) -> dict[str, float | str]:
    """The reward of each task, or the error of its trial."""
    ran = subprocess.run(run(tasks, agent, jobs), env=own(), capture_output=True, text=True, check=False)
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


def test_an_agent_that_runs_out_of_time_is_ended_and_its_work_is_tested(
    make_task: Make,  # noqa: F811
    tmp_path: Path,
) -> None:
    solution = {"solution/solve.sh": "#!/bin/bash\necho 42 > /app/answer\nsleep 1000\n"}
    make_task("slow", toml=f"{NO_NETWORK}\n[agent]\ntimeout_sec = 5.0\n", files=solution)
    assert set(rewards(tmp_path / "tasks", "oracle", tmp_path / "jobs").values()) == {1.0}


def test_a_cancelled_command_ends_and_the_sandbox_goes_on(make_task: Make, tmp_path: Path) -> None:  # noqa: F811
    folder = make_task("answer")
    paths = TrialPaths(tmp_path / "trial")
    paths.mkdir()
    environment = SwegymEnvironment(
        environment_dir=folder / "environment",
        environment_name="answer",
        session_id="cancelled",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(),
    )

    async def play() -> None:
        await environment.start(force_build=False)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(environment.exec("echo begun >/app/begun; sleep 1000"), 3)
        shown = await asyncio.wait_for(environment.exec("cat /app/begun"), 30)
        assert str(shown.stdout).endswith("begun\n")  # bash may miss a locale in this image, and says so
        running = asyncio.ensure_future(environment.exec("sleep 1000"))
        await asyncio.sleep(1)
        await asyncio.wait_for(environment.stop(delete=True), 30)
        with contextlib.suppress(SandboxError):
            await asyncio.wait_for(running, 30)
        with pytest.raises(SandboxError, match="was not started"):
            await environment.exec("true")

    asyncio.run(play())


def test_what_the_machine_breaks_has_no_reward(
    make_task: Make,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_task("answer")
    monkeypatch.setenv("SWEGYM_RUNDIR", "/proc/none")
    (error,) = rewards(tmp_path / "tasks", "oracle", tmp_path / "jobs").values()
    assert isinstance(error, str) and "no place for a sandbox" in error


def test_nothing_is_left_when_harbor_is_killed(make_task: Make, tmp_path: Path) -> None:  # noqa: F811
    make_task("slow", files={"solution/solve.sh": "#!/bin/bash\nsetsid sleep 1000 &\nsleep 1000\n"})
    with own_run_directory() as place:
        command = run(tmp_path / "tasks", "oracle", tmp_path / "jobs")
        with subprocess.Popen(command, env=own(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            assert eventually(lambda: any(b"sleep" in line for line in commands(descendants(process.pid))))
            assert users(place) and sandboxes(place)
            below = descendants(process.pid)
            process.kill()
        assert eventually(lambda: not users(place) and not sandboxes(place))
        assert gone(below)


@pytest.mark.skipif(MORE is None, reason="no further tasks: $SWEGYM_HARBOR_TASKS")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("agent", "expected"), [("oracle", 1.0), ("nop", 0.0)])
def test_further_tasks_do_too(tmp_path: Path, agent: str, expected: float) -> None:
    found = rewards(Path(str(MORE)), agent, tmp_path)
    assert found and found == dict.fromkeys(found, expected)
