"""Row kernels in plain PyTorch: log-sum-exp, picked logit, entropy and KL of rows of logits, and their gradients.

With x the logits over the temperature, one pass over some columns of a row gives their maximum m and, against it,

    s = Σ e^(x−m),    t = Σ e^(x−m)(x−m),    u = Σ e^(x−m)(x−m)²   (u only if the temperature is learned).

Sums of other columns are merged by rescaling them to the larger maximum: with d = m_own − m and a = e^d they add

    s ← s + a s_own,    t ← t + a (t_own + d s_own),    u ← u + a (u_own + 2d t_own + d² s_own).

(The online softmax of Milakov and Gimelshein 2018, arXiv:1805.02867, with two more moments.) From these follow

    log p(y) = x_y − m − log s,    H = log s − t/s,    Var_p(x) = u/s − (t/s)²,

and, with upstream gradients g of log p(y) and h of H, the gradient of the logits

    dz = [g (1[y] − p) − h p (log p + H)] / temperature.

Soft-capped logits are cap · tanh(logit / cap) (Gemma Team 2024, arXiv:2408.00118); their gradient has the factor
1 − (x / cap)². A row may arrive in tiles of columns, each the result of one matrix product: each tile has slots of its
own for its sums, which are merged at the end.

`triton_rows` has the same functions with the same arguments and results; `dispatch.row_kernels` chooses between the two
modules. Sums and statistics of one are not read by the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "LOG_UNIT",
    "RowStatistics",
    "gradient_",
    "kl_backward",
    "kl_statistics",
    "kl_sum_tile",
    "merged",
    "row_statistics",
    "slots",
    "statistics",
    "sum_tile",
]

LOG_UNIT = 1.0
"""The unit of `RowStatistics.maxima` and `log_totals` in nats."""
_IMPOSSIBLE = -1.0e30
"""Lower bound of centred logits: its exponential is exactly 0, and 0 · IMPOSSIBLE is 0 whereas 0 · −inf is NaN."""

_BLOCK_ELEMENTS = 2**17
"""Logits processed together on a CPU: each pass over a tile of many megabytes would wait for memory."""
_KL_BLOCK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class RowStatistics:
    """Results of complete rows.

    Attributes:
        logprobs: (n,) of the label.
        maxima, log_totals: (n,) m and log Σ e^(x−m), for `gradient_` of the same module. Their sum, the log-sum-exp,
            would lose what a gradient needs if logits are large.
        entropies: (n,) nats.
        deviations: (n,) x_y − E_p(x) of the label, which is log p(y) + H without cancellation;
            −d logprob / d temperature · temperature. None if no variances are needed.
        variances: (n,) Var_p(x), or None; d entropy / d temperature · temperature.
    """

    logprobs: Tensor
    maxima: Tensor
    log_totals: Tensor
    entropies: Tensor
    deviations: Tensor | None
    variances: Tensor | None


def slots(n: int, columns: int) -> int:
    """Slots for the sums of a tile of n rows of this many columns."""
    return 1


def sum_tile(
    tile: Tensor,
    sums: Tensor,
    labels: Tensor,
    temperature: Tensor,
    *,
    first: int = 0,
    bias: Tensor | None = None,
    soft_cap: float | None = None,
) -> None:
    """Write the sums of a tile of logits.

    Args:
        tile: (n, w) floating, columns contiguous.
        sums: (slots, 4, n), written: m, s, t and x of the label, 0 if it is in another tile; (slots, 5, n): also u.
        labels: (n,) int64, the labels as columns of the whole vocabulary.
        temperature: (n,), divides the logits.
        first: column of the whole vocabulary at which the tile begins.
        bias: (w,) added to the logits, or None.
        soft_cap: bounds the logits, bias included, before the temperature divides them; or None.
    """
    for rows in _blocks(tile):
        maximum, total, moment, picked, *second = sums[0, :, rows]
        part, at = tile[rows], labels[rows] - first
        x = part.to(sums.dtype, copy=True)  # (n, w)
        x = _capped(x if bias is None else x.add_(bias), soft_cap).mul_(temperature[rows].reciprocal()[:, None])
        inside = (at >= 0) & (at < tile.shape[1])
        found = x.gather(1, at.clamp(0, tile.shape[1] - 1)[:, None]).squeeze(1)
        picked.copy_(torch.where(inside, found, 0.0))
        torch.amax(x, -1, out=maximum)
        base = torch.where(maximum == -torch.inf, 0.0, maximum)
        centred = x.sub_(base[:, None]).clamp_(min=_IMPOSSIBLE)
        weight = centred.exp()
        torch.sum(weight, -1, out=total)
        weighted = weight.mul_(centred)
        torch.sum(weighted, -1, out=moment)
        if second:
            torch.sum(weighted.mul_(centred), -1, out=second[0])


def _capped(x: Tensor, soft_cap: float | None) -> Tensor:
    """Soft-capped logits, in the memory of `x`."""
    return x if soft_cap is None else x.div_(soft_cap).tanh_().mul_(soft_cap)


def merged(sums: Tensor) -> Tensor:
    """One slot, (1, …), that has the sums of all slots."""
    maximum = sums[:, 0].amax(0)
    base = torch.where(maximum == -torch.inf, 0.0, maximum)
    shift = (sums[:, 0] - base).clamp_(min=_IMPOSSIBLE)
    shrink = shift.exp()
    _, totals, moments, picked, *seconds = sums.unbind(1)
    found = [maximum, (shrink * totals).sum(0), (shrink * (moments + shift * totals)).sum(0), picked.sum(0)]
    if seconds:
        found.append((shrink * (seconds[0] + shift * (2 * moments + shift * totals))).sum(0))
    return torch.stack(found)[None]


def statistics(sums: Tensor, labels: Tensor, temperature: Tensor, vocabulary: int) -> RowStatistics:
    """Results of complete rows from the sums of all their tiles.

    A row whose label lies outside [0, vocabulary), or whose temperature is not positive, has NaN as its outputs, and as
    its log-total, which makes its gradient NaN.

    Args:
        sums: (slots, 4 or 5, n).
        labels: (n,) int64.
        temperature: (n,), as for `sum_tile`.
        vocabulary: columns of the whole rows.
    """
    maximum, total, moment, picked, *second = merged(sums)[0] if len(sums) > 1 else sums[0]
    sound = (labels >= 0) & (labels < vocabulary) & (temperature > 0)
    log_total = torch.where(sound, total.log(), torch.nan)
    mean = moment / total
    variances = (second[0] / total - mean * mean).clamp(min=0) if second else None
    centred = picked - maximum
    deviations = torch.where(sound, centred - mean, torch.nan) if second else None
    return RowStatistics(centred - log_total, maximum, log_total, log_total - mean, deviations, variances)


def row_statistics(
    logits: Tensor, labels: Tensor, temperature: Tensor, *, second: bool, soft_cap: float | None = None
) -> RowStatistics:
    """Results of complete rows of logits, (n, V), with variances where `second`."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    sums = torch.empty(1, 5 if second else 4, len(logits), dtype=dtype, device=logits.device)
    sum_tile(logits, sums, labels, temperature, soft_cap=soft_cap)
    return statistics(sums, labels, temperature, logits.shape[1])


