"""Generation inside the training process, with the policy's own weights and a cache that persists between turns."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from swe_trainers.engines.action_trie import Legal, check_depth
from swe_trainers.engines.cache import SlotCache
from swe_trainers.engines.decoding import StaticDecoding
from swe_trainers.engines.protocol import Sample, Throughput
from swe_trainers.engines.sampling import BLOCK, Sampling, draw_among
from swe_trainers.errors import ConfigurationError, EngineError
from swe_trainers.model.fused import last_hidden
from swe_trainers.model.language_model import LanguageModel

__all__ = ["EmbeddedEngine"]


@dataclass(slots=True)
class _Request:
    """An action being generated."""

    max_new_tokens: int
    stop_ids: Collection[int]
    sampling: Sampling
    random: np.random.Generator
    stop_strings: tuple[str, ...] = ()
    legal: Legal | None = None  # what is reached
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(slots=True)
class _Slot:
    """One sequence, of which the first `length` tokens are in the cache."""

    length: int = 0
    token_ids: list[int] = field(default_factory=list)
    request: _Request | None = None

    @property
    def n_pending(self) -> int:
        """Number of tokens that are not in the cache yet."""
        return len(self.token_ids) - self.length


class EmbeddedEngine:
    """Continuous batching over slots: a request joins when it is submitted and leaves when it is finished.

    A step is either a prefill (of all tokens that were appended to some slots) or one more token for every running
    request. The weights are the model's own, read at each step; if they change while slots are open, call `renew`.

    Args:
        model: the policy; its training mode is not changed.
        n_slots: episodes open at once. Memory is 2 · layers · n_slots · max_tokens · key-value width numbers.
        max_tokens: the longest sequence of a slot.
        prefill_tokens: limit of one prefill batch, padding included; a longer sequence is a batch of its own.
        static_shapes: round the sizes of decoding steps up, so that a GPU can replay them; see `StaticDecoding`. None:
            on a GPU, with models that it supports.

    Attributes:
        n_slots, max_tokens: as above.
        version: of the weights, for `Sample.versions`; None if they are always the policy's own.

    Raises:
        ConfigurationError: a size is not positive, or longer than the model's positions; or shapes are to be static,
            and the model does not support it.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        n_slots: int,
        max_tokens: int,
        prefill_tokens: int = 8192,
        static_shapes: bool | None = None,
    ) -> None:
        if min(n_slots, max_tokens, prefill_tokens) < 1:
            raise ConfigurationError(
                f"n_slots {n_slots}, max_tokens {max_tokens}, prefill_tokens {prefill_tokens}: must be positive"
            )
        if model.max_positions is not None and max_tokens > model.max_positions:
            raise ConfigurationError(
                f"max_tokens {max_tokens} is more than the model's {model.max_positions} positions"
            )
        self.n_slots, self.max_tokens = n_slots, max_tokens
        self._model = model
        self._cache = SlotCache(n_slots, max_tokens)
        self._prefill_tokens = prefill_tokens
        self._slots: dict[int, _Slot] = {}
        self._recomputes = self._replays = False
        self._angles: tuple[Tensor, Tensor] | None = None
        self._device, self._dtype = model.device, model.unembedding.weight.dtype
        self._static: StaticDecoding | None = None
        if static_shapes and not StaticDecoding.supports(model):
            raise ConfigurationError("static_shapes: not for this model's layers or rotary positions")
        if model.device.type == "cuda" if static_shapes is None else static_shapes:
            self._static = StaticDecoding(model, self._cache)
        self._legal_sets = _LegalSets()
        self.version: int | None = None
        self._throughput = Throughput()

    @property
    def throughput(self) -> Throughput:
        """Tokens read and sampled since the engine was created."""
        return self._throughput

    @property
    def busy(self) -> bool:
        """Whether a request is unfinished."""
        return any(slot.request is not None for slot in self._slots.values())

    def open(self) -> int:
        """Take the first empty slot."""
        if not self._slots:
            self._look_at_model()
        index = next((i for i in range(self.n_slots) if i not in self._slots), None)
        if index is None:
            raise EngineError(f"all {self.n_slots} slots are open; close one, or make the engine with more")
        self._slots[index] = _Slot()
        return index

    def _look_at_model(self) -> None:
        """What visits all modules, and must not be done at every step."""
        self._recomputes = self._model.recomputes_activations
        fixed = StaticDecoding.supports(self._model)
        self._replays = self._static is not None and fixed
        trunk: Any = self._model.trunk
        weight = self._model.unembedding.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._angles = None
        if fixed:  # rotary angles depend on the position alone: computed once for all
            with torch.inference_mode():
                positions = torch.arange(self._cache.n_positions, device=self._device)[None]
                cosines, sines = trunk.rotary_emb(trunk.embed_tokens.weight, positions)
                self._angles = cosines[0], sines[0]
        if self._static is not None:
            self._static.check()

    def fork(self, slot: int) -> int:
        """Open a slot with a copy of another slot's context; later they are independent."""
        parent = self._find(slot, idle=True)
        index = self.open()
        with torch.inference_mode():
            self._cache.copy(slot, index, parent.length)
        self._slots[index] = _Slot(parent.length, list(parent.token_ids))
        return index

    def submit(
        self,
        slot: int,
        token_ids: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Collection[int],
        sampling: Sampling,
        random: np.random.Generator,
        stop_strings: Sequence[str] = (),
        legal: Legal | None = None,
    ) -> None:
        """Append tokens to a slot and request an action after them; see `Engine.submit`.

        Raises:
            EngineError: the slot is not open, has an unfinished request, or would be full; or a stop string is empty.
            ConfigurationError: a legal action has more tokens than may be sampled.
        """
        state = self._find(slot, idle=True)
        used = len(state.token_ids) + len(token_ids)
        if used == 0:
            raise EngineError(f"slot {slot}: nothing to continue from")
        if used >= self.max_tokens:
            raise EngineError(
                f"slot {slot}: {used} tokens leave no room for a new one; max_tokens is {self.max_tokens}"
            )
        if max_new_tokens < 1:
            raise EngineError(f"max_new_tokens must be positive, got {max_new_tokens}")
        if not all(stop_strings):
            raise EngineError("an empty stop string would end every action at once")
        if legal is not None:
            check_depth(legal, max_new_tokens)
        state.token_ids.extend(map(int, token_ids))
        state.request = _Request(max_new_tokens, frozenset(stop_ids), sampling, random, tuple(stop_strings), legal)

    def rewind(self, slot: int, length: int) -> None:
        """Remove the tokens after the first `length` tokens of a slot; see `Engine.rewind`.

        Raises:
            EngineError: the slot is not open, has an unfinished request, or is shorter.
        """
        state = self._find(slot, idle=True)
        have = len(state.token_ids)
        if not 0 <= length <= have:
            raise EngineError(f"slot {slot}: cannot go back to {length} tokens, it has {have}")
        del state.token_ids[length:]
        state.length = min(length, state.length)

    def step(self) -> list[Sample]:
        """Prefill waiting requests, or sample one more token for each running one; return what finished."""
        # A running request has one pending token, the one sampled last; another has its prompt, and after `renew` its
        # whole context.
        decoding: list[int] = []
        waiting: list[int] = []
        for index, slot in self._slots.items():
            if slot.request is not None:
                runs = slot.request.token_ids and len(slot.token_ids) - slot.length == 1
                (decoding if runs else waiting).append(index)
        if not decoding and not waiting:
            return []
        # Dropout is always off; but models that recompute activations in training mode use no cache in it.
        switch = self._recomputes and self._model.training
        started = time.monotonic()
        if switch:
            self._model.causal_lm.train(False)
        try:
            with torch.inference_mode():
                # A prefill per prompt would stall the others: a few prompts are batched while enough requests run.
                reads = bool(waiting) and len(waiting) * 8 >= len(decoding)
                chosen = self._prefill_batch(waiting) if reads else sorted(decoding)
                n_read = sum(self._slots[index].n_pending for index in chosen)
                finished = self._sample(chosen, self._prefill(chosen)) if reads else self._decode(chosen)
            self._count(n_read if reads else 0, len(chosen), time.monotonic() - started)
            return finished
        finally:
            if switch:
                self._model.causal_lm.train(True)

    def _count(self, n_read: int, n_sampled: int, seconds: float) -> None:
        counted = self._throughput
        counted.read_tokens += n_read
        counted.sampled_tokens += n_sampled
        if n_read:
            counted.read_s += seconds
        else:
            counted.decoded_tokens += n_sampled
            counted.decoded_s += seconds

    def close(self, slot: int) -> None:
        """Release a slot and drop its request."""
        self._find(slot, idle=False)
        del self._slots[slot]

    def renew(self, version: int | None) -> None:
        """Invalidate the cache after a change of weights; contexts are computed again before they are used.

        An unfinished action continues: its further tokens are sampled with the new weights, on the whole context.

        Args:
            version: of the new weights, for every token sampled from now on.
        """
        self.version = version
        self._look_at_model()
        for slot in self._slots.values():
            slot.length = 0

    def _wrote(self, request: _Request) -> bool:
        """Whether the last token completes a stop string; decodes only as many tokens as the longest can have."""
        # A token is at least one byte, except special ones, which are none: hence twice as many.
        most = 2 * max(len(text.encode()) for text in request.stop_strings)
        tail = self._model.tokenizer.decode(request.token_ids[-most:])
        return any(text in tail for text in request.stop_strings)

    def _find(self, slot: int, *, idle: bool) -> _Slot:
        state = self._slots.get(slot)
        if state is None:
            raise EngineError(f"slot {slot} is not open")
        if idle and state.request is not None:
            raise EngineError(f"slot {slot} has an unfinished request")
        return state

    def _prefill_batch(self, waiting: list[int]) -> list[int]:
        """The slot that waits longest, and others of similar length within the token budget."""
        oldest = self._slots[waiting[0]].n_pending
        batch: list[int] = []
        longest = 0
        for index in waiting:
            size = self._slots[index].n_pending
            grown = max(longest, size)
            alike = (oldest <= size * 2 and size <= oldest * 2) or grown * len(waiting) <= 512
            if not batch or (alike and grown * (len(batch) + 1) <= self._prefill_tokens):
                batch.append(index)
                longest = grown
        return batch

    def _prefill(self, chosen: list[int]) -> Tensor:
        """Prefill the pending tokens of some slots; hidden states (N, D) of the last token of each."""
        slots = [self._slots[index] for index in chosen]
        pending = [slot.token_ids[slot.length :] for slot in slots]
        lengths, starts = [len(ids) for ids in pending], [slot.length for slot in slots]
        width, device = max(lengths), self._device
        alike = min(lengths) == width
        if not alike:
            pending = [ids + [0] * (width - len(ids)) for ids in pending]
        together = alike and max(starts) == min(starts)  # all rows have the same positions
        first = np.array(starts[:1] if together else starts)[:, None]
        at = np.minimum(first + np.arange(width), self.max_tokens - 1)
        ids, positions = (torch.from_numpy(each).to(device) for each in (np.array(pending), at))
        adjacent = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
        rows = slice(chosen[0], chosen[0] + len(chosen)) if adjacent else torch.tensor(chosen, device=device)
        length = max(len(slot.token_ids) for slot in slots) if max(starts) else None
        last: Tensor | int = width - 1
        if together:  # one block: no index for each token
            self._cache.plan(rows, (slice(None), slice(None)), (rows, slice(starts[0], starts[0] + width)), length)
        elif alike:
            slot_index = torch.tensor(chosen, device=device)[:, None]
            self._cache.plan(rows, (slice(None), slice(None)), (slot_index, positions), length)
        else:
            last = torch.tensor(lengths, device=device) - 1
            source = np.flatnonzero(np.arange(width) < np.array(lengths)[:, None])  # without padding
            new = np.array([source, np.array(chosen)[source // width], at.ravel()[source]])
            places, slot_index, where = torch.from_numpy(new).to(device).unbind()
            self._cache.plan(rows, places, (slot_index, where), length)
        plan = self._model.mask_plan
        if length is None and not plan.windowed:
            masks = None  # padding is on the right, and each sequence begins here: causal attention needs no mask
        else:
            masks = plan.additive(positions, length or width, self._dtype)
        return last_hidden(self._model, ids, positions, masks, last, self._cache, self._angles)

    def _decode(self, chosen: list[int]) -> list[Sample]:
        """Sample one more token for each running slot; return the finished requests."""
        static = self._static
        if static is None or not self._replays:
            return self._sample(chosen, self._last_states(chosen))
        slots, requests = [self._slots[index] for index in chosen], [self._request(index) for index in chosen]
        inputs = chosen, [slot.token_ids[slot.length] for slot in slots], [slot.length for slot in slots]
        (sampling, *others), restricted = _groups(requests), any(request.legal is not None for request in requests)
        if others or restricted or not static.samples(sampling):
            return self._sample(chosen, static.run(*inputs))
        uniforms = [request.random.random() for request in requests]
        ids, logprobs, kept = static.sample(*inputs, sampling, uniforms)
        return self._take_all(chosen, ids, logprobs, kept)

    def _last_states(self, chosen: list[int]) -> Tensor:
        """Forward pass of the last sampled token of each running slot; hidden states (N, D)."""
        slots = [self._slots[index] for index in chosen]
        lengths = [slot.length for slot in slots]
        device = self._device
        # Mostly running: compute every row up to the last in place, idle ones included. Mostly idle: copy the running
        # rows.
        span = chosen[-1] + 1
        in_place = len(chosen) * 2 >= span
        rows = chosen if in_place else list(range(len(chosen)))
        full = len(chosen) == span or not in_place
        row, at = torch.tensor([rows, chosen], device=device)
        read = torch.tensor([[slot.token_ids[slot.length] for slot in slots], lengths], device=device)  # (2, N)
        if not full:
            read = torch.zeros((2, span), dtype=torch.int64, device=device).index_copy(1, row, read)
        ids, positions = read[:, :, None]
        length = max(lengths) + 1
        source = (slice(None) if full else row, 0)
        self._cache.plan(slice(0, span) if in_place else at, source, (at, read[1, row]), length)
        masks = self._model.mask_plan.additive(positions, length, self._dtype)
        last = torch.zeros_like(ids[:, 0])
        hidden = last_hidden(self._model, ids, positions, masks, last, self._cache, self._angles)
        return hidden if full else hidden[row]

    def _sample(self, chosen: list[int], hidden: Tensor) -> list[Sample]:
        """Sample the next token of each slot from its last hidden state; return the finished requests."""
        logits = self._model.logits(hidden)  # (N, V)
        requests = [self._request(index) for index in chosen]
        groups = _groups(requests)
        columns: Tensor | None = None  # the tokens of the columns, if not all
        if any(request.legal is not None for request in requests):
            sets = [None if request.legal is None else request.legal.allowed for request in requests]
            whole = any(sampling.truncates for sampling in groups)
            logits, columns = self._legal_sets.restrict(logits, sets, whole=whole)
        finished = []
        for sampling, members in groups.items():
            uniforms = [requests[row].random.random() for row in members]
            part = logits if len(members) == len(chosen) else logits[members]
            numbers = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)
            ids, logprobs, kept = draw_among(part, numbers, sampling)
            ids = ids if columns is None else columns[ids]
            finished += self._take_all([chosen[row] for row in members], ids.tolist(), logprobs.tolist(), kept)
        return finished

    def _take_all(self, chosen: list[int], ids: list[int], logprobs: list[float], kept: Tensor | None) -> list[Sample]:
        """`_take` of some slots; `kept` is what `draw_among` returns."""
        sets = [None] * len(chosen) if kept is None else _sets(kept)
        taken = [self._take(*each) for each in zip(chosen, ids, logprobs, sets, strict=True)]
        return [sample for sample in taken if sample is not None]

    def _request(self, index: int) -> _Request:
        request = self._slots[index].request
        assert request is not None
        return request

    def _take(self, index: int, token: int, logprob: float, among: tuple[int, ...] | None) -> Sample | None:
        """Append a sampled token to its slot; returns the sample if that ended the request.

        Args:
            among: the tokens that truncation kept; None if it was off.
        """
        slot, request = self._slots[index], self._request(index)
        slot.length = len(slot.token_ids)
        slot.token_ids.append(token)
        request.token_ids.append(token)
        request.logprobs.append(logprob)
        if self.version is not None:
            request.versions.append(self.version)
        legal, complete = request.legal, False
        if legal is not None or among is not None:
            request.allowed.append(among if among is not None else legal.allowed if legal is not None else ())
        if legal is not None:
            legal = request.legal = legal.after(token)
            complete = legal is not None and not legal.allowed
        end: Literal["stop", "string", "complete", "length", "context"]
        if token in request.stop_ids:
            end = "stop"
        elif complete:
            end = "complete"
        elif request.stop_strings and self._wrote(request):
            end = "string"
        elif len(request.token_ids) >= request.max_new_tokens:
            end = "length"
        elif slot.length + 1 >= self.max_tokens:
            end = "context"
        else:
            return None
        slot.request = None
        versions, allowed = tuple(request.versions), tuple(request.allowed)
        return Sample(index, tuple(request.token_ids), tuple(request.logprobs), end, versions, allowed)


def _groups(requests: Sequence[_Request]) -> dict[Sampling, list[int]]:
    """The rows of the requests that are sampled alike."""
    first = requests[0].sampling
    if all(request.sampling is first for request in requests):
        return {first: list(range(len(requests)))}
    groups: dict[Sampling, list[int]] = {}
    for row, request in enumerate(requests):
        groups.setdefault(request.sampling, []).append(row)
    return groups


def _sets(kept: Tensor) -> list[tuple[int, ...]]:
    """The tokens of each row of (N, V) bool; an empty tuple for all of them."""
    counts = kept.sum(1).tolist()
    tokens = kept.nonzero()[:, 1].tolist()
    ends = list(accumulate(counts))
    return [() if n == kept.shape[1] else tuple(tokens[end - n : end]) for n, end in zip(counts, ends, strict=True)]


class _LegalSets:
    """The sets of token ids that were legal so far, each with its mask, which is made once; a game has few.

    Of a large vocabulary the columns without a token of any of these sets are not sampled from. On a CPU this changes
    no digit: whole blocks are left out, in which all probabilities are 0. Other devices sum in another order.
    """

    _MOST = 4096

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...] | None, int] = {}
        self._masks = torch.zeros(0, 0, dtype=torch.bool)  # (at least as many, V)
        self._columns: Tensor | None = None
        self._narrow = self._masks  # the masks of these columns

    def restrict(
        self, logits: Tensor, sets: Sequence[tuple[int, ...] | None], *, whole: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The logits (N, C) of columns with legal tokens, -inf where a token is not in the row's set.

        Args:
            logits: (N, V).
            sets: of each row; None is the whole vocabulary.
            whole: keep all columns.
        Returns:
            The logits; and the token ids of the columns, (C,) ascending, or None if these are all.
        """
        fresh = dict.fromkeys(each for each in sets if each not in self._numbers)
        if fresh:
            self._add(fresh, sets, logits)
        columns, masks = (None, self._masks) if whole else (self._columns, self._narrow)
        if columns is not None:
            logits = logits.index_select(1, columns)
        if len(self._numbers) == 1:
            masks = masks[:1]
        else:
            masks = masks[torch.tensor([self._numbers[each] for each in sets], device=logits.device)]
        return logits.masked_fill(~masks, -torch.inf), columns

    def _add(
        self, fresh: Iterable[tuple[int, ...] | None], sets: Sequence[tuple[int, ...] | None], logits: Tensor
    ) -> None:
        """Make the masks of new sets."""
        new, vocabulary = list(fresh), logits.shape[-1]
        if len(self._numbers) + len(new) > self._MOST:
            self._numbers, new = {}, list(dict.fromkeys(sets))
        known = len(self._numbers)
        if known + len(new) > len(self._masks):
            grown = torch.zeros(2 * (known + len(new)), vocabulary, dtype=torch.bool, device=logits.device)
            if known:
                grown[:known] = self._masks[:known]
            self._masks = grown
        for each in new:
            mask = torch.zeros(vocabulary, dtype=torch.bool)
            mask[slice(None) if each is None else list(each)] = True
            self._masks[len(self._numbers)] = mask.to(logits.device)
            self._numbers[each] = len(self._numbers)
        self._columns, self._narrow = None, self._masks
        if logits.device.type == "cpu":
            legal = self._masks[: len(self._numbers)].any(0)
            blocks = torch.nn.functional.pad(legal, (0, -vocabulary % BLOCK)).view(-1, BLOCK).any(1)
            columns = blocks.repeat_interleave(BLOCK)[:vocabulary].nonzero()[:, 0]
            if 2 * len(columns) <= vocabulary:
                self._columns, self._narrow = columns, self._masks[:, columns]
