"""Real servers and pools, each a process of its own on a free port, in a run directory of the session."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.waiting import wait_until

TOKEN = "a-token-for-tests-0123456789"


@dataclass
class Served:
    """A `swegym serve` or `swegym pool` that runs."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> str:
        return str(urlsplit(self.url).port)

    def ask(
        self, path: str, message: Any = None, *, token: str | None = TOKEN, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, content (of JSON) and headers of one answer; the message is bytes or what JSON takes."""
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
        told = json.loads(content) if kind.startswith("application/json") else content.decode()
        return response.status, told, {name.lower(): value for name, value in response.getheaders()}

    def containers(self) -> int:
        return int(self.ask("/healthz")[1]["containers"])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def assert_eventually(holds: Callable[[], bool], what: str, patience_s: float = 30.0) -> None:
    """Wait until something holds; fail where it never does."""
    assert wait_until(holds, patience_s), f"never came: {what}"


@contextmanager
def served(*arguments: str, port: str = "0") -> Iterator[Served]:
    """A server or a pool, until it is left."""
    command = [sys.executable, "-m", "swegym_env.cli", *arguments, "--port", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"{arguments} did not start"
            yield Served(process, json.loads(line)["url"])
        finally:
            process.kill()


@contextmanager
def pooled(*nodes: Served, state: Path, port: str = "0", arguments: tuple[str, ...] = ()) -> Iterator[Served]:
    """A pool of servers that knows them all."""
    urls = ",".join(node.url for node in nodes)
    with served("pool", "--nodes", urls, "--state", str(state), *arguments, port=port) as pool:

        def knows_all() -> bool:
            return all(node["status"] == "ok" for node in pool.ask("/healthz")[1]["nodes"].values())

        assert_eventually(knows_all, "the pool knows its servers")
        yield pool


@pytest.fixture(scope="package", autouse=True)
def surroundings() -> Iterator[Path]:
    """The token, little patience, and a run directory that nobody else uses."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="swegym-test-", dir=parent))
    directory.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEGYM_RUNDIR", str(directory))
        patch.setenv("SWEGYM_TOKEN", TOKEN)
        patch.setenv("SWEGYM_PATIENCE_S", "8")
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
    """A server, and a pool of it: whoever uses one knows no difference."""
    one: Served = request.getfixturevalue(request.param)
    return one
