"""The peers' own functions, called as their own trainers call them; `Absent` with the reason where one cannot be had.

Those with entropy and a gradient for each token compute what ours compute; the names of the others say what they lack.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.timing import Absent

__all__ = ["LINEAR", "ROWS", "compiled", "eager_divergence", "eager_linear", "eager_rows", "is_peer", "load"]

Outputs = tuple[Tensor, ...]
RowPeer = Callable[[Tensor, Tensor], Outputs]
LinearPeer = Callable[[Tensor, Tensor, Tensor], Outputs]


def is_peer(name: str) -> bool:
    """Whether a contender of this name is somebody else's, so that its failure is no failure of the benchmark."""
    return not name.startswith("ours")


def load(module: str, attribute: str, *, alone: bool = False) -> Any:
    """A peer's function.

    Args:
        alone: import this module without the packages around it, which would import much more than it needs, or patch
            PyTorch for everybody.

    Raises:
        Absent: it is not installed, or cannot be imported here.
    """
    try:
        found = _import_alone(module) if alone else importlib.import_module(module)
        return getattr(found, attribute)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise Absent(f"peer absent: {type(error).__name__}: {reason[0] if reason else ''}"[:300]) from error


def _import_alone(name: str) -> ModuleType:
    package, *inner = name.split(".")[:-1]
    if package not in sys.modules:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError(f"No module named {package!r}")
        _add_bare_package(package, list(spec.submodule_search_locations))
    for part in inner:
        paths = [f"{path}/{part}" for path in sys.modules[package].__path__]
        package = f"{package}.{part}"
        if package not in sys.modules:
            _add_bare_package(package, paths)
    return importlib.import_module(name)


def _add_bare_package(name: str, paths: list[str]) -> None:
    module = ModuleType(name)
    module.__path__ = paths
    sys.modules[name] = module


def eager_rows(logits: Tensor, ids: Tensor) -> Outputs:
    """Plain PyTorch."""
    log_p = torch.log_softmax(logits.float(), -1)
    return log_p.gather(1, ids[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(-1)


def eager_linear(hidden: Tensor, weight: Tensor, ids: Tensor) -> Outputs:
    """Plain PyTorch."""
    return eager_rows(hidden @ weight.T, ids)


def eager_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """Plain PyTorch."""
    log_p, log_q = (torch.log_softmax(x.float(), -1) for x in (logits, other))
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile` for the shapes of this case alone: no code for dynamic shapes, none of an earlier case."""
    if not torch.cuda.is_available():
        raise Absent("measured on GPUs only")
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)


def _trl_rows() -> RowPeer:
    function = load("trl.kernels", "selective_log_softmax_and_entropy")
    return lambda logits, ids: tuple(function(logits[None], ids[None]))  # its trainers have (B, T, V)


def _trl_selective() -> RowPeer:
    function = load("trl.trainer.utils", "selective_log_softmax")
    return lambda logits, ids: (function(logits[None], ids[None]),)


def _liger_rows() -> RowPeer:
    function = load("liger_kernel.transformers.functional", "liger_cross_entropy")
    return lambda logits, ids: (function(logits, ids, reduction="none"),)


def _quack_rows(*, inplace: bool) -> RowPeer:
    function = load("quack.cross_entropy", "cross_entropy")
    return lambda logits, ids: (function(logits, ids, reduction="none", inplace_backward=inplace),)


def _flash_rows() -> RowPeer:
    function = load("flash_attn.ops.triton.cross_entropy", "cross_entropy_loss")
    return lambda logits, ids: (function(logits, ids, inplace_backward=True)[0],)


ROWS: dict[str, tuple[Callable[[], RowPeer], bool]] = {
    "TRL": (_trl_rows, False),
    "TRL selective_log_softmax (no entropy)": (_trl_selective, False),
    "QuACK (no entropy)": (partial(_quack_rows, inplace=False), False),
    "QuACK in place (no entropy)": (partial(_quack_rows, inplace=True), True),
    "flash-attn in place (no entropy)": (_flash_rows, True),
    "Liger in place (no entropy, gradient in its forward pass)": (_liger_rows, True),
}
"""By name: what loads the peer, and whether it overwrites the logits."""


def _trl_linear() -> LinearPeer:
    function = load("trl.kernels", "ChunkedLogProbFunction")
    width = load("trl.trainer.utils", "_CHUNKED_LOGPROB_CHUNK_SIZE")  # its backward pass imports this module too
    extra = (None, 1.0, ("entropy",))
    return lambda hidden, weight, ids: function.apply(hidden, weight, None, ids, 1.0, width, *extra)[:2]


def _verl_linear() -> LinearPeer:
    function = load("verl.utils.kernel.linear_cross_entropy", "linear_cross_entropy", alone=True)
    return lambda hidden, weight, ids: tuple(function(hidden, weight, ids, 1.0, "none"))


def _unsloth_linear() -> LinearPeer:
    function = load("unsloth_zoo.fused_losses.fused_linear", "fused_linear_logprobs", alone=True)
    return lambda hidden, weight, ids: tuple(function(hidden, weight, ids, return_entropy=True)[:2])


def _liger_scaled() -> LinearPeer:
    module = "liger_kernel.ops.fused_linear_scaled_cross_entropy"
    function = load(module, "LigerFusedLinearScaledCrossEntropyFunction")
    return lambda hidden, weight, ids: tuple(function.apply(hidden, weight, ids, return_entropy=True))


def _liger_linear() -> LinearPeer:
    function = load("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
    return lambda hidden, weight, ids: (function(hidden, weight, ids, reduction="sum"),)


def _quack_linear() -> LinearPeer:
    function = load("quack.linear_cross_entropy", "chunked_linear_cross_entropy")
    # Its tuner had not ended after five minutes on an H200 with 16 cores; it tunes one of three products.
    return lambda hidden, weight, ids: (function(hidden, weight, ids, reduction="sum", tuned=False),)


def _cce_linear() -> LinearPeer:
    function = load("cut_cross_entropy", "linear_cross_entropy")
    return lambda hidden, weight, ids: (function(hidden, weight, ids, reduction="none"),)


LINEAR: dict[str, Callable[[], LinearPeer]] = {
    "verl": _verl_linear,
    "TRL chunked": _trl_linear,
    "Unsloth": _unsloth_linear,
    "Liger scaled": _liger_scaled,
    "Liger (no entropy, sum only)": _liger_linear,
    "QuACK, not tuned (no entropy, sum only)": _quack_linear,
    "cut-cross-entropy (no entropy)": _cce_linear,
}
"""What loads each peer that computes from hidden states."""