def gradient_(
    tile: Tensor,
    labels: Tensor,
    temperature: Tensor,
    maxima: Tensor,
    log_totals: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor,
    grad_entropies: Tensor,
    bias: Tensor | None = None,
    *,
    first: int = 0,
    soft_cap: float | None = None,
    out: Tensor | None = None,
) -> None:
    """Replace a tile of logits by its gradient, [g (1[y] − p) − h p (log p + H)] / temperature, or write that to `out`.

    Args:
        tile: (n, w) floating, columns contiguous; overwritten if there is no `out`.
        labels: (n,) int64, the labels as columns of the whole vocabulary.
        temperature: (n,), divides the logits.
        maxima, log_totals: (n,) of the complete rows, as in `RowStatistics`.
        entropies: (n,) H of the complete rows.
        grad_logprobs: (n,) g, upstream.
        grad_entropies: (n,) h, upstream.
        bias: (w,) the logits' bias, or None.
        first: column of the whole vocabulary at which the tile begins.
        soft_cap: as for `sum_tile`.
        out: (n, w) of any dtype, columns contiguous.
    """
    for rows in _blocks(tile):
        part, at, scale = tile[rows], labels[rows] - first, temperature[rows].reciprocal()
        g, h = grad_logprobs[rows] * scale, grad_entropies[rows] * scale  # (n,)
        exact = log_totals.dtype
        x = part.to(exact, copy=True) if out is not None else part if part.dtype == exact else part.to(exact)  # (n, w)
        if bias is not None:
            x += bias
        slope = None
        if soft_cap is not None:
            x = _capped(x, soft_cap)
            slope = 1.0 - (x / soft_cap).square_()
        log_p = x.mul_(scale[:, None]).sub_(maxima[rows, None]).sub_(log_totals[rows, None]).clamp_(min=_IMPOSSIBLE)
        p = log_p.exp()
        # −p (g + h (log p + H)), then + g at the label.
        dz = log_p.add_(entropies[rows, None]).mul_(h[:, None]).add_(g[:, None]).mul_(p).neg_()
        inside = (at >= 0) & (at < tile.shape[1])
        at = at.clamp(0, tile.shape[1] - 1)[:, None]
        dz.scatter_add_(1, at, torch.where(inside, g, 0.0)[:, None])
        if slope is not None:
            dz.mul_(slope)
        target = part if out is None else out[rows]
        if dz is not target:
            target.copy_(dz)


