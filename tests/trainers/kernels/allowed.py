"""Rows that may choose among some tokens only, and the definition of what kernels compute of them, by enumeration."""

from __future__ import annotations

import torch

SETS = [[5], [0, 1, 2], [4, 9, 30, 36], [3, 36]]  # of 37 tokens
ROWS, VOCABULARY, WIDTH = 13, 37, 7


def problem(*, free, seed=0, dtype=torch.float32, device="cpu"):
    """States, weight, bias, ids, upstream gradients, and the set of each row; −1 is the whole vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    hidden, weight, other, other_weight = (
        torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()
        for shape in ((ROWS, WIDTH), (VOCABULARY, WIDTH), (ROWS, 5), (VOCABULARY, 5))
    )
    bias = torch.randn(VOCABULARY, generator=generator).to(device, dtype).requires_grad_()
    index = torch.arange(ROWS) % (len(SETS) + free) - int(free)
    ids = torch.tensor(
        [(SETS[i] if i >= 0 else range(VOCABULARY))[row % (1 if i == 0 else 2)] for row, i in enumerate(index)]
    )
    ids, index, upstream = ids.to(device), index.to(device), torch.randn(3, ROWS, generator=generator).to(device)
    return hidden, weight, bias, ids, index, upstream, (other, other_weight)


def enumerated(hidden, weight, bias, ids, index, temperature, soft_cap, other=None):
    """Log-probability, entropy and KL of each row, summed term by term over the tokens of its set, in float64."""
    found = []
    for row, number in enumerate(index.tolist()):
        tokens = list(range(VOCABULARY)) if number < 0 else SETS[number]
        logits = (hidden[row] @ weight[tokens].T + bias[tokens]).double()
        logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
        p = (logits / temperature).exp() / (logits / temperature).exp().sum()
        kl = p.new_zeros(())
        if other is not None:
            theirs = (other[0][row] @ other[1][tokens].T).double()
            theirs = theirs if soft_cap is None else soft_cap * torch.tanh(theirs / soft_cap)
            q = (theirs / temperature).exp() / (theirs / temperature).exp().sum()
            kl = (p * (p / q).log()).sum()
        found.append(torch.stack([p[tokens.index(int(ids[row]))].log(), -(p * p.log()).sum(), kl]))
    return torch.stack(found).unbind(1)


def check_against_enumeration(allowed_of, token_logprobs, linear_kl, *, free, soft_cap, device="cpu", **options):
    """Outputs and every gradient of both functions, and that a token outside is never touched."""
    parts = problem(free=free, device=device)
    exact = problem(free=free, dtype=torch.float64)
    results = []
    for hidden, weight, bias, ids, index, upstream, (other, other_weight) in (parts, exact):
        inputs = [hidden, weight, bias, other, other_weight]
        if hidden.dtype == torch.float64:
            outputs = enumerated(hidden, weight, bias, ids, index, 0.7, soft_cap, (other, other_weight))
        else:
            allowed = allowed_of(SETS, index.cpu(), VOCABULARY, device)
            call = {"temperature": 0.7, "soft_cap": soft_cap, "allowed": allowed, **options}
            outputs = token_logprobs(hidden, weight, ids, bias=bias, **call)
            outputs = (*outputs, linear_kl(hidden, weight, other, other_weight, bias=bias, **call))
        total = sum((x * u.to(x)).sum() for x, u in zip(outputs, upstream, strict=True))
        results.append([x.detach().double().cpu() for x in (*outputs, *torch.autograd.grad(total, inputs))])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-4, atol=2e-5)
    if not free:
        unused = [t for t in range(VOCABULARY) if all(t not in s for s in SETS)]
        assert not results[0][4][unused].any(), "the weight of a token that no row may choose has a gradient"
