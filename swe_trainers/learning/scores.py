"""What a model with a value head says of chosen tokens: scores, and losses of scores that need one another.

A loss of pairs or of whole batches cannot be cut into micro-batches as a sum over tokens can. Its gradient can: the
scores are computed once without gradients, the loss is differentiated by the scores, and a second pass carries these
derivatives on to the parameters. The result does not depend on the cut.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from swe_trainers.learning.batch import Batch, Rows
from swe_trainers.learning.forward import Policy, sequence_group_of
from swe_trainers.learning.ranks import add_up, n_ranks, rows_of_rank
from swe_trainers.learning.update import microbatch

__all__ = ["accumulate_scores", "take_scores"]


@torch.no_grad()
def take_scores(
    model: Policy, batch: Batch, marked: Tensor, *, sequences: Tensor | None = None, microbatch_tokens: int, pack: bool
) -> Tensor:
    """Scores of the states after some action tokens.

    Args:
        model: whose value head is asked.
        batch: S trajectories, N tokens.
        marked: (N,) bool, True at action tokens only.
        sequences: (R,) int64, the trajectories to score; None for all.
        microbatch_tokens: entries of one forward pass, padding counted.
        pack: pack rows instead of padding them.
    Returns:
        (N,) float32, 0 where nothing is marked.
    """
    device = next(iter(model.parameters())).device
    scores = torch.zeros(len(batch.token_ids))
    chosen = torch.arange(batch.n_sequences) if sequences is None else sequences
    group = sequence_group_of(model)
    for rows, counts in rows_of_rank(batch, chosen, max_tokens=microbatch_tokens, pack=pack, group=group):
        at, found = _forward(model, rows, marked, device)
        if counts:  # processes of a group hold different states
            scores[at] = found.float().cpu()
    add_up(scores)
    return scores


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
) -> float:
    """Gradients of one minibatch of a loss of scores.

    Args:
        model, batch, marked, microbatch_tokens, pack: as in `take_scores`.
        optimizer: whose gradients are set to zero first.
        sequences: (R,) int64, the trajectories of the minibatch.
        loss: from the scores (N,) float32 to a scalar.
    Returns:
        The loss.
    """
    scores = take_scores(
        model, batch, marked, sequences=sequences, microbatch_tokens=microbatch_tokens, pack=pack
    ).requires_grad_()
    total = loss(scores)
    (slopes,) = torch.autograd.grad(total, scores)  # (N,)
    optimizer.zero_grad(set_to_none=True)
    device = next(iter(model.parameters())).device
    group = sequence_group_of(model)
    laid = rows_of_rank(batch, sequences, max_tokens=microbatch_tokens, pack=pack, group=group)
    for number, (rows, counts) in enumerate(laid, 1):
        with microbatch(optimizer, last=number == len(laid)) as take_back:
            at, found = _forward(model, rows, marked, device)
            take_back((counts * n_ranks() * slopes[at].to(device) * found).sum())
    return float(total.detach())


def _forward(model: Policy, rows: Rows, marked: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where the marked tokens of some rows are in the batch (M,) and their scores (M,), of those that are held here."""
    here, group = marked[rows.action_index], sequence_group_of(model)
    at, place = rows.action_index[here], rows.predictor[here] + 1
    if group is not None:
        held, place = group.places(place, rows.input_ids.shape[1])
        at = at[held]
    rows = rows.to(device)
    hidden = model.trunk_hidden(rows.input_ids, rows.position_ids, rows.segment_ids)
    states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, place.to(device))
    return at, model.values(states[None]).squeeze(0)
