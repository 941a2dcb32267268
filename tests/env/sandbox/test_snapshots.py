"""Snapshots and forks: what they contain, and that copies are independent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import SandboxError
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec
from tests.env.sandbox.conftest import Opener
from tests.env.sandbox.test_files import BASE, make_layer

STATE = "mkdir -p deep; cd deep; x='a b'; declare -A m=([k]=v); f() { echo f; }; export E=e; echo 1 > file"
ASK = 'pwd; echo "$x" ${m[k]} $E; f; cat file'
ANSWER = "/testbed/deep\na b v e\nf\n1\n"


def test_restore_recovers_files_directory_and_variables(sandbox: Sandbox) -> None:
    sandbox.run(STATE)
    snapshot = sandbox.snapshot()
    for _ in range(2):
        sandbox.run("echo 2 > file; rm -rf /testbed/deep; cd /; unset x m f; echo junk > /tmp/junk")
        sandbox.restore(snapshot)
        assert sandbox.run(ASK).output == ANSWER
        assert sandbox.run("ls /tmp").output == ""
    snapshot.discard()


@pytest.mark.parametrize(
    ("command", "ask", "answer"),
    [
        ("x=1; set -o noclobber", 'echo "$x"', "1\n"),
        ("umask 027", "umask", "0027\n"),
        ('shopt -s extglob\nx=1; f() { [ -z "${1##+([0-9])}" ] && case $1 in !(2)) echo f; esac; }', "f 1", "f\n"),
        ("declare() { :; }; alias() { :; }; x=1", 'echo "$x"', "1\n"),
        ("cd /usr; cd /etc", "cd -; pwd", "/usr\n/usr\n"),
        ("set -o pipefail -f", "false | true; echo $? *", "1 *\n"),
        ("x=1; set -eut", 'false; echo "$x$unset"', "1\n"),  # these would end the new shell
    ],
)
def test_restore_recovers_the_shell_of_unusual_options_and_functions(
    sandbox: Sandbox, command: str, ask: str, answer: str
) -> None:
    sandbox.run("x=0")
    sandbox.fork().close()  # has saved a state
    sandbox.run(command)
    for _ in range(2):
        snapshot = sandbox.snapshot()
        sandbox.run("unset x; cd /")
        sandbox.restore(snapshot)
        snapshot.discard()
        other = sandbox.fork()
        try:
            assert other.run(ask).output == answer
        finally:
            other.close()


def test_a_fork_is_independent_both_ways(sandbox: Sandbox) -> None:
    sandbox.run(STATE)
    other = sandbox.fork()
    try:
        assert other.run(ASK).output == ANSWER
        other.run("echo other > file; x=other; cd /")
        assert sandbox.run(ASK).output == ANSWER
        sandbox.run("rm -r /testbed/deep")
        assert other.run("cat /testbed/deep/file; echo $x").output == "other\nother\n"
        sandbox.close()
        assert other.run("echo alive").output == "alive\n"
    finally:
        other.close()


def test_deletions_survive_a_fork(opened: Opener, public_path: Path) -> None:
    layer = make_layer(public_path / "layer", BASE)
    sandbox = opened(SandboxSpec(layers=(layer,)))
    sandbox.run("rm -r d e/only; mkdir d; echo new > d/x; chmod 000 run.sh; ln -s nowhere link")
    changes = [(change.path, change.kind) for change in sandbox.changes("/testbed")]
    other = sandbox.fork()
    try:
        assert [(change.path, change.kind) for change in other.changes("/testbed")] == changes
        assert ("e/only", "deleted") in changes and ("d/sub", "deleted") in changes
        assert (
            other.run("find . -path ./.git -prune -o -print | sort").output
            == ".\n./a.txt\n./d\n./d/x\n./e\n./link\n./run.sh\n"
        )
    finally:
        other.close()


def test_a_fork_is_consistent_while_a_background_job_writes(sandbox: Sandbox) -> None:
    sandbox.run("mkdir fill; for i in $(seq 500); do echo > fill/$i; done")
    sandbox.run("touch a z; while :; do echo >> a; echo >> z; done &")
    for _ in range(3):
        other = sandbox.fork()
        first, last = other.run("echo $(wc -l < a) $(wc -l < z)").output.split()
        assert int(last) in (int(first), int(first) - 1)
        other.close()
    assert sandbox.run("jobs -rp | wc -l").output == "1\n"


RENAMES = """
import os, time
end = time.time() + 20
for number in range({chains}):
    if os.fork() == 0:
        os.setsid()
        while time.time() < end:
            if {forks} and os.fork():
                os._exit(0)
            name = f"/testbed/{{number}}-{{time.time_ns() % 7}}"
            try:
                os.mkdir(name); open(name + "/x", "w").close(); os.rename(name, name + "b")
                os.unlink(name + "b/x"); os.rmdir(name + "b")
            except OSError:
                pass
        os._exit(0)
