"""The operators of compiled functions: PyTorch's own checks of operators, and whole functions without a graph break."""

from __future__ import annotations

import pytest
import torch

from swe_trainers.kernels import token_logprobs, token_logprobs_from_logits
from tests.trainers.kernels.test_token_logprobs import problem

OPS = torch.ops.swe_trainers


def leaves(dtype=torch.float32):
    hidden, weight, bias, ids, upstream = problem(dtype=dtype)
    temperature = torch.linspace(0.5, 2.0, len(ids)).requires_grad_()
    return hidden, weight, bias, ids, temperature, upstream


@pytest.mark.parametrize("restricted", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_operators_of_hidden_states_pass_the_checks_of_pytorch(with_bias, restricted):
    hidden, weight, bias, ids, temperature, upstream = leaves()
    bias = bias if with_bias else None
    masks = torch.ones(2, 37, dtype=torch.bool)
    masks[1, 1::2] = False  # no id is there
    allowed = (masks, (ids % 2 == 0).long()) if restricted else (None, None)
    arguments = hidden, weight, bias, ids, temperature, *allowed, "torch", 5, 10, False, 4.0, True
    torch.library.opcheck(OPS.linear_logprobs.default, arguments)
    with torch.no_grad():
        _, entropies, statistics = OPS.linear_logprobs(*arguments)
        saved = [None if x is None else x.detach() for x in (hidden, weight, bias, ids, temperature)]
        for needed in ([True, True, with_bias], [True, False, False]):
            given = (*saved, *allowed, statistics, entropies, *upstream, "torch", 5, 10, False, 4.0, *needed)
            torch.library.opcheck(OPS.linear_logprobs_backward.default, given)


def test_operators_of_logits_pass_the_checks_of_pytorch():
    _, _, _, ids, temperature, upstream = leaves()
    logits = torch.randn(len(ids), 37, generator=torch.Generator().manual_seed(1), requires_grad=True)
    arguments = logits, ids, temperature, "automatic", None, True
    torch.library.opcheck(OPS.logits_logprobs.default, arguments)
    with torch.no_grad():
        _, entropies, statistics = OPS.logits_logprobs(*arguments)
        saved = logits.detach(), ids, temperature.detach()
        torch.library.opcheck(
            OPS.logits_logprobs_backward.default, (*saved, statistics, entropies, *upstream, "automatic", None)
        )


def compiled(function):
    """Compiled whole, without a graph break, through autograd's graphs; no code is generated for a processor."""
    torch.compiler.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("options", [{}, {"chunk_rows": 4, "chunk_columns": 10, "soft_cap": 3.0}], ids=str)
def test_a_compiled_function_has_the_results_of_the_same_function(options, per_row):
    hidden, weight, bias, ids, temperature, upstream = leaves()
    temperature = temperature if per_row else 0.7
    inputs = [x for x in (hidden, weight, bias, temperature) if isinstance(x, torch.Tensor)]

    def of_hidden(hidden, weight, bias, ids, temperature):
        states = torch.tanh(hidden) * 2.0
        logprobs, entropy = (
            token_logprobs(
                states.view(1, *states.shape), weight, ids.view(1, -1), bias=bias, temperature=temperature, **options
            )
            if not per_row
            else token_logprobs(states, weight, ids, bias=bias, temperature=temperature, **options)
        )
        return logprobs.view(-1) * 1.5, entropy.view(-1)

    def everything(function):
        outputs = function(hidden, weight, bias, ids, temperature)
        total = outputs[0] @ upstream[0] + outputs[1] @ upstream[1]
        return [*(x.detach() for x in outputs), *torch.autograd.grad(total, inputs)]

    for got, expected in zip(everything(compiled(of_hidden)), everything(of_hidden), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_compiled_function_of_logits_has_the_results_of_the_same_function():
    hidden, weight, bias, ids, _, upstream = leaves()

    def of_logits(hidden, weight, bias, ids):
        logits = torch.nn.functional.linear(hidden, weight, bias)
        logprobs, entropy = token_logprobs_from_logits(logits, ids, temperature=0.7, check_values=False)
        return logprobs, entropy.square()

    def everything(function):
        outputs = function(hidden, weight, bias, ids)
        total = outputs[0] @ upstream[0] + outputs[1] @ upstream[1]
        return [*(x.detach() for x in outputs), *torch.autograd.grad(total, [hidden, weight, bias])]

    for got, expected in zip(everything(compiled(of_logits)), everything(of_logits), strict=True):
        torch.testing.assert_close(got, expected)
