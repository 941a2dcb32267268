"""Agents in Python that are imported once: they find what a start of their own would give them, and share nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.waiting import wait_until
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import AgentSpec, load_agent
from swegym_env.sandbox.client import supervisor
from swegym_env.sandbox.linux.processes import descendants
from tests.env.programs.conftest import ASK, Make
from tests.env.seen import ENTERED, SEEN

AGENT = "#!/usr/bin/env python3\nimport re\n" + ASK + SEEN
SMALL = "#!/usr/bin/env python3\n" + ASK
COMMAND = 'exec $SWEGYM_START "$SWEGYM_AGENT/agent.py" one "two  words"\n'


@pytest.fixture
def folder(public_directory: Path, request: pytest.FixtureRequest) -> Path:
    """The folder of an agent whose program `write` writes."""
    place = public_directory / f"imported-{abs(hash(request.node.name)) % 10**8}" / "seen"
    place.mkdir(parents=True)
    return place


def write(folder: Path, program: str, command: str = COMMAND, **imports: Any) -> AgentSpec:
    settings = {"command": command, "imports": {"program": "agent.py", **imports}}
    (folder / "agent.yaml").write_text(json.dumps(settings))
    (folder / "agent.py").write_text(program)
    (folder / "agent.py").chmod(0o755)
    for place in (folder, folder.parent):
        place.chmod(0o755)
    return load_agent(folder)


def first_message(env: SWEAgentEnv) -> Any:
    """What the agent says first, as JSON."""
    _, info = env.reset(seed=0)
    return json.loads(info["messages"][0]["content"])


def imported_pid(env: SWEAgentEnv) -> int:
    """The process that has imported the agent of `env`, on the host."""
    imported = env._sandbox._imported  # type: ignore[union-attr]
    assert imported is not None, env.imports_problem
    return descendants(imported.pid)[0]


def _arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.mark.parametrize("started", ["", "python3 "])
def test_an_imported_agent_finds_what_a_start_of_its_own_would_give_it(make: Make, folder: Path, started: str) -> None:
    command = COMMAND.replace("START ", f"START {started}")
    agent = write(folder, AGENT + "print(ask(json.dumps(seen())))\n", command)
    warm, cold = make(agent), make(dataclasses.replace(agent, imports=None))
    imported = first_message(warm)
    assert warm.imports_problem == ""
    assert warm._sandbox._imported is not None  # type: ignore[union-attr]
    usual = first_message(cold)
    assert cold._sandbox._imported is None  # type: ignore[union-attr]
    assert {what: imported[what] for what in usual if imported[what] != usual[what]} == {}
    for env in (warm, cold):
        *_, info = env.step("done")
        assert (info["end_reason"], info["exit_code"]) == ("submitted", 0)


def test_each_episode_has_random_numbers_and_a_memory_of_its_own(make: Make, folder: Path) -> None:
    program = """
import random
json.marked = getattr(json, "marked", 0) + 1
print(ask(json.dumps([random.random(), json.marked])))
"""
    env = make(write(folder, AGENT + program))
    first, again = first_message(env), first_message(env)
    assert env.imports_problem == ""
    assert first[1] == again[1] == 1, "the module was changed in a copy"
    assert first[0] != again[0]


@pytest.mark.parametrize(
    ("end", "reason", "code"),
    [
        ("sys.exit(3)", "crashed", 3),
        ("raise ValueError('wrong')", "crashed", 1),
        ("os.kill(os.getpid(), 9)", "crashed", 137),
        ("os.kill(os.getpid(), 15)", "crashed", 143),
        ("os._exit(0)", "submitted", 0),
        ("import atexit; atexit.register(print, 'last words')", "submitted", 0),
    ],
)
def test_its_end_is_seen_as_that_of_any_program(make: Make, folder: Path, end: str, reason: str, code: int) -> None:
    agent = write(folder, AGENT + f"ask('hello')\nprint('before')\nsys.stdout.flush()\n{end}\n")
    ends = []
    for spec in (agent, dataclasses.replace(agent, imports=None)):
        env = make(spec)
        env.reset(seed=0)
        assert env.imports_problem == ""
        observation, *_, info = env.step("go on")
        ends.append((info["end_reason"], info["exit_code"], observation.partition("bash: line")[0]))
    assert ends[0][:2] == (reason, code)
    assert ends[0] == ends[1], "with the same output"


HOSTILE = (
    ENTERED
    + r"""
