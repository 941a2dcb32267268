"""The kernels against float64 autograd, which they share no formula with."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.kernels import (
    comparing,
    full_kl,
    rows_torch,
    token_logprobs,
    token_logprobs_from_logits,
    token_logprobs_reference,
)

ROWS, VOCABULARY, WIDTH = 13, 37, 7


def problem(seed=0, rows=ROWS, vocabulary=VOCABULARY, dtype=torch.float32, scale=1.0, bias=True):
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.randn(rows, WIDTH, generator=generator) * scale).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, WIDTH, generator=generator).to(dtype).requires_grad_()
    offset = torch.randn(vocabulary, generator=generator).to(dtype).requires_grad_() if bias else None
    ids = torch.randint(vocabulary, (rows,), generator=generator)
    upstream = torch.randn(2, rows, generator=generator)
    return hidden, weight, offset, ids, upstream


def gradients(function, hidden, weight, bias, ids, upstream, **options):
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    logprobs, entropy = function(hidden, weight, ids, bias=bias, **options)
    total = (logprobs * upstream[0]).sum() + (entropy * upstream[1]).sum()
    return [logprobs.detach(), entropy.detach(), *torch.autograd.grad(total, inputs)]


def plain(hidden, weight, ids, *, bias=None, temperature=1.0):
    """What one would write without this library, in the precision of the inputs."""
    logits = torch.nn.functional.linear(hidden, weight).float()
    log_p = torch.log_softmax((logits if bias is None else logits + bias) / temperature, dim=-1)
    return log_p.gather(1, ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, "per row"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_tile_of_several_blocks_of_rows_equals_the_float64_reference(bias, temperature):
    parts = problem(rows=300, vocabulary=1000, bias=bias)  # 131 rows fill a block, and the last one is not full
    if temperature == "per row":
        temperature = torch.rand(300) + 0.5
    exact = [x if x is None or not x.is_floating_point() else x.detach().double().requires_grad_() for x in parts]
    got = gradients(token_logprobs, *parts, temperature=temperature, backend="torch")
    truth = gradients(token_logprobs, *exact, temperature=temperature, backend="reference")
    for ours, reference in zip(got, truth, strict=True):
        torch.testing.assert_close(ours.double(), reference.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"chunk_rows": 1},
        {"chunk_rows": ROWS},
        {"chunk_columns": 5},
        {"chunk_rows": 3, "chunk_columns": 36},
        {"chunk_rows": 4, "save_logits": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.3, "per row"])
def test_outputs_and_gradients_equal_the_float64_reference(cut, bias, temperature):
    hidden, weight, offset, ids, upstream = problem(bias=bias)
    temperature = torch.linspace(0.5, 2.0, ROWS) if temperature == "per row" else temperature
    arguments = hidden, weight, offset, ids, upstream
    got = gradients(token_logprobs, *arguments, temperature=temperature, **cut)
    expected = gradients(token_logprobs_reference, *arguments, temperature=temperature)
    for mine, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.double(), truth.double(), atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("cut", [{}, {"chunk_rows": 2}, {"chunk_rows": 2, "chunk_columns": 4}], ids=str)
def test_gradients_pass_gradcheck_that_of_the_temperature_among_them(cut):
    hidden, weight, bias, ids, _ = problem(rows=5, vocabulary=9, dtype=torch.float64)
    temperature = torch.linspace(0.5, 2, 5).double().requires_grad_()

    def both(hidden, weight, bias, temperature):
        return token_logprobs(hidden, weight, ids[:5], bias=bias, temperature=temperature, **cut)

    assert torch.autograd.gradcheck(both, (hidden, weight, bias, temperature))


def test_a_learned_temperature_that_all_rows_share_gets_the_sum_of_their_gradients():
    hidden, weight, bias, ids, upstream = problem()
    shared = torch.tensor(0.8, requires_grad=True)
    each = torch.full((ROWS,), 0.8, requires_grad=True)
    for temperature in (shared, each):
        logprobs, entropy = token_logprobs(hidden, weight, ids, bias=bias, temperature=temperature)
        (logprobs @ upstream[0] + entropy @ upstream[1]).backward()
    torch.testing.assert_close(shared.grad, each.grad.sum())
    assert abs(shared.grad) > 0.1


def test_logits_that_are_there_already_give_the_same_outputs_and_gradients():
    hidden, weight, bias, ids, upstream = problem()
    mask = torch.arange(ROWS) % 3 > 0
    logits = torch.nn.functional.linear(hidden, weight, bias).detach().requires_grad_()
    exact = logits.detach().double().requires_grad_()
    for x, backend in ((logits, None), (exact, "reference")):
        out = token_logprobs_from_logits(x, ids, temperature=0.7, row_mask=mask, backend=backend)
        (out[0] @ upstream[0].to(out[0]) + out[1] @ upstream[1].to(out[1])).backward()
    expected = token_logprobs_reference(hidden, weight, ids, bias=bias, temperature=0.7, row_mask=mask)
    got = token_logprobs_from_logits(logits, ids, temperature=0.7, row_mask=mask)
    for a, b in zip((*got, logits.grad), (*expected, exact.grad), strict=True):
        torch.testing.assert_close(a.double(), b, atol=3e-6, rtol=1e-5)
    assert not logits.grad[~mask].any()
    with pytest.raises(ConfigurationError, match="in_place: has no effect with a row_mask"):
        token_logprobs_from_logits(logits, ids, row_mask=mask, in_place=True)


def test_the_divergence_over_the_whole_vocabulary_equals_its_definition_in_both_directions():
    generator = torch.Generator().manual_seed(3)
    pair = [torch.randn(ROWS, VOCABULARY, generator=generator, dtype=torch.float64) * 4 for _ in range(2)]
    for one in pair:
        one[2, 5:9] = -torch.inf  # ruled out by both
        one.requires_grad_()
    for p, q in (pair, reversed(pair)):
        log_p, log_q = (torch.log_softmax(x.detach() / 1.5, -1) for x in (p, q))
        terms = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none")
        torch.testing.assert_close(full_kl(p, q, temperature=1.5), terms.nan_to_num(nan=0.0).sum(-1))

    def finite(p, q):
        return full_kl(p, q, temperature=1.5)

    ordinary = [one.detach()[3:6].requires_grad_() for one in pair]
    assert torch.autograd.gradcheck(finite, ordinary)
    full_kl(*pair).sum().backward()
    assert all(one.grad.isfinite().all() and not one.grad[2, 5:9].any() for one in pair)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0], ids=["flat", "ordinary", "peaked"])
def test_is_as_close_to_float64_as_plain_torch_in_the_same_precision(dtype, scale):
    worst = {"mine": torch.zeros(5), "plain": torch.zeros(5)}
    for seed in range(5):
        arguments = problem(seed, rows=65, vocabulary=131, dtype=dtype, scale=scale)
        truth = gradients(token_logprobs_reference, *arguments)
        for name, function in (("mine", token_logprobs), ("plain", plain)):
            got = gradients(function, *arguments)
            errors = [
                (g.double() - t.double()).norm() / (t.double().norm() + 1e-12) for g, t in zip(got, truth, strict=True)
            ]
            worst[name] = torch.maximum(worst[name], torch.tensor(errors))
    assert (worst["mine"] <= 1.05 * worst["plain"] + 5e-7).all(), worst


def test_masked_rows_give_zero_and_neither_nan_nor_labels_in_them_matter():
    hidden, weight, bias, ids, upstream = problem()
    mask = torch.arange(ROWS) % 3 != 1
    clean = gradients(token_logprobs, hidden, weight, bias, ids, upstream, row_mask=mask)
    poisoned_hidden = hidden.detach().clone()
    poisoned_hidden[~mask] = float("nan")
    poisoned_ids = torch.where(mask, ids, -100)
    poisoned_upstream = torch.where(mask, upstream, float("inf"))
    dirty = gradients(
        lambda *a, **k: [torch.where(mask, x, 0.0) for x in token_logprobs(*a, **k)],
        poisoned_hidden.requires_grad_(), weight, bias, poisoned_ids, torch.where(mask, poisoned_upstream, 0.0),
        row_mask=mask,
    )  # fmt: skip
    for before, after in zip(clean, dirty, strict=True):
        assert torch.equal(before, after)
    assert not clean[0][~mask].any() and not clean[1][~mask].any() and not clean[2][~mask].any()
    assert clean[0][mask].all()


def test_leading_dimensions_are_kept():
    hidden, weight, bias, ids, _ = problem(rows=12)
    flat = token_logprobs(hidden, weight, ids, bias=bias)
    shaped = token_logprobs(hidden.view(3, 4, WIDTH), weight, ids.view(3, 4), bias=bias)
    assert all(torch.equal(a.view(3, 4), b) for a, b in zip(flat, shaped, strict=True))


def test_an_impossible_token_leaves_everything_finite():
    hidden, weight, bias, ids, upstream = problem()
    with torch.no_grad():
        bias[5:] = -torch.inf
    ids = ids % 5
    got = gradients(token_logprobs, hidden, weight, bias, ids, upstream)
    allowed = gradients(
        token_logprobs_reference,
        hidden,
        weight[:5].detach().requires_grad_(),
        bias[:5].detach().requires_grad_(),
        ids,
        upstream,
    )
    assert all(x.isfinite().all() for x in got)
    torch.testing.assert_close(got[1].double(), allowed[1])
    torch.testing.assert_close(got[2], allowed[2])
    assert not got[3][5:].any()


def test_no_rows_give_no_outputs_and_zero_gradients():
    hidden, weight, _, ids, _ = problem()
    logprobs, entropy = token_logprobs(hidden, weight, ids, row_mask=torch.zeros(ROWS, dtype=torch.bool))
    (logprobs + entropy).sum().backward()
    assert not logprobs.any() and not weight.grad.any()


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation makes, and the rows that meet the vocabulary."""

    def __init__(self):
        super().__init__()
        self.numbers, self.projected = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        if function in (torch.ops.aten.mm.default, torch.ops.aten.mm.out) and result.shape[-1] == 1000:
            self.projected += result.shape[0]
        return result


