"""Every example runs at a small size; the last line that it prints is JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from swe_trainers.logging import read_metrics
from tests.env.wheels import write_wheels
from tests.places import public_directory
from tests.programs import ROOT, offline, run_to_end
from tests.warm import ENVIRONMENT, TRAINER, warm_python


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where sandboxes can read, with what pip installs in them."""
    with public_directory("examples") as directory:
        write_wheels(directory / "wheels")
        yield directory


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    return {**os.environ, **offline(place)}


@pytest.fixture(scope="module")
def python(place: Path, environment: dict[str, str]) -> Iterator[str]:
    """Runs a file as Python does, in a fork of a process that has imported what most examples need."""
    with warm_python(place, environment, (*TRAINER, *ENVIRONMENT)) as warm:
        warm.program(place / "python", "tests.warm:run_file")
        yield str(place / "python")


@pytest.fixture
def play(python: str, environment: dict[str, str]) -> Callable[..., dict[str, Any]]:
    def played(program: str, *arguments: object) -> dict[str, Any]:
        command = [python, f"examples/{program}", *map(str, arguments)]
        ran = run_to_end(command, environment, timeout_s=240)
        assert ran.returncode == 0, ran.stderr[-3000:]
        assert "FutureWarning" not in ran.stderr  # of what a program calls itself
        return json.loads(ran.stdout.splitlines()[-1])

    return played


def test_one_episode_resolves_its_task(environment):
    command = [sys.executable, "examples/one_episode.py"]
    ran = run_to_end(command, environment)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "reward 1.0, ended because: submitted\nrepaired (5, 5), kept (45, 45)" in ran.stdout


def test_help_of_the_trl_example_imports_no_trl(environment):
    ran = run_to_end([sys.executable, "-X", "importtime", "examples/trl_grpo.py", "--help"], environment)
    assert ran.returncode == 0 and "--vllm" in ran.stdout
    assert not {"trl", "bitsandbytes", "torch"} & {line.split("|")[-1].strip() for line in ran.stderr.splitlines()}


def test_scripted_agent_resolves_tasks_and_records_episodes(play, tmp_path):
    summary = play("scripted_agent.py", "--episodes", 4, "--record", tmp_path)
    assert summary["episodes"] == 4 and summary["resolved"] >= 2 and 3 <= summary["turns"] <= 30
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*/traj.json")]
    assert len(records) == 4 and all(record["turns"][-1]["action"] == "submit" for record in records)


AGENT = """
import json, os, subprocess, urllib.request

schema = {"type": "object", "properties": {"command": {"type": "string"}}}
tool = {"type": "function", "function": {"name": "bash", "parameters": schema}}
address, headers = os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"Content-Type": "application/json"}
messages = [{"role": "user", "content": open(os.environ["SWEGYM_TASK"]).read()}]
while True:
    body = json.dumps({"model": "m", "messages": messages, "tools": [tool]}).encode()
    message = json.load(urllib.request.urlopen(urllib.request.Request(address, body, headers)))["choices"][0]["message"]
    call = message["tool_calls"][0]
    command = json.loads(call["function"]["arguments"])["command"]
    output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
    if output.startswith("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"):
        break
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": output}]
"""


def test_an_agent_of_ones_own_is_trained_and_goes_on_where_it_was(play, place, tmp_path):
    folder = place / "own"
    folder.mkdir(mode=0o755)
    (folder / "agent.py").write_text(AGENT)
    settings = {"command": 'exec $SWEGYM_START python3 "$SWEGYM_AGENT/agent.py"', "imports": {"program": "agent.py"}}
    (folder / "agent.yaml").write_text(json.dumps(settings))
    sizes = ("--recorded", 6, "--epochs", 1, "--updates", 1, "--episodes", 4, "--held-out", 2, "--parallel", 2)
    arguments = ("train_agent.py", "--agent", folder, *sizes, "--output", tmp_path)
    first = play(*arguments)
    assert all(0 <= first[f"resolve_rate_{when}"] <= 1 for when in ("before", "after"))
    recorded = [json.loads(line) for line in (tmp_path / "conversations.jsonl").read_text().splitlines()]
    assert sorted(each["task"] for each in recorded) == list(range(6))
    observations = [message["content"] for message in recorded[0]["messages"] if message["role"] == "user"]
    assert "def " in observations[1] and observations[2] == ""  # what grep shows, and nothing after an edit
    began = (tmp_path / "ppo" / "metrics.jsonl").read_text()
    assert play(*arguments) == first
    assert (tmp_path / "ppo" / "metrics.jsonl").read_text() == began


