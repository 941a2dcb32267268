"""How graded episodes per second grow with cores: parts measured here, a simulation of 8, 64 and 192 cores.

Measured on this machine, by processor time of an episode of `mini-edit` (a reset, the gold patch, the verdict):

    owner        this process: one interpreter, which runs one thread at a time
    supervisor   the process that starts and removes this owner's sandboxes, one request at a time
    kernel       making and removing mounts and their namespaces, for which the kernel has one lock on the machine: the
                 system time of a process that does only that, as often as an episode does; an upper estimate
    sandboxes    everything else: commands, tests, the first processes of sandboxes

In the simulation an episode visits these in turn. Each owner has an interpreter and a supervisor of its own, the
machine has one lock, and the rest is shared by the cores that owners and supervisors leave. What is busy most of the
time is what limits the rate. Writes benchmarks/results/cores.json.

    python -m benchmarks.cores [--episodes 64] [--cores 8,64,192]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.endurance import played
from benchmarks.evaluation import Account, cpu_seconds, supervisors
from benchmarks.records import Row, row, write_results
from benchmarks.simulation import Process, Station, World
from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.client import end_all
from swegym_env.sandbox.linux import kernel

SANDBOXES_PER_EPISODE = 2  # the agent's and that of grading
MOUNTS_PER_SANDBOX = 14  # layers, devices, processes, masked files, shared memory
SLICES = 6  # turns between owner, supervisor and sandboxes
ROUNDS = 5
OWNERS = (1, 2, 4, 8, 16, 32)
SIMULATED_S = 60.0


@dataclass(frozen=True)
class Costs:
    """Processor seconds of one episode, by who spends them."""

    owner: float
    supervisor: float
    kernel: float
    sandboxes: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64, help="of a round")
    parser.add_argument("--cores", default="8,64,192")
    options = parser.parse_args()
    account = Account()  # before the supervisor, which is counted by the group that it starts in
    backend = next(name for name in LOCAL_BACKENDS if not make_backend(name).problem(fresh=True))
    rounds = measure(backend, options.episodes, account)
    end_all()
    account.close()
    costs = Costs(
        *(statistics.median(values) for values in zip(*(vars(each).values() for each in rounds), strict=True))
    )
    rows = [
        row(
            f"measured, {backend}",
            f"{name}: processor time of an episode",
            "ms",
            [vars(each)[name] * 1e3 for each in rounds],
        )
        for name in vars(costs)
    ]
    ratios: dict[str, float] = {}
    for cores in map(int, options.cores.split(",")):
        for owners in OWNERS:
            if owners * 2 < cores:
                rate, busy = simulate(costs, cores, owners)
                limit = max(busy, key=busy.__getitem__)
                case = f"simulated, {cores} cores, {owners} owners"
                rows.append(Row(case, "episodes per second", "1/s", rate, rate, rate, 1))
                rows += [Row(case, f"{name} busy", "", share, share, share, 1) for name, share in busy.items()]
                ratios[f"{case}: of what the cores could do"] = rate * sum(vars(costs).values()) / cores
                print(f"{case:40} {rate:8.1f} episodes/s, limited by {limit} ({busy[limit]:.0%} busy)")
    write_results("cores", rows, ratios=ratios, packages=["gymnasium"], backend=backend)
    return 0


def measure(backend: str, episodes: int, account: Account) -> list[Costs]:
    """Rounds of episodes, one at a time."""
    found: list[Costs] = []
    for _ in played(backend, episodes, 1):  # builds layers, fills caches
        pass
    for _ in range(ROUNDS):
        before = account.seconds(), _own_s(), _supervisors_s()
        for _ in played(backend, episodes, 1):
            pass
        all_s, owner_s, supervisor_s = (
            (now - then) / episodes
            for now, then in zip((account.seconds(), _own_s(), _supervisors_s()), before, strict=True)
        )
        kernel_s = _mounting_s() * SANDBOXES_PER_EPISODE
        found.append(Costs(owner_s, supervisor_s, kernel_s, all_s - owner_s - supervisor_s - kernel_s))
    return found


def _own_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _supervisors_s() -> float:
    return sum(cpu_seconds(pid)[0] for pid in supervisors())


def _mounting_s(times: int = 100) -> float:
    """System time of making and removing the mounts of a sandbox in a namespace of their own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
            kernel.make_private()
            began = resource.getrusage(resource.RUSAGE_SELF).ru_stime
            for _ in range(times):
                kernel.unshare(kernel.CLONE_NEWNS)
                for _ in range(MOUNTS_PER_SANDBOX):
                    kernel.mount("none", "/tmp", "tmpfs", 0, "size=64k")
                for _ in range(MOUNTS_PER_SANDBOX):
                    kernel.unmount("/tmp")
            spent = resource.getrusage(resource.RUSAGE_SELF).ru_stime - began
            os.write(write, f"{spent / times}".encode())
        finally:
            os._exit(0)
    os.close(write)
    text = os.read(read, 100)
    os.close(read)
    os.waitpid(child, 0)
    return float(text)


def simulate(costs: Costs, cores: int, owners: int) -> tuple[float, dict[str, float]]:
    """Episodes per second with two episodes under way for each core, and which share of the time each part is busy."""
    world = World(0)
    shared = Station(max(1, cores - 2 * owners))
    lock = Station(1)
    interpreters, starters = ([Station(1) for _ in range(owners)] for _ in range(2))
    done = [0]

    def play(owner: int) -> Process:
        while True:
            for _ in range(SLICES):
                for place, seconds in (
                    (interpreters[owner], costs.owner),
                    (starters[owner], costs.supervisor),
                    (lock, costs.kernel),
                    (shared, costs.sandboxes),
                ):
                    yield place, world.random.expovariate(SLICES / seconds)
            done[0] += 1

    for number in range(2 * cores):
        world.begin(play(number % owners))
    world.run(SIMULATED_S / 10)
    for station in (shared, lock, *interpreters, *starters):
        station.forget()
    done[0] = 0
    began = world.now
    world.run(began + SIMULATED_S)
    return done[0] / SIMULATED_S, {
        "owners": _busy(interpreters),
        "supervisors": _busy(starters),
        "kernel": _busy([lock]),
        "cores": _busy([shared]),
    }


def _busy(stations: Sequence[Station]) -> float:
    return sum(each.busy_s for each in stations) / (SIMULATED_S * sum(each.servers for each in stations))


if __name__ == "__main__":
    sys.exit(main())
