"""Sandboxes started ahead: expected ones are ready, unexpected ones are closed, and nothing is left."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.sandbox import Sandbox, SandboxSpec, open_sandbox, pool
from swegym_env.sandbox.local import LocalSandbox
from swegym_env.sandbox.pool import WarmPool


def started(opened: list[Sandbox], workdir: str = "/testbed") -> Sandbox:
    sandbox = open_sandbox(SandboxSpec(workdir=workdir), backend="namespace")
    sandbox.start()
    opened.append(sandbox)
    return sandbox


def is_closed(sandbox: Sandbox) -> bool:
    try:
        sandbox.changes("/testbed")
    except SandboxError:
        return True
    return False


def test_expected_sandboxes_are_ready_and_others_are_closed() -> None:
    opened: list[Sandbox] = []
    warm = WarmPool(2)
    warm.expect({"a": lambda: started(opened), "b": lambda: started(opened, "/tmp"), "c": lambda: started(opened)})
    a = warm.take("a")
    assert a is not None and a.run("echo $PWD").output == "/testbed\n"
    assert warm.take("a") is None and warm.take("c") is None  # taken; beyond the pool's size
    assert wait_until(lambda: len(opened) == 2, 10), "the other one starts too"
    warm.expect({"d": lambda: started(opened)})
    d = warm.take("d")
    assert d is not None and len(opened) == 3
    unwanted = next(one for one in opened if one is not a and one is not d)
    assert unwanted.spec.workdir == "/tmp" and wait_until(lambda: is_closed(unwanted), 10)
    assert not is_closed(a) and not is_closed(d)
    for one in (a, d):
        one.close()


def test_a_sandbox_abandoned_while_it_starts_is_closed_once_started() -> None:
    opened: list[Sandbox] = []
    go = threading.Event()
    warm = WarmPool(1)

    def slow() -> Sandbox:
        go.wait(10)
        return started(opened)

    warm.expect({"a": slow})
    warm.close()
    assert warm.take("a") is None
    go.set()
    deadline = time.monotonic() + 10
    while not opened or not is_closed(opened[0]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_failure_to_start_ahead_is_not_raised() -> None:
    def fails() -> Sandbox:
        raise SandboxError("no")

    warm = WarmPool(1)
    warm.expect({"a": fails})
    assert warm.take("a") is None


def test_no_sandbox_is_started_ahead_while_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Sandbox] = []
    monkeypatch.setattr(pool, "_SHORT_BYTES", 1 << 60)
    warm = WarmPool(1)
    warm.expect({"a": lambda: started(opened)})
    assert warm.take("a") is None and opened == []


def test_a_forked_child_has_an_empty_pool() -> None:
    opened: list[Sandbox] = []
    warm = WarmPool(1)
    warm.expect({"a": lambda: started(opened)})
    while not opened:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        ok = warm.take("a") is None
        warm.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    a = warm.take("a")
    assert a is not None and a.run("echo alive").output == "alive\n"
    a.close()


def played(pool_size: int, resets: int) -> tuple[list[tuple[str, str, str]], float]:
    """The observations of episodes, and the seconds of the last reset."""
    env = SWEBenchEnv(reward="none", sandbox="namespace", pool=pool_size)
    seen = []
    for turn in range(resets):
        observation, info = env.reset(seed=3 if turn == 0 else None)
        shown = env.step("<execute>pwd; git log --oneline | wc -l; ls -A /tmp; touch mine /tmp/x</execute>")
        seen.append((info["instance_id"], observation, shown[0]))
        time.sleep(0.05)
    env.close()
    return seen, info["timing"].seconds


def test_episodes_are_equal_with_and_without_the_pool() -> None:
    cold, _ = played(0, 4)
    assert played(1, 4)[0] == cold
    assert played(3, 4)[0] == cold
    assert len({instance for instance, _, _ in cold}) > 1


def test_random_resets_use_the_sandbox_started_ahead() -> None:
    env = SWEBenchEnv(reward="none", sandbox="namespace", pool=1)
    env.reset(seed=0)
    for _ in range(2):
        ahead = next(iter(env._pool._ahead.values()))
        expected = ahead.result()
        env.reset()
        assert env._sandbox is expected
    name = env.task.instance_id
    for _ in range(2):
        env.reset(options={"instance_id": name})  # a reset that names its task starts nothing ahead
        assert env._pool._ahead == {}
    env.reset()
    assert len(env._pool._ahead) == 1  # at random again
    waiting = next(iter(env._pool._ahead.values())).result()
    env.close()
    assert waiting is not None and is_closed(waiting)


@pytest.mark.parametrize("seed", [None, 0])
def test_a_first_reset_that_names_its_task_starts_nothing_ahead(seed: int | None) -> None:
    env = SWEBenchEnv(reward="none", sandbox="namespace")
    env.reset(seed=seed, options={"instance_id": "mini__lrucache-001"})
    assert env._pool._ahead == {}
    env.close()


def test_a_fork_of_the_environment_has_its_own_pool() -> None:
    env = SWEBenchEnv(reward="none", sandbox="namespace")
    env.reset(seed=0)
    twin = env.fork()
    first, second = env.reset()[1], twin.reset()[1]
    assert first["instance_id"] == second["instance_id"]
    assert env._sandbox is not twin._sandbox
    env.close()
    assert twin.step("<execute>echo alive</execute>")[0].startswith("alive")
    twin.close()


def test_sandboxes_of_an_environment_that_was_forgotten_are_closed_with_the_next_start() -> None:
    def forget() -> list[Path]:
        env = SWEBenchEnv(reward="none", sandbox="namespace", pool=1)
        env.reset(seed=0)
        ahead = next(iter(env._pool._ahead.values())).result()
        places = []
        for sandbox in (ahead, env._sandbox):
            assert isinstance(sandbox, LocalSandbox) and sandbox._directory is not None
            places.append(sandbox._directory.path)
        assert all(place.exists() for place in places)
        return places

    gc.disable()  # nothing refers to itself: the collector is not needed
    try:
        places = forget()
    finally:
        gc.enable()

    def closed_by_another_start() -> bool:  # the thread that started one ahead may hold the environment for a moment
        started([]).close()
        return not any(place.exists() for place in places)

    assert wait_until(closed_by_another_start, 20)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="pool: expected a whole number of 0 or more, got -1"):
        SWEBenchEnv(pool=-1)
