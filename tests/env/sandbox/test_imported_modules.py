"""Modules that are imported once, and run as `python3 -m NAME` in each sandbox: nothing of it differs from a start."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.waiting import wait_until
from swegym_env.errors import SandboxError
from swegym_env.sandbox import Sandbox, SandboxSpec
from swegym_env.sandbox.api import CommandResult, Imports, Limits
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.sandbox.local import LocalSandbox
from tests.env.seen import ENTERED, SEEN

Opener = Callable[..., LocalSandbox]

UNITTEST = SandboxSpec(imports=Imports("-m", ("unittest",)))
COMMAND = ("python3", "-m", "unittest", "-v", "test_it")
PROGRAM = "import json, unittest\n" + SEEN


@pytest.fixture
def opened(opened: Callable[..., Sandbox]) -> Opener:
    """Opens started sandboxes of this machine that are closed with the test."""

    def open_one(spec: SandboxSpec | None = None) -> LocalSandbox:
        sandbox = opened(spec)
        assert isinstance(sandbox, LocalSandbox)
        return sandbox

    return open_one


def write(sandbox: LocalSandbox, *lines: str, program: str = PROGRAM) -> None:
    """A test that runs these lines."""
    body = "".join(f"        {line}\n" for line in lines)
    sandbox.write(
        "/testbed/test_it.py", f"{program}\nclass T(unittest.TestCase):\n    def test(self):\n{body}".encode()
    )


def run(sandbox: LocalSandbox, **limits: Any) -> CommandResult:
    """Run the tests in a fork; fails where they were not."""
    result = sandbox.run_module(COMMAND, **limits)
    assert result is not None, sandbox.imports_problem
    return result


def run_as_usual(sandbox: LocalSandbox) -> CommandResult:
    return sandbox.run(f"(\ncd /testbed\n{' '.join(COMMAND)}\n)")


def words_and_code(result: CommandResult) -> tuple[list[str], int]:
    """The output without times and what bash says of the end; sorted: standard output may be flushed later."""
    return sorted(re.sub(r"bash: line .*|Terminated|in [0-9.]+s", "", result.output).split()), result.exit_code


def imported_pid(sandbox: LocalSandbox) -> int:
    """The process that has imported the module, on the host."""
    assert sandbox._imported is not None
    return descendants(sandbox._imported.pid)[0]


def open_on(opened: Opener, pid: int, spec: SandboxSpec = UNITTEST) -> LocalSandbox:
    """A sandbox below the imported process `pid`, whose last one has been closed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        sandbox = opened(spec)
        if imported_pid(sandbox) == pid:
            return sandbox
        sandbox.close()
    raise AssertionError("the imported process is never free again")


def test_a_fork_finds_what_a_start_of_its_own_would_give_it(opened: Opener) -> None:
    found = []
    for spec, start in ((UNITTEST, run), (dataclasses.replace(UNITTEST, imports=None), run_as_usual)):
        sandbox = opened(spec)
        write(sandbox, "print(json.dumps(seen()))")
        result = start(sandbox)
        assert result.exit_code == 0, result.output
        found.append(json.loads(next(line for line in result.output.splitlines() if line.startswith("{"))))
    forked, usual = found
    for descriptors in (forked["fds"], usual["fds"]):  # a pipe that was opened by its name has O_LARGEFILE
        for number, (kind, name, flags) in descriptors.items():
            descriptors[number] = [kind, name.partition(":")[0], int(flags, 8) & ~0o100000]
    assert {what: (forked[what], usual[what]) for what in usual if forked[what] != usual[what]} == {}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("self.assertEqual(1, 1)", 0),
        ("self.assertEqual(1, 2)", 1),
        ("raise SystemExit(3)", 1),
        ("raise KeyboardInterrupt", 130),
        ("print('lost'); import os; os._exit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import atexit, sys; atexit.register(print, 'last words', file=sys.stderr)", 0),
    ],
)
def test_its_end_and_its_output_are_those_of_a_usual_start(opened: Opener, line: str, code: int) -> None:
    sandbox = opened(UNITTEST)
    write(sandbox, line, program="import unittest\nprint('out')\n")
    forked, usual = words_and_code(run(sandbox)), words_and_code(run_as_usual(sandbox))
    assert forked[1] == code
    assert forked == usual


