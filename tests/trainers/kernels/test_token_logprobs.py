"""The PyTorch back end against float64 autograd, which shares no formula with it."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.kernels import (
    comparing,
    full_kl,
    token_logprobs,
    token_logprobs_from_logits,
    token_logprobs_reference,
    torch_rows,
)
from tests.trainers.kernels.layouts import CASES, assert_no_layout_matters

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
    """Plain PyTorch in the precision of the inputs."""
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
def test_gradients_pass_gradcheck_including_the_temperature(cut):
    hidden, weight, bias, ids, _ = problem(rows=5, vocabulary=9, dtype=torch.float64)
    temperature = torch.linspace(0.5, 2, 5).double().requires_grad_()

    def both(hidden, weight, bias, temperature):
        return token_logprobs(hidden, weight, ids[:5], bias=bias, temperature=temperature, **cut)

    assert torch.autograd.gradcheck(both, (hidden, weight, bias, temperature))


def test_the_gradient_of_a_shared_temperature_is_the_sum_over_rows():
    hidden, weight, bias, ids, upstream = problem()
    shared = torch.tensor(0.8, requires_grad=True)
    each = torch.full((ROWS,), 0.8, requires_grad=True)
    for temperature in (shared, each):
        logprobs, entropy = token_logprobs(hidden, weight, ids, bias=bias, temperature=temperature)
        (logprobs @ upstream[0] + entropy @ upstream[1]).backward()
    torch.testing.assert_close(shared.grad, each.grad.sum())
    assert abs(shared.grad) > 0.1


def test_results_from_logits_equal_those_from_hidden_states():
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


def test_full_kl_equals_its_definition_in_both_directions():
    generator = torch.Generator().manual_seed(3)
    pair = [torch.randn(ROWS, VOCABULARY, generator=generator, dtype=torch.float64) * 4 for _ in range(2)]
    for one in pair:
        one[2, 5:9] = -torch.inf  # probability 0 in both
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
def test_the_error_is_at_most_that_of_plain_torch_in_the_same_precision(dtype, scale):
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


def test_masked_rows_give_zero_whatever_they_contain():
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


def test_results_are_finite_with_tokens_of_probability_zero():
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


def test_without_rows_outputs_and_gradients_are_zero():
    hidden, weight, _, ids, _ = problem()
    logprobs, entropy = token_logprobs(hidden, weight, ids, row_mask=torch.zeros(ROWS, dtype=torch.bool))
    (logprobs + entropy).sum().backward()
    assert not logprobs.any() and not weight.grad.any()


class Largest(TorchDispatchMode):
    """Records the largest tensor that an operation creates, and the rows projected onto the vocabulary."""

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


def test_only_one_tile_of_logits_exists_and_masked_rows_are_not_projected():
    hidden, weight = torch.randn(640, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    ids, mask = torch.randint(1000, (640,)), torch.arange(640) % 5 == 0
    with Largest() as seen:
        logprobs, _ = token_logprobs(hidden, weight, ids, row_mask=mask, chunk_rows=16)
        assert seen.projected == 128
        logprobs.sum().backward()
    assert seen.numbers == 16 * 1000


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(**CASES)
def test_no_layout_of_an_argument_changes_a_result(layouts, dtype, cut, seed, in_place):
    assert_no_layout_matters("torch", layouts, dtype, cut, seed, in_place)


def scoring():
    hidden, weight = torch.randn(640, 8, requires_grad=True), torch.randn(1000, 8, requires_grad=True)
    return hidden, weight, torch.randint(1000, (640,)), torch.ones(640, requires_grad=True)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "nothing learns", "only the temperature learns"])
def test_scoring_makes_one_tile_of_logits_and_keeps_none(mode):
    hidden, weight, ids, temperature = scoring()
    if mode.endswith("learns"):
        hidden, weight = hidden.detach(), weight.detach()
        temperature = temperature if mode.startswith("only") else 1.0
    quiet = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(mode, torch.enable_grad)
    with quiet(), Largest() as seen:
        logprobs, entropy = token_logprobs(
            hidden, weight, ids, temperature=temperature, chunk_rows=16, save_logits=True
        )
        assert seen.numbers == 16 * 1000
    hidden, weight, *_ = scoring()
    with Largest() as seen:  # where something learns, the option keeps all of them
        token_logprobs(hidden, weight, ids, chunk_rows=16, save_logits=True)
    assert seen.numbers == 640 * 1000
    assert logprobs.requires_grad is entropy.requires_grad is mode.startswith("only")


def test_scoring_of_logits_saves_nothing_for_a_backward_pass():
    logits = torch.randn(20, 50, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        with torch.no_grad():
            without = token_logprobs_from_logits(logits, torch.arange(20))
        assert not saved and not without[0].requires_grad
        within = token_logprobs_from_logits(logits, torch.arange(20))
        assert any(x.shape == logits.shape for x in saved)
    assert torch.equal(without[0], within[0].detach())


def test_logits_changed_after_the_call_are_an_error_in_the_backward_pass():
    leaf = torch.randn(20, 50, requires_grad=True)
    for change in (lambda x: x.add_(1.0), lambda x: x[3].zero_(), lambda x: x.detach().mul_(2)):
        logits = leaf * 1.0
        logprobs, _ = token_logprobs_from_logits(logits, torch.arange(20))
        with torch.no_grad():
            change(logits)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            logprobs.sum().backward()


def test_hidden_states_and_weights_changed_after_the_call_are_an_error_in_the_backward_pass():
    for place in (0, 1, 2):
        parts = problem()
        inputs = [x * 1.0 for x in parts[:3]]
        logprobs, _ = token_logprobs(*inputs[:2], parts[3], bias=inputs[2], save_logits=True)
        with torch.no_grad():
            inputs[place].mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            logprobs.sum().backward()


@pytest.mark.parametrize("again", [False, True], ids=["one backward pass", "two"])
def test_activation_checkpointing_keeps_no_logits_and_gives_the_same_gradients(again):
    hidden, weight, ids, _ = scoring()
    total, kept = 0.0, []

    def by_rows(h, w, labels):
        return token_logprobs(h, w, labels, save_logits=True)[0].square().sum()

    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        for part in range(0, 640, 160):
            rows = slice(part, part + 160)
            total = total + checkpoint(by_rows, hidden[rows], weight, ids[rows], use_reentrant=False)
    assert max(kept) <= weight.numel()
    # Nor does anything else hold them, of which autograd's hooks know nothing.
    assert not [x for x in gc.get_objects() if type(x) is torch.Tensor and x.shape == (160, 1000)]
    plain = token_logprobs(hidden, weight, ids, save_logits=False)[0].square().sum()
    expected = torch.autograd.grad(plain, [hidden, weight])
    for _ in range(2 if again else 1):
        for got, truth in zip(torch.autograd.grad(total, [hidden, weight], retain_graph=again), expected, strict=True):
            torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-4)


def test_tensors_on_two_devices_and_other_dtypes_are_refused():
    hidden, weight, bias, ids, _ = problem()
    for name, changed in (
        ("ids", {"ids": ids.to("meta")}),
        ("weight", {"weight": weight.to("meta")}),
        ("bias", {"bias": bias.to("meta")}),
        ("row_mask", {"row_mask": torch.ones(ROWS, dtype=torch.bool, device="meta")}),
        ("hidden", {"hidden": hidden.detach().to(torch.float8_e4m3fn)}),
        ("weight", {"weight": weight.detach().to(torch.complex64)}),
    ):
        with pytest.raises(ShapeError, match=f"^{name}: "):
            token_logprobs(**{"hidden": hidden, "weight": weight, "ids": ids, "bias": bias, **changed})
    logits = torch.randn(4, 9)
    for other in (logits.to("meta"), logits.int()):
        with pytest.raises(ShapeError, match=r"^other: "):
            full_kl(logits, other)


def test_float32_logits_of_bfloat16_operands_give_exact_log_probabilities_and_better_gradients():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(300, 64, generator=generator)
    weight = torch.randn(1000, 64, generator=generator) / 8
    hidden[:, 0], weight[:, 0] = 20.0, 1.0  # logits are 20 ± 1, the largest about 23
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    ids = torch.randint(1000, (300,), generator=generator)
    upstream = torch.randn(2, 300, generator=generator)
    arguments = hidden.requires_grad_(), weight.requires_grad_(), None, ids, upstream
    truth = gradients(token_logprobs_reference, *arguments)
    for cut in ({}, {"chunk_rows": 70, "chunk_columns": 300}, {"chunk_rows": 70, "save_logits": True}):
        errors = {}
        for dtype in (None, torch.float32):
            got = gradients(token_logprobs, *arguments, logits_dtype=dtype, **cut)
            errors[dtype] = [float((a.double() - b.double()).abs().mean()) for a, b in zip(got, truth, strict=True)]
        assert errors[None][0] > 0.005 and errors[torch.float32][0] < 1e-5, errors
        assert errors[torch.float32][1] < 1e-4
        for wide, narrow in zip(errors[torch.float32][2:], errors[None][2:], strict=True):
            assert wide <= narrow
    with pytest.raises(ConfigurationError, match="logits_dtype: got"):
        token_logprobs(hidden, weight, ids, logits_dtype=torch.float64)


@pytest.mark.parametrize("cut", [{}, {"chunk_rows": 4, "chunk_columns": 10}, {"chunk_rows": 4, "save_logits": True}])
def test_soft_capped_logits_equal_the_float64_reference(cut):
    arguments = problem(scale=3.0)
    options = {"soft_cap": 5.0, "temperature": 0.7}
    got = gradients(token_logprobs, *arguments, **options, **cut)
    truth = gradients(token_logprobs_reference, *arguments, **options)
    uncapped = gradients(token_logprobs_reference, *arguments, temperature=0.7)
    for a, b, other in zip(got, truth, uncapped, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=3e-5, rtol=1e-5)
        assert (b - other).abs().max() > 0.1
    hidden, weight, bias, ids, _ = arguments
    logits = torch.nn.functional.linear(hidden, weight, bias)
    outputs = token_logprobs_from_logits(logits, ids, **options)
    for a, b in zip(outputs, truth, strict=False):
        torch.testing.assert_close(a.double(), b, atol=3e-5, rtol=1e-5)
    other = logits.detach().flip(0)
    capped = [5.0 * torch.tanh(x.detach() / 5.0) for x in (logits, other)]
    torch.testing.assert_close(full_kl(logits, other, soft_cap=5.0), full_kl(*capped))
    exact = [x.detach().double().requires_grad_() for x in (logits, other)]
    assert torch.autograd.gradcheck(lambda p, q: full_kl(p, q, soft_cap=5.0), exact)
    with pytest.raises(ConfigurationError, match="soft_cap: got"):
        token_logprobs(hidden, weight, ids, soft_cap=0.0)


class Waits(TorchDispatchMode):
    """Counts the operations that bring a value of a tensor to Python, for which a GPU would be waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("temperature", [0.7, torch.linspace(0.5, 2.0, ROWS)], ids=["one", "per row"])
