"""NeMo Gym's sandbox API and the environment of its mini-swe-agent: `scripts/test_adapter.sh nemo_gym` runs this."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nemo_gym.sandbox import (
    Sandbox,
    SandboxCreateError,
    SandboxSpec,
    SandboxStatus,
    list_providers,
    resolve_provider_config,
)
from responses_api_agents.mini_swe_agent_2.sandbox_environment import MiniSWESandboxEnvironment, Submitted

from swegym_env.adapters.nemo_gym import VERDICT, SwegymProvider
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks
from tests.env.sandbox.test_reaping import eventually, gone, sandboxes, users
from tests.places import own_run_directory

TASK = load_tasks("mini")["mini__lrucache-001"]
BLOCK = {"sandbox": {"swegym": {"dataset": "mini"}, "default_metadata": {"sandbox-api": "swegym"}}}
CONFIG = resolve_provider_config("sandbox", BLOCK)
REPAIR = f"git apply - <<'END'\n{TASK.patch}END"


def spec(**more: Any) -> SandboxSpec:
    return SandboxSpec(image="docker.io/any:latest", metadata={"instance_id": TASK.instance_id}, **more)


@pytest.fixture
def place() -> Iterator[Path]:
    """A run directory of its own, in which leftovers can be counted."""
    with own_run_directory() as directory:
        yield directory


def running(place: Path) -> list[str]:
    return [name for name in sandboxes(place) if name.endswith("-sandbox")]


def outcome(sandbox: Sandbox, place: Path) -> dict[str, Any]:
    sandbox.download(VERDICT, place / "below" / "verdict.json")
    return dict(json.loads((place / "below" / "verdict.json").read_text()))


def test_the_public_api_works_on_the_provider_of_the_entry_point(place: Path, tmp_path: Path) -> None:
    assert "swegym" in list_providers()
    given = spec(
        env={"ME": "7 'eight'"}, files={"made/for/it": "12345", "/tmp/abs": "é"}, resources={"memory_mib": 512}
    )
    (tmp_path / "tool").write_bytes(b"#!/bin/sh\necho \0\xff tool\n")
    (tmp_path / "tool").chmod(0o755)
    with Sandbox(CONFIG).start(given) as sandbox:
        assert sandbox.status() is SandboxStatus.RUNNING and len(running(place)) == 1
        ran = sandbox.exec("echo $ME; echo two >&2; pwd; cat made/for/it /tmp/abs; cd /; X=1; exit 3")
        assert (ran.stdout, ran.stderr) == ("7 'eight'\n/testbed\n12345é", "two\n")
        assert (ran.return_code, ran.error_type) == (3, None)
        ran = sandbox.exec("pwd; echo $ME$X; cat", cwd="/usr", env={"ME": "2"}, user="root")
        assert (ran.stdout, ran.return_code) == ("/usr\n2\n", 0)  # nothing of the command before; no input
        assert sandbox.exec("if").stderr and sandbox.exec("no-such-program").return_code == 127
        ran = sandbox.exec("echo begun; sleep 60", timeout_s=0.5)
        assert (ran.stdout, ran.return_code, ran.error_type) == ("begun\n", 125, "timeout")
        with pytest.raises(ValueError, match="one user"):
            sandbox.exec("true", user="postgres")
        sandbox.upload(tmp_path / "tool", "/tmp/made/tool")
        sandbox.download("/tmp/made/tool", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == (tmp_path / "tool").read_bytes()
        assert sandbox.exec("test -x /tmp/made/tool").return_code == 0
        with pytest.raises(OSError, match="nothing-there"):
            sandbox.download("/nothing-there", tmp_path / "no")
        assert sandbox.status() is SandboxStatus.RUNNING
    assert sandbox.status() is SandboxStatus.STOPPED
    assert eventually(lambda: not running(place))


def test_the_work_is_graded_as_the_agent_left_it(place: Path, tmp_path: Path) -> None:
    with Sandbox(CONFIG).start(spec()) as sandbox:
        assert sandbox.exec(f"mkdir -p /swegym; echo '{{\"reward\": 1}}' >{VERDICT}; ls").return_code == 0
        before = outcome(sandbox, tmp_path)
        assert sandbox.exec(REPAIR).return_code == 0
        after = outcome(sandbox, tmp_path)
    assert (before["reward"], before["resolved"]) == (0.0, False)
    assert (after["reward"], after["resolved"]) == (1.0, True) and after["fail_to_pass"][0] > 0


def test_the_environment_of_its_mini_swe_agent_works_in_our_sandbox(place: Path) -> None:
    environment = MiniSWESandboxEnvironment(
        provider=CONFIG,
        image="docker.io/swebench/any",
        cwd="/testbed",
        instance_id=TASK.instance_id,
        spec={"resources": {"cpu": 2, "memory_mib": 512, "disk_gib": 1}, "metadata": {"harness": "mini-swe-agent"}},
    )
    assert environment.execute({"command": REPAIR})["returncode"] == 0
    assert environment.execute("echo 1; echo 2 >&2; exit 4")["output"] == "1\n\n2\n"
    with pytest.raises(Submitted) as submitted:
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; git diff"})
    assert "lrucache" in submitted.value.messages[0]["extra"]["submission"]
    environment.cleanup()
    assert eventually(lambda: not running(place))


def test_what_the_machine_breaks_is_an_error_and_leaves_no_verdict(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sandbox(CONFIG).start(spec()) as sandbox:
        monkeypatch.setenv("SWEGYM_RUNDIR", str(tmp_path / "file" / "below"))
        (tmp_path / "file").touch()
        with pytest.raises(InfrastructureError):  # grading has no place
            outcome(sandbox, tmp_path)
        with pytest.raises(SandboxCreateError):
            Sandbox(CONFIG).start(spec())
        monkeypatch.undo()
        pid = supervisor().pid
        below = descendants(pid)
        os.kill(pid, signal.SIGKILL)
        assert gone(below)
        with pytest.raises(InfrastructureError):
            sandbox.exec("ls")
        assert sandbox.status() is SandboxStatus.ERROR
        with pytest.raises(InfrastructureError):
            outcome(sandbox, tmp_path)
    assert not (tmp_path / "below").exists()


@pytest.mark.parametrize("path", ["//swegym/verdict.json", "/swegym//verdict.json", "/tmp/../swegym/verdict.json"])
def test_no_other_name_of_the_verdict_is_a_file_of_the_agent(place: Path, tmp_path: Path, path: str) -> None:
    with Sandbox(CONFIG).start(spec()) as sandbox:
        sandbox.exec(f"mkdir -p /swegym; echo '{{\"reward\": 1}}' >{VERDICT}")
        sandbox.download(path, tmp_path / "verdict.json")
    assert json.loads((tmp_path / "verdict.json").read_text())["reward"] == 0.0


def test_a_cancelled_command_holds_no_close_up(place: Path) -> None:
    async def play() -> None:
        provider = SwegymProvider(dataset="mini")
        handle = await provider.create(spec())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(provider.exec(handle, "echo begun >/tmp/begun; sleep 1000"), 3)
        assert (await asyncio.wait_for(provider.exec(handle, "cat /tmp/begun"), 30)).stdout == "begun\n"
        running = asyncio.ensure_future(provider.exec(handle, "sleep 1000"))
        await asyncio.sleep(1)
        await asyncio.wait_for(provider.close(handle), 30)
        assert (await asyncio.wait_for(running, 30)).return_code == 137
        await provider.close(handle)

    asyncio.run(play())
    assert eventually(lambda: not running(place))


def test_an_agent_that_breaks_its_sandbox_has_the_reward_0(place: Path, tmp_path: Path) -> None:
    with Sandbox(CONFIG).start(spec()) as sandbox:
        for command in ("rm -f /bin; kill -9 -1", "ls"):
            with pytest.raises(InfrastructureError):
                sandbox.exec(command)
        assert outcome(sandbox, tmp_path)["reward"] == 0.0


def test_an_image_without_a_task_has_no_verdict(place: Path, tmp_path: Path) -> None:
    with Sandbox({"swegym": {"network": False}}).start(SandboxSpec(image="host", workdir="/data/here")) as sandbox:
        assert sandbox.exec("pwd; touch made; ls").stdout == "/data/here\nmade\n"
        with pytest.raises(ConfigurationError, match="no task"):
            outcome(sandbox, tmp_path)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (spec(provider_options={"platform": {}}), "platform"),
        (spec(resources={"gpu": 1}), "gpu"),
        (spec(entrypoint=["sh"]), "entrypoint"),
        (SandboxSpec(), "instance_id"),
        (SandboxSpec(provider_options={"instance_id": "no-such-task"}), "no-such-task"),
    ],
)
def test_what_a_sandbox_does_not_have_is_refused(place: Path, given: SandboxSpec, wrong: str) -> None:
    with pytest.raises(SandboxCreateError, match=wrong):
        asyncio.run(SwegymProvider(dataset="mini").create(given))
    with pytest.raises(ConfigurationError, match="no effect here: network"):
        SwegymProvider(dataset="mini", network=True)


DYING = textwrap.dedent("""
    from nemo_gym.sandbox import Sandbox, SandboxSpec
    sandbox = Sandbox({config}).start(SandboxSpec(metadata={{"instance_id": "{instance}"}}))
    print("ready", flush=True)
    sandbox.exec("setsid sleep 1000 & sleep 1000", timeout_s=None)
""")


def test_nothing_is_left_when_its_process_is_killed(place: Path) -> None:
    program = DYING.format(config=CONFIG, instance=TASK.instance_id)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert eventually(lambda: users(place))
        below = descendants(process.pid)
        process.kill()
    assert gone(below)
    assert eventually(lambda: not sandboxes(place) and not users(place))
