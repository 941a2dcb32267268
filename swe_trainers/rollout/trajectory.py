"""The record of one episode as the policy experienced it, and files of such records.

Token ids are kept as sampled and never re-tokenised. A file holds one JSON object per line; behavioural cloning and
`swe-train replay-batch` read it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swe_trainers.errors import ConfigurationError
from swe_trainers.files import replacing

__all__ = ["Fork", "Trajectory", "Turn", "read_trajectories", "write_trajectories"]

_ARRAYS = {"token_ids": np.int64, "action_mask": np.bool_, "rollout_logprobs": np.float32, "rewards": np.float32}


@dataclass(frozen=True)
class Turn:
    """One turn as text.

    Attributes:
        observation: what the policy read before it acted.
        action: what it wrote.
        reward: the environment's reward for the action.
        start, end: the action's tokens are `token_ids[start:end]`.
        notes: what the engine reports about the action: why it ended; from a chat endpoint also token counts.
    """

    observation: str
    action: str
    reward: float
    start: int
    end: int
    notes: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Fork:
    """A state of a tree from which several episodes continue with actions of their own.

    Attributes:
        turn: the first turn that differs, from 0.
        node: a number that episodes of one group have in common exactly if they share this state.
    """

    turn: int
    node: int


@dataclass(frozen=True)
class Trajectory:
    """One episode.

    Every array has T entries and is indexed by the token it refers to: `rollout_logprobs[t]` is
    log p(token t | tokens < t). The arrays of an episode played by a chat endpoint are empty.

    Attributes:
        token_ids: (T,) int64: prompt, actions as sampled (with the stop token), observations. If the episode was
            truncated, the last observation is included, for the value after the last action.
        action_mask: (T,) bool, True for tokens that the policy sampled.
        rollout_logprobs: (T,) float32, under the distribution that was sampled from; 0 where `action_mask` is False.
        rewards: (T,) float32, each turn's reward on its last action token.
        terminated: the environment ended the episode. truncated: a limit ended it (the return continues: bootstrap).
        valid: False if the infrastructure failed; such an episode is counted and excluded from training.
        failure_reason: why it is invalid, else "". failure_traceback: of what the environment raised, else "".
        turns: the same episode as text.
        info: the last `info` of the environment, as far as JSON can hold it.
        sample_starts: positions in `token_ids` at which a new context begins because the history was shortened. Each
            sample holds exactly what the policy read, earlier actions included; an action counts only in the sample in
            which it was sampled. Tokens of one sample do not see those of another; rewards run through all of them.
        sample_conversations: for each sample the conversation that it is part of, from 0; empty where the environment
            is no agent program, whose requests are `info["messages"]`.
        sample_causes: for each of them why it begins, see `conversations.CAUSES`.
        forks: in a tree, the forks between the start and this episode's end.
        group: episodes with the same group started from the same state.
        seed: the reset seed.
        weight_versions: (T,) the number of updates after which the weights that sampled each token were sent to the
            engine; -1 where `action_mask` is False. Empty if the policy's own weights sampled them.
        allowed: (T,) which of `allowed_sets` each token was sampled from; −1 where the policy could sample any token,
            and where `action_mask` is False. Empty if it always could.
        allowed_sets: token ids in ascending order: the different sets, of which a game has few.
        end_reason: "" if the environment ended the episode; `max_turns`, `tokens` or `time` for the limit that did;
            `environment` or `engine` for the part that failed.
    """

    token_ids: NDArray[np.int64]
    action_mask: NDArray[np.bool_]
    rollout_logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: bool
    truncated: bool
    valid: bool = True
    failure_reason: str = ""
    failure_traceback: str = ""
    turns: tuple[Turn, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    sample_starts: tuple[int, ...] = (0,)
    sample_conversations: tuple[int, ...] = ()
    sample_causes: tuple[str, ...] = ()
    forks: tuple[Fork, ...] = ()
    group: int = 0
    seed: int | None = None
    weight_versions: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()
    allowed_sets: tuple[tuple[int, ...], ...] = ()
    end_reason: str = ""


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Write trajectories to a file, atomically; float32 numbers read back exactly.

    Raises:
        ConfigurationError: the file cannot be written, or an `info` holds what JSON cannot.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
            for trajectory in trajectories:
                row = {each.name: getattr(trajectory, each.name) for each in fields(Trajectory)}
                row |= {name: row[name].tolist() for name in _ARRAYS}
                row |= {name: [asdict(item) for item in row[name]] for name in ("turns", "forks")}
                row["info"] = dict(trajectory.info)
                row["allowed_sets"] = [_packed(tokens) for tokens in trajectory.allowed_sets]
                file.write(json.dumps(row, allow_nan=False) + "\n")  # in ASCII: UTF-8 has no lone surrogates
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path}: trajectories not written: {error}") from error


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read a file of `write_trajectories`.

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
            row = json.loads(line)
            row |= {name: np.array(row[name], dtype=dtype) for name, dtype in _ARRAYS.items()}
            row["turns"] = tuple(Turn(**turn) for turn in row["turns"])
            row["forks"] = tuple(Fork(**fork) for fork in row.get("forks", ()))
            row["sample_starts"] = tuple(row.get("sample_starts", (0,)))
            row["sample_conversations"] = tuple(row.get("sample_conversations", ()))
            row["sample_causes"] = tuple(row.get("sample_causes", ()))
            row["weight_versions"] = tuple(row.get("weight_versions", ()))
            row["allowed"] = tuple(row.get("allowed", ()))
            row["allowed_sets"] = tuple(map(_unpacked, row.get("allowed_sets", ())))
            found.append(Trajectory(**row))
        except (ValueError, TypeError, KeyError, OverflowError, zlib.error) as error:
            raise ConfigurationError(
                f"{path}, line {number}: no trajectory: {type(error).__name__}: {error}"
            ) from error
    return found


_LONG_SET = 256
"""A set of more tokens is written as bits: a grammar may allow most of a vocabulary."""


def _packed(tokens: Sequence[int]) -> list[int] | str:
    if len(tokens) <= _LONG_SET:
        return list(tokens)
    bits = np.zeros(max(tokens) + 1, dtype=np.bool_)
    bits[list(tokens)] = True
    return base64.b64encode(zlib.compress(np.packbits(bits).tobytes())).decode("ascii")


def _unpacked(written: Sequence[int] | str) -> tuple[int, ...]:
    if not isinstance(written, str):
        return tuple(written)
    bits = np.frombuffer(zlib.decompress(base64.b64decode(written)), dtype=np.uint8)
    return tuple(np.flatnonzero(np.unpackbits(bits)).tolist())
