"""Log-probabilities, entropies and values of action tokens; other tokens never reach the vocabulary projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from swe_trainers.kernels import AllowedTokens, linear_kl, token_logprobs
from swe_trainers.learning.batch import Batch, Rows, lay_out
from swe_trainers.learning.ranks import add_up, rows_of_rank
from swe_trainers.model.attention import to_device
from swe_trainers.model.sequence_parallel import SequenceGroup

if TYPE_CHECKING:
    from pathlib import Path

    from swe_trainers.engines.connect import Generation
    from swe_trainers.model.chat import ChatFormat
    from swe_trainers.model.tokenizers import Tokenizer

__all__ = [
    "ActionTokens",
    "HostedPolicy",
    "Policy",
    "Snapshot",
    "forward",
    "forward_scores",
    "logit_options",
    "sequence_group_of",
    "shares_prefixes",
    "take_scores",
    "take_snapshot",
    "take_values",
]


class Policy(Protocol):
    """The interface of a model that learning needs; `swe_trainers.model.LanguageModel` implements it.

    It must have no dropout: otherwise the ratio to the old policy would compare two different networks. Optional
    attributes: `sequence_group`, the processes over which its rows are divided (`trunk_hidden` then returns the columns
    of this process); `float32_logits`, if its logits are float32 and its states are not; `soft_cap` and `logit_scale`,
    if logits are capped (cap · tanh(logit / cap)) or scaled; `shares_prefixes`, if it can compute a common prefix of
    several samples once (`trunk_hidden` then takes the rows' `SegmentLayout` as a fourth argument);
    `computes_states_at`, if it can compute the states of some tokens alone, by `hidden_at`.
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
        """Load them."""
        ...


@runtime_checkable
class HostedPolicy(Protocol):
    """A policy whose weights are on a server: it has no hidden states here, and no distributions.

    `forward` then estimates entropies as −log p of the action, values are 0, and there is no KL.
    """

    def action_logprobs(self, rows: Rows, temperature: float | Tensor) -> Tensor:
        """Log-probabilities of the action tokens of some rows that share nothing, (A,) float32, differentiable."""
        ...

    def learner(self, algorithm: Any, *, seed: int = 0) -> Any:
        """The `Learner` of an algorithm at its start. Raises ConfigurationError: the algorithm needs more."""
        ...

    def generation(self, n_slots: int, max_tokens: int) -> Generation:
        """What samples with the server's weights."""
        ...

    def chat_format(self) -> ChatFormat:
        """The chat format of the model's tokenizer."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the server has saved weights and optimizer."""
        ...

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model, if the server gives it."""
        ...


@dataclass(frozen=True)
class ActionTokens:
    """The action tokens of some rows.

    Attributes:
        index: (A,) int64, their positions in the batch; on the CPU.
        logprobs: (A,) float32, at the sampling temperature.
        entropy: (A,) float32, of the distributions they were chosen from.
        values: (A,) float32, of the states in which they were chosen.
        final_values: (R,) float32, of the state after each trajectory's last token.
        kl: (A,) float32, exact KL to the reference over the vocabulary; None without a reference.
    """

    index: Tensor
    logprobs: Tensor
    entropy: Tensor
    values: Tensor
    final_values: Tensor
    kl: Tensor | None = None


@dataclass
class Snapshot:
    """What a policy computes for a whole batch, without gradients.

    Attributes:
        logprobs: (N,) float32, 0 except for actions; NaN while they are pending.
        values: (N,) float32, 0 except for actions.
        final_values: (S,) float32, of the state after each trajectory's last token.
    """

    logprobs: Tensor
    values: Tensor
    final_values: Tensor
    _seen: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    @classmethod
    def pending(cls, batch: Batch) -> Snapshot:
        """Log-probabilities that the first forward pass of an update over the whole batch will compute."""
        unknown = torch.zeros(len(batch.token_ids)).masked_fill(batch.action_mask, torch.nan)
        return cls(unknown, torch.zeros(len(batch.token_ids)), torch.zeros(batch.n_sequences))

    def logprobs_at(self, index: Tensor, now: Tensor) -> Tensor:
        """Log-probabilities of some action tokens; while they are pending, `now` is recorded and returned.

        Tensors of a GPU stay there until `settle`, so that nothing waits for them.

        Args:
            index: (A,) int64, on the CPU.
            now: (A,) float32, the policy's log-probabilities of these tokens at present.
        """
        known = self.logprobs[index]
        if np.isnan(known.numpy()).any() and self._seen:  # perhaps recorded in an earlier pass
            self.settle()
            known = self.logprobs[index]
        if np.isnan(known.numpy()).any():
            self._seen.append((index, now.detach().float()))
            return self._seen[-1][1]
        return to_device(known, now.device)

    def settle(self) -> Snapshot:
        """Store the recorded log-probabilities; waits for the device that computed them."""
        for index, logprobs in self._seen:
            self.logprobs[index] = logprobs.cpu()
        self._seen.clear()
        return self


def sequence_group_of(model: Policy) -> SequenceGroup | None:
    """The processes over which the columns of a model's rows are divided; None if they are not."""
    group: SequenceGroup | None = getattr(model, "sequence_group", None)
    return group


def shares_prefixes(*models: Policy | None) -> bool:
    """Whether all of these models can compute a common prefix of several samples once."""
    return all(model is None or getattr(model, "shares_prefixes", False) for model in models)


def logit_options(model: Policy, temperature: float | Tensor = 1.0) -> dict[str, Any]:
    """The arguments of `kernels.token_logprobs` that describe how a model computes its logits."""
    wide = torch.float32 if getattr(model, "float32_logits", False) else None
    cap, scale = getattr(model, "soft_cap", None), getattr(model, "logit_scale", 1.0)
    return {"temperature": temperature / scale, "soft_cap": cap, "logits_dtype": wide}


def _states_at(model: Policy, rows: Rows, *places: Tensor) -> tuple[Tensor, ...]:
    """The last hidden states of some tokens of some rows, (N, D) for each (N,) of `places`; some may be repeated."""
    if getattr(model, "computes_states_at", False):
        states = model.hidden_at(  # type: ignore[attr-defined]
            rows.input_ids, rows.position_ids, rows.segment_ids, rows.layout, torch.cat(places)
        )
        return tuple(states.split([len(each) for each in places]))
    hidden = _trunk_states(model, rows)
    return tuple(hidden.index_select(0, each) for each in places)


def _trunk_states(model: Policy, rows: Rows) -> Tensor:
    """The last hidden states of some rows, flattened: (B · T, D)."""
    inputs = (rows.input_ids, rows.position_ids, rows.segment_ids)
    hidden = model.trunk_hidden(*inputs, *([rows.layout] if shares_prefixes(model) else []))  # (B, T, D)
    return hidden.reshape(-1, hidden.shape[-1])


def forward(
    model: Policy,
    rows: Rows,
    *,
    temperature: float | Tensor = 1.0,
    critic: Policy | None = None,
    reference: Policy | None = None,
) -> ActionTokens:
    """Run the trunk on some rows, and both heads on the states that predict an action.

    If columns are divided over processes, each runs the heads on its own states, and all get all results.

    Args:
        model: the policy.
        rows: rows with the tokens.
        temperature: that the tokens were sampled at.
        critic: model whose trunk and value head compute the values; None: the policy.
        reference: model for the exact KL over the vocabulary; None: it is not computed.
    """
    if isinstance(model, HostedPolicy):
        logprobs = model.action_logprobs(rows, temperature)
        nothing = torch.zeros_like(logprobs)
        return ActionTokens(rows.action_index, logprobs, -logprobs.detach(), nothing, torch.zeros(len(rows.last)))
    group, places, predictor, last = sequence_group_of(model), rows.places, rows.predictor, rows.last
    copies, restricted = rows.copies, None if rows.allowed is None else rows.allowed.index
    if copies is not None and (restricted is not None or (isinstance(temperature, Tensor) and temperature.ndim)):
        # Copies of a token may differ in their temperature, and in the tokens that were allowed.
        places, predictor, copies = places.index_select(0, copies), predictor.index_select(0, copies), None
    count = len(places)  # U, different tokens
    chosen = rows.input_ids.reshape(-1).index_select(0, places)
    if group is not None:  # U and R are from here on what this process holds
        actions, predictor = group.places(predictor, rows.input_ids.shape[1])
        ends, last = group.places(last, rows.input_ids.shape[1])
        chosen = chosen.index_select(0, actions)
        if isinstance(temperature, Tensor) and temperature.ndim:
            temperature = temperature.index_select(0, actions)
        restricted = None if restricted is None else restricted.index_select(0, actions.cpu())

    with torch.no_grad():
        reference_states = None if reference is None else _states_at(reference, rows, predictor)[0]
    states, final_states = _states_at(model, rows, predictor, last)  # (U, D), (R, D)
    weight, bias = model.unembedding
    logits = logit_options(model, temperature)
    if rows.allowed is not None and restricted is not None:
        logits["allowed"] = AllowedTokens.of(rows.allowed.sets, restricted, len(weight), states.device)
    logprobs, entropy = token_logprobs(states, weight, chosen, bias=bias, **logits)
    kl = None
    if reference is not None and reference_states is not None:
        assert not isinstance(temperature, Tensor)
        reference_weight, reference_bias = reference.unembedding
        kl = linear_kl(
            states,
            weight,
            reference_states,
            reference_weight.detach(),
            bias=bias,
            other_bias=None if reference_bias is None else reference_bias.detach(),
            **logits,
        )
    if critic is not None:
        states, final_states = _states_at(critic, rows, predictor, last)
    values, final_values = _values(model if critic is None else critic, states, final_states)
    if group is not None:
        own = torch.stack([logprobs, entropy, values, *([] if kl is None else [kl])], 1)
        width = own.shape[1]
        spread = torch.cat(
            [
                own.new_zeros(count, width).index_put((actions,), own).flatten(),
                own.new_zeros(len(rows.last)).index_put((ends,), final_values),
            ]
        )
        found, final_values = group.together(spread).tensor_split([width * count])
        logprobs, entropy, values, *more = found.view(-1, width).unbind(1)
        kl = more[0] if more else None
    if copies is not None:
        logprobs, entropy, values = (each.index_select(0, copies) for each in (logprobs, entropy, values))
        kl = None if kl is None else kl.index_select(0, copies)
    return ActionTokens(rows.action_index, logprobs, entropy, values, final_values, kl)


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
    share: bool = False,
    critic: Policy | None = None,
) -> Snapshot:
    """Log-probabilities and values of all action tokens of a batch under one policy.

    Args:
        model: the policy, or the reference.
        batch: S trajectories, N tokens.
        microbatch_tokens: entries of one forward pass, padding counted.
        temperature: that the tokens were sampled at.
        pack: pack rows instead of padding them.
        share: compute shared beginnings once, if the models can.
        critic: as in `forward`.
    """
    device = next(iter(model.parameters())).device
    logprobs, values = torch.zeros(len(batch.token_ids)), torch.zeros(len(batch.token_ids))
    final_values = torch.zeros(batch.n_sequences)
    group, everything = sequence_group_of(model), torch.arange(batch.n_sequences)
    share = share and shares_prefixes(model, critic)
    for rows, counts in rows_of_rank(
        batch, everything, max_tokens=microbatch_tokens, pack=pack, share=share, group=group
    ):
        seen = forward(model, rows.to(device), temperature=temperature, critic=critic)
        if not counts or (group is not None and group.rank):  # the others of a group have seen the same
            continue
        logprobs[rows.action_index] = seen.logprobs.float().cpu()
        values[rows.action_index] = seen.values.float().cpu()
        final_values[rows.sequences] = seen.final_values.float().cpu()
    add_up(logprobs, values, final_values)
    return Snapshot(logprobs, values, final_values)


