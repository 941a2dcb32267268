"""Which token may attend to which: packed rows in training, the cache in generation, one way for every model family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swe_trainers.errors import ConfigurationError
from swe_trainers.policy.sequence_parallel import SequenceGroup

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

__all__ = [
    "SEGMENT_ATTENTION",
    "AttentionBackend",
    "LayerMasks",
    "MaskPlan",
    "SegmentLayout",
    "register_segment_attention",
]

LayerMasks: TypeAlias = Tensor | dict[str, Tensor] | None
"""What a trunk takes as `attention_mask`: one mask, or one for each kind of layer; None is plain causal attention."""

SEGMENT_ATTENTION = "segments"
"""The name under which transformers knows the attention defined here; a back end's follows after a dash."""

AttentionBackend = Literal["auto", "flash", "efficient", "cudnn", "math"]
"""Which of PyTorch's kernels computes attention; `auto` leaves it to PyTorch."""

# Sequences are attended to in one kernel call if they are at least so long relative to the longest of their bucket, and
# shorter by so many tokens at most: padding costs attention more than a call does, but where sequences are short.
_ALIKE, _SHORTER = 0.7, 64


@dataclass(frozen=True)
class SegmentLayout:
    """Where the sequences of a packed batch are, in buckets of similar length, each padded to its longest.

    Attributes:
        buckets: pairs of (S, L): the index of each token in the flattened batch (B·T), and whether it is one (padding
            repeats the sequence's first token).
        group: the processes among which the columns are divided; None where this one holds them all.
    """

    buckets: tuple[tuple[Tensor, Tensor], ...]
    group: SequenceGroup | None = None

    @classmethod
    def of(
        cls, segment_ids: Tensor, *, always: bool = False, group: SequenceGroup | None = None
    ) -> SegmentLayout | None:
        """Find the sequences.

        Args:
            segment_ids: (B, T) int; tokens of one sequence share a number greater than 0 and are contiguous;
                padding is 0.
            always: give a layout in any case.
            group: of processes among which these columns are divided; there is then a layout in any case.

        Returns:
            The layout; None where every row is one sequence, padded on the right or not at all: plain causal
            attention is then right for every real token.
        """
        if group is not None:
            segment_ids, always = group.padded(segment_ids), True
        n_rows, length = segment_ids.shape
        before = F.pad(segment_ids[:, :-1], (1, 0), value=-1)
        starts = ((segment_ids != before) & (segment_ids > 0)).flatten().nonzero().squeeze(1)
        ends = ((segment_ids != F.pad(segment_ids[:, 1:], (0, 1), value=-1)) & (segment_ids > 0)).flatten().nonzero()
        sizes = ends.squeeze(1) + 1 - starts
        if (
            not always
            and len(starts) == n_rows
            and bool((starts == torch.arange(n_rows, device=starts.device) * length).all())
        ):
            return None
        order = sizes.argsort(descending=True, stable=True)
        starts, sizes = starts[order], sizes[order]
        buckets, at, lengths = [], 0, sizes.tolist()
        while at < len(lengths):
            least = max(_ALIKE * lengths[at], lengths[at] - _SHORTER)
            end = next((i for i in range(at, len(lengths)) if lengths[i] < least), len(lengths))
            column = torch.arange(lengths[at], device=segment_ids.device)
            real = column < sizes[at:end, None]
            buckets.append((starts[at:end, None] + column * real, real))
            at = end
        return cls(tuple(buckets), group)


