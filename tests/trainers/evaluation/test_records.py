"""Files of an evaluation of `SWEBench-v0` can be read by the viewer, replay, grading, and the official harness."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from swegym_env.cli.main import main as swegym
from swegym_env.languages.official import official_module
from swegym_env.recording.record import find_records, read_record
from swegym_env.tasks.data import mini_edit
from tests.trainers.evaluation.scripted import Body, say, serving

TASKS = [mini_edit.generate(number) for number in range(3)]


def _script(body: Body) -> object:
    """Repairs the first two tasks by native calls, and hands in the third as it is."""
    prompt = next(message["content"] for message in body["messages"] if message["role"] == "user")
    task = next(task for task in TASKS if task.problem_statement.strip() in prompt)
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    gold = f"git apply - <<'END_OF_PATCH'\n{task.patch}END_OF_PATCH"
    commands = ["ls", gold if task is not TASKS[2] else "true", "submit"]
    name, arguments = ("submit", {}) if turn == 2 else ("bash", {"command": commands[turn]})
    call = {"id": f"c{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return say(None, tool_calls=[call])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes in real sandboxes."""
    from swe_trainers.cli.main import main_eval

    place = tmp_path_factory.mktemp("evaluated") / "out"
    with serving(_script) as served:
        command = ["--model", "scripted", "--base-url", served.url, "--dataset", "mini-edit", "--output", str(place)]
        command += [word for task in TASKS for word in ("--instance", task.instance_id)]
        command += ["--action-format", "openai", "--n-parallel", "2", "--max-turns", "7"]
        assert main_eval(command) == 0
        assert {tool["function"]["name"] for tool in served.asked[0]["tools"]} == {"bash", "submit"}
    return place


def test_results_have_the_verdict_of_the_tests(evaluated):
    summary = json.loads((evaluated / "summary.json").read_text())
    rows = [json.loads(line) for line in (evaluated / "results.jsonl").read_text().splitlines()]
    assert [row["instance_id"] for row in rows] == [task.instance_id for task in TASKS]
    assert [row["resolved"] for row in rows] == [True, True, False]
    assert rows[0]["fail_to_pass"] == [1, 1] and rows[2]["failed_tests"] == list(TASKS[2].fail_to_pass)
    assert [row["patch_lines"] for row in rows] == [2, 2, 0]
    assert summary["resolve_rate"] == pytest.approx(2 / 3)
    assert summary["settings"]["arguments"] == {"dataset": "mini-edit", "action_format": "openai"}


def test_episode_folders_are_read_by_swegym_env(evaluated):
    folders = find_records(evaluated)
    records = {record.instance_id: record for record in map(read_record, folders)}
    assert sorted(records) == sorted(task.instance_id for task in TASKS)
    record = records[TASKS[0].instance_id]
    assert record.finished and record.task() == TASKS[0]
    assert record.meta["environment"]["kind"] == "swegym_env.env:SWEBenchEnv"
    assert record.meta["environment"]["arguments"]["max_turns"] == 7
    assert json.loads(record.turns[1].action)["tool_calls"][0]["function"]["name"] == "bash"
    assert record.turns[0].patch == "" and record.turns[2].patch == (record.place / "patch.diff").read_text()
    meta = json.loads((record.place / "meta.json").read_text())
    assert meta["result"]["resolved"] is True and meta["result"]["turns"] == 3
    assert meta["notes"]["usage"]["requests"] == 3


def test_record_trajectory_wrapper_writes_the_same_format(evaluated, tmp_path):
    from swegym_env.env import SWEBenchEnv
    from swegym_env.wrappers import RecordTrajectory

    env = RecordTrajectory(SWEBenchEnv("mini-edit", action_format="openai", max_turns=7, pool=0), tmp_path)
    env.reset(seed=1, options={"instance_id": TASKS[0].instance_id})
    ours = read_record(next(path for path in find_records(evaluated) if TASKS[0].instance_id in path.name))
    for turn in ours.turns:
        env.step(turn.action)
    env.close()
    theirs = find_records(tmp_path)[0]

    def keys(folder: Path, name: str) -> object:
        found = json.loads((folder / name).read_text())
        return {
            key: sorted(value) if isinstance(value, dict) and key != "notes" else None for key, value in found.items()
        }

    assert ours.place is not None
    for name in ("meta.json", "traj.json"):
        assert keys(ours.place, name) == keys(theirs, name)
    turns = [json.loads((place / "traj.json").read_text())["turns"] for place in (ours.place, theirs)]
    for mine, recorded in zip(*turns, strict=True):
        del mine["info"]["model"]
        assert set(mine) == set(recorded)
        for name in set(mine) - {"seconds"}:
            assert mine[name] == recorded[name], name


def test_episodes_can_be_viewed_and_replayed(evaluated, tmp_path, capsys):
    assert swegym(["view", str(evaluated), "-o", str(tmp_path / "view.html")]) == 0
    assert TASKS[0].instance_id in (tmp_path / "view.html").read_text()
    assert swegym(["replay", str(evaluated)]) == 0
    assert capsys.readouterr().out.count("3 of 3 turns agree: as recorded") == 3


def _harness_loader() -> Any:
    """The harness's `get_predictions_from_file` by itself: its module would load clients of Docker and GitHub."""
    package = importlib.util.find_spec("swebench")
    assert package is not None and package.origin is not None
    source = (Path(package.origin).parent / "harness" / "utils.py").read_text()
    (wanted,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_predictions_from_file"
    ]
    constants = official_module("constants")
    assert constants is not None
    names = {"json": json, **vars(constants)}
    exec(compile(ast.Module([wanted], []), "utils.py", "exec"), names)
    return names["get_predictions_from_file"]


def test_the_official_harness_reads_the_predictions(evaluated):
    loader = _harness_loader()
    found = loader(str(evaluated / "predictions.jsonl"), "unused", "test")
    assert [set(prediction) for prediction in found] == [{"instance_id", "model_name_or_path", "model_patch"}] * 3
    assert [prediction["instance_id"] for prediction in found] == [task.instance_id for task in TASKS]
    assert found[0]["model_patch"].startswith("diff --git") and found[2]["model_patch"] == ""
    assert found[0]["model_name_or_path"] == "scripted"


def test_swegym_grade_agrees_on_the_predictions(evaluated, capsys):
    command = ["grade", "--dataset", "mini-edit", "--predictions", str(evaluated / "predictions.jsonl"), "--json"]
    swegym([*command, "-j", "2"])
    verdicts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {verdict["instance_id"]: verdict["resolved"] for verdict in verdicts} == {
        task.instance_id: number < 2 for number, task in enumerate(TASKS)
    }
