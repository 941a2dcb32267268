"""A timeout on a machine that is too busy is an infrastructure failure; any other one is a verdict on the patch."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env.certifying.certification import certify
from swegym_env.errors import GradingError
from swegym_env.grading.grading import grade, grade_many
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.limits import were_starved
from swegym_env.tasks.task import Task
from tests.env.calc import GOLD
from tests.places import public_directory

PROCESSOR = str(min(os.sched_getaffinity(0)))
BUSY = "while :; do :; done"
LONG_TESTS = "python3 -c 'import time\nwhile time.process_time() < 1.5: pass' && python3 -m unittest -v"


@pytest.fixture
def busy_processor() -> Iterator[None]:
    """39 other processes that keep `PROCESSOR` busy, so a test gets a fortieth of it."""
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
def test_starved_tests_give_an_invalid_verdict(task: Task, store: LayerStore, backend: str) -> None:
    starved_task = on_that_processor(task, f"bash -c {shlex.quote(LONG_TESTS)}")
    (verdict,) = grade_many([(starved_task, GOLD)], store=store, backend=backend, timeout_s=3.0)
    assert (verdict.valid, verdict.resolved) == (False, False)
    assert "within 3 s, and waited for a processor meanwhile: this machine is too busy" in verdict.failure_reason
    with public_directory("certificates") as place, pytest.raises(GradingError, match="too busy"):
        certify(starved_task, trials=1, store=store, backend=backend, timeout_s=3.0, place=place)


@pytest.mark.usefixtures("busy_processor")
def test_hanging_tests_fail_on_a_busy_machine_too(task: Task, store: LayerStore, backend: str) -> None:
    hanging = f"git diff --quiet calc || exec taskset -c {PROCESSOR} sleep 60; python3 -m unittest -v"
    hanging_task = dataclasses.replace(task, test_command=hanging)  # with the patch alone
    verdict = grade(hanging_task, GOLD, store=store, backend=backend, timeout_s=3.0)
    assert (verdict.valid, verdict.resolved) == (True, False)
    assert verdict.failure_reason == "the tests did not end within 3 s"


def test_processes_that_wait_for_each_other_only_are_not_starved() -> None:
    command = ["taskset", "-c", PROCESSOR, "bash", "-c", BUSY]
    many = [subprocess.Popen(command) for _ in range(4)]
    pids = [one.pid for one in many]
    try:
        # Where processes start slowly, the first ones have used much before any has waited.
        while sum(used_s(pid) for pid in pids) < 1.0 or max(waited_s(pid) for pid in pids) < 1.0:
            time.sleep(0.1)
        assert not were_starved(pids, sum(used_s(pid) for pid in pids), 2.5)
        assert were_starved(pids, 0.0, 2.5)
    finally:
        for one in many:
            one.kill()
            one.wait()


# Of a whole run, such as a batch job's: its sandboxes inherit them, or are in sessions that do not.
PRIORITIES = {
    "a session of low priority": "! [ -e /proc/$$/autogroup ] || echo 10 >/proc/$$/autogroup",
    "a session of high priority": "! [ -e /proc/$$/autogroup ] || echo -10 >/proc/$$/autogroup",
    "nice": "renice -n 10 $$ >/dev/null",
    "of high priority": "renice -n -10 $$ >/dev/null",
    "a batch": "chrt --batch -p 0 $$",
    "idle": "chrt --idle -p 0 $$",
}


@pytest.mark.parametrize("priority", PRIORITIES)
def test_a_priority_of_the_whole_run_does_not_hide_starvation(priority: str) -> None:
    these = "wait_for_each_other or does-not"
    this = f"{sys.executable} -m pytest -q -p no:cacheprovider -p no:xdist {__file__} -k '{these}'"
    ended = subprocess.run(
        ["bash", "-c", f"{PRIORITIES[priority]}; exec {this}"],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0 and "2 passed" in ended.stdout, ended.stdout


WITHOUT_GROUP = """
import os, subprocess, sys, time
from pathlib import Path
from swegym_env.sandbox.limits import were_starved
many = [subprocess.Popen(sys.argv[1:]) for _ in range(4)]
pids = [one.pid for one in many]
try:
    for pid in [os.getpid(), *pids]:
        subprocess.run(["mount", "--bind", "/dev/null", f"/proc/{pid}/autogroup"], check=True)
    while max(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in pids) < 0.5e9:
        time.sleep(0.05)
    assert Path("/proc/self/autogroup").read_text() == ""
    print(were_starved(pids, 0.0, 1.0))
finally:
    for one in many:
        one.kill()
        one.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux shares among processes alone here")
def test_a_session_that_has_no_group_does_not_hide_starvation() -> None:
    """What a machine's first process starts without `setsid`, as some runners of CI do: its file is empty."""
    script = [sys.executable, "-c", WITHOUT_GROUP, "taskset", "-c", PROCESSOR, "bash", "-c", BUSY]
    command = ["unshare", "--user", "--map-root-user", "--mount", *script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout == "True\n", ended.stderr


STAND_BACK = {
    "is nice": "renice -n 19 $$ >/dev/null",
    "is idle": "chrt --idle -p 0 $$",
    "is of a batch": "chrt --batch -p 0 $$",
    "is in a session that is nice": "! [ -e /proc/$$/autogroup ] || echo 19 >/proc/$$/autogroup",
    "does-not": "true",
}


@pytest.mark.parametrize("name", STAND_BACK)
def test_a_process_with_lowered_priority_does_not_count_as_starved(name: str) -> None:
    script = f"{STAND_BACK[name]}; {BUSY}"
    many = [
        subprocess.Popen(["taskset", "-c", PROCESSOR, "bash", "-c", script], start_new_session=True) for _ in range(4)
    ]
    pids = [one.pid for one in many]
    try:
        while max(waited_s(pid) for pid in pids) < 0.5:
            time.sleep(0.05)
        assert were_starved(pids, 0.0, 1.0) == (name == "does-not")
    finally:
        for one in many:
            one.kill()
            one.wait()


def waited_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def used_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