"""
# In the place of bash: it starts other processes and then becomes bash.
NOT_BASH = f"#!/usr/bin/python3\n{RENAMES.format(chains=5, forks=False)}\nos.execv('/usr/bin/bash', ['/bin/bash'])\n"
REPLACE_BASH = "rm /bin; mkdir /bin; ln -s /usr/bin/* /bin/; rm /bin/bash; cp /tmp/not-bash /bin/bash; exit"


@pytest.mark.parametrize("chains", [1, 12])
def test_processes_that_start_others_change_nothing_during_a_copy(sandbox: Sandbox, chains: int) -> None:
    sandbox.write("/tmp/renames.py", RENAMES.format(chains=chains, forks=True).encode())
    sandbox.run("python3 /tmp/renames.py")
    for _ in range(3):
        sandbox.snapshot().discard()
        sandbox.fork().close()
    assert sandbox.run("echo alive").output == "alive\n"


def test_what_a_replaced_bash_starts_is_stopped_during_a_copy(sandbox: Sandbox) -> None:
    sandbox.write("/tmp/not-bash", NOT_BASH.encode(), mode=0o755)
    sandbox.run(REPLACE_BASH)
    assert sandbox.run("head -1 /bin/bash").output == "#!/usr/bin/python3\n"
    for _ in range(6):
        sandbox.snapshot().discard()


def test_a_snapshot_of_another_sandbox_is_rejected(opened: Opener) -> None:
    one, two = opened(), opened(SandboxSpec(workdir="/tmp"))
    snapshot = one.snapshot()
    with pytest.raises(SandboxError, match="another sandbox"):
        two.restore(snapshot)
    assert two.run("pwd").output == "/tmp\n"
    snapshot.discard()


MINE = "/testbed/mine/file"
MANY = "mkdir /testbed/many; for ((i = 0; i < 300; i++)); do echo $i > /testbed/many/$i; done"


def _sandboxes_of(directory: Path) -> int:
    return len(list(directory.glob(f"{os.getpid()}-*-sandbox")))


def test_a_fork_with_many_files_shares_them_and_is_independent_both_ways(sandbox: Sandbox, run_directory: Path) -> None:
    others = []
    before = _sandboxes_of(run_directory)
    try:
        sandbox.run(f"{STATE}; {MANY}; umask 077; mkdir -m 700 /testbed/mine; echo mine > /testbed/mine/file")
        for number in range(3):
            others.append((others[-1] if number == 2 else sandbox).fork())
            assert others[-1].run(ASK).output == ANSWER
            others[-1].run(f"echo {number} > file; echo {number} > /testbed/many/7; rm /testbed/many/8; cat {MINE}")
        assert sandbox.run(ASK).output == ANSWER
        sandbox.run("rm -r /testbed/many; mkdir /testbed/many; echo parent > /testbed/many/7")
        assert sandbox.run("ls /testbed/many").output == "7\n"
        sandbox.close()
        for number, other in enumerate(others):
            assert other.run(f"cat file /testbed/many/7 {MINE}; ls /testbed/many | wc -l").output == (
                f"{number}\n{number}\nmine\n299\n"
            )
            other.run("rm -rf /testbed/many")
            other.close()
    finally:
        for other in others:
            other.close()
    assert wait_until(lambda: _sandboxes_of(run_directory) == before - 1, 30.0)


def test_a_snapshot_of_many_files_outlives_its_sandbox_and_is_restored_often(
    sandbox: Sandbox, run_directory: Path
) -> None:
    before = _sandboxes_of(run_directory)
    sandbox.run(f"{STATE}; {MANY}")
    snapshot = sandbox.snapshot()
    for _ in range(3):
        sandbox.run("rm -r /testbed/many; echo junk > /tmp/junk; cd /; unset x")
        sandbox.restore(snapshot)
        assert sandbox.run(ASK).output == ANSWER
        assert sandbox.run("ls /tmp; ls /testbed/many | wc -l").output == "300\n"
    other = sandbox.fork()
    try:
        sandbox.close()
        assert other.run("rm -r /testbed/many; echo gone").output == "gone\n"
        other.restore(snapshot)
        assert other.run("ls /testbed/many | wc -l").output == "300\n"
        snapshot.discard()
        snapshot.discard()
        assert other.run("ls /testbed/many | wc -l").output == "300\n"
    finally:
        other.close()
    assert wait_until(lambda: _sandboxes_of(run_directory) == before - 1, 30.0)


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /.swegym; ln -s /etc /.swegym",
        "rm -rf /.swegym; echo file > /.swegym",
        "chmod 000 /.swegym",
        "rm -rf /.swegym/*; mkfifo /.swegym/state; ln -s /etc/passwd /.swegym/submitted",
    ],
)
def test_a_fork_works_whatever_the_agent_did_to_the_place_of_its_state(sandbox: Sandbox, command: str) -> None:
    sandbox.run(f"{MANY}; {command}")
    other = sandbox.fork()
    try:
        for one in (other, sandbox):
            assert one.run("ls /testbed/many | wc -l; echo 1 > /testbed/new; cat /testbed/new").output == "300\n1\n"
    finally:
        other.close()


def test_forks_that_share_layers_are_limited_as_one(opened: Opener) -> None:
    limits = Limits(disk_bytes=8 << 20, inodes=1000)
    sandbox = opened(SandboxSpec(limits=limits))
    sandbox.run(f"mkdir -p /testbed; cd /testbed; {MANY}; head -c 2M /dev/zero > two")
    other = sandbox.fork()
    try:
        result = other.run("head -c 8M /dev/zero > eight; wc -c < eight")
        assert result.limit == "disk" and 4 << 20 < int(result.output.split()[-1]) < 6 << 20
        assert other.run("rm eight; for ((i = 0; i < 1000; i++)); do : > $i; done").limit == "disk"
        assert 400 < int(other.run("ls /testbed | wc -l").output) < 700
    finally:
        other.close()


@pytest.mark.parametrize("files", [0, 300])
def test_a_discarded_snapshot_is_rejected_and_ends_no_shell(sandbox: Sandbox, files: int) -> None:
    sandbox.run(f"for ((i = 0; i < {files}; i++)); do echo $i > $i; done")
    snapshot = sandbox.snapshot()
    snapshot.discard()
    shell = sandbox.run("echo $$").output
    with pytest.raises(SandboxError, match="discarded"):
        sandbox.restore(snapshot)
    assert sandbox.run("echo $$").output == shell
