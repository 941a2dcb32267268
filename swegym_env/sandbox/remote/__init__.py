"""The back end of a server: sandboxes on another machine, over HTTP, under the same contract.

    sandbox.py      `RemoteBackend` and `RemoteSandbox`
    connection.py   one request and its response: connections, retries, the direct route to a pool's server
    leases.py       the leases of this process's sandboxes, renewed while it lives
    wire.py         the status and body of an error, and the exception that they stand for

The servers are `swegym serve` and `swegym pool` (see `serving`). The client needs the standard library only.
"""

from __future__ import annotations

__all__: list[str] = []