def test_a_traced_program_that_stops_has_ended_as_for_a_shell(opened: Opener) -> None:
    for start in (run, run_as_usual):
        sandbox = opened(UNITTEST)
        write(sandbox, "import ctypes, os", "ctypes.CDLL(None).ptrace(0, 0, 0, 0)", "os.kill(os.getpid(), 19)")
        assert start(sandbox).exit_code == 128 + signal.SIGSTOP


def test_each_run_has_a_memory_of_its_own(opened: Opener) -> None:
    for _ in range(2):
        sandbox = opened(UNITTEST)
        marked = "unittest.TestCase.marked = getattr(unittest.TestCase, 'marked', 0) + 1"
        write(sandbox, marked, "self.assertEqual(self.marked, 1)", "self.assertEqual = None")
        assert run(sandbox).exit_code == 0
        assert run(sandbox).exit_code == 0


@pytest.mark.parametrize("name", ["argparse.py", "unittest/__init__.py", "re/__init__.py", "traceback.pyc"])
def test_modules_of_the_repository_that_would_be_imported_first_are(opened: Opener, name: str) -> None:
    sandbox = opened(UNITTEST)
    write(sandbox, "pass")
    sandbox.write(f"/testbed/{name}", b"raise SystemExit('mine')\n")
    assert sandbox.run_module(COMMAND) is None
    assert name.partition("/")[0] in sandbox.imports_problem


def test_a_directory_of_the_repository_in_a_pth_file_is_a_start_of_its_own(opened: Opener, public_path: Path) -> None:
    version = opened().run("python3 -c 'import sys; print(*sys.version_info[:2], sep=str())'").output  # "311"
    environment, repository = public_path / "environment", public_path / "repository"
    packages = environment / f"home/agent/.local/lib/python{version[0]}.{version[1:].strip()}/site-packages"
    for place in (packages, repository / "testbed" / "src"):
        place.mkdir(parents=True)
    (packages / "editable.pth").write_text("/testbed/src\n")
    for place in public_path.rglob("*"):
        place.chmod(0o755 if place.is_dir() else 0o644)
    sandbox = opened(dataclasses.replace(UNITTEST, layers=(environment, repository)))
    write(sandbox, "pass")
    assert sandbox.run_module(COMMAND) is None
    assert sandbox.imports_problem == "modules are looked for in /testbed/src"


def test_a_module_that_does_not_import_is_run_as_usual(opened: Opener) -> None:
    sandbox = opened(dataclasses.replace(UNITTEST, imports=Imports("-m", ("missing_module",))))
    assert sandbox.run_module(COMMAND) is None
    assert "missing_module" in sandbox.imports_problem
    assert sandbox.run("echo here").output == "here\n"


def test_the_limits_of_the_sandbox_hold(opened: Opener) -> None:
    sandbox = opened(dataclasses.replace(UNITTEST, limits=Limits(memory_bytes=256 << 20, processes=20)))
    write(sandbox, "blocks = []", "while True: blocks.append(bytearray(1 << 24))")
    forked, usual = run(sandbox), run_as_usual(sandbox)
    assert "MemoryError" in forked.output
    assert (forked.exit_code, forked.limit) == (usual.exit_code, usual.limit)
    write(sandbox, "import os", "children = [os.fork() or os.pause() for _ in range(40)]")
    assert "BlockingIOError" in run(sandbox).output


def test_as_many_processes_can_be_started_as_usual(opened: Opener) -> None:
    found = []
    for imports, start in ((UNITTEST.imports, run), (None, run_as_usual)):
        sandbox = opened(SandboxSpec(imports=imports, limits=Limits(processes=20)))
        lines = ("import os, time", "while True:", "    os.fork() or time.sleep(1000)", "    print('one', flush=True)")
        write(sandbox, *lines)
        result = start(sandbox)
        found.append((result.output.splitlines().count("one"), result.limit))
    assert found[0] == found[1]


