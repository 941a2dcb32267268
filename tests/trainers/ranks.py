"""Processes for the trainer's tests: forked from one server that has imported PyTorch, and the ranks of a gloo group.

Importing PyTorch and the trainer costs a process seconds; a fork of the server starts with both. The server never has a
second thread. A fork of pytest's own process would inherit every lock that another thread holds, and wait for it
forever.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from tests.warm import TRAINER

PATIENCE_S = 240  # less than pytest's own timeout, whose message would not name the ranks that still run
IMPORTED_BY_RANKS = (  # `peft` takes as long as PyTorch
    "accelerate", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint", "peft",
)  # fmt: skip


def _preload(*modules: str) -> None:
    multiprocessing.set_forkserver_preload([*TRAINER, *IMPORTED_BY_RANKS, __name__, *modules])


def _run(program: Callable[..., int | None], arguments: tuple, folder: Path, environment: Mapping[str, str]) -> None:
    stream = os.open(folder / f"{os.getpid()}.output", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(stream, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.exit(program(*arguments))


class Forked:
    """A function that runs in a process of its own, which can be sent signals as any other.

    Args:
        program: its result is the exit code; it runs in `folder`, where its output is written too.
        variables: of the environment, beside those of this process.
    """

    def __init__(
        self, program: Callable[..., int | None], *arguments: object, folder: Path, variables: Mapping[str, str] = {}
    ) -> None:
        _preload(program.__module__)
        context = multiprocessing.get_context("forkserver")
        environment = {**os.environ, **variables}
        self.process: ForkServerProcess = context.Process(target=_run, args=(program, arguments, folder, environment))
        self.process.start()
        self._folder = folder

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self, timeout_s: float = 120) -> tuple[int, str]:
        """Its exit code, negative for a signal, and its output. It is killed at the timeout."""
        self.process.join(timeout_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode, self.output()

    def output(self) -> str:
        """What it has written to stdout and stderr."""
        file = self._folder / f"{self.process.pid}.output"
        return file.read_text() if file.exists() else ""


def one_rank(rank: int, world: int, folder: Path, function: Callable[..., None], arguments: tuple) -> None:
    torch.set_num_threads(1)
    # Accelerate reads these although the ranks have met already.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{world}", rank=rank, world_size=world)
    try:
        function(folder, *arguments)
    finally:
        dist.destroy_process_group()


def on_ranks(world: int, folder: Path, function: Callable[..., None], *arguments: object) -> None:
    """Call `function(folder, *arguments)` on each rank; what one of them raises is raised. None outlives the call."""
    (folder / f"meet-{world}").unlink(missing_ok=True)
    _preload(function.__module__)
    ranks = torch.multiprocessing.start_processes(
        one_rank, args=(world, folder, function, arguments), nprocs=world, join=False, start_method="forkserver"
    )
    deadline = time.monotonic() + PATIENCE_S
    try:
        while not ranks.join(timeout=1):
            waiting = [rank for rank, process in enumerate(ranks.processes) if process.is_alive()]
            assert time.monotonic() < deadline, f"ranks {waiting} of {world} still run after {PATIENCE_S} s"
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()
