"""The GPU benchmark runs from a bare copy on a machine without git, keeps its rows when it is killed, and goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import machine
from benchmarks.gpu.__main__ import _blame, summarise
from benchmarks.gpu.journal import Journal, read_lines
from benchmarks.gpu.timing import Bench, Contender, Deadline, Ratio, returned_bytes
from benchmarks.records import commit

ROOT = Path(__file__).parents[3]
PROGRAMS = ("awk", "bash", "dirname", "env", "mkdir", "mktemp", "rm", "sed", "timeout", "unshare")
KEY = ["source", "device"]


@pytest.fixture
def bare(tmp_path):
    """A copy of the source without .git and .venv, and an environment without git and without a network's settings."""
    copy, programs = tmp_path / "copy", tmp_path / "bin"
    for folder in ("benchmarks", "swe_trainers", "examples/configs", "tests/trainers", "scripts"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py", "tests/browser.py", "tests/warm.py"):
        shutil.copy(ROOT / file, copy / file)
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name))
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    return copy, environment


def start(bare, output, *parts):
    copy, environment = bare
    script = [str(copy / "scripts/bench_gpu.sh"), *parts, "--device", "cpu", "--output", str(output)]
    offline = ["unshare", "-n"]
    if subprocess.run([*offline, "true"], capture_output=True, check=False).returncode:
        offline = []  # not everybody may make a network namespace
    return subprocess.Popen(
        [*offline, *script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def kill_session(leader):
    """Kill a process and what it started, all at once, as a machine that is taken away would."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(status.read_text().rpartition(")")[2].split()[3])
        except (OSError, IndexError):
            continue  # it ended meanwhile
        if session == leader:
            os.kill(int(status.parent.name), signal.SIGKILL)


def finish(process):
    shown, _ = process.communicate(timeout=280)
    return process.returncode, shown


def test_a_killed_run_keeps_its_rows_and_the_next_one_measures_the_rest(bare, tmp_path):
    output = tmp_path / "out"
    process = start(bare, output, "rows", "--peers", "none")
    ends = time.monotonic() + 200
    while not any(line.get("done", "").startswith("backward") for line in read_lines(output / "rows.jsonl")):
        assert process.poll() is None and time.monotonic() < ends, finish(process)
        time.sleep(0.01)
    kill_session(process.pid)
    finish(process)
    with (output / "rows.jsonl").open("ab") as file:
        file.write(b'{"case": "cut off by the ki')  # as if the kill had come within a write
    kept = list(read_lines(output / "rows.jsonl"))
    assert not any(line.get("done", "").startswith("divergence") for line in kept)

    code, shown = finish(start(bare, output, "rows", "--peers", "none"))
    assert code == 0, shown
    lines = list(read_lines(output / "rows.jsonl"))
    assert lines[: len(kept)] == kept
    done = [line["done"].partition(" N=")[0] for line in lines if "done" in line]
    assert sorted(done) == sorted(set(done))  # nothing that was complete is measured twice
    assert {"forward", "backward", "forward and backward", "divergence forward", "divergence backward"} < set(done)
    run = lines[0]["run"]
    assert run["commit"] == "unknown" and len(run["source"]) == 16 and run["versions"]["torch"]

    found = json.loads((output / "kernels.json").read_text())
    forward = {row["metric"]: row for row in found["rows"] if row["case"].startswith("forward N=")}
    assert forward["copy"]["unit"] == "s" and forward["ours: of the copy's bandwidth"]["median"] > 0
    assert forward["ours: largest error"]["median"] < 1e-5
    assert found["failed"] == {}


@pytest.mark.campaign
def test_every_part_runs_on_a_bare_machine(bare, tmp_path):
    parts = ["linear", "layers", "update", "generation", "learning", "tests"]
    code, shown = finish(start(bare, tmp_path, *parts))
    assert code == 0, shown
    found = json.loads((tmp_path / "kernels.json").read_text())
    absent = next(reason for name, reason in found["absent"].items() if "QuACK, not tuned" in name)
    assert absent == "peer absent: ModuleNotFoundError: No module named 'quack'"
    assert {run["part"] for run in found["runs"]} == set(parts)
    assert found["failed"] == {}
    rows = {(row["part"], row["metric"]): row for row in found["rows"]}
    assert ("linear", "ours, recomputing: rate of 4 bare products") in rows
    assert ("layers", "ours: of the copy's bandwidth") in rows
    assert ("update", "ppo: tokens") in rows and ("generation", "embedded engine: tokens") in rows
    assert ("learning", "eval/return") in rows
    assert [row["outcome"] for row in found["rows"] if row["part"] == "tests"] == ["passed", "passed"]


@pytest.mark.campaign
def test_a_run_whose_time_is_over_says_so(bare, tmp_path):
    code, shown = finish(start(bare, tmp_path, "rows", "--minutes", "0"))
    assert code == 3 and "the time is over" in shown, shown


def test_a_process_that_died_is_blamed_on_what_it_tried_last(tmp_path):
    path = tmp_path / "rows.jsonl"
    journal = Journal(path, KEY)
    journal.begin({"key": KEY})
    journal.trying("forward", "ours")
    journal.trying("forward", "a peer", peer=True)
    journal.close()
    assert _blame(path, "the process ended with -11")
    assert not _blame(path, "once is enough")
    journal = Journal(path, KEY)
    assert journal.died_in("forward") == {"a peer"}
    assert not journal.is_done("forward") and not journal.has_failures()
    journal.failed("forward", "ours", "wrong")
    assert journal.has_failures()
    journal.close()


def test_what_did_not_return_twice_is_not_called_a_third_time(tmp_path):
    called = []
    for _ in range(2):
        journal = Journal(tmp_path / "rows.jsonl", KEY)
        journal.begin({"key": KEY})
        assert journal.times_stuck("forward", "a peer") == len(called)
        called.append(journal.trying("forward", "a peer", peer=True))
        journal.close()  # killed
    journal = Journal(tmp_path / "rows.jsonl", KEY)
    journal.begin({"key": KEY})
    bench = Bench("cpu", journal, Deadline(60))
    contenders = [Contender("a peer", lambda: called.append, peer=True), Contender("ours", lambda: lambda: dict)]
    bench.case("forward", contenders, refresh=lambda _: None)
    journal.close()
    assert called == [None, None]
    assert [row["metric"] for row in summarise(tmp_path)["rows"]] == ["ours"]
    assert summarise(tmp_path)["failed"] == {"rows: forward: a peer": "did not return in two invocations"}


def test_a_peer_that_is_not_ready_in_time_is_its_own_failure_and_the_others_are_measured(tmp_path):
    journal = Journal(tmp_path / "rows.jsonl", KEY)
    journal.begin({"key": KEY})
    bench = Bench("cpu", journal, Deadline(60), seconds_to_prepare=0.2)

    def tune():
        while True:
            time.sleep(1)

    slow = Contender("a peer", lambda: lambda: tune, peer=True)
    bench.case("forward", [slow, Contender("ours", lambda: lambda: dict)], refresh=lambda _: None)
    assert not journal.has_failures()
    journal.close()
    assert [row["metric"] for row in summarise(tmp_path)["rows"]] == ["ours"]
    assert summarise(tmp_path)["failed"] == {"rows: forward: a peer": "TimeoutError: not ready after 0 s"}


def test_a_reference_that_fails_when_it_is_timed_costs_its_ratios_and_nothing_else(tmp_path):
    journal = Journal(tmp_path / "rows.jsonl", KEY)
    journal.begin({"key": KEY})
    calls = iter([lambda: None])  # it is ready, and fails from its first round on
    reference = Contender("reference", lambda: lambda: next(calls))
    ours = Contender("ours", lambda: lambda: lambda: None, (Ratio("of the reference", "reference"),))
    Bench("cpu", journal, Deadline(60)).case("one", [reference, ours], refresh=lambda number: None)
    rows = {line["metric"]: line for line in read_lines(journal.path) if "metric" in line}
    assert "failed" in rows.pop("reference") and set(rows) == {"ours"}
    assert journal.is_done("one")
    journal.close()


def test_a_gradient_that_overwrites_the_logits_is_no_new_memory():
    logits = torch.zeros(3, 40, dtype=torch.bfloat16)
    new = torch.zeros(3)
    assert returned_bytes((logits.detach()[:2], [new]), (logits,)) == new.nbytes
    assert returned_bytes(logits.clone(), (logits,)) == logits.nbytes


def test_rows_of_other_code_or_another_device_are_measured_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    for key, value in (("old", 1.0), ("new", 2.0)):
        journal = Journal(path, [key])
        journal.begin({"key": [key]})
        assert not journal.is_done("case")
        journal.add("case", "time", "s", [value])
        journal.done("case")
        journal.close()
    found = summarise(tmp_path)
    assert [(row["median"], found["runs"][row["run"]]["key"]) for row in found["rows"]] == [(2.0, ["new"])]


def test_a_row_that_newer_code_had_no_time_for_is_kept_and_says_of_which_run_it_is(tmp_path):
    path = tmp_path / "rows.jsonl"
    for key, metrics in (("old", ("first", "second")), ("new", ("first",))):
        journal = Journal(path, [key])
        journal.begin({"key": [key]})
        for metric in metrics:
            journal.add("case", metric, "s", [1.0])
        journal.close()
    found = summarise(tmp_path)
    assert {row["metric"]: found["runs"][row["run"]]["key"] for row in found["rows"]} == {
        "first": ["new"],
        "second": ["old"],
    }


def test_the_commit_is_unknown_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit() == {"commit": "unknown", "dirty": None}


@pytest.mark.parametrize("changed", ["swe_trainers/kernels/linear.py", "benchmarks/gpu/rows.py"])
def test_rows_of_another_kernel_or_another_benchmark_are_not_of_one_run(changed, tmp_path, monkeypatch):
    for folder in ("swe_trainers", "benchmarks/gpu"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    before = machine.source_digest()
    with (tmp_path / changed).open("a") as file:
        file.write("# changed\n")
    assert machine.source_digest() != before


@pytest.mark.parametrize(("visible", "asked"), [(None, "0"), ("", "0"), ("3,4", "3"), ("GPU-8e2d1f", "GPU-8e2d1f")])
def test_clocks_are_those_of_the_gpu_that_measures(visible, asked, tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$2, 2, 3, 4, 5, 6"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.clocks("cuda")["clocks.sm"] == asked


@pytest.mark.campaign
def test_an_interrupt_ends_the_run_in_one_line(bare, tmp_path):
    process = start(bare, tmp_path / "out", "rows", "--peers", "none")
    ends = time.monotonic() + 200
    while not any("done" in line for line in read_lines(tmp_path / "out" / "rows.jsonl")):
        assert process.poll() is None and time.monotonic() < ends, finish(process)
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, shown = finish(process)
    assert "Traceback" not in shown and "the time is over: run it again" in shown, shown
    assert code in (3, -signal.SIGINT)  # bash itself ends by the signal
