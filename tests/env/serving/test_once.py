"""A command runs once, however often its request is sent: after a lost connection, simultaneously, or by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from swegym_env.sandbox import SandboxSpec, open_sandbox
from tests.env.serving.conftest import Served, assert_eventually, pooled, served


@contextmanager
def cutting(port: str, cuts: int) -> Iterator[tuple[str, list[bytes]]]:
    """A proxy to `port` that drops the responses of the first `cuts` requests to run a command.

    Yields:
        Its address, and the first lines of all requests.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []
    lock = threading.Lock()

    def serve(near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", int(port))) as far:
            while request := _whole(near):
                far.sendall(request)
                with lock:
                    seen.append(request.partition(b"\r\n")[0])
                    cut = b"/container/exec" in seen[-1] and sum(b"/container/exec" in each for each in seen) <= cuts
                answer = b"" if cut and len(seen) % 2 else _whole(far)  # before or after the command ends
                if cut:
                    return
                near.sendall(answer)

    def accept() -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(near,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _whole(end: socket.socket) -> bytes:
    """Read one request or response with its body; empty if the other end closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = end.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += end.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("by", ["server", "pool", "relay"])
def test_command_with_a_lost_response_runs_once(by: str, server: Served, tmp_path: Path) -> None:
    with ExitStack() as stack:
        address, seen = stack.enter_context(cutting(server.port, cuts=3))
        if by != "server":  # lost on the direct route first, then between pool and server; or only there
            node, options = Served(server.process, address), ("--relay",) if by == "relay" else ()
            pool = stack.enter_context(pooled(node, state=tmp_path / "state", arguments=options))
            address = pool.url
        sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=address)
        sandbox.start()
        assert sandbox.run("sleep 0.2; echo ran >> log; wc -l < log").output == "1\n"
        assert sandbox.run("echo ran >> log; wc -l < log").output == "2\n"
        sandbox.close()
    assert sum(b"/container/exec" in line for line in seen) == 5


def test_repeated_request_gets_the_same_response(service: Served) -> None:
    container = service.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
    message = {"container": container, "command": "sleep 0.3; echo $RANDOM $(( ++count ))"}

    def send(request_id: str) -> Any:
        return service.ask("/container/exec", message, headers={"X-Request-Id": request_id})[1]["output"]

    with ThreadPoolExecutor(6) as threads:
        outputs = list(threads.map(send, ["the-same-id"] * 6))
    assert len(set(outputs)) == 1 and outputs[0].endswith(" 1\n")
    assert send("the-same-id") == outputs[0]
    assert send("another-id").endswith(" 2\n")
    service.ask("/container/destroy", {"container": container})


def test_repeated_creation_starts_one_container(service: Served) -> None:
    assert_eventually(lambda: service.containers() == 0, "the containers of other tests have ended")
    named = {"X-Request-Id": f"create-once-{service.port}"}  # the pool forwards the request id to the server
    with ThreadPoolExecutor(4) as threads:
        outputs = list(threads.map(lambda _: service.ask("/container/create", {}, headers=named)[1], range(4)))
    assert len({each["container"] for each in outputs}) == 1
    assert service.containers() == 1
    assert service.ask("/container/destroy", {"container": outputs[0]["container"]})[1] == {"ended": True}
    assert service.ask("/container/destroy", {"container": outputs[0]["container"]})[1] == {"ended": False}


@pytest.mark.parametrize("by", ["server", "pool", "restarted pool"])
def test_creation_repeated_after_its_lease_has_expired_gets_a_container_that_lives(by: str, tmp_path: Path) -> None:
    """A client whose requests got no response for so long: all that it could renew is what it was given."""
    named, state = {"X-Request-Id": f"late-{by.replace(' ', '-')}"}, tmp_path / "state"
    with ExitStack() as stack:
        server = stack.enter_context(served("serve", "--lease", "2"))
        with ExitStack() as first:
            asked = server if by == "server" else first.enter_context(pooled(server, state=state))
            lost = asked.ask("/container/create", {"workdir": "/tmp"}, headers=named)[1]["container"]
            if by != "restarted pool":
                assert_eventually(lambda: server.containers() == 0, "the leases have expired")
                kept = asked.ask("/container/create", {"workdir": "/tmp"}, headers=named)[1]["container"]
        if by == "restarted pool":
            assert_eventually(lambda: server.containers() == 0, "the leases have expired")
            asked = stack.enter_context(pooled(server, state=state))
            kept = asked.ask("/container/create", {"workdir": "/tmp"}, headers=named)[1]["container"]
        assert kept != lost and server.containers() == 1


def test_fork_repeated_after_its_lease_has_expired_gets_a_container_that_lives(tmp_path: Path) -> None:
    named = {"X-Request-Id": "late-fork"}
    with served("serve", "--lease", "4") as server, pooled(server, state=tmp_path / "state") as pool:
        origin = pool.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
        lost = pool.ask("/container/fork", {"container": origin}, headers=named)[1]["container"]

        def has_ended() -> bool:
            pool.ask("/container/renew", {"containers": [origin]})
            return server.containers() == 1

        assert_eventually(has_ended, "the lease of the fork has expired")
        kept = pool.ask("/container/fork", {"container": origin}, headers=named)[1]["container"]
        assert kept != lost
        command = {"container": kept, "command": "echo alive"}
        assert pool.ask("/container/exec", command)[1]["output"] == "alive\n"


def test_request_id_with_another_body_is_refused_and_the_first_response_is_kept(service: Served) -> None:
    assert_eventually(lambda: service.containers() == 0, "the containers of other tests have ended")
    named = {"X-Request-Id": f"one-id-{service.port}"}
    created = service.ask("/container/create", {"workdir": "/tmp"}, headers=named)[1]
    message = {"container": created["container"], "command": "echo one >> log; wc -l < log"}
    fork = {"container": created["container"]}
    for path, first, other in (
        ("/container/create", {"workdir": "/tmp"}, {"workdir": "/var"}),
        ("/container/exec", message, message | {"command": "cat /etc/passwd"}),
        ("/container/exec", message, message | {"output_limit_bytes": 7}),
        ("/container/read", fork | {"path": "/tmp/log"}, fork | {"path": "/etc/passwd"}),
    ):
        response = service.ask(path, first, headers=named)[1]
        status, payload, _ = service.ask(path, other, headers=named)
        assert status == 422 and "X-Request-Id" in payload["error"]["message"], (path, payload)
        assert service.ask(path, first, headers=named)[1] == response
    twin = service.ask("/container/fork", fork, headers={"X-Request-Id": f"fork-{service.port}"})[1]
    again = service.ask("/container/fork", {"container": twin["container"]}, headers=named)
    assert again[0] == 422 or again[1]["container"] not in (created["container"], twin["container"])
    listed = [created, twin, *([again[1]] if again[0] == 200 else [])]
    for each in listed:
        assert service.ask("/container/destroy", {"container": each["container"]})[1] == {"ended": True}
    assert_eventually(lambda: service.containers() == 0, "nothing is left")
