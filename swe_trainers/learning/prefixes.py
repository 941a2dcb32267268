"""Beginnings that samples have in common, so that a model computes them once.

A causal state depends on nothing but the tokens up to it. Samples with equal first tokens (episodes of a group,
branches of a tree, turns of a shortened history, the system prompt of all) have equal states there, and gradients that
add up. Sorted by their tokens, samples that share much are neighbours, and what any two share is the least that
neighbours between them share.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["LEAST_SHARED", "Forest", "Prefixes", "Tree"]

LEAST_SHARED = 8
"""Tokens in common below which samples count as different: an attention call more costs as much."""

_LEAST_SAVING = 0.05
"""The fraction of tokens below which nothing is shared: rows without trees need fewer attention calls."""


@dataclass(frozen=True)
class Tree:
    """Trajectories that share beginnings.

    Attributes:
        sequences: their numbers.
        n_tokens: different tokens, each counted once.
    """

    sequences: list[int]
    n_tokens: int


@dataclass(frozen=True)
class Forest:
    """Samples in a row in which what they share occurs once.

    Attributes:
        places: (n,) int64, the column of each of the trajectories' n tokens.
        starts, sizes, parents: (G,) int64, of the row's segments; see `SegmentLayout`.
    """

    places: Tensor
    starts: Tensor
    sizes: Tensor
    parents: Tensor

    @property
    def n_tokens(self) -> int:
        """Columns."""
        return int(self.sizes.sum())


@dataclass(frozen=True)
class Prefixes:
    """The samples of a batch sorted by their tokens.

    Attributes:
        first: (S + 1,) the number of each trajectory's first sample, and of all samples.
        sizes: (K,) tokens of each sample.
        rank: (K,) the place of each sample in the order.
        shared: (K,) for each place in the order how many first tokens that sample shares with the one before; 0 if
            fewer than `LEAST_SHARED`.
    """

    first: NDArray[np.int64]
    sizes: NDArray[np.int64]
    rank: NDArray[np.int64]
    shared: NDArray[np.int64]

    @classmethod
    def of(cls, token_ids: Tensor, sample_starts: Tensor, offsets: Tensor) -> Prefixes:
        """Sort the samples of a batch.

        Args:
            token_ids: (N,) int64, not negative.
            sample_starts: (K,) int64, positions of the samples' first tokens.
            offsets: (S + 1,) int64, of the trajectories.
        """
        tokens = token_ids.numpy()
        starts = sample_starts.numpy()
        bounds = [*starts.tolist(), len(tokens)]
        samples = [tokens[start:end] for start, end in pairwise(bounds)]
        # Big-endian bytes of numbers that are not negative are ordered as the numbers.
        keys = [sample.astype(">i8").tobytes() for sample in samples]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        shared = [0, *(_shared(samples[a], samples[b]) for a, b in pairwise(order))]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return cls(
            first=np.searchsorted(starts, offsets.numpy()).astype(np.int64),
            sizes=np.array([len(sample) for sample in samples], np.int64),
            rank=rank,
            shared=np.array(shared[: len(order)], np.int64),
        )

    def trees(self, sequences: Sequence[int], max_tokens: int) -> list[Tree] | None:
        """Gather trajectories that share beginnings into trees of at most `max_tokens`, or of one trajectory.

        Args:
            sequences: numbers of trajectories, all different.
            max_tokens: of one tree.
        Returns:
            Every trajectory in one tree; None if that would save little.
        """
        found: list[_Growing] = []
        for s in self._in_order(sequences):
            alone = self._tokens(s)
            if found and (added := found[-1].added(s)) < alone and found[-1].n_tokens + added <= max_tokens:
                found[-1].add(s)
            else:
                found.append(_Growing(self))
                found[-1].add(s)
        total = sum(map(self._tokens, sequences))
        saved = total - sum(tree.n_tokens for tree in found)
        if not saved or saved < _LEAST_SAVING * total:
            return None
        return [Tree(tree.sequences, tree.n_tokens) for tree in found]

    def divide(self, sequences: Sequence[int], parts: int) -> list[list[int]] | None:
        """Divide trajectories into parts of nearly as many different tokens; those that share much stay together.

        Returns:
            For each part positions in `sequences`; some parts may be empty. None if the whole shares little.
        """
        if self.trees(sequences, max_tokens=2**62) is None:
            return None
        position = {s: number for number, s in enumerate(sequences)}
        order, whole = self._in_order(sequences), _Growing(self)
        costs = []
        for s in order:
            before = whole.n_tokens
            whole.add(s)
            costs.append(whole.n_tokens - before)
        divided: list[list[int]] = [[] for _ in range(parts)]
        part, spent, left = 0, 0, sum(costs)
        for s, cost in zip(order, costs, strict=True):
            # The part ends where half of the next trajectory would be beyond its share of what is left.
            if divided[part] and part + 1 < parts and spent + cost / 2 > left / (parts - part):
                part, left, spent = part + 1, left - spent, 0
                cost = self._tokens(s)  # it shares nothing with another part
            divided[part].append(position[s])
            spent += cost
        return divided

    def forest(self, sequences: Sequence[int]) -> Forest:
        """Put trajectories into a row, depth first: after each segment come those that continue it.

        Args:
            sequences: numbers of trajectories.
        """
        numbers = [number for s in sequences for number in range(self.first[s], self.first[s + 1])]
        order = sorted(range(len(numbers)), key=lambda i: int(self.rank[numbers[i]]))
        chains: list[_Chain] = []
        path: list[tuple[int, int]] = []  # the chains that make up the last sample, and how far each is part of it
        paths: list[list[tuple[int, int]]] = [[] for _ in numbers]
        columns = 0
        for n, i in enumerate(order):
            number = numbers[i]
            common = self._between(*(int(self.rank[numbers[j]]) for j in (order[n - 1], i))) if n else 0
            while path and chains[path[-1][0]].depth >= common:
                path.pop()
            parent = -1
            if path:
                parent = path[-1][0]
                path[-1] = (parent, common)
                chains[parent].cuts.add(common)
            if self.sizes[number] > common:
                chains.append(_Chain(columns, common, int(self.sizes[number]), parent))
                columns += chains[-1].end - common
                path.append((len(chains) - 1, chains[-1].end))
            paths[i] = list(path)
        starts: list[int] = []
        sizes: list[int] = []
        parents: list[int] = []
        segment_at: dict[tuple[int, int], int] = {}  # by chain and the depth at which the segment ends
        for number, chain in enumerate(chains):
            above = segment_at.get((chain.parent, chain.depth), -1)
            bounds = [chain.depth, *sorted(chain.cuts - {chain.end}), chain.end]
            for begin, end in pairwise(bounds):
                segment_at[number, end] = len(starts)
                parents.append(above)
                above = len(starts)
                starts.append(chain.column + begin - chain.depth)
                sizes.append(end - begin)
        places = [
            torch.arange(chains[c].column, chains[c].column + until - chains[c].depth)
            for of_sample in paths
            for c, until in of_sample
        ]
        return Forest(torch.cat(places), *(torch.tensor(each, dtype=torch.int64) for each in (starts, sizes, parents)))

    def _in_order(self, sequences: Sequence[int]) -> list[int]:
        """Trajectories sorted by the tokens of their first samples."""
        return sorted(sequences, key=lambda s: int(self.rank[self.first[s]]))

    def _tokens(self, sequence: int) -> int:
        return int(self.sizes[self.first[sequence] : self.first[sequence + 1]].sum())

    def _between(self, a: int, b: int) -> int:
        """First tokens that two samples share, by their places in the order, the first before the second."""
        return int(self.shared[a + 1 : b + 1].min())


@dataclass
class _Chain:
    """Tokens that a sample adds to a row.

    Attributes:
        column: of the first.
        depth, end: tokens of the sample before the chain, and up to its end.
        parent: the chain in which the sample before it is left; -1 for none.
        cuts: depths at which other samples leave this one.
    """

    column: int
    depth: int
    end: int
    parent: int
    cuts: set[int] = field(default_factory=set)


@dataclass
class _Growing:
    """A tree to which trajectories are added."""

    prefixes: Prefixes
    sequences: list[int] = field(default_factory=list)
    n_tokens: int = 0
    _ranks: list[int] = field(default_factory=list)

    def added(self, sequence: int) -> int:
        """How many tokens a trajectory would add, if its samples shared nothing among themselves."""
        ranks = self.prefixes.rank[self.prefixes.first[sequence] : self.prefixes.first[sequence + 1]].tolist()
        return self.prefixes._tokens(sequence) - sum(map(self._common, ranks))  # noqa: SLF001

    def add(self, sequence: int) -> None:
        """Add a trajectory."""
        for number in range(self.prefixes.first[sequence], self.prefixes.first[sequence + 1]):
            rank = int(self.prefixes.rank[number])
            self.n_tokens += int(self.prefixes.sizes[number]) - self._common(rank)
            insort(self._ranks, rank)
        self.sequences.append(sequence)

    def _common(self, rank: int) -> int:
        """The most that a sample shares with one in the tree: with one of its neighbours in the order."""
        at = bisect_left(self._ranks, rank)
        below = self.prefixes._between(self._ranks[at - 1], rank) if at else 0  # noqa: SLF001
        above = self.prefixes._between(rank, self._ranks[at]) if at < len(self._ranks) else 0  # noqa: SLF001
        return max(below, above)


def _shared(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    common = int(different[0]) if len(different) else size
    return common if common >= LEAST_SHARED else 0
