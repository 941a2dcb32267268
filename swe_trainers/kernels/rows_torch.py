"""The row kernels in plain PyTorch, for machines without a GPU; same arguments, same results as `rows`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from swe_trainers.kernels.row_sums import RowSums

__all__ = ["accumulate", "gradient_"]

_IMPOSSIBLE = -1.0e30
"""Centred logits are raised to this: exp gives exactly 0, and 0 · IMPOSSIBLE is 0 where 0 · −inf is NaN."""

_BLOCK_ELEMENTS = 2**17
"""Logits that are gone through together: the passes over a tile of many megabytes would each wait for memory."""


def accumulate(tile: Tensor, sums: RowSums, labels: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
    """Take a tile of logits into the running sums of its rows; see `rows.accumulate`."""
    for rows in _blocks(tile):
        _accumulate(tile[rows], sums.part(rows), labels[rows], scales[rows], bias)


def _blocks(tile: Tensor) -> Iterator[slice]:
    """Rows that fit a processor's cache; on another device all at once."""
    if not tile.numel():
        return
    height = max(1, _BLOCK_ELEMENTS // tile.shape[1]) if tile.device.type == "cpu" else len(tile)
    for top in range(0, len(tile), height):
        yield slice(top, min(top + height, len(tile)))


def _accumulate(tile: Tensor, sums: RowSums, labels: Tensor, scales: Tensor, bias: Tensor | None) -> None:
    x = tile.to(sums.total.dtype)  # (n, w)
    x = (x if bias is None else x + bias) * scales[:, None]
    inside = (labels >= 0) & (labels < tile.shape[1])
    found = x.gather(1, labels.clamp(0, tile.shape[1] - 1)[:, None]).squeeze(1)
    sums.picked.copy_(torch.where(inside, found, sums.picked))
    larger = torch.maximum(sums.maximum, x.amax(-1))
    base = torch.where(larger == -torch.inf, 0.0, larger)
    shift = (sums.maximum - base).clamp_(min=_IMPOSSIBLE)
    shrink = shift.exp()
    centred = x.sub_(base[:, None]).clamp_(min=_IMPOSSIBLE)
    weight = centred.exp()
    total = weight.sum(-1)
    weighted = weight.mul_(centred)
    moment = weighted.sum(-1)
    if sums.second is not None:
        rescaled = shrink * (sums.second + shift * (2 * sums.moment + shift * sums.total))
        sums.second.copy_(rescaled + weighted.mul_(centred).sum(-1))
    sums.moment.copy_(shrink * (sums.moment + shift * sums.total) + moment)
    sums.total.mul_(shrink).add_(total)
    sums.maximum.copy_(larger)


def gradient_(
    tile: Tensor,
    labels: Tensor,
    scales: Tensor,
    maxima: Tensor,
    log_totals: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor,
    grad_entropies: Tensor,
    bias: Tensor | None = None,
) -> None:
    """Replace a tile of logits by the loss's gradient with respect to it; see `rows.gradient_`."""
    for rows in _blocks(tile):
        part, at, scale = tile[rows], labels[rows], scales[rows]
        g, h = grad_logprobs[rows] * scale, grad_entropies[rows] * scale  # (n,)
        x = part if part.dtype == log_totals.dtype else part.to(log_totals.dtype)  # (n, w)
        if bias is not None:
            x += bias
        log_p = x.mul_(scale[:, None]).sub_(maxima[rows, None]).sub_(log_totals[rows, None]).clamp_(min=_IMPOSSIBLE)
        p = log_p.exp()
        # −p (g + h (log p + H)), then + g at the chosen token.
        dz = log_p.add_(entropies[rows, None]).mul_(h[:, None]).add_(g[:, None]).mul_(p).neg_()
        inside = ((at >= 0) & (at < tile.shape[1])).nonzero().squeeze(1)
        dz.index_put_((inside, at[inside]), g[inside], accumulate=True)
        if dz is not part:
            part.copy_(dz)
