"""An episode while it is being played: what the trajectory is made of, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from swe_trainers.engines.protocol import Sample
from swe_trainers.rollout.history import Exchange, Prompt
from swe_trainers.rollout.trajectory import Fork, Trajectory, Turn

__all__ = ["Episode"]


@dataclass
class Episode:
    """The growing record of one episode.

    Attributes:
        seed, group: as the trajectory will have them.
        env: the number of the environment that plays it.
        stream: what fixes the episode's random numbers. random: those that are still to come.
        room: how many tokens a context may have.
        slot: where the engine keeps its context; None before the first request.
        moved: whether the context is no longer what the slot holds.
        closed: whether the last action ended with a stop token of its own.
        prompt, past: what a shortened history is made of.
    """

    seed: int | None
    group: int
    env: int
    stream: tuple[int, ...]
    random: np.random.Generator
    room: int
    slot: int | None = None
    moved: bool = False
    closed: bool = False
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    action_mask: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    sample_starts: list[int] = field(default_factory=lambda: [0])
    forks: list[Fork] = field(default_factory=list)
    prompt: Prompt | None = None
    past: list[Exchange] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    observation: str = ""

    @property
    def context(self) -> list[int]:
        """What the policy reads now."""
        return self.token_ids[self.sample_starts[-1] :]

    @property
    def context_size(self) -> int:
        """How many tokens that are."""
        return len(self.token_ids) - self.sample_starts[-1]

    def copy(self) -> Episode:
        """The episode as it is now; neither changes with the other."""
        lists: dict[str, Any] = {
            f.name: list(value) for f in fields(self) if isinstance(value := getattr(self, f.name), list)
        }
        return replace(self, **lists)

    def answered(self, observation: str, ids: Sequence[int]) -> None:
        """Remember how the last action was answered, for the day when the history is shortened."""
        turn = self.turns[-1]
        self.past.append(Exchange(self.token_ids[turn.start : turn.end], self.closed, observation, ids))

    def begin_anew(self, observation: str, ids: Sequence[int]) -> None:
        """Put another context in the place of the one so far: a new sample begins."""
        self.sample_starts.append(len(self.token_ids))
        self.moved = True
        self.observe(observation, ids)

    def learn_of(self, info: Mapping[str, Any]) -> None:
        """Take up what the environment says now; parts of its reward, as `info["reward"]`, add up over the turns."""
        parts = info.get("reward")
        if self.turns and isinstance(parts, Mapping):
            names = [*self.reward_parts, *(name for name in parts if name not in self.reward_parts)]
            self.reward_parts = {name: self.reward_parts.get(name, 0.0) + parts.get(name, 0.0) for name in names}
        self.info = {**info, "reward": self.reward_parts} if self.reward_parts else info

    def observe(self, observation: str, ids: Sequence[int]) -> None:
        """Append what the policy reads."""
        self.observation = observation
        self._append(ids, [0.0] * len(ids), chosen=False)
        self.versions.extend([-1] * len(ids))

    def act(self, sample: Sample, text: str) -> None:
        """Append what the policy wrote."""
        start = len(self.token_ids)
        self._append(sample.token_ids, sample.logprobs, chosen=True)
        self.versions.extend(sample.versions or [-1] * len(sample.token_ids))
        self.closed = sample.end == "stop"
        self.turns.append(Turn(self.observation, text, 0.0, start, len(self.token_ids)))

    def reward(self, amount: float) -> None:
        """Put a reward on the last action's last token."""
        turn = self.turns[-1]
        self.turns[-1] = Turn(turn.observation, turn.action, amount, turn.start, turn.end)
        self.rewards[turn.end - 1] = amount

    def trajectory(self, failure_reason: str) -> Trajectory:
        """The finished record.

        Args:
            failure_reason: why the episode is not valid; else "", and the environment's own word counts.
        """
        info = _writable(self.info)
        valid = not failure_reason and self.info.get("valid") is not False
        if not valid and not failure_reason:
            failure_reason = str(self.info.get("failure_reason") or "the environment called the episode invalid")
        return Trajectory(
            token_ids=np.array(self.token_ids, dtype=np.int64),
            action_mask=np.array(self.action_mask, dtype=np.bool_),
            rollout_logprobs=np.array(self.logprobs, dtype=np.float32),
            rewards=np.array(self.rewards, dtype=np.float32),
            terminated=self.terminated,
            truncated=self.truncated,
            valid=valid,
            failure_reason=failure_reason,
            turns=tuple(self.turns),
            info=info,
            sample_starts=tuple(self.sample_starts),
            forks=tuple(self.forks),
            group=self.group,
            seed=self.seed,
            weight_versions=tuple(self.versions) if any(version >= 0 for version in self.versions) else (),
        )

    def _append(self, ids: Sequence[int], logprobs: Sequence[float], *, chosen: bool) -> None:
        self.token_ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.action_mask.extend([chosen] * len(ids))
        self.rewards.extend([0.0] * len(ids))


def _writable(info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that JSON can hold, numbers of numpy made plain."""
    kept: dict[str, Any] = {}
    for key, value in info.items():
        plain = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
        try:
            json.dumps(plain)
        except (TypeError, ValueError):
            continue
        kept[str(key)] = plain
    return kept
