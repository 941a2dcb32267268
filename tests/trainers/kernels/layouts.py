"""Tensors of equal values that lie differently in memory, and the calls of the kernels that must not notice."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from swe_trainers.kernels import full_kl, token_logprobs, token_logprobs_from_logits

LAYOUTS = ("plain", "offset", "spread", "gaps", "transposed", "broadcast", "negated")


def laid_out(x, layout):
    """Values of `x` (those of its first row, if broadcast), no gradients, in another layout."""
    x = x.detach().clone()
    if layout == "offset":
        buffer = x.new_zeros(x.numel() + 3)
        buffer[3:] = x.flatten()
        return buffer[3:].view(x.shape)
    if layout == "spread":  # every second element of the last dimension, as of `tokens[:, 1]`
        buffer = torch.full((*x.shape, 2), 1, dtype=x.dtype, device=x.device)
        buffer[..., 1] = x
        return buffer[..., 1]
    if layout == "gaps":  # rows of a wider matrix
        buffer = x.new_zeros(*x.shape[:-1], x.shape[-1] + 5)
        buffer[..., 2:-3] = x
        return buffer[..., 2:-3]
    if layout == "transposed":
        return x.T.contiguous().T if x.ndim > 1 else laid_out(x, "spread")
    if layout == "broadcast":
        return x[:1].expand(x.shape)
    if layout == "negated" and x.dtype.is_floating_point:
        return torch._neg_view(-x)
    return x


def as_layouts(names):
    return st.fixed_dictionaries({name: st.sampled_from(LAYOUTS) for name in names})


def compare(function, arguments, layouts, differentiable, upstream, tolerance):
    """A call with laid out arguments equals the same call with plain ones: outputs and gradients."""
    found = []
    for plain in (False, True):
        inputs = {name: laid_out(x, layouts[name]) for name, x in arguments.items()}
        if plain:
            inputs = {name: x.resolve_neg().clone(memory_format=torch.contiguous_format) for name, x in inputs.items()}
        for name in differentiable:
            inputs[name].requires_grad_()
        outputs = function(**inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum((x * laid_out(u.to(x), layouts["upstream"])).sum() for x, u in zip(outputs, upstream, strict=False))
        gradients = torch.autograd.grad(total, [inputs[name] for name in differentiable])
        found.append([*outputs, *gradients])
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got.detach(), expected.detach(), **tolerance)


def values(rows, vocabulary, width, dtype, seed, device):
    generator = torch.Generator().manual_seed(seed)
    found = {
        "logits": torch.randn(rows, vocabulary, generator=generator).to(dtype),
        "other": torch.randn(rows, vocabulary, generator=generator).to(dtype),
        "hidden": torch.randn(rows, width, generator=generator).to(dtype),
        "weight": torch.randn(vocabulary, width, generator=generator).to(dtype),
        "bias": torch.randn(vocabulary, generator=generator).to(dtype),
        "ids": torch.randint(vocabulary, (rows,), generator=generator),
        "temperature": torch.rand(rows, generator=generator) + 0.5,
    }
    upstream = torch.randn(2, rows, generator=generator)
    return {name: x.to(device) for name, x in found.items()}, upstream.to(device)


def assert_no_layout_matters(backend, layouts, dtype, cut, seed, in_place, device="cpu"):
    """All three functions, on one choice of layouts, dtype and tiles."""
    everything, upstream = values(5, 37, 8, dtype, seed, device)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}

    def of_logits(logits, ids, temperature):
        return token_logprobs_from_logits(
            logits * 1.0 if in_place else logits, ids, temperature=temperature, backend=backend, in_place=in_place
        )

    def of_hidden(hidden, weight, bias, ids, temperature):
        return token_logprobs(hidden, weight, ids, bias=bias, temperature=temperature, backend=backend, **cut)

    def divergence(logits, other):
        return full_kl(logits, other, temperature=0.8, backend=backend)

    for function, names in (
        (of_logits, ("logits", "ids", "temperature")),
        (of_hidden, ("hidden", "weight", "bias", "ids", "temperature")),
        (divergence, ("logits", "other")),
    ):
        arguments = {name: everything[name] for name in names}
        compare(function, arguments, layouts, [n for n in names if n != "ids"], upstream, tolerance)


CASES = {
    "layouts": as_layouts(("logits", "other", "hidden", "weight", "bias", "ids", "temperature", "upstream")),
    "dtype": st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
    "cut": st.sampled_from(({}, {"chunk_rows": 2, "chunk_columns": 16}, {"chunk_rows": 3, "save_logits": True})),
    "seed": st.integers(0, 99),
    "in_place": st.booleans(),
}
