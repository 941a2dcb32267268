"""Plays 10,000 graded episodes and measures which resources grow; then kills 200 owners in the middle of episodes.

Each back end plays half of the episodes, on threads of one process, as training does: a reset, the gold patch, the
submission, the verdict, with the next sandbox started ahead. Before the first episode that counts and after every tenth
of them it is counted what the owner and its supervisor hold: memory (proportional set size), descriptors, mounts,
processes, control groups, and files of the run directory. What grew from the first tenth to the last is the result.

The owners that are killed play the same episodes. After each death it is counted what is left of its sandboxes, as
`benchmarks.reaping` does. Writes benchmarks/results/endurance.json, and fails if anything is left.

    python -m benchmarks.endurance [--episodes 10000] [--kills 200] [--threads 8] [--progress FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.evaluation import supervisors
from benchmarks.reaping import PATIENCE_S, Lines, place_for_sandboxes
from benchmarks.records import Row, row, write_results
from benchmarks.remains import USERS, left
from benchmarks.waiting import wait_until
from swegym_env.env import SWEBenchEnv
from swegym_env.files import write_atomically
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.client import end_all
from swegym_env.sandbox.linux.cgroups import existing_groups
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks

TASKS = 64  # of `mini-edit`
COUNTS = 10
SETTLED_S = 30.0
OWNER = """
import sys
from pathlib import Path
from benchmarks.endurance import played
for number in played(sys.argv[1], 10**9, threads=4):
    print("episode", flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="over all back ends")
    parser.add_argument("--kills", type=int, default=200, help="over all back ends")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--progress", type=Path, help="a file to continue from after an interruption")
    parser.add_argument("--output", type=Path, help="of the results (default benchmarks/results/endurance.json)")
    options = parser.parse_args()
    os.environ["SWEGYM_SUBUID"] = f"{USERS[0]}:{USERS[1]}"
    backends = [name for name in LOCAL_BACKENDS if not make_backend(name).problem(fresh=True)]
    progress = Progress.read(options.progress)
    each = options.episodes // len(backends)
    with place_for_sandboxes("") as place:
        for name in backends:
            if name not in progress.held:
                progress.held[name] = endure(name, each, options.threads, place)
                progress.write(options.progress)
        end_all()
    while progress.kills < options.kills:
        kill_owner(backends[progress.kills % len(backends)], progress)
        progress.write(options.progress)
    rows = [one for name, held in progress.held.items() for one in rows_of(f"{name}, {each} episodes", held)]
    rows += [
        Row("killed owners", f"{what} left", "", count, count, count, options.kills)
        for what, count in progress.remains.items()
    ]
    ratios = {"episodes": options.episodes, "kills": options.kills}
    write_results("endurance", rows, ratios=ratios, packages=["gymnasium"], path=options.output)
    for one in rows:
        print(f"{one.case:30} {one.metric:70} {one.median:8.1f} {one.unit}")
    return 1 if any(progress.remains.values()) else 0


@dataclass
class Progress:
    """What was found so far.

    Attributes:
        held: back end → what was held → its counts in the order of time.
        kills: owners killed.
        remains: what was left of all of them, by kind.
    """

    held: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    kills: int = 0
    remains: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None) -> Progress:
        """What an interrupted run has written; nothing where there is no file."""
        return cls() if path is None or not path.exists() else cls(**json.loads(path.read_text()))

    def write(self, path: Path | None) -> None:
        """Save it, where there is a file to save it in."""
        if path is not None:
            write_atomically(path, json.dumps(vars(self)))


def rows_of(case: str, held: dict[str, list[float]]) -> Iterator[Row]:
    """What was held, and what of it came after the first tenth of the episodes."""
    for what, values in held.items():
        unit = "MiB" if "memory" in what else ""
        yield row(case, what, unit, values)
        yield row(case, f"{what}, gained from the first tenth to the last", unit, [values[-1] - values[1]])


