"""Sandboxes on another machine: the same contract over HTTP, against `swegym serve` or `swegym pool`.

`connection` carries one message and its answer, and knows what may be sent again; `route` goes straight to the server
that a pool chose; `sandbox` is a `Sandbox` made of such messages; `wire` says how results and errors look on the way;
`keeping` renews the leases of what this process holds.
"""

from __future__ import annotations

__all__ = ["is_remote"]


def is_remote(backend: str) -> bool:
    """Whether a back end's name is the address of a service."""
    return backend.startswith(("http://", "https://"))
