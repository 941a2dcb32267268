"""Attention of packed sequences in training and with a cache in generation, for every supported model family."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from swe_trainers.errors import ConfigurationError
from swe_trainers.model.sequence_parallel import SequenceGroup

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = [
    "SEGMENT_ATTENTION",
    "AttentionBackend",
    "Buckets",
    "LayerMasks",
    "Lengths",
    "MaskPlan",
    "SegmentLayout",
    "register_segment_attention",
    "takes_prefixes",
    "to_device",
]

LayerMasks: TypeAlias = Tensor | dict[str, Tensor] | None
"""A trunk's `attention_mask`: one mask, or one for each layer type; None is causal attention."""

SEGMENT_ATTENTION = "segments"
"""The name of this attention in transformers; a back end's name follows after a dash."""

AttentionBackend = Literal["auto", "flash", "efficient", "cudnn", "math"]
"""The PyTorch kernel of attention; with `auto` PyTorch chooses."""

# Sequences share a kernel call if their length is at least this fraction of the longest in their bucket, or if they are
# at most this many tokens shorter: padding costs more than a further call, except for short sequences.
_LEAST_FRACTION, _MOST_PADDING = 0.7, 64


@dataclass(frozen=True, eq=False)
class SegmentLayout:
    """Where the sequences of some rows are, and which of them share a beginning.

    Rows consist of segments: runs of tokens of one row. A segment may continue another one, its parent, and then sees
    all of the parent's tokens and what the parent sees; otherwise it sees its own tokens alone. A sequence is a segment
    with its ancestors. Several segments may continue the same parent, whose tokens are then in the row only once.

    The numbers are on the CPU, whatever device the rows are on, so that no kernel is waited for; indices for a device
    are made at the first use there.

    Attributes:
        starts: (G,) int64, the index of each segment's first token in the flattened batch (B·T).
        sizes: (G,) int64, tokens of each segment.
        parents: (G,) int64, the number of the segment that each continues, less than its own; -1 for none.
        shape: B and T.
        group: the processes that divide the columns; None if this process holds them all.
    """

    starts: Tensor
    sizes: Tensor
    parents: Tensor
    shape: tuple[int, int]
    group: SequenceGroup | None = None
    _buckets: dict[torch.device, Buckets] = field(default_factory=dict, repr=False)
    _lengths: dict[torch.device, Lengths] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, segment_ids: Tensor) -> SegmentLayout:
        """Find the sequences of a batch without shared beginnings.

        Args:
            segment_ids: (B, T) int; tokens of one sequence have the same number greater than 0 and are contiguous;
                padding is 0.
        """
        ids = segment_ids.cpu()
        before = F.pad(ids[:, :-1], (1, 0), value=-1)
        after = F.pad(ids[:, 1:], (0, 1), value=-1)
        starts = ((ids != before) & (ids > 0)).flatten().nonzero().squeeze(1)
        ends = ((ids != after) & (ids > 0)).flatten().nonzero().squeeze(1)
        return cls(starts, ends + 1 - starts, torch.full_like(starts, -1), (ids.shape[0], ids.shape[1]))

    def divided(self, group: SequenceGroup) -> SegmentLayout:
        """The same for rows whose columns are padded and divided among the processes of a group."""
        (height, width), padded = self.shape, group.width(self.shape[1]) * group.size
        starts = self.starts // width * padded + self.starts % width
        return SegmentLayout(starts, self.sizes, self.parents, (height, padded), group)

    @cached_property
    def prefixes(self) -> Tensor:
        """(G,) int64, tokens that each segment sees before its own."""
        seen: list[int] = []
        sizes = self.sizes.tolist()
        for parent in self.parents.tolist():
            seen.append(0 if parent < 0 else seen[parent] + sizes[parent])
        return torch.tensor(seen, dtype=torch.int64)

    @cached_property
    def whole_rows(self) -> bool:
        """Whether each row is one sequence, with padding on the right or none: plain causal attention is then right."""
        height, width = self.shape
        return len(self.starts) == height and torch.equal(self.starts, torch.arange(height) * width)

    @cached_property
    def paths(self) -> list[Tensor]:
        """For each segment the tokens that it sees, (prefix + size,) indices in the flattened batch."""
        found: list[Tensor] = []
        for start, size, parent in zip(self.starts.tolist(), self.sizes.tolist(), self.parents.tolist(), strict=True):
            own = torch.arange(start, start + size)
            found.append(own if parent < 0 else torch.cat([found[parent], own]))
        return found

    def buckets(self, device: torch.device) -> Buckets:
        """The segments as few kernel calls of padded sequences."""
        if device not in self._buckets:
            self._buckets[device] = Buckets.of(self).to(device)
        return self._buckets[device]

    def lengths(self, device: torch.device) -> Lengths:
        """The segments as one kernel call of sequences of any lengths."""
        if device not in self._lengths:
            self._lengths[device] = Lengths.of(self).to(device)
        return self._lengths[device]


