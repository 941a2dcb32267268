"""What a client with the token may not ask for: more than the machine or the operator allows, and paths of the host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from swegym_env.errors import ConfigurationError
from swegym_env.sandbox import Limits, SandboxSpec, open_sandbox
from swegym_env.serving import requests
from swegym_env.serving.ceilings import Ceilings, ceilings_of_machine, parse_ceilings
from tests.env.serving.conftest import PROGRAM, Served, pooled, served

ROW = {
    "instance_id": "x__y-1",
    "repo": "x/y",
    "base_commit": "",
    "problem_statement": "p",
    "patch": "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-x\n+y\n",
    "files": {"a.txt": "x\n"},
    "FAIL_TO_PASS": ["test_a"],
    "PASS_TO_PASS": [],
    "test_command": "echo 'PASSED test_a'",
    "log_parser": "pytest",
}
OUTSIDE = ["/..", "/../..", "/tmp/../../..", "/tmp/..", "/./../../etc"]


@pytest.fixture(scope="module", params=["server", "pool"])
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with low ceilings, and a pool of it."""
    ceilings = ("memory=5G", "disk=5G", "processes=600", "files=600000", "timeout=61.5", "cpus=4.5", "descriptors=5000")
    ceilings += ("output=2M", "patch-files=200001", "patch-bytes=65M", "patch-depth=1001", "patch-cpu=10.5")
    with served("serve", *(word for each in ceilings for word in ("--ceiling", each))) as server:
        if request.param == "server":
            yield server
        else:
            with pooled(server, state=tmp_path_factory.mktemp("strict") / "state") as pool:
                yield pool


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"limits": {"memory_bytes": 1 << 40}}, "--ceiling memory"),
        ({"limits": {"disk_bytes": 1 << 40}}, "--ceiling disk"),
        ({"limits": {"file_size_bytes": 1 << 40}}, "--ceiling disk"),
        ({"limits": {"processes": 1_000_000}}, "--ceiling processes"),
        ({"limits": {"inodes": 1 << 30}}, "--ceiling files"),
        ({"limits": {"turn_timeout_s": 61.6}}, "--ceiling timeout"),
        ({"limits": {"cpus": 4.6}}, "--ceiling cpus"),
        ({"limits": {"descriptors": 5001}}, "--ceiling descriptors"),
        ({"limits": {"output_bytes": 3 << 20}}, "--ceiling output"),
        ({"limits": {"patch_files": 200_002}}, "--ceiling patch-files"),
        ({"limits": {"patch_bytes": 66 << 20}}, "--ceiling patch-bytes"),
        ({"limits": {"patch_depth": 1002}}, "--ceiling patch-depth"),
        ({"limits": {"patch_cpu_s": 10.6}}, "--ceiling patch-cpu"),
        ({"turn_timeout_s": 62}, "--ceiling timeout"),
        ({"task": ROW | {"test_timeout_s": 1e9}}, "--ceiling timeout"),
    ],
)
def test_container_above_a_ceiling_is_refused_with_its_name(strict: Served, message: Any, named: str) -> None:
    status, payload, _ = strict.ask("/container/create", message)
    assert status == 422 and named in payload["error"]["message"], payload
    assert strict.containers() == 0


def test_command_or_grading_above_the_timeout_is_refused_and_below_it_runs(strict: Served) -> None:
    container = strict.ask("/container/create", {"workdir": "/tmp", "limits": {"memory_bytes": 5 << 30}})[1][
        "container"
    ]
    message = {"container": container, "command": "echo ran | tee -a log"}
    status, payload, _ = strict.ask("/container/exec", message | {"timeout_s": 62})
    assert status == 422 and "--ceiling timeout" in payload["error"]["message"]
    status, payload, _ = strict.ask("/container/exec", message | {"output_limit_bytes": 3 << 20})
    assert status == 422 and "--ceiling output" in payload["error"]["message"]
    assert strict.ask("/container/exec", message | {"timeout_s": 61})[1]["output"] == "ran\n"
    assert strict.ask("/container/exec", {"container": container, "command": "cat log"})[1]["output"] == "ran\n"
    row = ROW | {"test_timeout_s": 61}
    status, payload, _ = strict.ask("/container/evaluate", {"task": row, "patch": "", "timeout_s": 86_400})
    assert status == 422 and "--ceiling timeout" in payload["error"]["message"]
    strict.ask("/container/destroy", {"container": container})


