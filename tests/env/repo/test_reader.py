"""Patches of many or large changes are computed by another process: the same ones, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.repo.capture import capture_patch, compute_patch
from swegym_env.repo.patches import refusal
from swegym_env.repo.reader import readers
from swegym_env.sandbox import Limits
from swegym_env.sandbox.changes import find_changes
from swegym_env.sandbox.layers import LayerStore
from swegym_env.sandbox.leases import process_start
from tests.env.repo.test_capture import BASE, EVERYTHING, opened
from tests.places import public_directory

MANY = f"{EVERYTHING}\nmkdir many && cd many && for i in $(seq 3000); do echo $i >file$i.py; done; cd .."


def own_seconds(sandbox: object, base: Path) -> tuple[float, str]:
    """Processor seconds of this thread for a patch, and the patch."""
    began = time.thread_time()
    patch = capture_patch(sandbox, base)  # type: ignore[arg-type]
    return time.thread_time() - began, patch


def test_many_files_are_read_by_another_process_with_the_same_result(store: LayerStore, backend: str) -> None:
    sandbox, base = opened(store, BASE, backend)
    with closing(sandbox):
        assert sandbox.run(MANY).exit_code == 0
        patch = capture_patch(sandbox, base)
        assert readers().pids
        with sandbox.listing() as (upper, lowers):  # type: ignore[attr-defined]

            def compute() -> str:
                return compute_patch(
                    lambda budget: find_changes(upper, lowers, "/testbed", fuse=sandbox.fuse, budget=budget),  # type: ignore[attr-defined]
                    base,
                    Limits(),
                    fresh=True,
                )

            began = time.thread_time()
            assert compute() == patch and patch.count("diff --git") > 3000
            here_s = time.thread_time() - began
        assert own_seconds(sandbox, base)[1] is patch  # an unchanged one is not even sent again
        sandbox.run("echo x >many/another.py")
        seconds, patch = own_seconds(sandbox, base)
        assert "+++ b/many/another.py" in patch and seconds < here_s / 4
        sandbox.run("rm -rf many && git checkout -q . && rm -rf bin.dat out new link 'new é.txt' empty")
        assert capture_patch(sandbox, base) == ""


def test_large_files_are_read_by_another_process(store: LayerStore) -> None:
    sandbox, base = opened(store, BASE)
    with closing(sandbox):
        sandbox.run("for i in 1 2 3; do head -c 6000000 /dev/urandom >large$i; done")
        patch = capture_patch(sandbox, base)
        assert patch.count("GIT binary patch") == 3 and readers().pids
        sandbox.run("for i in $(seq 9); do head -c 9000000 /dev/zero >large$i; done")
        assert "bytes" in refusal(capture_patch(sandbox, base))


def test_reader_that_is_killed_is_replaced(store: LayerStore) -> None:
    sandbox, base = opened(store, BASE)
    with closing(sandbox):
        sandbox.run(MANY)
        patch = capture_patch(sandbox, base)
        before = readers().pids
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        sandbox.run("echo x >many/another.py")
        assert len(capture_patch(sandbox, base)) > len(patch)
        assert readers().pids and not set(readers().pids) & set(before)
        child = os.fork()
        if child == 0:  # a fork has none, and ends none of its parent's
            os._exit(len(readers().pids))
        assert os.waitpid(child, 0)[1] == 0
        pids = readers().pids
        sandbox.run("echo y >many/another.py")
        assert "+y" in capture_patch(sandbox, base) and readers().pids == pids


OWNER = textwrap.dedent("""
    import sys, time
    from swegym_env.repo.capture import capture_patch
    from swegym_env.repo.reader import readers
    from swegym_env.sandbox.layers import LayerStore
    from tests.env.repo.test_capture import BASE, opened
    from tests.env.repo.test_reader import MANY

    sandbox, base = opened(LayerStore(), BASE)
    sandbox.run(MANY)
    capture_patch(sandbox, base)
    print(*readers().pids, flush=True)
    if sys.argv[1] == "end":
        sys.exit()
    while True:
        sandbox.run("echo $RANDOM >many/another.py")
        capture_patch(sandbox, base)
""")


@pytest.mark.parametrize("death", ["end", "kill"])
def test_reader_ends_with_its_owner_and_leaves_nothing(death: str) -> None:
    with public_directory("readers") as place:
        environment = {**os.environ, "SWEGYM_RUNDIR": str(place / "run"), "SWEGYM_WORKDIR": str(place / "work")}
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, death], stdout=subprocess.PIPE, env=environment, text=True
        ) as owner:
            assert owner.stdout is not None
            pids = [int(word) for word in owner.stdout.readline().split()]
            assert pids
            if death == "kill":
                owner.kill()
        assert wait_until(lambda: not any(map(process_start, pids)), 20.0)
        assert wait_until(lambda: not [path for path in (place / "run").iterdir() if path.is_dir()], 20.0)


def test_the_memory_of_the_owner_is_not_that_of_its_reader(store: LayerStore) -> None:
    """A training process holds gigabytes; its readers are kept all the same."""
    kept = bytearray(b"x" * (400 << 20))
    readers().close()
    sandbox, base = opened(store, BASE)
    with closing(sandbox):
        sandbox.run(MANY)
        capture_patch(sandbox, base)
        first = readers().pids
        sandbox.run("echo x >many/another.py")
        capture_patch(sandbox, base)
    assert kept and first and readers().pids == first
