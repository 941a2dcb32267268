"""The protocol between this process and the shell of a sandbox: there is nothing in it that a command could steal.

Whatever a command finds in bash's descriptors and writes to them, `run` returns within the time of the command and the
next command gets a shell that works.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from swegym_env.sandbox import Sandbox, SandboxSpec, shell
from swegym_env.sandbox.shell import _parse_trailer
from tests.env.sandbox.conftest import Opener

# In bash itself, to which no filter can close its descriptors: reads the nonce from the shell's own input, where it
# comes after the command. PAYLOAD, a format of `printf`, is written to whatever can be written.
THIEF = r"""
for fd in {10..20}; do
    if [[ -e /proc/$$/fd/$fd ]] && IFS= read -r -t 0.2 -u $fd line 2>/dev/null && [[ $line == *printf*001* ]]; then
        nonce=${line#*001} nonce=${nonce:0:32}
    fi
done
[[ $nonce == [0-9a-f]*[0-9a-f] && ${#nonce} == 32 ]] || echo no nonce
for fd in {10..20}; do builtin printf -- "PAYLOAD" >&$fd; done 2>/dev/null
true"""
TRAILERS = {
    "a word for the exit code": r"\001$nonce xyz /testbed\000",
    "20,000 digits": r"\001$nonce $(printf '9%.0s' {1..20000}) /testbed\000",
    "a large exit code": r"\001$nonce 999 /testbed\000",
    "a negative exit code": r"\001$nonce -1 /testbed\000",
    "digits of another script": r"\001$nonce \xd9\xa1 /testbed\000",
    "no exit code": r"\001$nonce  /testbed\000",
    "no directory": r"\001$nonce 0\000",
    "a giant directory": r"\001$nonce 0 /$(printf 'd%.0s' {1..60000})\000",
    "two trailers": r"\001$nonce 0 /tmp\000\001$nonce 0 /tmp\000",
    "another nonce": r"\00100000000000000000000000000000000 0 /\000",
    "no end": r"\001$nonce $(printf '7%.0s' {1..60000})",
    "noise": r"$(head -c 60000 /dev/urandom | tr '\0%\\\\' x)",
    "one byte": "x",
    "nothing": "",
}


@pytest.mark.parametrize("payload", TRAILERS.values(), ids=TRAILERS.keys())
def test_whatever_is_written_to_the_status_pipe_fails_the_command_only(shared_sandbox: Sandbox, payload: str) -> None:
    result = shared_sandbox.run(THIEF.replace("PAYLOAD", payload), timeout_s=20 if payload else 1.5)
    assert result.exit_code in (124, 137), result
    assert "no nonce" not in result.output
    assert ("bash: killed: a command damaged the descriptors" in result.output) == (result.exit_code == 137)
    assert (result.exit_code == 124) == (payload == "")  # without any trailer the time is over
    assert shared_sandbox.run("echo alive").output == "alive\n"


def test_a_flood_of_the_status_pipe_is_not_kept(shared_sandbox: Sandbox) -> None:
    for number in range(10, 16):
        flood = "while :; do printf '%060000d' 0; done"
        result = shared_sandbox.run(f"{{ {flood}; }} 2>/dev/null >&{number}", timeout_s=0.3)
        assert result.exit_code != 0
        assert shared_sandbox.run("echo alive").output == "alive\n"


def test_a_right_forged_trailer_states_the_exit_code_of_its_own_command_only(shared_sandbox: Sandbox) -> None:
    assert shared_sandbox.run(THIEF.replace("PAYLOAD", r"\001$nonce 7 /tmp\000"), timeout_s=20).exit_code == 7
    assert shared_sandbox.run("(exit 3)").exit_code == 3
    assert shared_sandbox.run("echo alive").output == "alive\n"


@pytest.mark.parametrize("status", [b"", b"\1", b"\1abc 12", b"\1abc 0 /a", b"\1abc 0 /\xff\0", b"\1abc 255 \0"])
def test_a_trailer_is_parsed_once_it_is_complete(status: bytes) -> None:
    expected = {b"\1abc 0 /\xff\0": (0, "/\udcff"), b"\1abc 255 \0": (255, "")}
    assert _parse_trailer(status, b"\1abc ") == expected.get(status)


@pytest.mark.parametrize(
    "status",
    [
        b"\0",
        b"x",
        b"\1abd",
        b"\1abc x /\0",
        b"\1abc  0 /\0",
        b"\1abc 256 /\0",
        b"\1abc 0\0",
        b"\1abc 0 /\0x",
        b"\1abc " + b"9" * 20_000 + b" /\0",
        b"\1abc 0 /" + b"d" * 40_000,
    ],
)
def test_anything_else_is_no_trailer(status: bytes) -> None:
    assert _parse_trailer(status, b"\1abc ") == "broken"


def test_a_directory_with_a_longer_path_than_the_kernels_does_no_harm(sandbox: Sandbox) -> None:
    deep = "cd /tmp; n=$(printf 'd%.0s' {1..250}); for i in {1..40}; do mkdir $n && cd $n; done; echo ${#PWD}"
    assert sandbox.run(deep).output == f"{4 + 40 * 251}\n"
    assert sandbox.run("echo here; exit").exit_code == 0
    assert sandbox.run("echo alive; pwd").output.startswith("alive\n")
    assert sandbox.run("PWD=$(head -c 3000000 /dev/zero | tr '\\0' x); echo set").output == "set\n"
    assert sandbox.run("unset PWD; readonly PWD; echo unset").output == "unset\n"
    assert sandbox.run("echo alive").output == "alive\n"


SPY = r"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = libc.syscall.argtypes = [ctypes.c_long] * 6
mine = {int(name) for name in os.listdir("/proc") if name.isdigit()}
others = 0
for pid in range(1, 60):
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        continue
    if pid in mine:
        continue
    others += 1
    print("ptrace", pid) if libc.ptrace(16, pid, 0, 0, 0, 0) == 0 else None
    for number in range(20):
        print("descriptor", pid, number) if libc.syscall(438, pidfd, number, 0, 0, 0) >= 0 else None
    buffer = ctypes.create_string_buffer(8)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_void_p * 2)(0x400000, 8)
    copied = libc.syscall(310, pid, ctypes.addressof(vector), 1, ctypes.addressof(there), 1)  # process_vm_readv
    print("memory", pid) if copied > 0 else None
    for name in ("mem", "environ", "maps", "cmdline", "mountinfo", "fd/0", "root", "cwd", "exe"):
        try:
            os.readlink(f"/proc/{pid}/{name}") if "/" in name or name in ("root", "cwd", "exe") else open(
                f"/proc/{pid}/{name}", "rb"
            ).read(1)
            print("read", pid, name)
        except OSError:
            pass
print("others:", others, "shell:", os.getppid())
"""


def test_process_1_is_not_the_shell_and_nobody_inside_can_trace_or_read_it(sandbox: Sandbox) -> None:
    sandbox.write("/tmp/spy.py", SPY.encode())
    found = sandbox.run("python3 /tmp/spy.py; echo $$").output.splitlines()
    assert found[-2].startswith("others: ") and len(found) == 2, found
    assert int(found[-2].split()[1]) >= 1
    assert int(found[-1]) != 1
    assert sandbox.run("kill -9 1; kill -STOP 1; kill -TERM 1; kill -CHLD 1; echo alive").output == "alive\n"


def test_orphans_are_adopted_and_reaped(sandbox: Sandbox) -> None:
    sandbox.run("for i in {1..50}; do (sleep 0.01 &); done; (sleep 60 &)")
    deadline = time.monotonic() + 20
    inside = sandbox._shell.processes  # type: ignore[attr-defined]
    while time.monotonic() < deadline and len(inside()) > 2:
        time.sleep(0.05)
    assert len(inside()) == 2  # bash and the orphan that sleeps; a zombie would count
    assert sandbox.run("pgrep -c sleep").output == "1\n"


@pytest.mark.parametrize(
    ("command", "output", "code"),
    [
        ("exec sleep 1.2", "", 0),
        ("echo first; exec sh -c 'sleep 1.2; echo second; exit 5'", "first\nsecond\n", 5),
        ("exec python3 -c 'import os, time; os.closerange(0, 255); time.sleep(1.2); os._exit(6)'", "", 6),
        ("exec 10<&- 11>&- 12>&- 13>&- 14>&- 15>&-; sleep 0.1", None, 0),
        ("kill -9 $$", "", 137),
    ],
)
def test_a_program_in_the_place_of_bash_runs_to_its_end(
    shared_sandbox: Sandbox, command: str, output: str | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_EXIT_TIMEOUT_S", 1.0)
    result = shared_sandbox.run(command, timeout_s=10)
    assert (result.exit_code, result.timed_out) == (code, False)
    assert output is None or result.output == output
    assert shared_sandbox.run("echo alive").output == "alive\n"


def test_a_program_in_the_place_of_bash_may_not_take_longer_than_a_command(shared_sandbox: Sandbox) -> None:
    result = shared_sandbox.run("exec sleep 30", timeout_s=0.3)
    assert (result.exit_code, result.timed_out) == (124, True)
    assert shared_sandbox.run("echo alive").output == "alive\n"


def test_a_stopped_shell_times_out_and_keeps_its_variables(sandbox: Sandbox) -> None:
    sandbox.run("kept=1")
    assert sandbox.run("kill -STOP $$", timeout_s=0.3).timed_out
    assert sandbox.run("echo $kept").output == "1\n"


TAKE = r"""
import ctypes, os, select, signal, time
libc = ctypes.CDLL(None)
def take(shell, flags):
    "The pipes of the shell: by opening them, which the owner of the sandbox may do, or by taking its descriptors."
    taken = []
    for number in (0, 1, 2, 7, 8):
        try:
            if os.readlink(f"/proc/{shell}/fd/{number}").startswith("pipe:"):
                taken.append(os.open(f"/proc/{shell}/fd/{number}", flags))
        except OSError:
            stolen = libc.syscall(438, os.pidfd_open(shell), number, 0)
            if stolen >= 0:
                taken.append(stolen)
    return taken
"""
FILL = r"""
shell = os.getppid()
if os.fork():
    os._exit(0)
time.sleep(0.3)
os.kill(shell, signal.SIGSTOP)
for pipe in take(shell, os.O_WRONLY | os.O_NONBLOCK):
    try:
        while True:
            os.write(pipe, b" ")
    except OSError:
        pass
"""
DRAIN = r"""
shell = os.getppid()
if os.fork():
    os._exit(0)
time.sleep(0.3)
pipes = take(shell, os.O_RDONLY)
end = time.monotonic() + 3
while time.monotonic() < end:
    for pipe in select.select(pipes, [], [], 0.1)[0]:
        os.read(pipe, 1 << 16)
"""


@pytest.mark.parametrize("program", [FILL, DRAIN], ids=["filled", "drained"])
def test_a_pipe_that_somebody_else_fills_or_drains_delays_nothing_beyond_the_timeout(
    sandbox: Sandbox, program: str
) -> None:
    sandbox.write("/tmp/program.py", (TAKE + program).encode())
    assert sandbox.run("python3 /tmp/program.py").exit_code == 0
    time.sleep(0.6)
    long = "true " + "x" * 8000
    began = time.monotonic()
    result = sandbox.run(long, timeout_s=1)
    assert result.timed_out or result.exit_code in (0, 137)
    assert time.monotonic() - began < 10
    assert sandbox.run("exit", timeout_s=1).exit_code in (0, 124, 137)
    assert sandbox.run("echo alive").output == "alive\n"


STATES = {
    "an endless loop": "while :; do :; done",
    "a long sleep": "sleep 100",
    "exit": "exit 3",
    "other builtins": "builtin() { :; }; printf() { :; }; eval() { :; }; trap() { :; }",
    "other words": "shopt -s expand_aliases; alias {=: builtin=exit eval=exit",
    "noise on the status descriptor": "echo noise >&7; echo noise >&13; for i in {3..20}; do echo x >&$i; done",
    "closed descriptors": 'for i in {0..20}; do eval "exec $i>&-"; done',
    "a job in the background": "sleep 100 & (sleep 100 &)",
    "another program": "exec sleep 100",
    "not bash": "\1\2\3 ((( 'x",
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_a_state_that_cannot_be_restored_costs_a_bounded_time_once(
    shared_sandbox: Sandbox, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "_RESUME_TIMEOUT_S", 0.5)
    shared_sandbox.run("true")
    shared_sandbox.write("/.swegym/state", state.encode())
    assert shared_sandbox.run("kill -9 $$").exit_code == 137
    assert shared_sandbox.run("echo alive").output == "alive\n"
    pid = shared_sandbox._shell.pid  # type: ignore[attr-defined]
    assert os.readlink(f"/proc/{pid}/exe").endswith("bash")


def test_a_huge_state_is_not_restored(sandbox: Sandbox) -> None:
    sandbox.run("truncate -s 1900M /.swegym/state; kill -9 $$")
    began = time.monotonic()
    assert sandbox.run("echo alive").output == "alive\n"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "spoil", ["rm -rf /.swegym; touch /.swegym", "chmod 000 /.swegym", "rm -rf /.swegym; ln -s /proc /.swegym"]
)
def test_a_long_command_runs_without_a_place_for_it(sandbox: Sandbox, spoil: str) -> None:
    sandbox.run(spoil)
    assert sandbox.run(f"echo {'x' * 200_000} | wc -c").output == "200001\n"


def test_files_can_be_read_and_written_after_the_shell_was_killed_in_the_background(sandbox: Sandbox) -> None:
    sandbox.run("echo content > /tmp/file; (sleep 0.1; kill -9 $$) &")
    first = sandbox._shell.pid  # type: ignore[attr-defined]
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and os.path.exists(f"/proc/{first}"):
        time.sleep(0.01)
    assert sandbox.read("/tmp/file") == b"content\n"
    sandbox.write("/tmp/other", b"x")
    assert sandbox.run(f"true {'x' * 20_000}").exit_code == 0
    assert sandbox.run("cat /tmp/file /tmp/other").output == "content\nx"


def test_a_shell_that_does_not_save_its_state_can_be_copied(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = opened(SandboxSpec(workdir="/tmp"))
    sandbox.run("echo content > file")
    for command in ("kill -STOP $$", "declare() { while :; do :; done; }"):
        object.__setattr__(sandbox.spec.limits, "turn_timeout_s", 0.5)
        sandbox.run(f"(sleep 0.1; {command}) &" if "STOP" in command else command)
        time.sleep(0.3)
        snapshot, twin = sandbox.snapshot(), sandbox.fork()
        assert twin.run("cat file").output == "content\n"
        sandbox.restore(snapshot)
        assert sandbox.run("cat file", timeout_s=5).output == "content\n"
        twin.close()
        snapshot.discard()


def test_orphans_are_stopped_while_files_are_copied(sandbox: Sandbox) -> None:
    sandbox.run("cd /tmp; (while :; do echo $((++i)) > a; echo $i > b; done &) >/dev/null 2>&1")
    inside = sandbox._shell.processes()  # type: ignore[attr-defined]
    assert len(inside) == 2  # bash and the loop
    states = []

    def look(_: object) -> None:
        time.sleep(0.2)  # a signal is handled when its process runs next
        states.extend(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in inside)

    sandbox._while_stopped(look)  # type: ignore[attr-defined]
    assert states == ["T", "T"]