@dataclass(frozen=True, eq=False)
class _Move:
    """Rows of one matrix put in other places of another, and the way back.

    Attributes:
        index: (M,) int64, the source of each target row; None if all stay where they are.
        blank: (m,) int64, target rows that are set to 0.
        back, back_blank: the same from targets to sources, for gradients; `back` is None where a source has several
            targets, whose gradients are added up.
    """

    index: Tensor | None
    blank: Tensor
    back: Tensor | None
    back_blank: Tensor

    def to(self, device: torch.device) -> _Move:
        return _Move(*(None if part is None else to_device(part, device) for part in vars(self).values()))  # type: ignore[arg-type]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, …) to (M, …)."""
        if self.index is None:
            return rows
        if torch.is_grad_enabled() and rows.requires_grad:
            moved: Tensor = _Moved.apply(rows, self)  # type: ignore[no-untyped-call]
            return moved
        return _placed(rows, self.index, self.blank)


class _Moved(torch.autograd.Function):
    """PyTorch's own gradient of an index adds into zeros, row by row; without copies it is an index too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, move: _Move) -> Tensor:
        ctx.move, ctx.height = move, rows.shape[0]
        assert move.index is not None
        return _placed(rows, move.index, move.blank)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        move: _Move = ctx.move
        if move.back is not None:
            return _placed(grad, move.back, move.back_blank), None
        assert move.index is not None
        return grad.new_zeros(ctx.height, *grad.shape[1:]).index_add_(0, move.index, grad), None


def _placed(rows: Tensor, index: Tensor, blank: Tensor) -> Tensor:
    moved = rows.index_select(0, index)
    return moved.index_fill_(0, blank, 0) if len(blank) else moved


@dataclass(frozen=True, eq=False)
class Buckets:
    """Segments in buckets of similar length and the same prefix, each padded to its longest.

    Attributes:
        queries: from the flattened batch (B·T) to the buckets one after the other (M); padding repeats a token.
        keys: the same, with the tokens of the prefixes before each segment's own (M'); `queries` if none has a prefix.
        outputs: from the buckets (M) back to the batch (B·T).
        calls: of each bucket S segments, L tokens of the longest, P tokens of the prefix.
    """

    queries: _Move
    keys: _Move
    outputs: _Move
    calls: tuple[tuple[int, int, int], ...]
    _masks: dict[tuple[int, int, int | None, torch.device], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: SegmentLayout) -> Buckets:
        """Divide the segments of a layout."""
        prefixes, sizes = layout.prefixes.tolist(), layout.sizes.tolist()
        order = sorted(range(len(sizes)), key=lambda s: (prefixes[s], -sizes[s], s))
        chosen: list[list[int]] = []
        for s in order:
            longest = chosen[-1][0] if chosen else s
            alike = sizes[s] >= max(_LEAST_FRACTION * sizes[longest], sizes[longest] - _MOST_PADDING)
            if chosen and prefixes[s] == prefixes[longest] and alike:
                chosen[-1].append(s)
            else:
                chosen.append([s])
        calls = tuple((len(bucket), sizes[bucket[0]], prefixes[bucket[0]]) for bucket in chosen)
        queries, keys, real = [], [], []
        for bucket, (_, longest, prefix) in zip(chosen, calls, strict=True):
            members = torch.tensor(bucket)
            column = torch.arange(longest)
            own = column < layout.sizes[members, None]  # (S, L)
            places = layout.starts[members, None] + column * own
            queries.append(places.flatten())
            real.append(own.flatten())
            if prefix:
                before = torch.stack([layout.paths[s][:prefix] for s in bucket])
                keys.append(torch.cat([before, places], 1).flatten())
            else:
                keys.append(queries[-1])
        index, is_real = torch.cat(queries), torch.cat(real)
        taken = torch.zeros(layout.shape[0] * layout.shape[1], dtype=torch.bool)
        taken[index] = True
        back = torch.zeros(len(taken), dtype=torch.int64)
        back[index[is_real]] = is_real.nonzero().squeeze(1)
        nothing, empty = torch.zeros(0, dtype=torch.int64), (~taken).nonzero().squeeze(1)
        moves = _Move(index, nothing, back, empty)
        shared = any(prefix for _, _, prefix in calls)
        return cls(
            moves,
            _Move(torch.cat(keys), nothing, None, nothing) if shared else moves,
            _Move(back, empty, index, (~is_real).nonzero().squeeze(1)),
            calls,
        )

    def to(self, device: torch.device) -> Buckets:
        """The same on another device."""
        queries = self.queries.to(device)
        keys = queries if self.keys is self.queries else self.keys.to(device)
        return Buckets(queries, keys, self.outputs.to(device), self.calls)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Attention by a kernel call for each bucket.

        Args:
            query: (B·T, H, D). key, value: (B·T, H or fewer, D).
            scaling: of the scores; None for 1/√D.
            window: positions that a token attends to, including itself; None for all.
        Returns:
            (B·T, H, D), 0 on padding.
        """
        repeats = query.shape[1] // key.shape[1]
        shared = repeats > 1 and query.device.type == "cpu"  # its kernel reads shared heads in place; others do not
        # Split, not sliced: the gradient of a slice is as large as the whole.
        queries = torch.split(self.queries(query), [count * longest for count, longest, _ in self.calls])
        widths = [count * (prefix + longest) for count, longest, prefix in self.calls]
        keys, values = (torch.split(self.keys(each), widths) for each in (key, value))
        parts = []
        for (count, longest, prefix), *own in zip(self.calls, queries, keys, values, strict=True):
            q, k, v = (part.view(count, -1, *part.shape[1:]).transpose(1, 2) for part in own)
            if repeats > 1 and not shared:
                k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
            plain = not prefix and (window is None or window >= longest)
            mask = None if plain else self._mask(longest, prefix, window, query.device)
            attended = F.scaled_dot_product_attention(q, k, v, mask, is_causal=plain, scale=scaling, enable_gqa=shared)
            parts.append(attended.transpose(1, 2).flatten(0, 1))  # (S · L, H, D)
        return self.outputs(torch.cat(parts) if parts else query.new_zeros(0, *query.shape[1:-1], value.shape[-1]))

    def _mask(self, longest: int, prefix: int, window: int | None, device: torch.device) -> Tensor:
        """(L, P + L) bool, True where a token attends: up to itself, and not further back than the window."""
        known = (longest, prefix, window, device)
        if known not in self._masks:
            mask = torch.ones((longest, prefix + longest), dtype=torch.bool, device=device).tril(prefix)
            self._masks[known] = mask if window is None else mask.triu(prefix + 1 - window)
        return self._masks[known]


