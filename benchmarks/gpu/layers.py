"""Norms, SwiGLU and rotary positions of 32,768 tokens, forward and backward, beside the bandwidth of a plain copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import peers
from benchmarks.gpu.rows import COPY
from benchmarks.gpu.timing import Bench, Call, Contender, Ratio
from swe_trainers.kernels import triton_layers
from swe_trainers.model import fused

__all__ = ["measure"]

TOKENS, HIDDEN, ACTIVATIONS, HEADS, WIDTH = 32768, 1536, 6144, 16, 128
EPSILON = 1e-6
Layer = Callable[..., Tensor]


def measure(bench: Bench) -> None:
    """All cases of the part."""
    tokens = 4 if bench.tiny else TOKENS
    for rows, width in ((tokens, HIDDEN), (tokens * HEADS, WIDTH)):
        x, gain = _inputs(bench, (rows, width), (width,))
        _measure(bench, f"norm ({rows}, {width})", (x, gain), _norms())
    gate, up = _inputs(bench, *[(tokens, ACTIVATIONS)] * 2)
    _measure(bench, f"SwiGLU ({tokens}, {ACTIVATIONS})", (gate, up), _activations())
    (queries,) = _inputs(bench, (1, tokens, HEADS, WIDTH))
    angles = torch.randn(1, tokens, WIDTH // 2, device=bench.device)
    rotation = [torch.cat([part, part], -1).to(torch.bfloat16) for part in (angles.cos(), angles.sin())]

    def elementary(x: Tensor) -> Tensor:
        return fused._rotated(x, *rotation, inverse=False)  # noqa: SLF001

    rotations = _beside(lambda: lambda x: triton_layers.rotate(x, *rotation), elementary)
    _measure(bench, f"rotation ({tokens}, {HEADS}, {WIDTH})", (queries,), rotations)


def _inputs(bench: Bench, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(shape, dtype=torch.bfloat16, device=bench.device) for shape in shapes]


def _norms() -> dict[str, Callable[[], Layer]]:
    def elementary(x: Tensor, gain: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, gain.shape, gain, EPSILON)

    def ligers() -> Layer:
        function = peers.load("liger_kernel.ops.rms_norm", "LigerRMSNormFunction")
        return lambda x, gain: function.apply(x, gain, EPSILON, 0.0, "llama", False)

    ours = partial(triton_layers.rms_norm, epsilon=EPSILON)
    return _beside(lambda: ours, elementary) | {"Liger": ligers}


def _activations() -> dict[str, Callable[[], Layer]]:
    def elementary(gate: Tensor, up: Tensor) -> Tensor:
        return torch.nn.functional.silu(gate) * up

    def ligers() -> Layer:
        return peers.load("liger_kernel.ops.swiglu", "LigerSiLUMulFunction").apply  # type: ignore[no-any-return]

    return _beside(lambda: triton_layers.swiglu, elementary) | {"Liger": ligers}


def _beside(ours: Callable[[], Layer], elementary: Layer) -> dict[str, Callable[[], Layer]]:
    return {"ours": ours, "torch": lambda: elementary, "torch.compile": lambda: peers.compiled(elementary)}


def _measure(bench: Bench, case: str, inputs: tuple[Tensor, ...], layers: Mapping[str, Callable[[], Layer]]) -> None:
    """Forward, then backward; the large inputs are all of one size."""
    large = [x for x in inputs if x.ndim > 1]
    other, upstream = torch.empty_like(large[0]), torch.empty_like(large[0])

    def refresh(number: int) -> None:
        generator = torch.Generator(bench.device).manual_seed(1_000 + number)
        with torch.no_grad():
            for x in (*inputs, upstream):
                x.normal_(generator=generator)

    copy = Contender(COPY, lambda: lambda: partial(other.copy_, large[0]))
    for backward in (False, True):
        # Gradients come in and go out; that of a rotation needs no input.
        moved = (2 * len(large) + (len(inputs) > 1)) if backward else len(large) + 1
        contenders = [copy]
        for name, load in layers.items():
            ratios = (Ratio("of the copy's bandwidth", COPY, moved / 2),)
            make = partial(_backward if backward else _forward, load, inputs, upstream)
            contenders.append(Contender(name, make, ratios, peer=peers.is_peer(name)))
        bench.case(f"{'backward' if backward else 'forward'} {case}", contenders, refresh=refresh)


def _forward(load: Callable[[], Layer], inputs: tuple[Tensor, ...], _: Tensor) -> Callable[[], Call]:
    layer = load()

    def call() -> Any:
        with torch.no_grad():
            return layer(*inputs)

    return lambda: call


def _backward(load: Callable[[], Layer], inputs: tuple[Tensor, ...], upstream: Tensor) -> Callable[[], Call]:
    layer = load()

    def prepare() -> Call:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = layer(*leaves)
        return lambda: torch.autograd.grad(out, leaves, upstream)

    return prepare
