"""Every sandbox of root has a user of its own on the host: what the kernel counts by user, none takes from another."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from swegym_env.cli.doctor import diagnose
from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.paths import run_dir
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.identity import SANDBOX_ID, own_users
from swegym_env.sandbox.linux.users import Users, why_shared
from tests.env.sandbox.conftest import Opener
from tests.env.sandbox.test_reaping import private


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("sandboxes of an ordinary user share that user (run the tests as root)")


def id_on_host(sandbox: Sandbox) -> int:
    """Who a process of a sandbox is, as the host sees it."""
    status = Path("/proc", str(sandbox._shell.pid), "status").read_text()  # type: ignore[attr-defined]
    ids = {name: line.split() for name, _, line in (line.partition(":") for line in status.splitlines())}
    assert len({*ids["Uid"], *ids["Gid"]}) == 1
    return int(ids["Uid"][0])


# Takes of everything all that it gets, or one of each with the argument "one"; prints how many.
TAKE = """
import array, ctypes, fcntl, json, os, resource, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
one = sys.argv[1] == "one"
most = 1 if one else 10_000
resource.setrlimit(resource.RLIMIT_NOFILE, (min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
kept, taken = [], {}
def inotify():
    if libc.inotify_init1(0) < 0: raise OSError
def in_flight():
    pair = socket.socketpair(); kept.append(pair)
    socket.send_fds(pair[0], [b"x"], [0] * 250)
def pipe_pages():
    ends = os.pipe(); kept.append(ends)
    if not one: fcntl.fcntl(ends[0], 1031, 1 << 20)
    elif fcntl.fcntl(ends[0], 1032) < 1 << 16: raise OSError("a pipe of little size")
def signals():
    if libc.sigqueue(os.getpid(), signal.SIGRTMAX - 1, None) < 0: raise OSError
def processes():
    child = os.fork()
    if not child: time.sleep(60); os._exit(0)
    kept.append(child)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMAX - 1])
for take, times in ((signals, 200_000), (in_flight, 200), (pipe_pages, 200), (inotify, most), (processes, most)):
    number = 0
    try:
        while number < (1 if one else times):
            take(); number += 1
    except OSError: pass
    taken[take.__name__] = number
if one: [os.kill(child, 9) for child in kept if isinstance(child, int)]
print(json.dumps(taken), flush=True)
"""


def test_one_sandbox_takes_nothing_from_others_or_root(opened: Opener) -> None:
    limits = Limits(descriptors=12_000)
    *greedy, second = (opened(SandboxSpec(limits=limits)) for _ in range(3))
    for sandbox in (*greedy, second):
        sandbox.write("/tmp/take.py", TAKE.encode())
    for sandbox in greedy:
        sandbox.run("(python3 /tmp/take.py all; sleep 60) > /tmp/taken 2>&1 & sleep 0.1")
        deadline = time.monotonic() + 30
        while not (line := sandbox.read("/tmp/taken").decode()):  # no new process can be started in there
            assert time.monotonic() < deadline
            time.sleep(0.05)
        taken = json.loads(line)
        assert taken["in_flight"] * 250 > 10_000 and taken["pipe_pages"] * 256 > 10_000, taken
        assert taken["inotify"] > 60 and taken["signals"] > 1000 and taken["processes"] > 100, taken
    each = dict.fromkeys(taken, 1)
    assert json.loads(second.run("ulimit -n 1024; python3 /tmp/take.py one").output) == each
    third = opened()
    third.write("/tmp/take.py", TAKE.encode())
    assert json.loads(third.run("ulimit -n 1024; python3 /tmp/take.py one").output) == each
    done = subprocess.run([sys.executable, "-c", TAKE, "one"], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout) == each
    for sandbox in greedy:
        assert sandbox.run("echo alive").output.endswith("alive\n")


def test_each_sandbox_has_an_id_of_its_own_and_the_files_on_disk_have_one(opened: Opener) -> None:
    first, count, on_disk = own_users()
    assert on_disk == SANDBOX_ID
    sandbox, second = opened(), opened()
    sandbox.run("echo text > /testbed/file; mkdir -m 700 /tmp/own")
    forked = sandbox.fork()
    try:
        ids = [id_on_host(each) for each in (sandbox, second, forked)]
        assert len(set(ids)) == 3
        assert all(first <= each < first + count for each in ids)
        for each in (sandbox, second, forked):
            assert each.run("id -u; id -g; stat -c %u:%g /testbed").output == f"{SANDBOX_ID}\n" * 2 + "61000:61000\n"
        for each in (sandbox, forked):
            (change,) = each.changes("/testbed")
            assert change.host_path is not None and change.host_path.stat().st_uid == SANDBOX_ID
            each.write("/tmp/own/written", b"by the owner")
            assert each.run("stat -c %u /tmp/own/written; cat /testbed/file").output == "61000\ntext\n"
            assert each.read("/tmp/own/written") == b"by the owner"
    finally:
        forked.close()


OTHER_OWNER = textwrap.dedent("""
    import sys
    from swegym_env.errors import SwegymError
    from swegym_env.sandbox import SandboxSpec, open_sandbox

    try:
        sandbox = open_sandbox(SandboxSpec(), backend=sys.argv[1])
        sandbox.start()
        print(sandbox.run("echo started").output)
    except SwegymError as error:
        print(error)
