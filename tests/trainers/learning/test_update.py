"""The loss of a batch for any micro-batches: equal to float64 autograd over each trajectory alone."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from swe_trainers.errors import TrainerError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import forward, take_snapshot, take_values
from swe_trainers.learning.learner import adamw, scheduled
from swe_trainers.learning.losses import loss_weights
from swe_trainers.learning.update import TokenLoss, accumulate, optimise, take_step
from tests.trainers.learning.tiny import TinyPolicy, random_trajectories
from tests.trainers.tiny import tiny_model


def one_by_one(model, trajectory):
    """Log-probabilities, entropies and values of one trajectory's actions by plain autograd."""
    ids = torch.from_numpy(trajectory.token_ids)[None]
    hidden = model.trunk_hidden(ids, torch.arange(ids.shape[1])[None], torch.ones_like(ids))[0]
    weight, bias = model.unembedding
    log_p = torch.log_softmax(hidden[:-1] @ weight.T + bias, -1)
    acts = torch.from_numpy(trajectory.action_mask)[1:]
    entropy = -(log_p.exp() * log_p).sum(-1)
    chosen = log_p.gather(1, ids[0, 1:, None]).squeeze(1)
    return chosen[acts], entropy[acts], model.values(hidden[None])[0, :-1][acts]


def mixed_loss(tokens):
    """A loss that depends on every output, differently at every token."""
    factor = torch.cos(tokens.index.to(tokens.values))
    return TokenLoss(
        factor * tokens.logprobs + 0.3 * tokens.entropy + tokens.values.square(),
        means={"entropy": tokens.entropy.detach()},
        maxima={"largest": tokens.values.detach()},
    )


def gradients(model):
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])


@pytest.mark.parametrize("budget", [1, 40, 10**6])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("mode", ["token", "sequence", "prompt"])
def test_losses_and_gradients_do_not_depend_on_padding_packing_or_micro_batches(budget, pack, mode):
    trajectories = random_trajectories(7)
    batch = Batch.of(trajectories)
    chosen = torch.tensor([5, 0, 3, 1, 6])
    truth = TinyPolicy().double()
    weights = loss_weights(batch, chosen, mode).double()
    total = torch.zeros((), dtype=torch.float64)
    entropies = torch.zeros((), dtype=torch.float64)
    for s in chosen.tolist():
        logprobs, entropy, values = one_by_one(truth, trajectories[s])
        where = torch.arange(batch.offsets[s], batch.offsets[s + 1])[
            batch.action_mask[batch.offsets[s] : batch.offsets[s + 1]]
        ]
        total = total + (weights[s] * (where.double().cos() * logprobs + 0.3 * entropy + values.square())).sum()
        entropies = entropies + (weights[s] * entropy).sum()
    total.backward()

    model = TinyPolicy()
    optimizer = adamw(model, learning_rate=1e-3)
    options = {"microbatch_tokens": budget, "aggregation": mode, "pack": pack}
    measured = accumulate(model, optimizer, batch, chosen, mixed_loss, **options)
    assert measured["loss"] == pytest.approx(total.item(), rel=1e-5, abs=1e-6)
    assert measured["entropy"] == pytest.approx(entropies.item(), rel=1e-5)
    torch.testing.assert_close(gradients(model).double(), gradients(truth), atol=1e-5, rtol=1e-4)


def test_values_at_masked_positions_have_no_effect():
    trajectories = random_trajectories(4)
    poisoned = [
        dataclasses.replace(t, rollout_logprobs=np.where(t.action_mask, t.rollout_logprobs, np.nan).astype(np.float32))
        for t in trajectories
    ]
    results = []
    for some in (trajectories, poisoned):
        model = TinyPolicy()
        batch = Batch.of(some)

        def objective(tokens, batch=batch):
            return TokenLoss((tokens.logprobs - batch.rollout_logprobs[tokens.index]).exp())

        accumulate(model, adamw(model, learning_rate=1.0), batch, torch.arange(4), objective, microbatch_tokens=30)
        results.append(gradients(model))
    assert torch.equal(*results) and results[0].isfinite().all()


