"""Servers and clients of OpenEnv, with the real package: `scripts/test_adapter.sh openenv` runs this."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from openenv.core import GenericEnvClient, MCPToolClient
from openenv.core.env_server import CallToolAction, ListToolsAction

import swegym_env  # noqa: F401 - registers the environments
from benchmarks.waiting import wait_until
from swe_trainers.rollout.conformance import check_env
from swegym_env.adapters.openenv import SwegymAction
from swegym_env.adapters.openenv_client import SwegymClient
from swegym_env.agent.search_replace import Block, write_blocks
from swegym_env.answers.file_repair import FileRepair
from swegym_env.env import SWEBenchEnv
from swegym_env.errors import ConfigurationError, InfrastructureError
from swegym_env.sandbox.linux.processes import descendants
from swegym_env.tasks.datasets import load_examples, load_tasks
from tests.env.sandbox.test_reaping import commands, sandboxes, users
from tests.places import own_run_directory
from tests.warm import ForkedProcess, warm_python

TASK = load_tasks("mini")["mini__lrucache-001"]
OTHER = "mini__typeset-005"
REPAIR = f"git apply - <<'END_OF_PATCH'\n{TASK.patch}END_OF_PATCH"
OPENENV = str(Path(sys.executable).with_name("openenv"))
SERVE = textwrap.dedent("""
    import socket, sys
    import uvicorn
    {making}
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{{listener.getsockname()[1]}}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
""")
SWEBENCH = """
from swegym_env.adapters.openenv import make_app
app = make_app("SWEBench-v0", dataset="mini", sessions=3, turn_timeout_s=5)
"""
# What OpenEnv's own package has no sample of: tools, an action of numbers, and an environment that fails.
SMALL = """
from fastmcp import FastMCP
from openenv.core.env_server import Action, CallToolAction, MCPEnvironment, Observation, State, create_app

class Guess(Action):
    number: int

class Answer(Observation):
    reply: str = ""

class Guessing(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("guessing")
        @server.tool
        def guess(number: int) -> str:
            "Guess a number."
            return "right" if number == self.number else "wrong"
        super().__init__(server)
        self.number, self._state = 0, State()

    def reset(self, seed=None, episode_id=None, most=9, **_):
        self.number = (seed or 0) % (most + 1)
        self._state = State(episode_id=episode_id)
        return Answer(reply=f"Guess a number from 0 to {most}.")

    def _step_impl(self, action, timeout_s=None, **_):
        self._state.step_count += 1
        if action.number < 0:
            raise OverflowError("the machine is full")
        right = action.number == self.number
        return Answer(reply="right" if right else "wrong", done=right, reward=float(right))

    @property
    def state(self):
        return self._state

app = create_app(Guessing, ACTION, Answer, max_concurrent_envs=4)
"""


Start = Callable[..., AbstractContextManager[ForkedProcess]]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a program with arguments, in a fork of a process that has imported OpenEnv: importing it takes seconds."""
    folder = tmp_path_factory.mktemp("programs")
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    modules = ("uvicorn", "fastmcp", "openenv.core.env_server", "swegym_env.adapters.openenv", "swegym_env.env")
    with warm_python(folder, variables, (*modules, "swegym_env.adapters.openenv_client")) as warm:

        @contextmanager
        def started(program: str, *arguments: str) -> Iterator[ForkedProcess]:
            path = folder / f"{secrets.token_hex(6)}.py"
            path.write_text(program)
            process = warm.start("tests.warm:run_file", str(path), *arguments)
            try:
                yield process
            finally:
                process.kill()

        yield started


@contextmanager
def served(start: Start, making: str) -> Iterator[tuple[ForkedProcess, str]]:
    """A server, and its address."""
    with start(SERVE.format(making=making)) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), "the server has not started"
        yield process, address


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A run directory of its own, in which leftovers can be counted."""
    with own_run_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def ours(place: Path, start: Start) -> Iterator[str]:
    with served(start, SWEBENCH) as (_, address):
        yield address


@pytest.fixture(scope="module")
def guessing(start: Start) -> Iterator[Callable[[str], str]]:
    """Starts a server of the small environment with an action class."""
    started: dict[str, Any] = {}

    def address(action: str) -> str:
        if action not in started:
            making = served(start, SMALL.replace("ACTION", action))
            started[action] = (making, making.__enter__()[1])
        return str(started[action][1])

    yield address
    for making, _ in started.values():
        making.__exit__(None, None, None)


def at_work(place: Path) -> bool:
    """Whether there is a sandbox. The image's container, and what reads patches, stay as long as the server."""
    return any(name.endswith("-sandbox") for name in sandboxes(place)) or any(
        b"sleep" in command for command in commands(users(place))
    )


