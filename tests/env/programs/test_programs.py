"""An agent program is an environment: it asks, the policy answers, its work is graded."""

from __future__ import annotations

import _thread
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from swegym_env.errors import ConfigurationError, SandboxError
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.programs.spec import AgentSpec
from swegym_env.recording.record import read_record
from swegym_env.recording.recorder import RecordTrajectory
from swegym_env.recording.replay import replay
from swegym_env.sandbox.api import ProgramEnded
from swegym_env.sandbox.endpoint import Endpoint
from swegym_env.wrappers import TurnLimit
from tests.env.programs.conftest import SMALL, Make

REPAIR = "sed -i 's/a - b/a + b/' calc/add.py"


def test_a_request_is_the_observation_and_the_answer_the_action(make: Make, backend: str) -> None:
    env = make(sandbox=backend)
    observation, info = env.reset(seed=0)
    assert (info["system_prompt"], observation, info["tools"]) == ("You are an agent.", "add subtracts", [])
    assert info["messages"] == [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "add subtracts"},
    ]
    assert info["request"] == {"model": "policy", "messages": info["messages"]}
    assert (info["protocol"], info["continues"], info["conversation"]) == ("chat", False, 0)
    observation, reward, terminated, truncated, info = env.step(f"{REPAIR} && pwd")
    assert (observation, reward, terminated, truncated) == ("/testbed\n[0]", 0.0, False, False)
    assert info["continues"] and info["new_messages"] == 1 and len(info["messages"]) == 4
    assert "+    return a + b" in info["patch"]
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["end_reason"], info["resolved"]) == (1.0, True, "submitted", True)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("submit")


