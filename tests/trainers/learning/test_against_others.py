"""Losses and advantages against TRL, verl's formulae and float64 autograd, on the same numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from swe_trainers.algorithms.grpo import DAPO, GRPO, GSPO, RLOO, DrGRPO
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.learning.advantages import group_advantages, returns_to_go, whiten
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    kl_estimate,
    loss_weights,
    pairwise_loss,
    policy_log_ratio,
    rollout_weights,
    score_function_loss,
)
from tests.trainers.learning.tiny import trajectory

LENGTHS = (3, 7, 1, 5)  # action tokens of each of four episodes
GROUPS = (0, 0, 1, 1)


class Tokens:
    """Four episodes of action tokens after one observation token; the same numbers flat and padded, in float64."""

    def __init__(self, seed=0, spread=0.4):
        random = torch.Generator().manual_seed(seed)
        n = sum(LENGTHS)

        def normal(*size):
            return torch.randn(*size, dtype=torch.float64, generator=random)

        self.batch = Batch.of(
            [trajectory([0] * (k + 1), [False] + [True] * k, group=g) for k, g in zip(LENGTHS, GROUPS, strict=True)]
        )
        self.sequence = self.batch.sequence_of_token[self.batch.action_mask]
        self.policy = (-1 + normal(n) * spread).requires_grad_()
        self.old = (self.policy + normal(n) * spread).detach()
        self.reference = (self.policy + normal(n) * spread).detach()
        self.rollout = (self.old + normal(n) * spread).detach()
        self.returns = normal(4)
        self.mask = torch.arange(max(LENGTHS))[None, :] < torch.tensor(LENGTHS)[:, None]

    def padded(self, flat):
        # Values in the padding must have no effect.
        return torch.full(self.mask.shape, 3.0, dtype=flat.dtype).masked_scatter(self.mask, flat)

    def weights(self, mode, length=None):
        return loss_weights(self.batch, torch.arange(4), mode, length=length).double()[self.sequence]

    def gradient(self, loss):
        (gradient,) = torch.autograd.grad(loss, self.policy, retain_graph=True)
        return gradient

    def assert_same(self, ours, theirs):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(self.gradient(ours), self.gradient(theirs), rtol=1e-6, atol=1e-8)


def of_trl(trainer_name, tokens, advantages, **changes):
    """The loss that TRL's trainer computes from the given log-probabilities."""
    import trl

    trainer = getattr(trl, trainer_name)
    policy = tokens.padded(tokens.policy)
    silent = SimpleNamespace(append=lambda value: None)
    metrics = {"train": type("Anything", (dict,), {"__missing__": lambda self, key: silent})()}
    accelerator = SimpleNamespace(
        gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x, num_processes=1
    )
    settings = {
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "_get_per_token_logps_and_entropies": lambda *a, **k: (policy, torch.zeros_like(policy), None),
        "_metrics": metrics,
        "accelerator": accelerator,
        "aux_loss_enabled": False,
        "beta": 0.0,
        "current_gradient_accumulation_steps": 1,
        "epsilon_high": 0.2,
        "epsilon_low": 0.2,
        "importance_sampling_level": "token",
        "loss_type": "grpo",
        "max_completion_length": max(LENGTHS),
        "model": SimpleNamespace(training=True),
        "off_policy_mask_threshold": None,
        "temperature": 1.0,
        "top_entropy_quantile": 1.0,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "_entropy_bonus_enabled": False,
    }
    mask = tokens.mask.to(policy.dtype)
    old = tokens.padded(tokens.old)
    inputs = {
        "advantages": advantages,
        "completion_ids": torch.zeros_like(tokens.mask, dtype=torch.int64),
        "completion_mask": mask,
        "importance_sampling_ratio": None,
        "num_items_in_batch": mask.sum(),
        "old_logps": (old * mask).sum(1),
        "old_per_token_logps": old,
        "prompt_ids": torch.zeros(4, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(4, 1),
        "ref_per_token_logps": tokens.padded(tokens.reference),
    }
    inputs |= changes.pop("inputs", {})
    settings["args"].__dict__.update(changes.pop("args", {}))
    return trainer._compute_loss(SimpleNamespace(**{**settings, **changes}), None, inputs)


def ours(settings, tokens, advantages, length=None):
    """The policy's loss of an algorithm with its own surrogate and aggregation."""
    loss, _ = settings.policy_loss(tokens.policy, tokens.old, advantages[tokens.sequence], tokens.sequence)
    return (tokens.weights(settings.aggregation, length or settings.aggregation_length) * loss).sum()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        (GRPO(), {"loss_type": "grpo"}),
        (DrGRPO(aggregation_length=7), {"loss_type": "dr_grpo"}),
        (DAPO(), {"loss_type": "dapo", "epsilon_high": 0.28}),
        (DAPO(dual_clip=1.5), {"loss_type": "dapo", "epsilon_high": 0.28, "args": {"delta": 1.5}}),
        (GSPO(), {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}),
    ],
    ids=["grpo", "dr_grpo", "dapo", "two-sided", "gspo"],
)
def test_group_losses_equal_trl(settings, theirs, seed):
    tokens = Tokens(seed)
    if settings.dual_clip:
        # TRL bounds the ratio on both sides before it multiplies: the same as the dual clip where advantages are < 0.
        tokens.returns = -tokens.returns.abs()
    expected = of_trl("GRPOTrainer", tokens, tokens.returns, **dict(theirs))
    tokens.assert_same(ours(settings, tokens, tokens.returns), expected)


