"""What a hostile agent might run. After each command the host is unchanged, no secret was read, and the next command
answers.

Commands share a sandbox for each back end, so each runs in what the ones before it left. A third of this file is their
list, which is why it is long.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.neighbours import HOSTILE, measure
from benchmarks.waiting import wait_until
from swegym_env.repo.capture import capture_patch
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.identity import sandbox_user
from swegym_env.sandbox.linux.processes import descendants
from tests.env.sandbox.conftest import LOCAL_BACKENDS, Opener, missing

SECRET = "hunter2-7f3a"
QUICK = ("fork bomb", "deep tree")
LIMITS = Limits(
    turn_timeout_s=2,
    memory_bytes=300 << 20,
    processes=120,
    file_size_bytes=6 << 30,
    disk_bytes=48 << 20,
    inodes=4000,
    output_bytes=1 << 16,
)


@dataclass(frozen=True)
class Host:
    """The parts of the host that could be read or changed."""

    secrets: Path  # readable and writable by everybody
    bystander: subprocess.Popen[bytes]  # a process of the sandbox's own user id
    writable: Path

    def state(self) -> list[object]:
        files = [
            (str(path), path.lstat().st_mode, path.lstat().st_uid, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in sorted(self.secrets.rglob("*"))
            if path.is_file()
        ]
        kernel = [
            Path("/proc/sys", name).read_text() for name in ("kernel/hostname", "kernel/core_pattern", "vm/swappiness")
        ]
        return [
            files,
            kernel,
            sorted(os.listdir("/")),
            sorted(path.name for path in self.writable.iterdir()),
            Path("/etc/passwd").stat().st_mtime_ns,
            self.mount_points(),
            self.bystander.poll(),
        ]

    def mount_points(self) -> list[str]:
        """Where something is mounted, but for the directories of other tests."""
        points = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        own, temporary = self.secrets.parent, tempfile.gettempdir()
        return sorted(str(path) for path in points if not path.is_relative_to(temporary) or path.is_relative_to(own))


@pytest.fixture(scope="module")
def host(public_parent: Path) -> Iterator[Host]:
    secrets = public_parent / "secrets"
    (secrets / "home").mkdir(parents=True)
    for name in ("token", "home/.netrc"):
        (secrets / name).write_text(SECRET)
        (secrets / name).chmod(0o666)
    writable = public_parent / "writable"
    writable.mkdir()
    for directory in (secrets, secrets / "home", writable):
        directory.chmod(0o777)
    uid, gid = sandbox_user()
    as_user = {"user": uid, "group": gid, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {"TOKEN": SECRET, "PATH": os.defpath}
    bystander = subprocess.Popen(["/bin/sleep", "600"], env=environment, cwd="/", **as_user)  # type: ignore[call-overload]
    os.environ["TOKEN_OF_THE_OWNER"] = SECRET
    yield Host(secrets, bystander, writable)
    del os.environ["TOKEN_OF_THE_OWNER"]
    bystander.kill()
    bystander.wait()


@pytest.fixture(scope="module", params=LOCAL_BACKENDS)
def shared(request: pytest.FixtureRequest, run_directory: Path) -> Iterator[Sandbox]:
    name = str(request.param)
    if lack := missing(name):
        pytest.skip(lack)
    sandbox = open_sandbox(SandboxSpec(limits=LIMITS), backend=name)
    sandbox.start()
    yield sandbox
    sandbox.close()


# Commands in which SECRETS stands for the directory of the host's secrets, WRITABLE for one that everybody may write,
# PID for the bystander's process id and OWNER for the owner's.
FAILING = {
    # the host's files
    "read a secret": "cat SECRETS/token",
    "through process 1": "cat /proc/1/root/SECRETS/token || ls /proc/1/root/SECRETS",
    "through the owner": "cat /proc/OWNER/root/etc/shadow /proc/OWNER/environ",
    "through a link": "ln -s SECRETS/token /tmp/l && cat /tmp/l",
    "through dots": "cat ../../../../../../../../SECRETS/token",
    "a link to etc": "ln -sfn /etc /testbed/e && grep root: /testbed/e/shadow",
    "a hard link": "ln SECRETS/token /testbed/hard || ln /proc/1/root/SECRETS/token /testbed/hard",
    "the shadow file": "grep root: /etc/shadow",
    "the home of root": "ls /root/.ssh || cat /root/.bash_history",
    "a write to the host": "echo x > WRITABLE/x",
    "programs of the host": "echo x > /usr/bin/ls || rm -f /usr/bin/true",
    "by a handle": "python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); "
    'exit(0 if c.open_by_handle_at(3, b"x" * 64, 0) >= 0 else 1)\'',
    "an old root": "cd /proc/1/cwd/../../../../../../../.. && cat SECRETS/token",
    "descriptors of the shell": "ls -l /proc/$$/fd | grep -q /dev/shm",
    # the kernel
    "sysctl": "echo 0 > /proc/sys/vm/swappiness",
    "core pattern": "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
    "hostname": "hostname evil || echo evil > /proc/sys/kernel/hostname",
    "sysrq": "echo c > /proc/sysrq-trigger",
    "power": "echo mem > /sys/power/state",
    "a kernel parameter in sys": "echo 1 > /sys/kernel/mm/ksm/run",
    "the oom score of the owner": "echo -1000 > /proc/OWNER/oom_score_adj",
    "kernel memory": "head -c 1 /dev/mem || head -c 1 /dev/kmem || head -c 1 /proc/kcore",
    "kernel messages": "dmesg || head -c 1 /dev/kmsg",
    "a kernel module": "insmod /tmp/x.ko || modprobe dummy",
    "time": "date -s 2001-01-01",
    "reboot": "python3 -c 'import ctypes; exit(0 if ctypes.CDLL(None).reboot(0x1234567) == 0 else 1)'",
    # rights
    "mount": "mount -t tmpfs none /mnt",
    "bind mount": "mount --bind / /mnt",
    "umount": "umount /proc || umount -l /",
    "user namespace": "unshare -Ur true",
    "mount namespace": "unshare -m true",
    "chroot": "chroot / true",
    "pivot": 'python3 -c \'import ctypes; exit(0 if ctypes.CDLL(None).syscall(155, b".", b".") == 0 else 1)\'',
    "device node": "mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda",
    "memory device": "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
    "set-user-id": "cp /bin/bash /tmp/b && chmod 4755 /tmp/b && chown root /tmp/b && /tmp/b -p -c 'id -u' | grep -qx 0",
    "su": "true | su -c true",
    "sudo": "sudo -n true",
    "enter the host": "nsenter -t 1 -m -u -n -p cat SECRETS/token",
    "capabilities": "capsh --caps=cap_sys_admin+ep -- -c true",
    "become root": "python3 -c 'import os; os.setuid(0)'",
    "raise a limit": "ulimit -u 100000",
    "priority": "nice -n -20 true 2>&1 | grep -q annot && false",
    # processes of others
    "kill the bystander": "kill -9 PID",
    "kill the owner": "kill -9 OWNER",
    "ptrace of the owner": "python3 -c 'import ctypes; exit(ctypes.CDLL(None).ptrace(16, OWNER, 0, 0) != 0)'",
    "memory of the owner": "head -c 1 /proc/OWNER/mem",
    "a descriptor of the shell's": "python3 -c 'import os; os.open(\"/proc/1/fd/0\", 0)'",
    "the memory of process 1": "head -c 1 /proc/1/maps || head -c 1 /proc/1/mem || readlink /proc/1/exe",
    "trace all but the shell": "python3 -c 'import ctypes, os; p = ctypes.CDLL(None).ptrace\n"
    "exit(not any(p(16, n, 0, 0) == 0 for n in range(1, 40) if n not in (os.getpid(), os.getppid())))'",
    "files of the devices": "touch /dev/null || chmod 600 /dev/null || rm -f /dev/null",
    "another device": "mknod /dev/x c 1 3 || mknod /testbed/w c 0 0",
    "pressure of the machine": "echo 'some 200000 2000000' >/proc/pressure/cpu",
    "the file system's own settings": "chattr +i /testbed",
    "a lease of a program": "python3 -c 'import fcntl\nf = open(\"/usr/bin/true\")\nfcntl.fcntl(f, 1024, 0)'",
    "a filter's listener of others": "python3 -c 'import os, signal; os.pidfd_open(OWNER)'",
    "the limits of the owner": "prlimit --pid OWNER --nofile=1:1",
    "the priority of the owner": "renice -n 19 -p OWNER || ionice -c 3 -p OWNER || taskset -p 1 OWNER",
    # network
    "names": "getent hosts example.com",
    "raw sockets": "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "packet sockets": "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
    "a new interface": "ip link add dummy0 type dummy || ip addr add 10.0.0.1/8 dev lo",
}
HARMLESS = {
    # objects of the kernel
    "timers": "python3 -c 'import ctypes; make = ctypes.CDLL(None).timer_create\nwhile make(1, None, "
    "ctypes.byref(ctypes.c_void_p())) == 0: pass'",
    "full pipes": "python3 -c 'import fcntl, os\nwhile True:\n _, end = os.pipe(); fcntl.fcntl(end, 1031, 1 << 20); "
    "os.set_blocking(end, False); os.write(end, bytes(1 << 20))' 2>/dev/null",
    "files without a name": 'python3 -c \'import os\nwhile True:\n file = os.open("/tmp", os.O_TMPFILE | os.O_RDWR); '
    'os.pwrite(file, b"x", 1 << 30)\' 2>/dev/null',
    "names that do not exist": "python3 -c 'import os\nfor number in range(100000): "
    "os.path.lexists(str(number).rjust(200))'",
    # the shell and its protocol
    "kill everything": "kill -9 -1",
    "kill the shell": "kill -9 $$",
    "stop the shell": "kill -STOP $$",
    "close descriptors": 'exec 0<&- 1>&- 2>&-; for i in $(seq 3 255); do eval "exec $i>&-"; done',
    "exec": "exec true",
    "exit": "exit 7",
    "exit in a function": "f() { exit 3; }; f",
    "errors end the shell": "set -euo pipefail; false",
    "forged trailer": "printf '\\001%032d 0 /\\0' 0 >&2; printf '\\001%032d 0 /\\0' 0",
    "forged on every descriptor": "for i in $(seq 3 255); do printf '\\0010 0 /\\0' >&$i; done 2>/dev/null",
    "redefined builtins": "printf() { :; }; builtin() { :; }; eval() { exit; }; declare() { :; }; trap() { :; }",
    "readonly": "readonly PWD HOME PATH IFS; readonly BASHOPTS",
    "strange separators": "IFS=abcdefghij; PATH=; cd /",
    "traps": "trap '' TERM INT HUP USR1 USR2 PIPE; trap 'exit' DEBUG",
    "debug trap": "trap 'kill -9 $$' EXIT; set -T; shopt -s extdebug",
    "an alias": "shopt -s expand_aliases; alias echo=exit builtin=exit '{=exit'",
    "history expansion": "set -H; set -o posix; set -n",
    "a removed directory": "mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone",
    "a state that hurts": "mkdir -p /.swegym; echo 'exit 9; kill -9 $$' > /.swegym/state; exit 1",
    "a state that is a link": "rm -rf /.swegym; ln -s /etc /.swegym; exit 1",
    "a state that is a pipe": "rm -rf /.swegym; mkdir /.swegym; mkfifo /.swegym/state; exit 1",
    "a name with newlines": "touch $'/testbed/a\\nb\\x01' $'/testbed/\\377'; ls /testbed",
    # waiting for input
    "cat": "cat",
    "read": "read -r line",
    "less": "less /etc/passwd",
    "an editor": "vi /tmp/x || ed /tmp/x",
    "python": "python3 -i",
    "terminal settings": "stty -a; stty raw; reset; tput clear",
    "the terminal": "echo x > /dev/tty; cat < /dev/tty",
    # output
    "broken UTF-8": "head -c 100000 /dev/urandom",
    "escapes": "printf '\\033[2J\\033]0;evil\\007\\033c'",
    "no line ends": "head -c 3000000 /dev/zero | tr '\\0' x",
    "a missing end": "printf x; exec 1>&-",
    # resources
    "a fork bomb": "f() { f | f & }; f",
    "another fork bomb": "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
    "memory": "python3 -c 'b = []\nwhile True: b.append(bytearray(1 << 24))'",
    "memory of many": "for i in $(seq 8); do python3 -c 'x = bytearray(1 << 26); input()' < <(sleep 2) & done; sleep 1",
    "memory of the shell": "x=$(head -c 400000000 /dev/zero | tr '\\0' x); echo ${#x}",
    "shared memory": "head -c 400000000 /dev/zero > /dev/shm/x; rm -f /dev/shm/x",
    "disk": "cat /dev/zero > /tmp/fill; rm -f /tmp/fill",
    "inodes": "mkdir /tmp/i; cd /tmp/i; for i in $(seq 6000); do : > $i; done 2>/dev/null; cd /; rm -rf /tmp/i",
    "deep directories": "cd /tmp; for i in $(seq 300); do mkdir d; cd d; done 2>/dev/null; cd /; rm -rf /tmp/d",
    "descriptors": "python3 -c 'import os\nl = []\nwhile True: l.append(os.open(\"/dev/null\", 0))'",
    "a sparse file": "truncate -s 5G /testbed/sparse; ls -s /testbed/sparse",
    "processor": "for i in 1 2 3 4; do while :; do :; done & done; sleep 0.3",
    "pipes": "python3 -c 'import os\nwhile True: os.write(os.pipe()[1], bytes(60000))'",
    "System V objects": "for i in $(seq 300); do ipcmk -M 4096; ipcmk -S 200; ipcmk -Q; done >/dev/null 2>&1",
    "a lease": "echo x >/testbed/leased; python3 -c 'import fcntl, os, time\n"
    'f = os.open("/testbed/leased", os.O_RDWR)\n'
    "if not os.fork(): fcntl.fcntl(f, 1024, 1); time.sleep(3)'",
    "all terminals": "python3 -c 'import os, time\nwhile True: os.openpty()'",
    "stop everything": "for i in $(seq 60); do [ $i = $$ ] || kill -STOP $i; done 2>/dev/null; exit 3",
    "idle for ever": "for i in $(seq 60); do renice -n 19 -p $i; chrt -i -p 0 $i; done >/dev/null 2>&1; exit 4",
    "no processor time for process 1": "for i in $(seq 40); do prlimit --pid $i --cpu=1:1; done 2>/dev/null; exit 5",
    "files in memory": "python3 -c 'import os\nwhile True: os.write(os.memfd_create(\"x\"), bytes(1 << 24))'",
    "locks on everything": "for f in /usr/bin/* /dev/null; do exec {fd}<$f; flock -n $fd; done 2>/dev/null",
    "a start that lies": "mkdir -p /.singularity.d/env; "
    "echo 'cd() { :; }; ulimit() { :; }; trap() { :; }; export() { :; }' "
    ">/.singularity.d/env/90-environment.sh; exit",
    # processes and files left behind
    "daemons": "setsid sleep 3 & nohup sleep 3 >/dev/null 2>&1 & (sleep 3 &) & disown -a",
    "a double fork": "python3 -c 'import os, time\nif not os.fork():\n os.setsid()\n if not os.fork(): time.sleep(3)'",
    "an open pipe": "sleep 3 | sleep 3 &",
    "unremovable": "mkdir -p /testbed/m/n; chmod 000 /testbed/m/n /testbed/m",
}
REMOVE_EVERYTHING = "rm -rf --no-preserve-root / 2>/dev/null"


def _with_paths(command: str, host: Host) -> str:
    values = {"SECRETS": host.secrets, "WRITABLE": host.writable, "PID": host.bystander.pid, "OWNER": os.getpid()}
    for name, value in values.items():
        command = command.replace(name, str(value))
    return command


def _check_next(sandbox: Sandbox) -> None:
    after = sandbox.run("builtin echo alive-$((6 * 7))", timeout_s=20)
    if "alive-42" not in after.output:  # a new shell has lost what was redefined or locked in the old one
        sandbox.run("\\builtin exit", timeout_s=1)
        sandbox.run("exec /bin/true", timeout_s=1)
        after = sandbox.run("/bin/echo alive-$((6 * 7))", timeout_s=20)
    assert "alive-42" in after.output, after


@pytest.mark.parametrize("name", FAILING)
def test_hostile_commands_fail(shared: Sandbox, host: Host, name: str) -> None:
    before = host.state()
    result = shared.run(_with_paths(FAILING[name], host))
    assert (name, result.exit_code) != (name, 0), result.output
    assert SECRET not in result.output
    assert host.state() == before
    _check_next(shared)


@pytest.mark.parametrize("name", HARMLESS)
def test_hostile_commands_that_may_run_do_no_harm(shared: Sandbox, host: Host, name: str) -> None:
    before = host.state()
    result = shared.run(_with_paths(HARMLESS[name], host), timeout_s=1)
    assert SECRET not in result.output
    assert len(result.output.encode()) <= 3 * LIMITS.output_bytes
    assert host.state() == before
    _check_next(shared)


def test_a_sandbox_without_any_files_still_answers(opened: Opener, host: Host) -> None:
    before = host.state()
    sandbox = opened(SandboxSpec(limits=LIMITS))  # not shared: its files are gone
    assert SECRET not in sandbox.run(REMOVE_EVERYTHING, timeout_s=1).output
    assert host.state() == before
    _check_next(sandbox)


def test_at_least_a_hundred_hostile_commands_are_tested() -> None:
    assert len(FAILING) + len(HARMLESS) >= 100
    assert not set(FAILING) & set(HARMLESS)


def test_endless_output_is_dropped_while_it_is_read(shared: Sandbox) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = shared.run("cat /dev/zero", timeout_s=1)
    assert (result.limit, len(result.output)) == ("time", LIMITS.output_bytes)
    assert result.truncated_bytes > 10 * LIMITS.output_bytes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
    _check_next(shared)


NETWORK = """
import socket, sys
tcp4, tcp6, udp4, udp6, abstract, named = sys.argv[1:]
def attempt(name, family, kind, address):
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(0.5)
            client.connect(address)
            client.send(b'leak')
            if kind == socket.SOCK_STREAM or not client.recv(1):
                print('reached', name)
            else:
                print('reached', name)
    except OSError as error:
        print('refused', name, error.errno)
