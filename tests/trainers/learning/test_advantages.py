from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import RolloutBuffer

from swe_trainers.errors import ShapeError
from swe_trainers.learning.advantages import (
    explained_variance,
    generalized_advantages,
    group_advantages,
    groups_with_signal,
    tree_advantages,
    whiten,
)
from swe_trainers.learning.batch import Batch
from tests.trainers.learning.tiny import trajectory


def of_stable_baselines(rewards, values, gamma, lam, bootstrap, terminated):
    """The same quantity for one episode of plain actions, by another library."""
    steps = len(rewards)
    buffer = RolloutBuffer(steps, spaces.Discrete(1), spaces.Discrete(1), "cpu", lam, gamma)
    buffer.rewards[:, 0], buffer.values[:, 0] = rewards, values
    buffer.episode_starts[0] = 1.0
    buffer.compute_returns_and_advantage(torch.tensor([bootstrap]), np.array([terminated]))
    return buffer.advantages[:, 0]


@given(seed=st.integers(0, 10**6), gamma=st.sampled_from([1.0, 0.9, 0.0]), lam=st.sampled_from([1.0, 0.95, 0.0]))
@settings(deadline=None, max_examples=40)
def test_advantages_of_action_tokens_equal_stable_baselines3(seed, gamma, lam):
    random = np.random.default_rng(seed)
    batch, length = random.integers(1, 5), random.integers(1, 30)
    mask = random.random((batch, length)) < 0.5
    rewards = np.where(mask, random.normal(size=mask.shape), 0).astype(np.float32)
    values = random.normal(size=mask.shape).astype(np.float32)
    terminated = random.random(batch) < 0.5
    after = random.normal(size=batch).astype(np.float32)
    got = generalized_advantages(
        torch.tensor(rewards),
        torch.tensor(values),
        torch.tensor(mask),
        gamma=gamma,
        lam=lam,
        bootstrap=torch.tensor(np.where(terminated, 0, after).astype(np.float32)),
    ).numpy()
    assert not got[~mask].any()
    for b in range(batch):
        if mask[b].any():
            expected = of_stable_baselines(
                rewards[b][mask[b]], values[b][mask[b]], gamma, lam, float(after[b]), bool(terminated[b])
            )
            np.testing.assert_allclose(got[b][mask[b]], expected, atol=1e-4, rtol=1e-4)


def test_observation_tokens_do_not_discount():
    mask = torch.tensor([[True] * 20 + [False] * 200 + [True] * 20])
    rewards = torch.zeros(1, 240)
    rewards[0, -1] = 1.0
    zero = torch.zeros(1, 240)
    got = generalized_advantages(rewards, zero, mask, gamma=1.0, lam=0.95, bootstrap=torch.zeros(1))
    # With values of 0 the advantage k action tokens before the end is λ^k: the first is 39 away, the 20th 20.
    assert got[0, 0].item() == pytest.approx(0.95**39, rel=1e-5)
    assert got[0, 19].item() == pytest.approx(0.95**20, rel=1e-5)
    assert not got[0, 20:220].any()


def test_nan_at_masked_positions_has_no_effect():
    mask = torch.tensor([[False, True, False, True, False]])
    rewards, values = torch.tensor([[0.0, 1, 0, 2, 0]]), torch.tensor([[9.0, 0.5, 9, 0.25, 9]])
    options = {"gamma": 0.9, "lam": 0.8, "bootstrap": torch.tensor([3.0])}
    clean = generalized_advantages(rewards, values, mask, **options)
    nan = torch.full_like(rewards, torch.nan)
    assert torch.equal(
        clean, generalized_advantages(rewards.where(mask, nan), values.where(mask, nan), mask, **options)
    )
    # By hand: δ₂ = 2 + 0.9 · 3 − 0.25 = 4.45; δ₁ = 1 + 0.9 · 0.25 − 0.5 = 0.725; A₁ = 0.725 + 0.72 · 4.45 = 3.929.
    torch.testing.assert_close(clean, torch.tensor([[0, 3.929, 0, 4.45, 0]]))


def test_unequal_shapes_are_rejected():
    two, three = torch.zeros(1, 2), torch.zeros(1, 3)
    with pytest.raises(ShapeError):
        generalized_advantages(two, three, two.bool(), gamma=1, lam=1, bootstrap=torch.zeros(1))
    with pytest.raises(ShapeError):
        generalized_advantages(two, two, two.bool(), gamma=1, lam=1, bootstrap=torch.zeros(2))


def test_whitening_uses_only_entries_in_the_mask():
    x, mask, returns = (
        torch.tensor([1.0, torch.nan, 3.0, 5.0]),
        torch.tensor([True, False, True, True]),
        torch.arange(2.0),
    )
    torch.testing.assert_close(whiten(x, mask, returns=returns), torch.tensor([-(1.5**0.5), 0, 0, 1.5**0.5]))
    assert whiten(torch.full((1000,), 0.1), torch.ones(1000, dtype=torch.bool), returns=returns).abs().max() < 1e-6
    assert not whiten(x, torch.zeros(4, dtype=torch.bool), returns=returns).any()


@pytest.mark.parametrize("returns", [[0.0, 0.0], [0.3, 0.1 + 0.2], [-2.0], []])
def test_whitening_enlarges_nothing_where_all_episodes_ended_alike(returns):
    mask, returns = torch.ones(4, dtype=torch.bool), torch.tensor(returns)
    small, large = torch.tensor([0.01, 0.03, 0.01, 0.03]), torch.tensor([10.0, 30, 10, 30])
    torch.testing.assert_close(whiten(small, mask, returns=returns), torch.tensor([-0.01, 0.01, -0.01, 0.01]))
    torch.testing.assert_close(whiten(large, mask, returns=returns), torch.tensor([-1.0, 1, -1, 1]))
    torch.testing.assert_close(whiten(small, mask, returns=torch.tensor([0.0, 1e-3])), torch.tensor([-1.0, 1, -1, 1]))


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one():
    returns = torch.tensor([1.0, 2, 3])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.full((3,), 5.0), returns) == 0
    assert np.isnan(explained_variance(returns, torch.ones(3)))


def test_group_whose_episodes_have_the_same_rewards_in_another_order_has_no_signal():
    # In float32 0.1 + 0.2 - 0.3 is not 0.2 - 0.3 + 0.1.
    rewards = [[0, 0.1, 0, 0.2, 0, -0.3], [0, 0.2, 0, -0.3, 0, 0.1]]
    batch = Batch.of([trajectory([1] * 6, [False, True] * 3, each) for each in rewards])
    returns = batch.total(batch.rewards)
    assert not len(groups_with_signal(returns, batch.group))
    assert not group_advantages(returns, batch.group, scale="group").any()


def test_equal_branches_of_a_tree_have_no_advantage_wherever_they_are_in_a_batch():
    trees, rewards = 400, torch.tensor([0.0, 0.1, 0.0, 0.7])
    offsets = torch.arange(0, 8 * trees + 1, 4)  # two branches each
    forks = torch.tensor([[branch, 4 * branch + 1, 0] for branch in range(2 * trees)])
    mask, group = torch.tensor([False, True] * (4 * trees)), torch.arange(trees).repeat_interleave(2)
    assert not tree_advantages(rewards.repeat(2 * trees), mask, offsets, group, forks).any()
