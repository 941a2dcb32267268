"""The divergence of hidden states against that of float64 logits, which autograd differentiates."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from swe_trainers.errors import ShapeError
from swe_trainers.kernels import linear_kl
from tests.trainers.kernels.test_token_logprobs import Largest

ROWS, VOCABULARY = 13, 37
CUTS = [{}, {"chunk_rows": 4}, {"chunk_columns": 10}, {"chunk_rows": 5, "chunk_columns": 36}]


def heads(dtype=torch.float32, rows=ROWS, vocabulary=VOCABULARY):
    """States, weight and bias of two policies, of different widths."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for width in (7, 5):
        sizes = (rows, width), (vocabulary, width), (vocabulary,)
        found += [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]
    return found, torch.randn(rows, generator=generator)


def gradients(hidden, weight, bias, other, other_weight, other_bias, upstream, **options):
    inputs = [x for x in (hidden, weight, bias, other, other_weight, other_bias) if x is not None]
    divergence = linear_kl(hidden, weight, other, other_weight, bias=bias, other_bias=other_bias, **options)
    return [divergence.detach(), *torch.autograd.grad((divergence * upstream.to(divergence)).sum(), inputs)]


def definition(hidden, weight, bias, other, other_weight, other_bias, upstream, *, temperature, soft_cap):
    """Through PyTorch's log-softmax and kl_div, in float64."""
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight, bias, other, other_weight, other_bias)]
    logits = linear(*exact[:3]), linear(*exact[3:])
    if soft_cap is not None:
        logits = [soft_cap * torch.tanh(x / soft_cap) for x in logits]
    log_p, log_q = (torch.log_softmax(x / temperature, -1) for x in logits)
    divergence = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    return [divergence.detach(), *torch.autograd.grad((divergence * upstream.double()).sum(), exact)]


@pytest.mark.parametrize("soft_cap", [None, 3.0])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_outputs_and_gradients_equal_the_definition(cut, soft_cap):
    arguments, upstream = heads()
    options = {"temperature": 0.7, "soft_cap": soft_cap}
    got = gradients(*arguments, upstream, **options, **cut)
    truth = definition(*arguments, upstream, **options)
    assert truth[0].min() > 0.5
    for a, b in zip(got, truth, strict=True):
        torch.testing.assert_close(a.double(), b, atol=5e-5, rtol=1e-5)
    reference = gradients(*arguments, upstream, **options, backend="reference")
    for a, b in zip(reference, truth, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def test_gradients_pass_gradcheck():
    arguments, _ = heads(torch.float64, rows=4, vocabulary=9)

    def divergence(hidden, weight, bias, other, other_weight, other_bias):
        return linear_kl(hidden, weight, other, other_weight, bias=bias, other_bias=other_bias, chunk_columns=4)

    assert torch.autograd.gradcheck(divergence, arguments)


def test_only_what_learns_has_a_gradient_and_masked_rows_affect_nothing():
    (hidden, weight, _, other, other_weight, _), _ = heads()
    mask = torch.arange(ROWS) % 3 > 0
    spoilt = hidden.detach().clone()
    spoilt[~mask] = torch.nan
    spoilt.requires_grad_()
    kl = linear_kl(spoilt, weight, other.detach(), other_weight.detach(), row_mask=mask)
    assert not kl[~mask].any() and (kl[mask] > 0).all()
    kl.sum().backward()
    assert other.grad is None and not spoilt.grad[~mask].any() and spoilt.grad[mask].any()
    expected = torch.autograd.grad(
        linear_kl(hidden[mask], weight, other[mask], other_weight, backend="reference").sum(), weight
    )[0]
    torch.testing.assert_close(weight.grad, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_logits_of_half_precision_states_are_more_exact(dtype):
    arguments, upstream = heads(dtype, rows=64, vocabulary=400)
    truth = definition(*arguments, upstream, temperature=1.0, soft_cap=None)
    errors = []
    for wide in (None, torch.float32):
        got = gradients(*arguments, upstream, logits_dtype=wide, chunk_rows=20, chunk_columns=100)
        assert all(a.dtype == dtype for a in got[1:])
        errors.append(float((got[0].double() - truth[0]).abs().mean()))
        for a, b in zip(got[1:], truth[1:], strict=True):
            assert (a.double() - b).norm() <= (0.05 if wide is None else 0.01) * b.norm()
    assert errors[1] < 1e-5 < errors[0]


def test_only_one_tile_of_each_policy_exists():
    (hidden, weight, _, other, other_weight, _), _ = heads(rows=640, vocabulary=1000)
    with Largest() as seen:
        linear_kl(hidden, weight, other, other_weight, chunk_rows=16, chunk_columns=500).sum().backward()
    assert seen.numbers == 16 * 500


def test_wrong_shapes_and_devices_are_errors():
    (hidden, weight, bias, other, other_weight, _), _ = heads()
    for arguments, options in (
        ((hidden, weight, other[1:], other_weight), {}),
        ((hidden, weight, other, other_weight[1:]), {}),
        ((hidden, weight.T, other, other_weight), {}),
        ((hidden, weight, other, other_weight.to("meta")), {}),
        ((hidden, weight, other, other_weight.int()), {}),
        ((hidden, weight, other, other_weight), {"bias": bias[1:]}),
        ((hidden, weight, other, other_weight), {"temperature": 0.0}),
    ):
        with pytest.raises(ShapeError):
            linear_kl(*arguments, **options)


def test_no_rows_have_no_divergence():
    (hidden, weight, _, other, other_weight, _), _ = heads(rows=0)
    kl = linear_kl(hidden, weight, other, other_weight)
    kl.sum().backward()
    assert kl.shape == (0,) and not weight.grad.any()
