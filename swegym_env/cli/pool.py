"""`swegym pool`: distribute sandboxes over many servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from swegym_env.cli.options import add_command, require_at_least, require_seconds, start_json_logs
from swegym_env.cli.serve import add_listening, check_listening

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add `pool` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "pool",
        _run,
        "distribute sandboxes over many servers",
        "swegym pool --nodes https://a:8300,https://b:8300 --state /var/lib/swegym/pool.sqlite",
        more=" under one address, with the API of a single server. Its token is also used for the servers.",
    )
    add_listening(parser)
    parser.add_argument("--nodes", required=True, metavar="URL,URL", help="the addresses of the servers")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="file that stores the leases, so that a restart keeps them"
    )
    parser.add_argument(
        "--node-capacity", type=int, metavar="N", help="maximum number of containers per server, if below its own"
    )
    parser.add_argument("--capacity", type=int, metavar="N", help="maximum number of containers over all servers")
    parser.add_argument(
        "--queue", type=int, default=1000, metavar="N", help="maximum number of waiting requests (default 1000)"
    )
    parser.add_argument(
        "--node-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to wait for a server that does not respond, before a request to it fails (default 30)",
    )
    parser.add_argument(
        "--relay", action="store_true", help="forward commands too, if clients cannot reach the servers directly"
    )


def _run(options: argparse.Namespace) -> int:
    start_json_logs(options)
    require_at_least(options, capacity=1, node_capacity=1, queue=1)
    require_seconds(options, "node_timeout")
    listening, token, bodies = check_listening(options)
    from swegym_env.paths import work_dir
    from swegym_env.serving.leases import LeaseBook
    from swegym_env.serving.listening import serve
    from swegym_env.serving.pool import Pool, node_addresses, pool_app

    pool = Pool(
        node_addresses(options.nodes),
        token,
        LeaseBook(options.state or work_dir() / "pool.sqlite"),
        node_capacity=options.node_capacity,
        capacity=options.capacity,
        queue=options.queue,
        lease_s=options.lease,
        silence_s=options.node_timeout,
        relay=options.relay,
    )
    app = pool_app(pool, token, bodies=bodies)

    def drain() -> None:
        pool.draining = True

    # Leases are on disk and containers keep running: only open requests have to end.
    serve(app, listening, drain=drain, empty=lambda: pool.pending == 0, drain_s=options.drain)
    return 0