def eventually(condition: Callable[[], bool]) -> bool:
    return wait_until(condition, 30)


def test_an_episode_by_texts_and_calls_is_that_of_the_environment(ours: str) -> None:
    env = SWEBenchEnv("mini", action_format="swegym_env.adapters.openenv:CALLS", turn_timeout_s=5)
    expected, expected_info = env.reset(options={"instance_id": TASK.instance_id})
    env.close()
    with SwegymClient(base_url=ours).sync() as client:
        first = client.reset(instance_id=TASK.instance_id, episode_id="mine")
        assert (first.observation.text, first.reward, first.done) == (expected, None, False)
        assert first.metadata["tools"] == expected_info["tools"]
        assert first.metadata["system_prompt"] == expected_info["system_prompt"]
        moved = client.step("<execute>cd lrucache; ME=7; printf '\\351'; false</execute>")
        assert (moved.reward, moved.done, moved.metadata["exit_code"]) == (0.0, False, 1)
        assert moved.observation.text.startswith("\ufffd")
        again = client.step(SwegymAction(tool_name="bash", arguments={"command": "pwd; echo \"$ME ü\"'```bash'"}))
        assert again.observation.text.startswith("/testbed/lrucache\n7 ü```bash\n")  # one shell
        wrong = client.step(SwegymAction(tool_name="bash", arguments={"comand": "ls"}))
        assert "takes one argument, command" in wrong.metadata["action_error"] and not wrong.done
        client.step(SwegymAction(tool_name="bash", arguments={"command": f"cd /testbed; {REPAIR}"}))
        state = client.state()
        assert (state.episode_id, state.step_count, state.instance_id) == ("mine", 4, TASK.instance_id)
        last = client.step("submit")
        assert (last.reward, last.done, last.observation.truncated) == (1.0, True, False)
        assert last.metadata["resolved"] is True and last.metadata["valid"] is True
        assert client.state().outcome == {
            "valid": True,
            "reward": 1.0,
            "resolved": True,
            "fail_to_pass": [len(TASK.fail_to_pass)] * 2,
            "pass_to_pass": [len(TASK.pass_to_pass)] * 2,
            "end_reason": "submitted",
            "failure_reason": "",
        }
        with pytest.raises(RuntimeError, match=r"the episode is over.*EXECUTION_ERROR"):
            client.step("ls")


def test_wrong_requests_are_errors_of_the_protocol(ours: str) -> None:
    with SwegymClient(base_url=ours).sync() as client:
        for call, message in (
            (lambda: client.step("ls"), "reset first"),
            (lambda: client.reset(instance_id="nothing"), "no instance 'nothing'"),
            (lambda: client.reset(difficulty=3), "reset: unknown option 'difficulty'"),
        ):
            with pytest.raises(RuntimeError, match=message):
                call()
        assert client.state().step_count == 0
        assert client.reset(seed=0).observation.text  # the session goes on


def test_after_a_failed_reset_no_call_begins_an_episode_of_another_task(ours: str) -> None:
    with MCPToolClient(base_url=ours).sync() as client:
        for wrong in ({"instance_id": "nothing"}, {"difficulty": 3}):
            with pytest.raises(RuntimeError):
                client.reset(**wrong)
            with pytest.raises(RuntimeError, match="reset first"):
                client.call_tool("bash", command="pwd")
        client.reset(instance_id=TASK.instance_id)
        assert client.call_tool("bash", command="pwd").startswith("/testbed\n")


def test_an_agent_cannot_make_its_episode_invalid_by_the_size_of_its_patch(ours: str) -> None:
    """Each of these characters takes six bytes of JSON: more than OpenEnv's clients take in a message."""
    bomb = r"for i in 1 2; do head -c 9500000 /dev/zero | tr '\0' '\1' | fold -w 1000 >bomb$i; done"
    env = gymnasium.make("OpenEnv-v0", url=ours)
    env.reset(options={"instance_id": TASK.instance_id})
    *_, truncated, info = env.step(f"<execute>{bomb}</execute>")
    assert not truncated and 6 * info["left_out"]["patch"] > 100 << 20
    env.step("<execute>rm bomb1 bomb2</execute>")  # grading such a patch takes long
    *_, terminated, truncated, info = env.step("submit")
    assert (terminated, truncated, info["valid"], info["resolved"]) == (True, False, True, False)
    env.close()


