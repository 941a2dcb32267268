"""One episode of one model: played turn by turn, and kept as it was."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import gymnasium

from swe_trainers.errors import EngineError, RolloutError
from swe_trainers.evaluation.conversation import Conversation, Model, NoRoomError, Usage
from swe_trainers.evaluation.environment import Item

__all__ = ["Episode", "Turn", "TurnLimits", "play"]


@dataclass(frozen=True)
class TurnLimits:
    """Limits that the environment does not keep itself.

    Attributes:
        turns: of an episode; None for no limit.
        seconds: of an episode, the model's included; None for no limit.
    """

    turns: int | None = None
    seconds: float | None = None


@dataclass
class Turn:
    """One step as it was played; see `Episode`."""

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    patch: str | None
    info: dict[str, Any]
    seconds: float


@dataclass
class Episode:
    """The growing record of one episode.

    Attributes:
        item: which it is.
        instance_id: as the environment calls it.
        begun_at: a date in ISO's form.
        prompt, system_prompt, tools: as the episode began.
        environment: `kind`, `id` and `arguments`, of which an equal one can be made.
        task: the environment's own description of it; None where it has none.
        turns: in order.
        usage: of the model.
        seconds: in all.
        end_reason: the environment's, or "max_turns", "time", "tokens" where a limit of ours ended it, or "error".
        valid: nothing but the agent decided how it ended.
        failure_reason: why it is not, or why the environment found the work wanting.
        server_failed: it is not valid because the model's server failed.
    """

    item: Item
    instance_id: str = ""
    begun_at: str = ""
    prompt: str = ""
    system_prompt: str = ""
    tools: Any = ()
    notice: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    task: Any = None
    turns: list[Turn] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    end_reason: str = ""
    valid: bool = True
    failure_reason: str = ""
    server_failed: bool = False

    @property
    def ending(self) -> Mapping[str, Any]:
        """The info of the last step; empty where there was none."""
        return self.turns[-1].info if self.turns else {}

    @property
    def score(self) -> float:
        """The sum of rewards."""
        return math.fsum(turn.reward for turn in self.turns)

    @property
    def patch(self) -> str | None:
        """The work as it stands at the end; None where the environment knows no patches."""
        return self.turns[-1].patch if self.turns else None

    def fail(self, reason: str) -> None:
        """The machine failed, and not the agent: the episode says nothing of the model."""
        self.valid, self.failure_reason, self.end_reason = False, reason, "error"
        if self.turns:  # who reads the record looks for the end in its last step
            self.turns[-1].info |= {"valid": False, "failure_reason": reason, "end_reason": "error"}


def play(
    env: gymnasium.Env[str, str], model: Model, episode: Episode, limits: TurnLimits, stop: threading.Event
) -> None:
    """Play `episode` to its end; it grows as it goes, so that what failed in the middle is kept too.

    Raises:
        ConfigurationError: the server will never answer.
        RolloutError: a reward is no number.
        Exception: whatever the environment raises.
    """
    began = time.monotonic()
    item = episode.item
    episode.begun_at = datetime.now(timezone.utc).isoformat()
    episode.instance_id = item.instance_id
    conversation: Conversation | None = None
    try:
        observation, info = env.reset(seed=item.seed, options={"instance_id": item.instance_id} if item.named else None)
        _begin(episode, env, observation, info)
        conversation = model.open(episode.system_prompt, episode.tools, item.draw)
        while not episode.end_reason:
            if stop.is_set():
                return
            observation = _turn(env, conversation, episode, observation, limits, began)
    finally:
        episode.seconds = time.monotonic() - began
        if conversation is not None:
            conversation.close()


def _begin(episode: Episode, env: gymnasium.Env[str, str], observation: str, info: Mapping[str, Any]) -> None:
    kind = type(env.unwrapped)
    episode.instance_id = str(info.get("instance_id", episode.instance_id))
    episode.prompt = observation
    episode.system_prompt = str(info.get("system_prompt") or "")
    episode.tools = info.get("tools") or []
    episode.notice = str(info.get("notice", ""))
    episode.environment = {
        "kind": f"{kind.__module__}:{kind.__qualname__}",
        "id": env.spec.id if env.spec is not None else None,
        "arguments": env.get_wrapper_attr("arguments") if env.has_wrapper_attr("arguments") else None,
    }
    episode.task = env.get_wrapper_attr("task") if env.has_wrapper_attr("task") else None


def _turn(
    env: gymnasium.Env[str, str],
    conversation: Conversation,
    episode: Episode,
    observation: str,
    limits: TurnLimits,
    began: float,
) -> str:
    """One answer and what the environment says to it; sets `end_reason` where the episode ends."""
    notes: dict[str, Any] = {}
    try:
        answer = conversation.act(observation)
    except NoRoomError as error:
        if not env.has_wrapper_attr("last_turn"):
            episode.end_reason = "tokens"
            return ""
        env.get_wrapper_attr("last_turn")("tokens")  # the environment itself ends it, and judges the work as it stands
        action, notes["no_room"] = "", str(error)
    except EngineError as error:
        episode.fail(f"{type(error).__name__}: {error}")
        episode.server_failed = True
        return ""
    else:
        action = answer.action
        episode.usage += answer.usage
        notes |= {"seconds": answer.usage.seconds, "prompt_tokens": answer.usage.prompt_tokens}
        notes |= {"completion_tokens": answer.usage.completion_tokens, **answer.notes}
    stepped = time.perf_counter()
    observation, reward, terminated, truncated, info = env.step(action)
    if not math.isfinite(reward):
        raise RolloutError(f"{episode.instance_id}: the reward is {reward}")
    rest = {key: value for key, value in info.items() if key not in ("patch", "timing")} | {"model": notes}
    episode.turns.append(
        Turn(
            action,
            observation,
            float(reward),
            bool(terminated),
            bool(truncated),
            info.get("patch"),
            rest,
            time.perf_counter() - stepped,
        )
    )
    if terminated or truncated:
        episode.end_reason = str(info.get("end_reason") or ("terminated" if terminated else "truncated"))
        episode.valid = bool(info.get("valid", True))
        episode.failure_reason = str(info.get("failure_reason") or "")
    elif limits.turns is not None and len(episode.turns) >= limits.turns:
        episode.end_reason = "max_turns"
    elif limits.seconds is not None and time.monotonic() - began >= limits.seconds:
        episode.end_reason = "time"
    return observation
