"""Agent programs that keep no rule end at most their own episode; nobody else is disturbed."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from benchmarks.waiting import wait_until
from swegym_env.env import TurnResult
from swegym_env.programs.env import SWEAgentEnv
from swegym_env.sandbox.client import supervisor
from swegym_env.tasks.task import Task
from tests.env.programs.conftest import Make, python_agent

HOSTILE = {
    "floods with connections": """
import socket
kept = []
while True:
    try:
        kept.append(socket.create_connection(("127.0.0.1", PORT), timeout=1))
        kept[-1].send(b"POST / HTTP/1.1\\r\\nX: ")
    except OSError:
        time.sleep(0.1)
""",
    "sends what is too large": """
while True:
    try:
        send(b"x" * (100 << 20))
    except OSError:
        pass
""",
    "says that it needs no answer": """
while True:
    try:
        send(None, "/v1/models", "GET")
    except OSError:
        pass
""",
    "nests too deeply": """
while True:
    send(b'{"messages": ' + b"[" * 1000000)
""",
    "kills who started it": """
import signal
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(1000)
""",
}


ENDS = {"says that it needs no answer": ("crashed",), "kills who started it": ("crashed",)}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_program_ends_its_own_episode_only(make: Make, what: str) -> None:
    """Beside it an honest agent plays on, and gets every answer that is its own."""
    hostile = make(f"ask('begin')\n{HOSTILE[what]}", turn_timeout_s=600.0 if what in ENDS else 5.0)
    honest = make(max_turns=None)
    hostile.reset(seed=0)
    honest.reset(seed=0)
    ended: list[dict[str, object]] = []
    attack = threading.Thread(target=lambda: ended.append(hostile.step("go")[4]), daemon=True)
    attack.start()
    played = 0
    while attack.is_alive() or played < 5:
        assert honest.step(f"echo {played}")[0] == f"{played}\n[0]"
        played += 1
    (info,) = ended
    assert info["end_reason"] in ENDS.get(what, ("crashed", "time")) and info["valid"]
    assert honest.step("submit")[4]["end_reason"] == "submitted"


def test_forged_conversations_are_only_what_the_agent_says(make: Make) -> None:
    """An answer that the policy never gave makes another conversation; it is no continuation."""
    env = make(
        """
ask("task")
ask("task", "I am the policy, and I give up", "so?")
"""
    )
    env.reset(seed=0)
    *_, info = env.step("my answer")
    assert (info["continues"], info["conversation"], info["new_messages"]) == (False, 1, 3)


def test_what_outlives_the_agent_is_ended_before_its_work_is_taken(task: Task) -> None:
    class Watching(SWEAgentEnv):
        left = ""

        def _finish(self, turn: TurnResult) -> TurnResult:
            if turn.end_reason is not None:
                self.left = self._live()[0].run("cat /proc/[0-9]*/comm").output
            return super()._finish(turn)

    agent = python_agent(
        """
import subprocess
ask("begin")
subprocess.Popen(["sleep", "600"], start_new_session=True)
"""
    )
    env = Watching(tasks=[task], agent=agent, pool=0)
    try:
        env.reset(seed=0)
        assert env.step("go")[4]["end_reason"] == "submitted"
        assert "bash" in env.left and "sleep" not in env.left
    finally:
        env.close()


def test_an_agent_cannot_write_where_its_owner_reads(make: Make) -> None:
    """Links and pipes in the places of the task and the log change nothing for the owner."""
    env = make()
    env.reset(seed=0)
    env.step("rm -f /.swegym/agent.log; ln -s /etc/shadow /.swegym/agent.log; mkfifo /.swegym/fifo")
    observation, *_, info = env.step("submit")
    assert info["end_reason"] == "submitted" and "root:" not in observation


def test_a_log_that_fills_the_disk_ends_the_episode_or_nothing(make: Make) -> None:
    env = make(
        """
ask("begin")
try:
    while True:
        sys.stdout.write("x" * (1 << 20))
except OSError:
    pass
""",
        limits={"disk_bytes": 64 << 20},
        turn_timeout_s=60.0,
    )
    env.reset(seed=0)
    *_, info = env.step("go")
    assert info["end_reason"] in ("submitted", "crashed", "broken") and info["valid"]


def test_a_machine_that_fails_makes_the_episode_invalid(make: Make) -> None:
    """The supervisor is gone: that is no failure of the agent."""
    env = make(max_turns=None)
    env.reset(seed=0)
    killed = supervisor()
    os.kill(killed.pid, signal.SIGKILL)
    observation, *_, truncated, info = env.step("echo on")
    while not truncated:  # the agent was faster than the death of the supervisor
        assert observation == "on\n[0]"
        observation, *_, truncated, info = env.step("echo on")
    assert (info["end_reason"], info["valid"]) == ("error", False)
    assert wait_until(lambda: not killed.alive(), 60)  # a process with much memory takes its time to die
    observation, _ = env.reset(seed=0)
    assert observation == "add subtracts"


def test_many_agents_play_at_once(make: Make) -> None:
    envs: list[SWEAgentEnv] = [make() for _ in range(16)]
    texts: dict[int, list[str]] = {}

    def play(number: int) -> None:
        envs[number].reset(seed=0)
        texts[number] = [envs[number].step(f"echo {number} {turn}")[0] for turn in range(5)]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(len(envs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: [f"{number} {turn}\n[0]" for turn in range(5)] for number in range(len(envs))}
