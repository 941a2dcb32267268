"""Replay a recorded episode action by action, and report the first divergence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swegym_env.env import SWEBenchEnv, TextEpisode
from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import Record
from swegym_env.registry import resolve

__all__ = ["Divergence", "Replay", "replay"]

_LIMITS = ("max_turns", "tokens", "time")
_COMPARED = ("exit_code", "action_error", "end_reason", "resolved", "fail_to_pass", "pass_to_pass", "valid")
# What differs between equal runs: durations, memory addresses, names of temporary files.
_TRANSIENT = re.compile(
    r"\b\d+(?:\.\d+)? ?(?:s|ms|us|µs|ns|sec|seconds?|minutes?)\b"
    r"|\b\dm\d+\.\d+s\b|\b0x[0-9a-f]{6,16}\b|/tmp/tmp\w{8}\b|/pytest-of-\w+/pytest-\d+|\b\d+:\d\d:\d\d(?:\.\d+)?\b"
)


@dataclass(frozen=True)
class Divergence:
    """The first difference between record and replay.

    Attributes:
        turn: its number, from 1; 0 for the prompt.
        field: what differs: "prompt", "observation", "patch", "exit_code", ….
        recorded: the value in the record.
        replayed: the value in the replay.
    """

    turn: int
    field: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        head = f"turn {self.turn}: {self.field} differs"
        if isinstance(self.recorded, str) and isinstance(self.replayed, str):
            before, after = self.recorded.splitlines(), self.replayed.splitlines()
            lines = list(difflib.unified_diff(before, after, "recorded", "replayed", lineterm="", n=1))
            return "\n".join([head, *(line[:300] for line in lines[:20])])
        return f"{head}: recorded {self.recorded!r}, replayed {self.replayed!r}"


@dataclass(frozen=True)
class Replay:
    """The result of a replay.

    Attributes:
        place: the folder of the record.
        instance_id: of the task.
        turns: number of recorded turns.
        agreed: number of turns that went as recorded, before the first divergence.
        approximate: number of these that agreed only after times and addresses were ignored.
        divergence: the first divergence; None if the whole episode went as recorded.
    """

    place: Path | None
    instance_id: str
    turns: int
    agreed: int
    approximate: int
    divergence: Divergence | None


def replay(
    record: Record,
    *,
    sandbox: str | None = None,
    repos: str | None = None,
    exact: bool = False,
    on_turn: Callable[[int], None] | None = None,
) -> Replay:
    """Run the recorded actions on the recorded task and compare observation, exit code, patch and verdict of each turn.

    Args:
        sandbox: a back end other than the recorded one.
        repos: source of git repositories, for tasks that need one.
        exact: False: durations, addresses and names of temporary files in the text may differ.
        on_turn: called with the number of each turn that agreed, for progress.

    Raises:
        ConfigurationError: the record is of another environment, or contains no task or arguments.
        InfrastructureError: the sandbox cannot be started.
    """
    env = _environment(record, sandbox, repos)
    approximate: set[int] = set()

    def first_difference(turn: int, values: list[tuple[str, Any, Any]]) -> Divergence | None:
        for field, recorded, replayed in values:
            if isinstance(replayed, tuple):
                replayed = list(replayed)
            if recorded == replayed:
                continue
            texts = isinstance(recorded, str) and isinstance(replayed, str)
            if exact or not texts or _TRANSIENT.sub("#", recorded) != _TRANSIENT.sub("#", replayed):
                return Divergence(turn, field, recorded, replayed)
            approximate.add(turn)
        return None

    agreed = 0
    try:
        prompt, info = env.reset(seed=record.meta.get("seed"), options={"instance_id": record.instance_id})
        expected = _without_notice(record.prompt, record.meta.get("notice"))
        prompts = [("prompt", expected, prompt), ("system_prompt", record.system_prompt, info["system_prompt"])]
        divergence = first_difference(0, prompts)
        for number, turn in enumerate(record.turns, start=1):
            if divergence is not None:
                break
            reason = turn.info.get("end_reason")
            if reason in _LIMITS:
                env.last_turn(reason)  # the clock or tokenizer of the limit is not replayed
            observation, _, terminated, truncated, info = env.step(turn.action)
            values: list[tuple[str, Any, Any]] = [
                ("observation", _without_notice(turn.observation, turn.info.get("notice")), observation),
                ("patch", turn.patch, info["patch"]),
                ("terminated", turn.terminated, terminated),
                ("truncated", turn.truncated, truncated),
                *((name, turn.info.get(name), info.get(name)) for name in _COMPARED),
            ]
            divergence = first_difference(number, values)
            if divergence is None:
                agreed = number
                if on_turn is not None:
                    on_turn(number)
    finally:
        env.close()
    return Replay(record.place, record.instance_id, len(record.turns), agreed, len(approximate), divergence)


def _without_notice(observation: str, notice: Any) -> str:
    """The environment's own observation, without the notice that a limit added for the last turn."""
    return observation.removesuffix(str(notice)).removesuffix("\n") if notice else observation


def _environment(record: Record, sandbox: str | None, repos: str | None) -> Any:
    """An environment equal to the recorded one. Only classes of this package are made: a record is data."""
    made = record.meta.get("environment") or {}
    place, arguments = str(made.get("kind")), made.get("arguments")
    where = record.place or record.instance_id
    environment = resolve(place, f"{where}: environment") if place.startswith("swegym_env.") else None
    if not (isinstance(environment, type) and issubclass(environment, TextEpisode) and isinstance(arguments, dict)):
        raise ConfigurationError(f"{where}: only episodes of this package can be replayed, not of {place}")
    chosen = {**arguments, "render_mode": None}
    if sandbox is not None and "sandbox" in arguments:
        chosen["sandbox"] = sandbox
    if issubclass(environment, SWEBenchEnv):  # made from the recorded task, without its dataset
        chosen |= {"tasks": [record.task()], "episode_timeout_s": None}
        if repos is not None:
            chosen["repos"] = repos
    try:
        return environment(**chosen)
    except (TypeError, ConfigurationError) as error:  # of a version with other arguments, or of another machine
        raise ConfigurationError(f"{where}: {error}") from error
