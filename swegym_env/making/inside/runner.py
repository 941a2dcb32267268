"""Runs a project's tests inside its sandbox, with its own Python and pytest, each time in a fork of one warm process.

    python runner.py DIRECTORY    serve: a line in DIRECTORY/requests names a job file, DIRECTORY/answers gets a line

A job is JSON: `files` (path → text to write for this job alone), `paths` (test files), `only` (ids of the tests to
run; null: all), `trace` (whether to record the lines that each test reaches), `preload` (modules to import into the
warm process first), `timeout_s`. Its result, beside it in `.out`: see `Recorder.result`. The warm process has imported
pytest and what the tests need from outside the project, so a job costs what its tests cost. This file imports nothing
of the package that it is shipped with: it is copied into sandboxes, and any Python from 3.8 on can run it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

OPTIONS = ("-p", "no:cacheprovider", "--color=no", "--tb=long")
PROJECT = "/testbed/"
MAX_VISITS = 64  # traced calls of one function by one test; tracing more would slow loops down a hundredfold
MAX_FAILURE_CHARACTERS = 12_000


class Recorder:
    """A pytest plugin that records each test's outcome, failure text, and the lines of the project that it reaches."""

    def __init__(self, only: Optional[List[str]], trace: bool) -> None:
        self.only = None if only is None else set(only)
        self.trace = trace
        self.outcomes: Dict[str, str] = {}
        self.durations: Dict[str, float] = {}
        self.failures: Dict[str, str] = {}
        self.collection_errors: Dict[str, str] = {}
        self.reached: Dict[str, Dict[str, Set[int]]] = {}
        self.codes: Dict[Any, Optional[str]] = {}
        self.started = time.monotonic()

    def pytest_collection_modifyitems(self, items: List[Any]) -> None:
        if self.only is not None:
            items[:] = [item for item in items if item.nodeid in self.only]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.collection_errors[report.nodeid] = str(report.longrepr)[-MAX_FAILURE_CHARACTERS:]

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid
        self.durations[name] = self.durations.get(name, 0.0) + report.duration
        if report.failed:
            self.outcomes[name] = "FAILED" if report.when == "call" else "ERROR"
            self.failures.setdefault(name, str(report.longrepr)[-MAX_FAILURE_CHARACTERS:])
        elif report.skipped:
            self.outcomes.setdefault(name, "XFAIL" if hasattr(report, "wasxfail") else "SKIPPED")
        elif report.when == "call":
            self.outcomes.setdefault(name, "PASSED")

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        if self.trace:
            reached = self.reached.setdefault(item.nodeid, {})
            visits: Dict[Any, int] = {}
            tracer = self._tracer(reached, visits)
            sys.settrace(tracer)
            threading.settrace(tracer)
        yield
        if self.trace:
            sys.settrace(None)
            threading.settrace(None)

    pytest_runtest_protocol.hookwrapper = True

    def _tracer(self, reached: Dict[str, Set[int]], visits: Dict[Any, int]) -> Any:
        codes = self.codes

        def on_line(frame: Any, event: str, _argument: Any) -> Any:
            if event == "line":
                reached[codes[frame.f_code]].add(frame.f_lineno)
            return on_line

        def on_call(frame: Any, event: str, _argument: Any) -> Any:
            code = frame.f_code
            path = codes.get(code, "")
            if path == "":
                name = code.co_filename
                path = codes[code] = name[len(PROJECT) :] if name.startswith(PROJECT) else None
            if path is None:
                return None
            seen = visits.get(code, 0)
            if seen >= MAX_VISITS:
                return None
            visits[code] = seen + 1
            reached.setdefault(path, set()).add(code.co_firstlineno)
            return on_line

        return on_call

    def result(self, exit_code: int) -> Dict[str, Any]:
        return {
            "exit_code": exit_code,
            "outcomes": self.outcomes,
            "durations": self.durations,
            "failures": self.failures,
            "collection_errors": self.collection_errors,
            "reached": {
                name: {path: sorted(lines) for path, lines in files.items()} for name, files in self.reached.items()
            },
            "modules": _outside_modules(),
            "seconds": time.monotonic() - self.started,
        }


