"""Log-probabilities and entropies of hidden × weight without the (N, V) logits, and their gradients.

Only one tile of logits exists at a time: some rows by some columns of the vocabulary. `torch_rows` has the formulas of
its row kernels; the gradient of the temperature T is

    dT = [h Var_p(z) − g (z_y − E_p z)] / T,    z the logits over the temperature.

The inner loop is over the vocabulary: the weight's gradient for some columns is then one product over all rows of a
chunk, accumulated in float32 inside the product, and the hidden states' gradient is summed over tiles in float32. If
the logits are kept for the backward pass, it needs three matrix products instead of four. Where they are not kept, a
Hopper GPU computes and sums them in one kernel, and the same for their gradient (`triton_products`): no logit is in
memory then.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from swe_trainers.kernels.allowed import AllowedTokens
from swe_trainers.kernels.choice import product_kernels
from swe_trainers.kernels.torch_rows import RowStatistics

__all__ = [
    "Gradients",
    "Plan",
    "Tiles",
    "VocabularyShard",
    "busiest_width",
    "default_plan",
    "forward_shape",
    "gradients_of",
    "project",
    "statistics_of",
    "tile_shape",
    "wide_logits",
]

_CPU_TILE_BYTES = 32 * 2**20
_CPU_ROWS = 1024
_GPU_FRACTION = 0.047
"""Of the full logits: a tile, and what the sum of the hidden states' gradient takes beyond that gradient."""
_GPU_LEAST_TILE_BYTES = 16 * 2**20
"""Products of smaller tiles do not fill a GPU."""
_GPU_ROWS = 32768
"""Adding up the weight's gradient in float32 takes 190 / 32768 of the product's time with chunks of this many rows."""
_GPU_FORWARD_ROWS = 2048
"""Of a tile whose logits are only summed: longer rows in as much memory are summed faster."""
_COLUMN_MULTIPLE = 256
_ADDITION = 1.6e-4
"""Time to add a number to a sum in memory; 1 is the time of a block's product with a row on a multiprocessor (H200)."""
_KEEP_FRACTION_OF_FREE_MEMORY = 0.4
_ADDS_TO_FLOAT32 = torch.torch_version.TorchVersion(torch.__version__) >= "2.10"
"""PyTorch 2.8 and 2.9 have `addmm.dtype_out`, but the sum that is added to must have the dtype of the factors there."""

Head: TypeAlias = tuple[Tensor, Tensor, Tensor | None]
"""What logits are products of: rows (N, D), weight (V, D), and a bias (V,) or None."""


@dataclass(frozen=True)
class Plan:
    """The tiles.

    Attributes:
        rows, columns: of a tile.
        keep: keep all logits for the backward pass.
        logits_dtype: of the tiles; None for that of the hidden states.
        soft_cap: bounds the logits; or None.
        forward: rows and columns of a tile of the forward pass, if they are others; not where the logits are kept.
    """

    rows: int
    columns: int
    keep: bool
    logits_dtype: torch.dtype | None = None
    soft_cap: float | None = None
    forward: tuple[int, int] | None = None


@dataclass(frozen=True)
class VocabularyShard:
    """The part of the vocabulary on this process (tensor parallelism over the unembedding).

    Attributes:
        start: the first token of this process's rows of the weight.
        vocabulary: V, the tokens on all processes together.
        group: the processes.
    """

    start: int
    vocabulary: int
    group: dist.ProcessGroup


