"""Control groups: a sandbox is in its own before any program runs in it, and its start waits for no other process."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.sandbox import Sandbox
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.leases import owner_prefix
from swegym_env.sandbox.linux import kernel
from swegym_env.sandbox.linux.cgroups import Group, existing_groups, make_group
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.sandbox.linux.usage import _Share
from tests.env.sandbox.conftest import Opener

# What clones has one thread and no library that minds, as the supervisor.
_PROGRAM = """
import os, sys
sys.path.append(sys.argv.pop(1))
from linux.cgroups import Group, enter
from linux.container import clone_into

def children(clone):
    go_on, step = os.pipe()
    answer, done = os.pipe()
    child, inside = clone()
    if child == 0:
        os.close(step)
        entered = enter(threads)
        grandchild = os.fork()
        if grandchild:
            os.write(done, f"{int(entered)} {grandchild}".encode())
        os.read(go_on, 1)
        os._exit(0)
    entered, grandchild = map(int, os.read(answer, 64).split())
    print(int(inside), entered, child, grandchild, flush=True)
    sys.stdin.read()
    os.close(step)
    os.waitpid(child, 0)

"""


@pytest.fixture
def group() -> Iterator[Group]:
    """With the controllers that this user can use; on some machines none."""
    made = make_group(f"{os.getpid()}-test", 1 << 30, 64, 1.0)
    yield made
    made.remove()


@pytest.fixture
def unified() -> Iterator[Group]:
    """A group of version 2, which needs no controller; without a directory where this user can make none."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file if " - cgroup2 " in line]
    directories = {}
    for point in points[:1]:
        with contextlib.suppress(OSError):
            os.mkdir(directory := f"{point}/swegym-{os.getpid()}-test")
            directories[""] = directory
    made = Group(directories)
    yield made
    made.remove()


