"""Preflight checks find the problems of a run before anything is loaded; each is one line with a remedy."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from swe_trainers.errors import ConfigurationError
from swe_trainers.experiment import dry_run
from swe_trainers.planning.architecture import architecture_of
from swe_trainers.planning.memory import disk_bytes
from swe_trainers.planning.preflight import check_run, problems
from swe_trainers.run_config import RunConfig, run_config

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
         "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip


def configured(tmp_path: Path, **sections: Any) -> RunConfig:
    return run_config(
        {
            "environment": {"id": "FrozenLake-v1", "adapter": "text"},
            "model": {"architecture": LLAMA, "tokenizer": "words"},
            "trainer": {"algorithm": "ppo"},
            "output_dir": str(tmp_path / "out"),
            **sections,
        }
    )


def only(config: RunConfig) -> str:
    (problem,) = problems(config)
    assert "\n" not in problem
    return problem


def test_a_run_that_can_start_has_no_problem(tmp_path):
    check_run(configured(tmp_path))
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_a_problem_with_its_installation(tmp_path):
    assert only(configured(tmp_path, wandb_project="p")) == (
        "wandb_project: needs wandb, which is not installed. Try, in a clone of swegym-env: pip install '.[wandb]'"
    )


def test_a_missing_gpu_is_a_problem(tmp_path):
    problem = only(configured(tmp_path, model={"architecture": LLAMA, "tokenizer": "words", "device": "cuda:7"}))
    assert problem.startswith("model.device: cuda:7 ")
    assert "Try:" in problem


def test_a_context_longer_than_the_model_and_heads_that_cannot_be_divided_are_problems_before_it_is_loaded(tmp_path):
    lake = {"id": "FrozenLake-v1", "adapter": "text", "max_new_tokens": 5}
    model = {"architecture": {**LLAMA, "max_position_embeddings": 100}, "tokenizer": "words"}
    longer = configured(tmp_path, model=model, environment={**lake, "max_tokens": 101})
    assert only(longer) == "environment.max_tokens: 101 is more than the model's 100 positions"
    divided = configured(tmp_path, model=model, environment={**lake, "max_tokens": 100},
                         scale={"fsdp": True, "sequence_parallel": 5})  # fmt: skip
    assert only(divided) == "scale.sequence_parallel: 5 does not divide the model's 4 attention heads"


def test_a_game_whose_package_is_missing_is_the_first_problem(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)  # as if it were not installed
    corpus = {
        "tokenizer": "sentencepiece",
        "sentencepiece": {"corpus": str(tmp_path / "none.jsonl"), "vocab_size": 400},
    }
    config = configured(
        tmp_path,
        model={"architecture": LLAMA, **corpus},
        environment={"id": "swe_trainers.games.textworld:TextWorld-v0", "kwargs": {"games": str(tmp_path)}},
    )
    found = dry_run(config)["problems"]
    assert len(found) == 2, found  # each once
    first, second = found
    assert first == "TextWorld is not installed. Try, in a clone of swegym-env: pip install '.[games]'"
    assert "none.jsonl: no such file or folder" in second
    with pytest.raises(ConfigurationError, match=r"is not installed.*\(and 1 more: "):
        check_run(config)


def test_a_missing_model_is_a_problem_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    named = only(configured(tmp_path, model={"path": "nobody/nothing-4B"}))
    assert "nobody/nothing-4B: not in the hub's cache" in named
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "it has no config.json" in only(configured(tmp_path, model={"path": str(folder)}))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert "no weights" in only(configured(tmp_path, model={"path": str(folder)}))
    assert "no such model folder" in only(configured(tmp_path, model={"path": str(tmp_path / "none")}))


def test_a_port_in_use_and_a_missing_program_are_problems(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        engine = {"kind": "vllm", "url": f"http://127.0.0.1:{port}", "command": ["no-such-server"]}
        program, used = problems(configured(tmp_path, engine=engine))
    assert "'no-such-server'" in program
    assert f"port {port} is in use" in used
    assert list(problems(configured(tmp_path, engine={**engine, "command": ["sh"]}))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("", "the file is empty"),
        ('{"messages": []}\nno JSON\n', "line 2"),
        ('{"messages": []}\n[1]\n', "line 2: expected"),
        (b"\xff\xfe", "codec"),
    ],
    ids=["missing", "empty", "no JSON", "no object", "no text"],
)
def test_invalid_demonstrations_are_a_problem_with_the_line(tmp_path, content, message):
    path = tmp_path / "shown.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    problem = only(configured(tmp_path, trainer={"algorithm": "cloning"}, demonstrations=str(path)))
    assert str(path) in problem
    assert message in problem


def test_a_missing_reward_model_or_judge_is_a_problem(tmp_path):
    assert "not a model folder" in only(configured(tmp_path, reward={"model": str(tmp_path)}))
    assert "no_such_module" in only(configured(tmp_path, reward={"judge": "no_such_module:judge"}))


def test_an_output_directory_that_is_a_file_is_a_problem(tmp_path):
    (tmp_path / "out").write_text("")
    assert "is a file" in only(configured(tmp_path))


def test_a_disk_too_small_for_the_checkpoints_is_a_problem_with_both_sizes(tmp_path):
    shape = {**LLAMA, "hidden_size": 8192, "intermediate_size": 32768, "num_hidden_layers": 200, "vocab_size": 200_000}
    config = configured(tmp_path, model={"architecture": shape, "tokenizer": "words"}, keep_checkpoints=50)
    model = architecture_of(None, shape)
    needed, parameters = disk_bytes(config, model), model.parameters
    assert 51 * 3 * 4 * parameters < needed < 52.5 * 3 * 4 * parameters
    if needed < shutil.disk_usage(tmp_path).free:
        pytest.fail(f"this machine has {needed / 1e12:.0f} TB free: make the model of this test larger")
    assert f"needs {needed / 1e9:.2g} GB" in only(config)


def test_of_several_problems_the_first_is_raised_and_the_others_counted(tmp_path):
    config = configured(tmp_path, wandb_project="p", reward={"model": str(tmp_path)})
    with pytest.raises(ConfigurationError, match=r"wandb.*\(and 1 more: swe-train CONFIG --dry-run lists them\)"):
        check_run(config)