def default_plan(
    rows: Tensor,
    vocabulary: int,
    *,
    chunk_rows: int | None = None,
    chunk_columns: int | None = None,
    save_logits: bool | str = "auto",
    logits_dtype: torch.dtype | None = None,
    soft_cap: float | None = None,
    tiles: int = 1,
) -> Plan:
    """Tiles that fit the memory of the device.

    Args:
        rows: (N, D) the hidden states.
        vocabulary: columns of the logits on this process.
        chunk_rows: rows of a tile; None chooses.
        chunk_columns: columns of a tile; None chooses, or takes all columns if `chunk_rows` is given.
        save_logits: keep the logits for the backward pass; "auto": if they fit one tile or 0.4 of a GPU's free memory.
        logits_dtype: of the tiles; None for that of the hidden states.
        soft_cap: bounds the logits; or None.
        tiles: that exist together.
    """
    size_bytes = (logits_dtype or rows.dtype).itemsize
    height, width = tile_shape(
        rows.shape[0],
        vocabulary,
        size_bytes,
        sum_bytes=rows.shape[1] * max(0, 4 - rows.dtype.itemsize),
        gradient_bytes=0 if size_bytes == rows.dtype.itemsize else rows.dtype.itemsize,
        tiles=tiles,
        gpu=rows.is_cuda,
        height=chunk_rows,
        width=chunk_columns,
    )
    n = max(1, rows.shape[0])
    full = n * vocabulary * size_bytes
    if save_logits == "auto":
        keep = height >= n and width >= vocabulary
        capturing = rows.is_cuda and torch.cuda.is_current_stream_capturing()
        if rows.is_cuda and not keep and not capturing and chunk_rows is None and chunk_columns is None:
            free, _ = torch.cuda.mem_get_info(rows.device)
            cached = torch.cuda.memory_reserved(rows.device) - torch.cuda.memory_allocated(rows.device)
            keep = full <= _KEEP_FRACTION_OF_FREE_MEMORY * (free + cached)
    else:
        keep = bool(save_logits)
    forward = None
    if rows.is_cuda and chunk_rows is None and chunk_columns is None:
        forward = forward_shape(n, vocabulary, size_bytes)
        if not keep:
            processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
            width = busiest_width(width, height, rows.shape[1], vocabulary, processors)
    return Plan(height, width, keep, logits_dtype, soft_cap, forward)