def test_snapshot_equals_a_forward_pass_of_each_trajectory_alone():
    trajectories = random_trajectories(6)
    batch, model = Batch.of(trajectories), TinyPolicy()
    for budget, pack in [(1, False), (50, False), (10**6, True)]:
        seen = take_snapshot(model, batch, microbatch_tokens=budget, pack=pack)
        assert not seen.logprobs[~batch.action_mask].any()
        logprobs, _, values = (torch.cat(x) for x in zip(*(one_by_one(model, t) for t in trajectories), strict=True))
        torch.testing.assert_close(seen.logprobs[batch.action_mask], logprobs)
        torch.testing.assert_close(seen.values[batch.action_mask], values)
        for s, t in enumerate(trajectories):
            ids = torch.from_numpy(t.token_ids)[None]
            hidden = model.trunk_hidden(ids, torch.arange(ids.shape[1])[None], torch.ones_like(ids))
            torch.testing.assert_close(seen.final_values[s], model.values(hidden)[0, -1])


def test_temperature_divides_the_logits():
    batch, model = Batch.of(random_trajectories(3)), TinyPolicy()
    warm = take_snapshot(model, batch, microbatch_tokens=100, temperature=2.0)
    with torch.no_grad():
        model.head.weight /= 2
        model.head.bias /= 2
    torch.testing.assert_close(warm.logprobs, take_snapshot(model, batch, microbatch_tokens=100).logprobs)


def run(model, batch, objective=mixed_loss, **options):
    optimizer = adamw(model, learning_rate=1e-2)
    settings = {"epochs": 3, "minibatches": 2, "microbatch_tokens": 60, "max_grad_norm": 1.0}
    generator = torch.Generator().manual_seed(0)
    return optimise(model, optimizer, batch, objective, **{**settings, "generator": generator, **options})


def test_number_of_optimizer_steps_and_bitwise_repeatability():
    batch = Batch.of(random_trajectories(8))
    first, second = TinyPolicy(), TinyPolicy()
    assert run(first, batch) == run(second, batch)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    statistics = run(TinyPolicy(), batch, minibatches=100)
    assert statistics["steps"] == 3 * 8 and statistics["stopped_early"] == 0
    assert statistics["grad_norm"] <= statistics["grad_norm_max"]


def test_every_trajectory_is_used_once_per_epoch():
    batch, seen = Batch.of(random_trajectories(9)), []

    def watching(tokens):
        seen.extend(tokens.index.tolist())
        return mixed_loss(tokens)

    run(TinyPolicy(), batch, watching, epochs=2, minibatches=4)
    actions = batch.action_mask.nonzero().flatten().tolist()
    assert sorted(seen[: len(actions)]) == sorted(seen[len(actions) :]) == actions
    assert seen[: len(actions)] != seen[len(actions) :]


def test_update_stops_before_the_optimizer_step_beyond_the_kl_limit():
    batch, model = Batch.of(random_trajectories(8)), TinyPolicy()
    before = copy.deepcopy(model.state_dict())
    statistics = run(model, batch, stop_above=("entropy", -1.0))
    assert statistics.pop("entropy") > 0  # of the minibatch that stopped the update
    assert statistics == {"steps": 0.0, "stopped_early": 1.0}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert run(model, batch, stop_above=("entropy", 100.0))["stopped_early"] == 0


def test_gradients_are_clipped_and_the_norm_before_clipping_is_reported():
    batch, model = Batch.of(random_trajectories(4)), TinyPolicy()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accumulate(model, optimizer, batch, torch.arange(4), mixed_loss, microbatch_tokens=100)
    norm = gradients(model).norm().item()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert take_step(model, optimizer, norm / 4) == pytest.approx(norm)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    assert moved.norm().item() == pytest.approx(norm / 4, rel=1e-3)


