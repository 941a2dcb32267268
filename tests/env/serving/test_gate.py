"""Authentication, limits, request ids, metrics, leases and shutdown of servers and pools."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import services
from swegym_env.sandbox import SandboxSpec, open_sandbox
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.sandbox.remote.connection import connect
from tests.env.serving.conftest import (
    PROGRAM,
    TOKEN,
    Served,
    assert_eventually,
    own_certificate,
    owned_by,
    pooled,
    served,
)


def test_server_and_pool_start_as_programs_without_preloaded_modules(tmp_path: Path) -> None:
    with (
        services.served("serve", "--capacity", "3") as server,
        services.served("pool", "--nodes", server.url, "--state", str(tmp_path / "state")) as pool,
    ):
        sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=pool.url)
        sandbox.start()
        assert sandbox.run("echo here").output == "here\n"
        sandbox.close()


def test_requests_without_the_token_are_refused(service: Served) -> None:
    before = service.settled_containers()
    paths = service.ask("/openapi.json")[1]["paths"]
    assert len(paths) >= 17
    for path, methods in paths.items():
        for method in methods:
            for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
                message = {} if method == "post" else None
                status, payload, headers = service.ask(path, message, token=token)
                assert status == 401 and "token" in payload["error"]["message"], (path, token)
                assert headers["www-authenticate"] == "Bearer"
    assert service.ask("/openapi.json", token=None)[0] == 401
    assert service.ask("/nothing", token=None)[0] == 401
    assert service.containers() == before


def test_body_over_the_limit_is_refused() -> None:
    with served("serve", "--body-limit", "64K") as server:
        assert server.ask("/container/create", {"env": {"A": "x" * 70_000}})[0] == 413

        def pieces() -> Iterator[bytes]:
            yield from [b"x" * 10_000] * 8

        connection = http.client.HTTPConnection("127.0.0.1", int(server.port), timeout=20)
        headers = {"Authorization": f"Bearer {TOKEN}", "Transfer-Encoding": "chunked"}
        connection.request("POST", "/container/create", pieces(), headers, encode_chunked=True)
        assert connection.getresponse().status == 411
        connection.close()
        assert server.containers() == 0


@pytest.mark.parametrize("kind", ["server", "pool"])
def test_bodies_beyond_the_total_are_repeated_and_small_requests_are_not_refused(
    kind: str, server: Served, tmp_path: Path
) -> None:
    size, options = 900_000, ("--body-limit", "2M", "--body-total", "3M")
    with ExitStack() as stack:
        if kind == "server":
            runs = service = stack.enter_context(served("serve", *options))
        else:
            runs = server
            service = stack.enter_context(pooled(server, state=tmp_path / "state", arguments=options))
        container, other = (service.ask("/container/create", {"workdir": "/tmp"})[1]["container"] for _ in range(2))
        threads = stack.enter_context(ThreadPoolExecutor(8))
        stack.callback(end_sleep, runs)
        waits = threads.submit(service.ask, "/container/exec", {"container": container, "command": SLEEP})
        assert_eventually(lambda: bool(sleeping(runs)), "the command runs")

        def message(name: str) -> dict[str, str]:
            content = base64.b64encode(name.encode() * size).decode()
            return {"container": container, "path": name, "content": content}

        writes = [threads.submit(service.ask, "/container/write", message(name)) for name in "ab"]
        assert_eventually(lambda: gauge(service, "body_bytes") > 2 * size, "both wait for the command")
        held = gauge(service, "body_bytes")
        for _ in range(3):
            status, payload, headers = service.ask("/container/write", message("c"))
            assert (status, payload["error"]["type"], headers["retry-after"]) == (503, "Busy", "1"), payload
            assert gauge(service, "body_bytes") == held
        assert service.ask("/container/exec", {"container": other, "command": "echo fine"})[1]["output"] == "fine\n"
        more = [threads.submit(connect(service.url).call, "/container/write", message(name)) for name in "cde"]
        end_sleep(runs)
        assert waits.result(30)[0] == 200
        assert [write.result(30)[0] for write in writes] == [200, 200]
        assert [write.result(60) for write in more] == [{}] * 3  # the client has repeated them
        assert_eventually(lambda: gauge(service, "body_bytes") == 0, "all are answered")
        for name in "abcde":
            content = service.ask("/container/read", {"container": container, "path": name})[1]["content"]
            assert base64.b64decode(content) == name.encode() * size
        for each in (container, other):
            service.ask("/container/destroy", {"container": each})


SLEEP = "sleep 1234.5"


def sleeping(server: Served) -> list[int]:
    """The processes of `SLEEP` in the server's sandboxes."""
    found = []
    for pid in descendants(server.process.pid):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            found += [pid] if command == SLEEP.replace(" ", "\0").encode() + b"\0" else []
    return found


