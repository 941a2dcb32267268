"""Requests made at random from the service's own schema, by schemathesis: none makes it fail, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.env.serving.conftest import TOKEN, Served, assert_eventually, pooled, served

EXAMPLES = "6"


def fuzz(service: Served, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {TOKEN}", "--checks", "not_a_server_error,ignored_auth"),
        *("--phases", "fuzzing", "--max-examples", EXAMPLES, "--seed", "1", "--no-color"),
        *("--generation-database", "none", "--request-timeout", "20", *arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def test_no_request_makes_the_service_fail_or_leaves_anything(surroundings: Path, tmp_path: Path) -> None:
    with (
        served("serve", "--capacity", "4", "--lease", "2") as server,
        pooled(server, state=tmp_path / "state", arguments=("--lease", "2")) as pool,
    ):
        # The pool passes on what it takes for right, so both are met. Pulling asks the network, which no test does.
        done = fuzz(pool, "--exclude-path", "/images/pull")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        for service in (server, pool):
            text = service.ask("/metrics")[1]
            assert 'path="/container/create",status="200"' in text and 'status="500"' not in text
        assert 'path="/container/exec",status="4' in pool.ask("/metrics")[1]
        assert_eventually(lambda: server.containers() == pool.containers() == 0, "what was made is reaped")
        pid = server.process.pid
    assert_eventually(
        lambda: not any(f'"owner": {pid},' in each.read_text() for each in surroundings.rglob("lease.json")),
        "nothing is left",
    )
