"""The sandboxes of one project, and its tests' results there.

One sandbox is prepared: the project installed, its byte code written. All others are forks of it. A `Worker` has a warm
process (`inside/runner.py`) that tests broken versions one after the other; `Bench.command` runs a command in a fork
that nothing else has touched, as the grader does.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swegym_env.errors import SandboxError
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox import CommandResult, Sandbox
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["Bench", "Run", "Worker", "statuses"]

PLACE = "/tmp/.made-tasks"
_RUNNER = Path(__file__).with_name("inside") / "runner.py"
_LOG_BYTES = 16 << 20
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Run:
    """The result of one pytest run in a warm process.

    Attributes:
        exit_code: pytest's; None if it did not end in time or its process died.
        late: it did not end in time.
        outcomes: test → PASSED, FAILED, ERROR, SKIPPED, XFAIL.
        durations: test → seconds.
        failures: test → pytest's text of its failure.
        collection_errors: file → why its tests could not be collected.
        reached: test → path → lines, if the run was traced.
        modules: what the tests import from outside the project.
        seconds: from pytest's start to its end.
    """

    exit_code: int | None = None
    late: bool = False
    outcomes: Mapping[str, str] = field(default_factory=dict)
    durations: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    collection_errors: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    modules: Sequence[str] = ()
    seconds: float = 0.0


class Bench:
    """The prepared sandbox of a project, and workers in forks of it, which are cheap. Thread-safe.

    Attributes:
        options: options for pytest that the project needs.
        modules: modules from outside the project that the warm processes import in advance.
    """

    def __init__(
        self, task: Task, *, warm_up: str = "", store: LayerStore | None = None, backend: str = "auto"
    ) -> None:
        """Nothing is started yet: a run whose findings are all known needs no sandbox.

        Args:
            task: the clean project with its set-up commands.
            warm_up: a command that runs once in the prepared sandbox, in the place of pytest's warm process.
        """
        self._task, self._warm_up, self._store, self._backend = task, warm_up, store, backend
        self._lock = threading.Lock()
        self._prepared: Sandbox | None = None
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self.options: tuple[str, ...] = ()
        self.modules: tuple[str, ...] = ()

    def start(self, *, compile_with: Sequence[str] = ()) -> None:
        """Install the project and prepare its sandbox, unless that is done.

        Args:
            compile_with: tests to run once, which writes byte code.
        Raises:
            LayerError, SandboxError, BackendUnavailableError: it cannot be installed, or started.
        """
        with self._lock:
            if self._prepared is not None:
                return
            sandbox = prepare_locally(self._task, store=self._store, backend=self._backend).start()
            try:
                if self._warm_up:
                    sandbox.run(f"(\ncd /testbed\n{self._warm_up}\n)", timeout_s=900.0, output_limit_bytes=_LOG_BYTES)
                    self._prepared = sandbox
                    return
                sandbox.write(f"{PLACE}/runner.py", _RUNNER.read_bytes())
                ready = sandbox.run(f"mkfifo {PLACE}/requests {PLACE}/answers && python -c 'import pytest'")
                if ready.exit_code != 0:
                    raise SandboxError(f"the project's sandbox cannot run pytest: {ready.output.strip()[-300:]}")
                self._prepared = sandbox
                if compile_with:
                    self.measure(compile_with, 600.0)
            except BaseException:
                self._prepared = None
                sandbox.close()
                raise

    def measure(self, paths: Sequence[str], timeout_s: float) -> Run:
        """Run the clean project's tests in the prepared sandbox itself, which writes byte code for all forks."""
        assert self._prepared is not None, "start() comes first"
        worker = Worker(self, self._prepared)
        try:
            return worker.run(paths, timeout_s=timeout_s)
        finally:
            worker.stop()

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        """An idle worker; there are never more of them than concurrent callers."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = Worker(self, self._fork())
            self._workers.append(worker)
        try:
            yield worker
        finally:
            self._idle.append(worker)

    def end_workers(self) -> None:
        """Close all workers, which are idle; later ones start in new forks."""
        while self._idle:
            self._idle.pop().close()
        self._workers.clear()

    def command(self, command: str, files: Mapping[str, bytes | None], *, timeout_s: float) -> CommandResult:
        """Run a command on the project with `files` in it, in a fresh fork."""
        sandbox = self._fork()
        try:
            for path, content in files.items():
                if content is None:
                    sandbox.run(f"rm -f -- {shlex.quote(f'/testbed/{path}')}")
                else:
                    sandbox.write(f"/testbed/{path}", content)
            return sandbox.run(f"(\ncd /testbed\n{command}\n)", timeout_s=timeout_s, output_limit_bytes=_LOG_BYTES)
        finally:
            sandbox.close()

    def _fork(self) -> Sandbox:
        assert self._prepared is not None, "start() comes first"
        with self._lock:
            return self._prepared.fork()

    def close(self) -> None:
        """Close all sandboxes; idempotent."""
        for worker in self._workers:
            worker.close()
        if self._prepared is not None:
            self._prepared.close()


class Worker:
    """A warm process in a sandbox. For one caller at a time."""

    def __init__(self, bench: Bench, sandbox: Sandbox) -> None:
        """Work in `sandbox`; the process starts with the first run."""
        self._bench = bench
        self._sandbox = sandbox
        self._runs = 0
        self._started = False

    def run(
        self,
        paths: Sequence[str],
        *,
        files: Mapping[str, bytes | None] | None = None,
        only: Sequence[str] | None = None,
        trace: bool = False,
        timeout_s: float,
    ) -> Run:
        """Run the tests of `paths` on the project with `files` in it.

        Args:
            only: run these tests of `paths` alone.
            trace: record the lines that each test reaches.
        Raises:
            SandboxError: the sandbox failed, or its warm process did not start.
        """
        first = not self._started
        if first:
            start = "cd /testbed && (env -u PYTHONDONTWRITEBYTECODE setsid python"
            self._sandbox.run(f"{start} {PLACE}/runner.py {PLACE} </dev/null >{PLACE}/log 2>&1 &)")
            self._started = True
        self._runs += 1
        place = f"{PLACE}/job-{self._runs}"
        job: dict[str, Any] = {
            "files": {path: None if text is None else text.decode("utf-8") for path, text in (files or {}).items()},
            "paths": list(paths),
            "only": None if only is None else list(only),
            "trace": trace,
            "options": list(self._bench.options),
            "preload": list(self._bench.modules) if first else [],
            "timeout_s": timeout_s,
        }
        self._sandbox.write(place, json.dumps(job).encode())
        answer = self._sandbox.run(
            f"echo {place} > {PLACE}/requests && cat {PLACE}/answers",
            timeout_s=timeout_s + 30 + first * _START_TIMEOUT_S,
        )
        if answer.timed_out:
            self._started = False  # the time limit killed every process in the sandbox
            log = self._sandbox.run(f"tail -n 1 {PLACE}/log").output.strip()
            if first:
                raise SandboxError(f"the warm process of the project's tests does not answer: {log or 'no message'}")
            return Run(late=True)
        try:
            result = json.loads(self._sandbox.read(f"{place}.out"))
            self._sandbox.run(f"rm -f {place} {place}.out")
        except (OSError, ValueError, RecursionError):
            return Run(late=answer.output.split() == ["late"])
        return Run(**result) if isinstance(result, dict) else Run()

    def stop(self) -> None:
        """End the warm process; the sandbox stays open."""
        if self._started:
            self._sandbox.run(f"pkill -KILL -f {PLACE}/runner.py; rm -f {PLACE}/job-*")
            self._started = False

    def close(self) -> None:
        """Close the sandbox with its process; idempotent."""
        self._sandbox.close()


_STATUS = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL) (\S+)(?:$| - |(?= ))", re.MULTILINE)


def statuses(log: str) -> dict[str, set[str]]:
    """Test → outcomes from the summary of `pytest -rA`, which is what graders read.

    Names are cut at their first blank there, so tests may share a name.
    """
    found: dict[str, set[str]] = {}
    for status, name in _STATUS.findall(log[log.rfind(" short test summary info ") :]):
        found.setdefault(name, set()).add(status)
    return found
