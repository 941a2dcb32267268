from __future__ import annotations

import math

import pytest
import torch

from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.batch import Batch, lay_out
from swe_trainers.learning.forward import forward
from swe_trainers.learning.losses import AdaptiveKL, clipped_policy_loss, clipped_value_loss, kl_estimate, loss_weights
from tests.trainers.learning.tiny import TinyPolicy, trajectory


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "loss", "slope"),
    [
        (1.0, 2.0, None, -2.0, -2.0),
        (1.1, 2.0, None, -2.2, -2.2),  # inside the clip range: slope is −ratio · advantage
        (1.5, 2.0, None, -2.6, 0.0),  # above 1 + 0.3: clipped
        (0.5, 2.0, None, -1.0, -1.0),  # a good token made less likely is never clipped
        (0.5, -2.0, None, 1.6, 0.0),  # below 1 − 0.2: clipped
        (1.5, -2.0, None, 3.0, 3.0),  # a bad token made more likely is never clipped …
        (9.0, -2.0, 3.0, 6.0, 0.0),  # … unless by the dual clip
        (1.5, -2.0, 3.0, 3.0, 3.0),
        (9.0, 2.0, 3.0, -2.6, 0.0),
    ],
)
def test_policy_loss_and_gradient_match_hand_computed_values(ratio, advantage, dual_clip, loss, slope):
    logprob = torch.tensor([-1.0 + math.log(ratio)], dtype=torch.float64, requires_grad=True)
    value, cut = clipped_policy_loss(
        logprob + 1.0,
        torch.tensor([advantage], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.3,
        dual_clip=dual_clip,
    )
    value.sum().backward()
    assert value.item() == pytest.approx(loss)
    assert logprob.grad.item() == pytest.approx(slope)
    assert cut.item() == (slope == 0)


@pytest.mark.parametrize("advantage", [2.0, 0.0, -2.0])
@pytest.mark.parametrize("log_ratio", [100.0, 1000.0])
def test_a_ratio_beyond_float32_leaves_loss_and_gradient_finite(log_ratio, advantage):
    """As that of a long trajectory, whose logarithm is a sum over its tokens."""
    moved = torch.tensor([log_ratio, 0.0], requires_grad=True)
    value, cut = clipped_policy_loss(moved, torch.tensor([advantage, 1.0]), clip_low=0.2, clip_high=0.3)
    divergence = kl_estimate(-moved, torch.zeros(2), "k3")  # of the same ratio
    (value.sum() + divergence.sum()).backward()
    assert value[0].isfinite() and divergence[0].isfinite()
    assert moved.grad.tolist() == [0.0, -1.0]
    assert cut.tolist() == [True, False]


@pytest.mark.parametrize(
    ("value", "clip", "loss", "slope"),
    [
        (1.0, None, 2.0, -2.0),
        (0.1, 0.2, 4.205, -2.9),  # within the clip range of the old value 0: (0.1 − 3)² / 2
        (1.0, 0.2, 3.92, 0.0),  # moved too far towards the return: the clipped error (0.2 − 3)² / 2
        (-1.0, 0.2, 8.0, -4.0),  # moved away: the unclipped error is larger and counts
    ],
)
def test_value_loss_and_gradient_match_hand_computed_values(value, clip, loss, slope):
    prediction = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    zero, three = torch.zeros(1, dtype=torch.float64), torch.full((1,), 3.0, dtype=torch.float64)
    error = clipped_value_loss(prediction, zero, three, clip=clip)
    error.sum().backward()
    assert error.item() == pytest.approx(loss)
    assert prediction.grad.item() == pytest.approx(slope)


def three_trajectories():
    """2, 1 and 4 action tokens; the first two of one group."""
    return Batch.of(
        [
            trajectory([1, 2, 3], [False, True, True], group=7),
            trajectory([1, 2], [False, True], group=7),
            trajectory([1, 2, 3, 4, 5], [False, True, True, True, True], group=9),
        ]
    )


@pytest.mark.parametrize(
    ("mode", "sequences", "expected"),
    [
        ("token", [0, 1, 2], [1 / 7, 1 / 7, 1 / 7]),
        ("token", [0, 2], [1 / 6, 0, 1 / 6]),
        ("sequence", [0, 1, 2], [1 / 6, 1 / 3, 1 / 12]),
        ("sequence", [2, 1], [0, 1 / 2, 1 / 8]),
        ("prompt", [0, 1, 2], [1 / 6, 1 / 6, 1 / 8]),
        ("prompt", [1], [0, 1, 0]),
    ],
)
def test_loss_weights_match_hand_computed_values(mode, sequences, expected):
    batch = three_trajectories()
    weights = loss_weights(batch, torch.tensor(sequences), mode)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32))
    assert float((weights * batch.actions_of_sequence).sum()) == pytest.approx(1)


