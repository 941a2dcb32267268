"""Row kernels in Triton: one pass over a row of logits forward, a second one, in place, for the gradient.

The functions, their arguments and the formulas are those of `torch_rows`. A tile of bfloat16 is read once forward, and
read and written once backward. Sums are float32, offsets 64-bit.

Exponents are of base 2: with c = log2(e) / temperature a logit x becomes x c − b, one fused multiply-add, where b is
the rounded c · maximum. All sums are relative to b, so that its rounding cancels. Each thread keeps sums of its own
columns; threads meet once, after the last column. Statistics, too, are of base 2 where only `gradient_` reads them.

Accesses are 16 bytes wide up to the last multiple of 16 columns, whatever their number. Where a few rows alone would
not fill a GPU, several programs share a row and a second, small kernel merges their sums.

The kernels read memory by its address. Every argument therefore passes `_matrix`, `_vector` or `_target` first: what is
only read may have any strides and any dtype of its kind, and is copied if the kernel cannot read it as it is; what is
written must be addressable row by row. `launch` selects the GPU of the tensors. Sizes are arguments of the kernels,
not constants: a new number of rows or columns compiles nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from swe_trainers.errors import ShapeError
from swe_trainers.kernels.torch_rows import RowStatistics

__all__ = [
    "GRADIENT_BLOCK",
    "KL_BLOCK",
    "LOG_UNIT",
    "THREADS",
    "WARPS",
    "gradient_",
    "kl_backward",
    "kl_statistics",
    "kl_sum_tile",
    "launch",
    "merged",
    "row_statistics",
    "slots",
    "statistics",
    "sum_tile",
]

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
# Lower bound of centred logits: its exponential is exactly 0, and 0 · IMPOSSIBLE is 0 whereas 0 · −inf is NaN.
_IMPOSSIBLE = tl.constexpr(-1.0e30)
_NOTHING = tl.constexpr(float("-inf"))

LOG_UNIT = math.log(2.0)
"""The unit of `RowStatistics.maxima` and `log_totals` in nats: they are of base 2."""
WARPS = 4
THREADS = 32 * WARPS
_MANY_PROGRAMS = 4096
"""So many fill a GPU with one warp each, and short rows then end sooner."""
GRADIENT_BLOCK = 16 * THREADS
KL_BLOCK = 16 * THREADS
"""A KL kernel holds blocks of two matrices."""
_PROGRAMS = 1024
"""Fewer would leave parts of an H200 idle; with more a second kernel, which merges sums, costs more than it saves."""
_LEAST_COLUMNS = 16384
"""Of one program: less would be spent on its beginning and end."""
# Vectors are slices at any row: whether one happens to start at a multiple of 16 bytes compiles nothing.
_VECTORS = ["labels", "temperature", "statistics", "sums", "logprobs", "entropies"]
_VECTORS += ["maxima", "log_totals", "grad_logprobs", "grad_entropies", "grad", "rows"]
_SIZES = ["width", "first", "vocabulary", "share", "blocks", "n", "parts", "slot_stride", "sum_stride"]
_SIZES += ["temperature_stride", "cap", "scale"]


@triton.jit
def _bounded(x):
    """At least IMPOSSIBLE; NaN stays NaN."""
    return tl.maximum(x, _IMPOSSIBLE, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _finite(x):
    """A base to subtract: 0 for a maximum of nothing."""
    return tl.where(x == _NOTHING, 0.0, x)


@triton.jit
def _logits(start, bias, columns, inside, cap, BIAS: tl.constexpr, CAP: tl.constexpr):
    """Logits of some columns in float32, with bias, soft-capped; undefined where not `inside`."""
    x = tl.load(start + columns, mask=inside).to(tl.float32)
    if BIAS:
        x += tl.load(bias + columns, mask=inside).to(tl.float32)
    if CAP:  # cap · tanh(x / cap)
        x = cap - 2.0 * cap / (tl.exp2(x * (2.0 / cap * _LOG2_E)) + 1.0)
    return x


@triton.jit
def _four(start, bias, columns, step, limit, cap, MASK: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr):
    """Four blocks (threads, lanes) of logits as one, in which each thread has a row of its own."""
    a = _some(start, bias, columns, limit, cap, MASK, BIAS, CAP)
    b = _some(start, bias, columns + step, limit, cap, MASK, BIAS, CAP)
    c = _some(start, bias, columns + 2 * step, limit, cap, MASK, BIAS, CAP)
    d = _some(start, bias, columns + 3 * step, limit, cap, MASK, BIAS, CAP)
    return tl.join(tl.join(a, b), tl.join(c, d)).reshape([columns.shape[0], 4 * columns.shape[1]])


@triton.jit
def _some(start, bias, columns, limit, cap, MASK: tl.constexpr, BIAS: tl.constexpr, CAP: tl.constexpr):
    if MASK:
        return tl.where(columns < limit, _logits(start, bias, columns, columns < limit, cap, BIAS, CAP), _NOTHING)
    return _logits(start, bias, columns, None, cap, BIAS, CAP)


@triton.jit
def _add(x, c, maximum, total, moment, second, SECOND: tl.constexpr):
    """Add logits (threads, columns) to the sums of each thread. No thread waits for another."""
    larger = tl.maximum(maximum, tl.max(x, axis=1) * c)
    base = _finite(larger)
    shift = _bounded(maximum - base)
    shrink = tl.exp2(shift)
    centred = _bounded(x * c - base[:, None])
    weight = tl.exp2(centred)
    weighted = weight * centred
    if SECOND:
        second = shrink * (second + shift * (2.0 * moment + shift * total)) + tl.sum(weighted * centred, axis=1)
    moment = shrink * (moment + shift * total) + tl.sum(weighted, axis=1)
    total = shrink * total + tl.sum(weight, axis=1)
    return larger, total, moment, second


@triton.jit
def _store_statistics(
    row,
    inside,
    sound,
    picked,
    c,
    maximum,
    total,
    moment,
    second,
    logprobs,
    entropies,
    statistics,
    n,
    SECOND: tl.constexpr,
):
    """Outputs and statistics of complete rows; NaN where not `sound`."""
    log_total = tl.where(sound, tl.log2(total), float("nan"))
    mean = moment / total
    centred = picked * c - maximum
    tl.store(logprobs + row, (centred - log_total) * _LN_2, mask=inside)
    tl.store(entropies + row, (log_total - mean) * _LN_2, mask=inside)
    tl.store(statistics + row, maximum, mask=inside)
    tl.store(statistics + n + row, log_total, mask=inside)
    if SECOND:
        tl.store(statistics + 2 * n + row, tl.where(sound, centred - mean, float("nan")) * _LN_2, mask=inside)
        variance = (second / total - mean * mean) * (_LN_2 * _LN_2)
        tl.store(statistics + 3 * n + row, tl.maximum(variance, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=inside)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _sums_kernel(
    logits,
    row_stride,
    bias,
    labels,
    temperature,
    temperature_stride,
    sums,
    slot_stride,
    sum_stride,
    logprobs,
    entropies,
    statistics,
    n,
    first,
    width,
    share,
    cap,
    LANES: tl.constexpr,
    THREADS: tl.constexpr,
    SECOND: tl.constexpr,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    FINAL: tl.constexpr,
):
    row = tl.program_id(0)
    step: tl.constexpr = THREADS * LANES
    begin = tl.program_id(1) * share * (4 * step)
    end = tl.maximum(begin, tl.minimum(begin + share * (4 * step), width))
    start = logits + row.to(tl.int64) * row_stride
    temp = tl.load(temperature + row * temperature_stride)
    label = tl.load(labels + row) - first
    picked = 0.0
    if (label >= begin) & (label < end):  # read first, so that the last columns do not wait for it
        picked = _logits(start, bias, label, None, cap, BIAS, CAP)
    c = 1.0 / temp * _LOG2_E
    maximum = tl.full([THREADS], _NOTHING, tl.float32)
    total = tl.zeros([THREADS], tl.float32)
    moment, second = total, total
    columns = tl.arange(0, THREADS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    whole = begin + (end - begin) // (4 * step) * (4 * step)
    for at in range(begin, whole, 4 * step):
        x = _four(start, bias, at + columns, step, end, cap, False, BIAS, CAP)
        maximum, total, moment, second = _add(x, c, maximum, total, moment, second, SECOND)
    limit = end // 16 * 16  # a mask that ends at a multiple of 16 keeps loads wide
    if whole < limit:
        x = _four(start, bias, whole + columns, step, limit, cap, True, BIAS, CAP)
        maximum, total, moment, second = _add(x, c, maximum, total, moment, second, SECOND)
    if limit < end:
        x = _some(start, bias, limit + tl.arange(0, THREADS), end, cap, True, BIAS, CAP)
        maximum, total, moment, second = _add(x[:, None], c, maximum, total, moment, second, SECOND)
    larger = tl.max(maximum, axis=0)
    shift = _bounded(maximum - _finite(larger))
    shrink = tl.exp2(shift)
    if SECOND:
        second = tl.sum(shrink * (second + shift * (2.0 * moment + shift * total)), axis=0)
    moment = tl.sum(shrink * (moment + shift * total), axis=0)
    total = tl.sum(shrink * total, axis=0)
    if FINAL:
        sound = (label >= 0) & (label < width) & (temp > 0.0)
        _store_statistics(
            row, None, sound, picked, c, larger, total, moment, second, logprobs, entropies, statistics, n, SECOND
        )
    else:
        sums += tl.program_id(1).to(tl.int64) * slot_stride + row
        tl.store(sums, larger)
        tl.store(sums + sum_stride, total)
        tl.store(sums + 2 * sum_stride, moment)
        tl.store(sums + 3 * sum_stride, picked)
        if SECOND:
            tl.store(sums + 4 * sum_stride, second)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _merge_kernel(
    sums,
    labels,
    temperature,
    temperature_stride,
    logprobs,
    entropies,
    statistics,
    n,
    parts,
    vocabulary,
    THREADS: tl.constexpr,
    SECOND: tl.constexpr,
    FINAL: tl.constexpr,
):
    row = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    inside = row < n
    slot = (5 if SECOND else 4) * n.to(tl.int64)
    maximum = tl.full([THREADS], _NOTHING, tl.float32)
    for part in range(parts):
        maximum = tl.maximum(maximum, tl.load(sums + part * slot + row, mask=inside, other=0.0))
    base = _finite(maximum)
    total = tl.zeros([THREADS], tl.float32)
    moment, second, picked = total, total, total
    for part in range(parts):
        place = sums + part * slot + row
        shift = _bounded(tl.load(place, mask=inside, other=0.0) - base)
        shrink = tl.exp2(shift)
        s = tl.load(place + n, mask=inside, other=1.0)
        t = tl.load(place + 2 * n, mask=inside, other=0.0)
        picked += tl.load(place + 3 * n, mask=inside, other=0.0)
        if SECOND:
            u = tl.load(place + 4 * n, mask=inside, other=0.0)
            second += shrink * (u + shift * (2.0 * t + shift * s))
        moment += shrink * (t + shift * s)
        total += shrink * s
    if FINAL:
        label = tl.load(labels + row, mask=inside, other=0)
        temp = tl.load(temperature + row * temperature_stride, mask=inside, other=1.0)
        sound = (label >= 0) & (label < vocabulary) & (temp > 0.0)
        c = 1.0 / temp * _LOG2_E
        _store_statistics(
            row, inside, sound, picked, c, maximum, total, moment, second, logprobs, entropies, statistics, n, SECOND
        )
    else:
        tl.store(statistics + row, maximum, mask=inside)
        tl.store(statistics + n + row, total, mask=inside)
        tl.store(statistics + 2 * n + row, moment, mask=inside)
        tl.store(statistics + 3 * n + row, picked, mask=inside)
        if SECOND:
            tl.store(statistics + 4 * n + row, second, mask=inside)


@triton.jit
def _gradient(
    start,
    place,
    bias,
    columns,
    inside,
    label,
    c,
    maximum,
    log_total,
    slope,
    offset,
    at_label,
    cap,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
):
    """Write the gradient of some columns."""
    x = _logits(start, bias, columns, inside, cap, BIAS, CAP)
    log_p = _bounded(x * c - maximum - log_total)
    dz = tl.where(columns == label, at_label, 0.0) - tl.exp2(log_p) * (slope * log_p + offset)
    if CAP:
        dz *= 1.0 - (x / cap) * (x / cap)
    tl.store(place + columns, dz.to(place.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _gradient_kernel(
    logits,
    row_stride,
    out,
    out_stride,
    bias,
    labels,
    temperature,
    temperature_stride,
    maxima,
    log_totals,
    entropies,
    grad_logprobs,
    grad_entropies,
    first,
    width,
    blocks,
    cap,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
):
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks  # neighbours in memory run together
    start = logits + row.to(tl.int64) * row_stride
    place = out + row.to(tl.int64) * out_stride
    temp = tl.load(temperature + row * temperature_stride)
    scale = 1.0 / temp
    maximum, log_total = tl.load(maxima + row), tl.load(log_totals + row)
    g, h = tl.load(grad_logprobs + row) * scale, tl.load(grad_entropies + row) * scale
    offset = g + h * tl.load(entropies + row)
    label = tl.load(labels + row) - first
    label = tl.where((label >= 0) & (label < width), label, -1).to(tl.int32)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    limit = width // 16 * 16  # a mask that ends at a multiple of 16 keeps accesses wide
    c = 1.0 / temp * _LOG2_E  # exactly that of the sums
    slope = h * _LN_2
    _gradient(
        start, place, bias, columns, columns < limit, label, c, maximum, log_total, slope, offset, g, cap, BIAS, CAP
    )
    if (limit < width) & (block == 0):
        last = limit + tl.arange(0, 16)
        _gradient(
            start, place, bias, last, last < width, label, c, maximum, log_total, slope, offset, g, cap, BIAS, CAP
        )


def slots(n: int, columns: int) -> int:
    """Programs that share a row of this many columns, where n rows are computed together; each writes sums."""
    most = min(columns // _LEAST_COLUMNS, -(-_PROGRAMS // max(1, n)))
    return max(1, most)


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
    """As `torch_rows.sum_tile`."""
    n = len(tile)
    if n == 0:
        return
    tile = _matrix(tile)
    _check_sums(sums, n, (4, 5), tile.device)
    outputs = (sums, sums.stride(0), sums.stride(1), sums, sums, sums)
    _sum(tile, labels, temperature, outputs, len(sums), first, bias, soft_cap, second=sums.shape[1] == 5, final=False)


def row_statistics(
    logits: Tensor, labels: Tensor, temperature: Tensor, *, second: bool, soft_cap: float | None = None
) -> RowStatistics:
    """As `torch_rows.row_statistics`: one kernel, or two where few rows are long."""
    n, columns = logits.shape
    parts = slots(n, columns)
    if parts > 1:
        sums = torch.empty(parts, 5 if second else 4, n, dtype=torch.float32, device=logits.device)
        sum_tile(logits, sums, labels, temperature, soft_cap=soft_cap)
        return statistics(sums, labels, temperature, columns)
    found = _Found(n, second, logits.device)
    if n:
        outputs = (found.rest, 0, 0, found.logprobs, found.entropies, found.rest)
        _sum(_matrix(logits), labels, temperature, outputs, 1, 0, None, soft_cap, second=second, final=True)
    return found.statistics()


class _Found:
    """Memory for the statistics of n rows."""

    def __init__(self, n: int, second: bool, device: torch.device) -> None:
        self.logprobs, self.entropies = (torch.empty(n, dtype=torch.float32, device=device) for _ in range(2))
        self.rest = torch.empty(4 if second else 2, n, dtype=torch.float32, device=device)

    def statistics(self) -> RowStatistics:
        more = self.rest[2:].unbind() if len(self.rest) == 4 else (None, None)
        return RowStatistics(self.logprobs, self.rest[0], self.rest[1], self.entropies, *more)


def _sum(
    tile: Tensor,
    labels: Tensor,
    temperature: Tensor,
    outputs: tuple[Any, ...],
    parts: int,
    first: int,
    bias: Tensor | None,
    soft_cap: float | None,
    *,
    second: bool,
    final: bool,
) -> None:
    n, columns = tile.shape
    lanes, warps = _lanes(tile), 1 if n * parts >= _MANY_PROGRAMS else WARPS
    threads = 32 * warps
    launch(
        _sums_kernel,
        (n, parts),
        tile,
        tile.stride(0),
        tile if bias is None else _vector("bias", bias, tile, columns),
        _vector("labels", labels, tile, n, torch.int64),
        *_temperature(temperature, tile),
        *outputs,
        n,
        first,
        columns,
        triton.cdiv(triton.cdiv(columns, 4 * threads * lanes), parts),
        soft_cap or 0.0,
        LANES=lanes,
        THREADS=threads,
        SECOND=second,
        BIAS=bias is not None,
        CAP=soft_cap is not None,
        FINAL=final,
        num_warps=warps,
    )


def statistics(sums: Tensor, labels: Tensor, temperature: Tensor, vocabulary: int) -> RowStatistics:
    """As `torch_rows.statistics`."""
    n, second = sums.shape[2], sums.shape[1] == 5
    found = _Found(n, second, sums.device)
    labels = _vector("labels", labels, sums[0, 0, :, None], n, torch.int64)
    outputs = (labels, *_temperature(temperature, labels), found.logprobs, found.entropies, found.rest)
    _merge(sums, outputs, vocabulary, final=True)
    return found.statistics()


def merged(sums: Tensor) -> Tensor:
    """As `torch_rows.merged`."""
    out = torch.empty_like(sums[:1], memory_format=torch.contiguous_format)
    _merge(sums, (out, out, 0, out, out, out), 0, final=False)
    return out


def _merge(sums: Tensor, outputs: tuple[Any, ...], vocabulary: int, *, final: bool) -> None:
    parts, quantities, n = sums.shape
    if n:
        constants = {"THREADS": THREADS, "SECOND": quantities == 5, "FINAL": final, "num_warps": WARPS}
        grid = (triton.cdiv(n, THREADS),)
        launch(_merge_kernel, grid, sums.contiguous(), *outputs, n, parts, vocabulary, **constants)


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
    """As `torch_rows.gradient_`. Autograd learns of the change, as of any operation in place.

    Raises:
        ShapeError: rows of what is written overlap in memory, or its columns are not contiguous.
    """
    n, columns = tile.shape
    if n == 0 or columns == 0:
        return
    vectors = _gradient_vectors(tile, maxima, log_totals, entropies, grad_logprobs, grad_entropies)
    target = _target("tile" if out is None else "out", tile if out is None else out, tile)
    tile = target if out is None else _matrix(tile)
    blocks = triton.cdiv(columns, GRADIENT_BLOCK)
    launch(
        _gradient_kernel,
        (n * blocks,),
        tile,
        tile.stride(0),
        target,
        target.stride(0),
        tile if bias is None else _vector("bias", bias, tile, columns),
        _vector("labels", labels, tile, n, torch.int64),
        *_temperature(temperature, tile),
        *vectors,
        first,
        columns,
        blocks,
        soft_cap or 0.0,
        BLOCK=GRADIENT_BLOCK,
        BIAS=bias is not None,
        CAP=soft_cap is not None,
        num_warps=WARPS,
    )
    torch.autograd.graph.increment_version(target)


def _lanes(x: Tensor) -> int:
    """Columns that a thread reads at once: 16 bytes, or one where rows begin anywhere."""
    return 16 // x.element_size() if x.stride(0) % 16 == 0 and x.data_ptr() % 16 == 0 else 1


def launch(kernel: Any, grid: tuple[int, ...], first: Tensor, *arguments: Any, **constants: Any) -> None:
    """Run a kernel on the GPU of its first argument, which need not be the current one."""
    with torch.cuda.device_of(first):
        kernel[grid](first, *arguments, **constants)


def _matrix(x: Tensor) -> Tensor:
    """A matrix to read, (n, w): columns contiguous, rows at any distance."""
    if x.is_neg():
        x = x.resolve_neg()  # a lazy minus sign is not in memory
    return x if x.stride(1) == 1 else x.contiguous()


def _vector(name: str, x: Tensor, tile: Tensor, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """A vector to read, (size,) contiguous, on the tile's device."""
    if x.shape != (size,) or x.device != tile.device:
        raise ShapeError(
            f"{name}: got shape {tuple(x.shape)} on {x.device}, expected ({size},) on {tile.device}, as the tile"
        )
    if x.dtype == (dtype or x.dtype) and x.is_contiguous() and not x.is_neg():
        return x  # as nearly always: each of the calls below takes the host a microsecond or more
    return x.resolve_neg().to(dtype or x.dtype).contiguous()