def test_without_checks_no_value_is_waited_for_and_unsound_rows_are_nan(temperature):
    hidden, weight, bias, ids, upstream = problem()
    logits = torch.nn.functional.linear(hidden, weight, bias).detach().requires_grad_()
    for check, waits in ((False, False), (None, True)):
        with Waits() as seen:
            got = gradients(
                token_logprobs, hidden, weight, bias, ids, upstream, temperature=temperature, check_values=check
            )
            token_logprobs_from_logits(logits, ids, temperature=temperature, check_values=check)[0].sum().backward()
        assert (seen.count > 0) is waits
        assert all(x.isfinite().all() for x in got)
    broken, temperatures = ids.clone(), torch.ones(ROWS)
    broken[2], broken[5], temperatures[7] = -1, VOCABULARY, 0.0
    bad = torch.zeros(ROWS, dtype=torch.bool)
    bad[[2, 5, 7]] = True
    got = gradients(
        token_logprobs, hidden, weight, bias, broken, upstream, temperature=temperatures, check_values=False
    )
    truth = gradients(token_logprobs, hidden, weight, bias, ids, upstream)
    for place in (0, 1, 2):  # log-probabilities, entropies, gradients of the states
        assert torch.equal(got[place].isnan().reshape(ROWS, -1).all(1), bad)
        torch.testing.assert_close(got[place][~bad], truth[place][~bad])
    assert got[3].isnan().all()  # no step is taken with it
    logits.grad = None
    outputs = token_logprobs_from_logits(logits, broken, temperature=temperatures, check_values=False)
    (outputs[0].sum() + outputs[1].sum()).backward()
    assert torch.equal(logits.grad.isnan().all(1), bad) and torch.equal(outputs[0].isnan(), bad)


