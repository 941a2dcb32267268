"""A check of the kernels during training: each call of `token_logprobs` is computed by two back ends and compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import ModuleType

import torch
from torch import Tensor

from swe_trainers.kernels import torch_rows
from swe_trainers.kernels.allowed import AllowedTokens
from swe_trainers.kernels.linear import default_plan, project
from swe_trainers.kernels.reference import token_logprobs_reference

__all__ = ["Comparison", "comparing", "current_comparison"]


@dataclass
class Comparison:
    """The largest differences between two back ends, each relative to the largest value compared.

    Attributes:
        calls: compared calls of `token_logprobs`.
        errors: by "logprobs", "entropy", "grad_hidden", "grad_weight".
    """

    calls: int = 0
    errors: dict[str, float] = field(default_factory=dict)

    def compare(
        self,
        kernels: ModuleType,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        temperature: Tensor,
        soft_cap: float | None = None,
        allowed: AllowedTokens | None = None,
    ) -> None:
        """Compute one call by its back end and by a simpler one: PyTorch for Triton, the float64 reference for PyTorch.

        Args:
            kernels: `triton_rows` or `torch_rows`.
            rows: (N, D). weight: (V, D). bias: (V,) or None. ids: (N,) int64. temperature: (N,).
            soft_cap: of the logits, or None.
            allowed: which columns each row may choose, or None.
        """
        upstream = torch.randn(2, len(rows), generator=torch.Generator().manual_seed(0)).to(rows.device)
        bias, temperature = None if bias is None else bias.detach(), temperature.detach()
        plan = default_plan(rows, weight.shape[0], soft_cap=soft_cap)
        results = []
        for simpler in (False, True):
            h, w = (x.detach().clone().requires_grad_() for x in (rows, weight))
            with torch.enable_grad(), torch.autocast(rows.device.type, enabled=False):
                if simpler and kernels is torch_rows:
                    outputs = token_logprobs_reference(
                        h, w, ids, bias=bias, temperature=temperature, soft_cap=soft_cap, allowed=allowed
                    )
                else:
                    own = torch_rows if simpler else kernels
                    outputs = project(h, w, bias, ids, temperature, plan=plan, kernels=own, allowed=allowed)
                total = (outputs[0] * upstream[0]).sum() + (outputs[1] * upstream[1]).sum()
                results.append([*(x.detach() for x in outputs), *torch.autograd.grad(total, [h, w])])
        self.calls += 1
        for name, got, expected in zip(("logprobs", "entropy", "grad_hidden", "grad_weight"), *results, strict=True):
            if got.numel():
                scale = expected.abs().max().double().clamp(min=1e-12)
                error = float((got.double() - expected.double()).abs().max() / scale)
                self.errors[name] = max(self.errors.get(name, 0.0), math.inf if math.isnan(error) else error)


_current: ContextVar[Comparison | None] = ContextVar("comparison", default=None)


def current_comparison() -> Comparison | None:
    """The comparison of the enclosing `comparing` block, or None."""
    return _current.get()


@contextmanager
def comparing() -> Iterator[Comparison]:
    """Compare every call of `token_logprobs` in the block, gradients included; slow, for occasional batches."""
    comparison = Comparison()
    token = _current.set(comparison)
    try:
        yield comparison
    finally:
        _current.reset(token)
