"""What a program in a sandbox can ask of the kernel, and what is refused; programs that people use still run."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.sandbox import Limits, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.linux.seccomp import PROFILE
from tests.env.sandbox.conftest import Opener

_LINES = Path(PROFILE).with_name("system_calls.txt").read_text().splitlines()[1:]
_COLUMN = 2 if platform.machine() == "aarch64" else 1
NUMBERS = {fields[0]: int(fields[_COLUMN]) for fields in map(str.split, _LINES) if fields[_COLUMN] != "-"}
PROBE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
names = {"BUFFER": ctypes.addressof(ctypes.create_string_buffer(1 << 16)), "SELF": os.getpid(), "PARENT": os.getppid()}
page = ctypes.pythonapi  # keeps the interpreter's own pages mapped
answers = {}
for name, number, arguments in json.load(open(sys.argv[1])):
    ctypes.set_errno(0)
    values = [ctypes.c_long(names.get(each, each)) for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *values)
    answers[name] = ctypes.get_errno() if result < 0 else 0
print(json.dumps(answers))
"""
# name, system call, arguments, the errno that refuses it. Where a capability is missing too the kernel says EPERM by
# itself; the others would succeed, or fail otherwise, without the filter.
REFUSED: list[tuple[str, str, list[object], int]] = [
    # keys
    ("list the session keyring", "keyctl", [0, -3, 1], errno.EPERM),
    ("read the user keyring", "keyctl", [11, -4, 0, 0], errno.EPERM),
    ("join another session keyring", "keyctl", [1, 0], errno.EPERM),
    ("make a key", "add_key", ["BUFFER", "BUFFER", "BUFFER", 4, -3], errno.EPERM),
    ("ask for a key", "request_key", ["BUFFER", "BUFFER", 0, -3], errno.EPERM),
    # other processes
    ("take a descriptor", "pidfd_getfd", [0, 0, 0], errno.EPERM),
    ("read memory", "process_vm_readv", ["PARENT", "BUFFER", 1, "BUFFER", 1, 0], errno.ENOSYS),
    ("write memory", "process_vm_writev", ["PARENT", "BUFFER", 1, "BUFFER", 1, 0], errno.ENOSYS),
    ("attach to process 1", "ptrace", [16, 1, 0, 0], errno.EPERM),
    ("seize process 1", "ptrace", [0x4206, 1, 0, 0], errno.EPERM),
    ("attach to process 1 under another number", "ptrace", [16, (1 << 32) + 1, 0, 0], errno.EPERM),
    ("compare with process 1", "kcmp", ["SELF", 1, 1, 0, 0], errno.EPERM),
    ("advise another's memory", "process_madvise", [0, 0, 0, 20, 0], errno.EPERM),
    ("move pages", "move_pages", ["SELF", 0, 0, 0, 0, 0], errno.EPERM),
    # memory and input of other kinds
    ("page faults", "userfaultfd", [1], errno.EPERM),
    ("secret memory", "memfd_secret", [0], errno.EPERM),
    ("pages in the cache", "mincore", ["BUFFER", 4096, "BUFFER"], errno.ENOSYS),
    ("pages of a file in the cache", "cachestat", [0, "BUFFER", "BUFFER", 0], errno.ENOSYS),
    ("what of a file is in memory", "preadv2", [0, "BUFFER", 0, 0, 0, 8], errno.EOPNOTSUPP),
    ("a ring", "io_uring_setup", [8, "BUFFER"], errno.ENOSYS),
    ("a ring's entry", "io_uring_enter", [0, 0, 0, 0, 0, 0], errno.ENOSYS),
    ("a ring's registration", "io_uring_register", [0, 0, 0, 0], errno.ENOSYS),
    ("all asynchronous requests of the machine", "io_setup", [65000, "BUFFER"], errno.ENOSYS),
    ("a program in the kernel", "bpf", [5, "BUFFER", 120], errno.EPERM),
    ("counters of the processor", "perf_event_open", ["BUFFER", 0, -1, -1, 0], errno.EPERM),
    ("watch all files", "fanotify_init", [0, 0], errno.EPERM),
    ("watch all files without rights", "fanotify_init", [0x200, 0], errno.EPERM),
    # files behind the mounts
    ("a handle of a file", "name_to_handle_at", [-100, "BUFFER", "BUFFER", "BUFFER", 0], errno.EPERM),
    ("a file by its handle", "open_by_handle_at", [0, "BUFFER", 0], errno.EPERM),
    ("mount", "mount", ["BUFFER", "BUFFER", "BUFFER", 0, 0], errno.EPERM),
    ("unmount", "umount2", ["BUFFER", 0], errno.EPERM),
    ("a file system", "fsopen", ["BUFFER", 0], errno.EPERM),
    ("set up a file system", "fsconfig", [0, 0, 0, 0, 0], errno.EPERM),
    ("mount a file system", "fsmount", [0, 0, 0], errno.EPERM),
    ("pick a file system", "fspick", [-100, "BUFFER", 0], errno.EPERM),
    ("a copy of a mount", "open_tree", [-100, "BUFFER", 1], errno.EPERM),
    ("move a mount", "move_mount", [-100, "BUFFER", -100, "BUFFER", 0], errno.EPERM),
    ("change a mount", "mount_setattr", [-100, "BUFFER", 0, "BUFFER", 32], errno.EPERM),
    ("list mounts", "listmount", ["BUFFER", "BUFFER", 8, 0], errno.EPERM),
    ("describe a mount", "statmount", ["BUFFER", "BUFFER", 512, 0], errno.EPERM),
    ("another root", "chroot", ["BUFFER"], errno.EPERM),
    ("another root of the mounts", "pivot_root", ["BUFFER", "BUFFER"], errno.EPERM),
    ("quotas", "quotactl", [0, 0, 0, 0], errno.EPERM),
    ("quotas of an open file", "quotactl_fd", [0, 0, 0, 0], errno.EPERM),
    ("accounts of processes", "acct", [0], errno.EPERM),
    # namespaces
    *[
        (f"a namespace, {flag:#x}", call, [flag, 0, 0, 0, 0], errno.EPERM)
        for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
        for call in ("unshare",)
    ],
    *[
        (f"a process in a namespace, {flag:#x}", "clone", [flag | 17, 0, 0, 0, 0], errno.EPERM)
        for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    ],
    ("a time namespace", "unshare", [0x80], errno.EPERM),
    ("a process by a structure", "clone3", ["BUFFER", 88], errno.ENOSYS),
    ("enter a namespace", "setns", [0, 0], errno.EPERM),
    # sockets
    *[
        (f"a socket of family {family}", "socket", [family, kind, 0], errno.EAFNOSUPPORT)
        for family, kind in (
            *((3, 2), (4, 2), (5, 2), (9, 5), (15, 3), (17, 3), (21, 5), (26, 1), (29, 3), (30, 5), (31, 1)),
            *((35, 5), (38, 5), (40, 1), (41, 2), (43, 1), (44, 3)),
        )
    ],
    ("a pair of another family", "socketpair", [30, 1, 0, "BUFFER"], errno.EAFNOSUPPORT),
    ("netfilter", "socket", [16, 3, 12], errno.EAFNOSUPPORT),
    ("audit", "socket", [16, 3, 9], errno.EAFNOSUPPORT),
    # the machine
    ("load a module", "init_module", ["BUFFER", 0, "BUFFER"], errno.EPERM),
    ("load a module's file", "finit_module", [0, "BUFFER", 0], errno.EPERM),
    ("remove a module", "delete_module", ["BUFFER", 0], errno.EPERM),
    ("another kernel", "kexec_load", [0, 0, 0, 0], errno.EPERM),
    ("another kernel's file", "kexec_file_load", [0, 0, 0, 0, 0], errno.EPERM),
    ("reboot", "reboot", [0, 0, 0, 0], errno.EPERM),
    ("swap", "swapon", ["BUFFER", 0], errno.EPERM),
    ("no swap", "swapoff", ["BUFFER"], errno.EPERM),
    ("messages of the kernel", "syslog", [10, 0, 0], errno.EPERM),
    ("the name of the machine", "sethostname", ["BUFFER", 1], errno.EPERM),
    ("the name of the domain", "setdomainname", ["BUFFER", 1], errno.EPERM),
    ("the time", "settimeofday", ["BUFFER", 0], errno.EPERM),
    ("the time of a clock", "clock_settime", [0, "BUFFER"], errno.EPERM),
    ("the speed of the clock", "adjtimex", ["BUFFER"], errno.EPERM),
    ("hang up", "vhangup", [], errno.EPERM),
    ("the memory's places", "set_mempolicy", [0, 0, 0], errno.EPERM),
    ("another personality", "personality", [0x0400000], errno.EPERM),
    ("security modules", "lsm_list_modules", ["BUFFER", "BUFFER", 0], errno.EPERM),
    ("typed input", "ioctl", [0, 0x5412, "BUFFER"], errno.EPERM),
    ("typed input under another number", "ioctl", [0, (1 << 32) + 0x5412, "BUFFER"], errno.EPERM),
]
if platform.machine() == "x86_64":
    REFUSED += [
        ("ports of devices", "ioperm", [0x80, 1, 1], errno.EPERM),
        ("all ports of devices", "iopl", [3], errno.EPERM),
        ("segments", "modify_ldt", [0, "BUFFER", 16], errno.EPERM),
        ("kinds of file systems", "sysfs", [3], errno.EPERM),
        ("an old library call", "uselib", ["BUFFER"], errno.ENOSYS),
    ]