def test_it_ends_at_the_timeout_and_leaves_nothing(opened: Opener) -> None:
    sandbox = opened(UNITTEST)
    write(sandbox, "import os, time", "os.fork()", "print('begun', flush=True)", "time.sleep(1000)")
    result = run(sandbox, timeout_s=1.0)
    assert result.timed_out
    assert "begun" in result.output
    assert imported_pid(sandbox)
    assert sandbox.run("echo on").output == "on\n", "the sandbox goes on in another shell"
    assert len(descendants(imported_pid(sandbox))) == 0, "nothing waits for what has ended"


def test_much_output_and_a_long_wait_lose_nothing(opened: Opener) -> None:
    sandbox = opened(UNITTEST)
    write(sandbox, "for number in range(100000): print(number)", "print(flush=True); import time; time.sleep(0.5)")
    result = run(sandbox, output_limit_bytes=8 << 20)
    assert result.exit_code == 0
    assert "\n".join(map(str, range(100000))) in result.output


def test_killing_the_imported_process_is_not_the_tests_fault(opened: Opener) -> None:
    sandbox = opened(UNITTEST)
    pid = imported_pid(sandbox)
    write(sandbox, "import os, time; os.rename('test_it.py', 'begun'); time.sleep(1000)")
    child = os.fork()
    if child == 0:
        wait_until(lambda: len(descendants(pid)) > 1, 30)
        os.kill(pid, signal.SIGKILL)
        os._exit(0)
    with pytest.raises(SandboxError, match="the imported program was ended"):
        sandbox.run_module(COMMAND, timeout_s=60) or run_as_usual(sandbox)  # it may not have started yet
    os.waitpid(child, 0)


def test_tests_that_cannot_be_forked_any_more_do_not_fail(opened: Opener) -> None:
    sandbox = opened(UNITTEST)
    write(sandbox, "pass")
    os.kill(imported_pid(sandbox), signal.SIGKILL)
    with pytest.raises(SandboxError, match="the imported program was ended"):
        sandbox.run_module(COMMAND) or run_as_usual(sandbox)


LOCK = """
import fcntl, os, time
fcntl.flock(os.open("/proc/self/exe", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
os.fork() or time.sleep(1000)
"""


def test_a_lock_on_the_interpreter_is_not_seen_by_other_runs(opened: Opener) -> None:
    for _ in range(2):
        sandbox = opened(UNITTEST)
        write(sandbox, "pass", program="import unittest\n" + LOCK)
        result = run(sandbox)
        assert result.exit_code == 0, result.output


def test_a_python_that_is_another_one_in_the_sandbox_is_started_as_usual(opened: Opener, public_path: Path) -> None:
    before, after = public_path / "before", public_path / "after"
    for place in (before, after):
        (place / "opt/python").mkdir(parents=True)
        shutil.copyfile(os.path.realpath("/usr/bin/python3"), place / "opt/python/python3")
    os.utime(after / "opt/python/python3", (1, 1))
    for place in public_path.rglob("*"):
        place.chmod(0o755)
    spec = dataclasses.replace(UNITTEST, layers=(before, after), path=("/opt/python",))
    sandbox = opened(spec)
    write(sandbox, "pass")
    assert sandbox.run_module(COMMAND) is None
    assert sandbox.imports_problem == "the sandbox has another Python"


def test_a_full_pipe_does_not_keep_what_waits_for_the_end(opened: Opener) -> None:
    sandbox = opened(UNITTEST)
    fill = "os.write(os.open('/.swegym/ended', os.O_RDWR | os.O_NONBLOCK), b'0\\n' + bytes(65534))"
    write(sandbox, "import os", fill, "os._exit(3)")
    assert run(sandbox).exit_code == 0, "the shell has read what the program wrote"
    pid = imported_pid(sandbox)
    sandbox.close()
    assert wait_until(lambda: len(descendants(pid)) == 0, 10)


DUMP = """
import os
out, memory = open("/tmp/dump", "wb"), open("/proc/self/mem", "rb", 0)
for line in list(open("/proc/self/maps")):
    place, kind = line.split()[:2]
    start, end = (int(word, 16) for word in place.split("-"))
    if kind == "rw-p" and memory.seek(start):
        out.write(b"%x %d\\n" % (start, end - start) + memory.read(end - start))
"""