def forward_shape(n: int, vocabulary: int, size_bytes: int) -> tuple[int, int]:
    """Rows and columns of a tile of the forward pass on a GPU; arguments as of `tile_shape`."""
    n = max(1, n)
    rows = min(n, _GPU_FORWARD_ROWS)
    budget = max(int(_GPU_FRACTION * n * vocabulary * size_bytes), _GPU_LEAST_TILE_BYTES)
    return rows, min(_equal_width(budget // (rows * size_bytes), vocabulary), vocabulary)


@functools.lru_cache(maxsize=1024)
def busiest_width(most: int, n: int, hidden: int, vocabulary: int, multiprocessors: int) -> int:
    """Columns of a tile whose three products keep a GPU busiest, from half of `most` to `most`.

    A multiprocessor computes a block of 128 × 256 of a product's result at a time. The blocks of the logits
    (n, columns), of the weight's gradient (columns, D) and of the hidden states' (n, D) are hundreds, and often not
    nearly a multiple of the multiprocessors: the last of them then leave most of the GPU idle, for as long as a block
    takes.

    Args:
        most: columns that fit the memory.
        n, hidden: rows and width D of the hidden states.
        vocabulary: columns in all.
        multiprocessors: of the GPU.
    """

    def turns(height: int, width: int) -> int:
        return -(-(-(-height // 128) * -(-width // 256)) // multiprocessors)

    def time(width: int) -> float:
        """A column's, in units of a block's product with one row."""
        products = turns(n, width) * hidden + turns(width, hidden) * n + turns(n, hidden) * width
        return (products + _ADDITION * n * hidden) / width

    if most >= vocabulary or most < 2 * _COLUMN_MULTIPLE:
        return most
    largest = most // _COLUMN_MULTIPLE * _COLUMN_MULTIPLE
    return min(range(largest, most // 2, -_COLUMN_MULTIPLE), key=time)


def tile_shape(
    n: int,
    vocabulary: int,
    size_bytes: int,
    *,
    gpu: bool,
    sum_bytes: int = 0,
    gradient_bytes: int = 0,
    tiles: int = 1,
    height: int | None = None,
    width: int | None = None,
) -> tuple[int, int]:
    """Rows and columns of a tile. Tiles of one call are about equally wide: no product is much smaller than the others.

    Args:
        n: rows of the hidden states.
        vocabulary: columns of the logits.
        size_bytes: of a logit.
        gpu: the extra memory is a fraction of the logits there, and a tile fits the processor's cache elsewhere.
        sum_bytes: of each row, which the float32 sum of its gradient takes beyond the gradient.
        gradient_bytes: of a logit's gradient, if it is written beside the tile.
        tiles: of these exist together, each with such a sum.
        height: rows if given; `width`: columns if given, or all columns if only `height` is.
    """
    n = max(1, n)
    budget = max(int(_GPU_FRACTION * n * vocabulary * size_bytes) - tiles * n * sum_bytes, _GPU_LEAST_TILE_BYTES)
    rows = min(n, height or (_GPU_ROWS if gpu else _CPU_ROWS))
    if width is None and height is None:
        row_bytes = rows * (size_bytes + gradient_bytes) * tiles
        width = _equal_width((budget if gpu else _CPU_TILE_BYTES) // row_bytes, vocabulary)
    return rows, max(1, min(width or vocabulary, vocabulary))


def _equal_width(most: int, vocabulary: int) -> int:
    """Columns of tiles that divide a vocabulary about equally: at most `most`, or the least there is."""
    multiples = -(-vocabulary // _COLUMN_MULTIPLE)
    count = -(-multiples // max(1, most // _COLUMN_MULTIPLE))
    return -(-multiples // count) * _COLUMN_MULTIPLE


def project(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: Tensor,
    *,
    plan: Plan,
    kernels: ModuleType,
    shard: VocabularyShard | None = None,
    allowed: AllowedTokens | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `ids` and entropies, with gradients to `rows`, `weight`, `bias` and `temperature`.

    Args:
        rows: (N, D). weight: (V, D). bias: (V,) or None. ids: (N,) int64 in [0, V). temperature: (N,).
        plan: the tiles.
        kernels: `triton_rows` or `torch_rows`.
        shard: the part of the vocabulary that `weight` holds; `ids` count over the whole vocabulary.
        allowed: which columns each of the N rows may choose; its masks have V columns.
    Returns:
        (logprobs, entropy), each (N,), float32 (float64 if `rows` is).
    """
    learnt = [x for x in (rows, weight, bias, temperature) if x is not None and x.requires_grad]
    if learnt and torch.is_grad_enabled():
        logprobs, entropy = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
            rows, weight, bias, ids, temperature, plan, kernels, shard, allowed
        )
        return logprobs, entropy
    with torch.no_grad():  # scoring: one tile of logits, whatever the plan keeps for a backward pass
        plan, head = replace(plan, keep=False), (rows, weight, bias)
        found, _ = statistics_of(
            head, ids, temperature, plan=plan, kernels=kernels, shard=shard, allowed=allowed, second=False
        )
    return found.logprobs, found.entropies


def statistics_of(
    head: Head,
    ids: Tensor,
    temperature: Tensor,
    *,
    plan: Plan,
    kernels: ModuleType,
    shard: VocabularyShard | None = None,
    allowed: AllowedTokens | None = None,
    second: bool,
) -> tuple[RowStatistics, Tensor | None]:
    """Statistics of the rows (with variances where `second`), and the logits if they are kept."""
    rows, weight, bias = head
    first, vocabulary = (0, len(weight)) if shard is None else (shard.start, shard.vocabulary)
    products = None if plan.keep else _products_for(kernels, rows, weight, bias, allowed)
    kept = None
    if products is not None:
        parts = []
        for columns in _slices(len(weight), plan.columns if weight.dtype != rows.dtype else len(weight)):
            factors, start = (rows, _converted(weight[columns], rows.dtype)), first + columns.start
            rounded = plan.logits_dtype is None
            given = {"second": second, "rounded": rounded, "first": start, "soft_cap": plan.soft_cap}
            parts.append(products.sum_product(*factors, ids, temperature, **given))
        sums = torch.cat(parts) if len(parts) > 1 else parts[0]
    else:
        sums, kept = _sums_of_tiles(
            head, ids, temperature, plan=plan, kernels=kernels, allowed=allowed, first=first, second=second
        )
    if shard is not None:
        sums = _gathered(kernels.merged(sums), shard.group)
    return kernels.statistics(sums, ids, temperature, vocabulary), kept


def _sums_of_tiles(
    head: Head,
    ids: Tensor,
    temperature: Tensor,
    *,
    plan: Plan,
    kernels: ModuleType,
    allowed: AllowedTokens | None,
    first: int,
    second: bool,
) -> tuple[Tensor, Tensor | None]:
    """Sums of each tile's rows (slots, 4 or 5, N), and the logits if they are kept."""
    rows, weight, bias = head
    dtype = torch.float64 if rows.dtype == torch.float64 else torch.float32
    if plan.forward is not None and not plan.keep:
        plan = replace(plan, rows=plan.forward[0], columns=plan.forward[1])
    tiles = Tiles(rows, weight, plan, keep=plan.keep, allowed=allowed, first=first)
    height, width, count = tiles.shape
    slots = kernels.slots(height, width)  # of each tile
    sums = torch.empty(count * slots, 5 if second else 4, len(rows), dtype=dtype, device=rows.device)
    part, given = None, (sums, ids, temperature)
    for rows_of_tile, columns, tile in tiles:
        if rows_of_tile is not part:  # slices take the host some time, which short products do not hide
            part, given = rows_of_tile, (sums[..., rows_of_tile], ids[rows_of_tile], temperature[rows_of_tile])
        sums_of_part, *vectors = given
        part_of_bias = None if bias is None else bias[columns]
        at, start = columns.start // width * slots, first + columns.start
        kernels.sum_tile(
            tile, sums_of_part[at : at + slots], *vectors, first=start, bias=part_of_bias, soft_cap=plan.soft_cap
        )
    return sums, tiles.kept


def _products_for(
    kernels: ModuleType, rows: Tensor, weight: Tensor, bias: Tensor | None, allowed: AllowedTokens | None
) -> ModuleType | None:
    """The kernels that keep no logits; None where there are none, or the logits have a bias or are restricted."""
    return None if bias is not None or allowed is not None else product_kernels(kernels, rows, weight)


def _slices(size: int, step: int) -> Iterator[slice]:
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def _converted(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight in another dtype, with contiguous rows as the products read them; otherwise as it is."""
    return weight if weight.dtype == dtype else weight.to(dtype, memory_format=torch.contiguous_format)


def _gathered(sums: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sums (1, …) of each rank's columns, as (ranks, …), equal on every rank."""
    together = sums.new_empty(dist.get_world_size(group), *sums.shape[1:])
    dist.all_gather_into_tensor(together, sums, group=group)
    return together


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        temperature: Tensor,
        plan: Plan,
        kernels: ModuleType,
        shard: VocabularyShard | None,
        allowed: AllowedTokens | None,
    ) -> tuple[Tensor, Tensor]:
        kept_plan = replace(plan, keep=plan.keep and any(ctx.needs_input_grad[:3]))
        found, kept = statistics_of(
            (rows, weight, bias),
            ids,
            temperature,
            plan=kept_plan,
            kernels=kernels,
            shard=shard,
            allowed=allowed,
            second=ctx.needs_input_grad[4],
        )
        ctx.plan, ctx.kernels, ctx.shard, ctx.overwritten = plan, kernels, shard, False
        ctx.allowed = allowed
        ctx.save_for_backward(
            kept,
            rows,
            weight,
            bias,
            ids,
            temperature,
            found.maxima,
            found.log_totals,
            found.entropies,
            found.deviations,
            found.variances,
        )
        return found.logprobs, found.entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        kept, rows, weight, bias, ids, temperature, maxima, log_totals, entropies, deviations, variances = (
            ctx.saved_tensors
        )
        if ctx.overwritten:  # by the gradients of an earlier backward pass: the logits are computed again
            kept = None
        g, h = (grad.to(log_totals.dtype).contiguous() for grad in (grad_logprobs, grad_entropies))
        found = gradients_of(
            (rows, weight, bias),
            (ids, temperature, maxima, log_totals, entropies, g, h),
            ctx.needs_input_grad[:3],
            plan=ctx.plan,
            kernels=ctx.kernels,
            shard=ctx.shard,
            allowed=ctx.allowed,
            # `data`: only this function reads the kept logits again, and it knows that they are overwritten.
            kept=None if kept is None else kept.data,
        )
        ctx.overwritten = ctx.overwritten or kept is not None
        grad_temperature = None
        if variances is not None:
            grad_temperature = (h * variances - g * deviations) / temperature
        return (*found, None, grad_temperature, None, None, None, None)


def gradients_of(
    head: Head,
    statistics: tuple[Tensor, ...],
    needed: tuple[bool, bool, bool],
    *,
    plan: Plan,
    kernels: ModuleType,
    shard: VocabularyShard | None = None,
    allowed: AllowedTokens | None = None,
    kept: Tensor | None = None,
) -> list[Tensor | None]:
    """Gradients of rows, weight and bias, each None if it is not needed.

    Args:
        head: rows, weight and bias.
        statistics: (N,) each: labels, temperatures, maxima, log-totals, entropies and the two upstream gradients.
        needed: which gradients.
        plan, kernels, shard, allowed: as of `project`.
        kept: (N, V) logits of the forward pass, overwritten; None computes them again.
    """
    rows, weight, bias = head
    first = 0 if shard is None else shard.start
    sums = Gradients(rows, weight, bias, plan, needed, whole=kept is not None)
    products = None if kept is not None else _products_for(kernels, rows, weight, bias, allowed)
    rounded = plan.logits_dtype is None
    if products is not None:  # a tile then holds gradients alone
        plan = replace(plan, logits_dtype=None)
    tiles = Tiles(rows, weight, plan, kept=kept, allowed=allowed, first=first, multiply=products is None)
    part, own = None, statistics
    for rows_of_tile, columns, tile in tiles if any(needed) else ():
        if rows_of_tile is not part:
            part, own = rows_of_tile, tuple(x[rows_of_tile] for x in statistics)
        options: dict[str, Any] = {"first": first + columns.start, "soft_cap": plan.soft_cap}
        converted = None
        if products is not None:
            converted = _converted(weight[columns], rows.dtype)
            products.gradient_product(rows[rows_of_tile], converted, *own, out=tile, rounded=rounded, **options)
            dz = tile
        else:
            part_of_bias = None if bias is None else bias[columns]
            beside = sums.target(tile)
            kernels.gradient_(tile, *own, part_of_bias, out=beside, **options)
            dz = tile if beside is None else beside
        sums.add(rows_of_tile, columns, dz, converted)
    if sums.rows is not None and shard is not None:  # each process has only its own columns
        dist.all_reduce(sums.rows, group=shard.group)
    return sums.narrowed()


class Tiles:
    """Iterates over tiles of logits, computed into one buffer that each tile overwrites, or into one that keeps all.

    Args:
        kept: logits kept by the forward pass, (N, V).
        allowed: which tokens each row may choose; the logits of others are −inf.
        first: the column of `allowed` that is the first row of the weight.
        multiply: compute the logits; without it the tiles' contents are undefined.
    """

    def __init__(
        self,
        rows: Tensor,
        weight: Tensor,
        plan: Plan,
        *,
        keep: bool = False,
        kept: Tensor | None = None,
        allowed: AllowedTokens | None = None,
        first: int = 0,
        multiply: bool = True,
    ) -> None:
        self._allowed, self._first = allowed, first
        self._rows, self._weight = rows, weight
        self.kept, self._known, self._multiplies = kept, kept is not None, multiply
        if keep or self._known:
            # All columns are in memory anyway: one product for all of them.
            plan = replace(plan, columns=weight.shape[0], keep=True)
        self._plan = plan
        if keep:
            self.kept = _Buffer(rows, len(rows), weight.shape[0], plan.logits_dtype).tile(len(rows), weight.shape[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows and columns of a tile, and the number of tiles side by side."""
        width = min(self._plan.columns, len(self._weight))
        return min(self._plan.rows, len(self._rows)), width, -(-len(self._weight) // width)

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yields the rows and columns of a tile and the tile itself, (n, w)."""
        n, vocabulary = len(self._rows), self._weight.shape[0]
        plan, shared = self._plan, None
        if self.kept is None:
            shared = _Buffer(self._rows, min(plan.rows, n), plan.columns, plan.logits_dtype)
        for top in range(0, n, self._plan.rows):
            part = slice(top, min(top + self._plan.rows, n))
            rows = self._rows[part]
            for left in range(0, vocabulary, self._plan.columns):
                columns = slice(left, min(left + self._plan.columns, vocabulary))
                if shared is None:
                    assert self.kept is not None
                    tile = self.kept[part, columns]
                else:
                    tile = shared.tile(part.stop - top, columns.stop - left)
                if self._multiplies and not self._known:
                    _product(rows, self._weight[columns], tile)
                    if self._allowed is not None:
                        self._allowed.hide_(tile, part, columns, self._first)
                yield part, columns, tile


class _Buffer:
    """Memory for tiles of logits.

    On a GPU rows start at multiples of 64 elements, which keeps the kernels' loads wide. On a CPU a tile has no gaps:
    PyTorch's bfloat16 products read them.
    """

    def __init__(self, like: Tensor, height: int, width: int, dtype: torch.dtype | None) -> None:
        stride = -(-width // 64) * 64 if like.is_cuda else width
        self._memory = torch.empty(height, stride, dtype=dtype or like.dtype, device=like.device)

    def tile(self, height: int, width: int) -> Tensor:
        """A tile (height, width) with undefined contents."""
        if self._memory.is_cuda:
            return self._memory[:height, :width]
        return self._memory.view(-1)[: height * width].view(height, width)


class Gradients:
    """Gradients summed over tiles, in float32 if several tiles add to the same place."""

    def __init__(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        plan: Plan,
        needed: tuple[bool, bool, bool],
        *,
        whole: bool,
    ) -> None:
        one_column_tile = whole or plan.columns >= weight.shape[0]
        one_row_tile = plan.rows >= len(rows)
        exact = torch.float64 if rows.dtype == torch.float64 else torch.float32
        self._operands, self._offset = (rows, weight), bias
        self._exact = exact
        self._beside: _Buffer | None = None
        self._direct = one_column_tile, one_row_tile
        make = torch.empty if len(rows) else torch.zeros
        self.rows = _sum_of(rows, rows.dtype if one_column_tile else exact, make, direct=one_column_tile, on=needed[0])
        self.weight = _sum_of(weight, weight.dtype if one_row_tile else exact, make, direct=one_row_tile, on=needed[1])
        self.bias = (
            torch.zeros(len(weight), dtype=exact, device=rows.device) if needed[2] and bias is not None else None
        )

    def narrowed(self) -> list[Tensor | None]:
        """The gradients of rows, weight and bias in their dtypes; None where not needed."""
        totals = zip((self.rows, self.weight, self.bias), (*self._operands, self._offset), strict=True)
        return [None if total is None or like is None else _narrowed(total, like.dtype) for total, like in totals]

    def target(self, tile: Tensor) -> Tensor | None:
        """Where the gradient of a tile is written; None: over the tile."""
        # A bias's gradient is a sum over rows: rounding them first would lose precision.
        dtype = self._operands[0].dtype if self.bias is None else self._exact
        if dtype == tile.dtype:
            return None
        if self._beside is None:  # the first tile is the largest
            self._beside = _Buffer(tile, len(tile), tile.shape[1], dtype)
        return self._beside.tile(len(tile), tile.shape[1])

    def add(self, part: slice, columns: slice, dz: Tensor, converted: Tensor | None = None) -> None:
        """Add the gradient of one tile of logits, (n, w).

        Args:
            part, columns: of the tile.
            dz: the gradient.
            converted: these columns of the weight in the dtype of the rows; None converts them.
        """
        rows, weight = self._operands
        if self.bias is not None:
            self.bias[columns] += dz.sum(0)
        dz = dz.to(rows.dtype)
        direct_rows, direct_weight = self._direct
        if self.rows is not None:
            factor = weight[columns].to(rows.dtype) if converted is None else converted
            _add_product(self.rows[part], dz, factor, direct=direct_rows)
        if self.weight is not None:
            _add_product(self.weight[columns], dz.T, rows[part], direct=direct_weight)


def _narrowed(total: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum (n, D) in a narrower dtype, in its own memory; otherwise as it is."""
    if total.dtype.itemsize <= dtype.itemsize:
        return total.to(dtype)
    out = total.view(-1).view(dtype)[: total.numel()].view(total.shape)
    step = max(1, -(-len(total) // 16))
    for top in range(0, len(total), step):
        # The rows so far, narrow, end before the next rows, wide, begin.
        out[top : top + step] = total[top : top + step].to(dtype)
    return out


def wide_logits(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Float32 logits (N, V) of states (N, D) and a weight (V, D) in bfloat16: the sums are not rounded at the end."""
    if torch.is_grad_enabled() and (rows.requires_grad or weight.requires_grad):
        return torch.nn.functional.linear(rows.float(), weight.float(), None if bias is None else bias.float())
    logits = torch.empty(len(rows), len(weight), dtype=torch.float32, device=rows.device)
    _product(rows, weight, logits)
    return logits if bias is None else logits.add_(bias)


def _product(rows: Tensor, weight: Tensor, out: Tensor) -> None:
    """Write rows @ weight.T; where `out` is wider than the operands, with the sums as they are before rounding."""
    weight = weight.to(rows.dtype).T
    if out.dtype == rows.dtype:
        torch.mm(rows, weight, out=out)
    elif not out.is_cpu and hasattr(torch.ops.aten.mm, "dtype_out"):
        torch.ops.aten.mm.dtype_out(rows, weight, out.dtype, out=out)
    else:
        torch.mm(rows.to(out.dtype), weight.to(out.dtype), out=out)


def _sum_of(like: Tensor, dtype: torch.dtype, make: Any, *, direct: bool, on: bool) -> Tensor | None:
    if not on:
        return None
    start = make if direct else torch.zeros
    total: Tensor = start(like.shape, dtype=dtype, device=like.device)
    return total


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, direct: bool) -> None:
    """Add a @ b to the total, or write it if nothing else is added."""
    if total.dtype == a.dtype:
        if direct:
            torch.mm(a, b, out=total)
        else:
            torch.addmm(total, a, b, out=total)
    elif not total.is_cpu and total.dtype == torch.float32 and hasattr(torch.ops.aten.addmm, "dtype_out"):
        if direct:
            torch.ops.aten.mm.dtype_out(a, b, total.dtype, out=total)
        elif _ADDS_TO_FLOAT32:
            torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, out=total)
        else:
            total += torch.ops.aten.mm.dtype(a, b, total.dtype)
    elif direct:
        total.copy_(a @ b)
    else:
        total += a @ b
