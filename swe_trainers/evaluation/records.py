"""The folder of an evaluation, and how an evaluation is resumed. Every file is written atomically.

settings.json          what is evaluated; an evaluation with other settings cannot be resumed here
results.jsonl          one line per episode, written after its folder; an episode with a line is finished
episodes/INSTANCE/     traj.json, patch.diff, meta.json: the format that `swegym view` and `swegym replay` read
                       (INSTANCE__K for sample K, if there are several)
summary.json           rates, means and totals
predictions.jsonl      for the SWE-bench harness (predictions.K.jsonl for further episodes of the same instances)
report.html            one page for people
errors.log             why episodes are invalid, each cause once with its traceback; only where there are any
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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from swe_trainers.errors import ConfigurationError
from swe_trainers.evaluation.environment import Item
from swe_trainers.evaluation.recording import Record
from swe_trainers.files import write_whole
from swe_trainers.rollout.statistics import patch_size

__all__ = ["FORMAT", "EvaluationFolder", "Row", "check_format", "read_results", "write_output"]

FORMAT = 1
"""Version of the format of everything in the folder; an episode's is that of `swegym_env.recording`."""

Row = Mapping[str, Any]
"""One line of `results.jsonl`."""


class EvaluationFolder:
    """The folder of one evaluation, locked against other processes; a context manager.

    Args:
        place: created if missing.
        settings: that decide what is evaluated; what JSON can hold.
        resume: continue the evaluation in the folder.
        replace: delete an evaluation in the folder, instead of refusing to overwrite it.

    Raises:
        ConfigurationError: it cannot be written, is in use, holds an evaluation that is not to be resumed, or one with
            other settings; the first difference is named.
    """

    def __init__(self, place: Path, settings: Mapping[str, Any], *, resume: bool, replace: bool = False) -> None:
        self.place, self._resume, self._replace = place, resume, replace
        self._settings: Mapping[str, Any] = json.loads(json.dumps(_plain(settings)))
        self._several = int(settings["samples"]) > 1
        self._results: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> EvaluationFolder:
        kept, results = self.place / "settings.json", self.place / "results.jsonl"
        begun = results.is_file() and results.stat().st_size > 0  # one without a single episode can be overwritten
        replaced = begun and self._replace and not self._resume
        if replaced:
            begun = False
        elif begun and not self._resume:
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
                shutil.rmtree(self.place / "episodes", ignore_errors=True)
                results.unlink(missing_ok=True)
                for file in self._written() if replaced else ():
                    file.unlink(missing_ok=True)
                write_output(kept, json.dumps({"format": FORMAT, **self._settings}, indent=2) + "\n")
            for leftover in (self.place / "episodes").glob(".partial-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            if results.exists() and not (content := results.read_bytes()).endswith(b"\n"):
                os.truncate(results, content.rfind(b"\n") + 1)  # an incomplete line
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

    @property
    def settings(self) -> Mapping[str, Any]:
        """As `settings.json` has them."""
        return self._settings

    def finished(self) -> dict[tuple[str, int], Row]:
        """The valid episodes, which need not be repeated."""
        return {key: row for key, row in read_results(self.place).items() if row["valid"]}

    def add(self, record: Record, solved: bool | None) -> Row:
        """Write an episode's folder, then its line in the results. Raises ConfigurationError."""
        assert self._results is not None and record.item is not None
        name = _folder_name(record.item, several=self._several)
        row: Row = _plain(_row(record, record.item, solved, f"episodes/{name}"))
        try:
            if record.turns:
                self._record(record, record.item, name)
            self._results.write(json.dumps(row).encode() + b"\n")
            self._results.flush()
        except OSError as error:
            raise _unwritable(self.place, error) from error
        return row

    def log(self, reason: str, traceback: str) -> None:
        """Write a failure to `errors.log`. Raises ConfigurationError."""
        path = self.place / "errors.log"
        try:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {reason}\n{traceback}")
        except OSError as error:
            raise _unwritable(path, error) from error

    def in_order(self, items: Sequence[Item]) -> list[Row]:
        """Rewrite `results.jsonl` in the order of the items, one line each; returns the rows.

        If the environment reports `resolved`, an episode that a limit ended before it did so is not resolved.
        """
        rows = read_results(self.place)
        ordered = [rows[key] for item in items if (key := (item.instance_id, item.sample)) in rows]
        if any(row["resolved"] is not None for row in ordered):
            ordered = [
                {**row, "resolved": False} if row["valid"] and row["resolved"] is None else row for row in ordered
            ]
        write_output(self.place / "results.jsonl", "".join(json.dumps(row) + "\n" for row in ordered))
        return ordered

    def write_predictions(self, rows: Iterable[Row], model: str) -> list[Path]:
        """Write the patches of valid episodes for the SWE-bench harness, which reads one per instance and file."""
        files: dict[int, list[str]] = {}
        seen: Counter[str] = Counter()
        for row in rows:
            path = self.place / (row["episode"] or "") / "patch.diff"
            if row["valid"] and path.is_file():
                # The harness reads text only: bytes that are not UTF-8 could not be in its file either.
                patch = path.read_bytes().decode("utf-8", "replace")
                line = {"instance_id": row["task_id"], "model_name_or_path": model, "model_patch": patch}
                number = row["sample"] if self._several else seen[row["task_id"]]
                seen[row["task_id"]] += 1
                files.setdefault(number, []).append(json.dumps(line) + "\n")
        written = []
        for number, lines in sorted(files.items()):
            name = f"predictions.{number}.jsonl" if number or self._several else "predictions.jsonl"
            written.append(write_output(self.place / name, "".join(lines)))
        return written

    def _written(self) -> list[Path]:
        """Where an evaluation writes what it finds, apart from its episodes and their results."""
        names = ("summary.json", "report.html", "errors.log", "predictions.jsonl")
        return [*(self.place / name for name in names), *self.place.glob("predictions.[0-9]*.jsonl")]

    def _refuse_differences(self, kept: Path) -> None:
        try:
            before = json.loads(kept.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{kept}: cannot be read: {error}") from error
        check_format(before, kept)
        for name in sorted({*before, *self._settings} - {"format"}):
            if before.get(name) != self._settings.get(name):
                raise ConfigurationError(
                    f"--resume: {self.place} was started with {name} {json.dumps(before.get(name))}, now it is "
                    f"{json.dumps(self._settings.get(name))}. Try: another --output"
                )

    def _record(self, record: Record, item: Item, name: str) -> None:
        """Write an episode's folder, atomically."""
        parent = self.place / "episodes"
        parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
        try:
            partial.chmod(0o755)
            (partial / "traj.json").write_text(json.dumps(_trajectory(record)) + "\n", encoding="ascii")
            (partial / "meta.json").write_text(json.dumps(_meta(record, item), indent=2) + "\n", encoding="ascii")
            if record.patch is not None:
                (partial / "patch.diff").write_bytes(record.patch.encode("utf-8", "surrogateescape"))
            replaced = partial.with_name(f"{partial.name}-replaced")
            if (parent / name).exists():  # of an invalid episode, or one whose line was not written
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
    """(instance, sample) → row; of several lines of one episode the last is valid.

    Raises:
        ConfigurationError: there are no results, a line cannot be read, or is of a later version.
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
        check_format(row, path)
    return found


def check_format(content: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigurationError if what `path` has is of a later format than this version writes; 0.1 wrote none."""
    found = content.get("format", FORMAT)
    if found != FORMAT:
        raise ConfigurationError(f"{path}: of format {found!r}, this version reads {FORMAT}. Try: another --output")


def write_output(path: Path, text: str) -> Path:
    """Write a file atomically, in UTF-8 with lone surrogates escaped. Raises ConfigurationError."""
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


def _row(record: Record, item: Item, solved: bool | None, place: str) -> dict[str, Any]:
    last, usage = record.last_info, record.usage
    return {
        "format": FORMAT,
        "instance_id": item.instance_id,
        "task_id": record.instance_id,
        "sample": item.sample,
        "seed": item.seed,
        "resolved": solved if record.valid else None,
        "valid": record.valid,
        "end_reason": record.end_reason,
        "failure_reason": record.failure_reason,
        "fail_to_pass": last.get("fail_to_pass"),
        "pass_to_pass": last.get("pass_to_pass"),
        "failed_tests": last.get("failed_tests"),
        "return": record.score,
        "turns": len(record.turns),
        "patch_lines": None if record.patch is None else _changed_lines(record.patch),
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "uncounted_requests": usage.unknown,
        "cost": usage.cost,
        "seconds": record.seconds,
        "model_seconds": usage.seconds,
        "episode": place if record.turns else None,
    }


def _changed_lines(patch: str) -> int:
    size = patch_size(patch)
    return size.lines_added + size.lines_removed


def _trajectory(record: Record) -> Any:
    turns, before = [], ""
    for step in record.turns:
        kept = {each.name: getattr(step, each.name) for each in dataclasses.fields(step)}
        del kept["patch"], kept["waited_s"]
        if step.patch is not None and step.patch != before:  # most turns change no file
            kept["patch"] = before = step.patch
        turns.append(kept)
    return _plain(
        {
            "format": FORMAT,
            "instance_id": record.instance_id,
            "system_prompt": record.system_prompt,
            "prompt": record.prompt,
            "tools": record.tools,
            "turns": turns,
        }
    )


def _meta(record: Record, item: Item) -> Any:
    last_step = record.turns[-1] if record.turns else None
    result = {
        "finished": last_step is not None and (last_step.terminated or last_step.truncated),
        "end_reason": record.end_reason,
        **{key: record.last_info.get(key) for key in ("resolved", "fail_to_pass", "pass_to_pass")},
        "valid": record.valid,
        "failure_reason": record.failure_reason,
        "turns": len(record.turns),
        "reward": record.score,
        "seconds": record.seconds,
    }
    return _plain(
        {
            "format": FORMAT,
            "instance_id": record.instance_id,
            "recorded_at": record.started_at,
            "environment": record.environment,
            "task": record.task,
            "seed": item.seed,
            "options": {"instance_id": item.instance_id} if item.named else None,
            "notice": record.notice,
            "notes": {"sample": item.sample, "usage": dataclasses.asdict(record.usage)},
            "result": result,
        }
    )


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it; anything else as text.

    `swegym_env.recording.record` has the same function: both packages write one format, and neither may import the
    other.
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