def test_no_answer_is_lost_after_an_interrupted_step(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        env.step("sleep 1")
    with pytest.raises(gymnasium.error.ResetNeeded, match="the last step was interrupted"):
        env.step("echo the answer")
    env.reset(seed=0)
    assert env.step("echo again")[0] == "again\n[0]"


def test_nothing_but_its_own_loopback_is_reached(make: Make, backend: str) -> None:
    """Neither the machine's loopback, where this test listens, nor an address outside, nor the owner's other ports."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        env = make(sandbox=backend)
        env.reset(seed=0)
        attempts = " ".join(f"{host}/{number}" for host, number in (("127.0.0.1", port), ("192.0.2.1", 80)))
        connect = f'for place in {attempts}; do timeout 2 bash -c "</dev/tcp/$place" && echo REACHED; done'
        observation, *_ = env.step(f"({connect}) 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1")
        assert observation.split() == ["lo", "[0]"]
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_no_program_inside_can_take_the_place_of_the_model(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    bind = (
        "import socket; s = socket.socket(); s.setsockopt(1, 15, 1); s.setsockopt(1, 2, 1); s.bind(('127.0.0.1', 8390))"
    )
    observation, *_ = env.step(f'python3 -c "{bind}" 2>&1 | tail -n 1')
    assert "Address already in use" in observation


def test_a_program_that_fails_ends_the_episode_and_its_work_is_graded(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    env.step(REPAIR)
    observation, reward, terminated, truncated, info = env.step("fail 3")
    assert (info["end_reason"], info["exit_code"], info["valid"], info["resolved"]) == ("crashed", 3, True, True)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert "this agent fails\n[exit code 3]" in observation


def test_a_program_that_is_killed_has_failed(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    *_, info = env.step("kill -9 -- -1")
    assert (info["end_reason"], info["exit_code"], info["valid"]) == ("crashed", -1, True)


def test_a_program_that_asks_for_nothing_is_an_error_of_reset(make: Make) -> None:
    with pytest.raises(
        SandboxError, match=r"ended with exit code 7 before its first request: no model here\. Try: swegym"
    ):
        make(AgentSpec(command="echo no model here; exit 7")).reset(seed=0)


def test_after_the_last_turn_the_agent_acts_and_is_graded(make: Make) -> None:
    env = make(max_turns=1)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(REPAIR)
    assert (info["end_reason"], info["resolved"], reward, terminated) == ("max_turns", True, 1.0, True)


def test_wrappers_end_the_episode(make: Make) -> None:
    env = TurnLimit(make(), 2)
    env.reset(seed=0)
    observation, *_, info = env.step(REPAIR)
    assert observation.endswith(TurnLimit.announcement) and "end_reason" not in info
    *_, info = env.step("echo on")
    assert (info["end_reason"], info["resolved"]) == ("max_turns", True)


def test_an_agent_that_asks_for_nothing_more_is_out_of_time(make: Make) -> None:
    env = make(turn_timeout_s=1.0)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("sleep 600")
    assert (reward, terminated, truncated, info["end_reason"], info["valid"]) == (0.0, False, True, "time", True)


def test_the_time_of_the_model_is_not_the_agents(make: Make) -> None:
    """What counts is at most what `reset` and `step` took; three seconds passed between them."""
    env = make(episode_timeout_s=3600)
    began = time.monotonic()
    env.reset(seed=0)
    called_s = time.monotonic() - began
    for _ in range(3):
        time.sleep(1)
        began = time.monotonic()
        env.step("true")
        called_s += time.monotonic() - began
    assert 0 < env._elapsed_s() <= called_s


def test_the_work_of_the_agent_is_limited(make: Make) -> None:
    env = make(episode_timeout_s=2.0)
    env.reset(seed=0)
    for _ in range(100):
        *_, truncated, info = env.step("sleep 0.3")
        if truncated:
            break
    assert info["end_reason"] == "time"


def test_requests_at_once_are_observed_in_order_and_each_gets_its_answer(make: Make) -> None:
    env = make(
        """
found = {}
def one(name):
    found[name] = ask(name)
ask("begin")
threads = [threading.Thread(target=one, args=(f"thread {n}",)) for n in range(3)]
for thread in threads:
    thread.start()
    time.sleep(0.2)
for thread in threads:
    thread.join()
ask(json.dumps(found, sort_keys=True))
"""
    )
    assert env.reset(seed=0)[0] == "begin"
    observation, *_ = env.step("go")
    seen = [observation]
    for _ in range(3):
        observation, *_, info = env.step(f"answer to {observation}")
        seen.append(observation)
    names = [f"thread {n}" for n in range(3)]
    assert sorted(seen[:3]) == names
    assert json.loads(seen[3]) == {name: f"answer to {name}" for name in names}
    assert info["conversation"] == 4 and not info["continues"]


def test_other_conversations_are_named_and_the_first_goes_on(make: Make) -> None:
    """The agent writes its own answer again with other blanks, asks for a title between, then forgets a message."""
    env = make(
        """
one = ask("task")
ask("Title?")
two = ask("task", f"  {one} \\n", "more")
ask("task", one, "other words")
"""
    )
    _, info = env.reset(seed=0)
    places = [(info["conversation"], info["continues"], info["new_messages"])]
    for number in range(3):
        observation, *_, info = env.step(f"answer {number}")
        places.append((info["conversation"], info["continues"], info["new_messages"]))
    assert places == [(0, False, 1), (1, False, 1), (0, True, 1), (2, False, 3)]
    assert observation == "[user]\ntask\n\n[assistant]\nanswer 0\n\n[user]\nother words"


def test_an_answer_that_the_agent_writes_more_after_goes_on_with_what_is_added(make: Make) -> None:
    env = make(
        """
one = ask("task", stop=["</code>"])
two = ask("task", f"{one}</code>\\nCalling tools", "seen", stop=["</code>"])
ask("task", f"{one}</code>\\nCalling tools", "seen", f"{two}</code>", "more")
ask("task", "other" + one, "seen")
"""
    )
    env.reset(seed=0)
    places = []
    for number in range(3):
        observation, *_, info = env.step(f"<code>{number}</code> and so on")
        places.append((observation, info["conversation"], info["continues"], info["new_messages"]))
    assert places[0] == ("[assistant]\n\nCalling tools\n\n[user]\nseen", 0, True, 1)
    assert places[1] == ("more", 0, True, 1)
    assert places[2][1:] == (1, False, 3)


def test_requests_that_need_no_model_are_answered_without_the_policy(make: Make) -> None:
    env = make(
        """
aside = [send(None, "/v1/models", "GET"), send(None, "/v1/embeddings"), send("{}"), send("no json"),
         send(json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 2}))]