@pytest.mark.parametrize("seed", range(3))
def test_kl_in_the_loss_equals_trl(seed):
    tokens = Tokens(seed)
    with_divergence = (
        ours(GRPO(), tokens, tokens.returns)
        + 0.04 * (tokens.weights("sequence") * kl_estimate(tokens.policy, tokens.reference, "k3")).sum()
    )
    tokens.assert_same(with_divergence, of_trl("GRPOTrainer", tokens, tokens.returns, beta=0.04))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_loss_with_engine_correction_equals_trl(seed, kind):
    tokens = Tokens(seed)
    weights = rollout_weights(tokens.old, tokens.rollout, tokens.sequence, kind=kind, level="token", cap=1.3)
    theirs = (tokens.old - tokens.rollout).exp()
    theirs = theirs.clamp(max=1.3) if kind == "truncate" else theirs.masked_fill((theirs > 1.3) | (theirs < 1 / 1.3), 0)
    loss, _ = GRPO().policy_loss(tokens.policy, tokens.old, tokens.returns[tokens.sequence], tokens.sequence)
    corrected = (tokens.weights("sequence") * weights * loss).sum()
    options = {"use_vllm": True, "vllm_importance_sampling_correction": True}
    inputs = {"importance_sampling_ratio": tokens.padded(theirs)}
    tokens.assert_same(corrected, of_trl("GRPOTrainer", tokens, tokens.returns, inputs=inputs, **options))


@pytest.mark.parametrize("seed", range(3))
def test_rloo_equals_trl(seed):
    tokens = Tokens(seed, spread=0.1)
    tokens.assert_same(ours(RLOO(), tokens, tokens.returns), of_trl("RLOOTrainer", tokens, tokens.returns))


def test_pairwise_reward_loss_equals_trl():
    import trl

    tokens = torch.randn(6, dtype=torch.float64, requires_grad=True)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False),
        args=SimpleNamespace(center_rewards_coefficient=0.1),
        _metrics={"eval": type("Anything", (dict,), {"__missing__": lambda self, key: []})()},
        _total_train_tokens=0,
        accelerator=SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x),
    )
    inputs = {"input_ids": torch.zeros(6, 1), "attention_mask": torch.ones(6, 1)}
    theirs = trl.RewardTrainer.compute_loss(trainer, lambda **_: SimpleNamespace(logits=tokens[:, None]), dict(inputs))
    mine = pairwise_loss(tokens[:3], tokens[3:], center=0.1).mean()
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(torch.autograd.grad(mine, tokens)[0], torch.autograd.grad(theirs, tokens)[0])


def verl_policy_loss(old, new, advantages, mask, *, low, high, dual):
    """As verl's documentation of `compute_policy_loss` writes it: dual clip, then a mean over all tokens."""
    ratio = (new - old).exp()
    first = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    bounded = torch.minimum(-advantages * dual, first)
    losses = torch.where(advantages < 0, bounded, first)
    return (losses * mask).sum() / mask.sum()


