"""Third-party agents play an episode of `mini`, each in its own loop, with a scripted model."""

import json
import os
import sys

import pytest

from tests.programs import ROOT, run_to_end


def _run(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MSWEA_GLOBAL_CONFIG_DIR": f"{arguments[-1]}/config"}
    command = [sys.executable, str(ROOT / "examples" / program), *arguments]
    ran = run_to_end(command, environment)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize("program", ["agent_mini_swe.py", "agent_smolagents.py"])
def test_third_party_agent_solves_a_task(program, tmp_path):
    *shown, last = _run(program, "--instance", "mini__lrucache-001", "--record", str(tmp_path)).splitlines()
    *_, first, second, third = (line for line in shown if line.startswith(">>> "))  # the issue has such lines too
    assert first == ">>> ls" and second.startswith(">>> git apply") and third == ">>> submit"
    assert "lrucache" in shown[shown.index(first) + 1 :]
    summary = json.loads(last)
    assert summary["resolved"] is True and summary["reward"] == 1.0 and summary["end_reason"] == "submitted"
    assert summary["fail_to_pass"][0] == summary["fail_to_pass"][1] > 0
    (record,) = tmp_path.glob("mini__lrucache-001__*/traj.json")
    actions = [turn["action"] for turn in json.loads(record.read_text())["turns"]]
    assert actions[0] == "ls" and actions[-1] == "submit" and len(actions) == 3


PLAYED = """
import sys
sys.path.insert(0, "examples")
import {module} as agent
from swegym_env.env import SWEBenchEnv
env = SWEBenchEnv("mini-edit", action_format="raw", max_turns=2)
env.reset(seed=0)
played = agent.play(env, {model})
print(played.info["end_reason"], played.info["resolved"], played.reward)
env.close()
"""


@pytest.mark.parametrize(
    ("module", "model"),
    [
        ("agent_mini_swe", "agent.scripted(['ls', 'cat nowhere', 'ls'])"),
        ("agent_smolagents", "agent.ScriptedModel(['ls', 'cat nowhere', 'ls'])"),
    ],
)
def test_end_of_an_episode_ends_the_agents_loop(module, model, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path)}
    program = PLAYED.format(module=module, model=model)
    ran = run_to_end([sys.executable, "-c", program], environment)
    assert ran.stdout.splitlines()[-1:] == ["max_turns False 0.0"], ran.stderr[-2000:]
