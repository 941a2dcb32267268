"""What takes minutes once for a task is logged as it begins and as it ends, and shown by the commands of `swegym`."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from swegym_env.cli.long_work import show_long_work
from swegym_env.errors import LayerError, RepositoryError
from swegym_env.grading.grading import grade
from swegym_env.long_work import LOG, begins, long_work, ran_tests
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import Task, task_to_row
from tests.places import empty_store, public_directory

ROOT = Path(__file__).parents[2]
SETUP = "x-1: setting up its environment, which is kept"
PROOF = "learning how its tests prove a patch, by runs of gold and empty ones"


@pytest.fixture(scope="module")
def store(public_directory: Path) -> LayerStore:
    """One layer store for all tests here, which is empty at first."""
    return empty_store(public_directory)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The messages so far, with 0.0 for each number of seconds; forgotten then."""
    texts = [
        re.sub(r"\d+\.\d s$", "0.0 s", record.getMessage()) for record in caplog.records if record.name == LOG.name
    ]
    assert all(record.levelno == logging.INFO for record in caplog.records if record.name == LOG.name)
    caplog.clear()
    return texts


def test_set_up_of_a_task_is_logged_once(store: LayerStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = Task("x-1", "some/thing", "", "It fails.", "", files={"x.py": ""}, setup=("true",))
    prepare_locally(task, store=store)
    assert logged(caplog) == [SETUP, f"{SETUP}: done after 0.0 s"]
    prepare_locally(task, store=LayerStore(store.root))
    prepare_locally(task, store=store, install=False)
    assert logged(caplog) == []


def test_a_process_without_logging_is_warned_once_of_work_that_takes_long() -> None:
    """Of its begin and its end. Python shows warnings where nothing is configured: the first reset would be silent."""
    program = (
        "import sys, threading, time\n"
        "from swegym_env import long_work\n"
        "long_work._SILENT_S = float(sys.argv[1])\n"
        "for name in ('x-1', 'x-2'):\n"
        "    with long_work.long_work(name, 'installing'):\n"
        "        long_work.begins()\n"
        "        time.sleep(0.2)\n"
        "timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]\n"
        "[one.join(10) for one in timers]\n"
        "assert not any(one.is_alive() for one in timers)\n"
    )
    shown = [
        subprocess.run([sys.executable, "-c", program, after_s], cwd=ROOT, capture_output=True, text=True, check=True)
        for after_s in ("0.01", "60")
    ]
    once = "(once for each task; logging.basicConfig(level=logging.INFO) shows all such work)"
    expected = f"x-1: installing … {once}\nx-1: installing: done after 0.0 s\n"
    assert [re.sub(r"\d\.\d s", "0.0 s", done.stderr) for done in shown] == [expected, ""]


def test_set_up_that_fails_is_logged_as_failed(store: LayerStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = Task("x-1", "some/thing", "0" * 40, "It fails.", "")
    with pytest.raises(RepositoryError, match="no clone of some/thing"):
        prepare_locally(task, repos=store.root.parent, store=store)
    assert logged(caplog) == []  # nothing has begun
    with pytest.raises(LayerError, match="exited with 1"):
        prepare_locally(Task("x-1", "a/b", "", "", "", files={"x": ""}, setup=("false",)), store=store)
    assert logged(caplog) == [SETUP, f"{SETUP}: failed after 0.0 s"]


def test_first_verdict_of_a_task_is_logged_once(store: LayerStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = load_tasks("mini")["mini__semver-001"]
    assert not grade(task, "", store=store).resolved
    assert logged(caplog) == []  # nothing is proved of it
    assert grade(task, task.patch, store=store).resolved
    first = f"{task.instance_id}: {PROOF}"
    assert logged(caplog) == [first, f"{first}: done after 0.0 s"]
    assert grade(task, task.patch, store=store).resolved
    assert logged(caplog) == []


def test_work_that_is_over_soon_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    level = LOG.level
    with show_long_work(after_s=3600), long_work("a-1", "doing it"):
        begins()
        begins()
    with show_long_work(after_s=0), long_work("a-2", "knowing it"):
        pass
    begins()
    assert capfd.readouterr().err == ""
    assert (LOG.level, LOG.handlers) == (level, [])


def test_work_that_takes_long_is_shown_with_its_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    with show_long_work(after_s=0.01):
        with long_work("a-1", "doing it"):
            begins()
            wait_for_timers()
            assert capfd.readouterr().err == "swegym: a-1: doing it …\n"
            with long_work("a-2", "doing that"):
                begins()
                wait_for_timers()
        shown = re.sub(r"\d+\.\d s", "0.0 s", capfd.readouterr().err).splitlines()
        assert shown == [
            "swegym: a-2: doing that …",
            "swegym: a-2: doing that: done after 0.0 s",
            "swegym: a-1: doing it: done after 0.0 s",
        ]


def wait_for_timers() -> None:
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.interval < 1:
            thread.join()


def test_work_that_goes_on_says_how_far_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    with show_long_work(after_s=0.01, again_after_s=0.02), long_work("a-1", "doing it"):
        begins()
        for _ in range(3):
            ran_tests()
        err = ""
        while err.count("\n") < 3:
            err += capfd.readouterr().err
            time.sleep(0.01)
    assert err.splitlines()[:2] == [
        "swegym: a-1: doing it …",
        "swegym: a-1: doing it … 0 s so far, 3 runs of the tests",
    ]
    assert re.fullmatch(r"(.* so far.*\n)*swegym: a-1: doing it: done after 0\.\d s\n", capfd.readouterr().err)


def test_a_terminal_shows_the_proof_of_a_first_verdict() -> None:
    """The runs of the tests that it needs take longer than what is held back."""
    task = load_tasks("mini")["mini__semver-001"]
    row = {**task_to_row(task), "test_command": f"sleep 2; {task.test_command}"}
    with public_directory("long-work") as place:
        (place / "task.jsonl").write_text(json.dumps(row) + "\n")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SWEGYM_WORKDIR": str(place / "work")}
        command = [sys.executable, "-m", "swegym_env.cli.main", "grade", "--dataset", "task.jsonl", "--patch", "gold"]
        ours, theirs = pty.openpty()
        try:
            done = subprocess.run(
                command, stderr=theirs, stdout=subprocess.PIPE, env=environment, cwd=place, check=False
            )
            os.set_blocking(ours, False)
            shown = os.read(ours, 65536).decode()
        finally:
            os.close(ours)
            os.close(theirs)
    assert done.returncode == 0, shown
    lines = [re.sub(r"\d+\.\d s", "0.0 s", line) for line in shown.splitlines()]
    proof = f"swegym: {task.instance_id}: {PROOF}"
    assert lines == [f"{proof} …", f"{proof}: done after 0.0 s"]
