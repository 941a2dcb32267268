"""A policy small enough to enumerate, and trajectories to feed it: real parts of the smallest size."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from swe_trainers.rollout.trajectory import Trajectory


class TinyPolicy(nn.Module):
    """One head of causal attention over embeddings with positions; segments do not attend to each other."""

    def __init__(self, vocabulary=11, width=8, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(256, width)
            self.mix = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.head = nn.Linear(width, vocabulary)
            self.value = nn.Linear(width, 1)

    def trunk_hidden(self, input_ids, position_ids, segment_ids):
        x = self.tokens(input_ids) + self.positions(position_ids)
        q, k, v = self.mix(x).chunk(3, dim=-1)
        length = input_ids.shape[1]
        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        visible = same & torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(1, 2)).masked_fill(~visible, -torch.inf)
        return x + torch.tanh(self.out(scores.softmax(-1) @ v))

    @property
    def unembedding(self):
        return self.head.weight, self.head.bias

    def values(self, hidden):
        return self.value(hidden).squeeze(-1)


def trajectory(tokens, mask, rewards=None, *, logprobs=None, terminated=True, group=0, valid=True):
    """A trajectory from plain lists."""
    length = len(tokens)
    return Trajectory(
        token_ids=np.array(tokens, dtype=np.int64),
        action_mask=np.array(mask, dtype=np.bool_),
        rollout_logprobs=np.zeros(length, np.float32) if logprobs is None else np.array(logprobs, np.float32),
        rewards=np.zeros(length, np.float32) if rewards is None else np.array(rewards, np.float32),
        terminated=terminated,
        truncated=not terminated,
        valid=valid,
        failure_reason="" if valid else "the machine failed",
        group=group,
    )


def random_trajectories(count, seed=0, vocabulary=11, longest=24):
    """Trajectories of 1 to 4 turns with rewards on each turn's last action token."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(count):
        mask, rewards = [], []
        for _ in range(random.integers(1, 5)):
            observed, acted = random.integers(1, longest // 6 + 2), random.integers(1, longest // 8 + 2)
            mask += [False] * observed + [True] * acted
            rewards += [0.0] * (observed + acted - 1) + [float(random.normal())]
        terminated = bool(random.integers(2))
        if not terminated:
            mask, rewards = [*mask, False], [*rewards, 0.0]
        tokens = random.integers(vocabulary, size=len(mask)).tolist()
        made.append(trajectory(tokens, mask, rewards, terminated=terminated, group=number // 2))
    return made
