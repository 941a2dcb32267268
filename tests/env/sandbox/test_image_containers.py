"""The container of an image: it stays up, sandboxes start on its root, and no death of a process leaves or costs more.

Tests count the containers of their own supervisor only: each has a run directory of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import SandboxError
from swegym_env.sandbox import Sandbox, SandboxSpec, image_container, open_sandbox
from swegym_env.sandbox.apptainer import ApptainerBackend
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.host_image import host_image
from swegym_env.sandbox.linux.processes import descendants
from tests.env.sandbox.conftest import Opener
from tests.env.sandbox.test_reaping import directories, eventually, groups_of, nothing_left
from tests.env.sandbox.test_reaping import sandboxes as remaining

pytestmark = pytest.mark.skipif(
    shutil.which("apptainer") is None, reason="Apptainer is not installed (scripts/install_apptainer.sh)"
)
OWNER = textwrap.dedent("""
    import time
    from swegym_env.sandbox import SandboxSpec, open_sandbox

    sandbox = open_sandbox(SandboxSpec(), backend="apptainer")
    sandbox.start()
    print("sandbox", flush=True)
    time.sleep(1000)
""")


@pytest.fixture
def place(run_directory: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory, and so a supervisor, of this test only."""
    directory = run_directory / f"{abs(hash(request.node.name))}"
    directory.mkdir(mode=0o711)
    monkeypatch.setenv("SWEGYM_RUNDIR", str(directory))
    return directory


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens started sandboxes on Apptainer that are closed with the test."""
    with contextlib.ExitStack() as stack:

        def open_one(spec: SandboxSpec | None = None) -> Sandbox:
            sandbox = open_sandbox(spec or SandboxSpec(), backend="apptainer")
            stack.callback(sandbox.close)
            sandbox.start()
            return sandbox

        yield open_one


def command_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def children(parent: int) -> list[int]:
    return [pid for pid in descendants(parent) if status_of(pid).get("PPid") == str(parent)]


def status_of(pid: int) -> dict[str, str]:
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def containers(parent: int | None = None) -> list[list[int]]:
    """The processes of each container of an image below a supervisor, the first process of each first."""
    trees = [[child, *descendants(child)] for child in children(parent or supervisor().pid)]
    return [tree for tree in trees if any("echo up" in command_of(pid) for pid in tree)]


def runtimes() -> list[int]:
    """The processes of Apptainer itself below this process's supervisor."""
    return [pid for pid in descendants(supervisor().pid) if command_of(pid).startswith("Apptainer ")]


