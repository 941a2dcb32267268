"""Epochs over a batch: minibatches, micro-batches, one optimizer step per minibatch; the caller gives the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from swe_trainers.errors import TrainerError
from swe_trainers.learning.batch import Batch
from swe_trainers.learning.forward import (
    ActionTokens,
    Policy,
    forward,
    forward_scores,
    sequence_group_of,
    shares_prefixes,
    take_scores,
)
from swe_trainers.learning.losses import Aggregation, loss_weights
from swe_trainers.learning.master_weights import stepped
from swe_trainers.learning.ranks import combine, rows_of_rank
from swe_trainers.model.attention import to_device
from swe_trainers.process_group import n_ranks

__all__ = [
    "Objective",
    "Steps",
    "TokenLoss",
    "accumulate",
    "accumulate_scores",
    "clip_gradients",
    "gradient_noise",
    "microbatch",
    "optimise",
    "take_step",
]


@dataclass(frozen=True)
class TokenLoss:
    """The loss of some action tokens, and their metrics.

    Attributes:
        loss: (A,) float32, differentiable; the update sums it with the weights of `loss_weights`.
        means: (A,) tensors, reported as their mean under the weights of the loss.
        maxima: (A,) tensors, reported as their maximum.
    """

    loss: Tensor
    means: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)


@runtime_checkable
class Steps(Protocol):
    """An optimizer with its own backward pass and step, as libraries have that distribute models over ranks."""

    def microbatch(self, *, last: bool) -> AbstractContextManager[Callable[[Tensor], None]]:
        """Context of a micro-batch; it yields the function that runs the backward pass of the micro-batch's loss.

        Args:
            last: whether the micro-batch is the last one before the step.
        """
        ...

    def clipped_step(self, max_norm: float) -> float:
        """Scale the gradients down to a norm, step, and return the norm before; no step where it is not finite."""
        ...


Objective = Callable[[ActionTokens], TokenLoss]
"""An algorithm's loss: from what the policy says now about some action tokens to a loss for each."""


def optimise(
    model: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    *,
    begin_minibatch: Callable[[Tensor], None] | None = None,
    epochs: int,
    minibatches: int,
    microbatch_tokens: int,
    max_grad_norm: float,
    generator: torch.Generator,
    temperature: float = 1.0,
    aggregation: Aggregation = "token",
    aggregation_length: int | None = None,
    pack: bool = False,
    share: bool = False,
    stop_above: tuple[str, float] | None = None,
    critic: Policy | None = None,
    reference: Policy | None = None,
    sequences: Tensor | None = None,
) -> dict[str, float]:
    """Shuffled epochs over the trajectories of a batch.

    Args:
        model: the policy.
        optimizer: steps its parameters, once a minibatch.
        batch: S trajectories, on the CPU.
        objective: the loss a token.
        begin_minibatch: called with the trajectories (R,) int64 of each minibatch before its loss is computed.
        epochs: passes over the batch.
        minibatches: optimizer steps a pass; no more than there are trajectories, of which some may be invalid.
        microbatch_tokens: entries of one forward pass, padding counted.
        max_grad_norm: gradients are scaled down to this norm.
        generator: of the shuffling.
        temperature: that the tokens were sampled at.
        aggregation, aggregation_length: how tokens add up to a loss; see `loss_weights`.
        pack: pack rows instead of padding them.
        share: compute beginnings that trajectories share once, if the models can; it changes rounding alone.
        stop_above: (name, bound): stop before the step of a minibatch whose mean of that name exceeds the bound.
        critic: a model of its own that values states; stepped as well, under a gradient norm of its own.
        reference: as in `forward`.
        sequences: (R,) int64, the trajectories to train on; None for all.
    Returns:
        The mean over the minibatches of every statistic, their maxima, `loss`, `grad_norm`, `grad_norm_max`, `steps`,
        `stopped_early` (0 or 1), and, as `first/NAME`, the metrics of the first minibatch, before any step. Minibatches
        that took a step count; the statistic that stopped the update is that of the minibatch that exceeded the bound.
    Raises:
        TrainerError: the gradient is not finite; no step was taken with it.
    """
    history: list[dict[str, float]] = []
    stopped, beyond = False, dict[str, float]()
    chosen = torch.arange(batch.n_sequences) if sequences is None else sequences
    for _ in range(epochs):
        order = chosen[torch.randperm(len(chosen), generator=generator)]
        for part in order.tensor_split(max(1, min(minibatches, len(chosen)))) if len(chosen) else ():
            if begin_minibatch is not None:
                begin_minibatch(part)
            measured = accumulate(
                model,
                optimizer,
                batch,
                part,
                objective,
                microbatch_tokens=microbatch_tokens,
                temperature=temperature,
                aggregation=aggregation,
                aggregation_length=aggregation_length,
                pack=pack,
                share=share,
                critic=critic,
                reference=reference,
            )
            if stop_above is not None and measured[stop_above[0]] > stop_above[1]:
                stopped, beyond = True, {stop_above[0]: measured[stop_above[0]]}
                break
            if critic is not None:
                measured["critic_grad_norm"] = clip_gradients(critic, max_grad_norm)
            measured["grad_norm"] = take_step(model, optimizer, max_grad_norm)
            history.append(measured)
        if stopped:
            break
    optimizer.zero_grad(set_to_none=True)
    return {**_summarise(history), **beyond, "steps": float(len(history)), "stopped_early": float(stopped)}