ask(json.dumps(aside))
"""
    )
    observation, _ = env.reset(seed=0)
    (models, *refused) = json.loads(observation)
    assert models[0] == 200 and json.loads(models[1])["data"][0]["id"] == "policy"
    assert [status for status, _ in refused] == [404, 400, 400, 400]
    assert all(json.loads(body)["error"]["message"] for _, body in refused)
    assert "n=2" in refused[-1][1]


def test_an_answer_to_a_closed_connection_is_given_when_the_request_is_repeated(make: Make) -> None:
    env = make(
        """
import socket
body = json.dumps({"messages": [{"role": "user", "content": "patient?"}]})
request = f"POST /v1/chat/completions HTTP/1.1\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}"
impatient = socket.create_connection(("127.0.0.1", PORT))
impatient.sendall(request.encode())
while not os.path.exists("/tmp/observed"):
    time.sleep(0.05)
impatient.close()
again = json.loads(send(body)[1])["choices"][0]["message"]["content"]
ask(again)
"""
    )
    assert env.reset(seed=0)[0] == "patient?"
    env._live()[0].write("/tmp/observed", b"")
    time.sleep(1)  # it has hung up, or else its answer arrives: the assertion holds for both
    observation, *_ = env.step("here it is")
    assert observation == "here it is"


def test_an_agent_in_a_loop_of_useless_requests_has_failed(make: Make) -> None:
    env = make(
        """
ask("begin")
while True:
    send("no json")
"""
    )
    env.reset(seed=0)
    *_, info = env.step("go")
    assert (info["end_reason"], info["valid"]) == ("crashed", True)


def test_episodes_are_recorded_and_replayed(make: Make, task: Any, tmp_path: Path) -> None:
    env = RecordTrajectory(make(), tmp_path)
    env.reset(seed=0)
    env.step("cat calc/add.py")
    env.step(REPAIR)
    env.step("submit")
    assert env.last_record is not None
    record = read_record(env.last_record)
    assert record.meta["environment"]["arguments"]["agent"] == str(SMALL)
    assert "request" not in record.turns[1].info
    assert [message["content"] for message in record.turns[1].info["messages"]] == [record.turns[1].observation]
    result = replay(record)
    assert (result.divergence, result.agreed) == (None, 3)


def test_it_is_registered_and_many_play_at_once() -> None:
    envs = gymnasium.make_vec("SWEAgent-v0", num_envs=2, agent=str(SMALL), dataset="mini", pool=0)
    try:
        _, infos = envs.reset(seed=0)
        assert [len(messages) for messages in infos["messages"]] == [2, 2]
        observations, *_ = envs.step(["echo one", "echo two"])
        assert list(observations) == ["one\n[0]", "two\n[0]"]
        *_, terminated, _, _ = envs.step(["submit", "submit"])
        assert list(terminated) == [True, True]
    finally:
        envs.close()


def test_a_sandbox_that_was_started_ahead_has_an_agent_that_waits(make: Make) -> None:
    env = make(pool=1)
    env.reset(seed=0)
    env.step("echo first")
    observation, info = env.reset()
    assert (observation, len(info["messages"])) == ("add subtracts", 2)
    assert env.step("pwd")[0] == "/testbed\n[0]"


def test_gymnasium_finds_nothing_wrong() -> None:
    env = gymnasium.make("SWEAgent-v0", agent=str(SMALL), dataset="mini", pool=0, max_turns=3)
    try:
        check_env(env.unwrapped, skip_render_check=True)
    finally:
        env.close()


def test_a_running_program_cannot_be_saved(make: Make) -> None:
    env = make()
    for name in ("snapshot", "restore", "fork"):
        assert not hasattr(env, name)
        with pytest.raises(AttributeError, match="a running program"):
            getattr(env, name)


def test_episodes_leave_nothing(make: Make) -> None:
    env = make()
    env.reset(seed=0)
    env.step("submit")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        env.reset(seed=0)
        for number in range(20):
            env.step(f"echo {number}")
        env.step("submit")
    assert len(os.listdir("/proc/self/fd")) <= before


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="no agent 'nobody': give "):
        SWEAgentEnv(agent="nobody")
    with pytest.raises(ConfigurationError, match="turn_timeout_s"):
        SWEAgentEnv(agent=SMALL, turn_timeout_s=0)


def test_requests_aside_do_not_go_on_after_the_time_is_over(make: Make) -> None:
    """Reading what needs no model is the owner's work, and the agent may send much of it ahead."""
    env = make(
        """
import socket
threading.Thread(target=ask, args=("begin",)).start()
one = socket.create_connection(("127.0.0.1", PORT))
one.sendall(b"GET /v1/models HTTP/1.1\\r\\n\\r\\n" * 100)
open("/tmp/sent", "w").close()
time.sleep(600)
"""
    )
    env.reset(seed=0)
    sandbox = env._live()[0]
    sandbox.run("until [ -e /tmp/sent ]; do sleep 0.05; done")
    endpoint = sandbox.endpoint()
    assert isinstance(endpoint, Endpoint)
    before = endpoint._numbers
    assert env._wait(-1.0) is None
    assert endpoint._numbers - before < 10