def endure(backend: str, episodes: int, threads: int, place: Path) -> dict[str, list[float]]:
    """What was held while a back end played its episodes, with `place` as run directory."""
    every = max(1, episodes // COUNTS)
    held: dict[str, list[float]] = defaultdict(list)
    for _ in played(backend, every, threads):  # builds layers, fills caches
        pass
    for _ in played(backend, episodes, threads, held=held, every=every, place=place):
        pass
    return dict(held)


def played(
    backend: str,
    episodes: int,
    threads: int,
    *,
    held: dict[str, list[float]] | None = None,
    every: int = 0,
    place: Path | None = None,
) -> Iterator[int]:
    """Graded episodes of `mini-edit`, yielded as they end.

    Args:
        backend: of the sandboxes.
        episodes: how many.
        threads: each has an environment.
        held: what is held is appended to it, at first and after each `every` episodes, while none is being played.
        place: the run directory.
    """
    tasks = list(load_tasks("mini-edit").shuffled(0)[:TASKS])
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(threads) as pool:
        envs = [
            stack.enter_context(contextlib.closing(SWEBenchEnv(tasks=tasks, sandbox=backend, action_format="raw")))
            for _ in range(threads)
        ]
        for number, env in enumerate(envs):
            env.reset(seed=number)

        def play(thread: int, count: int) -> int:
            env = envs[thread]
            for _ in range(count):
                env.reset()
                env.step(f"git apply <<'END'\n{env.task.patch}\nEND")
                info = env.step("submit")[4]
                if not info["resolved"]:
                    raise SystemExit(f"endurance: {env.task.instance_id}: {info['failure_reason']}")
            return count

        batch = every or threads
        if held is not None:
            count_held(held, place)
        for done in range(0, episodes, batch):
            size = min(batch, episodes - done)
            shares = [size // threads + (thread < size % threads) for thread in range(threads)]
            for count in pool.map(play, range(threads), shares):
                yield from range(count)
            if held is not None:
                count_held(held, place)


def count_held(held: dict[str, list[float]], place: Path | None) -> None:
    """Append what this process and its descendants hold, once nothing of closed sandboxes is being removed."""
    before: dict[str, float] = {}
    deadline = time.monotonic() + SETTLED_S
    while (now := _holdings(place)) != before and time.monotonic() < deadline:
        before = now
        time.sleep(1.0)
    for what, value in (now | _memory()).items():
        held[what].append(value)


def _holdings(place: Path | None) -> dict[str, float]:
    below, own = descendants(os.getpid()), supervisors()
    files = 0
    if place is not None:
        files = sum(len(names) + len(folders) for _, folders, names in os.walk(place))
    return {
        "descriptors of the owner": len(os.listdir("/proc/self/fd")),
        "descriptors of the supervisor": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in own),
        "mounts of the supervisor": sum(_read(f"/proc/{pid}/mountinfo").count(b"\n") for pid in own),
        "processes": len(below),
        "control groups": sum(int(name.split("-")[0]) == os.getpid() for name in existing_groups()),
        "files of the run directory": files,
    }


def _memory() -> dict[str, float]:
    return {
        "memory of the owner": _proportional_mib([os.getpid()]),
        "memory of the supervisor": _proportional_mib(supervisors()),
    }


def _proportional_mib(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                total += int(line.split()[1])
    return total / 1024


def _read(path: str) -> bytes:
    """A file of `/proc`; empty where its process has ended."""
    with contextlib.suppress(OSError):
        return Path(path).read_bytes()
    return b""


def kill_owner(backend: str, progress: Progress) -> None:
    """Kill an owner between a reset and a verdict, as it happens, and count what is left of it."""
    number = progress.kills
    with place_for_sandboxes("") as place:
        with subprocess.Popen([sys.executable, "-c", OWNER, backend], stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            if not Lines(owner.stdout.fileno()).another("episode"):
                owner.kill()
                raise SystemExit(f"endurance: owner {number} played no episode")
            time.sleep(random.Random(number).uniform(0, 0.5))
            owner.kill()
        owners = {owner.pid}
        wait_until(lambda: not any(left(place, owners).values()), PATIENCE_S)
        found = left(place, owners)
    progress.kills += 1
    progress.remains = {what: progress.remains.get(what, 0) + count for what, count in found.items()}
    if any(found.values()):
        print(f"owner {number}: {found}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
