"""Defects of the trainer on purpose: a test that still passes with them proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from swe_trainers.algorithms.policy_gradient import PolicyGradient
from swe_trainers.learning.batch import Batch
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["MUTANTS", "broken"]


@contextlib.contextmanager
def broken(mutant: str) -> Iterator[None]:
    """Apply one of `MUTANTS` during a run; "" applies none."""
    with MUTANTS[mutant]() if mutant else contextlib.nullcontext():
        yield


def _flipped() -> Any:
    """Advantages with the wrong sign."""
    right = PolicyGradient.token_loss

    def flipped(self: PolicyGradient, tokens: Any, experience: Any, kl_coefficient: float) -> Any:
        return right(self, tokens, replace(experience, advantages=-experience.advantages), kl_coefficient)

    return patch.object(PolicyGradient, "token_loss", flipped)


def _moved(move: Any) -> Any:
    right = Batch.of

    def of(cls: type[Batch], played: Sequence[Trajectory]) -> Batch:
        return played if isinstance(played, Batch) else right([move(trajectory) for trajectory in played])

    return patch.object(Batch, "of", classmethod(of))


def _shift(trajectory: Trajectory) -> Trajectory:
    names = ("action_mask", "rollout_logprobs", "rewards")
    return replace(trajectory, **{name: np.roll(getattr(trajectory, name), -1) for name in names})


def _displace(trajectory: Trajectory) -> Trajectory:
    ends, rewards = [turn.end - 1 for turn in trajectory.turns], np.zeros_like(trajectory.rewards)
    rewards[ends[:-1]] = trajectory.rewards[ends[1:]]
    return replace(trajectory, rewards=rewards)


def _end(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, terminated=True, truncated=False)


MUTANTS = {
    "flipped": _flipped,
    "shifted": lambda: _moved(_shift),  # masks, log-probabilities and rewards one token too early
    "displaced": lambda: _moved(_displace),  # each reward one turn too early
    "no_bootstrap": lambda: _moved(_end),  # truncated episodes treated as terminated
}
