"""Restricted rows have the softmax over their own tokens: outputs and gradients against enumeration in float64."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from swe_trainers.errors import ShapeError
from swe_trainers.kernels import AllowedTokens, VocabularyShard, comparing, linear_kl, token_logprobs
from tests.trainers.kernels.allowed import SETS, VOCABULARY, check_against_enumeration, problem
from tests.trainers.ranks import on_ranks


@pytest.mark.parametrize("free", [False, True], ids=["all rows restricted", "some rows free"])
@pytest.mark.parametrize("soft_cap", [None, 1.5])
@pytest.mark.parametrize("options", [{}, {"chunk_rows": 4, "chunk_columns": 2}, {"backend": "reference"}], ids=str)
def test_outputs_and_gradients_are_those_of_the_enumerated_distribution(free, soft_cap, options):
    check_against_enumeration(
        AllowedTokens.of, token_logprobs, linear_kl, free=free, soft_cap=soft_cap, **{"backend": "torch", **options}
    )


def test_rows_outside_of_the_row_mask_are_left_out():
    hidden, weight, bias, ids, index, *_ = problem(free=True)
    keep, allowed = torch.arange(len(ids)) % 3 > 0, AllowedTokens.of(SETS, index, VOCABULARY)
    found = token_logprobs(hidden, weight, ids, bias=bias, allowed=allowed)
    kept = token_logprobs(hidden, weight, ids, bias=bias, allowed=allowed, row_mask=keep)
    for whole, part in zip(found, kept, strict=True):
        torch.testing.assert_close(part, torch.where(keep, whole, 0.0))


def test_a_function_compiled_by_torch_computes_the_same():
    hidden, weight, bias, ids, index, upstream, _ = problem(free=True)
    allowed, results = AllowedTokens.of(SETS, index, VOCABULARY), []

    def total(hidden, weight, bias):
        logprobs, entropy = token_logprobs(hidden, weight, ids, bias=bias, allowed=allowed)
        return (logprobs * upstream[0]).sum() + (entropy * upstream[1]).sum()

    for function in (total, torch.compile(total, fullgraph=True, backend="aot_eager")):
        value = function(hidden, weight, bias)
        results.append([value.detach(), *torch.autograd.grad(value, [hidden, weight, bias])])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)


def assert_a_divided_vocabulary_computes_the_same(folder):
    hidden, weight, bias, ids, index, upstream, _ = problem(free=dist.get_world_size() == 3)
    starts = {2: [0, 20, 37], 3: [0, 1, 31, 37]}[dist.get_world_size()]
    own = slice(*starts[dist.get_rank() : dist.get_rank() + 2])
    shard = VocabularyShard(own.start, VOCABULARY, dist.group.WORLD)
    allowed, results = AllowedTokens.of(SETS, index, VOCABULARY), []
    for part, options in ((slice(None), {}), (own, {"shard": shard})):
        inputs = [x.detach().clone().requires_grad_() for x in (hidden, weight[part], bias[part])]
        outputs = token_logprobs(inputs[0], inputs[1], ids, bias=inputs[2], allowed=allowed, **options)
        total = (outputs[0] * upstream[0]).sum() + (outputs[1] * upstream[1]).sum()
        found = torch.autograd.grad(total, inputs)
        results.append([*outputs, found[0], *(x[own] if part != own else x for x in found[1:])])
    for got, expected in zip(*results[::-1], strict=True):
        torch.testing.assert_close(got, expected, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_a_vocabulary_over_several_processes_computes_the_same(world, tmp_path):
    on_ranks(world, tmp_path, assert_a_divided_vocabulary_computes_the_same)


def test_the_comparison_of_back_ends_knows_the_sets():
    hidden, weight, bias, ids, index, *_ = problem(free=False)
    with comparing() as comparison:
        token_logprobs(hidden, weight, ids, bias=bias, allowed=AllowedTokens.of(SETS, index, VOCABULARY))
    assert comparison.calls == 1 and max(comparison.errors.values()) < 1e-5


@pytest.mark.parametrize("free", [False, True])
def test_a_token_outside_of_its_set_is_an_error_that_names_the_row(free):
    hidden, weight, bias, ids, index, *_ = problem(free=free)
    row = int((index == 1).nonzero()[0])
    ids[row] = 36  # in other sets
    with pytest.raises(ShapeError, match=f"token 36 of row {row} is not among"):
        token_logprobs(hidden, weight, ids, bias=bias, allowed=AllowedTokens.of(SETS, index, VOCABULARY))


@pytest.mark.parametrize(
    ("sets", "index", "message"),
    [([[]], [0], "set 0 is"), ([[40]], [0], "set 0 is"), ([[-1, 2]], [0], "set 0 is"), ([[1]], [1], "outside")],
)
def test_invalid_sets_are_refused(sets, index, message):
    with pytest.raises(ShapeError, match=message):
        AllowedTokens.of(sets, torch.tensor(index), VOCABULARY)
