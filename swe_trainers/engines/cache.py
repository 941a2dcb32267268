"""A key-value cache for many sequences of different lengths, in one block of memory per layer."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["SlotCache"]


class SlotCache(Cache):
    """A cache behind transformers' interface whose rows are slots, each with its own length.

    Before a forward pass, `plan` sets which slots the rows of the batch are and where their new tokens go; during it,
    every layer calls `update`. The owner keeps the length of each slot; entries past it are never read, because the
    masks exclude them.

    Args:
        n_slots: number of sequences.
        max_tokens: tokens of each.

    Attributes:
        n_positions: of each slot in memory.
        spare: a position that no sequence reaches, for rows without one.
    """

    def __init__(self, n_slots: int, max_tokens: int) -> None:
        super().__init__(layers=[])
        self.n_slots, self.max_tokens = n_slots, max_tokens
        # One position more, and a multiple of 16: kernels read masks of that width without copying them.
        self.n_positions = (max_tokens // 16 + 1) * 16
        self.spare = self.n_positions - 1
        self._keys: list[Tensor] = []  # one (n_slots, H, n_positions, D) per layer
        self._values: list[Tensor] = []
        self._rows: slice | Tensor = slice(0)
        self._source: Tensor | tuple[Tensor | slice, slice | int] = (slice(0), 0)
        self._target: tuple[Tensor | slice, Tensor | slice] = (torch.empty(0), torch.empty(0))
        self._length = 0
        self._positions = torch.empty(0)
        self._kernels: ModuleType | None = None

    def plan(
        self,
        rows: slice | Tensor,
        source: Tensor | tuple[Tensor | slice, slice | int],
        target: tuple[Tensor | slice, Tensor | slice],
        length: int | None,
    ) -> None:
        """Prepare one forward pass.

        Args:
            rows: the slots of the batch's rows; a slice is read in place, a tensor (B,) is copied.
            source: positions of the new tokens in the flattened batch, (N,); a single column may be given by its
                number, for some rows or all; and all columns of all rows as two slices.
            target: where they go, as (N,) slots and (N,) positions; of all columns, the slots and a slice of positions,
                or (B, 1) slots and (B, Q) positions.
            length: how many positions attention reads; None if it needs the new tokens only.
        """
        self._rows, self._source, self._target, self._length = rows, source, target, length or 0
        self._kernels = None

    def plan_step(self, slots: Tensor, positions: Tensor, writes: Tensor, length: int, kernels: ModuleType) -> None:
        """Prepare a forward pass of one new token a row, in which every layer calls `attend` instead of `update`.

        Args:
            slots: (B,) int64, of the rows.
            positions: (B,) int64, of the new tokens, up to which attention reads.
            writes: (B,) int64, where their keys and values go: their positions, or one that nothing reads.
            length: more than every position.
            kernels: `kernels.triton_decoding`.
        """
        self.plan(slots, (slice(None), 0), (slots, writes), length)
        self._positions, self._kernels = positions, kernels

    @property
    def attends(self) -> bool:
        """Whether the forward pass is one of `plan_step`."""
        return self._kernels is not None

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a layer's new keys and values (B, H, Q, D); return those that attention reads, (B, H, length, D)."""
        assert self._kernels is None, "the pass was planned for `attend`, which needs no masks: none are there"
        keys, values = self._memory(layer_idx, key_states, value_states)
        # Tokens before heads, because it takes half as long to index two dimensions in succession.
        keys.transpose(1, 2)[self._target] = self._new(key_states)
        values.transpose(1, 2)[self._target] = self._new(value_states)
        if not self._length:
            return key_states, value_states
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def _new(self, states: Tensor) -> Tensor:
        """The new tokens of a batch (B, H, Q, D): (N, H, D), or (B, Q, H, D) if these are all."""
        states = states.transpose(1, 2)
        if isinstance(self._source, Tensor):
            return states.flatten(0, 1).index_select(0, self._source)
        return states[self._source]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer_idx: int,
        *,
        rotation: tuple[Tensor, Tensor],
        gains: tuple[Tensor, Tensor] | None,
        epsilon: float,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        """Store a layer's new keys and values; attention to what is then in the slots.

        Args:
            query, key, value: (B, 1, H or fewer, D), neither normed nor rotated.
            rotation: cosines and sines, (B, 1, D) each.
            gains, epsilon: of the norms of queries and keys, as of `kernels.triton_decoding.store_token`.
            scaling, window: as of `kernels.triton_decoding.attend`.

        Returns:
            (B, H, D).
        """
        assert self._kernels is not None
        keys, values = self._memory(layer_idx, key.transpose(1, 2), value.transpose(1, 2))
        cosines, sines = rotation
        new = query[:, 0], key[:, 0], value[:, 0], (cosines[:, 0], sines[:, 0])
        query = self._kernels.store_token(*new, keys, values, *self._target, gains=gains, epsilon=epsilon)
        options: dict[str, Any] = {"length": self._length, "scaling": scaling, "window": window}
        slots, _ = self._target
        attended: Tensor = self._kernels.attend(query, keys, values, slots, self._positions, **options)
        return attended

    def _memory(self, layer_idx: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of a layer; new keys and values (B, H, Q, D) show what memory it needs."""
        while len(self._keys) <= layer_idx:
            for store, like in ((self._keys, key), (self._values, value)):
                store.append(like.new_zeros((self.n_slots, like.shape[1], self.n_positions, like.shape[-1])))
        return self._keys[layer_idx], self._values[layer_idx]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one slot to another."""
        for store in (*self._keys, *self._values):
            store[target, :, :length] = store[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Used by transformers if no positions are given; here they always are."""
        return self._length