def test_nothing_that_an_agent_asks_or_leaves_behind_raises_an_error(
    make: Make, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that hurt, an output file that nobody can read to its end, and programs that go on after the end."""
    monkeypatch.setattr("swegym_env.programs.env._END_TIMEOUT_S", 2.0)  # the file is read that long
    env = make(
        f"""
import socket, subprocess
ask("begin")
def raw(data):
    with socket.create_connection(("127.0.0.1", PORT)) as one:
        one.sendall(data)
        return one.recv(100)[9:12].decode()
found = [raw(b"GET / HTTP/1.1\\r\\nX:" + b" " * 60000 + b"\\0\\r\\n\\r\\n"), raw(b"swegym-agent\\n0\\n" + b"x" * 70000)]
deep = "[" * 960 + "]" * 960
call = {{"id": "1", "type": "function", "function": {{"name": "f", "arguments": deep}}}}
found.append(ask("deep", messages=[{{"role": "assistant", "content": None, "tool_calls": [call]}}]))
found.append(ask("\\ud800", modalities=7)[:3])
ask(" ".join(found))
subprocess.run(["bash", "-c", {REPAIR!r}])
os.rename("/.swegym/agent.log", "/.swegym/other.log")
os.mkfifo("/.swegym/agent.log")
subprocess.Popen(["bash", "-c", "while sleep 0.1; do :; done"], start_new_session=True)
""",
        sandbox=backend,
    )
    env.reset(seed=0)
    env.step("go")
    observation, *_ = env.step("answered")
    assert observation == "400 431 answered 400"
    *_, info = env.step("end")
    assert (info["end_reason"], info["resolved"], info["valid"]) == ("submitted", True, True)


def test_nothing_goes_on_after_the_end_though_the_agent_has_replaced_what_ends_it(make: Make, backend: str) -> None:
    """The next shell gets functions of the agent, which start a program after everything was killed."""
    env = make(
        r"""
threading.Thread(target=ask, args=("begin",)).start()
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
late = "setsid bash -c 'while sleep 0.05; do echo >>/testbed/late; done' &>/dev/null &"
with open("/.swegym/state", "w") as state:
    state.write(f"tail() {{ {late} echo replaced; }}\nexit() {{ :; }}\nkill() {{ :; }}\n")
os.kill(-1, 9)
""",
        sandbox=backend,
    )
    env.reset(seed=0)
    sandbox, workspace = env._live()
    sandbox.write("/tmp/go", b"")
    assert env._wait(60) == ProgramEnded(-1)
    assert env._end_all() == "replaced\n"
    before = workspace.patch(sandbox, fresh=True)
    time.sleep(0.5)
    assert workspace.patch(sandbox, fresh=True) == before


def test_the_end_of_the_output_is_shown_though_the_shell_that_reads_it_is_killed(make: Make) -> None:
    """As by an agent that kills everything, itself first: its end is known before the shell has died."""
    env = make(
        r"""
threading.Thread(target=ask, args=("begin",)).start()
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
print("the last words", flush=True)
with open("/.swegym/state", "w") as state:
    state.write("kill() { [ -e /tmp/once ] || { : >/tmp/once; builtin kill -9 $$; }; }\n")
os.kill(-1, 9)
"""
    )
    env.reset(seed=0)
    sandbox, _ = env._live()
    sandbox.write("/tmp/go", b"")
    assert env._wait(60) == ProgramEnded(-1)
    sandbox.run(":")  # the shell that the agent has killed may be dying still
    assert env._end_all().endswith("the last words\n")
