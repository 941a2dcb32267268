"""The one thread that uses a sandbox of an adapter."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from swegym_env.adapters.workbench import OneCaller, Workbench
from swegym_env.tasks.datasets import load_tasks

TASK = load_tasks("mini")["mini__lrucache-001"]


def test_a_call_that_is_cancelled_after_its_end_does_not_end_the_next_one() -> None:
    bench = Workbench(TASK)
    caller, ended = OneCaller(lambda: bench.sandbox), threading.Event()

    async def play() -> None:
        first = asyncio.ensure_future(caller.call(ended.set))
        second = asyncio.ensure_future(caller.call(lambda: bench.run("sleep 1; echo done")))
        await asyncio.sleep(0)  # both are given to the thread
        assert ended.wait(30)
        time.sleep(0.5)  # the loop has not heard yet that the first has ended, and the second has begun
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        found = await asyncio.wait_for(second, 60)
        assert (found.exit_code, found.output) == (0, "done\n")

    try:
        asyncio.run(play())
    finally:
        caller.finish(bench.close)
