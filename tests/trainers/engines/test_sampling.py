"""Sampling tokens: frequencies and log-probabilities equal those of the distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_trainers.engines.embedded import _LegalSets
from swe_trainers.engines.sampling import BLOCK, Sampling, draw
from swe_trainers.errors import ConfigurationError

P = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625])  # what the logits below stand for at temperature 1
SCRAMBLE = torch.tensor([3, 0, 4, 1, 2])


def expected(sampling: Sampling) -> torch.Tensor:
    """(5,) The distribution by the definitions, token by token in plain Python, in the order of P."""
    weights = [p.item() ** (1 / sampling.temperature) for p in P]
    kept = list(range(5))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.top_p < 1:
        total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
        for i in kept:
            if reached >= sampling.top_p - 1e-9:
                break
            nucleus.append(i)
            reached += weights[i] / total
        kept = nucleus
    kept = [i for i in kept if weights[i] >= sampling.min_p * max(weights[j] for j in kept)]
    total = sum(weights[i] for i in kept)
    return torch.tensor([weights[i] / total if i in kept else 0.0 for i in range(5)])


SETTINGS = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(temperature=2.0),
    Sampling(top_k=2),
    Sampling(top_p=0.8),
    Sampling(top_p=0.3),
    Sampling(min_p=0.2),
    Sampling(temperature=2.0, top_k=3, top_p=0.9, min_p=0.6),
]


@pytest.mark.parametrize("sampling", SETTINGS)
def test_token_frequencies_match_logprobs(sampling: Sampling) -> None:
    n = 4000
    logits = P.log()[SCRAMBLE].expand(n, -1)
    ids, logprobs = draw(logits, (torch.arange(n, dtype=torch.float64) + 0.5) / n, sampling)
    truth = expected(sampling)[SCRAMBLE]
    counts = torch.bincount(ids, minlength=5)
    assert (counts - n * truth).abs().max() <= 2
    torch.testing.assert_close(logprobs, truth[ids].log(), rtol=1e-5, atol=1e-5)
    assert logprobs.dtype == torch.float32


def test_temperature_zero_is_greedy_with_logprob_zero() -> None:
    ids, logprobs = draw(
        torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]]), torch.tensor([0.99, 0.99]).double(), Sampling(0.0)
    )
    assert ids.tolist() == [1, 0]
    assert logprobs.tolist() == [0.0, 0.0]


@given(st.integers(1, 6), st.integers(2, 50), st.integers(0, 2**31), st.sampled_from(SETTINGS))
@settings(deadline=None)
def test_rows_are_independent_and_truncated_tokens_are_never_sampled(
    n: int, v: int, seed: int, sampling: Sampling
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, v, generator=generator) * 10
    uniforms = torch.rand(n, generator=generator, dtype=torch.float64)
    uniforms[0] = 1 - 2**-53  # the largest number that a generator gives
    ids, logprobs = draw(logits, uniforms, sampling)
    assert torch.isfinite(logprobs).all()
    for row in range(n):
        alone, _ = draw(logits[row : row + 1], uniforms[row : row + 1], sampling)
        assert alone.item() == ids[row]


@given(n=st.integers(1, 3), v=st.sampled_from([2, 63, 64, 65, 129, 1000]), seed=st.integers(0, 2**31))
@settings(deadline=None)
def test_large_vocabulary_is_sampled_by_its_cumulative_distribution(n: int, v: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, v, generator=generator) * 8
    uniforms = torch.rand(n, generator=generator, dtype=torch.float64)
    ids, logprobs = draw(logits, uniforms, Sampling())
    truth = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(logprobs.double(), truth.gather(1, ids[:, None]).squeeze(1), rtol=1e-5, atol=1e-5)
    for row, token in enumerate(ids.tolist()):
        cumulative = np.cumsum(truth[row].exp().numpy())
        below = cumulative[token - 1] if token else 0.0
        assert below - 1e-6 <= uniforms[row].item() <= cumulative[token] + 1e-6


def test_zero_probability_tokens_are_never_sampled() -> None:
    logits = torch.tensor([[-1000.0, 0.0, -1000.0], [-1000.0, 0.0, -1000.0]])
    ids, logprobs = draw(logits, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64), Sampling())
    assert ids.tolist() == [1, 1]
    assert logprobs.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("vocabulary", [10, 500, 1000])
def test_leaving_out_blocks_without_a_legal_token_changes_no_digit(vocabulary: int, temperature: float) -> None:
    torch.manual_seed(vocabulary)
    sets, legal = [(1, 3, vocabulary - 1), (3, vocabulary - 2)], _LegalSets()
    for n in (2, 33, 64):
        logits, uniforms = 5 * torch.randn(n, vocabulary), torch.rand(n, dtype=torch.float64)
        rows = [sets[row % 2] for row in range(n)]
        masked = torch.full_like(logits, -torch.inf)
        for row, tokens in enumerate(rows):
            masked[row, list(tokens)] = logits[row, list(tokens)]
        narrow, columns = legal.restrict(logits, rows, whole=False)
        ids, logprobs = draw(narrow, uniforms, Sampling(temperature))
        if columns is not None:
            ids = columns[ids]
        assert vocabulary < 500 or narrow.shape[1] <= 2 * BLOCK
        expected, exact = draw(masked, uniforms, Sampling(temperature))
        assert torch.equal(ids, expected)
        assert torch.equal(logprobs, exact)


def test_half_precision_logits_are_normalised_in_float32() -> None:
    logits = torch.zeros((1, 3000), dtype=torch.bfloat16)
    _, logprobs = draw(logits, torch.tensor([0.3]).double(), Sampling())
    assert logprobs.item() == pytest.approx(-math.log(3000), rel=1e-5)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"temperature": 0.0, "top_p": 0.5}, "no effect"),
    ],
)
def test_settings_out_of_range_or_without_effect_are_rejected(values: dict[str, float], name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Sampling(**values)  # type: ignore[arg-type]
