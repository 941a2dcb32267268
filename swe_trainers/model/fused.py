"""Layers of the known model families (Llama, Mistral, Qwen2, Qwen3) in fewer passes over memory.

Transformers writes root-mean-square norms and rotary positions as many elementary operations, each with several more in
the backward pass: on a CPU they take as much of a small model's update as its matrix products. The functions here
compute the same formulas, equal up to rounding, in one forward and one backward function each. On a GPU they are
kernels (`kernels.triton_layers`).

`last_hidden` runs a trunk for generation, where only the last token of each row is needed, and `hidden_at` for
training, where only the states that predict an action are.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from swe_trainers.kernels.choice import layer_kernels
from swe_trainers.model.attention import SEGMENT_ATTENTION, LayerMasks, SegmentLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from swe_trainers.model.language_model import LanguageModel

__all__ = [
    "MLP",
    "Attention",
    "RMSNorm",
    "cache_argument",
    "fuse_layers",
    "has_plain_heads",
    "hidden_at",
    "is_known_trunk",
    "last_hidden",
    "rms_norm",
    "rotate",
    "swiglu",
]

_SILU = ("SiLU", "SiLUActivation")  # PyTorch's, and that of transformers 5
_LARGE_NORM = 2**22
"""Elements from which a GPU saves more by the kernel than the host needs longer to start it than PyTorch's own."""
_Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of the positions, each (B, T, D); the two halves of D are equal."""


class _Family(NamedTuple):
    """The classes of one family in transformers; all known families compute the same with theirs."""

    norm: type[nn.Module]
    attention: type[nn.Module]
    mlp: type[nn.Module]
    layer: type[nn.Module]
    trunk: type[nn.Module]


@functools.cache
def _families() -> tuple[_Family, ...]:
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    known = {"Llama": llama, "Mistral": mistral, "Qwen2": qwen2, "Qwen3": qwen3}
    parts = ("RMSNorm", "Attention", "MLP", "DecoderLayer", "Model")
    return tuple(_Family(*(getattr(module, name + part) for part in parts)) for name, module in known.items())


def fuse_layers(causal_lm: nn.Module) -> bool:
    """Replace the norms, attention and MLPs of a known family by those defined here; other models are not changed.

    Modules keep their names, parameters and hooks, and the modules that they call (projections, adapters on them).

    Returns:
        Whether the model is of a known family.
    """
    norms, attentions = {family.norm for family in _families()}, {family.attention for family in _families()}
    mlps = {family.mlp for family in _families()}
    for module in causal_lm.modules():
        if type(module) in norms:
            module.__class__ = RMSNorm
        elif type(module) in attentions:
            module.__class__ = Attention
        elif type(module) in mlps and type(module.act_fn).__name__ in _SILU:
            module.__class__ = MLP
    return any(type(module) is Attention for module in causal_lm.modules())


class RMSNorm(nn.Module):
    """Replaces a family's norm, which has a `weight` (D,) and a `variance_epsilon`."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) to (…, D)."""
        return rms_norm(hidden, self.weight, self.variance_epsilon)

    def extra_repr(self) -> str:
        """The same text as the families' own norms."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class Attention(nn.Module):
    """Replaces a family's attention, which has four projections and, in some families, norms of queries and keys."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: _Rotation,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        *,
        cache: Any = None,
        only: Tensor | int | None = None,
        places: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) to (B, T, D); the names of the arguments are those that transformers passes.

        The keys and values of earlier tokens are `past_key_values` up to transformers 5.23, and `cache` from 5.24 on.

        With `only`, one token of each row as of `_one_of_each`, the output is (B, 1, D): that token is the only query,
        and `attention_mask` is the mask of that query. With `places`, (N,) int64 in the flattened batch (B·T), the
        output is (N, D): of those tokens alone.
        """
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        own: Any = self
        cache = past_key_values if cache is None else cache
        asking, (cosines, sines) = hidden_states, position_embeddings
        if only is not None:
            asking, cosines, sines = (_one_of_each(part, only) for part in (asking, cosines, sines))
        shape = asking.shape[:-1]
        query = own.q_proj(asking).view(*shape, -1, own.head_dim)
        key, value = (
            project(hidden_states).view(*hidden_states.shape[:-1], -1, own.head_dim)
            for project in (own.k_proj, own.v_proj)
        )
        # Qwen sets the window by layer, Mistral for the whole model.
        window = own.sliding_window if hasattr(self, "sliding_window") else getattr(own.config, "sliding_window", None)
        if getattr(cache, "attends", False):
            normed = hasattr(self, "q_norm")
            attended = cache.attend(
                query,
                key,
                value,
                own.layer_idx,
                rotation=position_embeddings,
                gains=(own.q_norm.weight, own.k_norm.weight) if normed else None,
                epsilon=own.q_norm.variance_epsilon if normed else 0.0,
                scaling=own.scaling,
                window=window,
            )
            return own.o_proj(attended.reshape(*shape, -1)), None
        if hasattr(self, "q_norm"):
            query, key = own.q_norm(query), own.k_norm(key)
        query, key = rotate(query, cosines, sines).transpose(1, 2), rotate(key, *position_embeddings).transpose(1, 2)
        value = value.transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, own.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[own.config._attn_implementation]  # noqa: SLF001 - where the families look it up
        attended, weights = attend(
            self, query, key, value, attention_mask, scaling=own.scaling, sliding_window=window, **options
        )
        attended = attended.reshape(*shape, -1)
        return own.o_proj(attended if places is None else _taken(attended, places)), weights


class MLP(nn.Module):
    """Replaces a family's MLP with the activation SiLU, which has three projections."""

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) to (…, D)."""
        own: Any = self
        projected: Tensor = own.down_proj(swiglu(own.gate_proj(hidden), own.up_proj(hidden)))
        return projected


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """X / sqrt(mean x² + ε) · weight, computed in at least float32 (Zhang and Sennrich 2019, arXiv:1910.07467).

    Args:
        x: (…, D) floating. weight: (D,). epsilon: ε.
    Returns:
        (…, D), in the dtype of x · weight.
    """
    # On a GPU these round once, where the families and `_scaled` round before the gain too.
    kernels = layer_kernels(x) if x.numel() >= _LARGE_NORM and weight.dtype != torch.float64 else None
    if kernels is not None:
        large: Tensor = kernels.rms_norm(x, weight, epsilon)
        return large
    if x.device.type == "cuda" and x.dtype == weight.dtype and hasattr(torch.ops.aten, "_fused_rms_norm"):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, epsilon)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        normed: Tensor = _RMSNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
        return normed
    return _scaled(_exact(x), x.dtype, weight, epsilon)[0]


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + D/2}) by the angle of its position (Su et al. 2021, arXiv:2104.09864).

    Args:
        x: (B, T, H, D). cosines, sines: (B, T, D); the two halves of D are equal.
    Returns:
        (B, T, H, D).
    """
    kernels = layer_kernels(x)
    rotated: Tensor
    if kernels is not None:
        rotated = kernels.rotate(x, cosines, sines)
    elif torch.is_grad_enabled() and x.requires_grad:
        rotated = _Rotate.apply(x, cosines, sines)  # type: ignore[no-untyped-call]
    else:
        rotated = _rotated(x, cosines, sines, inverse=False)
    return rotated


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Gate · σ(gate) · up (Shazeer 2020, arXiv:2002.05202).

    Args:
        gate, up: (…, D) floating.
    Returns:
        (…, D).
    """
    kernels = layer_kernels(gate, up)
    if kernels is None:
        return nn.functional.silu(gate) * up
    activated: Tensor = kernels.swiglu(gate, up)
    return activated


def _exact(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _scaled(exact: Tensor, dtype: torch.dtype, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normed x (…, D), and the factor by which x was multiplied (…, 1)."""
    length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    scale = length.square_().mul_(1 / exact.shape[-1]).add_(epsilon).rsqrt_()
    normed = (exact * scale).to(dtype)
    return (normed.mul_(weight) if weight.dtype == dtype else normed * weight), scale


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normed, scale = _scaled(_exact(x), x.dtype, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With u = x · scale: dw = Σ g u, dx = scale (g w − u mean(g w u))."""
        x, weight, scale = ctx.saved_tensors
        grad, unit, gain = grad.to(scale.dtype), x * scale, weight.to(scale.dtype)
        product = grad * unit
        grad_weight = product.reshape(-1, len(weight)).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_weight, None
        mean = (product @ gain).mul_(1 / len(weight)).unsqueeze(-1)
        # Reuses memory: on a CPU a new tensor of this size costs more than the operation.
        torch.mul(grad, gain, out=product)
        return product.addcmul_(unit, mean, value=-1).mul_(scale).to(x.dtype), grad_weight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _rotated(x, cosines, sines, inverse=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _rotated(grad, *ctx.saved_tensors, inverse=True), None, None


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, *, inverse: bool) -> Tensor:
    half = x.shape[-1] // 2
    sines = sines[:, :, None, :half]
    rotated = x * cosines[:, :, None]
    rotated[..., :half].addcmul_(x[..., half:], sines, value=1 if inverse else -1)
    rotated[..., half:].addcmul_(x[..., :half], sines, value=-1 if inverse else 1)
    return rotated


def hidden_at(
    model: LanguageModel,
    ids: Tensor,
    positions: Tensor,
    places: Tensor,
    segments: SegmentLayout,
) -> Tensor:
    """Final, normed hidden states of some tokens of packed rows, in a known family.

    The last layer computes keys, values and queries of all tokens, and all the rest of these alone.

    Args:
        model: the policy; `is_known_trunk` of its trunk.
        ids, positions: (B, T) int64.
        places: (N,) int64, indices in the flattened batch (B·T), repeated ones allowed.
        segments: where the sequences are.
    Returns:
        (N, D).
    """
    trunk: Any = model.trunk
    hidden = trunk.embed_tokens(ids)
    rotation = trunk.rotary_emb(hidden, positions)
    *others, final = trunk.layers
    for layer in others:
        hidden = layer(hidden, attention_mask=None, position_embeddings=rotation, segments=segments)
    attended, _ = final.self_attn(final.input_layernorm(hidden), rotation, None, places=places, segments=segments)
    hidden = _taken(hidden, places) + attended  # (N, D)
    hidden = hidden + final.mlp(final.post_attention_layernorm(hidden))
    normed: Tensor = trunk.norm(hidden)
    return normed


def _taken(hidden: Tensor, places: Tensor) -> Tensor:
    """(B, T, D) to (N, D)."""
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, places)


def _one_of_each(x: Tensor, places: Tensor | int) -> Tensor:
    """One token of each row of (B, T, D): that of the same column, or (B,) int64 in the flattened batch; (B, 1, D)."""
    return x[:, places : places + 1] if isinstance(places, int) else _taken(x, places)[:, None]


def cache_argument(module: nn.Module) -> str:
    """What a trunk or a layer calls the keys and values of earlier tokens: transformers 5.24 has renamed them."""
    kind: Any = type(module)
    return "cache" if "cache" in _arguments(kind.forward) else "past_key_values"


@functools.cache
def _arguments(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def is_known_trunk(trunk: nn.Module) -> bool:
    """Whether a trunk is embeddings, layers of a known family and a norm, none of them wrapped or hooked."""
    layer_type = next((family.layer for family in _families() if type(trunk) is family.trunk), None)
    if layer_type is None:
        return False
    layers: Any = trunk.layers
    return _is_bare(trunk) and all(
        type(layer) is layer_type and type(layer.self_attn) is Attention and _is_bare(layer) for layer in layers
    )


def has_plain_heads(trunk: nn.Module) -> bool:
    """Whether a kernel may compute the heads of a known trunk: norms that are bare or absent, and our own attention."""
    layers: Any = trunk.layers
    norms = [vars(layer.self_attn)["_modules"].get(name) for layer in layers for name in ("q_norm", "k_norm")]
    own = all(norm is None or (type(norm) is RMSNorm and _is_bare(norm)) for norm in norms)
    config: Any = trunk.config
    return own and config._attn_implementation.startswith(SEGMENT_ATTENTION)  # noqa: SLF001


def _is_bare(module: nn.Module) -> bool:
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))  # noqa: SLF001


def last_hidden(
    model: LanguageModel,
    ids: Tensor,
    positions: Tensor,
    masks: LayerMasks,
    last: Tensor | int,
    cache: Any,
    angles: _Rotation | None = None,
) -> Tensor:
    """Final, normed hidden states of the last token of each row.

    In a known family the last layer computes only keys and values for the other tokens.

    Args:
        model: the policy.
        ids, positions: (B, T) int64; positions that are the same in all rows may be (1, T), and masks likewise.
        masks: added to the attention scores; None if each row starts here.
        last: the column of each row's last token, which only padding follows: (B,) int64, or a number for all rows.
        cache: holds keys and values; the new ones are added to it.
        angles: cosines and sines of all positions, (P, D) each, where they depend on nothing else; None computes them.
    Returns:
        (B, D).
    """
    trunk: Any = model.trunk
    n_rows, width = ids.shape
    places = last if isinstance(last, int) else torch.arange(0, n_rows * width, width, device=last.device) + last
    if not is_known_trunk(trunk):
        return _one_of_each(model.run_trunk(ids, positions.expand(ids.shape), masks, cache=cache), places)[:, 0]
    hidden = trunk.embed_tokens(ids)
    rotation = trunk.rotary_emb(hidden, positions) if angles is None else [each[positions] for each in angles]
    rotation = tuple(each.expand(n_rows, width, -1) for each in rotation)
    final = len(trunk.layers) - 1
    cached = {cache_argument(trunk.layers[0]): cache}
    for number, layer in enumerate(trunk.layers):
        mask = masks[trunk.config.layer_types[number]] if isinstance(masks, dict) else masks
        if number < final or width == 1:
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotation, **cached)
            continue
        if mask is None:
            column = torch.arange(width, device=hidden.device)
            shown = column <= (last if isinstance(last, int) else last[:, None, None, None])
            visible = torch.where(shown, 0.0, -torch.inf).to(hidden.dtype).view(-1, 1, 1, width)
        else:
            visible = _one_of_each(mask[:, 0], places)[:, None]  # (B, 1, 1, K)
        attended, _ = layer.self_attn(layer.input_layernorm(hidden), rotation, visible, cache, only=places)
        hidden = _one_of_each(hidden, places) + attended  # (B, 1, D)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    normed: Tensor = trunk.norm(hidden[:, 0])
    return normed
