"""Who is killed, and when: kinds of victims in turn, at moments and of a number that a seed draws."""

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
from swegym_env.sandbox.supervisor.processes import descendants

__all__ = ["Killer", "Kind", "of_fleet", "processes_of"]


@dataclass(frozen=True)
class Kind:
    """A kind of victim.

    Attributes:
        every_s: seconds between its deaths, on average; at least half of that.
        kill: one of them, with the chance that it is given; whether there was one.
        back: what brings it back, and is called a while after; None: somebody else does.
    """

    every_s: float
    kill: Callable[[random.Random], bool]
    back: Callable[[], None] | None = None


@dataclass
class Killer:
    """Kills from `begin` until `end`, each kind by a thread and a random stream of its own.

    Attributes:
        kinds: name → who.
        seed: of what is drawn.
        most: deaths of each kind.
        at_work: whether the run is: deaths while everybody starts again would teach nothing, and let nobody get on.
    """

    kinds: Mapping[str, Kind]
    seed: int
    most: int
    at_work: Callable[[], bool]
    deaths: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def begin(self) -> None:
        """Begin to kill."""
        for name in self.kinds:
            self._threads.append(threading.Thread(target=self._haunt, args=(name,), name=f"kills-{name}"))
            self._threads[-1].start()

    def end(self) -> None:
        """Kill no more; what is dead is brought back first."""
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
    """Some process below `leader` whose command line holds `word`; whoever started it starts it again.

    Args:
        leader: the pid; None while there is none.
        word: "serve_command" for a generation server, "swe_trainers.cli" for a training rank, "ray::" for a worker.
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
