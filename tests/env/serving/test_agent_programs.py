"""Agent programs on a server, and behind a pool: the same episodes as on this machine."""

from __future__ import annotations

from swegym_env.programs.env import SWEAgentEnv
from swegym_env.tasks.task import Task
from tests.env.programs.conftest import SMALL
from tests.env.serving.conftest import Served


def test_an_agent_program_plays_on_a_server(service: Served, task: Task) -> None:
    env = SWEAgentEnv(tasks=[task], agent=SMALL, sandbox=service.url, pool=0)
    try:
        observation, info = env.reset(seed=0)
        assert (observation, info["system_prompt"]) == ("add subtracts", "You are an agent.")
        observation, *_, info = env.step("sed -i 's/a - b/a + b/' calc/add.py; pwd")
        assert observation == "/testbed\n[0]" and info["continues"] and "+    return a + b" in info["patch"]
        _, reward, terminated, _, info = env.step("submit")
        assert (reward, terminated, info["end_reason"], info["exit_code"]) == (1.0, True, "submitted", 0)
        env.reset(seed=0)
        *_, info = env.step("fail 3")
        assert (info["end_reason"], info["exit_code"], info["valid"]) == ("crashed", 3, True)
    finally:
        env.close()


def test_an_agent_that_asks_for_nothing_more_is_out_of_time_on_a_server(server: Served, task: Task) -> None:
    env = SWEAgentEnv(tasks=[task], agent=SMALL, sandbox=server.url, pool=0, turn_timeout_s=1.0)
    try:
        env.reset(seed=0)
        *_, truncated, info = env.step("sleep 600")
        assert (truncated, info["end_reason"]) == (True, "time")
    finally:
        env.close()
