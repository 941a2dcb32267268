"""Products of hidden states and a weight whose logits never reach memory, for Hopper GPUs (H100, H200).

A tile of logits is computed by the tensor cores, from tiles that the tensor memory accelerator (TMA) copies. What the
row kernels do with logits in memory is done here with those in registers: `sum_product` adds them to the sums of their
rows, and `gradient_product` writes their gradient in their place. Formulas, bases and sums are those of `triton_rows`;
logits are float32, or rounded as logits in memory would be.

A program has some rows and a share of the vocabulary, and keeps the sums of its rows in registers. Neighbours have the
same share, so that each tile of the weight comes from memory once for all of them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from swe_trainers.kernels.triton_rows import (
    _IMPOSSIBLE,
    _LN_2,
    _LOG2_E,
    _NOTHING,
    _SIZES,
    _VECTORS,
    _bounded,
    _finite,
    _gradient_vectors,
    _temperature,
    _vector,
    launch,
)

__all__ = [
    "COLUMNS",
    "DEPTH",
    "EXACT_SUMS",
    "GRADIENT",
    "ROUNDED_SUMS",
    "ROWS",
    "gradient_product",
    "sum_product",
    "supports",
]

ROWS, COLUMNS, DEPTH = 128, 256, 64
"""Of a tile of logits, and how much of the hidden width is multiplied at once."""


class _Schedule(NamedTuple):
    """How a kernel overlaps its copies with its products: measured on an H200 with hidden widths of 1,024 to 4,096.

    Attributes:
        stages: tiles of the factors that are copied ahead.
        flatten: copies for the next tile of logits begin during the work on this one.
    """

    stages: int
    flatten: bool


EXACT_SUMS, ROUNDED_SUMS, GRADIENT = _Schedule(4, False), _Schedule(3, True), _Schedule(4, True)
WARPS = 8
_MOST_PARTS = 64
"""That divide a row among them: their sums are a thousandth of the logits' size. More only for a few rows."""


@triton.jit
def _rows_of_program(labels, n, first, width, ROWS: tl.constexpr):
    """Its first row, its share of the vocabulary, its rows, which of them exist, and their labels; -1 for no column."""
    blocks = tl.cdiv(n, ROWS)
    top, part = tl.program_id(0) % blocks * ROWS, tl.program_id(0) // blocks
    row = top + tl.arange(0, ROWS)
    inside = row < n
    label = tl.load(labels + row, mask=inside, other=-1) - first
    return top, part, row, inside, tl.where((label >= 0) & (label < width), label, -1).to(tl.int32)


