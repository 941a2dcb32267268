"""Some episodes of a run as text, recorded during training for its report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_trainers.files import write_whole
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Examples", "read_examples"]

_KEPT_UPDATES = 64
_TEXT, _TURNS = 3000, 40


class Examples:
    """`examples.jsonl` of a run: the best, the median and the worst valid episode of some updates, by return.

    In a long run the kept updates become fewer, evenly spaced: the file stays small.

    Args:
        path: the file; existing rows are kept.
        updates: number of updates that the run has made; rows of later updates are dropped, since a run that resumes
            from a checkpoint plays them again.
    """

    def __init__(self, path: Path, *, updates: int = 0) -> None:
        self._path = path
        self._rows = [row for row in read_examples(path) if row["update"] < updates]
        self._every = 1
        self._thin()

    def wants(self, update: int) -> bool:
        """Whether `keep` keeps episodes of this update."""
        return update % self._every == 0

    def keep(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        """Keep three episodes of an update.

        Args:
            update: its number, from 0.
            trajectories: its episodes.
        Raises:
            OSError: they cannot be written.
        """
        valid = sorted((t for t in trajectories if t.valid and t.turns), key=lambda t: float(t.rewards.sum()))
        if not valid or not self.wants(update):
            return
        chosen = {"worst": valid[0], "middle": valid[len(valid) // 2], "best": valid[-1]}
        self._rows += [{"update": update, "which": which, **_row(t)} for which, t in chosen.items()]
        self._thin()
        write_whole(self._path, "".join(json.dumps(row) + "\n" for row in self._rows))

    def _thin(self) -> None:
        while len({row["update"] for row in self._rows}) > _KEPT_UPDATES:
            self._every *= 2
            self._rows = [row for row in self._rows if self.wants(row["update"])]


def read_examples(path: Path) -> list[dict[str, Any]]:
    """The rows of an `examples.jsonl`; empty if there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _row(trajectory: Trajectory) -> Mapping[str, Any]:
    turns = [
        {"observation": _short(turn.observation), "action": _short(turn.action), "reward": turn.reward}
        for turn in trajectory.turns
    ]
    half = _TURNS // 2
    return {
        "return": float(trajectory.rewards.sum()),
        "seed": trajectory.seed,
        "end_reason": trajectory.info.get("end_reason"),
        "terminated": trajectory.terminated,
        "truncated": trajectory.truncated,
        "n_turns": len(turns),
        "turns": turns if len(turns) <= _TURNS else [*turns[:half], *turns[-half:]],
    }


def _short(text: str) -> str:
    omitted = len(text) - _TEXT
    return text if omitted <= 0 else f"{text[: _TEXT // 2]}\n[… {omitted} characters …]\n{text[-_TEXT // 2 :]}"
