"""Decoding steps of fixed shapes, of which a GPU replays a recording.

One token for each running sequence is some hundreds of small kernels, and a GPU finishes them faster than Python starts
them. Here the number of rows and of positions that attention reads are rounded up, everything that changes from step to
step is in memory that stays where it is, and nothing is read back before the end: a step of one pair of sizes can then
be recorded as a CUDA graph at its first use and started as a whole after that. Where all rows are sampled in the same
way, the recording ends with the sampled tokens, and the host waits once a step.

Rows without a sequence compute something too. They write to the last position of a slot, which no sequence reaches and
no mask shows.
"""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from swe_trainers.engines.cache import SlotCache
from swe_trainers.engines.sampling import Sampling, draw_among
from swe_trainers.kernels.choice import decoding_kernels
from swe_trainers.model.attention import to_device
from swe_trainers.model.fused import has_plain_heads, is_known_trunk, last_hidden
from swe_trainers.model.language_model import LanguageModel

__all__ = ["StaticDecoding", "rounded_length", "rounded_rows"]

_LEAST_LENGTH = 256
_MOST_SAMPLINGS = 4
"""That recordings are kept of: each has recordings of its own for every pair of sizes."""
_LASTING = 256
"""Steps in a row with one sampling after which its recordings replace another's; making them takes longer than many
steps."""
_Results: TypeAlias = tuple[Tensor, Tensor | None]
"""What a step leaves in memory: hidden states (rows, D) and None. If it samples: ids and log-probabilities (2, rows) in
float64, which holds both exactly; and (rows, V) bool, True where truncation kept a token, None without truncation."""


