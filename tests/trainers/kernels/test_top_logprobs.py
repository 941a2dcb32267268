"""The most probable tokens against a sorted softmax in float64."""

from __future__ import annotations

import pytest
import torch

from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.kernels import top_logprobs
from tests.trainers.kernels.test_token_logprobs import Largest, problem

CUTS = [{}, {"chunk_rows": 4, "chunk_columns": 10}, {"chunk_columns": 3}]


@pytest.mark.parametrize("k", [1, 5, 37])
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "soft_cap": 4.0}], ids=str)
def test_the_tokens_are_the_most_probable_and_their_log_probabilities_exact(k, cut, options):
    hidden, weight, bias, *_ = (x.detach() for x in problem())
    logits = hidden.double() @ weight.double().T + bias.double()
    cap = options.get("soft_cap")
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    expected, tokens = torch.log_softmax(logits / options.get("temperature", 1.0), -1).sort(-1, descending=True)
    got, found = top_logprobs(hidden.view(1, *hidden.shape), weight, k, bias=bias, **options, **cut)
    assert got.shape == found.shape == (1, len(hidden), k) and not got.requires_grad
    torch.testing.assert_close(got[0].double(), expected[:, :k], atol=1e-5, rtol=1e-5)
    assert torch.equal(found[0], tokens[:, :k])


def test_tokens_of_probability_zero_come_last():
    hidden, weight, bias, *_ = (x.detach() for x in problem())
    bias[3:] = -torch.inf
    got, tokens = top_logprobs(hidden, weight, 5, bias=bias, chunk_columns=4)
    assert torch.equal(tokens[:, :3].sort(-1).values, torch.arange(3).expand(len(hidden), 3))
    assert (got[:, 3:] == -torch.inf).all()
    torch.testing.assert_close(got[:, :3].exp().sum(-1), torch.ones(len(hidden)))


def test_only_one_tile_of_logits_exists():
    hidden, weight = torch.randn(640, 8), torch.randn(1000, 8)
    with Largest() as seen:
        top_logprobs(hidden, weight, 3, chunk_rows=16)
    assert seen.numbers == 16 * 1000


def test_wrong_arguments_are_errors():
    hidden, weight, *_ = problem()
    for k in (0, 38):
        with pytest.raises(ShapeError, match="k: got"):
            top_logprobs(hidden, weight, k)
    with pytest.raises(ShapeError, match="temperature"):
        top_logprobs(hidden, weight, 3, temperature=0.0)
    with pytest.raises(ConfigurationError, match="reference"):
        top_logprobs(hidden, weight, 3, backend="reference")