def test_unknown_names_are_rejected():
    with pytest.raises(ConfigurationError, match="expected token, sequence, prompt or constant"):
        loss_weights(three_trajectories(), torch.tensor([0]), "mean")
    with pytest.raises(ConfigurationError, match="expected k1, k2 or k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")


def distributions():
    logits = torch.tensor([[0.3, -1.2, 0.8, 0.1], [0.5, 0.2, -0.4, -1.0]], dtype=torch.float64)
    policy, reference = torch.log_softmax(logits, -1)
    return policy, reference


def test_k1_and_k3_are_unbiased_and_k2_nearly_so():
    policy, reference = distributions()
    truth = (policy.exp() * (policy - reference)).sum()
    expectation = {k: (policy.exp() * kl_estimate(policy, reference, k)).sum() for k in ("k1", "k2", "k3")}
    torch.testing.assert_close(expectation["k1"], truth)
    torch.testing.assert_close(expectation["k3"], truth)
    assert (kl_estimate(policy, reference, "k3") >= 0).all()
    # k2's expectation agrees to second order: at a twentieth of the distance the relative error is about a twentieth.
    nearer = torch.log_softmax(policy + (reference - policy) / 20, -1)
    ratios = [
        (p.exp() * kl_estimate(policy, p, "k2")).sum() / (policy.exp() * (policy - p)).sum()
        for p in (reference, nearer)
    ]
    assert abs(ratios[1] - 1) < abs(ratios[0] - 1) / 10


@pytest.mark.parametrize(("kind", "meaning"), [("k1", "nothing"), ("k2", "forward"), ("k3", "reversed")])
def test_expected_gradient_of_each_kl_estimator_in_the_loss(kind, meaning):
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = distributions()[1]
    policy = torch.log_softmax(logits, -1)
    sampled_as = policy.detach().exp()  # no gradient through the sampling
    (got,) = torch.autograd.grad((sampled_as * kl_estimate(policy, reference, kind)).sum(), logits, retain_graph=True)
    divergence = {
        "nothing": 0.0 * policy.sum(),
        "forward": (policy.exp() * (policy - reference)).sum(),
        "reversed": (reference.exp() * (reference - policy)).sum(),
    }[meaning]
    torch.testing.assert_close(got, torch.autograd.grad(divergence, logits)[0])