def _outside_modules() -> List[str]:
    """The imported modules from outside the project, in import order."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(PROJECT) and name != "__main__" and ".made-tasks" not in file:
            found.append(name)
    return found


def preload(names: List[str]) -> None:
    """Import modules into the warm process, except pytest plugins (pytest rewrites them) and the project's own."""
    try:
        from importlib.metadata import entry_points
    except ImportError:  # Python 3.7: the tests import what they need
        return
    every = entry_points()
    listed = every.select(group="pytest11") if hasattr(every, "select") else every.get("pytest11", [])
    plugins = {entry.value.partition(":")[0].partition(".")[0] for entry in listed}
    for name in names:
        if name not in sys.modules and name.partition(".")[0] not in plugins:
            try:
                __import__(name)
            except BaseException as error:  # the tests' own import reports it; here it is only logged
                message = traceback.format_exception_only(type(error), error)[-1].strip()
                os.write(2, f"{name} is not preloaded: {message}\n".encode("utf-8", "replace"))
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(PROJECT):
            del sys.modules[name]


def run_job(job: Dict[str, Any], place: str) -> None:
    """In the fork: run the tests and write the result."""
    import pytest

    os.setsid()
    sys.dont_write_bytecode = bool(job.get("files"))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    recorder = Recorder(job.get("only"), bool(job.get("trace")))
    code = pytest.main([*OPTIONS, *job.get("options", []), *job["paths"]], plugins=[recorder])
    with open(place + ".partial", "w") as file:
        json.dump(recorder.result(int(code)), file)
    os.rename(place + ".partial", place)


def wait_for(child: int, timeout_s: float) -> bool:
    """Whether a child ends in time; in any case, kill it and every process that it left behind."""
    deadline = time.monotonic() + timeout_s
    pause = 0.001
    ended = False
    while not ended and time.monotonic() < deadline:
        ended = os.waitpid(child, os.WNOHANG)[0] == child
        if not ended:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if not ended:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(child, 0)
    return ended


def write_files(files: Dict[str, Optional[str]]) -> List[Tuple[str, Optional[bytes], Optional[Tuple[int, int]]]]:
    """Write a job's files; returns the former files, for `restore_files`."""
    before: List[Tuple[str, Optional[bytes], Optional[Tuple[int, int]]]] = []
    for name, text in files.items():
        path = os.path.join(PROJECT, name)
        status = os.stat(path)
        with open(path, "rb") as file:
            before.append((path, file.read(), (status.st_atime_ns, status.st_mtime_ns)))
        if text is None:
            os.unlink(path)
        else:
            with open(path, "wb") as file:
                file.write(text.encode("utf-8"))
            # Byte code is valid for one time and size of the file: no other version may have had this time.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 3_600_000_000_000))
    return before


def restore_files(before: List[Tuple[str, Optional[bytes], Optional[Tuple[int, int]]]]) -> None:
    for path, content, times in before:
        if content is not None and times is not None:
            with open(path, "wb") as file:
                file.write(content)
            os.utime(path, ns=times)


def serve(directory: str) -> None:
    import pytest  # noqa: F401 - warm

    os.chdir(PROJECT)
    sys.path.insert(0, PROJECT.rstrip("/"))
    while True:
        with open(os.path.join(directory, "requests")) as requests:
            lines = requests.read().splitlines()
        for place in lines:
            with open(place) as file:
                job = json.load(file)
            preload(job.get("preload", []))
            before = write_files(job.get("files", {}))
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    run_job(job, place + ".out")
                    status = 0
                finally:
                    os._exit(status)
            ended = wait_for(child, float(job["timeout_s"]))
            restore_files(before)
            with open(os.path.join(directory, "answers"), "w") as answers:
                answers.write("ended\n" if ended else "late\n")


if __name__ == "__main__":
    serve(sys.argv[1])
