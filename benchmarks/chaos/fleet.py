"""Three sandbox servers and a pool of them; each is restarted at the same port after its death."""

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
    """A `swegym serve` or `swegym pool` that can be killed and restarted.

    Args:
        arguments: of `swegym`.
        port: that it always listens on.

    `pids` contains the process ids of all its starts.
    """

    def __init__(self, arguments: Sequence[str], port: str) -> None:
        self._arguments, self._port = arguments, port
        self._now = start(*arguments, port=port)
        self.url = self._now.url
        self.pids = {self._now.process.pid}
        self._lock = threading.Lock()

    @property
    def served(self) -> Served:
        """The current or last process."""
        return self._now

    def kill(self) -> int:
        """Send SIGKILL; returns the pid."""
        with self._lock:
            process = self._now.process
            process.send_signal(signal.SIGKILL)
            process.wait()
            return process.pid

    def come_back(self) -> None:
        """Restart it if it is dead."""
        with self._lock:
            if self._now.process.poll() is None:
                return
            assert self._now.process.stdout is not None
            self._now.process.stdout.close()
            self._now = start(*self._arguments, port=self._port)
            self.pids.add(self._now.process.pid)

    def end(self) -> None:
        """End it permanently."""
        self.kill()
        assert self._now.process.stdout is not None
        self._now.process.stdout.close()


class Fleet:
    """Servers and their pool, until closed.

    Args:
        folder: of the pool's leases.
        token: of all of them, as in `$SWEGYM_TOKEN`.
        servers: how many.
        capacity: containers of each.
        lease_s: leases that are not released, because the owner was killed or the pool was down, expire after it.
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
        """The status of the pool."""
        request = urllib.request.Request(self.pool.url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        """End all processes."""
        for one in (self.pool, *self.servers):
            one.end()
