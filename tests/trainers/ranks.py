"""A function on several ranks that meet over gloo, each a process of its own.

The processes are forked from a server that never had a second thread. One forked from pytest's own process would be
born with every lock that another thread held in that moment, and wait for it forever.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

PATIENCE_S = 240  # less than pytest's own, whose end would not say which ranks were still at it


def one_rank(rank: int, world: int, folder: Path, function: Callable[..., None], arguments: tuple) -> None:
    torch.set_num_threads(1)
    # Which Accelerate reads, though the ranks have met already.
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{world}", rank=rank, world_size=world)
    try:
        function(folder, *arguments)
    finally:
        dist.destroy_process_group()


def on_ranks(world: int, folder: Path, function: Callable[..., None], *arguments: object) -> None:
    """Call `function(folder, *arguments)` on each rank; what one of them raises is raised. None outlives the call."""
    (folder / f"meet-{world}").unlink(missing_ok=True)
    multiprocessing.set_forkserver_preload([__name__, function.__module__])
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
