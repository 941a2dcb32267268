"""The first bottleneck of 10, 100 and 1,000 sandbox hosts: a discrete-event simulation of rollouts.

The costs of sandboxes, grading and servers come from `env.json`, `grading.json` and `remote.json` in
`benchmarks/results`; what one machine cannot measure is an assumption, named in `Assumptions` and written with the
results. The simulation is first checked against Erlang's formula and against the measurements in `remote.json`.

An episode is: a lease from the pool → the image, if the host lacks it → start on a host → turns of (queue for a
generation slot → generate → queue for a core → run a command) → grading on the same host. Hosts fail with their
episodes and return after a while; so do generation servers, whose requests wait. `make bench-scale`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, Row, row, write_results
from benchmarks.simulation import Process, Station, Visit, World, erlang_c_wait_s, m_m_c

_LOOK_S = 0.25  # how often an episode looks whether the image that another one pulls is there


@dataclass(frozen=True)
class Assumptions:
    """The assumptions of the simulation.

    Attributes:
        sandboxes_per_host, cores_per_host: of a sandbox host.
        turns: of an episode.
        command_s: CPU time of a command on one core (tests, searches, builds); exponentially distributed.
        tests_s: a task's own tests in grading.
        tokens_per_turn: sampled; exponentially distributed.
        tokens_per_s: of one generation server (a replica of one model over its GPUs) with all its slots busy.
        slots_per_server: concurrent sequences of a server.
        gpus_per_server: GPUs of a generation server.
        image_bytes, link_bytes_per_s, registry_bytes_per_s: the first episode of a task on a host pulls its image
            over the host's link from one of `registries`.
        tasks: number of tasks, sampled uniformly.
        disk_images: images that fit on a host.
        host_hours_between_failures: of one host; its episodes become invalid.
        host_away_s: downtime; it returns without images.
        server_hours_between_failures, server_away_s: of a generation server; its requests wait.
    """

    sandboxes_per_host: int = 20
    cores_per_host: int = 16
    turns: int = 30
    command_s: float = 2.0
    tests_s: float = 30.0
    tokens_per_turn: int = 300
    tokens_per_s: float = 4000.0
    slots_per_server: int = 128
    gpus_per_server: int = 2
    image_bytes: float = 5e8
    link_bytes_per_s: float = 1.25e9
    registry_bytes_per_s: float = 2.5e9
    registries: int = 1
    tasks: int = 500
    disk_images: int = 500
    host_hours_between_failures: float = 1000.0
    host_away_s: float = 600.0
    server_hours_between_failures: float = 200.0
    server_away_s: float = 180.0


@dataclass(frozen=True)
class Costs:
    """What was measured, in seconds.

    Attributes:
        reset: starting an episode's sandbox.
        step: of the environment, beyond the command.
        grading: beyond the tests.
        lease: CPU time of the pool for one container.
        relayed: CPU time of the pool for a relayed command; 0 for direct commands.
    """

    reset: float
    step: float
    grading: float
    lease: float
    relayed: float = 0.0


def results(name: str) -> dict[tuple[str, str], float]:
    """The medians of a results file, by case and metric."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return {(each["case"], each["metric"]): each["median"] for each in rows}


def measured() -> Costs:
    """The costs in the committed results, for a pool that relays."""
    env, grading, remote = results("env"), results("grading"), results("remote")
    return Costs(
        reset=env["apptainer", "reset, 6,000 files"] / 1e3,
        step=env["apptainer", "step, two files changed"] / 1e3,
        grading=grading["official", "beyond the tests, controls apart"],
        lease=remote["pool", "lease, pool"] / 1e3,
        relayed=remote["relay", "command, pool"] / 1e3,
    )


