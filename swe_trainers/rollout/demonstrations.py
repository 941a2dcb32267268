"""Written conversations as trajectories, for behavioural cloning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swe_trainers.engines.protocol import Sample
from swe_trainers.errors import ConfigurationError
from swe_trainers.model.chat import ChatFormat
from swe_trainers.model.tokenizers import Tokenizer
from swe_trainers.rollout.episode import Episode
from swe_trainers.rollout.settings import EpisodeStart
from swe_trainers.rollout.trajectory import Trajectory

__all__ = ["Demonstration", "demonstrated", "read_conversations"]


@dataclass(frozen=True)
class Demonstration:
    """One conversation, with an action after each observation.

    Attributes:
        observations: before each action.
        actions: the answers.
        system_prompt: before the first observation.
        tools: function schemas, which the chat template writes into the prompt.
    """

    observations: Sequence[str]
    actions: Sequence[str]
    system_prompt: str = ""
    tools: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not self.actions or len(self.observations) != len(self.actions):
            raise ConfigurationError(
                "a demonstration has an observation for each action: "
                f"got {len(self.observations)} and {len(self.actions)}"
            )


def demonstrated(demonstration: Demonstration, chat: ChatFormat, tokenizer: Tokenizer) -> Trajectory:
    """The trajectory of a policy that writes these actions.

    Args:
        demonstration: a conversation.
        chat: turns conversations into tokens; the same that the policy will use.
        tokenizer: of the policy; an action is its encoding and the stop token.

    Returns:
        A terminated trajectory; its rewards and rollout log-probabilities are 0.
    """
    stop = chat.end_id
    episode = Episode(EpisodeStart(), env=0, stream=(), random=np.random.default_rng(0))
    for turn, (observation, action) in enumerate(zip(demonstration.observations, demonstration.actions, strict=True)):
        if turn:
            episode.observe(observation, chat.observe(observation, closed=True))
        else:
            prompt = chat.start(observation, system=demonstration.system_prompt or None, tools=demonstration.tools)
            episode.observe(observation, prompt)
        ids = [*tokenizer.encode(action), stop]
        episode.act(Sample(-1, tuple(ids), (0.0,) * len(ids), "stop"), action)
    episode.terminated = True
    return episode.trajectory()


def read_conversations(path: str | Path, chat: ChatFormat, tokenizer: Tokenizer) -> list[Trajectory]:
    """Read written conversations: one JSON object a line, `{"messages": [{"role": …, "content": …}, …]}`.

    The roles are an optional `system`, then `user` and `assistant` in turns; every answer is trained on. `tools` beside
    `messages` are the function schemas that an episode offers in `info["tools"]`.

    Args:
        path: the file.
        chat: turns conversations into tokens; the same that the policy will use.
        tokenizer: of the policy.
    Raises:
        ConfigurationError: the file cannot be read, or a line is no such conversation; the message names the line.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            lines = list(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: no conversations can be read: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(demonstrated(_conversation(json.loads(line)), chat, tokenizer))
        except (ValueError, TypeError, KeyError, ConfigurationError) as error:
            reason = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"{path}, line {number}: no conversation: {reason}") from error
    return found


def _conversation(row: Mapping[str, Any]) -> Demonstration:
    messages, tools = row["messages"], row.get("tools") or []
    if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ConfigurationError(f"tools: expected a list of function schemas, got {tools!r}")
    begins_with_system = bool(messages) and messages[0]["role"] == "system"
    system = messages[0]["content"] if begins_with_system else ""
    turns = messages[1:] if begins_with_system else messages
    for place, message in enumerate(turns):
        expected = ("user", "assistant")[place % 2]
        if message["role"] != expected or not isinstance(message["content"], str):
            raise ConfigurationError(
                f"message {place} of the turns is {message['role']!r}, expected {expected} with text"
            )
    return Demonstration(
        observations=[message["content"] for message in turns[::2]],
        actions=[message["content"] for message in turns[1::2]],
        system_prompt=system,
        tools=tools,
    )