""")


def test_the_id_that_files_on_disk_have_is_nobodys_own(tmp_path: Path) -> None:
    users = Users(SANDBOX_ID - 1, 3, SANDBOX_ID, locks=str(tmp_path / "locks"))
    taken = [users.take(), users.take()]
    assert {user.id for user in taken} == {SANDBOX_ID - 1, SANDBOX_ID + 1}
    with pytest.raises(OSError, match="all 3 user ids"):
        users.take()
    for user in taken:
        users.give_back(user)
    users.close()


def test_no_two_sandboxes_of_the_machine_share_an_id(
    backend: str, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever their owners are; an id is free again when its sandbox has ended."""
    monkeypatch.setenv("SWEGYM_RUNDIR", str(private(run_directory, f"ids-{backend}")))
    first = random.SystemRandom().randrange(1 << 20, 1 << 29)  # sandboxes of others have ids of other ranges
    monkeypatch.setenv("SWEGYM_SUBUID", f"{first}:2")
    sandboxes = [open_sandbox(SandboxSpec(), backend=backend) for _ in range(3)]
    for sandbox in sandboxes[:2]:
        sandbox.start()
    assert sorted(map(id_on_host, sandboxes[:2])) == [first, first + 1]
    with pytest.raises(SandboxError, match=rf"all 2 user ids from {first} on are in use. Try: a larger range"):
        sandboxes[2].start()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OTHER_OWNER, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert "are in use" in done.stdout
    environment["SWEGYM_SUBUID"] = f"{first}:3"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "started\n\n"
    sandboxes[0]._live().end()  # type: ignore[attr-defined]
    sandboxes[2].start()
    assert sandboxes[2].run("echo started").output == "started\n"
    for sandbox in sandboxes:
        sandbox.close()


def test_an_id_of_a_dead_process_is_free(tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    child = os.fork()
    if child == 0:
        taken = Users(5, 1, SANDBOX_ID, locks=str(locks)).take()
        os._exit(taken.id)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    users, others = (Users(5, 1, SANDBOX_ID, locks=str(locks)) for _ in range(2))
    user = users.take()
    assert user.id == 5
    for each in (users, others):
        with pytest.raises(OSError, match="are in use"):
            each.take()
    users.give_back(user)
    assert users.take() is user
    users.give_back(user)
    users.close()
    assert others.take().id == 5


@pytest.mark.parametrize("text", ["", "1", "1:", "0:5", "5:0", "a:1", "-1:4", "4294967000:500", "1:2:3"])
def test_a_malformed_range_is_a_configuration_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEGYM_SUBUID", text)
    if not text:
        assert own_users()[1] > 1
        return
    with pytest.raises(ConfigurationError, match="SWEGYM_SUBUID: expected"):
        own_users()


def test_a_file_system_that_cannot_map_ids_has_sandboxes_with_one_user(opened: Opener, public_path: Path) -> None:
    """Here: a layer on /proc, which no kernel maps."""
    assert why_shared(*own_users(), [str(run_dir())]) == ""
    assert why_shared(*own_users(), ["/proc"]).startswith("/proc: ")
    sandbox = opened(SandboxSpec(layers=(Path("/proc/sys/kernel"),)))
    assert id_on_host(sandbox) == SANDBOX_ID
    assert sandbox.run("id -u; touch /testbed/x && echo works").output == "61000\nworks\n"
    sandbox.write("/testbed/y", b"y")
    assert sandbox.read("/testbed/y") == b"y"


def test_users_are_made_beside_other_threads() -> None:
    """In a process of its own, which a child without the lock of its interpreter would keep waiting for ever."""
    program = (
        "import threading\n"
        "from swegym_env.paths import run_dir\n"
        "from swegym_env.sandbox.identity import own_users\n"
        "from swegym_env.sandbox.linux.users import why_shared\n"
        "def work():\n"
        "    while True:\n"
        "        sum(range(2000))\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=work, daemon=True).start()\n"
        "for _ in range(20):\n"
        "    assert why_shared(*own_users(), [str(run_dir())]) == ''\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_names_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEGYM_SUBUID", "70000:50")
    (finding,) = [finding for finding in diagnose() if finding.name == "user ids"]
    assert (finding.ok, finding.detail) == (True, "one for every sandbox, of the 50 from 70000 on")
