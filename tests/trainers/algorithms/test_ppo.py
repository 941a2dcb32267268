from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from swe_trainers.algorithms import ppo as ppo_module
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.errors import ConfigurationError, TrainerError
from swe_trainers.learning.forward import take_snapshot
from tests.trainers.algorithms.games import ECHO_PPO, Player
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories, trajectory


def learn(player, settings=ECHO_PPO, updates=24, collect=None):
    learner = settings.learner(player.model, seed=0)
    for _ in range(updates):
        settings.update(learner, (collect or player.play)(learner.updates))
        learner.updates += 1
    return player.mean_return()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.campaign)])
def test_ppo_learns_the_echo_task(seed):
    player = Player(seed=seed)
    assert player.mean_return() < 1.0
    assert learn(player) > 2.5


def test_negated_advantage_does_not_learn(monkeypatch):
    right = ppo_module.generalized_advantages
    monkeypatch.setattr(ppo_module, "generalized_advantages", lambda *a, **k: -right(*a, **k))
    assert learn(Player()) < 0.75


def test_mask_shifted_by_one_token_does_not_learn():
    player = Player()

    def shifted(update):
        moved = []
        for t in player.play(update):
            per_token = {name: np.roll(getattr(t, name), -1) for name in ("action_mask", "rollout_logprobs", "rewards")}
            moved.append(dataclasses.replace(t, **per_token))
        return moved

    assert learn(player, collect=shifted) < 1.2


def test_rewards_shifted_by_one_turn_do_not_learn():
    player = Player()

    def displaced(update):
        moved = []
        for t in player.play(update):
            ends = [turn.end - 1 for turn in t.turns]
            rewards = np.zeros_like(t.rewards)
            rewards[ends[:-1]] = t.rewards[ends[1:]]
            moved.append(dataclasses.replace(t, rewards=rewards))
        return moved

    # The reward for an answer credits the answer before; no part of it reaches the action that earned it.
    assert learn(player, collect=displaced) < 1.5


def test_first_ratio_is_one_and_the_logprob_gap_is_small():
    player = Player()
    for minibatches in (1, 4):
        settings = dataclasses.replace(ECHO_PPO, minibatches=minibatches, microbatch_tokens=100)
        metrics = settings.update(settings.learner(player.model, seed=0), player.play(0))
        assert metrics["ratio_error_first"] < 1e-5
        assert metrics["ratio_error_max"] > 1e-3
        assert metrics["logprob_gap"] < 1e-5
    model = TinyPolicy()
    settings = PPO(minibatches=1, epochs=1)
    metrics = settings.update(settings.learner(model, seed=0), random_trajectories(8))
    assert metrics["ratio_error_first"] == 0
    assert metrics["ratio"] == pytest.approx(1, abs=1e-6)


def test_expected_gradient_of_a_bandit_is_the_policy_gradient():
    """Against the exact gradient of the expected reward by enumeration, within four standard errors."""
    arms, draws, chunks = 5, 4000, 20
    model = TinyPolicy(vocabulary=arms)
    rewards = torch.tensor([0.0, 1.0, -0.5, 2.0, 0.3])
    ids, ones = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64)
    logits = model.head(model.trunk_hidden(ids, ids, ones)[0, 0])
    (exact,) = torch.autograd.grad(-(logits.softmax(-1) * rewards).sum(), model.head.bias)
    settings = PPO(epochs=1, minibatches=1, whiten_advantages=False, value_coefficient=0.0, lam=1.0, learning_rate=1.0)
    settings = dataclasses.replace(settings, max_grad_norm=1e9)
    random = np.random.default_rng(0)
    estimates = []
    for _ in range(chunks):
        sampled = random.choice(arms, size=draws // chunks, p=logits.detach().double().softmax(-1).numpy())
        episodes = [trajectory([0, arm], [False, True], [0, float(rewards[arm])]) for arm in sampled]
        learner = settings.learner(copy.deepcopy(model), seed=0)
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), lr=1.0)
        before = learner.model.head.bias.detach().clone()
        settings.update(learner, episodes)
        learner.optimizer.zero_grad()
        estimates.append((before - learner.model.head.bias.detach()) / settings.learning_rate)
    estimates = torch.stack(estimates)
    error = estimates.std(0) / chunks**0.5
    assert ((estimates.mean(0) - exact).abs() < 4 * error).all()
    assert exact.abs().max() > 8 * error.max()


def targets_of(trajectories, settings, *, value=0.5, reference=None):
    """The targets for a critic that returns `value` everywhere."""
    model = TinyPolicy()
    with torch.no_grad():
        model.value.weight.zero_()
        model.value.bias.fill_(value)
    learner = settings.learner(model, seed=0, reference=reference)
    seen = settings.observe(learner, trajectories)
    return settings.advantages(seen), seen.returns, seen, learner


def test_truncation_bootstraps_and_termination_does_not():
    settings = PPO(whiten_advantages=False, gamma=0.9, lam=1.0)
    ended = trajectory([1, 2, 3], [False, True, False], [0, 1, 0], terminated=True)
    cut = trajectory([1, 2, 3], [False, True, False], [0, 1, 0], terminated=False)
    advantages, returns, _, _ = targets_of([ended, cut], settings)
    torch.testing.assert_close(returns, torch.tensor([0, 1.0, 0, 0, 1 + 0.9 * 0.5, 0]))
    torch.testing.assert_close(advantages, torch.tensor([0, 0.5, 0, 0, 0.95, 0]))


