"""What a policy says about the action tokens of a batch; all other tokens never meet the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from swe_trainers.kernels import token_logprobs
from swe_trainers.learning.batch import Batch, Rows, lay_out
from swe_trainers.learning.ranks import add_up, rows_of_rank
from swe_trainers.policy.sequence_parallel import SequenceGroup

__all__ = ["ActionTokens", "Policy", "Snapshot", "forward", "sequence_group_of", "take_snapshot", "take_values"]


class Policy(Protocol):
    """What learning needs of a model; `swe_trainers.policy.LanguageModel` has it, and any module may.

    It has no dropout: the ratio to the old policy would compare two different networks. One whose rows are divided over
    processes says so in an attribute `sequence_group`, and its `trunk_hidden` gives this process's columns.
    """

    def trunk_hidden(self, input_ids: Tensor, position_ids: Tensor, segment_ids: Tensor) -> Tensor:
        """(B, T) thrice to the last hidden states (B, T, D); segments never see one another, 0 is padding."""
        ...

    @property
    def unembedding(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V, D) and bias (V,) or None."""
        ...

    def values(self, hidden: Tensor) -> Tensor:
        """(B, T, D) to the values of those states, (B, T) float32."""
        ...

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """All parameters."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Parameters and buffers by name."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """Take them back."""
        ...


@dataclass(frozen=True)
class ActionTokens:
    """The action tokens of some rows.

    Attributes:
        index: (A,) int64, their positions in the batch.
        logprobs: (A,) float32, at the sampling temperature.
        entropy: (A,) float32, of the distributions they were chosen from.
        values: (A,) float32, of the states they were chosen in.
        final_values: (R,) float32, of the state after each trajectory's last token.
    """

    index: Tensor
    logprobs: Tensor
    entropy: Tensor
    values: Tensor
    final_values: Tensor


@dataclass(frozen=True)
class Snapshot:
    """A policy's view of a whole batch, without gradients.

    Attributes:
        logprobs, values: (N,) float32, 0 where no action is.
        final_values: (S,) float32, of the state after each trajectory's last token.
    """

    logprobs: Tensor
    values: Tensor
    final_values: Tensor

    @classmethod
    def pending(cls, batch: Batch) -> Snapshot:
        """A view that is not taken yet: an update whose first pass is over the whole batch takes it in passing."""
        unknown = torch.zeros(len(batch.token_ids)).masked_fill(batch.action_mask, torch.nan)
        return cls(unknown, torch.zeros(len(batch.token_ids)), torch.zeros(batch.n_sequences))

    def logprobs_at(self, index: Tensor, now: Tensor) -> Tensor:
        """Log-probabilities of action tokens of whole trajectories; where they are pending, those of now, for good.

        Args:
            index: (A,) int64, on the CPU. now: (A,) float32, what the policy says of these tokens at present.
        """
        known = self.logprobs[index]
        if bool(known.isnan().any()):
            known = self.logprobs[index] = now.detach().float().cpu()
        return known.to(now.device)


def sequence_group_of(model: Policy) -> SequenceGroup | None:
    """The processes among which the columns of a model's rows are divided; None where each row has one."""
    group: SequenceGroup | None = getattr(model, "sequence_group", None)
    return group


