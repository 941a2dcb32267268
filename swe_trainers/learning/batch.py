"""Trajectories as tensors: concatenated in a batch, and laid out in rows for a model.

A batch of N tokens stores every quantity flat, with one entry per token: entry t of the log-probabilities is log
p(token t | tokens < t), predicted from position t − 1. `Rows` maps tokens to positions in a (B, T) matrix, padded or
packed, so that the division into micro-batches does not affect the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from swe_trainers.errors import ShapeError
from swe_trainers.learning.prefixes import Prefixes
from swe_trainers.model.attention import SegmentLayout, to_device
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Batch", "Rows", "balanced", "lay_out"]


@dataclass(frozen=True)
class Batch:
    """S trajectories with N tokens in total, concatenated, on the CPU.

    Attributes:
        token_ids: (N,) int64.
        action_mask: (N,) bool, True where the policy chose the token; never at a trajectory's first token.
        rollout_logprobs: (N,) float32, under the distribution that was sampled from.
        rewards: (N,) float32, 0 where `action_mask` is False.
        offsets: (S + 1,) int64, trajectory s has the tokens offsets[s] to offsets[s + 1].
        terminated: (S,) bool, True if the environment ended it: no bootstrap.
        truncated: (S,) bool, True if a limit ended it.
        group: (S,) int64, equal where episodes started from the same state.
        sample_starts: (N,) bool, True at the first token of each sample: of each trajectory, and of each new context
            after a history was shortened. Tokens do not attend to other samples.
        allowed: (N,) int64, index in `allowed_sets` of the set that each token was sampled from; −1 for the whole
            vocabulary, and for other tokens than actions. None if no token was restricted.
        allowed_sets: the different sets of token ids, each ascending.
        conversation: (N,) int64, the conversation of its trajectory that each token belongs to; None where every
            trajectory is one.
        forks: (F, 3) int64, of trees: trajectory, first token of the turn that differs, number of the fork in the
            group; in the order of trajectories and tokens.
        episodes: all given trajectories; the invalid ones, and those without an action, are not in the batch.
    """

    token_ids: Tensor
    action_mask: Tensor
    rollout_logprobs: Tensor
    rewards: Tensor
    offsets: Tensor
    terminated: Tensor
    truncated: Tensor
    group: Tensor
    sample_starts: Tensor
    forks: Tensor
    episodes: Sequence[Trajectory] = ()
    allowed: Tensor | None = None
    allowed_sets: Sequence[Sequence[int]] = ()
    conversation: Tensor | None = None

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory] | Batch) -> Batch:
        """A batch of the valid trajectories that have an action; a batch is returned as it is.

        Raises:
            ShapeError: arrays of one trajectory disagree in length, its first token is an action (nothing predicts
                it), a reward sits on a token that is none, or an action token is not among those that were allowed
                there; the message names the trajectory.
        """
        if isinstance(trajectories, Batch):
            return trajectories
        taken = []
        for number, trajectory in enumerate(trajectories):
            _check(number, trajectory)
            if trajectory.valid and trajectory.action_mask.any():
                taken.append(trajectory)
        lengths = [len(t.token_ids) for t in taken]
        offsets = [0, *np.cumsum(lengths, dtype=np.int64).tolist()]
        starts = torch.zeros(offsets[-1], dtype=torch.bool)
        starts[[offsets[s] + at for s, t in enumerate(taken) for at in t.sample_starts]] = True
        forks = [(s, offsets[s] + t.turns[f.turn].start, f.node) for s, t in enumerate(taken) for f in t.forks]
        allowed, allowed_sets = _allowed(taken)
        return cls(
            token_ids=_flat([t.token_ids for t in taken], np.int64),
            action_mask=_flat([t.action_mask for t in taken], np.bool_),
            rollout_logprobs=_flat([t.rollout_logprobs for t in taken], np.float32),
            rewards=_flat([t.rewards for t in taken], np.float32),
            offsets=torch.tensor(offsets, dtype=torch.int64),
            terminated=torch.tensor([t.terminated for t in taken], dtype=torch.bool),
            truncated=torch.tensor([t.truncated for t in taken], dtype=torch.bool),
            group=torch.tensor([t.group for t in taken], dtype=torch.int64),
            sample_starts=starts,
            forks=torch.tensor(forks, dtype=torch.int64).view(-1, 3),
            episodes=trajectories,
            allowed=allowed,
            allowed_sets=allowed_sets,
            conversation=_conversation(taken),
        )

    @property
    def n_sequences(self) -> int:
        """S, the number of trajectories taken."""
        return len(self.offsets) - 1

    @property
    def n_excluded(self) -> int:
        """How many trajectories were excluded."""
        return len(self.episodes) - self.n_sequences

    @cached_property
    def lengths(self) -> Tensor:
        """(S,) int64, tokens of each trajectory."""
        return self.offsets.diff()

    @cached_property
    def place_in_sample(self) -> Tensor:
        """(N,) int64, counted from 0 at each sample's first token."""
        first = self.sample_starts.nonzero().squeeze(1)
        sizes = torch.diff(first, append=torch.tensor([len(self.token_ids)]))
        return torch.arange(len(self.token_ids)) - torch.repeat_interleave(first, sizes)

    @cached_property
    def prefixes(self) -> Prefixes:
        """The common prefixes of the samples."""
        return Prefixes.of(self.token_ids, self.sample_starts.nonzero().squeeze(1), self.offsets)

    @cached_property
    def sequence_of_token(self) -> Tensor:
        """(N,) int64, the trajectory that each token belongs to."""
        return torch.repeat_interleave(torch.arange(self.n_sequences), self.lengths)

    @cached_property
    def actions_of_sequence(self) -> Tensor:
        """(S,) int64, action tokens of each trajectory."""
        counts = torch.zeros(self.n_sequences, dtype=torch.int64)
        return counts.index_add(0, self.sequence_of_token, self.action_mask.long())

    @cached_property
    def turn_ends(self) -> Tensor:
        """(N,) bool, True at the last action token of each turn."""
        follows = torch.zeros_like(self.action_mask)
        follows[:-1] = self.action_mask[1:] & (self.sequence_of_token[1:] == self.sequence_of_token[:-1])
        return self.action_mask & ~follows

    @cached_property
    def last_actions(self) -> Tensor:
        """(S,) int64, where each trajectory's last action token is."""
        ends = self.turn_ends.nonzero().squeeze(1)
        return torch.zeros(self.n_sequences, dtype=torch.int64).scatter_reduce(
            0, self.sequence_of_token[ends], ends, "amax"
        )

    def total(self, flat: Tensor) -> Tensor:
        """(N,) to (S,): the sum over the action tokens of each trajectory, independent of their order."""
        kept = flat.where(self.action_mask, 0.0).double()  # float32 sums of the same rewards in another order differ
        sums = torch.zeros(self.n_sequences, dtype=torch.float64).index_add(0, self.sequence_of_token, kept)
        return sums.to(flat.dtype)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """(S,) to (N,): the entry of its trajectory for each action token; 0 elsewhere."""
        return per_sequence[self.sequence_of_token].where(self.action_mask, 0.0)

    def pad(self, flat: Tensor) -> Tensor:
        """(N,) to (S, T) with T the longest trajectory; 0 or False where there is no token."""
        width = int(self.lengths.max()) if self.n_sequences else 0
        padded = torch.zeros(self.n_sequences, width, dtype=flat.dtype, device=flat.device)
        padded[self._present(width)] = flat
        return padded

    def unpad(self, padded: Tensor) -> Tensor:
        """(S, T) back to (N,)."""
        return padded[self._present(padded.shape[1])]

    def _present(self, width: int) -> Tensor:
        return torch.arange(width)[None, :] < self.lengths[:, None]