def test_rewards_are_scaled_for_training_and_reported_unscaled():
    episodes = [trajectory([1, 2], [False, True], [0, 7])]
    settings = PPO(whiten_advantages=False, reward_scale=0.1)
    _, returns, _, learner = targets_of(episodes, settings, value=0.0)
    torch.testing.assert_close(returns, torch.tensor([0, 0.7]))
    assert settings.update(learner, episodes)["reward_mean"] == 7


def test_kl_in_the_reward_is_subtracted_per_token():
    settings = PPO(whiten_advantages=False, lam=1.0, kl_coefficient=0.25, kl_placement="reward", kl_estimator="k1")
    episodes = random_trajectories(5)
    reference = TinyPolicy(seed=1)
    _, returns, seen, _ = targets_of(episodes, settings, value=0.0, reference=reference)
    batch = seen.batch
    theirs = take_snapshot(reference, batch, microbatch_tokens=100).logprobs
    shaped = (batch.rewards - 0.25 * (seen.old.logprobs - theirs)).double()
    for s in range(batch.n_sequences):
        acts = batch.action_mask[batch.offsets[s] : batch.offsets[s + 1]]
        own = shaped[batch.offsets[s] : batch.offsets[s + 1]][acts]
        got = returns[batch.offsets[s] : batch.offsets[s + 1]][acts]
        torch.testing.assert_close(got.double(), own.flip(0).cumsum(0).flip(0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("placement", "estimator"), [("reward", "k1"), ("loss", "k3"), ("loss", "full")])
def test_strong_kl_penalty_keeps_the_policy_at_its_reference(placement, estimator):
    drift = {}
    for coefficient in (0.01, 10.0):
        player = Player()
        settings = dataclasses.replace(
            ECHO_PPO,
            kl_coefficient=coefficient,
            kl_placement=placement,
            kl_estimator=estimator,
            whiten_advantages=False,
        )
        learner = settings.learner(player.model, seed=0, reference=player.model.reference_copy())
        for _ in range(8):
            metrics = settings.update(learner, player.play(learner.updates))
            learner.updates += 1
        drift[coefficient] = metrics["kl/reference"]
    assert drift[10.0] < drift[0.01] / 3


def test_adaptive_kl_coefficient_rises_with_the_divergence():
    player = Player()
    settings = dataclasses.replace(ECHO_PPO, kl_coefficient=0.01, kl_target=1e-4, kl_horizon=32)
    learner = settings.learner(player.model, seed=0, reference=player.model.reference_copy())
    for _ in range(3):
        settings.update(learner, player.play(learner.updates))
        learner.updates += 1
    assert learner.kl.coefficient == pytest.approx(0.01 * 1.2**3)


def test_invalid_episodes_change_only_their_count():
    episodes = random_trajectories(6)
    lost = trajectory([1, 2, 3], [False, True, True], [0, 0, -9], valid=False)
    results = []
    for played in (episodes, [*episodes[:3], lost, *episodes[3:], lost]):
        learner = PPO().learner(TinyPolicy(), seed=0)
        results.append((PPO().update(learner, played), learner))
    (clean, first), (dirty, second) = results
    assert dirty.pop("episodes_invalid") == 2
    assert clean.pop("episodes_invalid") == 0
    assert clean == dirty
    assert first.episodes == second.episodes == 6
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    with pytest.raises(TrainerError, match="none of 2 episodes can be trained on: the machine failed"):
        PPO().update(first, [lost, lost])


def test_update_stops_at_the_kl_limit():
    settings = PPO(learning_rate=0.1, epochs=20, stop_kl=0.01)
    metrics = settings.update(settings.learner(TinyPolicy(), seed=0), random_trajectories(8))
    assert metrics["stopped_early"] == 1
    assert 1 <= metrics["steps"] < 40
    assert metrics["kl/old"] > 0.01  # of the minibatch that stopped it
    assert metrics["ratio_error_first"] < 1e-6


def test_reference_is_required_exactly_if_it_has_an_effect():
    with pytest.raises(ConfigurationError, match="exactly where kl_coefficient"):
        PPO(kl_coefficient=0.1).learner(TinyPolicy(), seed=0)
    with pytest.raises(ConfigurationError, match="exactly where kl_coefficient"):
        PPO().learner(TinyPolicy(), seed=0, reference=TinyPolicy())


def test_result_is_independent_of_micro_batches_and_packing():
    outcomes = []
    for options in ({"microbatch_tokens": 10**6}, {"microbatch_tokens": 20}, {"microbatch_tokens": 200, "pack": True}):
        settings = PPO(learning_rate=1e-2, adam_epsilon=1e-5, **options)
        learner = settings.learner(TinyPolicy().double(), seed=0)
        settings.update(learner, random_trajectories(12))
        outcomes.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    torch.testing.assert_close(outcomes[0], outcomes[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(outcomes[0], outcomes[2], atol=1e-5, rtol=1e-5)
