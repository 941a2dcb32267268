"""AdamW for models whose weights are bfloat16: float32 copies of the weights, float32 moments and float32 gradients.

A bfloat16 number has 8 significant bits. A step of 1e-6 to a weight of 0.02 is a hundredth of the distance to the next
one and would be lost, and so would most changes of the second moment, whose decay is a thousandth. The copies take the
steps here; the model gets them rounded, and computes, plays and is sent to engines in bfloat16 as before
(Micikevicius et al. 2018, arXiv:1710.03740). A trained parameter takes 18 bytes: 2 + 4 for the copy, 8 for the moments
and 4 for the gradient. With 8-bit moments it takes 10: a bfloat16 number is the upper half of a float32 one, so the
weight itself is half of the copy, and 2 bytes keep the rest.

FSDP2 needs none of this: `scale.sharding` keeps the sharded weights in float32 and gathers them in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from swe_trainers.errors import ConfigurationError
from swe_trainers.learning.eight_bit import AdamW8bit

__all__ = ["NARROW", "MasterAdamW", "MasterAdamW8bit", "Masters", "halves", "joined", "stepped"]

NARROW = (torch.bfloat16, torch.float16)
"""Dtypes of weights that are too coarse to be trained without float32 copies."""


class Masters(torch.optim.Optimizer):
    """Steps float32 copies of bfloat16 or float16 parameters by an optimizer's rule; others are stepped themselves.

    Gradients of the narrow parameters are accumulated in float32: by PyTorch where it can (`Tensor.grad_dtype`), else
    in the copies' gradients, to which a hook adds what a backward pass leaves in the parameter, and frees it there. If
    someone else changes a parameter (a checkpoint is loaded into the model), its copy follows at the next step.

    Args:
        groups: of the model's parameters, as of any optimizer.
        by_hooks: accumulate through hooks; None for where PyTorch cannot do it itself.
        options: of the optimizer whose rule it is.
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]], *, by_hooks: bool | None = None, **options: Any) -> None:
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # of the model, its copy
        self._versions: list[int] = []
        self._options = options
        self._by_hooks = not hasattr(torch.Tensor, "grad_dtype") if by_hooks is None else by_hooks
        self._hooks: list[Any] = []
        super().__init__([{**group, "params": [self._own(p) for p in group["params"]]} for group in groups], **options)
        self._settle()

    def _own(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype not in NARROW:
            return parameter
        copy = nn.Parameter(parameter.detach().float())
        self._pairs.append((parameter, copy))
        if self._by_hooks:
            self._hooks.append(_collect_gradients(parameter, copy))
        else:
            parameter.grad_dtype = torch.float32
        return copy

    def exact(self, parameter: nn.Parameter) -> Tensor:
        """The float32 weights of one of the model's parameters."""
        return next((copy.detach() for own, copy in self._pairs if own is parameter), parameter.detach())

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the copies, and their rounded values to the model."""
        self._follow()
        for parameter, copy in self._pairs:
            if parameter.grad is not None and not self._by_hooks:
                copy.grad = parameter.grad
        loss = super().step(closure)
        for parameter, copy in self._pairs:
            copy.grad = None
            parameter.copy_(copy)
        self._settle()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the model's parameters."""
        super().zero_grad(set_to_none)
        for parameter, _ in self._pairs:
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.zero_()

    def state_dict(self) -> dict[str, Any]:
        """As of the rule's optimizer, and the copies under `masters`."""
        return {**super().state_dict(), "masters": {number: copy for number, (_, copy) in enumerate(self._pairs)}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict`; for one of plain AdamW, without copies, the copies are set to the model's weights."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        masters: Mapping[int, Tensor] = state_dict.get("masters", {})
        for number, (parameter, copy) in enumerate(self._pairs):
            low_bits = self.state[copy].pop("low_bits", None)  # of 8-bit training
            copy.copy_(masters.get(number, parameter) if low_bits is None else joined(parameter, low_bits.short()))
        self._versions = [-1] * len(self._pairs)  # the model may be of another state than the copies

    def _settle(self) -> None:
        """Record that copies and model agree."""
        self._versions = [parameter._version for parameter, _ in self._pairs]  # noqa: SLF001 - autograd's count of changes

    def _follow(self) -> None:
        """Take over the values of the model that are not the rounded copies, where anyone has written to it."""
        for (parameter, copy), version in zip(self._pairs, self._versions, strict=True):
            if parameter._version != version:  # noqa: SLF001
                copy.copy_(torch.where(copy.to(parameter.dtype) == parameter, copy, parameter.float()))


class MasterAdamW(Masters, torch.optim.AdamW):
    """AdamW with float32 copies of narrow parameters."""

    def without_copies(self) -> torch.optim.AdamW:
        """AdamW over the model's own parameters, for a library that makes float32 copies itself."""
        of_copy = {id(copy): parameter for parameter, copy in self._pairs}
        for hook in self._hooks:
            hook.remove()
        for parameter, _ in self._pairs:
            if self._by_hooks:
                del parameter.float32_copy  # type: ignore[attr-defined]
            else:
                parameter.grad_dtype = parameter.dtype
        groups = [{**group, "params": [of_copy.get(id(p), p) for p in group["params"]]} for group in self.param_groups]
        return torch.optim.AdamW(groups, **self._options)


class MasterAdamW8bit(AdamW8bit):
    """The same with 8-bit moments. Of a bfloat16 parameter's float32 copy the lower half is kept alone, as `low_bits`.

    Gradients are accumulated as by `Masters`. If someone else changes a parameter, its lower half is forgotten.

    Args:
        groups: of the model's parameters, as of any optimizer.
        by_hooks: as of `Masters`.
        options: of `AdamW8bit`.
    Raises:
        ConfigurationError: a parameter is float16, which is no half of a float32 number.
    """

    def __init__(self, groups: Iterable[Mapping[str, Any]], *, by_hooks: bool | None = None, **options: Any) -> None:
        super().__init__(groups, **options)
        by_hooks = not hasattr(torch.Tensor, "grad_dtype") if by_hooks is None else by_hooks
        self._versions: dict[nn.Parameter, int] = {}
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.dtype == torch.float16:
                raise ConfigurationError("trainer.moments 8bit: not for float16 weights. Try: bfloat16")
            if parameter.dtype != torch.bfloat16:
                continue
            if by_hooks:
                nothing = torch.zeros((), device=parameter.device).expand_as(parameter)
                _collect_gradients(parameter, nn.Parameter(nothing))
            else:
                parameter.grad_dtype = torch.float32
            self._forget(parameter)

    @torch.no_grad()
    def exact(self, parameter: nn.Parameter) -> Tensor:
        """The float32 weights of one of the model's parameters."""
        if parameter not in self._versions:
            return parameter.detach()
        return joined(parameter.detach(), self.state[parameter]["low_bits"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient."""
        for parameter, version in self._versions.items():
            if parameter._version != version:  # noqa: SLF001 - autograd's count of changes
                self._forget(parameter)
        loss = super().step(closure)
        self._settle()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        super().zero_grad(set_to_none)
        for parameter in self._versions:
            stepped(parameter).grad = None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict`; from one of `MasterAdamW`, moments are stored as codes and copies as halves."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        masters: Mapping[int, Tensor] = state_dict.get("masters", {})
        for number, parameter in enumerate(self._versions):
            if number in masters:
                high, low_bits = halves(masters[number].to(parameter.device))
                parameter.data.copy_(high)
                self.state[parameter]["low_bits"] = low_bits
            elif "low_bits" not in self.state[parameter]:
                self._forget(parameter)
        self._settle()

    def _forget(self, parameter: nn.Parameter) -> None:
        self.state[parameter]["low_bits"] = torch.zeros_like(parameter, dtype=torch.int16)
        self._versions[parameter] = parameter._version  # noqa: SLF001

    def _settle(self) -> None:
        """Record that weights and their lower halves belong together."""
        self._versions = {parameter: parameter._version for parameter in self._versions}  # noqa: SLF001

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        return stepped(parameter).grad if isinstance(parameter, nn.Parameter) else parameter.grad

    def _exact(self, parameter: Tensor, rows: Tensor, begin: int) -> Tensor:
        if parameter not in self._versions:
            return rows
        return joined(rows, self._low_bits(parameter, rows, begin))

    def _store(self, parameter: Tensor, rows: Tensor, begin: int, values: Tensor) -> None:
        if parameter in self._versions:
            high, low_bits = halves(values)
            rows.copy_(high)
            self._low_bits(parameter, rows, begin).copy_(low_bits)

    def _low_bits(self, parameter: Tensor, rows: Tensor, begin: int) -> Tensor:
        found: Tensor = self.state[parameter]["low_bits"]
        return found[begin : begin + len(rows)] if rows.ndim else found


def halves(values: Tensor) -> tuple[Tensor, Tensor]:
    """Finite float32 numbers as the nearest bfloat16 ones, and what is left, int16; `joined` is the inverse.

    The bits of the one are the bits of the other and, in units of the last of them, the difference. A number half way
    between two is rounded away from zero: rounded to even, one could not say which of the two it came from.
    """
    bits = values.view(torch.int32)
    high = (bits + (1 << 15)) >> 16
    return high.to(torch.int16).view(torch.bfloat16), (bits - (high << 16)).to(torch.int16)


def joined(high: Tensor, low_bits: Tensor) -> Tensor:
    """The float32 numbers of which these are the `halves`."""
    return ((high.view(torch.int16).to(torch.int32) << 16) + low_bits).view(torch.float32)


def _collect_gradients(parameter: nn.Parameter, holder: nn.Parameter) -> Any:
    """Add what a backward pass leaves in a parameter to a float32 gradient of another one; return the hook's handle."""
    parameter.float32_copy = holder  # type: ignore[attr-defined]

    def add(narrow: Tensor) -> None:
        assert narrow.grad is not None
        if holder.grad is None:
            holder.grad = narrow.grad.float()
        else:
            holder.grad += narrow.grad
        narrow.grad = None

    register: Any = parameter.register_post_accumulate_grad_hook
    return register(add)


def stepped(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter whose `grad` is this one's gradient: itself, or the one where hooks accumulate it."""
    found: nn.Parameter = getattr(parameter, "float32_copy", parameter)
    return found
