"""Three servers of sandboxes and a pool of them; whoever is dead is started again, at the same port."""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.services import Served, free_port, start

__all__ = ["Fleet", "Kept"]


class Kept:
    """A `swegym serve` or `swegym pool` that comes back.

    Args:
        arguments: of `swegym`.
        port: that it always listens on.

    `pids` are those of all its lives.
    """

    def __init__(self, arguments: Sequence[str], port: str) -> None:
        self._arguments, self._port = arguments, port
        self._now = start(*arguments, port=port)
        self.url = self._now.url
        self.pids = {self._now.process.pid}
        self._lock = threading.Lock()

    @property
    def served(self) -> Served:
        """As it runs now, or did last."""
        return self._now

    def kill(self) -> int:
        """SIGKILL; the pid that had it."""
        with self._lock:
            process = self._now.process
            process.send_signal(signal.SIGKILL)
            process.wait()
            return process.pid

    def come_back(self) -> None:
        """Start it again where it is dead."""
        with self._lock:
            if self._now.process.poll() is None:
                return
            assert self._now.process.stdout is not None
            self._now.process.stdout.close()
            self._now = start(*self._arguments, port=self._port)
            self.pids.add(self._now.process.pid)

    def end(self) -> None:
        """For good."""
        self.kill()
        assert self._now.process.stdout is not None
        self._now.process.stdout.close()


class Fleet:
    """Servers and their pool, until it is closed.

    Args:
        folder: of the pool's leases.
        token: of all of them, as in `$SWEGYM_TOKEN`.
        servers: how many.
        capacity: containers of each.
        lease_s: what nobody gives back, because its owner was killed or the pool was away, is ended after it.
        arguments: of every server.
    """

    def __init__(
        self, folder: Path, token: str, *, servers: int, capacity: int, lease_s: float, arguments: Sequence[str] = ()
    ) -> None:
        self._token = token
        serve = ["serve", "--capacity", str(capacity), "--lease", str(lease_s), *arguments]
        self.servers = [Kept(serve, free_port()) for _ in range(servers)]
        nodes = ",".join(server.url for server in self.servers)
        self.pool = Kept(
            ["pool", "--nodes", nodes, "--state", str(folder / "pool.sqlite"), "--lease", str(lease_s)], free_port()
        )

    def ask(self, path: str = "/healthz") -> Any:
        """What the pool says of itself."""
        request = urllib.request.Request(self.pool.url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        """End all of it."""
        for one in (self.pool, *self.servers):
            one.end()
