"""Layer kernels in Triton: norms, SwiGLU and rotary positions, each in one pass over memory forward and one backward.

PyTorch writes SwiGLU as two operations forward and three backward, which move 14 tensors and keep three for the
backward pass. Here it is 8, and two are kept: the activation is computed again. A rotation moves its input and its
output once; the same kernel with the angles reversed is its gradient. A norm keeps its input alone: the factor of a row
is computed again, and the gain's gradient is summed in the registers of a few programs, which walk over all rows.

Numbers are computed in float32 and rounded once. Sizes are arguments, so that a new number of tokens compiles nothing;
the width of a head or a norm is a constant, as it is of a model.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from swe_trainers.kernels.triton_rows import WARPS, launch

__all__ = ["rms_norm", "rotate", "swiglu"]

SWIGLU_BLOCK = 32 * 8 * WARPS
"""Elements of a program: each thread reads 16 bytes of a half-precision tensor at once."""
ROTATE_BLOCK = 32 * 8 * WARPS
"""Pairs of a program at most, all of one token: as many as fit it of heads of a power of two."""
NORM_BLOCK = 16 * 32 * WARPS
"""Elements that a program holds at once: as many whole rows as fit it, or one longer row in more warps."""
NORM_PROGRAMS = (6, 8)
"""Of the gradient's kernel, on each multiprocessor, with one row or several in a tile: as many as its registers leave
room for, so that all run at once. Each writes one row of partial sums of the gain's gradient."""


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


@triton.jit
def _normed_rows(x, tile, n, epsilon, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of rows divided by their lengths, the factors, and where the tile is."""
    row = tile * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    at = row.to(tl.int64) * WIDTH + column
    inside = (row < n) & (column < WIDTH)
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=1) * (1.0 / WIDTH) + epsilon)[:, None]
    return values * scale, scale, at, inside


@triton.jit(do_not_specialize=["n"])
def _norm_kernel(x, weight, out, n, epsilon, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    unit, _, at, inside = _normed_rows(x, tl.program_id(0), n, epsilon, WIDTH, ROWS, COLUMNS)
    column = tl.arange(0, COLUMNS)[None, :]
    gain = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + at, (unit * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n", "tiles"])
def _norm_gradient_kernel(
    grad_out,
    x,
    weight,
    grad_x,
    sums,
    n,
    tiles,
    epsilon,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OF_X: tl.constexpr,
    OF_WEIGHT: tl.constexpr,
):
    """With u = x · scale: dx = scale (g w − u mean(g w u)), and the sums of g u over this program's rows."""
    column = tl.arange(0, COLUMNS)[None, :]
    gain = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        unit, scale, at, inside = _normed_rows(x, tile, n, epsilon, WIDTH, ROWS, COLUMNS)
        g = tl.load(grad_out + at, mask=inside, other=0.0).to(tl.float32)
        if OF_WEIGHT:
            total += g * unit
        if OF_X:
            g *= gain
            mean = tl.sum(g * unit, axis=1)[:, None] * (1.0 / WIDTH)
            tl.store(grad_x + at, (scale * (g - unit * mean)).to(grad_x.dtype.element_ty), mask=inside)
    if OF_WEIGHT:
        place = sums + tl.program_id(0) * WIDTH + tl.arange(0, COLUMNS)
        tl.store(place, tl.sum(total, axis=0), mask=tl.arange(0, COLUMNS) < WIDTH)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x, weight = _whole(x), _whole(weight)
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        dtype = x.dtype if x.dtype == weight.dtype else torch.promote_types(x.dtype, weight.dtype)
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        if out.numel():
            rows, shape = _norm_shape(x)
            grid = (triton.cdiv(rows, shape["ROWS"]),)
            launch(_norm_kernel, grid, x, weight, out, rows, epsilon, **shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        grad, grad_x = _whole(grad), torch.empty_like(x) if of_x else None
        if not x.numel():
            return grad_x, torch.zeros_like(weight) if of_weight else None, None
        rows, shape = _norm_shape(x)
        tiles = triton.cdiv(rows, shape["ROWS"])
        programs, sums = tiles, None
        if of_weight:
            programs = min(tiles, NORM_PROGRAMS[shape["ROWS"] > 1] * multiprocessors(x.device))
            sums = torch.empty(programs, len(weight), dtype=torch.float32, device=x.device)
        outputs = (x if grad_x is None else grad_x, weight if sums is None else sums)
        wanted = {"OF_X": of_x, "OF_WEIGHT": of_weight}
        launch(
            _norm_gradient_kernel, (programs,), grad, x, weight, *outputs, rows, tiles, ctx.epsilon, **shape, **wanted
        )
        return grad_x, None if sums is None else sums.sum(0).to(weight.dtype), None


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


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """X / sqrt(mean x² + ε) · weight (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
        x: (…, D) floating, not float64. weight: (D,) likewise. epsilon: ε.
    Returns:
        (…, D) contiguous, in the dtype of x · weight.
    """
    normed: Tensor = _RMSNorm.apply(x, weight, epsilon)
    return normed


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


def _norm_shape(x: Tensor) -> tuple[int, dict[str, int]]:
    """The number of rows (x.shape[-1] each), and the constants of the kernels."""
    width = x.shape[-1]
    columns = triton.next_power_of_2(width)
    warps = min(16, max(WARPS, columns * WARPS // NORM_BLOCK))
    constants = {"WIDTH": width, "ROWS": max(1, NORM_BLOCK // columns), "COLUMNS": columns, "num_warps": warps}
    return x.numel() // width, constants


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Of a GPU; a CPU's interpreter runs one program after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _blocks(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), SWIGLU_BLOCK),)
