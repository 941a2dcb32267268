"""The k most probable tokens of each row, without the logits in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from swe_trainers.errors import ConfigurationError, ShapeError
from swe_trainers.kernels.choice import row_kernels
from swe_trainers.kernels.dispatch import check_head, check_soft_cap
from swe_trainers.kernels.linear import Tiles, default_plan

__all__ = ["top_logprobs"]


@torch.no_grad()
def top_logprobs(
    hidden: Tensor,
    weight: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    backend: str | None = None,
    chunk_rows: int | None = None,
    chunk_columns: int | None = None,
    logits_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the k most probable tokens of each row, and these tokens; without gradients.

    Example:
        >>> logprobs, tokens = top_logprobs(hidden, lm_head.weight, 20)  # (B, T, 20) each

    Args:
        hidden: (..., D) floating. weight: (V, D).
        k: at most V.
        bias: (V,) or None.
        temperature: positive; divides the logits.
        soft_cap, chunk_rows, chunk_columns, logits_dtype: as of `token_logprobs`.
        backend: `triton`, `torch`, or None for the faster that supports these tensors.
    Returns:
        (logprobs, tokens), each (..., k), from the most probable on; float32 (float64 if `hidden` is) and int64.
    Raises:
        ShapeError: shapes or dtypes disagree.
        ConfigurationError: the back end is unknown or does not support these tensors.
    """
    check_head(hidden, weight, bias)
    check_soft_cap(soft_cap)
    if not 1 <= k <= weight.shape[0]:
        raise ShapeError(f"k: got {k}, expected 1 to {weight.shape[0]}, the tokens of the vocabulary")
    if not temperature > 0:
        raise ShapeError("temperature: expected a positive number")
    if backend == "reference":
        raise ConfigurationError("backend: reference does not rank tokens. Try: torch")
    rows = hidden.reshape(-1, hidden.shape[-1])
    n, device = len(rows), rows.device
    if torch.is_autocast_enabled(device.type):
        rows = rows.to(torch.get_autocast_dtype(device.type))
    kernels = row_kernels(backend, rows)
    wide = logits_dtype if rows.dtype in (torch.bfloat16, torch.float16) else None
    plan = default_plan(
        rows,
        len(weight),
        chunk_rows=chunk_rows,
        chunk_columns=chunk_columns,
        save_logits=False,
        logits_dtype=wide,
        soft_cap=soft_cap,
    )
    exact = torch.float64 if rows.dtype == torch.float64 else torch.float32
    found = torch.full((n, k), -torch.inf, dtype=exact, device=device)  # the largest logits so far
    tokens = torch.zeros(n, k, dtype=torch.int64, device=device)
    labels, divisor = tokens[:, 0].clone(), torch.full((), temperature, dtype=exact, device=device).expand(n)
    with torch.autocast(device.type, enabled=False):
        tiles = Tiles(rows.contiguous(), weight, plan)
        height, width, count = tiles.shape
        slots = kernels.slots(height, width)
        sums = torch.empty(count * slots, 4, n, dtype=exact, device=device)
        for part, columns, tile in tiles:
            own = sums[columns.start // width * slots :][:slots, :, part]
            own_bias = None if bias is None else bias[columns]
            given = tile, own, labels[part], divisor[part]
            kernels.sum_tile(*given, first=columns.start, bias=own_bias, soft_cap=soft_cap)
            if own_bias is not None:
                tile = tile.to(exact) + own_bias
            largest, places = tile.topk(min(k, tile.shape[1]))
            largest = torch.cat([found[part], largest.to(exact)], 1)
            together = torch.cat([tokens[part], places + columns.start], 1)
            found[part], places = largest.topk(k)
            tokens[part] = together.gather(1, places)
    statistics = kernels.statistics(sums, labels, divisor, len(weight))
    logits = found if soft_cap is None else soft_cap * torch.tanh(found / soft_cap)
    base, log_total = (x[:, None] * kernels.LOG_UNIT for x in (statistics.maxima, statistics.log_totals))
    shape = *hidden.shape[:-1], k
    return (logits / divisor[:, None] - base - log_total).reshape(shape), tokens.reshape(shape)
