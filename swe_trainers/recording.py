"""Trajectories in a file: one JSON object a line, what cloning learns from and what a saved batch replays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from swe_trainers.errors import ConfigurationError
from swe_trainers.rollout.trajectory import Fork, Trajectory, Turn
from swe_trainers.writing import replacing

__all__ = ["read_trajectories", "write_trajectories"]

_ARRAYS = {"token_ids": np.int64, "action_mask": np.bool_, "rollout_logprobs": np.float32, "rewards": np.float32}


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Write trajectories, whole or not at all; float32 numbers read back exactly.

    Raises:
        ConfigurationError: the place cannot be written, or an `info` holds what JSON cannot.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
            for trajectory in trajectories:
                file.write(json.dumps(_to_json(trajectory), ensure_ascii=False, allow_nan=False) + "\n")
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: trajectories not written: {error}") from error


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read what `write_trajectories` wrote.

    Raises:
        ConfigurationError: the file cannot be read, or a line is no trajectory; the line is named.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            lines = list(file)  # not splitlines: a text may hold other characters that it takes for line ends
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: no trajectories can be read: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_from_json(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigurationError(
                f"{path}, line {number}: no trajectory: {type(error).__name__}: {error}"
            ) from error
    return found


def _to_json(trajectory: Trajectory) -> dict[str, Any]:
    plain = {field.name: getattr(trajectory, field.name) for field in fields(Trajectory)}
    plain |= {name: plain[name].tolist() for name in _ARRAYS}
    listed = {name: [asdict(item) for item in plain[name]] for name in ("turns", "forks")}
    return plain | listed | {"info": dict(trajectory.info)}


def _from_json(row: dict[str, Any]) -> Trajectory:
    arrays: dict[str, Any] = {name: np.array(row[name], dtype=dtype) for name, dtype in _ARRAYS.items()}
    listed = {
        "turns": tuple(Turn(**turn) for turn in row["turns"]),
        "forks": tuple(Fork(**fork) for fork in row.get("forks", ())),
        "sample_starts": tuple(row.get("sample_starts", (0,))),
        "weight_versions": tuple(row.get("weight_versions", ())),
    }
    return Trajectory(**{**row, **arrays, **listed})
