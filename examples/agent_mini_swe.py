"""mini-swe-agent on a task of `swegym_env`: its own agent loop, our sandbox and verdict.

    python examples/agent_mini_swe.py                             # a scripted model applies the gold patch
    python examples/agent_mini_swe.py --model openai/gpt-5-mini   # any model that litellm knows (pip install litellm)

mini-swe-agent asks three methods of an environment; `GymEnvironment` answers them from any environment of this package.
`DefaultAgent(model, GymEnvironment(env), …)` then runs as everywhere else. For its YAML and its own commands there is
`swegym_env.adapters.mini_swe_agent`.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import LimitsExceeded, Submitted

from swegym_env.env import SWEBenchEnv
from swegym_env.wrappers import RecordTrajectory

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SYSTEM = f"""\
You repair a repository through a shell. Each answer holds exactly one command:

```mswea_bash_command
COMMAND
```

When the issue is resolved, run `{SUBMIT}`, alone."""


class GymEnvironment:
    """An episode as mini-swe-agent's environment. `env` must take raw commands and have been reset.

    Attributes:
        reward: sum over the episode so far.
        info: of the last step.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.config = None
        self.reward = 0.0
        self.info: dict[str, Any] = {}

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run one command. Raises Submitted or LimitsExceeded where the episode ends."""
        command = action.get("command", "")
        if command.strip() == SUBMIT:
            command = "submit"
        observation, reward, terminated, truncated, self.info = self.env.step(command)
        print(f"\n>>> {command.splitlines()[0] if command else ''}\n{observation}")
        self.reward += float(reward)
        if terminated or truncated:
            submitted = self.info["end_reason"] == "submitted"
            extra = {
                "exit_status": "Submitted" if submitted else self.info["end_reason"],
                "submission": self.info["patch"],
            }
            raise (Submitted if submitted else LimitsExceeded)({"role": "exit", "content": observation, "extra": extra})
        return {"output": observation, "returncode": self.info["exit_code"], "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """What the agent's templates may use: nothing of the host."""
        return {"system": "Linux", "cwd": "/testbed", **kwargs}

    def serialize(self) -> dict[str, Any]:
        """For the agent's own record."""
        return {"info": {"config": {"environment_type": "swegym_env"}}}


def scripted(commands: list[str]) -> Any:
    """A model that says these commands one after the other."""
    from minisweagent.models.test_models import DeterministicModel, make_output

    return DeterministicModel(outputs=[make_output(command, [{"command": command}]) for command in commands])


def play(env: Any, model: Any, *, step_limit: int = 0) -> GymEnvironment:
    """One episode, already reset: the agent's loop until it submits or a limit is reached."""
    environment = GymEnvironment(env)
    task = env.get_wrapper_attr("task").problem_statement
    agent = DefaultAgent(
        model, environment, system_template=SYSTEM, instance_template="{{task}}", step_limit=step_limit, cost_limit=0
    )
    agent.run(task)
    return environment


def main() -> None:
    """Play one episode; print the issue, the turns and the verdict."""
    parser = argparse.ArgumentParser(description="mini-swe-agent on one task")
    parser.add_argument("--dataset", default="mini")
    parser.add_argument("--instance", default="mini__lrucache-001")
    parser.add_argument("--model", help="as litellm names it; without it a script applies the gold patch")
    parser.add_argument("--record", default="", help="directory for the recorded episode")
    options = parser.parse_args()
    env: Any = SWEBenchEnv(options.dataset, action_format="raw", max_turns=100)
    if options.record:
        env = RecordTrajectory(env, options.record, notes={"agent": "mini-swe-agent", "model": options.model})
    env.reset(options={"instance_id": options.instance})
    print(env.get_wrapper_attr("task").problem_statement)
    if options.model:
        from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

        model = LitellmTextbasedModel(model_name=options.model)
    else:
        gold = env.get_wrapper_attr("task").patch
        model = scripted(["ls", f"git apply - <<'END_OF_PATCH'\n{gold}END_OF_PATCH", SUBMIT])
    played = play(env, model)
    env.close()
    shown = ("instance_id", "resolved", "fail_to_pass", "pass_to_pass", "end_reason")
    print(json.dumps({"reward": played.reward, **{key: played.info.get(key) for key in shown if key in played.info}}))


if __name__ == "__main__":
    main()
