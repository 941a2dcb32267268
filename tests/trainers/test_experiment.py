from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
from gymnasium.wrappers import ClipReward, TimeLimit

from swe_trainers.cli import main
from swe_trainers.config import read_config
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import ConfigurationError
from swe_trainers.experiment import make_env
from swe_trainers.logging import read_metrics
from swe_trainers.making import make_chat, make_model
from swe_trainers.playing import Rollouts
from swe_trainers.recording import write_trajectories
from swe_trainers.rollout.statistics import episode_statistics
from swe_trainers.run_config import EnvironmentConfig, ModelConfig, WrapperConfig, run_config
from tests.trainers.learning.tiny import trajectory
from tests.trainers.tiny import TINY

EXAMPLES = Path(__file__).parents[2] / "examples" / "configs"
LAKE = EnvironmentConfig(id="FrozenLake-v1", adapter="text", parallel=2, max_turns=5, max_tokens=64, max_new_tokens=1)


def layers(env):
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(type(env).__name__)
        env = env.env
    return found


def test_wrappers_stand_in_order_and_those_for_training_only_there():
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
def test_an_environment_that_cannot_be_had_is_one_line(change, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make_env(EnvironmentConfig(**{"id": "FrozenLake-v1", "adapter": "text", **change}))
    assert "\n" not in str(caught.value)


def test_episodes_are_a_function_of_the_seed_and_differ_between_training_and_evaluation():
    env = make_env(LAKE)
    config = ModelConfig(architecture=TINY, tokenizer="words")
    model = make_model(config, env, seed=0)

    def actions(number, *, evaluation=False, seed=0):
        envs = [make_env(LAKE) for _ in range(2)]
        rollouts = Rollouts(model, make_chat(config, model.tokenizer), envs, envs, LAKE, seed)
        played = rollouts.play(4, Sampling(), number=number, evaluation=evaluation)
        return [[turn.action for turn in t.turns] for t in played], [t.seed for t in played]

    assert actions(1) == actions(1)
    others = [actions(2), actions(1, evaluation=True), actions(1, seed=1)]
    assert all(other != actions(1) for other in others)
    assert len({seed for _, seeds in [actions(1), *others] for seed in seeds}) == 16


def test_statistics_leave_failed_episodes_out_and_count_them():
    good, bad, failed = (
        trajectory([1, 2], [False, True], [0, reward], valid=valid)
        for reward, valid in ((1, True), (0, True), (9, False))
    )
    statistics = episode_statistics([good, bad, good, failed], success_above=0.5)
    assert statistics == {"return": 2 / 3, "turns": 0.0, "episodes": 3.0, "failed": 1.0, "success": 2 / 3}


@pytest.mark.parametrize("name", ["frozen_lake", "frozen_lake_grpo", "cliff_walking"])
def test_the_examples_are_valid(name):
    config = run_config(read_config(EXAMPLES / f"{name}.yaml"))
    env = make_env(config.environment)
    model = make_model(config.model, env, seed=0)
    observation, _ = env.reset(seed=0)
    assert model.tokenizer.decode(model.tokenizer.encode(observation)) == observation  # it has words for all of it


def test_cloning_runs_from_recorded_trajectories(tmp_path):
    env = make_env(LAKE)
    config = ModelConfig(architecture=TINY, tokenizer="words")
    model = make_model(config, env, seed=0)
    rollouts = Rollouts(model, make_chat(config, model.tokenizer), [env], [env], LAKE, 0)
    write_trajectories(tmp_path / "shown.jsonl", rollouts.play(6, Sampling(), number=0))
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
