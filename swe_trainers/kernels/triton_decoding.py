"""Kernels of a decoding step in Triton: one new token a row is written into a cache of keys and values, and attends.

The keys and values are read where they are, and only those that a row sees: which slot of the cache is a row's and how
far it reaches are in the GPU's memory. A CUDA graph can therefore be replayed for other slots and lengths, a row
without a sequence costs next to nothing, and there is no mask.

A program computes the query heads that share a key-value head, as the rows of one product, on a part of the row's
positions; the parts of a row are of equal size. A few rows alone would not fill a GPU: several programs then share the
positions of a row, and a second, small kernel merges their sums (Dao et al. 2023, "Flash-Decoding").

Sums are float32, exponents are of base 2, and probabilities are rounded to the dtype of the values before the product
with them, as in flash attention. Sizes are arguments, so that other numbers of rows or slots compile nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from swe_trainers.kernels.triton_layers import multiprocessors
from swe_trainers.kernels.triton_rows import WARPS, launch

__all__ = ["LARGEST_HEAD", "attend", "attention_shape", "store_token", "token_shape"]

LARGEST_HEAD = 256
"""D of a head at most: a block of keys and one of values have to fit the memory of a multiprocessor."""
_BLOCK_BYTES = 16384
"""Of keys, and of values, that a program holds at once."""
_PROGRAMS = 4
"""On each multiprocessor: rows are divided among programs as long as there are fewer."""
_MOST_PARTS = 64
"""Of a row: one program of the second kernel holds them all."""
_NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def _product(a, b, sums, WIDEN: tl.constexpr):
    """Sums + a · b; float32 operands are not rounded."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit(
    do_not_specialize=["slot_step", "position_step", "window"],
    do_not_specialize_on_alignment=["slots", "positions", "totals"],
)
def _attention_kernel(
    query,
    query_row,
    query_head,
    keys,
    values,
    cache_slot,
    cache_head,
    slots,
    slot_step,
    positions,
    position_step,
    out,
    weighted,
    maxima,
    totals,
    scale,
    window,
    SHARING: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    WHOLE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    row, shared, part, parts = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    slot = tl.load(slots + row * slot_step)
    end = tl.load(positions + row * position_step).to(tl.int32) + 1
    first = 0
    if WINDOW:
        first = tl.maximum(end - window, 0)
    share = tl.cdiv(tl.cdiv(end - first, BLOCK), parts) * BLOCK
    start = first + part * share
    stop = tl.minimum(start + share, end)

    head, column, place = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, BLOCK)
    q = tl.load(
        query + row.to(tl.int64) * query_row + (shared * SHARING + head[:, None]) * query_head + column[None, :],
        mask=(head[:, None] < SHARING) & (column[None, :] < WIDTH),
        other=0.0,
    )  # (ROWS, COLUMNS), of which rows after the heads are 0
    base = slot * cache_slot + shared.to(tl.int64) * cache_head
    of_keys = keys + base + column[:, None]
    of_values = values + base + column[None, :]
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    summed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for at in range(start, stop, BLOCK):
        here = at + place
        inside = here < stop
        k = tl.load(of_keys + here[None, :] * WIDTH, mask=inside[None, :] & (column[:, None] < WIDTH), other=0.0)
        scores = _product(q, k, tl.zeros([ROWS, BLOCK], tl.float32), WIDEN) * scale
        scores = tl.where(inside[None, :], scores, _NOTHING)  # (ROWS, BLOCK)
        larger = tl.maximum(maximum, tl.max(scores, axis=1))
        shrink = tl.exp2(maximum - larger)
        weights = tl.exp2(scores - larger[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        v = tl.load(of_values + here[:, None] * WIDTH, mask=inside[:, None] & (column[None, :] < WIDTH), other=0.0)
        summed = _product(weights.to(v.dtype), v, summed * shrink[:, None], WIDEN)
        maximum = larger

    heads = tl.num_programs(1) * SHARING
    asked = row.to(tl.int64) * heads + shared * SHARING + head
    there = head < SHARING
    if WHOLE:
        attended = (summed / total[:, None]).to(out.dtype.element_ty)
        target = out + asked[:, None] * WIDTH + column[None, :]
        tl.store(target, attended, mask=there[:, None] & (column[None, :] < WIDTH))
    else:
        asked = asked * parts + part
        tl.store(maxima + asked, maximum, mask=there)
        tl.store(totals + asked, total, mask=there)
        target = weighted + asked[:, None] * WIDTH + column[None, :]
        tl.store(target, summed, mask=there[:, None] & (column[None, :] < WIDTH))


@triton.jit(do_not_specialize=["parts"], do_not_specialize_on_alignment=["totals"])
def _attention_merge_kernel(
    weighted, maxima, totals, out, parts, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr
):
    """One head of one row. A part without positions has the maximum −inf; the first part always has some."""
    head = tl.program_id(0).to(tl.int64)
    part, column = tl.arange(0, PARTS), tl.arange(0, COLUMNS)
    maximum = tl.load(maxima + head * parts + part, mask=part < parts, other=float("-inf"))
    total = tl.load(totals + head * parts + part, mask=part < parts, other=0.0)
    weight = tl.exp2(maximum - tl.max(maximum, axis=0))
    summed = tl.load(
        weighted + (head * parts + part[:, None]) * WIDTH + column[None, :],
        mask=(part[:, None] < parts) & (column[None, :] < WIDTH),
        other=0.0,
    )
    attended = tl.sum(summed * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out + head * WIDTH + column, attended.to(out.dtype.element_ty), mask=column < WIDTH)


@triton.jit(do_not_specialize=["slot_step", "write_step"], do_not_specialize_on_alignment=["slots", "writes"])
def _token_kernel(
    query,
    query_row,
    query_head,
    key,
    key_row,
    key_head,
    value,
    value_row,
    value_head,
    query_gain,
    key_gain,
    cosines,
    cos_row,
    sines,
    sin_row,
    keys,
    values,
    cache_slot,
    cache_head,
    slots,
    slot_step,
    writes,
    write_step,
    out,
    epsilon,
    SHARING: tl.constexpr,
    HALF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM: tl.constexpr,
):
    """One key-value head of one row, and the query heads that share it."""
    row, shared = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    head, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    inside = column < HALF
    cos = tl.load(cosines + row * cos_row + column, mask=inside).to(tl.float32)
    sin = tl.load(sines + row * sin_row + column, mask=inside).to(tl.float32)
    there = (head < SHARING) & inside
    first, second = _rotated(
        query + row * query_row + (shared * SHARING + head) * query_head,
        query_gain, cos, sin, column, there, epsilon, HALF, NORM,
    )  # fmt: skip
    target = out + (row * tl.num_programs(1) * SHARING + shared * SHARING + head) * (2 * HALF) + column
    tl.store(target, first.to(out.dtype.element_ty), mask=there)
    tl.store(target + HALF, second.to(out.dtype.element_ty), mask=there)

    slot, write = tl.load(slots + row * slot_step), tl.load(writes + row * write_step)
    place = slot * cache_slot + shared * cache_head + write * (2 * HALF) + column
    first, second = _rotated(
        key + row * key_row + shared * key_head, key_gain, cos, sin, column, inside, epsilon, HALF, NORM
    )
    tl.store(keys + place, first.to(keys.dtype.element_ty), mask=inside)
    tl.store(keys + place + HALF, second.to(keys.dtype.element_ty), mask=inside)
    source = value + row * value_row + shared * value_head + column
    tl.store(values + place, tl.load(source, mask=inside), mask=inside)
    tl.store(values + place + HALF, tl.load(source + HALF, mask=inside), mask=inside)


@triton.jit
def _rotated(x, gain, cos, sin, column, inside, epsilon, HALF: tl.constexpr, NORM: tl.constexpr):
    """The two halves of heads, normed and rotated."""
    first = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + HALF + column, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        scale = tl.rsqrt(squares * (0.5 / HALF) + epsilon)
        first *= scale * tl.load(gain + column, mask=column < HALF).to(tl.float32)
        second *= scale * tl.load(gain + HALF + column, mask=column < HALF).to(tl.float32)
    return first * cos - second * sin, second * cos + first * sin


def store_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotation: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    writes: Tensor,
    *,
    gains: tuple[Tensor, Tensor] | None = None,
    epsilon: float = 0.0,
) -> Tensor:
    """Norm and rotate the query and the key of one token a row, and write its key and value into the cache.

    Args:
        query: (B, H, D) floating, not float64. key, value: (B, H or fewer, D).
        rotation: cosines and sines of the positions, (B, D) each; the two halves of D are equal.
        keys, values: (slots, H or fewer, P, D) contiguous, of which (slots[b], :, writes[b]) are written.
        slots, writes: (B,) int64.
        gains: (D,) of the norms of queries and keys; None for heads that are not normed.
        epsilon: of the norms; see `triton_layers.rms_norm`.

    Returns:
        The query (B, H, D) contiguous, in its dtype.
    """
    rows, heads, width = query.shape
    shared = keys.shape[1]
    query, key, value = (x if x.stride(2) == 1 else x.contiguous() for x in (query, key, value))
    cosines, sines = (x if x.stride(1) == 1 else x.contiguous() for x in rotation)
    out = torch.empty((rows, heads, width), dtype=query.dtype, device=query.device)
    launch(
        _token_kernel,
        (rows, shared),
        query,
        *query.stride()[:2],
        key,
        *key.stride()[:2],
        value,
        *value.stride()[:2],
        *(gains or (query, key)),
        cosines,
        cosines.stride(0),
        sines,
        sines.stride(0),
        keys,
        values,
        *keys.stride()[:2],
        slots,
        slots.stride(0),
        writes,
        writes.stride(0),
        out,
        epsilon,
        **token_shape(heads // shared, width),
        NORM=gains is not None,
    )
    return out


def token_shape(sharing: int, width: int) -> dict[str, int]:
    """Constants of the kernel of `store_token`; see `attention_shape`."""
    columns = triton.next_power_of_2(width // 2)
    return {
        "SHARING": sharing,
        "HALF": width // 2,
        "ROWS": triton.next_power_of_2(sharing),
        "COLUMNS": columns,
        "num_warps": 1,
    }


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    positions: Tensor,
    *,
    length: int,
    scaling: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Attention of one query a row to the positions of its slot up to its own.

    Args:
        query: (B, H, D) floating, not float64; H is a multiple of the cache's heads.
        keys, values: (slots, H or fewer, P, D) contiguous; positions that no row sees may hold anything.
        slots: (B,) int64, of each row.
        positions: (B,) int64, of each row's query, which is in the cache.
        length: more than every position; not read more exactly than to choose the number of programs.
        scaling: of the scores; None for 1/√D.
        window: the number of positions that a row attends to, its own included; None for all.

    Returns:
        (B, H, D) contiguous, in the dtype of the query.
    """
    rows, heads, width = query.shape
    shared = keys.shape[1]
    query = query if query.stride(2) == 1 else query.contiguous()
    shape = attention_shape(heads // shared, width, keys.dtype)
    longest = length if window is None else min(length, window)
    wanted = _PROGRAMS * multiprocessors(query.device) // (rows * shared)
    parts = max(1, min(wanted, triton.cdiv(longest, shape["BLOCK"]), _MOST_PARTS))
    out = torch.empty((rows, heads, width), dtype=query.dtype, device=query.device)
    weighted = maxima = totals = out
    if parts > 1:
        weighted = torch.empty((rows, heads, parts, width), dtype=torch.float32, device=query.device)
        maxima, totals = torch.empty((2, rows, heads, parts), dtype=torch.float32, device=query.device)
    scale = (width**-0.5 if scaling is None else scaling) / math.log(2.0)
    launch(
        _attention_kernel,
        (rows, shared, parts),
        query,
        *query.stride()[:2],
        keys,
        values,
        *keys.stride()[:2],
        slots,
        slots.stride(0),
        positions,
        positions.stride(0),
        out,
        weighted,
        maxima,
        totals,
        scale,
        window or 0,
        **shape,
        WINDOW=window is not None,
        WHOLE=parts == 1,
    )
    if parts > 1:
        columns, merged = shape["COLUMNS"], triton.next_power_of_2(parts)
        sizes = {"WIDTH": width, "COLUMNS": columns, "PARTS": merged, "num_warps": WARPS}
        launch(_attention_merge_kernel, (rows * heads,), weighted, maxima, totals, out, parts, **sizes)
    return out


def attention_shape(sharing: int, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Constants of the attention kernel.

    Args:
        sharing: query heads that share a key-value head.
        width: D of a head.
        dtype: of the cache.
    """
    columns = max(16, triton.next_power_of_2(width))  # a product takes at least 16 of everything
    return {
        "SHARING": sharing,
        "WIDTH": width,
        "ROWS": max(16, triton.next_power_of_2(sharing)),
        "COLUMNS": columns,
        "BLOCK": max(16, min(128, _BLOCK_BYTES // (columns * dtype.itemsize))),
        # The interpreter would multiply the bits of bfloat16 as integers.
        "WIDEN": triton.knobs.runtime.interpret and dtype == torch.bfloat16,
        "num_warps": WARPS,
        "num_stages": 2,
    }
