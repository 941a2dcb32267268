"""Converts recorded episodes to the Agent Trajectory Interchange Format (ATIF 1.7, RFC 0001 of Harbor), and back.

In documents of this package, `extra.swegym` contains all data for which the format has no field, so that they are read
back without loss. Documents of other programs become records of what the agent read and wrote, for `swegym view` and
for cloning.

    system prompt, first observation     steps of `system` and `user`
    a turn                               a step of `agent`: `message` is the action as it was written, `tool_calls` what
                                         the action format reads in it, `observation` what the agent then read
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from swegym_env import __version__
from swegym_env.agent.actions import Call, Command, Submit
from swegym_env.agent.formats import action_format
from swegym_env.agent.formats.calls import dump_json, readable
from swegym_env.errors import ConfigurationError
from swegym_env.recording.record import Record, RecordedTurn, check_meta, check_turn, plain

__all__ = ["VERSION", "from_atif", "to_atif"]

VERSION = "ATIF-v1.7"
_OWN = "swegym"
_OUTCOME = ("resolved", "fail_to_pass", "pass_to_pass", "end_reason", "valid", "failure_reason")


def to_atif(record: Record) -> dict[str, Any]:
    """The document of a recorded episode, as JSON values.

    `final_metrics.extra` has the outcome of an episode that ended. If the machine failed, it has no reward.
    """
    notes = record.meta.get("notes") or {}
    agent = {
        "name": str(notes.get("agent") or "swegym"),
        "version": str(notes.get("version") or __version__),
        "model_name": None if notes.get("model") is None else str(notes["model"]),
        "tool_definitions": list(record.tools) or None,
    }
    steps: list[dict[str, Any]] = []
    if record.system_prompt:
        steps.append({"source": "system", **_text_field("message", record.system_prompt)})
    steps.append({"source": "user", **_text_field("message", record.prompt)})
    elapsed_s, before = 0.0, ""
    for number, turn in enumerate(record.turns, start=1):
        elapsed_s += turn.seconds
        steps.append(_agent_step(record, turn, f"call_{number}", _moment(record, elapsed_s), before))
        before = turn.patch
    outcome = {key: record.ending[key] for key in _OUTCOME if key in record.ending}
    if record.finished and outcome.get("valid", True):
        outcome["reward"] = sum(turn.reward for turn in record.turns)
    own = {"instance_id": record.instance_id, "meta": record.meta}
    document = {
        "schema_version": VERSION,
        "session_id": record.place.name if record.place else record.instance_id,
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {"total_steps": len(steps), "extra": outcome},
        "extra": {_OWN: own},
    }
    found: dict[str, Any] = _without_none(plain(document))
    return found


def _agent_step(record: Record, turn: RecordedTurn, call_id: str, timestamp: str | None, before: str) -> dict[str, Any]:
    calls = _calls_of(record, turn.action, call_id)
    own: dict[str, Any] = {
        "reward": turn.reward,
        "terminated": turn.terminated,
        "truncated": turn.truncated,
        "info": turn.info,
        "seconds": turn.seconds,
        **_bytes("message", turn.action),
    }
    if turn.patch != before:  # most turns change no file
        own |= {"patch": readable(turn.patch), **_bytes("patch", turn.patch)}
    return {
        "source": "agent",
        "message": readable(turn.action),
        "timestamp": timestamp,
        "tool_calls": calls or None,
        "observation": {
            "results": [{"source_call_id": call_id if calls else None, **_text_field("content", turn.observation)}]
        },
        "extra": {_OWN: own},
    }


def _calls_of(record: Record, action: str, call_id: str) -> list[dict[str, Any]]:
    """What the action format of the episode reads in an action; nothing where it is not known here."""
    arguments = (record.meta.get("environment") or {}).get("arguments") or {}
    try:
        parsed = action_format(str(arguments.get("action_format", "auto"))).parse(action)
    except ConfigurationError:  # a format of the user's own that is not installed
        return []
    match parsed:
        case Call(name, given):
            called = (name, dict(given))
        case Command(text):
            called = ("bash", {"command": readable(text)})
        case Submit():
            called = ("submit", {})
        case _:
            return []
    return [{"tool_call_id": call_id, "function_name": called[0], "arguments": called[1]}]


def _moment(record: Record, elapsed_s: float) -> str | None:
    try:
        return (datetime.fromisoformat(str(record.meta["recorded_at"])) + timedelta(seconds=elapsed_s)).isoformat()
    except (KeyError, ValueError):
        return None


def _bytes(key: str, text: str) -> dict[str, str]:
    """The original bytes of a text that is not UTF-8, in base64; empty for any other text.

    A lone surrogate that stands for no byte has no such bytes: a text that contains one is stored as UTF-16.
    """
    if readable(text) == text:
        return {}
    try:
        return {f"{key}_base64": base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()}
    except UnicodeEncodeError:
        return {f"{key}_utf16_base64": base64.b64encode(text.encode("utf-16-le", "surrogatepass")).decode()}


def _text_field(key: str, text: str) -> dict[str, Any]:
    """A text under its key, as the format has it, and its exact bytes in `extra` where they are not UTF-8."""
    exact = _bytes(key, text)
    return {key: readable(text), **({"extra": {_OWN: exact}} if exact else {})}


def _exact(own: Mapping[str, Any], key: str, shown: str) -> str:
    if (exact := own.get(f"{key}_base64")) is not None:
        return base64.b64decode(exact).decode("utf-8", "surrogateescape")
    if (exact := own.get(f"{key}_utf16_base64")) is not None:
        return base64.b64decode(exact).decode("utf-16-le", "surrogatepass")
    return shown


def _without_none(value: Any) -> Any:
    """A copy without optional fields that are None, as Harbor writes documents; `extra` is kept as it is."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if each is not None}
        return {key: each if key == "extra" else _without_none(each) for key, each in kept.items()}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def from_atif(document: Any, where: str = "document") -> Record:
    """The record in a document, of this package or of another program.

    Of several calls in a step, and of calls beside a message, the action is a message of the chat API as JSON. Pictures
    are named, not read. Steps that were copied from an earlier document are left out.

    Args:
        document: as JSON values.
        where: its place, for error messages.
    Raises:
        ConfigurationError: it is no such document; the message names the field.
    """
    try:
        version = str(document["schema_version"])
        if not version.startswith("ATIF-v1."):
            raise ConfigurationError(f"{where}: schema_version: expected ATIF-v1.x, got {version!r}")
        own = (document.get("extra") or {}).get(_OWN) or {}
        system_prompt, prompt, turns = "", "", list[RecordedTurn]()
        for number, step in enumerate(document["steps"]):
            text = _exact(((step.get("extra") or {}).get(_OWN) or {}), "message", _content(step["message"]))
            if step.get("is_copied_context"):
                continue
            if step["source"] == "agent":
                turns.append(_turn(step, text, turns[-1].patch if turns else ""))
                check_turn(vars(turns[-1]), f"{where}: steps.{number}.extra.swegym.")
            elif turns:  # a message between two steps of the agent is added to the observation before it
                last = turns[-1]
                joined = f"{last.observation}\n{text}" if last.observation else text
                turns[-1] = RecordedTurn(**{**vars(last), "observation": joined})
            elif step["source"] == "system":
                system_prompt = f"{system_prompt}\n\n{text}" if system_prompt else text
            else:
                prompt = f"{prompt}\n\n{text}" if prompt else text
        agent = document["agent"]
        notes = {"agent": agent["name"], "version": agent["version"], "model": agent.get("model_name")}
        meta = own.get("meta") or {"notes": notes}
        check_meta(meta, f"{where}: extra.swegym.meta.")
        return Record(
            instance_id=str(own.get("instance_id") or document.get("session_id") or where),
            prompt=prompt,
            system_prompt=system_prompt,
            tools=agent.get("tool_definitions") or [],
            turns=turns,
            meta=meta,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{where}: not a trajectory in ATIF: {type(error).__name__}: {error}") from error


def _turn(step: Mapping[str, Any], text: str, patch: str) -> RecordedTurn:
    own = (step.get("extra") or {}).get(_OWN) or {}
    calls = step.get("tool_calls") or []
    results = (step.get("observation") or {}).get("results") or []
    shown = [
        _exact(((result.get("extra") or {}).get(_OWN) or {}), "content", _content(result.get("content") or ""))
        for result in results
    ]
    if calls and not own:
        functions = [{"name": call["function_name"], "arguments": dump_json(call["arguments"])} for call in calls]
        asked = [{"type": "function", "function": function} for function in functions]
        text = dump_json({"role": "assistant", **({"content": text} if text else {}), "tool_calls": asked})
    return RecordedTurn(
        action=text,
        observation="\n".join(shown),
        reward=float(own.get("reward", 0.0)),
        terminated=bool(own.get("terminated", False)),
        truncated=bool(own.get("truncated", False)),
        patch=_exact(own, "patch", own.get("patch", patch)),
        info=own.get("info") or {},
        seconds=float(own.get("seconds", 0.0)),
    )


def _content(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        part["text"] if part["type"] == "text" else f"[{part['type']}: {part['source']['path']}]" for part in content
    )
