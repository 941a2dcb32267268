"""The ranks of a test inherit no lock of its process, and none of them outlives it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.trainers import ranks
from tests.trainers.ranks import on_ranks

LOCK = threading.Lock()


def take_the_lock(folder: Path) -> None:
    assert LOCK.acquire(timeout=20), "inherited a locked lock"
    (folder / f"{dist.get_rank()}").write_text(str(os.getpid()))


def raise_on_one(folder: Path) -> None:
    (folder / f"{dist.get_rank()}").write_text(str(os.getpid()))
    if dist.get_rank() == 1:
        raise ValueError("what rank 1 met")
    threading.Event().wait()


def wait_forever(folder: Path) -> None:
    (folder / f"{dist.get_rank()}").write_text(str(os.getpid()))
    threading.Event().wait()


def pids(folder: Path) -> list[int]:
    return [int((folder / str(rank)).read_text()) for rank in (0, 1)]


def test_lock_held_by_another_thread_is_not_inherited(tmp_path: Path) -> None:
    with LOCK:
        on_ranks(2, tmp_path, take_the_lock)
    assert os.getpid() not in pids(tmp_path)


def test_error_of_a_rank_is_raised_and_no_rank_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="what rank 1 met"):
        on_ranks(2, tmp_path, raise_on_one)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(tmp_path))

    monkeypatch.setattr(ranks, "PATIENCE_S", 6)
    with pytest.raises(AssertionError, match=r"ranks \[0, 1\] of 2 still run after 6 s"):
        on_ranks(2, tmp_path, wait_forever)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(tmp_path))
