"""Random requests from the OpenAPI schema, and random bytes: none makes the server fail, and nothing is left."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.env.serving.conftest import TOKEN, Served, assert_eventually, owned_by, pooled, served

# As high as the schema, so that what it generates is not only refused.
HIGH = [
    word
    for each in ("memory=1T", "disk=1T", "processes=1M", "files=1G", "timeout=86400")
    for word in ("--ceiling", each)
]


def fuzz(service: Served, examples: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {TOKEN}", "--checks", "not_a_server_error,ignored_auth"),
        *("--phases", "fuzzing", "--max-examples", str(examples), "--seed", "1", "--no-color"),
        *("--generation-database", "none", "--request-timeout", "20", *arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.parametrize(
    "examples", [pytest.param(3, marks=pytest.mark.sample), pytest.param(12, marks=pytest.mark.campaign)]
)
def test_generated_requests_cause_no_failure_and_leave_nothing(
    surroundings: Path, tmp_path: Path, examples: int
) -> None:
    with (
        served("serve", "--capacity", "4", "--lease", "2", *HIGH) as server,
        pooled(server, state=tmp_path / "state", arguments=("--lease", "2")) as pool,
    ):
        # The pool forwards valid requests, so both are tested. `pull` needs the network, which tests do not use.
        done = fuzz(pool, examples, "--exclude-path", "/images/pull")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        for service in (server, pool):
            text = service.ask("/metrics")[1]
            assert 'path="/container/create",status="200"' in text and 'status="500"' not in text
        assert 'path="/container/exec",status="4' in pool.ask("/metrics")[1]
        assert_eventually(lambda: server.containers() == pool.containers() == 0, "what was made is reaped")
        pid = server.process.pid
    assert_eventually(lambda: not owned_by(pid, surroundings), "nothing is left")


BODY = b'{"containers": []}'
NUMBERS = st.sampled_from(
    [b"0", b"1", b"18", b"19", b"-1", b"+18", b"0x12", b"18, 18", b"9" * 19, b"9" * 5000, b"", b" "]
)
LINES = st.one_of(
    st.sampled_from(
        [
            f"Authorization: Bearer {TOKEN}".encode(),
            b"Authorization: Bearer " + TOKEN.encode() + b"\0",
            b"Authorization:",
            b"Host: x",
            b"Transfer-Encoding: chunked",
            b"Transfer-Encoding: chunked, identity",
            b"Expect: 100-continue",
            b"Connection: close",
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Upgrade: h2c",
            b"X-Request-Id: of-this-test",
            b"X-Request-Id: \xff\xfe",
            b"X-Client-Id: \xff" * 50,
            b" folded",
            b": no name",
            b"no colon",
            b"",
        ]
    ),
    NUMBERS.map(lambda number: b"Content-Length: " + number),
    st.binary(max_size=40),
)
AUTHORIZED = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
STARTS = st.one_of(
    st.sampled_from(
        [
            b"POST /container/renew HTTP/1.1\r\n" + AUTHORIZED + b"Content-Length: 18",
            b"POST /container/renew HTTP/1.1\r\n" + AUTHORIZED + b"X-A: b",
            b"POST /container/exec HTTP/1.1\r\n" + AUTHORIZED + b"Transfer-Encoding: chunked",
            b"GET /images HTTP/1.1\r\n" + AUTHORIZED + b"X-A: b",
        ]
    ),
    st.sampled_from(
        [
            b"POST /container/renew HTTP/1.1",
            b"POST /container/exec HTTP/1.1",
            b"GET /healthz HTTP/1.1",
            b"GET /healthz HTTP/1.0",
            b"GET /healthz HTTP/9.9",
            b"GET /healthz",
            b"HEAD /metrics HTTP/1.1",
            b"OPTIONS * HTTP/1.1",
            b"CONNECT a:1 HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"GET http://[::1 HTTP/1.1",
            b"GET //x/%ff%00/..?%zz#f HTTP/1.1",
            b"POST /container/../healthz HTTP/1.1",
            b"\x16\x03\x01\x02\x00\x01\x00",
        ]
    ),
    st.binary(max_size=40),
)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\n", b"\r"])
REQUESTS = st.builds(
    lambda start, lines, end, body: end.join([start, *lines, b"", body]),
    STARTS,
    st.lists(LINES, max_size=6),
    ENDS,
    st.one_of(st.just(BODY), st.just(b"5\r\n{}\r\n\r\n0\r\n\r\n"), st.binary(max_size=60), st.just(b"[" * 5000)),
)
STREAMS = st.lists(st.one_of(REQUESTS, st.binary(max_size=200)), min_size=1, max_size=3).map(b"".join)


@settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
@given(STREAMS, st.lists(st.integers(0, 400), max_size=3))
def send_and_check(service: Served, seen: set[int], stream: bytes, cuts: Sequence[int]) -> None:
    """Send a stream in pieces; every status is an honest one, and without the token nothing is done."""
    edges = [0, *sorted(cuts), len(stream)]
    found = b""
    with socket.create_connection(("127.0.0.1", int(service.port)), timeout=20) as end, contextlib.suppress(OSError):
        for begin, stop in itertools.pairwise(edges):
            end.sendall(stream[begin:stop])
        end.settimeout(0.05)  # what is incomplete gets no response
        while piece := end.recv(1 << 16):
            found += piece
    statuses = {int(status) for status in re.findall(rb"^HTTP/1\.1 (\d+) ", found, re.MULTILINE)}
    assert bool(statuses) == bool(found) and all(status < 500 for status in statuses), found
    if TOKEN.encode() not in stream:
        assert not statuses - {100, 400, 401, 431}, found
    seen |= statuses


def test_random_bytes_cause_no_failure_and_leave_nothing(service: Served) -> None:
    before, seen = service.settled_containers(), set[int]()
    send_and_check(service, seen)
    assert 400 in seen and len(seen) >= 3, "the bytes reach several parts"
    assert service.containers() == before
    text = service.ask("/metrics")[1]
    assert 'status="500"' not in text

    def connections() -> float:
        lines = service.ask("/metrics")[1].splitlines()
        return float(next(line for line in lines if line.startswith("swegym_connections ")).split()[1])

    assert_eventually(lambda: connections() < 40, "the connections are closed")