import signal
result = {}
parent = os.getppid()
result["parent"] = parent
result["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
result["traced"] = [pid for pid in (1, parent) if libc.ptrace(16, pid, 0, 0) == 0]
result["entered"] = entered(["self", 1, 2, 3])
result["unshared"] = libc.unshare(0x10000000)
result["capabilities"] = [line for line in open("/proc/self/status") if line.startswith("CapEff")]
try:
    open("/proc/1/mem", "rb")
    result["memory"] = "read"
except OSError as error:
    result["memory"] = type(error).__name__
json.dumps = lambda value, **more: '"poisoned"'
import builtins
builtins.print = None
encode = json.JSONEncoder().encode
send(encode({"model": "m", "messages": [{"role": "user", "content": encode(result)}]}))
os.kill(-1, signal.SIGKILL)
"""
)


def test_a_hostile_episode_reaches_neither_the_imported_process_nor_later_ones(make: Make, folder: Path) -> None:
    hostile = "if 'hostile' in open(os.environ['SWEGYM_TASK']).read():\n" + "".join(
        f"    {line}\n" for line in HOSTILE.splitlines()
    )
    agent = write(folder, AGENT + hostile + "print(ask(json.dumps(['honest', json.dumps(1), os.getpid() < 20])))\n")
    env = make(agent)
    honest = first_message(env)
    assert env.imports_problem == ""
    assert honest == ["honest", "1", True], "with process ids of its own"
    pid = imported_pid(env)
    task = env.task
    env._examples = [dataclasses.replace(task, problem_statement="hostile")]
    result = first_message(env)
    assert (result["parent"], result["traced"], result["entered"], result["unshared"]) == (0, [], [], -1)
    assert result["memory"] in ("PermissionError", "FileNotFoundError")
    assert int(result["capabilities"][0].split()[1], 16) == 0
    *_, info = env.step("go on")
    assert info["end_reason"] == "crashed"
    env._examples = [task]
    assert first_message(env) == honest
    assert env.imports_problem == ""
    assert imported_pid(env) == pid, "the same process has forked again"
    env.step("done")
    env.close()
    assert wait_until(lambda: not descendants(pid), 30), "nothing of the episodes is left below it"


def test_killing_the_imported_process_ends_its_episodes_only_and_leaves_nothing(make: Make, folder: Path) -> None:
    agent = write(folder, AGENT + "print(ask('[1]'))\nprint(ask('[2]'))\n")
    env, other = make(agent), make(dataclasses.replace(agent, imports=None))
    first_message(env)
    first_message(other)
    pid = imported_pid(env)
    sandbox = env._sandbox
    below = [*descendants(sandbox._imported.pid), *sandbox._shell.processes()]  # type: ignore[union-attr]
    assert len(below) > 3
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not any(_arguments(each) for each in below), 30)
    _, reward, *_, info = env.step("go on")
    assert (info["end_reason"], info["valid"], reward) == ("error", False, 0.0), "the agent is not to blame"
    observation, *_ = other.step("go on")
    assert observation == "[2]"
    assert first_message(env) == [1], "the next episode has another one"
    assert env.imports_problem == ""
    assert imported_pid(env) != pid


@pytest.mark.parametrize(
    ("imported", "why"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n", "starts a thread"),
        ("kept = open('/etc/passwd')\n", "keeps a file open"),
        ("import mmap\nkept = mmap.mmap(-1, 4096)\n", "shares memory"),
        ("import missing_module\n", "importing failed"),
        ("import os\nos.environ['SHLVL_']\n", "importing failed"),
        ("import os\nwhere = os.environ['SWEGYM_TEST_COMMAND']\n", ""),
    ],
)
def test_what_a_fork_would_change_is_started_as_usual_and_says_so(
    make: Make, folder: Path, imported: str, why: str
) -> None:
    (folder / "part.py").write_text(imported)
    guarded = "try:\n    import part\nexcept (ImportError, KeyError):\n    pass\n"
    agent = write(folder, SMALL + guarded + "print(ask('[1]'))\n", modules=["part"])
    env = make(agent)
    assert first_message(env) == [1]
    assert why in env.imports_problem if why else env.imports_problem == ""
    *_, info = env.step("done")
    assert info["exit_code"] == 0


def test_a_variable_that_an_import_reads_must_be_the_same(make: Make, folder: Path) -> None:
    part = "import os\nwhere = os.environ.get('SPECIAL', 'none')\nos.environ['ADDED'] = 'yes'\n"
    (folder / "part.py").write_text(part)
    program = "import part\nprint(ask(json.dumps([part.where, os.environ['ADDED']])))\n"
    command = 'if [ -e "$SWEGYM_TASK" ] && grep -q special "$SWEGYM_TASK"; then export SPECIAL=set; fi\n' + COMMAND
    env = make(write(folder, SMALL + program, command, modules=["part"]))
    assert first_message(env) == ["none", "yes"]
    assert env.imports_problem == ""
    env._examples = [dataclasses.replace(env.task, problem_statement="special")]
    assert first_message(env) == ["set", "yes"]
    assert "SPECIAL" in env.imports_problem


@pytest.mark.parametrize("name", [".env", "~/.env", "/tmp/own.env"])
def test_a_file_that_is_read_before_an_import_must_not_be_there(make: Make, folder: Path, name: str) -> None:
    program = "print(ask(json.dumps(os.environ['LATER'])))\n"
    create = f'if grep -q special "$SWEGYM_TASK"; then echo x > {name}; fi\n'
    (folder / "part.py").write_text("import os\nos.environ['LATER'] = 'set'\n")
    agent = write(folder, SMALL + "import part\n" + program, create + COMMAND, modules=["part"], unless=[name])
    env = make(agent)
    assert first_message(env) == "set"
    assert env.imports_problem == ""
    env._examples = [dataclasses.replace(env.task, problem_statement="special")]
    assert first_message(env) == "set"
    assert f"there is the file {name}" in env.imports_problem


def test_it_can_be_switched_off(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEGYM_WITHOUT", "imports")
    env = make(write(folder, SMALL + "print(ask('[1]'))\n"))
    assert first_message(env) == [1]
    assert env.imports_problem == "switched off by SWEGYM_WITHOUT"


@pytest.mark.parametrize(
    ("before", "problem"), [("ulimit -n 50; ", "may open few"), ("exec 60</dev/null; ", "many files open"), ("", "")]
)
def test_few_or_many_descriptors_are_those_of_a_usual_start(
    make: Make, folder: Path, before: str, problem: str
) -> None:
    program = "import resource\nprint(ask(json.dumps(resource.getrlimit(resource.RLIMIT_NOFILE))))\n"
    agent = write(folder, SMALL + program, before + COMMAND)
    env, usual = make(agent), make(dataclasses.replace(agent, imports=None))
    assert first_message(env) == first_message(usual)
    assert problem in env.imports_problem if problem else env.imports_problem == ""


def test_another_hash_seed_is_a_start_of_its_own(make: Make, folder: Path) -> None:
    program = "print(ask(json.dumps(hash('seed'))))\n"
    agent = write(folder, SMALL + program)
    hashes = []
    for seed in ("0", "1", "random"):
        env = make(dataclasses.replace(agent, command=f"export PYTHONHASHSEED={seed}\n{COMMAND}"))
        hashes.append(first_message(env))
        assert ("PYTHONHASHSEED" in env.imports_problem) == (seed != "0")
    assert len(set(hashes)) == 3


def test_its_work_counts_for_the_limits_of_its_sandbox(make: Make, folder: Path) -> None:
    program = "print(ask('[1]'))\nblocks = []\nwhile True:\n    blocks.append(bytearray(1 << 24))\n"
    agent = write(folder, SMALL + program)
    env, beside = make(agent, limits={"memory_bytes": 256 << 20}), make(agent)
    assert first_message(env) == first_message(beside) == [1]
    assert env.imports_problem == beside.imports_problem == ""
    *_, info = env.step("go on")
    assert info["end_reason"] == "crashed"
    assert stat.S_ISDIR(os.stat(f"/proc/{imported_pid(beside)}").st_mode), "the imported process goes on"


# Stands in the place of `join`, looks at the process that is about to become the program, and lies to it.
LIAR = r""": in place of $SWEGYM_START
exec python3 -I -S -c '
import json, socket, struct, sys
exec(open("/.swegym/imported.py").read().partition("def _main()")[0])
import resource
def text(path):
    with open(path, errors="replace") as file:
        return file.read()
def open_files(pid):
    return [os.readlink(f"/proc/{pid}/fd/{number}").partition("[")[0] for number in os.listdir(f"/proc/{pid}/fd")]
found, limits = {}, _limits()
class Listener(socket.socket):
    def _accept(self):
        descriptor, address = super()._accept()
        with socket.socket(fileno=os.dup(descriptor)) as other:
            pid, _, _ = struct.unpack("3i", other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        status = dict(line.split(":", 1) for line in text(f"/proc/{pid}/status").splitlines() if ":" in line)
        found["filters"] = status["Seccomp_filters"].split()
        found["capabilities"] = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
        group, session = text(f"/proc/{pid}/stat").rpartition(")")[2].split()[2:4]
        found["group"], found["session"] = int(group) - pid, int(session) - pid
        found["open"] = sorted(set(open_files(pid)))
        theirs, ours = resource.prlimit(pid, resource.RLIMIT_NPROC), resource.getrlimit(resource.RLIMIT_NPROC)
        found["more processes"] = theirs[1] - ours[1]
        limits[resource.RLIMIT_NPROC] = theirs[1], theirs[1]
        with open("/tmp/found", "w") as file:
            json.dump(found, file)
        return descriptor, address
class _socket(socket._socket.__class__):
    def __getattr__(self, name):
        return getattr(socket._socket, name)
_socket = _socket("_socket")
_socket.socket = Listener
_limits = lambda: limits
_join([os.environ["SWEGYM_AGENT"] + "/agent.py"])
'
"""


def test_what_starts_it_may_look_at_it_and_lie_and_gains_nothing(make: Make, folder: Path) -> None:
    program = """
import resource
found = json.load(open("/tmp/found"))
found["processes"] = resource.getrlimit(resource.RLIMIT_NPROC)
print(ask(json.dumps(found)))
"""
    env = make(write(folder, SMALL + program, LIAR))
    found = first_message(env)
    assert env.imports_problem == ""
    assert found["capabilities"] == [0, 0, 0, 0]
    assert found["filters"] == ["2"]
    assert set(found["open"]) <= {"pipe:", "socket:"}, "no file of the process that imports, and no namespace"
    assert (found["group"], found["session"]) == (0, 0), "no signal to its group reaches others"
    assert found["more processes"] == 0
    assert found["processes"] == [env._sandbox.spec.limits.processes] * 2  # type: ignore[union-attr]


def test_what_happens_in_one_sandbox_does_not_stop_the_imported_program_from_serving_others(
    make: Make, folder: Path
) -> None:
    agent = write(folder, SMALL + "print(ask('[1]'))\n")
    env = make(agent)
    first_message(env)
    sandbox = env._sandbox
    imported = sandbox._imported  # type: ignore[union-attr]
    assert imported is not None
    name = sandbox._directory.path.name  # type: ignore[union-attr]
    shell = sandbox._shell  # type: ignore[union-attr]
    bash, shell.pid = shell.pid, os.getpid()  # as if the sandbox had ended, and its process's id had been given again
    assert "setns" in imported.fork(name, shell, sandbox._launched_with)  # type: ignore[union-attr]
    shell.pid = bash
    other = make(agent)
    assert first_message(other) == [1]
    assert other.imports_problem == ""
    assert other._sandbox._imported is imported  # type: ignore[union-attr]


def test_the_end_of_a_sandbox_kills_no_process_that_was_given_its_id(make: Make, folder: Path) -> None:
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not os.access(last, os.W_OK):
        pytest.skip("the id of the next process cannot be chosen (run the tests as root)")
    env = make(write(folder, SMALL + "print(ask('[1]'))\n"))
    first_message(env)
    assert env.imports_problem == ""
    bash = env._sandbox._shell.pid  # type: ignore[union-attr]
    first = int(Path(f"/proc/{bash}/stat").read_text().rpartition(")")[2].split()[1])
    above = supervisor().pid
    os.kill(above, signal.SIGSTOP)  # it does not hear of the sandbox's end
    try:
        os.kill(first, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{first}").exists(), 30), "what started it has waited for it"
        others: list[subprocess.Popen[bytes]] = []
        while (not others or others[-1].pid != first) and len(others) < 200:
            last.write_text(str(first - 1))
            others.append(subprocess.Popen(["sleep", "60"]))
        supervisor().send({"do": "end", "id": env._sandbox._directory.path.name})  # type: ignore[union-attr]
    finally:
        os.kill(above, signal.SIGCONT)
    try:
        assert others[-1].pid == first, "the id was not given again"
        with contextlib.suppress(subprocess.TimeoutExpired):
            others[-1].wait(2)
        assert others[-1].poll() is None
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_where_no_process_is_left_it_goes_on_and_serves_again_later(make: Make, folder: Path) -> None:
    agent = write(folder, SMALL + "print(ask('[1]'))\nprint(ask('[2]'))\n")
    env = make(agent)
    first_message(env)
    pid = imported_pid(env)
    user = os.stat(f"/proc/{pid}").st_uid
    if user == os.geteuid():
        pytest.skip("it has no user of its own whose processes could be limited (run the tests as root)")

    def limit_processes(most: int) -> None:  # as that user: root may lack the capability
        command = ["prlimit", f"--pid={pid}", f"--nproc={most}:"]
        subprocess.run(command, user=user, group=user, extra_groups=[], check=True)

    before = resource.getrlimit(resource.RLIMIT_NPROC)[0]  # inherited
    limit_processes(1)
    refused = make(agent)
    assert first_message(refused) == [1]
    assert "no process is left" in refused.imports_problem
    limit_processes(before)
    later = make(agent)
    assert first_message(later) == [1]
    assert (later.imports_problem, imported_pid(later)) == ("", pid)
    observation, *_ = env.step("go on")
    assert observation == "[2]"
