"""The definitions in float64. Every other back end is tested against them."""

from __future__ import annotations

import torch
from torch import Tensor

from swe_trainers.kernels.allowed import AllowedTokens

__all__ = ["full_kl_reference", "logits_logprobs_reference", "token_logprobs_reference"]


def token_logprobs_reference(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    row_mask: Tensor | None = None,
    soft_cap: float | None = None,
    allowed: AllowedTokens | None = None,
) -> tuple[Tensor, Tensor]:
    """Log p(y) of each row's token and H = −Σ p log p of each row's distribution.

    All logits are materialised and autograd differentiates through them: for tests and diagnosis.

    Args:
        hidden: (..., D) floating.
        weight: (V, D) the unembedding.
        ids: (...) int64, in [0, V) where `row_mask` is True.
        bias: (V,) or None.
        temperature: divides the logits; a number, or (...) with one for each row.
        row_mask: (...) bool, True where a row counts; None for all rows.
        soft_cap: logits become cap · tanh(logit / cap); or None.
        allowed: which tokens each row may choose; None for all tokens.
    Returns:
        (logprobs, entropy), each (...) float64 in nats, 0 where `row_mask` is False.
    """
    shape = ids.shape
    keep = torch.ones(shape, dtype=torch.bool, device=ids.device) if row_mask is None else row_mask
    logits = hidden.double()[keep] @ weight.double().T  # (N, V)
    if bias is not None:
        logits = logits + bias.double()
    if allowed is not None:
        masks = allowed.whole().masks[allowed.index.expand(shape)[keep]]  # (N, V)
        logits = logits.masked_fill(~masks, -torch.inf)
    divisor = torch.as_tensor(temperature, dtype=torch.float64, device=logits.device).expand(shape)[keep]
    chosen, entropy = logits_logprobs_reference(logits, ids[keep], divisor, soft_cap)
    empty = torch.zeros(shape, dtype=torch.float64, device=logits.device)
    return empty.masked_scatter(keep, chosen), empty.masked_scatter(keep, entropy)


def logits_logprobs_reference(
    logits: Tensor, ids: Tensor, temperature: Tensor, soft_cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Log p(y) and H of each row of logits.

    Args:
        logits: (N, V) floating.
        ids: (N,) int64, in [0, V).
        temperature: (N,), divides the logits.
        soft_cap: logits become cap · tanh(logit / cap); or None.
    Returns:
        (logprobs, entropy), each (N,) float64 in nats.
    """
    log_p = torch.log_softmax(_capped(logits.double(), soft_cap) / temperature.double()[:, None], dim=-1)  # (N, V)
    impossible = log_p == -torch.inf  # contributes nothing: 0 · log 0 = 0
    entropy = -(log_p.exp() * log_p.masked_fill(impossible, 0.0)).sum(-1)
    return log_p.gather(1, ids[:, None]).squeeze(1), entropy


def _capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    if soft_cap is None:
        return logits
    # A token that may not be chosen has the logit −inf, before and after.
    return torch.where(logits == -torch.inf, logits, soft_cap * torch.tanh(logits / soft_cap))


def full_kl_reference(logits: Tensor, other: Tensor, temperature: float, soft_cap: float | None = None) -> Tensor:
    """KL(p ‖ q) = Σ p (log p − log q) of each row of two sets of logits.

    Args:
        logits: (N, V) floating, of p.
        other: (N, V) floating, of q.
        temperature: divides both.
        soft_cap: logits become cap · tanh(logit / cap); or None.
    Returns:
        (N,) float64 in nats; inf where a token has a positive probability under p and none under q.
    """
    log_p, log_q = (torch.log_softmax(_capped(x.double(), soft_cap) / temperature, dim=-1) for x in (logits, other))
    impossible = log_p == -torch.inf
    return (log_p.exp() * (log_p - log_q).masked_fill(impossible, 0.0)).sum(-1)
