"""The settings of every algorithm: ranges, and options that would have no effect."""

from __future__ import annotations

import dataclasses

import pytest

from swe_trainers.algorithms.settings import _RANGES
from swe_trainers.algorithms.stages import ALGORITHMS, OFFLINE
from swe_trainers.config import build
from swe_trainers.errors import ConfigurationError


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
        ("ppo", {"critic_learning_rate": 0.1}, "has no effect on a shared critic"),
        ("ppo", {"group_size": 8}, "no such setting"),
        ("ppo", {"correction_cap": 3.0}, "have no effect with correction none"),
        ("ppo", {"correction": "mask", "correction_cap": 1.0}, "correction_cap: got 1.0, expected a number above 1"),
        ("rloo", {"kl_placement": "loss", "kl_estimator": "k1"}, "does not pull towards the reference"),
        ("reward_model", {"minibatch_episodes": 3}, "an even number"),
        ("reward_model", {"kind": "regression", "center": 0.1}, "center: has no effect"),
        ("cloning", {"aggregation": "constant"}, "expected one of token, sequence, prompt"),
    ],
)
def test_an_option_without_effect_is_an_error(algorithm, values, message):
    with pytest.raises(ConfigurationError, match=message):
        build(ALGORITHMS[algorithm], values)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_number_has_a_range_and_every_algorithm_its_own_name(algorithm):
    kind = ALGORITHMS[algorithm]
    settings = kind()
    assert settings.algorithm == algorithm
    numbers = [f.name for f in dataclasses.fields(kind) if "int" in str(f.type) or "float" in str(f.type)]
    assert set(numbers) - {"minimum_return"} <= set(_RANGES)
    for name in numbers:
        if name in _RANGES:
            with pytest.raises(ConfigurationError, match=f"{name}: got -1"):
                build(kind, {name: -1})
    assert issubclass(kind, OFFLINE) == (algorithm in ("cloning", "reward_model"))
