"""Programs that tests run to their end, as a user would."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ROOT", "offline", "run_to_end"]

ROOT = Path(__file__).parents[1]


def offline(place: Path) -> dict[str, str]:
    """Variables for a program of this checkout that works in `place` and installs packages from there, offline."""
    return {
        "PYTHONPATH": str(ROOT),
        "SWEGYM_WORKDIR": str(place / "work"),
        "PIP_FIND_LINKS": str(place / "wheels"),
        "PIP_NO_INDEX": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], *, cwd: Path = ROOT, stdin: str = "", timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its exit code; its output is text."""
    return subprocess.run(
        command, input=stdin, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
