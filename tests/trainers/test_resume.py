"""A run that is there is resumed with its own settings; others are refused, recorded, or begin a new run."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from swe_trainers import PPO, LanguageModel, TextAdapter, Trainer, WordTokenizer
from swe_trainers.cli.main import main
from swe_trainers.config import read_config
from swe_trainers.errors import ConfigurationError
from swe_trainers.experiment import run_experiment
from swe_trainers.report.page import write_report
from swe_trainers.resume import Settings, set_aside
from swe_trainers.run_config import run_config
from tests.trainers.tiny import lake_run

SHAPE = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Any]:
    """The configuration of a finished run of two updates."""
    values = lake_run(tmp_path, trainer={"episodes_per_update": 2, "minibatches": 1})
    values["checkpoint_every"] = 1
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(values))
    assert swe_train(tmp_path) == 0
    return values


def swe_train(folder: Path, *arguments: str) -> int:
    return main([str(folder / "lake.yaml"), "--quiet", *arguments])


def written(folder: Path) -> dict[str, bytes]:
    """The files that a start that is refused must leave alone."""
    return {str(path): path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}


def test_changed_setting_stops_with_the_differences_and_three_ways_on(
    tmp_path: Path, run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path)
    assert swe_train(tmp_path, "--trainer.learning_rate", "5e-4", "--seed", "1") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for part in (
        "trainer.learning_rate: 0.01 there, 0.0005 now",
        "seed: 0 there, 1 now",
        "--output_dir DIR",
        "--resume-with-changes",
        "--restart",
    ):
        assert part in error
    assert written(tmp_path) == before


def test_same_settings_leave_the_configuration_of_a_finished_run_alone(tmp_path: Path, run: dict[str, Any]) -> None:
    config = tmp_path / "run" / "config.yaml"
    config.write_text("# read me\n" + config.read_text())
    assert swe_train(tmp_path) == 0
    assert config.read_text().startswith("# read me\n")


def test_run_goes_on_with_changes_and_records_where(tmp_path: Path, run: dict[str, Any]) -> None:
    changes = ["--trainer.learning_rate", "5e-4", "--trainer.max_updates", "3"]
    assert swe_train(tmp_path, *changes, "--resume-with-changes") == 0
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "changes.jsonl").read_text().splitlines()]
    assert row["update"] == 2
    assert row["changes"] == {
        "trainer.learning_rate": {"from": 0.01, "to": 0.0005},
        "trainer.max_updates": {"from": 2, "to": 3},
    }
    assert read_config(tmp_path / "run" / "config.yaml")["trainer"]["learning_rate"] == 0.0005
    page = write_report([tmp_path / "run"]).read_text()
    assert "changed after update 2: trainer.learning_rate 0.01 → 0.0005" in page
    assert swe_train(tmp_path, *changes) == 0  # they are its settings now
    assert swe_train(tmp_path) == 2


def test_changes_of_a_finished_run_change_nothing(tmp_path: Path, run: dict[str, Any]) -> None:
    config = (tmp_path / "run" / "config.yaml").read_bytes()
    assert swe_train(tmp_path, "--seed", "1", "--resume-with-changes") == 0
    assert (tmp_path / "run" / "config.yaml").read_bytes() == config
    assert not (tmp_path / "run" / "changes.jsonl").exists()
    assert "the run was finished: seed changed nothing" in (tmp_path / "run" / "training.log").read_text()


def test_restart_keeps_the_former_run_aside(tmp_path: Path, run: dict[str, Any]) -> None:
    former = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert swe_train(tmp_path, "--seed", "1", "--restart") == 0
    aside = tmp_path / "run" / "replaced-1"
    assert (aside / "metrics.jsonl").read_bytes() == former
    assert (aside / "checkpoints").is_dir() and read_config(aside / "config.yaml")["seed"] == 0
    assert read_config(tmp_path / "run" / "config.yaml")["seed"] == 1
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2]
    assert swe_train(tmp_path, "--seed", "2", "--restart") == 0
    assert (tmp_path / "run" / "replaced-2").is_dir()


def test_run_without_a_checkpoint_takes_other_settings_and_mixes_nothing(tmp_path: Path) -> None:
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(lake_run(tmp_path)))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(run_config(lake_run(tmp_path, trainer={"learning_rate": 0.3})).yaml())
    (folder / "metrics.jsonl").write_text('{"stage": "grpo", "update": 1, "loss": 1.0}\n')
    assert swe_train(tmp_path) == 0
    assert "grpo" not in (folder / "metrics.jsonl").read_text()
    assert read_config(folder / "config.yaml")["trainer"]["learning_rate"] == 0.01


def test_algorithm_is_a_setting_too(tmp_path: Path, run: dict[str, Any]) -> None:
    other = lake_run(tmp_path, trainer={"algorithm": "reinforce"})
    other["trainer"] = {"algorithm": "reinforce", "learning_rate": 0.01, "max_updates": 2}
    changes = Settings.of(run_config(other)).changes()
    assert changes["trainer.algorithm"] == ("ppo", "reinforce")
    with pytest.raises(ValueError, match=r"trainer\.algorithm: ppo there, reinforce now"):
        run_experiment(run_config(other), console=False)


def test_settings_younger_than_the_run_are_no_change(tmp_path: Path) -> None:
    values = lake_run(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    text = run_config(values).yaml()
    (folder / "config.yaml").write_text("".join(line for line in text.splitlines(True) if "save_batch" not in line))
    assert Settings.of(run_config(values)).changes() == {}
    (folder / "config.yaml").write_text(text + "of_another_version: 3\n")
    assert Settings.of(run_config(values)).changes() == {"of_another_version": (3, "(absent)")}


def test_nothing_of_the_user_is_moved_aside(tmp_path: Path) -> None:
    for name in ("notes.txt", "training.log", ".lock", "replaced-1"):
        (tmp_path / name).mkdir()
    assert set_aside(tmp_path) is None
    (tmp_path / "config.yaml").write_text("")
    assert set_aside(tmp_path) == tmp_path / "replaced-2"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "notes.txt", "replaced-1", "replaced-2", "training.log",
    ]  # fmt: skip


def python_run(folder: Path, resume: str = "same", **settings: Any) -> Trainer:
    """A program's run of two updates."""
    with closing(TextAdapter(gymnasium.make("FrozenLake-v1"))) as lake:
        words = WordTokenizer.from_texts(lake.vocabulary())
    model = LanguageModel.from_config(SHAPE, words)
    algorithm = PPO(episodes_per_update=2, minibatches=1, **settings)
    limits = {"parallel": 2, "max_turns": 2, "max_tokens": 64, "max_new_tokens": 1}
    return Trainer(model, "FrozenLake-v1", algorithm, output_dir=folder, resume=resume, checkpoint_every=1, **limits)


