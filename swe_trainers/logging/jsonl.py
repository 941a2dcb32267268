"""`metrics.jsonl`: one JSON object for each update."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_trainers.files import write_whole

__all__ = ["JsonLines", "read_metrics"]


class JsonLines:
    """Appends to `metrics.jsonl` in a directory.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "metrics.jsonl"

    def log(self, update: int, metrics: Mapping[str, Any]) -> None:
        """Append a line, atomically; numbers that are not finite become null.

        Args:
            update: its number.
            metrics: numbers, strings, and lists and dictionaries of these.
        Raises:
            OSError: it cannot be written; no part of the line is left.
        """
        row = _finite({"update": update, "time": round(time.time(), 3), **metrics})
        content = (json.dumps(row, allow_nan=False) + "\n").encode()
        with self._path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            if file.write(content) != len(content):
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def rewind(self, stage: str, update: int) -> int:
        """Remove the rows of a stage after an update; the last update that they were of, or `update`."""
        if not self._path.exists():
            return update
        rows = read_metrics(self._path)
        kept = [row for row in rows if row.get("stage") != stage or row["update"] <= update]
        write_whole(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        return max((int(row["update"]) for row in rows if row.get("stage") == stage), default=update)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, without an incomplete last line."""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
