"""Processes that repeat one workload each: they take turns, and their peak memory and processor time are their own."""

from __future__ import annotations

import json
import subprocess
import sys

__all__ = ["Worker"]


class Worker:
    """A process that runs its workload once for each line that it reads, and answers what that took in JSON.

    Args:
        module: of the benchmark, started with `--worker PART`.
        part: the workload.
        options: more options of the module.
    """

    def __init__(self, module: str, part: str, *options: str) -> None:
        self._part = part
        command = [sys.executable, "-m", module, "--worker", part, *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self) -> dict[str, float]:
        """What one repetition took. Raises SystemExit if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("once\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._part}: its process ended with {self._process.wait()}; its output is above")
        measured: dict[str, float] = json.loads(line)
        return measured

    def close(self) -> None:
        """End the process after what it is doing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
