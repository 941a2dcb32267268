"""The supervisor goes on whatever is asked of it and whatever agents leave behind, and keeps nobody waiting."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.gc import collect_garbage
from swegym_env.sandbox.leases import lease_directory
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.linux.processes import start_child
from swegym_env.sandbox.local import LocalSnapshot
from tests.env.sandbox.conftest import Opener
from tests.env.sandbox.test_reaping import eventually, groups_of, nothing_left, private, sandboxes, users

# A chain of directories whose path is far longer than any call accepts, directories side by side at every level of
# another one, names that are no text, things that are no files, and directories without permissions.
HOSTILE_TREE = textwrap.dedent("""
    import os, socket
    os.makedirs("hostile"); os.chdir("hostile")
    top = os.open(".", os.O_RDONLY)
    for width, levels in ((0, 300), (5, 30)):
        os.fchdir(top)
        os.mkdir(f"{width}"); os.chdir(f"{width}")
        for _ in range(levels):
            for number in range(width): os.makedirs(f"{number}-" + "y" * 200 + "/z")
            os.mkdir("x" * 250); os.chdir("x" * 250)
            open("w" * 250, "w").close()
        os.chmod("..", 0o100); os.chmod(".", 0)
    os.fchdir(top)
    for name in (b"-rf", b"\\xff\\xfe", b"a\\nb", b"\\x01", b"~", b"*", b" "):
        os.mkdir(name); open(name + b"/" + name, "w").close()
    os.mkfifo("fifo"); os.symlink("/", "root"); os.symlink("loop", "loop"); os.link("fifo", "again")
    socket.socket(socket.AF_UNIX).bind("socket")
    os.mkdir("shut"); open("shut/file", "w").close(); os.chmod("shut/file", 0); os.chmod("shut", 0)
    os.mkdir("kept"); open("kept/file", "w").close(); os.chmod("kept", 0o1555)
    print("made")
""")


@pytest.fixture(params=["memory", "disk"])
def place(
    request: pytest.FixtureRequest, run_directory: Path, public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A run directory in memory or on disk, with a supervisor of its own."""
    directory = private(run_directory, f"place-{os.urandom(4).hex()}") if request.param == "memory" else public_path
    directory.chmod(0o711)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(directory))
    if request.param == "memory":
        return directory
    monkeypatch.setenv("SWEGYM_WITHOUT", "tmpfs")
    return directory


def leave_a_hostile_tree(sandbox: Sandbox) -> None:
    sandbox.write("/tmp/tree.py", HOSTILE_TREE.encode())
    assert sandbox.run("python3 /tmp/tree.py").output == "made\n"


def test_close_removes_a_hostile_tree_and_the_supervisor_goes_on(backend: str, place: Path) -> None:
    before = supervisor()
    sandbox, other = (open_sandbox(SandboxSpec(), backend=backend) for _ in range(2))
    sandbox.start()
    other.start()
    names = sandboxes(place)
    leave_a_hostile_tree(sandbox)
    sandbox.close()
    assert other.run("echo alive").output == "alive\n"
    assert eventually(lambda: len(sandboxes(place)) == 1)
    other.close()
    assert len(names) == 2
    assert eventually(lambda: sandboxes(place) == [] and not any(users(place / name) for name in names))
    assert supervisor() is before and before.alive()


OWNER = textwrap.dedent("""
    import os, signal, sys
    from swegym_env.sandbox import SandboxSpec, open_sandbox
    from swegym_env.sandbox.client import supervisor

    sandbox = open_sandbox(SandboxSpec(), backend=sys.argv[1])
    sandbox.start()
    sandbox.write("/tmp/tree.py", sys.argv[2].encode())
    assert sandbox.run("python3 /tmp/tree.py").output == "made\\n"
    if sys.argv[3] == "both":
        os.kill(supervisor().pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
""")


