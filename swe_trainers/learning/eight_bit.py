"""AdamW whose moments take a byte for each number instead of four (after Dettmers et al. 2022, arXiv:2110.02861).

A number of a matrix is stored as a code of 8 bits, relative to the largest of the 128 columns of its row that it is in:
for the first moment sign and (|x| / largest)^(1/3) in 127 steps, for the second (x / largest)^(1/4) in 255. Small
numbers keep small errors: the second moment reaches over ten orders of magnitude.

Codes are rounded at random, up with the probability that makes the expected value exact. Rounded to the nearest, a
moment would not move as long as its changes are smaller than half a step, and those of the second are a thousandth.
Which way a code is rounded depends on the number of the step alone, so that resumed runs repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

__all__ = ["AdamW8bit", "decode", "encode", "with_float32_moments"]

_BLOCK = 128
_LEAST = 4096
"""Matrices with fewer numbers keep float32 moments, as vectors do: there is little to save."""
_AT_ONCE = 1 << 24
"""Numbers that are float32 at a time."""
_CODES = {"exp_avg": (torch.int8, 127, 3), "exp_avg_sq": (torch.uint8, 255, 4)}
"""Of each moment the codes' dtype, the greatest code, and the power of a code that is its value."""


def encode(values: Tensor, moment: str, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of a moment, rounded up where the noise is less than the fraction that is left.

    Args:
        values: (R, C) float32. moment: `exp_avg` or `exp_avg_sq`. noise: (R, C) float32, uniform from 0 to 1.
    Returns:
        Codes (R, C) and the largest value of each block (R, ceil(C / 128)) float32.
    """
    dtype, greatest, power = _CODES[moment]
    size = values.abs()
    padded = torch.nn.functional.pad(size, (0, -size.shape[1] % _BLOCK))
    scales = padded.view(len(size), -1, _BLOCK).amax(-1)
    size /= _wide(scales, size.shape[1]).clamp(min=torch.finfo(torch.float32).tiny)
    below = (size ** (1 / power) * greatest).floor_().clamp_(max=greatest - 1)
    low, high = (below / greatest) ** power, ((below + 1) / greatest) ** power
    codes = below + (noise * (high - low) < size - low)
    return (codes * values.sign()).to(dtype), scales


def decode(codes: Tensor, scales: Tensor, moment: str) -> Tensor:
    """The values of codes, (R, C) float32."""
    _, greatest, power = _CODES[moment]
    values = codes.float() / greatest
    values = values**power
    return values.mul_(_wide(scales, codes.shape[1]))


def with_float32_moments(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The `state_dict` of an optimizer with values in place of codes, for an optimizer that has none."""
    return {**state_dict, "state": {key: _without_codes(state) for key, state in state_dict["state"].items()}}


def _without_codes(state: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in state.items() if not key.endswith("_scales")}
    for moment in _CODES:
        if f"{moment}_scales" not in state:
            continue
        codes = state[moment]
        values = decode(_local(codes), _local(state[f"{moment}_scales"]), moment)
        if isinstance(codes, DTensor):
            mesh, placements = codes.device_mesh, codes.placements
            values = DTensor.from_local(
                values, mesh, placements, run_check=False, shape=codes.shape, stride=codes.stride()
            )
        found[moment] = values
    return found


def _wide(scales: Tensor, columns: int) -> Tensor:
    return scales.repeat_interleave(_BLOCK, 1)[:, :columns]


class AdamW8bit(torch.optim.Optimizer):
    """AdamW with 8-bit moments of its large matrices; gradients are float32, and parameters but in a subclass.

    Parameters may be sharded by FSDP2 along their rows; codes and scales are then sharded with them, and any number of
    ranks reads a checkpoint.

    Args:
        groups: of parameters.
        lr, betas, eps, weight_decay: as of `torch.optim.AdamW`.
    """

    def __init__(
        self,
        groups: Iterable[Mapping[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__([dict(group) for group in groups], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                number += 1
                gradient = self._gradient(parameter)
                if gradient is not None:
                    self._step(parameter, gradient, group, number)
        return loss

    def _step(self, parameter: Tensor, gradient: Tensor, group: Mapping[str, Any], number: int) -> None:
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = torch.zeros(())
            for moment, (dtype, _, _) in _CODES.items():
                if _is_coded(parameter):
                    state[moment] = torch.zeros_like(parameter, dtype=dtype)
                    state[f"{moment}_scales"] = _scales_like(parameter)
                else:
                    state[moment] = torch.zeros_like(parameter, dtype=torch.float32)
        state["step"] += 1
        step, (decay, decay_of_squares) = int(state["step"]), group["betas"]
        whole = [_local(each) for each in (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])]
        scales = [_local(state[f"{moment}_scales"]) for moment in _CODES] if _is_coded(parameter) else []
        random = torch.Generator(whole[0].device).manual_seed(step * 1_000_003 + number)
        height = max(1, _AT_ONCE // max(1, whole[0].shape[-1])) if scales else max(1, len(whole[0].flatten()))
        for begin in range(0, len(whole[0]) if whole[0].ndim else 1, height):
            part = [each[begin : begin + height] if each.ndim else each for each in whole]
            rows, gradient, first, second = part
            weight = self._exact(parameter, rows, begin)
            of_rows = [each[begin : begin + height] for each in scales]
            if scales:
                average, squares = (
                    decode(codes, found, moment)
                    for codes, found, moment in zip((first, second), of_rows, _CODES, strict=True)
                )
            else:
                average, squares = first, second
            average.lerp_(gradient, 1 - decay)
            squares.mul_(decay_of_squares).addcmul_(gradient, gradient, value=1 - decay_of_squares)
            if scales:
                noise = torch.empty_like(weight).uniform_(generator=random)
                for codes, found, moment, values in zip(
                    (first, second), of_rows, _CODES, (average, squares), strict=True
                ):
                    for stored, new in zip((codes, found), encode(values, moment, noise), strict=True):
                        stored.copy_(new)
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            root = squares.sqrt().div_((1 - decay_of_squares**step) ** 0.5).add_(group["eps"])
            weight.addcdiv_(average, root, value=-group["lr"] / (1 - decay**step))
            self._store(parameter, rows, begin, weight)

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        """The float32 gradient of a parameter; None if it has none."""
        return parameter.grad

    def _exact(self, parameter: Tensor, rows: Tensor, begin: int) -> Tensor:
        """Float32 values of the rows of a parameter from `begin` on, which are then stepped."""
        return rows

    def _store(self, parameter: Tensor, rows: Tensor, begin: int, values: Tensor) -> None:
        """Keep the stepped values. Here they are the rows themselves."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a `state_dict` of this class, or one of `AdamW`, whose moments are then stored as codes."""
        super().load_state_dict(dict(state_dict))
        self._undo_casts(state_dict)
        for parameter, state in self.state.items():
            for moment, (dtype, _, _) in _CODES.items():
                if not _is_coded(parameter) or moment not in state:
                    continue
                if f"{moment}_scales" in state:
                    continue
                values = _local(state[moment])
                codes, scales = encode(values, moment, torch.full_like(values, 0.5))
                state[moment] = torch.zeros_like(parameter, dtype=dtype)
                state[f"{moment}_scales"] = _scales_like(parameter)
                _local(state[moment]).copy_(codes)
                _local(state[f"{moment}_scales"]).copy_(scales)

    def _undo_casts(self, state_dict: Mapping[str, Any]) -> None:
        """Take the tensors of a `state_dict` in their own dtypes: PyTorch gives all of them the parameter's."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for parameter, number in zip(parameters, numbers, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if name != "step" and isinstance(value, Tensor):
                    self.state[parameter][name] = value.detach().to(parameter.device, copy=True)


def _is_coded(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and parameter.numel() >= _LEAST


def _local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor; changes of it change the tensor."""
    found: Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001 - without a gradient
    return found


def _scales_like(parameter: Tensor) -> Tensor:
    """Zeros for each block of a matrix, sharded as it is."""
    blocks = -(-parameter.shape[1] // _BLOCK)
    zeros = torch.zeros(len(_local(parameter)), blocks, device=parameter.device)
    if not isinstance(parameter, DTensor):
        return zeros
    return DTensor.from_local(
        zeros,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=torch.Size((parameter.shape[0], blocks)),
        stride=(blocks, 1),
    )
