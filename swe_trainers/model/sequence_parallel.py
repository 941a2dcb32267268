"""Sequence parallelism for rows too long for one process (Ulysses: Jacobs et al. 2023, arXiv:2309.14509).

Each process of a group holds an equal part of every row's columns and computes everything that concerns single tokens.
Attention needs all columns but treats heads separately: before it the group exchanges columns for heads, after it heads
for columns. Each process thus attends over whole rows with a part of the heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

__all__ = ["SequenceGroup"]


@dataclass(frozen=True, eq=False)
class SequenceGroup:
    """The P processes that divide the columns of rows, in the order of their columns.

    Attributes:
        group: their process group.
        rank: of this process in the group.
        size: P.
    """

    group: dist.ProcessGroup
    rank: int
    size: int

    def width(self, length: int) -> int:
        """W, the number of columns of each process for T columns; the last ones may be padding."""
        return -(-length // self.size)

    def padded(self, whole: Tensor) -> Tensor:
        """(B, T) to (B, P · W), padded with 0."""
        return F.pad(whole, (0, self.width(whole.shape[1]) * self.size - whole.shape[1]))

    def columns(self, whole: Tensor) -> Tensor:
        """The columns of this process: (B, T) to (B, W)."""
        width = self.width(whole.shape[1])
        return self.padded(whole)[:, self.rank * width : (self.rank + 1) * width]

    def places(self, places: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Select the positions that are in this process's columns.

        Args:
            places: (A,) int64, positions in the flattened (B · T).
            length: T.
        Returns:
            Their indices in `places`, (A',), and their positions in this process's flattened (B · W), (A',).
        """
        width = self.width(length)
        row, column = places // length, places % length
        own = (column // width == self.rank).nonzero().squeeze(1)
        return own, row[own] * width + column[own] - self.rank * width

    def to_heads(self, part: Tensor) -> Tensor:
        """Exchange columns for heads: all heads of this process's columns become its heads of all columns.

        Args:
            part: (B, H, W, D). If P does not divide H (keys and values shared by several queries), heads are repeated.
        Returns:
            (B, H' / P, P · W, D) with H' the least common multiple of H and P.
        """
        part = part.repeat_interleave(math.lcm(part.shape[1], self.size) // part.shape[1], 1)
        rows, heads, width, size = part.shape
        parts = part.view(rows, self.size, heads // self.size, width, size).transpose(0, 1)  # (P, B, H/P, W, D)
        whole = _exchange(parts.contiguous(), self.group)
        return whole.permute(1, 2, 0, 3, 4).reshape(rows, heads // self.size, self.size * width, size)

    def to_columns(self, part: Tensor) -> Tensor:
        """Exchange heads for columns: this process's heads of all columns become all heads of its columns.

        Args:
            part: (B, P · W, H / P, D).
        Returns:
            (B, W, H, D).
        """
        rows, length, heads, size = part.shape
        parts = part.view(rows, self.size, length // self.size, heads, size).transpose(0, 1)  # (P, B, W, H/P, D)
        whole = _exchange(parts.contiguous(), self.group)
        return whole.permute(1, 2, 0, 3, 4).reshape(rows, length // self.size, self.size * heads, size)

    def together(self, parts: Tensor) -> Tensor:
        """The sum over the processes; each gets the sum's gradient unchanged.

        The computation that follows must be the same on all processes, and so is its gradient.
        """
        total: Tensor = _Together.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return total


class _Exchange(torch.autograd.Function):
    """Part p of process r becomes part r of process p; the operation is its own inverse."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _exchanged(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _exchanged(gradients[0].contiguous(), ctx.group), None


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        del ctx
        total = parts.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradients[0], None


def _exchange(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    exchanged: Tensor = _Exchange.apply(parts, group)  # type: ignore[no-untyped-call]
    return exchanged


def _exchanged(parts: Tensor, group: dist.ProcessGroup) -> Tensor:
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received