def _gradient_vectors(tile: Tensor, *given: Tensor) -> list[Tensor]:
    """What a gradient's kernel reads of each row of the tile: statistics, and the two upstream gradients."""
    names = ("maxima", "log_totals", "entropies", "grad_logprobs", "grad_entropies")
    return [_vector(name, x, tile, len(tile), torch.float32) for name, x in zip(names, given, strict=True)]


def _temperature(x: Tensor, tile: Tensor) -> tuple[Tensor, int]:
    """The temperatures to read, one for each row of the tile, and their stride: 0 if it is one number."""
    if x.shape != tile.shape[:1] or x.device != tile.device:
        raise ShapeError(f"temperature: got shape {tuple(x.shape)} on {x.device}, expected {tuple(tile.shape[:1])}")
    if x.stride(0) == 0:
        return x[:1].resolve_neg().to(torch.float32), 0
    return x.resolve_neg().to(torch.float32).contiguous(), 1


def _check_sums(sums: Tensor, n: int, quantities: tuple[int, ...], device: torch.device) -> None:
    """Raises ShapeError unless these are sums (slots, quantities, n) that a kernel can write."""
    fits = sums.ndim == 3 and sums.shape[1] in quantities and sums.shape[2] == n and sums.dtype == torch.float32
    if not fits or (sums.stride(2) != 1 and n > 1) or sums.is_neg() or sums.device != device:
        raise ShapeError(
            f"sums: got {sums.dtype} {tuple(sums.shape)} with strides {sums.stride()} on {sums.device}, expected "
            f"float32 (slots, {' or '.join(map(str, quantities))}, {n}) with stride 1 between rows, on {device}"
        )


