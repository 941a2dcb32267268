"""An endpoint that cannot be used is refused before anything starts: address, key, model."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swe_trainers.cli.main import main_eval
from swe_trainers.engines.endpoint import check_endpoint
from swe_trainers.errors import ConfigurationError

MODELS = ["small-1", "vendor/large-2", "models/gemini", "open/*"]


@contextlib.contextmanager
def serving(
    *, key: str | None = None, models: list[str] | None = None, requests: list[str] | None = None
) -> Iterator[str]:
    """A server that lists its models, perhaps only to those who have the key; without a list it knows no GET.

    It appends the path of each request to `requests`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if requests is not None:
                requests.append(self.path)
            if models is None:
                status, answer = 501, {"error": "no such method"}
            elif key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                status, answer = 401, {"error": "who are you?"}
            else:
                status, answer = 200, {"data": [{"id": name} for name in models]}  # type: ignore[dict-item]
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def check(url: str, model: str = "small-1", key: str | None = None, seconds: float = 30.0) -> None:
    check_endpoint(url, model, key=key, key_variable="MY_KEY", seconds=seconds)


def test_dead_address_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(ConfigurationError, match="cannot be reached: Connection refused"):
            check(url)
        command = ["--model", "x", "--base-url", url, "--output", str(tmp_path / "out")]
        assert main_eval(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "cannot be reached" in error
    assert not (tmp_path / "out").exists()


def test_address_that_never_answers_is_refused() -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # the queue is full: further connections are neither accepted nor refused
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        with pytest.raises(ConfigurationError, match=r"cannot be reached: (no answer in|timed out)"):
            check(f"http://127.0.0.1:{full.getsockname()[1]}/v1", seconds=0.3)


def test_server_that_is_slow_to_answer_is_accepted() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(60)
        check(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", seconds=0.5)
        silent.accept()[0].close()  # the first connection only tries the address
        with silent.accept()[0] as connection:
            assert connection.recv(4096).startswith(b"GET /v1/models ")


def test_missing_and_refused_keys_are_named() -> None:
    with serving(key="right", models=MODELS) as url:
        with pytest.raises(ConfigurationError, match="needs a key, and MY_KEY is not set"):
            check(url)
        with pytest.raises(ConfigurationError, match="the key in MY_KEY is refused"):
            check(url, key="wrong")
        check(url, key="right")


def test_unknown_model_is_refused_with_the_nearest() -> None:
    with serving(models=MODELS) as url:
        with pytest.raises(ConfigurationError, match=r"no such model\. Did you mean 'small-1'\?"):
            check(url, "smal-1")
        for model in ("small-1", "small-1:free", "large-2", "gemini", "open/anything"):
            check(url, model)


def test_servers_without_a_list_are_accepted() -> None:
    requests: list[str] = []
    with serving(requests=requests) as url:
        check(url)
    with serving(models=[], requests=requests) as url:
        check(url)
    assert requests == ["/v1/models", "/v1/models"]


def test_malformed_address_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected http://HOST:PORT"):
        check("localhost:8000/v1")
