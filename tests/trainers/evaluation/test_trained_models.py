"""A trained model is evaluated as it was trained to play, without options that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from swe_trainers.cli.main import main, main_eval
from swe_trainers.evaluation.policies import open_folder
from swe_trainers.model.tokenizers import train_sentencepiece
from swe_trainers.provenance import read_provenance, write_provenance
from swe_trainers.run_config import EnvironmentConfig
from tests.trainers.tiny import lake_run, tiny_model

TRAINED = EnvironmentConfig(
    id="swegym_env:SWEBench-v0",
    kwargs={
        "dataset": "mini-edit", "split": "test", "sandbox": "namespace", "action_format": "raw", "prompt": "terse",
        "max_turns": 2,
    },
    parallel=2,
    max_tokens=2048,
    max_new_tokens=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a program that is not `swe-train`, as the demo is: its `config.yaml` is its own."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer = train_sentencepiece(["def add(a, b):\n    return a + b\n", "Repair the function."], 300)
    tiny_model(tokenizer=tokenizer, max_position_embeddings=4096).save_pretrained(folder / "model")
    write_provenance(folder / "model", TRAINED, "compact")
    (folder / "config.yaml").write_text("seed: 3\nskill: 0.4\nmodel: {model_type: llama}\n")
    return folder


def played(output: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The settings of an evaluation, its first row, and its recorded episode."""
    row = json.loads((output / "results.jsonl").read_text().splitlines()[0])
    settings = json.loads((output / "settings.json").read_text())
    return settings, row, json.loads((output / row["episode"] / "traj.json").read_text())


def test_model_plays_as_it_was_trained_and_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--model", str(run), "--slice", ":1", "--n-parallel", "1", "--output", str(tmp_path / "out")]
    assert main_eval(command) == 0
    settings, row, trajectory = played(tmp_path / "out")
    assert settings["arguments"] == dict(TRAINED.kwargs)
    assert settings["sampling"]["max_tokens"] == 2048 and settings["sampling"]["max_new_tokens"] == 3
    assert row["valid"] and row["turns"] == 2 and row["end_reason"] == "max_turns"
    assert "<execute>" not in trajectory["system_prompt"] and trajectory["tools"] == []
    (line,) = capsys.readouterr().err.splitlines()
    for part in ("environment.yaml says", "action_format raw", "prompt terse", "max_turns 2", "max_tokens 2048"):
        assert part in line


