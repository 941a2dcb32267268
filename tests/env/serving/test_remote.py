"""The remote back end gives the same results as the back ends of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import math
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import gymnasium
import pytest

import swegym_env  # noqa: F401 - registers the environments
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.grading.grading import grade
from swegym_env.sandbox import CommandResult, Sandbox, SandboxSpec, open_sandbox
from swegym_env.sandbox.remote.connection import ServerClient
from swegym_env.tasks.datasets import load_tasks
from tests.env.serving.conftest import Served, assert_eventually

INSTANCE = "mini__calends-001"


def episode(sandbox: str, **options: Any) -> list[Any]:
    """Every result of an episode that repairs the task and changes files of all sorts."""
    env = gymnasium.make("SWEBench-v0", sandbox=sandbox, pool=0, **options)
    results: list[Any] = [env.reset(seed=0, options={"instance_id": INSTANCE})]
    gold = load_tasks("mini")[INSTANCE].patch
    for command in (
        "cd /testbed; x=7; ls",
        f"cat > /tmp/p <<'END'\n{gold}\nEND\ngit apply /tmp/p",
        "printf 'caf\\351\\n\\000\\n' > 'latin 1'; ln -s nowhere link; chmod +x *.md; rm -r tests; echo $x",
        "echo 'é' > utf8; exit 3",
        "false",
    ):
        results.append(env.step(f"<execute>{command}</execute>"))
    results.append(env.step("nothing that can be read"))
    results.append(env.step("<execute>submit</execute>"))
    env.close()
    return results


def test_a_remote_episode_equals_the_local_one(service: Served) -> None:
    local, remote = episode("auto"), episode(service.url)
    assert remote == local
    assert local[-1][1] == 1.0 and local[-1][4]["resolved"] and "latin 1" in local[-1][4]["patch"]


def test_tools_are_sent_with_the_task(server: Served) -> None:
    def use(sandbox: str) -> list[Any]:
        env = SWEBenchEnv(sandbox=sandbox, tools="default", pool=0)
        env.reset(options={"instance_id": INSTANCE})
        results = [
            env.step(f"<execute>{command}</execute>") for command in ("view setup.cfg || view README.md", "submit")
        ]
        env.close()
        return results

    assert use(server.url) == use("auto")


def test_what_a_server_refuses_to_read_is_refused_with_the_same_reason(server: Served) -> None:
    def use(sandbox: str) -> list[Any]:
        env = SWEBenchEnv(sandbox=sandbox, action_format="raw", limits={"patch_files": 40}, pool=0)
        env.reset(options={"instance_id": INSTANCE})
        results: list[Any] = [env.step("mkdir f; touch f/{1..50}; truncate -s 2G /tmp/large; echo done")]
        inside, _ = env._live()
        with pytest.raises(OSError) as caught:
            inside.read("/tmp/large")
        results += [caught.value.errno, env.step("submit")]
        env.close()
        return results

    local, remote = use("auto"), use(server.url)
    assert remote == local
    assert "it changes more than 40 files" in remote[0][0] and remote[1] == errno.EFBIG
    assert remote[2][4]["valid"] and "more than 40 files" in remote[2][4]["failure_reason"]


def test_a_remote_verdict_equals_the_local_one(service: Served) -> None:
    task = load_tasks("mini")[INSTANCE]
    for patch in (task.patch, ""):
        local, remote = grade(task, patch), grade(task, patch, backend=service.url)
        timeless = {"duration_s": 0.0, "test_duration_s": 0.0, "control_duration_s": 0.0, "log": ""}
        assert dataclasses.replace(remote, **timeless) == dataclasses.replace(local, **timeless)
        assert remote.resolved == bool(patch)


def test_the_server_grades_other_task_types(server: Served) -> None:
    env: Any = gymnasium.make("KodCode-v0", sandbox=server.url).unwrapped
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(f"```python\n{env.example.solution}\n```")
    assert (reward, terminated, info["valid"]) == (1.0, True, True)


def opened(service: Served) -> Sandbox:
    sandbox = open_sandbox(SandboxSpec(workdir="/tmp", env={"GIVEN": "a b"}), backend=service.url)
    sandbox.start()
    return sandbox


def test_a_sandbox_that_was_forgotten_is_destroyed_with_the_next_start(service: Served) -> None:
    before = service.settled_containers()
    forgotten = opened(service)
    assert service.containers() == before + 1
    del forgotten
    gc.collect()
    with contextlib.closing(opened(service)):
        assert_eventually(lambda: service.containers() == before + 1, "the end of the forgotten one")


def test_files_and_their_errors_equal_the_local_ones(service: Served) -> None:
    sandbox = opened(service)
    content = bytes(range(256)) * 400
    sandbox.write("deep/er/file", content, mode=0o755)
    assert sandbox.read("deep/er/file") == content
    assert sandbox.run("test -x deep/er/file && echo $GIVEN").output == "a b\n"
    assert [(each.path, each.kind, each.host_path) for each in sandbox.changes("/tmp/deep")] == [
        ("er/file", "written", None)
    ]
    with pytest.raises(FileNotFoundError):
        sandbox.read("nothing")
    with pytest.raises(IsADirectoryError):
        sandbox.write("deep", b"")
    sandbox.run("mkdir -m 000 shut")
    with pytest.raises(PermissionError):
        sandbox.write("shut/file", b"")
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run("true")


def test_the_shell_survives_a_command_timeout(service: Served) -> None:
    sandbox = opened(service)
    result = sandbox.run("kept=1; cd /usr; sleep 60", timeout_s=0.5)
    assert (result.timed_out, result.exit_code, result.limit) == (True, 124, "time")
    assert sandbox.run("echo $kept $PWD").output == "1 /usr\n"
    many = sandbox.run("head -c 100000 /dev/zero | tr '\\0' x", output_limit_bytes=1000)
    assert many.truncated_bytes > 0 and len(many.output) < 2000
    sandbox.close()


def test_a_command_that_no_shell_takes_is_an_observation_and_an_endless_timeout_an_error(service: Served) -> None:
    sandbox = opened(service)
    for command, held in (("echo a\0b", "a NUL byte"), ("echo \ud83d", "half of a surrogate pair")):
        assert sandbox.run(command) == CommandResult(f"bash: a command cannot hold {held}\n", 2)
    for timeout_s in (math.inf, 1e12):
        with pytest.raises(ConfigurationError, match="timeout_s"):
            sandbox.run("true", timeout_s=timeout_s)
    assert sandbox.run("echo on").output == "on\n"
    sandbox.close()


def test_a_running_command_is_interrupted_from_another_thread(service: Served) -> None:
    sandbox = opened(service)
    sandbox.run("kept=1; echo before > file")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(sandbox.run, "sleep 600 & sleep 600", timeout_s=600)
        assert_eventually(lambda: interrupted(sandbox, running), "the command ends")
    assert running.result().exit_code == 137
    assert sandbox.run("cat file; pgrep sleep").output == "before\n"
    sandbox.close()
    sandbox.interrupt()


def interrupted(sandbox: Sandbox, running: Future[CommandResult]) -> bool:
    """Whether a command has ended after it was interrupted; it may not have begun before."""
    sandbox.interrupt()
    return running in wait([running], timeout=1)[0]


@pytest.mark.parametrize("begun_s", [0.0, 0.01, 1.0])
def test_a_container_that_is_destroyed_does_not_wait_for_its_command(service: Served, begun_s: float) -> None:
    before = service.settled_containers()
    sandbox = opened(service)
    container = sandbox._container  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(sandbox.run, "sleep 600", timeout_s=600)
        assert not wait([running], timeout=begun_s)[0]
        assert service.ask("/container/destroy", {"container": container})[1] == {"ended": True}
        assert_eventually(lambda: service.containers() <= before, "the container ends")
        running.exception()  # whichever came first: the end of the command, or that of the container
    sandbox.close()


def test_snapshots_and_forks_are_independent(service: Served) -> None:
    before = service.settled_containers()
    sandbox = opened(service)
    sandbox.run("x=1; echo one > file")
    snapshot = sandbox.snapshot()
    sandbox.run("x=2; echo two > file")
    twin = sandbox.fork()
    sandbox.restore(snapshot)
    assert sandbox.run("cat file; echo $x").output == "one\n1\n"
    assert twin.run("cat file; echo $x").output == "two\n2\n"
    assert service.containers() == before + 2
    snapshot.discard()
    snapshot.discard()
    with pytest.raises(SandboxError, match=r"no snapshot|no container"):
        sandbox.restore(snapshot)
    sandbox.close()
    twin.close()
    assert_eventually(lambda: service.containers() == before, "both are ended")


def test_a_snapshot_is_restored_after_the_end_of_its_episode(server: Served) -> None:
    before = server.settled_containers()
    env = SWEBenchEnv("mini-edit", sandbox=server.url, action_format="raw", pool=0)
    env.reset(seed=0)
    env.step("echo first > note.txt")
    snapshot = env.snapshot()
    assert env.step("submit")[2]
    assert_eventually(lambda: server.containers() == before, "its container is ended")
    env.restore(snapshot)
    assert env.step("cat note.txt")[0] == "first\n[exit code 0]"
    snapshot.discard()
    env.close()


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (SandboxSpec(image="/etc"), "image: expected 'host' or an address"),
        (SandboxSpec(binds={"/etc": "/mnt"}), "not available there"),
        (SandboxSpec(network=True), "not available there"),
        (SandboxSpec(env={"a=b": "c"}), "env"),
    ],
)
def test_an_unsupported_specification_is_rejected_in_one_line(service: Served, spec: SandboxSpec, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as refusal:
        open_sandbox(spec, backend=service.url).start()
    assert "\n" not in str(refusal.value)


def test_a_wrong_address_or_token_is_a_configuration_error(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("http://", "http://user:secret@host:1", "http://host:port", "http://host:1/path"):
        with pytest.raises(ConfigurationError, match="sandbox 'http"):
            open_sandbox(SandboxSpec(), backend=address)
    with pytest.raises(ConfigurationError, match=r"swegym serve --repos"):
        SWEBenchEnv(sandbox=server.url, repos="/clones")
    for variable in ("SWEGYM_PATIENCE_S", "SWEGYM_WAIT_S"):
        for text in ("long", "-1", "nan"):
            with monkeypatch.context() as changed:
                changed.setenv(variable, text)
                with pytest.raises(ConfigurationError, match=f"{variable}: .*'{text}'"):
                    ServerClient(server.url, "")
    monkeypatch.setenv("SWEGYM_TOKEN", "another-token-0123456789")
    with pytest.raises(ConfigurationError, match="token is missing or wrong"):
        open_sandbox(SandboxSpec(), backend=server.url).start()
    monkeypatch.delenv("SWEGYM_TOKEN")
    with pytest.raises(ConfigurationError, match="SWEGYM_TOKEN"):
        open_sandbox(SandboxSpec(), backend=server.url)
