"""What is counted of played episodes: returns, lengths, what environments say of them, and the size of patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["environment_statistics", "episode_statistics", "staleness", "staleness_statistics"]


def episode_statistics(trajectories: Sequence[Trajectory], *, success_above: float | None = None) -> dict[str, float]:
    """Returns and lengths of played episodes; failed ones are counted, and left out of the means."""
    valid = [t for t in trajectories if t.valid]
    returns = np.array([t.rewards.sum(dtype=np.float64) for t in valid])
    statistics = {
        "return": float(returns.mean()) if valid else float("nan"),
        "turns": float(np.mean([len(t.turns) for t in valid])) if valid else float("nan"),
        "episodes": float(len(valid)),
        "failed": float(len(trajectories) - len(valid)),
    }
    if success_above is not None:
        statistics["success"] = float((returns > success_above).mean()) if valid else float("nan")
    return statistics


def environment_statistics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means over valid episodes of the numbers in their last `info`, and of the patches there.

    Args:
        trajectories: what was played.
    Returns:
        `length/…` of episodes in tokens and turns; `environment/KEY` for each number or truth value that an `info`
        holds, over the episodes that have it; `reward/PART` where `info["reward"]` names parts;
        `environment/end_reason/REASON` as shares; `patch/lines_added`, `patch/lines_removed`, `patch/files` and
        `patch/empty` where there is a `patch`.
    """
    valid = [t for t in trajectories if t.valid]
    found: dict[str, list[float]] = {}
    for t in valid:
        found.setdefault("length/tokens", []).append(float(len(t.token_ids)))
        found.setdefault("length/action_tokens", []).append(float(t.action_mask.sum()))
        found.setdefault("length/samples", []).append(float(len(t.sample_starts)))
        for key, value in t.info.items():
            if isinstance(value, (bool, int, float)) and np.isfinite(value):
                found.setdefault(f"environment/{key}", []).append(float(value))
        parts = t.info.get("reward")
        for key, value in parts.items() if isinstance(parts, Mapping) else ():
            found.setdefault(f"reward/{key}", []).append(float(value))
        if isinstance(t.info.get("patch"), str):
            for key, number in _patch_size(t.info["patch"]).items():
                found.setdefault(f"patch/{key}", []).append(number)
    statistics = {name: float(np.mean(values)) for name, values in found.items()}
    reasons = [str(t.info["end_reason"]) for t in valid if t.info.get("end_reason") is not None]
    shares = {f"environment/end_reason/{reason}": reasons.count(reason) / len(reasons) for reason in set(reasons)}
    longest = {"length/tokens_max": max(found["length/tokens"])} if valid else {}
    return dict(sorted({**statistics, **shares, **longest}.items()))


def staleness(trajectory: Trajectory, update: int) -> NDArray[np.int64]:
    """How many updates the weights that drew each action token were behind those that learn from it.

    Args:
        trajectory: whose `weight_versions` are known.
        update: the number of updates that had been done when it was learnt from.
    Returns:
        One number an action token; empty where the policy's own weights drew them.
    """
    if not trajectory.weight_versions:
        return np.zeros(0, dtype=np.int64)
    return update - np.array(trajectory.weight_versions, dtype=np.int64)[trajectory.action_mask]


def staleness_statistics(trajectories: Sequence[Trajectory], update: int) -> dict[str, float]:
    """The histogram of `staleness` over the action tokens of valid episodes.

    Returns:
        `staleness/mean`, `staleness/max`, and for each number that occurs the share of tokens, `staleness/share_N`.
    """
    behind = [staleness(t, update) for t in trajectories if t.valid]
    found = np.concatenate(behind) if behind else np.zeros(0, dtype=np.int64)
    if not len(found):
        return {}
    shares = {f"staleness/share_{n}": float(share) for n, share in enumerate(np.bincount(found) / len(found)) if share}
    return {"staleness/mean": float(found.mean()), "staleness/max": float(found.max()), **shares}


def _patch_size(patch: str) -> dict[str, float]:
    lines = patch.splitlines()
    return {
        "files": float(sum(line.startswith("diff --git ") for line in lines)),
        "lines_added": float(sum(line.startswith("+") and not line.startswith("+++ ") for line in lines)),
        "lines_removed": float(sum(line.startswith("-") and not line.startswith("--- ") for line in lines)),
        "empty": float(not patch.strip()),
    }
