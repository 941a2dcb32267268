"""Floods and slow peers without the token: honest clients are served, memory stays bounded, connections end."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from swegym_env.sandbox import SandboxSpec, open_sandbox
from tests.env.serving.attacks import ATTACKS
from tests.env.serving.conftest import TOKEN, Served, assert_eventually, own_certificate, pooled, served
from tests.programs import ROOT

AUTHORIZED = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
MOST_GROWTH_BYTES = 64 << 20
REQUESTS, ROUNDS = 100, 6
OFTEN = ("endless header", "endless URL", "endless chunks", "requests in a row", "slow headers")


@pytest.fixture(scope="module", params=["server", "pool"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server, or a pool, that waits one second for headers."""
    with served("serve", "--header-timeout", "1") as server:
        if request.param == "server":
            yield server
        else:
            state = tmp_path_factory.mktemp("guarded") / "state"
            with pooled(server, state=state, arguments=("--header-timeout", "1", "--relay")) as pool:
                yield pool


class Client:
    """An honest client with one connection and one container."""

    def __init__(self, service: Served) -> None:
        self.container = service.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
        self._connection = http.client.HTTPConnection("127.0.0.1", int(service.port), timeout=60)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("/container/destroy", {})
        self._connection.close()

    def _ask(self, path: str, message: dict[str, Any]) -> Any:
        body = json.dumps({"container": self.container, **message})
        self._connection.request("POST", path, body, {"Authorization": f"Bearer {TOKEN}"})
        response = self._connection.getresponse()
        assert response.status == 200
        return json.loads(response.read())

    def run(self) -> None:
        """Run a command."""
        assert self._ask("/container/exec", {"command": "echo $((6 * 7))"})["output"] == "42\n"

    def write(self, path: str, content: bytes) -> None:
        self._ask("/container/write", {"path": path, "content": base64.b64encode(content).decode()})

    def read(self, path: str) -> bytes:
        return base64.b64decode(self._ask("/container/read", {"path": path})["content"])

    @property
    def own_port(self) -> int:
        return int(self._connection.sock.getsockname()[1])

    def p99_s(self) -> float:
        """Of some requests, each answered."""
        times = []
        for _ in range(REQUESTS):
            began = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - began)
        return sorted(times)[int(0.99 * REQUESTS)]


@contextmanager
def attacking(kind: str, service: Served) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.env.serving.attacks", kind, service.port]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "ready\n"
        try:
            yield attacker
        finally:
            attacker.send_signal(signal.SIGCONT)
            attacker.kill()


def most_memory_bytes(service: Served) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.campaign) for kind in ATTACKS]
)
def test_attack_delays_no_honest_client_and_takes_little_memory(guarded: Served, kind: str) -> None:
    before = most_memory_bytes(guarded)
    with Client(guarded) as client, Client(guarded) as later, attacking(kind, guarded) as attacker:
        client.run()
        port = client.own_port
        quiet, attacked = [], []
        for _ in range(ROUNDS):  # this machine has other work too: one round without much of it is enough
            attacker.send_signal(signal.SIGSTOP)
            quiet.append(client.p99_s())
            attacker.send_signal(signal.SIGCONT)
            attacked.append(client.p99_s())
            if min(attacked) <= 2 * max(quiet):
                break
        assert min(attacked) <= 2 * max(quiet), (quiet, attacked)
        later.run()
        assert client.own_port == port, "the honest connection was closed"
    assert most_memory_bytes(guarded) - before < MOST_GROWTH_BYTES


def opened(service: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(service.port)), timeout=30)


def response_to(service: Served, data: bytes) -> tuple[int, bytes]:
    """Status and body of the first response."""
    with opened(service) as end:
        end.sendall(data)
        response = http.client.HTTPResponse(end)
        response.begin()
        return response.status, response.read()