def forward(
    model: Policy, rows: Rows, *, temperature: float | Tensor = 1.0, critic: Policy | None = None
) -> ActionTokens:
    """Run the trunk over some rows, and the two heads over the states that predict an action.

    Where columns are divided among processes, each runs the heads over its own states; all get the results of all.

    Args:
        model: the policy.
        rows: where the tokens sit.
        temperature: that the tokens were sampled at.
        critic: whose trunk and value head are asked for the values; None asks the policy's own.
    """
    group, predictor, last = sequence_group_of(model), rows.predictor, rows.last
    chosen = rows.input_ids.reshape(-1).index_select(0, predictor + 1)  # (A,)
    if group is not None:  # A and R are from here on what this process holds
        actions, predictor = group.places(predictor, rows.input_ids.shape[1])
        ends, last = group.places(last, rows.input_ids.shape[1])
        chosen = chosen.index_select(0, actions)
        if isinstance(temperature, Tensor) and temperature.ndim:
            temperature = temperature.index_select(0, actions)
    hidden = model.trunk_hidden(rows.input_ids, rows.position_ids, rows.segment_ids)  # (B, T, D)
    flat = hidden.reshape(-1, hidden.shape[-1])
    states = flat.index_select(0, predictor)  # (A, D)
    weight, bias = model.unembedding
    logprobs, entropy = token_logprobs(states, weight, chosen, bias=bias, temperature=temperature)
    if critic is not None:
        hidden = critic.trunk_hidden(rows.input_ids, rows.position_ids, rows.segment_ids)
        flat = hidden.reshape(-1, hidden.shape[-1])
        states = flat.index_select(0, predictor)
    values, final_values = _values(model if critic is None else critic, states, flat.index_select(0, last))
    if group is None:
        return ActionTokens(rows.action_index, logprobs, entropy, values, final_values)
    own = torch.stack([logprobs, entropy, values], 1)
    spread = torch.cat(
        [
            own.new_zeros(len(rows.predictor), 3).index_put((actions,), own).flatten(),
            own.new_zeros(len(rows.last)).index_put((ends,), final_values),
        ]
    )
    found, final_values = group.together(spread).tensor_split([3 * len(rows.predictor)])
    logprobs, entropy, values = found.view(-1, 3).unbind(1)
    return ActionTokens(rows.action_index, logprobs, entropy, values, final_values)


def _values(model: Policy, states: Tensor, final_states: Tensor) -> tuple[Tensor, Tensor]:
    """(A, D) and (R, D) to (A,) and (R,), in one call of the value head."""
    both = torch.cat([states, final_states])
    values = model.values(both[None]).squeeze(0)
    return values[: len(states)], values[len(states) :]


@torch.no_grad()
def take_snapshot(
    model: Policy,
    batch: Batch,
    *,
    microbatch_tokens: int,
    temperature: float = 1.0,
    pack: bool = False,
    critic: Policy | None = None,
) -> Snapshot:
    """Log-probabilities and values of all action tokens of a batch under one policy.

    Args:
        model: the policy, or the reference.
        batch: S trajectories, N tokens.
        microbatch_tokens: entries of one forward pass, padding counted.
        temperature: that the tokens were sampled at.
        pack: pack rows instead of padding them.
        critic: as in `forward`.
    """
    device = next(iter(model.parameters())).device
    logprobs, values = torch.zeros(len(batch.token_ids)), torch.zeros(len(batch.token_ids))
    final_values = torch.zeros(batch.n_sequences)
    group, everything = sequence_group_of(model), torch.arange(batch.n_sequences)
    for rows, counts in rows_of_rank(batch, everything, max_tokens=microbatch_tokens, pack=pack, group=group):
        seen = forward(model, rows.to(device), temperature=temperature, critic=critic)
        if not counts or (group is not None and group.rank):  # the others of a group have seen the same
            continue
        logprobs[rows.action_index] = seen.logprobs.float().cpu()
        values[rows.action_index] = seen.values.float().cpu()
        final_values[rows.sequences] = seen.final_values.float().cpu()
    add_up(logprobs, values, final_values)
    return Snapshot(logprobs, values, final_values)


@torch.no_grad()
def take_values(model: Policy, batch: Batch, *, microbatch_tokens: int, pack: bool = False) -> Snapshot:
    """The values alone, of a model on this process alone; the log-probabilities stay pending, and no logits are made.

    Args:
        model: the critic, or the policy where its trunk values states.
        batch, microbatch_tokens, pack: as in `take_snapshot`.
    """
    device, seen = next(iter(model.parameters())).device, Snapshot.pending(batch)
    for rows in lay_out(batch, torch.arange(batch.n_sequences), max_tokens=microbatch_tokens, pack=pack):
        there = rows.to(device)
        hidden = model.trunk_hidden(there.input_ids, there.position_ids, there.segment_ids)  # (B, T, D)
        flat = hidden.reshape(-1, hidden.shape[-1])
        states, final_states = flat.index_select(0, there.predictor), flat.index_select(0, there.last)
        values, final_values = _values(model, states, final_states)
        seen.values[rows.action_index] = values.float().cpu()
        seen.final_values[rows.sequences] = final_values.float().cpu()
    return seen
