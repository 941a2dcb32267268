"""The tests that need a GPU, each outcome a row; also the pytest plugin that writes them.

A test that breaks the GPU's context ends its process, and the tests after it run in another one. Tests that passed are
not run again when the part is resumed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.journal import Journal, die_with_parent, read_lines
from benchmarks.gpu.timing import LOST, Bench, Deadline

__all__ = ["measure"]

ROOT = Path(__file__).parents[2]
CASE = "tests"
_SETTINGS = "SWEGYM_GPU_TESTS"


def measure(bench: Bench) -> None:
    """Run them. A failed test is a row; the exit code of the benchmark says so too."""
    if bench.journal.is_done(CASE):
        return
    files = ["tests/trainers/kernels/on_triton.py"]
    files += [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests" / "trainers").rglob("test_*.py"))
        if 'reason="needs a GPU' in path.read_text(encoding="utf-8")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.gpu.suite"]
    command += ["-o", "addopts=", "-o", "filterwarnings=default", "--continue-on-collection-errors", *files]
    if bench.tiny:
        command += ["-k", "test_no_row_and_one_row", "-W", "ignore::RuntimeWarning"]
    path = bench.journal.path
    if not bench.tiny and importlib.util.find_spec("xdist"):
        # Most of the time goes into compiling: first all together, whose passes count; then what did not pass, alone.
        settings = {"path": str(path), "key": bench.journal.key, "first": 0, "passes": True}
        environment = {**os.environ, _SETTINGS: json.dumps(settings)}
        _run([*command, "-n", str(min(8, os.cpu_count() or 1))], environment, bench.deadline)
    first = len(list(read_lines(path)))
    settings = {"path": str(path), "key": bench.journal.key, "first": first}
    environment = {**os.environ, _SETTINGS: json.dumps(settings)}
    while True:
        code = _run(command, environment, bench.deadline)
        if code in (0, 1, 5):
            break
        if not bench.journal.blame(f"pytest ended with {code}") and code != LOST:
            bench.journal.failed(CASE, "pytest", f"ended with {code}")
            break
    bench.journal.done(CASE)


def _run(command: list[str], environment: dict[str, str], deadline: Deadline) -> int:
    """The exit code of a process, which is killed when the time is over. Raises OutOfTimeError."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        while True:
            deadline.check()
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue  # SIGTERM may have come meanwhile
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Plugin:
    """Writes a row after each test."""

    def __init__(self, settings: dict[str, Any]) -> None:
        path = Path(settings["path"])
        self._settled = {
            line["metric"]
            for number, line in enumerate(read_lines(path))
            if line.get("case") == CASE and (line.get("outcome") == "passed" or number >= settings["first"])
        }
        self._journal = Journal(path, settings["key"])
        self._passes = settings.get("passes", False)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        settled = [item for item in items if item.nodeid in self._settled]
        if settled:
            config.hook.pytest_deselected(items=settled)
            items[:] = [item for item in items if item.nodeid not in self._settled]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self._passes:  # a file that cannot be imported has tests that did not run
            errors = [line[2:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self._journal.failed(CASE, report.nodeid, (errors or [report.longreprtext.strip()])[0][:400])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._passes:
            return
        self._journal.trying(CASE, nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._passes:
            print(f"{report.nodeid} failed beside the others; it is run again alone", flush=True)
        elif report.failed:
            lines = report.longreprtext.strip().splitlines()
            errors = [line[2:].strip() for line in lines if line.startswith("E ")]
            self._journal.failed(CASE, report.nodeid, (errors or lines or [""])[0][:400])
            if "CUDA error" in report.longreprtext or "AcceleratorError" in report.longreprtext:
                self._journal.done(f"{CASE}: {report.nodeid}")
                sys.stdout.flush()
                os._exit(LOST)
        elif report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self._journal.absent(CASE, report.nodeid, str(reason))
        elif report.when == "call":
            self._journal.add(CASE, report.nodeid, "s", [report.duration], outcome="passed")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool | None, bool | None]:
        result = yield
        if self._passes:
            return result
        self._journal.done(f"{CASE}: {item.nodeid}")
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest, which loads this module as a plugin."""
    settings = os.environ.get(_SETTINGS)
    if settings and "PYTEST_XDIST_WORKER" not in os.environ:  # the process that gives out the tests has the results
        die_with_parent()
        config.pluginmanager.register(_Plugin(json.loads(settings)))
