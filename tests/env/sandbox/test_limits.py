"""Every limit is reached on purpose: the result reports which one, and the sandbox stays usable."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import ConfigurationError, SandboxBrokenError, StorageError
from swegym_env.sandbox import Limits, SandboxSpec
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.limits import reached_limit
from swegym_env.sandbox.linux.cgroups import Group
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.sandbox.linux.usage import Usage
from tests.env.sandbox.conftest import Opener
from tests.places import small_run_directory

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


def test_each_limit_is_reported_and_the_sandbox_stays_usable(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=TIGHT))
    sandbox.run("cd /tmp; kept=1")
    for command, limit, code in [
        (f"{SPIN} & {SPIN}", "cpu", 152),
        ("while :; do :; done", "cpu", 152),
        (f"for i in 1 2 3 4; do {HOG.format(70 << 20)} & done; wait -n", "memory", None),
        (HOG.format(1 << 29), "memory", 1),  # its own allocator fails
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


def test_background_processes_over_the_memory_limit_are_killed(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=TIGHT))
    sandbox.run(f"for i in 1 2 3 4; do {HOG.format(70 << 20)} & done")
    deadline = time.monotonic() + 10
    while sandbox.run("jobs -rp | wc -l").output.split()[-1] == "4":
        assert time.monotonic() < deadline
        sandbox.run("sleep 0.2")


def test_a_layer_on_disk_is_limited_by_measuring_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, public_path: Path
) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", str(public_path / "run"))  # a run directory on disk, so no layer in memory
    sandbox = opened(SandboxSpec(limits=Limits(disk_bytes=20 << 20, inodes=500)))
    result = sandbox.run("cd /tmp; for i in $(seq 300); do head -c 1000000 /dev/zero > $i; sleep 0.02; done")
    assert (result.limit, result.exit_code) == ("disk", 153)
    assert 15 < int(sandbox.run("ls /tmp | wc -l").output) < 290
    assert sandbox.run("rm -r /tmp/*; echo room > /tmp/x; sleep 0.2; cat /tmp/x").output == "room\n"
    result = sandbox.run("for i in $(seq 2000); do echo > $i; [ $((i % 100)) = 0 ] && sleep 0.1; done")
    assert result.limit == "disk"


def test_a_full_disk_of_the_machine_is_a_storage_error(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", os.environ["SWEGYM_RUNDIR"])
    from swegym_env.sandbox import writable

    monkeypatch.setattr(writable, "_is_tmpfs", lambda _: False)
    sandbox = opened()
    monkeypatch.setattr(writable, "_LITTLE_BYTES", 1 << 60)
    monkeypatch.setattr(writable, "_PATIENCE_S", 0.2)  # nobody else is at fault
    with pytest.raises(StorageError, match="No space left on device"):
        sandbox.run("echo > /tmp/x")


TAKE_SPACE = """
import ctypes, fcntl, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
size = int(sys.argv[1]) << 20
failures = set()
for mode in (0, 1, 0x10, 0x11):
    file = os.open(f"mode-{mode}", os.O_CREAT | os.O_RDWR)
    failures.add(ctypes.get_errno() if libc.fallocate(file, mode, 0, size) else 0)
for request in (0x40305828, 0x4030582A, 0x40305839, 0x40305828 | 1 << 40):
    file = os.open(f"request-{request}", os.O_CREAT | os.O_RDWR)
    area = struct.pack("=hhiqqiI16x", 0, 0, 0, 0, size, 0, 0)
    code = libc.ioctl(file, ctypes.c_ulong(request), area)
    failures.add(ctypes.get_errno() if code else 0)