SUCCEEDS: list[tuple[str, str, list[object]]] = [
    ("write everything", "sync", []),
    ("write a file system", "syncfs", [0]),
    ("advice that is not passed on", "fadvise64", [-1, 0, 0, 4]),
    ("reading ahead that is not done", "readahead", [-1, 0, 4096]),
    ("reading with flags", "preadv2", [0, "BUFFER", 0, 0, 0, 0]),
    ("the personality", "personality", [0xFFFFFFFF]),
    ("addresses that do not change", "personality", [0x40000]),
    ("local sockets", "socket", [1, 1, 0]),
    ("routes", "socket", [16, 3, 0]),
    ("IPv6", "socket", [10, 1, 0]),
    ("a file in memory", "memfd_create", ["BUFFER", 0]),
    ("a watch", "inotify_init1", [0]),
]


def probe(sandbox: Sandbox, calls: list[tuple[str, str, list[object]]]) -> dict[str, int]:
    """Name → errno, 0 for success, of system calls made by one program inside."""
    sandbox.write("/tmp/probe.py", PROBE.encode())
    known = [(name, NUMBERS[call], arguments) for name, call, arguments in calls]
    sandbox.write("/tmp/calls.json", json.dumps(known).encode())
    result = sandbox.run("python3 /tmp/probe.py /tmp/calls.json")
    assert result.exit_code == 0, result.output
    answers: dict[str, int] = json.loads(result.output)
    return answers