def test_gradients_of_half_precision_weights_are_accumulated_in_float32():
    rows = 512
    hidden = torch.full((rows, 1), 1.0, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    logprobs, _ = token_logprobs(hidden, weight, torch.zeros(rows, dtype=torch.int64), chunk_rows=1)
    logprobs.sum().backward()
    # Each row adds 1 − p = 1/2; a bfloat16 sum of halves stops growing at 128.
    assert weight.grad.flatten().tolist() == [rows / 2, -rows / 2]


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_an_error_that_names_it(token):
    hidden, weight, _, ids, _ = problem()
    ids[3] = token
    with pytest.raises(ShapeError, match=f"token {token} lies outside the vocabulary of {VOCABULARY}"):
        token_logprobs(hidden, weight, ids)


def test_wrong_shapes_and_unknown_back_ends_are_errors():
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


def test_the_reference_is_a_back_end():
    hidden, weight, bias, ids, _ = problem()
    mask = torch.arange(ROWS) > 2
    mine = token_logprobs(hidden, weight, ids, bias=bias, row_mask=mask)
    truth = token_logprobs(hidden, weight, ids, bias=bias, row_mask=mask, backend="reference")
    for a, b in zip(mine, truth, strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def test_a_comparison_measures_the_difference_of_two_back_ends(monkeypatch):
    hidden, weight, bias, ids, _ = problem()
    with comparing() as equal:
        token_logprobs(hidden, weight, ids, bias=bias)
        token_logprobs(hidden, weight, ids, bias=bias, temperature=0.5)
    assert equal.calls == 2
    assert set(equal.errors) == {"logprobs", "entropy", "grad_hidden", "grad_weight"}
    assert max(equal.errors.values()) < 1e-5
    real = torch_rows.gradient_

    def wrong(tile, labels, *rest, **options):
        real(tile, labels + 1, *rest, **options)

    monkeypatch.setattr(torch_rows, "gradient_", wrong)
    with comparing() as found:
        token_logprobs(hidden, weight, ids, bias=bias)
    assert found.errors["logprobs"] < 1e-5 and found.errors["grad_hidden"] > 0.1
    token_logprobs(hidden, weight, ids, bias=bias)
    assert found.calls == 1
