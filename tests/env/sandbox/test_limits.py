"""Every limit is reached on purpose: the result says which, and the sandbox goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError, StorageError
from swegym_env.sandbox import Limits, SandboxSpec
from swegym_env.sandbox.limits import reached_limit
from swegym_env.sandbox.supervisor.cgroups import Group
from swegym_env.sandbox.supervisor.processes import descendants
from swegym_env.sandbox.supervisor.watching import Watch
from tests.env.sandbox.conftest import Opener

HOG = "python3 -c 'x = bytearray({0}); import time; time.sleep(30)'"
SPIN = "python3 -c 'while True: pass'"
WRITE = 'python3 -c \'f = open("/tmp/big", "wb", 0); [f.write(bytes(1 << 20)) for _ in range(9)]\''
THREADS = (
    "python3 -c 'import threading, time\nfor i in range(60): "
    "threading.Thread(target=time.sleep, args=(1,), daemon=True).start()'"
)
TIGHT = Limits(
    turn_timeout_s=20,
    cpu_s=0.5,
    memory_bytes=200 << 20,
    processes=50,
    file_size_bytes=8 << 20,
    disk_bytes=16 << 20,
    inodes=300,
    output_bytes=1000,
)


def test_each_limit_is_named_and_the_sandbox_goes_on(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=TIGHT))
    sandbox.run("cd /tmp; kept=1")
    for command, limit, code in [
        (f"{SPIN} & {SPIN}", "cpu", 152),
        ("while :; do :; done", "cpu", 152),
        (f"for i in 1 2 3 4; do {HOG.format(70 << 20)} & done; wait -n", "memory", None),
        (HOG.format(1 << 29), "memory", 1),  # one alone is told by its allocator
        ("head -c 9000000 /dev/zero > big", "file_size", 153),
        (f"rm big; {WRITE}", "file_size", 1),
        ("rm big*; for i in 1 2 3; do head -c 7000000 /dev/zero > part$i; done", "disk", 1),
        ("rm part*; for i in $(seq 400); do echo > small$i; done 2>/dev/null", "disk", 1),
        ("echo still full", None, 0),
        (f"rm small*; {THREADS}", "processes", 1),
        ("seq 1000", "output", 0),
        ("sleep 20 & sleep 20", "time", 124),
        ("echo fine", None, 0),
    ]:  # fmt: skip
        result = sandbox.run(command, timeout_s=0.5 if limit == "time" else None)
        assert (command, result.limit) == (command, limit), result.output[-300:]
        if code is not None:
            assert (command, result.exit_code) == (command, code)
        assert result.timed_out == (result.limit == "time")
        after = sandbox.run("pkill sleep; pkill python3; pwd; echo $kept")
        assert after.output.endswith("/tmp\n1\n"), (command, after)


def test_what_grows_in_the_background_is_ended_too(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=TIGHT))
    sandbox.run(f"for i in 1 2 3 4; do {HOG.format(70 << 20)} & done")
    deadline = time.monotonic() + 10
    while sandbox.run("jobs -rp | wc -l").output.split()[-1] == "4":
        assert time.monotonic() < deadline
        sandbox.run("sleep 0.2")


def test_a_layer_too_large_for_memory_lies_on_disk_and_is_bounded_too(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, public_path: Path
) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", str(public_path / "run"))  # whoever names a disk wants sandboxes there
    sandbox = opened(SandboxSpec(limits=Limits(disk_bytes=20 << 20, inodes=500)))
    result = sandbox.run("cd /tmp; for i in $(seq 100); do head -c 1000000 /dev/zero > $i; sleep 0.02; done")
    assert (result.limit, result.exit_code) == ("disk", 153)
    assert 15 < int(sandbox.run("ls /tmp | wc -l").output) < 90
    assert sandbox.run("rm -r /tmp/*; echo room > /tmp/x; sleep 0.2; cat /tmp/x").output == "room\n"
    result = sandbox.run("for i in $(seq 2000); do echo > $i; [ $((i % 100)) = 0 ] && sleep 0.1; done")
    assert result.limit == "disk"


def test_the_machines_full_disk_is_not_the_agents_fault(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", os.environ["SWEGYM_RUNDIR"])
    from swegym_env.sandbox import writable

    monkeypatch.setattr(writable, "_is_in_memory", lambda _: False)
    sandbox = opened()
    monkeypatch.setattr(writable, "_LITTLE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match="No space left on device"):
        sandbox.run("echo > /tmp/x")


SHARING = """
import os, sys, time
block = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
for _ in range(3):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
print("ready", flush=True)
time.sleep(30)
"""


def test_without_control_groups_the_watch_counts_a_tree_with_shared_pages_once() -> None:
    size = 60 << 20
    # A process of its own: the tests' shares with its children whatever they have loaded.
    command = [sys.executable, "-I", "-S", "-c", SHARING, str(size >> 20)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "ready\n"
            fits = Watch(parent.pid, {"memory_bytes": 3 * size}, Group({}), None)
            fits.begin(None)
            assert fits.look() == []  # four processes that share one block
            tight = Watch(parent.pid, {"memory_bytes": size // 2}, Group({}), None)
            tight.begin(None)
            assert tight.look() == ["memory"]
            assert parent.poll() is None and len(descendants(parent.pid)) == 3  # it is told before anything ends
            tight.enforce()
            assert parent.wait(10) == -9
            assert tight.look() == []  # told once, and by now nothing is left to end
        finally:
            parent.kill()


def test_what_a_thread_started_belongs_to_the_tree() -> None:
    forks = (
        "import os, threading, time; threading.Thread(target=lambda: os.fork() and os.wait() or time.sleep(20)).start()"
    )
    with subprocess.Popen([sys.executable, "-c", f"{forks}; time.sleep(20)"]) as process:
        deadline = time.monotonic() + 10
        while not descendants(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for pid in (*descendants(process.pid), process.pid):
            os.kill(pid, 9)


@pytest.mark.parametrize(
    ("known", "output", "code", "truncated", "limit"),
    [
        ({"memory", "disk"}, b"", 137, True, "memory"),
        ({"cpu", "memory"}, b"", 152, False, "cpu"),
        (set(), b"cat: x: File too large\n", 1, False, "file_size"),
        (set(), b"No space left on device\nall is well\n", 1, False, None),
        (set(), b"MemoryError\n", 0, False, None),
        (set(), b"MemoryError\nbash: line 14:    17 Killed                  sleep 9\n", 1, False, "memory"),
        (set(), b"bash: fork: retry: Resource temporarily unavailable\n", 254, False, "processes"),
        (set(), b"x", 153, True, "file_size"),
        (set(), b"x", 0, True, "output"),
        (set(), b"", 1, False, None),
    ],
)
def test_the_limit_that_is_named(known: set[str], output: bytes, code: int, truncated: bool, limit: str | None) -> None:
    assert reached_limit(known, output=output, exit_code=code, truncated=truncated) == limit


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="disk_bytes: expected a positive number, got 0"):
        Limits(disk_bytes=0)
