"""The record of an episode: a folder with `traj.json` (the turns), `patch.diff` (the final work) and `meta.json`.

A folder is written atomically. Text is kept exactly: bytes that are not UTF-8, which the environment represents as
surrogates, are read back unchanged.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.tasks.task import Task

__all__ = [
    "FORMAT",
    "Record",
    "RecordedTurn",
    "check_meta",
    "check_turn",
    "find_records",
    "plain",
    "read_record",
    "write_record",
]

FORMAT = 1
_FILES = ("traj.json", "patch.diff", "meta.json")

_NOT_FINITE = ("nan", "inf", "-inf")  # as `plain` writes them: JSON has no such numbers

_NULL = type(None)
_KINDS = {str: "a text", list: "a list", dict: "an object", bool: "true or false", float: "a number", _NULL: "null"}
_Forms = Mapping[str, tuple[type, ...]]
_TRAJECTORY: _Forms = {"prompt": (str,), "system_prompt": (str,), "tools": (list,), "turns": (list,)}
_TURN: _Forms = {
    "action": (str,),
    "observation": (str,),
    "reward": (float, int),
    "terminated": (bool,),
    "truncated": (bool,),
    "patch": (str,),
    "info": (dict,),
    "seconds": (float, int),
}
_META: _Forms = {
    "environment": (dict, _NULL),
    "task": (dict, _NULL),
    "notes": (dict, _NULL),
    "recorded_at": (str, _NULL),
}
_TASK: _Forms = {
    "repo": (str, _NULL),
    "patch": (str, _NULL),
    "fail_to_pass": (list, _NULL),
    "pass_to_pass": (list, _NULL),
}


@dataclass(frozen=True)
class RecordedTurn:
    """One turn as it was played.

    Attributes:
        action: the agent's text.
        observation: the answer of the environment.
        reward: of the step.
        terminated: as returned by the step.
        truncated: as returned by the step.
        patch: the git diff after the step.
        info: the other keys of the step's info, as JSON values.
        seconds: duration of the step.
    """

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    patch: str
    info: Mapping[str, Any]
    seconds: float = 0.0


@dataclass(frozen=True)
class Record:
    """A recorded episode.

    Attributes:
        instance_id: of its task.
        prompt: the observation at reset.
        system_prompt: at reset; may be empty.
        tools: function schemas at reset.
        turns: in order.
        meta: `recorded_at`, `environment` (`kind`, `arguments`), `task`, `seed`, `options`, `notes` of the user.
        place: the folder that it was read from; None if it was not read.
    """

    instance_id: str
    prompt: str
    system_prompt: str
    tools: Sequence[Any]
    turns: Sequence[RecordedTurn]
    meta: Mapping[str, Any]
    place: Path | None = field(default=None, compare=False)

    @property
    def ending(self) -> Mapping[str, Any]:
        """The info of the last step; empty if there is none."""
        return self.turns[-1].info if self.turns else {}

    @property
    def finished(self) -> bool:
        """Whether the environment ended the episode; False if it was abandoned."""
        return bool(self.turns) and (self.turns[-1].terminated or self.turns[-1].truncated)

    def task(self) -> Task:
        """Its task. Raises ConfigurationError if the record contains none."""
        known = {each.name for each in dataclasses.fields(Task)}
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in (self.meta.get("task") or {}).items()
            if name in known
        }
        try:
            return Task(**given)
        except TypeError as error:
            raise ConfigurationError(f"{self.place or self.instance_id}: no task in the record: {error}") from error


def write_record(directory: str | Path, record: Record) -> Path:
    """Write `record` to a new folder `<instance>__<time>` in `directory`; returns the folder.

    Raises:
        ConfigurationError: the directory cannot be written.
    """
    directory = Path(directory)
    summary = _summary(record)
    meta = {"format": FORMAT, "instance_id": record.instance_id, **record.meta, "result": summary}
    final = record.turns[-1].patch if record.turns else ""
    contents = (
        _json(_trajectory(record)).encode("ascii"),
        final.encode("utf-8", "surrogateescape"),
        _json(meta, indent=2).encode("ascii"),
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=directory))
        try:
            for name, content in zip(_FILES, contents, strict=True):
                (partial / name).write_bytes(content)
            partial.chmod(0o755)
            return _publish(partial, directory, record)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"{directory}: the episode was not recorded: {error}") from error


def read_record(folder: str | Path) -> Record:
    """Read a folder that `write_record` wrote.

    Raises:
        ConfigurationError: there is no record, or it cannot be read; the message names the file.
    """
    folder = Path(folder)
    path = folder / "traj.json"
    try:
        trajectory = json.loads(path.read_bytes())
        _check(trajectory, _TRAJECTORY, f"{path}: ")
        path = folder / "meta.json"
        meta = json.loads(path.read_bytes())
        if meta.get("format") != FORMAT:
            raise ConfigurationError(f"{path}: format {meta.get('format')!r}; this version reads {FORMAT}")
        check_meta(meta, f"{path}: ")
        path = folder / "traj.json"
        turns: list[RecordedTurn] = []
        for number, given in enumerate(trajectory["turns"]):
            kept = {"patch": turns[-1].patch if turns else "", "seconds": 0.0}
            turn = {**kept, **given} if isinstance(given, dict) else given
            if isinstance(turn, dict) and turn.get("reward") in _NOT_FINITE:
                turn["reward"] = float(turn["reward"])
            check_turn(turn, f"{path}: turns.{number}.")
            turns.append(RecordedTurn(**turn))
        return Record(
            instance_id=str(meta["instance_id"]),
            prompt=trajectory["prompt"],
            system_prompt=trajectory["system_prompt"],
            tools=trajectory["tools"],
            turns=turns,
            meta={key: value for key, value in meta.items() if key not in ("format", "instance_id", "result")},
            place=folder,
        )
    except FileNotFoundError as error:
        raise ConfigurationError(f"{folder}: no record of an episode: {path.name} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{path}: not a record of an episode: {type(error).__name__}: {error}") from error


def check_turn(given: Any, where: str) -> None:
    """Raise ConfigurationError, whose message begins with `where`, unless the fields of a turn have their types."""
    _check(given, _TURN, where)


def check_meta(given: Any, where: str) -> None:
    """The same for `Record.meta`."""
    _check(given, _META, where)
    _check(given.get("task") or {}, _TASK, f"{where}task.")
    environment = given.get("environment") or {}
    _check(environment, {"arguments": (dict, _NULL)}, f"{where}environment.")
    arguments = environment.get("arguments") or {}
    _check(arguments, {"action_format": (str, _NULL)}, f"{where}environment.arguments.")


def _check(given: Any, forms: _Forms, where: str) -> None:
    if not isinstance(given, dict):
        raise ConfigurationError(f"{where.rstrip(' .:')}: expected an object, got {_quote(given)}")
    for name, kinds in forms.items():
        if type(given.get(name)) not in kinds:
            expected = " or ".join(_KINDS[kind] for kind in kinds if kind in _KINDS)
            got = _quote(given[name]) if name in given else "nothing"
            raise ConfigurationError(f"{where}{name}: expected {expected}, got {got}")


def _quote(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def find_records(place: str | Path) -> list[Path]:
    """The folders of records at or below `place`, sorted. Raises ConfigurationError if there is none."""
    place = Path(place)
    if not place.is_dir():
        raise ConfigurationError(f"{place}: no such directory")
    found = []
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if not name.startswith(".")]  # still being written
        if {"traj.json", "meta.json"} <= set(files):
            found.append(Path(folder))
    if not found:
        raise ConfigurationError(f"{place}: no recorded episode; expected folders with {', '.join(_FILES)}")
    return sorted(found)


def _publish(partial: Path, directory: Path, record: Record) -> Path:
    instance = re.sub(r"[^\w.+-]+", "_", record.instance_id, flags=re.ASCII).strip(".") or "episode"
    moment = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    for attempt in range(1, 10_000):
        place = directory / f"{instance[:150]}__{moment}{f'-{attempt}' if attempt > 1 else ''}"
        if not place.exists():  # a rename would replace an empty folder
            try:
                return partial.rename(place)
            except OSError:
                if not place.exists():
                    raise
    raise OSError(f"no free name for {instance}__{moment}")


def _trajectory(record: Record) -> dict[str, Any]:
    turns = []
    before = ""
    for turn in record.turns:
        values: dict[str, Any] = {
            each.name: getattr(turn, each.name) for each in dataclasses.fields(turn) if each.name != "patch"
        }
        if turn.patch != before:  # most turns change no file
            values["patch"] = before = turn.patch
        turns.append(values)
    return {
        "format": FORMAT,
        "instance_id": record.instance_id,
        "system_prompt": record.system_prompt,
        "prompt": record.prompt,
        "tools": record.tools,
        "turns": turns,
    }


def _summary(record: Record) -> dict[str, Any]:
    results = ("resolved", "fail_to_pass", "pass_to_pass", "valid", "failure_reason")
    return {
        "finished": record.finished,
        "end_reason": record.ending.get("end_reason", "abandoned"),
        **{key: record.ending.get(key) for key in results},
        "turns": len(record.turns),
        "reward": sum(turn.reward for turn in record.turns),  # `fsum` raises where it is not finite
        "seconds": math.fsum(turn.seconds for turn in record.turns),
    }


def _json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(plain(value), indent=indent, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """`value` as JSON values; anything that JSON has no type for becomes text.

    `swe_trainers.evaluation.records` has a copy: both write one format, and neither package may import the other.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(each) for each in value), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return plain(value.tolist())
    return str(value)