@pytest.mark.parametrize("killed", ["owner", "both"])
def test_a_hostile_tree_of_a_killed_owner_is_removed(backend: str, place: Path, killed: str) -> None:
    """By its supervisor, or by garbage collection, which the next process begins with too."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OWNER, backend, HOSTILE_TREE, killed]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    if killed == "both":
        assert len(sandboxes(place)) == 1
        assert collect_garbage().failed == ()
        assert nothing_left(place)
    assert eventually(lambda: nothing_left(place))


REMOVE = textwrap.dedent("""
    import resource, sys
    from swegym_env.sandbox.linux.files import remove_tree

    sys.setrecursionlimit(60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
    remove_tree(sys.argv[1])
""")


def test_removal_needs_no_recursion_and_few_descriptors(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOSTILE_TREE], cwd=tmp_path, check=True, timeout=60)
    tree = tmp_path / "hostile"
    remaining = sum(1 for _ in tree.iterdir())
    assert not remove_tree(tree, most=3)
    assert sum(1 for _ in tree.iterdir()) >= remaining - 3
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", REMOVE, str(tree)], env=environment, check=True, timeout=60)
    assert not tree.exists()
    assert remove_tree(tree)


def test_a_long_removal_delays_no_other_request(backend: str, place: Path) -> None:
    sandbox = open_sandbox(SandboxSpec(), backend=backend)
    sandbox.start()
    assert sandbox.run("mkdir /tmp/f; cd /tmp/f; seq 40000 | xargs touch").exit_code == 0
    (name,) = sandboxes(place)
    launched = sandbox._shell.pid  # type: ignore[attr-defined]
    layer = lease_directory("snapshot", supervisor().pid)
    request = {"do": "layer", "size_bytes": 0, "inodes": 0}
    sandbox.close()
    number = 0
    while Path("/proc", str(launched)).exists():  # until the kernel has ended it, and the supervisor begins
        number += 1
        assert supervisor().ask({**request, "path": f"{layer}/{number}"}) == "directory"
    answers = [supervisor().ask({**request, "path": f"{layer}/{number + i}"}) for i in (1, 2, 3)]
    assert answers == ["directory"] * 3
    assert name in sandboxes(place)
    assert eventually(lambda: sandboxes(place) == [layer.name])
    supervisor().send({"do": "remove", "directory": str(layer)})
    assert eventually(lambda: sandboxes(place) == [])


def test_discarding_while_the_supervisor_dies_raises_nothing(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment its socket is closed and the process still exists."""
    place = private(run_directory, "dying")
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    chance = random.Random(0)
    for _ in range(30):
        dying = supervisor()
        snapshot = LocalSnapshot(SandboxSpec(), "/", (), lease_directory("snapshot", dying.pid))
        os.kill(dying.pid, signal.SIGKILL)
        until = time.monotonic() + chance.uniform(0, 0.003)
        while time.monotonic() < until:
            pass
        snapshot.discard()
    assert eventually(lambda: supervisor() is not dying)


SUCCESSOR = textwrap.dedent("""
    import os, signal, sys
    from swegym_env.sandbox import SandboxSpec, open_sandbox
    from swegym_env.sandbox.client import supervisor

    for _ in range(3):
        sandbox = open_sandbox(SandboxSpec(), backend=sys.argv[1])
        sandbox.start()
        os.kill(supervisor().pid, signal.SIGKILL)
        while supervisor().pid == sandbox._shell._client.pid: pass
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
""")


@pytest.mark.parametrize("end", ["exit", "killed"])
def test_a_successor_removes_what_its_predecessors_left(backend: str, place: Path, end: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SUCCESSOR, backend, end], env=environment) as owner:
        owner.wait(60)
    assert owner.returncode == (0 if end == "exit" else -signal.SIGKILL)
    assert eventually(lambda: nothing_left(place))
    assert eventually(lambda: groups_of([owner.pid]) == [])


MALFORMED = [
    b"{",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{}",
    b"[" * 100_000,
    b'{"do": 7}',
    b'{"do": "dance"}',
    b'{"do": "watch", "id": []}',
    b'{"do": "close", "id": "none"}',
    b'{"do": "remove", "directory": 3}',
    b'{"do": "launch", "id": "x"}',
    b'{"do": "launch", "id": "x", "limits": {"memory_bytes": "much"}}',
    b'{"do": "layer", "path": "/proc/none"}',
    b'{"do": "copy", "from": 1}',
    json.dumps({"do": "layer", "path": "/x\0y", "size_bytes": 1, "inodes": "many"}).encode(),
]