@dataclass(frozen=True)
class RestrictedTokens:
    """Action tokens of which some were sampled from a part of the vocabulary.

    Attributes:
        sets: the different sets of token ids.
        index: (A,) int64 on the CPU, the set of each token; −1 for the whole vocabulary.
    """

    sets: Sequence[Sequence[int]]
    index: Tensor


@dataclass(frozen=True)
class Rows:
    """Some trajectories of a batch as a (B, T) matrix for the model, padded or packed.

    A common prefix of several samples may be in the matrix once: each of its tokens then has one place there, and one
    action token of the batch for each of these samples.

    Attributes:
        input_ids: (B, T) int64, 0 at padding.
        position_ids: (B, T) int64, from 0 in every sample.
        segment_ids: (B, T) int64, the same number from 1 within one segment of a row (a sample, or a part of one that
            begins or ends where samples part); 0 at padding.
        layout: layout of the segments, with the segment that each of them continues; on the CPU.
        action_index: (A,) int64, the action tokens here, as positions in the batch; on the CPU.
        places: (U,) int64, where the different action tokens sit in the flattened (B · T).
        predictor: (U,) int64, where the state that predicts each of them sits.
        allowed: of the A action tokens, in their order; None if none of them was restricted.
        copies: (A,) int64, which of the U each action token is; None if they are the same.
        sequences: (R,) int64, the trajectories here; on the CPU.
        last: (R,) int64, where each trajectory's last token sits in the flattened (B · T).
    """

    input_ids: Tensor
    position_ids: Tensor
    segment_ids: Tensor
    layout: SegmentLayout
    action_index: Tensor
    places: Tensor
    predictor: Tensor
    copies: Tensor | None
    sequences: Tensor
    last: Tensor
    allowed: RestrictedTokens | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens that the model computes, without padding."""
        return int(self.layout.sizes.sum())

    def to(self, device: torch.device | str) -> Rows:
        """The same rows, with what the model reads on another device."""
        return replace(
            self,
            input_ids=to_device(self.input_ids, device),
            position_ids=to_device(self.position_ids, device),
            segment_ids=to_device(self.segment_ids, device),
            places=to_device(self.places, device),
            predictor=to_device(self.predictor, device),
            copies=None if self.copies is None else to_device(self.copies, device),
            last=to_device(self.last, device),
        )


def lay_out(
    batch: Batch,
    sequences: Tensor,
    *,
    max_tokens: int,
    pack: bool = False,
    share: bool = False,
    attention_tokens: int = 12_288,
) -> list[Rows]:
    """Divide trajectories into micro-batches of at most `max_tokens` entries, padding included.

    Without packing, trajectories are sorted by length, so that the rows of a micro-batch have similar lengths. With
    packing, a micro-batch is a single row of whole trajectories without padding, and all rows have a similar cost in
    floating point operations: attention costs more in a row of one long trajectory than in one of many short ones. A
    trajectory longer than `max_tokens` is a micro-batch of its own.

    Args:
        batch: batch of the trajectories.
        sequences: (R,) int64, indices of the trajectories, without repetition.
        max_tokens: B · T of a micro-batch.
        pack: concatenate trajectories in one row, instead of padding each.
        share: put a common prefix of trajectories into a row once, if that saves much; a tree of trajectories then
            takes the place of one trajectory above.
        attention_tokens: length at which causal attention costs as much as the rest of a layer: 12 times the hidden
            size (2 T D of 24 D² + 2 T D operations per token).
    """
    trees = batch.prefixes.trees(sequences.tolist(), max_tokens) if share else None
    if trees is not None:
        lengths = dict(enumerate(tree.n_tokens for tree in trees))
        members = dict(enumerate(tree.sequences for tree in trees))
    else:
        lengths = dict(zip(sequences.tolist(), batch.lengths[sequences].tolist(), strict=True))
        members = {s: [s] for s in lengths}

    def made(rows: list[list[int]]) -> Rows:
        return _rows(batch, [[s for unit in row for s in members[unit]] for row in rows], shared=trees is not None)

    order = sorted(lengths, key=lambda s: (-lengths[s], s))
    if not order:
        return []
    if pack:
        bins = _first_fit(order, lengths, max_tokens)
        costs = [lengths[s] * (1 + lengths[s] / attention_tokens) for s in order]
        alike = [[order[i] for i in part] for part in balanced(costs, len(bins), most=len(order))]
        # Where bins are full to the brim no other division may fit.
        fits = all(sum(lengths[s] for s in row) <= max_tokens or len(row) == 1 for row in alike)
        return [made([row]) for row in (alike if fits else bins)]
    micro: list[list[list[int]]] = [[]]
    for s in order:
        widest = lengths[micro[-1][0][0]] if micro[-1] else 0
        if micro[-1] and (len(micro[-1]) + 1) * widest > max_tokens:
            micro.append([])
        micro[-1].append([s])
    return [made(rows) for rows in micro]


def balanced(costs: Sequence[float], parts: int, *, most: int) -> list[list[int]]:
    """Divide items into parts of similar cost: the most expensive first, each to the cheapest part so far.

    If `most` does not interfere, the cost of the largest part is at most 4/3 of the optimum (Graham 1969).

    Args:
        costs: cost of each item.
        parts: number of parts; at least len(costs) / most.
        most: maximum number of items in a part.
    Returns:
        For each part the indices of its items, ascending.
    """
    chosen: list[list[int]] = [[] for _ in range(parts)]
    spent = [0.0] * parts
    for thing in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        part = min((p for p in range(parts) if len(chosen[p]) < most), key=lambda p: (spent[p], p))
        chosen[part].append(thing)
        spent[part] += costs[thing]
    return [sorted(part) for part in chosen if part]


def _rows(batch: Batch, rows: list[list[int]], *, shared: bool) -> Rows:
    """Scatter whole trajectories into a matrix at once; R of them in `rows`, n tokens in all."""
    sequences = torch.tensor([s for row in rows for s in row])  # (R,)
    counts = torch.tensor([len(row) for row in rows])
    row_of = torch.repeat_interleave(torch.arange(len(rows)), counts)  # (R,)
    lengths = batch.lengths[sequences]
    before = lengths.cumsum(0) - lengths  # (R,), tokens before each trajectory, over all rows
    n = int(lengths.sum())
    source = torch.repeat_interleave(batch.offsets[sequences] - before, lengths) + torch.arange(n)  # (n,)

    if shared:
        forests = [batch.prefixes.forest(row) for row in rows]
        width = max(forest.n_tokens for forest in forests)
        target = torch.cat([number * width + forest.places for number, forest in enumerate(forests)])  # (n,)
        starts = torch.cat([number * width + forest.starts for number, forest in enumerate(forests)])  # (G,)
        sizes = torch.cat([forest.sizes for forest in forests])
        above = [0, *np.cumsum([len(forest.starts) for forest in forests]).tolist()]
        parents = torch.cat(
            [
                torch.where(forest.parents < 0, -1, forest.parents + number)
                for forest, number in zip(forests, above[:-1], strict=True)
            ]
        )
    else:
        place = torch.arange(len(sequences)) - (counts.cumsum(0) - counts)[row_of]  # (R,), from 0 in each row
        column = before - before[place == 0][row_of]
        width = int((column + lengths).max())
        target = torch.repeat_interleave(row_of * width + column - before, lengths) + torch.arange(n)
        first = batch.sample_starts[source].nonzero().squeeze(1)  # (G,)
        starts, sizes = target[first], first.diff(append=torch.tensor([n]))
        parents = torch.full_like(starts, -1)

    input_ids, position_ids, segment_ids = (torch.zeros(len(rows) * width, dtype=torch.int64) for _ in range(3))
    input_ids[target] = batch.token_ids[source]
    position_ids[target] = batch.place_in_sample[source]
    in_row = torch.arange(len(starts)) - torch.searchsorted(starts // width, starts // width)  # (G,), from 0
    tokens = torch.repeat_interleave(starts - (sizes.cumsum(0) - sizes), sizes) + torch.arange(int(sizes.sum()))
    segment_ids[tokens] = torch.repeat_interleave(in_row + 1, sizes)
    acts = batch.action_mask[source].nonzero().squeeze(1)
    places, predictor, copies = target[acts], target[acts - 1], None
    if shared:
        places, copies = torch.unique(places, return_inverse=True)
        predictor = torch.zeros_like(places).index_copy_(0, copies, predictor)
    return Rows(
        input_ids=input_ids.view(-1, width),
        position_ids=position_ids.view(-1, width),
        segment_ids=segment_ids.view(-1, width),
        layout=SegmentLayout(starts, sizes, parents, (len(rows), width)),
        action_index=source[acts],
        places=places,
        predictor=predictor,
        copies=copies,
        sequences=sequences,
        last=target[before + lengths - 1],
        allowed=_restricted(batch, source[acts]),
    )


def _restricted(batch: Batch, actions: Tensor) -> RestrictedTokens | None:
    """Of some action tokens of a batch."""
    if batch.allowed is None or not bool(((index := batch.allowed[actions]) >= 0).any()):
        return None
    numbers, index = torch.unique(index, return_inverse=True)  # the sets of these tokens alone
    free = int(numbers[0] < 0)
    sets = [batch.allowed_sets[number] for number in numbers[free:].tolist()]
    return RestrictedTokens(sets, index - free)


def _first_fit(order: list[int], lengths: dict[int, int], capacity: int) -> list[list[int]]:
    """Bins of at most `capacity` tokens, or of one trajectory, longest first, each into the first bin with room."""
    bins: list[list[int]] = []
    room: list[int] = []
    for s in order:
        place = next((b for b, free in enumerate(room) if free >= lengths[s]), None)
        if place is None:
            bins.append([s])
            room.append(capacity - lengths[s])
        else:
            bins[place].append(s)
            room[place] -= lengths[s]
    return bins


def _flat(arrays: list[np.ndarray], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(a, dtype=dtype) for a in arrays] or [np.empty(0, dtype)]))


def _allowed(trajectories: Sequence[Trajectory]) -> tuple[Tensor | None, list[tuple[int, ...]]]:
    """The different sets of all trajectories, and which of them each token was sampled from."""
    if not any(t.allowed_sets for t in trajectories):
        return None, []
    numbers: dict[tuple[int, ...], int] = {}
    parts = []
    for t in trajectories:
        own = [numbers.setdefault(tuple(tokens), len(numbers)) for tokens in t.allowed_sets]
        index = np.asarray(t.allowed or [-1] * len(t.token_ids), dtype=np.int64)
        parts.append(np.array([*own, -1])[index])  # −1 finds the last one
    return _flat(parts, np.int64), list(numbers)


def _conversation(trajectories: Sequence[Trajectory]) -> Tensor | None:
    """The conversation of each token; of an episode without numbers of them it is 0."""
    if not any(len(set(t.sample_conversations)) > 1 for t in trajectories):
        return None
    parts = []
    for t in trajectories:
        sizes = np.diff([*t.sample_starts, len(t.token_ids)])
        parts.append(np.repeat(np.asarray(t.sample_conversations or [0] * len(sizes), dtype=np.int64), sizes))
    return _flat(parts, np.int64)


def _check(number: int, trajectory: Trajectory) -> None:
    expected = np.shape(trajectory.token_ids)
    for name in ("action_mask", "rollout_logprobs", "rewards"):
        got = np.shape(getattr(trajectory, name))
        if got != expected or len(expected) != 1:
            raise ShapeError(f"trajectory {number}: {name} is {got}, token_ids {expected}; expected (T,) for both")
    if len(trajectory.token_ids) and trajectory.action_mask[0]:
        raise ShapeError(f"trajectory {number}: its first token is an action, which nothing predicts")
    starts = trajectory.sample_starts
    if len(expected) and expected[0] and (starts[0] != 0 or any(trajectory.action_mask[at] for at in starts)):
        raise ShapeError(f"trajectory {number}: samples begin at {starts}; expected 0 first, and no action there")
    if trajectory.sample_conversations and len(trajectory.sample_conversations) != len(starts):
        raise ShapeError(
            f"trajectory {number}: sample_conversations has {len(trajectory.sample_conversations)} entries, expected "
            f"{len(starts)}, one for each sample"
        )
    if trajectory.allowed or trajectory.allowed_sets:
        _check_allowed(number, trajectory)
    misplaced = np.flatnonzero(~trajectory.action_mask & (trajectory.rewards != 0))
    if len(misplaced):
        raise ShapeError(f"trajectory {number}: the reward at token {misplaced[0]} is on no action token")
    if not np.isfinite(trajectory.rewards[trajectory.action_mask]).all():
        raise ShapeError(f"trajectory {number}: a reward is not finite")


def _check_allowed(number: int, trajectory: Trajectory) -> None:
    index, n_sets = np.asarray(trajectory.allowed, dtype=np.int64), len(trajectory.allowed_sets)
    if index.shape != trajectory.token_ids.shape or (len(index) and not -1 <= index.min() <= index.max() < n_sets):
        raise ShapeError(
            f"trajectory {number}: allowed is {index.shape} with sets up to {index.max(initial=-1)}, expected (T,) and "
            f"less than {n_sets}, the number of allowed_sets"
        )
    for at in np.flatnonzero((index >= 0) & ~trajectory.action_mask)[:1]:
        raise ShapeError(f"trajectory {number}: token {at} was sampled from allowed tokens, but it is no action")
    members = [frozenset(tokens) for tokens in trajectory.allowed_sets]
    for at in np.flatnonzero(index >= 0).tolist():
        if trajectory.token_ids[at] not in members[index[at]]:
            tokens = trajectory.allowed_sets[index[at]]
            turn = next((n for n, turn in enumerate(trajectory.turns) if turn.start <= at < turn.end), None)
            raise ShapeError(
                f"trajectory {number}: token {at}{'' if turn is None else f', in turn {turn},'} is "
                f"{trajectory.token_ids[at]}, which is not among the tokens allowed there: {list(tokens)[:12]}"
            )