def end_sleep(server: Served) -> None:
    for pid in sleeping(server):
        os.kill(pid, signal.SIGKILL)


def gauge(service: Served, name: str) -> float:
    lines = service.ask("/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith(f"swegym_{name} ")).split()[1])


def test_every_response_has_its_request_id(service: Served) -> None:
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
def test_malformed_request_is_refused_with_the_reason(server: Served, path: str, message: Any) -> None:
    status, payload, _ = server.ask(path, message)
    assert status in (400, 422) and payload["error"]["message"]
    assert server.ask("/container/exec", {"container": "0" * 32, "command": "ls"})[0] == 404


def test_task_may_not_name_files_of_the_server(server: Served) -> None:
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
        status, payload, _ = server.ask("/container/create", {"task": row | change})
        assert status == 422 and next(iter(change)) in payload["error"]["message"], change


def test_metrics_count_requests(service: Served) -> None:
    service.ask("/nothing/at/all")
    text = service.ask("/metrics")[1]
    assert 'swegym_requests_total{path="/healthz",status="200"}' in text
    assert 'swegym_requests_total{path="other",status="404"}' in text
    assert "\nswegym_containers " in text and "swegym_request_seconds_bucket" in text


def test_expired_lease_is_released_and_renewed_lease_is_kept() -> None:
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
        assert busy.run("sleep 2.5; echo done").output == "done\n"  # a running command renews the lease
        assert_eventually(lambda: server.containers() <= 1, "the dead owner's is closed")
        assert busy.run("echo still").output == "still\n"
        busy.close()


def test_process_that_ends_releases_its_containers(server: Served) -> None:
    before = server.settled_containers()
    code = (
        "import sys\nfrom swegym_env.sandbox import SandboxSpec, open_sandbox\n"
        "s = open_sandbox(SandboxSpec(), backend=sys.argv[1]); s.start(); print(s.run('echo hi').output)"
    )
    done = subprocess.run([sys.executable, "-c", code, server.url], capture_output=True, text=True, check=True)
    assert done.stdout == "hi\n\n" and not done.stderr
    assert_eventually(lambda: server.containers() == before, "it is given back", 10)


def test_stopped_server_drains() -> None:
    with served("serve") as server:
        sandbox = open_sandbox(SandboxSpec(), backend=server.url)
        sandbox.start()
        outputs: list[str] = []
        runner = threading.Thread(target=lambda: outputs.append(sandbox.run("sleep 1; echo finished").output))
        runner.start()
        assert_eventually(lambda: server.ask("/metrics")[1] != "", "it answers")
        server.process.send_signal(signal.SIGTERM)
        assert_eventually(lambda: server.ask("/healthz")[1]["status"] == "draining", "it drains")
        assert server.ask("/container/create", {})[0] == 503
        runner.join()
        assert outputs == ["finished\n"]
        assert sandbox.run("echo more").output == "more\n"
        sandbox.close()
        assert server.process.wait(20) == 0


def test_killed_server_leaves_nothing(surroundings: Path) -> None:
    with served("serve") as server:
        sandbox = open_sandbox(SandboxSpec(), backend=server.url)
        sandbox.start()
        pid = server.process.pid
        assert owned_by(pid, surroundings)
        server.kill()

    assert_eventually(lambda: not owned_by(pid, surroundings), "the killed server's sandboxes are reaped")


def test_tls_with_certificate_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = own_certificate(tmp_path)
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
        (("serve", "--body-total", "1M"), "--body-limit"),
        (("serve", "--sandbox", "none"), "no sandbox back end"),
        (("pool", "--nodes", "here"), "--nodes"),
        (("pool", "--nodes", "http://a:1", "--state", "/proc/none/state"), "--state"),
    ],
)
def test_invalid_option_is_one_line_with_exit_code_2(arguments: tuple[str, ...], what: str) -> None:
    done = PROGRAM.run(*arguments, "--port", "0")
    assert (done.returncode, done.stdout) == (2, "")
    assert what in done.stderr and done.stderr.count("\n") == 1


def test_server_needs_a_token_and_a_free_port(server: Served) -> None:
    done = PROGRAM.run("serve", "--port", server.port)
    assert done.returncode == 2 and "in use" in done.stderr
    done = PROGRAM.run("serve", "--port", server.port, SWEGYM_TOKEN="short")
    assert done.returncode == 2 and "16 or more" in done.stderr and "short" not in done.stderr


def test_incomplete_request_blocks_nobody(server: Served) -> None:
    with socket.create_connection(("127.0.0.1", int(server.port))) as half:
        half.sendall(f"POST /container/create HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode())
        half.sendall(b"Content-Length: 100\r\n\r\n{")
        before = server.settled_containers()
        assert server.ask("/healthz")[0] == 200
    assert server.containers() == before
