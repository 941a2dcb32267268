"""The processes of a distributed run. Without `torch.distributed` there is one, and nothing here does anything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import torch.distributed as dist

__all__ = ["broadcast", "gathered", "n_ranks", "rank"]

_T = TypeVar("_T")
_MISSING: Any = object()


def n_ranks() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if n_ranks() > 1 else 0


def gathered(own: Sequence[_T]) -> list[_T]:
    """The whole sequence of which rank r of R holds every R-th item, from the r-th on."""
    world = n_ranks()
    if world == 1:
        return list(own)
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, list(own))
    return [item for row in zip_longest(*parts, fillvalue=_MISSING) for item in row if item is not _MISSING]


def broadcast(value: _T) -> _T:
    """The value of rank 0, on every rank."""
    if n_ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