attempt('tcp4', socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', int(tcp4)))
attempt('tcp6', socket.AF_INET6, socket.SOCK_STREAM, ('::1', int(tcp6)))
attempt('udp4', socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', int(udp4)))
attempt('udp6', socket.AF_INET6, socket.SOCK_DGRAM, ('::1', int(udp6)))
attempt('abstract', socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + abstract)
attempt('abstract datagram', socket.AF_UNIX, socket.SOCK_DGRAM, chr(0) + abstract + 'd')
attempt('named', socket.AF_UNIX, socket.SOCK_STREAM, named)
attempt('any address', socket.AF_INET, socket.SOCK_STREAM, ('0.0.0.0', int(tcp4)))
attempt('mapped', socket.AF_INET6, socket.SOCK_STREAM, ('::ffff:127.0.0.1', int(tcp4)))
attempt('vsock', getattr(socket, 'AF_VSOCK', 40), socket.SOCK_STREAM, (2, 1024))
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
    import struct
    header = struct.pack('=BxHiII', 0, 1, 0, 0, 0)
    netlink.send(struct.pack('=IHHII', 16 + len(header), 16, 0x605, 1, 0) + header)  # RTM_NEWLINK
    kind, code = struct.unpack_from('=H', netlink.recv(4096), 4)[0], 0
    print('refused netlink' if kind == 2 else 'reached netlink')
"""


def test_no_protocol_reaches_a_listener_on_the_host(shared: Sandbox, host: Host) -> None:
    name = f"swegym-test-{os.getpid()}"
    kinds = [
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_INET6, socket.SOCK_DGRAM, ("::1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{name}"),
        (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{name}d"),
        (socket.AF_UNIX, socket.SOCK_STREAM, str(host.secrets / "socket")),
    ]
    listeners = []
    try:
        for family, kind, address in kinds:
            listener = socket.socket(family, kind)
            listeners.append(listener)
            listener.bind(address)
            listener.setblocking(False)
            if kind == socket.SOCK_STREAM:
                listener.listen()
        os.chmod(host.secrets / "socket", 0o777)
        ports = [listener.getsockname()[1] for listener in listeners[:4]]
        shared.write("/tmp/reach.py", NETWORK.encode())
        arguments = " ".join(map(str, [*ports, name, host.secrets / "socket"]))
        result = shared.run(f"python3 /tmp/reach.py {arguments}", timeout_s=20)
        assert result.exit_code == 0, result.output
        assert "reached" not in result.output
        assert result.output.count("refused") == 11
        for listener, (_, kind, _) in zip(listeners, kinds, strict=True):
            with pytest.raises(BlockingIOError):
                _ = listener.accept() if kind == socket.SOCK_STREAM else listener.recv(1)
    finally:
        for listener in listeners:
            listener.close()
        (host.secrets / "socket").unlink(missing_ok=True)


TRAPS = """
set -e
cd /testbed
printf '#!/bin/sh\\necho ran > MARK/$0\\ncat\\n' > /testbed/trap.sh
chmod 755 trap.sh
git config core.fsmonitor /testbed/trap.sh
git config core.hooksPath /testbed/hooks
git config core.pager /testbed/trap.sh
git config core.sshCommand /testbed/trap.sh
git config core.editor /testbed/trap.sh
git config diff.external /testbed/trap.sh
git config diff.evil.command /testbed/trap.sh
git config diff.evil.textconv /testbed/trap.sh
git config filter.evil.clean /testbed/trap.sh
git config filter.evil.smudge /testbed/trap.sh
git config filter.evil.process /testbed/trap.sh
git config merge.evil.driver /testbed/trap.sh
git config alias.diff '!/testbed/trap.sh'
git config gpg.program /testbed/trap.sh
git config include.path /testbed/more
git config core.attributesFile /testbed/attributes
printf '* diff=evil filter=evil merge=evil\\n' | tee .gitattributes > attributes
mkdir -p hooks .git/hooks
for hook in pre-commit post-checkout post-index-change fsmonitor-watchman reference-transaction; do
    cp trap.sh hooks/$hook; cp trap.sh .git/hooks/$hook
done
ln -sf SECRETS/token stolen
git config core.worktree SECRETS
printf 'SECRETS\\n' > .git/commondir
mkdir -p .git/objects/info && printf 'SECRETS\\n' > .git/objects/info/alternates
echo changed > file.txt
"""


def test_git_configuration_of_the_agent_does_not_run_on_the_host(opened: Opener, host: Host, public_path: Path) -> None:
    testbed = public_path / "layer" / "testbed"
    testbed.mkdir(parents=True)
    (testbed / "file.txt").write_text("first\n")
    git = ["git", "-C", str(testbed), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    if os.geteuid() == 0:
        for path in [testbed.parent, *testbed.parent.rglob("*")]:
            os.chown(path, *sandbox_user(), follow_symlinks=False)
    sandbox = opened(SandboxSpec(layers=(testbed.parent,), env={"HOME": "/tmp"}))
    before = host.state()
    mark = str(host.writable)
    result = sandbox.run(TRAPS.replace("SECRETS", str(host.secrets)).replace("MARK", mark))
    assert result.exit_code == 0, result.output
    patch = capture_patch(sandbox, testbed)
    assert "+changed\n" in patch and f"+{host.secrets}/token\n" in patch
    assert SECRET not in patch
    assert host.state() == before


def test_a_sandbox_whose_processes_were_killed_starts_another_shell(opened: Opener) -> None:
    sandbox = opened()
    shell = sandbox._shell.pid  # type: ignore[attr-defined]
    for pid in [shell, *descendants(shell)]:
        os.kill(pid, signal.SIGKILL)
    # Until it is dead it may read the next command, which nobody then runs or repeats.
    assert wait_until(lambda: shell not in descendants(sandbox._shell._launched), 20)  # type: ignore[attr-defined]
    assert sandbox.run("echo alive").output == "alive\n"


@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.campaign) for name in HOSTILE]
)
def test_a_hostile_sandbox_harms_no_neighbour(backend: str, attack: str, public_path: Path) -> None:
    """It raises nothing, and cannot make its own episode invalid.

    How long the steps of neighbours take is what `make bench-neighbours` measures.
    """
    [found] = measure(backend, [attack], public_path / "repos", seconds=1.0, neighbours=4)
    assert found["exception_from_step"] == ""
    assert found["honest_failures"] == 0
    assert found["honest_steps"] >= 4
    assert found["hostile_steps"] >= 1
    assert [end for end in found["hostile_episodes_ended"] if "invalid" in end] == []
