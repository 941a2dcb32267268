"""The state of an episode while it is played, from which its trajectory is made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from swe_trainers.engines.protocol import Sample
from swe_trainers.rollout.conversations import Conversations
from swe_trainers.rollout.environments import Failure
from swe_trainers.rollout.history import Exchange, Prompt
from swe_trainers.rollout.settings import EpisodeStart
from swe_trainers.rollout.trajectory import Fork, Trajectory, Turn

__all__ = ["Episode", "PlayedTurn", "Read"]


class Read(NamedTuple):
    """What the policy reads next.

    Attributes:
        observation: as text.
        ids: its tokens; a whole context if a sample begins.
        begins: a sample begins.
        conversation, cause: of the sample, if an agent program's requests are read; see `Trajectory`.
    """

    observation: str
    ids: Sequence[int]
    begins: bool = False
    conversation: int = 0
    cause: str = ""


@dataclass(slots=True)
class PlayedTurn:
    """A turn while its episode is played.

    Attributes:
        observation, action, start, end: as in `Turn`.
        sample: the action.
        reward: of the environment.
        response: the observation after the action. response_ids: its tokens.
    """

    observation: str
    action: str
    start: int
    end: int
    sample: Sample
    reward: float = 0.0
    response: str = ""
    response_ids: Sequence[int] = ()

    @property
    def closed(self) -> bool:
        """Whether the action ends with a stop token."""
        return self.sample.end == "stop"


_JSON = json.JSONEncoder(allow_nan=False)  # `json.dumps` would make one for each value
_REQUEST = ("messages", "tools", "request")
"""Keys of an agent program's request in `info`; they are not recorded, because they are large and their tokens are."""