def _target(name: str, x: Tensor, tile: Tensor) -> Tensor:
    """A matrix to write: columns contiguous, no two elements in one place."""
    strides_fit = x.stride(-1) == 1 and (x.shape[0] == 1 or x.stride(0) >= x.shape[1])
    if x.shape[-1] == 1:
        strides_fit = x.shape[0] == 1 or x.stride(0) >= 1
    if not strides_fit or x.is_neg() or x.device != tile.device or x.shape != tile.shape:
        raise ShapeError(
            f"{name}: got shape {tuple(x.shape)}, strides {x.stride()} on {x.device}; it is written in place and needs "
            f"{tuple(tile.shape)} with contiguous columns that do not overlap, on {tile.device}. Try: contiguous()"
        )
    return x


@triton.jit
def _add_kl(x, y, c, m, s, n, r, t):
    """Add logits of both rows to each thread's sums: bases m and n, totals s and r, t = Σ 2^(x−m) [(x−m) − (y−n)]."""
    m_new, n_new = tl.maximum(m, tl.max(x, axis=1) * c), tl.maximum(n, tl.max(y, axis=1) * c)
    m_base, n_base = _finite(m_new), _finite(n_new)
    m_shift, n_shift = _bounded(m - m_base), _bounded(n - n_base)
    shrink = tl.exp2(m_shift)
    x, y = x * c - m_base[:, None], y * c - n_base[:, None]
    weight = tl.exp2(x)
    # Where p is 0 the term is 0, also if q is; p > 0 with q = 0 is an infinite KL.
    term = weight * tl.where(weight == 0.0, 0.0, x - y)
    # An empty sum has no base yet: its shift is IMPOSSIBLE and its terms are 0.
    t = tl.where(s == 0.0, 0.0, shrink * (t + s * (m_shift - n_shift))) + tl.sum(term, axis=1)
    s = shrink * s + tl.sum(weight, axis=1)
    r = tl.exp2(n_shift) * r + tl.sum(tl.exp2(y), axis=1)
    return m_new, s, n_new, r, t


