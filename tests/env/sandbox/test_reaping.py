"""Nothing is left after close, after any death of the owner, and after the death of the supervisor."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import SandboxError
from swegym_env.sandbox import Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.gc import collect_garbage
from swegym_env.sandbox.leases import lease_directory
from swegym_env.sandbox.linux.cgroups import existing_groups
from swegym_env.sandbox.linux.files import remove_tree
from swegym_env.sandbox.linux.processes import descendants
from tests.env.sandbox.conftest import Opener

PATIENCE_S = 20.0
OWNER = textwrap.dedent("""
    import sys, time
    from swegym_env.sandbox import SandboxSpec, open_sandbox

    sandboxes = []
    print("begin", flush=True)
    while True:
        sandbox = open_sandbox(SandboxSpec(), backend=sys.argv[1])
        sandbox.start()
        sandbox.run("setsid sleep 1000 & nohup sleep 1000 & mkdir -m 000 shut; echo $$")
        sandboxes.append(sandbox)
        print("sandbox", flush=True)
        sandboxes.append(sandbox.fork())
        if len(sandboxes) > 5:
            sandboxes.pop(0).close()
""")


def eventually(condition: Callable[[], bool]) -> bool:
    return wait_until(condition, PATIENCE_S, every_s=0.01)


def gone(pids: list[int]) -> bool:
    """Whether these processes end soon."""
    return eventually(lambda: not any(Path("/proc", str(pid), "exe").exists() for pid in pids))


def commands(pids: Iterable[int]) -> list[bytes]:
    """The command lines of these processes, but for those that have ended."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def directories(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.is_dir()] if place.exists() else []


def sandboxes(place: Path) -> list[str]:
    """The directories but for those of images' containers, which stay as long as their owner."""
    return [name for name in directories(place) if not name.endswith("-container")]


def users(place: Path) -> list[int]:
    """Processes that have something of `place` mounted, found by their mounts."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{place}/" in Path("/proc", name, "mountinfo").read_text():
                found.append(int(name))
        except OSError:
            continue
    return found


def groups_of(owners: Container[int]) -> list[str]:
    """Control groups whose names begin with the id of one of the owners."""
    return [name for name in existing_groups() if int(name.split("-")[0]) in owners]


def mounts_and_loop_devices() -> set[str]:
    """Those of the machine: other tests may add some, and remove them."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {*mounts, *(str(path.parent) for path in Path("/sys/block").glob("loop*/loop"))}


def fuse_servers(place: Path) -> list[int]:
    """Processes that serve a file system with something of `place` in it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", pid, "cmdline").read_text()
        except OSError:
            continue
        if command.startswith("fuse-overlayfs\0") and f"{place}/" in command:
            found.append(int(pid))
    return found


def nothing_left(place: Path) -> bool:
    return directories(place) == [] and users(place) == []


def start_owner(place: Path, backend: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, backend]
    environment = {**os.environ, "SWEGYM_RUNDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def private(place: Path, name: str) -> Path:
    directory = place / name
    directory.mkdir(mode=0o711)
    return directory


def test_close_removes_processes_and_directories(opened: Opener, run_directory: Path) -> None:
    before = set(sandboxes(run_directory))
    sandbox = opened()
    sandbox.run("mkdir -m 000 shut; mkdir -p a/b; chmod 500 a; setsid sleep 1000 & nohup sleep 1000 &")
    mine = set(sandboxes(run_directory)) - before
    assert len(mine) == 1
    sandbox.close()
    assert eventually(lambda: mine.isdisjoint(directories(run_directory)))
    assert users(run_directory / mine.pop()) == []


def test_a_sandbox_that_was_forgotten_is_closed_with_the_next_start(opened: Opener, run_directory: Path) -> None:
    before = set(sandboxes(run_directory))
    fork = opened().fork()  # `opened` keeps only the first
    mine = set(sandboxes(run_directory)) - before
    assert len(mine) == 2
    descriptors = len(os.listdir("/proc/self/fd"))
    itself = [fork]  # garbage that only the collector finds
    itself.append(itself)  # type: ignore[arg-type]
    del fork, itself
    gc.collect()
    opened()
    assert eventually(lambda: len(mine & set(directories(run_directory))) == 1)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_sandboxes_that_are_open_at_the_end_of_the_process_end_in_silence(backend: str, run_directory: Path) -> None:
    program = f"""
