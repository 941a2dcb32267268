"""The processes that learn together: each computes a share of every minibatch, and all know the whole of it.

Without `torch.distributed` there is one, and nothing here does anything. What is learnt does not depend on how many
there are: weights of the loss are those of the whole minibatch, and gradients are added up.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from swe_trainers.learning.batch import Batch, Rows, balanced, lay_out
from swe_trainers.model.sequence_parallel import SequenceGroup
from swe_trainers.process_group import n_ranks, rank

__all__ = ["add_up", "combine", "rows_of_rank"]


def rows_of_rank(
    batch: Batch,
    sequences: Tensor,
    *,
    max_tokens: int,
    pack: bool = False,
    share: bool = False,
    group: SequenceGroup | None = None,
) -> list[tuple[Rows, bool]]:
    """This rank's micro-batches of some trajectories.

    Sharded models compute together, so every rank has as many micro-batches as the one with the most; the others repeat
    some that count for nothing.

    Args:
        batch, sequences, max_tokens, pack, share: as in `lay_out`.
        group: of ranks that compute the same micro-batches together; each holds as many entries as one would alone.
    Returns:
        Micro-batches, and whether each counts.
    """
    size = 1 if group is None else group.size
    world, own_share, max_tokens = n_ranks() // size, rank() // size, max_tokens * size
    if world == 1 or not len(sequences):
        return [(rows, True) for rows in lay_out(batch, sequences, max_tokens=max_tokens, pack=pack, share=share)]
    parts = batch.prefixes.divide(sequences.tolist(), world) if share else None
    if parts is None:
        parts = balanced(batch.lengths[sequences].tolist(), world, most=len(sequences))
    laid = [lay_out(batch, sequences[part], max_tokens=max_tokens, pack=pack, share=share) for part in parts]
    own = [(rows, True) for rows in laid[own_share]] if own_share < len(laid) else []
    return own + [(laid[0][-1], False)] * (max(map(len, laid)) - len(own))


def add_up(*tensors: Tensor) -> None:
    """Replace tensors by their sums over all ranks."""
    if n_ranks() > 1:
        for tensor in tensors:
            dist.all_reduce(tensor)


def combine(sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor]) -> dict[str, float]:
    """Combine numbers of all ranks: `sums` are added up, and of each number in `maxima` the largest is taken."""
    found: dict[str, float] = {}
    for numbers, operation in ((sums, dist.ReduceOp.SUM), (maxima, dist.ReduceOp.MAX)):
        if not numbers:
            continue
        together = torch.stack([value.detach().float() for value in numbers.values()]).cpu()
        if n_ranks() > 1:
            dist.all_reduce(together, operation)
        found.update(zip(numbers, together.tolist(), strict=True))
    return found
