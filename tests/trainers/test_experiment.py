from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest
import yaml
from gymnasium.wrappers import ClipReward, TimeLimit

from swe_trainers.cli.main import main
from swe_trainers.config import read_config
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.experiment import make_env, make_model, make_rollouts, make_tokenizer
from swe_trainers.logging import read_metrics
from swe_trainers.model.chat import chat_format
from swe_trainers.model.tokenizers import WordTokenizer
from swe_trainers.rollout.environments import make_text_env
from swe_trainers.rollout.rollouts import LocalWorkers
from swe_trainers.rollout.statistics import episode_statistics
from swe_trainers.rollout.trajectory import write_trajectories
from swe_trainers.run_config import EnvironmentConfig, ModelConfig, RolloutConfig, WrapperConfig, run_config
from tests.trainers.learning.tiny import trajectory
from tests.trainers.tiny import TINY, lake_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"
LAKE = EnvironmentConfig(id="FrozenLake-v1", adapter="text", parallel=2, max_turns=5, max_tokens=64, max_new_tokens=1)


def test_an_error_of_an_environment_is_not_taken_for_a_missing_module(tmp_path, monkeypatch):
    (tmp_path / "acme_lake.py").touch()
    monkeypatch.chdir(tmp_path)  # where a module lies that commands would not find
    monkeypatch.setitem(sys.modules, "acme_lake", ModuleType("acme_lake"))

    def broken():
        raise ValueError("no water")

    gymnasium.register("AcmeLake-v0", broken)
    with pytest.raises(ConfigurationError) as caught:
        make_text_env("acme_lake:AcmeLake-v0", {}, hint="")
    gymnasium.registry.pop("AcmeLake-v0")
    assert str(caught.value) == "environment acme_lake:AcmeLake-v0: no water"


def layers(env):
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(type(env).__name__)
        env = env.env
    return found


def lake_rollouts(config, model, envs, seed):
    """Rollouts of a policy in copies of the lake."""
    workers = LocalWorkers.embedded(model, chat_format(model.tokenizer, config.chat), envs, max_tokens=LAKE.max_tokens)
    return make_rollouts(workers, LAKE, RolloutConfig(), seed)


def test_wrappers_are_applied_in_order_and_training_wrappers_only_in_training():
    config = EnvironmentConfig(
        id="CliffWalking-v1",
        wrappers=(WrapperConfig("gymnasium.wrappers:TimeLimit", {"max_episode_steps": 7}),),
        training_wrappers=(WrapperConfig("gymnasium.wrappers:ClipReward", {"min_reward": -1}),),
        adapter="text",
    )
    expected = [TimeLimit.__name__, "TextAdapter"]
    measured, trained = (layers(make_env(config, training=training)) for training in (False, True))
    assert [name for name in reversed(measured) if name in expected] == expected
    assert ClipReward.__name__ not in measured
    assert trained[:3] == ["TextAdapter", ClipReward.__name__, TimeLimit.__name__]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "FrozenLak-v1"}, "FrozenLak"),
        ({"id": "no_such_module:Env-v0"}, "no_such_module"),
        ({"kwargs": {"slippery": 1}}, "slippery"),
        ({"adapter": "none"}, "Try: --environment.adapter text"),
        ({"wrappers": (WrapperConfig("gymnasium.wrappers"),)}, "expected module:Class"),
        ({"wrappers": (WrapperConfig("gymnasium.wrappers:Nothing"),)}, "Nothing"),
        ({"wrappers": (WrapperConfig("gymnasium.wrappers:TimeLimit", {"steps": 1}),)}, "steps"),
    ],
)
def test_missing_environment_is_a_one_line_error(change, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make_env(EnvironmentConfig(**{"id": "FrozenLake-v1", "adapter": "text", **change}))
    assert "\n" not in str(caught.value)


def test_episodes_are_determined_by_the_seed_and_differ_between_training_and_evaluation():
    env = make_env(LAKE)
    config = ModelConfig(architecture=TINY, tokenizer="words")
    model = make_model(config, env, seed=0)

    def actions(number, *, evaluation=False, seed=0):
        envs = [make_env(LAKE) for _ in range(2)]
        rollouts = lake_rollouts(config, model, envs, seed)
        played = rollouts.play(4, Sampling(), update=number, evaluation=evaluation)
        return [[turn.action for turn in t.turns] for t in played], [t.seed for t in played]

    assert actions(1) == actions(1)
    others = [actions(2), actions(1, evaluation=True), actions(1, seed=1)]
    assert all(other != actions(1) for other in others)
    assert len({seed for _, seeds in [actions(1), *others] for seed in seeds}) == 16


def test_statistics_exclude_and_count_invalid_episodes():
    good, bad, failed = (
        trajectory([1, 2], [False, True], [0, reward], valid=valid)
        for reward, valid in ((1, True), (0, True), (9, False))
    )
    statistics = episode_statistics([good, bad, good, failed], success_above=0.5)
    assert statistics == {"return": 2 / 3, "turns": 0.0, "episodes": 3.0, "failed": 1.0, "success": 2 / 3}


@pytest.mark.parametrize("name", ["frozen_lake", "frozen_lake_grpo", "cliff_walking"])
def test_example_configurations_are_valid(name):
    config = run_config(read_config(EXAMPLES / f"{name}.yaml"))
    env = make_env(config.environment)
    model = make_model(config.model, env, seed=0)
    observation, _ = env.reset(seed=0)
    assert model.tokenizer.decode(model.tokenizer.encode(observation)) == observation  # it has words for all of it


def test_cloning_runs_from_recorded_trajectories(tmp_path):
    env = make_env(LAKE)
    config = ModelConfig(architecture=TINY, tokenizer="words")
    model = make_model(config, env, seed=0)
    rollouts = lake_rollouts(config, model, [env], 0)
    write_trajectories(tmp_path / "shown.jsonl", rollouts.play(6, Sampling(), update=0))
    (tmp_path / "config.yaml").write_text(
        f"""
environment: {{id: FrozenLake-v1, adapter: text, parallel: 2, max_turns: 5, max_tokens: 64, max_new_tokens: 1}}
model: {{architecture: {TINY}, tokenizer: words}}
trainer: {{algorithm: cloning, epochs: 4, minibatch_episodes: 2, learning_rate: 0.03}}
evaluation: {{episodes: 2}}
demonstrations: {tmp_path}/shown.jsonl
output_dir: {tmp_path}/run
""".replace("'", "")
    )
    assert main([str(tmp_path / "config.yaml"), "--quiet"]) == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["update"] for row in rows] == list(range(13))
    assert rows[-1]["loss"] < rows[1]["loss"]
    assert main([str(tmp_path / "config.yaml"), "--quiet", "--demonstrations", "/nowhere.jsonl"]) == 2