@pytest.mark.parametrize("descriptors", [0, 1, 2, 4])
def test_malformed_requests_are_answered_and_end_nothing(opened: Opener, descriptors: int) -> None:
    sandbox = opened()
    client = supervisor()
    for message in MALFORMED:
        pipes = [os.pipe() for _ in range(descriptors)]
        socket.send_fds(client._socket, [message], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        answers = [os.read(read, 5000) for read, _ in pipes]
        for read, _ in pipes:
            os.close(read)
        if pipes and b"close" not in message:
            assert (message, answers[-1][:6]) == (message, b"error "), answers
    assert sandbox.run("echo alive").output == "alive\n"
    assert supervisor() is client and client.alive()


@pytest.mark.parametrize("directory", ["/", "/etc", "/tmp/..", ""])
def test_the_supervisor_removes_its_owners_directories_only(directory: str) -> None:
    assert supervisor().ask({"do": "remove", "directory": directory}).startswith("error ")


FAILS_TO_REMOVE = textwrap.dedent("""
    import json, pathlib, sys
    from swegym_env.sandbox.gc import collect_garbage
    from swegym_env.sandbox.linux import kernel
    from swegym_env.sandbox.linux.supervisor import _enter_mount_namespace

    assert _enter_mount_namespace()
    kernel.mount("none", sys.argv[1], "tmpfs")
    report = collect_garbage()
    print(json.dumps([report.directories, report.failed]))
""")


def test_garbage_that_cannot_be_removed_is_reported_and_hinders_nothing(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", str(private(run_directory, "stuck")))
    stuck, gone = (lease_directory("sandbox", supervisor().pid) for _ in range(2))
    for directory in (stuck, gone):
        lease = json.loads((directory / "lease.json").read_text())
        (directory / "lease.json").write_text(json.dumps({**lease, "boot": "an earlier one"}))
    (stuck / "mounted").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FAILS_TO_REMOVE, str(stuck / "mounted")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    removed, failed = json.loads(done.stdout)
    assert removed == [gone.name]
    assert len(failed) == 1 and failed[0].startswith(f"{stuck}: ")
    assert collect_garbage().directories == (stuck.name,)


HIDDEN = {
    "open": "f = write(); os.unlink('big')",
    "open in a thread's own table": """
f = write(); os.unlink('big')
import threading
def hold():
    ctypes.CDLL(None).unshare(0x400); ready.set(); time.sleep(20)
ready = threading.Event(); threading.Thread(target=hold, daemon=True).start(); ready.wait(); f.close()""",
    "mapped": "f = write(); m = mmap.mmap(f.fileno(), 0); os.unlink('big'); f.close()",
    "in flight": """
f = write(); os.unlink('big'); a, b = socket.socketpair()
socket.send_fds(a, [b'x'], [f.fileno()]); f.close()""",
    "deep": """
for _ in range(40): os.mkdir('x' * 250); os.chdir('x' * 250)
write()""",
}


@pytest.mark.parametrize("how", HIDDEN)
def test_no_file_is_hidden_from_the_limit_of_a_layer_on_disk(
    opened: Opener, how: str, public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_path.chmod(0o711)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(public_path))
    if "thread" in how:  # the filter refuses `unshare`, one of the ways to get there
        monkeypatch.setenv("SWEGYM_WITHOUT", "seccomp")
    sandbox = opened(SandboxSpec(limits=Limits(disk_bytes=20 << 20)))
    code = f"""
import ctypes, mmap, os, socket, time
os.chdir('/tmp')
def write():
    f = open('big', 'w+b')
    f.write(bytes(30 << 20)); f.flush()
    return f
{HIDDEN[how]}
time.sleep(20)
"""
    sandbox.write("/tmp/hide.py", code.encode())
    result = sandbox.run("python3 /tmp/hide.py", timeout_s=15)
    assert (how, result.limit, result.timed_out) == (how, "disk", False)
    assert sandbox.run("rm -rf /tmp/*; echo room > /tmp/x; sleep 0.3; cat /tmp/x").output == "room\n"
    sandbox.close()
    assert eventually(lambda: sandboxes(public_path) == [])


@pytest.mark.parametrize("read", [True, False])
def test_a_result_that_nobody_reads_is_no_failure(read: bool, capfd: pytest.CaptureFixture[str]) -> None:
    result, output = os.pipe()
    if not read:
        os.close(result)
    child = start_child(lambda: b"done", output)
    os.close(output)
    assert os.waitpid(child, 0)[1] == 0
    if read:
        assert os.read(result, 100) == b"done"
        os.close(result)
    sys.stderr.flush()
    assert capfd.readouterr().err == ""
