"""Kills what sandboxes consist of at random moments, 500 times, and counts what is left and what was lost.

Two kinds of rounds alternate, on both back ends, and on both with fuse-overlayfs instead of the kernel's overlay if it
is installed:

owner
    A process opens, forks and closes sandboxes in a loop. SIGKILL goes to the shell of one of its sandboxes, to the
    first process of one, to Apptainer's own process beside it, or to its supervisor: the owner goes on with another
    shell or another sandbox. In the end it goes to the owner, or to owner and supervisor at once.
services
    Two servers, a pool of them, and two clients with three sandboxes each, which number their commands. SIGKILL goes to
    a server, the pool, a client, or parts of a server's sandboxes as above. Servers and pool start again at the same
    address. In the end all are killed.

Where a supervisor was killed with its owner, garbage collection follows. After every round nothing may be left of it:
directories, processes, control groups, mounts, loop devices, FUSE daemons and keys are counted. An owner or a client
that did not go on, a sandbox that a client lost though nothing of its server was killed, and a command that ran twice
or was acknowledged without having run are counted too. Writes benchmarks/results/reaping.json, and fails if any of
these counts is not 0.

    python -m benchmarks.reaping [--kills 500] [--progress FILE] [--output FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from benchmarks.chaos.fleet import Fleet, Kept
from benchmarks.records import Row, write_results
from benchmarks.remains import USERS, comm_of, left
from benchmarks.waiting import wait_until
from swegym_env.files import write_atomically
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.linux.processes import descendants, kill_one

ROOT = Path(__file__).parents[1]
OWNER = """
import sys
from swegym_env.errors import SandboxError
from swegym_env.sandbox import SandboxSpec, open_sandbox

sandboxes = []
print("begin", flush=True)
while True:
    try:
        sandbox = open_sandbox(SandboxSpec(), backend=sys.argv[1])
        sandboxes.append(sandbox)
        sandbox.start()
        sandbox.run("setsid sleep 1000 & nohup sleep 1000 & mkdir -m 000 shut; echo $$")
        sandboxes.append(sandbox.fork())
        for each in sandboxes:
            each.run("echo text >> file")
    except SandboxError:  # what was killed took these with it
        for each in sandboxes:
            each.close()
        sandboxes.clear()
        continue
    print("sandbox", flush=True)
    if len(sandboxes) > 5:
        sandboxes.pop(0).close()
"""
CLIENT = """
import sys, threading
from swegym_env.errors import InfrastructureError
from swegym_env.sandbox import SandboxSpec, open_sandbox

COMMAND = "setsid sleep 1000 & echo {0} >>log; echo $(sort log | uniq -d) / $(wc -l <log)"

def play():
    while True:
        sandbox, node, ran = open_sandbox(SandboxSpec(workdir="/tmp"), backend=sys.argv[1]), "", 0
        try:
            sandbox.start()
            node = sandbox._route.server.url
            for number in range(1, 40):
                result = sandbox.run(COMMAND.format(number))
                if result.exit_code == 0:
                    ran += 1
                    # Before it bash may report a job that was killed in place of a shell: it was not yet its program.
                    twice, lines = result.output.splitlines()[-1].split("/")
                    # Without a number it was the shell of one of the two substitutions that was killed.
                    if twice.strip() or (lines.strip() and int(lines) < ran):
                        print("wrong", node, repr(result.output), ran, flush=True)
                    print("ran", node, flush=True)
        except InfrastructureError as error:
            print("lost" if node else "not-started", node, error, flush=True)
        finally:
            sandbox.close()

for _ in range(int(sys.argv[2])):
    threading.Thread(target=play).start()
