"""`make bench-neighbours`: steps of 31 honest environments beside one hostile sandbox, in each of ten ways.

All environments belong to one process, as in a training run: each honest one takes a step with a small edit twice a
second, on a thread of its own, and its patch is computed. Without and with the hostile sandbox alternate, so that the
machine's other work affects both; the ratio is the p99 with it over the p99 without. An honest episode that ends, is
invalid or lacks its edit is counted. Writes benchmarks/results/neighbours.json.

    python -m benchmarks.neighbours [--sandbox namespace] [--only spin,disk] [--seconds 6] [--neighbours 31]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.env.measuring import repository_task
from benchmarks.options import chosen_of
from benchmarks.records import RESULTS, write_results
from swegym_env.env import SWEBenchEnv
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.client import end_all

PERIOD_S = 0.5  # between two steps of one neighbour


def _python(program: str) -> str:
    return f"python3 - <<'EOF'\n{textwrap.dedent(program)}\nEOF"


HOSTILE = {
    "spin": "for i in $(seq 64); do (while :; do :; done) & done; wait",
    "fork bomb": ":(){ :|:& }; :; sleep 20",
    "memory": _python("""
        kept = []
        while True:
            kept.append(b"x" * (1 << 24))
    """),
    "disk": "while :; do dd if=/dev/zero of=/tmp/fill bs=1M; sync; rm -f /tmp/fill; done",
    "output": "while :; do head -c 1000000 /dev/zero; done",
    "many files": _python("""
        import os, time
        top = f"/testbed/many-{time.time_ns()}"
        for directory in range(400):
            os.makedirs(f"{top}/{directory}")
            for number in range(100):
                open(f"{top}/{directory}/{number}.py", "w").write(str(number))
    """),
    "large files": "for i in $(seq 20); do head -c 15000000 /dev/urandom >large$i.txt; done",
    "ignore rules": """
        deep=$(printf 'a/%.0s' {1..40})
        mkdir -p $deep; touch $deep/file
        { printf '**/a/%.0s' {1..12}; echo; echo "# $RANDOM"; } >.gitignore
    """,
    "deep tree": _python("""
        import os, time
        name = f"{time.time_ns()}".rjust(200, "d")
        for _ in range(5000):
            os.mkdir(name)
            os.chdir(name)
    """),
    "kernel objects": _python("""
        import array, ctypes, os, socket, time
        while ctypes.CDLL(None).inotify_init() >= 0:
            pass
        held = []
        try:
            while True:
                held.append(os.pipe())
        except OSError:
            for end in held.pop():
                os.close(end)
        first, second = socket.socketpair()
        descriptors = array.array("i", [0] * 200)
        try:
            while True:
                first.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)], socket.MSG_DONTWAIT)
        except OSError:
            time.sleep(20)
    """),
}


class Neighbour:
    """One honest environment that takes a step every `PERIOD_S`, at its own moment."""

    def __init__(self, repos: Path, backend: str, offset_s: float) -> None:
        self.env = _environment(repos, backend, turn_timeout_s=60.0)
        self.failures = 0
        self._offset_s = offset_s
        self._edits = 0

    def play(self, seconds: float) -> list[float]:
        """Take steps for some seconds; the milliseconds of each, from the moment at which it was due.

        A step that is late because the one before took long counts from its own moment, as users would see it.
        """
        taken: list[float] = []
        began = time.perf_counter()
        due = began + self._offset_s
        while due < began + seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            self._edits += 1
            _, _, terminated, truncated, info = self.env.step(f"echo {self._edits} >package_0/module_1.py")
            taken.append((time.perf_counter() - due) * 1e3)
            if terminated or truncated or f"+{self._edits}\n" not in info["patch"]:
                self.failures += 1
                self.env.reset(seed=0)
            due += PERIOD_S
        return taken


def _environment(repos: Path, backend: str, *, turn_timeout_s: float) -> SWEBenchEnv:
    env = SWEBenchEnv(
        tasks=[repository_task(repos, 600)],
        repos=str(repos),
        sandbox=backend,
        reward="none",
        max_turns=None,
        action_format="raw",
        turn_timeout_s=turn_timeout_s,
    )
    env.reset(seed=0)
    return env


class Attack(threading.Thread):
    """Takes the same hostile step again and again, in an environment of this process, until it is stopped."""

    def __init__(self, repos: Path, backend: str, command: str, seconds: float) -> None:
        super().__init__(name="attack")
        self.env = _environment(repos, backend, turn_timeout_s=seconds)
        self.steps = 0
        self.ended: set[str] = set()  # why its episodes ended
        self.error = ""
        self._command = command
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """The hostile steps; an exception is kept, since no command of an agent may cause one."""
        try:
            while not self._stop_asked.is_set():
                _, _, terminated, truncated, info = self.env.step(self._command)
                self.steps += 1
                if terminated or truncated:
                    outcome = "valid" if info["valid"] else f"invalid: {info['failure_reason']}"
                    self.ended.add(f"{info['end_reason']}, {outcome}")
                    self.env.reset(seed=0)
        except Exception as error:  # noqa: BLE001 - reported with the results
            self.error = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """End after the current step."""
        self._stop_asked.set()
        self.join()
        self.env.close()


def measure(backend: str, chosen: Sequence[str], repos: Path, seconds: float, neighbours: int) -> list[dict[str, Any]]:
    """One entry for each hostile way."""
    found = []
    pool = ThreadPoolExecutor(neighbours)
    honest = [Neighbour(repos, backend, PERIOD_S * number / neighbours) for number in range(neighbours)]

    def play() -> list[float]:
        return [each for taken in pool.map(lambda one: one.play(seconds), honest) for each in taken]

    try:
        play()
        for name in chosen:
            before = play()
            failed = sum(one.failures for one in honest)
            attack = Attack(repos, backend, HOSTILE[name], seconds / 2)
            attack.start()
            during = play()
            attack.stop()
            failed = sum(one.failures for one in honest) - failed
            after = play()
            alone = float(np.percentile(before + after, 99))
            entry = {
                "sandbox": backend,
                "attack": name,
                "p99_alone_ms": round(alone, 2),
                "p99_beside_ms": round(float(np.percentile(during, 99)), 2),
                "ratio": round(float(np.percentile(during, 99)) / alone, 2),
                "median_alone_ms": round(float(np.median(before + after)), 2),
                "median_beside_ms": round(float(np.median(during)), 2),
                "honest_steps": len(during),
                "honest_failures": failed,
                "hostile_steps": attack.steps,
                "hostile_episodes_ended": sorted(attack.ended),
                "exception_from_step": attack.error,
            }
            print(json.dumps(entry), flush=True)
            found.append(entry)
    finally:
        pool.shutdown()
        for one in honest:
            one.env.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", choices=LOCAL_BACKENDS, help="this back end alone")
    parser.add_argument("--only", help="some of: " + ",".join(HOSTILE))
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement (default 8)")
    parser.add_argument("--neighbours", type=int, default=31)
    parser.add_argument("--output", type=Path, help="by default benchmarks/results/neighbours.json for a whole run")
    options = parser.parse_args()
    chosen = chosen_of(parser, "--only", options.only, HOSTILE)
    whole = not options.only and not options.sandbox
    with tempfile.TemporaryDirectory(prefix="swegym-bench-") as place:
        os.chmod(place, 0o755)
        os.environ["SWEGYM_WORKDIR"] = place
        found = []
        for backend in [options.sandbox] if options.sandbox else LOCAL_BACKENDS:
            if reason := make_backend(backend).problem(fresh=True):
                print(f"{backend} is left out: {reason}", file=sys.stderr)
                continue
            found += measure(backend, chosen, Path(place, "repos"), options.seconds, options.neighbours)
        end_all()
    if whole or options.output:
        path = options.output or RESULTS / "neighbours.json"
        write_results("neighbours", [], ratios={}, packages=["gymnasium"], path=path, attacks=found)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