class Fleet:
    """Hosts, the stations between them, and an endless sequence of episodes.

    Args:
        hosts, gpus: numbers.
        costs: measured.
        given: assumed.
        images_there: hosts start with the tasks' images, else without.
        seed: of the random numbers.
    """

    def __init__(
        self, hosts: int, gpus: int, costs: Costs, given: Assumptions, *, images_there: bool, seed: int
    ) -> None:
        self.world, self.costs, self.given = World(seed), costs, given
        servers = max(1, gpus // given.gpus_per_server)
        self.pool, self.registry = Station(1), Station(given.registries)
        self.generation = Station(servers * given.slots_per_server)
        self.cores = [Station(given.cores_per_host) for _ in range(hosts)]
        self.links = [Station(1) for _ in range(hosts)]
        stored = range(min(given.tasks, given.disk_images)) if images_there else ()
        self.images = [dict.fromkeys(stored) for _ in range(hosts)]
        self.pulled: list[set[int]] = [set() for _ in range(hosts)]  # images on their way
        self.deaths = [0] * hosts
        self.back_at = [0.0] * hosts
        self.valid = self.invalid = 0
        for host in range(hosts):
            self.world.begin(self._failures(host))
            for _ in range(given.sandboxes_per_host):
                self.world.begin(self._place(host), self.world.random.uniform(0, 60))
        for _ in range(servers):
            self.world.begin(self._outages())

    def _failures(self, host: int) -> Process:
        while True:
            yield None, self.world.random.expovariate(1 / (self.given.host_hours_between_failures * 3600))
            self.deaths[host] += 1
            self.images[host].clear()
            self.back_at[host] = self.world.now + self.given.host_away_s

    def _outages(self) -> Process:
        """Outages of a generation server: its slots are occupied during the downtime."""
        while True:
            yield None, self.world.random.expovariate(1 / (self.given.server_hours_between_failures * 3600))
            for _ in range(self.given.slots_per_server):
                self.world.begin(self._outage())

    def _outage(self) -> Process:
        yield self.generation, self.given.server_away_s

    def _place(self, host: int) -> Process:
        """One sandbox slot: episodes one after another."""
        while True:
            while (away_s := self.back_at[host] - self.world.now) > 0:  # it may fail again before that
                yield None, away_s
            life = self.deaths[host]
            for visit in self._episode(host):
                yield visit
                if self.deaths[host] != life:
                    self.invalid += 1
                    break
            else:
                self.valid += 1

    def _episode(self, host: int) -> Iterator[Visit]:
        given, costs, draw = self.given, self.costs, self.world.random.expovariate
        cores, generation, pool = self.cores[host], self.generation, self.pool
        yield pool, costs.lease
        task = self.world.random.randrange(given.tasks)
        while task in self.pulled[host]:
            yield None, _LOOK_S
        if task not in self.images[host]:
            self.pulled[host].add(task)
            try:
                yield self.registry, given.image_bytes / given.registry_bytes_per_s
                yield self.links[host], given.image_bytes / given.link_bytes_per_s
            finally:  # also where the host fails meanwhile
                self.pulled[host].remove(task)
            self._keep(host, task)
        yield cores, costs.reset
        generating, commanding = (
            given.tokens_per_s / given.slots_per_server / given.tokens_per_turn,
            1 / given.command_s,
        )
        for _ in range(given.turns):
            yield generation, draw(generating)
            if costs.relayed:
                yield pool, costs.relayed
            yield cores, costs.step + draw(commanding)
        yield cores, costs.grading + given.tests_s

    def _keep(self, host: int, task: int) -> None:
        kept = self.images[host]
        kept[task] = None
        if len(kept) > self.given.disk_images:
            del kept[next(iter(kept))]

    def stations(self) -> dict[str, list[Station]]:
        """All stations, by type."""
        alone = {"pool": [self.pool], "registry": [self.registry], "generation": [self.generation]}
        return {**alone, "cores": self.cores, "links": self.links}


def simulate(
    hosts: int,
    gpus: int,
    costs: Costs,
    given: Assumptions,
    *,
    images_there: bool,
    hours: float,
    seed: int,
    warm_up_hours: float = 0.0,
) -> dict[str, Any]:
    """Simulate a `Fleet` for some hours, counted after a warm-up.

    Returns:
        Valid episodes per hour, the fraction of invalid ones, utilisation and mean wait in seconds of each type of
        station, and the busiest type.
    """
    fleet = Fleet(hosts, gpus, costs, given, images_there=images_there, seed=seed)
    kinds = fleet.stations()
    fleet.world.run(warm_up_hours * 3600)
    fleet.valid = fleet.invalid = 0
    for parts in kinds.values():
        for part in parts:
            part.forget()
    fleet.world.run((warm_up_hours + hours) * 3600)

    def summary(parts: list[Station]) -> dict[str, float]:
        return {
            "busy": sum(part.busy_s for part in parts) / (sum(part.servers for part in parts) * hours * 3600),
            "mean_wait_s": sum(part.waited_s for part in parts) / max(1, sum(part.visits for part in parts)),
        }

    stations = {name: summary(parts) for name, parts in kinds.items()}
    return {
        "episodes_per_hour": fleet.valid / hours,
        "invalid_share": fleet.invalid / max(1, fleet.valid + fleet.invalid),
        "stations": stations,
        "bottleneck": max(stations, key=lambda name: stations[name]["busy"]),
    }


def closed_rate(clients: int, parts_s: Sequence[float], cores: int, *, seconds: float, seed: int) -> float:
    """Commands per second of clients that send the next command after each response, as in `bench-remote`.

    Args:
        clients: number.
        parts_s: CPU time of a command in each process that it passes, all on the same machine.
        cores: of the machine.
        seconds: simulated.
        seed: of the random numbers.
    """
    world, machine, done = World(seed), Station(cores), Station(1)

    def client() -> Process:
        while True:
            for part_s in parts_s:
                yield machine, world.random.expovariate(1 / part_s)
            yield done, 0.0

    for _ in range(clients):
        world.begin(client())
    world.run(seconds)
    return done.visits / seconds


def checks() -> tuple[list[Row], dict[str, float]]:
    """The ratios of the simulation to Erlang's formula and to the closed loads of `bench-remote`."""
    rows, ratios = [], {}
    for servers, load in ((1, 0.5), (8, 0.8), (128, 0.9)):
        expected = erlang_c_wait_s(servers, servers * load, 1.0)
        found = m_m_c(servers, servers * load, 1.0, seconds=1_200_000 / servers, seed=0)
        case = f"M/M/{servers} at load {load:g}"
        rows += [row(case, "mean wait, Erlang", "services", [expected]), row(case, "simulated", "services", [found])]
        ratios[f"{case}, simulated / Erlang"] = found / expected
    remote = results("remote")
    cores = json.loads((RESULTS / "remote.json").read_text())["machine"]["cores"]
    for name in ("pool", "relay"):
        parts = [remote[name, f"command, {part}"] / 1e3 for part in ("client", "pool", "server", "sandboxes")]
        real = remote[f"{name}, closed", "rate"]
        found = closed_rate(64, [part for part in parts if part], cores, seconds=20, seed=0)
        case = f"64 clients, closed, {name}"
        rows += [row(case, "measured", "commands/s", [real]), row(case, "simulated", "commands/s", [found])]
        ratios[f"{case}, simulated / measured"] = found / real
    return rows, ratios


@dataclass(frozen=True)
class Case:
    """A fleet.

    Attributes:
        hosts, gpus: numbers; GPUs for generation.
        images_there: images are on the hosts at the start.
        registries: number of registries.
        relay: the pool relays commands.
    """

    hosts: int
    gpus: int
    images_there: bool = True
    registries: int = 1
    relay: bool = False

    def __str__(self) -> str:
        images = "images there" if self.images_there else f"images from {self.registries}"
        return f"{self.hosts} hosts, {self.gpus} GPUs, {images}{', relayed' if self.relay else ''}"


FLEETS = (
    Case(10, 16),
    Case(10, 2),
    Case(100, 64),
    Case(100, 16),
    Case(1000, 512),
    Case(1000, 512, relay=True),
    Case(1000, 64),
    Case(1000, 512, images_there=False),
    Case(1000, 512, images_there=False, registries=20),
)


def play(case: Case, costs: Costs, given: Assumptions, *, hours: float, warm_up_hours: float) -> list[Row]:
    """The result rows of one fleet."""
    began = time.monotonic()
    found = simulate(
        case.hosts,
        case.gpus,
        costs if case.relay else replace(costs, relayed=0.0),
        replace(given, registries=case.registries),
        images_there=case.images_there,
        hours=hours,
        warm_up_hours=warm_up_hours,
        seed=0,
    )
    rows = [
        row(str(case), "valid episodes", "1/h", [found["episodes_per_hour"]]),
        row(str(case), "invalid episodes", "share", [found["invalid_share"]]),
        row(str(case), f"busiest: {found['bottleneck']}", "share", [found["stations"][found["bottleneck"]]["busy"]]),
    ]
    for name, station in found["stations"].items():
        rows.append(row(str(case), f"{name} busy", "share", [station["busy"]]))
        rows.append(row(str(case), f"{name} mean wait", "s", [station["mean_wait_s"]]))
    rows.append(row(str(case), "simulating", "s", [time.monotonic() - began]))
    busy = ", ".join(f"{name} {station['busy']:.1%}" for name, station in found["stations"].items())
    print(f"{case}: {found['episodes_per_hour']:.0f} episodes/h; {busy}", flush=True)
    return rows


def main() -> int:
    """Check the simulation, simulate the fleets and write `benchmarks/results/scale.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=0.5, help="counted, of each fleet (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=0.25, help="hours before (%(default)s)")
    parser.add_argument("--most-hosts", type=int, default=1000, help="leave out what is larger")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    costs, given = measured(), Assumptions()
    rows, ratios = checks()
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.3f}", flush=True)
    for case in FLEETS:
        if case.hosts <= options.most_hosts:
            rows += play(case, costs, given, hours=options.hours, warm_up_hours=options.warm_up)
    rows += [row("assumed", name, "", [float(value)]) for name, value in asdict(given).items()]
    rows += [row("measured", name, "s", [value]) for name, value in asdict(costs).items()]
    write_results("scale", rows, ratios=ratios, packages=(), path=options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