def test_program_with_changed_settings_stops_with_the_differences_and_three_ways_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    python_run(folder).train(2)
    before = written(tmp_path)
    assert python_run(folder).train(2).updates == 2
    assert (folder / "config.yaml").read_bytes() == before[str(folder / "config.yaml")]
    with pytest.raises(ConfigurationError) as raised:
        python_run(folder, learning_rate=0.5)
    for part in ("trainer.learning_rate: 1e-05 there, 0.5 now", "output_dir=…", 'resume="changed"', 'resume="never"'):
        assert part in str(raised.value)


def test_program_goes_on_with_changes_or_begins_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    python_run(folder).train(2)
    assert python_run(folder, "changed", learning_rate=0.5).train(3).updates == 3
    (row,) = [json.loads(line) for line in (folder / "changes.jsonl").read_text().splitlines()]
    assert row["update"] == 2 and row["changes"] == {"trainer.learning_rate": {"from": 1e-5, "to": 0.5}}
    trainer = python_run(folder, "never")
    assert trainer.train(1).updates == 1 and (folder / "replaced-1" / "changes.jsonl").exists()
    assert trainer.train(2).updates == 2 and not (folder / "replaced-2").exists()


def test_changed_settings_of_optimizer_and_penalty_take_effect(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    python_run(folder, critic_learning_rate=1e-4, kl_coefficient=0.1).train(1)
    changes = {"weight_decay": 0.1, "adam_epsilon": 1e-5, "critic_learning_rate": 1e-3, "kl_coefficient": 0.2}
    trainer = python_run(folder, "changed", **changes)
    (metrics,) = trainer.iterate(2)
    assert metrics["kl/coefficient"] == 0.2
    groups = trainer.learner.optimizer.param_groups
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
    assert {group["eps"] for group in groups} == {1e-5}
    assert sorted({round(group["lr"], 9) for group in groups}) == [1e-5, 1e-3]


def test_an_adapted_penalty_is_resumed_and_a_new_one_begins_with_its_setting(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    adaptive = {"kl_coefficient": 0.1, "kl_target": 1e-9, "kl_horizon": 1}
    python_run(folder).train(1)
    first, second = python_run(folder, "changed", **adaptive).iterate(3)  # there was no penalty before
    assert first["kl/coefficient"] == 0.1 and second["kl/coefficient"] != 0.1
    (third,) = python_run(folder, **adaptive).iterate(4)
    assert third["kl/coefficient"] not in (0.1, second["kl/coefficient"])


def test_program_and_command_do_not_take_each_other_over(tmp_path: Path, run: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="has a run with other settings"):
        python_run(tmp_path / "run")


def test_run_of_an_older_program_is_resumed_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    python_run(folder).train(1)
    (folder / "config.yaml").unlink()  # older versions wrote none
    assert python_run(folder).train(2).updates == 2
    assert "config.yaml is missing" in (folder / "training.log").read_text()
    assert (folder / "config.yaml").exists()
