"""What 200 deaths leave: owners of sandboxes are killed at random moments, then everything is counted.

An owner opens, forks and closes sandboxes in a loop; SIGKILL meets it after 0 to 0.4 s. Both back ends, and both with
fuse-overlayfs in place of the kernel's overlay where it is installed. Counted afterwards, against before: directories
and processes of sandboxes, control groups, mounts, loop devices, FUSE daemons. Writes benchmarks/results/reaping.json,
and fails if anything is left.

    python -m benchmarks.reaping [--deaths 200]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

from benchmarks.records import Row, write_results
from benchmarks.waiting import wait_until
from swegym_env.sandbox.selection import BACKENDS, try_backend
from swegym_env.sandbox.supervisor.cgroups import existing_groups

ROOT = Path(__file__).parents[1]
OWNER = """
import sys
from swegym_env.sandbox import SandboxSpec, open_sandbox

sandboxes = []
print("begin", flush=True)
while True:
    sandbox = open_sandbox(SandboxSpec(), backend=sys.argv[1])
    sandbox.start()
    sandbox.run("setsid sleep 1000 & nohup sleep 1000 & mkdir -m 000 shut; echo $$")
    sandboxes.append(sandbox)
    sandboxes.append(sandbox.fork())
    if len(sandboxes) > 5:
        sandboxes.pop(0).close()
"""
PATIENCE_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill owners of sandboxes at random moments, and count what is left.")
    parser.add_argument("--deaths", type=int, default=200, help="how many, over all back ends")
    deaths = parser.parse_args().deaths
    cases = [(name, without) for name in BACKENDS if not try_backend(name) for without in ("", "overlay")]
    if shutil.which("fuse-overlayfs") is None:
        cases = [(name, without) for name, without in cases if not without]
    place = Path(tempfile.mkdtemp(prefix="swegym-bench-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    place.chmod(0o711)
    chance = random.Random(0)
    began = time.monotonic()
    before = left(place)
    try:
        for number in track(range(deaths), description="deaths"):
            backend, without = cases[number % len(cases)]
            kill_one_owner(place / f"{backend}-{without or 'all'}", backend, without, chance.uniform(0, 0.4))
        killed = time.monotonic()
        clean = wait_until(lambda: left(place) == before, PATIENCE_S)
        seconds = time.monotonic() - killed
        after = left(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    rows = []
    for what in before:
        count = after[what] - before[what]
        rows.append(Row(what, "left", "count", count, count, count, deaths))
    ratios = {"deaths": deaths, "seconds_until_clean": round(seconds, 2)}
    write_results("reaping", rows, ratios=ratios, packages=["gymnasium"])
    for row in rows:
        print(f"{row.case:20} {row.median:g} left after {deaths} deaths")
    told = ", ".join(f"{name} without {without}" if without else name for name, without in cases)
    print(f"{time.monotonic() - began:.0f} s; {told}")
    return 0 if clean else 1


def kill_one_owner(place: Path, backend: str, without: str, after_s: float) -> None:
    place.mkdir(mode=0o711, exist_ok=True)
    environment = os.environ | {"SWEGYM_RUNDIR": str(place), "SWEGYM_WITHOUT": without, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER, backend], env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"begin\n"
        time.sleep(after_s)
        owner.kill()


def left(place: Path) -> dict[str, int]:
    """What there is now of everything that a sandbox is made of."""
    processes = daemons = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            daemons += Path("/proc", pid, "comm").read_text().strip() == "fuse-overlayfs"
            processes += f"{place}/" in Path("/proc", pid, "mountinfo").read_text()
        except OSError:
            continue
    return {
        "directories": sum(len([path for path in inner.iterdir() if path.is_dir()]) for inner in place.iterdir()),
        "processes": processes,
        "control groups": sum(not Path(f"/proc/{name.split('-')[0]}").exists() for name in existing_groups()),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "loop devices": len(list(Path("/sys/block").glob("loop*/loop"))),
        "FUSE daemons": daemons,
    }


if __name__ == "__main__":
    sys.exit(main())
