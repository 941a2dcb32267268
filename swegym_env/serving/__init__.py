"""Sandboxes for other machines: `swegym serve` runs them on this one, `swegym pool` distributes them over many.

    requests.py    the requests of the API, the same for both
    app.py         the HTTP application: token, limits, request ids, metrics
    preparing.py   from a request to a started sandbox, and what of this machine a request may name
    server.py      the containers of one machine: idempotent requests, leases
    pool.py        many servers under one address
    member.py      a server as its pool sees it: health and connections
    placement.py   the choice of a server, and the order of the queue
    leases.py      the pool's leases on disk
    listening.py   address, TLS, draining at the end
    connections.py what a connection may send and take before a request on it has shown the token
    ceilings.py    what a client may ask for at most

Needs the extra `serve` (FastAPI, uvicorn). The client is `sandbox.remote`, which does not need it.
"""

from __future__ import annotations

__all__: list[str] = []
