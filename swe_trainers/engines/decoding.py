"""Decoding steps of fixed shapes, of which a GPU replays a recording.

One token for each running sequence is some hundreds of small kernels, and a GPU finishes them faster than Python starts
them. Here the number of rows and of positions that attention reads are rounded up, everything that changes from step to
step is in memory that stays where it is, and nothing is read back: a step of one pair of sizes can then be recorded as
a CUDA graph at its first use and started as a whole after that.

Rows without a sequence compute something too. They write to the last position of a slot, which no sequence reaches and
no mask shows.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from swe_trainers.engines.cache import SlotCache
from swe_trainers.model.attention import to_device
from swe_trainers.model.fused import is_known_trunk, last_hidden
from swe_trainers.model.language_model import LanguageModel

__all__ = ["StaticDecoding", "rounded_length", "rounded_rows"]

_LEAST_LENGTH = 256


def rounded_rows(n: int, most: int) -> int:
    """The next power of two, at most `most`."""
    return min(most, 1 << (n - 1).bit_length())


def rounded_length(n: int, most: int) -> int:
    """At least 256, and a quarter more at most: each doubling has four sizes; at most `most`."""
    step = max(_LEAST_LENGTH, 1 << max(0, (n - 1).bit_length() - 3))
    return min(most, -(-n // step) * step)


class StaticDecoding:
    """Decoding steps of one engine.

    Args:
        model: the policy. If its parameters are replaced by others, rather than changed, call `check`.
        cache: of the engine.
    """

    def __init__(self, model: LanguageModel, cache: SlotCache) -> None:
        self._model, self._cache = model, cache
        device = model.device
        self._records = device.type == "cuda"
        # Of each row its token, its position, its slot, and the position that its keys and values are written to.
        self._inputs = torch.zeros(cache.n_slots, 4, dtype=torch.int64, device=device)
        self._staged = torch.zeros(cache.n_slots, 4, dtype=torch.int64, pin_memory=self._records)
        self._graphs: dict[tuple[int, int, bool], tuple[Any, Tensor]] = {}
        self._pool: Any = None
        self._weights: tuple[int, ...] = ()

    @staticmethod
    def supports(model: LanguageModel) -> bool:
        """Whether the forward pass never reads a value back: a known family, and rotary angles that are fixed."""
        trunk: Any = model.trunk
        kind = getattr(getattr(trunk, "rotary_emb", None), "rope_type", "default")
        return is_known_trunk(trunk) and isinstance(kind, str) and "dynamic" not in kind and kind != "longrope"

    def check(self) -> None:
        """Forget the recordings if the parameters are in other memory than when they were made."""
        weights = tuple(parameter.data_ptr() for parameter in self._model.causal_lm.parameters())
        if weights != self._weights:
            self._weights = weights
            self._graphs.clear()

    def run(self, slots: list[int], tokens: list[int], lengths: list[int]) -> Tensor:
        """One step.

        Args:
            slots: N numbers of slots, ascending.
            tokens: the last token of each, which is not in the cache yet.
            lengths: of what is in the cache.
        Returns:
            Hidden states (N, D), valid until the next step.
        """
        n, cache = len(slots), self._cache
        # Mostly running: each slot up to the last is a row. Mostly idle: the running slots are copied.
        in_place = n * 2 > slots[-1]
        rows = rounded_rows(slots[-1] + 1 if in_place else n, cache.n_slots)
        at = torch.tensor(slots) if in_place else torch.arange(n)
        staged = self._staged[:rows]
        staged[:] = torch.tensor([0, 0, slots[0], cache.spare])
        staged[at] = torch.tensor([tokens, lengths, slots, lengths]).T
        # The last step's tokens were read back, so this memory is no longer being copied from.
        self._inputs[:rows].copy_(staged, non_blocking=True)
        length = rounded_length(max(lengths) + 1, cache.n_positions)
        hidden = self._replay(rows, length, in_place) if self._records else self.compute(rows, length, in_place)
        if not in_place or n == slots[-1] + 1:
            return hidden[:n]
        return hidden.index_select(0, to_device(at, hidden.device))

    def compute(self, rows: int, length: int, in_place: bool) -> Tensor:
        """Hidden states (rows, D) of what the inputs hold: this is recorded."""
        tokens, positions, slots, writes = self._inputs[:rows].unbind(1)
        ids, positions = tokens[:, None], positions[:, None]
        self._cache.plan(slice(0, rows) if in_place else slots, (slice(None), 0), (slots, writes), length)
        masks = self._model.mask_plan.additive(positions, length, self._model.unembedding.weight.dtype)
        return last_hidden(self._model, ids, positions, masks, torch.zeros_like(tokens), self._cache)

    def _replay(self, rows: int, length: int, in_place: bool) -> Tensor:
        key = rows, length, in_place
        if key not in self._graphs:
            try:
                self._graphs[key] = self._record(*key)
            except RuntimeError as error:  # of CUDA: a library does what no graph can hold, or memory is short
                reason = str(error).splitlines()[0]
                warnings.warn(f"decoding without CUDA graphs, which is slower: {reason}", stacklevel=2)
                self._records = False
                return self.compute(*key)
        graph, hidden = self._graphs[key]
        graph.replay()
        return hidden

    def _record(self, rows: int, length: int, in_place: bool) -> tuple[Any, Tensor]:
        """A graph of one step and the memory of its result; graphs run one after the other and share their memory."""
        with torch.cuda.device(self._model.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # once for what libraries set up at their first use
                self.compute(rows, length, in_place)
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use a GPU meanwhile: one that trains while this one generates.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                hidden = self.compute(rows, length, in_place)
        return graph, hidden
