"""The simulation of clusters against queueing theory and hand-computed cases."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from benchmarks.scale_simulation import Assumptions, Costs, closed_rate, measured, simulate
from benchmarks.simulation import Process, Station, World, erlang_c_wait_s, m_m_c
from tests.programs import ROOT

COSTS = Costs(reset=0.0, step=0.0, grading=0.0, lease=0.0)
ONE = Assumptions(
    sandboxes_per_host=1, turns=10, command_s=1e-9, tests_s=10.0, tokens_per_turn=100,
    tokens_per_s=1280.0, slots_per_server=128, host_hours_between_failures=1e9,
    server_hours_between_failures=1e9,
)  # fmt: skip


def test_utilization_of_a_single_server_equals_its_load() -> None:
    """M/D/1 at load 0.5: busy half of the time, and the mean wait is half a service (Pollaczek and Khinchine)."""
    world, station = World(0), Station(1)

    def customer() -> Process:
        yield station, 1.0

    def arrivals() -> Process:
        while True:
            yield None, world.random.expovariate(0.5)
            world.begin(customer())

    world.begin(arrivals())
    world.run(60_000)
    assert station.busy_s / 60_000 == pytest.approx(0.5, rel=0.03)
    assert station.waited_s / station.visits == pytest.approx(0.5, rel=0.06)


@pytest.mark.parametrize(
    ("servers", "load", "wait"),
    [
        (1, 0.5, 1.0),  # load / (1 - load)
        (2, 0.8, 0.64 / 0.36),  # load² / (1 - load²)
        (4, 0.75, 0.50943 / 4 / 0.25),  # P(wait) of Erlang's tables: 0.5094
    ],
)
def test_waiting_times_match_erlang_c(servers: int, load: float, wait: float) -> None:
    assert erlang_c_wait_s(servers, servers * load, 1.0) == pytest.approx(wait, rel=1e-3)
    assert m_m_c(servers, servers * load, 1.0, seconds=120_000 / servers, seed=1) == pytest.approx(wait, rel=0.1)
    with pytest.raises(ValueError, match="load below"):
        erlang_c_wait_s(servers, servers, 1.0)


def test_closed_queue_reaches_the_capacity_of_the_machine() -> None:
    """Two cores and 64 clients without think time: 2 / (0.2 + 0.3 ms) commands a second."""
    assert closed_rate(64, [2e-4, 3e-4], 2, seconds=10, seed=0) == pytest.approx(4000, rel=0.02)


def test_episode_without_contention_takes_its_service_time() -> None:
    """10 turns of 100 tokens at 10 tokens a second and slot, and 10 s of tests: 110 s."""
    found = simulate(1, 2, COSTS, ONE, images_there=True, hours=100, seed=0)
    assert found["episodes_per_hour"] == pytest.approx(3600 / 110, rel=0.02)
    assert found["invalid_share"] == 0


def test_bottleneck_is_identified() -> None:
    few_slots = replace(ONE, slots_per_server=1, tokens_per_s=10.0, sandboxes_per_host=20)
    assert simulate(2, 2, COSTS, few_slots, images_there=True, hours=2, seed=0)["bottleneck"] == "generation"
    few_cores = replace(ONE, cores_per_host=1, sandboxes_per_host=20, tests_s=100.0)
    assert simulate(2, 2, COSTS, few_cores, images_there=True, hours=2, seed=0)["bottleneck"] == "cores"
    slow_registry = replace(ONE, registry_bytes_per_s=1e7)
    assert simulate(5, 2, COSTS, slow_registry, images_there=False, hours=2, seed=0)["bottleneck"] == "registry"


def test_an_image_is_pulled_once_and_nobody_starts_before_it_is_there() -> None:
    """20 episodes of 110 s, begun in the first minute, of one image that takes 1,000 s to pull."""
    given = replace(ONE, sandboxes_per_host=20, slots_per_server=20, tokens_per_s=200.0, cores_per_host=20)
    given = replace(given, tasks=1, image_bytes=1e9, link_bytes_per_s=1e6, registry_bytes_per_s=1e12)
    before = simulate(1, 2, COSTS, given, images_there=False, hours=1000 / 3600, seed=0)
    assert before["episodes_per_hour"] == 0
    after = simulate(1, 2, COSTS, given, images_there=False, hours=1400 / 3600, seed=0)
    assert after["episodes_per_hour"] * 1400 / 3600 >= 20
    assert after["stations"]["links"]["busy"] == pytest.approx(1000 / 1400)  # one pull


def test_dying_hosts_lose_their_episodes() -> None:
    """A host that dies every hour cuts an episode of 110 s short with probability about 1 − exp(−110/3600)."""
    given = replace(ONE, host_hours_between_failures=1.0, host_away_s=0.0)
    found = simulate(20, 2, COSTS, given, images_there=True, hours=50, seed=0)
    assert found["invalid_share"] == pytest.approx(0.030, abs=0.006)


def test_host_that_is_down_plays_no_episodes() -> None:
    """Failures every hour, each of half an hour: it is up where none came within the last half hour, exp(−1/2)."""
    given = replace(ONE, host_hours_between_failures=1.0, host_away_s=1800.0)
    always = simulate(20, 2, COSTS, ONE, images_there=True, hours=60, seed=0)["episodes_per_hour"]
    found = simulate(20, 2, COSTS, given, images_there=True, hours=60, seed=0)["episodes_per_hour"]
    assert found / always == pytest.approx(math.exp(-0.5), abs=0.04)


def test_measured_costs_equal_the_committed_results() -> None:
    """Each cost is the median of one row of a results file, converted to seconds by the row's own unit."""
    sources = {
        "reset": ("env", "apptainer", "reset, 6,000 files"),
        "step": ("env", "apptainer", "step, two files changed"),
        "grading": ("grading", "official", "beyond the tests, controls apart"),
        "lease": ("remote", "pool", "lease, pool"),
        "relayed": ("remote", "relay", "command, pool"),
    }
    costs = asdict(measured())
    assert set(costs) == set(sources)
    for name, (file, case, metric) in sources.items():
        rows = json.loads((ROOT / f"benchmarks/results/{file}.json").read_text(encoding="utf-8"))["rows"]
        (row,) = (row for row in rows if (row["case"], row["metric"]) == (case, metric))
        assert costs[name] == pytest.approx(row["median"] * {"s": 1.0, "ms": 1e-3, "ms of CPU": 1e-3}[row["unit"]]), (
            name
        )