def test_repair_measures_each_stage_and_goes_on_with_more_rounds(play, tmp_path):
    sizes = (
        *("--source", Path(json.__file__).parents[1], "--size", "tiny", "--functions", 40, "--vocabulary", 500),
        *("--epochs", 1, "--recorded", 6, "--updates", 1, "--episodes", 2, "--held-out", ":1", "--samples", 1),
        *("--parallel", 1, "--threads", 1, "--output", tmp_path),
    )
    names = ["random edits", "repairs cloned", "episodes cloned", "PPO, 1 updates"]
    first = play("repair.py", *sizes, "--rounds", 1)
    assert list(first) == names and all(0 <= rate <= 1 for rate in first.values())
    cloned = {path: path.read_bytes() for path in tmp_path.glob("*/metrics.jsonl") if path.parent.name != "ppo"}
    assert len(cloned) == 3
    second = play("repair.py", *sizes, "--rounds", 2)
    assert list(second) == [*names, "PPO, 2 updates"]
    assert {path: path.read_bytes() for path in cloned} == cloned
    assert [row["update"] for row in read_metrics(tmp_path / "ppo" / "metrics.jsonl") if "loss" in row] == [1, 2]
    report = (tmp_path / "report.md").read_text()
    assert all(f"\n| {name} | " in report for name in second)


def test_tasks_made_from_a_repository_resolve_with_gold_only(play, place):
    for _ in range(2):  # again with the repository that the first run created
        assert play("own_tasks.py", "--output", place / "made", "--count", 2) == {
            "tasks": 2,
            "sound": 2,
            "resolved_by_doing_nothing": False,
        }


def test_custom_tool_is_called_and_an_invalid_call_is_refused(play):
    summary = play("own_tool.py")
    assert summary["tools"] == ["bash", "outline", "submit"] and summary["outlined"]
    assert "did you mean paths?" in summary["refused"]


def test_custom_reward_is_paid_once_and_only_after_reading(play):
    summary = play("own_reward.py")
    assert [parts["look_first"] for parts in summary["parts"]] == [0.0, 0.1, 0.0]
    assert summary["total"] == pytest.approx(0.1 - 3 * 0.01)


def test_custom_environment_is_learned(play, tmp_path):
    summary = play("own_environment.py", "--updates", 20, "--output", tmp_path / "run")
    assert summary["share_right_before"] < 0.7
    assert summary["share_right_after"] >= 0.9


def test_models_behind_an_api_are_evaluated_and_compared(play, tmp_path):
    assert play("evaluate_api.py", "--output", tmp_path) == {"hasty": 0.5, "careful": 1.0}
    predictions = (tmp_path / "careful/predictions.jsonl").read_text().splitlines()
    assert len(predictions) == 4 and all(json.loads(line)["model_patch"] for line in predictions)


def test_grpo_continues_from_the_cloned_model(play, tmp_path):
    summary = play(
        "sft_then_grpo.py", "--demonstrations", 8, "--updates", 1, "--episodes", 8, "--output", tmp_path / "run"
    )
    first, last = summary["cloning_loss"]
    assert last < first and len(summary["reward"]) == 1 and Path(summary["model"], "config.json").exists()


if sys.version_info >= (3, 11):  # there is no TRL with environments for an older Python

    def test_trl_trains_on_our_episodes(play, tmp_path):
        summary = play("trl_grpo.py", "--steps", 1, "--output", tmp_path / "run")
        assert len(summary["reward"]) == 1 and 0 <= summary["reward"][0] <= 1
        assert summary["calls_of_an_episode"][0] > 0.3  # what the model wrote reached the sandboxes …
        assert summary["failed_calls"][0] < 1  # … and was run there


def test_notebook_runs_completely(environment, tmp_path, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "examples/first_episode.ipynb", as_version=4)
    assert [cell for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []  # kept without outputs
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    printed = [output["text"] for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert any("resolved: True" in text for text in printed)