os.write(file, b"x" * 8192)
print(sorted(failures), libc.fallocate(file, 3, 0, 8192), sum(os.stat(name).st_blocks for name in os.listdir()) >> 11)
"""


def test_space_is_taken_by_writing_only_where_a_layer_is_measured(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, public_path: Path
) -> None:
    for place, expected in ((None, None), (public_path / "run", f"[{errno.EOPNOTSUPP}] 0 0\n")):
        if place is not None:
            monkeypatch.setenv("SWEGYM_RUNDIR", str(place))  # on disk: no layer in memory
        sandbox = opened()
        sandbox.write("/tmp/take.py", TAKE_SPACE.encode())
        result = sandbox.run("mkdir /tmp/d; cd /tmp/d; python3 /tmp/take.py 300")
        if expected is None:
            assert result.output.startswith("[0"), "in memory the file system is the limit"
        else:
            assert result.output == expected
            assert (
                sandbox.run("python3 -c 'import os; os.posix_fallocate(1, 0, 50000)' >f; stat -c %s f").output
                == "50000\n"
            )


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with small_run_directory(monkeypatch) as folder:
        yield folder


FILL = "head -c 400M /dev/zero >/tmp/big"
HIDE = (
    'python3 -c \'import os, time; f = os.open("/tmp/big", os.O_CREAT | os.O_RDWR); os.unlink("/tmp/big")\n'
    "try:\n while True: os.write(f, bytes(1 << 20))\nexcept OSError: time.sleep(60)'"
)


def free_bytes(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


@pytest.mark.parametrize("fill", [FILL, HIDE, f"({FILL}; sleep 60) &"])
def test_filling_the_disk_faster_than_it_is_measured_breaks_only_that_sandbox(
    opened: Opener, small_disk: Path, fill: str
) -> None:
    hostile, neighbour = opened(), opened()
    with ThreadPoolExecutor(2) as threads:
        os.kill(supervisor().pid, signal.SIGSTOP)  # so nothing is measured
        try:
            filling = threads.submit(hostile.run, fill, timeout_s=60)
            assert wait_until(lambda: free_bytes(small_disk) < 1 << 16, 30)
            working = threads.submit(neighbour.run, "echo more >/tmp/mine")
            time.sleep(0.2)
        finally:
            os.kill(supervisor().pid, signal.SIGCONT)
        if fill == FILL:
            assert isinstance(filling.exception(60), SandboxBrokenError)
            assert "disk of the machine" in str(filling.exception())
        elif fill == HIDE:  # what has no name is gone with whoever had it open
            assert filling.result(60).limit == "disk"
        assert working.result(60).exit_code in (0, 1)
    if fill not in (FILL, HIDE):  # the next command shows what happened in the background
        with pytest.raises(SandboxBrokenError, match="disk of the machine"):
            hostile.run("true")
    if fill != HIDE:  # later commands report the same: the machine is not at fault
        with pytest.raises(SandboxBrokenError, match="disk of the machine"):
            hostile.changes("/tmp")
        with pytest.raises(SandboxBrokenError, match="disk of the machine"):
            hostile.run("true")
    assert wait_until(lambda: free_bytes(small_disk) > 200 << 20, 30)
    assert neighbour.run("head -c 50M /dev/zero >/tmp/own && echo fits").output == "fits\n"


@pytest.mark.parametrize("fill", [f"{FILL}; sleep 60", f"({FILL}; sleep 60) &", HIDE])
def test_filling_a_disk_again_and_again_makes_nobody_invalid(opened: Opener, small_disk: Path, fill: str) -> None:
    hostile, neighbour = opened(), opened()
    for _ in range(3):
        try:
            hostile.run(fill, timeout_s=20)
        except SandboxBrokenError:
            break
        assert neighbour.run("echo more >>/tmp/mine; sleep 0.5").exit_code in (0, 1)
    hostile.close()
    assert wait_until(lambda: free_bytes(small_disk) > 200 << 20, 30)
    assert neighbour.run("echo x >/tmp/own && echo fits").output == "fits\n"


def test_a_layer_gets_at_most_half_of_a_disk_and_nothing_of_a_full_one(opened: Opener, small_disk: Path) -> None:
    sandbox = opened()
    result = sandbox.run("for i in $(seq 200); do head -c 1M /dev/zero >/tmp/$i; sleep 0.01; done")
    assert (result.limit, result.exit_code) == ("disk", 153)
    assert sandbox.run("rm /tmp/*; echo goes on").output == "goes on\n"
    (small_disk / "others").write_bytes(bytes(200 << 20))
    with pytest.raises(StorageError, match="No space left"):
        opened()


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


def test_without_cgroups_shared_memory_pages_are_counted_once() -> None:
    size = 60 << 20
    # A process of its own: the tests' shares with its children whatever they have loaded.
    command = [sys.executable, "-I", "-S", "-c", SHARING, str(size >> 20)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "ready\n"
            fits = Usage(parent.pid, {"memory_bytes": 3 * size}, Group({}), None)
            fits.command_began(None)
            assert fits.newly_exceeded() == []  # four processes that share one block
            tight = Usage(parent.pid, {"memory_bytes": size // 2}, Group({}), None)
            tight.command_began(None)
            assert tight.newly_exceeded() == ["memory"]
            assert parent.poll() is None and len(descendants(parent.pid)) == 3  # reported before anything is killed
            tight.kill_largest()
            assert parent.wait(10) == -9
            assert tight.newly_exceeded() == []  # reported once, and no process is left to kill
        finally:
            parent.kill()


def test_children_of_threads_are_descendants() -> None:
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


UNWAITED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel waits for the children, and tells nobody what they used
for _ in range({0}):
    if os.fork() == 0:
        while time.process_time() < 0.02:
            pass
        os._exit(0)
    try:
        os.wait()
    except ChildProcessError:
        pass
"""