import sys
from swegym_env.sandbox import SandboxSpec, open_sandbox
class Owner: pass
owner = Owner()
owner.itself, owner.sandbox = owner, open_sandbox(SandboxSpec(), backend={backend!r})
owner.sandbox.start()
sys.kept = owner  # collected after the names of all modules
import swegym_env.sandbox.local as local, swegym_env.sandbox.unclosed as unclosed
for module in (local, unclosed):
    for name in list(vars(module)):
        if not name.startswith("__"):
            sys.modules[module.__name__].__dict__[name] = None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interruption_while_it_closes_leaves_nothing(opened: Opener, run_directory: Path) -> None:
    before = set(sandboxes(run_directory))
    sandbox = opened()
    mine = set(sandboxes(run_directory)) - before
    assert len(mine) == 1
    os.kill(supervisor().pid, signal.SIGSTOP)  # both requests wait: the sandbox has not ended at the second
    try:
        sandbox.close()
        sandbox.interrupt()
    finally:
        os.kill(supervisor().pid, signal.SIGCONT)
    assert eventually(lambda: mine.isdisjoint(directories(run_directory)))


def test_an_exception_in_the_owner_leaves_nothing(backend: str, run_directory: Path) -> None:
    place = private(run_directory, f"exception-{backend}")
    code = OWNER.replace("sandboxes.append(sandbox.fork())", "raise SystemExit(7)")
    environment = {**os.environ, "SWEGYM_RUNDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, backend], env=environment, stdout=subprocess.DEVNULL, timeout=60, check=False
    )
    assert done.returncode == 7
    assert nothing_left(place)  # at once: the end of the process waits for it


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_owner_leaves_nothing(backend: str, run_directory: Path, number: signal.Signals) -> None:
    place = private(run_directory, f"signal-{backend}-{number}")
    with start_owner(place, backend) as owner:
        assert owner.stdout is not None
        assert [owner.stdout.readline() for _ in range(2)] == ["begin\n", "sandbox\n"]
        owner.send_signal(number)
        owner.stdout.read()
    assert eventually(lambda: nothing_left(place)), (directories(place), users(place))


