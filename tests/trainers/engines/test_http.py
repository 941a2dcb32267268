"""The client of JSON over HTTP, against real servers on loopback that fail in the usual ways."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swe_trainers.engines.http import JsonClient, Pace, RefusedError
from swe_trainers.errors import ConfigurationError, EngineError

Reply = Callable[[BaseHTTPRequestHandler], None]


def reply(status: int, body: object = None, **headers: str) -> Reply:
    """An answer with this status and JSON; text as it is."""
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    return send


def cut(handler: BaseHTTPRequestHandler) -> None:
    """An answer that ends in the middle."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"half": ')


def gone(handler: BaseHTTPRequestHandler) -> None:
    """No answer at all."""


@contextmanager
def answering(*replies: Reply) -> Iterator[tuple[str, list[float]]]:
    """The address of a server that gives these answers in turn, the last again and again; and when it was asked."""
    asked: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(time.monotonic())
            replies[min(len(asked), len(replies)) - 1](self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "bad", [reply(429), reply(500), reply(503, "busy"), cut, gone, reply(200, "<html>a proxy's page</html>")]
)
def test_transient_failures_are_retried(bad):
    with answering(bad, bad, reply(200, {"fine": 1})) as (url, asked):
        assert JsonClient(url, pause_s=0.001).post("/x", {}) == {"fine": 1}
        assert len(asked) == 3


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (cut, "no answer after 3 tries"),
        (reply(200, "<html>"), "no JSON"),
        (reply(500, {"error": {"message": "on\nfire"}}), "500: on fire"),
    ],
)
def test_permanent_failure_is_a_one_line_error(bad, expected):
    with answering(bad) as (url, asked), pytest.raises(EngineError, match=expected) as raised:
        JsonClient(url, pause_s=0.001, tries=3).post("/x", {})
    assert len(asked) == 3 and "\n" not in str(raised.value)


def test_client_error_is_not_retried():
    with answering(reply(400, {"error": "no such field"})) as (url, asked):
        with pytest.raises(RefusedError, match="400: no such field") as raised:
            JsonClient(url).post("/x", {})
        assert raised.value.status == 400 and len(asked) == 1


@pytest.mark.parametrize("retry_after", [lambda: "1", lambda: formatdate(time.time() + 2, usegmt=True)])
def test_retry_after_is_honoured(retry_after):
    held = [reply(429, {}, Retry_After=retry_after()), reply(200, {})]
    with answering(*held) as (url, asked):
        JsonClient(url, pause_s=0.001).post("/x", {})
        assert asked[1] - asked[0] >= 0.95


def test_retry_after_holds_all_clients_with_the_same_pace():
    pace = Pace()
    with ExitStack() as stack:
        busy, _ = stack.enter_context(answering(reply(429, {}, Retry_After="1"), reply(200, {})))
        other, asked = stack.enter_context(answering(reply(200, {})))
        began = time.monotonic()
        thread = threading.Thread(target=JsonClient(busy, pace=pace, pause_s=0.001).post, args=("/x", {}))
        thread.start()
        time.sleep(0.3)
        JsonClient(other, pace=pace).post("/x", {})
        thread.join()
        assert asked[0] - began >= 0.95


def test_long_retry_after_is_an_error():
    with answering(reply(429, "come back tomorrow", Retry_After="86400")) as (url, asked):
        with pytest.raises(RefusedError, match="tomorrow") as raised:
            JsonClient(url, pause_s=0.001).post("/x", {})
        assert raised.value.retry_after_s == 86400 and len(asked) == 1


def test_rate_limit_counts_every_thread_and_try():
    pace = Pace(per_minute=1200)  # one in 50 ms
    with answering(reply(500), reply(500), reply(200, {})) as (url, asked):
        clients = [JsonClient(url, pace=pace, pause_s=0.001) for _ in range(3)]
        threads = [threading.Thread(target=client.post, args=("/x", {})) for client in clients]
        began = time.monotonic()  # on a busy machine the first request arrives late, and the others in time
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(asked) == 5
        assert asked[-1] - began >= 4 * 0.05


def test_api_key_is_removed_from_messages():
    with answering(reply(401, {"error": "incorrect key sk-secret-1"})) as (url, _):
        with pytest.raises(RefusedError, match="401: incorrect key ") as raised:
            JsonClient(url, api_key="sk-secret-1").post("/x", {})
        assert "sk-secret-1" not in str(raised.value)


@pytest.mark.parametrize("url", ["localhost:1", "http://localhost:80000/v1", "http://localhost:v1", "http://[::1/v1"])
def test_invalid_url_is_named_with_its_option(url):
    with pytest.raises(ConfigurationError, match=re.escape(f"--base-url: got {url!r}, expected http")):
        JsonClient(url, option="--base-url")