@pytest.mark.parametrize("seed", range(3))
def test_ppo_with_dual_clip_equals_verl(seed):
    tokens = Tokens(seed, spread=1.0)
    advantages = torch.randn(sum(LENGTHS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    settings = PPO(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    loss, _ = settings.policy_loss(tokens.policy, tokens.old, advantages, tokens.sequence)
    tokens.assert_same(
        (tokens.weights("token") * loss).sum(),
        verl_policy_loss(
            tokens.padded(tokens.old), tokens.padded(tokens.policy), tokens.padded(advantages), tokens.mask,
            low=0.2, high=0.28, dual=3.0,
        ),
    )  # fmt: skip


def test_group_advantages_equal_trl_and_the_papers():
    returns = torch.tensor([1.0, 0.0, 0.0, 1.0, 3.0, 3.0, 3.0, 3.0], dtype=torch.float64)
    group = torch.tensor([4, 4, 4, 4, 2, 2, 2, 2])
    # By hand: mean 1/2; unbiased deviation sqrt(4 · (1/2)² / 3) = 1/√3; and equal returns have no advantage.
    got = group_advantages(returns, group, scale="group", epsilon=0.0 + 1e-12)
    expected = torch.tensor([1, -1, -1, 1, 0, 0, 0, 0], dtype=torch.float64) * 3**0.5 / 2
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        group_advantages(returns, group, scale="none"), torch.tensor([1, -1, -1, 1, 0, 0, 0, 0.0]).double() / 2
    )
    # The mean of the others is 1/3 for an episode with return 1, and 2/3 for one with return 0.
    torch.testing.assert_close(
        group_advantages(returns, group, baseline="leave_one_out", scale="none"),
        torch.tensor([2, -2, -2, 2, 0, 0, 0, 0.0]).double() / 3,
    )
    deviation = returns.std()
    torch.testing.assert_close(
        group_advantages(returns, group, scale="batch", epsilon=0.0),
        torch.tensor([1, -1, -1, 1, 0, 0, 0, 0.0]).double() / 2 / deviation,
    )


def test_single_episode_of_a_group_has_no_advantage():
    returns, group = torch.tensor([5.0, 1.0, 2.0]), torch.tensor([0, 1, 1])
    for options in ({"scale": "group"}, {"scale": "none"}, {"scale": "none", "baseline": "leave_one_out"}):
        got = group_advantages(returns, group, **options)
        assert got[0] == 0
        assert got[1] < 0 < got[2]


def test_reward_to_go_equals_trl_without_critic():
    # REINFORCE++ in TRL's and OpenRLHF's terms: the reversed, discounted cumulated sum of a row.
    mask = torch.tensor([[False, True, True, False, True], [False, True, False, False, False]])
    rewards = torch.tensor([[0, 1.0, 2, 0, 4], [0, 5, 0, 0, 0]])
    got = returns_to_go(rewards, mask, gamma=0.5)
    torch.testing.assert_close(got, torch.tensor([[0, 1 + 1 + 1, 2 + 2, 0, 4], [0, 5.0, 0, 0, 0]]))
    whitened = whiten(got, mask, returns=rewards.sum(1))
    kept = got[mask]
    torch.testing.assert_close(whitened[mask], (kept - kept.mean()) / kept.std(correction=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", ["token", "sequence", "trajectory"])
def test_gradients_equal_finite_differences(level):
    tokens = Tokens(1, spread=0.1)
    advantages = torch.randn(sum(LENGTHS), dtype=torch.float64)

    def clipped(policy):
        ratio = policy_log_ratio(policy, tokens.old, tokens.sequence, level)
        return clipped_policy_loss(ratio, advantages, clip_low=0.2, clip_high=0.3, dual_clip=3.0)[0]

    assert torch.autograd.gradcheck(clipped, tokens.policy)
    assert torch.autograd.gradcheck(lambda policy: score_function_loss(policy, advantages), tokens.policy)
    assert torch.autograd.gradcheck(
        lambda values: clipped_value_loss(values, tokens.old, tokens.reference, clip=0.2), tokens.policy
    )
    assert torch.autograd.gradcheck(lambda scores: pairwise_loss(scores[:8], scores[8:], center=0.1), tokens.policy)
    for kind in ("k1", "k2", "k3"):
        assert torch.autograd.gradcheck(lambda policy, k=kind: kl_estimate(policy, tokens.reference, k), tokens.policy)


def test_ratios_match_hand_computed_values():
    policy = torch.log(torch.tensor([0.5, 0.2, 0.8]))
    old = torch.log(torch.tensor([0.25, 0.4, 0.8]))
    sequence = torch.tensor([3, 3, 9])
    expected = {"token": [2, 0.5, 1], "sequence": [1, 1, 1], "trajectory": [1, 1, 1]}
    for level, ratios in expected.items():
        torch.testing.assert_close(policy_log_ratio(policy, old, sequence, level).exp(), torch.tensor(ratios).float())
    policy = torch.log(torch.tensor([0.5, 0.4, 0.8]))  # ratios 2, 1, 1
    assert policy_log_ratio(policy, old, sequence, "sequence").exp()[0].item() == pytest.approx(2**0.5)
    assert policy_log_ratio(policy, old, sequence, "trajectory").exp()[1].item() == pytest.approx(2)


def test_importance_weights_match_hand_computed_values():
    old, rollout = torch.log(torch.tensor([0.6, 0.1, 0.3])), torch.log(torch.tensor([0.2, 0.2, 0.3]))
    sequence = torch.tensor([0, 0, 0])

    def weights(kind, level="token"):
        return rollout_weights(old, rollout, sequence, kind=kind, level=level, cap=2.0)

    torch.testing.assert_close(weights("none"), torch.ones(3))
    torch.testing.assert_close(weights("truncate"), torch.tensor([2.0, 0.5, 1.0]))
    torch.testing.assert_close(weights("mask"), torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(weights("truncate", "trajectory"), torch.full((3,), 1.5))
    assert not weights("truncate").requires_grad