def test_openenvs_own_tool_client_plays_over_mcp(ours: str) -> None:
    with MCPToolClient(base_url=ours).sync() as client:
        assert [tool.name for tool in client.list_tools()] == ["bash", "submit"]
        assert TASK.problem_statement in client.reset(instance_id=TASK.instance_id).observation.text
        assert client.call_tool("bash", command="pwd").startswith("/testbed\n")
        assert "no function 'nothing'" in client.call_tool("nothing")
        client.call_tool("bash", command=REPAIR)
        assert client.state().step_count == 3
        stepped = client.step(CallToolAction(tool_name="bash", arguments={"command": "git diff --stat"}))
        assert stepped.observation.tool_name == "bash" and "1 file changed" in stepped.observation.result["data"]
        client.call_tool("submit")
        with pytest.raises(RuntimeError, match="the episode is over"):
            client.call_tool("bash", command="ls")


def test_tools_can_be_listed_and_called_before_a_reset(ours: str) -> None:
    with GenericEnvClient(base_url=ours).sync() as client:
        tools = client.step(ListToolsAction()).observation["tools"]
        assert tools[0]["input_schema"]["required"] == ["command"]
        called = client.step(CallToolAction(tool_name="bash", arguments={"command": "pwd"}))
        assert called.observation["result"]["data"].startswith("/testbed\n")


def test_sessions_play_episodes_of_their_own_and_close_their_sandboxes(ours: str, place: Path) -> None:
    assert eventually(lambda: not at_work(place))
    clients = [SwegymClient(base_url=ours).sync() for _ in range(3)]
    answers: dict[int, str] = {}

    def play(number: int) -> None:
        client = clients[number]
        client.reset(instance_id=TASK.instance_id if number else OTHER)
        client.step(f"<execute>echo {number} > /tmp/number; sleep 1</execute>")
        answers[number] = client.step("<execute>cat /tmp/number; ls</execute>").observation.text

    threads = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answers[number][0] for number in range(3)] == ["0", "1", "2"]
    assert ["typeset" in answers[number] for number in range(3)] == [True, False, False]
    assert at_work(place)
    with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
        SwegymClient(base_url=ours).sync().reset()
    for client in clients:
        client.close()
    assert eventually(lambda: not at_work(place))


def test_openenv_validate_passes(ours: str) -> None:
    ran = subprocess.run(
        [OPENENV, "validate", "--url", ours, "--json", "--timeout", "60"], capture_output=True, text=True, check=False
    )
    report = json.loads(ran.stdout)
    assert (ran.returncode, report["passed"]) == (0, True)
    assert report["summary"]["passed_count"] == report["summary"]["total_count"] == 6


def test_other_environments_are_served_and_take_no_calls(start: Start) -> None:
    making = """
from swegym_env.adapters.openenv import make_app
app = make_app("FileRepair-v0")
"""
    example = load_examples(FileRepair, "file-repair-mini")[0]
    with served(start, making) as (_, address), SwegymClient(base_url=address).sync() as client:
        client.reset(instance_id=example.instance_id)
        with pytest.raises(RuntimeError, match="no tools to call"):
            client.step(SwegymAction(tool_name="bash", arguments={}))
        last = client.step(write_blocks([Block(example.path, example.source, example.solution)]))
        assert (last.reward, last.done) == (1.0, True)


def test_a_wrong_argument_is_found_before_serving() -> None:
    from swegym_env.adapters.openenv import make_app

    with pytest.raises(ConfigurationError, match="turn_timeout_s"):
        make_app("SWEBench-v0", turn_timeout_s=-1)


