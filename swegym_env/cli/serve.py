"""`swegym serve`: run sandboxes for other machines. `pool.py` shares its options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swegym_env.cli.options import (
    add_command,
    add_json_logs,
    add_repos,
    add_sandbox,
    require_at_least,
    require_seconds,
    start_json_logs,
)
from swegym_env.errors import ConfigurationError, install_hint

if TYPE_CHECKING:
    from swegym_env.serving.app import Bodies
    from swegym_env.serving.listening import Listening

__all__ = ["add_listening", "add_parser", "check_listening"]


def add_parser(commands: Any) -> None:
    """Add `serve` to the commands of `swegym`."""
    parser = add_command(
        commands,
        "serve",
        _run,
        "run sandboxes for other machines",
        "SWEGYM_TOKEN_FILE=token swegym serve --host 10.0.0.5 --tls-cert cert.pem --tls-key key.pem",
        more=", over HTTP. The token is read from $SWEGYM_TOKEN, or from the file $SWEGYM_TOKEN_FILE. SIGTERM "
        "refuses new requests and waits for running ones; a second SIGTERM ends at once.",
    )
    add_listening(parser)
    add_sandbox(parser)
    add_repos(parser)
    parser.add_argument("--images", metavar="DIR", type=Path, help="a folder of images that clients may name by path")
    parser.add_argument("--capacity", type=int, default=16 * (os.cpu_count() or 1), help="maximum number of containers")
    parser.add_argument(
        "--ceiling",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="maximum that a request may ask for: memory=8G, disk, processes, files, descriptors, cpus, output, "
        "timeout=1800, or of what the server spends on an agent's files patch-files, patch-bytes, patch-depth and "
        "patch-cpu=5; may be repeated (default: what this machine has, and one hour)",
    )
    parser.add_argument("--graders", type=int, default=os.cpu_count() or 1, help="maximum number of parallel gradings")


def add_listening(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that listens for HTTP."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8300, help="port to listen on (default 8300); 0: any free port")
    parser.add_argument("--tls-cert", metavar="FILE", help="TLS certificate, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="key of the TLS certificate, PEM")
    parser.add_argument("--in-clear", action="store_true", help="allow HTTP without TLS on a private network")
    parser.add_argument("--body-limit", default="64M", metavar="SIZE", help="maximum size of a request (default 64M)")
    parser.add_argument(
        "--body-total",
        metavar="SIZE",
        help="maximum size of all requests in progress together; others get 503 (default: an eighth of the memory)",
    )
    parser.add_argument(
        "--connections",
        type=int,
        metavar="N",
        help="maximum number of open connections (default: half of the descriptors that the process may open)",
    )
    parser.add_argument(
        "--header-timeout",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds for the headers of a request, and until the rate of its body is checked (default 10)",
    )
    parser.add_argument(
        "--drain", type=float, default=600.0, metavar="S", help="seconds to wait for running requests at the end"
    )
    parser.add_argument(
        "--lease", type=float, default=180.0, metavar="S", help="seconds after which an unrenewed container is removed"
    )
    add_json_logs(parser)


def check_listening(options: argparse.Namespace) -> tuple[Listening, str, Bodies]:
    """Where to listen, the token, and what the bodies of requests may take.

    Raises:
        ConfigurationError: an option is invalid, there is no token, or the extra `serve` is not installed.
    """
    from swegym_env.sandbox.images import parse_size
    from swegym_env.sandbox.remote.connection import read_token

    try:
        from swegym_env.serving.app import Bodies
        from swegym_env.serving.listening import Listening
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is not installed. {install_hint('serve')}") from error
    if not options.lease > 0 or not options.drain >= 0:
        raise ConfigurationError(f"--lease, --drain: expected seconds, got {options.lease:g}, {options.drain:g}")
    require_at_least(options, connections=1)
    require_seconds(options, "header_timeout")
    listening = Listening(
        options.host,
        options.port,
        options.tls_cert,
        options.tls_key,
        options.in_clear,
        options.connections,
        options.header_timeout,
    )
    limit = parse_size(options.body_limit, "--body-limit")
    total = None if options.body_total is None else parse_size(options.body_total, "--body-total")
    if total is not None and total < limit:
        raise ConfigurationError(f"--body-total: expected at least --body-limit ({limit} bytes), got {total}")
    return listening, read_token(), Bodies(limit, total)


def _run(options: argparse.Namespace) -> int:
    start_json_logs(options)
    require_at_least(options, capacity=1, graders=1)
    listening, token, bodies = check_listening(options)
    from swegym_env.sandbox.backends import find_backend
    from swegym_env.serving.ceilings import parse_ceilings
    from swegym_env.serving.listening import serve
    from swegym_env.serving.preparing import Rules
    from swegym_env.serving.server import Server, server_app

    ceilings = parse_ceilings(options.ceiling)
    backend = find_backend(options.sandbox)
    if backend.server is not None:
        raise ConfigurationError(f"--sandbox: expected a back end of this machine, got {options.sandbox}")
    rules = Rules(ceilings, backend.name, options.repos, options.images)
    server = Server(rules, capacity=options.capacity, lease_s=options.lease, graders=options.graders)
    app = server_app(server, token, bodies=bodies)

    def drain() -> None:
        server.draining = True

    serve(app, listening, drain=drain, empty=lambda: server.containers == 0, drain_s=options.drain)
    return 0
