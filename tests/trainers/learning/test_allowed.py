"""Losses and gradients of restricted tokens, in every layout, against float64 autograd over the enumerated sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from swe_trainers.learning.batch import Batch
from swe_trainers.learning.learner import adamw
from swe_trainers.learning.losses import loss_weights
from swe_trainers.learning.update import TokenLoss, accumulate
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories


def restricted_trajectories(count=7):
    """Every second action token is sampled from a random set; two trajectories are free."""
    random, made = np.random.default_rng(3), []
    for number, trajectory in enumerate(random_trajectories(count)):
        sets, index = [], np.full(len(trajectory.token_ids), -1)
        for at in np.flatnonzero(trajectory.action_mask)[::2] if number not in (1, 4) else ():
            others = random.choice(11, size=random.integers(0, 4), replace=False).tolist()
            index[at] = len(sets)
            sets.append(tuple(sorted({int(trajectory.token_ids[at]), *others})))
        made.append(replace(trajectory, allowed=tuple(index.tolist()), allowed_sets=tuple(sets)))
    return made


def enumerated_loss(model, trajectories, batch, weights, reference):
    total = torch.zeros((), dtype=torch.float64)
    for s, trajectory in enumerate(trajectories):
        ids = torch.from_numpy(trajectory.token_ids)[None]
        logits = []
        for policy in (model, reference):
            hidden = policy.trunk_hidden(ids, torch.arange(ids.shape[1])[None], torch.ones_like(ids))[0]
            logits.append(hidden @ policy.unembedding[0].T + policy.unembedding[1])
        for at in np.flatnonzero(trajectory.action_mask):
            number = trajectory.allowed[at]
            tokens = list(range(11)) if number < 0 else list(trajectory.allowed_sets[number])
            log_p, log_q = (torch.log_softmax(x[at - 1, tokens], -1) for x in logits)
            entropy, kl = -(log_p.exp() * log_p).sum(), (log_p.exp() * (log_p - log_q)).sum()
            factor = np.cos(float(batch.offsets[s] + at))
            chosen = log_p[tokens.index(int(trajectory.token_ids[at]))]
            total = total + weights[s] * (factor * chosen + 0.3 * entropy + 0.7 * kl)
    return total


@pytest.mark.parametrize("budget", [1, 60, 10**6])
@pytest.mark.parametrize("pack", [False, True])
def test_losses_and_gradients_equal_enumeration_in_float64(budget, pack):
    trajectories = restricted_trajectories()
    batch, chosen = Batch.of(trajectories), torch.arange(7)
    truth, model, reference = TinyPolicy().double(), TinyPolicy(), TinyPolicy(seed=1)
    weights = loss_weights(batch, chosen, "token").double()
    expected = enumerated_loss(truth, trajectories, batch, weights, TinyPolicy(seed=1).double().requires_grad_(False))
    expected.backward()

    def loss(tokens):
        return TokenLoss(
            torch.cos(tokens.index.to(tokens.values)) * tokens.logprobs + 0.3 * tokens.entropy + 0.7 * tokens.kl
        )

    options = {"microbatch_tokens": budget, "aggregation": "token", "pack": pack, "reference": reference}
    measured = accumulate(model, adamw(model, learning_rate=1e-3), batch, chosen, loss, **options)
    assert measured["loss"] == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    for got, wanted in zip(model.parameters(), truth.parameters(), strict=True):
        if wanted.grad is not None:
            torch.testing.assert_close(got.grad.double(), wanted.grad, atol=1e-5, rtol=1e-4)


def test_a_batch_of_free_tokens_has_no_sets():
    batch = Batch.of(random_trajectories(3))
    assert batch.allowed is None and not batch.allowed_sets


def test_sets_of_several_trajectories_are_kept_once():
    one, other = restricted_trajectories()[:2][0], restricted_trajectories()[2]
    batch = Batch.of([one, other, one])
    assert len(set(batch.allowed_sets)) == len(batch.allowed_sets)
    for s, trajectory in enumerate((one, other, one)):
        index = batch.allowed[batch.offsets[s] : batch.offsets[s + 1]].tolist()
        for at, number in enumerate(trajectory.allowed):
            assert (number < 0 and index[at] < 0) or batch.allowed_sets[index[at]] == trajectory.allowed_sets[number]
