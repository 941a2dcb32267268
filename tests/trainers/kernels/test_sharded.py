"""A vocabulary divided over several processes gives the results of one process, on each of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from swe_trainers.errors import ShapeError
from swe_trainers.kernels import VocabularyShard, token_logprobs, token_logprobs_reference
from tests.trainers.ranks import on_ranks

ROWS, WIDTH = 9, 6
SIZES = {2: [20, 17], 3: [1, 30, 6]}  # of 37 tokens
VOCABULARY = 37


def problem():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator) * 3
    weight, bias = torch.randn(VOCABULARY, WIDTH, generator=generator), torch.randn(VOCABULARY, generator=generator)
    ids = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    return hidden, weight, bias, ids, torch.randn(2, ROWS, generator=generator), torch.arange(ROWS) % 4 > 0


def gradients(function, hidden, weight, bias, ids, upstream, mask, **options):
    temperature = torch.tensor(0.7, requires_grad=True)
    inputs = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
    logprobs, entropy = function(
        inputs[0], inputs[1], ids, bias=inputs[2], temperature=temperature, row_mask=mask, **options
    )
    total = logprobs @ upstream[0].to(logprobs) + entropy @ upstream[1].to(entropy)
    found = torch.autograd.grad(total, [*inputs, temperature])
    return [x.detach().double() for x in (logprobs, entropy, *found)]


def assert_same_as_one_process(folder):
    rank, world = dist.get_rank(), dist.get_world_size()
    hidden, weight, bias, ids, upstream, mask = problem()
    start = sum(SIZES[world][:rank])
    own = slice(start, start + SIZES[world][rank])
    shard = VocabularyShard(start, VOCABULARY, dist.group.WORLD)
    got = gradients(token_logprobs, hidden, weight[own], bias[own], ids, upstream, mask, shard=shard)
    truth = gradients(token_logprobs_reference, hidden, weight, bias, ids, upstream, mask)
    truth[3], truth[4] = truth[3][own], truth[4][own]
    for a, b in zip(got, truth, strict=True):
        torch.testing.assert_close(a, b, atol=3e-5, rtol=1e-5)
    with pytest.raises(ShapeError, match="token 37 lies outside the vocabulary of 37"):
        token_logprobs(hidden, weight[own], ids.clone().fill_(VOCABULARY), shard=shard)


@pytest.mark.parametrize("world", sorted(SIZES))
def test_every_rank_has_the_outputs_and_gradients_of_the_whole_vocabulary(world, tmp_path):
    on_ranks(world, tmp_path, assert_same_as_one_process)
