"""Replay of recorded episodes, and deterministic episodes."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest

from swegym_env.answers.kodcode import KodCodeEnv
from swegym_env.cli.main import main
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import read_record, write_record
from swegym_env.recording.replay import replay
from swegym_env.tasks.data import mini_edit
from swegym_env.wrappers import RecordTrajectory, TokenLimit

TASK = mini_edit.generate(0)
GOLD = f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"


def _record(directory, *actions, limit=None, **arguments):
    env = SWEBenchEnv(tasks=[TASK], **{"action_format": "raw", "prompt": "terse", **arguments})
    if limit:
        env = TokenLimit(env, limit, len)
    env = RecordTrajectory(env, directory)
    env.reset(seed=0)
    for action in actions:
        env.step(action)
    env.close()
    return read_record(env.last_record)


def _altered(record, turn, **changes):
    turns = list(record.turns)
    turns[turn] = dataclasses.replace(turns[turn], **changes)
    return dataclasses.replace(record, turns=turns)


def test_replay_reproduces_the_recorded_episode(tmp_path):
    record = _record(tmp_path, "ls -a", GOLD, "cat nothing", "", "submit")
    assert record.ending["resolved"]
    found = replay(record)
    assert (found.agreed, found.turns, found.approximate, found.divergence) == (5, 5, 0, None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"observation": "something else\n[exit code 0]"}, "observation"),
        ({"patch": "diff"}, "patch"),
        ({"info": {"exit_code": 3, "action_error": None}}, "exit_code"),
        ({"terminated": True}, "terminated"),
    ],
)
def test_first_divergence_is_reported(tmp_path, change, field):
    record = _altered(_record(tmp_path, "echo a", "echo b", "echo c"), 1, **change)
    found = replay(_altered(record, 2, observation="this differs too"))
    assert (found.agreed, found.divergence.turn, found.divergence.field) == (1, 2, field)
    assert f"turn 2: {field} differs" in str(found.divergence)


def test_changed_verdict_is_a_divergence(tmp_path):
    record = _record(tmp_path, GOLD, "submit")
    found = replay(_altered(record, 1, info={**record.turns[1].info, "resolved": False}))
    assert (found.divergence.turn, found.divergence.field, found.divergence.replayed) == (2, "resolved", True)


def test_times_and_addresses_may_differ_unless_exact(tmp_path):
    record = _record(tmp_path, "echo Ran 3 tests in 0.$RANDOM\\s at 0x7f$(printf %06x $RANDOM)", "date +%N")
    found = replay(record)
    assert (found.agreed, found.approximate) == (1, 1) and found.divergence.turn == 2
    assert replay(record, exact=True).divergence.turn == 1


def test_end_by_a_limit_is_replayed(tmp_path):
    record = _record(tmp_path, "echo one", GOLD, limit=len(TASK.problem_statement) + 5)
    assert "tokens are used up" in record.turns[0].observation and record.ending["end_reason"] == "tokens"
    assert replay(record).divergence is None


def test_deterministic_episodes_share_hash_seed_time_zone_and_clock(tmp_path):
    command = (
        "python3 -c 'import time; print(hash(\"a\"), time.time(), time.tzname)'; date; "
        "git commit -qm x --allow-empty; git rev-parse HEAD"
    )
    record = _record(tmp_path, command, deterministic=True)
    assert "2024" in record.turns[0].observation.splitlines()[1], (
        "libfaketime is missing: scripts/install_test_tools.sh"
    )
    assert replay(record, exact=True).divergence is None
    assert replay(_record(tmp_path, command), exact=True).divergence is not None


def test_replay_command_reports_agreement_and_divergence(tmp_path, capsys):
    record = _record(tmp_path / "good", "ls", "submit")
    assert main(["replay", str(tmp_path / "good")]) == 0
    assert "2 of 2 turns agree: as recorded" in capsys.readouterr().out
    write_record(tmp_path / "bad", _altered(record, 0, observation="no\n[exit code 0]"))
    assert main(["replay", str(tmp_path / "bad"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["agreed"], report["divergence"]["turn"], report["divergence"]["field"]) == (0, 1, "observation")
    assert main(["replay", str(tmp_path / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_run_records_an_episode_that_replay_reproduces(tmp_path, capsys):
    command = [sys.executable, "-m", "swegym_env.cli.main", "run", "--dataset", "mini-edit", "--record", str(tmp_path)]
    ran = subprocess.run(
        [*command, "--deterministic"], input="date\nsubmit\n", text=True, capture_output=True, check=True
    )
    assert "2024" in ran.stdout
    assert main(["replay", str(tmp_path), "--exact"]) == 0
    assert "2 of 2 turns agree: as recorded" in capsys.readouterr().out


def test_answer_environments_are_replayed(tmp_path):
    env = RecordTrajectory(KodCodeEnv(max_turns=3), tmp_path)
    env.reset(seed=2)
    for answer in ("nothing", "```python\nx = 1\n```", f"```python\n{env.unwrapped.example.solution}\n```"):
        env.step(answer)
    env.close()
    record = read_record(env.last_record)
    assert record.ending["resolved"] and replay(record).divergence is None
    changed = _altered(record, 2, info={**record.turns[2].info, "resolved": False})
    assert replay(changed).divergence.field == "resolved"


def test_record_of_another_environment_is_rejected(tmp_path):
    record = _record(tmp_path, "ls")
    other = dataclasses.replace(record, meta={**record.meta, "environment": {"kind": "os:system", "arguments": {}}})
    with pytest.raises(ConfigurationError, match="os:system"):
        replay(other)
    changed = {**record.meta["environment"], "arguments": {"no_such_argument": 1}}
    with pytest.raises(
        ConfigurationError, match=f"^{re.escape(str(record.place))}: SWEBenchEnv: no argument 'no_such_arg"
    ):
        replay(dataclasses.replace(record, meta={**record.meta, "environment": changed}))
