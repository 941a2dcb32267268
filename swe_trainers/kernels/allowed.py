"""Rows that may choose among some tokens only: the logits of all others are −inf, wherever logits are made.

The probability of such a token is 0, its term of the entropy and of a divergence is 0, and so is its gradient: every
kernel computes with the distribution that was sampled from, softmax(logits) restricted to the set and renormalised.
Columns of the vocabulary that no row may choose are not even projected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from swe_trainers.errors import ShapeError

__all__ = ["AllowedTokens"]


@dataclass(frozen=True)
class AllowedTokens:
    """Which tokens each row may choose. Rows refer to the distinct sets, of which there are few.

    Attributes:
        index: (...) int64, the set of each row.
        masks: (S, C) bool, True where a token may be chosen.
        columns: (C,) int64, ascending, the tokens that the columns of `masks` stand for; None for the whole vocabulary.
        vocabulary: V, the size of the whole vocabulary.
    """

    index: Tensor
    masks: Tensor
    columns: Tensor | None
    vocabulary: int

    @classmethod
    def of(
        cls, sets: Sequence[Sequence[int]], index: Tensor, vocabulary: int, device: torch.device | str = "cpu"
    ) -> AllowedTokens:
        """Masks of some sets of token ids.

        Args:
            sets: the distinct sets.
            index: (...) int64 on the CPU, the set of each row; −1 for the whole vocabulary.
            vocabulary: V.
            device: where the masks are used.
        Raises:
            ShapeError: a set is empty or has a token outside the vocabulary, or a row refers to no set.
        """
        for number, tokens in enumerate(sets):
            if not len(tokens) or min(tokens) < 0 or max(tokens) >= vocabulary:
                raise ShapeError(
                    f"allowed: set {number} is {list(tokens)[:8]}, expected at least one token in [0, {vocabulary})"
                )
        if index.numel() and not -1 <= int(index.min()) <= int(index.max()) < len(sets):
            raise ShapeError(f"allowed: a row has a set outside [-1, {len(sets)})")
        free = bool((index < 0).any())
        columns = None if free else np.array(sorted({token for tokens in sets for token in tokens}), dtype=np.int64)
        masks = np.zeros((len(sets) + free, vocabulary if columns is None else len(columns)), dtype=np.bool_)
        for number, tokens in enumerate(sets):
            masks[number, tokens if columns is None else np.searchsorted(columns, np.asarray(tokens))] = True
        if free:
            masks[-1] = True
        return cls(
            torch.where(index < 0, len(sets), index).to(device),
            torch.from_numpy(masks).to(device),
            None if columns is None else torch.from_numpy(columns).to(device),
            vocabulary,
        )

    def select(self, keep: Tensor | None, like: Tensor) -> AllowedTokens:
        """Of the flattened rows with these numbers; None for all.

        Raises:
            ShapeError: the rows are not those of `like` (...), or on another device.
        """
        if self.index.shape != like.shape or self.index.device != like.device:
            raise ShapeError(
                f"allowed: got rows {tuple(self.index.shape)} on {self.index.device}, expected {tuple(like.shape)} on "
                f"{like.device}"
            )
        index = self.index.reshape(-1)
        return replace(self, index=index if keep is None else index.index_select(0, keep))

    def check(self, ids: Tensor) -> None:
        """Raises ShapeError if the token of a row is not among those that it may choose; both (N,)."""
        chosen = self.labels(ids)
        outside = (chosen < 0) | ~self.masks[self.index, chosen.clamp(0, self.masks.shape[1] - 1)]
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            raise ShapeError(f"ids: token {int(ids[row])} of row {row} is not among the tokens allowed there")

    def labels(self, ids: Tensor) -> Tensor:
        """The columns of some tokens; −1 for a token that no row may choose."""
        if self.columns is None:
            return ids
        at = torch.searchsorted(self.columns, ids).clamp(max=len(self.columns) - 1)
        return torch.where(self.columns[at] == ids, at, -1)

    def narrow(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The rows of an unembedding (V, D) and its bias (V,) that some row may choose; differentiable."""
        if self.columns is None:
            return weight, bias
        return weight.index_select(0, self.columns), None if bias is None else bias.index_select(0, self.columns)

    def whole(self) -> AllowedTokens:
        """The same with masks (S, V) over the whole vocabulary, for processes that hold a part of it each."""
        if self.columns is None:
            return self
        masks = self.masks.new_zeros(len(self.masks), self.vocabulary).index_copy(1, self.columns, self.masks)
        return replace(self, masks=masks, columns=None)

    def capped_logits(self, rows: Tensor, weight: Tensor, bias: Tensor | None, soft_cap: float) -> Tensor:
        """Logits (N, C) of states (N, D) and a narrowed head, soft-capped, −inf where a token may not be chosen.

        The row kernels would cap −inf as well. Differentiable; the logits are materialised.
        """
        exact = torch.float64 if rows.dtype == torch.float64 else torch.float32
        logits = torch.nn.functional.linear(rows, weight.to(rows.dtype)).to(exact)
        logits = soft_cap * torch.tanh((logits if bias is None else logits + bias) / soft_cap)
        return logits.masked_fill(~self.masks[self.index], -torch.inf)

    def hide_(self, tile: Tensor, rows: slice, columns: slice, first: int = 0) -> None:
        """Set what may not be chosen to −inf in a tile (n, w) of logits.

        Args:
            tile: logits of these rows, and of these columns of `masks` from `first` on.
        """
        masks = self.masks[:, first + columns.start : first + columns.stop]
        tile.masked_fill_(~masks.index_select(0, self.index[rows]), -torch.inf)