class _Step(NamedTuple):
    """What recordings differ in.

    Attributes:
        rows, length: of the batch, and the positions that attention reads; rounded up.
        in_place: whether row and slot have the same number.
        sampling: of all rows; None for a step that ends with hidden states.
    """

    rows: int
    length: int
    in_place: bool
    sampling: Sampling | None


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
        # Of each row its token, its position, its slot, the position that its keys and values are written to, and the
        # float64 by which its next token is drawn.
        self._inputs = torch.zeros(cache.n_slots, 5, dtype=torch.int64, device=device)
        self._staged = torch.zeros(cache.n_slots, 5, dtype=torch.int64, pin_memory=self._records)
        self._kernels = self._supported_kernels()
        self._graphs: dict[_Step, tuple[Any, _Results]] = {}
        self._pool: Any = None
        self._weights: tuple[int, ...] = ()
        self._samplings: dict[Sampling, bool] = {}  # whether it can be recorded; the one used last is the last
        self._latest: tuple[Sampling | None, int] = (None, 0)  # that has no recordings, and its steps in a row

    @staticmethod
    def supports(model: LanguageModel) -> bool:
        """Whether the forward pass never reads a value back: a known family, and rotary angles that are fixed."""
        trunk: Any = model.trunk
        kind = getattr(getattr(trunk, "rotary_emb", None), "rope_type", "default")
        return is_known_trunk(trunk) and isinstance(kind, str) and "dynamic" not in kind and kind != "longrope"

    def check(self) -> None:
        """Forget the recordings if the parameters are in other memory, or heads computed in another way, than then."""
        weights = tuple(parameter.data_ptr() for parameter in self._model.causal_lm.parameters())
        kernels = self._supported_kernels()
        if weights != self._weights or kernels is not self._kernels:
            self._weights, self._kernels = weights, kernels
            self._graphs.clear()

    def _supported_kernels(self) -> ModuleType | None:
        """Of attention to the cache; None where PyTorch computes it, with masks."""
        trunk: Any = self._model.trunk
        if not is_known_trunk(trunk) or not has_plain_heads(trunk):
            return None
        head_size = max(layer.self_attn.head_dim for layer in trunk.layers)
        return decoding_kernels(self._model.device, self._model.unembedding.weight.dtype, head_size)

    def samples(self, sampling: Sampling) -> bool:
        """Whether `sample` is for this sampling: it has recordings, or is worth making them. Call it once a step."""
        if sampling in self._samplings:
            able = self._samplings[sampling] = self._samplings.pop(sampling)
            return able
        latest, steps = self._latest
        self._latest = sampling, steps + 1 if latest == sampling else 1
        if len(self._samplings) >= _MOST_SAMPLINGS:
            if self._latest[1] < _LASTING:
                return False
            oldest = next(iter(self._samplings))
            del self._samplings[oldest]
            self._graphs = {step: graph for step, graph in self._graphs.items() if step.sampling != oldest}
        self._samplings[sampling] = True
        return True

    def run(self, slots: list[int], tokens: list[int], lengths: list[int]) -> Tensor:
        """One step up to the hidden states.

        Args:
            slots: N numbers of slots, ascending.
            tokens: the last token of each, which is not in the cache yet.
            lengths: of what is in the cache.
        Returns:
            Hidden states (N, D), valid until the next step.
        """
        step, at = self._stage(slots, tokens, lengths, [0.0] * len(slots), None)
        return self._chosen(self._results(step)[0], at)

    def sample(
        self, slots: list[int], tokens: list[int], lengths: list[int], sampling: Sampling, uniforms: list[float]
    ) -> tuple[list[int], list[float], Tensor | None]:
        """One step up to the next tokens.

        Args:
            slots, tokens, lengths: as of `run`.
            sampling: of all rows.
            uniforms: N numbers in [0, 1), one for each row, by which its token is drawn.
        Returns:
            N ids and their log-probabilities; and (N, V) bool as of `draw_among`, valid until the next step.
        """
        step, at = self._stage(slots, tokens, lengths, uniforms, sampling)
        packed, kept = self._results(step)
        ids, logprobs = packed.cpu().numpy()[:, at]
        return ids.astype(np.int64).tolist(), logprobs.tolist(), None if kept is None else self._chosen(kept, at)

    def _stage(
        self,
        slots: list[int],
        tokens: list[int],
        lengths: list[int],
        uniforms: list[float],
        sampling: Sampling | None,
    ) -> tuple[_Step, slice | list[int]]:
        """Put the inputs in their place; the step that they need, and which of its rows are those of the slots."""
        n, cache = len(slots), self._cache
        # Mostly running: each slot up to the last is a row. Mostly idle: the running slots are copied.
        in_place = n * 2 > slots[-1]
        rows = rounded_rows(slots[-1] + 1 if in_place else n, cache.n_slots)
        at = slots if in_place and n <= slots[-1] else slice(0, n)
        staged = self._staged.numpy()[:rows]
        staged[:] = 0, 0, slots[0], cache.spare, 0
        if in_place:
            staged[:, 2] = np.arange(rows)
        staged[at, :4] = np.array([tokens, lengths, slots, lengths]).T
        staged[at, 4] = np.array(uniforms).view(np.int64)
        # The last step's tokens were read back, so this memory is no longer being copied from.
        self._inputs[:rows].copy_(self._staged[:rows], non_blocking=True)
        return _Step(rows, rounded_length(max(lengths) + 1, cache.n_positions), in_place, sampling), at

    @staticmethod
    def _chosen(results: Tensor, at: slice | list[int]) -> Tensor:
        if isinstance(at, slice):
            return results[at]
        return results.index_select(0, to_device(torch.tensor(at), results.device))

    def compute(self, step: _Step) -> _Results:
        """The results of what the inputs hold: this is recorded."""
        rows, length, in_place, sampling = step
        tokens, positions, slots, writes, uniforms = self._inputs[:rows].unbind(1)
        ids, positions = tokens[:, None], positions[:, None]
        masks = None
        if self._kernels is None:
            self._cache.plan(slice(0, rows) if in_place else slots, (slice(None), 0), (slots, writes), length)
            masks = self._model.mask_plan.additive(positions, length, self._model.unembedding.weight.dtype)
        else:
            self._cache.plan_step(slots, positions[:, 0], writes, length, self._kernels)
        hidden = last_hidden(self._model, ids, positions, masks, torch.zeros_like(tokens), self._cache)
        if sampling is None:
            return hidden, None
        # Of a row without a sequence too a token is drawn, and of NaN it would be none of the vocabulary.
        hidden = hidden.masked_fill((writes == self._cache.spare)[:, None], 0.0)
        drawn, logprobs, kept = draw_among(self._model.logits(hidden), uniforms.view(torch.float64), sampling)
        return torch.stack([drawn.double(), logprobs.double()]), kept

    def _results(self, step: _Step) -> _Results:
        if not self._records:
            return self.compute(step)
        if step not in self._graphs:
            try:
                self._graphs[step] = self._record(step)
            except RuntimeError as error:  # of CUDA: a library does what no graph can hold, or memory is short
                reason = str(error).splitlines()[0]
                if step.sampling is None:
                    what, self._records = "decoding", False
                else:  # the rest of the step may well be recorded
                    what, self._samplings[step.sampling] = f"sampling ({step.sampling})", False
                warnings.warn(f"{what} without CUDA graphs, which is slower: {reason}", stacklevel=2)
                return self.compute(step)
        graph, results = self._graphs[step]
        graph.replay()
        return results

    def _record(self, step: _Step) -> tuple[Any, _Results]:
        """A graph of one step and the memory of its results; graphs run one after the other and share their memory."""
        with torch.cuda.device(self._model.device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            aside: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # once for what libraries set up at their first use
                self.compute(step)
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use a GPU meanwhile: one that trains while this one generates.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                results = self.compute(step)
        return graph, results
