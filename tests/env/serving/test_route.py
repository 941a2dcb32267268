"""Which way a message goes: straight to the server that a pool chose, or through the pool, and what follows."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from benchmarks.services import free_port
from swegym_env.errors import SandboxError
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.remote import keeping
from swegym_env.sandbox.remote.connection import service
from swegym_env.sandbox.remote.route import Route, may_go_straight
from tests.env.serving.conftest import Served, assert_eventually, pooled, served

EXEC = 'swegym_requests_total{path="/container/exec",status="200"}'


def commands(asked: Served) -> float:
    """How many it has answered."""
    lines = asked.ask("/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(EXEC))


@pytest.mark.parametrize("relay", [False, True])
def test_commands_go_straight_and_a_pool_that_is_away_stops_none(server: Served, tmp_path: Path, relay: bool) -> None:
    options = ("--relay",) if relay else ()
    before, held = commands(server), server.containers()
    with pooled(server, state=tmp_path / "state", arguments=options) as pool:
        sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url)
        sandbox.start()
        sandbox.run("kept=7")
        twin = sandbox.fork()
        assert sandbox.run("echo $kept").output == twin.run("echo $kept").output == "7\n"
        assert (commands(pool), commands(server)) == (3.0 * relay, before + 3)
        twin.close()
        assert_eventually(lambda: pool.containers() == 1, "leases are the pool's")
        port = pool.port
        pool.kill()
        if not relay:
            assert sandbox.run("echo alone").output == "alone\n"
        with pooled(server, state=tmp_path / "state", port=port, arguments=options) as again:
            assert sandbox.run("echo $kept").output == "7\n"
            sandbox.close()
            assert_eventually(lambda: again.containers() == 0 and server.containers() == held, "it is given back")


def test_a_server_that_only_the_pool_can_reach_is_reached_through_it(pool: Served) -> None:
    container = pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
    route = Route(service(pool.url), "http://127.0.0.1:9")  # where nobody listens
    for count in (1, 2):
        message = {"container": container, "command": "echo $(( ++count ))"}
        assert route.call("/container/exec", message, timeout_s=10)["output"] == f"{count}\n"
    with pytest.raises(FileNotFoundError):
        route.call("/container/read", {"container": container, "path": "/nowhere"}, timeout_s=10)
    pool.ask("/container/destroy", {"container": container})
    with pytest.raises(SandboxError, match="no container"):
        route.call("/container/exec", {"container": container, "command": "true"}, timeout_s=10)


def test_what_a_server_says_of_its_container_is_not_asked_twice(server: Served, pool: Served) -> None:
    told = pool.ask("/container/create", {"workdir": "/tmp"})[1]
    assert told["node"] == server.url
    route, before = Route(service(pool.url), told["node"]), pool.ask("/metrics")[1].count("/container/read")
    with pytest.raises(IsADirectoryError):
        route.call("/container/read", {"container": told["container"], "path": "/tmp"}, timeout_s=10)
    assert pool.ask("/metrics")[1].count("/container/read") == before
    pool.ask("/container/destroy", {"container": told["container"]})


@pytest.mark.parametrize(
    ("pool", "node", "straight"),
    [
        ("http://10.0.0.1:8300", "http://10.0.0.2:8300", True),
        ("http://10.0.0.1:8300", "https://node:8300", True),
        ("https://pool:8300", "https://10.0.0.2:8300", True),
        ("http://127.0.0.1:8300", "http://localhost:8301", True),
        ("http://localhost:8300", "http://10.0.0.2:8300", True),
        ("https://pool:8300", "http://10.0.0.2:8300", False),  # the token would go in clear
        ("http://10.0.0.1:8300", "http://127.0.0.1:8300", False),  # the pool's machine, not ours
        ("https://pool:8300", "https://localhost:8300", False),
        ("https://pool:8300", "https://[::1]:8300", False),
    ],
)
def test_the_token_goes_nowhere_less_safe(pool: str, node: str, straight: bool) -> None:
    assert may_go_straight(pool, node) is straight


@pytest.mark.parametrize("neighbour", ["none", "dead", "mute"])
def test_who_thinks_longer_than_a_short_lease_keeps_it(tmp_path: Path, neighbour: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silence,
        served("serve", "--lease", "2") as server,
        pooled(server, state=tmp_path / "state") as pool,
    ):
        port = {"none": pool.port, "dead": free_port(), "mute": silence.getsockname()[1]}[neighbour]
        other = service(f"http://127.0.0.1:{port}")
        if neighbour != "none":
            keeping.keep(other, "of another server", 2.0)
        sandbox = open_sandbox(SandboxSpec(), backend=pool.url)
        sandbox.start()
        sandbox.run("kept=1")
        time.sleep(3.5)
        assert sandbox.run("echo $kept").output == "1\n"
        sandbox.close()
        keeping.let_go(other, "of another server")
