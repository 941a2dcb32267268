"""mini-swe-agent's own commands and agent loop in our sandboxes, with its scripted model."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task, task_to_row
from tests.env.sandbox.test_reaping import eventually, gone, sandboxes, users
from tests.programs import ROOT, run_to_end

TASKS = load_tasks("mini")[:2]
CLASS = "swegym_env.adapters.mini_swe_agent.SwegymEnvironment"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def variables(folder: Path) -> dict[str, str]:
    own = {"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": str(folder), "MSWEA_SILENT_STARTUP": "1"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **own}


def applying(task: Task) -> str:
    return f"git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH"


def configuration(folder: Path, commands: list[str], **sections: Any) -> str:
    """A file for `-c`: the environment, and a model that says these commands."""
    outputs = [
        {"role": "assistant", "content": command, "extra": {"actions": [{"command": command}], "cost": 0.0}}
        for command in commands
    ]
    model = {
        "model_name": "scripted",
        "model_class": "minisweagent.models.test_models.DeterministicModel",
        "observation_template": "{{output.returncode}} {{output.output}}{{output.exception_info}}",
        "outputs": outputs,
    }
    path = folder / "own.yaml"
    environment = {"environment_class": CLASS, **sections.pop("environment", {})}
    path.write_text(yaml.safe_dump({"environment": environment, "model": model, **sections}))
    return str(path)


def test_its_command_plays_a_task_and_its_trajectory_has_the_verdict(tmp_path: Path) -> None:
    task = TASKS[0]
    commands = ["cd /; X=7; ls", "pwd; echo $X. $PAGER; exit 3", "sleep 60", applying(task), SUBMIT]
    own = configuration(
        tmp_path,
        commands,
        environment={"instance": task.instance_id, "timeout": 1},
        agent={"instance_template": "{{problem_statement}} {{system}}", "mode": "yolo", "confirm_exit": False},
        run={"task": "what the issue says"},
    )
    output = tmp_path / "mini.traj.json"
    command = [sys.executable, "-m", "minisweagent.run.mini", "-c", "mini.yaml", "-c", own, "-o", str(output)]
    ran = run_to_end(command, variables(tmp_path))
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    played = json.loads(output.read_text())
    shown = [message["content"] for message in played["messages"] if message["role"] == "user"]
    assert shown[0] == f"{task.problem_statement} Linux".strip()
    assert "bin" in shown[1].split() and shown[2] == "3 /testbed\n. cat\n"  # nothing outlives a command's subshell
    assert shown[3] == "-1 The command timed out after 1 s." and shown[4] == "0 "
    info = played["info"]
    assert info["exit_status"] == "Submitted" and info["submission"].startswith("diff --git")
    assert info["swegym"] == {
        "valid": True,
        "reward": 1.0,
        "resolved": True,
        "fail_to_pass": [len(task.fail_to_pass)] * 2,
        "pass_to_pass": [len(task.pass_to_pass)] * 2,
        "failure_reason": "",
    }


def test_its_command_names_the_set_up_that_takes_minutes(tmp_path: Path) -> None:
    task = dataclasses.replace(TASKS[0], instance_id="x-1", setup=(f"echo {uuid.uuid4()}",))  # no layer is there
    (tmp_path / "rows.jsonl").write_text(json.dumps(task_to_row(task)) + "\n")
    own = configuration(
        tmp_path,
        [SUBMIT],
        environment={"dataset": str(tmp_path / "rows.jsonl"), "instance": "x-1", "grade": False},
        agent={"instance_template": "{{problem_statement}}", "mode": "yolo", "confirm_exit": False},
        run={"task": "what the issue says"},
    )
    output = tmp_path / "mini.traj.json"
    command = [sys.executable, "-m", "minisweagent.run.mini", "-c", "mini.yaml", "-c", own, "-o", str(output)]
    ran = run_to_end(command, {**variables(tmp_path), "COLUMNS": "200"})
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    setup = "minisweagent.swegym: INFO: x-1: setting up its environment, which is kept"
    begun, ended = (line.strip() for line in ran.stdout.splitlines() if "setting up" in line)
    assert begun == setup and ended.startswith(f"{setup}: done after ")


def test_its_batch_command_plays_a_dataset_and_writes_predictions(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "test.jsonl").write_text("".join(json.dumps(task_to_row(task)) + "\n" for task in TASKS))
    first, second = TASKS
    own = configuration(
        tmp_path,
        [applying(first) + "\n[ $? = 0 ] || echo other", SUBMIT],  # it repairs the first task only
        environment={"dataset": str(rows / "test.jsonl")},
        run={"env_startup_command": "swegym task {{instance_id}}"},
    )
    command = [sys.executable, "-m", "minisweagent.run.benchmarks.swebench", "--subset", str(rows), "--split", "test"]
    ran = run_to_end(
        [*command, "-c", "swebench.yaml", "-c", own, "-o", str(tmp_path / "out"), "-w", "2"],
        {**variables(tmp_path), "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    outcomes = {
        task.instance_id: json.loads(
            (tmp_path / "out" / task.instance_id / f"{task.instance_id}.traj.json").read_text()
        )["info"]["swegym"]
        for task in TASKS
    }
    assert outcomes[first.instance_id]["resolved"] is True and outcomes[second.instance_id]["resolved"] is False
    predictions = json.loads((tmp_path / "out/preds.json").read_text())
    assert predictions[first.instance_id]["model_patch"].startswith("diff --git")
    assert predictions[second.instance_id]["model_patch"] == ""


ENDED = """
import json, os, signal
from minisweagent.agents.default import DefaultAgent
from minisweagent.models.test_models import DeterministicModel, make_output
from swegym_env.adapters.mini_swe_agent import SwegymEnvironment
from swegym_env.errors import SandboxBrokenError, SandboxError
from swegym_env.sandbox.client import supervisor