def test_settings_other_than_those_of_training_are_warned_of(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--model", str(run / "model"), "--slice", ":1", "--n-parallel", "1", "--output", str(tmp_path / "out")]
    command += ["--dataset", "mini", "--env.prompt", "default", "--max-turns", "1", "--action-format", "raw"]
    assert main_eval(command) == 0
    settings, row, _ = played(tmp_path / "out")
    expected = {"dataset": "mini", "sandbox": "namespace", "action_format": "raw", "prompt": "default"}
    assert settings["arguments"] == expected  # and no split, which was of the other dataset
    assert row["turns"] == 1
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert warnings == [
        "swe-eval: warning: prompt default: the model was trained with terse",
        "swe-eval: warning: --max-turns 1: the model was trained with 2",
    ]


@pytest.mark.parametrize("place", ["", "model"], ids=["run", "its model"])
def test_folder_of_any_run_is_evaluated(run: Path, place: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert main_eval([str(run / place), "--episodes", "1", "--output", str(output)]) == 0
    settings, row, _ = played(output)
    assert settings["arguments"] == dict(TRAINED.kwargs) and row["valid"]


def test_another_environment_is_played_with_its_own_defaults(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--model", str(run), "--env", "FrozenLake-v1", "--adapter", "text", "--episodes", "1"]
    limits = ["--max-new-tokens", "2", "--max-turns", "1", "--max-tokens", "2048", "--output", str(tmp_path / "out")]
    assert main_eval([*command, *limits]) == 0
    assert played(tmp_path / "out")[0]["arguments"] == {}
    assert "warning: --env FrozenLake-v1: the model was trained on swegym_env:SWEBench-v0" in capsys.readouterr().err


def test_run_of_swe_train_carries_its_environment(tmp_path: Path) -> None:
    # Returns of the frozen lake are 0 or 1, so that every episode is a success.
    sections = {"trainer": {"max_updates": 1}, "evaluation": {"success_above": -1.0}}
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(lake_run(tmp_path, **sections)))
    assert main([str(tmp_path / "lake.yaml"), "--quiet"]) == 0
    found = read_provenance(tmp_path / "run" / "model")
    assert found is not None and found.source.name == "environment.yaml"
    assert (found.environment.id, found.environment.adapter, found.environment.max_turns) == (
        "FrozenLake-v1",
        "text",
        4,
    )
    command = ["--model", str(tmp_path / "run"), "--episodes", "2", "--output", str(tmp_path / "out")]
    assert main_eval(command) == 0
    assert played(tmp_path / "out")[0]["environment"] == "FrozenLake-v1"
    assert [played(tmp_path / "out")[index][key] for index, key in ((0, "success_above"), (1, "resolved"))] == [
        -1,
        True,
    ]
    other = [*command[:-1], str(tmp_path / "strict"), "--success-above", "2"]
    assert main_eval(other) == 0
    assert played(tmp_path / "strict")[1]["resolved"] is False
    # A model that an older version trained: the run's configuration says the same.
    (tmp_path / "run" / "model" / "environment.yaml").unlink()
    older = read_provenance(tmp_path / "run" / "model")
    assert older is not None and older.environment == found.environment and older.source.name == "config.yaml"
    assert older.success_above == found.success_above == -1


def test_model_reads_and_writes_what_it_did_in_training_also_where_it_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A context holds the prompt and one action, so that only with `history: last` there is a second turn.
    rollout = {"history": "last", "step_timeout_s": 60.0, "max_invalid_fraction": 0.25}
    config = lake_run(tmp_path, rollout=rollout, trainer={"max_updates": 1}, environment={"max_tokens": 8})
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(config))
    assert main([str(tmp_path / "lake.yaml"), "--quiet"]) == 0
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "exported")]) == 0
    written = yaml.safe_load((tmp_path / "exported" / "environment.yaml").read_text())
    assert written["rollout"] == {"history": "last"}
    run, exported = str(tmp_path / "run"), str(tmp_path / "exported")
    for number, command in enumerate((["--model", run], ["--model", exported], [exported])):
        output = tmp_path / f"out{number}"
        capsys.readouterr()
        assert main_eval([*command, "--episodes", "4", "--output", str(output)]) == 0
        assert "history last" in capsys.readouterr().err or "--model" not in command
        rows = [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]
        assert played(output)[0]["sampling"]["history"] == "last"
        assert max(row["turns"] for row in rows) > 1 and not any(row["end_reason"] == "tokens" for row in rows)


def test_description_of_a_newer_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "environment.yaml").write_text("format: 2\nenvironment: {id: FrozenLake-v1}\n")
    assert main_eval(["--model", str(tmp_path)]) == 2
    assert "environment.yaml: of format 2, this version reads 1" in capsys.readouterr().err


def test_weights_are_evaluated_in_the_precision_that_they_were_trained_in(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    trained = {"dtype": "bfloat16", "float32_logits": True, "attention": "math", "lora": None, "path": "elsewhere"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": trained}))
    asked: dict[str, Any] = {"device": "cpu", "threads": None, "n_parallel": 1, "temperature": 1.0}
    for dtype, exact in ((None, True), ("bfloat16", True), ("float32", False)):
        policy = open_folder(tmp_path, dtype=dtype, max_new_tokens=2, max_tokens=32, **asked)
        model = policy.engine._model
        assert model.float32_logits is exact and model._attention == "math"
        assert model.unembedding.weight.dtype == (torch.bfloat16 if exact else torch.float32)


def test_an_evaluation_says_how_its_environment_is_adapted_and_wrapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with other arguments of the adapter or of a wrapper does not continue it."""
    wrapper = {"name": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 3}}
    environment = {"adapter_kwargs": {"unconstrained": True}, "wrappers": [wrapper]}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(lake_run(tmp_path, environment=environment)))
    command = [str(tmp_path / "run.yaml"), "--episodes", "1", "--output", str(tmp_path / "out")]
    assert main_eval(command) == 0
    settings = played(tmp_path / "out")[0]
    assert {name: settings[name] for name in environment} == environment
    assert main_eval([*command, "--resume"]) == 0
    for other in (
        "--environment.adapter_kwargs.unconstrained=false",
        "--environment.wrappers.0.kwargs.max_episode_steps=2",
    ):
        capsys.readouterr()
        assert main_eval([*command, "--resume", other]) == 2
        assert f"was started with {other.split('.')[1]} " in capsys.readouterr().err
