"""What stands before the API: nothing without the token, nothing too large, every request under an id, all counted."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swegym_env.sandbox import SandboxSpec, open_sandbox
from tests.env.serving.conftest import TOKEN, Served, assert_eventually, served


def test_no_call_without_the_token_does_anything(service: Served) -> None:
    before = service.containers()
    paths = service.ask("/openapi.json")[1]["paths"]
    assert len(paths) >= 17
    for path, methods in paths.items():
        for method in methods:
            for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
                message = {} if method == "post" else None
                status, told, headers = service.ask(path, message, token=token)
                assert status == 401 and "token" in told["error"]["message"], (path, token)
                assert headers["www-authenticate"] == "Bearer"
    assert service.ask("/openapi.json", token=None)[0] == 401
    assert service.ask("/nothing", token=None)[0] == 401
    assert service.containers() == before


def test_a_body_over_the_limit_is_refused_however_it_is_sent() -> None:
    with served("serve", "--body-limit", "64K") as server:
        assert server.ask("/container/create", {"env": {"A": "x" * 70_000}})[0] == 413

        def pieces() -> Iterator[bytes]:
            yield from [b"x" * 10_000] * 8

        connection = http.client.HTTPConnection("127.0.0.1", int(server.port), timeout=20)
        headers = {"Authorization": f"Bearer {TOKEN}", "Transfer-Encoding": "chunked"}
        connection.request("POST", "/container/create", pieces(), headers, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        assert server.containers() == 0


def test_every_answer_has_its_request_id(service: Served) -> None:
    assert service.ask("/healthz", headers={"X-Request-Id": "one-of-mine.7"})[2]["x-request-id"] == "one-of-mine.7"
    first, second = (service.ask("/healthz")[2]["x-request-id"] for _ in range(2))
    assert first != second and len(first) == 32
    assert service.ask("/healthz", headers={"X-Request-Id": "a\tb c d e f"})[0] == 422


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/container/exec", {}),
        ("/container/exec", b"no json"),
        ("/container/exec", b"[" * 100_000),
        ("/container/exec", {"container": "0" * 32, "command": "ls", "timeout_s": -1}),
        ("/container/exec", b'{"container": "%s", "command": "ls", "timeout_s": NaN}' % (b"0" * 32)),
        ("/container/create", {"unknown": 1}),
        ("/container/create", {"task": {}}),
        ("/container/create", {"task": {"instance_id": "a", "repo": "../../etc", "base_commit": "0" * 40}}),
        ("/container/create", {"bundles": [{"name": "x", "files": {"../../escape": {"content": ""}}}]}),
        ("/container/create", {"bundles": [{"name": "x", "files": {"a": {"content": "«"}}}]}),
        ("/container/create", {"bundles": [{"name": "x", "files": {"\udbf4": {"content": ""}}}]}),
        ("/container/evaluate", {"patch": ""}),
    ],
)
def test_a_malformed_message_is_refused_and_told_why(server: Served, path: str, message: Any) -> None:
    status, told, _ = server.ask(path, message)
    assert status in (400, 422) and told["error"]["message"]
    assert server.ask("/container/exec", {"container": "0" * 32, "command": "ls"})[0] == 404


def test_a_task_may_not_name_what_lies_on_the_server(server: Served) -> None:
    row = {
        "instance_id": "x__y-1",
        "repo": "x/y",
        "base_commit": "0" * 40,
        "problem_statement": "p",
        "patch": "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n",
        "FAIL_TO_PASS": ["a"],
        "PASS_TO_PASS": [],
    }
    for change in ({"repository": "/root"}, {"repository": "file:///root"}, {"image": "/"}, {"repo": "x/.."}):
        status, told, _ = server.ask("/container/create", {"task": row | change})
        assert status == 422 and next(iter(change)) in told["error"]["message"], change


def test_prometheus_reads_what_was_done(service: Served) -> None:
    service.ask("/nothing/at/all")
    text = service.ask("/metrics")[1]
    assert 'swegym_requests_total{path="/healthz",status="200"}' in text
    assert 'swegym_requests_total{path="other",status="404"}' in text
    assert "\nswegym_containers " in text and "swegym_request_seconds_bucket" in text


def test_who_is_silent_is_reaped_and_who_lives_is_not() -> None:
    owner = (
        "import sys, time\nfrom swegym_env.sandbox import SandboxSpec, open_sandbox\n"
        "s = open_sandbox(SandboxSpec(), backend=sys.argv[1]); s.start(); print('up', flush=True); time.sleep(60)"
    )
    with served("serve", "--lease", "1.5") as server:
        with subprocess.Popen([sys.executable, "-c", owner, server.url], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            assert server.containers() == 1
            process.kill()
        busy = open_sandbox(SandboxSpec(), backend=server.url)
        busy.start()
        assert busy.run("sleep 2.5; echo done").output == "done\n"  # what is at work is not silent
        assert_eventually(lambda: server.containers() <= 1, "the dead owner's is closed")
        assert busy.run("echo still").output == "still\n"
        busy.close()


def test_a_process_that_ends_gives_back_what_it_did_not_close(server: Served) -> None:
    before = server.containers()
    code = (
        "import sys\nfrom swegym_env.sandbox import SandboxSpec, open_sandbox\n"
        "s = open_sandbox(SandboxSpec(), backend=sys.argv[1]); s.start(); print(s.run('echo hi').output)"
    )
    done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, check=True)
    assert done.stdout == "hi\n\n" and not done.stderr
    assert_eventually(lambda: server.containers() == before, "it is given back", 10)


def test_a_server_that_is_stopped_lets_what_runs_come_to_its_end() -> None:
    with served("serve") as server:
        sandbox = open_sandbox(SandboxSpec(), backend=server.url)
        sandbox.start()
        told: list[str] = []
        runner = threading.Thread(target=lambda: told.append(sandbox.run("sleep 1; echo finished").output))
        runner.start()
        assert_eventually(lambda: server.ask("/metrics")[1] != "", "it answers")
        server.process.send_signal(signal.SIGTERM)
        assert_eventually(lambda: server.ask("/healthz")[1]["status"] == "draining", "it drains")
        assert server.ask("/container/create", {})[0] == 503
        runner.join()
        assert told == ["finished\n"]
        assert sandbox.run("echo more").output == "more\n"
        sandbox.close()
        assert server.process.wait(20) == 0


def test_nothing_is_left_of_a_server_that_is_killed(surroundings: Path) -> None:
    with served("serve") as server:
        sandbox = open_sandbox(SandboxSpec(), backend=server.url)
        sandbox.start()
        pid = server.process.pid
        server.kill()

    def owned() -> list[Path]:
        return [each for each in surroundings.rglob("lease.json") if f'"owner": {pid},' in each.read_text()]

    assert_eventually(lambda: not owned(), "the killed server's sandboxes are reaped")


def test_tls_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    with served("serve", "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        assert server.url.startswith("https://")
        with pytest.raises(Exception, match="SWEGYM_CA"):
            open_sandbox(SandboxSpec(), backend=server.url).start()
        monkeypatch.setenv("SWEGYM_CA", str(certificate))
        sandbox = open_sandbox(SandboxSpec(), backend=f"{server.url}/")
        sandbox.start()
        assert sandbox.run("echo over tls").output == "over tls\n"
        sandbox.close()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("serve", "--host", "0.0.0.0"), "in clear"),
        (("serve", "--tls-cert", "x"), "both or neither"),
        (("serve", "--capacity", "0"), "--capacity"),
        (("serve", "--sandbox", "none"), "no sandbox back end"),
        (("pool", "--nodes", "here"), "--nodes"),
        (("pool", "--nodes", "http://a:1", "--state", "/proc/none/state"), "--state"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(arguments: tuple[str, ...], what: str) -> None:
    command = [sys.executable, "-m", "swegym_env.cli", *arguments, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert what in done.stderr and done.stderr.count("\n") == 1


def test_no_server_without_a_token_and_none_on_a_port_in_use(server: Served) -> None:
    command = [sys.executable, "-m", "swegym_env.cli", "serve", "--port", server.port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "in use" in done.stderr
    short = {**os.environ, "SWEGYM_TOKEN": "short"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=short)
    assert done.returncode == 2 and "16 or more" in done.stderr and "short" not in done.stderr


def test_half_a_request_holds_nobody_up(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", int(server.port))) as half:
        half.sendall(f"POST /container/create HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode())
        half.sendall(b"Content-Length: 100\r\n\r\n{")
        before = server.containers()
        assert server.ask("/healthz")[0] == 200
    assert server.containers() == before