@dataclass(frozen=True, eq=False)
class Lengths:
    """Segments one after the other without padding, as PyTorch's `varlen_attn` takes them.

    Attributes:
        queries: from the flattened batch (B·T) to the segments' tokens (M).
        keys: to what each segment sees (M').
        outputs: from the segments (M) back to the batch.
        query_ends, key_ends: (G + 1,) int32, where each segment's queries and keys begin, and the end of all.
        longest_query, longest_key: of a segment.
    """

    queries: _Move
    keys: _Move
    outputs: _Move
    query_ends: Tensor
    key_ends: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def of(cls, layout: SegmentLayout) -> Lengths:
        """The segments of a layout in the order of their places."""
        total, nothing = layout.shape[0] * layout.shape[1], torch.zeros(0, dtype=torch.int64)
        order = layout.starts.argsort()
        starts, sizes = layout.starts[order], layout.sizes[order]
        before = sizes.cumsum(0) - sizes
        count = int(sizes.sum())
        index = torch.repeat_interleave(starts - before, sizes) + torch.arange(count)
        queries = outputs = _Move(None, nothing, None, nothing)
        if count != total:  # there is padding: every place is then taken by itself
            back = torch.zeros(total, dtype=torch.int64).index_copy_(0, index, torch.arange(count))
            empty = torch.ones(total, dtype=torch.bool).index_fill_(0, index, False).nonzero().squeeze(1)
            queries, outputs = _Move(index, nothing, back, empty), _Move(back, empty, index, nothing)
        keys, widths = queries, sizes
        if bool((layout.parents >= 0).any()):
            keys = _Move(torch.cat([layout.paths[s] for s in order.tolist()]), nothing, None, nothing)
            widths = sizes + layout.prefixes[order]
        ends = [F.pad(each.cumsum(0), (1, 0)).int() for each in (sizes, widths)]
        return cls(queries, keys, outputs, ends[0], ends[1], int(sizes.max()), int(widths.max()))

    def to(self, device: torch.device) -> Lengths:
        """The same on another device."""
        queries = self.queries.to(device)
        keys = queries if self.keys is self.queries else self.keys.to(device)
        return replace(
            self,
            queries=queries,
            keys=keys,
            outputs=self.outputs.to(device),
            query_ends=to_device(self.query_ends, device),
            key_ends=to_device(self.key_ends, device),
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None, window: int | None) -> Tensor:
        """Attention by one kernel call; arguments and result as of `Buckets.attend`."""
        from torch.nn.attention.varlen import varlen_attn

        query, key, value = self.queries(query), self.keys(key), self.keys(value)
        options: dict[str, Any] = {"window_size": (-1 if window is None else window - 1, 0), "scale": scaling}
        repeats = query.shape[1] // key.shape[1]
        if repeats > 1 and "enable_gqa" in (_varlen_options() or ()):
            options["enable_gqa"] = True
        elif repeats > 1:  # PyTorch 2.11
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        attended = varlen_attn(
            query, key, value, self.query_ends, self.key_ends, self.longest_query, self.longest_key, **options
        )
        assert isinstance(attended, Tensor)
        return self.outputs(attended)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the CPU on a device, without waiting for the device's earlier work."""
    device = torch.device(device)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def takes_prefixes(backend: AttentionBackend, device: torch.device) -> bool:
    """Whether a kernel can attend to a beginning that several sequences share.

    Without `varlen_attn`, what a branch sees is a mask, which PyTorch's flash and cuDNN kernels do not take on GPUs.
    """
    return backend in ("auto", "efficient", "math") or device.type != "cuda"


