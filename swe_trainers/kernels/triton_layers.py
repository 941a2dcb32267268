"""Layer kernels in Triton: SwiGLU and rotary positions, each in one pass over memory forward and one backward.

PyTorch writes SwiGLU as two operations forward and three backward, which move 14 tensors and keep three for the
backward pass. Here it is 8, and two are kept: the activation is computed again. A rotation moves its input and its
output once; the same kernel with the angles reversed is its gradient.

Numbers are computed in float32 and rounded once. Sizes are arguments, so that a new number of tokens compiles nothing;
the width of a head is a constant, as it is of a model.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from swe_trainers.kernels.triton_rows import WARPS, launch

__all__ = ["rotate", "swiglu"]

SWIGLU_BLOCK = 32 * 8 * WARPS
"""Elements of a program: each thread reads 16 bytes of a half-precision tensor at once."""
ROTATE_BLOCK = 32 * 8 * WARPS
"""Pairs of a program at most, all of one token: as many as fit it of heads of a power of two."""


@triton.jit(do_not_specialize=["n"])
def _swiglu_kernel(gate, up, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n // 16 * 16  # a mask that ends at a multiple of 16 keeps accesses wide
    _swiglu(gate, up, out, at, inside)
    if (n % 16 != 0) & (tl.program_id(0) == 0):
        last = n // 16 * 16 + tl.arange(0, 16)
        _swiglu(gate, up, out, last, last < n)


@triton.jit
def _swiglu(gate, up, out, at, inside):
    g = tl.load(gate + at, mask=inside).to(tl.float32)
    u = tl.load(up + at, mask=inside).to(tl.float32)
    tl.store(out + at, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n"])
def _swiglu_gradient_kernel(grad_out, gate, up, grad_gate, grad_up, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    _swiglu_gradient(grad_out, gate, up, grad_gate, grad_up, at, at < n // 16 * 16)
    if (n % 16 != 0) & (tl.program_id(0) == 0):
        last = n // 16 * 16 + tl.arange(0, 16)
        _swiglu_gradient(grad_out, gate, up, grad_gate, grad_up, last, last < n)


@triton.jit
def _swiglu_gradient(grad_out, gate, up, grad_gate, grad_up, at, inside):
    d = tl.load(grad_out + at, mask=inside).to(tl.float32)
    g = tl.load(gate + at, mask=inside).to(tl.float32)
    u = tl.load(up + at, mask=inside).to(tl.float32)
    s = tl.sigmoid(g)
    active = g * s
    slope = s + active * (1.0 - s)  # of x σ(x)
    tl.store(grad_gate + at, (d * u * slope).to(grad_gate.dtype.element_ty), mask=inside)
    tl.store(grad_up + at, (d * active).to(grad_up.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "heads"])  # that strides are multiples of 16 makes accesses wide
def _rotate_kernel(
    x,
    x_batch,
    x_token,
    x_head,
    cosines,
    cos_batch,
    cos_token,
    sines,
    sin_batch,
    sin_token,
    out,
    tokens,
    heads,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INVERSE: tl.constexpr,
):
    place = tl.program_id(0)
    batch, token = (place // tokens).to(tl.int64), (place % tokens).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (head < heads) & (column < HALF)
    cos = tl.load(cosines + batch * cos_batch + token * cos_token + column, mask=column < HALF).to(tl.float32)
    sin = tl.load(sines + batch * sin_batch + token * sin_token + column, mask=column < HALF).to(tl.float32)
    if INVERSE:
        sin = -sin
    source = x + batch * x_batch + token * x_token + head * x_head + column
    first = tl.load(source, mask=inside).to(tl.float32)
    second = tl.load(source + HALF, mask=inside).to(tl.float32)
    target = out + (place.to(tl.int64) * heads + head) * (2 * HALF) + column
    tl.store(target, (first * cos - second * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF, (second * cos + first * sin).to(out.dtype.element_ty), mask=inside)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = _whole(gate), _whole(up)
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        if out.numel():
            launch(_swiglu_kernel, _blocks(out), gate, up, out, out.numel(), BLOCK=SWIGLU_BLOCK, num_warps=WARPS)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad, grad_gate, grad_up = _whole(grad), torch.empty_like(gate), torch.empty_like(up)
        if gate.numel():
            arguments = (grad, gate, up, grad_gate, grad_up, gate.numel())
            launch(_swiglu_gradient_kernel, _blocks(gate), *arguments, BLOCK=SWIGLU_BLOCK, num_warps=WARPS)
        return grad_gate, grad_up


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines, inverse=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _rotated(grad, *ctx.saved_tensors, inverse=True), None, None


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Gate · σ(gate) · up (Shazeer 2020, arXiv:2002.05202).

    Args:
        gate, up: (…, D) floating, not float64, of one dtype.
    Returns:
        (…, D), in that dtype.
    """
    activated: Tensor = _SwiGLU.apply(gate, up)
    return activated


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + D/2}) by the angle of its position (Su et al. 2021, arXiv:2104.09864).

    Args:
        x: (B, T, H, D) floating, not float64. cosines, sines: (B, T, D); the two halves of D are equal.
    Returns:
        (B, T, H, D) contiguous.
    """
    rotated: Tensor = _Rotate.apply(x, cosines, sines)
    return rotated


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, *, inverse: bool) -> Tensor:
    batch, tokens, heads, width = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    x, cosines, sines = (
        part if part.stride(-1) == 1 else part.contiguous() for part in map(_in_memory, (x, cosines, sines))
    )
    columns = triton.next_power_of_2(width // 2)
    together = min(triton.next_power_of_2(heads), max(1, ROTATE_BLOCK // columns))
    launch(
        _rotate_kernel,
        (batch * tokens, triton.cdiv(heads, together)),
        x,
        *x.stride()[:3],
        cosines,
        *cosines.stride()[:2],
        sines,
        *sines.stride()[:2],
        out,
        tokens,
        heads,
        HALF=width // 2,
        HEADS=together,
        COLUMNS=columns,
        INVERSE=inverse,
        num_warps=WARPS,
    )
    return out


def _whole(x: Tensor) -> Tensor:
    return _in_memory(x).contiguous()


def _in_memory(x: Tensor) -> Tensor:
    """With a lazy minus sign carried out."""
    return x.resolve_neg()


def _blocks(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), SWIGLU_BLOCK),)
