"""`token_logprobs` inside `torch.compile`: custom operators, each a whole pass that the compiler does not look into.

An operator has tensors and numbers as arguments and results: the back end is a name, and the backward pass computes the
logits again. Outside of compiled functions `linear` and `dispatch` do the same with less overhead, and can keep logits.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from swe_trainers.kernels.allowed import AllowedTokens
from swe_trainers.kernels.choice import row_kernels
from swe_trainers.kernels.linear import Plan, default_plan, gradients_of, statistics_of
from swe_trainers.kernels.torch_rows import RowStatistics

__all__ = ["linear_logprobs", "logits_logprobs"]

_AUTOMATIC = "automatic"
_KEPT = 4
"""Statistics for the backward pass: maxima, log-totals, and deviations and variances, which are 0 if not needed."""


def linear_logprobs(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    *,
    backend: str | None,
    chunk_rows: int | None,
    chunk_columns: int | None,
    wide: bool,
    soft_cap: float | None,
    allowed: AllowedTokens | None,
) -> tuple[Tensor, Tensor]:
    """As `linear.project`, with the plan of `linear.default_plan` that keeps no logits."""
    second, name = temperature.requires_grad, backend or _AUTOMATIC
    masks, index = (None, None) if allowed is None else (allowed.masks, allowed.index)
    logprobs, entropies, _ = _linear(
        rows, weight, bias, ids, temperature, masks, index, name, chunk_rows, chunk_columns, wide, soft_cap, second
    )
    return logprobs, entropies


def logits_logprobs(
    logits: Tensor, ids: Tensor, temperature: Tensor, *, backend: str | None, soft_cap: float | None
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of logits (N, V)."""
    logprobs, entropies, _ = _logits(
        logits, ids, temperature, backend or _AUTOMATIC, soft_cap, temperature.requires_grad
    )
    return logprobs, entropies


def _kernels(name: str, rows: Tensor) -> ModuleType:
    return row_kernels(None if name == _AUTOMATIC else name, rows)


def _plan(
    rows: Tensor, weight: Tensor, chunk_rows: int | None, chunk_columns: int | None, wide: bool, soft_cap: float | None
) -> Plan:
    return default_plan(
        rows,
        weight.shape[0],
        chunk_rows=chunk_rows,
        chunk_columns=chunk_columns,
        save_logits=False,
        logits_dtype=torch.float32 if wide else None,
        soft_cap=soft_cap,
    )


def _allowed(masks: Tensor | None, index: Tensor | None) -> AllowedTokens | None:
    return None if masks is None or index is None else AllowedTokens(index, masks, None, masks.shape[1])


def _together(found: RowStatistics) -> tuple[Tensor, Tensor, Tensor]:
    zeros = torch.zeros_like(found.maxima)
    optional = (zeros if x is None else x for x in (found.deviations, found.variances))
    return found.logprobs, found.entropies, torch.stack([found.maxima, found.log_totals, *optional])


