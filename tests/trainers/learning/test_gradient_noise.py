"""The gradient's noise scale, against the gradients of single trajectories in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from swe_trainers.algorithms.grpo import GRPO
from swe_trainers.algorithms.policy_gradient import PolicyGradient
from swe_trainers.algorithms.ppo import PPO
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import ActionTokens
from swe_trainers.learning.update import TokenLoss, gradient_noise
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories


def negative_logprob(tokens: ActionTokens) -> TokenLoss:
    return TokenLoss(-tokens.logprobs)


def own_gradients(model: TinyPolicy, batch: Batch) -> torch.Tensor:
    """(S, P): the gradient of each trajectory's mean loss, computed by itself."""
    rows = []
    for s in range(batch.n_sequences):
        first, end = int(batch.offsets[s]), int(batch.offsets[s + 1])
        ids, ones = batch.token_ids[None, first:end], torch.ones(1, end - first, dtype=torch.int64)
        hidden = model.trunk_hidden(ids, torch.arange(end - first)[None], ones)[0]
        logprobs = model.head(hidden[:-1]).log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
        loss = -logprobs[batch.action_mask[first + 1 : end]].mean()
        found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for g, p in zip(found, model.parameters(), strict=True)
                ]
            )
        )
    return torch.stack(rows)


def test_it_is_the_variance_and_the_squared_mean_of_single_gradients() -> None:
    model = TinyPolicy().double()
    batch = Batch.of(random_trajectories(12))
    found = gradient_noise(
        model,
        torch.optim.SGD(model.parameters()),
        batch,
        negative_logprob,
        parts=12,
        generator=torch.Generator().manual_seed(0),
        microbatch_tokens=64,
        aggregation="sequence",
    )
    gradients = own_gradients(model, batch)
    variance = float(gradients.var(0, correction=1).sum())
    signal = float(gradients.mean(0).square().sum()) - variance / len(gradients)
    assert found["gradient_noise/variance"] == pytest.approx(variance, rel=1e-4)
    assert found["gradient_noise/signal"] == pytest.approx(signal, rel=1e-3)
    assert found["gradient_noise/scale"] == pytest.approx(variance / signal, rel=1e-3)


def test_parts_of_several_trajectories_estimate_the_same_variance() -> None:
    model = TinyPolicy()
    batch = Batch.of(random_trajectories(16))
    exact = float(own_gradients(model, batch).var(0, correction=1).sum())
    found = [
        gradient_noise(
            model,
            torch.optim.SGD(model.parameters()),
            batch,
            negative_logprob,
            parts=4,
            generator=torch.Generator().manual_seed(seed),
            microbatch_tokens=1024,
            aggregation="sequence",
        )["gradient_noise/variance"]
        for seed in range(40)
    ]
    mean, error = float(torch.tensor(found).mean()), float(torch.tensor(found).std()) / 40**0.5
    assert abs(mean - exact) < 4 * error
    assert error < 0.1 * exact


@pytest.mark.parametrize("algorithm", [PPO(gradient_noise_every=2), GRPO(group_size=2, gradient_noise_every=2)])
def test_it_is_measured_where_it_is_due_and_changes_nothing(algorithm: PolicyGradient) -> None:
    episodes, trained = random_trajectories(12), []
    for every in (algorithm.gradient_noise_every, 0):
        settings = replace(algorithm, gradient_noise_every=every)
        learner = settings.learner(TinyPolicy(), seed=0)
        seen = []
        for _ in range(2):
            seen.append("gradient_noise/scale" in settings.update(learner, episodes))
            learner.updates += 1
        assert seen == [bool(every), False]
        trained.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    assert torch.equal(*trained)
