"""One episode as evaluation keeps it: what the environment returned, and what the trajectory adds to it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import gymnasium

from swe_trainers.evaluation.environment import Item
from swe_trainers.evaluation.usage import Prices, Usage, usage_of
from swe_trainers.rollout.environments import checked_reset, checked_step
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Record", "RecordedEnv", "Step"]


@dataclass
class Step:
    """One step of the environment.

    Attributes:
        patch: of `info`, which holds the rest.
        seconds: in the environment.
        waited_s: before it, for the action.
    """

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    patch: str | None
    info: dict[str, Any]
    seconds: float
    waited_s: float


@dataclass
class Record:
    """The record of one episode.

    Attributes:
        item: the planned episode.
        instance_id: the environment's name of the task.
        started_at: ISO date.
        began: `time.monotonic()` at the reset; where no environment could be made, when the record was.
        prompt, system_prompt, tools, notice: of the reset.
        environment: `kind`, `id` and `arguments`, from which an equal one can be made.
        task: the environment's description of the task; None if it has none.
        turns: in order.
        usage: of the model.
        seconds: in all.
        end_reason: the environment's; `max_turns`, `time` or `tokens` for a limit; or `error`.
        valid: nothing but the agent decided how the episode ended.
        failure_reason: why it is invalid, or why the environment rejected the work.
    """

    item: Item | None = None
    instance_id: str = ""
    started_at: str = ""
    began: float = field(default_factory=time.monotonic)
    prompt: str = ""
    system_prompt: str = ""
    tools: Any = ()
    notice: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    task: Any = None
    turns: list[Step] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    end_reason: str = ""
    valid: bool = True
    failure_reason: str = ""

    @property
    def last_info(self) -> Mapping[str, Any]:
        """The info of the last step; empty if there was none."""
        return self.turns[-1].info if self.turns else {}

    @property
    def score(self) -> float:
        """The sum of rewards."""
        return math.fsum(turn.reward for turn in self.turns)

    @property
    def patch(self) -> str | None:
        """The patch at the end; None if the environment has no patches."""
        return self.turns[-1].patch if self.turns else None

    def finish(self, item: Item, trajectory: Trajectory, prices: Prices | None) -> None:
        """Add what the environment does not know: which episode was planned, what the model reports, how it ended."""
        self.item, self.seconds = item, time.monotonic() - self.began
        self.instance_id = self.instance_id or item.instance_id
        self.usage = usage_of(trajectory, prices, math.fsum(step.waited_s for step in self.turns))
        for step, turn in zip(self.turns, trajectory.turns, strict=False):
            tokens = {}
            if turn.end > turn.start:
                sample_start = max(start for start in trajectory.sample_starts if start <= turn.start)
                tokens = {"prompt_tokens": turn.start - sample_start, "completion_tokens": turn.end - turn.start}
            step.info["model"] = {"seconds": step.waited_s, **tokens, **turn.notes}
        last, self.valid = self.last_info, trajectory.valid
        if not trajectory.valid and trajectory.end_reason:  # something failed; the environment does not know it
            self.end_reason, self.failure_reason = "error", trajectory.failure_reason
            if self.turns:  # readers look for the end in the last step
                self.turns[-1].info |= {
                    "valid": False, "failure_reason": self.failure_reason, "end_reason": "error"
                }  # fmt: skip
            return
        ended = "terminated" if trajectory.terminated else "truncated"
        self.end_reason = trajectory.end_reason or str(last.get("end_reason") or ended)
        self.failure_reason = str(last.get("failure_reason") or "") if trajectory.valid else trajectory.failure_reason


class RecordedEnv(gymnasium.Wrapper[str, str, str, str]):
    """Keeps the record of the episode that is played, until the next reset."""

    record = Record()
    _returned_at = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode and its record."""
        record = self.record = Record(started_at=datetime.now(timezone.utc).isoformat())
        observation, given = checked_reset(self.env.reset(seed=seed, options=options))
        info = dict(given)
        kind = type(self.env.unwrapped)
        record.instance_id = str(info.get("instance_id", ""))
        record.prompt = observation
        record.system_prompt = str(info.get("system_prompt") or "")
        record.tools = info.get("tools") or []
        record.notice = str(info.get("notice", ""))
        record.environment = {
            "kind": f"{kind.__module__}:{kind.__qualname__}",
            "id": self.env.spec.id if self.env.spec is not None else None,
            "arguments": self.env.get_wrapper_attr("arguments") if self.env.has_wrapper_attr("arguments") else None,
        }
        record.task = self.env.get_wrapper_attr("task") if self.env.has_wrapper_attr("task") else None
        self._returned_at = time.monotonic()
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Step and record it."""
        began = time.monotonic()
        observation, reward, terminated, truncated, given = checked_step(self.env.step(action))
        info = dict(given)
        waited_s, self._returned_at = began - self._returned_at, time.monotonic()
        self.record.turns.append(
            Step(
                action,
                observation,
                reward,
                terminated,
                truncated,
                info.get("patch"),
                {key: value for key, value in info.items() if key not in ("patch", "timing")},
                self._returned_at - began,
                waited_s,
            )
        )
        return observation, reward, terminated, truncated, info