def test_the_memory_of_a_fork_does_not_count_those_before_it(opened: Opener) -> None:
    dumps = []
    spec = dataclasses.replace(UNITTEST, limits=Limits(processes=100))  # a process that has forked never
    pid = 0
    for _ in range(6):
        sandbox = open_on(opened, pid, spec) if pid else opened(spec)
        pid = imported_pid(sandbox)
        write(sandbox, "pass", program="import unittest\n" + DUMP)
        assert run(sandbox).exit_code == 0
        dumps.append(_numbers(sandbox.read("/tmp/dump")))
        sandbox.close()
    common = set.intersection(*map(set, dumps))
    assert sum(len(dumps[0][place]) for place in common) > 1 << 20, "most of the memory is compared"
    counts = [
        (place, numbers)
        for place in common
        for numbers in zip(*(dump[place] for dump in dumps), strict=False)
        if 0 < (step := abs(numbers[1] - numbers[0])) < 1000
        and all(abs(after - before) == step for before, after in itertools.pairwise(numbers))
        and abs(numbers[-1] - numbers[0]) == step * (len(numbers) - 1)
    ]
    assert counts == []


def _numbers(dump: bytes) -> dict[int, memoryview]:
    """Where a part of the memory begins → its numbers of 32 bits."""
    found, at = {}, 0
    while at < len(dump):
        end = dump.index(b"\n", at)
        place, size = dump[at:end].split()
        at = end + 1 + int(size)
        found[int(place, 16)] = memoryview(dump[end + 1 : at]).cast("I")
    return found


def test_the_log_begins_with_the_run(opened: Opener) -> None:
    sandbox = opened(dataclasses.replace(UNITTEST, imports=Imports("-m", ("unittest", "logging"))))
    now = time.time()
    write(sandbox, "import logging", f"self.assertGreaterEqual(logging._startTime, {now})")
    assert run(sandbox).exit_code == 0


HOSTILE = (
    ENTERED
    + """
import signal
numbers = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found = {
    "entered": entered(["self", *numbers]),
    "unshared": libc.unshare(0x10000000),
    "capabilities": int(next(line for line in open("/proc/self/status") if line.startswith("CapEff")).split()[1], 16),
    "files": sorted(os.readlink(f"/proc/self/fd/{number}").partition(":")[0] for number in range(3)),
    "parent": os.getppid(),
}
unittest.TestCase.assertEqual = lambda *_: None
print(json.dumps(found), flush=True)
os.kill(-1, signal.SIGKILL)
"""
)


def test_hostile_tests_reach_neither_the_imported_process_nor_later_runs(opened: Opener) -> None:
    sandbox = opened(UNITTEST)
    pid = imported_pid(sandbox)
    write(sandbox, "pass", program="import json, unittest\n" + HOSTILE)
    result = sandbox.run_module(COMMAND)
    assert result is not None
    found = json.loads(next(line for line in result.output.splitlines() if line.startswith("{")))
    assert found == {
        "entered": [], "unshared": -1, "capabilities": 0, "files": ["/dev/null", "pipe", "pipe"], "parent": 0,
    }  # fmt: skip
    sandbox.close()
    later = open_on(opened, pid)
    write(later, "self.assertEqual(1, 2)")
    assert run(later).exit_code == 1
    assert imported_pid(later) == pid, "the same process has forked again"


def test_sandboxes_at_the_same_time_share_no_imported_process(opened: Opener) -> None:
    """What the kernel counts for the processes of both would tell one run of the other."""
    first, second = opened(UNITTEST), opened(UNITTEST)
    assert imported_pid(first) != imported_pid(second)
    pid = imported_pid(first)
    first.close()
    assert imported_pid(open_on(opened, pid)) == pid, "it is used again once everything of its sandbox has ended"


def test_what_it_opens_in_the_sandbox_leads_nowhere_else(opened: Opener) -> None:
    """A link in place of the pipe that reports the end, and a directory that was replaced meanwhile."""
    sandbox = opened(UNITTEST)
    write(sandbox, "pass")
    sandbox.run("rm /.swegym/ended; ln -s /proc/self/fd/0 /.swegym/ended")
    assert sandbox.run_module(COMMAND) is None
    assert "/.swegym/ended" in sandbox.imports_problem
    sandbox.run("rm /.swegym/ended")
    assert sandbox.run_module(COMMAND) is None
