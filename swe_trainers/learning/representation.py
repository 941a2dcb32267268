"""Measures how much a policy distinguishes its observations: by its hidden states, and by its actions.

A policy with random weights can lose this: while it learns which words are legal, its hidden states can collapse until
its actions are the same in all situations. Then it cannot learn from rewards any more.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import Policy

__all__ = ["representation"]

_MOST_STATES = 64
_FEWEST_STATES = 8
_MOST_CANDIDATES = 256
_LEAST_TOKENS = 256


@torch.no_grad()
def representation(model: Policy, batch: Batch, *, max_tokens: int, temperature: float = 1.0) -> dict[str, float]:
    """Spread and information of the states from which the first tokens of actions are sampled.

    Contexts are taken from all over the batch, and of all lengths: a policy that begins all episodes alike may see well
    what comes later. They are at most 64 different ones, with at most a thirty-second of the batch's tokens in all, or
    256 where that is more; where eight of all lengths have more, the shortest.

    Args:
        model: the policy, on this process alone.
        batch: of the update.
        max_tokens: of one forward pass, padding counted.
        temperature: that tokens are sampled at.
    Returns:
        `representation/spread`: the root mean squared distance of the states from their mean, over their root mean
        square; from 0, where all are equal, to 1. `representation/information`: nats that the first token of an action
        has about the context, the entropy of the mean distribution less the mean entropy, over contexts in which the
        same tokens are allowed. Nothing where there are fewer than eight different contexts.
    """
    contexts = _contexts(batch)
    if len(contexts) < _FEWEST_STATES:
        return {}
    device = next(iter(model.parameters())).device
    states = []
    per_pass = max(1, max_tokens // max(len(ids) for ids, _ in contexts))
    for first in range(0, len(contexts), per_pass):
        part = [ids for ids, _ in contexts[first : first + per_pass]]
        sizes = torch.tensor([len(ids) for ids in part])
        column = torch.arange(int(sizes.max()))
        ids = torch.nn.utils.rnn.pad_sequence(part, batch_first=True)  # (B, T)
        segments = (column < sizes[:, None]).long()
        hidden = model.trunk_hidden(ids.to(device), column.expand_as(ids).to(device), segments.to(device))
        states.append(hidden[torch.arange(len(part), device=device), sizes.to(device) - 1].float())
    together = torch.cat(states)  # (C, D)
    distance = (together - together.mean(0)).square().sum() / together.square().sum()
    logprobs = _logits(model, together) / temperature
    information = 0.0
    sets = torch.tensor([allowed for _, allowed in contexts])
    for each in sorted({allowed for _, allowed in contexts}):
        of_set = logprobs[(sets == each).to(device)]
        if each >= 0:
            of_set = of_set[:, torch.tensor(batch.allowed_sets[each], device=device)]
        own = of_set.log_softmax(-1)
        mean = own.logsumexp(0) - torch.tensor(len(own), device=device).log()
        information += float(_entropy(mean[None]).sum() * len(own) - _entropy(own).sum()) / len(contexts)
    return {
        "representation/spread": float(distance.sqrt()),
        "representation/information": max(0.0, information),  # rounding
    }


def _contexts(batch: Batch) -> list[tuple[Tensor, int]]:
    """Different contexts of a batch: their token ids (T,), and which set of tokens is allowed after each."""
    acts = batch.action_mask
    follows = torch.cat([torch.zeros(1, dtype=torch.bool), acts[:-1]])
    starts = (acts & ~follows).nonzero().squeeze(1)
    # Drawn, the same each time: every n-th one would be the same turn of all episodes of n turns.
    starts = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(0))[:_MOST_CANDIDATES]]
    found: dict[bytes, tuple[Tensor, int]] = {}
    for at, length in zip(starts.tolist(), batch.place_in_sample[starts].tolist(), strict=True):
        ids = batch.token_ids[at - length : at]
        found.setdefault(ids.numpy().tobytes(), (ids, -1 if batch.allowed is None else int(batch.allowed[at])))
    ordered, most = sorted(found.values(), key=lambda pair: len(pair[0])), max(_LEAST_TOKENS, len(acts) // 32)
    for count in range(min(_MOST_STATES, len(ordered)), _FEWEST_STATES - 1, -1):
        chosen = [ordered[(len(ordered) - 1) * number // (count - 1)] for number in range(count)]
        if sum(len(ids) for ids, _ in chosen) <= most:
            return chosen
    sizes = itertools.accumulate(len(ids) for ids, _ in ordered[:_MOST_STATES])
    return [pair for pair, size in zip(ordered, sizes, strict=False) if size <= most]


def _logits(model: Policy, states: Tensor) -> Tensor:
    """(C, D) to (C, V) float32."""
    weight, bias = model.unembedding
    cap, scale = getattr(model, "soft_cap", None), getattr(model, "logit_scale", 1.0)
    logits = torch.nn.functional.linear(states.to(weight.dtype), weight, bias).float()
    return scale * (logits if cap is None else cap * torch.tanh(logits / cap))


def _entropy(logprobs: Tensor) -> Tensor:
    """(N, V) to (N,), in nats."""
    return -(logprobs.exp() * logprobs).nan_to_num().sum(-1)