def test_ceilings_admit_the_defaults_and_no_more_than_the_machine_has() -> None:
    found = ceilings_of_machine()
    found.check_limits(Limits())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.memory_bytes == max(memory, Limits().memory_bytes)
    assert found.processes <= max(512, int(Path("/proc/sys/kernel/threads-max").read_text()))
    for limits in (Limits(memory_bytes=memory + (5 << 30)), Limits(processes=1_000_000), Limits(disk_bytes=1 << 50)):
        with pytest.raises(ConfigurationError, match="at most"):
            found.check_limits(limits)
    changed = parse_ceilings(["memory=8G", "timeout=90", "cpus=0.5"])
    assert (changed.memory_bytes, changed.timeout_s, changed.processes) == (8 << 30, 90.0, found.processes)
    assert changed.cpus == 0.5


def test_every_limit_that_a_request_can_set_has_a_ceiling() -> None:
    ceilings = Ceilings(**dict.fromkeys((field.name for field in fields(Ceilings)), 1 << 60))
    ceilings.check_limits(Limits())
    for name in requests.Limits.model_fields:
        if name != "cpu_s":  # a request may also set none
            with pytest.raises(ConfigurationError, match=f"limits.{name}: this server allows at most"):
                ceilings.check_limits(Limits(**{name: 1 << 61}))


@pytest.mark.parametrize("given", ["memory", "memory=", "memory=0", "time=3", "processes=-1", "timeout=inf"])
def test_malformed_ceiling_is_one_line_with_exit_code_2(given: str) -> None:
    done = PROGRAM.run("serve", "--port", "0", "--ceiling", given)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1 and "--ceiling" in done.stderr


def test_path_that_leaves_the_root_is_refused_and_leaves_nothing_on_the_host(service: Served, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    before = sorted(os.listdir("/"))
    container = service.ask("/container/create", {"workdir": "/tmp"})[1]["container"]
    for path in OUTSIDE:
        refused = (
            ("/container/changes", {"container": container, "root": path}),
            ("/container/create", {"workdir": f"{path}{tmp_path}/made"}),
            ("/container/create", {"path": [path]}),
        )
        for endpoint, message in refused:
            status, payload, _ = service.ask(endpoint, message)
            assert status == 422 and "'..'" in payload["error"]["message"], (endpoint, message, payload)
    service.ask("/container/destroy", {"container": container})
    assert not list(tmp_path.iterdir())
    assert sorted(os.listdir("/")) == before


def test_files_are_read_and_written_inside_whatever_their_path(service: Served, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "secret").write_text("of the host")
    (tmp_path / "secret").chmod(0o666)
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=service.url)
    sandbox.start()
    sandbox.run("ln -s ../../../../../../.. up; ln -s / top; mkdir -p d/e")
    with pytest.raises(OSError, match="proc"):  # the kernel follows no link of /proc
        sandbox.read(f"/proc/1/root/{tmp_path}/secret")
    for prefix in ("../" * 20, "/../../..", "up", "top/..", "d/e/../../../../.."):
        path = f"{prefix}/{tmp_path}/secret"
        with pytest.raises(FileNotFoundError):
            sandbox.read(path)
        sandbox.write(path.replace("secret", "new"), b"inside")
        assert sandbox.run(f"cat {tmp_path}/new; rm -r /{tmp_path.parts[1]}/pytest*").output == "inside"
    sandbox.close()
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").read_text() == "of the host"
