"""The peers, in a separate environment and process, so that their rounds alternate with ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.root_file_system import make_root

__all__ = ["Peers", "minimal_root", "peers"]

PACKAGES = ("mini-swe-agent==2.4.6", "swe-rex==1.4.0")
PLACE = Path(os.environ.get("SWEGYM_BENCH_PEERS", "~/.cache/swegym-bench-peers")).expanduser()
PROGRAMS = ("bash", "sh", "true", "cat", "ls", "sed")


class Peers:
    """A process in the peers' environment. `names`: available peers; `missing`: the others, with reasons."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        ready = self._receive()
        self.names: list[str] = ready["names"]
        self.missing: dict[str, str] = ready["missing"]
        self.versions: dict[str, str] = ready["versions"]
        self.used: str = ready["used"]

    def measure(self, name: str, what: str, times: int) -> list[float]:
        """Milliseconds of `what` ("step" or "reset") with the peer `name`, for each repetition."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, "what": what, "times": times}) + "\n")
        self._process.stdin.flush()
        return [float(value) for value in self._receive()["milliseconds"]]

    def _receive(self) -> dict[str, object]:  # type: ignore[type-arg]
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("bench-env: the peers' process died; its last words are above")
        return json.loads(line)


@contextmanager
def peers(root: Path) -> Iterator[Peers]:
    """Start the peers on the root file system `root`; they are installed under `PLACE` at first use."""
    python = PLACE / "bin" / "python"
    stamp = PLACE / f".{'-'.join(PACKAGES)}"
    if not stamp.exists():
        print(f"bench-env: installing {', '.join(PACKAGES)} in {PLACE}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", PLACE], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        stamp.touch()
    process = subprocess.Popen(
        [python, Path(__file__).with_name("peer_driver.py"), root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MSWEA_SILENT_STARTUP": "1", "PYTHONWARNINGS": "ignore"},
    )
    try:
        yield Peers(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


def minimal_root(directory: Path) -> Path:
    """A minimal root file system for the peers: a few programs and their libraries."""
    make_root(directory, PROGRAMS, more=("sys", "root"))
    if shutil.which("apptainer") is None:
        return directory
    built = directory.with_name("built")  # with the scripts that start instances
    subprocess.run(["apptainer", "--quiet", "build", "--sandbox", built, directory], check=True, capture_output=True)
    return built
