"""The trunk over a cache of keys and values, for families whose layers we know: what generation needs and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from swe_trainers.policy.attention import LayerMasks
from swe_trainers.policy.fused import Attention, Rotation, families

if TYPE_CHECKING:
    from swe_trainers.policy.language_model import LanguageModel

__all__ = ["is_known_trunk", "read_last"]


def is_known_trunk(trunk: nn.Module) -> bool:
    """Whether a trunk is embeddings, layers of one kind and a norm, none of them wrapped or hooked."""
    kind = next((family.layer for family in families() if type(trunk) is family.trunk), None)
    if kind is None:
        return False
    layers: Any = trunk.layers
    return _is_bare(trunk) and all(
        type(layer) is kind and type(layer.self_attn) is Attention and _is_bare(layer) for layer in layers
    )


def _is_bare(module: nn.Module) -> bool:
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))  # noqa: SLF001


def read_last(
    model: LanguageModel, ids: Tensor, positions: Tensor, masks: LayerMasks, last: Tensor, cache: Any
) -> Tensor:
    """Final, normed hidden states of one token of each row.

    Where the layers are known, the last of them computes no more than keys and values of the other tokens.

    Args:
        model: the policy.
        ids, positions: (B, T) int64.
        masks: added to the scores; None where each row begins here.
        last: (B,) int64, the token asked about, after which a row holds padding only.
        cache: takes and gives keys and values.
    Returns:
        (B, D).
    """
    trunk: Any = model.trunk
    if not is_known_trunk(trunk):
        hidden = model.run_trunk(ids, positions, masks, cache=cache)
        return hidden[torch.arange(len(last), device=last.device), last]
    hidden = trunk.embed_tokens(ids)
    rotation = trunk.rotary_emb(hidden, positions)
    final = len(trunk.layers) - 1
    for number, layer in enumerate(trunk.layers):
        mask = masks[trunk.config.layer_types[number]] if isinstance(masks, dict) else masks
        if number == final and ids.shape[1] > 1:
            hidden = _final_layer(layer, hidden, rotation, mask, last, cache)
        else:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotation, past_key_values=cache)
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
