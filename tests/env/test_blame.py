"""What the agent broke is a failed episode; only what the machine broke is an invalid one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.waiting import wait_until
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import SandboxBrokenError, SandboxError
from swegym_env.grading.grading import grade
from swegym_env.grading.task_tests import TaskTests
from swegym_env.rewards.part import RewardPart
from swegym_env.sandbox import SandboxSpec, local, open_sandbox
from swegym_env.sandbox.client import supervisor
from swegym_env.tasks.data import mini_edit
from swegym_env.wrappers import PatchSimilarityReward, ResolvedReward, ShapedReward, TestProgressReward

TASK = mini_edit.generate(0)
FAKE = "rm /bin; mkdir /bin; printf '#!/usr/bin/python3\\n%b' \"CODE\" > /bin/bash; chmod 755 /bin/bash; kill -9 $$"
# After one of these no shell starts in the sandbox any more.
BREAKING = {
    "no programs": "rm -f /bin; exit 3",
    "a shell that cannot be executed": "rm /bin; mkdir -p /bin; echo x > /bin/bash; exit",
    "a shell that ends": FAKE.replace("CODE", "print(1)\\n"),
    "a shell that sleeps": FAKE.replace("CODE", "import time\\ntime.sleep(60)\\n"),
    "a shell that writes nonsense": FAKE.replace("CODE", "import os\\nwhile True: os.write(2, bytes(9999))\\n"),
    "no libraries": "rm -f /lib64; kill -9 $$",
    "no root directory that can be entered": "chmod 000 /; kill -9 $$",
    "no files": "rm -rf --no-preserve-root / 2>/dev/null; kill -9 $$",
}


def kill_supervisor() -> None:
    """Kill this process's supervisor, and wait until nothing of it is left."""
    dead = supervisor()
    os.kill(dead.pid, signal.SIGKILL)
    assert wait_until(lambda: not dead.alive(), 20)


@pytest.fixture
def env(backend: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SWEBenchEnv]:
    monkeypatch.setattr(local, "_RESTART_TIMEOUT_S", 2.0)
    env = SWEBenchEnv(tasks=[TASK], sandbox=backend, action_format="raw", max_turns=9, turn_timeout_s=20, pool=0)
    yield env
    env.close()


@pytest.mark.parametrize("command", BREAKING.values(), ids=BREAKING.keys())
def test_a_sandbox_that_its_agent_broke_is_a_failed_episode(env: SWEBenchEnv, command: str) -> None:
    env.reset(seed=0)
    *_, terminated, truncated, info = env.step(command)
    assert not terminated and not truncated, info
    observation, reward, terminated, truncated, info = env.step("true")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["end_reason"], info["valid"], info["resolved"]) == ("broken", True, False)
    assert info["failure_reason"].startswith("no shell starts in the sandbox any more: ")
    assert observation.startswith("The episode is over. No shell starts in the sandbox any more: ")
    env.reset(seed=0)
    assert env.step("true")[4]["exit_code"] == 0


def test_work_that_was_submitted_counts_whatever_became_of_the_sandbox(env: SWEBenchEnv) -> None:
    env.reset(seed=0)
    env.step(f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH")
    env.step("rm -f /bin; exit 3")
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["resolved"], info["valid"]) == (1.0, True, True, True)


@pytest.mark.parametrize(
    ("wrap", "failure"),
    [
        (lambda env: ResolvedReward(env, failure=-2.0), -2.0),
        (lambda env: ShapedReward(env, failure=-3.0, success=1.0), -3.0),
        (lambda env: PatchSimilarityReward(env, malformed=-4.0), -4.0),
        (TestProgressReward, 0.0),
    ],
    ids=["resolved", "shaped", "similarity", "progress"],
)
def test_every_reward_of_a_broken_sandbox_is_that_of_a_failure(
    wrap: Callable[[Any], RewardPart], failure: float
) -> None:
    env = wrap(SWEBenchEnv(tasks=[TASK], action_format="raw", pool=0))
    env.reset(seed=0)
    rewards = [env.step(f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH")[1], env.step("rm /bin; exit")[1]]
    _, reward, terminated, _, info = env.step("true")
    assert (sum(rewards) + reward, terminated, info["valid"]) == (pytest.approx(failure), True, True)
    env.close()


def test_a_broken_sandbox_can_be_copied_and_its_copies_are_broken_too(backend: str) -> None:
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp"), backend=backend)
    sandbox.start()
    sandbox.run("echo content > file")
    whole = sandbox.snapshot()
    sandbox.run("rm -f /bin")  # bash still runs
    broken, twin = sandbox.snapshot(), sandbox.fork()
    assert sandbox.run("echo alive").output == "alive\n"
    with pytest.raises(SandboxBrokenError):
        twin.run("true")
    sandbox.restore(broken)
    with pytest.raises(SandboxBrokenError, match="works without the files that were changed"):
        sandbox.run("true")
    sandbox.restore(whole)
    assert sandbox.run("cat file").output == "content\n"
    for each in (sandbox, twin):
        each.close()


def test_a_dead_supervisor_is_the_machines_fault_whatever_the_agent_did(env: SWEBenchEnv) -> None:
    for command in ("true", "rm -f /bin; exit 3"):
        env.reset(seed=0)
        env.step(command)
        kill_supervisor()
        _, reward, terminated, truncated, info = env.step("true")
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert (info["end_reason"], info["valid"]) == ("error", False)


def test_a_supervisor_that_dies_while_the_patch_is_read_is_the_machines_fault(
    env: SWEBenchEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of changed files and their contents: the files vanish as if the agent had removed them."""
    env.reset(seed=0)
    env.step(f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH")
    sandbox = env._live()[0]
    listed = sandbox.changes

    def changes(*arguments: Any, **more: Any) -> Any:
        found = listed(*arguments, **more)
        kill_supervisor()
        return found

    monkeypatch.setattr(sandbox, "changes", changes)
    _, reward, terminated, truncated, info = env.step("submit")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["end_reason"], info["valid"]) == ("error", False)
    assert "supervisor died" in info["failure_reason"]


def test_a_layer_of_the_machine_that_is_gone_is_the_machines_fault(backend: str, public_directory: Path) -> None:
    layer = public_directory / f"lost-{backend}"
    (layer / "testbed").mkdir(parents=True)
    sandbox = open_sandbox(SandboxSpec(layers=(layer,)), backend=backend)
    sandbox.start()
    sandbox.run("rm -f /bin; exit 3")
    shutil.rmtree(layer)
    with pytest.raises(SandboxError, match="did not start") as caught:
        sandbox.run("true")
    assert not isinstance(caught.value, SandboxBrokenError)
    sandbox.close()


def test_a_supervisor_that_dies_while_the_tests_are_written_is_the_machines_fault(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests can be run without the patch in the next sandbox, which says nothing of the patch."""
    write, killed = TaskTests._write_over_patch, []

    def dying(*arguments: Any, **more: Any) -> None:
        if not killed:
            kill_supervisor()
            killed.append(True)
        write(*arguments, **more)

    monkeypatch.setattr(TaskTests, "_write_over_patch", dying)
    with pytest.raises(SandboxError):
        grade(TASK, TASK.patch, backend=backend)
    assert killed
    assert grade(TASK, TASK.patch, backend=backend).resolved