@dataclass
class Episode:
    """The growing record of one episode.

    Attributes:
        start: its initial state.
        env: number of the environment that plays it.
        stream: entropy of its random generator. random: the generator.
        started_at: `time.monotonic()` at the reset.
        slot: of the engine; None before the first request.
        rewritten: the context is no longer what the slot holds.
        closed: the last action ends with a stop token.
        last_turn: `last_turn` of the environment was called: the next step is the last.
        end_reason: as in `Trajectory`.
        info: the latest of the environment, with the sum of its reward parts.
        lists_actions: whether its actions are sampled from those that the environment lists.
        reward_parts: sums over the turns of `info["reward"]`, if the environment gives its reward in parts.
        conversations: of an agent program; None where the environment gives no `info["messages"]`.
        sample_conversations, sample_causes: as in `Trajectory`.
        token_ids: everything read and sampled; only ever appended to.
        turns: the turns so far; the last one may wait for its response.
        prompt: with the turns, what a shortened history is made of.
        observation: the latest.
    """

    start: EpisodeStart
    env: int
    stream: tuple[int, ...]
    random: np.random.Generator
    started_at: float = 0.0
    slot: int | None = None
    rewritten: bool = False
    closed: bool = False
    last_turn: bool = False
    terminated: bool = False
    truncated: bool = False
    end_reason: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    turns: list[PlayedTurn] = field(default_factory=list)
    sample_starts: list[int] = field(default_factory=lambda: [0])
    forks: list[Fork] = field(default_factory=list)
    conversations: Conversations | None = None
    sample_conversations: list[int] = field(default_factory=list)
    sample_causes: list[str] = field(default_factory=list)
    prompt: Prompt | None = None
    lists_actions: bool = False
    observation: str = ""

    @property
    def past(self) -> list[Exchange]:
        """The turns with a response, from which a shortened history is made."""
        return [
            Exchange(self.token_ids[turn.start : turn.end], turn.closed, turn.response, turn.response_ids)
            for turn in self.turns
        ]

    @property
    def context_size(self) -> int:
        """Number of tokens that the policy reads next."""
        return len(self.token_ids) - self.sample_starts[-1]

    def copy(self) -> Episode:
        """An independent copy."""
        lists: dict[str, Any] = {
            f.name: list(value) for f in fields(self) if isinstance(value := getattr(self, f.name), list)
        }
        conversations = None if self.conversations is None else self.conversations.copy()
        return replace(self, **lists, conversations=conversations)

    def read(self, read: Read, room: int | None = None) -> None:
        """Append an observation, or replace the context by another one: a new sample begins.

        Args:
            room: tokens that a context may have; None for all.
        """
        if read.begins and self.token_ids:
            self.sample_starts.append(len(self.token_ids))
            self.rewritten = True
        if read.begins and self.conversations is not None:
            self.sample_conversations.append(read.conversation)
            self.sample_causes.append(read.cause)
        left = None if room is None else max(0, room - self.context_size)
        self.observe(read.observation, read.ids[:left])

    def update_info(self, info: Mapping[str, Any]) -> None:
        """Store the latest info; the parts of the reward in `info["reward"]` are summed over the turns."""
        parts = info.get("reward")
        if parts is not None and self.turns and isinstance(parts, Mapping):
            names = [*self.reward_parts, *(name for name in parts if name not in self.reward_parts)]
            self.reward_parts = {name: self.reward_parts.get(name, 0.0) + float(parts.get(name, 0.0)) for name in names}
        self.info = {**info, "reward": self.reward_parts} if self.reward_parts else info

    def observe(self, observation: str, ids: Sequence[int]) -> None:
        """Append an observation."""
        self.observation = observation
        self.token_ids.extend(ids)

    def act(self, sample: Sample, text: str) -> None:
        """Append an action."""
        start = len(self.token_ids)
        self.token_ids.extend(sample.token_ids)
        self.closed = sample.end == "stop"
        self.turns.append(PlayedTurn(self.observation, text, start, len(self.token_ids), sample))

    def respond(self, reward: float, observation: str, ids: Sequence[int]) -> None:
        """Store the environment's response to the last action: the reward goes to the action's last token."""
        turn = self.turns[-1]
        turn.reward, turn.response, turn.response_ids = reward, observation, ids

    def trajectory(self, failure: Failure | None = None) -> Trajectory:
        """The finished record.

        Args:
            failure: why the episode is invalid; None leaves this to `info["valid"]`.
        """
        info: dict[str, Any] = {}
        for key, value in self.info.items():
            if self.conversations is not None and key in _REQUEST:
                continue
            plain = value.tolist() if isinstance(value, np.generic | np.ndarray) else value
            try:
                _JSON.encode(plain)
            except (TypeError, ValueError, RecursionError):
                continue
            info[str(key)] = plain
        claimed = self.info.get("valid")
        if failure is None and claimed is not None and not claimed:
            failure = Failure(str(self.info.get("failure_reason") or "the environment marked the episode invalid"))
        size, turns = len(self.token_ids), self.turns
        acted = [place for turn in turns for place in range(turn.start, turn.end)]
        action_mask, logprobs = np.zeros(size, dtype=np.bool_), np.zeros(size, dtype=np.float32)
        rewards = np.zeros(size, dtype=np.float32)
        action_mask[acted] = True
        logprobs[acted] = [logprob for turn in turns for logprob in turn.sample.logprobs]
        paid = [turn for turn in turns if turn.end > turn.start]
        rewards[[turn.end - 1 for turn in paid]] = [turn.reward for turn in paid]
        allowed, allowed_sets = _allowed(turns, size)
        return Trajectory(
            token_ids=np.array(self.token_ids, dtype=np.int64),
            action_mask=action_mask,
            rollout_logprobs=logprobs,
            rewards=rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            valid=failure is None,
            failure_reason="" if failure is None else failure.reason,
            failure_traceback="" if failure is None else failure.traceback,
            turns=tuple(
                Turn(
                    turn.observation,
                    turn.action,
                    turn.reward,
                    turn.start,
                    turn.end,
                    turn.sample.notes or {"finish_reason": turn.sample.end},
                )
                for turn in turns
            ),
            info=info,
            sample_starts=tuple(self.sample_starts),
            sample_conversations=tuple(self.sample_conversations),
            sample_causes=tuple(self.sample_causes),
            forks=tuple(self.forks),
            group=self.start.group,
            seed=self.start.seed,
            weight_versions=_versions(turns, size),
            end_reason=self.end_reason,
            allowed=allowed,
            allowed_sets=allowed_sets,
        )


def _versions(turns: Sequence[PlayedTurn], size: int) -> tuple[int, ...]:
    """`Trajectory.weight_versions` of an episode of this many tokens."""
    if not any(version >= 0 for turn in turns for version in turn.sample.versions):
        return ()
    versions = [-1] * size
    for turn in turns:
        if turn.sample.versions:
            versions[turn.start : turn.end] = turn.sample.versions
    return tuple(versions)


def _allowed(turns: Sequence[PlayedTurn], size: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """`Trajectory.allowed` and `allowed_sets` of an episode of this many tokens."""
    allowed, numbers = [-1] * size, dict[tuple[int, ...], int]()
    for turn in turns:
        for place, tokens in enumerate(turn.sample.allowed, turn.start):
            if tokens:
                allowed[place] = numbers.setdefault(tokens, len(numbers))
    return (tuple(allowed), tuple(numbers)) if numbers else ((), ())