def test_hostile_system_calls_are_refused_and_common_ones_are_not(shared_sandbox: Sandbox) -> None:
    assert len({name for name, *_ in REFUSED}) == len(REFUSED)
    answers = probe(shared_sandbox, [(name, call, arguments) for name, call, arguments, _ in REFUSED])
    wrong = {
        name: (errno.errorcode.get(answers[name]), errno.errorcode[expected])
        for name, _, _, expected in REFUSED
        if answers[name] != expected
    }
    assert not wrong, "name: (got, expected)"
    assert probe(shared_sandbox, SUCCEEDS) == {name: 0 for name, *_ in SUCCEEDS}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has other calling conventions in one process")
def test_calls_of_x32_and_of_32_bits_are_refused(shared_sandbox: Sandbox) -> None:
    x32 = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(0x40000000 + 39), ctypes.get_errno())"
    result = shared_sandbox.run(f"python3 -c '{x32}'")
    assert result.output == f"-1 {errno.ENOSYS}\n" or result.exit_code == 128 + 31, result
    # mov eax, 20 (getpid of i386); int 0x80; ret
    i386 = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        r"page.write(b'\xb8\x14\0\0\0\xcd\x80\xc3')"
        "\nprint(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())\n"
    )
    shared_sandbox.write("/tmp/i386.py", i386.encode())
    result = shared_sandbox.run("python3 /tmp/i386.py")
    assert result.output == f"{-errno.ENOSYS}\n" or result.exit_code == 128 + 31, result


