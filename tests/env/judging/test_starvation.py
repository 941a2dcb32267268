"""A time limit met on a machine that is too busy is the machine's failure; any other one is a verdict on the patch."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env.errors import GradingError
from swegym_env.judging.certification import certify
from swegym_env.judging.grading import grade, grade_many
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.starvation import were_starved
from swegym_env.tasks.task import Task
from tests.places import public_directory

from .conftest import GOLD

PROCESSOR = str(min(os.sched_getaffinity(0)))
BUSY = "while :; do :; done"
LONG_TESTS = "python3 -c 'import time\nwhile time.process_time() < 1.5: pass' && python3 -m unittest -v"


@pytest.fixture
def busy_processor() -> Iterator[None]:
    """Processes of others that leave a fortieth of `PROCESSOR` to anybody else."""
    command = ["taskset", "-c", PROCESSOR, "bash", "-c", BUSY]
    # Where Linux shares among sessions first, each of them counts as one.
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(39)]
    yield
    for other in others:
        other.kill()
        other.wait()


def on_that_processor(task: Task, command: str) -> Task:
    return dataclasses.replace(task, test_command=f"taskset -c {PROCESSOR} {command}")


@pytest.mark.usefixtures("busy_processor")
def test_tests_that_were_kept_waiting_give_no_verdict(task: Task, store: LayerStore, backend: str) -> None:
    kept_waiting = on_that_processor(task, f"bash -c {shlex.quote(LONG_TESTS)}")
    (verdict,) = grade_many([(kept_waiting, GOLD)], store=store, backend=backend, timeout_s=3.0)
    assert (verdict.valid, verdict.resolved) == (False, False)
    assert "within 3 s, and waited for a processor meanwhile: this machine is too busy" in verdict.failure_reason
    with public_directory("certificates") as place, pytest.raises(GradingError, match="too busy"):
        certify(kept_waiting, trials=1, store=store, backend=backend, timeout_s=3.0, place=place)


@pytest.mark.usefixtures("busy_processor")
def test_tests_that_hang_have_failed_on_a_busy_machine_too(task: Task, store: LayerStore, backend: str) -> None:
    verdict = grade(on_that_processor(task, "sleep 60"), GOLD, store=store, backend=backend, timeout_s=3.0)
    assert (verdict.valid, verdict.resolved) == (True, False)
    assert verdict.failure_reason == "the tests did not end within 3 s"


def test_processes_that_keep_each_other_waiting_are_not_starved() -> None:
    command = ["taskset", "-c", PROCESSOR, "bash", "-c", BUSY]
    many = [subprocess.Popen(command) for _ in range(4)]
    pids = [one.pid for one in many]
    try:
        while sum(used_s(pid) for pid in pids) < 1.0:
            time.sleep(0.1)
        assert not were_starved(pids, 2.5)
    finally:
        for one in many:
            one.kill()
            one.wait()


def used_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