def accumulate(
    model: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    sequences: Tensor,
    objective: Objective,
    *,
    microbatch_tokens: int,
    temperature: float = 1.0,
    aggregation: Aggregation = "token",
    aggregation_length: int | None = None,
    pack: bool = False,
    share: bool = False,
    critic: Policy | None = None,
    reference: Policy | None = None,
) -> dict[str, float]:
    """Gradients of one minibatch, added up over its micro-batches.

    Args:
        sequences: (R,) int64, the trajectories of the minibatch. The others are as in `optimise`.
    Returns:
        The minibatch's mean or maximum of every statistic, `loss`, and `computed_fraction`, the tokens that the model
        computed over those of the trajectories: less than 1 where they share beginnings.
    """
    optimizer.zero_grad(set_to_none=True)
    device = next(iter(model.parameters())).device
    weights = loss_weights(batch, sequences, aggregation, length=aggregation_length)  # (S,)
    total = float((weights * batch.actions_of_sequence)[sequences].sum())  # 1, but for the aggregation `constant`
    means: dict[str, Tensor] = {}
    maxima: dict[str, Tensor] = {}
    group = sequence_group_of(model)
    seen_by = 1 if group is None else group.size  # processes of a group have seen the same, and count as one
    share = share and shares_prefixes(model, critic, reference)
    laid = rows_of_rank(batch, sequences, max_tokens=microbatch_tokens, pack=pack, share=share, group=group)
    computed = sum(rows.n_tokens for rows, counts in laid if counts) / (int(batch.lengths[sequences].sum()) * seen_by)
    means["computed_fraction"] = torch.full((), computed, device=device)
    for number, (rows, counts) in enumerate(laid, 1):
        weight = to_device(counts * weights[batch.sequence_of_token[rows.action_index]], device)  # (A,)
        with microbatch(optimizer, last=number == len(laid)) as backward:
            result = objective(
                forward(model, rows.to(device), temperature=temperature, critic=critic, reference=reference)
            )
            # Ranks are averaged over where gradients are gathered, and are meant to be added up.
            backward(n_ranks() * (weight * result.loss).sum())
        with torch.no_grad():
            for name, value in {"loss": result.loss * total, **result.means}.items():
                part = (weight * value).sum() / (total * seen_by)
                means[name] = means.get(name, torch.zeros((), device=device)) + part
            for name, value in result.maxima.items():
                maxima[name] = torch.maximum(maxima[name], value.max()) if name in maxima else value.max()
    return combine(means, maxima)


def gradient_noise(
    model: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    *,
    parts: int,
    sequences: Tensor | None = None,
    generator: torch.Generator,
    **options: Any,
) -> dict[str, float]:
    """How noisy the gradient of a batch is: the simple noise scale of McCandlish et al. (2018, eq. 2.9 and appendix A).

    Gradients g_1 … g_m of m equal parts of b trajectories, and their mean g, give unbiased estimates of

        tr(Σ) = b (mean |g_i|² − |g|²) · m / (m − 1),   the variance of one trajectory's gradient
        |G|²  = (m |g|² − mean |g_i|²) / (m − 1),       the squared norm of the true gradient

    Batches much smaller than tr(Σ) / |G|² trajectories are mostly noise, much larger ones bring little. No step is
    taken.

    Args:
        model, optimizer, batch, objective: as in `optimise`.
        parts: m, at least 2; fewer where there are not so many trajectories. Left-over trajectories are not used.
        sequences: (R,) int64, the trajectories; None for all.
        generator: of their division.
        options: as of `accumulate`.
    Returns:
        `gradient_noise/scale` in trajectories (infinite where the estimate of |G|² is not positive), and
        `gradient_noise/variance` and `gradient_noise/signal`, tr(Σ) and |G|². Nothing with fewer than two trajectories.
    """
    chosen = torch.arange(batch.n_sequences) if sequences is None else sequences
    size = len(chosen) // min(parts, len(chosen)) if len(chosen) > 1 else 0
    if not size:
        return {}
    order = chosen[torch.randperm(len(chosen), generator=generator)]
    divided = [order[start : start + size] for start in range(0, size * min(parts, len(order)), size)]
    sums: list[Tensor | None] = []
    squares = 0.0
    for part in divided:
        accumulate(model, optimizer, batch, part, objective, **options)
        # Not before the backward pass, when FSDP's parameters may be gathered ones, which get no gradient.
        gradients = [stepped(parameter).grad for parameter in model.parameters() if parameter.requires_grad]
        sums = sums or [None] * len(gradients)
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                before = sums[number]
                sums[number] = gradient.clone() if before is None else before.add_(gradient)
        squares += _squared_norm(gradients) / len(divided)
    optimizer.zero_grad(set_to_none=True)
    m = len(divided)
    mean_square = _squared_norm(sums) / m**2
    variance, signal = size * (squares - mean_square) * m / (m - 1), (m * mean_square - squares) / (m - 1)
    scale = variance / signal if signal > 0 else float("inf")
    return {"gradient_noise/scale": scale, "gradient_noise/variance": variance, "gradient_noise/signal": signal}


