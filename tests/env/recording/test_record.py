"""Episodes in folders: written atomically and read back unchanged, on real episodes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.adapters.atif import from_atif, to_atif
from swegym_env.cli.main import main
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import Record, RecordedTurn, find_records, read_record, write_record
from swegym_env.recording.viewer import render_page
from swegym_env.tasks.data import mini_edit
from swegym_env.wrappers import RecordTrajectory, StepPenalty

TASK = mini_edit.generate(0)
GOLD = f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))  # lone surrogates too


def _env(directory, **arguments):
    env = SWEBenchEnv(tasks=[TASK], **{"action_format": "raw", "prompt": "terse", **arguments})
    return RecordTrajectory(StepPenalty(env), directory, notes={"model": "none", "temperature": 0.5})


def test_episode_is_recorded_as_a_folder_of_three_files(tmp_path):
    env = _env(tmp_path)
    env.reset(seed=3)
    _, first, *_, info = env.step(GOLD)
    assert not list(tmp_path.iterdir())
    env.step("submit")
    env.close()
    (folder,) = tmp_path.iterdir()
    assert folder == env.last_record and folder.name.startswith(f"{TASK.instance_id}__20")
    assert {path.name for path in folder.iterdir()} == {"traj.json", "patch.diff", "meta.json"}
    assert (folder / "patch.diff").read_text() == info["patch"]
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["result"]["resolved"] is True and meta["result"]["end_reason"] == "submitted"
    assert meta["result"]["reward"] == 1.0 - 0.02 and meta["notes"] == {"model": "none", "temperature": 0.5}
    assert meta["environment"]["arguments"]["prompt"] == "terse" and meta["seed"] == 3
    record = read_record(folder)
    assert [turn.action for turn in record.turns] == [GOLD, "submit"]
    assert record.turns[0].reward == first == -0.01 and record.turns[1].info["reward"] == {
        "environment": 1.0,
        "step": -0.01,
    }
    assert record.turns[0].patch == record.turns[1].patch == info["patch"]
    assert record.prompt == TASK.problem_statement and record.task() == TASK


def test_abandoned_episode_is_recorded_up_to_its_last_turn(tmp_path):
    env = _env(tmp_path)
    env.reset(seed=0)
    env.step("echo one")
    env.reset(seed=0)  # leaves the first; the second has no turn, so it leaves no record
    env.close()
    env.close()
    (folder,) = find_records(tmp_path)
    record = read_record(folder)
    assert len(record.turns) == 1 and not record.finished
    assert json.loads((folder / "meta.json").read_text())["result"]["end_reason"] == "abandoned"


def test_player_writes_the_record_of_an_episode_that_it_has_ended(tmp_path):
    env = _env(tmp_path)
    env.reset(seed=0)
    env.step("echo one")
    env.finish()
    (folder,) = find_records(tmp_path)
    assert len(read_record(folder).turns) == 1 and not read_record(folder).finished
    env.finish()
    env.close()
    assert find_records(tmp_path) == [folder]


KILLED = """
import os, signal, sys
from swegym_env.recording import record
from tests.env.recording.test_record import made
real = os.rename
def die(*arguments): os.kill(os.getpid(), signal.SIGKILL)
record.Path.rename = die
record.write_record(sys.argv[1], made(["a"]))
"""


def made(actions, patch="", observation="seen", prompt="task"):
    turns = [RecordedTurn(action, observation, 0.5, False, False, patch, {"exit_code": 0}) for action in actions]
    return Record("some/instance 1", prompt, "", [], turns, {"notes": {}})


def test_killed_process_leaves_no_partial_record(tmp_path):
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path], cwd=root, env={**os.environ, "PYTHONPATH": "."}, check=False
    )
    assert ran.returncode == -9 and list(tmp_path.iterdir())  # it died with something written
    with pytest.raises(ConfigurationError, match="no recorded episode"):
        find_records(tmp_path)
    write_record(tmp_path, made(["b"]))
    assert len(find_records(tmp_path)) == 1


@settings(max_examples=50, deadline=None)
@given(actions=st.lists(ANY_TEXT, max_size=4), observation=ANY_TEXT, prompt=ANY_TEXT)
def test_any_text_is_read_back_unchanged(tmp_path_factory, actions, observation, prompt):
    record = made(actions, observation=observation, prompt=prompt, patch="-caf\udce9\n+x\u2028")
    assert read_record(write_record(tmp_path_factory.mktemp("records"), record)) == record


def test_bytes_that_are_not_utf8_are_kept_in_the_patch(tmp_path):
    folder = write_record(tmp_path, made(["a"], patch="+caf\udce9"))
    assert (folder / "patch.diff").read_bytes() == b"+caf\xe9"


def test_rewards_that_are_not_finite_are_read_back_and_shown(tmp_path):
    rewards = [math.inf, -math.inf, math.nan, 1e308, 1e308]
    turns = [RecordedTurn("ls", "seen", reward, number == 4, False, "", {}) for number, reward in enumerate(rewards)]
    read = read_record(write_record(tmp_path, Record("some", "task", "", [], turns, {})))
    assert list(map(repr, (turn.reward for turn in read.turns))) == list(map(repr, rewards))
    data = render_page([read]).partition('type="application/json" id="data">')[2].partition("</script>")[0]
    shown = json.loads(data, parse_constant=pytest.fail)["episodes"][0]["turns"]  # as a browser, which knows no NaN
    assert [turn["reward"] for turn in shown] == [None, None, None, 1e308, 1e308]
    document = from_atif(json.loads(json.dumps(to_atif(read), allow_nan=False)))
    assert list(map(repr, (turn.reward for turn in document.turns))) == list(map(repr, rewards))


def test_simultaneous_records_get_different_folders(tmp_path):
    folders = {write_record(tmp_path, made([str(number)])) for number in range(50)}
    assert len(folders) == 50 and {read_record(folder).turns[0].action for folder in folders} == set(
        map(str, range(50))
    )
    assert all(folder.name.startswith("some_instance_1__") for folder in folders)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("traj.json", "{", "traj.json"),
        ("traj.json", '{"turns": [{}]}', "traj.json"),
        ("meta.json", '{"format": 99}', "format 99"),
        ("meta.json", None, "missing"),
    ],
)
def test_unreadable_record_is_named_in_one_line(tmp_path, name, content, message):
    folder = write_record(tmp_path, made(["a"]))
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_record(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("traj.json", {"turns": "ls"}, 'traj.json: turns: expected a list, got "ls"'),
        ("traj.json", {"prompt": 5}, "traj.json: prompt: expected a text, got 5"),
        ("traj.json", {"tools": {}}, "traj.json: tools: expected a list, got {}"),
        ("traj.json", {"turns": ["ls"]}, 'traj.json: turns.0: expected an object, got "ls"'),
        ("traj.json", {"action": ["ls"]}, 'traj.json: turns.0.action: expected a text, got ["ls"]'),
        ("traj.json", {"reward": "1"}, 'traj.json: turns.0.reward: expected a number, got "1"'),
        ("traj.json", {"terminated": 0}, "traj.json: turns.0.terminated: expected true or false, got 0"),
        ("traj.json", {"info": []}, "traj.json: turns.0.info: expected an object, got []"),
        ("traj.json", {"patch": None}, "traj.json: turns.0.patch: expected a text, got null"),
        ("meta.json", {"task": []}, "meta.json: task: expected an object or null, got []"),
        ("meta.json", {"task": {"fail_to_pass": "t"}}, "meta.json: task.fail_to_pass: expected a list or null"),
        ("meta.json", {"environment": {"arguments": 1}}, "meta.json: environment.arguments: expected an object"),
        ("meta.json", {"notes": "none"}, 'meta.json: notes: expected an object or null, got "none"'),
        ("meta.json", {"recorded_at": 5}, "meta.json: recorded_at: expected a text or null, got 5"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_named_in_one_line(tmp_path, capsys, name, change, message):
    folder = write_record(tmp_path, made(["a"]))
    content = json.loads((folder / name).read_text())
    inner = content["turns"][0] if name == "traj.json" and not change.keys() & content.keys() else content
    inner.update(change)
    (folder / name).write_text(json.dumps(content))
    for command in ("view", "replay"):
        assert main([command, str(folder)]) == 2
        error = capsys.readouterr().err
        assert f"{folder}/{message}" in error and error.count("\n") == 1


def test_an_episode_that_cannot_be_recorded_is_closed_all_the_same(tmp_path):
    env = _env(tmp_path / "records", pool=0)
    env.reset(seed=0)
    env.step("ls")
    (tmp_path / "records").rmdir()
    (tmp_path / "records").write_text("in the way")
    with pytest.raises(ConfigurationError, match="the episode was not recorded"):
        env.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.unwrapped.step("ls")


def test_unwritable_directory_is_reported_before_the_first_episode(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be recorded"):
        _env(tmp_path / "file" / "below")