C_PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static int answer;
static void *work(void *unused) { answer = 42; return unused; }
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, work, 0) || pthread_join(thread, 0)) return 1;
    pid_t child = fork();
    if (child == 0) _exit(7);
    int status;
    waitpid(child, &status, 0);
    printf("%d %d\n", answer, WEXITSTATUS(status));
    return 0;
}
"""
PYTHON_PROGRAM = """
import asyncio, concurrent.futures, multiprocessing, os, selectors, socket, sqlite3, subprocess, tempfile, threading
async def serve():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\\n")
    return (await reader.readline()).decode().strip()
def double(x): return 2 * x
if __name__ == "__main__":
    print(asyncio.run(serve()))
    with concurrent.futures.ProcessPoolExecutor(2) as pool: print(sum(pool.map(double, range(5))))
    with concurrent.futures.ThreadPoolExecutor(2) as pool: print(sum(pool.map(double, range(5))))
    print(subprocess.run("echo shell", shell=True, capture_output=True, text=True).stdout.strip())
    base = sqlite3.connect(tempfile.mktemp()); base.execute("create table t (x)"); base.commit(); print("stored")
    queue = multiprocessing.get_context("spawn").SimpleQueue(); queue.put(1); print(queue.get())
"""
JAVA_PROGRAM = """
public class Main {
    public static void main(String[] a) throws Exception {
        var pool = java.util.concurrent.Executors.newFixedThreadPool(2);
        System.out.println(pool.submit(() -> 6 * 7).get());
        pool.shutdown();
        var p = new ProcessBuilder("echo", "child").start();
        System.out.print(new String(p.getInputStream().readAllBytes()));
    }
}
"""
NODE_PROGRAM = """
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (!isMainThread) { parentPort.postMessage(6 * 7); return; }
const fs = require('fs');
new Worker(__filename).on('message', (answer) => {
  console.log(answer, require('child_process').execSync('echo child').toString().trim());
  const watcher = fs.watch('/tmp', () => { console.log('seen'); watcher.close(); });
  setTimeout(() => fs.writeFileSync('/tmp/watched', 'x'), 10);
  watcher.once('close', () => process.exit(0));
});
"""
GDB = "gdb -nx -batch -ex 'break work' -ex run -ex 'print answer' -ex finish -ex 'print answer' -ex continue /tmp/prog"
GIT = """
cd /tmp && rm -rf g && git init -q g && cd g && date >f && git add . &&
git -c user.name=n -c user.email=e@x commit -qm first && git gc -q && git log --format=%s
"""
COREUTILS = """
seq 20000 | sort -R --parallel=2 | sort -n | tail -1; cp -a --reflink=auto /etc /tmp/copy; timeout 5 sleep 0.01
dd if=/dev/zero of=/tmp/z bs=1k count=4 conv=fsync 2>&1 | tail -1; df /tmp | wc -l; mktemp -d; stat -f / | head -1
tar cf - /etc 2>/dev/null | tar tf - | wc -l; nproc; rm -f /tmp/ff; mkfifo /tmp/ff; sync
"""
# program → the file that it reads, its content, the command, and what its output holds
PROGRAMS: dict[str, tuple[str, str, str, list[str]]] = {
    "gcc": ("prog.c", C_PROGRAM, "gcc -g -O0 -pthread -o /tmp/prog /tmp/prog.c && /tmp/prog", ["42 7"]),
    "gdb": ("prog.c", C_PROGRAM, f"gcc -g -pthread -o /tmp/prog /tmp/prog.c && {GDB}", ["$1 = 0", "$3 = 42", "42 7"]),
    "strace": ("x", "", "strace -f -e trace=execve sh -c 'echo through; /bin/true'", ["through", '/bin/true"', "+++"]),
    "python3": ("p.py", PYTHON_PROGRAM, "python3 /tmp/p.py", ["hello", "20", "shell", "stored", "1"]),
    "node": ("n.js", NODE_PROGRAM, "node /tmp/n.js", ["42 child", "seen"]),
    "java": (
        "Main.java",
        JAVA_PROGRAM,
        "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto /tmp/Main.java",
        ["42", "child"],
    ),
    "git": ("x", "", GIT, ["first"]),
    "sort": ("x", "", COREUTILS, ["20000", "4096 bytes", "/tmp/tmp."]),
    "perl": (
        "x",
        "",
        "perl -e 'use Socket; socketpair(A, B, AF_UNIX, SOCK_STREAM, 0); fork() or exit; wait; print 5'",
        ["5"],
    ),
    "go": ("m.go", 'package main\nfunc main() { go println("go"); println(42) }', "cd /tmp && go run m.go", ["42"]),
    "rustc": ("m.rs", 'fn main() { println!("{}", 42) }', "cd /tmp && rustc m.rs && ./m", ["42"]),
}


@pytest.mark.parametrize("program", [name for name in PROGRAMS if shutil.which(name, path="/usr/bin:/bin")])
def test_programs_that_people_use_still_run(shared_sandbox: Sandbox, program: str) -> None:
    name, text, command, expected = PROGRAMS[program]
    shared_sandbox.write(f"/tmp/{name}", text.encode())
    result = shared_sandbox.run(command, timeout_s=60)
    assert result.exit_code == 0, result.output
    for part in expected:
        assert part in result.output, result.output


ALLOWS_EVERYTHING = {"defaultAction": "SCMP_ACT_ALLOW"}


@pytest.fixture
def unfiltered(backend: str, public_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Opener) -> Sandbox:
    """A sandbox whose profile, given by its user, allows every call."""
    profile = public_path / "profile.json"
    profile.write_text(json.dumps(ALLOWS_EVERYTHING))
    monkeypatch.setenv("SWEGYM_SECCOMP", str(profile))
    return opened(SandboxSpec(workdir="/tmp"))


KEYS = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
keyctl, add_key = map(ctypes.c_long, map(int, sys.argv[1:]))
for ring in (-3, -4):  # of the session, of the user
    print(libc.syscall(keyctl, ctypes.c_long(11), ctypes.c_long(ring), 0, 0) // 4)  # KEYCTL_READ
    assert libc.syscall(add_key, b"user", b"made inside", b"x", ctypes.c_long(1), ctypes.c_long(ring)) > 0
"""


