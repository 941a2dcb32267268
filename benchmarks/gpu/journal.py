"""Rows on disk as they are measured, one line of JSON each: a kill at any moment loses at most the case under way.

A file has lines of five kinds:

    {"run": …}                     what measures from here on: source, device, versions
    {"trying": case, "name": …}    about to call this for the first time; if the process dies, this was the reason
    {"ready": case, "name": …}     it returned
    {"case": …, "metric": …}       a row: `median`, `p10`, `p90`, `n`; or `absent` or `failed` with the reason
    {"done": case}                 all rows of a case are written
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Journal", "die_with_parent", "read_lines"]


class Journal:
    """The rows of one part.

    Args:
        path: of the file; rows that are there are kept.
        key: of the run: lines of runs with the same key are continued, others are kept but not continued.

    Attributes:
        path: of the file.
        key: of the run.
    """

    def __init__(self, path: Path, key: Sequence[Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.key = path, list(key)
        _cut_after_last_line(path)
        self._file = path.open("ab", buffering=0)

    def begin(self, run: Mapping[str, Any]) -> None:
        """Write what measures from here on; its `key` is the journal's."""
        self._write({"run": dict(run)})

    def add(self, case: str, metric: str, unit: str, values: Sequence[float], **more: Any) -> None:
        """Write one quantity: the median of its values, with the spread."""
        low, middle, high = (float(x) for x in np.percentile(np.asarray(values, dtype=float), [10, 50, 90]))
        print(f"{case} · {metric}: {middle:.4g} {unit}  [{low:.4g}, {high:.4g}]  n={len(values)}", flush=True)
        self._write(
            {"case": case, "metric": metric, "unit": unit, "median": middle, "p10": low, "p90": high}
            | {"n": len(values)}
            | more
        )

    def absent(self, case: str, metric: str, reason: str) -> None:
        """Write that something cannot be measured here."""
        print(f"{case} · {metric}: absent: {reason}", flush=True)
        self._write({"case": case, "metric": metric, "absent": reason})

    def failed(self, case: str, metric: str, reason: str, *, peer: bool = False, died: bool = False) -> None:
        """Write that something was called and failed; `peer`: by its own fault; `died`: it ended this process."""
        print(f"{case} · {metric}: failed: {reason}", flush=True)
        more = {"died": True} if died else {}
        self._write({"case": case, "metric": metric, "failed": reason, "peer": peer} | more)

    def trying(self, case: str, name: str, *, peer: bool = False) -> None:
        """Write what is called next, in case it ends this process."""
        self._write({"trying": case, "name": name, "peer": peer})

    def ready(self, case: str, name: str) -> None:
        """Write that what was tried last returned."""
        self._write({"ready": case, "name": name})

    def done(self, case: str, **more: Any) -> None:
        """Write that a case is complete."""
        self._write({"done": case} | more)

    def is_done(self, case: str) -> bool:
        """Whether this run, or an earlier one with the same key, completed a case."""
        return any(line.get("done") == case for line in self._mine())

    def died_in(self, case: str) -> set[str]:
        """What ended a process in this case: it is not called again."""
        return {line["metric"] for line in self._mine() if line.get("case") == case and line.get("died")}

    def times_stuck(self, case: str, name: str) -> int:
        """How many invocations ended by a kill while this was called for the first time: it may never return."""
        lines = list(self._mine())
        stuck = (
            line.get("trying") == case and line.get("name") == name and "run" in after
            for line, after in itertools.pairwise(lines)
        )
        return sum(stuck)

    def has_failures(self) -> bool:
        """Whether the newest row of a quantity is a failure, and not a peer's."""
        newest = {(line["case"], line["metric"]): line for line in self._mine() if "metric" in line}
        return any("failed" in line and not line["peer"] for line in newest.values())

    def blame(self, reason: str) -> bool:
        """After a process died: write that what it tried last failed. False if it tried nothing since the last row."""
        last: dict[str, Any] | None = None
        for line in self._mine():
            last = line if "trying" in line else last
            if "done" in line or line.get("died"):
                last = None
        if last is None:
            return False
        self.failed(last["trying"], last["name"], reason, peer=last["peer"], died=True)
        return True

    def _mine(self) -> Iterator[dict[str, Any]]:
        key = None
        for line in read_lines(self.path):
            key = line["run"].get("key") if "run" in line else key
            if key == self.key:
                yield line

    def _write(self, line: Mapping[str, Any]) -> None:
        content = json.dumps(line).encode() + b"\n"
        if self._file.write(content) != len(content):  # in one call; what a full disk cuts off is removed on resumption
            raise OSError(f"{self.path}: the disk is full")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def die_with_parent() -> None:
    """End this process when the one that started it ends, however it ends: two must not write to one file."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file; nothing if there is no file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    whole, _, _ = content.rpartition(b"\n")
    for line in whole.splitlines():
        if line:
            yield json.loads(line)


def _cut_after_last_line(path: Path) -> None:
    """Remove the beginning of a line that a kill, or a full disk, cut off."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    kept = content.rfind(b"\n") + 1
    if kept < len(content):
        os.truncate(path, kept)
