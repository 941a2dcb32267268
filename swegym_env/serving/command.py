"""`swegym serve` and `swegym pool`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swegym_env.command_line import add_repos, add_sandbox
from swegym_env.errors import ConfigurationError

if TYPE_CHECKING:
    from swegym_env.serving.running import Listening

__all__ = ["add_parsers"]

_LEASE_S = 180.0


def add_parsers(commands: Any) -> None:
    """Add both commands to `swegym`'s."""
    server = commands.add_parser(
        "serve",
        help="keep sandboxes for other machines",
        description="Keep sandboxes for other machines, over HTTP. The token is that of $SWEGYM_TOKEN, or in the file "
        "of $SWEGYM_TOKEN_FILE. SIGTERM lets what is under way end first; a second one does not.",
        epilog="example: SWEGYM_TOKEN_FILE=token swegym serve --host 10.0.0.5 --tls-cert cert.pem --tls-key key.pem",
    )
    _listening(server)
    add_sandbox(server)
    add_repos(server)
    server.add_argument("--images", metavar="DIR", type=Path, help="a folder whose images may be named by path")
    server.add_argument("--capacity", type=int, default=16 * (os.cpu_count() or 1), help="containers at most")
    server.add_argument("--graders", type=int, default=os.cpu_count() or 1, help="verdicts at a time")
    server.add_argument("--lease", type=float, default=_LEASE_S, help="seconds that a container without news stays")
    server.set_defaults(command=_serve)

    pool = commands.add_parser(
        "pool",
        help="hand out the sandboxes of many servers",
        description="Hand out the sandboxes of many servers under one address, with the API of one. The token is the "
        "servers' too.",
        epilog="example: swegym pool --nodes https://a:8300,https://b:8300 --state /var/lib/swegym/pool.sqlite",
    )
    _listening(pool)
    pool.add_argument("--nodes", required=True, metavar="URL,URL", help="the servers")
    pool.add_argument("--state", type=Path, metavar="FILE", help="where leases are kept over a restart")
    pool.add_argument("--node-capacity", type=int, metavar="N", help="containers of a server at most, below its own")
    pool.add_argument("--capacity", type=int, metavar="N", help="containers over all at most")
    pool.add_argument("--queue", type=int, default=1000, metavar="N", help="requests that may wait (default 1000)")
    pool.add_argument("--relay", action="store_true", help="carry commands too: clients cannot reach the servers")
    pool.add_argument("--lease", type=float, default=_LEASE_S, help="seconds that a container without news stays")
    pool.set_defaults(command=_pool)


def _listening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8300, help="0: any that is free (default 8300)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    parser.add_argument("--in-clear", action="store_true", help="no TLS beyond this machine: nobody else hears it")
    parser.add_argument("--body-limit", default="64M", metavar="SIZE", help="of a request (default 64M)")
    parser.add_argument("--drain", type=float, default=600.0, metavar="S", help="seconds for what is under way to end")


def _checked(options: argparse.Namespace, *counts: str) -> tuple[Listening, str, int]:
    """Where to listen, the token, and the most bytes of a body."""
    from swegym_env.sandbox.images import parse_size
    from swegym_env.sandbox.remote.connection import read_token

    try:
        from swegym_env.serving.running import Listening
    except ImportError as error:
        raise ConfigurationError(f"{error.name} is not installed. Try: pip install 'swegym-env[serve]'") from error
    for name in counts:
        value = getattr(options, name.replace("-", "_"))
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name}: expected 1 or more, got {value}")
    if not options.lease > 0 or not options.drain >= 0:
        raise ConfigurationError(f"--lease, --drain: expected seconds, got {options.lease:g}, {options.drain:g}")
    listening = Listening(options.host, options.port, options.tls_cert, options.tls_key, options.in_clear)
    return listening, read_token(), parse_size(options.body_limit, "--body-limit")


def _serve(options: argparse.Namespace) -> int:
    listening, token, limit = _checked(options, "capacity", "graders")
    from swegym_env.sandbox.selection import select_backend
    from swegym_env.serving.node import Node
    from swegym_env.serving.node_app import node_app
    from swegym_env.serving.preparing import Rules
    from swegym_env.serving.running import serve

    rules = Rules(select_backend(options.sandbox).name, options.repos, options.images)
    node = Node(rules, capacity=options.capacity, lease_s=options.lease, graders=options.graders)
    app = node_app(node, token, body_limit_bytes=limit)

    def drain() -> None:
        node.draining = True

    serve(app, listening, drain=drain, empty=lambda: node.containers == 0, drain_s=options.drain)
    return 0


def _pool(options: argparse.Namespace) -> int:
    listening, token, limit = _checked(options, "capacity", "node-capacity", "queue")
    from swegym_env.paths import work_dir
    from swegym_env.serving.leases import LeaseBook
    from swegym_env.serving.pool import Pool, node_addresses
    from swegym_env.serving.pool_app import pool_app
    from swegym_env.serving.running import serve

    pool = Pool(
        node_addresses(options.nodes),
        token,
        LeaseBook(options.state or work_dir() / "pool.sqlite"),
        node_capacity=options.node_capacity,
        capacity=options.capacity,
        queue=options.queue,
        lease_s=options.lease,
        relay=options.relay,
    )
    app = pool_app(pool, token, body_limit_bytes=limit)

    def drain() -> None:
        pool.draining = True

    # Leases are on disk, and containers go on: only what is being answered has to end.
    serve(app, listening, drain=drain, empty=lambda: pool.under_way == 0, drain_s=options.drain)
    return 0