@pytest.mark.parametrize(("kind", "meaning"), [("k1", "forward"), ("k3", "forward less reversed")])
def test_expected_gradient_of_each_kl_estimator_in_the_reward(kind, meaning):
    logits = torch.tensor([0.3, -1.2, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    reference = distributions()[1]
    policy = torch.log_softmax(logits, -1)
    penalty = kl_estimate(
        policy, reference, kind
    ).detach()  # a reward is a constant: the gradient is that of the log-probability
    (got,) = torch.autograd.grad((policy.exp() * penalty).sum(), logits, retain_graph=True)
    forward = (policy.exp() * (policy - reference)).sum()
    back = (reference.exp() * (reference - policy)).sum()
    divergence = {"forward": forward, "forward less reversed": forward - back}[meaning]
    torch.testing.assert_close(got, torch.autograd.grad(divergence, logits)[0])


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_k2_and_k3_in_the_reward_have_no_gradient_near_the_reference(kind):
    sizes = []
    for distance in (0.1, 0.01):
        logits = (distributions()[1] + distance * torch.tensor([1.0, -1.0, 0.5, 0.0])).requires_grad_()
        policy = torch.log_softmax(logits, -1)
        gradients = [
            torch.autograd.grad(
                (policy.exp() * kl_estimate(policy, distributions()[1], k).detach()).sum(), logits, retain_graph=True
            )[0]
            for k in (kind, "k1")
        ]
        sizes.append((gradients[0].norm() / gradients[1].norm()).item())
    assert sizes[1] < sizes[0] / 5  # relative to k1 their gradient vanishes with the distance


def test_adaptive_kl_coefficient_changes_by_at_most_a_fifth():
    control = AdaptiveKL(1.0, target=0.1, horizon=100)
    control.observe(10.0, 100)
    assert control.coefficient == pytest.approx(1.2)
    control.observe(0.0, 50)
    assert control.coefficient == pytest.approx(1.2 * 0.9)
    control.observe(0.11, 100)
    assert control.coefficient == pytest.approx(1.2 * 0.9 * 1.1)
    fixed = AdaptiveKL(1.0)
    fixed.observe(10.0, 100)
    assert fixed.coefficient == 1.0


def test_more_episodes_than_the_horizon_do_not_turn_the_penalty_into_a_reward() -> None:
    """A factor of 1 − 0.2 · 64 / 10 is negative; 20 % is the most that one update changes."""
    control = AdaptiveKL(1.0, target=0.1, horizon=10)
    control.observe(0.0, 64)
    assert control.coefficient == pytest.approx(0.8)
    control.observe(10.0, 64)
    assert control.coefficient == pytest.approx(0.8 * 1.2)


def _enumerated(policy, reference, temperature):
    """KL(policy ‖ reference) after each token of [[3, 1, 4]], by the sum over the vocabulary in float64."""
    ids = torch.tensor([[3, 1, 4]])
    log_p, log_q = (
        torch.log_softmax(m.head(m.trunk_hidden(ids, torch.arange(3)[None], torch.ones_like(ids))) / temperature, -1)
        for m in (policy, reference)
    )
    return (log_p.exp() * (log_p - log_q)).sum(-1)[0, :2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_full_kl_and_its_gradient_equal_enumeration(dtype):
    policy, reference = TinyPolicy(seed=0).double(), TinyPolicy(seed=1).double()
    expected = _enumerated(policy, reference, 0.7)
    exact = torch.autograd.grad(expected.sum(), list(policy.head.parameters()))
    policy, reference = policy.to(dtype), reference.to(dtype)
    batch = Batch.of([trajectory([3, 1, 4], [False, True, True])])
    (rows,) = lay_out(batch, torch.arange(1), max_tokens=100)
    found = forward(policy, rows, temperature=0.7, reference=reference).kl
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found.double(), expected.detach(), **tolerance)
    gradient = torch.autograd.grad(found.sum(), list(policy.head.parameters()))
    for got, want in zip(gradient, exact, strict=True):
        torch.testing.assert_close(got.double(), want, **tolerance)
    assert all(p.grad is None for p in reference.parameters())


def test_full_kl_is_the_mean_of_k1_over_sampled_tokens():
    policy, reference = TinyPolicy(seed=0), TinyPolicy(seed=1)
    ids, ones = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64)
    log_p, log_q = (torch.log_softmax(m.head(m.trunk_hidden(ids, ids, ones))[0, 0], -1) for m in (policy, reference))
    sampled = torch.multinomial(log_p.exp(), 20_000, True, generator=torch.Generator().manual_seed(0))
    k1 = kl_estimate(log_p[sampled], log_q[sampled], "k1").detach()
    batch = Batch.of([trajectory([0, 1], [False, True])])
    (rows,) = lay_out(batch, torch.arange(1), max_tokens=10)
    full = forward(policy, rows, reference=reference).kl.item()
    assert abs(float(k1.mean()) - full) < 4 * float(k1.std()) / len(k1) ** 0.5
