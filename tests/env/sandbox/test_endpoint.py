"""The endpoint of a sandbox with programs that violate its rules: each gets an error, and others are not affected."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swegym_env.errors import ConfigurationError
from swegym_env.sandbox import SandboxSpec, endpoint, start_sandbox
from swegym_env.sandbox.api import ProgramEnded, ProgramRequest
from swegym_env.sandbox.endpoint import Endpoint, run_command

_PIECES = [
    b"GET / HTTP/1.1\r\n", b"POST /a?b HTTP/1.0\r\n", b"HEAD * HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n", b"\n", b"\r",
    b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello", b"ffffffff\r\n",
    b"swegym-agent\n", b"0\n", b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nok",
]  # fmt: skip
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


class Client:
    """One connection of a program."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def read(self) -> tuple[int, bytes]:
        """Status and body of one response."""
        received = b""
        while b"\r\n\r\n" not in received:
            piece = self.socket.recv(1 << 16)
            assert piece, f"the connection ended after {received!r}"
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self.socket.recv(1 << 16)
        assert len(body) == length
        return int(head.split()[1]), body

    def ended(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


class Served:
    """An endpoint on the loopback of this machine, and clients of it."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = listener.getsockname()[1]
        self.endpoint = Endpoint(listener)
        self.clients: list[Client] = []

    def client(self, data: bytes = b"") -> Client:
        self.clients.append(Client(self.port).send(data))
        return self.clients[-1]

    def asked(self) -> ProgramRequest:
        found = self.endpoint.next(30)
        assert isinstance(found, ProgramRequest)
        return found

    def serves_others(self) -> bool:
        """Whether an honest program is answered."""
        client = self.client(GET)
        found = self.asked()
        self.endpoint.answer(found.number, 200, b"fine")
        return found.path == "/v1/models" and client.read() == (200, b"fine")

    def close(self) -> None:
        self.endpoint.close()
        for client in self.clients:
            client.socket.close()


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.close()


def post(body: bytes, *headers: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"POST /v1/x?y HTTP/1.1", b"Host: x", length, *headers, b"", body))


def test_requests_are_read_whatever_the_pieces_that_they_come_in(served: Served) -> None:
    body = bytes(range(256)) * 10
    client = served.client()
    for byte in (request := post(body, b"X-A:  b  "))[:200]:
        client.send(bytes([byte]))
        assert served.endpoint.next(0) is None
    client.send(request[200:])
    found = served.asked()
    assert (found.method, found.path, found.body, found.headers["x-a"]) == ("POST", "/v1/x?y", body, "b")
    served.endpoint.answer(found.number, 200, b"{}")
    assert client.read() == (200, b"{}")
    client.send(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;x=y\r\nd\r\n0\r\n\r\n")
    assert served.asked().body == b"abcd"


def test_pipelined_requests_are_read_one_by_one(served: Served) -> None:
    client = served.client(post(b"one") + post(b"two") + GET)
    for expected in (b"one", b"two", b""):
        found = served.asked()
        assert found.body == expected and served.endpoint.next(0.05) is None
        served.endpoint.answer(found.number, 200, expected)
        assert client.read() == (200, expected)


def test_a_program_may_wait_to_be_asked_for_its_body(served: Served) -> None:
    client = served.client(post(b"body", b"Expect: 100-continue")[:-4])
    assert served.endpoint.next(0.05) is None
    assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"body")
    assert served.asked().body == b"body"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"hello\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET http://192.0.2.1/ HTTP/1.1\r\n\r\n", 400),  # as to a proxy
        (b"CONNECT 192.0.2.1:443 HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: \0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX:" + b" " * 60_000 + b"\0\r\n\r\n", 400),  # read in time linear in its length
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % ((16 << 20) + 1), 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1000000\r\n", 413),  # 1 + 16 MiB
        (b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000, 431),
        (b"GET /" + b"y" * 100_000, 431),
    ],
)
def test_what_is_no_request_is_refused_and_others_are_served(served: Served, data: bytes, status: int) -> None:
    client = served.client(data)
    assert served.endpoint.next(0.2) is None
    found, body = client.read()
    error = json.loads(body)
    assert found == status and error["type"] == "error" and error["error"]["message"]
    assert client.ended()
    assert served.serves_others()


def test_bodies_are_bounded_all_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_BODY_BYTES", 1 << 20)
    first = served.client(post(b"x" * (700 << 10)))
    waiting = served.asked()
    sending = threading.Thread(target=lambda: served.client(post(b"y" * (700 << 10))), daemon=True)
    sending.start()
    deadline = time.monotonic() + 30
    while (sending.is_alive() or len(served.clients) < 2) and time.monotonic() < deadline:
        assert served.endpoint.next(0.05) is None
    assert served.endpoint.next(0.2) is None
    assert served.clients[1].read()[0] == 413
    served.endpoint.answer(waiting.number, 200, b"fine")
    assert first.read() == (200, b"fine")


def test_a_slow_program_holds_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_REQUEST_S", 0.5)
    slow = [served.client(b"POST / HTTP/1.1\r\nContent-Le"), served.client(post(b"xx")[:-1])]
    assert served.serves_others()
    assert served.endpoint.next(1.5) is None
    assert [client.read()[0] for client in slow] == [408, 408]
    assert served.serves_others()


def test_the_time_in_which_nobody_reads_counts_for_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_REQUEST_S", 5.0)
    client = served.client(post(b"xx")[:-1])
    assert served.endpoint.next(0.1) is None
    time.sleep(6)
    client.send(b"x")
    assert served.asked().body == b"xx"


def test_a_program_that_does_not_read_its_answer_holds_nobody(served: Served) -> None:
    deaf = served.client(GET)
    served.endpoint.answer(served.asked().number, 200, b"x" * (20 << 20))
    assert served.serves_others()
    received = 0
    is_read = threading.Event()

    def work() -> None:
        while not is_read.is_set():
            served.endpoint.next(0.1)

    working = threading.Thread(target=work, daemon=True)
    working.start()
    while received < 20 << 20:
        received += len(deaf.socket.recv(1 << 20))
    is_read.set()
    working.join()


def test_answers_that_nobody_reads_are_bounded_all_together(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_BODY_BYTES", 20 << 20)
    deaf = []
    for _ in range(4):
        deaf.append(served.client(GET))
        served.endpoint.answer(served.asked().number, 200, b"x" * (9 << 20))
    assert sum(len(one.unsent) for one in served.endpoint._connections.values()) <= 20 << 20
    assert len(served.endpoint._connections) < 4 and served.serves_others()


def test_answers_to_closed_connections_are_bounded_in_total(served: Served) -> None:
    for number in range(5):
        client = served.client(post(b"%d" % number))
        found = served.asked()
        client.socket.close()
        assert served.endpoint.next(0.05) is None
        served.endpoint.answer(found.number, 200, b"x" * (5 << 20))
    assert sum(len(body) for _, body, _ in served.endpoint._lost.values()) <= 16 << 20
    again = served.client(post(b"4"))
    reading = threading.Thread(target=lambda: [served.endpoint.next(0.1) for _ in range(20)], daemon=True)
    reading.start()
    assert again.read() == (200, b"x" * (5 << 20))
    reading.join()


def test_idle_connections_give_way(served: Served) -> None:
    idle = []
    for _ in range(endpoint._CONNECTIONS + 10):
        idle.append(served.client())
        assert served.endpoint.next(0) is None
    assert served.serves_others()
    assert len(served.endpoint._connections) <= endpoint._CONNECTIONS
    assert sum(client.ended() for client in idle[:5]) == 5  # those that did nothing for longest


def test_after_many_refusals_the_program_counts_as_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_REFUSALS", 10)
    for _ in range(10):
        client = served.client(b"no request\r\n\r\n")
        assert served.endpoint.next(0.05) is None
        assert client.read()[0] == 400
    served.client(b"no request\r\n\r\n")
    assert served.endpoint.next(30) == ProgramEnded(-1)


def test_the_lifeline_is_the_first_and_carries_the_exit_code(served: Served) -> None:
    lifeline = served.client(b"swegym-agent\n")
    assert served.endpoint.next(0.1) is None
    forged = served.client(b"swegym-agent\n0\n")
    forged.socket.shutdown(socket.SHUT_WR)
    assert served.endpoint.next(0.2) is None
    lifeline.send(b"37\n")
    lifeline.socket.close()
    assert served.endpoint.next(30) == ProgramEnded(37)


@pytest.mark.parametrize("content", [b"", b"x" * 1000, b"-5", b"99999"])
def test_a_lifeline_without_a_valid_exit_code_means_that_the_program_was_killed(served: Served, content: bytes) -> None:
    lifeline = served.client(b"swegym-agent\n" + content)
    lifeline.socket.shutdown(socket.SHUT_WR)
    assert served.endpoint.next(30) == ProgramEnded(-1)


def test_answers_come_back_only_once(served: Served) -> None:
    client = served.client(GET)
    found = served.asked()
    served.endpoint.answer(found.number, 200, b"one")
    served.endpoint.answer(found.number, 200, b"two")
    served.endpoint.answer(12345, 200, b"three")
    assert client.read() == (200, b"one")
    assert served.serves_others()


@pytest.mark.parametrize("early", [True, False])
def test_an_answer_to_a_closed_connection_waits_until_the_request_is_repeated(served: Served, early: bool) -> None:
    """If the request is repeated, before or after the answer, it gets that answer and is not seen twice."""
    asks = post(b"patient?")
    first = served.client(asks)
    found = served.asked()
    first.socket.close()
    assert served.endpoint.next(0.2) is None
    again = served.client(asks) if early else None
    served.endpoint.answer(found.number, 200, b"here")
    again = again or served.client(asks)
    assert served.endpoint.next(0.2) is None
    assert again.read() == (200, b"here")
    served.client(asks)
    assert served.asked().body == b"patient?"  # it is given once


def test_a_client_that_is_refused_while_sending_can_read_the_reason(served: Served) -> None:
    client = served.client(b"POST / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n")
    serving = threading.Thread(target=lambda: [served.endpoint.next(0.05) for _ in range(60)], daemon=True)
    serving.start()
    for _ in range(20):
        client.send(b"x" * (256 << 10))
        time.sleep(0.01)
    assert client.read()[0] == 413
    serving.join()


def test_after_the_end_nobody_is_answered(served: Served) -> None:
    client = served.client(GET)
    found = served.asked()
    served.endpoint.close()
    served.endpoint.close()
    assert client.ended() and served.endpoint.next(1) == ProgramEnded(-1)
    served.endpoint.answer(found.number, 200, b"late")
    with pytest.raises(ConnectionRefusedError):
        Client(served.port)


def test_a_program_in_a_sandbox_asks_its_owner(backend: str) -> None:
    sandbox = start_sandbox(SandboxSpec(workdir="/tmp", port=4321), backend=backend)
    try:
        ask = "exec 5<>/dev/tcp/127.0.0.1/4321; printf 'GET /who HTTP/1.1\\r\\n\\r\\n' >&5; head -n 1 <&5 >got; exit 5"
        sandbox.run(run_command(ask, 4321, "/tmp/log"))
        found = sandbox.endpoint().next(60)
        assert isinstance(found, ProgramRequest) and found.path == "/who"
        sandbox.endpoint().answer(found.number, 200, b"you")
        assert sandbox.endpoint().next(60) == ProgramEnded(5)
        assert sandbox.read("got") == b"HTTP/1.1 200 OK\r\n"
    finally:
        sandbox.close()


def test_an_endpoint_needs_a_port_and_no_network() -> None:
    with pytest.raises(ConfigurationError, match="port"):
        SandboxSpec(port=80)
    with pytest.raises(ConfigurationError, match="without network"):
        SandboxSpec(port=8000, network=True)
    sandbox = start_sandbox(SandboxSpec(workdir="/tmp"))
    try:
        with pytest.raises(ConfigurationError, match="no endpoint"):
            sandbox.endpoint()
    finally:
        sandbox.close()


@given(st.lists(st.sampled_from(_PIECES) | st.binary(max_size=30), max_size=12), st.lists(st.integers(0, 400)))
@settings(max_examples=150, deadline=None)
def test_no_bytes_stop_the_endpoint(pieces: list[bytes], cuts: list[int]) -> None:
    """Whatever the pieces, with or without answers between them, no error is raised and other clients are served."""
    served = Served()
    try:
        data = b"".join(pieces)
        client = served.client()
        at = 0
        for cut in (*cuts, len(data)):
            try:
                client.send(data[at : max(at, cut)])
            except OSError:  # refused, and closed
                break
            at = max(at, cut)
            found = served.endpoint.next(0)
            if isinstance(found, ProgramRequest):
                assert found.path == "*" or found.path.startswith("/")
                served.endpoint.answer(found.number, 200, found.body)
        client.socket.close()
        while isinstance(found := served.endpoint.next(0.01), ProgramRequest):
            served.endpoint.answer(found.number, 200, b"")
        assert found is not None or served.serves_others()
        assert found is None or b"swegym-agent" in data
    finally:
        served.close()
