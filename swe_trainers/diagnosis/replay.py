"""One update on a saved batch by several algorithms, each from the same weights, for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from swe_trainers.algorithms.algorithm import Algorithm
from swe_trainers.errors import ConfigurationError
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["replay_batch"]


def replay_batch(
    model: LanguageModel, trajectories: Sequence[Trajectory], algorithms: Mapping[str, Algorithm], *, seed: int = 0
) -> dict[str, dict[str, float]]:
    """One update by each algorithm on the same episodes.

    Args:
        model: the policy; it does not change.
        trajectories: the batch.
        algorithms: by the names of the result's columns.
        seed: of the shuffling, the same for all.
    Returns:
        For each name the metrics of its update, `update/norm`, the length of the step in the weights, and for each
        other algorithm `update/cosine_with/OTHER`, the cosine of the angle between the two steps.
    Raises:
        ConfigurationError: no trajectory is valid and has an action.
    """
    if not any(t.valid and t.action_mask.any() for t in trajectories):
        raise ConfigurationError(f"none of {len(trajectories)} episodes is valid and has an action")
    measured: dict[str, dict[str, float]] = {}
    steps: dict[str, Tensor] = {}
    for name, algorithm in algorithms.items():
        # Without a warm-up, which would shorten the first update, and without sampling further episodes.
        changes: dict[str, Any] = {"warmup_updates": 0}
        if getattr(algorithm, "resampling", 0):
            changes["resampling"] = 0
        algorithm = replace(algorithm, **changes)
        policy = model.copy()
        learner = algorithm.start(policy, seed=seed)
        before = _flat(policy)
        measured[name] = algorithm.update(learner, trajectories)
        steps[name] = _flat(policy) - before
        measured[name]["update/norm"] = float(steps[name].norm())
    for one, other in combinations(algorithms, 2):
        cosine = float(torch.nn.functional.cosine_similarity(steps[one], steps[other], dim=0))
        measured[one][f"update/cosine_with/{other}"] = measured[other][f"update/cosine_with/{one}"] = cosine
    return measured


def _flat(model: LanguageModel) -> Tensor:
    return torch.cat([p.detach().float().cpu().flatten() for p in model.parameters() if p.requires_grad])
