"""The settings of every algorithm: ranges, and options that would have no effect."""

from __future__ import annotations

import dataclasses

import pytest

from swe_trainers.algorithms import ALGORITHMS, algorithm_classes, find_algorithm, name_of
from swe_trainers.algorithms.algorithm import ranges
from swe_trainers.algorithms.grpo import GRPO
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.config import build
from swe_trainers.errors import ConfigurationError
from swe_trainers.run_config import run_config


@pytest.mark.parametrize(
    ("algorithm", "values", "message"),
    [
        ("grpo", {"group_size": 1}, "group_size: got 1, expected at least 2"),
        ("grpo", {"episodes_per_update": 20}, "expected a multiple of group_size"),
        ("dapo", {"overlong_limit": 9}, "either needs the other"),
        ("dapo", {"overlong_penalty": 0.5}, "has no effect without overlong_limit"),
        ("dapo", {"overlong_limit": 9, "overlong_buffer": 10}, "at most the limit"),
        ("dr_grpo", {"aggregation": "token"}, "aggregation_length: needed by aggregation constant"),
        ("grpo", {"aggregation": "constant"}, "aggregation_length: needed by aggregation constant"),
        ("reinforce", {"epochs": 2}, "epochs, minibatches: got 2 and 1, expected 1"),
        ("reinforce", {"stop_kl": 0.1}, "stop_kl: has no effect"),
        ("reinforce", {"clip_low": 0.1}, "no such setting"),
        ("reinforce_plus_plus", {"group_size": 8, "gamma": 0.9}, "gamma: has no effect"),
        ("reinforce_plus_plus", {"group_size": 7}, "multiple of group_size"),
        ("ppo", {"critic_learning_rate": 0.1, "value_coefficient": 0.0}, "has no effect with value_coefficient 0"),
        ("ppo", {"group_size": 8}, "no such setting"),
        ("ppo", {"correction_cap": 3.0}, "have no effect with correction none"),
        ("ppo", {"correction": "mask", "correction_cap": 1.0}, "correction_cap: got 1.0, expected a number above 1"),
        ("rloo", {"kl_placement": "loss", "kl_estimator": "k1"}, "does not pull towards the reference"),
        ("reward_model", {"minibatch_episodes": 3}, "an even number"),
        ("reward_model", {"kind": "regression", "center": 0.1}, "center: has no effect"),
        ("ppo", {"minibatches": 1000, "episodes_per_update": 16}, r"expected at most episodes_per_update \(16\)"),
        ("reinforce_plus_plus", {"minibatches": 65}, r"minibatches: got 65, expected at most .* \(64\)"),
        ("monte_carlo_tree", {"minibatches": 9, "episodes_per_update": 8}, "minibatches: got 9"),
        ("grpo", {"group_size": 16, "episodes_per_update": 8}, "expected a multiple of group_size"),
        ("rloo", {"conversation_sharing": "last"}, "one ratio for all tokens of an episode. Try: ratio token"),
        ("gspo", {"conversation_sharing": "conversation"}, "conversation_sharing: ratio sequence is one ratio"),
        ("monte_carlo_tree", {"episodes_per_update": 6}, "expected a multiple of the ends of a tree"),
        ("reinforce", {"episodes_per_update": 1}, "baseline: one episode has no others"),
        ("cloning", {"aggregation": "constant"}, "expected one of token, sequence, prompt"),
    ],
)
def test_an_option_without_effect_is_an_error(algorithm, values, message):
    with pytest.raises(ConfigurationError, match=message):
        build(find_algorithm(algorithm), values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPO(learning_rte=1e-4), "learning_rte: PPO has no such setting. Did you mean 'learning_rate'"),
        (lambda: GRPO(gamma=0.9), "gamma: has no effect on GRPO, it belongs to PPO, REINFORCE, REINFORCEPlusPlus"),
        (lambda: Halved(group_size=8), "group_size: has no effect on Halved, it belongs to GRPO, DrGRPO"),
    ],
)
def test_an_unknown_setting_in_python_is_answered_with_the_right_one(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_number_has_a_range_and_every_algorithm_its_own_name(algorithm):
    kind = algorithm_classes()[algorithm]
    settings = kind()
    assert name_of(settings) == algorithm
    numbers = [f.name for f in dataclasses.fields(kind) if "int" in str(f.type) or "float" in str(f.type)]
    assert set(numbers) - {"minimum_return"} <= set(ranges(kind))
    for name in numbers:
        if name in ranges(kind):
            wrong = 1 if name == "reward_min" else -1
            with pytest.raises(ConfigurationError, match=f"{name}: got {wrong}"):
                build(kind, {name: wrong})


@pytest.mark.parametrize(
    ("algorithm", "plays"), [("cloning", False), ("reward_model", False), ("ppo", True), ("grpo", True)]
)
def test_an_algorithm_plays_episodes_or_reads_demonstrations(algorithm, plays):
    assert (find_algorithm(algorithm)().rollout_plan is not None) == plays


@dataclasses.dataclass(frozen=True)
class Halved(PPO):
    """PPO with advantages of half the size: a custom algorithm."""

    factor: float = 0.5

    def advantages(self, experience):
        return self.factor * super().advantages(experience)


def test_a_custom_algorithm_is_found_by_its_module_and_class():
    path = f"{__name__}:Halved"
    values = {
        "environment": {"id": "FrozenLake-v1", "adapter": "text"},
        "model": {"architecture": {"model_type": "llama"}, "tokenizer": "words"},
        "trainer": {"algorithm": path, "factor": 0.25, "gamma": 0.9},
    }
    config = run_config(values)
    assert (type(config.trainer), config.trainer.factor, config.trainer.gamma) == (Halved, 0.25, 0.9)
    assert config.algorithm == path
    assert f"  algorithm: {path}" in config.yaml()
    with pytest.raises(ConfigurationError, match=r"trainer.factr: no such setting. Did you mean 'factor'"):
        run_config({**values, "trainer": {"algorithm": path, "factr": 1}})
    with pytest.raises(ConfigurationError, match="is not a subclass of Algorithm"):
        find_algorithm("dataclasses:Field")
    with pytest.raises(ConfigurationError, match="no_such_module"):
        find_algorithm("no_such_module:Algorithm")
