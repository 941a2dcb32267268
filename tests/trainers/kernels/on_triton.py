"""The Triton kernels against float64: on a GPU, or under TRITON_INTERPRET=1 on any machine.

pytest does not collect this file: `test_triton.py` runs it under the interpreter, and `make test-gpu` on a GPU. For
outputs and every gradient the error is at most that of plain PyTorch in the same precision.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swe_trainers.engines import decoding
from swe_trainers.engines.embedded import EmbeddedEngine
from swe_trainers.errors import ShapeError, TrainerError
from swe_trainers.kernels import (
    AllowedTokens,
    full_kl,
    linear_kl,
    token_logprobs,
    token_logprobs_from_logits,
    top_logprobs,
    triton_decoding,
    triton_layers,
    triton_products,
    triton_rows,
)
from swe_trainers.kernels.triton_rows import launch
from swe_trainers.model import fused
from tests.trainers.engines.test_embedded import finish, prompt, submit
from tests.trainers.kernels.allowed import check_against_enumeration
from tests.trainers.kernels.layouts import CASES, assert_no_layout_matters, laid_out
from tests.trainers.tiny import tiny_model

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16] if ON_GPU else [torch.float32, torch.bfloat16]
# Less than a block, less than a power of two, several blocks with an odd and with an aligned rest.
VOCABULARIES = [7, 1000, 1023, 4113, 8208]
VOCABULARIES += [pytest.param(size, marks=pytest.mark.campaign) for size in (32000, 50257)]
IMPOSSIBLE = -1e9  # instead of −inf: the same probability of 0, without autograd's 0 · inf
KINDS = ["flat", "ordinary", "peaked", "negative", "masked"]


def logits_of(kind, rows, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, vocabulary, generator=generator)
    logits = {
        "flat": noise * 1e-3,
        "ordinary": noise * 3,
        "peaked": noise * 20,
        "negative": -noise.abs() - 50,
        "masked": noise.masked_fill(torch.rand(rows, vocabulary, generator=generator) < 0.3, -torch.inf),
    }[kind]
    ids = torch.randint(vocabulary, (rows,), generator=generator)
    if kind == "masked":  # the label has a positive probability
        logits[torch.arange(rows), ids] = noise[torch.arange(rows), ids]
    return logits, ids, torch.randn(2, rows, generator=generator)


def plain(logits, ids, temperature):
    """Plain PyTorch in the precision of the inputs, sums in float32."""
    log_p = torch.log_softmax(logits.float().clamp(min=IMPOSSIBLE) / temperature, dim=-1)
    return log_p.gather(1, ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def truth(logits, ids, temperature):
    log_p = torch.log_softmax(logits.double().clamp(min=IMPOSSIBLE) / temperature.double(), dim=-1)
    return log_p.gather(1, ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def mine(logits, ids, temperature):
    return token_logprobs_from_logits(logits, ids, temperature=temperature.squeeze(), backend="triton")


def everything(function, logits, ids, upstream, temperature):
    """Outputs and gradients, all as float64 on the CPU."""
    x = logits.detach().to(torch.float64 if function is truth else logits.dtype, copy=True).to(DEVICE).requires_grad_()
    t = temperature.detach().clone().to(DEVICE).requires_grad_()
    logprobs, entropy = function(x, ids.to(DEVICE), t)
    g, h = upstream.to(DEVICE, logprobs.dtype)
    gradients = torch.autograd.grad((logprobs * g).sum() + (entropy * h).sum(), [x, t])
    return [value.detach().double().cpu() for value in (logprobs, entropy, *gradients)]


def errors(got, expected):
    return [float((a - b).abs().max() / (b.abs().max() + 1e-12)) for a, b in zip(got, expected, strict=True)]


def assert_no_worse(got, rival, exact, names, dtype, floor=4e-6, unit=0.0):
    """At most plain PyTorch's error and a few units of float32: the kernels compute e^x as 2^(x log2 e), as GPUs do.

    `floor` is relative to the largest exact value, `unit` absolute: the rounding of terms that cancel.
    """
    # Triton's interpreter truncates float32 to bfloat16 where a GPU rounds.
    factor = 10 if dtype == torch.bfloat16 and not ON_GPU else 1.25
    for name, a, b, truth in zip(names, errors(got, exact), errors(rival, exact), exact, strict=True):
        allowed = factor * b + floor + unit / float(truth.abs().max() + 1e-12)
        assert a <= allowed, f"{name}: error {a:.2e}, plain PyTorch's {b:.2e}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_results_from_logits_are_as_exact_as_plain_torch(vocabulary, kind, dtype):
    logits, ids, upstream = logits_of(kind, 3, vocabulary, seed=vocabulary)
    logits, temperature = logits.to(dtype), torch.tensor([[0.7], [1.0], [1.9]])
    exact = everything(truth, logits, ids, upstream, temperature)
    got = everything(mine, logits, ids, upstream, temperature)
    rival = everything(plain, logits, ids, upstream, temperature)
    assert_no_worse(got, rival, exact, ("logprobs", "entropy", "d logits", "d temperature"), dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_warp_each_as_of_large_batches_are_as_exact(kind, monkeypatch):
    monkeypatch.setattr(triton_rows, "_MANY_PROGRAMS", 1)
    temperature = torch.tensor([[0.7], [1.0], [1.9]])
    for vocabulary in (7, 1023, 4113):
        logits, ids, upstream = logits_of(kind, 3, vocabulary, seed=vocabulary)
        results = [everything(f, logits, ids, upstream, temperature) for f in (mine, plain, truth)]
        assert_no_worse(*results, ("logprobs", "entropy", "d logits", "d temperature"), torch.float32)


@pytest.mark.parametrize("which", ["log-probability alone", "entropy alone"])
def test_each_output_has_its_own_gradient(which):
    logits, ids, upstream = logits_of("ordinary", 5, 1023)
    upstream[1 if which.startswith("log") else 0] = 0
    temperature = torch.ones(1, 1)
    exact, got = (everything(f, logits, ids, upstream, temperature) for f in (truth, mine))
    assert max(errors(got, exact)) < 2e-6
    assert got[2].abs().max() > 0


@pytest.mark.parametrize("vocabulary", [37, 1040])
def test_soft_capped_logits_are_exact(vocabulary):
    logits, ids, upstream = logits_of("ordinary", 4, vocabulary)
    cap, temperature = 4.0, torch.tensor([[0.7], [1.0], [1.3], [2.0]])

    def capped(logits, ids, temperature):
        return truth(cap * torch.tanh(logits.double() / cap), ids, temperature)

    def mine_capped(logits, ids, temperature):
        return token_logprobs_from_logits(
            logits, ids, temperature=temperature.squeeze(), soft_cap=cap, backend="triton"
        )

    exact, got = (everything(f, logits, ids, upstream, temperature) for f in (capped, mine_capped))
    assert max(errors(got, exact)) < 4e-6
    p, q = logits, logits.flip(0)
    exact = all_of_kl(
        lambda p, q: full_kl(p.double(), q.double(), soft_cap=cap, backend="reference"), p, q, upstream[0]
    )
    got = all_of_kl(lambda p, q: full_kl(p, q, soft_cap=cap, backend="triton"), p, q, upstream[0])
    assert max(errors(got, exact)) < 1e-5


@pytest.mark.parametrize("second", [False, True])
def test_programs_that_share_a_row_find_its_statistics(second):
    logits, ids, _ = (x.to(DEVICE) for x in logits_of("masked", 3, 1000))
    logits[1], logits[:, 600:640] = -torch.inf, -torch.inf
    temperature = torch.linspace(0.5, 2, 3, device=DEVICE)
    whole = triton_rows.row_statistics(logits, ids, temperature, second=second)
    sums = torch.full((6, 5 if second else 4, 3), torch.nan, device=DEVICE)
    # Three tiles with two slots each, of which programs without columns fill some too.
    for place, columns in enumerate((slice(0, 400), slice(400, 600), slice(600, 1000))):
        own = sums[2 * place : 2 * place + 2]
        triton_rows.sum_tile(logits[:, columns], own, ids, temperature, first=columns.start)
    one = triton_rows.merged(sums)
    assert one.shape == sums[:1].shape
    for parts, copies in ((sums, 1), (one, 1), (sums, 50)):  # 150 rows: two programs merge
        many = parts.repeat(1, 1, copies), ids.repeat(copies), temperature.repeat(copies)
        found = triton_rows.statistics(*many, 1000)
        for name, value in vars(whole).items():
            got, expected = getattr(found, name), None if value is None else value.repeat(copies)
            if expected is None:
                assert got is None and not second
            else:
                torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6, equal_nan=True, msg=name)
    assert whole.logprobs[1].isnan() and not whole.logprobs[2:].isnan().any()


def test_a_long_row_is_divided_among_programs_and_many_rows_are_not():
    assert triton_rows.slots(128, 151_936) == 8  # N · slots programs, each of at least 16,384 columns
    assert triton_rows.slots(1, 151_936) == 151_936 // 16_384
    assert triton_rows.slots(1024, 151_936) == triton_rows.slots(10, 7) == 1


def test_rows_with_an_unsound_label_or_temperature_are_nan_and_the_others_unaffected():
    logits, ids, upstream = logits_of("ordinary", 8, 500)
    temperature, broken, heat = torch.ones(8, 1), ids.clone(), torch.ones(8, 1)
    broken[1], broken[2], broken[3] = -1, 500, 2**32 + 5
    heat[4], heat[5], heat[6] = 0.0, -1.0, torch.nan
    bad = torch.tensor([False, True, True, True, True, True, True, False])

    def unchecked(logits, ids, temperature):
        return token_logprobs_from_logits(
            logits, ids, temperature=temperature.squeeze(), backend="triton", check_values=False
        )

    got = everything(unchecked, logits, broken, upstream, heat)
    exact = everything(truth, logits, ids, upstream, temperature)
    for a, b in zip(got[:3], exact, strict=False):
        assert torch.equal(a.isnan().reshape(8, -1).all(1), bad)
        torch.testing.assert_close(a[~bad], b[~bad], rtol=1e-5, atol=1e-5)
    assert torch.equal(got[3].isnan().squeeze(1), bad)


def projection(dtype, rows, vocabulary, width, *, bias):
    generator = torch.Generator().manual_seed(vocabulary + width)
    hidden = torch.randn(rows, width, generator=generator).to(DEVICE, dtype)
    weight = (torch.randn(vocabulary, width, generator=generator) / width**0.5).to(DEVICE, dtype)
    offset = torch.randn(vocabulary, generator=generator).to(DEVICE, dtype) if bias else None
    ids = torch.randint(vocabulary, (rows,), generator=generator).to(DEVICE)
    return hidden, weight, offset, ids, torch.randn(2, rows, generator=generator).to(DEVICE)


def project_with(function, hidden, weight, offset, ids, upstream):
    given = [x.detach() for x in (hidden, weight, offset) if x is not None]
    inputs = [
        x.to(torch.float64 if function is true_projection else x.dtype, copy=True).requires_grad_() for x in given
    ]
    logprobs, entropy = function(*inputs[:2], ids, inputs[2] if offset is not None else None)
    total = (logprobs * upstream[0]).sum() + (entropy * upstream[1]).sum()
    found = [logprobs, entropy, *torch.autograd.grad(total, inputs)]
    return [value.detach().double().cpu() for value in found]


def plain_projection(hidden, weight, ids, bias):
    logits = torch.nn.functional.linear(hidden, weight).float()
    return plain(logits if bias is None else logits + bias.float(), ids, 1.0)


def true_projection(hidden, weight, ids, bias):
    logits = hidden.double() @ weight.double().T
    return truth(logits if bias is None else logits + bias.double(), ids, torch.ones((), device=DEVICE))


CUTS = [{}, {"chunk_rows": 2, "chunk_columns": 640}, {"chunk_columns": 1000}, {"chunk_rows": 3, "save_logits": True}]
PROJECTIONS = [(size, width, cut) for size, width in ((7, 3), (1023, 17), (1025, 32)) for cut in CUTS]
PROJECTIONS += [(4128, 8, CUTS[0]), (4128, 8, CUTS[3])]  # one tile of two blocks
PROJECTIONS += [pytest.param(9001, 8, cut, marks=pytest.mark.campaign) for cut in CUTS[1:3]]  # up to 15 tiles


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("vocabulary", "width", "cut"), PROJECTIONS, ids=str)
def test_the_projection_is_as_exact_as_plain_torch_with_any_tiles(dtype, vocabulary, width, bias, cut):
    arguments = projection(dtype, 5, vocabulary, width, bias=bias)

    def mine(hidden, weight, ids, bias):
        return token_logprobs(hidden, weight, ids, bias=bias, backend="triton", **{"save_logits": False, **cut})

    exact = project_with(true_projection, *arguments)
    got, rival = project_with(mine, *arguments), project_with(plain_projection, *arguments)
    assert_no_worse(got, rival, exact, ("logprobs", "entropy", "d hidden", "d weight", "d bias")[: len(got)], dtype)


HALF = [torch.float16, torch.bfloat16] if ON_GPU else [torch.float16]  # the interpreter multiplies no bfloat16
on_hopper = pytest.mark.skipif(
    ON_GPU and torch.cuda.get_device_capability()[0] != 9, reason="products without logits are for Hopper GPUs"
)
PRODUCTS = [(1, 7, 8), (5, 256, 64), (150, 700, 72), (150, 2600, 16)]
"""A part of a block of rows and several blocks, a tile of the vocabulary and several, with rests."""


@on_hopper
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("wide", [None, torch.float32], ids=["rounded", "float32"])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize(("rows", "vocabulary", "width"), PRODUCTS)
def test_products_without_logits_in_memory_are_as_exact(rows, vocabulary, width, soft_cap, wide, dtype):
    hidden, weight, _, ids, upstream = projection(dtype, rows, vocabulary, width, bias=False)
    weight *= 3
    heat = torch.linspace(0.5, 2, rows, device=DEVICE)
    assert triton_products.supports(hidden, weight)

    def with_temperature(function, dtype):
        inputs = [x.detach().to(dtype, copy=True).requires_grad_() for x in (hidden, weight)]
        temperature = heat.to(torch.promote_types(dtype, torch.float32), copy=True).requires_grad_()
        outputs = function(*inputs, temperature)
        total = sum((output * part).sum() for output, part in zip(outputs, upstream, strict=True))
        found = [*outputs, *torch.autograd.grad(total, [*inputs, temperature])]
        return [value.detach().double().cpu() for value in found]

    def elementary(distribution):
        def call(hidden, weight, temperature):
            logits = hidden @ weight.T if wide is None else hidden.float() @ weight.float().T
            logits = logits.to(temperature.dtype)
            return distribution(
                logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap), ids, temperature[:, None]
            )

        return call

    def mine(hidden, weight, temperature):
        options = {"logits_dtype": wide, "soft_cap": soft_cap, "backend": "triton", "save_logits": False}
        return token_logprobs(hidden, weight, ids, temperature=temperature, chunk_columns=1024, **options)

    def precise(hidden, weight, temperature):
        logits = hidden @ weight.T
        capped = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
        return truth(capped, ids, temperature[:, None])

    exact = with_temperature(precise, torch.float64)
    got, rival = with_temperature(mine, dtype), with_temperature(elementary(plain), dtype)
    unit = torch.finfo(dtype).eps  # of the logits' gradient, which is rounded before its products
    per_row, of_factors = ("logprobs", "entropy", "d temperature"), ("d hidden", "d weight")
    for names, places, floor in ((per_row, (0, 1, 4), 1e-5 if wide else unit), (of_factors, (2, 3), unit)):
        parts = [[found[place] for place in places] for found in (got, rival, exact)]
        assert_no_worse(*parts, names, dtype, floor=floor)
    with torch.no_grad():
        scored = mine(hidden, weight, heat)
    assert max(errors([x.double().cpu() for x in scored], got[:2])) < 1e-6


@on_hopper
def test_products_without_logits_leave_an_unsound_row_alone():
    hidden, weight, _, ids, upstream = projection(torch.float16, 6, 300, 64, bias=False)
    exact = project_with(true_projection, hidden, weight, None, ids, upstream)
    broken, asked = hidden.clone(), ids.clone()
    broken[1], asked[3], asked[4] = torch.nan, 300, 2**32 + 5

    def mine(hidden, weight, ids, bias):
        options = {"backend": "triton", "save_logits": False, "check_values": False}
        return token_logprobs(hidden, weight, ids, logits_dtype=torch.float32, **options)

    got = project_with(mine, broken, weight, None, asked, upstream)
    bad = torch.tensor([False, True, False, True, True, False])
    for a, b in zip(got[:3], exact, strict=False):
        assert torch.equal(a.isnan().reshape(6, -1).all(1), bad)
        torch.testing.assert_close(a[~bad], b[~bad], rtol=2e-3, atol=2e-3)


@on_hopper
@pytest.mark.parametrize("low", [slice(200, 201), slice(110, 600)], ids=["one", "all of a tile"])
def test_a_logit_below_the_range_of_float16_has_probability_0(low):
    hidden, weight, _, ids, upstream = projection(torch.float16, 6, 700, 64, bias=False)
    hidden, ids, others = hidden.abs() + 1, ids % 100, torch.ones(700, dtype=torch.bool, device=DEVICE)
    weight[low], others[low] = -4096.0, False  # 64 products of at most -4096

    def mine(hidden, weight, ids, bias):
        return token_logprobs(hidden, weight, ids, backend="triton", save_logits=False)

    got, expected = (project_with(mine, hidden, each, None, ids, upstream) for each in (weight, weight[others]))
    for own, other in zip(got[:3], expected[:3], strict=True):
        torch.testing.assert_close(own, other, rtol=2e-3, atol=2e-3)


@on_hopper
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_products_without_logits_take_any_layout_of_what_they_support(dtype):
    hidden, weight, _, ids, _ = projection(dtype, 9, 520, 64, bias=False)
    found, gradients = [token_logprobs(hidden, weight, ids, backend="triton", logits_dtype=torch.float32)], []
    wide = torch.full((520, 80), torch.nan, dtype=dtype, device=DEVICE)
    wide[:, 8:72] = weight
    backward = torch.cat([weight.T, torch.zeros_like(weight.T)]).contiguous()
    unsupported = (backward.T[:, :64], torch.cat([weight[:, :1], weight], 1)[:, 1:])
    for other in (wide[:, 8:72], weight.float(), weight.float().T.contiguous().T, *unsupported):
        assert triton_products.supports(hidden, other) == all(other is not x for x in unsupported)
        found.append(token_logprobs(hidden, other, ids, backend="triton", logits_dtype=torch.float32))
        if other.dtype == torch.float32:
            learnt = [hidden.clone().requires_grad_(), other.detach().requires_grad_()]
            options = {"backend": "triton", "save_logits": False, "chunk_columns": 300}
            outputs = token_logprobs(*learnt, ids, **options)
            gradients.append(torch.autograd.grad(sum(output.sum() for output in outputs), learnt))
    for logprobs, entropy in found[1:]:
        torch.testing.assert_close(logprobs, found[0][0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(entropy, found[0][1], rtol=1e-4, atol=1e-4)
    for own, other in zip(*gradients, strict=True):
        assert torch.equal(own, other)
    assert not triton_products.supports(hidden[:0], weight)
    assert not triton_products.supports(hidden.float(), weight)


def test_the_programs_of_a_product_keep_a_gpu_busy():
    """Of 132 multiprocessors, as an H200 has: whatever the sizes, few wait while the last programs end."""
    for n in (1000, 5000, 8192, 20000, 32768):
        for vocabulary in (32000, 50257, 151936):
            blocks, tiles = -(-n // triton_products.ROWS), -(-vocabulary // triton_products.COLUMNS)
            share = triton_products._share(blocks, tiles, 132)
            programs = blocks * -(-tiles // share)
            busy = blocks * tiles / (-(-programs // 132) * 132 * share)
            assert busy > 0.9, (n, vocabulary, share, busy)
            assert -(-tiles // share) <= max(triton_products._MOST_PARTS, 132)


def test_masked_rows_affect_no_result():
    hidden, weight, _, ids, upstream = projection(torch.float32, 6, 1000, 8, bias=False)
    mask = torch.tensor([True, False, True, True, False, True], device=DEVICE)
    spoilt, asked = hidden.clone(), ids.clone()
    spoilt[~mask] = torch.nan
    asked[~mask] = -100

    def masked(hidden, weight, ids, bias):
        return token_logprobs(hidden, weight, ids, row_mask=mask, backend="triton")

    got = project_with(masked, spoilt, weight, None, asked, upstream)
    exact = project_with(true_projection, hidden[mask], weight, None, ids[mask], upstream[:, mask])
    kept = mask.cpu()
    assert max(errors([got[0][kept], got[1][kept], got[2][kept], got[3]], exact)) < 2e-6
    assert not got[2][~kept].any() and not got[0][~kept].any()


def test_strided_and_misaligned_logits():
    base, ids, upstream = logits_of("ordinary", 4, 1031)
    temperature = torch.ones(1, 1)
    for view in (base[:, 3:], base[:, 1:1025], base[::2, 5:], base.T.contiguous().T[:, 2:]):
        picked, top = ids[: len(view)] % view.shape[1], upstream[:, : len(view)]
        exact, got = (everything(f, x, picked, top, temperature) for f, x in ((truth, view), (mine, view)))
        assert max(errors(got, exact)) < 2e-6
        in_view = torch.empty(view.shape[0], view.shape[1] + 5).to(DEVICE)[:, 5:]
        in_view.copy_(view)
        seen = token_logprobs_from_logits(in_view, picked.to(DEVICE), backend="triton")
        assert float((seen[0].double().cpu() - exact[0]).abs().max()) < 1e-5


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one_row(rows):
    hidden, weight, _, ids, upstream = projection(torch.float32, rows, 130, 4, bias=False)

    def mine(hidden, weight, ids, bias):
        return token_logprobs(hidden, weight, ids, backend="triton")

    got = project_with(mine, hidden, weight, None, ids, upstream)
    exact = project_with(true_projection, hidden, weight, None, ids, upstream)
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_nan_and_infinity_stay_in_their_row():
    logits, ids, upstream = logits_of("ordinary", 4, 1000)
    logits[0, 17], logits[1, 18], logits[2] = torch.nan, torch.inf, -torch.inf
    got = everything(mine, logits, ids, upstream, torch.ones(1, 1))
    exact = everything(truth, logits, ids, upstream, torch.ones(1, 1))
    for name, a, b in zip(("logprobs", "entropy", "d logits"), got, exact, strict=False):
        assert a[:3].isnan().flatten(1).any(1).all() if a.ndim > 1 else a[:3].isnan().all(), name
        assert float((a[3] - b[3]).abs().max()) < 1e-5, name


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(**CASES)
def test_no_layout_of_an_argument_changes_a_result(layouts, dtype, cut, seed, in_place):
    assert_no_layout_matters("triton", layouts, dtype, cut, seed, in_place, device=DEVICE)


def test_ids_of_every_second_place_are_those_of_their_own_rows():
    logits, ids, _ = (x.to(DEVICE) for x in logits_of("ordinary", 6, 40))
    tokens = torch.stack([torch.zeros_like(ids), ids], 1)
    expected, _ = token_logprobs_from_logits(logits, ids, backend="triton")
    assert torch.equal(token_logprobs_from_logits(logits, tokens[:, 1], backend="triton")[0], expected)


def test_what_a_kernel_writes_must_be_addressable_row_by_row():
    n, columns = 4, 24
    tile = torch.randn(n, columns, device=DEVICE)
    ids = torch.zeros(n, dtype=torch.int64, device=DEVICE)
    ones = torch.ones(n, device=DEVICE)
    for wrong in (
        tile[:1].expand(n, columns),
        tile.T.contiguous().T,
        tile.flatten().unfold(0, columns, 2)[:n],
        torch._neg_view(tile),
    ):
        with pytest.raises(ShapeError, match="written in place"):
            triton_rows.gradient_(wrong, ids, *[ones] * 6)
        with pytest.raises(ShapeError, match="written in place"):
            triton_rows.kl_backward(tile, tile, 1.0, torch.zeros(5, n, device=DEVICE), ones, wrong, None)
    with pytest.raises(ShapeError, match=r"labels: got shape \(3,\)"):
        triton_rows.gradient_(tile, ids[:3], *[ones] * 6)
    for good, kernel in (
        (torch.zeros(2, 5, n, device=DEVICE), lambda sums: triton_rows.sum_tile(tile, sums, ids, ones)),
        (torch.zeros(2, 5, n, device=DEVICE), lambda sums: triton_rows.kl_sum_tile(tile, tile, 1.0, sums)),
    ):
        kernel(good)
        for wrong in (laid_out(good, "spread"), good.double(), good[:, :3], good[..., :2], torch._neg_view(good)):
            with pytest.raises(ShapeError, match="sums: got"):
                kernel(wrong)
    with pytest.raises(ShapeError, match="rows: got"):
        triton_rows.kl_backward(tile, tile, 1.0, torch.zeros(4, n, device=DEVICE), ones, tile, None)


def test_autograd_notices_that_a_gradient_was_written_over_logits():
    logits, ids, upstream = (x.to(DEVICE) for x in logits_of("ordinary", 4, 40))
    leaf = logits.clone().requires_grad_()
    held = leaf * 1.0
    other = held.square().sum()
    logprobs, _ = token_logprobs_from_logits(held, ids, backend="triton", in_place=True)
    (logprobs * upstream[0]).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


def test_the_gradient_overwrites_the_logits_only_in_place():
    logits, ids, upstream = (x.to(DEVICE) for x in logits_of("ordinary", 4, 1025))
    for in_place in (False, True):
        leaf = logits.clone().requires_grad_()
        held = leaf * 1.0
        before = held.detach().clone()
        logprobs, entropy = token_logprobs_from_logits(held, ids, backend="triton", in_place=in_place)
        total = (logprobs * upstream[0]).sum() + (entropy * upstream[1]).sum()
        total.backward(retain_graph=True)
        assert torch.equal(held, before) is not in_place
        if in_place:
            torch.testing.assert_close(held.detach(), leaf.grad)
            with pytest.raises(TrainerError, match="in_place=False"):
                total.backward()


def test_a_second_backward_pass_with_saved_logits_gives_the_same_gradients():
    hidden, weight, _, ids, upstream = projection(torch.float32, 4, 130, 8, bias=False)
    hidden.requires_grad_()
    logprobs, _ = token_logprobs(hidden, weight, ids, backend="triton", save_logits=True)
    total = (logprobs * upstream[0]).sum()
    first, second = (torch.autograd.grad(total, hidden, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


def all_of_kl(function, p, q, upstream):
    pair = [x.detach().clone().to(DEVICE).requires_grad_() for x in (p, q)]
    divergence = function(*pair)
    gradients = torch.autograd.grad((divergence * upstream.to(DEVICE, divergence.dtype)).sum(), pair)
    return [value.detach().double().cpu() for value in (divergence, *gradients)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["ordinary", "peaked", "negative", "masked"])
@pytest.mark.parametrize("vocabulary", [7, 1000, 2064, pytest.param(9001, marks=pytest.mark.campaign)])
def test_full_kl_is_as_exact_as_plain_torch(vocabulary, kind, dtype):
    p, _, upstream = logits_of(kind, 3, vocabulary, seed=1)
    q = p + torch.randn(p.shape, generator=torch.Generator().manual_seed(2))  # 0 where p is 0
    p, q = p.to(dtype), q.to(dtype)

    def through_softmax(p, q, precision=torch.float32):
        log_p, log_q = (torch.log_softmax(x.to(precision) / 0.8, -1) for x in (p, q))
        gone = log_p == -torch.inf
        return (log_p.exp() * (log_p - log_q).masked_fill(gone, 0.0)).sum(-1)

    exact = all_of_kl(lambda p, q: through_softmax(p, q, torch.float64), p.double(), q.double(), upstream[0])
    got = all_of_kl(lambda p, q: full_kl(p, q, temperature=0.8, backend="triton"), p, q, upstream[0])
    rival = all_of_kl(through_softmax, p, q, upstream[0])
    # d q is the difference of two probabilities, each rounded to float32.
    unit = float(torch.finfo(torch.float32).eps * upstream[0].abs().max() / 0.8)
    assert_no_worse(got, rival, exact, ("KL", "d p", "d q"), dtype, floor=2e-5, unit=unit)


@pytest.mark.parametrize("cut", CUTS[:2], ids=str)
def test_the_divergence_of_hidden_states_is_that_of_their_logits(cut):
    hidden, weight, bias, _, upstream = projection(torch.float32, 4, 1023, 8, bias=True)
    other, other_weight, *_ = projection(torch.float32, 4, 1023, 5, bias=False)
    inputs = [x.requires_grad_() for x in (hidden, weight, bias, other, other_weight)]

    def of_states(backend):
        kl = linear_kl(hidden, weight, other, other_weight, bias=bias, temperature=0.8, backend=backend, **cut)
        return [kl.detach(), *torch.autograd.grad((kl * upstream[0].to(kl)).sum(), inputs)]

    exact, got = ([x.double().cpu() for x in of_states(backend)] for backend in ("reference", "triton"))
    assert max(errors(got, exact)) < 1e-5


def test_the_most_probable_tokens_are_those_of_plain_torch():
    hidden, weight, bias, *_ = projection(torch.float32, 3, 1023, 8, bias=True)
    logits = hidden.double() @ weight.double().T + bias.double()
    expected, tokens = torch.log_softmax(logits / 0.7, -1).topk(9)
    got, found = top_logprobs(hidden, weight, 9, bias=bias, temperature=0.7, chunk_columns=512, backend="triton")
    assert torch.equal(found, tokens)
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


class Operations(TorchDispatchMode):
    """The operations on tensors that calls make, but for views and memory, and the kernels that they launch."""

    FREE = (
        "view",
        "expand",
        "detach",
        "unbind",
        "slice",
        "select",
        "alias",
        "permute",
        "unsqueeze",
        "empty",
        "empty_like",
    )

    def __init__(self, monkeypatch):
        super().__init__()
        self.seen, self._launching = [], False
        original = triton_rows.launch

        def recorded(kernel, *arguments, **constants):
            self.seen.append(kernel.__name__)
            self._launching = True  # the interpreter copies tensors
            original(kernel, *arguments, **constants)
            self._launching = False

        for module in (triton_rows, triton_layers, triton_products):
            monkeypatch.setattr(module, "launch", recorded)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().removeprefix("aten::").partition(".")[0]
        if not self._launching and name not in self.FREE:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


def test_a_call_on_logits_launches_a_kernel_and_fills_one_number(monkeypatch):
    """Whatever else ran would be a launch, and a value that is read back a wait, which no CUDA graph can have."""
    logits, ids, upstream = (x.to(DEVICE) for x in logits_of("ordinary", 3, 64))
    logits.requires_grad_()
    g, h = upstream
    with Operations(monkeypatch) as calls:
        outputs = token_logprobs_from_logits(logits, ids, temperature=0.7, backend="triton", check_values=False)
        torch.autograd.grad(outputs, logits, [g, h])
    assert calls.seen == ["full", "_sums_kernel", "_gradient_kernel"]


def test_a_call_on_hidden_states_launches_products_and_kernels(monkeypatch):
    hidden, weight, _, ids, upstream = projection(torch.float32, 4, 130, 8, bias=False)
    hidden.requires_grad_()
    weight.requires_grad_()
    with Operations(monkeypatch) as calls:
        outputs = token_logprobs(hidden, weight, ids, backend="triton", save_logits=False, check_values=False)
        torch.autograd.grad(outputs, [hidden, weight], list(upstream))
    assert calls.seen == ["full", "mm", "_sums_kernel", "_merge_kernel", "mm", "_gradient_kernel", "mm", "mm"]


@on_hopper
def test_a_call_on_hidden_states_in_half_precision_keeps_no_logits(monkeypatch):
    hidden, weight, _, ids, upstream = projection(HALF[-1], 4, 136, 8, bias=False)
    hidden.requires_grad_()
    weight.requires_grad_()
    with Operations(monkeypatch) as calls:
        outputs = token_logprobs(hidden, weight, ids, backend="triton", save_logits=False, check_values=False)
        torch.autograd.grad(outputs, [hidden, weight], list(upstream))
    assert calls.seen == ["full", "_sum_product_kernel", "_merge_kernel", "_gradient_product_kernel", "mm", "mm"]


def test_kl_is_infinite_where_only_p_is_positive_and_finite_where_only_q_is():
    p, q = torch.zeros(2, 300, device=DEVICE), torch.zeros(2, 300, device=DEVICE)
    q[0, 5], p[1, 5] = -torch.inf, -torch.inf
    got = full_kl(p, q, backend="triton").tolist()
    assert got[0] == float("inf")
    assert got[1] == pytest.approx(torch.tensor(300 / 299).log().item(), rel=1e-4)


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU with 20 GB: more than 2**31 elements")
def test_offsets_beyond_32_bits():
    rows, vocabulary = 15000, 151936  # 2.28e9 elements
    logits = torch.randn(rows, vocabulary, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    ids = torch.randint(vocabulary, (rows,), device=DEVICE)
    logprobs, entropy = token_logprobs_from_logits(logits, ids, backend="triton")
    (logprobs + entropy).sum().backward()
    last = everything(truth, logits[-3:].detach().cpu(), ids[-3:].cpu(), torch.ones(2, 3), torch.ones(1, 1))
    torch.testing.assert_close(logprobs[-3:].double().cpu(), last[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits.grad[-3:].double().cpu(), last[2], atol=1e-2, rtol=2e-2)


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("options", [{}, {"chunk_rows": 4, "chunk_columns": 17}], ids=str)
def test_restricted_rows_have_the_enumerated_distribution(free, soft_cap, options):
    options = {**options, "backend": "triton", "device": DEVICE}
    check_against_enumeration(AllowedTokens.of, token_logprobs, linear_kl, free=free, soft_cap=soft_cap, **options)


def elementary_norm(x, weight):
    exact = x if x.dtype == torch.float64 else x.float()
    return (exact * (exact.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * weight).to(
        torch.promote_types(x.dtype, weight.dtype)
    )


# Rows shorter than a warp's, a multiple of 16, several in a tile with an incomplete one, longer than a tile, none.
@pytest.mark.parametrize("shape", [(3, 2), (5, 7), (2, 37, 128), (3, 1536), (2, 5000), (0, 8)])
@pytest.mark.parametrize("gain", ["same", torch.float32])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_their_gradients_are_as_exact_as_elementary_operations(shape, gain, dtype):
    generator = torch.Generator().manual_seed(0)
    gain = dtype if gain == "same" else gain
    x, upstream = (torch.randn(shape, generator=generator).mul_(4).to(DEVICE, dtype) for _ in range(2))
    weight = (torch.rand(shape[-1:], generator=generator) + 0.5).to(DEVICE, gain)

    def run(function, kind, kind_of_gain):
        inputs = [x.to(kind, copy=True).requires_grad_(), weight.to(kind_of_gain, copy=True).requires_grad_()]
        out = function(*inputs)
        return out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out.dtype))

    truth, stock = run(elementary_norm, torch.float64, torch.float64), run(elementary_norm, dtype, gain)
    found = run(lambda *inputs: triton_layers.rms_norm(*inputs, 1e-3), dtype, gain)
    assert [part.dtype for part in found] == [torch.promote_types(dtype, gain), dtype, gain]
    for exact, theirs, own in zip(truth, stock, found, strict=True):
        assert own.shape == exact.shape
        if exact.numel():
            scale = max(float(exact.abs().max()), 1e-30)
            unit = torch.finfo(own.dtype).eps * (2 if own.dtype == torch.float32 else 1)
            error, error_of_theirs = (float((x.double() - exact).abs().max()) / scale for x in (own, theirs))
            # Triton's interpreter truncates float32 to bfloat16 where a GPU rounds.
            assert error <= max(error_of_theirs * 1.01, unit), (error, error_of_theirs)


@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_the_gain_of_a_norm_has_the_same_gradient_however_many_programs_sum_it(programs, monkeypatch):
    monkeypatch.setattr(triton_layers, "NORM_PROGRAMS", (programs, programs))
    monkeypatch.setattr(triton_layers, "multiprocessors", lambda _: 1)
    x, upstream = (torch.randn(150, 96, device=DEVICE) for _ in range(2))
    weight = torch.rand(96, device=DEVICE).requires_grad_()
    own = torch.autograd.grad(triton_layers.rms_norm(x, weight, 1e-3), weight, upstream)
    torch.testing.assert_close(own, torch.autograd.grad(elementary_norm(x, weight), weight, upstream))


@pytest.mark.parametrize("learns", [(True, False), (False, True), (True, True)])
def test_a_norm_takes_any_layout_and_computes_only_the_required_gradients(learns):
    x, upstream = (torch.randn(6, 12, 5, device=DEVICE).transpose(0, 2) for _ in range(2))
    weight = torch._neg_view(torch.rand(12, 2, device=DEVICE)[:, 1][:6].detach())
    x, weight = (part.requires_grad_(learn) for part, learn in zip((x, weight), learns, strict=True))
    needed = [part for part in (x, weight) if part.requires_grad]
    out = triton_layers.rms_norm(x, weight, 1e-3)
    truth = elementary_norm(x, weight)
    torch.testing.assert_close(out, truth)
    grads = (torch.autograd.grad(each, needed, upstream) for each in (out, truth))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 1048), (0, 7)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu_and_its_gradients_are_as_exact_as_elementary_operations(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    gate, up, upstream = (torch.randn(shape, generator=generator).mul_(4).to(DEVICE, dtype) for _ in range(3))

    def run(function, kind):
        inputs = [part.to(kind, copy=True).requires_grad_() for part in (gate, up)]
        out = function(*inputs)
        return out.detach(), *torch.autograd.grad(out, inputs, upstream.to(out.dtype))

    def elementary(gate, up):
        return torch.nn.functional.silu(gate) * up

    truth, stock = run(elementary, torch.float64), run(elementary, dtype)
    for exact, theirs, own in zip(truth, stock, run(triton_layers.swiglu, dtype), strict=True):
        assert own.dtype == dtype and own.shape == exact.shape
        if exact.numel():
            scale, unit = float(exact.abs().max()), torch.finfo(dtype).eps
            error, error_of_theirs = (float((x.double() - exact).abs().max()) / scale for x in (own, theirs))
            # Triton's interpreter truncates float32 to bfloat16 where a GPU rounds.
            assert error <= max(error_of_theirs * 1.01, unit), (error, error_of_theirs)


def test_swiglu_takes_any_layout():
    gate, up, upstream = (torch.randn(12, 6, device=DEVICE).t() for _ in range(3))
    gate, up = gate.requires_grad_(), torch._neg_view(up).detach().requires_grad_()
    out = triton_layers.swiglu(gate, up)
    torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up)
    grads = torch.autograd.grad(out, [gate, up], upstream.expand_as(out))
    truth = torch.autograd.grad(torch.nn.functional.silu(gate) * up, [gate, up], upstream)
    torch.testing.assert_close(grads, truth)


@pytest.mark.parametrize(("heads", "width"), [(1, 2), (3, 8), (5, 96), (64, 128)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotations_and_their_gradients_are_those_of_float64(heads, width, dtype):
    generator = torch.Generator().manual_seed(0)
    x, upstream = (torch.randn(2, 3, heads, width, generator=generator).to(DEVICE, dtype) for _ in range(2))
    angles = torch.randn(1, 3, width // 2, generator=generator).expand(2, -1, -1)
    cosines, sines = (torch.cat([part, part], -1).to(DEVICE, dtype) for part in (angles.cos(), angles.sin()))
    found = []
    for function, kind in ((fused.rotate, torch.float64), (triton_layers.rotate, dtype)):
        own = x.to(kind, copy=True).requires_grad_()
        out = function(own, cosines.to(kind), sines.to(kind))
        found.append((out, *torch.autograd.grad(out, own, upstream.to(kind))))
    for exact, own in zip(*found, strict=True):
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(own.double(), exact, rtol=unit, atol=4 * unit)


def test_a_rotation_takes_any_layout():
    x = torch.randn(2, 4, 3, 8, device=DEVICE)
    angles = torch.randn(2, 3, 8, device=DEVICE)
    transposed = x.transpose(1, 2).requires_grad_()
    strided = torch.stack([angles.cos(), angles.sin()], -1)
    cosines, sines = (
        part.index_copy(2, torch.arange(4, 8, device=DEVICE), part[..., :4]) for part in strided.unbind(-1)
    )
    out = triton_layers.rotate(transposed, cosines, sines)
    truth = fused._rotated(transposed, cosines, sines, inverse=False)
    torch.testing.assert_close(out, truth)
    upstream = torch.randn(2, 4, 8, 3, device=DEVICE).permute(0, 3, 1, 2)
    torch.testing.assert_close(
        torch.autograd.grad(out, transposed, upstream), torch.autograd.grad(truth, transposed, upstream)
    )


NORM_KERNELS = ["_norm_kernel", "_norm_gradient_kernel"]


def test_a_layer_launches_one_kernel_in_each_direction(monkeypatch):
    gate, up, x, cosines, sines = (torch.randn(2, 3, 4, 8, device=DEVICE).requires_grad_() for _ in range(5))
    with Operations(monkeypatch) as calls:
        torch.autograd.grad(triton_layers.swiglu(gate, up), [gate, up], x)
        torch.autograd.grad(triton_layers.rotate(x, cosines[:, :, 0], sines[:, :, 0]), x, gate)
        torch.autograd.grad(triton_layers.rms_norm(x, up.detach()[0, 0, 0], 1e-6), x, gate)
    assert calls.seen == ["_swiglu_kernel", "_swiglu_gradient_kernel", *["_rotate_kernel"] * 2, *NORM_KERNELS]


def test_a_model_computes_the_same_by_kernels_as_by_elementary_operations(monkeypatch):
    model = tiny_model("qwen3", scale=2.0).to(DEVICE)
    ids = torch.randint(4, 40, (2, 13), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    upstream = torch.randn(2, 13, 32, device=DEVICE)
    found, launched = [], []
    monkeypatch.setattr(fused, "_LARGE_NORM", 1)
    for kernels in (None, triton_layers):
        monkeypatch.setattr(fused, "layer_kernels", lambda *_, kernels=kernels: kernels)
        for parameter in model.causal_lm.parameters():
            parameter.grad = None
        with monkeypatch.context() as patch:
            patch.setattr(triton_layers, "launch", lambda *a, **k: (launched.append(a[0].__name__), launch(*a, **k)))
            hidden = model.trunk_hidden(ids, torch.arange(13, device=DEVICE).expand(2, 13), torch.ones_like(ids))
            hidden.backward(upstream)
        found.append([hidden.detach(), *(p.grad for p in model.causal_lm.parameters() if p.grad is not None)])
    layers = len(model.trunk.layers)
    assert launched.count("_swiglu_kernel") == launched.count("_swiglu_gradient_kernel") == layers
    assert launched.count("_rotate_kernel") == 4 * layers
    norms = sum(isinstance(module, fused.RMSNorm) for module in model.causal_lm.modules())
    assert [launched.count(kernel) for kernel in NORM_KERNELS] == [norms, norms]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


HEADS = [(4, 4, 16), (4, 2, 64), (8, 2, 128), (2, 1, 80), (6, 2, 256)]


def cached(heads, shared, width, dtype, seed=0):
    """Queries, and a cache of seven slots of which every position that no query sees is NaN."""
    generator = torch.Generator().manual_seed(seed)
    slots, positions = torch.tensor([3, 0, 6, 1, 4]), torch.tensor([0, 303, 130, 16, 255])
    query = torch.randn(5, heads, width, generator=generator)
    keys, values = torch.randn(2, 7, shared, 304, width, generator=generator)
    unseen = torch.full((7,), -1).index_copy(0, slots, positions)[:, None] < torch.arange(304)
    for store in (keys, values):
        store.transpose(1, 2)[unseen] = torch.nan
    return query.to(DEVICE, dtype), keys.to(DEVICE, dtype), values.to(DEVICE, dtype), slots, positions


def attended_by(query, keys, values, slots, positions, scaling, window, precision):
    """Softmax attention row by row in plain PyTorch."""
    rows, repeats = [], query.shape[1] // keys.shape[1]
    for q, slot, position in zip(query.to(precision), slots.tolist(), positions.tolist(), strict=True):
        first = 0 if window is None else max(0, position + 1 - window)
        k, v = (x[slot, :, first : position + 1].to(precision).repeat_interleave(repeats, 0) for x in (keys, values))
        weights = ((k @ q[:, :, None]).squeeze(2) * scaling).softmax(-1)
        rows.append((weights[:, None] @ v).squeeze(1))
    return torch.stack(rows)


@pytest.mark.parametrize("programs", [1, 10_000])  # the positions of a row are not divided, or as often as possible
@pytest.mark.parametrize("window", [None, 1, 100])
@pytest.mark.parametrize(("heads", "shared", "width"), HEADS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_over_a_cache_is_as_exact_as_plain_torch(dtype, heads, shared, width, window, programs, monkeypatch):
    monkeypatch.setattr(triton_decoding, "_PROGRAMS", programs)
    monkeypatch.setattr(triton_decoding, "multiprocessors", lambda _: 1)
    inputs = cached(heads, shared, width, dtype)
    query, keys, values, slots, positions = inputs
    at = torch.stack([slots, positions], 1).to(DEVICE)  # as columns of a table
    found = triton_decoding.attend(
        query, keys, values, at[:, 0], at[:, 1], length=304, scaling=0.3 * width**-0.5, window=window
    )
    assert found.dtype == dtype and found.shape == query.shape
    exact, rival = (attended_by(*inputs, 0.3 * width**-0.5, window, kind) for kind in (torch.float64, dtype))
    floor = max(4e-6, torch.finfo(dtype).eps / 2)  # half a unit in the last place of the result
    assert_no_worse([found.double()], [rival.double()], [exact], ["attention"], dtype, floor=floor)


def test_a_row_is_divided_among_programs_only_where_few_run(monkeypatch):
    query, keys, values, slots, positions = cached(4, 2, 64, torch.float32)
    monkeypatch.setattr(triton_decoding, "_PROGRAMS", 2)
    seen = []
    monkeypatch.setattr(triton_decoding, "launch", lambda kernel, grid, *_, **__: seen.append((kernel.__name__, grid)))
    for units, window in ((132, None), (132, 70), (10, None), (9, None)):
        monkeypatch.setattr(triton_decoding, "multiprocessors", lambda _, units=units: units)
        triton_decoding.attend(query, keys, values, slots, positions, length=304, window=window)
    merge = ("_attention_merge_kernel", (20,))
    # A block has 64 positions: 304 are at most 5 parts, and 70 two; 20 programs are two for each of 10.
    first, second, third, whole = (("_attention_kernel", (5, 2, parts)) for parts in (5, 2, 2, 1))
    assert seen == [first, merge, second, merge, third, merge, whole]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "shared", "width"), HEADS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_is_normed_rotated_and_written_as_by_elementary_operations(dtype, heads, shared, width, normed):
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(3, heads + 2 * shared, width, generator=generator).mul_(2).to(DEVICE, dtype)
    query, key, value = projected.split([heads, shared, shared], 1)  # of one product
    angles = torch.randn(3, width // 2, generator=generator)
    rotation = [torch.cat([part, part], -1).to(DEVICE, dtype) for part in (angles.cos(), angles.sin())]
    gains = [torch.rand(width, generator=generator).add_(0.5).to(DEVICE, dtype) for _ in range(2)]
    at = torch.tensor([[4, 7], [0, 0], [2, 15]], device=DEVICE)
    slots, writes = at.unbind(1)

    def elementary(x, gain, kind):
        x = elementary_norm(x.to(kind), gain.to(kind)) if normed else x.to(kind)
        return fused._rotated(x[:, None], *(part[:, None].to(kind) for part in rotation), inverse=False)[:, 0]

    keys, values = torch.full((2, 5, shared, 16, width), 7.0, dtype=dtype, device=DEVICE)
    chosen = {"gains": gains, "epsilon": 1e-3} if normed else {}
    found = triton_decoding.store_token(query, key, value, rotation, keys, values, slots, writes, **chosen)
    assert torch.equal(values[slots, :, writes], value)
    exact, rival = (
        [elementary(x, gain, kind).double() for x, gain in zip((query, key), gains, strict=True)]
        for kind in (torch.float64, dtype)
    )
    own = [found.double(), keys[slots, :, writes].double()]
    assert_no_worse(own, rival, exact, ("query", "key"), dtype)
    for store in (keys, values):  # nothing else
        store[slots, :, writes] = 7.0
        assert (store == 7.0).all()


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral-windowed", "qwen2-half-windowed"])
def test_an_engine_samples_the_same_where_a_kernel_reads_its_cache(family, monkeypatch):
    model, found, launched = tiny_model(family).to(DEVICE), [], []
    monkeypatch.setattr(decoding, "decoding_kernels", lambda *_: triton_decoding)
    monkeypatch.setattr(triton_decoding, "launch", lambda *a, **k: (launched.append(a[0].__name__), launch(*a, **k)))
    for static in (False, True):
        engine, samples = EmbeddedEngine(model, n_slots=5, max_tokens=60, static_shapes=static), []
        for _ in range(5):
            engine.open()
        for turn, slots in enumerate(([0, 1, 2, 3, 4], [0, 2, 4], [4])):  # with idle rows, and with copied ones
            for slot in slots:
                submit(engine, slot, prompt(10 * turn + slot, 3 + slot), slot, max_new_tokens=4 + slot % 3)
            samples.append(finish(engine))
        found.append(samples)
        layers = len(model.trunk.layers)
        assert ("_attention_kernel" in launched) is static
        steps = 1 if DEVICE == "cuda" else 10  # a recorded step launches when it is recorded
        assert launched.count("_token_kernel") == launched.count("_attention_kernel") >= steps * layers * static
    for own, expected in zip(*found, strict=True):
        for slot, sample in expected.items():
            assert own[slot].token_ids == sample.token_ids
            assert own[slot].logprobs == pytest.approx(sample.logprobs, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("change", ["hook", "no norms", "other attention"])
def test_heads_that_are_computed_in_another_way_are_left_to_pytorch(change, monkeypatch):
    model, found = tiny_model("qwen3").to(DEVICE), []
    monkeypatch.setattr(decoding, "decoding_kernels", lambda *_: triton_decoding)

    def narrow(module, query, *rest, **options):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, 0.3 * query, *rest, **options)

    engines = [EmbeddedEngine(model, n_slots=2, max_tokens=40, static_shapes=static) for static in (False, True)]
    if change == "other attention":
        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "narrow", narrow)
        monkeypatch.setattr(model.trunk.config, "_attn_implementation", "narrow")
    for layer in model.trunk.layers:
        if change == "hook":
            layer.self_attn.k_norm.register_forward_hook(lambda module, inputs, output: 1.5 * output)
        elif change == "no norms":
            layer.self_attn.q_norm, layer.self_attn.k_norm = torch.nn.Identity(), torch.nn.Identity()
    for engine in engines:
        submit(engine, engine.open(), prompt(1, 5), 1, max_new_tokens=6)
        found.append(finish(engine)[0])
    assert found[0].token_ids == found[1].token_ids
    assert found[0].logprobs == pytest.approx(found[1].logprobs, rel=1e-4, abs=1e-5)
