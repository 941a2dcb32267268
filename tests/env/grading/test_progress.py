"""Verdicts are given and stored as they are known, progress is reported, and a failed patch says which tests failed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swegym_env.cli import options
from swegym_env.cli.main import main
from swegym_env.grading.grading import grade_many
from swegym_env.tasks.task import Task, task_to_row
from tests.env.calc import GOLD


@contextlib.contextmanager
def slow_repository() -> Iterator[tuple[str, threading.Event]]:
    """The URL of a repository whose server answers, that there is none, only when the event is set."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            released.wait(120)
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/slow", released
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def slow_task(task: Task, url: str) -> Task:
    return dataclasses.replace(
        task, instance_id="slow-1", repo="some/slow", base_commit="a" * 40, files={}, repository=url
    )


def test_slow_task_holds_no_verdict_back(task: Task) -> None:
    with slow_repository() as (url, released):
        patches = [(slow_task(task, url), GOLD), (task, GOLD)]
        verdicts = grade_many(patches, jobs=2, ordered=False)
        first = next(verdicts)
        assert (first.instance_id, first.resolved) == (task.instance_id, True)
        released.set()
        (second,) = verdicts
        assert (second.instance_id, second.valid) == ("slow-1", False)


def test_finished_verdict_is_stored_while_another_is_under_way(task: Task, tmp_path: Path) -> None:
    with slow_repository() as (url, released):
        rows = [task_to_row(slow_task(task, url)) | {"repository": url}, task_to_row(task)]
        dataset, output = tmp_path / "rows.jsonl", tmp_path / "out"
        dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = ["grade", "--dataset", str(dataset), "--predictions", "gold", "--output", str(output), "-j", "2"]
        codes: list[int] = []
        grading = threading.Thread(target=lambda: codes.append(main([*command, "--json"])))
        grading.start()
        results, deadline = output / "results.jsonl", time.monotonic() + 100
        while not (results.exists() and results.read_text().endswith("\n")) and time.monotonic() < deadline:
            time.sleep(0.02)
        stored = [json.loads(line)["instance_id"] for line in results.read_text().splitlines()]
        assert stored == [task.instance_id] and not codes
        released.set()
        grading.join()
        assert codes == [2]
        assert (output / "report.json").is_file()


def test_progress_is_printed_without_a_terminal(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "_LINE_EVERY_S", 0.01)
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(json.dumps(task_to_row(task)) + "\n")
    assert main(["grade", "--dataset", str(dataset), "--predictions", "gold"]) == 0
    assert "swegym: grading: 0 of 1 done after 0:0" in capsys.readouterr().err


def test_failed_patch_names_its_tests_and_the_end_of_their_log(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text(json.dumps(task_to_row(task)) + "\n")
    command = ["grade", "--dataset", str(dataset), "--predictions", "empty"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        *("instance", "verdict", "FAIL_TO_PASS", "PASS_TO_PASS", "seconds", "controls, s", "why")
    ]
    assert "    failing: tests.test_add.AddTest.test_add" in lines
    assert "    log: FAILED (failures=1)" in lines
    assert main([*command, "--json", "--output", str(tmp_path / "out")]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["failing"], row["failing_tests"]) == (1, ["tests.test_add.AddTest.test_add"])
    assert row["log_end"][-1] == "FAILED (failures=1)"
    assert main([*command, "--output", str(tmp_path / "out")]) == 0  # from what was stored
    assert "    failing: tests.test_add.AddTest.test_add" in capsys.readouterr().out
    assert main([*command[:-1], "gold"]) == 0
    assert "failing:" not in capsys.readouterr().out
