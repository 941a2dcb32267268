"""Real servers and pools, each in its own process on a free port, with their own run directory."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.waiting import wait_until
from tests.warm import ForkedProcess, WarmPython, warm_python

TOKEN = "a-token-for-tests-0123456789"


@dataclass
class Served:
    """A running `swegym serve` or `swegym pool`."""

    process: ForkedProcess
    url: str

    @property
    def port(self) -> str:
        return str(urlsplit(self.url).port)

    def ask(
        self, path: str, message: Any = None, *, token: str | None = TOKEN, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Return a response's status, payload (parsed if JSON) and headers; `message` is bytes or a JSON value."""
        connection = http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=60)
        sent = {"Content-Type": "application/json", **(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        body = message if isinstance(message, bytes) or message is None else json.dumps(message).encode()
        connection.request("GET" if message is None else "POST", path, body, sent)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        kind = response.getheader("content-type", "")
        payload = json.loads(content) if kind.startswith("application/json") else content.decode()
        return response.status, payload, {name.lower(): value for name, value in response.getheaders()}

    def containers(self) -> int:
        return int(self.ask("/healthz")[1]["containers"])

    def settled_containers(self, quiet_s: float = 1.0) -> int:
        """The number of containers once it has not changed for so long: those of earlier tests have ended."""
        count, since = self.containers(), time.monotonic()
        while count and time.monotonic() < since + quiet_s:
            time.sleep(0.05)
            if (now := self.containers()) != count:
                count, since = now, time.monotonic()
        return count

    def kill(self) -> None:
        self.process.kill()


def assert_eventually(holds: Callable[[], bool], what: str, patience_s: float = 30.0) -> None:
    """Wait until `holds` returns true; fail after `patience_s` seconds."""
    assert wait_until(holds, patience_s), f"never came: {what}"


def owned_by(pid: int, surroundings: Path) -> list[Path]:
    """The directories that a process still has, in the run directory of these tests."""
    found = []
    for each in surroundings.glob("*/lease.json"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found += [each.parent] if f'"owner": {pid},' in each.read_text() else []
    return found


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate for 127.0.0.1 that it signs itself."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=IP:127.0.0.1"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


class Program:
    """`swegym` in forks of one process that has imported the servers: a start takes a tenth of the time."""

    warm: WarmPython
    path: Path

    @contextmanager
    def prepared(self, folder: Path) -> Iterator[None]:
        """Start that process; its socket and the program are in `folder`."""
        self.path = folder / "swegym"
        preloaded = ("swegym_env.cli.main", "swegym_env.serving.server", "swegym_env.serving.pool", "uvicorn.main")
        with warm_python(folder, dict(os.environ), preloaded) as self.warm:
            self.warm.program(self.path, MAIN)
            yield

    def start(self, *arguments: str) -> ForkedProcess:
        return self.warm.start(MAIN, *arguments)

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with these variables besides this process's."""
        environment = {**os.environ, **variables}
        return subprocess.run(
            [self.path, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )


MAIN = "swegym_env.cli.main:main"
PROGRAM = Program()


@contextmanager
def served(*arguments: str, port: str = "0") -> Iterator[Served]:
    """Run a server or a pool for the length of the block."""
    process = PROGRAM.start(*arguments, "--port", port)
    try:
        line = process.stdout.readline()
        assert line, f"{arguments} did not start"
        yield Served(process, json.loads(line)["url"])
    finally:
        process.kill()


@contextmanager
def pooled(*nodes: Served, state: Path, port: str = "0", arguments: tuple[str, ...] = ()) -> Iterator[Served]:
    """Run a pool of these servers; it has reached each of them."""
    urls = ",".join(node.url for node in nodes)
    with served("pool", "--nodes", urls, "--state", str(state), *arguments, port=port) as pool:

        def knows_all() -> bool:
            return all(node["status"] == "ok" for node in pool.ask("/healthz")[1]["nodes"].values())

        assert_eventually(knows_all, "the pool knows its servers")
        yield pool


@pytest.fixture(scope="package", autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set the token, a short timeout and a run directory of these tests alone."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="swegym-test-", dir=parent))
    directory.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEGYM_RUNDIR", str(directory))
        patch.setenv("SWEGYM_TOKEN", TOKEN)
        patch.setenv("SWEGYM_PATIENCE_S", "8")
        with PROGRAM.prepared(tmp_path_factory.mktemp("program")):
            yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="package")
def server(surroundings: Path) -> Iterator[Served]:
    with served("serve", "--capacity", "12") as one:
        yield one


@pytest.fixture(scope="package")
def pool(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with pooled(server, state=tmp_path_factory.mktemp("pool") / "state.sqlite") as one:
        yield one


@pytest.fixture(params=["server", "pool"])
def service(request: pytest.FixtureRequest) -> Served:
    """A server, and a pool of it: clients see no difference."""
    one: Served = request.getfixturevalue(request.param)
    return one