@pytest.mark.parametrize(
    "deaths", [pytest.param(3, marks=pytest.mark.sample), pytest.param(10, marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("without", ["", "overlay"])
def test_sigkill_of_the_owner_at_any_moment_leaves_nothing(
    backend: str, run_directory: Path, without: str, deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the deaths that `make bench-reaping` counts."""
    if without and shutil.which("fuse-overlayfs") is None:
        pytest.skip("fuse-overlayfs is not installed (Debian: fuse-overlayfs)")
    monkeypatch.setenv("SWEGYM_WITHOUT", without)
    place = private(run_directory, f"random-{backend}-{without}-{deaths}")
    chance = random.Random(0)
    before = mounts_and_loop_devices()
    owners, served = [], 0
    for number in range(deaths):
        with start_owner(place, backend) as owner:
            owners.append(owner.pid)
            assert owner.stdout is not None
            assert owner.stdout.readline() == "begin\n"
            if number % 2:  # otherwise it may die before anything is started
                assert owner.stdout.readline() == "sandbox\n"
            time.sleep(chance.uniform(0, 0.4))
            served += len(fuse_servers(place))
            owner.kill()
    assert eventually(lambda: nothing_left(place)), (directories(place), users(place))
    assert eventually(lambda: groups_of(owners) == [])
    assert eventually(lambda: fuse_servers(place) == [])
    assert (served > 0) == (without == "overlay")
    assert eventually(lambda: mounts_and_loop_devices() <= before), mounts_and_loop_devices() - before


KILLED_WHILE_MAKING_A_DIRECTORY = textwrap.dedent("""
    import os, pathlib, signal, sys
    from swegym_env.sandbox import SandboxSpec, open_sandbox

    def die(*_):
        if "supervisor" in sys.argv[2:]:
            from swegym_env.sandbox.client import supervisor
            os.kill(supervisor().pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    pathlib.Path.rename = die
    open_sandbox(SandboxSpec(), backend=sys.argv[1]).start()
""")


@pytest.mark.parametrize("also", ["owner alone", "supervisor"])
def test_an_owner_killed_while_it_makes_a_directory_leaves_nothing(
    backend: str, run_directory: Path, also: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory gets its final name when its lease is in it; before, it has a hidden one."""
    place = private(run_directory, f"unfinished-{backend}-{also.split(maxsplit=1)[0]}")
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED_WHILE_MAKING_A_DIRECTORY, backend, also]
    assert subprocess.run(command, env=environment, timeout=60, check=False).returncode == -signal.SIGKILL
    if also == "supervisor":
        assert len(directories(place)) == 1
        assert len(collect_garbage().directories) == 1
    assert eventually(lambda: nothing_left(place)), (directories(place), users(place))


def test_a_start_whose_processes_are_killed_works_or_is_a_sandbox_error(
    backend: str, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = private(run_directory, f"killed-{backend}")
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    open_sandbox(SandboxSpec(), backend=backend).close()
    chance = random.Random(0)
    works = 0
    for _ in range(120):
        started = threading.Event()
        moment_s = chance.uniform(0.0, 0.03)

        def kill(started: threading.Event = started, moment_s: float = moment_s) -> None:
            time.sleep(moment_s)
            while not started.is_set() and not (found := descendants(supervisor().pid)):
                time.sleep(0.0005)
            for pid in [] if started.is_set() else found[::-1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        with contextlib.closing(open_sandbox(SandboxSpec(), backend=backend)) as sandbox, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an image's container that did not start
            killer.start()
            try:
                sandbox.start()
                works += sandbox.run("echo alive").output == "alive\n"
            except SandboxError:
                pass  # both of its attempts were killed, or the second one
            finally:
                started.set()
                killer.join()
    assert works > 0
    assert eventually(lambda: sandboxes(place) == [])


def test_garbage_of_an_owner_and_supervisor_killed_together_is_collected(
    backend: str, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = private(run_directory, f"both-{backend}")
    monkeypatch.setenv("SWEGYM_RUNDIR", str(place))
    with start_owner(place, backend) as owner:
        assert owner.stdout is not None
        assert [owner.stdout.readline() for _ in range(2)] == ["begin\n", "sandbox\n"]
        below = descendants(owner.pid)
        assert collect_garbage().directories == ()  # its owner lives
        owner.send_signal(signal.SIGSTOP)
        os.kill(below[0], signal.SIGKILL)  # the supervisor first: it must not see the owner's end
        owner.kill()
    assert directories(place) != []
    report = collect_garbage()
    assert len(report.directories) >= 1
    assert eventually(lambda: nothing_left(place)), (directories(place), users(place))
    assert groups_of([owner.pid]) == []
    assert collect_garbage().directories == ()


def test_a_sandbox_outlives_the_thread_that_started_it(opened: Opener) -> None:
    made: list[Sandbox] = []
    thread = threading.Thread(target=lambda: made.append(opened()))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert made[0].run("echo alive").output == "alive\n"


def test_many_sandboxes_in_many_threads(backend: str) -> None:
    outputs: list[str] = []

    def work(number: int) -> None:
        for turn in range(3):
            sandbox = open_sandbox(SandboxSpec(), backend=backend)
            sandbox.start()
            outputs.append(sandbox.run(f"echo {number}-{turn}").output.strip())
            sandbox.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == sorted(f"{number}-{turn}" for number in range(8) for turn in range(3))


def test_a_forked_child_does_not_close_the_sandboxes_of_its_parent(sandbox: Sandbox) -> None:
    child = os.fork()
    if child == 0:
        sandbox.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sandbox.run("echo alive").output == "alive\n"


def test_a_dead_supervisor_is_an_error_and_the_next_sandbox_works(backend: str, run_directory: Path) -> None:
    sandbox = open_sandbox(SandboxSpec(), backend=backend)
    sandbox.start()
    os.kill(supervisor().pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="supervisor died"):
        sandbox.run("sleep 5")
    other = open_sandbox(SandboxSpec(), backend=backend)
    other.start()
    assert other.run("echo alive").output == "alive\n"
    mine = sandboxes(run_directory)
    for one in (sandbox, other):
        one.close()
    assert len(mine) >= 2
    assert eventually(lambda: all(users(run_directory / name) == [] for name in mine))


def test_a_lease_of_an_earlier_boot_is_garbage(run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEGYM_RUNDIR", str(private(run_directory, "leases")))
    ours, crashed = lease_directory("sandbox", supervisor().pid), lease_directory("snapshot", supervisor().pid)
    lease = json.loads((ours / "lease.json").read_text())
    assert lease["owner"] == os.getpid()
    (crashed / "lease.json").write_text(json.dumps({**lease, "boot": "an earlier one"}))
    report = collect_garbage()
    assert (report.directories, report.kept, ours.exists()) == ((crashed.name,), 1, True)


def test_directory_without_a_lease_is_garbage_at_once_if_its_owner_is_dead(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a supervisor leaves it that was killed while it removed a sandbox: the lease went first."""
    monkeypatch.setenv("SWEGYM_RUNDIR", str(private(run_directory, "half-removed")))
    ours = lease_directory("sandbox", supervisor().pid)
    with subprocess.Popen(["true"]) as ended:
        pass
    dead = [ours.with_name(f"{hidden}{ended.pid}-1-{number}-sandbox") for number, hidden in enumerate(("", "."))]
    other = ours.with_name("not-of-a-sandbox")
    for each in (*dead, other):
        (each / "layer-1" / "upper").mkdir(parents=True)
    (ours / "lease.json").unlink()
    assert sorted(collect_garbage().directories) == sorted(each.name for each in dead)
    assert ours.exists() and other.exists()


def test_removal_follows_no_link_and_opens_closed_directories_at_any_depth(run_directory: Path) -> None:
    tmp_path = private(run_directory, "removal")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").touch()
    (tree / "a" / "link").symlink_to(outside)
    (tree / "top").symlink_to(outside)
    (tree / "a" / "b").chmod(0)
    (tree / "a").chmod(0)
    deep = "import os\nfor _ in range(1100): os.mkdir('d'); os.mkdir('e'); os.chdir('d')\nos.chmod('.', 0)"
    subprocess.run([sys.executable, "-c", deep], cwd=tree, check=True, timeout=60)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()
    remove_tree(tree)
    remove_tree(tmp_path)


def test_two_processes_may_remove_the_same_tree(tmp_path: Path) -> None:
    for turn in range(20):
        tree = tmp_path / str(turn)
        for number in range(50):
            (tree / str(number % 7)).mkdir(parents=True, exist_ok=True)
            (tree / str(number % 7) / str(number)).touch()
        child = os.fork()
        if child == 0:
            try:
                remove_tree(str(tree))
            except OSError:
                os._exit(1)
            os._exit(0)
        remove_tree(str(tree))
        assert os.waitpid(child, 0)[1] == 0
        assert not tree.exists()


@pytest.mark.campaign
def test_ten_kills_of_servers_pools_clients_and_sandboxes_leave_and_lose_nothing(tmp_path: Path) -> None:
    """A short `make bench-reaping`: its first round, with clients at work."""
    command = [sys.executable, "-m", "benchmarks.reaping", "--kills", "10", "--output", str(tmp_path / "result.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["ratios"]["kills"] >= 10 and result["ratios"]["commands"] > 0
    assert result["ratios"]["kills of server"] > 0 and result["ratios"]["kills of pool"] > 0
    assert {row["median"] for row in result["rows"]} == {0}