def _empty(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    n = rows.shape[0]
    return rows.new_empty(n, dtype=dtype), rows.new_empty(n, dtype=dtype), rows.new_empty(_KEPT, n, dtype=dtype)


@torch.library.custom_op("swe_trainers::linear_logprobs", mutates_args=())
def _linear(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    masks: Tensor | None,
    index: Tensor | None,
    backend: str,
    chunk_rows: int | None,
    chunk_columns: int | None,
    wide: bool,
    soft_cap: float | None,
    second: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    plan = _plan(rows, weight, chunk_rows, chunk_columns, wide, soft_cap)
    kernels = _kernels(backend, rows)
    allowed = _allowed(masks, index)
    head = rows, weight, bias
    found, _ = statistics_of(head, ids, temperature, plan=plan, kernels=kernels, allowed=allowed, second=second)
    return _together(found)


@_linear.register_fake
def _(rows: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(rows)


@torch.library.custom_op("swe_trainers::linear_logprobs_backward", mutates_args=())
def _linear_backward(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    masks: Tensor | None,
    index: Tensor | None,
    statistics: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor,
    grad_entropies: Tensor,
    backend: str,
    chunk_rows: int | None,
    chunk_columns: int | None,
    wide: bool,
    soft_cap: float | None,
    of_rows: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    upstream = grad_logprobs.contiguous(), grad_entropies.contiguous()
    found = gradients_of(
        (rows, weight, bias),
        (ids, temperature, statistics[0], statistics[1], entropies, *upstream),
        (of_rows, of_weight, of_bias),
        plan=_plan(rows, weight, chunk_rows, chunk_columns, wide, soft_cap),
        kernels=_kernels(backend, rows),
        allowed=_allowed(masks, index),
    )
    grad_rows, grad_weight, grad_bias = (rows.new_empty(0) if x is None else x for x in found)
    return grad_rows, grad_weight, grad_bias


@_linear_backward.register_fake
def _(rows: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    needed = arguments[-3:]
    grad_rows, grad_weight, grad_bias = (
        torch.empty_like(x, memory_format=torch.contiguous_format) if need and x is not None else rows.new_empty(0)
        for x, need in zip((rows, weight, bias), needed, strict=True)
    )
    return grad_rows, grad_weight, grad_bias


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, backend, chunk_rows, chunk_columns, wide, soft_cap, ctx.second = inputs
    ctx.options = backend, chunk_rows, chunk_columns, wide, soft_cap
    ctx.save_for_backward(*tensors, output[2], output[1])


def _linear_gradients(
    ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    needed = [bool(need) for need in ctx.needs_input_grad[:3]]
    saved = ctx.saved_tensors
    grads: tuple[Tensor | None, ...] = (None, None, None)
    if any(needed):
        found = _linear_backward(*saved, grad_logprobs, grad_entropies, *ctx.options, *needed)
        grads = tuple(grad if need else None for grad, need in zip(found, needed, strict=True))
    grad_temperature = _temperature_gradient(ctx, saved[4], saved[7], grad_logprobs, grad_entropies)
    return (*grads, None, grad_temperature, *(None,) * 8)


def _temperature_gradient(ctx: Any, temperature: Tensor, statistics: Tensor, g: Tensor, h: Tensor) -> Tensor | None:
    return (h * statistics[3] - g * statistics[2]) / temperature if ctx.second else None


_linear.register_autograd(_linear_gradients, setup_context=_linear_context)


@torch.library.custom_op("swe_trainers::logits_logprobs", mutates_args=())
def _logits(
    logits: Tensor, ids: Tensor, temperature: Tensor, backend: str, soft_cap: float | None, second: bool
) -> tuple[Tensor, Tensor, Tensor]:
    kernels = _kernels(backend, logits)
    return _together(kernels.row_statistics(logits, ids, temperature, second=second, soft_cap=soft_cap))


@_logits.register_fake
def _(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(logits)


@torch.library.custom_op("swe_trainers::logits_logprobs_backward", mutates_args=())
def _logits_backward(
    logits: Tensor,
    ids: Tensor,
    temperature: Tensor,
    statistics: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor,
    grad_entropies: Tensor,
    backend: str,
    soft_cap: float | None,
) -> Tensor:
    out = torch.empty_like(logits, memory_format=torch.contiguous_format)
    upstream = grad_logprobs.contiguous(), grad_entropies.contiguous()
    given = ids, temperature, statistics[0], statistics[1], entropies, *upstream
    _kernels(backend, logits).gradient_(logits, *given, soft_cap=soft_cap, out=out)
    return out


@_logits_backward.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _logits_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, backend, soft_cap, ctx.second = inputs
    ctx.options = backend, soft_cap
    ctx.save_for_backward(*tensors, output[2], output[1])


def _logits_gradients(
    ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    grad_logits = None
    if ctx.needs_input_grad[0]:
        grad_logits = _logits_backward(*saved, grad_logprobs, grad_entropies, *ctx.options)
    grad_temperature = _temperature_gradient(ctx, saved[2], saved[3], grad_logprobs, grad_entropies)
    return grad_logits, None, grad_temperature, None, None, None


_logits.register_autograd(_logits_gradients, setup_context=_logits_context)