def break_machine(process: ForkedProcess) -> None:
    """Kill the supervisor of a server's sandboxes, and wait until it has ended: a step may be faster than its death."""
    (supervisor,) = (
        pid
        for pid in descendants(process.pid)
        if "linux.supervisor" in Path(f"/proc/{pid}/cmdline").read_text()
        and int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == process.pid
    )
    os.kill(supervisor, signal.SIGKILL)
    assert wait_until(lambda: state_of(supervisor) in ("", "Z"), 60)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_failure_of_the_machine_is_an_error_and_no_reward(place: Path, start: Start) -> None:
    with served(start, SWEBENCH) as (process, address):
        with SwegymClient(base_url=address).sync() as client:
            client.reset(instance_id=TASK.instance_id)
            client.step(SwegymAction(tool_name="bash", arguments={"command": REPAIR}))
            break_machine(process)
            with pytest.raises(RuntimeError, match=r"the episode is invalid: SandboxError.*EXECUTION_ERROR"):
                client.step("<execute>ls</execute>")
            assert client.state().outcome.keys() == {"valid", "failure_reason"}
            assert client.state().outcome["valid"] is False
            with pytest.raises(RuntimeError, match="the episode is over"):
                client.step("submit")
            assert not client.reset(seed=0).done  # another episode can be played
        with MCPToolClient(base_url=address).sync() as client:
            client.reset(instance_id=TASK.instance_id)
            client.call_tool("bash", command=REPAIR)
            break_machine(process)
            with pytest.raises(RuntimeError, match="the episode is invalid: SandboxError"):
                client.call_tool("bash", command="ls")
            with pytest.raises(RuntimeError, match="the episode is over"):
                client.call_tool("submit")
        env = gymnasium.make("OpenEnv-v0", url=address)
        env.reset(options={"instance_id": TASK.instance_id})
        env.step(f"<execute>{REPAIR}</execute>")
        break_machine(process)
        observation, reward, terminated, truncated, info = env.step("<execute>ls</execute>")
        assert (reward, terminated, truncated, info["valid"]) == (0.0, False, True, False)
        assert "SandboxError" in info["failure_reason"] and "invalid" in observation
        env.reset(seed=0)
        process.kill()
        process.wait()
        *_, truncated, info = env.step("ls")
        assert truncated and info["valid"] is False and info["failure_reason"]
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step("ls")
        with pytest.raises(InfrastructureError, match="OpenEnv server http"):
            env.reset()
        env.close()


DYING = textwrap.dedent("""
    import sys
    from swegym_env.adapters.openenv_client import SwegymClient

    client = SwegymClient(base_url=sys.argv[1]).sync()
    client.reset(seed=0)
    client.step("<execute>setsid sleep 1000 & touch /tmp/there</execute>")
    print("ready", flush=True)
    client.step("<execute>sleep 1000</execute>")
""")


@pytest.mark.parametrize("dies", ["client", "server"])
def test_nothing_is_left_when_a_side_is_killed_in_a_turn(dies: str, start: Start) -> None:
    with own_run_directory() as alone, served(start, SWEBENCH) as (server, address):
        with start(DYING, address) as client:
            assert client.stdout.readline() == "ready\n"
            assert users(alone)
            below = descendants(server.pid)
            os.kill(client.pid if dies == "client" else server.pid, signal.SIGKILL)
            client.wait(60)
        assert eventually(lambda: not at_work(alone))
        if dies == "server":
            assert eventually(lambda: not users(alone) and not sandboxes(alone))
            assert eventually(lambda: not any(Path("/proc", str(pid), "exe").exists() for pid in below))
        else:  # the server goes on
            with SwegymClient(base_url=address).sync() as other:
                assert other.reset(seed=0).observation.text


def test_our_server_as_an_environment_passes_the_checks(ours: str) -> None:
    env = gymnasium.make("OpenEnv-v0", url=ours)
    direct = gymnasium.make("SWEBench-v0", action_format="swegym_env.adapters.openenv:CALLS")
    for one in (env, direct):
        one.reset(seed=3)
    assert env.reset(seed=5)[0] == direct.reset(seed=5)[0]
    steps = [each.step("<execute>ls; exit 3</execute>") for each in (env, direct)]
    assert steps[0][:4] == steps[1][:4]
    assert steps[0][4]["exit_code"] == steps[1][4]["exit_code"] == 3
    direct.close()
    _, info = env.reset(options={"instance_id": TASK.instance_id})
    assert info["instance_id"] == TASK.instance_id and info["tools"][0]["function"]["name"] == "bash"
    env.step(f"<execute>{REPAIR}</execute>")
    _, reward, terminated, truncated, info = env.step("submit")
    assert (reward, terminated, truncated, info["valid"], info["resolved"]) == (1.0, True, False, True, True)
    env.close()
    kept(lambda: gymnasium.make("OpenEnv-v0", url=ours), ["<execute>ls</execute>", "<execute>pwd</execute>"])


def kept(make: Callable[[], gymnasium.Env[str, str]], actions: list[str]) -> None:
    """Our checks and Gymnasium's find nothing."""
    found = check_env(make, actions=actions, max_steps=3)
    assert [finding for finding in found if finding.kept is False] == []
    assert len(found) == 11
    env = make()
    gymnasium_check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_openenvs_own_sample_is_an_environment_that_passes_the_checks(tmp_path: Path, start: Start) -> None:
    subprocess.run([OPENENV, "init", "sample", "-o", str(tmp_path)], check=True, capture_output=True)
    app = tmp_path / "sample/server/app.py"  # one session at a time is its default; the checks play two
    app.write_text(app.read_text().replace("max_concurrent_envs=1", "max_concurrent_envs=8"))
    with served(start, f"sys.path.insert(0, {str(tmp_path)!r})\nfrom sample.server.app import app") as (_, address):
        env = gymnasium.make("OpenEnv-v0", url=address)
        observation, info = env.reset(seed=0)
        assert observation == "Sample environment ready!" and info["tools"] == []
        observation, reward, terminated, truncated, info = env.step("hello")
        assert (observation, terminated, truncated) == ("hello", False, False)
        assert reward == pytest.approx(0.5)  # a tenth for each character, as its source says
        assert info["observation"]["message_length"] == 5
        assert info["metadata"] == {"original_message": "hello", "step": 1}
        env.close()
        kept(lambda: gymnasium.make("OpenEnv-v0", url=address), ["hello"])