def test_one_container_serves_all_sandboxes_of_an_image_and_stays_up(opened: Opener, place: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        sandboxes = list(threads.map(lambda _: opened(), range(8)))
    (container,) = containers()
    for number, sandbox in enumerate(sandboxes):
        assert sandbox.run(f"echo {number} >file; sleep 0.01; cat file").output == f"{number}\n"
        sandbox.close()
    assert eventually(lambda: remaining(place) == [])
    opened()
    assert [tree[0] for tree in containers()] == [container[0]]
    assert set(runtimes()) < set(container)


def test_sandboxes_of_two_images_start_at_once_each_on_its_own(opened: Opener, place: Path, root: Path) -> None:
    specs = [SandboxSpec(image="host"), SandboxSpec(image=str(root))] * 4
    with ThreadPoolExecutor(8) as threads:
        sandboxes = list(threads.map(opened, specs))
    answers = [
        sandbox.run("echo ${FROM_IMAGE-none}; ls -d /usr/lib/apt").output.split("\n")[0] for sandbox in sandboxes
    ]
    assert answers == ["none", "given by the image"] * 4
    assert len(containers()) == 2


def test_least_recently_used_container_ends_and_its_image_is_still_usable(
    opened: Opener, place: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_container, "_MOST", 1)
    first = opened()
    ((one, *_),) = containers()
    second = opened(SandboxSpec(image=str(root)))
    assert eventually(lambda: len(containers()) == 1)
    assert containers()[0][0] != one
    assert [each.run("echo alive").output for each in (first, second, opened())] == ["alive\n"] * 3


def test_roots_of_images_that_were_not_needed_for_long_are_removed(
    opened: Opener, place: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_container, "_MOST_ROOTS", 1)
    specs = [SandboxSpec(), SandboxSpec(image=str(root))] * 3
    sandboxes = [opened(spec) for spec in specs]
    assert eventually(lambda: len(directories(place)) == len(sandboxes) + 1)
    mounts = Path("/proc", str(supervisor().pid), "mountinfo").read_text()
    assert mounts.count("-container/image ") == len(containers()) == 1
    assert [each.run("ls /bin/cat").output for each in sandboxes] == ["/bin/cat\n"] * len(sandboxes)


def test_an_image_that_was_removed_and_made_again_is_another_one(
    opened: Opener, place: Path, root: Path, public_path: Path
) -> None:
    image = public_path / "image"
    for word in ("first", "second"):
        shutil.copytree(root, image, symlinks=True)
        (image / "word").write_text(word)
        assert opened(SandboxSpec(image=str(image))).run("cat /word").output == word
        shutil.rmtree(image)


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first process", "Apptainer", "program"])
def test_a_killed_container_costs_no_sandbox_and_is_replaced(opened: Opener, place: Path, which: int) -> None:
    sandbox = opened()
    sandbox.run("x=kept; echo kept >file")
    (container,) = containers()
    os.kill(container[which], signal.SIGKILL)
    assert eventually(lambda: not any(command_of(pid) for pid in container))  # its program ends before the runtime
    assert sandbox.run("cat file; echo $x; ls /bin/cat").output == "kept\nkept\n/bin/cat\n"
    other = opened()
    assert other.run("ls /bin/cat").output == "/bin/cat\n"
    (again,) = containers()
    assert set(again).isdisjoint(container)
    sandbox.run("exit")
    assert sandbox.run("cat file").output == "kept\n"  # the next shell starts on the new container's root


def test_sandboxes_start_while_containers_are_killed(opened: Opener, place: Path) -> None:
    opened()

    def start() -> str:
        return opened().run("echo alive").output

    with ThreadPoolExecutor(4) as threads:
        answers = [threads.submit(start) for _ in range(12)]
        for _ in range(4):
            wait_until(lambda: bool(containers()) or all(one.done() for one in answers), 10, every_s=0.005)
            for tree in containers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(tree[-1], signal.SIGKILL)
    assert [one.result() for one in answers] == ["alive\n"] * 12


def test_the_next_container_waits_until_the_last_one_was_waited_for(
    opened: Opener, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its owner sees it end first, and the two have one name."""
    sandboxes = [opened()]
    for _ in range(8):
        (container,) = containers()
        for pid in container[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while not [tree for tree in containers() if tree[0] != container[0]]:  # it may not have been seen to end yet
            sandboxes.append(opened())
        assert eventually(lambda: len(containers()) == 1)
    assert all(sandbox.run("echo alive").output == "alive\n" for sandbox in sandboxes)
    assert len([name for name in groups_of({os.getpid()}) if (place / name).exists()]) == len(sandboxes) + 1
    assert "was not handled" not in capfd.readouterr().err


def test_a_killed_supervisor_ends_the_container_and_breaks_its_sandboxes_only(opened: Opener, place: Path) -> None:
    sandbox = opened()
    before = supervisor().pid
    (container,) = containers()
    os.kill(before, signal.SIGKILL)
    with pytest.raises(SandboxError, match=r"supervisor died|supervisor .* is gone"):
        sandbox.run("sleep 5")
    assert eventually(lambda: not any("echo up" in command_of(pid) for pid in container))
    assert eventually(lambda: not any(command_of(pid) for pid in container))
    assert opened().run("echo alive").output == "alive\n"
    assert supervisor().pid != before and len(containers()) == 1


@pytest.mark.parametrize("also", ["owner alone", "container"])
def test_an_owner_killed_leaves_nothing_of_its_container(place: Path, also: str) -> None:
    command = [sys.executable, "-c", OWNER]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "sandbox\n"
        (its_supervisor,) = children(owner.pid)
        (container,) = containers(its_supervisor)
        assert any(name.endswith("container") for name in directories(place))
        below = descendants(owner.pid)
        if also == "container":
            os.kill(container[0], signal.SIGKILL)
        owner.kill()
    assert eventually(lambda: nothing_left(place)), directories(place)
    assert eventually(lambda: not any(command_of(pid) for pid in below))
    assert eventually(lambda: groups_of([owner.pid]) == [])


def test_the_container_itself_has_no_rights_no_network_and_cannot_write_the_image(
    opened: Opener, place: Path, root: Path
) -> None:
    opened()  # the first sandbox of a process also tries a container of the host's files
    (hosts,) = containers()
    opened(SandboxSpec(image=str(root)))
    (container,) = (tree for tree in containers() if tree[0] != hosts[0])
    status = status_of(container[-1])
    assert status["CapEff"] == "0" * 16 and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert status["Uid"].split()[0] != "0"
    network = Path("/proc", str(container[-1]), "net", "dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in network] == ["lo"]
    mounts = [line.split() for line in Path("/proc", str(container[-1]), "mountinfo").read_text().splitlines()]
    (options,) = [fields[5] for fields in mounts if fields[4] == "/"]
    assert "ro" in options.split(",")
    assert not [fields for fields in mounts if fields[4].startswith(str(place))]


def test_only_the_root_of_a_living_container_of_that_image_is_attached(opened: Opener, place: Path, root: Path) -> None:
    opened()
    (name,) = [name for name in directories(place) if name.endswith("container")]
    attach = {"do": "attach", "id": name, "image": str(root), "path": str(place / name / "empty")}
    assert supervisor().ask(attach) == "error [Errno 116] the root of its container is not the image"
    assert supervisor().ask({**attach, "image": str(host_image())}) == "attached"
    assert supervisor().ask({**attach, "id": "no-such-container"}) == "error [Errno 3] it has ended"


def test_what_a_sandbox_leaves_is_in_no_other_one(opened: Opener, place: Path) -> None:
    first, beside = opened(), opened()
    listen = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'left'); time.sleep(1000)"
    done = first.run(
        "echo x >/tmp/left; echo x >/var/tmp/left; echo x >/dev/shm/left; echo x >~/left; echo x >/testbed/left; "
        f'ipcmk -Q && ipcmk -M 64 && ipcmk -S 1; sleep 1234 & python3 -c "{listen}" & '
        "until grep -q left /proc/net/unix; do :; done; ls /tmp/left /dev/shm/left; ipcs | grep -c ^0x"
    )
    assert done.output.endswith("/dev/shm/left\n/tmp/left\n3\n"), done.output
    look = (
        "ls -A /tmp /var/tmp /dev/shm ~ /testbed | grep -c left; ipcs | grep -c ^0x; grep -c left /proc/net/unix; "
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 123[4]'; ls -d /proc/[0-9]* | wc -l"
    )
    quiet = [beside.run(look).output]
    first.close()
    quiet.append(opened().run(look).output)
    for found in quiet:
        assert found.split()[:4] == ["0"] * 4 and int(found.split()[4]) < 10, found


def test_without_containers_each_sandbox_is_one_exec(
    opened: Opener, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEGYM_WITHOUT", "container")
    sandbox = opened()
    assert sandbox.run("echo alive; sleep 0.01").output == "alive\n"
    assert containers() == []
    assert len(runtimes()) == 1
    assert "switched off by SWEGYM_WITHOUT=container" in ApptainerBackend("apptainer").manner()


def refusing(directory: Path, monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    """Put an Apptainer on PATH that refuses to keep a container up where a condition of the shell holds."""
    program = directory / "apptainer"
    refusal = f'case "$*" in *"echo up"*) {condition} && {{ echo "FATAL: not on this site" >&2; exit 255; }}; esac'
    program.write_text(f'#!/bin/sh\n{refusal}\nexec {shutil.which("apptainer")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_where_no_container_stays_up_each_sandbox_is_one_exec(
    opened: Opener, place: Path, public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(public_path, monkeypatch, "true")
    assert opened().run("echo alive; sleep 0.01").output == "alive\n"
    assert "FATAL: not on this site" in ApptainerBackend("apptainer").manner()
    assert ApptainerBackend("apptainer").problem() == ""


def test_an_image_whose_container_does_not_start_is_run_by_one_exec_each_with_a_warning(
    opened: Opener, place: Path, public_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(public_path, monkeypatch, f'[ -e "{public_path}/refuse" ]')
    opened()
    (public_path / "refuse").touch()
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="FATAL: not on this site"):
            sandbox = opened(SandboxSpec(image=str(root)))
        assert sandbox.run("echo $FROM_IMAGE; sleep 0.01").output.startswith("given by the image\n")
    assert len(containers()) == 1


def test_a_process_that_is_ending_says_so_and_starts_no_sandbox_in_another_way(run_directory: Path) -> None:
    program = textwrap.dedent("""
        from swegym_env.errors import SandboxError
        from swegym_env.sandbox import SandboxSpec, open_sandbox
        from swegym_env.sandbox.client import end_all

        sandbox = open_sandbox(SandboxSpec(), backend="apptainer")
        end_all()
        try:
            sandbox.start()
        except SandboxError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "this process is ending its sandboxes and starts no others" in done.stdout
    assert done.stderr == ""
