"""Kills processes of several types at random moments, drawn from a seed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.fleet import Fleet, Kept
from swegym_env.sandbox.linux.processes import descendants

__all__ = ["Killer", "Kind", "of_fleet", "processes_of"]


@dataclass(frozen=True)
class Kind:
    """A type of process to kill.

    Attributes:
        every_s: mean seconds between deaths; at least half of that.
        kill: kills one, chosen with the given random number; returns whether there was one.
        back: restarts it, called a while later; None: something else does.
    """

    every_s: float
    kill: Callable[[random.Random], bool]
    back: Callable[[], None] | None = None


@dataclass
class Killer:
    """Kills from `begin` until `end`, each type in a separate thread with a separate random stream.

    Attributes:
        kinds: name → type.
        seed: of the random numbers.
        most: deaths of each type at most.
        at_work: whether the run makes progress: deaths during a restart would test nothing and block the run.
    """

    kinds: Mapping[str, Kind]
    seed: int
    most: int
    at_work: Callable[[], bool]
    deaths: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        """Start killing."""
        for name in self.kinds:
            self._threads.append(threading.Thread(target=self._haunt, args=(name,), name=f"kills-{name}"))
            self._threads[-1].start()

    def end(self) -> None:
        """Stop killing; dead processes are restarted first."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _haunt(self, name: str) -> None:
        kind, chance = self.kinds[name], random.Random(f"{self.seed}/{name}")
        while self.deaths[name] < self.most and not self._over.wait(
            kind.every_s / 2 + chance.expovariate(2 / kind.every_s)
        ):
            while not self.at_work() and not self._over.wait(0.1):
                pass
            if self._over.is_set():
                return
            killed = kind.kill(chance)
            self.deaths[name] += killed
            if killed and kind.back is not None:
                self._over.wait(chance.uniform(0.2, 3.0))
                kind.back()


def of_fleet(fleet: Fleet, *, server_s: float, pool_s: float) -> dict[str, Kind]:
    """The pool, and one server at a time."""
    dead: list[Kept] = []

    def kill_server(chance: random.Random) -> bool:
        dead.append(chance.choice(fleet.servers))
        dead[-1].kill()
        return True

    def revive_server() -> None:
        dead.pop().come_back()

    def kill_pool(_: random.Random) -> bool:
        fleet.pool.kill()
        return True

    return {
        "server": Kind(server_s, kill_server, revive_server),
        "pool": Kind(pool_s, kill_pool, fleet.pool.come_back),
    }


def processes_of(leader: Callable[[], int | None], word: str, *, every_s: float) -> Kind:
    """A descendant process of `leader` whose command line contains `word`; its parent restarts it.

    Args:
        leader: the pid; None if there is none yet.
        word: "swe_trainers.cli.serve" for a generation server, "swe_trainers.cli.main" for a training rank, "ray::" for
            a worker.
        every_s: see `Kind`.
    """

    def kill(chance: random.Random) -> bool:
        above = leader()
        found = [pid for pid in (descendants(above) if above else ()) if word in _command(pid)]
        if not found:
            return False
        try:
            os.kill(chance.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    return Kind(every_s, kill)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