def test_keys_of_the_owner_are_not_there_and_none_survive(unfiltered: Sandbox) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    add_key, keyctl = (ctypes.c_long(NUMBERS[name]) for name in ("add_key", "keyctl"))
    for ring in (-3, -4):
        key = libc.syscall(add_key, b"user", b"swegym-test", b"hunter2", ctypes.c_long(7), ctypes.c_long(ring))
        assert key > 0, os.strerror(ctypes.get_errno())
    before = Path("/proc/keys").read_text().count("made inside")
    unfiltered.write("/tmp/keys.py", KEYS.encode())
    try:
        for _ in range(2):
            unfiltered.run("exit")  # the next shell starts after the keys were made
            result = unfiltered.run(f"python3 /tmp/keys.py {keyctl.value} {add_key.value}")
            assert result.output == "0\n0\n"
        assert Path("/proc/keys").read_text().count("made inside") == before == 0
    finally:
        for ring in (-3, -4):
            assert libc.syscall(keyctl, ctypes.c_long(7), ctypes.c_long(ring)) == 0  # KEYCTL_CLEAR


def test_a_profile_of_the_users_own_replaces_the_shipped_one(
    unfiltered: Sandbox, public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str, list[object]]] = [
        ("mincore", "mincore", [0, 0, 0]),
        ("names", "getrandom", ["BUFFER", 4, 0]),
    ]
    assert probe(unfiltered, calls) == {"mincore": 0, "names": 0}
    own = public_path / "own.json"
    refuses = {"names": ["getrandom"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EDOM}
    own.write_text(json.dumps({**ALLOWS_EVERYTHING, "syscalls": [refuses]}))
    monkeypatch.setenv("SWEGYM_SECCOMP", str(own))
    unfiltered.run("exit")
    assert probe(unfiltered, calls) == {"mincore": 0, "names": errno.EDOM}


@pytest.mark.parametrize("content", [None, "{", "[]", '{"defaultAction": "SCMP_ACT_FAIL"}'])
def test_a_profile_that_cannot_be_used_starts_no_sandbox(
    backend: str, content: str | None, public_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = public_path / "profile.json"
    if content is not None:
        profile.write_text(content)
    monkeypatch.setenv("SWEGYM_SECCOMP", str(profile))
    sandbox = open_sandbox(SandboxSpec(), backend=backend)
    try:
        with pytest.raises((ConfigurationError, SandboxError), match="SWEGYM_SECCOMP"):
            sandbox.start()
    finally:
        sandbox.close()


@pytest.mark.parametrize(
    "name", ["acpi", "asound", "interrupts", "kcore", "key-users", "keys", "latency_stats", "scsi", "timer_list"]
)
def test_proc_tells_nothing_of_the_machine(shared_sandbox: Sandbox, name: str) -> None:
    seen = shared_sandbox.run(f"cat /proc/{name} 2>/dev/null; ls -A /proc/{name}/ 2>/dev/null").output
    assert seen == "", f"{Path('/proc', name).exists()}"


def test_settings_of_the_kernel_are_read_only_and_sys_is_empty(shared_sandbox: Sandbox) -> None:
    mounts = [line.split() for line in shared_sandbox.run("cat /proc/self/mountinfo").output.splitlines()]
    options = {fields[4]: fields[5].split(",") for fields in mounts}
    assert "ro" in options["/proc/sys"]
    assert shared_sandbox.run("ls -A /sys").output == ""


def test_shared_memory_and_terminals_are_limited(shared_sandbox: Sandbox) -> None:
    blocks, size = map(int, shared_sandbox.run("stat -f -c '%b %S' /dev/shm").output.split())
    assert blocks * size == 256 << 20
    count = "import os\nn = 0\ntry:\n  while n < 500: os.openpty(); n += 1\nexcept OSError: pass\nprint(n)"
    assert 0 < int(shared_sandbox.run(f"ulimit -n 4096; python3 -c '{count}'").output) <= 64
    assert shared_sandbox.run("for f in null zero full random urandom; do head -c 1 /dev/$f; done").exit_code == 0


def test_times_of_the_machines_devices_and_memory_for_names_are_out_of_reach(shared_sandbox: Sandbox) -> None:
    before = [os.stat(f"/dev/{name}").st_mtime_ns for name in ("null", "zero", "full", "random", "urandom")]
    assert shared_sandbox.run("cd /dev; touch null zero full random urandom").exit_code != 0
    after = [os.stat(f"/dev/{name}").st_mtime_ns for name in ("null", "zero", "full", "random", "urandom")]
    assert after == before
    assert shared_sandbox.run("echo x >/dev/null && ! echo x 2>/dev/null >/dev/full").exit_code == 0
    made = shared_sandbox.run(
        "cd /dev; for i in $(seq 2000); do echo x$i; done | xargs -n 500 touch; ls -d x* | wc -l; rm x*"
    )
    assert int(made.output.splitlines()[-1]) < 300


SENDS = """
import re, socket
server = socket.create_server(("127.0.0.1", 0), backlog=400)
kept = []
for _ in range(150):
    client = socket.create_connection(server.getsockname())
    client.setblocking(False)
    kept += [client, server.accept()[0]]
    try:
        while True: client.send(bytes(1 << 20))
    except BlockingIOError: pass
print(re.search("TCP: .* mem ([0-9]+)", open("/proc/net/sockstat").read())[1])
"""


def test_sockets_of_a_sandbox_take_little_of_the_machines_limit(shared_sandbox: Sandbox) -> None:
    """Without a limit, one loopback connection would hold 4 MB, and the sandbox a quarter of the machine's limit."""
    shared_sandbox.write("/tmp/sends.py", SENDS.encode())
    pages = int(shared_sandbox.run("ulimit -n 1024; python3 /tmp/sends.py").output)
    assert 0 < pages * os.sysconf("SC_PAGE_SIZE") < 150 << 20


def test_control_groups_of_the_machine_are_not_named(shared_sandbox: Sandbox) -> None:
    if not os.path.exists("/proc/self/ns/cgroup"):
        pytest.skip("this kernel has no cgroup namespaces")
    inside = shared_sandbox.run(
        "readlink /proc/self/ns/cgroup; cut -d: -f3- /proc/self/cgroup | sort -u"
    ).output.split()
    assert inside[0] != os.readlink("/proc/self/ns/cgroup")
    assert inside[1:] == ["/"]


def _clock_offset_s(sandbox: Sandbox) -> float:
    inside = float(sandbox.run("cut -d' ' -f1 /proc/uptime").output)
    return inside - float(Path("/proc/uptime").read_text().split()[0])


def test_each_sandbox_has_clocks_of_its_own_that_go_forward(opened: Opener) -> None:
    if not os.path.exists("/proc/self/ns/time") or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 3):
        pytest.skip("this kernel's time namespaces are not entered by executing a program (Linux 6.3)")
    first, second = opened(), opened()
    offset_s = _clock_offset_s(first)
    assert abs(offset_s) > 60 and abs(offset_s - _clock_offset_s(second)) > 60  # one in 20,000 draws is near
    first.run("exit")
    assert abs(_clock_offset_s(first) - offset_s) < 60, "the next shell continues"
    copy = first.fork()
    try:
        assert abs(_clock_offset_s(copy) - offset_s) < 60
    finally:
        copy.close()
    assert first.run("sleep 0.1; timeout 5 true; python3 -c 'import time; time.sleep(0.01)'").exit_code == 0


def test_descriptors_are_limited(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=Limits(descriptors=200)))
    count = "import os\nn = 0\ntry:\n  while n < 500: os.dup(0); n += 1\nexcept OSError as e: print(n, e.errno)"
    opened_files, number = map(int, sandbox.run(f"python3 -c '{count}'").output.split())
    assert 150 < opened_files < 200 and number == errno.EMFILE
    assert sandbox.run("ulimit -n 300").exit_code != 0


