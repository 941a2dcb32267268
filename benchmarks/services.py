"""Starts servers and pools for a benchmark, and measures their CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from swegym_env.sandbox.linux.processes import descendants

__all__ = ["Served", "free_port", "processor_s", "served", "start"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Served:
    """A running `swegym serve` or `swegym pool`.

    Attributes:
        process: of the server.
        url: its address.
    """

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> str:
        """The port that it listens on."""
        return str(urlsplit(self.url).port)


def free_port() -> str:
    """A free port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def start(*arguments: str, port: str = "0") -> Served:
    """Start `swegym …` and wait until it listens. Raises RuntimeError if it ends instead."""
    command = [sys.executable, "-m", "swegym_env.cli.main", *arguments, "--port", port]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"swegym {' '.join(arguments)} ended with {process.wait()}")
    return Served(process, json.loads(line)["url"])


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    """The same as a context manager that kills it at the end."""
    one = start(*arguments)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        if one.process.stdout is not None:
            one.process.stdout.close()


def processor_s(pid: int, *, below: bool = False) -> float:
    """CPU seconds of a process; with `below`, of its living descendants."""
    total = 0.0
    for each in descendants(pid) if below else [pid]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(") ")[2].split()
            total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return total
