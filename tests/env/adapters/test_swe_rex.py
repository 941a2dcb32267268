"""A deployment of SWE-ReX in our sandboxes, used through SWE-ReX's own requests and errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from swegym_env.adapters.swe_rex import SwegymDeployment, SwegymRuntime
from swegym_env.errors import SandboxError
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks
from tests.env.sandbox.test_reaping import eventually, gone, sandboxes, users
from tests.programs import ROOT, run_to_end

TASK = load_tasks("mini")["mini__lrucache-001"]


def with_runtime(use: Callable[[SwegymRuntime], Awaitable[None]]) -> SwegymDeployment:
    """Start a deployment, use its runtime, stop it."""
    deployment = SwegymDeployment(instance=TASK.instance_id)

    async def run() -> None:
        await deployment.start()
        try:
            assert await deployment.is_alive()
            await use(deployment.runtime)
        finally:
            await deployment.stop()
        assert not await deployment.is_alive()

    anyio.run(run)
    return deployment


def test_a_session_is_one_shell_with_swe_rexs_checks() -> None:
    async def use(runtime: SwegymRuntime) -> None:
        await runtime.write_file(WriteFileRequest(path="/tmp/start", content="STARTED=yes; echo begun\n"))
        begun = await runtime.create_session(CreateBashSessionRequest(startup_source=["/tmp/start"]))
        assert begun.output == "begun\n"
        with pytest.raises(SessionExistsError):
            await runtime.create_session(CreateBashSessionRequest(session="other"))
        await runtime.run_in_session(BashAction(command="cd lrucache && ME=7"))
        seen = await runtime.run_in_session(BashAction(command='pwd; echo "$ME$STARTED"'))
        assert (seen.output, seen.exit_code) == ("/testbed/lrucache\n7yes\n", 0)
        third = await runtime.run_in_session(BashAction(command="(exit 3)", check="silent"))
        assert third.exit_code == 3
        assert (await runtime.run_in_session(BashAction(command="false", check="ignore"))).exit_code is None
        with pytest.raises(NonZeroExitCodeError, match=r"(?s)because.*exit code 1.*there"):
            await runtime.run_in_session(BashAction(command="echo there; false", error_msg="because"))
        with pytest.raises(BashIncorrectSyntaxError) as syntax:
            await runtime.run_in_session(BashAction(command="if then"))
        assert "syntax error" in syntax.value.extra_info["bash_stderr"]
        with pytest.raises(CommandTimeoutError):
            await runtime.run_in_session(BashAction(command="sleep 100", timeout=0.3))
        assert (await runtime.run_in_session(BashInterruptAction())).exit_code == 0
        assert (await runtime.run_in_session(BashAction(command="echo $ME"))).output == "7\n"  # the shell survived
        with pytest.raises(SwerexException, match="needs a terminal"):
            await runtime.run_in_session(BashAction(command="python3", is_interactive_command=True))
        await runtime.close_session(CloseBashSessionRequest())
        with pytest.raises(SessionDoesNotExistError):
            await runtime.run_in_session(BashAction(command="ls"))

    with_runtime(use)


def test_commands_outside_of_the_session_leave_it_alone() -> None:
    async def use(runtime: SwegymRuntime) -> None:
        await runtime.create_session(CreateBashSessionRequest())
        script = ["sh", "-c", "echo $A; pwd; echo bad >&2; exit 4"]
        split = await runtime.execute(Command(command=script, env={"A": "x y"}, cwd="/tmp"))
        assert (split.stdout, split.stderr, split.exit_code) == ("x y\n/tmp\n", "bad\n", 4)
        merged = await runtime.execute(Command(command="echo a; echo b >&2", shell=True, merge_output_streams=True))
        assert (merged.stdout, merged.stderr) == ("a\nb\n", "")
        with pytest.raises(NonZeroExitCodeError, match="bad"):
            await runtime.execute(Command(command="echo bad >&2; false", shell=True, check=True))
        with pytest.raises(CommandTimeoutError):
            await runtime.execute(Command(command=["sleep", "100"], timeout=0.3))
        after = await runtime.run_in_session(BashAction(command='pwd; echo "${A-none}"; ls -A /tmp'))
        assert after.output == "/testbed\nnone\n"

    with_runtime(use)


def test_files_go_in_and_out(tmp_path: Path) -> None:
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "folder/deep/tool").write_text("#!/bin/sh\necho run\n")
    (tmp_path / "folder/deep/tool").chmod(0o755)

    async def use(runtime: SwegymRuntime) -> None:
        await runtime.write_file(WriteFileRequest(path="/tmp/new/note", content="ü\n"))
        assert (await runtime.read_file(ReadFileRequest(path="/tmp/new/note"))).content == "ü\n"
        with pytest.raises(FileNotFoundError):
            await runtime.read_file(ReadFileRequest(path="/nowhere"))
        await runtime.upload(UploadRequest(source_path=str(tmp_path / "folder"), target_path="/tmp/there"))
        assert (await runtime.execute(Command(command=["/tmp/there/deep/tool"]))).stdout == "run\n"

    with_runtime(use)


def test_the_work_is_graded_through_the_deployment() -> None:
    outcomes = []

    async def use(runtime: SwegymRuntime) -> None:
        assert deployments[0].bench is not None
        bench = deployments[0].bench
        outcomes.append(bench.outcome(bench.patch()))
        await runtime.write_file(WriteFileRequest(path="/tmp/gold", content=TASK.patch))
        await runtime.execute(Command(command=["git", "apply", "/tmp/gold"], check=True))
        outcomes.append(bench.outcome(bench.patch()))

    deployments = [SwegymDeployment(instance=TASK.instance_id)]

    async def run() -> None:
        with pytest.raises(DeploymentNotStartedError):
            assert deployments[0].runtime
        await deployments[0].start()
        await use(deployments[0].runtime)
        await deployments[0].stop()

    anyio.run(run)
    assert [(outcome["valid"], outcome["reward"]) for outcome in outcomes] == [(True, 0.0), (True, 1.0)]


def test_a_cancelled_command_ends_and_the_sandbox_goes_on(place: Path) -> None:
    async def play() -> None:
        deployment = SwegymDeployment(instance=TASK.instance_id)
        await deployment.start()
        runtime = deployment.runtime
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(
                runtime.execute(Command(command="echo begun >/tmp/begun; sleep 1000", shell=True)), 3
            )
        shown = await asyncio.wait_for(runtime.read_file(ReadFileRequest(path="/tmp/begun")), 30)
        assert shown.content == "begun\n"
        running = asyncio.ensure_future(runtime.execute(Command(command=["sleep", "1000"])))
        await asyncio.sleep(1)
        await asyncio.wait_for(deployment.stop(), 30)
        with contextlib.suppress(NonZeroExitCodeError, SandboxError):
            await asyncio.wait_for(running, 30)

    asyncio.run(play())
    assert eventually(lambda: not any(name.endswith("-sandbox") for name in sandboxes(place)))


def test_a_pipe_that_the_agent_planted_delays_no_command(place: Path) -> None:
    async def use(runtime: SwegymRuntime) -> None:
        planted = "for i in $(seq 0 99); do mkfifo /tmp/.swegym-stderr-$i; done"
        await runtime.execute(Command(command=planted, shell=True, timeout=60))
        found = await asyncio.wait_for(runtime.execute(Command(command="echo err >&2", shell=True, timeout=60)), 30)
        assert (found.stdout, found.stderr) == ("", "err\n")

    with_runtime(use)


DYING = textwrap.dedent("""
    import asyncio, os, signal
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swegym_env.adapters.swe_rex import SwegymDeployment
    from swegym_env.errors import SandboxError
    from swegym_env.sandbox.client import supervisor

    async def main():
        deployment = SwegymDeployment(instance="{instance}")
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        {then}

    asyncio.run(main())
""")
FAILS = """os.kill(supervisor().pid, signal.SIGKILL)
    try:
        await deployment.runtime.run_in_session(BashAction(command="ls", check="silent"))
    except SandboxError:
        alive = await deployment.is_alive()
        print("failed", bool(alive), bool(alive.message))"""
WAITS = """print("ready", flush=True)
    await deployment.runtime.run_in_session(BashAction(command="setsid sleep 1000 & sleep 1000"))"""


def test_a_failure_of_the_machine_is_no_result_of_a_command() -> None:
    program = DYING.format(instance=TASK.instance_id, then=FAILS)
    ran = run_to_end([sys.executable, "-c", program], {**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.stdout == "failed False True\n", ran.stderr[-2000:]


def test_nothing_is_left_when_its_process_is_killed(place: Path) -> None:
    command = [sys.executable, "-c", DYING.format(instance=TASK.instance_id, then=WAITS)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        below = descendants(process.pid)
        assert sandboxes(place) and users(place)
        os.kill(process.pid, signal.SIGKILL)
    assert eventually(lambda: not sandboxes(place) and not users(place))
    assert gone(below)
