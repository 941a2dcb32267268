"""A small discrete-event simulation: a clock, stations with one queue each, and processes that visit them.

A process is a generator that yields a station and a service time; `None` as the station is a pure delay. Queueing
theory for single stations, `erlang_c_wait_s`, checks it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Process", "Station", "Visit", "World", "erlang_c_wait_s", "m_m_c"]


@dataclass(eq=False)
class Station:
    """Some servers with one first-come-first-served queue; counts busy and waiting time.

    Attributes:
        servers: number.
        busy_s: total service time started.
        waited_s: total time before service.
    """

    servers: int
    free: int = field(init=False)
    waiting: deque[tuple[float, float, Process]] = field(default_factory=deque)
    busy_s: float = 0.0
    waited_s: float = 0.0
    visits: int = 0

    def __post_init__(self) -> None:
        self.free = self.servers

    def forget(self) -> None:
        """Reset the counts after the warm-up."""
        self.busy_s, self.waited_s, self.visits = 0.0, 0.0, 0


Visit: TypeAlias = tuple[Station | None, float]
Process: TypeAlias = Generator[Visit, None, None]


class World:
    """The clock and its events.

    Args:
        seed: of `random`, the random numbers of the processes.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._events: list[tuple[float, int, Process, Station | None]] = []
        self._number = 0

    def begin(self, process: Process, after_s: float = 0.0) -> None:
        """Start a process, now or later."""
        self._happens(after_s, process, None)

    def _happens(self, after_s: float, process: Process, station: Station | None) -> None:
        self._number += 1  # first come, first served, also at equal times
        heapq.heappush(self._events, (self.now + after_s, self._number, process, station))

    def run(self, until: float) -> None:
        """Run until a time; each visit takes a few microseconds of real time."""
        events, happens = self._events, self._happens
        while events and events[0][0] <= until:
            now, _, process, station = heapq.heappop(events)
            self.now = now
            if station is not None:
                if station.waiting:
                    arrived, seconds, next_one = station.waiting.popleft()
                    station.waited_s += now - arrived
                    _serve(station, seconds)
                    happens(seconds, next_one, station)
                else:
                    station.free += 1
            visit = next(process, None)
            if visit is None:
                continue
            place, seconds = visit
            if place is None:
                happens(seconds, process, None)
            elif place.free:
                place.free -= 1
                _serve(place, seconds)
                happens(seconds, process, place)
            else:
                place.waiting.append((now, seconds, process))
        self.now = until


def _serve(station: Station, seconds: float) -> None:
    station.busy_s += seconds
    station.visits += 1


def erlang_c_wait_s(servers: int, arrivals_per_s: float, service_s: float) -> float:
    """The mean wait in an M/M/c queue (Erlang 1917; Kleinrock, Queueing Systems I, section 3.5).

    Raises:
        ValueError: the load is 1 or more, and the wait infinite.
    """
    load = arrivals_per_s * service_s
    if load >= servers:
        raise ValueError(f"expected a load below {servers} servers, got {load:g}")
    blocking = 1.0  # Erlang B by recursion
    for busy in range(1, servers + 1):
        blocking = load * blocking / (busy + load * blocking)
    must_wait = blocking / (1 - (load / servers) * (1 - blocking))
    return must_wait * service_s / (servers - load)


def m_m_c(servers: int, arrivals_per_s: float, service_s: float, *, seconds: float, seed: int) -> float:
    """The mean wait in a simulation of the same queue."""
    world, station = World(seed), Station(servers)

    def customer() -> Process:
        yield station, world.random.expovariate(1 / service_s)

    def arrivals() -> Process:
        while True:
            yield None, world.random.expovariate(arrivals_per_s)
            world.begin(customer())

    world.begin(arrivals())
    world.run(seconds / 10)
    station.forget()
    world.run(seconds)
    return station.waited_s / station.visits if station.visits else math.nan
