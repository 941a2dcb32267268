"""`swe-train check-env`, `doctor` and `replay-batch` on the command line."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import yaml

from swe_trainers.cli.diagnose import examine_run
from swe_trainers.cli.main import main
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.adapters import AnyText
from swe_trainers.rollout.conformance import Finding, check_env
from swe_trainers.rollout.trajectory import read_trajectories, write_trajectories
from tests.trainers.cli.test_train import CONFIG
from tests.trainers.diagnosis.test_mismatch import played
from tests.trainers.rollout.test_tree import Forgetful, Keeping, Walk
from tests.trainers.tiny import tiny_model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with saved batches."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(CONFIG)
    changes = ["--output_dir", str(folder / "out"), "--save_batch_every", "1", "--trainer.episodes_per_update", "8"]
    assert main([str(folder / "config.yaml"), "--quiet", *changes]) == 0
    return folder / "out"


def test_the_doctor_finds_no_gap_in_a_correct_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(run), "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "none"
    batch = str(run / "batches" / "00000001.jsonl")  # before the last update, whose steps of 1e-5 are below the limit
    assert main(["doctor", str(run), "--batch", batch]) == 0
    assert "likely cause: none" in capsys.readouterr().out


def test_the_doctor_finds_other_weights_than_those_of_a_batch(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = LanguageModel.from_pretrained(run / "model")
    with torch.no_grad():
        for number, parameter in enumerate(other.causal_lm.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    shutil.copytree(run, tmp_path / "other")
    other.save_pretrained(tmp_path / "other" / "model")
    batch = str(run / "batches" / "00000001.jsonl")
    assert main(["doctor", str(tmp_path / "other"), "--batch", batch, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cause"] == "weights"


def test_the_doctor_computes_a_saved_batch_in_the_precision_of_its_run(tmp_path: Path) -> None:
    """Against float32 the rounding of bfloat16 weights' log-probabilities would pass for other weights."""
    model = tiny_model().to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    config = yaml.safe_load(CONFIG)
    config["model"] |= {"dtype": "bfloat16", "device": "cpu"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    write_trajectories(
        tmp_path / "batch.jsonl", played(model=LanguageModel.from_pretrained(tmp_path / "model", dtype=torch.bfloat16))
    )
    found = examine_run(tmp_path, episodes=1, batch=tmp_path / "batch.jsonl")
    assert found.cause in ("none", "rounding") and found.tokens > 50


def test_a_batch_is_replayed_by_several_algorithms(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = run / "batches" / "00000001.jsonl"
    assert len(read_trajectories(batch)) == 8
    command = ["replay-batch", str(batch), "--run", str(run), "--loss", "ppo,grpo,reinforce"]
    assert main([*command, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert list(measured) == ["ppo", "grpo", "reinforce"]
    assert len({row["reward_mean"] for row in measured.values()}) == 1
    assert "explained_variance" in measured["ppo"] and "explained_variance" not in measured["grpo"]
    assert -1.0001 <= measured["ppo"]["update/cosine_with/reinforce"] <= 1.0001
    assert main(command) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == list(measured)
    assert "reward_mean" in {line.split()[0] for line in table[1:]}
    assert main([*command, "--json"]) == 0  # the model did not change
    assert json.loads(capsys.readouterr().out) == measured


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "nowhere"], "not a finished run"),
        (["replay-batch", "no.jsonl", "--run", "{run}", "--loss", "pppo"], "no.jsonl"),
        (["replay-batch", "{run}/batches/00000000.jsonl", "--run", "{run}", "--loss", "pppo"], "Did you mean 'ppo'?"),
        (["check-env", "NoSuch-v0"], "NoSuch"),
        (["check-env", "FrozenLake-v1"], "Try: --adapter text"),
    ],
)
def test_errors_have_one_line(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.replace("{run}", str(run)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_correct_environment_passes_check_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-env", "FrozenLake-v1", "--adapter", "text", "--actions", "left,right"]) == 0
    assert "FAILED" not in capsys.readouterr().out
    found = check_env(Keeping)
    assert {f.promise: f.kept for f in found}["it goes back to a snapshot"] is True
    assert all(f.kept is not False for f in found), found


class Fragile(Walk):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return super().step(action.encode("ascii").decode())


class Numbers(Walk):
    def step(self, action: str) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float("nan"), terminated, truncated, info


class Silent(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 3, {}


class Shared(Walk):
    """Its episodes affect each other."""

    total = 0

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        type(self).total += 1
        return f"w{self.total}", 0.0, False, False, {}


class Mistyped(Walk):
    observation_space = gymnasium.spaces.Discrete(3)
    action_space = AnyText()


class Alphanumeric(Walk):
    observation_space = gymnasium.spaces.Text(max_length=100)  # type: ignore[assignment]


class Brief(Walk):
    observation_space = gymnasium.spaces.Text(max_length=2, charset="w 0123456789")  # type: ignore[assignment]


class Hanging(Walk):
    """A game that asks a question on its own console, as TextWorld's `quit` does."""

    answered = threading.Event()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "quit":
            self.answered.wait()
        return super().step(action)


class Choosing(Walk):
    """Names the actions that are legal, and refuses others."""

    played: list[str] = []  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"legal_actions": ["go north", "go south"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.played.append(action)
        observation, reward, terminated, truncated, _ = super().step(action)
        legal = action in ("go north", "go south")
        return observation, reward, terminated, truncated, {} if legal else {"action_error": "what?"}


@pytest.mark.parametrize(
    ("kind", "broken", "detail"),
    [
        (Fragile, "strange actions", "raised UnicodeEncodeError"),
        (Numbers, "finite reward", "the reward is nan"),
        (Silent, "reset to a text", "the observation is int"),
        (Shared, "same seed", "at step 1: the observation has 'w"),
        (Forgetful, "same seed", "differs at"),
        (Mistyped, "spaces are texts", "Discrete(3), expected a Text space. Try: swe_trainers.AnyText()"),
        (Alphanumeric, "spaces are texts", "reset is not in observation_space: it has ' ', and the space only"),
        (Brief, "spaces are texts", "it has 6 characters, and the space 1 to 2"),
    ],
)  # fmt: skip
def test_check_env_finds_each_violation(kind: type[Walk], broken: str, detail: str) -> None:
    (finding,) = [each for each in check_env(kind) if each.kept is False and broken in each.promise]
    assert detail in finding.detail


def test_check_env_names_the_action_that_does_not_return() -> None:
    shown: list[Finding] = []
    began = time.monotonic()
    try:
        found = check_env(Hanging, actions=("look", "quit"), timeout_s=0.5, on_finding=shown.append)
    finally:
        Hanging.answered.set()
    assert time.monotonic() - began < 30
    assert found == shown
    assert found[0].kept is True
    assert (found[-1].kept, len(found)) == (False, 2)
    assert found[-1].detail == "step('quit') did not return within 0.5 s; nothing more is checked"


class HangingReset(Walk):
    """It can be reset once."""

    answered = threading.Event()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        if self.resets:
            self.answered.wait()
        return super().reset(seed=seed)


def test_check_env_names_a_reset_that_does_not_return() -> None:
    try:
        found = check_env(HangingReset, timeout_s=0.5)
    finally:
        HangingReset.answered.set()
    assert found[0].kept is True
    assert found[-1].detail == "reset(seed=0) did not return within 0.5 s; nothing more is checked"


def test_check_env_plays_what_is_legal_and_counts_what_is_refused() -> None:
    def steps(**options: Any) -> str:
        (finding,) = [each for each in check_env(Choosing, **options) if each.promise.startswith("a step gives")]
        assert finding.kept is True
        return finding.detail

    assert steps() == "ended after 4 steps; actions 'go north, go south'"
    assert steps(actions=("go north", "fly")) == (
        "ended after 4 steps; actions 'go north, fly'; 2 of 4 were answered by info['action_error']"
    )
    assert {"go north", "go south"} <= set(Choosing.played)


class Doors(Walk):
    """The legal actions are others after each step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        self.doors = 0
        return observation, {**info, "legal_actions": ["open door 0"]}

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        error = {} if action == f"open door {self.doors}" else {"action_error": action}
        self.doors += 1
        return (
            observation,
            reward,
            terminated,
            truncated,
            {**info, **error, "legal_actions": [f"open door {self.doors}"]},
        )


def test_check_env_plays_what_is_legal_at_each_moment() -> None:
    (finding,) = [each for each in check_env(Doors) if each.promise.startswith("a step gives")]
    assert finding.kept is True and "open door 0, open door 1" in finding.detail
    assert "action_error" not in finding.detail


def test_check_env_names_a_constructor_and_a_close_that_do_not_return(capsys: pytest.CaptureFixture[str]) -> None:
    hold = threading.Event()

    class Closing(Walk):
        def close(self) -> None:
            hold.wait(60)

    def made() -> Walk:
        hold.wait(60)
        return Walk()

    try:
        found = check_env(made, timeout_s=0.5)
        assert [each.kept for each in found] == [False, True]
        assert "was not made within 0.5 s" in found[0].detail
        found = check_env(Closing, timeout_s=0.5)
        assert found[-1].detail == "close() did not return within 0.5 s; nothing more is checked"
        gymnasium.register("NeverMade-v0", entry_point=made)
        assert main(["check-env", "NeverMade-v0", "--timeout", "1"]) == 2
        assert "was not made within 1 s" in capsys.readouterr().err
    finally:
        hold.set()


def test_check_env_plays_until_the_limit_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check-env", "FrozenLake-v1", "--adapter", "text", "--actions", "0", "--json"]
    assert main([*arguments, "--kwargs", '{"is_slippery": false, "max_episode_steps": 7}']) == 0
    (steps,) = [each for each in json.loads(capsys.readouterr().out) if each["promise"].startswith("a step gives")]
    assert steps["detail"] == "ended after 7 steps; actions '0'"
    assert main(["check-env", "CartPole-v1", "--max-steps", "3"]) == 2