@torch.no_grad()
def take_values(
    model: Policy, batch: Batch, *, microbatch_tokens: int, pack: bool = False, share: bool = False
) -> Snapshot:
    """Only the values, of a model in one process; log-probabilities stay pending, and no logits are computed.

    Args:
        model: the critic, or the policy with a shared critic.
        batch, microbatch_tokens, pack, share: as in `take_snapshot`.
    """
    device, seen = next(iter(model.parameters())).device, Snapshot.pending(batch)
    share = share and shares_prefixes(model)
    everything = torch.arange(batch.n_sequences)
    for rows in lay_out(batch, everything, max_tokens=microbatch_tokens, pack=pack, share=share):
        there = rows.to(device)
        states, final_states = _states_at(model, there, there.predictor, there.last)
        values, final_values = _values(model, states, final_states)
        values = values if there.copies is None else values.index_select(0, there.copies)
        seen.values[rows.action_index] = values.float().cpu()
        seen.final_values[rows.sequences] = final_values.float().cpu()
    return seen


@torch.no_grad()
def take_scores(
    model: Policy,
    batch: Batch,
    marked: Tensor,
    *,
    sequences: Tensor | None = None,
    microbatch_tokens: int,
    pack: bool,
    share: bool = False,
) -> Tensor:
    """Scores of the states after some action tokens.

    Args:
        model: model whose value head computes the scores.
        batch: S trajectories, N tokens.
        marked: (N,) bool, True at action tokens only.
        sequences: (R,) int64, the trajectories to score; None for all.
        microbatch_tokens: entries of one forward pass, padding counted.
        pack: pack rows instead of padding them.
        share: compute shared beginnings once, if the model can.
    Returns:
        (N,) float32, 0 where `marked` is False.
    """
    device = next(iter(model.parameters())).device
    scores = torch.zeros(len(batch.token_ids))
    chosen = torch.arange(batch.n_sequences) if sequences is None else sequences
    group = sequence_group_of(model)
    share = share and shares_prefixes(model)
    for rows, counts in rows_of_rank(batch, chosen, max_tokens=microbatch_tokens, pack=pack, share=share, group=group):
        at, found = forward_scores(model, rows, marked, device)
        if counts:  # processes of a group hold different states
            scores[at] = found.float().cpu()
    add_up(scores)
    return scores


def forward_scores(model: Policy, rows: Rows, marked: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scores of the states after the marked tokens of some rows.

    Returns:
        Positions in the batch (M,) and scores (M,), of the tokens that this process holds.
    """
    here, group = marked[rows.action_index], sequence_group_of(model)
    at, place = rows.action_index[here], rows.places if rows.copies is None else rows.places[rows.copies]
    place = place[here]
    if group is not None:
        held, place = group.places(place, rows.input_ids.shape[1])
        at = at[held]
    states = _trunk_states(model, rows.to(device)).index_select(0, to_device(place, device))
    return at, model.values(states[None]).squeeze(0)
