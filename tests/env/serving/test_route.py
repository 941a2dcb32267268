"""The route of a request: directly to the server that a pool chose, or through the pool; and lease renewal."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from benchmarks.services import free_port
from swegym_env.errors import SandboxError
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.remote import leases
from swegym_env.sandbox.remote.connection import Route, connect, is_direct_route_safe
from tests.env.serving.conftest import Served, assert_eventually, pooled, served

EXEC = 'swegym_requests_total{path="/container/exec",status="200"}'


def commands(asked: Served) -> float:
    """The number of commands that it has run."""
    lines = asked.ask("/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(EXEC))


@pytest.mark.parametrize("relay", [False, True])
def test_commands_go_directly_to_the_server_and_continue_while_the_pool_restarts(
    server: Served, tmp_path: Path, relay: bool
) -> None:
    options = ("--relay",) if relay else ()
    before, held = commands(server), server.settled_containers()
    with pooled(server, state=tmp_path / "state", arguments=options) as pool:
        sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url)
        sandbox.start()
        sandbox.run("kept=7")
        twin = sandbox.fork()
        assert sandbox.run("echo $kept").output == twin.run("echo $kept").output == "7\n"
        assert (commands(pool), commands(server)) == (3.0 * relay, before + 3)
        twin.close()
        assert_eventually(lambda: pool.containers() == 1, "the pool counts the leases")
        port = pool.port
        pool.kill()
        if not relay:
            assert sandbox.run("echo alone").output == "alone\n"
        with pooled(server, state=tmp_path / "state", port=port, arguments=options) as again:
            assert sandbox.run("echo $kept").output == "7\n"
            sandbox.close()
            assert_eventually(
                lambda: again.containers() == 0 and server.containers() == held, "the container is released"
            )


def test_requests_go_through_the_pool_if_the_server_is_unreachable(pool: Served) -> None:
    container = pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
    route = Route(connect(pool.url), "http://127.0.0.1:9")  # nothing listens there
    for count in (1, 2):
        message = {"container": container, "command": "echo $(( ++count ))"}
        assert route.call("/container/exec", message, timeout_s=10)["output"] == f"{count}\n"
    with pytest.raises(FileNotFoundError):
        route.call("/container/read", {"container": container, "path": "/nowhere"}, timeout_s=10)
    pool.ask("/container/destroy", {"container": container})
    with pytest.raises(SandboxError, match="no container"):
        route.call("/container/exec", {"container": container, "command": "true"}, timeout_s=10)


def test_a_final_response_of_the_server_is_not_requested_again(server: Served, pool: Served) -> None:
    created = pool.ask("/container/create", {"workdir": "/tmp"})[1]
    assert created["node"] == server.url
    route, before = Route(connect(pool.url), created["node"]), pool.ask("/metrics")[1].count("/container/read")
    with pytest.raises(IsADirectoryError):
        route.call("/container/read", {"container": created["container"], "path": "/tmp"}, timeout_s=10)
    assert pool.ask("/metrics")[1].count("/container/read") == before
    pool.ask("/container/destroy", {"container": created["container"]})


@pytest.mark.parametrize(
    ("pool", "node", "straight"),
    [
        ("http://10.0.0.1:8300", "http://10.0.0.2:8300", True),
        ("http://10.0.0.1:8300", "https://node:8300", True),
        ("https://pool:8300", "https://10.0.0.2:8300", True),
        ("http://127.0.0.1:8300", "http://localhost:8301", True),
        ("http://localhost:8300", "http://10.0.0.2:8300", True),
        ("https://pool:8300", "http://10.0.0.2:8300", False),  # the token would be sent unencrypted
        ("http://10.0.0.1:8300", "http://127.0.0.1:8300", False),  # the pool's machine, not ours
        ("https://pool:8300", "https://localhost:8300", False),
        ("https://pool:8300", "https://[::1]:8300", False),
    ],
)
def test_the_token_is_not_sent_over_a_less_safe_route(pool: str, node: str, straight: bool) -> None:
    assert is_direct_route_safe(pool, node) is straight


def test_idle_container_survives_a_pool_that_is_down_for_longer_than_its_lease(tmp_path: Path) -> None:
    short = ("--lease", "2")
    with served("serve", *short) as server:
        with pooled(server, state=tmp_path / "state", arguments=short) as pool:
            sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url)
            sandbox.start()
            sandbox.run("kept=7")
            port = pool.port
        time.sleep(4)
        assert server.containers() == 1
        with pooled(server, state=tmp_path / "state", port=port, arguments=short):
            assert sandbox.run("echo $kept").output == "7\n"
            sandbox.close()
            assert_eventually(lambda: server.containers() == 0, "it is ended")


def test_an_idle_client_renews_its_lease_while_other_servers_are_dead_or_do_not_respond(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        served("serve", "--lease", "2") as server,
        pooled(server, state=tmp_path / "state") as pool,
    ):
        others = [connect(f"http://127.0.0.1:{port}") for port in (free_port(), silent.getsockname()[1])]
        for other in others:
            leases.hold(other, "of another server", 2.0)
        sandbox = open_sandbox(SandboxSpec(), backend=pool.url)
        sandbox.start()
        sandbox.run("kept=1")
        time.sleep(3.5)
        assert sandbox.run("echo $kept").output == "1\n"
        sandbox.close()
        for other in others:
            leases.release(other, "of another server")