def _members_while_running(group: Group, program: str, *arguments: str) -> tuple[bool, bool, set[int], set[int]]:
    """Whether a child was born in the group; whether it entered it; it and its child; the members of the group."""
    package = str(Path(kernel.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM + program, package, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            inside, entered, *started = map(int, process.stdout.readline().split())
            return bool(inside), bool(entered), set(started), set(group.members())
        finally:
            process.stdin.close()


def test_a_process_enters_by_itself_and_what_it_starts_is_born_there(group: Group) -> None:
    program = "threads, place = Group(dict(enumerate(sys.argv[1:]))).entrances()\n"
    program += "children(lambda: clone_into(os.geteuid(), 0, place))"
    inside, entered, started, members = _members_while_running(group, program, *group.directories.values())
    assert inside and entered
    assert members == (started if group.directories else set())


def test_a_process_is_born_in_a_group_of_version_2(unified: Group) -> None:
    """Where this process is root, its user namespace is charged to another user, who may not write there."""
    user = 61000 if kernel.can_charge_others() else os.geteuid()
    program = "threads, place = Group(dict(enumerate(sys.argv[1:]))).entrances()\n"
    program += f"children(lambda: clone_into({user}, 0, place))"
    inside, entered, started, members = _members_while_running(unified, program, *unified.directories.values())
    assert inside and entered
    assert members == (started if unified.directories else set())


def test_if_the_kernel_refuses_the_process_starts_outside_of_the_group(tmp_path: Path, group: Group) -> None:
    """An older kernel or a filter of system calls may refuse; then the supervisor adds the process to the group."""
    program = "threads, place = Group({'': sys.argv[1]}).entrances()\n"  # a directory that is no control group
    program += "children(lambda: clone_into(os.geteuid(), 0, place))"
    inside, _, started, members = _members_while_running(group, program, str(tmp_path))
    assert not inside
    assert not members
    assert len(started) == 2


def test_a_process_notices_that_its_group_is_gone(group: Group) -> None:
    program = "place, directories = None, sys.argv[1:]\nthreads = Group(dict(enumerate(directories))).entrances()[0]\n"
    program += "[os.rmdir(directory) for directory in set(directories)]\n"
    program += "children(lambda: (os.fork(), True))"
    _, entered, started, _ = _members_while_running(group, program, *group.directories.values())
    assert len(started) == 2  # it starts children all the same
    if any(os.path.exists(f"{Path(directory).parent}/tasks") for directory in group.directories.values()):
        assert not entered  # of version 2 nothing is entered


def test_every_process_of_a_sandbox_is_in_all_its_groups(sandbox: Sandbox, group: Group) -> None:
    marker = _start_marker(sandbox)
    if group.directories:
        own = _group_of(marker)
        top = next(one for one in descendants(supervisor().pid) if marker in descendants(one))  # parents come first
        for directory in own.directories.values():
            members = Group({"": directory}).members
            assert wait_until(lambda: set(members()) == {top, *descendants(top)}, 60)  # noqa: B023 - at once
    inside = sandbox.run("cat /proc/self/cgroup").output
    assert "swegym" not in inside  # its own group is the root of those that it sees


def _start_marker(sandbox: Sandbox) -> int:
    """The process id on the host of a new process in a sandbox, by an argument that no other one has."""
    seconds = f"{random.SystemRandom().randrange(10**6, 10**9)}"
    assert sandbox.run(f"sleep {seconds} &").exit_code == 0
    found: list[int] = []

    def find() -> bool:
        for pid in descendants(supervisor().pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                    found.append(pid)
        return bool(found)

    assert wait_until(find, 60)
    return found[0]


def _group_of(pid: int) -> Group:
    """The group of the sandbox of this process that a process is in."""
    mine = [group for name, group in existing_groups().items() if name.startswith(owner_prefix())]
    [found] = [group for group in mine if pid in group.members()]
    return found


def _weight(directory: Path | str) -> int:
    [file] = [file for name in ("cpu.weight", "cpu.shares") if (file := Path(directory, name)).exists()]
    return int(file.read_text())


def test_a_group_stands_back_and_takes_its_place_again(group: Group) -> None:
    if "cpu" not in group.directories:
        group.stand_back(True)  # does nothing
        return
    usual = _weight(group.directories["cpu"])
    group.stand_back(True)
    assert _weight(group.directories["cpu"]) == usual // 10
    group.stand_back(False)
    assert _weight(group.directories["cpu"]) == usual


def test_a_group_that_keeps_a_processor_busy_stands_back_until_it_gets_little(tmp_path: Path) -> None:
    """The test writes the files of the group itself, with impossibly high and low processor times."""
    used_s = 0.0

    def written_after(more_s: float) -> str:
        nonlocal used_s
        used_s += more_s
        (tmp_path / "cpu.stat").write_text(f"usage_usec {used_s * 1e6:.0f}\n")
        (tmp_path / "cpu.weight").write_text("   ")
        time.sleep(0.15)
        share.adapt()
        return (tmp_path / "cpu.weight").read_text().strip()

    share = _Share(Group({"cpu": str(tmp_path)}))
    assert written_after(1e6) == ""  # what it used before the first look says nothing
    assert written_after(0.0) == ""
    assert written_after(1e6) == "10"
    assert written_after(1e6) == ""
    assert written_after(0.0) == "100"
    assert written_after(0.0) == ""


def test_a_busy_sandbox_stands_back_for_the_others_and_a_quiet_one_does_not(opened: Opener, group: Group) -> None:
    quiet, busy = opened(), opened()
    if "cpu" not in group.directories:  # this user can make no such groups, and nobody stands back
        return
    other, directory = (_group_of(_start_marker(one)).directories["cpu"] for one in (quiet, busy))
    usual = _weight(directory)
    for file, most in (("cpu.weight", 10000), ("cpu.shares", 1 << 18)):
        if (place := Path(directory, file)).exists():
            place.write_text(str(most))  # it gets a processor, whatever else this machine does
    assert busy.run("for i in {1..8}; do (while :; do :; done) & done").exit_code == 0
    assert wait_until(lambda: _weight(directory) < usual, 60)
    assert _weight(other) == usual
    busy.run("kill $(jobs -p); wait")
    assert wait_until(lambda: _weight(directory) == usual, 60)
    assert quiet.run("echo 1").output == "1\n"
