"""smolagents on a task of `swegym_env`: its `ToolCallingAgent`, our sandbox and verdict.

    python examples/agent_smolagents.py                        # a scripted model applies the gold patch
    python examples/agent_smolagents.py --url URL --model NAME # any OpenAI-compatible server (pip install openai)

The shell of the episode is one tool; the agent's final answer is the submission.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from smolagents import ChatMessage, Model, Tool, ToolCallingAgent
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole

from swegym_env.env import SWEBenchEnv
from swegym_env.wrappers import RecordTrajectory

OVER = "The episode is over. Give your final answer."


class Shell(Tool):
    """The episode's shell as a tool. `env` must take raw commands and have been reset."""

    name = "bash"
    description = "Runs one command in the repository's sandbox and returns its output and exit code."
    inputs = {  # noqa: RUF012 - smolagents' own contract
        "command": {"type": "string", "description": "the command"}
    }
    output_type = "string"

    def __init__(self, env: Any) -> None:
        self.env, self.over, self.reward = env, False, 0.0
        self.info: dict[str, Any] = {}
        super().__init__()

    def forward(self, command: str) -> str:
        """Run one command, or say that no more can be run."""
        if self.over:
            return OVER
        observation, reward, terminated, truncated, self.info = self.env.step(command)
        print(f"\n>>> {command.splitlines()[0] if command else ''}\n{observation}")
        self.over = terminated or truncated
        self.reward += float(reward)
        return f"{observation}\n{OVER}" if self.over else str(observation)


class ScriptedModel(Model):
    """Calls the shell with these commands one after the other, then answers."""

    def __init__(self, commands: list[str]) -> None:
        super().__init__()
        self._calls = [("bash", {"command": command}) for command in commands]
        self._calls.append(("final_answer", {"answer": "repaired"}))

    def generate(self, messages: list[Any], **kwargs: Any) -> ChatMessage:
        """The next call."""
        name, arguments = self._calls.pop(0)
        call = ChatMessageToolCall(ChatMessageToolCallFunction(arguments, name), f"call-{len(self._calls)}", "function")
        return ChatMessage(role=MessageRole.ASSISTANT, content=None, tool_calls=[call])


def play(env: Any, model: Any, *, max_steps: int = 50) -> Shell:
    """One episode, already reset: the agent's loop, then its submission."""
    shell = Shell(env)
    agent = ToolCallingAgent(tools=[shell], model=model, max_steps=max_steps, verbosity_level=0)
    agent.run(env.get_wrapper_attr("task").problem_statement)
    if not shell.over:
        shell.forward("submit")
    return shell


def main() -> None:
    """Play one episode; print the issue, the turns and the verdict."""
    parser = argparse.ArgumentParser(description="smolagents on one task")
    parser.add_argument("--dataset", default="mini")
    parser.add_argument("--instance", default="mini__lrucache-001")
    parser.add_argument("--url", help="of an OpenAI-compatible server; without it a script applies the gold patch")
    parser.add_argument("--model", default="default", help="as the server names it")
    parser.add_argument("--record", default="", help="directory for the recorded episode")
    options = parser.parse_args()
    env: Any = SWEBenchEnv(options.dataset, action_format="raw", max_turns=100)
    if options.record:
        env = RecordTrajectory(env, options.record, notes={"agent": "smolagents", "model": options.model})
    env.reset(options={"instance_id": options.instance})
    print(env.get_wrapper_attr("task").problem_statement)
    if options.url:
        from smolagents import OpenAIServerModel

        model: Model = OpenAIServerModel(options.model, api_base=options.url, api_key="none")
    else:
        gold = env.get_wrapper_attr("task").patch
        model = ScriptedModel(["ls", f"git apply - <<'END_OF_PATCH'\n{gold}END_OF_PATCH"])
    played = play(env, model)
    env.close()
    shown = ("resolved", "fail_to_pass", "pass_to_pass", "end_reason")
    print(json.dumps({"reward": played.reward, **{key: played.info.get(key) for key in shown}}))


if __name__ == "__main__":
    main()