@triton.jit
def _pair(start, columns, step, limit, cap, MASK: tl.constexpr, CAP: tl.constexpr):
    """Two blocks (threads, lanes) of logits as one, in which each thread has a row of its own."""
    a = _some(start, start, columns, limit, cap, MASK, False, CAP)
    b = _some(start, start, columns + step, limit, cap, MASK, False, CAP)
    return tl.join(a, b).reshape([columns.shape[0], 2 * columns.shape[1]])


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _kl_sums_kernel(
    logits,
    stride,
    other,
    other_stride,
    sums,
    slot_stride,
    sum_stride,
    scale,
    width,
    share,
    cap,
    LANES: tl.constexpr,
    THREADS: tl.constexpr,
    CAP: tl.constexpr,
):
    row = tl.program_id(0)
    step: tl.constexpr = THREADS * LANES
    begin = tl.program_id(1) * share * (2 * step)
    end = tl.maximum(begin, tl.minimum(begin + share * (2 * step), width))
    p_row = logits + row.to(tl.int64) * stride
    q_row = other + row.to(tl.int64) * other_stride
    c = scale * _LOG2_E
    m = tl.full([THREADS], _NOTHING, tl.float32)
    s = tl.zeros([THREADS], tl.float32)
    n, r, t = m, s, s
    columns = tl.arange(0, THREADS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    whole = begin + (end - begin) // (2 * step) * (2 * step)
    for at in range(begin, whole, 2 * step):
        x = _pair(p_row, at + columns, step, end, cap, False, CAP)
        y = _pair(q_row, at + columns, step, end, cap, False, CAP)
        m, s, n, r, t = _add_kl(x, y, c, m, s, n, r, t)
    limit = end // 16 * 16
    if whole < limit:
        x = _pair(p_row, whole + columns, step, limit, cap, True, CAP)
        y = _pair(q_row, whole + columns, step, limit, cap, True, CAP)
        m, s, n, r, t = _add_kl(x, y, c, m, s, n, r, t)
    if limit < end:
        last = limit + tl.arange(0, THREADS)
        x = _some(p_row, p_row, last, end, cap, True, False, CAP)
        y = _some(q_row, q_row, last, end, cap, True, False, CAP)
        m, s, n, r, t = _add_kl(x[:, None], y[:, None], c, m, s, n, r, t)
    p_largest, q_largest = tl.max(m, axis=0), tl.max(n, axis=0)
    p_shift, q_shift = _bounded(m - _finite(p_largest)), _bounded(n - _finite(q_largest))
    shrink = tl.exp2(p_shift)
    t = tl.sum(tl.where(s == 0.0, 0.0, shrink * (t + s * (p_shift - q_shift))), axis=0)
    sums += tl.program_id(1).to(tl.int64) * slot_stride + row
    tl.store(sums, p_largest)
    tl.store(sums + sum_stride, tl.sum(shrink * s, axis=0))
    tl.store(sums + 2 * sum_stride, q_largest)
    tl.store(sums + 3 * sum_stride, tl.sum(tl.exp2(q_shift) * r, axis=0))
    tl.store(sums + 4 * sum_stride, t)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _kl_merge_kernel(sums, rows, n, parts, THREADS: tl.constexpr):
    row = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    inside = row < n
    slot = 5 * n.to(tl.int64)
    p_largest = tl.full([THREADS], _NOTHING, tl.float32)
    q_largest = p_largest
    for part in range(parts):
        place = sums + part * slot + row
        p_largest = tl.maximum(p_largest, tl.load(place, mask=inside, other=0.0))
        q_largest = tl.maximum(q_largest, tl.load(place + 2 * n, mask=inside, other=0.0))
    p_base, q_base = _finite(p_largest), _finite(q_largest)
    total = tl.zeros([THREADS], tl.float32)
    other_total, moment = total, total
    for part in range(parts):
        place = sums + part * slot + row
        p_shift = _bounded(tl.load(place, mask=inside, other=0.0) - p_base)
        q_shift = _bounded(tl.load(place + 2 * n, mask=inside, other=0.0) - q_base)
        s = tl.load(place + n, mask=inside, other=1.0)
        t = tl.load(place + 4 * n, mask=inside, other=0.0)
        shrink = tl.exp2(p_shift)
        moment += tl.where(s == 0.0, 0.0, shrink * (t + s * (p_shift - q_shift)))
        total += shrink * s
        other_total += tl.exp2(q_shift) * tl.load(place + 3 * n, mask=inside, other=1.0)
    log_s, log_r = tl.log2(total), tl.log2(other_total)
    tl.store(rows + row, (moment / total - log_s + log_r) * _LN_2, mask=inside)  # KL = t / s − log s + log r
    tl.store(rows + n + row, p_largest, mask=inside)
    tl.store(rows + 2 * n + row, log_s, mask=inside)
    tl.store(rows + 3 * n + row, q_largest, mask=inside)
    tl.store(rows + 4 * n + row, log_r, mask=inside)


@triton.jit
def _kl_gradient(
    p_row,
    q_row,
    p_out,
    q_out,
    columns,
    inside,
    c,
    g,
    kl,
    m,
    log_s,
    n,
    log_r,
    cap,
    P: tl.constexpr,
    Q: tl.constexpr,
    CAP: tl.constexpr,
):
    """Write both gradients of some columns."""
    x = _logits(p_row, p_row, columns, inside, cap, False, CAP)
    y = _logits(q_row, q_row, columns, inside, cap, False, CAP)
    log_p = _bounded(x * c - m - log_s)
    log_q = y * c - n - log_r
    p = tl.exp2(log_p)
    if Q:
        dy = (tl.exp2(_bounded(log_q)) - p) * g
        if CAP:
            dy *= 1.0 - (y / cap) * (y / cap)
        tl.store(q_out + columns, dy.to(q_out.dtype.element_ty), mask=inside)
    if P:
        dx = p * (tl.where(p == 0.0, 0.0, log_p - log_q) * _LN_2 - kl) * g
        if CAP:
            dx *= 1.0 - (x / cap) * (x / cap)
        tl.store(p_out + columns, dx.to(p_out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_VECTORS)
def _kl_gradient_kernel(
    logits,
    stride,
    other,
    other_stride,
    rows,
    sum_stride,
    grad,
    grad_logits,
    grad_stride,
    grad_other,
    grad_other_stride,
    scale,
    width,
    blocks,
    cap,
    BLOCK: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    CAP: tl.constexpr,
):
    row, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    p_row, q_row = logits + row.to(tl.int64) * stride, other + row.to(tl.int64) * other_stride
    p_out, q_out = grad_logits + row.to(tl.int64) * grad_stride, grad_other + row.to(tl.int64) * grad_other_stride
    g = tl.load(grad + row) * scale
    c = scale * _LOG2_E
    kl, m, log_s = tl.load(rows + row), tl.load(rows + sum_stride + row), tl.load(rows + 2 * sum_stride + row)
    n, log_r = tl.load(rows + 3 * sum_stride + row), tl.load(rows + 4 * sum_stride + row)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    limit = width // 16 * 16
    _kl_gradient(p_row, q_row, p_out, q_out, columns, columns < limit, c, g, kl, m, log_s, n, log_r, cap, P, Q, CAP)
    if (limit < width) & (block == 0):
        last = limit + tl.arange(0, 16)
        _kl_gradient(p_row, q_row, p_out, q_out, last, last < width, c, g, kl, m, log_s, n, log_r, cap, P, Q, CAP)


def kl_sum_tile(logits: Tensor, other: Tensor, scale: float, sums: Tensor, *, soft_cap: float | None = None) -> None:
    """As `torch_rows.kl_sum_tile`."""
    n, columns = logits.shape
    if n == 0:
        return
    _check_pair(logits, other)
    _check_sums(sums, n, (5,), logits.device)
    logits, other = _matrix(logits), _matrix(other)
    lanes = min(_lanes(logits), _lanes(other))
    launch(
        _kl_sums_kernel,
        (n, len(sums)),
        logits,
        logits.stride(0),
        other,
        other.stride(0),
        sums,
        sums.stride(0),
        sums.stride(1),
        scale,
        columns,
        triton.cdiv(triton.cdiv(columns, 2 * THREADS * lanes), len(sums)),
        soft_cap or 0.0,
        LANES=lanes,
        THREADS=THREADS,
        CAP=soft_cap is not None,
        num_warps=WARPS,
    )


def kl_statistics(sums: Tensor) -> Tensor:
    """As `torch_rows.kl_statistics`."""
    parts, _, n = sums.shape
    rows = torch.empty(5, n, dtype=torch.float32, device=sums.device)
    if n:
        grid = (triton.cdiv(n, THREADS),)
        launch(_kl_merge_kernel, grid, sums.contiguous(), rows, n, parts, THREADS=THREADS, num_warps=WARPS)
    return rows


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
    """As `torch_rows.kl_backward`."""
    n, columns = logits.shape
    if n == 0 or (grad_logits is None and grad_other is None):
        return
    _check_pair(logits, other)
    if rows.shape != (5, n) or rows.dtype != torch.float32 or rows.device != logits.device:
        raise ShapeError(f"rows: got {rows.dtype} {tuple(rows.shape)}, expected (5, {n}) float32")
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    logits, other = _matrix(logits), _matrix(other)
    for_p = logits if grad_logits is None else _target("grad_logits", grad_logits, logits)
    for_q = other if grad_other is None else _target("grad_other", grad_other, other)
    blocks = triton.cdiv(columns, KL_BLOCK)
    launch(
        _kl_gradient_kernel,
        (n * blocks,),
        logits,
        logits.stride(0),
        other,
        other.stride(0),
        rows,
        rows.stride(0),
        _vector("grad", grad, logits, n, torch.float32),
        for_p,
        for_p.stride(0),
        for_q,
        for_q.stride(0),
        scale,
        columns,
        blocks,
        soft_cap or 0.0,
        BLOCK=KL_BLOCK,
        P=grad_logits is not None,
        Q=grad_other is not None,
        CAP=soft_cap is not None,
        num_warps=WARPS,
    )


def _check_pair(logits: Tensor, other: Tensor) -> None:
    if other.shape != logits.shape or other.device != logits.device:
        raise ShapeError(
            f"other: got {tuple(other.shape)} on {other.device}, expected {tuple(logits.shape)} on {logits.device}"
        )
