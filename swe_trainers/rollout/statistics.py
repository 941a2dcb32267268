"""Statistics of episodes: returns, lengths, numbers in their `info`, and the size of patches."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swe_trainers.rollout.conversations import CAUSES
from swe_trainers.rollout.trajectory import Trajectory

__all__ = [
    "PatchSize",
    "environment_statistics",
    "episode_statistics",
    "patch_size",
    "staleness",
    "staleness_statistics",
]

_GREATEST = sys.float_info.max
_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")


def episode_statistics(trajectories: Sequence[Trajectory], *, success_above: float | None = None) -> dict[str, float]:
    """Means of returns and lengths over valid episodes; invalid ones are counted."""
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
        trajectories: the episodes.
    Returns:
        `length/…` of episodes in tokens and turns; of agent programs `conversations` and, for each cause,
        `conversations/begun_by/CAUSE`, the samples of an episode that it began; `environment/KEY` for each number or
        bool in an `info`, over the episodes that have it; `reward/PART` where `info["reward"]` names parts;
        `environment/end_reason/REASON` as fractions; `patch/lines_added`, `patch/lines_removed`, `patch/files` and
        `patch/empty` where there is a `patch`.
    """
    valid = [t for t in trajectories if t.valid]
    found: dict[str, list[float]] = {}
    for t in valid:
        found.setdefault("length/tokens", []).append(float(len(t.token_ids)))
        found.setdefault("length/action_tokens", []).append(float(t.action_mask.sum()))
        found.setdefault("length/samples", []).append(float(len(t.sample_starts)))
        if t.sample_conversations:
            found.setdefault("conversations", []).append(float(len(set(t.sample_conversations))))
            for cause in CAUSES:
                if cause != "first":
                    found.setdefault(f"conversations/begun_by/{cause}", []).append(float(t.sample_causes.count(cause)))
        for key, value in t.info.items():
            if isinstance(value, (bool, int, float)) and abs(value) <= _GREATEST:  # neither infinite nor NaN
                found.setdefault(f"environment/{key}", []).append(float(value))
        parts = t.info.get("reward")
        for key, value in parts.items() if isinstance(parts, Mapping) else ():
            found.setdefault(f"reward/{key}", []).append(float(value))
        if isinstance(t.info.get("patch"), str):
            size = patch_size(t.info["patch"])
            counts = {"files": size.files, "lines_added": size.lines_added, "lines_removed": size.lines_removed}
            for key, number in {**counts, "empty": not t.info["patch"].strip()}.items():
                found.setdefault(f"patch/{key}", []).append(float(number))
    statistics = {name: float(np.mean(values)) for name, values in found.items()}
    reasons = [str(t.info["end_reason"]) for t in valid if t.info.get("end_reason") is not None]
    shares = {f"environment/end_reason/{reason}": reasons.count(reason) / len(reasons) for reason in set(reasons)}
    longest = {"length/tokens_max": max(found["length/tokens"])} if valid else {}
    return dict(sorted({**statistics, **shares, **longest}.items()))


def staleness(trajectory: Trajectory, update: int) -> NDArray[np.int64]:
    """The age in updates of the weights that sampled each action token.

    Args:
        trajectory: with `weight_versions`.
        update: number of updates done when it is trained on.
    Returns:
        One number per action token; empty if the policy's own weights sampled them.
    """
    if not trajectory.weight_versions:
        return np.zeros(0, dtype=np.int64)
    return update - np.array(trajectory.weight_versions, dtype=np.int64)[trajectory.action_mask]


def staleness_statistics(trajectories: Sequence[Trajectory], update: int) -> dict[str, float]:
    """The histogram of `staleness` over the action tokens of valid episodes.

    Returns:
        `staleness/mean`, `staleness/max`, and for each age N that occurs the fraction of tokens, `staleness/share_N`.
    """
    behind = [staleness(t, update) for t in trajectories if t.valid]
    found = np.concatenate(behind) if behind else np.zeros(0, dtype=np.int64)
    if not len(found):
        return {}
    shares = {f"staleness/share_{n}": float(share) for n, share in enumerate(np.bincount(found) / len(found)) if share}
    return {"staleness/mean": float(found.mean()), "staleness/max": float(found.max()), **shares}


@dataclass(frozen=True)
class PatchSize:
    """What a patch changes.

    Attributes:
        files: how many.
        lines_added, lines_removed: a changed line is one of each.
    """

    files: int
    lines_added: int
    lines_removed: int


def patch_size(patch: str) -> PatchSize:
    """The size of a unified diff.

    The header of a hunk states its number of lines. So a removed line `-- x`, which the diff contains as `--- x`, is
    not taken for the name of a file. Lines outside of hunks do not count as changes.
    """
    files = added = removed = 0
    old = new = 0  # remaining lines of the hunk
    for line in patch.split("\n"):
        if old > 0 or new > 0:
            kind = line[:1]
            added, removed = added + (kind == "+"), removed + (kind == "-")
            old, new = old - (kind in ("-", " ", "")), new - (kind in ("+", " ", ""))
        elif header := _HUNK.match(line):
            old, new = (1 if count is None else int(count) for count in header.groups())
        elif line.startswith("diff --git "):
            files += 1
    return PatchSize(files, added, removed)