def test_non_finite_gradient_skips_the_optimizer_step():
    batch, model = Batch.of(random_trajectories(4)), TinyPolicy()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainerError, match="no step was taken"):
        run(model, batch, lambda tokens: TokenLoss(tokens.logprobs * torch.nan))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Projections(TorchDispatchMode):
    """Counts the rows of matrix products with one column per vocabulary entry."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        products = (torch.ops.aten.mm.default, torch.ops.aten.mm.out, torch.ops.aten.addmm.default)
        if function in products and result.shape[-1] == self.vocabulary:
            self.rows += result.shape[0]
        return result


def test_observation_tokens_are_not_projected_to_the_vocabulary():
    trajectories = random_trajectories(5)
    batch, model = Batch.of(trajectories), TinyPolicy()
    with Projections(model.head.out_features) as projected:
        take_snapshot(model, batch, microbatch_tokens=50)
    assert projected.rows == int(batch.action_mask.sum()) == sum(t.action_mask.sum() for t in trajectories)


def test_weight_decay_applies_to_matrices_only():
    model = TinyPolicy()
    decays = {
        id(p): g["weight_decay"]
        for g in adamw(model, learning_rate=1, weight_decay=0.1).param_groups
        for p in g["params"]
    }
    assert {name: decays[id(p)] for name, p in model.named_parameters()} == {
        name: 0.1 if p.ndim == 2 else 0.0 for name, p in model.named_parameters()
    }


def test_learning_rate_warms_up_then_decays():
    options = {"peak": 8.0, "warmup": 4, "total": 12}
    constant, linear, cosine = (
        [scheduled(u, decay=decay, **options) for u in (0, 3, 4, 8, 12, 99)]
        for decay in ("constant", "linear", "cosine")
    )
    assert constant == [2, 8, 8, 8, 8, 8]
    assert linear == [2, 8, 8, 4, 0, 0]
    assert cosine == pytest.approx([2, 8, 8, 4, 0, 0])


def test_forward_gives_the_values_after_the_last_tokens_in_the_order_of_the_sequences():
    from swe_trainers.learning.batch import lay_out

    batch, model = Batch.of(random_trajectories(5)), TinyPolicy()
    (rows,) = lay_out(batch, torch.arange(5), max_tokens=10**6, pack=True)
    final = forward(model, rows).final_values
    alone = take_snapshot(model, batch, microbatch_tokens=1).final_values
    torch.testing.assert_close(final, alone[rows.sequences])


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_changing_one_token_changes_only_later_logprobs(family, pack):
    """The logprobs of the token and of later actions of its episode change; no others."""
    model = tiny_model(family)
    trajectories = random_trajectories(5, vocabulary=model.tokenizer.vocab_size)
    batch = Batch.of(trajectories)

    def see(changed):
        return take_snapshot(model, changed, microbatch_tokens=10**6, pack=pack).logprobs

    before = see(batch)
    for place in [0, 1, int(batch.offsets[2]) + 3, len(batch.token_ids) - 1]:
        ids = batch.token_ids.clone()
        ids[place] = (ids[place] + 1) % model.tokenizer.vocab_size
        moved = (see(dataclasses.replace(batch, token_ids=ids)) != before).nonzero().flatten()
        own = batch.sequence_of_token == batch.sequence_of_token[place]
        after = torch.arange(len(ids)) >= place
        assert moved.tolist() == (own & after & batch.action_mask).nonzero().flatten().tolist()


@pytest.mark.parametrize("pack", [False, True])
def test_values_without_logits_equal_those_of_a_snapshot(pack):
    batch, model = Batch.of(random_trajectories(5)), TinyPolicy()
    whole = take_snapshot(model, batch, microbatch_tokens=50, pack=pack)
    with Projections(model.head.out_features) as projected:
        seen = take_values(model, batch, microbatch_tokens=50, pack=pack)
    assert projected.rows == 0
    assert whole.values[batch.action_mask].all()
    assert torch.equal(seen.values, whole.values)
    assert torch.equal(seen.final_values, whole.final_values)
    assert torch.equal(seen.logprobs.isnan(), batch.action_mask)
