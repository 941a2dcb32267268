"""What a client may ask of a server at most: the operator sets it, and the machine determines the defaults.

A request above a ceiling is refused, not reduced: an episode must not run with other limits than its client believes.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swegym_env.errors import ConfigurationError
from swegym_env.paths import large_run_dir
from swegym_env.sandbox import Limits
from swegym_env.sandbox.images import parse_size

__all__ = ["CEILINGS", "Ceilings", "ceilings_of_machine", "parse_ceilings"]

CEILINGS = {
    "memory": "memory_bytes",
    "disk": "disk_bytes",
    "processes": "processes",
    "files": "inodes",
    "descriptors": "descriptors",
    "cpus": "cpus",
    "output": "output_bytes",
    "timeout": "timeout_s",
    "patch-files": "patch_files",
    "patch-bytes": "patch_bytes",
    "patch-depth": "patch_depth",
    "patch-cpu": "patch_cpu_s",
}
"""Name of a ceiling in `--ceiling` → field of `Ceilings`."""

_CEILING_OF = {field: name for name, field in CEILINGS.items()} | {
    "file_size_bytes": "disk",
    "turn_timeout_s": "timeout",
}
_FRACTIONS = ("cpus", "timeout", "patch-cpu")  # not of whole numbers

_LONGEST_S = 3600.0
_BYTES_PER_FILE = 16 << 10  # of the machine's memory: an inode of a tmpfs takes about 1 KiB of the kernel's
_SHARE_OF_PROCESSES = 8


@dataclass(frozen=True)
class Ceilings:
    """The most that one container, or one request, may ask for.

    Attributes:
        memory_bytes: see `sandbox.api.Limits`.
        disk_bytes: of the writable layer, and of one file.
        processes: see `sandbox.api.Limits`.
        inodes: see `sandbox.api.Limits`.
        timeout_s: of a command, and of the tests of a task.
        cpus, descriptors: see `sandbox.api.Limits`. The default of these and the next is the most that a request can
            express.
        output_bytes: of a command's output.
        patch_files, patch_bytes, patch_depth, patch_cpu_s: what this server spends on an agent's files, see
            `sandbox.api.Limits`.
    """

    memory_bytes: int
    disk_bytes: int
    processes: int
    inodes: int
    timeout_s: float = _LONGEST_S
    cpus: float = 1 << 16
    descriptors: int = 1 << 16
    output_bytes: int = 64 << 20
    patch_files: int = 1 << 20
    patch_bytes: int = 1 << 28
    patch_depth: int = 4096
    patch_cpu_s: float = 60.0

    def check(self, what: str, value: float | None, ceiling: str) -> None:
        """Raise ConfigurationError if a value is above a ceiling.

        Args:
            what: name of the value, for the message.
            value: None: not given.
            ceiling: its name in `CEILINGS`.
        """
        most = getattr(self, CEILINGS[ceiling])
        if value is not None and value > most:
            raise ConfigurationError(
                f"{what}: this server allows at most {most}, got {value}; its operator can change --ceiling {ceiling}"
            )

    def check_limits(self, limits: Limits) -> None:
        """Raise ConfigurationError if one of a container's limits is above its ceiling."""
        for name, value in vars(limits).items():
            if name != "cpu_s":  # a client may also set none: the timeout and `cpus` bound it
                self.check(f"limits.{name}", value, _CEILING_OF[name])


def ceilings_of_machine() -> Ceilings:
    """All memory, the free space of the disk for sandboxes, and an eighth of the processes that the kernel allows.

    On a small machine they are at least the default limits of a sandbox: a client that sets none is served.
    """
    default = Limits()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    processes = min(int(Path("/proc/sys/kernel", name).read_text()) for name in ("pid_max", "threads-max"))
    place = large_run_dir()
    while not place.exists():
        place = place.parent
    return Ceilings(
        memory_bytes=max(memory, default.memory_bytes),
        disk_bytes=max(shutil.disk_usage(place).free, default.disk_bytes),
        processes=max(processes // _SHARE_OF_PROCESSES, default.processes),
        inodes=max(memory // _BYTES_PER_FILE, default.inodes),
    )


def parse_ceilings(given: Sequence[str]) -> Ceilings:
    """The machine's ceilings, replaced by those of the operator: "memory=8G", "processes=1024", "timeout=1800".

    Raises:
        ConfigurationError: an unknown name, or no positive number.
    """
    changes: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if name not in CEILINGS or not equals:
            raise ConfigurationError(f"--ceiling: expected NAME=VALUE, NAME one of {', '.join(CEILINGS)}; got {text!r}")
        number: float = parse_size(value, f"--ceiling {name}")
        if name in _FRACTIONS and value.replace(".", "", 1).isdigit():
            number = float(value)
        if number <= 0:
            raise ConfigurationError(f"--ceiling {name}: expected a positive number, got {value}")
        changes[CEILINGS[name]] = number
    return dataclasses.replace(ceilings_of_machine(), **changes)