def received(end: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := end.recv(1 << 16):
            found += piece
    return found


def is_open(end: socket.socket) -> bool:
    """Whether the server has not closed it."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    return not poll.poll(0)


SLOW = (
    b"",
    b"GET",
    b"GET /healthz HTTP/1.1\r\n",
    b"POST /container/exec HTTP/1.1\r\n" + AUTHORIZED,
    b"POST /container/exec HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 100000\r\n\r\n{",
    b"POST /container/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
)


def test_slow_connections_end_and_used_ones_stay(guarded: Served) -> None:
    with Client(guarded) as client, ExitStack() as stack:
        client.run()
        port = client.own_port
        kept = {stack.enter_context(opened(guarded)): sent for sent in SLOW for _ in range(50)}
        for end, sent in kept.items():
            end.sendall(sent)

        def all_ended() -> bool:
            for end in list(kept):
                with contextlib.suppress(OSError):
                    end.send(b"x")
                if not is_open(end):
                    del kept[end]
            return not kept

        assert_eventually(all_ended, f"the server ends {set(kept.values())}", 20)
        client.run()
        assert client.own_port == port


def test_client_that_does_not_read_its_response_is_ended(guarded: Served) -> None:
    with Client(guarded) as client:
        client.write("/tmp/large", b"x" * (16 << 20))
        body = json.dumps({"container": client.container, "path": "/tmp/large"}).encode()
        head = b"POST /container/read HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: %d\r\n\r\n" % len(body)
        with opened(guarded) as end:
            end.sendall(head + body)
            before = connections_ended(guarded)
            assert_eventually(lambda: connections_ended(guarded) > before, "it is ended", 20)
            assert len(received(end)) < 16 << 20
        assert client.read("/tmp/large") == b"x" * (16 << 20)


def test_file_that_is_too_large_is_refused_and_a_large_one_is_not_kept(guarded: Served) -> None:
    before = memory_bytes(guarded)
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=guarded.url)
    sandbox.start()
    sandbox.run("truncate -s 600M sparse; truncate -s 40M large; echo end >> large")
    with pytest.raises(OSError, match="File too large"):
        sandbox.read("sparse")
    for _ in range(3):
        content = sandbox.read("large")
        assert len(content) == (40 << 20) + 4 and content.endswith(b"\0end\n")
    sandbox.close()
    assert memory_bytes(guarded) - before < 100 << 20


def memory_bytes(service: Served) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def connections_ended(service: Served) -> float:
    lines = service.ask("/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith("swegym_connections_ended ")).split()[1])


def test_head_may_have_16_kib_and_100_lines_and_no_more(guarded: Served) -> None:
    start, end = b"GET /healthz HTTP/1.1\r\n" + AUTHORIZED + b"Connection: close\r\n", b"\r\n\r\n"
    for status, more in (
        (200, b"X-A: " + b"a" * 15_000),
        (200, b"X-A: b\r\n" * 90 + b"X-B: c"),
        (431, b"X-A: " + b"a" * 17_000),
        (431, b"X-A: b\r\n" * 900 + b"X-B: c"),
    ):
        assert response_to(guarded, start + more + end)[0] == status
    assert response_to(guarded, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n" + AUTHORIZED)[0] == 431


def test_body_is_not_read_before_the_token_and_the_refusal_is_readable(guarded: Served) -> None:
    for first in (AUTHORIZED.replace(b"0123", b"3210"), b"Host: x\r\n"):
        head = b"POST /container/create HTTP/1.1\r\n" + first
        for rest in (
            b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000,
            b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 9000,
        ):
            status, body = response_to(guarded, head + rest)
            assert status == 401 and b"token is missing or wrong" in body
    too_large = b"POST /container/create HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 99000000\r\n\r\n"
    assert response_to(guarded, too_large + b"x" * 3_000_000)[0] == 413


def test_request_before_the_response_to_the_last_is_refused(guarded: Served) -> None:
    request = b"GET /healthz HTTP/1.1\r\n" + AUTHORIZED + b"\r\n"
    assert response_to(guarded, request * 2)[0] == 400


def test_connections_without_the_token_make_room_for_others() -> None:
    with served("serve", "--connections", "8") as server, ExitStack() as stack:
        assert server.ask("/healthz")[0] == 200
        descriptors = sockets_of(server)
        idle = [stack.enter_context(opened(server)) for _ in range(60)]
        clients = [stack.enter_context(http_connection(server)) for _ in range(8)]
        for client in clients:
            client.request("GET", "/healthz", headers={"Authorization": f"Bearer {TOKEN}"})
            assert client.getresponse().read()
        assert_eventually(lambda: not any(is_open(end) for end in idle), "the idle ones are ended")
        assert sockets_of(server) <= descriptors + 8
        with opened(server) as late:
            assert received(late) == b"", "all have shown the token: there is no place"
        for client in clients:
            client.request("GET", "/healthz", headers={"Authorization": f"Bearer {TOKEN}"})
            assert client.getresponse().read()


def sockets_of(service: Served) -> int:
    """The number of its open sockets."""
    found = 0
    for each in Path(f"/proc/{service.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(each).startswith("socket:")
    return found


@contextmanager
def http_connection(service: Served) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", int(service.port), timeout=30)
    try:
        yield connection
    finally:
        connection.close()


def test_tls_connections_without_a_handshake_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = own_certificate(tmp_path)
    arguments = ("--tls-cert", str(certificate), "--tls-key", str(key), "--header-timeout", "1")
    with served("serve", *arguments) as server, ExitStack() as stack:
        monkeypatch.setenv("SWEGYM_CA", str(certificate))
        sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=server.url)
        sandbox.start()
        descriptors = sockets_of(server)
        ends = [stack.enter_context(opened(server)) for _ in range(60)]
        for number, end in enumerate(ends):
            end.sendall((b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n")[number % 3])
        assert sandbox.run("echo here").output == "here\n"
        assert_eventually(lambda: not any(is_open(end) for end in ends), "the server ends them", 20)
        context = ssl.create_default_context(cafile=str(certificate))
        with context.wrap_socket(opened(server), server_hostname="127.0.0.1") as silent:
            assert received(silent) == b"", "a handshake alone keeps no connection"
        assert sandbox.run("echo here").output == "here\n"
        assert_eventually(lambda: sockets_of(server) <= descriptors, "no descriptor is left")
        sandbox.close()
