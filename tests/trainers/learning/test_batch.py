from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_trainers.errors import ShapeError
from swe_trainers.learning.batch import Batch, balanced, lay_out
from tests.trainers.learning.tiny import random_trajectories, trajectory


@given(count=st.integers(1, 9), seed=st.integers(0, 999), budget=st.integers(1, 200), pack=st.booleans())
@settings(deadline=None, max_examples=60)
def test_rows_contain_every_token_once_and_index_the_state_before_each_action(count, seed, budget, pack):
    trajectories = random_trajectories(count, seed)
    batch = Batch.of(trajectories)
    chosen = torch.randperm(count)[: max(1, count - 2)]
    microbatches = lay_out(batch, chosen, max_tokens=budget, pack=pack)
    assert sorted(s for rows in microbatches for s in rows.sequences.tolist()) == sorted(chosen.tolist())
    seen = []
    for rows in microbatches:
        b, width = rows.input_ids.shape
        assert b * width <= budget or len(rows.sequences) == 1
        assert not pack or (rows.segment_ids > 0).all()  # nothing is padding
        flat_ids, flat_positions = rows.input_ids.flatten(), rows.position_ids.flatten()
        for place, s in zip(rows.last.tolist(), rows.sequences.tolist(), strict=True):
            ids = torch.from_numpy(trajectories[s].token_ids)
            here = slice(place - len(ids) + 1, place + 1)
            assert torch.equal(flat_ids[here], ids)
            assert torch.equal(flat_positions[here], torch.arange(len(ids)))
            segment = rows.segment_ids.flatten()[here]
            assert segment.min() == segment.max() > 0
            assert (rows.segment_ids[place // width] == segment[0]).sum() == len(ids)
        assert int((rows.segment_ids > 0).sum()) == sum(len(trajectories[s].token_ids) for s in rows.sequences.tolist())
        assert torch.equal(flat_ids[rows.predictor + 1], batch.token_ids[rows.action_index])
        assert torch.equal(flat_positions[rows.predictor + 1], flat_positions[rows.predictor] + 1)
        seen += rows.action_index.tolist()
    in_chosen = torch.isin(batch.sequence_of_token, chosen) & batch.action_mask
    assert sorted(seen) == in_chosen.nonzero().flatten().tolist()


@given(count=st.integers(1, 6), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_padding_round_trip_is_the_identity(count, seed):
    batch = Batch.of(random_trajectories(count, seed))
    assert torch.equal(batch.unpad(batch.pad(batch.rewards)), batch.rewards)
    padded = batch.pad(batch.token_ids + 1)
    assert [(row > 0).sum().item() for row in padded] == batch.lengths.tolist()


@given(tenths=st.lists(st.integers(-9, 9), min_size=2, max_size=12), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_return_of_an_episode_does_not_depend_on_the_order_of_its_rewards(tenths, seed):
    def paid(rewards):
        placed = [number for reward in rewards for number in (0.0, reward)]
        return trajectory([1] * len(placed), [False, True] * len(rewards), placed)

    rewards = np.array(tenths) / 10
    one, other = (
        float(batch.total(batch.rewards))
        for batch in (Batch.of([paid(order)]) for order in (rewards, np.random.default_rng(seed).permutation(rewards)))
    )
    assert one == other


def test_packing_leaves_no_padding():
    lengths = [60, 9, 9, 9, 9, 9, 9, 3]
    batch = Batch.of([trajectory([1] * n, [False] + [True] * (n - 1)) for n in lengths])
    entries = {
        pack: sum(rows.input_ids.numel() for rows in lay_out(batch, torch.arange(8), max_tokens=10**6, pack=pack))
        for pack in (False, True)
    }
    assert entries == {False: 8 * 60, True: sum(lengths)}


def test_invalid_and_actionless_episodes_are_excluded_and_counted():
    good = trajectory([1, 2], [False, True], [0, 1])
    failed = trajectory([1, 2], [False, True], valid=False)
    silent = trajectory([1, 2], [False, False])
    batch = Batch.of([failed, good, silent])
    assert (batch.n_sequences, batch.n_excluded, batch.token_ids.tolist()) == (1, 2, [1, 2])
    assert Batch.of([failed]).n_sequences == 0


def test_malformed_trajectory_is_an_error_with_its_number():
    good = trajectory([1, 2, 3], [False, True, False], [0, 1, 0])
    short = dataclasses.replace(good, rewards=np.zeros(2, np.float32))
    unpredicted = trajectory([1, 2], [True, True])
    misplaced = trajectory([1, 2, 3], [False, True, False], [0, 0, 1])
    infinite = trajectory([1, 2], [False, True], [0, np.inf])
    for broken, message in [
        (short, "trajectory 1: rewards"),
        (unpredicted, "trajectory 1: its first token is an action"),
        (misplaced, "trajectory 1: the reward at token 2"),
        (infinite, "trajectory 1: a reward is not finite"),
    ]:
        with pytest.raises(ShapeError, match=message):
            Batch.of([good, broken])


@given(costs=st.lists(st.floats(0.1, 100), min_size=1, max_size=40), most=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_partition_contains_everything_once_and_is_balanced(costs, most):
    parts = math.ceil(len(costs) / most)
    divided = balanced(costs, parts, most=most)
    assert sorted(i for part in divided for i in part) == list(range(len(costs)))
    assert max(map(len, divided)) <= most
    free = balanced(costs, parts, most=len(costs))
    dearest = max(sum(costs[i] for i in part) for part in free)
    # The most expensive part was the cheapest before its last item, hence at most the mean of the others.
    assert dearest <= sum(costs) / parts + (1 - 1 / parts) * max(costs) + 1e-9


def test_packed_micro_batches_are_balanced():
    # Four long episodes, and twelve that fill four rows of three: expensive rows go to different micro-batches.
    lengths = [3000] * 4 + [1000] * 12
    batch = Batch.of([trajectory([1] * n, [False] + [True] * (n - 1)) for n in lengths])
    micro = lay_out(batch, torch.arange(16), max_tokens=6000, pack=True, attention_tokens=1000)
    assert len(micro) == 4
    assert [sorted(batch.lengths[rows.sequences].tolist()) for rows in micro] == [[1000, 1000, 1000, 3000]] * 4
