"""Sampling: from logits to a token and its log-probability under the distribution that was sampled from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from swe_trainers.config import Configuration
from swe_trainers.errors import ConfigurationError

__all__ = ["BLOCK", "Sampling", "draw", "draw_among"]

BLOCK = 64
"""Tokens of the vocabulary that are summed at once."""
_LEAST_TEMPERATURE = 1e-6
"""Logits that are divided by much less are infinite, and their probabilities no numbers."""


@dataclass(frozen=True)
class Sampling(Configuration):
    """How tokens are sampled. The truncations apply in the order of the fields, each to the result of the one before.

    Attributes:
        temperature: divides the logits; 0 takes the most likely token, and what is above is at least 1e-6.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches p.
        min_p: keep tokens at least min_p times as likely as the most likely one.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or _LEAST_TEMPERATURE <= self.temperature < math.inf):
            raise ConfigurationError(
                f"temperature must be 0, or finite and at least {_LEAST_TEMPERATURE}, got {self.temperature}"
            )
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise ConfigurationError(f"top_k must be a whole number of at least 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ConfigurationError(f"min_p must lie in [0, 1], got {self.min_p}")
        if self.temperature == 0 and (self.top_k, self.top_p, self.min_p) != (0, 1.0, 0.0):
            raise ConfigurationError(
                "temperature 0 takes the most likely token: top_k, top_p and min_p would have no effect"
            )

    @property
    def truncates(self) -> bool:
        """Whether some tokens may be dropped."""
        return (self.top_k, self.top_p, self.min_p) != (0, 1.0, 0.0)


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """As `draw_among`, without what was sampled from."""
    return draw_among(logits, uniforms, sampling)[:2]


def draw_among(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sample one token per row by inverting the cumulative distribution; a row depends on its own random number only.

    Args:
        logits: (N, V), any floating type.
        uniforms: (N,) float64 in [0, 1).
        sampling: one for all rows.

    Returns:
        ids (N,) int64 and log-probabilities (N,) float32 under the distribution after temperature and truncation, which
        is a single point (log-probability 0) at temperature 0. The third is (N, V) bool, True where a token was kept;
        None where nothing is truncated.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        return logits.argmax(-1), torch.zeros(logits.shape[0], device=logits.device), None
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    logits = _truncate(logits, sampling)
    logprobs = torch.log_softmax(logits, dim=-1)
    ids = _invert(logprobs.exp(), uniforms)
    kept = logits > -torch.inf if sampling.truncates else None
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1), kept


def _invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds a number: first its block of the vocabulary, then the token.

    Args:
        probabilities: (N, V) float32. uniforms: (N,) float64 in [0, 1).

    Returns:
        (N,) int64, never a token of probability 0.
    """
    n, vocabulary = probabilities.shape
    n_blocks = -(-vocabulary // BLOCK)
    padded = torch.nn.functional.pad(probabilities, (0, n_blocks * BLOCK - vocabulary))
    blocks = padded.view(n, n_blocks, BLOCK)
    # Sums in float32 would drift over a large vocabulary.
    before = blocks.sum(-1, dtype=torch.float64).cumsum(-1)  # (N, blocks)
    total = before[:, -1:]
    zero = torch.zeros_like(total)
    # The number must stay below the total, whatever that rounds to.
    left = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, zero))  # (N, 1)
    first: Tensor | int = 0  # token of the block
    if n_blocks > 1:
        block = torch.searchsorted(before, left, right=True)  # (N, 1)
        left = left - torch.where(block > 0, before.gather(1, (block - 1).clamp(min=0)), 0.0)
        blocks = blocks.gather(1, block[:, :, None].expand(n, 1, BLOCK))
        first = block * BLOCK
    inside = blocks.squeeze(1).double().cumsum(-1)  # (N, BLOCK)
    # The two sums of a block may differ in the last digit: again the number must stay below the sum.
    left = torch.minimum(left, torch.nextafter(inside[:, -1:], zero))
    return (first + torch.searchsorted(inside, left, right=True)).squeeze(1)


def _truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    """Set dropped logits to minus infinity; at least the most likely token stays."""
    dropped = -torch.inf
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, dropped)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        drop = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(drop, dropped)
    if sampling.min_p > 0:
        floor = logits.max(dim=-1, keepdim=True).values + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < floor, dropped)
    return logits
