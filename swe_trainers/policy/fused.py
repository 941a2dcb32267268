"""Root-mean-square norms and rotary positions in fewer passes over memory, forward and backward, for known families.

Transformers spells both out in elementary operations, each of which autograd takes back by several more: on a CPU they
cost a small model's update as much as its matrix products do. The formulae, and with them the numbers up to rounding,
are the same.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

__all__ = ["Attention", "Family", "RMSNorm", "Rotation", "families", "fuse_layers", "rms_norm", "rotate"]

Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of the positions, (B, T, D) each, the two halves of D alike."""


class Family(NamedTuple):
    """Classes of transformers' that belong together; all known families compute the same with theirs."""

    norm: type[nn.Module]
    attention: type[nn.Module]
    layer: type[nn.Module]
    trunk: type[nn.Module]


@functools.cache
def families() -> tuple[Family, ...]:
    """The families whose layers we know."""
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    known = {"Llama": llama, "Mistral": mistral, "Qwen2": qwen2, "Qwen3": qwen3}
    parts = ("RMSNorm", "Attention", "DecoderLayer", "Model")
    return tuple(Family(*(getattr(module, name + part) for part in parts)) for name, module in known.items())


def fuse_layers(causal_lm: nn.Module) -> bool:
    """Give the norms and the attention of a Llama, Mistral, Qwen2 or Qwen3 the forms defined here; leave others alone.

    Modules keep their names, parameters and hooks; what they call (projections, adapters on them) stays theirs.

    Returns:
        Whether it is one of these.
    """
    norms, attentions = {family.norm for family in families()}, {family.attention for family in families()}
    for module in causal_lm.modules():
        if type(module) in norms:
            module.__class__ = RMSNorm
        elif type(module) in attentions:
            module.__class__ = Attention
    return any(type(module) is Attention for module in causal_lm.modules())


class RMSNorm(nn.Module):
    """What a family's own norm becomes: it has a `weight` (D,) and a `variance_epsilon`."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) to the same."""
        return rms_norm(hidden, self.weight, self.variance_epsilon)

    def extra_repr(self) -> str:
        """As the families print theirs."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class Attention(nn.Module):
    """What a family's own attention becomes: it has the four projections, and norms of queries and keys if at all."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Rotation,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        *,
        only: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, D) to the same, under the names that transformers passes arguments by.

        With `only` (B,) int64 to (B, 1, D): one token of each row asks, and the mask is its.
        """
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        own: Any = self
        asking, (cosines, sines) = hidden_states, position_embeddings
        if only is not None:
            rows = torch.arange(len(only), device=only.device)
            asking, cosines, sines = (part[rows, only][:, None] for part in (asking, cosines, sines))
        shape = asking.shape[:-1]
        query = own.q_proj(asking).view(*shape, -1, own.head_dim)
        key, value = (
            project(hidden_states).view(*hidden_states.shape[:-1], -1, own.head_dim)
            for project in (own.k_proj, own.v_proj)
        )
        if hasattr(self, "q_norm"):
            query, key = own.q_norm(query), own.k_norm(key)
        query, key = rotate(query, cosines, sines).transpose(1, 2), rotate(key, *position_embeddings).transpose(1, 2)
        value = value.transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, own.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[own.config._attn_implementation]  # noqa: SLF001 - where families look it up
        # Qwen tells it by layer, Mistral for all of them.
        window = own.sliding_window if hasattr(self, "sliding_window") else getattr(own.config, "sliding_window", None)
        attended, weights = attend(
            self, query, key, value, attention_mask, scaling=own.scaling, sliding_window=window, **options
        )
        return own.o_proj(attended.reshape(*shape, -1)), weights


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide by the root of mean x² + ε, in float32 at least, and multiply by the weight (Zhang and Sennrich 2019).

    Args:
        x: (…, D) floating. weight: (D,). epsilon: ε.
    Returns:
        (…, D), in the dtype of x · weight.
    """
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        normed: Tensor = _RMSNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
        return normed
    return _scaled(_exact(x), x.dtype, weight, epsilon)[0]


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (x_i, x_{i + D/2}) by its position's angle (Su et al. 2021, in the order of halves).

    Args:
        x: (B, T, H, D). cosines, sines: (B, T, D), the two halves of D alike.
    Returns:
        (B, T, H, D).
    """
    if torch.is_grad_enabled() and x.requires_grad:
        rotated: Tensor = _Rotate.apply(x, cosines, sines)  # type: ignore[no-untyped-call]
        return rotated
    return _turned(x, cosines, sines, back=False)


def _exact(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _scaled(exact: Tensor, dtype: torch.dtype, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The normed (…, D), and what x was multiplied by, (…, 1)."""
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
        # Into memory that is there: on a CPU a new tensor of this size costs more than the operation.
        torch.mul(grad, gain, out=product)
        return product.addcmul_(unit, mean, value=-1).mul_(scale).to(x.dtype), grad_weight, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return _turned(x, cosines, sines, back=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _turned(grad, *ctx.saved_tensors, back=True), None, None


def _turned(x: Tensor, cosines: Tensor, sines: Tensor, *, back: bool) -> Tensor:
    half = x.shape[-1] // 2
    sines = sines[:, :, None, :half]
    turned = x * cosines[:, :, None]
    turned[..., :half].addcmul_(x[..., half:], sines, value=1 if back else -1)
    turned[..., half:].addcmul_(x[..., :half], sines, value=-1 if back else 1)
    return turned