@triton.jit
def _logits_of_product(
    rows,
    weight,
    top,
    tile,
    depth,
    cap,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    CAP: tl.constexpr,
    ROUND: tl.constexpr,
):
    """A tile of logits in float32; 0 beyond the vocabulary."""
    x = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in tl.range(0, depth, DEPTH):
        x = tl.dot(rows.load([top, at]), weight.load([tile * COLUMNS, at]).T, x)
    if ROUND:  # as logits in memory are
        x = x.to(rows.dtype).to(tl.float32)
    if CAP:  # cap · tanh(x / cap)
        x = cap - 2.0 * cap / (tl.exp2(x * (2.0 / cap * _LOG2_E)) + 1.0)
    return x


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _sum_product_kernel(
    labels,
    rows,
    weight,
    temperature,
    temperature_stride,
    sums,
    slot_stride,
    sum_stride,
    n,
    depth,
    first,
    width,
    share,
    cap,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    SECOND: tl.constexpr,
    CAP: tl.constexpr,
    ROUND: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    top, part, row, inside, label = _rows_of_program(labels, n, first, width, ROWS)
    c = 1.0 / tl.load(temperature + row * temperature_stride, mask=inside, other=1.0) * _LOG2_E
    maximum = tl.full([ROWS], _NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    moment, second, picked = total, total, total
    for tile in tl.range(part * share, tl.minimum((part + 1) * share, tl.cdiv(width, COLUMNS)), flatten=FLATTEN):
        x = _logits_of_product(rows, weight, top, tile, depth, cap, ROWS, COLUMNS, DEPTH, CAP, ROUND)
        place = label - tile * COLUMNS
        columns = tl.arange(0, COLUMNS)[None, :]
        if tl.max(((place >= 0) & (place < COLUMNS)).to(tl.int32), axis=0) > 0:  # most tiles have no label
            picked += tl.sum(tl.where(columns == place[:, None], x, 0.0), axis=1)
        if (tile + 1) * COLUMNS > width:
            x = tl.where(columns < width - tile * COLUMNS, x, _IMPOSSIBLE / c[:, None])
        larger = tl.maximum(maximum, tl.max(x, axis=1) * c)
        base = larger
        if ROUND and rows.dtype == tl.float16:  # a logit below its range is −inf
            base = _finite(larger)
        shift = _bounded(maximum - base)
        shrink = tl.exp2(shift)
        centred = x * c[:, None] - base[:, None]
        if ROUND and rows.dtype == tl.float16:
            centred = _bounded(centred)
        p = tl.exp2(centred)
        weighted = p * centred
        if SECOND:
            second = shrink * (second + shift * (2.0 * moment + shift * total)) + tl.sum(weighted * centred, axis=1)
        moment = shrink * (moment + shift * total) + tl.sum(weighted, axis=1)
        total = shrink * total + tl.sum(p, axis=1)
        maximum = larger
    place = sums + part.to(tl.int64) * slot_stride + row
    tl.store(place, maximum, mask=inside)
    tl.store(place + sum_stride, total, mask=inside)
    tl.store(place + 2 * sum_stride, moment, mask=inside)
    tl.store(place + 3 * sum_stride, picked, mask=inside)
    if SECOND:
        tl.store(place + 4 * sum_stride, second, mask=inside)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _gradient_product_kernel(
    labels,
    rows,
    weight,
    out,
    temperature,
    temperature_stride,
    maxima,
    log_totals,
    entropies,
    grad_logprobs,
    grad_entropies,
    n,
    depth,
    first,
    width,
    share,
    cap,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    CAP: tl.constexpr,
    ROUND: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    top, part, row, inside, label = _rows_of_program(labels, n, first, width, ROWS)
    scale = 1.0 / tl.load(temperature + row * temperature_stride, mask=inside, other=1.0)
    g = tl.load(grad_logprobs + row, mask=inside, other=0.0) * scale
    h = tl.load(grad_entropies + row, mask=inside, other=0.0) * scale
    offset = g + h * tl.load(entropies + row, mask=inside, other=0.0)
    slope, c = h * _LN_2, scale * _LOG2_E
    maximum = tl.load(maxima + row, mask=inside, other=0.0)
    log_total = tl.load(log_totals + row, mask=inside, other=0.0)
    for tile in tl.range(part * share, tl.minimum((part + 1) * share, tl.cdiv(width, COLUMNS)), flatten=FLATTEN):
        x = _logits_of_product(rows, weight, top, tile, depth, cap, ROWS, COLUMNS, DEPTH, CAP, ROUND)
        log_p = _bounded(x * c[:, None] - maximum[:, None] - log_total[:, None])
        dz = -tl.exp2(log_p) * (slope[:, None] * log_p + offset[:, None])
        place = label - tile * COLUMNS
        if tl.max(((place >= 0) & (place < COLUMNS)).to(tl.int32), axis=0) > 0:
            dz += tl.where(tl.arange(0, COLUMNS)[None, :] == place[:, None], g[:, None], 0.0)
        if CAP:
            dz *= 1.0 - (x / cap) * (x / cap)
        left, right = dz.reshape([ROWS, 2, COLUMNS // 2]).permute(0, 2, 1).split()  # half the memory to store from
        out.store([top, tile * COLUMNS], left.to(out.dtype))
        out.store([top, tile * COLUMNS + COLUMNS // 2], right.to(out.dtype))


def supports(rows: Tensor, weight: Tensor) -> bool:
    """Whether the kernels compute these: half precision, on a Hopper GPU, rows that start at multiples of 16 bytes.

    A weight of another dtype counts as converted. Triton's interpreter multiplies float16, and not bfloat16.
    """
    if rows.is_cuda:
        computed = _hopper_multiprocessors(rows.device) > 0 and rows.dtype in (torch.bfloat16, torch.float16)
    else:
        computed = triton.knobs.runtime.interpret and rows.dtype == torch.float16
    if not computed or not rows.numel() or not weight.numel():
        return False
    return _fits(rows) and (_fits(weight) if weight.dtype == rows.dtype else weight.shape[1] % 8 == 0)


def _fits(x: Tensor) -> bool:
    """Whether TMA can copy from, or to, a matrix of half precision."""
    in_rows = x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.stride(0) >= x.shape[1]
    return in_rows and x.data_ptr() % 16 == 0 and not x.is_neg()


@functools.cache
def _hopper_multiprocessors(device: torch.device) -> int:
    """Of a Hopper GPU; 0 of others, whose matrix units are programmed in another way or not measured."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count) if properties.major == 9 and torch.version.hip is None else 0


@functools.lru_cache(maxsize=1024)
def _share(blocks: int, tiles: int, programs: int) -> int:
    """Tiles of a program, so that of all programs as few as possible run when the others have ended.

    Args:
        blocks: of rows. tiles: of the vocabulary. programs: that run at once.
    """
    best, found = 0.0, tiles
    for parts in range(1, min(tiles, max(_MOST_PARTS, -(-programs // blocks))) + 1):
        share = -(-tiles // parts)
        turns = -(-blocks * -(-tiles // share) // programs)
        busy = blocks * tiles / (turns * programs * share)
        if busy > 1.004 * best:
            best, found = busy, share
    return found


def sum_product(
    rows: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: Tensor,
    *,
    second: bool,
    rounded: bool,
    first: int = 0,
    soft_cap: float | None = None,
) -> Tensor:
    """Sums of the logits rows × weight over shares of the vocabulary, as `torch_rows.sum_tile` writes them.

    Args:
        rows: (N, D). weight: (V, D); see `supports`.
        labels: (N,) int64, columns of the whole vocabulary.
        temperature: (N,).
        second: sum squares too, for the gradient of the temperature.
        rounded: round logits to the dtype of the factors, as they would be in memory.
        first: the column of the whole vocabulary that is the weight's first row.
        soft_cap: bounds the logits.
    Returns:
        (S, 5 if second else 4, N) float32, for `triton_rows.statistics`.
    """
    n, blocks, share, parts = _grid(rows, weight)
    sums = torch.empty(parts, 5 if second else 4, n, dtype=torch.float32, device=rows.device)
    _launch(
        _sum_product_kernel,
        blocks * parts,
        _vector("labels", labels, rows, n, torch.int64),
        rows,
        weight,
        (
            *_temperature(temperature, rows),
            sums,
            sums.stride(0),
            sums.stride(1),
        ),
        (n, rows.shape[1], first, len(weight), share, soft_cap or 0.0),
        ROUNDED_SUMS if rounded else EXACT_SUMS,
        SECOND=second,
        CAP=soft_cap is not None,
        ROUND=rounded,
    )
    return sums


def gradient_product(
    rows: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: Tensor,
    maxima: Tensor,
    log_totals: Tensor,
    entropies: Tensor,
    grad_logprobs: Tensor,
    grad_entropies: Tensor,
    *,
    out: Tensor,
    rounded: bool,
    first: int = 0,
    soft_cap: float | None = None,
) -> None:
    """Write the gradient of the logits rows × weight, as `torch_rows.gradient_` does for logits in memory.

    Args:
        rows, weight, labels, temperature, rounded, first, soft_cap: as of `sum_product`.
        maxima, log_totals, entropies, grad_logprobs, grad_entropies: (N,), as of `torch_rows.gradient_`.
        out: (N, V) in the dtype of the factors.
    """
    n, blocks, share, parts = _grid(rows, weight)
    target = out
    if not _fits(out):
        target = out.new_empty(n, -(-len(weight) // 8) * 8)[:, : len(weight)]
    _launch(
        _gradient_product_kernel,
        blocks * parts,
        _vector("labels", labels, rows, n, torch.int64),
        rows,
        weight,
        (
            TensorDescriptor.from_tensor(target, [ROWS, COLUMNS // 2]),
            *_temperature(temperature, rows),
            *_gradient_vectors(rows, maxima, log_totals, entropies, grad_logprobs, grad_entropies),
        ),
        (n, rows.shape[1], first, len(weight), share, soft_cap or 0.0),
        GRADIENT,
        CAP=soft_cap is not None,
        ROUND=rounded,
    )
    if target is not out:
        out.copy_(target)


def _grid(rows: Tensor, weight: Tensor) -> tuple[int, int, int, int]:
    """Rows, blocks of them, tiles of a program, and programs that divide a row among them."""
    n = len(rows)
    blocks, tiles = triton.cdiv(n, ROWS), triton.cdiv(len(weight), COLUMNS)
    share = _share(blocks, tiles, _hopper_multiprocessors(rows.device) if rows.is_cuda else 3)
    return n, blocks, share, triton.cdiv(tiles, share)


def _launch(
    kernel: Any,
    programs: int,
    labels: Tensor,
    rows: Tensor,
    weight: Tensor,
    tensors: tuple[Any, ...],
    sizes: tuple[Any, ...],
    schedule: _Schedule,
    **constants: Any,
) -> None:
    launch(
        kernel,
        (programs,),
        labels,
        TensorDescriptor.from_tensor(rows, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight, [COLUMNS, DEPTH]),
        *tensors,
        *sizes,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        DEPTH=DEPTH,
        FLATTEN=schedule.flatten,
        **constants,
        num_warps=WARPS,
        num_stages=schedule.stages,
    )