environment = SwegymEnvironment(instance="{instance}")
{before}
model = DeterministicModel(outputs=[make_output(command, [{{"command": command}}]) for command in {commands}])
agent = DefaultAgent(model, environment, system_template="", instance_template="", cost_limit=0)
try:
    agent.run()
except {error}:
    print(json.dumps(agent.serialize()["info"]))
"""


def ended(tmp_path: Path, before: str, commands: tuple[str, ...], error: str) -> dict[str, Any]:
    """What its trajectory says of a run that an error of this kind ends."""
    program = ENDED.format(instance=TASKS[0].instance_id, before=before, commands=commands, error=error)
    ran = run_to_end([sys.executable, "-c", program], variables(tmp_path))
    assert ran.returncode == 0, ran.stderr[-2000:]
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def test_a_failure_of_the_machine_ends_its_run_without_a_score(tmp_path: Path) -> None:
    info = ended(tmp_path, "os.kill(supervisor().pid, signal.SIGKILL)", ("ls", SUBMIT), "SandboxError")
    assert info["exit_status"] == "SandboxError"
    assert info["swegym"].keys() == {"valid", "failure_reason"} and info["swegym"]["valid"] is False


def test_an_agent_that_breaks_its_sandbox_has_the_reward_0(tmp_path: Path) -> None:
    outcome = ended(tmp_path, "", ("rm -f /bin; kill -9 -1", "ls"), "SandboxBrokenError")["swegym"]
    assert (outcome["valid"], outcome["reward"], outcome["resolved"]) == (True, 0.0, False)


def test_nothing_is_left_when_its_command_is_killed(tmp_path: Path, place: Path) -> None:
    own = configuration(
        tmp_path,
        ["setsid sleep 1000 & sleep 1000"],
        environment={"instance": TASKS[0].instance_id, "timeout": 1000},
        agent={"mode": "yolo"},
        run={"task": "wait"},
    )
    command = [sys.executable, "-m", "minisweagent.run.mini", "-c", "mini.yaml", "-c", own, "-o", str(tmp_path / "o")]
    with subprocess.Popen(
        command, env=variables(tmp_path), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:

        def sleeping() -> list[int]:
            return [pid for pid in descendants(process.pid) if "sleep" in _name(pid)]

        assert eventually(lambda: len(sleeping()) == 2)
        below = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not sandboxes(place) and not users(place))
    assert gone(below)


def _name(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("dataste='mini'", "unknown key 'dataste'; there are cwd, dataset"),
        ("instance='nothing'", "no instance 'nothing'"),
        ("", "env_startup_command: swegym task"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, config: str, reason: str) -> None:
    program = (
        "from swegym_env.adapters.mini_swe_agent import SwegymEnvironment\n"
        f"SwegymEnvironment({config}).execute({{'command': 'ls'}})"
    )
    ran = run_to_end([sys.executable, "-c", program], variables(tmp_path))
    assert ran.returncode == 1 and reason in ran.stderr.splitlines()[-1]