WATCHES = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while made < int(sys.argv[1]) and libc.inotify_init() >= 0: made += 1
print(made, flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_one_sandbox_cannot_take_all_watches(opened: Opener) -> None:
    hostile, honest = opened(), opened()
    for sandbox in (hostile, honest):
        sandbox.write("/tmp/watches.py", WATCHES.encode())
    try:
        hostile.run("python3 /tmp/watches.py 100000 60 >/tmp/made & until [ -s /tmp/made ]; do sleep 0.01; done")
        assert int(hostile.run("cat /tmp/made").output) < 128, "fs.inotify.max_user_instances of the machine"
        assert honest.run("python3 /tmp/watches.py 16 0").output == "16\n"
        descriptors = [ctypes.CDLL(None).inotify_init() for _ in range(16)]
        assert min(descriptors) >= 0, "the owner itself"
        for descriptor in descriptors:
            os.close(descriptor)
    finally:
        hostile.run("kill $!")


BUSY = (
    "import os, time\nend = time.time() + {s}\nfor _ in range({n}): os.fork() or exec('while time.time() < end: pass')"
)


def _busy_s(sandbox: Sandbox, processes: int, seconds: float) -> float:
    """Processor seconds that busy processes use in this time."""
    program = (
        "import os, resource, sys, time\n"
        "count, end = int(sys.argv[1]), time.time() + float(sys.argv[2])\n"
        "for _ in range(count):\n"
        "    if not os.fork():\n"
        "        while time.time() < end: pass\n"
        "        os._exit(0)\n"
        "for _ in range(count): os.wait()\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    sandbox.write("/tmp/busy.py", program.encode())
    return float(sandbox.run(f"python3 /tmp/busy.py {processes} {seconds}").output)


def _has_cpu_groups(sandbox: Sandbox) -> bool:
    counters = sandbox._shell._events.get("group", "{}")  # type: ignore[attr-defined]
    return "cpu" in json.loads(counters)


def test_processors_are_limited(opened: Opener) -> None:
    sandbox = opened(SandboxSpec(limits=Limits(cpus=0.25)))
    if not _has_cpu_groups(sandbox):
        pytest.skip("no control group with the cpu controller can be made here")
    assert _busy_s(sandbox, 2, 0.8) < 0.8 * 0.25 * 1.5


def test_a_sandbox_with_many_processes_leaves_others_their_share(opened: Opener) -> None:
    hostile, honest = opened(), opened()
    if not _has_cpu_groups(hostile):
        pytest.skip("no control group with the cpu controller can be made here")
    with ThreadPoolExecutor(2) as threads:
        much, little = threads.map(_busy_s, (hostile, honest), (40, 1), (1.2, 1.0))
    assert little > much / 10, "as processes on equal terms they would get a fortieth"


WATCH = """
import ctypes, os, select, sys, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init()
assert libc.inotify_add_watch(watch, sys.argv[1].encode(), 0x20 | 0x1) >= 0  # IN_OPEN, IN_ACCESS
open("/tmp/watching", "w").close()
while not os.path.exists("/tmp/enough"): time.sleep(0.01)
os.set_blocking(watch, False)
print(os.read(watch, 1 << 16) if select.select([watch], [], [], 0)[0] else b"")
"""


@pytest.mark.parametrize("seen", [False, True])
def test_programs_that_others_start_cannot_be_watched(opened: Opener, seen: bool) -> None:
    sandbox = opened()
    sandbox.write("/tmp/watch.py", WATCH.encode())
    sandbox.run("python3 /tmp/watch.py /usr/bin >/tmp/events 2>&1 & until [ -e /tmp/watching ]; do :; done")
    if seen:
        sandbox.run("factor 7")
    else:
        subprocess.run(["/usr/bin/factor", "7"], check=True, stdout=subprocess.DEVNULL)
        opened().run("factor 7")
    events = sandbox.run("touch /tmp/enough; wait; cat /tmp/events").output
    assert events.startswith("b'")
    assert ("factor" in events) == seen


def test_a_lock_on_a_program_is_no_signal_to_other_sandboxes(opened: Opener) -> None:
    first, second = opened(), opened()
    assert first.run("exec 9</usr/bin/factor; flock -n 9").exit_code == 0
    assert first.run("flock -n /usr/bin/factor true").exit_code == 1, "it holds inside"
    assert second.run("flock -n /usr/bin/factor true").exit_code == 0
    with open("/usr/bin/factor") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


LOCK = """
import fcntl, os, stat, sys
for path in sys.argv[1:]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError:  # a file that cannot be opened cannot be locked
        continue
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
    except BlockingIOError:
        print(path)
"""
# Characters of the machine, and what hides files of /proc.
CHARACTERS = "$(for each in /dev/[!pt]* /proc/*; do [ -c $each ] && echo $each; done)"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user can make no device files")
def test_a_lock_on_a_device_is_no_signal_to_other_sandboxes(opened: Opener) -> None:
    first, second = opened(), opened()
    for sandbox in (first, second):
        sandbox.write("/tmp/lock.py", LOCK.encode())
    paths = first.run(f"echo {CHARACTERS}").output.split()
    assert {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} < set(paths)
    assert any(path.startswith("/proc/") for path in paths)
    hold = LOCK.replace("os.close(file)", "pass").replace("print(path)", "pass")  # several are one file
    first.write("/tmp/hold.py", f"{hold}\nprint('held', flush=True); sys.stdin.read()".encode())
    assert first.run(f"exec 9< <(python3 /tmp/hold.py {CHARACTERS} < <(sleep 100)); head -1 <&9").output == "held\n"
    inside = first.run(f"python3 /tmp/lock.py {CHARACTERS}").output.split()
    assert {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"} <= set(inside), "they hold inside"
    assert second.run(f"python3 /tmp/lock.py {CHARACTERS}").output == ""
    for name in ("null", "zero", "full", "random", "urandom"):
        with open(f"/dev/{name}") as device:
            fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert second.run("echo x >/dev/null; head -c 3 /dev/zero | wc -c; ! echo x 2>/dev/null >/dev/full").output == "3\n"