def test_processor_time_of_children_that_nobody_waits_for_counts(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=Limits(turn_timeout_s=60, cpu_s=0.5)))
    directories = json.loads(sandbox._shell._events["group"])  # type: ignore[attr-defined]
    if Group(directories).cpu_s() is None:
        pytest.skip("no control group that counts processor time can be made here")
    sandbox.write("/tmp/unwaited.py", UNWAITED.format(2000).encode())
    result = sandbox.run("python3 /tmp/unwaited.py")
    assert (result.limit, result.exit_code) == ("cpu", 152), result


COUNTED = """
import json, os, sys
from swegym_env.sandbox.leases import owner_prefix
from swegym_env.sandbox.linux.cgroups import make_group

group = make_group(f"{{owner_prefix()}}counted", 1 << 30, 100, 1.0)  # not garbage while this process lives
begin, begun = os.pipe()
child = os.fork()
if child == 0:
    os.close(begun)
    os.read(begin, 1)
    exec({0!r})
    os._exit(0)
group.add(child)
os.write(begun, b"x")
os.waitpid(child, 0)
seconds = group.cpu_s()
group.remove()
print(json.dumps([group.directories, seconds]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are changed, in a namespace of its own")
@pytest.mark.parametrize("kept", ["all", "version 1", "version 2", "all but cpu", "all but cpuacct", "none"])
def test_some_group_counts_processor_time_whatever_hierarchies_there_are(kept: str) -> None:
    removed, counting = [], False
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()
        controllers = options.split(",")
        if kind in ("cgroup", "cgroup2"):
            if (
                kept == "none"
                or (
                    kept in ("version 1", "version 2") and kind != {"version 1": "cgroup", "version 2": "cgroup2"}[kept]
                )
                or (kept.startswith("all but") and kind == "cgroup" and kept.rsplit(maxsplit=1)[-1] in controllers)
            ):
                removed.append(left.split()[4])
            else:
                counting |= kind == "cgroup2" or "cpuacct" in controllers
    program = COUNTED.format(UNWAITED.format(20))
    script = "".join(f"umount -l {shlex.quote(place)} && " for place in removed) + 'exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    directories, seconds = json.loads(done.stdout)
    assert not {place for place in removed for each in directories.values() if each.startswith(f"{place}/")}
    if counting:
        assert seconds is not None and 0.35 < seconds < 20, (directories, seconds)
    else:
        assert seconds is None


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
def test_the_reported_limit(known: set[str], output: bytes, code: int, truncated: bool, limit: str | None) -> None:
    assert reached_limit(known, output=output, exit_code=code, truncated=truncated) == limit


def test_a_command_runs_within_the_smallest_limits_that_are_taken(opened: Opener) -> None:
    """Smaller ones are refused: no sandbox would start, as if the machine had failed."""
    sandbox = opened(SandboxSpec(limits=Limits(processes=3, descriptors=16, inodes=16)))
    assert sandbox.run("ls -d /usr").output == "/usr\n"


def test_a_limit_of_zero_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="disk_bytes: expected a positive number, got 0"):
        Limits(disk_bytes=0)
