"""What an evaluation leaves in its folder, each file whole or not there at all, and how it goes on where it was.

settings.json          what was asked for; another evaluation cannot go on here
results.jsonl          a line an episode, as it ends; the line that makes it finished comes last
episodes/INSTANCE/     traj.json, patch.diff, meta.json: the form that `swegym view` and `swegym replay` read
                       (INSTANCE__K for sample K, where there are several)
summary.json           what came of it
predictions.jsonl      for the SWE-bench harness (predictions.K.jsonl of sample K, where there are several)
report.html            one page, to be looked at
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.environment import Item
from swe_trainers.evaluation.episode import Episode
from swe_trainers.writing import write_whole

__all__ = ["EvaluationFolder", "Row", "read_results", "write_output"]

_FORMAT = 1
"""Of the records, as `swegym_env.recording` counts it."""

Row = Mapping[str, Any]
"""One line of `results.jsonl`."""


class EvaluationFolder:
    """The folder of one evaluation, which no other process writes meanwhile; a context manager.

    Args:
        place: made if missing.
        settings: that decide what is measured; what JSON can hold.
        resume: go on with what is there.

    Raises:
        ConfigurationError: it cannot be written, is being written, holds an evaluation that is not to be resumed, or
            one of other settings; the first difference is named.
    """

    def __init__(self, place: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.place, self._resume = place, resume
        self._settings = json.loads(json.dumps(_plain(settings)))
        self._several = int(settings["samples"]) > 1
        self._results: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> EvaluationFolder:
        kept, results = self.place / "settings.json", self.place / "results.jsonl"
        begun = results.is_file() and results.stat().st_size > 0  # one without a single episode is none
        if begun and not self._resume:
            raise ConfigurationError(
                f"--output {self.place}: holds an evaluation already. Try: --resume, or another --output"
            )
        if begun:
            self._refuse_differences(kept)
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            self._lock = (self.place / ".lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not begun:
                write_output(kept, json.dumps(self._settings, indent=2) + "\n")
            for leftover in (self.place / "episodes").glob(".partial-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            if results.exists() and not (content := results.read_bytes()).endswith(b"\n"):
                os.truncate(results, content.rfind(b"\n") + 1)  # a line that a death cut off
            self._results = results.open("ab")
        except BlockingIOError as error:
            self._close()
            raise ConfigurationError(f"--output {self.place}: another process is writing there") from error
        except OSError as error:
            self._close()
            raise _unwritable(self.place, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def finished(self) -> dict[tuple[str, int], Row]:
        """The episodes that need not be played again: those that ended validly."""
        return {key: row for key, row in read_results(self.place).items() if row["valid"]}

    def add(self, episode: Episode, solved: bool | None) -> Row:
        """Write everything of an episode; then the line that makes it finished. Raises ConfigurationError."""
        assert self._results is not None
        name = _folder_name(episode.item, several=self._several)
        row = _row(episode, solved, f"episodes/{name}")
        try:
            if episode.turns:
                self._record(episode, name)
            self._results.write(json.dumps(_plain(row)).encode() + b"\n")
            self._results.flush()
        except OSError as error:
            raise _unwritable(self.place, error) from error
        return row

    def in_order(self, items: Sequence[Item]) -> list[Row]:
        """Rewrite `results.jsonl` in the order of the items, one line each; returns the rows."""
        rows = read_results(self.place)
        ordered = [rows[key] for item in items if (key := (item.instance_id, item.sample)) in rows]
        write_output(self.place / "results.jsonl", "".join(json.dumps(row) + "\n" for row in ordered))
        return ordered

    def write_predictions(self, rows: Iterable[Row], model: str) -> list[Path]:
        """What the SWE-bench harness grades: the patches of valid episodes; nothing where there are no patches."""
        by_sample: dict[int, list[str]] = {}
        for row in rows:
            path = self.place / (row["episode"] or "") / "patch.diff"
            if row["valid"] and path.is_file():
                # The harness knows text only: bytes that are no UTF-8 could not be in its file either.
                patch = path.read_bytes().decode("utf-8", "replace")
                said = {"instance_id": row["instance_id"], "model_name_or_path": model, "model_patch": patch}
                by_sample.setdefault(row["sample"], []).append(json.dumps(said) + "\n")
        return [
            write_output(
                self.place / (f"predictions.{sample}.jsonl" if self._several else "predictions.jsonl"), "".join(lines)
            )
            for sample, lines in sorted(by_sample.items())
        ]

    def _refuse_differences(self, kept: Path) -> None:
        try:
            before = json.loads(kept.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{kept}: cannot be read: {error}") from error
        for name in sorted({*before, *self._settings}):
            if before.get(name) != self._settings.get(name):
                raise ConfigurationError(
                    f"--resume: {self.place} was begun with {name} {json.dumps(before.get(name))}, now it is "
                    f"{json.dumps(self._settings.get(name))}. Try: another --output"
                )

    def _record(self, episode: Episode, name: str) -> None:
        """The episode's folder, by a rename."""
        parent = self.place / "episodes"
        parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
        try:
            partial.chmod(0o755)
            (partial / "traj.json").write_text(json.dumps(_trajectory(episode)) + "\n", encoding="ascii")
            (partial / "meta.json").write_text(json.dumps(_meta(episode), indent=2) + "\n", encoding="ascii")
            if episode.patch is not None:
                (partial / "patch.diff").write_bytes(episode.patch.encode("utf-8", "surrogateescape"))
            replaced = partial.with_name(f"{partial.name}-replaced")
            if (parent / name).exists():  # of an episode that did not count, or whose line was not written any more
                (parent / name).rename(replaced)
            partial.rename(parent / name)
            shutil.rmtree(replaced, ignore_errors=True)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _close(self) -> None:
        for file in (self._results, self._lock):
            if file is not None:
                file.close()
        self._results = self._lock = None


