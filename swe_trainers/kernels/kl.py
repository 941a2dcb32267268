"""KL(p ‖ q) over the whole vocabulary, of two sets of logits or of two sets of hidden states with their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from swe_trainers.errors import ShapeError
from swe_trainers.kernels.allowed import AllowedTokens
from swe_trainers.kernels.choice import row_kernels
from swe_trainers.kernels.dispatch import check_floating, check_row_mask, check_soft_cap, spread_rows
from swe_trainers.kernels.linear import Gradients, Plan, Tiles, default_plan
from swe_trainers.kernels.reference import full_kl_reference

__all__ = ["full_kl", "linear_kl"]


def full_kl(
    logits: Tensor,
    other: Tensor,
    *,
    temperature: float = 1.0,
    row_mask: Tensor | None = None,
    soft_cap: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """KL(p ‖ q) of each row, with p and q the softmaxes of two sets of logits; differentiable in both.

    It is exact over the vocabulary, without the variance of estimators from sampled tokens. Exchange the arguments for
    the other direction.

    Example:
        >>> logits = torch.randn(2, 5, 1000, requires_grad=True)
        >>> kl = full_kl(logits, reference_logits, row_mask=action_mask)  # (2, 5)
        >>> kl.sum().backward()

    Args:
        logits: (..., V) floating, of p.
        other: (..., V) floating, of q.
        temperature: positive; divides both.
        row_mask: (...) bool, True where a row counts; None for all rows.
        soft_cap: both sets of logits become cap · tanh(logit / cap) before the temperature divides them; or None.
        backend: one of `BACKENDS`; None chooses the fastest that supports these tensors.
    Returns:
        (...) float32 in nats (float64 if both inputs are), 0 where `row_mask` is False; inf where a token has a
        positive probability under p and none under q.
    Raises:
        ShapeError: shapes disagree.
        ConfigurationError: the back end is unknown or does not support these tensors.
    """
    if logits.shape != other.shape:
        raise ShapeError(f"other: got shape {tuple(other.shape)}, expected that of logits, {tuple(logits.shape)}")
    for name, x in (("logits", logits), ("other", other)):
        check_floating(name, x)
    for name, y in (("other", other), ("row_mask", row_mask)):
        if y is not None and y.device != logits.device:
            raise ShapeError(f"{name}: on {y.device}, and logits on {logits.device}: expected one device")
    check_row_mask(row_mask, logits.shape[:-1])
    check_soft_cap(soft_cap)
    if not temperature > 0:
        raise ShapeError("temperature: expected a positive number")
    shape, vocabulary = logits.shape[:-1], logits.shape[-1]
    keep = None if row_mask is None else row_mask.reshape(-1).nonzero().squeeze(1)
    p, q = (x.reshape(-1, vocabulary) if keep is None else x.reshape(-1, vocabulary)[keep] for x in (logits, other))
    if backend == "reference":
        return spread_rows(full_kl_reference(p, q, temperature, soft_cap), keep, shape)
    kernels = row_kernels(backend, p if q.dtype != torch.float64 else q)
    divergence: Tensor = _FullKL.apply(p, q, 1.0 / temperature, kernels, soft_cap)  # type: ignore[no-untyped-call]
    return spread_rows(divergence, keep, shape)


class _FullKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, other: Tensor, scale: float, kernels: ModuleType, soft_cap: float | None
    ) -> Tensor:
        exact = torch.float64 if logits.dtype == other.dtype == torch.float64 else torch.float32
        n, vocabulary = logits.shape
        sums = torch.empty(kernels.slots(n, vocabulary), 5, n, dtype=exact, device=logits.device)
        kernels.kl_sum_tile(logits, other, scale, sums, soft_cap=soft_cap)
        rows: Tensor = kernels.kl_statistics(sums)
        ctx.scale, ctx.kernels, ctx.soft_cap = scale, kernels, soft_cap
        ctx.save_for_backward(logits, other, rows)
        return rows[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, other, rows = ctx.saved_tensors
        grads = [
            torch.empty_like(x, memory_format=torch.contiguous_format) if needed else None
            for x, needed in zip((logits, other), ctx.needs_input_grad, strict=False)
        ]
        upstream = grad.to(rows.dtype).contiguous()
        ctx.kernels.kl_backward(logits, other, ctx.scale, rows, upstream, *grads, soft_cap=ctx.soft_cap)
        return grads[0], grads[1], None, None, None


def linear_kl(
    hidden: Tensor,
    weight: Tensor,
    other_hidden: Tensor,
    other_weight: Tensor,
    *,
    bias: Tensor | None = None,
    other_bias: Tensor | None = None,
    temperature: float = 1.0,
    soft_cap: float | None = None,
    row_mask: Tensor | None = None,
    backend: str | None = None,
    chunk_rows: int | None = None,
    chunk_columns: int | None = None,
    logits_dtype: torch.dtype | None = None,
    allowed: AllowedTokens | None = None,
) -> Tensor:
    """`full_kl` of hidden states and unembeddings; differentiable in all of them.

    Neither of the two (..., V) logits is materialised as a whole, and neither is kept for the backward pass.

    Example:
        >>> kl = linear_kl(hidden, policy.lm_head.weight, reference_hidden, reference.lm_head.weight)

    Args:
        hidden: (..., D) floating, of p.
        weight: (V, D) the unembedding of p.
        other_hidden: (..., E) floating, of q.
        other_weight: (V, E) the unembedding of q.
        bias, other_bias: (V,) or None.
        temperature, soft_cap, row_mask, backend: as of `full_kl`.
        chunk_rows, chunk_columns, logits_dtype, allowed: as of `token_logprobs`; both distributions are restricted.
    Returns:
        (...) float32 in nats (float64 if the hidden states are), 0 where `row_mask` is False.
    Raises:
        ShapeError: shapes, dtypes or devices disagree.
        ConfigurationError: the back end is unknown or does not support these tensors.
    """
    shape, vocabulary = hidden.shape[:-1], weight.shape[0]
    for name, x, y in (("hidden", hidden, weight), ("other_hidden", other_hidden, other_weight)):
        if x.shape[:-1] != shape or y.shape != (vocabulary, x.shape[-1]):
            raise ShapeError(
                f"{name}: got {tuple(x.shape)} and a weight {tuple(y.shape)}, expected {(*shape, 'D')} and "
                f"({vocabulary}, D)"
            )
    tensors = {"hidden": hidden, "weight": weight, "other_hidden": other_hidden, "other_weight": other_weight}
    for name, b in (("bias", bias), ("other_bias", other_bias)):
        if b is not None:
            tensors[name] = b
            if b.shape != (vocabulary,):
                raise ShapeError(f"{name}: got shape {tuple(b.shape)}, expected ({vocabulary},)")
    for name, x in tensors.items():
        check_floating(name, x)
        if x.device != hidden.device:
            raise ShapeError(f"{name}: on {x.device}, and hidden on {hidden.device}: expected one device")
    check_row_mask(row_mask, shape)
    check_soft_cap(soft_cap)
    if not temperature > 0:
        raise ShapeError("temperature: expected a positive number")
    keep = None if row_mask is None else row_mask.reshape(-1).nonzero().squeeze(1)
    p, q = (
        x.reshape(-1, x.shape[-1]) if keep is None else x.reshape(-1, x.shape[-1]).index_select(0, keep)
        for x in (hidden, other_hidden)
    )
    if allowed is not None:
        allowed = allowed.select(keep, hidden[..., 0])
        weight, bias = allowed.narrow(weight, bias)
        other_weight, other_bias = allowed.narrow(other_weight, other_bias)
        vocabulary = len(weight)
    linear = torch.nn.functional.linear
    if backend == "reference":
        first, second = (
            linear(x.double(), w.double(), None if b is None else b.double())
            for x, w, b in ((p, weight, bias), (q, other_weight, other_bias))
        )
        if allowed is not None:
            hidden_tokens = ~allowed.masks[allowed.index]  # (N, C)
            first, second = (x.masked_fill(hidden_tokens, -torch.inf) for x in (first, second))
        return spread_rows(full_kl_reference(first, second, temperature, soft_cap), keep, shape)
    if allowed is not None and soft_cap is not None:
        both = (
            allowed.capped_logits(x, w, b, soft_cap) for x, w, b in ((p, weight, bias), (q, other_weight, other_bias))
        )
        return spread_rows(full_kl(*both, temperature=temperature, backend=backend), keep, shape)
    device = p.device.type
    if torch.is_autocast_enabled(device):
        p, q = (x.to(torch.get_autocast_dtype(device)) for x in (p, q))
    narrow = p.dtype in (torch.bfloat16, torch.float16) and p.dtype == q.dtype
    plan = default_plan(
        p,
        vocabulary,
        chunk_rows=chunk_rows,
        chunk_columns=chunk_columns,
        save_logits=False,
        logits_dtype=logits_dtype if narrow else None,
        soft_cap=soft_cap,
        tiles=2,
    )
    kernels = row_kernels(backend, p if q.dtype != torch.float64 else q)
    with torch.autocast(device, enabled=False):
        arguments = (
            p.contiguous(),
            weight,
            bias,
            q.contiguous(),
            other_weight,
            other_bias,
            1.0 / temperature,
            plan,
            kernels,
            allowed,
        )
        divergence: Tensor = _LinearKL.apply(*arguments)  # type: ignore[no-untyped-call]
    return spread_rows(divergence, keep, shape)


class _LinearKL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        other_rows: Tensor,
        other_weight: Tensor,
        other_bias: Tensor | None,
        scale: float,
        plan: Plan,
        kernels: ModuleType,
        allowed: AllowedTokens | None,
    ) -> Tensor:
        exact = torch.float64 if rows.dtype == other_rows.dtype == torch.float64 else torch.float32
        heads = (rows, weight, bias), (other_rows, other_weight, other_bias)
        height, width, count = Tiles(rows, weight, plan).shape
        slots = kernels.slots(height, width)
        sums = torch.empty(count * slots, 5, len(rows), dtype=exact, device=rows.device)
        for part, columns, tile, other_tile in _pairs(heads, plan, allowed):
            at = columns.start // width * slots
            kernels.kl_sum_tile(tile, other_tile, scale, sums[at : at + slots, :, part], soft_cap=plan.soft_cap)
        found: Tensor = kernels.kl_statistics(sums)
        ctx.scale, ctx.plan, ctx.kernels, ctx.allowed = scale, plan, kernels, allowed
        ctx.save_for_backward(*heads[0], *heads[1], found)
        return found[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, found = ctx.saved_tensors
        heads, needed, cap = (tensors[:3], tensors[3:]), ctx.needs_input_grad[:6], ctx.plan.soft_cap
        sums = [
            Gradients(rows, weight, bias, ctx.plan, own, whole=False)
            for (rows, weight, bias), own in zip(heads, (needed[:3], needed[3:]), strict=True)
        ]
        learned = [any(needed[:3]), any(needed[3:])]
        upstream = grad.to(found.dtype).contiguous()
        for part, columns, *tiles in _pairs(heads, ctx.plan, ctx.allowed):
            # Each program reads both tiles before it writes its gradients over them.
            targets = [
                (tile if (beside := own.target(tile)) is None else beside) if learns else None
                for own, tile, learns in zip(sums, tiles, learned, strict=True)
            ]
            ctx.kernels.kl_backward(*tiles, ctx.scale, found[:, part], upstream[part], *targets, soft_cap=cap)
            for own, dz in zip(sums, targets, strict=True):
                if dz is not None:
                    own.add(part, columns, dz)
        gradients = [gradient for own in sums for gradient in own.narrowed()]
        return (*gradients, None, None, None, None)


def _pairs(
    heads: tuple[Sequence[Tensor | None], Sequence[Tensor | None]], plan: Plan, allowed: AllowedTokens | None
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Rows and columns of a tile, and the logits of both heads (rows, weight, bias) there."""
    both = [Tiles(rows, weight, plan, allowed=allowed) for rows, weight, _ in heads]  # type: ignore[arg-type]
    for (part, columns, tile), (_, _, other_tile) in zip(*both, strict=True):
        for x, (*_, bias) in zip((tile, other_tile), heads, strict=True):
            if bias is not None:
                x += bias[columns]
        yield part, columns, tile, other_tile
