"""Long work on one thread leaves the interpreter to the other threads of the process, and everything as it was."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env.repo.capture import capture_patch
from swegym_env.sandbox import Sandbox, SandboxSpec
from swegym_env.sandbox.api import Limits
from swegym_env.sandbox.budget import Budget
from swegym_env.sandbox.interpreter import shared_interpreter


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    former = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    assert sys.getswitchinterval() == pytest.approx(0.005)
    assert gc.isenabled()
    sys.setswitchinterval(former)


def _is_shared() -> bool:
    assert (sys.getswitchinterval() < 0.001) is not gc.isenabled()
    return not gc.isenabled()


def test_overlapping_blocks_end_with_the_last() -> None:
    first, second = shared_interpreter(), shared_interpreter()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _is_shared()
    second.__exit__(None, None, None)
    assert not _is_shared()


def test_settings_of_the_program_are_kept() -> None:
    sys.setswitchinterval(0.00002)
    gc.disable()
    with shared_interpreter():
        assert sys.getswitchinterval() == pytest.approx(0.00002)
    assert not gc.isenabled()
    gc.enable()
    sys.setswitchinterval(0.005)


def test_a_fork_begins_outside_of_the_block() -> None:
    with shared_interpreter():
        child = os.fork()
        if child == 0:
            os._exit(_is_shared())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert _is_shared()
    assert code == 0


def test_a_reading_shares_the_interpreter_once_it_takes_long() -> None:
    with Budget(Limits()) as budget:
        budget.check_time()
        assert not _is_shared()
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.02:
            pass
        budget.check_time()
        assert _is_shared()
    assert not _is_shared()


def test_a_usual_step_does_not_share_the_interpreter(opened: object, tmp_path: Path) -> None:
    sandbox: Sandbox = opened(SandboxSpec(workdir="/testbed"))  # type: ignore[operator]
    (tmp_path / "testbed" / ".git").mkdir(parents=True)
    seen: set[bool] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen.add(gc.isenabled())
            time.sleep(0)

    def capture(command: str) -> set[bool]:
        assert sandbox.run(command).exit_code == 0
        seen.clear()
        over.clear()
        thread = threading.Thread(target=watch)
        thread.start()
        capture_patch(sandbox, tmp_path / "testbed")
        over.set()
        thread.join()
        return set(seen)

    assert capture("echo 1 >few") == {True}
