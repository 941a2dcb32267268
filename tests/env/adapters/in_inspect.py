"""Inspect's own check of sandboxes, and `inspect eval`, on our provider; run by `scripts/test_adapter.sh inspect`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score
from inspect_ai.util import OutputLimitExceededError, SandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - the checks are tests

from benchmarks.waiting import wait_until
from swegym_env.adapters.inspect_ai import SwegymSandbox, swegym, verdict
from swegym_env.errors import ConfigurationError
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_tasks
from tests.env.sandbox.test_reaping import gone, users
from tests.places import own_run_directory

TASK = load_tasks("mini")["mini__lrucache-001"]
METADATA = {"dataset": "mini", "instance_id": TASK.instance_id}
# A sandbox has one user and no way to make others.
XFAILS = {"test_exec_as_user"}
pytestmark = pytest.mark.asyncio


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    if request.node.originalname in XFAILS:
        request.applymarker(pytest.mark.xfail(strict=True))
    environments = await SwegymSandbox.sample_init("check", None, METADATA)
    yield environments["default"]
    await SwegymSandbox.sample_cleanup("check", None, environments, False)


def call(name: str, **arguments: Any) -> ModelOutput:
    output = ModelOutput.for_tool_call("mockllm/model", name, arguments)
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # counting them needs a download
    return output


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., EvalLog]:
    """Runs `inspect eval` on one task with scripted answers; an answer may be a function that is called first."""

    def played(*answers: ModelOutput | Callable[[], ModelOutput]) -> EvalLog:
        waiting = iter(answers)

        def answer(*_: Any) -> ModelOutput:
            found = next(waiting)
            return found if isinstance(found, ModelOutput) else found()

        task = swegym()
        task.dataset = task.dataset.filter(lambda sample: sample.id == TASK.instance_id)
        model = get_model("mockllm/model", custom_outputs=answer)
        (log,) = inspect_ai.eval(task, model=model, display="none", log_dir=str(tmp_path))
        return log

    return played


def score_of(log: EvalLog) -> Score:
    assert log.status == "success", log.error
    assert log.samples and log.samples[0].scores
    return log.samples[0].scores["verdict"]


def test_a_repair_scores_one_and_nothing_scores_zero(play: Callable[..., EvalLog]) -> None:
    repair = f"git apply - <<'END'\n{TASK.patch}END"
    done = score_of(play(call("bash", command=repair), call("submit", answer="done")))
    assert done.metadata is not None
    assert (done.value, done.metadata["resolved"]) == (1.0, True)
    nothing = score_of(play(call("bash", command="ls"), call("submit", answer="done")))
    assert nothing.metadata is not None
    assert (nothing.value, nothing.metadata["resolved"]) == (0.0, False)


def test_the_agent_reads_the_issue_and_sees_the_repository(play: Callable[..., EvalLog]) -> None:
    log = play(call("bash", command="pwd; ls"), call("submit", answer="done"))
    assert log.samples
    messages = log.samples[0].messages
    assert any(TASK.problem_statement.strip() in message.text for message in messages if message.role == "user")
    outputs = "\n".join(message.text for message in messages if message.role == "tool")
    assert "/testbed\n" in outputs
    assert "lrucache" in outputs


def test_what_the_machine_breaks_has_no_score(play: Callable[..., EvalLog]) -> None:
    def break_the_machine() -> ModelOutput:
        os.kill(supervisor().pid, signal.SIGKILL)
        return call("bash", command="ls")

    log = play(break_the_machine, call("submit", answer="done"))
    assert log.status == "error"
    assert log.error is not None and "SandboxError" in log.error.message
    assert not (log.samples and log.samples[0].scores)


def test_a_sample_without_a_task_is_an_error_that_says_what_is_missing(tmp_path: Path) -> None:
    task = Task(MemoryDataset([Sample(id="x", input="x")]), scorer=verdict(), sandbox="swegym")
    (log,) = inspect_ai.eval(task, model="mockllm/model", display="none", log_dir=str(tmp_path))
    assert log.status == "error"
    assert log.error is not None and "instance_id" in log.error.message


def test_an_agent_that_breaks_its_sandbox_scores_zero(play: Callable[..., EvalLog]) -> None:
    breaking = call("bash", command="rm -f /bin; kill -9 -1")
    broken = score_of(play(breaking, call("bash", command="ls"), call("submit", answer="done")))
    assert broken.value == 0.0
    assert broken.metadata is not None and broken.metadata["resolved"] is False


async def test_planted_pipes_hold_no_later_command_up(sandbox_env: SandboxEnvironment) -> None:
    """A named pipe in the place of a file that the provider uses would be read for ever."""
    await sandbox_env.exec(
        ["sh", "-c", "for i in $(seq 0 99); do mkfifo $(for d in errors input; do echo /tmp/.swegym-$d-$i; done); done"]
    )
    for given in (None, "in"):
        ran = await asyncio.wait_for(sandbox_env.exec(["sh", "-c", "cat; echo err >&2"], input=given), 30)
        assert (ran.stdout, ran.stderr) == (given or "", "err\n")


async def test_a_cancelled_command_ends_and_the_sandbox_goes_on() -> None:
    environments = await SwegymSandbox.sample_init("check", None, METADATA)
    box = environments["default"]
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(box.exec(["sh", "-c", "echo begun >/tmp/begun; sleep 1000"]), 3)
    assert (await asyncio.wait_for(box.exec(["cat", "/tmp/begun"]), 30)).stdout == "begun\n"
    running = asyncio.ensure_future(box.exec(["sleep", "1000"]))
    await asyncio.sleep(1)
    await asyncio.wait_for(SwegymSandbox.sample_cleanup("check", None, environments, True), 30)
    with contextlib.suppress(Exception):
        await asyncio.wait_for(running, 30)


async def test_a_file_too_large_to_read_is_the_error_that_inspect_knows(sandbox_env: SandboxEnvironment) -> None:
    await sandbox_env.exec(["truncate", "-s", "1G", "/tmp/sparse"])
    with pytest.raises(OutputLimitExceededError):
        await sandbox_env.read_file("/tmp/sparse")


async def test_a_configuration_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes no configuration"):
        await SwegymSandbox.sample_init("check", "compose.yaml", METADATA)


DYING = textwrap.dedent("""
    import asyncio
    from swegym_env.adapters.inspect_ai import SwegymSandbox

    async def main():
        made = await SwegymSandbox.sample_init("check", None, {metadata})
        print("ready", flush=True)
        await made["default"].exec(["sh", "-c", "setsid sleep 1000 & sleep 1000"])

    asyncio.run(main())
""")


def test_nothing_is_left_when_its_process_is_killed() -> None:
    with own_run_directory() as place:
        command = [sys.executable, "-c", DYING.format(metadata=METADATA)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            assert wait_until(lambda: users(place), 20)
            below = descendants(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        assert wait_until(lambda: not users(place), 20)
        assert gone(below)
        assert wait_until(lambda: not [path for path in place.iterdir() if path.is_dir()], 20)