def register_segment_attention(backend: AttentionBackend = "auto") -> str:
    """Make segment attention known to transformers; models choose it by the name that is returned."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    # The whole word would do for all but `flash`: transformers takes any name with that in it for a package's own.
    name = SEGMENT_ATTENTION if backend == "auto" else f"{SEGMENT_ATTENTION}-{backend[:2]}"
    AttentionInterface.register(name, _attend if backend == "auto" else partial(_attend_by, backend))
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def _attend_by(backend: AttentionBackend, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
    """`_attend` by one kernel alone; PyTorch says so where that cannot compute what is asked."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
    with sdpa_kernel([kernels[backend]]):
        return _attend(*arguments, **options)


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
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each sequence of a packed batch; without `segments`, transformers' own under its mask.

    The cost is that of the sequences, not of the square of the rows that they are packed into, and no mask is made.

    Args:
        module: the layer that asks.
        query: (B, H, T, D). key, value: (B, H or fewer, T, D). T are this process's columns where they are divided.
        attention_mask: not looked at where there are segments.
        scaling: of the scores; 1/√D where not given.
        segments: where the sequences are.
        sliding_window: how many positions a token sees, itself included.
        options: whatever else the family passes; for transformers' own.

    Returns:
        (B, T, H, D), 0 on padding, and no weights.
    """
    if segments is None:
        return _attend_masked(module, query, key, value, attention_mask, scaling=scaling, **options), None
    if segments.group is not None:
        query, key, value = (segments.group.to_heads(part) for part in (query, key, value))
    n_rows, n_heads, length, _ = query.shape
    repeats = n_heads // key.shape[1]
    shared = repeats > 1 and query.device.type == "cpu"  # whose kernel reads shared heads where they are; not all do
    # Padding is left out of all that follows, so its output stays 0.
    flat = [part.transpose(1, 2).reshape(n_rows * length, part.shape[1], -1) for part in (query, key, value)]
    output = flat[0].new_zeros((n_rows * length, n_heads, value.shape[-1]))
    for index, real in segments.buckets:
        q, k, v = (part[index].transpose(1, 2) for part in flat)  # (S, H, L, D)
        if repeats > 1 and not shared:
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        window = None
        if sliding_window is not None and sliding_window < index.shape[1]:
            window = torch.ones((index.shape[1],) * 2, dtype=torch.bool, device=q.device).tril()
            window = window.triu(1 - sliding_window)
        attended = F.scaled_dot_product_attention(
            q, k, v, window, is_causal=window is None, scale=scaling, enable_gqa=shared
        )
        output = output.index_put((index[real],), attended.transpose(1, 2)[real])
    output = output.view(n_rows, length, n_heads, -1)
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

    Transformers copies shared keys and values once a query head where there is a mask. On a CPU that would be most of
    what a decoding step does: its kernel reads them where they are.
    """
    (n_rows, n_heads, length, _), n_shared = query.shape, key.shape[1]
    if mask is None or n_heads == n_shared or query.device.type != "cpu":
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended: Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)[0]
        return attended
    if length > 1:
        output = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling, enable_gqa=True)
        return output.transpose(1, 2)
    # The heads that share keys are the kernel's rows: of one row each it would make little use.
    together = query.view(n_rows, n_shared, n_heads // n_shared, -1)
    return F.scaled_dot_product_attention(together, key, value, mask, scale=scaling).view(n_rows, 1, n_heads, -1)


class MaskPlan:
    """How a model family wants its masks: one for all layers or one for each layer type, windowed or not.

    Args:
        config: the model's configuration; read are `layer_types` and `sliding_window`.

    Raises:
        ConfigurationError: some layers are neither full nor sliding-window attention (recurrent, chunked).
    """

    def __init__(self, config: PreTrainedConfig) -> None:
        layer_types = set(getattr(config, "layer_types", None) or ())
        unknown = layer_types - {"full_attention", "sliding_attention"}
        if unknown:
            raise ConfigurationError(
                f"{config.model_type}: layers of type {', '.join(sorted(unknown))}; only full and sliding-window "
                "attention can be packed and cached here. Choose a Llama, Qwen2, Qwen3, Mistral or GPT-2 style model."
            )
        window = getattr(config, "sliding_window", None)
        self.by_type = "sliding_attention" in layer_types
        self.window: int | None = window if self.by_type or not layer_types else None

    @property
    def windowed(self) -> bool:
        """Whether some layer sees less than the whole past."""
        return self.window is not None

    def masks(self, allowed: Tensor, queries: Tensor, keys: Tensor) -> LayerMasks:
        """Turn one mask into what the trunk takes.

        Args:
            allowed: (B, 1, Q, K) bool, True where the query may see the key in a full-attention layer.
            queries, keys: (B, 1, Q, 1) and (K,) int, their positions.

        Returns:
            The mask, with the window applied; a mapping by layer type where the model mixes both kinds.
        """
        if self.window is None:
            return allowed
        windowed = allowed & (keys > queries - self.window)
        return {"full_attention": allowed, "sliding_attention": windowed} if self.by_type else windowed

    def placeholder(self, device: torch.device) -> LayerMasks:
        """Masks that keep transformers from making its own, where `SegmentLayout` says what may be seen."""
        nothing = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)
        return {"full_attention": nothing, "sliding_attention": nothing} if self.by_type else nothing
