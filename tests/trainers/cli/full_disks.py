"""Runs `swe-train` on a small disk, once for each number of free KiB: python -m tests.trainers.cli.full_disks DISK KIB…

Each run is a fork of this process, which has imported PyTorch. Its output is {"KIB": {"code", "stderr", "left"}}.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from swe_trainers.cli.main import main as swe_train
from tests.warm import TRAINER


def fill(disk: Path, free_kib: int) -> None:
    """Leave nothing but one file on the disk of 512 KiB, and this much space."""
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
        for _ in range(512 - free_kib):
            file.write(bytes(1024))


def main() -> None:
    disk = Path(sys.argv[1])
    for module in TRAINER:
        importlib.import_module(module)
    outcomes = {}
    for free_kib in sys.argv[2:]:
        fill(disk, int(free_kib))
        output = Path(f"{free_kib}.stderr")
        if (child := os.fork()) == 0:
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 2)
            sys.exit(swe_train(["config.yaml", "--output_dir", str(disk / "out"), "--quiet"]))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left = sorted(str(path.relative_to(disk)) for path in disk.rglob("*"))
        outcomes[free_kib] = {"code": code, "stderr": output.read_text(), "left": left}
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main()
