"""Each cause of a difference between engine and trainer is produced and must be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from swe_trainers.diagnosis.mismatch import find_mismatch
from swe_trainers.engines.sampling import Sampling
from swe_trainers.errors import TrainerError
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Trajectory
from tests.trainers.rollout.test_play import MODEL, Counting, play


def played(sampling: Sampling | None = None, model: LanguageModel = MODEL) -> list[Trajectory]:
    return play([Counting(), Counting()], range(12), sampling=sampling or Sampling(), model=model)


def shifted(trajectory: Trajectory) -> Trajectory:
    moved = np.roll(trajectory.rollout_logprobs, 1)
    return replace(trajectory, rollout_logprobs=moved)


def read_again(trajectory: Trajectory) -> Trajectory:
    """As if the engine had read other observations after the first turn than were recorded."""
    ids = trajectory.token_ids.copy()
    if len(trajectory.turns) > 1:
        start = trajectory.turns[0].end
        where = ~trajectory.action_mask & (np.arange(len(ids)) >= start)
        ids[where] = 5
    return replace(trajectory, token_ids=ids)


def stale() -> LanguageModel:
    other = MODEL.copy()
    with torch.no_grad():
        for number, parameter in enumerate(other.causal_lm.parameters()):
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    return other


CASES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "none": lambda: (played(), {}),
    "temperature": lambda: (played(Sampling(0.7)), {}),
    "truncation": lambda: ([replace(t, allowed=(), allowed_sets=()) for t in played(Sampling(top_p=0.8))], {}),
    "none where what was kept is recorded": lambda: (played(Sampling(top_p=0.8)), {}),
    "shift": lambda: ([shifted(t) for t in long_actions()], {}),
    "context": lambda: ([read_again(t) for t in played()], {}),
    "weights": lambda: (played(model=stale()), {}),
    "none at its temperature": lambda: (played(Sampling(0.7)), {"temperature": 0.7}),
}


def long_actions() -> list[Trajectory]:
    return play([Counting()], range(0, 16, 4), max_new_tokens=40, size=200)


@pytest.mark.parametrize("name", CASES)
def test_each_cause_of_a_logprob_gap_is_found(name: str) -> None:
    trajectories, options = CASES[name]()
    found = find_mismatch(MODEL, trajectories, **options)
    assert found.cause == name.split(maxsplit=1)[0], found.report()
    assert found.tokens == sum(int(t.action_mask.sum()) for t in trajectories)
    if found.cause != "none":
        worst = found.worst[0]
        assert abs(worst.engine - worst.trainer) == pytest.approx(found.largest)
        episode = trajectories[worst.episode]
        turn = episode.turns[worst.turn]
        assert turn.start <= worst.place < turn.end
        assert episode.rollout_logprobs[worst.place] == pytest.approx(worst.engine)
    assert found.cause in found.report()


def test_rounding_in_bfloat16_is_distinguished_from_a_defect() -> None:
    narrow = MODEL.copy().to(torch.bfloat16)
    trajectories = played(model=narrow)
    found = find_mismatch(narrow, trajectories)
    assert found.cause in ("none", "rounding")


def test_without_valid_actions_comparing_is_an_error() -> None:
    with pytest.raises(TrainerError, match="none of 1 episodes"):
        find_mismatch(MODEL, [replace(played()[0], valid=False)])