def _squared_norm(gradients: Sequence[Tensor | None]) -> float:
    """Sum of the squares of all entries, over all ranks that hold a part of them."""
    total = 0.0
    for gradient in gradients:
        if gradient is not None:
            square = gradient.float().square().sum()
            total += float(square.full_tensor() if isinstance(square, DTensor) else square)
    return total


def accumulate_scores(
    model: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    sequences: Tensor,
    marked: Tensor,
    loss: Callable[[Tensor], Tensor],
    *,
    microbatch_tokens: int,
    pack: bool,
    share: bool = False,
) -> float:
    """Gradients of one minibatch of a loss of scores.

    Args:
        model, batch, marked, microbatch_tokens, pack, share: as in `take_scores`.
        optimizer: whose gradients are set to zero first.
        sequences: (R,) int64, the trajectories of the minibatch.
        loss: from the scores (N,) float32 to a scalar.
    Returns:
        The loss.
    """
    scores = take_scores(
        model, batch, marked, sequences=sequences, microbatch_tokens=microbatch_tokens, pack=pack, share=share
    ).requires_grad_()
    total = loss(scores)
    (slopes,) = torch.autograd.grad(total, scores)  # (N,)
    optimizer.zero_grad(set_to_none=True)
    device = next(iter(model.parameters())).device
    group = sequence_group_of(model)
    share = share and shares_prefixes(model)
    laid = rows_of_rank(batch, sequences, max_tokens=microbatch_tokens, pack=pack, share=share, group=group)
    for number, (rows, counts) in enumerate(laid, 1):
        with microbatch(optimizer, last=number == len(laid)) as backward:
            at, found = forward_scores(model, rows, marked, device)
            backward((counts * n_ranks() * to_device(slopes[at], device) * found).sum())
    return float(total.detach())


def take_step(model: Policy, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> float:
    """Scale the gradients down to a norm, step, and return the norm before.

    Raises:
        TrainerError: the gradient is not finite; no step was taken with it.
    """
    if isinstance(optimizer, Steps):
        return _finite(optimizer.clipped_step(max_grad_norm))
    norm = clip_gradients(model, max_grad_norm)
    optimizer.step()
    return norm


def microbatch(optimizer: torch.optim.Optimizer, *, last: bool) -> AbstractContextManager[Callable[[Tensor], None]]:
    """Context of a micro-batch; it yields the function that runs the backward pass of the micro-batch's loss."""
    return optimizer.microbatch(last=last) if isinstance(optimizer, Steps) else nullcontext(Tensor.backward)


def clip_gradients(model: Policy, max_norm: float) -> float:
    """Scale a model's gradients down to a norm, and return the norm before.

    Raises:
        TrainerError: it is not finite.
    """
    total = torch.nn.utils.clip_grad_norm_([stepped(p) for p in model.parameters()], max_norm)
    return _finite(float(total.full_tensor() if isinstance(total, DTensor) else total))


def _finite(norm: float) -> float:
    if not norm < float("inf"):
        raise TrainerError(f"the gradient's norm is {norm}: no step was taken. Try: a lower learning rate")
    return norm


def _summarise(history: list[dict[str, float]]) -> dict[str, float]:
    if not history:
        return {}
    summary = {f"first/{name}": value for name, value in history[0].items()}
    for name in history[0]:
        column = [measured[name] for measured in history]
        summary[name] = max(column) if name.endswith("_max") else sum(column) / len(column)
    summary["grad_norm_max"] = max(measured["grad_norm"] for measured in history)
    return summary
