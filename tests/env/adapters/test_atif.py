"""Trajectories in ATIF: held against Harbor's own schema, read back without loss, and read from other programs."""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swegym_env.adapters.atif import from_atif, to_atif
from swegym_env.adapters.episodes import messages_of, read_episodes
from swegym_env.cli.main import main
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import Record, find_records, read_record
from swegym_env.tasks.data import mini_edit
from swegym_env.wrappers import RecordTrajectory

PEERS = next(Path(sys.prefix, "adapters/atif").glob("lib/python3.*/site-packages"), Path("none"))
TASK = mini_edit.generate(0)


@pytest.fixture(scope="module")
def schema() -> Iterator[Any]:
    """Harbor's own model of a document."""
    if not (PEERS / "harbor").is_dir():
        pytest.skip("Harbor's schema is not installed. Try: scripts/test_adapter.sh atif --make")
    sys.path.insert(0, str(PEERS))
    yield importlib.import_module("harbor.models.trajectories").Trajectory
    sys.path.remove(str(PEERS))


@pytest.fixture(scope="module", params=["raw", "hermes"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A real episode with a mistake, bytes that are not UTF-8, a change and the submission."""
    directory = tmp_path_factory.mktemp("episodes")
    env = RecordTrajectory(
        SWEBenchEnv("mini-edit", action_format=request.param), directory, notes={"agent": "script", "model": "none"}
    )
    env.reset(options={"instance_id": TASK.instance_id})
    commands = ["ls", "printf 'a\\xff\\n'", f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"]
    if request.param == "raw":
        actions = [*commands, "submit"]
    else:
        calls = [("bash", {"command": command}) for command in commands]
        calls = [calls[0], ("nothing", {}), *calls[1:], ("submit", {})]
        actions = [
            f"I go on.<tool_call>{json.dumps({'name': call[0], 'arguments': call[1]})}</tool_call>" for call in calls
        ]
    for action in actions:
        *_, info = env.step(action)
    env.close()
    assert info["resolved"] is True
    (folder,) = find_records(directory)
    return read_record(folder)


def test_a_document_is_valid_by_harbors_schema_and_read_back_without_loss(recorded: Record, schema: Any) -> None:
    document = json.loads(json.dumps(to_atif(recorded)))
    validated = schema.model_validate(document)
    assert validated.schema_version == "ATIF-v1.7" and validated.to_json_dict() == document
    assert from_atif(document) == recorded
    assert from_atif(validated.to_json_dict()) == recorded


def test_a_document_has_what_readers_of_the_format_look_for(recorded: Record) -> None:
    document = to_atif(recorded)
    sources = [step["source"] for step in document["steps"]]
    assert sources == ["system", "user", *["agent"] * len(recorded.turns)]
    assert [step["step_id"] for step in document["steps"]] == list(range(1, len(sources) + 1))
    first, last = document["steps"][2], document["steps"][-1]
    (call,), (result,) = first["tool_calls"], first["observation"]["results"]
    assert (call["function_name"], call["arguments"]) == ("bash", {"command": "ls"})
    assert result["source_call_id"] == call["tool_call_id"] and result["content"] == recorded.turns[0].observation
    assert last["tool_calls"][0]["function_name"] == "submit"
    assert first["timestamp"] < last["timestamp"]
    outcome = document["final_metrics"]["extra"]
    assert (outcome["resolved"], outcome["reward"], outcome["end_reason"]) == (True, 1.0, "submitted")
    assert document["agent"] == {"name": "script", "version": document["agent"]["version"], "model_name": "none"} | (
        {"tool_definitions": list(recorded.tools)} if recorded.tools else {}
    )


def test_bytes_that_are_not_utf8_are_kept_beside_a_readable_text(recorded: Record) -> None:
    (odd,) = (turn for turn in recorded.turns if "\udcff" in turn.observation or "\ufffd" in turn.observation)
    exact = dataclasses.replace(odd, action="echo \udcfe", observation="a\udcff", patch="+\udcfd\n")
    record = dataclasses.replace(recorded, turns=[exact], prompt="\udcaa", system_prompt="\udcab")
    document = to_atif(record)
    json.dumps(document, ensure_ascii=False).encode()  # every reader of JSON takes it
    step = document["steps"][-1]
    assert step["message"] == "echo \ufffd" and step["observation"]["results"][0]["content"] == "a\ufffd"
    assert base64.b64decode(step["extra"]["swegym"]["message_base64"]) == b"echo \xfe"
    again = from_atif(document)
    assert again.turns == record.turns
    half = dataclasses.replace(
        record, turns=[dataclasses.replace(exact, action="echo \ud83d \udcfe")]
    )  # of a model's emoji
    document = to_atif(half)
    json.dumps(document, ensure_ascii=False).encode()
    assert document["steps"][-1]["message"] == "echo \ufffd \ufffd" and from_atif(document).turns == half.turns
    assert messages_of(half)["messages"][-1]["content"] == "echo \ufffd \ufffd"
    assert (again.prompt, again.system_prompt) == ("\udcaa", "\udcab")


def test_an_episode_that_the_machine_broke_has_no_reward(recorded: Record) -> None:
    broken = {"end_reason": "error", "valid": False, "resolved": False, "failure_reason": "SandboxError: gone"}
    last = dataclasses.replace(recorded.turns[-1], reward=0.0, terminated=False, truncated=True, info=broken)
    outcome = to_atif(dataclasses.replace(recorded, turns=[last]))["final_metrics"]["extra"]
    assert outcome["valid"] is False and "reward" not in outcome


FOREIGN = {
    "schema_version": "ATIF-v1.5",
    "session_id": "run-7",
    "agent": {"name": "terminus-2", "version": "2.0.0", "model_name": "some/model"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "You repair."},
        {"step_id": 2, "source": "user", "message": "Repair this."},
        {"step_id": 3, "source": "agent", "message": "copied", "is_copied_context": True},
        {
            "step_id": 4,
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [{"tool_call_id": "a", "function_name": "shell", "arguments": {"cmd": "ls"}}],
            "observation": {
                "results": [
                    {
                        "source_call_id": "a",
                        "content": [
                            {"type": "text", "text": "README"},
                            {"type": "image", "source": {"media_type": "image/png", "path": "x.png"}},
                        ],
                    }
                ]
            },
        },
        {"step_id": 5, "source": "user", "message": "Go on."},
        {"step_id": 6, "source": "agent", "message": "Done."},
    ],
}


def test_a_document_of_another_program_becomes_what_its_agent_read_and_wrote(schema: Any) -> None:
    schema.model_validate(FOREIGN)  # the example is one
    record = from_atif(FOREIGN)
    assert (record.instance_id, record.system_prompt, record.prompt) == ("run-7", "You repair.", "Repair this.")
    assert record.meta["notes"] == {"agent": "terminus-2", "version": "2.0.0", "model": "some/model"}
    first, second = record.turns
    call = {"type": "function", "function": {"name": "shell", "arguments": '{"cmd": "ls"}'}}
    assert json.loads(first.action) == {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    assert first.observation == "README\n[image: x.png]\nGo on." and second.action == "Done."
    assert [message["role"] for message in messages_of(record)["messages"]] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema_version": "ATIF-v2.0"}, "schema_version: expected ATIF-v1.x, got 'ATIF-v2.0'"),
        ({"agent": {}}, "KeyError: 'name'"),
        ({"steps": None}, "not a trajectory in ATIF"),
        ({"steps": [{"source": "agent"}]}, "KeyError: 'message'"),
        (
            {"steps": [{"source": "agent", "message": "ls", "extra": {"swegym": {"info": "none"}}}]},
            'steps.0.extra.swegym.info: expected an object, got "none"',
        ),
        ({"extra": {"swegym": {"meta": {"task": []}}}}, "extra.swegym.meta.task: expected an object or null, got []"),
    ],
)
def test_a_malformed_document_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**FOREIGN, **change}))
    with pytest.raises(ConfigurationError, match=r"wrong\.json") as raised:
        read_episodes(path)
    assert named in str(raised.value)


def test_export_and_view_take_records_and_documents(
    recorded: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = recorded.place
    assert place is not None
    atif, back, learn = tmp_path / "atif", tmp_path / "back", tmp_path / "learn"
    assert main(["export", str(place), "--trajectories", "atif", "--output", str(atif)]) == 0
    (document,) = atif.iterdir()
    assert capsys.readouterr().out == f"{document.name}\n" and document.stem == place.name
    assert main(["export", str(place), "--trajectories", "atif", "--output", str(atif)]) == 2  # it exists
    (atif / "other.json").write_text(json.dumps(FOREIGN))
    (atif / "result.json").write_text("{}")  # other programs put such files beside it
    assert main(["export", str(atif), "--trajectories", "records", "--output", str(back)]) == 0
    again = {record.instance_id: record for record in map(read_record, find_records(back))}
    assert again.keys() == {TASK.instance_id, "run-7"} and again[TASK.instance_id] == recorded
    for options, lines in (((), 2), (("--resolved",), 1)):
        command = ["export", str(atif), "--trajectories", "messages", "--output", str(learn), "--force", *options]
        assert main(command) == 0
        assert len((learn / "messages.jsonl").read_text().splitlines()) == lines
    (atif / document.name).unlink()
    assert main(command) == 2
    assert "none of 1 episodes is resolved. Try: without --resolved" in capsys.readouterr().err
    assert main(["view", str(atif)]) == 0 and "I look." in (atif / "view.html").read_text()
    assert main(["view", str(atif / "other.json")]) == 0 and (atif / "other.html").exists()
    assert main(["view", str(learn)]) == 2
    assert "neither a recorded episode nor a trajectory in ATIF" in capsys.readouterr().err


def test_a_conversation_is_one_that_cloning_reads(recorded: Record) -> None:
    from swe_trainers.rollout.demonstrations import _conversation

    found = _conversation(messages_of(recorded))
    assert list(found.tools) == list(recorded.tools)
    assert list(found.actions) == [turn.action for turn in recorded.turns]
    assert found.observations[0] == recorded.prompt and found.system_prompt == recorded.system_prompt