def test_the_logits_of_all_rows_never_exist_at_once_and_masked_rows_are_never_projected():
    hidden, weight = torch.randn(640, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    ids, mask = torch.randint(1000, (640,)), torch.arange(640) % 5 == 0
    with Largest() as seen:
        logprobs, _ = token_logprobs(hidden, weight, ids, row_mask=mask, chunk_rows=16)
        assert seen.projected == 128
        logprobs.sum().backward()
    assert seen.numbers == 16 * 1000


def test_half_precision_weights_get_gradients_accumulated_in_float32():
    rows = 4096
    hidden = torch.full((rows, 1), 1.0, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprobs, _ = token_logprobs(hidden, weight, torch.zeros(rows, dtype=torch.int64), chunk_rows=1)
    logprobs.sum().backward()
    # Each row adds 1 − p = 1/2; a bfloat16 sum of halves stops growing at 128.
    assert weight.grad.flatten().tolist() == [rows / 2, -rows / 2]


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_refused_by_name(token):
    hidden, weight, _, ids, _ = problem()
    ids[3] = token
    with pytest.raises(ShapeError, match=f"token {token} lies outside the vocabulary of {VOCABULARY}"):
        token_logprobs(hidden, weight, ids)


def test_disagreeing_shapes_and_unknown_back_ends_are_refused():
    hidden, weight, bias, ids, _ = problem()
    for arguments, options in [
        ((hidden, weight.T, ids), {}),
        ((hidden, weight, ids[1:]), {}),
        ((hidden, weight, ids.int()), {}),
        ((hidden, weight, ids), {"bias": bias[1:]}),
        ((hidden, weight, ids), {"row_mask": torch.ones(ROWS)}),
        ((hidden, weight, ids), {"temperature": torch.ones(3)}),
        ((hidden, weight, ids), {"temperature": 0.0}),
    ]:
        with pytest.raises(ShapeError):
            token_logprobs(*arguments, **options)
    with pytest.raises(ConfigurationError, match="expected one of triton, torch, reference"):
        token_logprobs(hidden, weight, ids, backend="cuda")


def test_the_reference_serves_as_a_back_end():
    hidden, weight, bias, ids, _ = problem()
    mask = torch.arange(ROWS) > 2
    mine = token_logprobs(hidden, weight, ids, bias=bias, row_mask=mask)
    truth = token_logprobs(hidden, weight, ids, bias=bias, row_mask=mask, backend="reference")
    for a, b in zip(mine, truth, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def test_a_live_comparison_tells_how_far_the_back_ends_are_apart(monkeypatch):
    hidden, weight, bias, ids, _ = problem()
    with comparing() as right:
        token_logprobs(hidden, weight, ids, bias=bias)
        token_logprobs(hidden, weight, ids, bias=bias, temperature=0.5)
    assert right.calls == 2
    assert set(right.errors) == {"logprobs", "entropy", "grad_hidden", "grad_weight"}
    assert max(right.errors.values()) < 1e-5
    real = rows_torch.gradient_

    def wrong(tile, labels, *rest):
        real(tile, labels + 1, *rest)

    monkeypatch.setattr(rows_torch, "gradient_", wrong)
    with comparing() as found:
        token_logprobs(hidden, weight, ids, bias=bias)
    assert found.errors["logprobs"] < 1e-5 and found.errors["grad_hidden"] > 0.1
    token_logprobs(hidden, weight, ids, bias=bias)
    assert found.calls == 1