def faulty_run(folder, fault, **settings):
    environment = {
        "id": "tests.trainers.faulty:Faulty-v0", "kwargs": {"fault": fault}, "parallel": 2, "max_tokens": 64,
        "max_new_tokens": 1,
    }  # fmt: skip
    rollout = {"step_timeout_s": 0.3} if fault == "hang" else {}
    run = lake_run(folder, rollout=rollout, trainer={"episodes_per_update": 16})
    run |= {"environment": environment, **settings}
    run["model"] = {**run["model"], "words": ["a b"]}
    (folder / "config.yaml").write_text(yaml.safe_dump(run))
    return str(folder / "config.yaml")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("step", "TypeError: a bug in turn 1"),
        ("reset", "KeyError: 'no such row'"),
        ("reward", "step: the reward is str, expected a finite number"),
        ("tuple", "step returned 4 values, expected (observation, reward, terminated, truncated, info)"),
        ("hang", "the environment did not respond to step for 0.3 s"),
    ],
)
def test_faults_of_an_environment_are_invalid_episodes_with_one_traceback_in_the_log(fault, reason, tmp_path, capfd):
    assert main([faulty_run(tmp_path, fault)]) == 0
    shown = capfd.readouterr()
    assert "Traceback (most" not in shown.out + shown.err and reason in shown.err
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["episodes"] + row["episodes_invalid"] for row in rows] == [16, 16]
    invalid = int(sum(row["episodes_invalid"] for row in rows))
    assert 1 < invalid < 16  # of 32, of which a quarter are to be expected
    log = (tmp_path / "run" / "training.log").read_text()
    assert log.count("Traceback (most") == (fault in ("step", "reset")) and log.count("a new cause") == 1
    assert f"invalid episodes so far: {{{reason!r}: {invalid}}}" in log


def test_run_stops_with_one_line_where_too_many_episodes_are_invalid(tmp_path, capfd):
    config = faulty_run(tmp_path, "step")
    assert main([config, "--environment.kwargs", "{fault: step, every: 1}"]) == 2
    shown = capfd.readouterr().err.splitlines()
    assert shown[-1] == (
        "swe-train: update 0: 16 of 16 episodes are invalid, rollout.max_invalid_fraction allows 0.5 of them. "
        "16 times: TypeError: a bug in turn 1. Tracebacks are in training.log"
    )
    assert not any("Traceback (most" in line for line in shown)
    assert main([config, "--quiet", "--rollout.max_invalid_fraction", "0.01"]) == 2
    assert "allows 0.01 of them" in capfd.readouterr().err
    assert main([config, "--quiet", "--rollout.max_invalid_fraction", "1.5"]) == 2
    assert "max_invalid_fraction: got 1.5, expected a number from 0 to 1" in capfd.readouterr().err


def test_environment_that_cannot_be_closed_is_noted_and_the_run_is_finished(tmp_path, capfd):
    assert main([faulty_run(tmp_path, "close")]) == 0
    shown = capfd.readouterr().err
    assert shown.count("an environment was not closed: ValueError: cannot be closed") == 2
    assert "Traceback (most" not in shown
    assert "in close" in (tmp_path / "run" / "training.log").read_text()
    assert (tmp_path / "run" / "model").is_dir()


@pytest.mark.parametrize("words", [(), ("go left",)])
def test_a_vocabulary_that_a_user_listed_has_an_unknown_token(words):
    config = ModelConfig(architecture={"model_type": "llama"}, tokenizer="words", words=words)
    tokenizer = make_tokenizer(config, None)
    assert isinstance(tokenizer, WordTokenizer)
    assert (tokenizer.unknown_id is not None) == bool(words)