@cache
def _varlen_options() -> frozenset[str] | None:
    """The options of PyTorch's `varlen_attn`; None where it is missing, or lacks windows or a scale."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    options = frozenset(inspect.signature(varlen_attn).parameters)
    return options if {"window_size", "scale"} <= options else None


def _takes_lengths(query: Tensor, value: Tensor) -> bool:
    """Whether one kernel call can attend to sequences of any lengths: flash attention's conditions."""
    size = query.shape[-1]
    return (
        query.device.type == "cuda"
        and query.dtype in (torch.bfloat16, torch.float16)
        and size == value.shape[-1] <= 256
        and size % 8 == 0
        and _varlen_options() is not None
    )


def register_segment_attention(backend: AttentionBackend = "auto") -> str:
    """Register segment attention in transformers and return its name there."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    # Two letters: transformers reads any name that contains `flash` as one of its own.
    name = SEGMENT_ATTENTION if backend == "auto" else f"{SEGMENT_ATTENTION}-{backend[:2]}"
    AttentionInterface.register(name, _attend if backend == "auto" else partial(_attend_by, backend))
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _attend_by(backend: AttentionBackend, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
    """`_attend` by one kernel; PyTorch raises if that kernel does not support the arguments."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
    with sdpa_kernel([kernels[backend]]):
        return _attend(*arguments, by_lengths=backend == "flash", **options)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    segments: SegmentLayout | None = None,
    sliding_window: int | None = None,
    by_lengths: bool = True,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of some rows; without `segments`, attention under a mask.

    The cost is that of the sequences, not of the square of the packed rows, and there is no mask in memory.

    Args:
        module: the layer.
        query: (B, H, T, D). key, value: (B, H or fewer, T, D). T are this process's columns if they are divided.
        attention_mask: not used with segments.
        scaling: of the scores; None for 1/√D.
        segments: positions of the sequences.
        sliding_window: the number of positions that a token attends to, including itself.
        by_lengths: where PyTorch has a kernel for sequences of any lengths, use it.
        options: further arguments of the family, passed to transformers.

    Returns:
        (B, T, H, D), finite on padding; and None instead of attention weights.

    Raises:
        ConfigurationError: the family has attention sinks, as gpt-oss.
    """
    if options.get("s_aux") is not None:
        raise ConfigurationError(
            f"{type(module).__name__}: it has attention sinks, which are not computed here. Try: a Llama, Qwen2, "
            "Qwen3, Mistral or GPT-2 style model"
        )
    if segments is None:
        return _attend_masked(module, query, key, value, attention_mask, scaling=scaling, **options), None
    if segments.group is not None:
        query, key, value = (segments.group.to_heads(part) for part in (query, key, value))
    n_rows, n_heads, length, _ = query.shape
    if segments.whole_rows and (sliding_window is None or sliding_window >= length):
        repeats = n_heads // key.shape[1]
        shared = repeats > 1 and query.device.type == "cpu"
        if repeats > 1 and not shared:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=shared)
        output = attended.transpose(1, 2)  # (B, T, H, D)
    else:
        flat = [part.transpose(1, 2).reshape(n_rows * length, part.shape[1], -1) for part in (query, key, value)]
        by = segments.lengths if by_lengths and _takes_lengths(query, value) else segments.buckets
        output = (
            by(query.device).attend(*flat, scaling=scaling, window=sliding_window).view(n_rows, length, n_heads, -1)
        )
    return output if segments.group is None else segments.group.to_columns(output), None


def _attend_masked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    **options: Any,
) -> Tensor:
    """Attention under a mask, or causal without one; (B, T, H, D).

    With a mask, transformers copies shared keys and values for each query head, which takes most of a decoding step. A
    single query's heads that share keys become rows of one kernel call instead: no copy, and on a CPU faster than a
    call with one row for each head. For more queries, PyTorch's CPU kernel reads shared heads in place.
    """
    (n_rows, n_heads, length, _), n_shared = query.shape, key.shape[1]
    if mask is not None and length == 1 and n_heads > n_shared:
        together = query.view(n_rows, n_shared, n_heads // n_shared, -1)
        attended = F.scaled_dot_product_attention(together, key, value, mask, scale=scaling)
        return attended.reshape(n_rows, 1, n_heads, -1)
    if mask is None or n_heads == n_shared or query.device.type != "cpu":
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)[0]
        return found
    output = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2)


class MaskPlan:
    """The masks of a model family: one for all layers or one for each layer type, with a window or without.

    Args:
        config: the model's configuration with `layer_types` and `sliding_window`.

    Raises:
        ConfigurationError: some layers are neither full nor sliding-window attention (recurrent, chunked).
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        layer_types = set(getattr(config, "layer_types", None) or ())
        unknown = layer_types - {"full_attention", "sliding_attention"}
        if unknown:
            raise ConfigurationError(
                f"{config.model_type}: layers of type {', '.join(sorted(unknown))}; only full and sliding-window "
                "attention can be packed and cached. Try: a Llama, Qwen2, Qwen3, Mistral or GPT-2 style model"
            )
        window = getattr(config, "sliding_window", None)
        self.by_type = "sliding_attention" in layer_types
        self.window: int | None = window if self.by_type or not layer_types else None

    @property
    def windowed(self) -> bool:
        """Whether some layer has a sliding window."""
        return self.window is not None

    def masks(self, allowed: Tensor, queries: Tensor, keys: Tensor) -> LayerMasks:
        """Make the trunk's masks from one mask.

        Args:
            allowed: (B, 1, Q, K) bool, True where the query attends to the key in a full-attention layer.
            queries, keys: (B, 1, Q, 1) and (K,) int, their positions.

        Returns:
            The mask with the window applied; a mapping by layer type if the model has both layer types.
        """
        if self.window is None:
            return allowed
        windowed = allowed & (keys > queries - self.window)
        return {"full_attention": allowed, "sliding_attention": windowed} if self.by_type else windowed

    def additive(self, positions: Tensor, length: int, dtype: torch.dtype) -> LayerMasks:
        """Masks to add to the scores: a bool mask would be converted in every layer.

        Args:
            positions: (B, Q) int64, of the queries, which see themselves and what is before.
            length: K, the positions of the keys are those below it.
            dtype: of the scores.

        Returns:
            (B, 1, Q, K), 0 where a query attends to a key and -inf elsewhere; by layer type if the model has both.
        """
        column = torch.arange(length, device=positions.device)
        positions = positions[:, None, :, None]  # (B, 1, Q, 1)
        masks = self.masks(column <= positions, positions, column)
        nothing = torch.zeros((), dtype=dtype, device=positions.device)
        if isinstance(masks, dict):
            return {kind: torch.where(mask, nothing, -torch.inf) for kind, mask in masks.items()}
        return None if masks is None else torch.where(masks, nothing, -torch.inf)

    def placeholder(self, device: torch.device) -> LayerMasks:
        """Masks with which transformers does not make its own; for use with a `SegmentLayout`."""
        unused = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
        return {"full_attention": unused, "sliding_attention": unused} if self.by_type else unused
