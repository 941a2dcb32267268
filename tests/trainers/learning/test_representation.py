"""Spread and information of hidden states, against policies whose answers are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from swe_trainers.algorithms.ppo import PPO
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.representation import representation
from swe_trainers.rollout.trajectory import Trajectory
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories

N = 12


class Lookup(TinyPolicy):
    """Each observed token's state is a row of a table; the head is the identity, so that states are logits."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__(vocabulary=N, width=N)
        self.table = table
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(N))
            self.head.bias.zero_()

    def trunk_hidden(self, input_ids, position_ids, segment_ids):
        return self.table[input_ids]


def games(*, allowed: tuple[int, ...] | None = None) -> Batch:
    """One turn after each observation of one token."""
    return Batch.of(
        [
            Trajectory(
                token_ids=np.array([shown, 3]),
                action_mask=np.array([False, True]),
                rollout_logprobs=np.zeros(2, np.float32),
                rewards=np.zeros(2, np.float32),
                terminated=True,
                truncated=False,
                valid=True,
                allowed=() if allowed is None else (-1, 0),
                allowed_sets=() if allowed is None else (allowed,),
            )
            for shown in range(N)
        ]
    )


def test_a_policy_that_does_not_see_has_no_spread_and_no_information() -> None:
    found = representation(Lookup(torch.ones(N, N)), games(), max_tokens=64)
    assert found == {
        "representation/spread": pytest.approx(0, abs=1e-6),
        "representation/information": pytest.approx(0, abs=1e-6),
    }


def test_a_policy_that_writes_another_word_for_every_observation_knows_all_of_it() -> None:
    """Twelve observations, a certain word for each: log 12 nats. Of orthogonal states 11/12 of the square is spread."""
    found = representation(Lookup(50 * torch.eye(N)), games(), max_tokens=5)
    assert found["representation/information"] == pytest.approx(math.log(N), rel=1e-5)
    assert found["representation/spread"] == pytest.approx(math.sqrt(11 / 12), rel=1e-5)


def test_half_of_the_observations_one_word_the_others_another() -> None:
    """One bit; at a high temperature less."""
    table = torch.zeros(N, N)
    table[: N // 2, 3], table[N // 2 :, 5] = 50.0, 50.0
    assert representation(Lookup(table), games(), max_tokens=64)["representation/information"] == pytest.approx(
        math.log(2), rel=1e-5
    )
    p = (torch.tensor([1.0] + [0.0] * (N - 1)) * 50 / 25).softmax(0).double()
    mean = p.clone()
    mean[0] = mean[1] = (p[0] + p[1]) / 2
    expected = float(-(mean * mean.log()).sum() + (p * p.log()).sum())
    warm = representation(Lookup(table), games(), max_tokens=64, temperature=25.0)
    assert warm["representation/information"] == pytest.approx(expected, rel=1e-4)


def test_logits_are_capped_first_and_scaled_then_as_in_the_model() -> None:
    table = torch.zeros(N, N)
    table[: N // 2, 3], table[N // 2 :, 5] = 50.0, 50.0
    policy = Lookup(table)
    policy.soft_cap, policy.logit_scale = 10.0, 0.1
    p = torch.tensor([0.1 * 10 * math.tanh(5)] + [0.0] * (N - 1)).softmax(0).double()
    mean = p.clone()
    mean[0] = mean[1] = (p[0] + p[1]) / 2
    expected = float(-(mean * mean.log()).sum() + (p * p.log()).sum())
    found = representation(policy, games(), max_tokens=64)
    assert found["representation/information"] == pytest.approx(expected, rel=1e-4)


def test_words_that_are_not_allowed_say_nothing() -> None:
    table = torch.zeros(N, N)
    table[: N // 2, 3], table[N // 2 :, 5] = 50.0, 50.0
    both = representation(Lookup(table), games(allowed=(3, 5)), max_tokens=64)
    assert both["representation/information"] == pytest.approx(math.log(2), rel=1e-5)
    neither = representation(Lookup(table), games(allowed=(3, 7)), max_tokens=64)
    half = torch.tensor([0.5 * (1 + 0.5), 0.25])  # certain in half of the contexts, even in the others
    expected = float(-(half * half.log()).sum() - 0.5 * math.log(2))
    assert neither["representation/information"] == pytest.approx(expected, rel=1e-5)


def test_turns_of_all_lengths_are_measured() -> None:
    """All episodes begin with the same word, and then answer what is shown."""
    table = torch.zeros(N, N)
    table[: N // 2 + 3, 3] = table[N // 2 + 3 :, 5] = 50.0
    episodes = [
        Trajectory(
            token_ids=np.array([*shown, 3, later, 3]),
            action_mask=np.array([False, False, False, True, False, True]),
            rollout_logprobs=np.zeros(6, np.float32),
            rewards=np.zeros(6, np.float32),
            terminated=True,
            truncated=False,
            valid=True,
        )
        for shown in itertools.product(range(N // 2), repeat=3)
        for later in range(N // 2, N)
    ]
    found = representation(Lookup(table), Batch.of(episodes), max_tokens=64)
    assert found["representation/information"] > 0.4  # a quarter of all contexts has the other word: 0.56 nats


def test_few_different_contexts_are_not_measured_and_updates_report_the_rest() -> None:
    batch = games()
    assert representation(TinyPolicy(), Batch.of([*batch.episodes[:7], *batch.episodes[:7]]), max_tokens=64) == {}
    learner = (settings := PPO(microbatch_tokens=128)).learner(TinyPolicy())
    metrics = settings.update(learner, random_trajectories(16))
    assert 0 < metrics["representation/spread"] < 1 and metrics["representation/information"] > 0
