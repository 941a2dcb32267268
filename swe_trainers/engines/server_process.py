"""A generation server that the trainer starts, watches, and restarts if it dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

from loguru import logger

from swe_trainers.engines.http import JsonClient
from swe_trainers.errors import ConfigurationError, EngineError

__all__ = ["ServerProcess"]

_CHECK_INTERVAL_S = 1.0
_TRIES = 3  # of one restart
_FREE_S = 5.0  # until the processes of a server that was killed are gone from its port


class ServerProcess:
    """A server in its own process group, which ends with this process; a context manager.

    Args:
        command: starts the server.
        url: where it then answers `/health`.
        log: file for its output.
        gpus: GPUs that it sees, as in `CUDA_VISIBLE_DEVICES`; None for all.
        start_timeout_s: until it must respond.
        restarts: limit over the whole run.
        before_restart: called before each restart.

    Attributes:
        starts: how often it was started.
        prove: called after a restart, before any other request; raises if the server is not as before.
    """

    def __init__(
        self,
        command: Sequence[str],
        url: str,
        log: Path,
        *,
        gpus: str | None = None,
        start_timeout_s: float = 600.0,
        restarts: int = 20,
        before_restart: Callable[[], None] | None = None,
    ) -> None:
        self._command, self._log = list(command), log
        self._environment = {**os.environ, **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})}
        self._health = JsonClient(url, timeout_s=5, tries=1)
        self._start_timeout_s, self._left = start_timeout_s, restarts
        self._before_restart = before_restart
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._wanted = False
        self.starts = 0
        self.prove: Callable[[], None] = lambda: None

    @property
    def pid(self) -> int:
        """Of the running server. Raises `EngineError` if there is none."""
        if self._process is None:
            raise EngineError("the server is not started")
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it responds.

        Raises:
            ConfigurationError: there is no such command.
            EngineError: another server responds already; or it ended, or did not respond in time; the message has the
                log's last line.
        """
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._wanted = True
        self._check_free()
        with self._log.open("ab") as log:
            process = self._process = self._spawn(log)
        self.starts += 1
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            answers, code = self._answers(), process.poll()
            if answers and code is None:
                return
            if code is not None or time.monotonic() > deadline or self._ends.is_set():
                self._end()
                how = f"ended with {code}" if code is not None else f"did not answer in {self._start_timeout_s:g} s"
                raise EngineError(f"the server {self._command[0]} {how}: {self._last_line()} (all in {self._log})")
            time.sleep(0.1)

    def revive(self) -> None:
        """Restart the server if it is dead; concurrent callers wait for the same restart.

        Raises:
            EngineError: too many restarts, it cannot be started, or it is not as before.
        """
        with self._lock:
            tries = 0
            while self._wanted and not self.lives():
                tries += 1
                if not self._left:
                    raise EngineError(
                        f"the server {self._command[0]} keeps dying: {self._last_line()} (all in {self._log})"
                    )
                self._left -= 1
                self._end()
                if self._before_restart is not None:
                    self._before_restart()
                try:
                    self.start()
                    self.prove()
                except EngineError:
                    if self.lives():  # it responds, but is not as before
                        self._end()
                        raise
                    if tries == _TRIES:
                        raise

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Start the server, restart it as soon as it dies, and stop it at the end of the block."""
        with self:
            watch = threading.Thread(target=self._keep_alive, name="watch", daemon=True)
            watch.start()
            try:
                yield
            finally:
                self._ends.set()
                watch.join()

    def _keep_alive(self) -> None:
        while not self._ends.wait(_CHECK_INTERVAL_S):
            try:
                self.revive()
            except EngineError:
                return  # the next request raises the error
            except Exception:  # noqa: BLE001 - it is logged; for example no space for its log
                logger.exception("{} could not be restarted; the next check tries again", self._command[0])

    def lives(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Kill the server and its child processes."""
        self._wanted = False
        self._end()

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._unwatch()

    def __enter__(self) -> ServerProcess:
        try:
            self.start()
        except (ConfigurationError, EngineError):
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ConfigurationError(f"engine.command: {self._command[0]}: {error.strerror or error}") from error
        # However this process ends, its end of the pipe is closed then, and the server's group is killed.
        self._watch = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; kill -s KILL -- "-$0"', str(process.pid)],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return process

    def _check_free(self) -> None:
        """Raise EngineError if a server responds that this is not about to start."""
        deadline = time.monotonic() + (_FREE_S if self.starts else 0.0)
        while self._answers():
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{self._health.url}: another server responds there, so {self._command[0]} is not started. "
                    "Try: another port, or end that server"
                )
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self._health.get("/health")
        except EngineError:
            return False
        return True

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None

    def _last_line(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "it printed nothing"
        return lines[-1][:300] if lines else "it printed nothing"
