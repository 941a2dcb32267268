"""The trunk over a cache of keys and values, for families whose layers we know: what generation needs and no more."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from swe_trainers.policy.attention import LayerMasks
from swe_trainers.policy.fused import Attention, Rotation

__all__ = ["is_known_trunk", "read_last"]


def is_known_trunk(trunk: nn.Module) -> bool:
    """Whether a trunk is embeddings, layers of one kind and a norm, none of them wrapped or hooked."""
    kind = _layers_of().get(type(trunk))
    if kind is None:
        return False
    layers: Any = trunk.layers
    return _is_bare(trunk) and all(
        type(layer) is kind and type(layer.self_attn) is Attention and _is_bare(layer) for layer in layers
    )


@functools.cache
def _layers_of() -> dict[type[nn.Module], type[nn.Module]]:
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    return {
        llama.LlamaModel: llama.LlamaDecoderLayer,
        mistral.MistralModel: mistral.MistralDecoderLayer,
        qwen2.Qwen2Model: qwen2.Qwen2DecoderLayer,
        qwen3.Qwen3Model: qwen3.Qwen3DecoderLayer,
    }


def _is_bare(module: nn.Module) -> bool:
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))  # noqa: SLF001


def read_last(trunk: Any, ids: Tensor, positions: Tensor, masks: LayerMasks, last: Tensor, cache: Any) -> Tensor:
    """Final, normed hidden states of one token of each row; of the others the last layer computes keys and values alone.

    Args:
        trunk: one that `is_known_trunk`.
        ids, positions: (B, T) int64.
        masks: added to the scores; None where each row begins here.
        last: (B,) int64, the token asked about, after which a row holds padding only.
        cache: takes and gives keys and values.
    Returns:
        (B, D).
    """
    hidden = trunk.embed_tokens(ids)
    rotation = trunk.rotary_emb(hidden, positions)
    kinds = getattr(trunk.config, "layer_types", None)
    *layers, final = zip(trunk.layers, kinds or [None] * len(trunk.layers), strict=True)
    for layer, kind in layers:
        mask = masks[kind] if isinstance(masks, dict) else masks
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotation, past_key_values=cache)
    layer, kind = final
    mask = masks[kind] if isinstance(masks, dict) else masks
    hidden = (
        _final_layer(layer, hidden, rotation, mask, last, cache)
        if ids.shape[1] > 1
        else layer(hidden, attention_mask=mask, position_embeddings=rotation, past_key_values=cache)
    )
    normed: Tensor = trunk.norm(hidden[:, 0])
    return normed


def _final_layer(
    layer: Any, hidden: Tensor, rotation: Rotation, mask: Tensor | None, last: Tensor, cache: Any
) -> Tensor:
    """The layer's output at one token of each row, (B, 1, D)."""
    rows = torch.arange(len(hidden), device=hidden.device)
    if mask is None:
        column = torch.arange(hidden.shape[1], device=hidden.device)
        seen = torch.where(column <= last[:, None], 0.0, -torch.inf)[:, None, None].to(hidden.dtype)  # (B, 1, 1, T)
    else:
        seen = mask[rows, :, last][:, :, None]
    attended, _ = layer.self_attn(layer.input_layernorm(hidden), rotation, seen, cache, only=last)
    kept = hidden[rows, last][:, None] + attended
    output: Tensor = kept + layer.mlp(layer.post_attention_layernorm(kept))
    return output