def test_actions_of_other_types_are_read_as_json(guessing: Callable[[str], str]) -> None:
    env = gymnasium.make("OpenEnv-v0", url=guessing("Guess"), reset_options={"most": 4})
    assert env.reset(seed=7)[0] == "Guess a number from 0 to 4."
    assert env.reset(seed=7, options={"most": 5})[0] == "Guess a number from 0 to 5."
    for action, message in (("one", "not JSON"), ('"one"', "no action of this environment"), ("", "not JSON")):
        observation, reward, terminated, truncated, info = env.step(action)
        assert message in observation and info["action_error"] == observation
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step("2")[:4] == ("wrong", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step("1")  # 7 modulo 6
    assert (observation, reward, terminated, truncated, info["action_error"]) == ("right", 1.0, True, False, None)
    env.reset(seed=7)
    *_, truncated, info = env.step("-1")
    assert truncated and info["valid"] is False
    assert info["failure_reason"] == "RuntimeError: Server error: the machine is full (code: EXECUTION_ERROR)"
    env.close()


def test_tools_of_a_server_are_called_in_any_format(guessing: Callable[[str], str]) -> None:
    env = gymnasium.make("OpenEnv-v0", url=guessing("CallToolAction"))
    _, info = env.reset(seed=7)
    (function,) = (tool["function"] for tool in info["tools"])
    assert (function["name"], function["parameters"]["required"]) == ("guess", ["number"])
    call = '<tool_call>{"name": "guess", "arguments": {"number": %d}}</tool_call>'
    assert env.step(call % 3)[0] == "wrong"
    assert env.step(call % 7)[0] == "right"
    assert "No action found" in env.step("seven")[4]["action_error"]
    assert "nothing" in env.step('<tool_call>{"name": "nothing", "arguments": {}}</tool_call>')[0]
    env.close()


def as_number(text: str) -> dict[str, int]:
    if not text.isdigit():
        raise ValueError(f"{text} is no number")
    return {"number": int(text)}


def shouted(observation: dict[str, str]) -> str:
    return observation["reply"].upper()


def test_conversions_of_ones_own(guessing: Callable[[str], str]) -> None:
    own = {"action": f"{__name__}:as_number", "observation": f"{__name__}:shouted"}
    env = gymnasium.make("OpenEnv-v0", url=guessing("Guess"), **own)
    assert env.reset(seed=1)[0] == "GUESS A NUMBER FROM 0 TO 9."
    assert env.step("x")[4]["action_error"] == "x is no number"
    assert env.step("1")[:3] == ("RIGHT", 1.0, True)
    env.close()
    env = gymnasium.make("OpenEnv-v0", url=guessing("Guess"), action="json", observation="json")
    assert json.loads(env.reset(seed=1)[0]) == {"reply": "Guess a number from 0 to 9.", "metadata": {}}
    assert env.step("[1]")[4]["action_error"] == "The action is not a JSON object."
    assert env.step('{"number": 1}')[1] == 1.0
    env.close()
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        gymnasium.make("OpenEnv-v0", url="http://127.0.0.1:1", action="nowhere:nothing")


def test_sessions_on_threads(guessing: Callable[[str], str]) -> None:
    envs = gymnasium.make_vec("OpenEnv-v0", num_envs=2, url=guessing("Guess"))
    envs.reset(seed=[3, 4])
    _, rewards, *_ = envs.step(["3", "3"])
    assert list(rewards) == [1.0, 0.0]
    envs.close()


def test_an_abandoned_answer_ends_the_episode(ours: str) -> None:
    env = gymnasium.make("OpenEnv-v0", url=ours, timeout_s=2)
    env.reset(seed=0)
    began = time.monotonic()
    *_, truncated, info = env.step("<execute>sleep 4</execute>")
    assert time.monotonic() - began < 3.9
    assert truncated and info["valid"] is False and "Timeout" in info["failure_reason"]
    env.close()