def read_results(place: Path) -> dict[tuple[str, int], Row]:
    """(instance, sample) → row; of several lines of one episode the last one counts.

    Raises:
        ConfigurationError: there are no results, or a line is none.
    """
    path = place / "results.jsonl"
    found: dict[tuple[str, int], Row] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigurationError(f"{path}: no results of swe-eval can be read: {error.strerror}") from error
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            found[str(row["instance_id"]), int(row["sample"])] = row
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path}, line {number}: no result of swe-eval") from error
    return found


def write_output(path: Path, text: str) -> Path:
    """Write a file whole or not at all, in UTF-8, where half a surrogate pair is escaped. Raises ConfigurationError."""
    try:
        return write_whole(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"--output {path}: cannot be written: {error.strerror or error}")


def _folder_name(item: Item, *, several: bool) -> str:
    name = re.sub(r"[^\w.+-]+", "_", item.instance_id, flags=re.ASCII).strip(".")[:150]
    if name != item.instance_id:  # two ids must not share a folder
        name += "-" + hashlib.sha256(item.instance_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name}__{item.sample}" if several else name


def _row(episode: Episode, solved: bool | None, place: str) -> dict[str, Any]:
    ending, usage = episode.ending, episode.usage
    return {
        "instance_id": episode.item.instance_id,
        "sample": episode.item.sample,
        "resolved": solved if episode.valid else None,
        "valid": episode.valid,
        "end_reason": episode.end_reason,
        "failure_reason": episode.failure_reason,
        "fail_to_pass": ending.get("fail_to_pass"),
        "pass_to_pass": ending.get("pass_to_pass"),
        "failed_tests": ending.get("failed_tests"),
        "return": episode.score,
        "turns": len(episode.turns),
        "patch_lines": None if episode.patch is None else _changed_lines(episode.patch),
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "uncounted_requests": usage.unknown,
        "cost": usage.cost,
        "seconds": episode.seconds,
        "model_seconds": usage.seconds,
        "episode": place if episode.turns else None,
    }


def _changed_lines(patch: str) -> int:
    return sum(line[:1] in ("+", "-") and line[:4] not in ("+++ ", "--- ") for line in patch.split("\n"))


def _trajectory(episode: Episode) -> Any:
    turns, before = [], ""
    for turn in episode.turns:
        said = {each.name: getattr(turn, each.name) for each in dataclasses.fields(turn) if each.name != "patch"}
        if turn.patch is not None and turn.patch != before:  # most turns change no file
            said["patch"] = before = turn.patch
        turns.append(said)
    return _plain(
        {
            "format": _FORMAT,
            "instance_id": episode.instance_id,
            "system_prompt": episode.system_prompt,
            "prompt": episode.prompt,
            "tools": episode.tools,
            "turns": turns,
        }
    )


def _meta(episode: Episode) -> Any:
    ending = episode.ending
    last = episode.turns[-1] if episode.turns else None
    result = {
        "finished": last is not None and (last.terminated or last.truncated),
        "end_reason": episode.end_reason,
        **{key: ending.get(key) for key in ("resolved", "fail_to_pass", "pass_to_pass")},
        "valid": episode.valid,
        "failure_reason": episode.failure_reason,
        "turns": len(episode.turns),
        "reward": episode.score,
        "seconds": episode.seconds,
    }
    item = episode.item
    return _plain(
        {
            "format": _FORMAT,
            "instance_id": episode.instance_id,
            "recorded_at": episode.begun_at,
            "environment": episode.environment,
            "task": episode.task,
            "seed": item.seed,
            "options": {"instance_id": item.instance_id} if item.named else None,
            "notice": episode.notice,
            "notes": {"sample": item.sample, "usage": dataclasses.asdict(episode.usage)},
            "result": result,
        }
    )


def _plain(value: Any) -> Any:
    """`value` in what JSON has; what it has no word for, as text.

    `swegym_env.recording.record` has the same: both write one form, and neither package may import the other.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(each) for each in value), key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return _plain(value.tolist())
    return str(value)
