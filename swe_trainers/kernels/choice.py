"""Which kernels compute: Triton's or PyTorch's."""

from __future__ import annotations

import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from swe_trainers.errors import ConfigurationError
from swe_trainers.kernels import torch_rows

__all__ = ["BACKENDS", "decoding_kernels", "layer_kernels", "product_kernels", "row_kernels"]

BACKENDS = ("triton", "torch", "reference")
"""`triton` needs a GPU, `torch` runs on every device, `reference` is exact in float64, for tests and diagnosis."""


def row_kernels(backend: str | None, rows: Tensor) -> ModuleType:
    """`triton_rows` or `torch_rows`, by the back end's name or, if it is None, by the tensors.

    Raises:
        ConfigurationError: the name is unknown, or the back end does not support these tensors.
    """
    if backend is not None and backend not in BACKENDS:
        raise ConfigurationError(f"backend: got {backend!r}, expected one of {', '.join(BACKENDS)}, or None")
    problem = ""
    if not _has_triton():
        problem = "the package triton is not installed (pip install triton)"
    elif rows.dtype == torch.float64:
        problem = "its kernels compute in float32, and these tensors are float64"
    elif not rows.is_cuda:
        import triton

        if not triton.knobs.runtime.interpret:  # TRITON_INTERPRET=1 runs the kernels on a CPU, for tests
            problem = f"these tensors are on {rows.device}, not on a GPU"
    if backend == "triton" and problem:
        raise ConfigurationError(f"backend: triton does not work here: {problem}. Try: torch")
    if backend == "torch" or problem or (backend is None and not rows.is_cuda):
        return torch_rows
    from swe_trainers.kernels import triton_rows

    return triton_rows


def product_kernels(kernels: ModuleType, rows: Tensor, weight: Tensor) -> ModuleType | None:
    """`triton_products` where it computes these factors and the row kernels are Triton's; otherwise None.

    Args:
        kernels: of the rows. rows: (N, D). weight: (V, D).
    """
    if kernels is torch_rows:
        return None
    from swe_trainers.kernels import triton_products

    return triton_products if triton_products.supports(rows, weight) else None


def layer_kernels(*tensors: Tensor) -> ModuleType | None:
    """`triton_layers` where it computes these tensors: on a GPU, of one dtype, outside of `torch.compile`.

    The compiler fuses elementary operations itself.
    """
    first = tensors[0]
    if not first.is_cuda or not _has_triton() or torch.compiler.is_compiling():
        return None
    if first.dtype == torch.float64 or any(tensor.dtype != first.dtype for tensor in tensors):
        return None
    from swe_trainers.kernels import triton_layers

    return triton_layers


def decoding_kernels(device: torch.device, dtype: torch.dtype, head_size: int) -> ModuleType | None:
    """`triton_decoding` where it computes a model with these heads: in at most float32, on a GPU that has bfloat16."""
    if device.type != "cuda" or not _has_triton() or dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return None
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return None
    from swe_trainers.kernels import triton_decoding

    return triton_decoding if head_size <= triton_decoding.LARGEST_HEAD else None


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