def _blocks(tile: Tensor) -> Iterator[slice]:
    """Rows that fit a processor's cache; on another device all rows."""
    if not tile.numel():
        return
    height = max(1, _BLOCK_ELEMENTS // tile.shape[1]) if tile.device.type == "cpu" else len(tile)
    for top in range(0, len(tile), height):
        yield slice(top, min(top + height, len(tile)))


def kl_sum_tile(logits: Tensor, other: Tensor, scale: float, sums: Tensor, *, soft_cap: float | None = None) -> None:
    """Write the sums of a tile of two sets of logits for KL(p ‖ q) = Σ p (log p − log q) of each row.

    Args:
        logits: (n, w) floating, columns contiguous, of p.
        other: (n, w) likewise, of q.
        scale: factor of both, 1 / temperature.
        sums: (slots, 5, n), written: with x and y the scaled logits, the maximum m of x, Σ e^(x−m), the maximum k of y,
            Σ e^(y−k) and Σ e^(x−m) [(x−m) − (y−k)].
        soft_cap: bounds both sets of logits before they are scaled; or None.
    """
    for part in _kl_blocks(logits, sums.dtype):
        m, s, k, r, t = sums[0, :, part]
        weights, centred = [], []
        for x, maximum, total in ((logits, m, s), (other, k, r)):
            scaled = _capped(x[part].to(sums.dtype, copy=True), soft_cap).mul_(scale)
            torch.amax(scaled, -1, out=maximum)
            centred.append(scaled.sub_(torch.where(maximum == -torch.inf, 0.0, maximum)[:, None]))
            weights.append(scaled.exp())
            torch.sum(weights[-1], -1, out=total)
        # Where p is 0 the term is 0, also if q is; p > 0 with q = 0 is an infinite KL.
        difference = centred[0].sub_(centred[1]).masked_fill_(weights[0] == 0.0, 0.0)
        torch.sum(difference.mul_(weights[0]), -1, out=t)


def kl_statistics(sums: Tensor) -> Tensor:
    """Results of complete rows, (5, n): the KL, then m and log Σ e^(x−m) of p's scaled rows, then those of q's.

    Args:
        sums: (slots, 5, n) of all tiles, by `kl_sum_tile`.
    """
    m, s, k, r, t = sums.unbind(1)  # (slots, n)
    largest, other_largest = m.amax(0), k.amax(0)
    shift, other_shift = (
        (x - torch.where(top == -torch.inf, 0.0, top)).clamp_(min=_IMPOSSIBLE)
        for x, top in ((m, largest), (k, other_largest))
    )
    shrink = shift.exp()
    # An empty sum has no base: its terms are 0.
    moment = torch.where(s == 0.0, 0.0, shrink * (t + s * (shift - other_shift))).sum(0)
    total, other_total = (shrink * s).sum(0), (other_shift.exp() * r).sum(0)
    log_s, log_r = total.log(), other_total.log()
    return torch.stack([moment / total - log_s + log_r, largest, log_s, other_largest, log_r])


def kl_backward(
    logits: Tensor,
    other: Tensor,
    scale: float,
    rows: Tensor,
    grad: Tensor,
    grad_logits: Tensor | None,
    grad_other: Tensor | None,
    *,
    soft_cap: float | None = None,
) -> None:
    """Gradients of KL(p ‖ q): dx = p (log p − log q − KL) · grad · scale and dy = (q − p) · grad · scale.

    Args:
        logits, other, scale, soft_cap: as in `kl_sum_tile`.
        rows: (5, n), by `kl_statistics`.
        grad: (n,) upstream.
        grad_logits, grad_other: (n, w) of any dtype, overwritten; they may be `logits` and `other`. None if not needed.
    """
    for part in _kl_blocks(logits, rows.dtype):
        kl, m, log_s, k, log_r = rows[:, part, None]
        capped = [_capped(x[part].to(rows.dtype, copy=True), soft_cap) for x in (logits, other)]
        slopes = [1.0 if soft_cap is None else 1.0 - (x / soft_cap).square_() for x in capped]
        log_p, log_q = capped[0].mul_(scale).sub_(m).sub_(log_s), capped[1].mul_(scale).sub_(k).sub_(log_r)
        p, g = log_p.exp(), grad[part, None] * scale
        if grad_other is not None:
            grad_other[part] = (log_q.exp() - p) * g * slopes[1]
        if grad_logits is not None:
            difference = log_p.sub_(log_q).masked_fill_(p == 0.0, 0.0)
            grad_logits[part] = difference.sub_(kl).mul_(p).mul_(g).mul_(slopes[0])


def _kl_blocks(logits: Tensor, dtype: torch.dtype) -> list[slice]:
    height = max(1, _KL_BLOCK_BYTES // (max(1, logits.shape[1]) * dtype.itemsize))
    return [slice(top, top + height) for top in range(0, len(logits), height)]