"""
GARBAGE = "from swegym_env.sandbox.gc import collect_garbage; collect_garbage()"
PATIENCE_S = 60.0
PARTS = ("shell", "first process", "supervisor")
SERVICES = ("server", "pool")
LAST = ("owner", "owner and supervisor")
WRONG = (
    *("owners that did not go on", "clients that did not go on"),
    *("sandboxes lost without cause", "commands that ran twice or never"),
)
SERVERS, CLIENTS, SANDBOXES = 2, 2, 3
LEASE_S = 20.0
SERVICES_SHARE = 0.25  # of all kills, at least


@dataclass
class Tally:
    """What was killed, and what did not hold.

    Attributes:
        killed: by kind.
        wrong: by kind; all counts are to be 0.
        rounds: how many.
        commands: of clients, with a result.
        clean_s: the longest time until nothing was left of a round.
    """

    killed: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(WRONG, 0)))
    rounds: int = 0
    commands: int = 0
    clean_s: float = 0.0

    @property
    def services(self) -> int:
        """How many servers and pools were killed."""
        return sum(self.killed[name] for name in SERVICES)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill parts of sandboxes at random moments, and count what is left.")
    parser.add_argument("--kills", type=int, default=500, help="how many, over all back ends")
    parser.add_argument("--progress", type=Path, help="a file to continue from after an interruption")
    parser.add_argument("--output", type=Path, help="of the results (default benchmarks/results/reaping.json)")
    options = parser.parse_args()
    os.environ["SWEGYM_SUBUID"] = f"{USERS[0]}:{USERS[1]}"
    cases = [
        (name, without)
        for name in LOCAL_BACKENDS
        if not make_backend(name).problem(fresh=True)
        for without in ("", "overlay")
        if not without or shutil.which("fuse-overlayfs")
    ]
    tally = read_progress(options.progress)
    began = time.monotonic()
    with Progress() as progress:
        task = progress.add_task("kills", total=options.kills, completed=tally.killed.total())
        while tally.killed.total() < options.kills:
            backend, without = cases[tally.rounds % len(cases)]
            chance = random.Random(tally.rounds)
            with place_for_sandboxes(without) as place:
                few_services = tally.services <= SERVICES_SHARE * tally.killed.total()
                kill_round = kill_in_services if few_services else kill_in_one_owner
                owners = kill_round(backend, chance, tally)
                last = time.monotonic()
                wait_until(lambda: not any(left(place, owners).values()), PATIENCE_S)  # noqa: B023 - called here
                tally.clean_s = max(tally.clean_s, time.monotonic() - last)
                remains = left(place, owners)
            tally.wrong.update(remains)
            tally.rounds += 1
            if any(remains.values()):
                print(f"round {tally.rounds}, {backend} without {without or 'nothing'}: {remains}", file=sys.stderr)
            write_progress(options.progress, tally)
            progress.update(task, completed=tally.killed.total())
    total = tally.killed.total()
    rows = [Row(what, "left", "count", count, count, count, total) for what, count in tally.wrong.items()]
    ratios = {
        "kills": total,
        **{f"kills of {name}": count for name, count in tally.killed.items()},
        "rounds": tally.rounds,
        "commands": tally.commands,
        "seconds_until_clean": round(tally.clean_s, 2),
    }
    write_results("reaping", rows, ratios=ratios, packages=["gymnasium"], path=options.output)
    for row in rows:
        print(f"{row.case:50} {row.median:g} after {total} kills")
    names = ", ".join(f"{name} without {without}" if without else name for name, without in cases)
    print(f"{time.monotonic() - began:.0f} s; {names}; {dict(tally.killed)}")
    return 1 if tally.wrong.total() else 0


@contextmanager
def place_for_sandboxes(without: str) -> Iterator[Path]:
    """A run directory for the sandboxes of one round, and their environment, for all processes started meanwhile."""
    place = Path(tempfile.mkdtemp(prefix="swegym-bench-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    place.chmod(0o711)
    token = os.urandom(16).hex()
    wanted = {"SWEGYM_RUNDIR": str(place), "SWEGYM_WITHOUT": without, "SWEGYM_TOKEN": token, "PYTHONPATH": str(ROOT)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield place
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(place, ignore_errors=True)


def kill_in_one_owner(backend: str, chance: random.Random, tally: Tally) -> set[int]:
    """Kill parts of one owner's sandboxes, and the owner in the end; returns its process id."""
    with subprocess.Popen([sys.executable, "-c", OWNER, backend], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        lines = Lines(owner.stdout.fileno())
        went_on = lines.another("begin")
        for _ in range(chance.randrange(8)):
            went_on = went_on and lines.another("sandbox")
            time.sleep(chance.uniform(0, 0.2))
            kill_part(owner.pid, chance.choice(parts_of(backend)), chance, tally)
        went_on = went_on and lines.another("sandbox")
        time.sleep(chance.uniform(0, 0.4))
        last = chance.choice(LAST)
        if last == "owner and supervisor":
            for pid in find(owner.pid, "supervisor", chance):
                kill_one(pid)
        owner.kill()
        tally.killed[last] += 1
    tally.wrong[WRONG[0]] += not went_on
    if last == "owner and supervisor":
        subprocess.run([sys.executable, "-c", GARBAGE], check=True)
    return {owner.pid}


def kill_in_services(backend: str, chance: random.Random, tally: Tally) -> set[int]:
    """Kill servers, their pool, clients and sandboxes, and all in the end; returns the process ids of the servers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swegym-bench-")))
        token, arguments = os.environ["SWEGYM_TOKEN"], ("--sandbox", backend)
        capacity = CLIENTS * SANDBOXES * 2  # those of a killed client stay until their leases expire
        fleet = Fleet(folder, token, servers=SERVERS, capacity=capacity, lease_s=LEASE_S, arguments=arguments)
        stack.callback(fleet.close)
        clients = [stack.enter_context(closing(Client(fleet.pool.url))) for _ in range(CLIENTS)]
        killed: set[str] = set()  # servers of which something was killed that its sandboxes do not survive
        garbage = chance.random() < 0.3  # left by servers that were killed with their supervisors
        also_supervisors = garbage
        went_on = all(client.lines.another("ran") for client in clients)
        for _ in range(chance.randrange(5, 12)):
            time.sleep(chance.uniform(0, 1.0))
            part = chance.choice((*SERVICES, *SERVICES, *SERVICES, "client", *parts_of(backend)))
            if part == "client":
                client = clients.pop(0)
                client.close()
                count_lines(client, killed, tally)
                clients.append(stack.enter_context(closing(Client(fleet.pool.url))))
                tally.killed[part] += 1
            elif part in SERVICES:
                one = fleet.pool if part == "pool" else chance.choice(fleet.servers)
                if part == "server":
                    killed.add(one.url)
                one.kill()
                tally.killed[part] += 1
                time.sleep(chance.uniform(0, 0.5))
                come_back(one)
            else:
                one = chance.choice(fleet.servers)
                if part == "supervisor":
                    killed.add(one.url)
                    garbage = True  # unless the server had begun another sandbox since
                kill_part(one.served.process.pid, part, chance, tally)
            went_on = all(client.lines.another("ran") for client in clients) and went_on
            for client in clients:  # now: later there may be a cause
                count_lines(client, killed, tally)
        time.sleep(chance.uniform(0, 0.5))
        for client in clients:
            client.lines.read_new()
            count_lines(client, killed, tally)
        processes = [*fleet.servers, fleet.pool]
        chance.shuffle(processes)
        for one in processes:
            if also_supervisors and one is not fleet.pool:
                for pid in find(one.served.process.pid, "supervisor", chance):
                    kill_one(pid)
            killed.add(one.url)
            one.kill()
            tally.killed["pool" if one is fleet.pool else "server"] += 1
        for client in clients:
            client.close()
            count_lines(client, killed, tally)
    tally.wrong[WRONG[1]] += not went_on
    if garbage:
        subprocess.run([sys.executable, "-c", GARBAGE], check=True)
    return set().union(*(server.pids for server in fleet.servers))


class Lines:
    """What a process prints, read while it runs."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unfinished = b""
        self.all: list[str] = []

    def another(self, word: str) -> bool:
        """Whether a line that begins with `word` comes from now on; what was printed so far is read first."""
        self.read_new()
        seen, ends = len(self.all), time.monotonic() + PATIENCE_S
        while not any(line.startswith(word) for line in self.all[seen:]):
            left_s = ends - time.monotonic()
            if left_s < 0 or not select.select([self._descriptor], [], [], left_s)[0] or not self._read():
                return False
        return True

    def read_new(self) -> None:
        """Read what is there."""
        while select.select([self._descriptor], [], [], 0)[0] and self._read():
            pass

    def _read(self) -> bool:
        piece = os.read(self._descriptor, 1 << 16)
        *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
        self.all += [line.decode(errors="replace") for line in lines]
        return bool(piece)


class Client:
    """A process that uses sandboxes of a pool."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", CLIENT, url, str(SANDBOXES)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self.counted = 0
        self.lines = Lines(self._output.fileno())

    def close(self) -> None:
        """Kill it and read what it has printed; idempotent."""
        if self._output.closed:
            return
        self._process.kill()
        self._process.wait()
        self.lines.read_new()
        self._output.close()


def count_lines(client: Client, killed: set[str], tally: Tally) -> None:
    """Count what a client has lost, or got wrong, since it was counted last.

    Args:
        killed: addresses of the servers that may have lost sandboxes.
    """
    lines, client.counted = client.lines.all[client.counted :], len(client.lines.all)
    for line in lines:
        word, node, *_ = [*line.split(" "), ""]
        tally.commands += word == "ran"
        if word == "wrong" or (word == "lost" and node not in killed):
            tally.wrong[WRONG[3] if word == "wrong" else WRONG[2]] += 1
            print(line, file=sys.stderr)


def come_back(one: Kept) -> None:
    """Start a killed process again; another program may have its port for a moment."""
    for attempt in range(10):
        try:
            one.come_back()
            return
        except RuntimeError:
            if attempt == 9:
                raise
            time.sleep(1.0)


def parts_of(backend: str) -> tuple[str, ...]:
    """What of a sandbox can be killed."""
    return (*PARTS, "Apptainer") if backend == "apptainer" else PARTS


def kill_part(owner: int, part: str, chance: random.Random, tally: Tally) -> None:
    """Kill a part of the sandboxes of an owner, if there is one now."""
    for pid in find(owner, part, chance):
        kill_one(pid)
        tally.killed[part] += 1


def find(owner: int, part: str, chance: random.Random) -> list[int]:
    """The process to kill; none where it has ended meanwhile."""
    for supervisor in named(descendants(owner), b"linux.supervisor"):
        containers = [pid for pid in descendants(supervisor) if parent_of(pid) == supervisor]
        if part == "supervisor":
            return [supervisor]
        if part == "Apptainer":  # while it starts, `apptainer exec`; later, what waits for the program
            runtimes = [
                pid for pid in descendants(supervisor) if comm_of(pid) in ("apptainer", "starter", "starter-suid")
            ]
            return runtimes[-1:]
        if not containers:
            break
        container = chance.choice(containers)
        if part == "first process":
            return [container]
        inside = descendants(container)
        return named(inside, b"--norc")[-1:]
    return []


def named(pids: list[int], word: bytes) -> list[int]:
    """Those with a word in their command line."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if word in Path("/proc", str(pid), "cmdline").read_bytes():
                found.append(pid)
    return found


def parent_of(pid: int) -> int:
    """The id of its parent; 0 where it has ended."""
    with contextlib.suppress(OSError):
        return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def read_progress(path: Path | None) -> Tally:
    """What an interrupted run has counted."""
    if path is None or not path.exists():
        return Tally()
    read = json.loads(path.read_text())
    return Tally(Counter(read["killed"]), Counter(read["wrong"]), read["rounds"], read["commands"], read["clean_s"])


def write_progress(path: Path | None, tally: Tally) -> None:
    """Save the counts."""
    if path is not None:
        write_atomically(path, json.dumps(vars(tally)))


if __name__ == "__main__":
    sys.exit(main())
